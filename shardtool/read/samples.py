"""Samples of one shard, read with few system calls, in file order, small neighbours together; and made when asked for.

All arithmetic is done on columns, for all samples at once. A payload is read into bytes of its own, or cut from a
block of small ones, so that no large one is copied twice. What is read at once is held as columns, a list for each
field, as long as all samples have the same fields; a sample that could not be read is its error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from shardtool.dataset.payload import numbers_in
from shardtool.dataset.shard_file import is_packed
from shardtool.dataset.walk import walked_text
from shardtool.entries.arrow import python_values
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, raise_if_machines
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord import FRAME_HEAD, FRAME_TAIL, bytes_of, features, numbers_of
from shardtool.read.files import REMEDY, read_at
from shardtool.values import RESERVED
from shardtool.wording import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.errors import ShardError
    from shardtool.read.catalog import Catalog
    from shardtool.read.files import OpenFile, ReadOptions
    from shardtool.values import Kind

    Numbers = NDArray[np.int64]

Sample = dict[str, object]
_float = Struct("<f")
_RESERVED = frozenset(map(bytes.decode, RESERVED))
_SINGLE = 0x80  # a varint of one byte is below


class Batch(Protocol):
    """Samples, and errors in place of those that could not be read."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sample | ShardError]: ...


@dataclass(frozen=True)
class ShardPart:
    """Samples of one shard, in file order.

    Attributes:
        places: int64 [n]: where each belongs among all that are read.
        keys: n of them.
        names: The fields of all samples, or the fields of each sample.
        counts: Fields of each sample; None where all have the same.
        values: Of all fields of all samples.
        columns: Metadata under its name, n values each.
        errors: What is wrong with a sample, by its number here.
    """

    places: NDArray[np.int64]
    keys: list[str]
    names: tuple[str, ...]
    counts: list[int] | None
    values: Sequence[object]
    columns: dict[str, list[object]] = field(default_factory=dict)
    errors: dict[int, ShardError] = field(default_factory=dict)

    def each(self) -> Iterator[Sample | ShardError]:
        """Yield the samples."""
        counts = [len(self.names)] * len(self.keys) if self.counts is None else self.counts
        names = self.names * len(self.keys) if self.counts is None else self.names
        metadata = [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]
        end = 0
        for at, (key, count) in enumerate(zip(self.keys, counts, strict=True)):
            start, end = end, end + count
            if at in self.errors:
                yield self.errors[at]
                continue
            sample: Sample = {"__key__": key, **(metadata[at] if metadata else {})}
            sample.update(zip(names[start:end], self.values[start:end], strict=True))
            yield sample


def failed_part(places: NDArray[np.int64], error: ShardError) -> ShardPart:
    """Return samples none of which could be read."""
    nothing = [""] * len(places)
    return ShardPart(places, nothing, (), None, (), errors=dict.fromkeys(range(len(places)), error))


