"""The index of one shard, as columns: where every sample and field lies, whoever says so; and its sidecar.

It comes from the bytes of a sidecar (`read_sidecar`), from a walk over the shard (`walked_index`), or from what a
worker wrote (`index_of`). No object is made for a sample: ten million of them are a few arrays. As one block of bytes,
processes can share it.

Every verb reads sidecars here, and none of them is trusted. Before pyarrow decodes a page, `parquet_bounds` has added
up what all pages would take, and that must fit the sidecar and its shard. What was read must fit the shard too: samples
follow each other in it, each payload lies in its sample, and no two payloads share a byte. Text in dictionaries stays
there until it is needed, and then what it takes is added up first. Where no memory is left there is `MemoryError`,
which says nothing of the sidecar.

Source: docs/format.md, "Sidecar"; docs/decisions/012-bounded-sidecars.md.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from shardtool.dataset.dataset_file import ShardEntry
from shardtool.dataset.parquet_bounds import MAGIC, TEXT, Extent, Footer, read_extents, read_footer
from shardtool.dataset.shard_file import Survey, walked_text
from shardtool.entries.arrow import coded_strings, number_array, numbers, string_array, strings
from shardtool.entries.entries import Names
from shardtool.entries.sizes import Payloads, heads_and_tails
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable, raise_if_machines
from shardtool.fingerprint import content_digest, crc32c
from shardtool.pattern import sidecar_name
from shardtool.skipped import pack_rows, unpack_rows
from shardtool.storage.places import base_name, read_small, read_tail
from shardtool.values import RESERVED, Kind, ShardContent, counted, is_utf8, output_text, source_text
from shardtool.wording import call, made_again, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.skipped import Skipped
    from shardtool.storage.shared import SharedBlocks

    # For reading, they are int32 where the shard is smaller than 2 GiB, which halves what an index takes.
    Places = NDArray[np.int64]

# The columns of a sidecar, and what else it says of its shard.


_OF_FIELD = {"name": pa.string(), "offset": pa.uint64(), "length": pa.uint64(), "crc32c": pa.uint32()}


class FieldRow(TypedDict):
    """A field of a sample, as a sidecar has it; `crc32c` is None where it is not known."""

    name: str
    offset: int
    length: int
    crc32c: int | None


def _schema(nullable: str = "") -> pa.Schema:
    fields = pa.struct([pa.field(name, kind, nullable=name == nullable) for name, kind in _OF_FIELD.items()])
    lists = pa.list_(pa.field("element", fields, nullable=False))
    kinds = {"__key__": pa.string(), "__offset__": pa.uint64(), "__size__": pa.uint64(), "__fields__": lists}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


SCHEMA = _schema()
SHARD = pa.field("__shard__", pa.string(), nullable=False)
OWN_COLUMNS = (*SCHEMA.names, SHARD.name)  # all others are metadata
# For shards whose payloads were not read: checksums are null.
UNREAD = _schema("crc32c")


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

    def entry(self, fact: ShardFact, sidecar: bytes) -> ShardEntry:
        """Return what the dataset file lists of the shard: with its facts, and its sidecar's bytes."""
        index = sidecar_name(fact.name), len(sidecar), crc32c(sidecar)
        return ShardEntry(fact.name, self.samples, fact.size, fact.crc, *index, self.first_key, self.last_key)


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
_DENSE = 8  # keys are decoded all at once where so many at most stand for one that is wanted
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
        """Return the keys of some samples, whose rows ascend."""
        starts, ends, keys = self.key_ends[rows].tolist(), self.key_ends[rows + 1].tolist(), self.keys
        if starts and rows[-1] - rows[0] < _DENSE * len(rows):  # all at once: half the time
            first = starts[0]
            text = str(keys[first : ends[-1]], "utf-8")
            if len(text) == ends[-1] - first:  # no character takes several bytes, in which places are
                return [text[start - first : end - first] for start, end in zip(starts, ends, strict=True)]
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

    def put_into(self, blocks: SharedBlocks, number: int) -> ShardIndex:
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
    known = {name: at for at, name in enumerate(first.names)}
    codes = np.array([*(known.get(name, -1) for name in second.names), -1], np.int64)[second.codes]
    theirs, rows = replace(second, codes=codes), int(first.firsts[samples])
    for what, column, many in (
        ("offset", "starts", samples), ("size", "sizes", samples), ("number of fields", "counts", samples),
        ("field", "codes", rows), ("offset", "offsets", rows), ("length", "lengths", rows),
    ):  # fmt: skip
        one, other = getattr(first, column)[:many], getattr(theirs, column)[:many]
        for at in np.flatnonzero(one != other)[:1].tolist():
            said = f"{one[at]:,}", f"{other[at]:,}"
            if what == "field":
                said = printable(first.names[one[at]]), printable(second.names[second.codes[at]])
            of_field = column in ("codes", "offsets", "lengths")
            place = (int(np.searchsorted(first.firsts, at, "right")) - 1, at) if of_field else (at,)
            yield IndexDifference(what, *said, *place)


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


