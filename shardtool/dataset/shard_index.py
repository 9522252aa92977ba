"""The index of one shard, as columns: where every sample and field lies, whoever says so.

It comes from the bytes of a sidecar (`sidecar.read_sidecar`), from a walk over the shard (`walked_index`), or from
what a worker wrote (`sidecar.index_of`). No object is made for a sample: ten million of them are a few arrays.
As one block of bytes, processes can share it.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import numpy as np
import pyarrow as pa

from shardtool.dataset.walk import Survey, walked_text
from shardtool.entries.arrow import coded_strings, number_array, string_array, strings
from shardtool.errors import CorruptShard, printable
from shardtool.fingerprint import content_digest
from shardtool.storage.places import base_name
from shardtool.values import RESERVED, Kind, is_utf8, output_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.skipped import Skipped
    from shardtool.storage.shared import JoinedBlocks, SharedBlocks

    # For reading, they are int32 where the shard is smaller than 2 GiB, which halves what an index takes.
    Places = NDArray[np.int64]

# The columns of a sidecar, and what else it says of its shard.


_OF_FIELD = {"name": pa.string(), "offset": pa.uint64(), "length": pa.uint64(), "crc32c": pa.uint32()}
FIELD = pa.struct([pa.field(name, kind, nullable=False) for name, kind in _OF_FIELD.items()])


class FieldRow(TypedDict):
    """A field of a sample, as a sidecar has it; `crc32c` is None where it is not known."""

    name: str
    offset: int
    length: int
    crc32c: int | None


def _schema(field: pa.DataType) -> pa.Schema:
    fields = pa.list_(pa.field("element", field, nullable=False))
    kinds = {"__key__": pa.string(), "__offset__": pa.uint64(), "__size__": pa.uint64(), "__fields__": fields}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


SCHEMA = _schema(FIELD)
SHARD = pa.field("__shard__", pa.string(), nullable=False)
OWN_COLUMNS = (*SCHEMA.names, SHARD.name)  # all others are metadata
# For shards whose payloads were not read: checksums are null.
UNREAD = _schema(pa.struct([one.with_nullable(one.name == "crc32c") for one in FIELD]))


class MadeFact(NamedTuple):
    """Facts of a shard of changed samples, which its plan could not know.

    Attributes:
        content: The content fingerprint of the shard.
        consumed: How many of the samples planned for it are dealt with.
        dropped: How many of these the user's function dropped.
        skipped: How many of them were left out.
        left_out: Which, and why; empty where that is not kept, since another run shall try them again.
    """

    content: int
    consumed: int
    dropped: int
    skipped: int
    left_out: tuple[Skipped, ...] = ()


class ShardFact(NamedTuple):
    """The facts of a shard in its sidecar.

    Attributes:
        name: The shard's file name.
        size: Bytes.
        crc: CRC-32C of the file; None: unknown, since it was not read.
        plan: The fingerprint of the shard's plan; empty where no plan is known.
        made: What transforms made of the samples; None: they are as in the source.
        first: The name of the first shard of its run; empty where no plan is known.
        shards: How many shards that run was to make, at least, when this one was written; None: unknown.
    """

    name: str
    size: int
    crc: int | None
    plan: str
    made: MadeFact | None = None
    first: str = ""
    shards: int | None = None


class ShardTally(NamedTuple):
    """The figures of a shard that the dataset file lists or adds up: `fields` is how many samples have each."""

    samples: int
    first_key: str
    last_key: str
    fields: dict[str, int]
    field_bytes: int


def with_shard(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the sidecar of a table: with the shard's name behind the key, so that many read as one."""
    return schema.insert(1, SHARD)


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return a sidecar's columns and their types, as the dataset file lists them."""
    return {column.name: str(column.type) for column in schema}


_NULL = "null"  # the type of a column without a value: it goes with any