@dataclass(frozen=True)
class UniformSamples:
    """Samples that all have the same fields."""

    keys: list[str]
    names: tuple[str, ...]
    columns: list[Sequence[object]]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples. A hot path: 0.1 us for one of two fields, where the last branch takes 0.4."""
        if len(self.names) == 1:
            (a,) = self.names
            for key, first in zip(self.keys, *self.columns, strict=True):
                yield {"__key__": key, a: first}
        elif len(self.names) == 2:  # noqa: PLR2004 - fields
            a, b = self.names
            for key, first, second in zip(self.keys, *self.columns, strict=True):
                yield {"__key__": key, a: first, b: second}
        elif len(self.names) == 3:  # noqa: PLR2004
            a, b, c = self.names
            for key, first, second, third in zip(self.keys, *self.columns, strict=True):
                yield {"__key__": key, a: first, b: second, c: third}
        else:
            names = ("__key__", *self.names)
            for row in zip(self.keys, *self.columns, strict=True):
                yield dict(zip(names, row, strict=True))


def join(parts: list[ShardPart], count: int) -> Batch:
    """Return the samples of several shards, in the order of their places."""
    if not parts:
        return []
    names = {(part.names, *part.columns) for part in parts}
    if len(names) == 1 and not any(part.errors or part.counts is not None for part in parts):
        return _alike(parts)
    found: list[Sample | ShardError] = [{}] * count
    for part in parts:
        for place, sample in zip(part.places.tolist(), part.each(), strict=True):
            found[place] = sample
    return found


def _alike(parts: list[ShardPart]) -> UniformSamples:
    names, metadata = parts[0].names, tuple(parts[0].columns)
    width = len(names)
    keys = [key for part in parts for key in part.keys]
    columns: list[Sequence[object]] = [
        [value for part in parts for value in part.values[at::width]] for at in range(width)
    ]
    added = [name for name in metadata if name not in names]
    columns += [[value for part in parts for value in part.columns[name]] for name in added]
    places = np.concatenate([part.places for part in parts])
    if (np.diff(places) < 0).any():
        order = np.argsort(places, kind="stable").tolist()
        keys, columns = [keys[at] for at in order], [[column[at] for at in order] for column in columns]
    return UniformSamples(keys, (*names, *added), columns)


@dataclass(frozen=True)
class SeparateSamples:
    """Samples each of which is read when it is asked for, on its own.

    Attributes:
        numbers: n of them.
        read: Reads the sample of a number.
    """

    numbers: list[int]
    read: Callable[[int], Sample | ShardError]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Sample | ShardError]:
        return map(self.read, self.numbers)


@dataclass(frozen=True)
class LazySamples:
    """Samples of equal fields whose payloads are read when each is asked for: nothing is held, or copied twice.

    Attributes:
        numbers: int64 [n]: of the samples.
        keys: n of them.
        files: n of them.
        names: The fields.
        columns: For each field n offsets, and n lengths.
        kinds: Of the fields.
        again: Reads a sample for which this failed, or returns what is wrong.
    """

    numbers: NDArray[np.int64]
    keys: list[str]
    files: list[OpenFile]
    names: tuple[str, ...]
    columns: list[list[int]]
    kinds: list[Kind]
    again: Callable[[int], Sample | ShardError]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Sample | ShardError]:
        """Yield the samples."""
        at = 0
        while at < len(self.keys):
            try:
                for sample in self._from(at):
                    at += 1
                    yield sample
            except (OSError, EOFError, ValueError, IndexError):
                yield self.again(int(self.numbers[at]))
                at += 1

    def _from(self, first: int) -> Iterator[Sample]:
        """Yield the samples from one on. A hot path: 0.4 us beside the reading."""
        fds = [file.fd for file in self.files]
        rows = islice(zip(self.keys, fds, *self.columns, strict=True), first, None)
        plain = all(kind == "bytes" for kind in self.kinds)
        if plain and len(self.names) == 1:
            (a,) = self.names
            for key, fd, offset, length in rows:
                yield {"__key__": key, a: read_at(fd, length, offset)}
        elif plain and len(self.names) == 2:  # noqa: PLR2004 - fields
            a, b = self.names
            for key, fd, offset, length, offset2, length2 in rows:
                yield {"__key__": key, a: read_at(fd, length, offset), b: read_at(fd, length2, offset2)}
        else:
            readers = [_read_payload if kind == "bytes" else number_reader(kind) for kind in self.kinds]
            fields = list(zip(self.names, readers, range(0, len(self.columns), 2), strict=True))
            for key, fd, *places in rows:
                sample: Sample = {"__key__": key}
                for name, read, at in fields:
                    sample[name] = read(read_at(fd, places[at + 1], places[at]))
                yield sample


@dataclass(frozen=True)
class CombinedSamples:
    """Samples of several batches.

    Attributes:
        which: The batch that each next sample is of.
        batches: Each in its own order.
    """

    which: list[int]
    batches: list[Batch]

    def __len__(self) -> int:
        return len(self.which)

    def __iter__(self) -> Iterator[Sample | ShardError]:
        """Yield the samples."""
        samples = [iter(one) for one in self.batches]
        for at in self.which:
            yield next(samples[at])


def _read_payload(data: bytes) -> object:
    return data


def number_reader(kind: Kind) -> Callable[[bytes], object]:
    """Return what reads a single number of a TFRecord as its index has it: an int or a float.

    What it returns raises ValueError where there is none.
    """
    return _read_int if kind == "int64" else _read_float


def _read_int(data: bytes) -> object:
    if len(data) == 1 and data[0] < _SINGLE:
        return data[0]
    return _only(numbers_in(data, "int64"))


def _read_float(data: bytes) -> object:
    return _float.unpack(data)[0] if len(data) == _float.size else _only(numbers_in(data, "float"))


def _only(numbers: Sequence[object]) -> object:
    return numbers[0] if len(numbers) == 1 else numbers


def values_of_record(record: bytes, start: int, where: str, lists: frozenset[str]) -> Sample:
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
    data, first = record[FRAME_HEAD:-FRAME_TAIL], start + FRAME_HEAD
    found: Sample = {}
    for one in features(data, first, where):
        payload = data[one.offset - first : one.offset - first + one.size]
        if one.kind == "bytes":
            values: Sequence[object] = bytes_of(payload) if one.whole else [payload]
        else:
            values = numbers_of(payload, one.kind) if one.whole else numbers_in(payload, one.kind, one.values)
        name = walked_text(one.name)
        found[name] = list(values) if len(values) != 1 or name in lists else values[0]
    for name in _RESERVED.intersection(found):
        del found[name]
    return found


_ALONE = 2**12  # bytes of a payload that is read by a system call of its own, into its place (measured)
_GAP = 2**13  # bytes that are read for nothing, rather than in a system call of their own
_LONGEST = 2**18  # bytes of one read of small payloads, about
LATE = 2**12  # bytes of a sample from which on it is read on its own, when it is wanted (measured)
_TOGETHER = 2**15  # bytes of a single sample up to which one system call reads all of it
_DENSE = 8  # keys are decoded all at once where so many at most stand for one that is wanted


class _Layout(NamedTuple):
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
    def alike(self) -> bool:
        """Whether all samples have the same fields."""
        count = int(self.counts[0])
        if not (self.counts == count).all():
            return False
        return not count or bool((self.codes.reshape(-1, count) == self.codes[:count]).all())

    def samples(self) -> Numbers:
        """Return the sample of each payload."""
        return np.repeat(np.arange(len(self.counts)), self.counts)


class PayloadSpans(NamedTuple):
    """Where the payloads of samples of a shard lie.

    Attributes:
        places: int64 [n]: where each sample belongs among all that are read.
        keys: n of them.
        file: Their shard.
        names: The fields, the same for all.
        kinds: Of the fields.
        spans: int64 [n, fields, 2]: offsets and lengths.
    """

    places: Numbers
    keys: list[str]
    file: OpenFile
    names: tuple[str, ...]
    kinds: list[Kind]
    spans: Numbers


@dataclass(frozen=True)
class ShardRows:
    """Some samples of a shard, to be read.

    Attributes:
        catalog: What is read.
        options: How.
        index: Where its samples lie.
        file: Its bytes.
        kinds: Its fields that are numbers; None: its records must be parsed to know.
        shard: The shard's place in the catalog.
        rows: int64 [n]: which samples, in ascending order.
        places: int64 [n]: where each belongs among all that are read.
        metadata: The columns of metadata of the whole shard, where they are wanted.
    """

    catalog: Catalog
    options: ReadOptions
    index: ShardIndex
    file: OpenFile
    kinds: Mapping[str, Kind] | None
    shard: int
    rows: Numbers
    places: Numbers
    metadata: pa.Table | None = None
    _errors: dict[int, ShardError] = field(default_factory=dict)

    def samples(self) -> ShardPart:
        """Return the samples, by the least reading that shows what they hold."""
        return self.payloads() if self.kinds is not None else self.records()

    def payloads(self) -> ShardPart:
        """Return the samples, by reading the payloads that are wanted."""
        layout, names = self._layout(), self.index.names
        values: list[object] = [*self._read(layout)]
        alike = layout.alike
        codes = layout.codes[: int(layout.counts[0])] if alike else layout.codes
        found = tuple([names[code] for code in codes.tolist()])
        self._put_numbers(layout, values, found if alike else None)
        counts = None if alike else layout.counts.tolist()
        return ShardPart(self.places, self._keys(), found, counts, values, self._metadata(), self._errors)

    def plan(self) -> PayloadSpans | None:
        """Return where the payloads lie, and let the system read them ahead; None: they are small, or not alike."""
        layout, names = self._layout(), self.index.names
        if self.kinds is None or not layout.alike or int(layout.lengths.sum()) < LATE * len(self.rows):
            return None
        fields = tuple([names[code] for code in layout.codes[: int(layout.counts[0])].tolist()])
        offsets, lengths = (column.reshape(len(self.rows), -1) for column in (layout.offsets, layout.lengths))
        self.file.expect(offsets.min(axis=1), (offsets + lengths).max(axis=1))
        found: list[Kind] = [self.kinds.get(name, "bytes") for name in fields]
        return PayloadSpans(self.places, self._keys(), self.file, fields, found, np.stack([offsets, lengths], axis=2))

    def records(self) -> ShardPart:
        """Return the samples, by reading their records of TFRecord and parsing them."""
        if self.options.check:
            for _ in self._read(self._layout()):
                pass
        wanted = self.options.fields
        keys, names, counts, values = self._keys(), list[str](), list[int](), list[object]()
        for at, (key, record) in enumerate(zip(keys, self._records(), strict=True)):
            taken = {name: value for name, value in self._values(at, key, record) if wanted is None or name in wanted}
            names += taken
            counts.append(len(taken))
            values += taken.values()
        return ShardPart(self.places, keys, tuple(names), counts, values, self._metadata(), self._errors)

    def _records(self) -> Iterator[bytes | CorruptShard]:
        """Yield the records, errors in place of those that cannot be read."""
        starts, sizes, at = self.index.starts[self.rows].tolist(), self.index.sizes[self.rows].tolist(), 0
        while at < len(starts):
            try:
                for record in self.file.read(starts[at:], sizes[at:]):
                    yield record
                    at += 1
            except CorruptShard as error:
                yield error
                at += 1

    def _values(self, at: int, key: str, record: bytes | CorruptShard) -> Iterator[tuple[str, object]]:
        start = int(self.index.starts[self.rows[at]])
        try:
            if isinstance(record, CorruptShard):
                raise record
            yield from values_of_record(record, start, self.file.path, self.catalog.lists).items()
        except CorruptShard as error:
            self._errors.setdefault(at, _named(error, key))
        except (ValueError, IndexError):
            self._errors.setdefault(at, _unlike(self.file.path, key, start))

    def _layout(self) -> _Layout:
        index, rows = self.index, self.rows
        firsts = index.firsts[rows]
        counts = index.firsts[rows + 1] - firsts
        ends = np.cumsum(counts)
        flat = np.repeat(firsts - ends + counts, counts) + np.arange(ends[-1])
        if (wanted := self.options.fields) is not None:
            keeps = np.array([name in wanted for name in index.names], np.bool_)[index.codes[flat]]
            counts = np.bincount(np.repeat(np.arange(len(rows)), counts)[keeps], minlength=len(rows)).astype(np.int64)
            flat = flat[keeps]
        crcs = None if index.crcs is None else index.crcs[flat]
        return _Layout(counts, index.codes[flat], index.offsets[flat], index.lengths[flat], crcs)

    def _read(self, layout: _Layout) -> list[bytes]:
        """Return all payloads; those that cannot be read, and their samples' errors, are noted."""
        offsets, lengths = layout.offsets, layout.lengths
        if not len(offsets):
            return []
        begins = _begins(offsets, lengths)
        firsts = np.flatnonzero(begins)
        starts = offsets[firsts]
        sizes = (offsets + lengths)[np.append(firsts[1:], len(offsets)) - 1] - starts
        blocks = self.file.read(starts.tolist(), sizes.tolist())
        try:
            values = [*blocks] if len(starts) == len(offsets) else _cut(blocks, layout, firsts)
        except CorruptShard:
            values = [*self._one_by_one(layout)]
        if self.options.check:
            self._check(layout, values)
        return values

    def _one_by_one(self, layout: _Layout) -> Iterator[bytes]:
        """Yield the payloads, empty ones in place of those that cannot be read."""
        samples, keys = layout.samples().tolist(), self._keys()
        for at, place in enumerate(zip(layout.offsets.tolist(), layout.lengths.tolist(), strict=True)):
            try:
                yield next(self.file.read([place[0]], [place[1]]))
            except CorruptShard as error:
                name = self.index.names[layout.codes[at]]
                self._errors.setdefault(samples[at], _named(error, f"{keys[samples[at]]}, {name}", place[0]))
                yield b""

    def _check(self, layout: _Layout, values: list[bytes]) -> None:
        """Note the samples of payloads that have another checksum than their index says."""
        if layout.crcs is None:
            self._check_whole()
            return
        found = np.fromiter(map(crc32c, values), np.uint32, len(values))
        for at in np.flatnonzero(found != layout.crcs).tolist():
            sample = int(layout.samples()[at])
            name, offset = self.index.names[layout.codes[at]], int(layout.offsets[at])
            what = f"{self._keys()[sample]}, {name}: the checksum {found[at]:08x}"
            expected = f"{layout.crcs[at]:08x}, as its index says"
            error = CorruptShard(self.file.path, what, offset=offset, expected=expected, remedy=REMEDY)
            self._errors.setdefault(sample, error)

    def _check_whole(self) -> None:
        """Compare the shard with its dataset file, where its own index, which a walk made, has no checksums.

        Raises:
            CorruptShard: It has another checksum.
            InvalidRequest: None is known.
        """
        expected, path = int(self.catalog.crcs[self.shard]), self.file.path
        if expected < 0:
            raise InvalidRequest(
                "check", f"no checksums are known of {path}",
                remedy=f"Make sidecars that have them: {call('index', checksum=True)}.",
            )  # fmt: skip
        found = None if is_packed(path) else self.file.checksum(int(self.catalog.sizes[self.shard]))
        if found != expected:
            what = "no sidecar to check it with" if found is None else f"the checksum {found:08x}"
            raise CorruptShard(path, what, expected=f"{expected:08x}, as its dataset file says", remedy=REMEDY)

    def _put_numbers(self, layout: _Layout, values: list[object], alike: tuple[str, ...] | None) -> None:
        """Put numbers in place of the payloads that stand for some.

        Args:
            layout: Where the payloads lie.
            values: Of all fields of all samples; changed.
            alike: The fields of each sample, where all have the same.
        """
        for name, kind in (self.kinds or {}).items():
            if kind == "bytes" or name not in self.index.names:
                continue
            read = number_reader(kind)
            if alike is not None:
                at = range(alike.index(name), len(values), len(alike)) if name in alike else range(0)
            else:
                at = np.flatnonzero(layout.codes == self.index.names.index(name)).tolist()
            for place in at:
                try:
                    values[place] = read(values[place])  # type: ignore[arg-type]
                except (ValueError, IndexError):
                    sample = int(layout.samples()[place])
                    what = f"{self._keys()[sample]}, {name}"
                    error = _unlike(self.file.path, what, int(layout.offsets[place]))
                    self._errors.setdefault(sample, error)

    def _keys(self) -> list[str]:
        index, rows = self.index, self.rows
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first > _DENSE * len(rows):
            return index.keys_of(rows)
        base = int(index.key_ends[first])
        data = index.keys[base : int(index.key_ends[last])]
        text = str(data, "utf-8")
        if len(text) < len(data):  # places are in bytes, and some characters take several
            return index.keys_of(rows)
        ends = (index.key_ends[rows] - base).tolist(), (index.key_ends[rows + 1] - base).tolist()
        return [text[start:end] for start, end in zip(*ends, strict=True)]

    def _metadata(self) -> dict[str, list[object]]:
        if self.metadata is None:
            return {}
        taken = self.metadata.take(pa.array(self.rows))
        return {name: python_values(taken.column(name)) for name in taken.column_names}


