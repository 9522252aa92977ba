"""The index of one shard: the locations of its samples and fields, as columns.

An index comes from a sidecar (`parse_sidecar`), a scan (`scanned_index`), or the packed samples (`written_index`).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from shardtool.dataclass import dataclass
from shardtool.dataset.scan import ShardScan, decode_name
from shardtool.dataset.sidecar_schema import (
    FIELDS_COLUMN,
    SCHEMA_WITHOUT_CRC,
    SHARD_COLUMN,
    SIDECAR_SCHEMA,
    ShardFacts,
    ShardTally,
)
from shardtool.entries.arrow import bytes_array, decode_strings, number_array, string_array
from shardtool.errors import printable
from shardtool.fingerprint import content_digest
from shardtool.names import RESERVED_NAMES, is_utf8, to_output_name
from shardtool.storage.paths import base_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.errors import CorruptShard
    from shardtool.storage.shared_blocks import SharedBlocks
    from shardtool.values import FeatureType

    # `for_reading` converts these arrays to int32 for shards below 2 GiB
    Offsets = NDArray[np.int64]


_INT32_LIMIT = 2**31
_NO_FACTS = ShardFacts("", -1, None, "")
_ALIGNMENT_BYTES = 8
# This byte, which does not occur in UTF-8, replaces NUL in keys that other tools wrote.
_NUL_SUBSTITUTE = b"\xff"
# `keys_of` decodes a range of keys as one text, if the range has fewer than this many keys per requested key.
_MAX_DECODED_PER_KEY = 8
_OFFSET_COLUMNS = ("key_offsets", "starts", "sizes", "first_rows", "offsets", "lengths")


@dataclass(frozen=True)
class ShardIndex:
    """The offsets of a shard's samples and fields.

    Attributes:
        key_offsets: Start of each key in `keys`, followed by the length of `keys`.
        starts: For each sample, the offset of its first record in the shard.
        sizes: Size in bytes of all records of each sample.
        first_rows: Index of each sample's first field in `codes`, followed by the length of `codes`.
        codes: For each field, the index of its name in `names`.
        offsets: For each field, the offset of its payload in the shard.
        lengths: Length in bytes of each field's payload.
        crcs: CRC-32C of each field's payload, or None if unknown.
        kinds: For a scanned TFRecord shard, the type of each field. Otherwise empty.
        metadata: The metadata columns of the sidecar, each in one chunk. Text may be dictionary-encoded.
        damage: The error in the sidecar that made a scan necessary.
    """

    keys: bytes | memoryview = field(repr=False)
    key_offsets: Offsets = field(repr=False)
    starts: Offsets = field(repr=False)
    sizes: Offsets = field(repr=False)
    first_rows: Offsets = field(repr=False)
    names: tuple[str, ...]
    codes: NDArray[np.integer] = field(repr=False)
    offsets: Offsets = field(repr=False)
    lengths: Offsets = field(repr=False)
    crcs: NDArray[np.uint32] | None = field(repr=False)
    kinds: Mapping[str, FeatureType] = field(default_factory=dict)
    facts: ShardFacts = _NO_FACTS
    metadata: pa.Table = field(default_factory=lambda: pa.Table.from_arrays([], names=[]), repr=False)
    schema: pa.Schema = field(default=SIDECAR_SCHEMA, repr=False)
    scan: ShardScan | None = field(default=None, repr=False)
    damage: CorruptShard | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def counts(self) -> Offsets:
        """Number of fields of each sample."""
        return np.diff(self.first_rows)

    @property
    def key_sizes(self) -> Offsets:
        """Length of each key in bytes."""
        return np.diff(self.key_offsets)

    @property
    def error(self) -> CorruptShard | None:
        """The error that ended the scan early, or None."""
        return None if self.scan is None else self.scan.error

    @property
    def problems(self) -> tuple[CorruptShard, ...]:
        """The errors in the sidecar and in the scanned shard."""
        return tuple(error for error in (self.damage, self.error) if error is not None)

    @property
    def version(self) -> int:
        """The format version of the sidecar."""
        return 2 if SHARD_COLUMN.name in self.schema.names else 1

    def sample_of_row(self) -> NDArray[np.int64]:
        """Return the sample number of each field."""
        return np.repeat(np.arange(len(self)), self.counts)

    @cached_property
    def table(self) -> pa.Table:
        """All columns of the sidecar except the shard's name."""
        codes = number_array(self.codes.astype(np.int32))
        return self._table(pa.DictionaryArray.from_arrays(codes, bytes_array(self._field_names())), self.metadata)

    def plain_table(self) -> pa.Table:
        """Return the table without dictionary encoding."""
        return self._table(decode_strings(self._field_names(), self.codes), self.plain_metadata())

    def plain_metadata(self) -> pa.Table:
        """Return the metadata without dictionary encoding."""
        schema = pa.schema([self.schema.field(name) for name in self.metadata.column_names])
        return self.metadata if self.metadata.schema.equals(schema) else self.metadata.cast(schema)

    def _field_names(self) -> list[bytes]:
        return [name.encode() for name in self.names]

    def _table(self, names: pa.Array, metadata: pa.Table) -> pa.Table:
        base_schema = SCHEMA_WITHOUT_CRC if self.crcs is None else SIDECAR_SCHEMA
        crcs = pa.nulls(len(self.codes), pa.uint32()) if self.crcs is None else number_array(self.crcs)
        columns = [names, _to_unsigned(self.offsets), _to_unsigned(self.lengths), crcs]
        field_types = [
            column.with_type(part.type)
            for column, part in zip(base_schema.field(FIELDS_COLUMN).type.value_type, columns, strict=True)
        ]
        element = pa.field("element", pa.struct(field_types), nullable=False)
        fields = pa.StructArray.from_arrays(columns, fields=field_types)
        list_offsets = number_array(self.first_rows.astype(np.int32))
        lists = pa.ListArray.from_arrays(list_offsets, fields, type=pa.list_(element))
        keys = string_array(bytes(self.keys), self.key_sizes)
        table_columns = [keys, _to_unsigned(self.starts), _to_unsigned(self.sizes), lists, *metadata.columns]
        schema = [*[*base_schema][:-1], pa.field(FIELDS_COLUMN, lists.type, nullable=False), *metadata.schema]
        return pa.Table.from_arrays(table_columns, schema=pa.schema(schema))

    def keys_of(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the keys of the samples `rows` (ascending)."""
        starts, ends, keys = self.key_offsets[rows].tolist(), self.key_offsets[rows + 1].tolist(), self.keys
        if starts and rows[-1] - rows[0] < _MAX_DECODED_PER_KEY * len(rows):
            block_start = starts[0]
            text = str(keys[block_start : ends[-1]], "utf-8")
            if len(text) == ends[-1] - block_start:  # ASCII only
                return [text[start - block_start : end - block_start] for start, end in zip(starts, ends, strict=True)]
        return [str(keys[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def all_keys(self) -> list[bytes]:
        """Return the keys of all samples."""
        keys, ends = bytes(self.keys), self.key_offsets.tolist()
        return [keys[start:end] for start, end in pairwise(ends)]

    def keys_with_nul(self) -> bytes:
        """Return all keys, each followed by NUL. NULs inside keys are replaced."""
        text = np.frombuffer(bytes(self.keys).replace(b"\0", _NUL_SUBSTITUTE), np.uint8)
        return np.insert(text, self.key_offsets[1:], 0).tobytes()

    def find_row(self, key: bytes) -> int:
        """Return the index of the first sample with this key, or -1."""
        if not key:
            empty = np.flatnonzero(self.key_sizes == 0)
            return int(empty[0]) if len(empty) else -1
        keys, position = bytes(self.keys), -1
        while (position := keys.find(key, position + 1)) >= 0:
            row = int(np.searchsorted(self.key_offsets, position, side="right")) - 1
            is_start = row < len(self) and self.key_offsets[row] == position
            if is_start and self.key_offsets[row + 1] == position + len(key):
                return row
        return -1

    def field_counts(self, rows: NDArray[np.int64]) -> list[int]:
        """Return, for each field in `names`, how many of the samples `rows` have it."""
        counts = self.counts[rows]
        field_rows = np.repeat(self.first_rows[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        result: list[int] = np.bincount(self.codes[field_rows], minlength=len(self.names)).tolist()
        return result

    def tally(self) -> ShardTally:
        """Summarize the samples for the dataset file."""
        first, last = (self.keys_of(np.array([0, len(self) - 1]))) if len(self) else ("", "")
        fields: Counter[str] = Counter()
        for name, count in zip(self.names, np.bincount(self.codes, minlength=len(self.names)).tolist(), strict=True):
            fields[name] += count
        return ShardTally(len(self), first, last, dict(+fields), int(self.lengths.sum()))  # `+` drops zeros

    def codes_by_name(self) -> tuple[list[bytes], bytes]:
        """Return the sorted field names, and for each field its index among these names (as uint16)."""
        names = sorted(self.names)
        positions = np.array([names.index(name) for name in self.names], "<u2")
        return [name.encode() for name in names], positions[self.codes].tobytes()

    def fingerprint(self) -> int | None:
        """Return the content fingerprint of a tar shard, or None if payload checksums are unknown."""
        if self.crcs is None:
            return None
        names, codes = self.codes_by_name()
        lengths, crcs = self.lengths.astype("<i8").tobytes(), self.crcs.astype("<u4").tobytes()
        return content_digest(self.all_keys(), self.counts.tolist(), names, codes=codes, lengths=lengths, crcs=crcs)

    def for_reading(self) -> ShardIndex:
        """Return a smaller index for reading samples: no metadata, and no fields in `RESERVED_NAMES`."""
        index = self._without_reserved()
        shard_end = int(index.starts[-1] + index.sizes[-1]) if len(index) else 0
        offset_type = np.int32 if max(shard_end, len(index.keys)) < _INT32_LIMIT else np.int64
        columns: dict[str, Any] = {name: getattr(index, name).astype(offset_type) for name in _OFFSET_COLUMNS}
        codes = index.codes.astype(np.uint8 if len(index.names) <= np.iinfo(np.uint8).max else np.uint32)
        return ShardIndex(
            keys=index.keys, names=index.names, codes=codes, crcs=index.crcs, kinds=index.kinds, **columns
        )

    def _without_reserved(self) -> ShardIndex:
        reserved = [code for code, name in enumerate(self.names) if name.encode() in RESERVED_NAMES]
        if not reserved:
            return self
        is_kept = ~np.isin(self.codes, reserved)
        counts = np.bincount(self.sample_of_row()[is_kept], minlength=len(self))
        crcs = None if self.crcs is None else self.crcs[is_kept]
        codes, offsets, lengths = self.codes[is_kept], self.offsets[is_kept], self.lengths[is_kept]
        return replace(self, first_rows=part_offsets(counts), codes=codes, offsets=offsets, lengths=lengths, crcs=crcs)

    @property
    def is_shared(self) -> bool:
        """Whether the columns are in memory that processes share."""
        return isinstance(self.keys, memoryview)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory, without metadata."""
        return len(self.keys) + sum(column.nbytes for column in self._columns().values())

    def _columns(self) -> dict[str, NDArray[np.generic]]:
        columns = {name: getattr(self, name) for name in (*_OFFSET_COLUMNS, "codes")}
        return columns if self.crcs is None else {**columns, "crcs": self.crcs}

    def packed(self) -> list[tuple[int, bytes | memoryview]]:
        """Return the index as byte strings to write to a memory block, each with its offset in the block."""
        columns = self._columns()
        layout = {name: (column.dtype.str, len(column)) for name, column in columns.items()}
        header = json.dumps([self.names, self.kinds, layout]).encode()
        header = len(header).to_bytes(_ALIGNMENT_BYTES, "little") + header
        parts, offset = [(0, cast("bytes | memoryview", header))], _align(len(header))
        for column in columns.values():
            parts.append((offset, column.tobytes()))
            offset = _align(offset + column.nbytes)
        return [*parts, (offset, self.keys)]

    def store_in(self, blocks: SharedBlocks, number: int) -> ShardIndex:
        """Copy the index to shared block `number`, and return the copy. If the index does not fit, return `self`."""
        parts = self.packed()
        last_offset, last_part = parts[-1]
        block = blocks.write(number, last_offset + len(last_part), parts)
        return self if block is None else ShardIndex.unpacked(block)

    @classmethod
    def unpacked(cls, block: bytes | memoryview) -> ShardIndex:
        """Create an index from a block with the bytes of `packed`, without copying them."""
        size = int.from_bytes(block[:_ALIGNMENT_BYTES], "little") + _ALIGNMENT_BYTES
        names, kinds, layout = json.loads(bytes(block[_ALIGNMENT_BYTES:size]))
        columns, offset = dict[str, Any](), _align(size)
        for name, (dtype, count) in layout.items():
            columns[name] = np.frombuffer(block, dtype, count, offset)
            offset = _align(offset + columns[name].nbytes)
        return cls(**{"crcs": None, **columns}, names=tuple(names), kinds=kinds, keys=block[offset:])


def scanned_index(scan: ShardScan) -> ShardIndex:
    """Convert the result of a scan to an index."""
    keys = scan.keys if is_utf8(b"\0".join(scan.keys)) else [decode_name(key).encode() for key in scan.keys]
    names = tuple(map(decode_name, scan.names))
    crcs = np.frombuffer(scan.crcs, np.uint32) if scan.crcs or not scan.codes else None
    return ShardIndex(
        keys=b"".join(keys),
        key_offsets=part_offsets([len(key) for key in keys]),
        starts=np.frombuffer(scan.starts, np.int64),
        sizes=np.frombuffer(scan.sizes, np.int64),
        first_rows=part_offsets(np.frombuffer(scan.counts, np.uint32)),
        names=names,
        codes=np.frombuffer(scan.codes, np.uint32),
        offsets=np.frombuffer(scan.offsets, np.int64),
        lengths=np.frombuffer(scan.lengths, np.int64),
        crcs=crcs,
        kinds=dict(zip(names, scan.kinds, strict=True)) if scan.format == "tfrecord" else {},
        facts=ShardFacts(to_output_name(base_name(scan.path)), scan.size, scan.crc, ""),
        schema=SCHEMA_WITHOUT_CRC if crcs is None else SIDECAR_SCHEMA,
        scan=scan,
    )


def part_offsets(sizes: NDArray[np.integer] | Sequence[int]) -> Offsets:
    """Return the offsets of adjacent parts and the end of the last part: [0, 2, 5] for the sizes [2, 3]."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _to_unsigned(offsets: Offsets) -> pa.Array:
    return number_array(offsets.astype(np.int64, copy=False).view(np.uint64))


def _align(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class IndexDifference(NamedTuple):
    """A difference between two indexes of the same shard.

    Attributes:
        what: What differs, such as `samples` (the number of samples) or `checksum`.
        sample: Index of the sample in the shard, or -1 if `what` is `samples`.
        row: Index of the field among all fields of the shard, or -1 if the difference is not in a field.
    """

    what: str
    first: str
    second: str
    sample: int = -1
    row: int = -1


def compare_indexes(first: ShardIndex, second: ShardIndex) -> Iterator[IndexDifference]:
    """Compare two indexes of a shard.

    First yield a difference in the number of samples. Then yield the first difference in keys, offsets, sizes or
    fields, or else all differences in checksums. If the scan of `second` stopped early, neither its last sample
    nor its number of samples is compared.
    """
    samples = min(len(first), len(second))
    if second.error is not None:
        samples = max(0, samples - 1)
    elif len(first) != len(second):
        yield IndexDifference("samples", f"{len(first):,}", f"{len(second):,}")
    difference = next(_column_differences(first, second, samples), None)
    if difference is not None:
        yield difference
        return
    if first.crcs is not None and second.crcs is not None:
        rows = int(first.first_rows[samples])
        sample_of_row = first.sample_of_row()
        for row in np.flatnonzero(first.crcs[:rows] != second.crcs[:rows]).tolist():
            crcs = f"{int(first.crcs[row]):08x}", f"{int(second.crcs[row]):08x}"
            yield IndexDifference("checksum", *crcs, int(sample_of_row[row]), row)


def _column_differences(first: ShardIndex, second: ShardIndex, samples: int) -> Iterator[IndexDifference]:
    if first.keys != second.keys or not np.array_equal(first.key_offsets, second.key_offsets):
        for index, keys in enumerate(zip(first.all_keys()[:samples], second.all_keys(), strict=False)):
            if keys[0] != keys[1]:
                yield IndexDifference("key", printable(keys[0]), printable(keys[1]), index)
    code_by_name = {name: index for index, name in enumerate(first.names)}
    codes = np.array([*(code_by_name.get(name, -1) for name in second.names), -1], np.int64)[second.codes]
    recoded, rows = replace(second, codes=codes), int(first.first_rows[samples])
    for kind, column, count in (
        ("offset", "starts", samples), ("size", "sizes", samples), ("number of fields", "counts", samples),
        ("field", "codes", rows), ("offset", "offsets", rows), ("length", "lengths", rows),
    ):  # fmt: skip
        left, right = getattr(first, column)[:count], getattr(recoded, column)[:count]
        for index in np.flatnonzero(left != right)[:1].tolist():
            values = f"{left[index]:,}", f"{right[index]:,}"
            if kind == "field":
                values = printable(first.names[left[index]]), printable(second.names[second.codes[index]])
            sample = int(np.searchsorted(first.first_rows, index, "right")) - 1
            position = (sample, index) if column in ("codes", "offsets", "lengths") else (index,)
            yield IndexDifference(kind, *values, *position)
