"""Read samples of an open shard: one at a time, many in file order, or many on demand."""

from __future__ import annotations

from dataclasses import field
from itertools import islice, repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.dataset.payload import feature_numbers
from shardtool.dataset.scan import decode_name
from shardtool.dataset.shard_file import is_compressed
from shardtool.entries.arrow import to_python_values
from shardtool.errors import CorruptShard, InvalidRequest, ShardError
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord_read import decode_bytes_list, decode_numbers, parse_features
from shardtool.format.tfrecord_write import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES
from shardtool.messages import call_text
from shardtool.names import RESERVED_NAMES
from shardtool.read.open_files import DAMAGE_FIX, OpenShardFile, read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.read.catalog import Numbers
    from shardtool.read.options import ReadOptions, Sample, Samples
    from shardtool.values import FeatureType


LARGE_SAMPLE_BYTES = 2**12  # larger samples are read one by one, which is faster (measured)
_MAX_SINGLE_READ_BYTES = 2**15  # one system call reads a sample of up to this size
_MIN_OWN_READ_BYTES = 2**12  # larger payloads are read one by one, which is faster (measured)
_MAX_GAP_BYTES = 2**13  # reading a smaller gap costs less than another system call
_MAX_BLOCK_BYTES = 2**18
_NOT_A_NUMBER = "does not match its feature type"
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


# these functions decode the numbers of a TFRecord feature, or raise ValueError
NUMBER_READERS: Mapping[FeatureType, Callable[[bytes], object]] = {"int64": _read_int, "float": _read_float}


def _parse_record(record: bytes, start: int, where: str, lists: frozenset[str]) -> Sample:
    data, first = record[FRAME_HEAD_BYTES:-FRAME_TAIL_BYTES], start + FRAME_HEAD_BYTES
    features: Sample = {}
    for feature in parse_features(data, first, where):
        payload = data[feature.offset - first : feature.offset - first + feature.size]
        if feature.kind == "bytes":
            values: Sequence[object] = decode_bytes_list(payload) if feature.is_list else [payload]
        elif feature.is_list:
            values = decode_numbers(payload, feature.kind)
        else:
            values = feature_numbers(payload, feature.kind, feature.values)
        name = decode_name(feature.name)
        features[name] = list(values) if len(values) != 1 or name in lists else values[0]
    for name in _RESERVED_NAMES.intersection(features):
        del features[name]
    return features