# Sidecars read: from the bytes of the Parquet file to an index that can be believed.


FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)  # version 1 is without the column that names the shard
PREFIX = "shardtool."
_FIELD_LEAVES = [f"__fields__.list.element.{name}" for name in ("name", "offset", "length", "crc32c")]
_LEAVES = ["__key__", "__offset__", "__size__", *_FIELD_LEAVES]
_TAIL = 2**14  # bytes at the end of a sidecar, which nearly always hold its footer
_LEAST_FIELD = 2  # bytes of a shard that a field takes, at the least; a sample takes more
_PER_BYTE = 8  # samples, and fields, a byte of a sidecar: the most regular ones have one (measured)
_FEW = 2**16  # samples, or fields, that any sidecar may have
_FIELD_BYTES = 64  # bytes of index a field, without its name and its sample's key
_INDEX_SLACK = 2**24  # bytes that the index in any sidecar may take
_METADATA_SLACK = 2**25  # bytes that metadata in any sidecar may take
_FACTOR = 64  # bytes that either may take, more, a byte of the sidecar; metadata also a byte of the shard
_VERSION = f"{PREFIX}format_version"
_ARROW_SCHEMA = "ARROW:schema"  # would change how columns are read; sidecars are written without one
_KEPT = 300  # characters of what pyarrow says


def _verify() -> str:
    return f"`shardtool verify` tells what is wrong; {call('verify', repair=True)} mends what can be mended."


def read_bytes(path: str) -> bytes:
    """Return the bytes of the file that has a sidecar's name, if it can be one.

    Raises:
        OSError: It is not there, no plain file, or cannot be read.
    """
    return read_small(path, ending=MAGIC)


def read_sidecar(data: bytes, where: str, size: int | None, *, metadata: bool = True) -> ShardIndex:
    """Return what a sidecar says, if its parts fit each other and what it takes in memory fits its shard.

    Args:
        data: Its bytes.
        where: Its path, for messages.
        size: Bytes of the shard that is there, None where there is none: more metadata is believed of a larger one.
        metadata: Whether the columns of metadata are wanted, too.

    Raises:
        CorruptShard: They do not.
        MemoryError: There is no memory for it; that says nothing of the sidecar.
    """
    fact, footer = _read_head(data, where)
    try:
        return _read(data, footer, fact, size or 0, metadata=metadata)
    except MemoryError:
        raise  # of pyarrow, it is an ArrowException, too
    except (ValueError, KeyError, IndexError, OverflowError, OSError, pa.ArrowException) as error:
        found = printable(str(error))[:_KEPT].strip().rstrip(".")
        raise CorruptShard(where, f"no sidecar: {found}", remedy=made_again()) from None


def is_small(data: bytes, metadata: pa.Table, size: int) -> bool:
    """Tell, without decoding it, whether a reader surely takes the metadata of a sidecar of ours.

    Args:
        data: The sidecar's bytes.
        metadata: Its metadata.
        size: Bytes of its shard.
    """
    if any(pt.is_dictionary(column.type) for column in metadata.columns):
        return False
    extents = read_extents(data, read_footer(data))
    memory = sum(one.memory for one in extents if one.leaf.top not in OWN_COLUMNS)
    return bool(max(memory, metadata.nbytes) <= most_metadata(size + len(data)))


def most_metadata(size: int) -> int:
    """Return the memory that the metadata of a shard may take which has, with its sidecar, `size` bytes."""
    return _METADATA_SLACK + _FACTOR * size