def single_sample(
    index: ShardIndex, file: OpenFile, row: int, kinds: Mapping[str, Kind], wanted: frozenset[str] | None
) -> Sample:
    """Return one sample, with no arithmetic on columns.

    Raises:
        CorruptShard: The shard ends before.
        ValueError: A number is not what its kind says.
        IndexError: Its bytes end too early, or payloads lie in no order.
    """
    key_ends, firsts, codes, offsets, lengths = index.views
    names, fd = index.names, file.fd
    sample: Sample = {"__key__": str(index.keys[key_ends[row] : key_ends[row + 1]], "utf-8")}
    fields: Sequence[int] = range(firsts[row], firsts[row + 1])
    if wanted is not None:
        fields = [at for at in fields if names[codes[at]] in wanted]
    if not fields:
        return sample
    start, end = offsets[fields[0]], offsets[fields[-1]] + lengths[fields[-1]]
    try:
        if len(fields) > 1 and 0 <= end - start <= _TOGETHER:
            block = read_at(fd, end - start, start)
            for at in fields:
                first = offsets[at] - start
                if not 0 <= first <= len(block) - lengths[at]:
                    raise IndexError(at)  # fields in another order than their payloads
                sample[names[codes[at]]] = block[first : first + lengths[at]]
        else:
            for at in fields:
                sample[names[codes[at]]] = read_at(fd, lengths[at], offsets[at])
    except (OSError, EOFError) as error:
        raise_if_machines(error, file.path)
        raise CorruptShard(file.path, f"cannot be read: {error}") from None
    if kinds:
        for name in kinds.keys() & sample.keys():
            sample[name] = number_reader(kinds[name])(sample[name])  # type: ignore[arg-type]
    return sample


