"""One open shard with its index: where payloads are, and reading single samples from it.

All arithmetic is done on columns, for all samples at once.
"""

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


_FIRST_LONG_VARINT = 0x80  # a varint of one byte is below


def _read_int(data: bytes) -> object:
    if len(data) == 1 and data[0] < _FIRST_LONG_VARINT:
        return data[0]
    return _single_or_list(feature_numbers(data, "int64"))


def _read_float(data: bytes) -> object:
    return _float.unpack(data)[0] if len(data) == _float.size else _single_or_list(feature_numbers(data, "float"))


def _single_or_list(numbers: Sequence[object]) -> object:
    return numbers[0] if len(numbers) == 1 else numbers


# What reads a single number of a TFRecord as its index has it; it raises ValueError where there is none.
NUMBER_READERS: Mapping[FeatureType, Callable[[bytes], object]] = {"int64": _read_int, "float": _read_float}


def parse_record(record: bytes, start: int, where: str, lists: frozenset[str]) -> Sample:
    """Return the features of a TFRecord: a value each, or a list where there are several, or none.

    Args:
        record: All its bytes, frame included.
        start: Where it starts in the shard.
        where: The shard's path, for messages.
        lists: The features that are lists with a single value, too.

    Raises:
        CorruptShard: It is no Example.
        ValueError: A number is not what its kind says.
    """
    data, first = record[FRAME_HEAD_BYTES:-FRAME_TAIL_BYTES], start + FRAME_HEAD_BYTES
    found: Sample = {}
    for one in parse_features(data, first, where):
        payload = data[one.offset - first : one.offset - first + one.size]
        if one.kind == "bytes":
            values: Sequence[object] = decode_bytes_list(payload) if one.whole else [payload]
        else:
            values = decode_numbers(payload, one.kind) if one.whole else feature_numbers(payload, one.kind, one.values)
        name = index_text(one.name)
        found[name] = list(values) if len(values) != 1 or name in lists else values[0]
    for name in _RESERVED_NAMES.intersection(found):
        del found[name]
    return found


LATE_SAMPLE_BYTES = 2**12  # bytes of a sample from which on it is read on its own, when it is wanted (measured)


_MAX_SINGLE_READ_BYTES = 2**15  # bytes of a single sample up to which one system call reads all of it


