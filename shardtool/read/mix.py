"""Several datasets read as one, in the order that `order/mixed.py` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.read.order.orders import MixedSamples
from shardtool.read.samples import CombinedSamples
from shardtool.read.stream import Streamable
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.errors import ShardError
    from shardtool.read.fetch import SkippedSamples
    from shardtool.read.order.orders import Stop
    from shardtool.read.samples import Batch, Sample
    from shardtool.read.stream import Reader

    Numbers = NDArray[np.int64]

_AFTER = "samples as they are read: mix first, then decode, map or select"


class Mixture(Streamable):
    """Samples of several datasets, by weights: what `mix` returns."""

    def __len__(self) -> int:
        """Return how many samples, or batches, an epoch has, of all ranks together."""
        return self.stages.count(self.source.length)

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples in an equal mix."""
        return self.source.fingerprint

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.stream(shuffle=False, rank=0, world_size=1, ends="uneven"))

    def __repr__(self) -> str:
        return f"<Mixture: {counted(self.source.length, 'sample')} an epoch{self.stages}>"


def mix(datasets: Sequence[Streamable], weights: Sequence[float], *, stop: Stop = "first") -> Mixture:
    """Return several datasets as one that can be streamed: exact, divided among ranks, and resumed as one is.

    Which dataset comes next is random in blocks of 64 samples, in which shares are exact; without `shuffle`, too, where
    each dataset keeps its own order. A dataset that is exhausted before the epoch ends goes on with its next epoch, in
    another order; and in the next epoch of the mix, each goes on where it was.

    Args:
        datasets: Datasets, views of them, or other mixes.
        weights: Of each, above 0: with 3 and 1, three of four samples are of the first.
        stop: When an epoch ends: with the last sample of the dataset that is exhausted first (`first`), when each
            was seen as a whole (`all`), or after a number of samples.

    Raises:
        InvalidRequest: A dataset has no samples, or weights or `stop` are none of their values.
    """
    for at, one in enumerate(datasets):
        if not isinstance(one, Streamable):
            found = f"a {type(one).__name__}"
            raise InvalidRequest(f"dataset {at} of the mix", found, expected="what shardtool.open returned")
        if one.stages.stages:
            raise InvalidRequest(f"dataset {at} of the mix", "something is done to its samples", expected=_AFTER)
    source = MixedSamples.of([one.source for one in datasets], weights, stop)
    return Mixture(MixedReader([one.fetcher for one in datasets], source), source)


class MixedReader:
    """Reads samples of several datasets; their numbers follow each other."""

    def __init__(self, readers: Sequence[Reader], source: MixedSamples) -> None:
        self._readers, self._source = readers, source
        self._ends = np.cumsum([one.span for one in source.sources])

    @property
    def mean_size(self) -> int:
        """Bytes of a sample, with all around it, as often as each dataset comes."""
        weights = self._source.weights
        total = sum(weight * reader.mean_size for weight, reader in zip(weights, self._readers, strict=True))
        return total // sum(weights)

    @property
    def copies(self) -> bool:
        """Whether shards of any dataset are copied into a cache before they are read."""
        return any(one.copies for one in self._readers)

    @property
    def reads_at_once(self) -> int:
        """How many calls of `read_late` are best made at the same time."""
        return max(one.reads_at_once for one in self._readers)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of samples that are read soon copied into the cache, but for those of `seen`."""
        for one, part in self._divided(numbers, np.searchsorted(self._ends, numbers, side="right")):
            one.expect(part, seen)

    def reading_only(self, fields: frozenset[str] | None) -> MixedReader:
        """Return a reader of these fields, where every sample of a dataset has them."""
        return MixedReader([one.reading_only(fields) for one in self._readers], self._source)

    def refuse(self, error: ShardError, number: int, *counts: SkippedSamples) -> None:
        """Raise the error of a sample, or count it where damaged samples of its dataset are skipped."""
        at = self._dataset_of(number)
        self._readers[at].refuse(error, number - self._first(at), *counts)

    def leave_out(self, error: ShardError, number: int, *counts: SkippedSamples) -> None:
        """Count a sample that is left out, in its dataset and in `counts`."""
        at = self._dataset_of(number)
        self._readers[at].leave_out(error, number - self._first(at), *counts)

    def read(self, numbers: Numbers) -> Batch:
        """Return samples, in the order of their numbers in the argument, and errors in place of damaged ones."""
        which = np.searchsorted(self._ends, numbers, side="right")
        return CombinedSamples(which.tolist(), [one.read(part) for one, part in self._divided(numbers, which)])

    def read_late(self, numbers: Numbers) -> Batch:
        """Return samples as `read` does, but read large ones only when each is asked for."""
        which = np.searchsorted(self._ends, numbers, side="right")
        return CombinedSamples(which.tolist(), [one.read_late(part) for one, part in self._divided(numbers, which)])

    def _divided(self, numbers: Numbers, which: Numbers) -> Iterator[tuple[Reader, Numbers]]:
        """Yield each reader, and its samples among `numbers`, as it numbers them."""
        for at, reader in enumerate(self._readers):
            yield reader, numbers[which == at] - self._first(at)

    def _dataset_of(self, number: int) -> int:
        return int(np.searchsorted(self._ends, number, side="right"))

    def _first(self, at: int) -> int:
        return int(self._ends[at]) - self._source.sources[at].span
