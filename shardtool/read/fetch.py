"""Samples by their numbers, in any order: read by shard, in file order, and given back in the order asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.dataset.shard_file import shard_format
from shardtool.errors import CorruptShard, ShardError
from shardtool.read.catalog import IndexStore
from shardtool.read.files import OpenFiles, keep_freed_memory
from shardtool.read.samples import LATE, LazySamples, SeparateSamples, ShardRows, failed_part, join, single_sample
from shardtool.storage.places import called
from shardtool.storage.shared import ForkLock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.read.catalog import Catalog
    from shardtool.read.files import OpenFile, ReadOptions
    from shardtool.read.samples import Batch, PayloadSpans, Sample, ShardPart
    from shardtool.values import Kind

    Numbers = NDArray[np.int64]

_MOST_REASONS = 1000
_READS_ELSEWHERE = 4
_FEW = 50  # samples of a shard up to which reading each alone costs less than arithmetic on columns (measured)


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

    def add(self, error: ShardError, shard: str) -> None:
        """Count a sample; of no shard where that is not known."""
        with self._lock:
            self.samples += 1
            if shard:
                self.shards[shard] += 1
            if len(self.reasons) < _MOST_REASONS or str(error) in self.reasons:
                self.reasons[str(error)] += 1


class _Group(NamedTuple):
    """Samples of one shard: its place in the catalog, their rows, ascending, and where each is asked for."""

    shard: int
    rows: Numbers
    places: Numbers


class Fetcher:
    """Reads samples of a catalog; safe in threads, picklable, and without open files in a process that gets it.

    Attributes:
        catalog: What is read.
        options: How.
        store: The indexes of its shards.
        skipped: What was left out.
    """

    def __init__(self, catalog: Catalog, options: ReadOptions) -> None:
        keep_freed_memory()
        self.catalog, self.options = catalog, options
        self._near: dict[int, tuple[ShardIndex, OpenFile]] = {}
        self.store, self._files = IndexStore(catalog, self._near.clear), OpenFiles(options.cache, self._near.clear)
        self.skipped = SkippedSamples()
        self._broken: dict[int, CorruptShard] = {}
        self._kinds: dict[int, Mapping[str, Kind] | None] = {}
        self._firsts: list[int] = catalog.firsts.tolist()
        self._sizes: list[int] = catalog.sizes.tolist()
        self._plain = not (options.check or options.metadata or catalog.is_remote)

    def __reduce__(self) -> tuple[type[Fetcher], tuple[Catalog, ReadOptions]]:
        return Fetcher, (self.catalog, self.options)

    @property
    def mean_size(self) -> int:
        """Bytes of a sample, with all around it; 1 at least."""
        return int(self.catalog.sizes.sum()) // max(1, len(self.catalog)) + 1

    @property
    def copies(self) -> bool:
        """Whether shards are copied into a cache before they are read."""
        return self._files.copies

    @property
    def reads_at_once(self) -> int:
        """How many calls of `read_late` are best made at the same time: more than one where shards lie elsewhere."""
        return _READS_ELSEWHERE if self.catalog.is_remote else 1

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        for at in np.unique(self.catalog.places(numbers)[0]).tolist():
            shard = self.catalog.shards[at]
            if shard.path not in seen:
                seen.add(shard.path)
                self._files.expect(shard)

    def selecting(self, fields: frozenset[str] | None) -> Fetcher:
        """Return a fetcher of some fields, with the same indexes and open shards."""
        found = Fetcher.__new__(Fetcher)
        vars(found).update(vars(self) | {"options": replace(self.options, fields=fields), "_kinds": {}})
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
                self.refuse(sample, int(numbers[at]))
            else:
                found.append(sample)
        return found

    def refuse(self, error: ShardError, number: int, *counts: SkippedSamples) -> None:
        """Raise the error of a sample, or count it where damaged samples are skipped.

        Args:
            error: What is wrong.
            number: Of the sample.
            counts: Where it is counted, beside `skipped`.

        Raises:
            ShardError: They are not skipped.
        """
        if self.options.on_error == "raise":
            raise error
        self.leave_out(error, number, *counts)

    def leave_out(self, error: ShardError, number: int, *counts: SkippedSamples) -> None:
        """Count a sample that is left out, in `skipped` and in `counts`."""
        shard = int(self.catalog.places(np.array([number]))[0][0])
        for count in (self.skipped, *counts):
            count.add(error, self.catalog.shards[shard].path)

    def read(self, numbers: Numbers) -> Batch:
        """Return samples, in the order of their numbers in the argument, and errors in place of damaged ones.

        Args:
            numbers: int64 [n].

        Raises:
            InvalidRequest: Checksums are not known that should be checked.
            OutputFailed: There is no room to unpack a compressed shard.
        """
        if len(numbers) == 1:
            return [self.one(int(numbers[0]))]
        groups = self._groups(numbers)
        if groups and self._reads_alone(groups):
            found: list[Sample | ShardError] = [{}] * len(numbers)
            order = np.argsort(numbers, kind="stable")
            for place, number in zip(order.tolist(), numbers[order].tolist(), strict=True):
                found[place] = self.one(number)
            return found
        parts = called(self._part, groups) if self.catalog.is_remote else map(self._part, groups)
        return join([*parts], len(numbers))

    def _reads_alone(self, groups: list[_Group]) -> bool:
        """Tell whether samples are better read one by one: few of each shard, which need no more than reading."""
        shard = groups[0].shard
        if not self._plain or sum(len(group.rows) for group in groups) >= len(groups) * _FEW:
            return False
        with suppress(CorruptShard):  # the samples raise it
            return self._kinds_of(shard, self.store.index(shard)) is not None
        return True

    def read_late(self, numbers: Numbers) -> Batch:
        """Return samples as `read` does, but read large ones only when each is asked for.

        The system is asked to read them ahead, so that a thread that calls this has little to do, and holds nothing.

        Args:
            numbers: int64 [n].

        Raises:
            InvalidRequest: Checksums are not known that should be checked.
            OutputFailed: There is no room to unpack a compressed shard.
        """
        groups = self._groups(numbers) if self._plain else []
        if not 0 < len(groups) <= self._files.most // 2:
            return self.read(numbers)
        if self._reads_alone(groups) and self.options.fields is None and self.mean_size >= LATE:
            return self._each_late(groups, numbers)
        plans: list[PayloadSpans] = []
        for group in groups:
            try:
                rows = self._rows(group)
            except CorruptShard:
                return self.read(numbers)
            plan = rows.plan()
            if plan is None or (plans and (plan.names, plan.kinds) != (plans[0].names, plans[0].kinds)):
                return self.read(numbers)
            plans.append(plan)
        order = np.argsort(np.concatenate([plan.places for plan in plans]))
        listed = order.tolist()
        keys = [key for plan in plans for key in plan.keys]
        files = [plan.file for plan in plans for _ in plan.keys]
        spans = np.concatenate([plan.spans for plan in plans])[order].reshape(len(order), -1)
        return LazySamples(
            numbers, [keys[at] for at in listed], [files[at] for at in listed], plans[0].names, spans.T.tolist(),
            plans[0].kinds, self.one,
        )  # fmt: skip

    def _each_late(self, groups: list[_Group], numbers: Numbers) -> SeparateSamples:
        """Return samples that are read one by one, and let the system read them ahead."""
        for shard, rows, _ in groups:
            with suppress(CorruptShard):  # each sample raises it, when it is asked for
                index, file = self.store.index(shard), self._open(shard)
                starts = index.starts[rows]
                file.expect(starts, starts + index.sizes[rows])
        return SeparateSamples(numbers.tolist(), self.one)

    def _groups(self, numbers: Numbers) -> list[_Group]:
        """Return the samples of each shard, in file order."""
        places = np.argsort(numbers, kind="stable")
        shards, rows = self.catalog.places(numbers[places])
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]
        return [
            _Group(int(shards[first]), rows[first:last], places[first:last])
            for first, last in pairwise(cuts)
            if first < last
        ]

    def one(self, number: int) -> Sample | ShardError:
        """Return a sample, or its error. A hot path: 3 us beside the reading."""
        shard = bisect_right(self._firsts, number) - 1
        row = number - self._firsts[shard]
        if self._plain and shard not in self._broken:
            try:
                index, file = self._near.get(shard) or self._come_near(shard)
                kinds = self._kinds[shard] if shard in self._kinds else self._kinds_of(shard, index)
                if kinds is not None:
                    return single_sample(index, file, row, kinds, self.options.fields)
            except (CorruptShard, ValueError, IndexError):  # it is read again, for the error that names all
                pass
        (found,) = join([self._part(_Group(shard, np.array([row]), np.zeros(1, np.int64)))], 1)
        return found

    def _come_near(self, shard: int) -> tuple[ShardIndex, OpenFile]:
        """Return the index of a shard and the shard, and keep both at hand until a store gives any back."""
        found = self._near[shard] = self.store.index(shard), self._open(shard)
        return found

    def _open(self, shard: int) -> OpenFile:
        return self._files.open(self.catalog.shards[shard], self._sizes[shard] or None)

    def _part(self, group: _Group) -> ShardPart:
        """Return samples of one shard; where a cache's copy is damaged, as another copy has them."""
        if (known := self._broken.get(group.shard)) is not None:
            return failed_part(group.places, known)
        try:
            rows = self._rows(group)
            found = rows.samples()
            if found.errors and self._files.renew(self.catalog.shards[group.shard], rows.file):
                found = self._rows(group).samples()
        except CorruptShard as error:
            if self.options.on_error == "skip":
                self._broken[group.shard] = error  # no second walk, and no second message
            return failed_part(group.places, error)
        return found

    def _rows(self, group: _Group) -> ShardRows:
        index, file = self.store.index(group.shard), self._open(group.shard)
        kinds = self._kinds_of(group.shard, index)
        metadata = self.store.metadata(group.shard) if self.options.metadata else None
        return ShardRows(self.catalog, self.options, index, file, kinds, *group, metadata=metadata)

    def _kinds_of(self, shard: int, index: ShardIndex) -> Mapping[str, Kind] | None:
        """Return which fields of a shard are numbers; None: its records must be parsed.

        Nothing but the dataset file, or else the record, says whether bytes are a list or a value.
        """
        if shard not in self._kinds:
            catalog, wanted = self.catalog, self.options.fields
            lists = catalog.lists if wanted is None else catalog.lists & wanted
            if shard_format(catalog.shards[shard].path) == "tar":
                self._kinds[shard] = {}
            elif lists or index.kinds or not catalog.origin(shard).listed:
                self._kinds[shard] = None
            else:
                self._kinds[shard] = catalog.kinds
        return self._kinds[shard]