def join_types(known: dict[str, str], more: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Take further columns with their types, of each the first type that holds values.

    Args:
        known: The columns so far, to which they are added.
        more: Those of other sidecars.

    Yields:
        A column of metadata that has another type there, and both types.
    """
    for name, kind in more.items():
        before = known.setdefault(name, kind)
        if before == _NULL:
            known[name] = kind
        elif kind not in (before, _NULL) and not name.startswith("__"):
            yield name, before, kind


FIELDS = "__fields__"
_SMALL = 2**31
_NO_FACT = ShardFact("", -1, None, "")
_ALIGNED = 8
_PLACES = ("key_ends", "starts", "sizes", "firsts", "offsets", "lengths")


@dataclass(frozen=True)
class ShardIndex:
    """Where the samples of a shard lie.

    Attributes:
        keys: Their bytes, end to end.
        key_ends: [samples + 1]: where each key starts in `keys`, and where the last one ends.
        starts: [samples]: the first byte of each sample's first record.
        sizes: [samples]: bytes to the end of its last record.
        firsts: [samples + 1]: where its fields start in the columns below.
        names: The field names that `codes` stands for.
        codes: [fields].
        offsets: [fields]: where payloads start in the shard.
        lengths: [fields]: bytes.
        crcs: uint32 [fields]: CRC-32C; None where they are not known.
        kinds: What each of `names` holds in a TFRecord that was walked: `bytes`, `int64` or `float`; else empty.
        fact: What is said of the shard: by its sidecar, or a walk.
        metadata: The other columns of its sidecar, one chunk each; text may be dictionaries. Empty if not wanted.
        schema: All columns of the sidecar and their types, with metadata that was not wanted.
        walk: What the walk found; None: no walk was needed.
        damage: What is wrong with the sidecar, where the shard was walked for that.
    """

    keys: bytes | memoryview = field(repr=False)
    key_ends: Places = field(repr=False)
    starts: Places = field(repr=False)
    sizes: Places = field(repr=False)
    firsts: Places = field(repr=False)
    names: tuple[str, ...]
    codes: NDArray[np.integer] = field(repr=False)
    offsets: Places = field(repr=False)
    lengths: Places = field(repr=False)
    crcs: NDArray[np.uint32] | None = field(repr=False)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    fact: ShardFact = _NO_FACT
    metadata: pa.Table = field(default_factory=lambda: pa.Table.from_arrays([], names=[]), repr=False)
    schema: pa.Schema = field(default=SCHEMA, repr=False)
    walk: Survey | None = field(default=None, repr=False)
    damage: CorruptShard | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def counts(self) -> Places:
        """[samples]: fields."""
        return np.diff(self.firsts)

    @property
    def key_sizes(self) -> Places:
        """[samples]: bytes of each key."""
        return np.diff(self.key_ends)

    @property
    def error(self) -> CorruptShard | None:
        """Where the walk ended too early: the samples end there."""
        return None if self.walk is None else self.walk.error

    @property
    def problems(self) -> tuple[CorruptShard, ...]:
        """What is wrong with the sidecar, and with a shard that was walked."""
        return tuple(one for one in (self.damage, self.error) if one is not None)

    @property
    def version(self) -> int:
        """The version of the sidecar's format."""
        return 2 if SHARD.name in self.schema.names else 1

    def owners(self) -> NDArray[np.int64]:
        """Return the sample that each field belongs to."""
        return np.repeat(np.arange(len(self)), self.counts)

    # As a table.

    @cached_property
    def table(self) -> pa.Table:
        """The columns of the sidecar but for the shard's name; text may be dictionaries."""
        names = pa.DictionaryArray.from_arrays(number_array(self.codes.astype(np.int32)), strings(self._field_names()))
        return self._table(names, self.metadata)

    def plain_table(self) -> pa.Table:
        """Return the same without dictionaries."""
        return self._table(coded_strings(self._field_names(), self.codes), self.plain_metadata())

    def plain_metadata(self) -> pa.Table:
        """Return the metadata without dictionaries."""
        schema = pa.schema([self.schema.field(name) for name in self.metadata.column_names])
        return self.metadata if self.metadata.schema.equals(schema) else self.metadata.cast(schema)

    def _field_names(self) -> list[bytes]:
        return [name.encode() for name in self.names]

    def _table(self, names: pa.Array, metadata: pa.Table) -> pa.Table:
        own = UNREAD if self.crcs is None else SCHEMA
        crcs = pa.nulls(len(self.codes), pa.uint32()) if self.crcs is None else number_array(self.crcs)
        parts = [names, _unsigned(self.offsets), _unsigned(self.lengths), crcs]
        kinds = [one.with_type(part.type) for one, part in zip(own.field(FIELDS).type.value_type, parts, strict=True)]
        element = pa.field("element", pa.struct(kinds), nullable=False)
        fields, firsts = pa.StructArray.from_arrays(parts, fields=kinds), number_array(self.firsts.astype(np.int32))
        lists = pa.ListArray.from_arrays(firsts, fields, type=pa.list_(element))
        keys = string_array(bytes(self.keys), self.key_sizes)
        columns = [keys, _unsigned(self.starts), _unsigned(self.sizes), lists, *metadata.columns]
        schema = [*[*own][:-1], pa.field(FIELDS, lists.type, nullable=False), *metadata.schema]
        return pa.Table.from_arrays(columns, schema=pa.schema(schema))

    # Its samples.

    def keys_of(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the keys of some samples."""
        starts, ends, keys = self.key_ends[rows].tolist(), self.key_ends[rows + 1].tolist(), self.keys
        return [str(keys[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def all_keys(self) -> list[bytes]:
        """Return the keys of all samples."""
        keys, ends = bytes(self.keys), self.key_ends.tolist()
        return [keys[start:end] for start, end in pairwise(ends)]

    def row_of(self, key: bytes) -> int:
        """Return the first sample of a key; -1 where there is none."""
        if not key:
            empty = np.flatnonzero(self.key_sizes == 0)
            return int(empty[0]) if len(empty) else -1
        keys, at = bytes(self.keys), -1
        while (at := keys.find(key, at + 1)) >= 0:
            row = int(np.searchsorted(self.key_ends, at, side="right")) - 1
            if row < len(self) and self.key_ends[row] == at and self.key_ends[row + 1] == at + len(key):
                return row
        return -1

    def field_counts(self, rows: NDArray[np.int64]) -> list[int]:
        """Return how many of some samples have each of `names`."""
        counts = self.counts[rows]
        flat = np.repeat(self.firsts[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        found: list[int] = np.bincount(self.codes[flat], minlength=len(self.names)).tolist()
        return found

    def tally(self) -> ShardTally:
        """Return what the dataset file lists of the shard, or adds up."""
        first, last = (self.keys_of(np.array([0, len(self) - 1]))) if len(self) else ("", "")
        fields: Counter[str] = Counter()
        for name, count in zip(self.names, np.bincount(self.codes, minlength=len(self.names)).tolist(), strict=True):
            fields[name] += count
        return ShardTally(len(self), first, last, dict(+fields), int(self.lengths.sum()))

    def codes_by_name(self) -> tuple[list[bytes], bytes]:
        """Return the fields, in the order of their names, and uint16 per payload: which of them it is."""
        names = sorted(self.names)
        places = np.array([names.index(name) for name in self.names], "<u2")
        return [name.encode() for name in names], places[self.codes].tobytes()

    def fingerprint(self) -> int | None:
        """Return the content fingerprint of a tar shard's samples; None where there are no checksums.

        That of a TFRecord is not known from its sidecar: a number there counts by its text.
        """
        if self.crcs is None:
            return None
        names, codes = self.codes_by_name()
        lengths, crcs = self.lengths.astype("<i8").tobytes(), self.crcs.astype("<u4").tobytes()
        return content_digest(self.all_keys(), self.counts.tolist(), names, codes=codes, lengths=lengths, crcs=crcs)

    # For reading.

    def for_reading(self) -> ShardIndex:
        """Return what a reader needs, in the least memory: no metadata, and no field that has the name of a key."""
        index = self._without_reserved()
        last = int(index.starts[-1] + index.sizes[-1]) if len(index) else 0
        place = np.int32 if max(last, len(index.keys)) < _SMALL else np.int64
        columns: dict[str, Any] = {name: getattr(index, name).astype(place) for name in _PLACES}
        codes = index.codes.astype(np.uint8 if len(index.names) <= np.iinfo(np.uint8).max else np.uint32)
        return ShardIndex(
            keys=index.keys, names=index.names, codes=codes, crcs=index.crcs, kinds=index.kinds, **columns
        )

    def _without_reserved(self) -> ShardIndex:
        """Return it without fields that have a name of what every sample has, such as its key: no shard gives these."""
        reserved = [code for code, name in enumerate(self.names) if name.encode() in RESERVED]
        if not reserved:
            return self
        kept = ~np.isin(self.codes, reserved)
        counts = np.bincount(self.owners()[kept], minlength=len(self))
        crcs = None if self.crcs is None else self.crcs[kept]
        codes, offsets, lengths = self.codes[kept], self.offsets[kept], self.lengths[kept]
        return replace(self, firsts=ends_of(counts), codes=codes, offsets=offsets, lengths=lengths, crcs=crcs)

    @property
    def is_shared(self) -> bool:
        """Whether its columns lie in a block that processes share."""
        return isinstance(self.keys, memoryview)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory, about, without metadata."""
        return len(self.keys) + sum(column.nbytes for column in self._columns().values())

    def _columns(self) -> dict[str, NDArray[np.generic]]:
        columns = {name: getattr(self, name) for name in (*_PLACES, "codes")}
        return columns if self.crcs is None else {**columns, "crcs": self.crcs}

    def packed(self) -> list[tuple[int, bytes | memoryview]]:
        """Return the columns as one block of bytes: parts of it, and where each stands. The last one ends the block."""
        columns = self._columns()
        facts = {name: (column.dtype.str, len(column)) for name, column in columns.items()}
        head = json.dumps([self.names, self.kinds, facts]).encode()
        head = len(head).to_bytes(_ALIGNED, "little") + head
        parts, at = [(0, cast("bytes | memoryview", head))], _aligned(len(head))
        for column in columns.values():
            parts.append((at, column.tobytes()))
            at = _aligned(at + column.nbytes)
        return [*parts, (at, self.keys)]

    def put_into(self, blocks: SharedBlocks | JoinedBlocks, number: int) -> ShardIndex:
        """Return the index as it now lies in shared blocks, as block `number`; itself where there is no room for it."""
        parts = self.packed()
        block = blocks.write(number, parts[-1][0] + len(parts[-1][1]), parts)
        return self if block is None else ShardIndex.unpacked(block)

    @classmethod
    def unpacked(cls, block: bytes | memoryview) -> ShardIndex:
        """Return the index that `packed` made a block of; its columns lie there."""
        size = int.from_bytes(block[:_ALIGNED], "little") + _ALIGNED
        names, kinds, facts = json.loads(bytes(block[_ALIGNED:size]))
        columns, at = dict[str, Any](), _aligned(size)
        for name, (dtype, count) in facts.items():
            columns[name] = np.frombuffer(block, dtype, count, at)
            at = _aligned(at + columns[name].nbytes)
        return cls(**{"crcs": None, **columns}, names=tuple(names), kinds=kinds, keys=block[at:])


def walked_index(found: Survey) -> ShardIndex:
    """Return what a walk found, with names as a sidecar has them."""
    keys, names = _texts(found.keys), tuple(walked_text(name) for name in found.names)
    crcs = np.frombuffer(found.crcs, np.uint32) if found.crcs or not found.codes else None
    return ShardIndex(
        keys=b"".join(keys),
        key_ends=ends_of([len(key) for key in keys]),
        starts=np.frombuffer(found.starts, np.int64),
        sizes=np.frombuffer(found.sizes, np.int64),
        firsts=ends_of(np.frombuffer(found.counts, np.uint32)),
        names=names,
        codes=np.frombuffer(found.codes, np.uint32),
        offsets=np.frombuffer(found.offsets, np.int64),
        lengths=np.frombuffer(found.lengths, np.int64),
        crcs=crcs,
        kinds=dict(zip(names, found.kinds, strict=True)) if found.format == "tfrecord" else {},
        fact=ShardFact(output_text(base_name(found.path)), found.size, found.crc, ""),
        schema=UNREAD if crcs is None else SCHEMA,
        walk=found,
    )


class IndexDifference(NamedTuple):
    """Where two indexes of one shard differ.

    Attributes:
        what: `samples` (how many there are), `key`, `offset`, `size`, `number of fields`, `field`, `length` or
            `checksum`.
        first: What the first index says.
        second: What the second one says.
        sample: The sample; -1: it is about none.
        row: The field's row; -1: it is about no field.
    """

    what: str
    first: str
    second: str
    sample: int = -1
    row: int = -1


def differences(first: ShardIndex, second: ShardIndex) -> Iterator[IndexDifference]:
    """Yield where two indexes of one shard differ: how many samples there are, the first place, all other checksums.

    Args:
        first: One of them.
        second: The other one; of a walk that ended too early, the samples before its last one are compared.
    """
    samples = min(len(first), len(second))
    if second.error is not None:
        samples = max(0, samples - 1)  # the last one may be cut
    elif len(first) != len(second):
        yield IndexDifference("samples", f"{len(first):,}", f"{len(second):,}")
    place = next(_places_apart(first, second, samples), None)
    if place is not None:
        yield place
        return
    if first.crcs is not None and second.crcs is not None:
        rows = int(first.firsts[samples])
        owners = first.owners()
        for row in np.flatnonzero(first.crcs[:rows] != second.crcs[:rows]).tolist():
            crcs = f"{int(first.crcs[row]):08x}", f"{int(second.crcs[row]):08x}"
            yield IndexDifference("checksum", *crcs, int(owners[row]), row)


def _places_apart(first: ShardIndex, second: ShardIndex, samples: int) -> Iterator[IndexDifference]:
    """Yield, of each column, the first place in which it differs."""
    if first.keys != second.keys or not np.array_equal(first.key_ends, second.key_ends):
        for at, keys in enumerate(zip(first.all_keys()[:samples], second.all_keys(), strict=False)):
            if keys[0] != keys[1]:
                yield IndexDifference("key", printable(keys[0]), printable(keys[1]), at)
    for what, one, other in (
        ("offset", first.starts, second.starts),
        ("size", first.sizes, second.sizes),
        ("number of fields", first.counts, second.counts),
    ):
        for at in np.flatnonzero(one[:samples] != other[:samples])[:1].tolist():
            yield IndexDifference(what, f"{one[at]:,}", f"{other[at]:,}", at)
    rows = int(first.firsts[samples])
    known = {name: at for at, name in enumerate(first.names)}
    codes = np.array([known.get(name, -1) for name in second.names] or [-1], np.int64)[second.codes[:rows]]
    columns: tuple[tuple[str, NDArray[np.integer], NDArray[np.integer]], ...] = (
        ("field", first.codes, codes),
        ("offset", first.offsets, second.offsets),
        ("length", first.lengths, second.lengths),
    )
    for what, ours, theirs in columns:
        for row in np.flatnonzero(ours[:rows] != theirs[:rows])[:1].tolist():
            said = f"{ours[row]:,}", f"{theirs[row]:,}"
            if what == "field":
                said = printable(first.names[ours[row]]), printable(second.names[second.codes[row]])
            yield IndexDifference(what, *said, int(np.searchsorted(first.firsts, row, "right")) - 1, row)


def ends_of(sizes: NDArray[np.integer] | Sequence[int]) -> Places:
    """Return where parts start that lie end to end, and where the last one ends: int64."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _texts(names: list[bytes]) -> list[bytes]:
    """Return names of a shard as UTF-8, which nearly all are."""
    return names if is_utf8(b"\0".join(names)) else [walked_text(name).encode() for name in names]


def _unsigned(places: Places) -> pa.Array:
    return number_array(places.astype(np.int64, copy=False).view(np.uint64))


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