def _cut(blocks: Iterator[bytes], layout: _Layout, firsts: Numbers) -> list[bytes]:
    """Return payloads, cut from blocks of which each is held for as long as its own are cut.

    Args:
        blocks: What was read.
        layout: Where the payloads lie.
        firsts: int64 [blocks]: the first payload of each.
    """
    counts = np.diff(np.append(firsts, len(layout.offsets)))
    begins = layout.offsets - np.repeat(layout.offsets[firsts], counts)
    places = zip(begins.tolist(), (begins + layout.lengths).tolist(), strict=True)
    values: list[bytes] = []
    for block, count in zip(blocks, counts.tolist(), strict=True):
        values += [block[first:last] for first, last in islice(places, count)]
    return values


def _begins(offsets: Numbers, lengths: Numbers) -> NDArray[np.bool_]:
    """Return which payloads begin a read: large ones, those behind these, and those far from the one before."""
    begins = np.ones(len(offsets), np.bool_)
    alone, gaps = lengths >= _ALONE, offsets[1:] - offsets[:-1] - lengths[:-1]
    begins[1:] = (gaps < 0) | (gaps > _GAP) | alone[1:] | alone[:-1]
    starts = offsets[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    steps = (offsets - starts) // _LONGEST
    begins[1:] |= steps[1:] != steps[:-1]
    return begins


def _named(error: CorruptShard, what: str, offset: int | None = None) -> CorruptShard:
    """Return an error that says which sample it is about, and where that lies."""
    at = error.offset if offset is None else offset
    expected, remedy = error.expected, error.remedy
    return CorruptShard(error.where, f"{what}: {error.problem}", offset=at, expected=expected, remedy=remedy)


def _unlike(path: str, what: str, offset: int) -> CorruptShard:
    return CorruptShard(path, f"{what}: not what its kind of feature holds", offset=offset, remedy=REMEDY)
