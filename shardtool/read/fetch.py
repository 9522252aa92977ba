"""Samples by their numbers, in any order: read by shard, in file order, and given back in the order asked for.

Not more shards are open than a process can spare: they are given back when others are wanted.
"""

from __future__ import annotations

import resource
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from shardtool.dataset.shard_file import shard_kind
from shardtool.errors import CorruptShard, ShardError
from shardtool.read.catalog import Catalog, IndexStore, Kept
from shardtool.read.samples import (
    LATE,
    OpenFile,
    OpenShard,
    Sample,
    Samples,
    ShardCache,
    ShardRows,
    each_sample,
    number_reader,
)
from shardtool.storage.places import called
from shardtool.storage.shared import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.dataset.find import StoredShard
    from shardtool.read.catalog import Numbers
    from shardtool.read.order import MixedSamples
    from shardtool.read.samples import ReadOptions

_MOST_REASONS = 1000
_READS_ELSEWHERE = 4
_FREED = 2**24
_MOST_OPEN = 256
_SHARE = 4  # of the descriptors that a process may have, shards take one in so many
_FEW = 50  # samples of a shard up to which reading each alone costs less than arithmetic on columns (measured)


@runtime_checkable
class CopyingCache(ShardCache, Protocol):
    """A cache whose shards have a source, from which they are copied."""

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard that is read soon, where there is room."""

    def drop(self, shard: StoredShard) -> None:
        """Remove the copy of a shard, which was found damaged and is held no more."""


@runtime_checkable
class TakenShards(ShardCache, Protocol):
    """The paths of shards that a growing cache holds, for as long as something refers to this."""

    def __iter__(self) -> Iterator[str]:
        """Return the paths."""
        ...


@runtime_checkable
class GrowingCache(Protocol):
    """A cache into which samplers write."""

    def refresh(self) -> TakenShards:
        """Return the shards that are finished by now."""
        ...


class OpenFiles(Kept[str, OpenFile]):
    """The open shards of a catalog, not more than a process can spare.

    Args:
        cache: Where shards are copied to before they are read.
        given_back: Called when shards are no longer kept.
    """

    def __init__(self, cache: ShardCache | None, given_back: Callable[[], None] = lambda: None) -> None:
        super().__init__(_most_open(), given_back=given_back)
        self._cache, self._renewed = cache, set[str]()

    def open(self, shard: StoredShard, size: int | None = None) -> OpenFile:
        """Return a shard, opened now or before.

        Args:
            shard: Which one.
            size: Bytes that it must have; None: not known.

        Raises:
            CorruptShard: It cannot be opened, or has another size.
            OutputFailed: There is no room to unpack it.
        """
        return self.get(shard.path, lambda: OpenFile(shard, self._cache, size))

    def renew(self, shard: StoredShard, file: OpenFile) -> bool:
        """Drop the copy of a shard in the cache, which was found damaged; return whether to read the shard again.

        A shard is copied again once: what is damaged then has a damaged source.
        """
        with self._lock:
            if not file.copied or not isinstance(self._cache, CopyingCache):
                return False
            if shard.path in self._renewed:
                return self._kept.get(shard.path) is not file  # another thread has dropped it meanwhile
            self._renewed.add(shard.path)
            if self._kept.get(shard.path) is file:
                del self._kept[shard.path]
                self._used -= 1
            self._given_back()
            file.let_go()
            self._cache.drop(shard)
            return True


def _most_open() -> int:
    """Return how many shards may be open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_OPEN if most == resource.RLIM_INFINITY else max(1, min(_MOST_OPEN, most // _SHARE))


class SkippedSamples:
    """Samples that could not be read, and were left out.

    Attributes:
        samples: How many.
        shards: How many of each shard, by its path.
        reasons: What was wrong, and how often; the first thousand only.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.shards: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._lock = ForkLock()

    def __repr__(self) -> str:
        return f"Skipped(samples={self.samples}, shards={dict(self.shards)}, reasons={dict(self.reasons)})"

    def __reduce__(self) -> tuple[type[SkippedSamples], tuple[()]]:
        return SkippedSamples, ()

    def count_sample(self, error: ShardError, shard: str) -> None:
        """Count a sample; of no shard where that is not known."""
        with self._lock:
            self.samples += 1
            if shard:
                self.shards[shard] += 1
            if len(self.reasons) < _MOST_REASONS or str(error) in self.reasons:
                self.reasons[str(error)] += 1


class _SampleReader:
    """What reads samples by their numbers.

    Attributes:
        mean_size: Bytes of a sample, with all around it; 1 at least.
        copies: Whether shards are copied into a cache before they are read.
        reads_at_once: How many calls of `read_late` are best made at the same time: more than one where shards lie
            elsewhere.
    """

    mean_size: int
    copies: bool
    reads_at_once: int
    read: Callable[[Numbers], Samples]
    leave_out: Callable[..., None]

    def fetch(self, numbers: Numbers) -> list[Sample]:
        """Return samples, in the order of their numbers in the argument.

        Args:
            numbers: int64 [n].

        Returns:
            n of them, or fewer where damaged ones are skipped.

        Raises:
            CorruptShard: A shard is missing or damaged.
        """
        found = []
        for at, sample in enumerate(self.read(numbers)):
            if isinstance(sample, ShardError):
                self.leave_out(sample, int(numbers[at]))
            else:
                found.append(sample)
        return found


class Fetcher(_SampleReader):
    """Reads samples of a catalog; safe in threads, picklable, and without open files in a process that gets it.

    Attributes:
        catalog: What is read.
        options: How.
        store: The indexes of its shards.
        skipped: What was left out.
    """

    def __init__(self, catalog: Catalog, options: ReadOptions) -> None:
        # Once a block of 16 MB was freed, the C library keeps some tens of MB that are freed. Otherwise it would give
        # them back to the system, and the pages of each list of large samples would be fresh ones, which take longer
        # than the reading (measured: 50 us for 100 KB).
        bytes(_FREED)
        self.catalog = catalog
        self._near: dict[int, OpenShard] = {}
        self.store, self._files = IndexStore(catalog, self._near.clear), OpenFiles(options.cache, self._near.clear)
        self.skipped = SkippedSamples()
        self.mean_size = int(catalog.sizes.sum()) // max(1, len(catalog)) + 1
        self.copies = isinstance(options.cache, CopyingCache)
        self.reads_at_once = _READS_ELSEWHERE if catalog.is_remote else 1
        self._broken: dict[int, CorruptShard] = {}
        self._firsts: list[int] = catalog.firsts.tolist()
        self._sizes: list[int] = catalog.sizes.tolist()
        self._readers = {name: number_reader(kind) for name, kind in catalog.kinds.items()}
        self.use(options)

    def use(self, options: ReadOptions) -> None:
        """Set how samples are read."""
        lists = self.catalog.lists if options.fields is None else self.catalog.lists & options.fields
        self.options, self._fields, self._parses = options, options.fields, bool(lists)
        self._plain = not (options.check or options.metadata or lists or self.catalog.is_remote)

    def __reduce__(self) -> tuple[type[Fetcher], tuple[Catalog, ReadOptions]]:
        return Fetcher, (self.catalog, self.options)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        if isinstance(cache := self.options.cache, CopyingCache):
            for shard in [self.catalog.shards[at] for at, *_ in self.catalog.by_shard(numbers)]:
                if shard.path not in seen:
                    seen.add(shard.path)
                    cache.expect(shard)

    def selecting(self, fields: frozenset[str] | None) -> Fetcher:
        """Return a fetcher of some fields, with the same indexes and open shards."""
        found = Fetcher.__new__(Fetcher)
        vars(found).update(vars(self))
        found.use(replace(self.options, fields=fields))
        return found

    def reading_only(self, fields: frozenset[str] | None) -> Fetcher:
        """Return a fetcher that reads no other fields than these, which are all that is looked at.

        It is this one where that saves nothing, or where a sample may lack one: the error then names those it has.
        """
        catalog = self.catalog
        wanted = None if fields is None else {name for name in fields if name[:2] != "__"}
        if wanted is None or catalog.fields.keys() <= wanted:
            return self
        if any(catalog.fields.get(name) != len(catalog) for name in wanted):
            return self
        return self.selecting(frozenset(wanted))

    def leave_out(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a sample that is left out, in `skipped` and in `counts`.

        Args:
            error: What is wrong.
            number: Of the sample.
            counts: Where it is counted, too.
            damaged: Whether it cannot be read; otherwise a stage leaves it out.

        Raises:
            ShardError: It is damaged, and such samples are not skipped.
        """
        if damaged and self.options.on_error == "raise":
            raise error
        shard = int(self.catalog.places(np.array([number]))[0][0])
        for count in (self.skipped, *counts):
            count.count_sample(error, self.catalog.shards[shard].path)

    def read(self, numbers: Numbers) -> list[Sample | ShardError]:
        """Return samples, in the order of their numbers in the argument, and errors in place of damaged ones.

        Args:
            numbers: int64 [n].

        Raises:
            InvalidRequest: Checksums are not known that should be checked.
            OutputFailed: There is no room to unpack a compressed shard.
        """
        if len(numbers) == 1:
            return [self.one(int(numbers[0]))]
        groups = [*self.catalog.by_shard(numbers)]
        found: list[Sample | ShardError] = [{}] * len(numbers)
        alone = len(numbers) < len(groups) * _FEW or self.mean_size >= LATE
        if groups and self._plain and alone and self._is_indexed(groups[0][0]):
            order = np.argsort(numbers, kind="stable")
            for place, sample in zip(order.tolist(), self._each(groups, numbers[order]), strict=True):
                found[place] = sample
            return found
        parts = (called if self.catalog.is_remote else map)(lambda group: self._part(*group[:2]), groups)
        for (*_, places), part in zip(groups, parts, strict=True):
            for place, sample in zip(places.tolist(), part, strict=True):
                found[place] = sample
        return found

    def _is_indexed(self, shard: int) -> bool:
        """Tell whether the samples of a shard need no parsing; or cannot be read, which each of them says."""
        with suppress(CorruptShard):
            return self._opened(shard).readers is not None
        return True

    def read_late(self, numbers: Numbers) -> Samples:
        """Return samples as `read` does, but read large ones only when each is asked for.

        The system is asked to read them ahead, so that a thread that calls this has little to do, and holds nothing.

        Args:
            numbers: int64 [n].

        Raises:
            InvalidRequest: Checksums are not known that should be checked.
            OutputFailed: There is no room to unpack a compressed shard.
        """
        groups = [*self.catalog.by_shard(numbers)] if self._plain else []
        if not 0 < len(groups) <= self._files.room // 2 or not all(self._is_indexed(shard) for shard, *_ in groups):
            return self.read(numbers)
        size, spans = 0, []
        for shard, rows, _ in groups:
            with suppress(CorruptShard):  # each sample raises it, when it is asked for
                starts, ends = self._opened(shard).spans(rows, self._fields)
                size += int((ends - starts).sum())
                spans.append((shard, starts, ends))
        if size < LATE * len(numbers):
            return self.read(numbers)
        for shard, starts, ends in spans:
            self._opened(shard).file.expect(starts, ends)
        return self._each(groups, numbers)

    def _each(self, groups: Sequence[tuple[int, Numbers, Numbers]], numbers: Numbers) -> Samples:
        """Return samples of shards whose samples need no parsing, each read when it is asked for."""
        if len(numbers) >= len(groups) * _FEW:
            with suppress(CorruptShard):  # each sample raises it
                parts = [(self._opened(shard), rows) for shard, rows, _ in groups]
                return each_sample(parts, numbers, self._fields, self.one)
        return map(self.one, numbers.tolist())

    def one(self, number: int) -> Sample | ShardError:
        """Return a sample, or its error. A hot path: 3 us beside the reading."""
        shard = bisect_right(self._firsts, number) - 1
        row = number - self._firsts[shard]
        if self._plain and shard not in self._broken:
            try:
                opened = self._near.get(shard) or self._opened(shard)
                if opened.readers is not None:
                    return opened.one(row, self._fields)
            except (CorruptShard, OSError, EOFError, ValueError, IndexError):
                pass  # read again, for the error that names all
        return self._part(shard, np.array([row]))[0]

    def _opened(self, shard: int) -> OpenShard:
        """Return a shard that is being read, kept at hand until a store gives any back."""
        found = self._near.get(shard)
        if found is None:
            if (known := self._broken.get(shard)) is not None:  # no second walk, and no second copy
                raise known.with_traceback(None)
            place, index = self.catalog.shards[shard], self.store.index(shard)
            is_tar = shard_kind(place.path).format == "tar"
            # Nothing but the dataset file, or else the record, says whether bytes are a list or a value.
            readers = self._readers if self.catalog.dataset(shard)[0].listed and not index.kinds else None
            file = self._files.open(place, self._sizes[shard] or None)
            found = self._near[shard] = OpenShard(index, file, is_tar, {} if is_tar else readers)
        return replace(found, readers=None) if self._parses and not found.is_tar else found

    def _part(self, shard: int, rows: Numbers) -> list[Sample | ShardError]:
        """Return samples of one shard; where a cache's copy is damaged, as another copy has them."""
        error = self._broken.get(shard)
        if error is None:
            try:
                asked = self._rows(shard, rows)
                found = asked.samples()
                damaged = any(isinstance(one, ShardError) for one in found)
                if damaged and self._files.renew(self.catalog.shards[shard], asked.opened.file):
                    self._near.pop(shard, None)  # another thread may have put it there again, as it was before
                    found = self._rows(shard, rows).samples()
            except CorruptShard as damage:
                error = damage
                if self.options.on_error == "skip":
                    self._broken[shard] = error  # no second walk, and no second message
            else:
                return found
        return [error] * len(rows)

    def _rows(self, shard: int, rows: Numbers) -> ShardRows:
        metadata = self.store.metadata(shard) if self.options.metadata else None
        return ShardRows(self.catalog, self.options, self._opened(shard), shard, rows, metadata)


class MixedReader(_SampleReader):
    """Reads samples of several datasets; their numbers follow each other, and `__dataset__` says which it is of."""

    def __init__(self, readers: Sequence[Reader], source: MixedSamples) -> None:
        self.readers, self._source = readers, source
        spans = [one.span for one in source.sources]
        self._ends, self._firsts = np.cumsum(spans), np.cumsum(spans) - spans
        self._datasets = [0, *accumulate(source.datasets)]  # the number of the first dataset of each source
        sizes = (weight * one.mean_size for weight, one in zip(source.weights, readers, strict=True))
        self.mean_size = sum(sizes) // sum(source.weights)  # as often as each dataset comes
        self.copies = any(one.copies for one in readers)
        self.reads_at_once = max(one.reads_at_once for one in readers)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        for one, part in self._divided(numbers, np.searchsorted(self._ends, numbers, side="right")):
            one.expect(part, seen)

    def reading_only(self, fields: frozenset[str] | None) -> MixedReader:
        """Return a reader of these fields, where every sample of a dataset has them."""
        return MixedReader([one.reading_only(fields) for one in self.readers], self._source)

    def leave_out(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a sample that is left out, in its dataset and in `counts`, or raise its error, as that dataset does."""
        at = int(np.searchsorted(self._ends, number, side="right"))
        self.readers[at].leave_out(error, number - int(self._firsts[at]), *counts, damaged=damaged)

    def read(self, numbers: Numbers) -> Samples:
        """Return samples, in the order of their numbers in the argument, and errors in place of damaged ones."""
        return self._joined(numbers, lambda one, part: one.read(part))

    def read_late(self, numbers: Numbers) -> Samples:
        """Return samples as `read` does, but read large ones only when each is asked for."""
        return self._joined(numbers, lambda one, part: one.read_late(part))

    def _joined(self, numbers: Numbers, read: Callable[[Reader, Numbers], Samples]) -> Samples:
        which = np.searchsorted(self._ends, numbers, side="right")
        found = [iter(read(one, part)) for one, part in self._divided(numbers, which)]
        return (_of_dataset(self._datasets[at], next(found[at])) for at in which.tolist())

    def _divided(self, numbers: Numbers, which: Numbers) -> Iterator[tuple[Reader, Numbers]]:
        """Yield each reader, and its samples among `numbers`, as it numbers them."""
        for at, reader in enumerate(self.readers):
            yield reader, numbers[which == at] - self._firsts[at]


def _of_dataset(number: int, sample: Sample | ShardError) -> Sample | ShardError:
    """Return a sample that says which dataset it is of, of those from `number` on."""
    if isinstance(sample, dict):
        sample["__dataset__"] = number + sample.get("__dataset__", 0)  # type: ignore[operator]
    return sample


Reader = Fetcher | MixedReader
