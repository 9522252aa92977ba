"""Read samples of several datasets whose numbers follow each other."""

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


class MixedReader(BaseReader):
    """Reads samples of several datasets; their numbers follow each other, and `__dataset__` says which it is of."""

    def __init__(self, readers: Sequence[AnySampleReader], source: MixedSamples) -> None:
        self.readers, self._source = readers, source
        spans = [one.span for one in source.sources]
        self._ends, self._firsts = np.cumsum(spans), np.cumsum(spans) - spans
        self._datasets = [0, *accumulate(source.datasets)]  # the number of the first dataset of each source
        sizes = (weight * one.mean_size for weight, one in zip(source.weights, readers, strict=True))
        self.mean_size = sum(sizes) // sum(source.weights)  # as often as each dataset comes
        self.copies = any(one.copies for one in readers)
        self.concurrent_reads = max(one.concurrent_reads for one in readers)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        for one, part in self._divided(numbers, np.searchsorted(self._ends, numbers, side="right")):
            one.expect(part, seen)

    def reader_of_fields(self, fields: frozenset[str] | None) -> MixedReader:
        """Return a reader of these fields, where every sample of a dataset has them."""
        return MixedReader([one.reader_of_fields(fields) for one in self.readers], self._source)

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a sample that is left out, in its dataset and in `counts`, or raise its error, as that dataset does."""
        at = int(np.searchsorted(self._ends, number, side="right"))
        self.readers[at].skip_or_raise(error, number - int(self._firsts[at]), *counts, damaged=damaged)

    def read(self, numbers: Numbers) -> Samples:
        """Return samples, in the order of their numbers in the argument, and errors in place of damaged ones."""
        return self._joined(numbers, lambda one, part: one.read(part))

    def read_late(self, numbers: Numbers) -> Samples:
        """Return samples as `read` does, but read large ones only when each is asked for."""
        return self._joined(numbers, lambda one, part: one.read_late(part))

    def _joined(self, numbers: Numbers, read: Callable[[AnySampleReader, Numbers], Samples]) -> Samples:
        which = np.searchsorted(self._ends, numbers, side="right")
        found = [iter(read(one, part)) for one, part in self._divided(numbers, which)]
        return (_with_dataset_number(self._datasets[at], next(found[at])) for at in which.tolist())

    def _divided(self, numbers: Numbers, which: Numbers) -> Iterator[tuple[AnySampleReader, Numbers]]:
        """Yield each reader, and its samples among `numbers`, as it numbers them."""
        for at, reader in enumerate(self.readers):
            yield reader, numbers[which == at] - self._firsts[at]


def _with_dataset_number(number: int, sample: Sample | ShardError) -> Sample | ShardError:
    """Return a sample that says which dataset it is of, of those from `number` on."""
    if isinstance(sample, dict):
        sample["__dataset__"] = number + sample.get("__dataset__", 0)  # type: ignore[operator]
    return sample


AnySampleReader = SampleReader | MixedReader
