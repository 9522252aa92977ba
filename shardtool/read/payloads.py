"""Samples of one shard, read with few system calls: in file order, small neighbours together.

All arithmetic is done on columns, for all samples at once. A payload is read into bytes of its own, or cut from a
block of small ones, so that no large one is copied twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.dataset.shard_file import is_packed
from shardtool.entries.arrow import python_values
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, raise_if_machines
from shardtool.fingerprint import crc32c
from shardtool.read.files import REMEDY, read_at
from shardtool.read.samples import ShardPart, number_reader, values_of_record
from shardtool.wording import call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.read.catalog import Catalog
    from shardtool.read.files import OpenFile, ReadOptions
    from shardtool.read.samples import Sample
    from shardtool.read.shard_index import ShardIndex
    from shardtool.values import Kind

    Numbers = NDArray[np.int64]

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