class PayloadColumns(NamedTuple):
    """The locations of payloads in a shard, in the order of its index.

    Attributes:
        counts: Number of payloads of each sample, int64 [samples].
        codes: Index of each payload's field in `ShardIndex.names`, int32 [payloads].
        crcs: CRC-32C of each payload, uint32 [payloads], or None if unknown.
    """

    counts: Numbers
    codes: NDArray[np.int32]
    offsets: Numbers
    lengths: Numbers
    crcs: NDArray[np.uint32] | None

    @property
    def samples(self) -> Numbers:
        """For each payload, the index of its sample, int64 [payloads]."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True, slots=True)
class ReadableShard:
    """An open shard with its index.

    Attributes:
        readers: Functions that decode numeric fields, by field name. None if whole TFRecords must be parsed.
        lists: TFRecord features that are lists in every sample. They can be read only by parsing whole TFRecords.
        size: Bytes of the file, or 0 if unknown.
        crc: CRC-32C of the file, or -1 if unknown.
        views: Columns of the index as memoryviews, which return single numbers faster than arrays.
    """

    index: ShardIndex
    file: OpenShardFile
    readers: Mapping[str, Callable[[bytes], object]] | None
    lists: frozenset[str]
    size: int
    crc: int
    views: tuple[memoryview, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        index = self.index
        columns = (index.key_offsets, index.first_rows, index.codes, index.offsets, index.lengths)
        object.__setattr__(self, "views", tuple([column.data for column in columns]))

    def read_one(self, row: int, selected: frozenset[str] | None) -> Sample:
        """Return the selected fields of one sample.

        Raises:
            OSError, EOFError, ValueError, IndexError: The shard is damaged, or its payloads are not in file order.
        """
        index, fd = self.index, self.file.fd
        key_offsets, first_rows, codes, offsets, lengths = self.views
        names = index.names
        sample: dict[str, Any] = {"__key__": str(index.keys[key_offsets[row] : key_offsets[row + 1]], "utf-8")}
        payloads: Sequence[int] = range(first_rows[row], first_rows[row + 1])
        if selected is not None:
            payloads = [payload for payload in payloads if names[codes[payload]] in selected]
        if not payloads:
            return sample
        start, end = offsets[payloads[0]], offsets[payloads[-1]] + lengths[payloads[-1]]
        if len(payloads) > 1 and 0 <= end - start <= _MAX_SINGLE_READ_BYTES:
            block = read_exactly(fd, end - start, start)
            for payload in payloads:
                first = offsets[payload] - start
                if not 0 <= first <= len(block) - lengths[payload]:
                    raise IndexError(payload)
                sample[names[codes[payload]]] = block[first : first + lengths[payload]]
        else:
            for payload in payloads:
                sample[names[codes[payload]]] = read_exactly(fd, lengths[payload], offsets[payload])
        if self.readers:
            for name, read in self.readers.items():
                if name in sample:
                    sample[name] = read(sample[name])
        return sample

    def read_many(self, rows: Numbers, options: ReadOptions, metadata: pa.Table | None) -> list[Sample | ShardError]:
        """Return the samples in `rows` (ascending), with their `metadata`. For a damaged sample, return its error.

        Raises:
            CorruptShard: The checksum of the whole shard differs from the dataset file.
        """
        return _BlockRead(self, rows, options).samples(metadata)

    def layout(self, rows: Numbers, selected: frozenset[str] | None) -> PayloadColumns:
        """Return the payload locations of `rows` (ascending), for the selected fields."""
        index, first_rows = self.index, self.index.first_rows[rows]
        counts = index.first_rows[rows + 1] - first_rows
        ends = np.cumsum(counts)
        payloads = np.repeat(first_rows - ends + counts, counts) + np.arange(ends[-1])
        if selected is not None:
            is_selected = np.array([name in selected for name in index.names], np.bool_)[index.codes[payloads]]
            samples = np.repeat(np.arange(len(rows)), counts)[is_selected]
            counts = np.bincount(samples, minlength=len(rows)).astype(np.int64)
            payloads = payloads[is_selected]
        crcs = None if index.crcs is None else index.crcs[payloads]
        return PayloadColumns(counts, index.codes[payloads], index.offsets[payloads], index.lengths[payloads], crcs)

    def edges(self, rows: Numbers, selected: frozenset[str] | None) -> tuple[list[str], Numbers] | None:
        """Return the field names, and the start and end of each payload in the shard, int64 [samples, 2 * fields].

        Return None if samples have different fields, or if the payloads of a sample are not in file order.
        """
        counts, codes, offsets, lengths, _ = self.layout(rows, selected)
        width = int(counts[0])
        if not width or (counts != width).any() or (codes.reshape(-1, width) != codes[:width]).any():
            return None
        edges = np.stack((offsets, offsets + lengths), axis=-1).reshape(-1, 2 * width)
        return None if (np.diff(edges) < 0).any() else ([self.index.names[code] for code in codes[:width]], edges)

    def spans(self, rows: Numbers, selected: frozenset[str] | None) -> tuple[Numbers, Numbers]:
        """Return the start and end of each range of bytes to read."""
        if selected is None:
            starts = self.index.starts[rows]
            return starts, starts + self.index.sizes[rows]
        layout = self.layout(rows, selected)
        return layout.offsets, layout.offsets + layout.lengths


class _BlockRead:
    def __init__(self, shard: ReadableShard, rows: Numbers, options: ReadOptions) -> None:
        self._shard, self._options, self._rows = shard, options, rows
        self._keys, self._layout = shard.index.keys_of(rows), shard.layout(rows, options.fields)
        self._errors: dict[int, ShardError] = {}

    def samples(self, metadata: pa.Table | None) -> list[Sample | ShardError]:
        samples: list[Sample] = [{"__key__": key} for key in self._keys]
        fields = self._options.fields
        if self._shard.readers is None or (self._shard.lists if fields is None else self._shard.lists & fields):
            self._fill_from_records(samples)
        else:
            self._fill_from_payloads(samples, self._shard.readers)
        if metadata is not None:
            for name in metadata.column_names:
                for sample, value in zip(samples, to_python_values(metadata.column(name)), strict=True):
                    sample.setdefault(name, value)
        return [self._errors.get(index, sample) for index, sample in enumerate(samples)] if self._errors else [*samples]

    def _fill_from_payloads(self, samples: list[Sample], readers: Mapping[str, Callable[[bytes], object]]) -> None:
        values: list[Any] = self._read()
        names, codes, counts = self._shard.index.names, self._layout.codes, self._layout.counts
        for name, read in readers.items():
            for index in np.flatnonzero(codes == names.index(name)).tolist() if name in names else ():
                try:
                    values[index] = read(values[index])
                except (ValueError, IndexError):
                    self._record_error(index, _NOT_A_NUMBER)
        width = int(counts[0])
        if (counts == width).all() and (codes.reshape(-1, width or 1) == codes[:width]).all():
            for index, code in enumerate(codes[:width].tolist()):  # this takes half as long as the loop below
                name = names[code]
                for sample, value in zip(samples, values[index::width], strict=True):
                    sample[name] = value
            return
        for number, code, value in zip(self._layout.samples.tolist(), codes.tolist(), values, strict=True):
            samples[number][names[code]] = value

    def _fill_from_records(self, samples: list[Sample]) -> None:
        if self._options.check:
            self._read()  # records checksum errors
        selected, index, path = self._options.fields, self._shard.index, self._shard.file.path
        starts, sizes = index.starts[self._rows].tolist(), index.sizes[self._rows].tolist()
        for row, record in enumerate(self._read_each_range(starts, sizes)):
            try:
                if isinstance(record, CorruptShard):
                    raise record
                values = _parse_record(record, starts[row], path, self._shard.lists)
            except CorruptShard as error:
                problem = f"{self._keys[row]}: {error.problem}"
                offset, expected, remedy = error.offset, error.expected, error.remedy
                error_with_key = CorruptShard(path, problem, offset=offset, expected=expected, remedy=remedy)
                self._errors.setdefault(row, error_with_key)
            except (ValueError, IndexError):
                problem = f"{self._keys[row]}: {_NOT_A_NUMBER}"
                self._errors.setdefault(row, CorruptShard(path, problem, offset=starts[row], remedy=DAMAGE_FIX))
            else:
                chosen = values if selected is None else {name: values[name] for name in values if name in selected}
                samples[row].update(chosen)

    def _read_each_range(self, starts: list[int], sizes: list[int]) -> Iterator[bytes | CorruptShard]:
        index = 0
        while index < len(starts):
            try:
                for block in self._shard.file.read(starts[index:], sizes[index:]):
                    yield block
                    index += 1
            except CorruptShard as error:
                yield error
                index += 1

    def _read(self) -> list[bytes]:
        layout, file = self._layout, self._shard.file
        offsets, lengths = layout.offsets, layout.lengths
        if not len(offsets):
            return []
        firsts = np.flatnonzero(_begins_block(offsets, lengths))
        lasts = np.append(firsts[1:], len(offsets)) - 1
        starts, ends = offsets[firsts], offsets[lasts] + lengths[lasts]
        blocks = file.read(starts.tolist(), (ends - starts).tolist())
        try:
            values = [*blocks] if len(starts) == len(offsets) else _cut_payloads(blocks, layout, firsts)
        except CorruptShard:
            values = []
            for payload, value in enumerate(self._read_each_range(offsets.tolist(), lengths.tolist())):
                values.append(b"" if isinstance(value, CorruptShard) else value)
                if isinstance(value, CorruptShard):
                    self._record_error(payload, value.problem, value.expected, value.remedy)
        crcs = layout.crcs
        if self._options.check and crcs is None:
            self._check_whole()
        elif self._options.check and crcs is not None:
            actual = np.fromiter(map(crc32c, values), np.uint32, len(values))
            for payload in np.flatnonzero(actual != crcs).tolist():
                problem, expected = f"the checksum {actual[payload]:08x}", f"{crcs[payload]:08x}, as in its index"
                self._record_error(payload, problem, expected)
        return values

    def _record_error(self, payload: int, problem: str, expected: str = "", remedy: str = DAMAGE_FIX) -> None:
        layout = self._layout
        sample, name = int(layout.samples[payload]), self._shard.index.names[layout.codes[payload]]
        self._errors.setdefault(sample, CorruptShard(
            self._shard.file.path, f"{self._keys[sample]}, {name}: {problem}", offset=int(layout.offsets[payload]),
            expected=expected, remedy=remedy,
        ))  # fmt: skip

    def _check_whole(self) -> None:
        expected, file = self._shard.crc, self._shard.file
        if is_compressed(file.path):
            remedy = "Decompress it, or open it without check=True."
            raise InvalidRequest("check", f"{file.path} is compressed and has no checksums", remedy=remedy)
        if expected < 0:
            remedy = f"Create sidecars with checksums: {call_text('index', checksum=True)}."
            raise InvalidRequest("check", f"no checksums are known for {file.path}", remedy=remedy)
        if (actual := file.checksum(self._shard.size)) != expected:
            expected_text = f"{expected:08x}, as in its dataset file"
            raise CorruptShard(file.path, f"the checksum {actual:08x}", expected=expected_text, remedy=DAMAGE_FIX)


def _cut_payloads(blocks: Iterator[bytes], layout: PayloadColumns, firsts: Numbers) -> list[bytes]:
    counts = np.diff(np.append(firsts, len(layout.offsets)))
    starts = layout.offsets - np.repeat(layout.offsets[firsts], counts)
    ranges = zip(starts.tolist(), (starts + layout.lengths).tolist(), strict=True)
    values: list[bytes] = []
    for block, count in zip(blocks, counts.tolist(), strict=True):
        values += [block[first:last] for first, last in islice(ranges, count)]
    return values


def _begins_block(offsets: Numbers, lengths: Numbers) -> NDArray[np.bool_]:
    """For each payload, return whether it starts a block (a range to read)."""
    begins = np.ones(len(offsets), np.bool_)
    is_large = lengths >= _MIN_OWN_READ_BYTES
    gaps = offsets[1:] - offsets[:-1] - lengths[:-1]
    begins[1:] = (gaps < 0) | (gaps > _MAX_GAP_BYTES) | is_large[1:] | is_large[:-1]
    starts = offsets[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    parts = (offsets - starts) // _MAX_BLOCK_BYTES
    begins[1:] |= parts[1:] != parts[:-1]
    return begins


def read_on_demand(
    parts: Sequence[tuple[ReadableShard, Numbers]], numbers: Numbers, selected: frozenset[str] | None,
    read_one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    """Return samples in the order of `numbers`, each read when the caller requests it.

    `parts` contains each shard with the rows to read, ascending. If all samples have the same fields, their payloads
    are read directly. If not, `read_one` reads each sample.
    """
    edges_by_shard = [opened.edges(rows, selected) for opened, rows in parts]
    names = edges_by_shard[0][0] if edges_by_shard[0] else []
    readers = parts[0][0].readers or {}
    matching_edges = [names_and_edges[1] for names_and_edges, (opened, _) in zip(edges_by_shard, parts, strict=True)
             if names_and_edges and names_and_edges[0] == names and opened.readers == readers]  # fmt: skip
    if len(matching_edges) < len(parts):
        return map(read_one, numbers.tolist())
    keys = [key for opened, rows in parts for key in opened.index.keys_of(rows)]
    files = [opened.file for opened, rows in parts for _ in range(len(rows))]
    edges = np.concatenate(matching_edges)
    if (np.diff(numbers) < 0).any():
        order = np.argsort(np.argsort(numbers, kind="stable"))  # `parts` are sorted by number
        keys = [keys[index] for index in order.tolist()]
        files = [files[index] for index in order.tolist()]
        edges = edges[order]
    number_readers = [(name, read) for name, read in readers.items() if name in names]
    return _read_each(keys, files, names, edges, number_readers, lambda index: read_one(int(numbers[index])))


def _read_each(
    keys: list[str], files: list[OpenShardFile], names: list[str], edges: Numbers,
    number_readers: list[tuple[str, Callable[[bytes], object]]], read_one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    starts, sizes = edges[:, 0].tolist(), (edges[:, -1] - edges[:, 0]).tolist()
    columns = (edges - edges[:, :1]).T.tolist()
    # for each sample, pairs of field name and slice
    columns_by_field = zip(names, columns[::2], columns[1::2], strict=True)
    cuts = zip(*(zip(repeat(name), map(slice, firsts, ends)) for name, firsts, ends in columns_by_field), strict=True)
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
            for name, read in number_readers:
                sample[name] = read(sample[name])
        except (OSError, EOFError, ValueError, IndexError):
            yield read_one(position)  # read the sample again, to get a detailed error
        else:
            yield sample
