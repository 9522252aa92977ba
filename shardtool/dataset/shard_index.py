"""The index of one shard as columns: the offset and length of each sample and field.

An index comes from a sidecar (`parse_sidecar`), from a scan of the shard (`scanned_index`), or from a worker that
wrote the shard (`written_index`). There is no object per sample: ten million samples are a few arrays. An index can
be packed into one block of bytes, which processes share.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from shardtool.dataset.scan import ShardScan, index_text
from shardtool.dataset.sidecar_schema import (
    FIELDS_COLUMN,
    SCHEMA_WITHOUT_CRC,
    SHARD_COLUMN,
    SIDECAR_SCHEMA,
    ShardFacts,
    ShardTally,
)
from shardtool.entries.arrow import bytes_array, decode_strings, number_array, string_array
from shardtool.fingerprint import content_digest
from shardtool.names import RESERVED_NAMES, is_utf8, to_output_name
from shardtool.storage.paths import base_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.errors import CorruptShard
    from shardtool.storage.shared_blocks import SharedBlocks
    from shardtool.values import FeatureType

    # For reading, they are int32 where the shard is smaller than 2 GiB, which halves what an index takes.
    Places = NDArray[np.int64]


_INT32_LIMIT = 2**31


_NO_FACTS = ShardFacts("", -1, None, "")


_ALIGNMENT_BYTES = 8


_MAX_DECODED_PER_KEY = 8  # keys are decoded all at once where so many at most stand for one that is wanted


_OFFSET_COLUMNS = ("key_ends", "starts", "sizes", "firsts", "offsets", "lengths")


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
    kinds: Mapping[str, FeatureType] = field(default_factory=dict)
    fact: ShardFacts = _NO_FACTS
    metadata: pa.Table = field(default_factory=lambda: pa.Table.from_arrays([], names=[]), repr=False)
    schema: pa.Schema = field(default=SIDECAR_SCHEMA, repr=False)
    walk: ShardScan | None = field(default=None, repr=False)
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
        return 2 if SHARD_COLUMN.name in self.schema.names else 1

    def owners(self) -> NDArray[np.int64]:
        """Return the sample that each field belongs to."""
        return np.repeat(np.arange(len(self)), self.counts)

    # As a table.

    @cached_property
    def table(self) -> pa.Table:
        """The columns of the sidecar but for the shard's name; text may be dictionaries."""
        names = pa.DictionaryArray.from_arrays(
            number_array(self.codes.astype(np.int32)), bytes_array(self._field_names())
        )
        return self._table(names, self.metadata)

    def plain_table(self) -> pa.Table:
        """Return the same without dictionaries."""
        return self._table(decode_strings(self._field_names(), self.codes), self.plain_metadata())

    def plain_metadata(self) -> pa.Table:
        """Return the metadata without dictionaries."""
        schema = pa.schema([self.schema.field(name) for name in self.metadata.column_names])
        return self.metadata if self.metadata.schema.equals(schema) else self.metadata.cast(schema)

    def _field_names(self) -> list[bytes]:
        return [name.encode() for name in self.names]

    def _table(self, names: pa.Array, metadata: pa.Table) -> pa.Table:
        own = SCHEMA_WITHOUT_CRC if self.crcs is None else SIDECAR_SCHEMA
        crcs = pa.nulls(len(self.codes), pa.uint32()) if self.crcs is None else number_array(self.crcs)
        parts = [names, _to_unsigned(self.offsets), _to_unsigned(self.lengths), crcs]
        kinds = [
            one.with_type(part.type) for one, part in zip(own.field(FIELDS_COLUMN).type.value_type, parts, strict=True)
        ]
        element = pa.field("element", pa.struct(kinds), nullable=False)
        fields, firsts = pa.StructArray.from_arrays(parts, fields=kinds), number_array(self.firsts.astype(np.int32))
        lists = pa.ListArray.from_arrays(firsts, fields, type=pa.list_(element))
        keys = string_array(bytes(self.keys), self.key_sizes)
        columns = [keys, _to_unsigned(self.starts), _to_unsigned(self.sizes), lists, *metadata.columns]
        schema = [*[*own][:-1], pa.field(FIELDS_COLUMN, lists.type, nullable=False), *metadata.schema]
        return pa.Table.from_arrays(columns, schema=pa.schema(schema))

    # Its samples.

    def keys_of(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the keys of some samples, whose rows ascend."""
        starts, ends, keys = self.key_ends[rows].tolist(), self.key_ends[rows + 1].tolist(), self.keys
        if starts and rows[-1] - rows[0] < _MAX_DECODED_PER_KEY * len(rows):  # all at once: half the time
            first = starts[0]
            text = str(keys[first : ends[-1]], "utf-8")
            if len(text) == ends[-1] - first:  # no character takes several bytes, in which places are
                return [text[start - first : end - first] for start, end in zip(starts, ends, strict=True)]
        return [str(keys[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def all_keys(self) -> list[bytes]:
        """Return the keys of all samples."""
        keys, ends = bytes(self.keys), self.key_ends.tolist()
        return [keys[start:end] for start, end in pairwise(ends)]

    def find_row(self, key: bytes) -> int:
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
        place = np.int32 if max(last, len(index.keys)) < _INT32_LIMIT else np.int64
        columns: dict[str, Any] = {name: getattr(index, name).astype(place) for name in _OFFSET_COLUMNS}
        codes = index.codes.astype(np.uint8 if len(index.names) <= np.iinfo(np.uint8).max else np.uint32)
        return ShardIndex(
            keys=index.keys, names=index.names, codes=codes, crcs=index.crcs, kinds=index.kinds, **columns
        )

    def _without_reserved(self) -> ShardIndex:
        """Return it without fields that have a name of what every sample has, such as its key: no shard gives these."""
        reserved = [code for code, name in enumerate(self.names) if name.encode() in RESERVED_NAMES]
        if not reserved:
            return self
        kept = ~np.isin(self.codes, reserved)
        counts = np.bincount(self.owners()[kept], minlength=len(self))
        crcs = None if self.crcs is None else self.crcs[kept]
        codes, offsets, lengths = self.codes[kept], self.offsets[kept], self.lengths[kept]
        return replace(self, firsts=part_ends(counts), codes=codes, offsets=offsets, lengths=lengths, crcs=crcs)

    @property
    def is_shared(self) -> bool:
        """Whether its columns lie in a block that processes share."""
        return isinstance(self.keys, memoryview)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory, about, without metadata."""
        return len(self.keys) + sum(column.nbytes for column in self._columns().values())

    def _columns(self) -> dict[str, NDArray[np.generic]]:
        columns = {name: getattr(self, name) for name in (*_OFFSET_COLUMNS, "codes")}
        return columns if self.crcs is None else {**columns, "crcs": self.crcs}

    def packed(self) -> list[tuple[int, bytes | memoryview]]:
        """Return the columns as one block of bytes: parts of it, and where each stands. The last one ends the block."""
        columns = self._columns()
        facts = {name: (column.dtype.str, len(column)) for name, column in columns.items()}
        head = json.dumps([self.names, self.kinds, facts]).encode()
        head = len(head).to_bytes(_ALIGNMENT_BYTES, "little") + head
        parts, at = [(0, cast("bytes | memoryview", head))], _align(len(head))
        for column in columns.values():
            parts.append((at, column.tobytes()))
            at = _align(at + column.nbytes)
        return [*parts, (at, self.keys)]

    def store_in(self, blocks: SharedBlocks, number: int) -> ShardIndex:
        """Return the index as it now lies in shared blocks, as block `number`; itself where there is no room for it."""
        parts = self.packed()
        block = blocks.write(number, parts[-1][0] + len(parts[-1][1]), parts)
        return self if block is None else ShardIndex.unpacked(block)

    @classmethod
    def unpacked(cls, block: bytes | memoryview) -> ShardIndex:
        """Return the index that `packed` made a block of; its columns lie there."""
        size = int.from_bytes(block[:_ALIGNMENT_BYTES], "little") + _ALIGNMENT_BYTES
        names, kinds, facts = json.loads(bytes(block[_ALIGNMENT_BYTES:size]))
        columns, at = dict[str, Any](), _align(size)
        for name, (dtype, count) in facts.items():
            columns[name] = np.frombuffer(block, dtype, count, at)
            at = _align(at + columns[name].nbytes)
        return cls(**{"crcs": None, **columns}, names=tuple(names), kinds=kinds, keys=block[at:])


def scanned_index(found: ShardScan) -> ShardIndex:
    """Return what a walk found, with names as a sidecar has them."""
    keys, names = _index_texts(found.keys), tuple(index_text(name) for name in found.names)
    crcs = np.frombuffer(found.crcs, np.uint32) if found.crcs or not found.codes else None
    return ShardIndex(
        keys=b"".join(keys),
        key_ends=part_ends([len(key) for key in keys]),
        starts=np.frombuffer(found.starts, np.int64),
        sizes=np.frombuffer(found.sizes, np.int64),
        firsts=part_ends(np.frombuffer(found.counts, np.uint32)),
        names=names,
        codes=np.frombuffer(found.codes, np.uint32),
        offsets=np.frombuffer(found.offsets, np.int64),
        lengths=np.frombuffer(found.lengths, np.int64),
        crcs=crcs,
        kinds=dict(zip(names, found.kinds, strict=True)) if found.format == "tfrecord" else {},
        fact=ShardFacts(to_output_name(base_name(found.path)), found.size, found.crc, ""),
        schema=SCHEMA_WITHOUT_CRC if crcs is None else SIDECAR_SCHEMA,
        walk=found,
    )


def part_ends(sizes: NDArray[np.integer] | Sequence[int]) -> Places:
    """Return where parts start that lie end to end, and where the last one ends: int64."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _index_texts(names: list[bytes]) -> list[bytes]:
    """Return names of a shard as UTF-8, which nearly all are."""
    return names if is_utf8(b"\0".join(names)) else [index_text(name).encode() for name in names]


def _to_unsigned(places: Places) -> pa.Array:
    return number_array(places.astype(np.int64, copy=False).view(np.uint64))


def _align(at: int) -> int:
    return -(-at // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