def sidecar_of(
    data: bytes, where: str, name: str, size: int | None, entry: ShardEntry | None = None, *, metadata: bool = True
) -> ShardIndex:
    """Return what the sidecar of a shard says, if it is about that shard, and is the one that the dataset file lists.

    Args:
        data: Its bytes.
        where: Its path, for messages.
        name: The file name of the shard.
        size: Bytes of the shard; None where it is not there.
        entry: What the dataset file says of it; None: none of ours does.
        metadata: Whether the columns of metadata are wanted, too.

    Raises:
        CorruptShard: It is damaged, about another shard, or another one than is listed.
        MemoryError: There is no memory for it; that says nothing of the sidecar.
    """
    if entry is not None:
        check_listed(data, where, entry)
    index = read_sidecar(data, where, size, metadata=metadata)
    _check_shard(index.fact, where, name, size)
    if entry is not None and len(index) != entry.samples:
        found, expected = counted(len(index), "sample"), f"{entry.samples:,}, as the dataset file says"
        raise CorruptShard(where, found, expected=expected, remedy=_verify())
    return index


def _check_shard(fact: ShardFact, where: str, name: str, size: int | None) -> None:
    """Check that a sidecar is about the shard beside it; of one that is not there, that it has its name."""
    size = fact.size if size is None else size
    if (fact.name, fact.size) != (name, size):
        found, expected = f"the index of {printable(fact.name)}, {fact.size:,} bytes", f"that of {name}, {size:,} bytes"
        raise CorruptShard(where, found, expected=expected, remedy=made_again())


def check_listed(data: bytes, where: str, entry: ShardEntry) -> None:
    """Check that the bytes of a sidecar are those that the dataset file lists.

    Raises:
        CorruptShard: They are others.
    """
    crc = crc32c(data)
    if (len(data), crc) != (entry.sidecar_size, entry.sidecar_crc):
        found = f"{len(data):,} bytes with the CRC-32C {crc:08x}"
        expected = f"{entry.sidecar_size:,} bytes with {entry.sidecar_crc:08x}, as the dataset file says"
        raise CorruptShard(where, found, expected=expected, remedy=_verify())


def check_places(index: ShardIndex, size: int) -> None:
    """Check that samples follow each other in a shard, payloads lie in their samples, and no two share a byte.

    Args:
        index: Where they lie.
        size: Bytes of the shard.

    Raises:
        ValueError: They do not: a copy of such payloads would be larger than the shard.
    """
    if any(np.any(column > size) for column in (index.starts, index.sizes, index.offsets, index.lengths)):
        raise ValueError(f"offsets that do not fit a shard of {size:,} bytes")  # so that no sum overflows
    ends, stops = index.starts + index.sizes, index.offsets + index.lengths
    if np.any(ends > size) or np.any(ends[:-1] > index.starts[1:]):
        raise ValueError(f"samples that do not follow each other in a shard of {size:,} bytes")
    outside = (index.offsets < np.repeat(index.starts, index.counts)) | (stops > np.repeat(ends, index.counts))
    if np.any(outside):
        raise ValueError("payloads outside of their samples")
    filled = index.lengths > 0
    starts, stops = index.offsets[filled], stops[filled]
    if np.any(starts[1:] < stops[:-1]):  # out of order, or worse
        order = np.argsort(starts)
        if np.any(starts[order][1:] < stops[order][:-1]):
            raise ValueError("payloads that overlap")


