"""One open shard with its index."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.dataset.payload import feature_numbers
from shardtool.dataset.scan import index_text
from shardtool.format.tfrecord_read import decode_bytes_list, decode_numbers, parse_features
from shardtool.format.tfrecord_write import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES
from shardtool.names import RESERVED_NAMES
from shardtool.read.open_files import OpenFile, read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.errors import ShardError
    from shardtool.read.catalog import Numbers
    from shardtool.read.options import Sample, Samples
    from shardtool.values import FeatureType


_float = Struct("<f")
_RESERVED_NAMES = frozenset(map(bytes.decode, RESERVED_NAMES))
_FIRST_LONG_VARINT = 0x80  # smaller numbers are varints of one byte


def _read_int(data: bytes) -> object:
    if len(data) == 1 and data[0] < _FIRST_LONG_VARINT:
        return data[0]
    return _single_or_list(feature_numbers(data, "int64"))


def _read_float(data: bytes) -> object:
    return _float.unpack(data)[0] if len(data) == _float.size else _single_or_list(feature_numbers(data, "float"))


def _single_or_list(numbers: Sequence[object]) -> object:
    return numbers[0] if len(numbers) == 1 else numbers


# Each reads one number of a TFRecord from its bytes, or raises ValueError.
NUMBER_READERS: Mapping[FeatureType, Callable[[bytes], object]] = {"int64": _read_int, "float": _read_float}


def parse_record(record: bytes, start: int, where: str, lists: frozenset[str]) -> Sample:
    """Return the features of a TFRecord: single values, or lists of several or no values.

    `record` includes its frame, and is at offset `start` of the shard `where`. Features in `lists` are always lists.
    """
    data, first = record[FRAME_HEAD_BYTES:-FRAME_TAIL_BYTES], start + FRAME_HEAD_BYTES
    features: Sample = {}
    for feature in parse_features(data, first, where):
        payload = data[feature.offset - first : feature.offset - first + feature.size]
        if feature.kind == "bytes":
            values: Sequence[object] = decode_bytes_list(payload) if feature.whole else [payload]
        else:
            kind = feature.kind
            values = decode_numbers(payload, kind) if feature.whole else feature_numbers(payload, kind, feature.values)
        name = index_text(feature.name)
        features[name] = list(values) if len(values) != 1 or name in lists else values[0]
    for name in _RESERVED_NAMES.intersection(features):
        del features[name]
    return features


LATE_SAMPLE_BYTES = 2**12  # larger samples are read one by one, on demand (measured)
_MAX_SINGLE_READ_BYTES = 2**15  # up to this size, one system call reads a sample


class PayloadColumns(NamedTuple):
    """Payloads in file order; `counts` per sample, the others per payload."""

    counts: Numbers
    codes: NDArray[np.int32]
    offsets: Numbers
    lengths: Numbers
    crcs: NDArray[np.uint32] | None

    @property
    def owners(self) -> Numbers:
        """The sample of each payload."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True, slots=True)
