"""The samples of an epoch: all or some of a catalog, or those of several datasets mixed by weights.

In a mix, of t positions the first dataset has its share of t, rounded; the second its share of the rest, rounded,
and so
on. Each count grows by 0 or 1 with each position, and is never further from its exact share than the number of
datasets.
The positions of a block, in which counts are thus exact, are shuffled among themselves. Each dataset goes through
its own
epochs, also from one epoch of the mix to the next: no sample is repeated before all of its dataset was read.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from hashlib import blake2b
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.random_order import derive_state
from shardtool.read.order import DEFAULT_PARTS, Order, OrderOptions, epoch_order, permuted_windows
from shardtool.request.option_checks import check_minimum

if TYPE_CHECKING:
    from shardtool.read.catalog import Catalog, Numbers


_BUFFER_BYTES = 2**25


_MAX_WINDOW_SAMPLES = 1024


_PARTS_PER_RANK = 128  # parts: 256 samples of a rank come from as many places, more than a buffer of 5,000 mixes


_COPIED_PARTS_PER_RANK = (
    32  # parts of a rank where shards are copied before they are read, and must lie there at the same time
)


def window_size(mean_size: int, buffer: int | None, parts: int) -> int:
    """Return how many samples of a part are shuffled among themselves, for a buffer of all parts.

    Args:
        mean_size: Bytes of a sample: where no buffer is given, it holds about 32 MB of them.
        buffer: Samples that are held, and shuffled among themselves.
        parts: How many parts there are.

    Raises:
        InvalidRequest: The buffer or the parts are no positive numbers.
    """
    for name, value in (("parts", parts), ("buffer", buffer)):
        if value is not None:
            check_minimum(name, value)
    if buffer is not None:
        return max(1, buffer // parts)
    room = max(1, min(_MAX_WINDOW_SAMPLES, _BUFFER_BYTES // parts // mean_size))
    return 1 << (room * room).bit_length() // 2  # the nearest power of two: it is permuted faster


def parts_window_ranks(
    source: object, mean_size: int, ranks: int, buffer: int | None, parts: int | None, *, copies: bool
) -> tuple[int, int, int]:
    """Return parts, window and ranks of an order: where no parts are given, as many for each rank as one alone has.

    So a rank holds as much, and reads pieces as large, as one alone.

    Args:
        source: What is read.
        mean_size: Bytes of a sample.
        ranks: How many will read.
        buffer: Samples that all ranks hold, and shuffle among themselves; None: a window is about 512 KB.
        parts: Into how many parts samples are cut; given, the order is the same for any number of ranks.
        copies: Whether shards are copied before they are read.
    """
    kinds = (CatalogSamples,) if copies else (CatalogSamples, MixedSamples)
    if parts is not None or not isinstance(source, kinds):
        parts = DEFAULT_PARTS if parts is None else parts
        return parts, window_size(mean_size, buffer, parts), 0
    most = _PARTS_PER_RANK
    if copies and isinstance(source, CatalogSamples):
        most = max(DEFAULT_PARTS // ranks, min(_COPIED_PARTS_PER_RANK, len(source.catalog.sizes) // ranks), 1)
    return ranks * most, window_size(mean_size, buffer, DEFAULT_PARTS if buffer is None else ranks * most), ranks


@dataclass(frozen=True)
class CatalogSamples:
    """All samples of a catalog, or chosen ones.

    Attributes:
        catalog: Where the samples are.
        chosen: int64 [n]: their numbers; None: all. Shuffled, only which they are counts, not their order.
    """

    catalog: Catalog
    chosen: Numbers | None = field(default=None, repr=False)

    @property
    def span(self) -> int:
        """How many numbers there are."""
        return len(self.catalog)

    @cached_property
    def length(self) -> int:
        """Samples in an epoch."""
        return len(self.catalog) if self.chosen is None else len(self.chosen)

    def length_in(self, _: OrderOptions) -> int:
        """Return how many samples an epoch has: as many in any order."""
        return self.length

    @cached_property
    def fingerprint(self) -> str:
        """What is equal for equal samples."""
        if self.chosen is None:
            return self.catalog.fingerprint
        digest = blake2b(self.catalog.fingerprint.encode() + b"\n", digest_size=16)
        digest.update(np.ascontiguousarray(self.chosen, "<i8").data)
        return digest.hexdigest()

    def group_by_shard(self) -> Iterator[tuple[int, range | Numbers]]:
        """Yield each shard that samples lie in: its place, and their numbers, in the order of the view."""
        if self.chosen is not None:
            for shard, _, places in self.catalog.group_by_shard(self.chosen):
                yield shard, self.chosen[np.sort(places)]
            return
        for shard, (first, last) in enumerate(pairwise(self.catalog.firsts.tolist())):
            if first < last:
                yield shard, range(first, last)

    def order(self, options: OrderOptions) -> Order:
        """Return the order of an epoch, as numbers of samples in the catalog."""
        if self.chosen is None:
            return epoch_order(np.diff(self.catalog.firsts), options)
        if not options.shuffle:
            return Order(len(self.chosen), partial(np.take, self.chosen))
        counts = np.diff(np.searchsorted(self._ascending, self.catalog.firsts))
        length, places = epoch_order(counts, options)
        return Order(length, partial(_chosen_at, self._ascending, places))

    @cached_property
    def _ascending(self) -> Numbers:
        """The chosen samples in the order of the data: what a shuffle starts from, however they were chosen."""
        chosen = np.zeros(0, np.int64) if self.chosen is None else self.chosen
        return chosen if (chosen[1:] >= chosen[:-1]).all() else np.sort(chosen)


def _chosen_at(chosen: Numbers, places: Callable[[Numbers], Numbers], positions: Numbers) -> Numbers:
    """Return the sample at each position, of chosen ones in an order of their places."""
    return chosen[places(positions)]


Stop = int | Literal["first", "all"]


Position = TypeVar("Position", int, "Numbers")


_MIX_BLOCK_POSITIONS = 64  # positions that are shuffled among themselves


_MAX_WEIGHT = 2**20  # of a dataset, so that no product of a weight and a position is beyond 2^63:


_MAX_POSITIONS = 2**40


_MAX_PRODUCT = 2**61


@dataclass(frozen=True)
class MixedSamples:
    """Samples of several datasets; their numbers follow each other.

    Attributes:
        sources: What is mixed.
        weights: Of each, a whole number.
        length: Samples in an epoch.
    """

    sources: tuple[EpochSamples, ...]
    weights: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, sources: Sequence[EpochSamples], weights: Sequence[float], stop: Stop) -> MixedSamples:
        """Return a mix.

        Raises:
            InvalidRequest: There is nothing to mix, weights are not positive, or `stop` is none of its values.
        """
        whole = _whole_weights(weights, len(sources))
        for at, source in enumerate(sources):
            if not source.length:
                raise InvalidRequest(f"dataset {at} of the mix", "no samples")
        return cls(tuple(sources), whole, _epoch_length(whole, [source.length for source in sources], stop))

    @classmethod
    def from_counts(
        cls, sources: Sequence[EpochSamples], choose: Sequence[int] | None, repeat: Sequence[float] | None
    ) -> MixedSamples:
        """Return a mix by how many samples of each an epoch has, to one in 2^20 where they are more than a billion.

        Args:
            sources: What is mixed.
            choose: How many of each.
            repeat: How many times each; with neither, once.

        Raises:
            InvalidRequest: There is nothing to mix, or these are no positive numbers.
        """
        name, times = ("repeat", repeat) if choose is None else ("choose", choose)
        name, times = ("the mix", [1] * len(sources)) if times is None else (name, times)
        _check_numbers(name, times, len(sources))
        lengths = [source.length if choose is None else 1 for source in sources]
        counts = [max(1, round(one * length)) for one, length in zip(times, lengths, strict=True)]
        if choose is not None and counts != [*choose]:
            raise InvalidRequest("choose", repr(choose), expected="whole numbers")
        length, divisor = sum(counts), math.gcd(*counts)
        found, exact = cls.of(sources, counts, length), tuple(count // divisor for count in counts)
        return replace(found, weights=exact) if length * max(exact) < _MAX_PRODUCT else found

    @property
    def datasets(self) -> list[int]:
        """How many datasets each of the sources is: one, or all that it mixes."""
        return [sum(one.datasets) if isinstance(one, MixedSamples) else 1 for one in self.sources]

    @property
    def span(self) -> int:
        """How many numbers there are: those of the samples are below."""
        return sum(source.span for source in self.sources)

    def length_in(self, _: OrderOptions) -> int:
        """Return how many samples an epoch has: as many in any order."""
        return self.length

    @cached_property
    def fingerprint(self) -> str:
        """What is equal for equal samples in an equal mix."""
        texts = [*(source.fingerprint for source in self.sources), *map(str, self.weights), str(self.length)]
        return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()

    def order(self, options: OrderOptions) -> Order:
        """Return the order of an epoch."""
        return Order(self.length, partial(self._numbers, options, {}))

    def _numbers(self, options: OrderOptions, known: dict[tuple[int, int], Order], positions: Numbers) -> Numbers:
        """Return the sample at each position; `known` has orders of epochs of datasets that were used before."""
        which, turns = self.turns(options, positions)
        found, first = np.empty_like(positions), 0
        for number, source in enumerate(self.sources):
            (here,) = np.nonzero(which == number)
            epochs, at = np.divmod(turns[here], source.length)
            for epoch in np.unique(epochs).tolist():
                of_epoch = epochs == epoch
                if (own := known.get((number, epoch))) is None:
                    if len(known) > 2 * len(self.sources):
                        known.clear()
                    seed = derive_state("mixed", options.seed, number)  # alike datasets are not shuffled alike
                    own = known[number, epoch] = source.order(replace(options, seed=seed, epoch=epoch))
                found[here[of_epoch]] = first + own.numbers(at[of_epoch])
            first += source.span
        return found

    def turns(self, options: OrderOptions, positions: Numbers) -> tuple[Numbers, Numbers]:
        """Return the dataset at each position, and how many samples of it came before, in all epochs of the mix.

        Args:
            options: Which order.
            positions: int64 [n].

        Returns:
            int64 [n], int64 [n].
        """
        blocks, row = np.unique(positions // _MIX_BLOCK_POSITIONS, return_inverse=True)
        starts, places = blocks * _MIX_BLOCK_POSITIONS, np.arange(_MIX_BLOCK_POSITIONS)
        sizes = np.minimum(_MIX_BLOCK_POSITIONS, self.length - starts)
        before = np.stack(_counts_before(self.weights, starts))
        ends = np.cumsum(np.stack(_counts_before(self.weights, starts + sizes)) - before, axis=0)
        key = derive_state("mix", options.seed, options.epoch)
        sizes = np.repeat(sizes, _MIX_BLOCK_POSITIONS)
        slots = permuted_windows(
            key, np.repeat(blocks, _MIX_BLOCK_POSITIONS), np.tile(places, len(blocks)), sizes, _MIX_BLOCK_POSITIONS
        )
        sets = (slots.reshape(-1, 1, _MIX_BLOCK_POSITIONS) >= ends.T[:, :, None]).sum(
            axis=1
        )  # beyond a block's size: no dataset's
        by_set = np.argsort(sets, axis=1, kind="stable")
        nth = np.empty_like(by_set)
        np.put_along_axis(nth, by_set, places[None, :], axis=1)
        which = sets[row, positions % _MIX_BLOCK_POSITIONS]
        firsts = np.concatenate((np.zeros((1, len(blocks)), np.int64), ends))[which, row]
        passed = options.epoch * np.array(_counts_before(self.weights, self.length))
        return which, passed[which] + before[which, row] + nth[row, positions % _MIX_BLOCK_POSITIONS] - firsts


EpochSamples = CatalogSamples | MixedSamples


def _counts_before(weights: Sequence[int], position: Position) -> list[Position]:
    """Return how many samples of each dataset come before a position, or before each of several."""
    found: list[Position] = []
    left, total = position, sum(weights)
    for weight in weights[:-1]:
        taken = (2 * left * weight + total) // (2 * total)
        found.append(taken)
        left, total = left - taken, total - weight
    found.append(left)
    return found


def _epoch_length(weights: Sequence[int], lengths: Sequence[int], stop: Stop) -> int:
    if type(stop) is int and 0 < stop <= _MAX_POSITIONS:
        return stop
    if stop not in ("first", "all") or isinstance(stop, bool):
        raise InvalidRequest("stop", repr(stop), expected="'first', 'all', or a number of samples")
    enough = any if stop == "first" else all

    def is_over(position: int) -> bool:
        counts = _counts_before(weights, position)
        return enough(count >= length for count, length in zip(counts, lengths, strict=True))

    end = bisect_left(range(_MAX_POSITIONS + 1), x=True, key=is_over)
    if end > _MAX_POSITIONS:
        raise InvalidRequest("weights", "an epoch would have more than 2^40 samples", expected="more equal weights")
    return end


def _check_numbers(name: str, numbers: Sequence[float], count: int) -> None:
    if not isinstance(numbers, Sized):
        raise InvalidRequest(name, repr(numbers), expected="one for each dataset")
    if len(numbers) != count or not count:
        raise InvalidRequest(name, f"{len(numbers)} for {count} datasets", expected="one for each, and a dataset")
    for one in numbers:
        if isinstance(one, bool) or not isinstance(one, Real) or not 0 < one < math.inf:
            raise InvalidRequest(name, repr(one), expected="numbers above 0")


def _whole_weights(weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Return weights as whole numbers: exact where these are not large, else to one part in 2^20 of the largest."""
    _check_numbers("weights", weights, count)
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(one.denominator for one in exact))
    divisor = math.gcd(*(int(one * scale) for one in exact))
    whole = [int(one * scale) // divisor for one in exact]
    most = max(whole)
    if most <= _MAX_WEIGHT // count:
        return tuple(whole)
    return tuple(max(1, round(Fraction(one * _MAX_WEIGHT // count, most))) for one in whole)