def _read(data: bytes, footer: Footer, fact: ShardFact, size: int, *, metadata: bool) -> ShardIndex:
    if _ARROW_SCHEMA in footer.facts:
        raise ValueError("a schema of Arrow, which no sidecar has")
    tops = [*dict.fromkeys(leaf.top for leaf in footer.leaves)]
    own = SCHEMA.names if int(footer.facts[_VERSION]) == 1 else OWN_COLUMNS
    more = [name for name in tops if name not in own]
    if bad := [name for name in more if name.startswith("__")]:
        raise ValueError(f"columns that no sidecar has: {listing(bad)}")
    extents = read_extents(data, footer)
    most = most_metadata(size + len(data))
    most_index = _INDEX_SLACK + _FACTOR * len(data) + 2 * size
    _check_counts(extents, own, footer.rows, min(_FEW + _PER_BYTE * len(data), fact.size // _LEAST_FIELD + 1))
    _check_index(extents, most_index)
    _check_metadata(sum(one.memory for one in extents if one.leaf.top in more), most)
    wanted = [*own, *(more if metadata else ())]
    table, schema = _decode(data, extents, wanted)
    if schema.names != tops or len(set(tops)) < len(schema.names):
        raise ValueError("two columns of one name")
    _check_types(table.schema)
    table.validate(full=True)
    if SHARD.name in own:
        _check_named(table.column(SHARD.name), fact.name)
    more = [name for name in table.column_names if name not in own]
    index = _columns(table, most_index)
    check_places(index, fact.size)
    _check_metadata(sum(_text_bytes(chunk) for name in more for chunk in table.column(name).chunks), most)
    return replace(index, fact=fact, metadata=table.select(more), schema=schema)


def _check_named(column: pa.ChunkedArray, name: str) -> None:
    """Check that every row names the shard."""
    if _plain(column.type) != SHARD.type:
        raise ValueError(f"a column {SHARD.name} of {column.type}")
    for chunk in column.chunks:
        coded = chunk if pt.is_dictionary(chunk.type) else chunk.dictionary_encode()
        used = [] if coded.null_count else np.flatnonzero(np.bincount(numbers(coded.indices))).tolist()
        if coded.null_count or any(coded.dictionary[code].as_py() != name for code in used):
            raise ValueError(f"rows of other shards than {printable(name)}")


def _check_counts(extents: Sequence[Extent], own: Sequence[str], rows: int, most: int) -> None:
    """Check that a sidecar has its own columns, of at most so many samples and fields."""
    values = {one.leaf.path: one.values for one in extents if one.leaf.top in own}
    if sorted(values) != sorted(_LEAVES + [SHARD.name] * (SHARD.name in own)):
        raise ValueError("other columns than a sidecar's")
    fields = values[_FIELD_LEAVES[0]]
    if any(values[leaf] != fields for leaf in _FIELD_LEAVES):
        raise ValueError("columns of unequal length")
    if rows > most or fields > most + rows:  # a sample without a field has a place in the list of its fields, too
        raise ValueError(f"{rows:,} samples with {fields:,} fields, more than a sidecar and shard of their sizes have")


def _check_index(extents: Sequence[Extent], most: int) -> None:
    """Check that the pages of the index take no more than `most` bytes, and what a field needs."""
    index = [one for one in extents if one.leaf.top in OWN_COLUMNS]
    unfolded, values = sum(one.unfolded for one in index), max(one.values for one in index)
    if unfolded > most + _FIELD_BYTES * values:
        raise ValueError(f"{unfolded:,} bytes of index, more than a sidecar and shard of their sizes have")


def _check_metadata(found: int, most: int) -> None:
    if found > most:
        raise ValueError(f"{found:,} bytes of metadata, more than {most:,} for a sidecar and shard of their sizes")


def _decode(data: bytes, extents: Sequence[Extent], wanted: Sequence[str]) -> tuple[pa.Table, pa.Schema]:
    """Return the wanted columns, one chunk each, text in dictionaries where the file has them; and the whole schema."""
    places = [at for at, one in enumerate(extents) if one.leaf.top in wanted]
    coded = [one.leaf.path for one in extents if one.coded and one.leaf.kind == TEXT]
    schema = pq.read_schema(pa.BufferReader(data)).remove_metadata()
    with pq.ParquetFile(pa.BufferReader(data), read_dictionary=coded, page_checksum_verification=True) as file:
        # Group by group: pyarrow cannot read lists of several as one (seen, 26.0.1).
        read = partial(file.reader.read_row_group, column_indices=places, use_threads=False)
        groups = [read(at) for at in range(file.num_row_groups)]
        table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table().select(wanted)
    return table.replace_schema_metadata(None).combine_chunks().select(wanted), schema


def _columns(table: pa.Table, most: int) -> ShardIndex:
    """Return the index without metadata, if keys take no more than `most` bytes."""
    keys, lists = _chunk(table, "__key__"), _chunk(table, "__fields__")
    if pt.is_dictionary(keys.type):
        if _text_bytes(keys) > most:
            raise ValueError("keys longer than their shard")
        keys = keys.dictionary_decode()
    if keys.null_count or lists.null_count:
        raise ValueError("a sample without a key or fields")
    places = numbers(lists.offsets).astype(np.int64)
    fields = lists.values[int(places[0]) : int(places[-1])]  # what `flatten` returns; that imports pyarrow.compute
    coded = fields.field("name")
    if not pt.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    if fields.null_count or coded.null_count or coded.dictionary.null_count:
        raise ValueError("a field without a name")
    crcs = fields.field("crc32c")
    raw, ends = _bytes_of(keys)
    return ShardIndex(
        keys=raw,
        key_ends=ends,
        starts=_numbers(_chunk(table, "__offset__")),
        sizes=_numbers(_chunk(table, "__size__")),
        firsts=places - places[0],
        names=tuple(coded.dictionary.to_pylist()),
        codes=numbers(coded.indices).astype(np.int64),
        offsets=_numbers(fields.field("offset")),
        lengths=_numbers(fields.field("length")),
        crcs=None if crcs.null_count else numbers(crcs).astype(np.uint32),
    )


def _chunk(table: pa.Table, name: str) -> pa.Array:
    chunks = table.column(name).chunks
    if len(chunks) > 1:
        raise ValueError(f"{name} of more than 2 GB")
    return chunks[0] if chunks else pa.array([], table.schema.field(name).type)


def _check_types(schema: pa.Schema) -> None:
    """Check that columns have the types that docs/format.md says; text may come as places in a dictionary."""
    lists = schema.field("__fields__").type
    inner = lists.value_type if pt.is_list(lists) else None
    parts = [(one.name, _plain(one.type)) for one in inner] if inner is not None and pt.is_struct(inner) else []
    wanted = [(one.name, one.type) for one in SCHEMA.field("__fields__").type.value_type]
    if parts != wanted or [_plain(schema.field(one.name).type) for one in SCHEMA][:3] != SCHEMA.types[:3]:
        raise ValueError(f"columns of other types: {[str(one) for one in schema.types]}")


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    if column.null_count:
        raise ValueError("a null where a number must be")
    values = numbers(column)
    if len(values) and values.max() >= 2**63:
        raise ValueError(f"the number {values.max()}")
    return np.asarray(values.view(np.int64))


def _bytes_of(column: pa.Array) -> tuple[bytes, NDArray[np.int64]]:
    """Return the bytes of strings, end to end, and where each starts."""
    if not len(column):
        return b"", np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    raw = bytes(memoryview(data)[int(ends[0]) : int(ends[-1])]) if data is not None else b""
    return raw, ends - ends[0]


def _text_bytes(array: pa.Array) -> int:
    """Return how many bytes the text in an array takes once it is in no dictionary, nested columns included."""
    kind = array.type
    if pt.is_dictionary(kind):
        import pyarrow.compute as pc

        lengths = numbers(pc.binary_length(array.dictionary))
        return int(lengths[numbers(array.indices.drop_null())].sum(dtype=np.int64)) if len(lengths) else 0
    if pt.is_struct(kind):
        return sum(_text_bytes(array.field(at)) for at in range(kind.num_fields))
    if pt.is_map(kind):
        return _text_bytes(array.keys) + _text_bytes(array.items)
    return _text_bytes(array.values) if pt.is_list(kind) else 0


def read_facts(data: bytes, name: str) -> ShardFact:
    """Return what a sidecar says of its shard.

    Args:
        data: The sidecar's bytes.
        name: Its name, for messages.

    Raises:
        CorruptShard: It is no sidecar of a version that this program knows.
    """
    return _read_head(data, name)[0]


def read_count(path: str, name: str, size: int | None) -> tuple[int, ShardFact]:
    """Return how many samples the sidecar of a shard lists, and what it says of it; no more than its footer is read.

    Args:
        path: Where the sidecar is.
        name: The file name of the shard.
        size: Bytes of the shard; None where it is not there.

    Raises:
        CorruptShard: It is no sidecar of a version that this program knows, or about another shard.
        OSError: It is not there, or cannot be read.
    """
    fact, footer = _read_head(_read_end(path), path)
    _check_shard(fact, path, name, size)
    return footer.rows, fact


def read_schema(path: str) -> pa.Schema:
    """Return the columns of a sidecar and their types; no more than its footer is read.

    Raises:
        CorruptShard: It is no sidecar.
        StoreFailed: The machine, a store or a server fails.
    """
    try:
        return pq.read_schema(pa.BufferReader(_read_end(path))).remove_metadata()
    except MemoryError:
        raise  # of pyarrow, it is an ArrowException, too
    except (OSError, pa.ArrowException) as error:
        raise_if_machines(error, path)
        raise CorruptShard(path, f"no sidecar: {error}", remedy=made_again()) from None


def _read_end(path: str) -> bytes:
    """Return the end of the file that has a sidecar's name, with all of its footer."""
    data = read_tail(path, _TAIL)
    size = int.from_bytes(data[-8:-4], "little") + len(MAGIC) + 4
    return read_tail(path, size + 4) if data[-4:] == MAGIC and len(data) == _TAIL < size else data


def _read_head(data: bytes, name: str) -> tuple[ShardFact, Footer]:
    """Return what a sidecar says of its shard, and the footer that says it."""
    try:
        footer = read_footer(data)
        facts = {name.removeprefix(PREFIX): value for name, value in footer.facts.items()}
        version = int(facts["format_version"])
        made = None
        if "consumed" in facts:
            counts = int(facts["consumed"]), int(facts["dropped"]), int(facts["skipped"])
            left_out = unpack_rows(facts["left_out"]) if "left_out" in facts else ()
            made = MadeFact(int(facts["content"], 16), *counts, left_out)
        crc = int(facts["crc32c"], 16) if "crc32c" in facts else None
        shards = int(facts["shards"]) if "shards" in facts else None
        plan, first = facts.get("plan", ""), facts.get("first", "")
        fact = ShardFact(facts["shard"], int(facts["size"]), crc, plan, made, first, shards)
        _check_facts(fact)
    except KeyError as error:
        raise CorruptShard(name, f"no sidecar: without {PREFIX}{error.args[0]}", remedy=made_again()) from None
    except ValueError as error:
        raise CorruptShard(name, f"no sidecar: {error}", remedy=made_again()) from None
    if version not in READ_VERSIONS:
        found = f"format version {version}"
        raise CorruptShard(name, found, expected=f"{READ_VERSIONS[-1]} at the most", remedy="Use a newer shardtool.")
    return fact, footer


def _check_facts(fact: ShardFact) -> None:
    """Check that numbers are such as files have."""
    counts = () if fact.made is None else (fact.made.consumed, fact.made.dropped, fact.made.skipped)
    if not all(0 <= number < 2**63 for number in (fact.size, *counts)):
        raise ValueError("a size or count that no shard has")
    if not 0 <= (fact.crc or 0) < 2**32 or not 0 <= (fact.made.content if fact.made else 0) < 2**256:
        raise ValueError("a checksum that is none")
    if fact.made is not None and fact.made.left_out and len(fact.made.left_out) != fact.made.skipped:
        raise ValueError("a list of what was left out of another length than it says")


# Sidecars written: from what a worker wrote, or from a table, to the bytes of the Parquet file.


_ROW_GROUP = 2**17  # samples


def index_of(
    shard_format: str,
    content: ShardContent,
    columns: pa.Table | None,
    field_crcs: bytes,
    skipped: Sequence[int] = (),
    source_paths: bytes = b"",
) -> ShardIndex:
    """Return the index of a shard that was written.

    Args:
        shard_format: `tar` or `tfrecord`.
        content: What was planned.
        columns: Their metadata, if there are any.
        field_crcs: uint32 for each field that was written.
        skipped: The places of samples that were not.
        source_paths: The source's name of each field, a NUL after each; empty: they are no column.
    """
    counts = np.frombuffer(content.counts, np.uint16).astype(np.int64)
    codes, sizes = np.frombuffer(content.codes, np.uint16), np.frombuffer(content.stored, np.int64)
    keys, whole = content.keys, np.frombuffer(content.whole, np.bool_) if content.whole else None
    paths = source_paths[:-1].split(b"\0") if source_paths else []
    if skipped:
        stays = np.ones(len(counts), bool)
        stays[list(skipped)] = False
        rows = np.repeat(stays, counts)
        keys = b"".join(key + b"\0" for key, stay in zip(keys[:-1].split(b"\0"), stays, strict=True) if stay)
        paths = [path for path, stay in zip(paths, rows, strict=True) if stay] if paths else []
        counts, codes, sizes = counts[stays], codes[rows], sizes[rows]
        whole = None if whole is None else whole[rows]
        columns = None if columns is None else columns.take(number_array(np.flatnonzero(stays)))
    more = {} if columns is None else {name: columns.column(name) for name in columns.column_names}
    if source_paths:
        more["source_paths"] = string_lists(paths, counts)
    metadata = pa.Table.from_arrays([*more.values()], names=[*more])
    texts, names, firsts = Names.parse(keys), tuple(name.decode() for name in content.fields), ends_of(counts)
    heads, tails = heads_and_tails(shard_format, Payloads(texts, firsts, names, codes, sizes, whole))
    after = ends_of(heads + sizes + tails)
    starts = after[firsts]
    return ShardIndex(
        keys=keys.replace(b"\0", b""),
        key_ends=ends_of(texts.lengths()),
        starts=starts[:-1],
        sizes=np.diff(starts),
        firsts=firsts,
        names=names,
        codes=codes,
        offsets=after[:-1] + heads,
        lengths=sizes,
        crcs=np.frombuffer(field_crcs, np.uint32),
        metadata=metadata,
        schema=pa.schema([*SCHEMA, *metadata.schema]),
    )


def encode(index: ShardIndex, shard: ShardFact) -> tuple[bytes, dict[str, str]]:
    """Return the sidecar's bytes, and its columns with their types.

    Raises:
        InvalidRequest: Its metadata takes more memory than a reader gives it.
    """
    table, more = index.plain_table(), index.metadata
    try:
        data = encode_table(table, shard)
    except pa.ArrowNotImplementedError as error:  # objects without names
        raise InvalidRequest(shard.name, f"metadata that Parquet cannot hold: {error}") from None
    if more.num_columns and not is_small(data, more, shard.size):
        _check_readable(data, shard)
    # Parquet does not keep all of Arrow's types: what the dataset file says is what a reader gets.
    return data, types_of(pq.read_schema(pa.BufferReader(data)) if more.num_columns else with_shard(table.schema))


def _check_readable(data: bytes, shard: ShardFact) -> None:
    """Refuse a sidecar that would be taken for a trap: text that many samples share, longer than they are."""
    try:
        read_sidecar(data, sidecar_name(shard.name), shard.size)
    except CorruptShard as error:
        found = error.found.removeprefix("no sidecar: ")
        remedy = f"Leave long columns out, or pack them: {option('values', 'txt=COLUMN')}."
        raise InvalidRequest(shard.name, found, remedy=remedy) from None


def encode_table(table: pa.Table, shard: ShardFact, version: int = FORMAT_VERSION) -> bytes:
    """Return the bytes of a sidecar.

    Args:
        table: Its rows, a `pyarrow.Table` with the columns of `SCHEMA`.
        shard: What it says of its shard.
        version: Of the format; 1 is written only to compare.
    """
    sink = pa.BufferOutputStream()
    facts = {"format_version": f"{version}", "shard": shard.name, "size": f"{shard.size}"}
    if shard.crc is not None:
        facts["crc32c"] = f"{shard.crc:08x}"
    if shard.plan:
        facts["plan"] = shard.plan
    if shard.shards is not None:
        facts |= {"first": shard.first, "shards": f"{shard.shards}"}
    if shard.made is not None:
        made = shard.made
        facts |= {"content": f"{made.content:064x}", "consumed": f"{made.consumed}"}
        facts |= {"dropped": f"{made.dropped}", "skipped": f"{made.skipped}"}
        if made.left_out:
            facts["left_out"] = pack_rows(made.left_out)
        facts["check"] = f"{crc32c(' '.join(facts.values()).encode()):08x}"  # what the plan cannot give again
    more = table.column_names[len(SCHEMA) :]
    if version > 1:
        first = number_array(np.zeros(len(table), np.int8))
        names = pa.DictionaryArray.from_arrays(first, strings([shard.name.encode()]))
        table = table.add_column(1, SHARD.with_type(names.type), names)
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=["__fields__.list.element.name", SHARD.name, *more],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP)
        for name, value in facts.items():  # one by one: the order of a dict does not survive pyarrow's hash table
            writer.add_key_value_metadata({PREFIX + name: value})
    return bytes(sink.getvalue().to_pybytes())


def string_lists(names: list[bytes], counts: NDArray[np.int64]) -> pa.Array:
    """Return a list of strings a sample: the source's `names` in turn, `counts` at a time."""
    names = [source_text(name).encode() for name in names]
    values = strings(names)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    return pa.ListArray.from_arrays(number_array(offsets), values, type=kind)