class ReadableShard:
    """An open shard with its index.

    Attributes:
        is_tar: Whether records need no parsing.
        readers: Readers of numeric fields; None: parse records.
        views: Columns of the index for fast access to single numbers.
    """

    index: ShardIndex
    file: OpenFile
    is_tar: bool
    readers: Mapping[str, Callable[[bytes], object]] | None
    views: tuple[memoryview, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        index = self.index
        columns = (index.key_ends, index.firsts, index.codes, index.offsets, index.lengths)
        object.__setattr__(self, "views", tuple([column.data for column in columns]))

    def read_one(self, row: int, selected: frozenset[str] | None) -> Sample:
        """Return one sample. A hot path.

        Raises OSError, EOFError, ValueError or IndexError if the shard is damaged, or payloads are not in order.
        """
        index, fd = self.index, self.file.fd
        key_ends, firsts, codes, offsets, lengths = self.views
        names = index.names
        sample: dict[str, Any] = {"__key__": str(index.keys[key_ends[row] : key_ends[row + 1]], "utf-8")}
        fields: Sequence[int] = range(firsts[row], firsts[row + 1])
        if selected is not None:
            fields = [payload for payload in fields if names[codes[payload]] in selected]
        if not fields:
            return sample
        start, end = offsets[fields[0]], offsets[fields[-1]] + lengths[fields[-1]]
        if len(fields) > 1 and 0 <= end - start <= _MAX_SINGLE_READ_BYTES:
            block = read_exactly(fd, end - start, start)
            for payload in fields:
                first = offsets[payload] - start
                if not 0 <= first <= len(block) - lengths[payload]:
                    raise IndexError(payload)
                sample[names[codes[payload]]] = block[first : first + lengths[payload]]
        else:
            for payload in fields:
                sample[names[codes[payload]]] = read_exactly(fd, lengths[payload], offsets[payload])
        if self.readers:
            for name, read in self.readers.items():
                if name in sample:
                    sample[name] = read(sample[name])
        return sample

    def layout(self, rows: Numbers, selected: frozenset[str] | None) -> PayloadColumns:
        """Return the payloads of samples with ascending rows."""
        index, firsts = self.index, self.index.firsts[rows]
        counts = index.firsts[rows + 1] - firsts
        ends = np.cumsum(counts)
        payloads = np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1])
        if selected is not None:
            keeps = np.array([name in selected for name in index.names], np.bool_)[index.codes[payloads]]
            counts = np.bincount(np.repeat(np.arange(len(rows)), counts)[keeps], minlength=len(rows)).astype(np.int64)
            payloads = payloads[keeps]
        crcs = None if index.crcs is None else index.crcs[payloads]
        return PayloadColumns(counts, index.codes[payloads], index.offsets[payloads], index.lengths[payloads], crcs)

    def edges(self, rows: Numbers, selected: frozenset[str] | None) -> tuple[list[str], Numbers] | None:
        """Return fields, and their starts and ends per sample: int64 [samples, 2 * fields].

        Returns None if samples differ in their fields, or payloads are not in order.
        """
        counts, codes, offsets, lengths, _ = self.layout(rows, selected)
        width = int(counts[0])
        if not width or (counts != width).any() or (codes.reshape(-1, width) != codes[:width]).any():
            return None
        edges = np.stack((offsets, offsets + lengths), axis=-1).reshape(-1, 2 * width)
        return None if (np.diff(edges) < 0).any() else ([self.index.names[code] for code in codes[:width]], edges)

    def spans(self, rows: Numbers, selected: frozenset[str] | None) -> tuple[Numbers, Numbers]:
        """Return the start and end of each range to read."""
        if selected is None:
            starts = self.index.starts[rows]
            return starts, starts + self.index.sizes[rows]
        layout = self.layout(rows, selected)
        return layout.offsets, layout.offsets + layout.lengths


def read_each_late(
    parts: Sequence[tuple[ReadableShard, Numbers]], numbers: Numbers, selected: frozenset[str] | None,
    read_one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    """Return samples that need no parsing, each read on demand. Offsets are computed now.

    `parts` are shards with the ascending rows of their samples among `numbers`, int64 [n]. `read_one` is the fallback,
    by number.
    """
    edges_by_shard = [opened.edges(rows, selected) for opened, rows in parts]
    names, readers = edges_by_shard[0][0] if edges_by_shard[0] else [], parts[0][0].readers or {}
    matching_edges = [edges[1] for edges, (opened, _) in zip(edges_by_shard, parts, strict=True)
             if edges and edges[0] == names and opened.readers == readers]  # fmt: skip
    if len(matching_edges) < len(parts):
        return map(read_one, numbers.tolist())
    keys = [key for opened, rows in parts for key in opened.index.keys_of(rows)]
    files = [opened.file for opened, rows in parts for _ in range(len(rows))]
    edges = np.concatenate(matching_edges)
    if (np.diff(numbers) < 0).any():
        positions = np.argsort(np.argsort(numbers, kind="stable"))
        order = positions.tolist()
        keys, files, edges = [keys[row] for row in order], [files[row] for row in order], edges[positions]
    reads = [(name, read) for name, read in readers.items() if name in names]
    return _read_each(keys, files, names, edges, reads, lambda index: read_one(int(numbers[index])))


def _read_each(
    keys: list[str], files: list[OpenFile], names: list[str], edges: Numbers,
    reads: list[tuple[str, Callable[[bytes], object]]], read_one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    """Yield samples. A hot path: 1 us in addition to reading.

    `edges` is int64 [samples, 2 * fields] (starts and ends).
    """
    starts, sizes = edges[:, 0].tolist(), (edges[:, -1] - edges[:, 0]).tolist()
    columns = (edges - edges[:, :1]).T.tolist()
    cuts = zip(*map(zip, map(repeat, names), map(map, repeat(slice), columns[::2], columns[1::2])), strict=True)
    single_read_bytes = _MAX_SINGLE_READ_BYTES if len(names) > 1 else max(sizes)
    for position, (key, file, start, size, fields) in enumerate(zip(keys, files, starts, sizes, cuts, strict=True)):
        sample: dict[str, Any] = {"__key__": key}
        try:
            if size > single_read_bytes:
                for name, cut in fields:
                    sample[name] = read_exactly(file.fd, cut.stop - cut.start, start + cut.start)
            else:
                block = read_exactly(file.fd, size, start)
                for name, cut in fields:
                    sample[name] = block[cut]
            for name, read in reads:
                sample[name] = read(sample[name])
        except (OSError, EOFError, ValueError, IndexError):
            yield read_one(position)  # reads it again for a complete error
        else:
            yield sample