class PayloadColumns(NamedTuple):
    """The payloads of samples of a shard, in file order.

    Attributes:
        counts: int64 [samples]: how many each has.
        codes: int32 [payloads]: their fields.
        offsets: int64 [payloads].
        lengths: int64 [payloads].
        crcs: uint32 [payloads]; None: not known.
    """

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
    """A shard that is being read.

    Attributes:
        index: Where its samples lie.
        file: Its bytes.
        is_tar: Whether it holds payloads alone, and no records that could be parsed.
        readers: What reads the fields that are numbers; None: its records must be parsed to know what fields hold.
        views: The index's `key_ends`, `firsts`, `codes`, `offsets` and `lengths`: single numbers come from these fast.
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

    def one(self, row: int, wanted: frozenset[str] | None) -> Sample:
        """Return one sample, with no arithmetic on columns: a hot path.

        Raises:
            OSError: It cannot be read.
            EOFError: The shard ends before.
            ValueError: A number is not what its kind says.
            IndexError: Its bytes end too early, or payloads lie in no order.
        """
        index, fd = self.index, self.file.fd
        key_ends, firsts, codes, offsets, lengths = self.views
        names = index.names
        sample: dict[str, Any] = {"__key__": str(index.keys[key_ends[row] : key_ends[row + 1]], "utf-8")}
        fields: Sequence[int] = range(firsts[row], firsts[row + 1])
        if wanted is not None:
            fields = [at for at in fields if names[codes[at]] in wanted]
        if not fields:
            return sample
        start, end = offsets[fields[0]], offsets[fields[-1]] + lengths[fields[-1]]
        if len(fields) > 1 and 0 <= end - start <= _MAX_SINGLE_READ_BYTES:
            block = read_exactly(fd, end - start, start)
            for at in fields:
                first = offsets[at] - start
                if not 0 <= first <= len(block) - lengths[at]:
                    raise IndexError(at)  # fields in another order than their payloads
                sample[names[codes[at]]] = block[first : first + lengths[at]]
        else:
            for at in fields:
                sample[names[codes[at]]] = read_exactly(fd, lengths[at], offsets[at])
        if self.readers:
            for name, read in self.readers.items():
                if name in sample:
                    sample[name] = read(sample[name])
        return sample

    def layout(self, rows: Numbers, wanted: frozenset[str] | None) -> PayloadColumns:
        """Return where the payloads of samples lie, whose rows ascend: of the fields that are wanted, or all."""
        index, firsts = self.index, self.index.firsts[rows]
        counts = index.firsts[rows + 1] - firsts
        ends = np.cumsum(counts)
        flat = np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1])
        if wanted is not None:
            keeps = np.array([name in wanted for name in index.names], np.bool_)[index.codes[flat]]
            counts = np.bincount(np.repeat(np.arange(len(rows)), counts)[keeps], minlength=len(rows)).astype(np.int64)
            flat = flat[keeps]
        crcs = None if index.crcs is None else index.crcs[flat]
        return PayloadColumns(counts, index.codes[flat], index.offsets[flat], index.lengths[flat], crcs)

    def edges(self, rows: Numbers, wanted: frozenset[str] | None) -> tuple[list[str], Numbers] | None:
        """Return the fields of samples, and where each field starts and ends.

        Returns:
            Names, and int64 [samples, 2 * fields]; None where samples differ in their fields, or these lie in no order.
        """
        counts, codes, offsets, lengths, _ = self.layout(rows, wanted)
        width = int(counts[0])
        if not width or (counts != width).any() or (codes.reshape(-1, width) != codes[:width]).any():
            return None
        edges = np.stack((offsets, offsets + lengths), axis=-1).reshape(-1, 2 * width)
        return None if (np.diff(edges) < 0).any() else ([self.index.names[code] for code in codes[:width]], edges)

    def spans(self, rows: Numbers, wanted: frozenset[str] | None) -> tuple[Numbers, Numbers]:
        """Return where what is wanted of samples starts, and where it ends: records, or payloads of some fields."""
        if wanted is None:
            starts = self.index.starts[rows]
            return starts, starts + self.index.sizes[rows]
        layout = self.layout(rows, wanted)
        return layout.offsets, layout.offsets + layout.lengths


def read_each_late(
    parts: Sequence[tuple[ReadableShard, Numbers]], numbers: Numbers, wanted: frozenset[str] | None,
    one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    """Return samples that need no parsing, each read when it is asked for: all arithmetic is done now, on columns.

    Args:
        parts: Each shard, and the rows of its samples: those of `numbers`, ascending.
        numbers: int64 [n]: which samples.
        wanted: The fields that are wanted; None: all.
        one: Returns a sample by its number, or its error: those that cannot be read here.
    """
    found = [opened.edges(rows, wanted) for opened, rows in parts]
    names, readers = found[0][0] if found[0] else [], parts[0][0].readers or {}
    alike = [edges[1] for edges, (opened, _) in zip(found, parts, strict=True)
             if edges and edges[0] == names and opened.readers == readers]  # fmt: skip
    if len(alike) < len(parts):
        return map(one, numbers.tolist())
    keys = [key for opened, rows in parts for key in opened.index.keys_of(rows)]
    files = [opened.file for opened, rows in parts for _ in range(len(rows))]
    edges = np.concatenate(alike)
    if (np.diff(numbers) < 0).any():
        places = np.argsort(np.argsort(numbers, kind="stable"))
        keys, files, edges = [keys[at] for at in places.tolist()], [files[at] for at in places.tolist()], edges[places]
    reads = [(name, read) for name, read in readers.items() if name in names]
    return _read_each(keys, files, names, edges, reads, lambda at: one(int(numbers[at])))


def _read_each(
    keys: list[str], files: list[OpenFile], names: list[str], edges: Numbers,
    reads: list[tuple[str, Callable[[bytes], object]]], one: Callable[[int], Sample | ShardError],
) -> Samples:  # fmt: skip
    """Yield samples. A hot path: 1 us beside the reading.

    Args:
        keys: Theirs.
        files: In which each lies.
        names: The fields, which all have.
        edges: int64 [n, 2 * fields]: where each field starts, and where it ends.
        reads: What reads the fields that are numbers.
        one: Returns a sample by its place, or its error.
    """
    starts, sizes = edges[:, 0].tolist(), (edges[:, -1] - edges[:, 0]).tolist()
    columns = (edges - edges[:, :1]).T.tolist()
    cuts = zip(*map(zip, map(repeat, names), map(map, repeat(slice), columns[::2], columns[1::2])), strict=True)
    together = _MAX_SINGLE_READ_BYTES if len(names) > 1 else max(sizes)
    for at, (key, file, start, size, fields) in enumerate(zip(keys, files, starts, sizes, cuts, strict=True)):
        sample: dict[str, Any] = {"__key__": key}
        try:
            if size > together:
                for name, cut in fields:
                    sample[name] = read_exactly(file.fd, cut.stop - cut.start, start + cut.start)
            else:
                block = read_exactly(file.fd, size, start)
                for name, cut in fields:
                    sample[name] = block[cut]
            for name, read in reads:
                sample[name] = read(sample[name])
        except (OSError, EOFError, ValueError, IndexError):
            yield one(at)  # read again, for the error that names all
        else:
            yield sample
