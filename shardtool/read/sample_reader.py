"""Read samples by number."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.dataset.shard_file import detect_kind
from shardtool.errors import CorruptShard, ShardError
from shardtool.read.index_store import IndexStore
from shardtool.read.open_files import OpenFiles
from shardtool.read.options import CopyingCache, ReadOptions, Sample, Samples
from shardtool.read.shard_read import LARGE_SAMPLE_BYTES, NUMBER_READERS, ReadableShard, read_on_demand
from shardtool.storage.remote.requests import map_requests
from shardtool.storage.remote.store_options import register_options
from shardtool.storage.shared_blocks import ForkLock
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.read.catalog import Catalog, Numbers
    from shardtool.read.epoch_samples import MixedSamples
    from shardtool.values import OnError


_MAX_REASONS = 1000
_REMOTE_READS = 4
_FREED_BLOCK_BYTES = 2**24
_MAX_SAMPLES_READ_SINGLY = 50  # above this number, reading a shard's samples together is faster (measured)


class SkippedSamples:
    """Counters of skipped samples.

    Attributes:
        samples: Number of samples that are damaged or were dropped by a stage.
        reasons: Number of samples by reason, for at most a thousand reasons.
    """

    def __init__(self) -> None:
        self.samples = self.damaged = 0
        self.has_warned = False
        self.shards: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._lock = ForkLock()

    def __repr__(self) -> str:
        reason = f", mostly {self.reasons.most_common(1)[0][0]:.80}" if self.reasons else ""
        return f"<Skipped: {pluralize(self.samples, 'sample')}, {self.damaged:,} damaged{reason}>"

    def __reduce__(self) -> tuple[type[SkippedSamples], tuple[()]]:
        return SkippedSamples, ()

    def count_sample(self, error: ShardError, shard: str, *, damaged: bool) -> None:
        """Count a skipped sample. `shard` is the path of the shard, or "" if unknown."""
        with self._lock:
            self.samples += 1
            self.damaged += damaged
            if shard:
                self.shards[shard] += 1
            if len(self.reasons) < _MAX_REASONS or str(error) in self.reasons:
                self.reasons[str(error)] += 1


class SampleReader:
    """Reads the samples of a catalog, in any number of threads.

    Attributes:
        mean_size: Mean number of shard bytes per sample, at least 1.
        copies: Whether shards are first copied into a cache.
        concurrent_reads: Recommended number of concurrent calls of `read`.
    """

    def __init__(self, catalog: Catalog, options: ReadOptions) -> None:
        # Allocate and free 16 MB once, so the C library keeps freed memory for reuse. Requesting new memory for large
        # samples takes longer than reading them (measured).
        bytes(_FREED_BLOCK_BYTES)
        self.catalog = catalog
        self._open_shards: dict[int, ReadableShard] = {}
        self.store = IndexStore(catalog, self._open_shards.clear)
        self._files = OpenFiles(options.cache, self._open_shards.clear)
        self.skipped = SkippedSamples()
        self.mean_size = int(catalog.sizes.sum()) // max(1, len(catalog)) + 1
        self.copies = isinstance(options.cache, CopyingCache)
        self.concurrent_reads = _REMOTE_READS if catalog.is_remote else 1
        self._broken: dict[int, CorruptShard] = {}
        self._first_samples: list[int] = catalog.first_samples.tolist()
        self._sizes: list[int] = catalog.sizes.tolist()
        self._readers = {name: NUMBER_READERS[kind] for name, kind in catalog.kinds.items()}
        self.set_options(options)

    def set_options(self, options: ReadOptions) -> None:
        """Set the options, and the attributes that depend on them."""
        lists = self.catalog.lists if options.fields is None else self.catalog.lists & options.fields
        self.options, self._fields = options, options.fields
        if options.storage is not None:
            register_options(options.storage)
        self._can_read_directly = not (options.check or options.metadata or lists or self.catalog.is_remote)

    def __reduce__(self) -> tuple[type[SampleReader], tuple[Catalog, ReadOptions]]:
        return SampleReader, (self.catalog, self.options)

    def copy_ahead(self, numbers: Numbers, seen: set[str]) -> None:
        """Start copying these samples' shards to the cache. Skip paths in `seen`, and add the new paths to `seen`."""
        if isinstance(cache := self.options.cache, CopyingCache):
            for shard in [self.catalog.shards[number] for number, *_ in self.catalog.group_by_shard(numbers)]:
                if shard.path not in seen:
                    seen.add(shard.path)
                    cache.expect(shard)

    def with_options(self, **changes: Any) -> SampleReader:
        """Return a reader with changed `ReadOptions`. It shares the indexes and open shards of this reader."""
        reader = SampleReader.__new__(SampleReader)
        vars(reader).update(vars(self))
        reader.set_options(replace(self.options, **changes))
        return reader

    def with_on_error(self, on_error: OnError) -> SampleReader:
        """Return a reader with this `on_error`."""
        return self.with_options(on_error=on_error)

    def with_fields(self, fields: frozenset[str] | None) -> SampleReader:
        """Return a reader that reads only these fields, or this reader if the samples have no other fields.

        If a sample may lack one of these fields, also return this reader, because the error for a missing field lists
        all fields of the sample.
        """
        catalog = self.catalog
        names = None if fields is None else {name for name in fields if name[:2] != "__"}
        if names is None or catalog.fields.keys() <= names:
            return self
        if any(catalog.fields.get(name) != len(catalog) for name in names):
            return self
        return self.with_options(fields=frozenset(names))

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a skipped sample in `skipped` and `counts`, or raise its error if `damaged` and `on_error="raise"`."""
        if damaged and self.options.on_error == "raise":
            raise error
        shard = int(self.catalog.locate(np.array([number]))[0][0])
        for count in (self.skipped, *counts):
            count.count_sample(error, self.catalog.shards[shard].path, damaged=damaged)

    def read(self, numbers: Numbers, *, on_demand: bool = False) -> Samples:
        """Return samples in the order of `numbers`, int64 [n]. For a damaged sample, return its error.

        With `on_demand`, each large sample is read when the caller requests it, while the operating system reads ahead.
        """
        if len(numbers) == 1:
            return [self.read_one(int(numbers[0]))]
        groups = [*self.catalog.group_by_shard(numbers)]
        if self._can_read_directly and groups:
            if on_demand and self._read_ahead_if_large(groups, len(numbers)):
                return self._read_each(groups, numbers)
            are_few = len(numbers) < len(groups) * _MAX_SAMPLES_READ_SINGLY
            if (are_few or self.mean_size >= LARGE_SAMPLE_BYTES) and self._has_payload_offsets(groups[0][0]):
                order = np.argsort(numbers, kind="stable")
                return _reordered([order], [self._read_each(groups, numbers[order])], len(numbers))
        map_groups = map_requests if self.catalog.is_remote else map
        parts = map_groups(lambda group: self._read_from_shard(*group[:2]), groups)
        return _reordered([indexes for *_, indexes in groups], parts, len(numbers))

    def _has_payload_offsets(self, shard: int) -> bool:
        with suppress(CorruptShard):  # `read_one` returns this error
            return self.open_shard(shard).readers is not None
        return True

    def _read_ahead_if_large(self, groups: Sequence[tuple[int, Numbers, Numbers]], count: int) -> bool:
        """If samples are large and in few shards, start loading them into the page cache, and return True."""
        if len(groups) > self._files.max_size // 2 or not all(self._has_payload_offsets(shard) for shard, *_ in groups):
            return False
        size, spans = 0, []
        for shard, rows, _ in groups:
            with suppress(CorruptShard):
                opened = self.open_shard(shard)
                starts, ends = opened.spans(rows, self._fields)
                size += int((ends - starts).sum())
                spans.append((opened.file, starts, ends))
        if size < LARGE_SAMPLE_BYTES * count:
            return False
        for file, starts, ends in spans:
            file.read_ahead(starts, ends)
        return True

    def _read_each(self, groups: Sequence[tuple[int, Numbers, Numbers]], numbers: Numbers) -> Samples:
        if len(numbers) >= len(groups) * _MAX_SAMPLES_READ_SINGLY:
            with suppress(CorruptShard):
                parts = [(self.open_shard(shard), rows) for shard, rows, _ in groups]
                return read_on_demand(parts, numbers, self._fields, self.read_one)
        return map(self.read_one, numbers.tolist())

    def read_one(self, number: int) -> Sample | ShardError:
        """Return a sample, or its error."""
        shard = bisect_right(self._first_samples, number) - 1
        row = number - self._first_samples[shard]
        if self._can_read_directly and shard not in self._broken:
            try:
                opened = self._open_shards.get(shard) or self.open_shard(shard)
                if opened.readers is not None:
                    return opened.read_one(row, self._fields)
            except (CorruptShard, OSError, EOFError, ValueError, IndexError):
                pass  # read the sample again, to get a detailed error
        return self._read_from_shard(shard, np.array([row]))[0]

    def open_shard(self, shard: int) -> ReadableShard:
        """Return an open shard. It stays open until too many shards or indexes are in use."""
        opened = self._open_shards.get(shard)
        if opened is None:
            if (error := self._broken.get(shard)) is not None:  # do not scan, copy or log a damaged shard again
                raise error.with_traceback(None)
            stored, index = self.catalog.shards[shard], self.store.index(shard)
            is_tar = detect_kind(stored.path).format == "tar"
            # without a dataset file, TFRecords must be parsed, because it is unknown which features are lists
            readers = self._readers if self.catalog.dataset(shard)[0].listed and not index.kinds else None
            file = self._files.open(stored, self._sizes[shard] or None)
            lists = frozenset[str]() if is_tar else self.catalog.lists
            size, crc = self._sizes[shard], int(self.catalog.crcs[shard])
            opened = ReadableShard(index, file, {} if is_tar else readers, lists, size, crc)
            self._open_shards[shard] = opened
        return opened

    def _read_from_shard(self, shard: int, rows: Numbers) -> list[Sample | ShardError]:
        error = self._broken.get(shard)
        if error is None:
            try:
                metadata = self.store.metadata(shard).take(pa.array(rows)) if self.options.metadata else None
                opened = self.open_shard(shard)
                samples = opened.read_many(rows, self.options, metadata)
                damaged = any(isinstance(sample, ShardError) for sample in samples)
                if damaged and self._files.renew(self.catalog.shards[shard], opened.file):
                    self._open_shards.pop(shard, None)
                    samples = self.open_shard(shard).read_many(rows, self.options, metadata)
            except CorruptShard as damage:
                error = damage
                if self.options.on_error == "skip":
                    self._broken[shard] = error
            else:
                return samples
        return [error] * len(rows)


def _reordered(indexes: Iterable[Numbers], parts: Iterable[Samples], count: int) -> list[Sample | ShardError]:
    samples: list[Sample | ShardError] = [{}] * count
    for part_indexes, part in zip(indexes, parts, strict=True):
        for index, sample in zip(part_indexes.tolist(), part, strict=True):
            samples[index] = sample
    return samples


class MixedReader:
    """Reads samples of several datasets, and adds the number of the dataset as the field `__dataset__`."""

    mean_size: int
    copies: bool
    concurrent_reads: int

    def __init__(self, readers: Sequence[AnySampleReader], source: MixedSamples) -> None:
        self.readers, self._source = readers, source
        limits = [part.number_limit for part in source.sources]
        self._ends, self._first_samples = np.cumsum(limits), np.cumsum(limits) - limits
        self._datasets = [0, *accumulate(source.datasets)]  # for each source, the index of its first dataset
        sizes = (weight * reader.mean_size for weight, reader in zip(source.weights, readers, strict=True))
        self.mean_size = sum(sizes) // sum(source.weights)
        self.copies = any(reader.copies for reader in readers)
        self.concurrent_reads = max(reader.concurrent_reads for reader in readers)

    def copy_ahead(self, numbers: Numbers, seen: set[str]) -> None:
        """See `SampleReader.copy_ahead`."""
        for reader, own_numbers in self._split_by_reader(numbers, np.searchsorted(self._ends, numbers, side="right")):
            reader.copy_ahead(own_numbers, seen)

    def with_fields(self, fields: frozenset[str] | None) -> MixedReader:
        """See `SampleReader.with_fields`."""
        return MixedReader([reader.with_fields(fields) for reader in self.readers], self._source)

    def with_on_error(self, on_error: OnError) -> MixedReader:
        """See `SampleReader.with_on_error`."""
        return MixedReader([reader.with_on_error(on_error) for reader in self.readers], self._source)

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """See `SampleReader.skip_or_raise`."""
        source = int(np.searchsorted(self._ends, number, side="right"))
        self.readers[source].skip_or_raise(error, number - int(self._first_samples[source]), *counts, damaged=damaged)

    def read(self, numbers: Numbers, *, on_demand: bool = False) -> Samples:
        """See `SampleReader.read`."""
        sources = np.searchsorted(self._ends, numbers, side="right")
        parts = self._split_by_reader(numbers, sources)
        samples = [iter(reader.read(own_numbers, on_demand=on_demand)) for reader, own_numbers in parts]
        return (_with_dataset_number(self._datasets[source], next(samples[source])) for source in sources.tolist())

    def _split_by_reader(self, numbers: Numbers, sources: Numbers) -> Iterator[tuple[AnySampleReader, Numbers]]:
        for source, reader in enumerate(self.readers):
            yield reader, numbers[sources == source] - self._first_samples[source]


def _with_dataset_number(number: int, sample: Sample | ShardError) -> Sample | ShardError:
    if isinstance(sample, dict):
        sample["__dataset__"] = number + sample.get("__dataset__", 0)  # type: ignore[operator]
    return sample


AnySampleReader = SampleReader | MixedReader


def read_valid(reader: AnySampleReader, numbers: Numbers) -> list[Sample]:
    """Return samples. For a damaged sample, raise its error, or omit the sample if `reader` skips damaged samples."""
    samples = []
    for index, sample in enumerate(reader.read(numbers)):
        if isinstance(sample, ShardError):
            reader.skip_or_raise(sample, int(numbers[index]))
        else:
            samples.append(sample)
    return samples
