"""Read samples of several datasets."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from shardtool.read.sample_reader import BaseReader, SampleReader, SkippedSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.errors import ShardError
    from shardtool.read.catalog import Numbers
    from shardtool.read.epoch_samples import MixedSamples
    from shardtool.read.options import Sample, Samples
    from shardtool.values import OnError


class MixedReader(BaseReader):
    """Reads samples of several datasets, and adds their dataset's number as `__dataset__`."""

    def __init__(self, readers: Sequence[AnySampleReader], source: MixedSamples) -> None:
        self.readers, self._source = readers, source
        spans = [reader.span for reader in source.sources]
        self._ends, self._firsts = np.cumsum(spans), np.cumsum(spans) - spans
        self._datasets = [0, *accumulate(source.datasets)]  # first dataset of each source
        sizes = (weight * reader.mean_size for weight, reader in zip(source.weights, readers, strict=True))
        self.mean_size = sum(sizes) // sum(source.weights)
        self.copies = any(reader.copies for reader in readers)
        self.concurrent_reads = max(reader.concurrent_reads for reader in readers)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Start copying the shards of these samples into the cache."""
        for reader, own_numbers in self._split_by_reader(numbers, np.searchsorted(self._ends, numbers, side="right")):
            reader.expect(own_numbers, seen)

    def reader_of_fields(self, fields: frozenset[str] | None) -> MixedReader:
        """Return a reader of these fields."""
        return MixedReader([reader.reader_of_fields(fields) for reader in self.readers], self._source)

    def with_on_error(self, on_error: OnError) -> MixedReader:
        """Return a reader with this `on_error`."""
        return MixedReader([reader.with_on_error(on_error) for reader in self.readers], self._source)

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a skipped sample, or raise its error."""
        source = int(np.searchsorted(self._ends, number, side="right"))
        self.readers[source].skip_or_raise(error, number - int(self._firsts[source]), *counts, damaged=damaged)

    def read(self, numbers: Numbers) -> Samples:
        """Return samples in the order of `numbers`, or their errors."""
        return self._read_with(numbers, lambda reader, own_numbers: reader.read(own_numbers))

    def read_late(self, numbers: Numbers) -> Samples:
        """Return samples as `read`, but large ones on demand."""
        return self._read_with(numbers, lambda reader, own_numbers: reader.read_late(own_numbers))

    def _read_with(self, numbers: Numbers, read: Callable[[AnySampleReader, Numbers], Samples]) -> Samples:
        sources = np.searchsorted(self._ends, numbers, side="right")
        samples = [iter(read(reader, own_numbers)) for reader, own_numbers in self._split_by_reader(numbers, sources)]
        return (_with_dataset_number(self._datasets[source], next(samples[source])) for source in sources.tolist())

    def _split_by_reader(self, numbers: Numbers, sources: Numbers) -> Iterator[tuple[AnySampleReader, Numbers]]:
        for source, reader in enumerate(self.readers):
            yield reader, numbers[sources == source] - self._firsts[source]


def _with_dataset_number(number: int, sample: Sample | ShardError) -> Sample | ShardError:
    if isinstance(sample, dict):
        sample["__dataset__"] = number + sample.get("__dataset__", 0)  # type: ignore[operator]
    return sample


AnySampleReader = SampleReader | MixedReader
