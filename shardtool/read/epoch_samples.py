"""The samples of an epoch: all samples of a catalog, some of them, or a weighted mix of several datasets.

In a mix with the weights 3, 1 and 1, the first 64 positions contain 38 samples of the first dataset (3/5 of 64,
rounded) and 13 of each other dataset. The order of the datasets is shuffled within each block of 64 positions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import field, replace
from fractions import Fraction
from functools import cached_property, partial
from hashlib import blake2b
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest
from shardtool.plan.random_order import derive_state
from shardtool.read.order import DEFAULT_PARTS, Order, OrderOptions, epoch_order, permute_windows
from shardtool.request.option_checks import check_minimum

if TYPE_CHECKING:
    from shardtool.read.catalog import Catalog, Numbers


_BUFFER_BYTES = 2**25
_MAX_WINDOW_SAMPLES = 1024
_PARTS_PER_RANK = 128  # this shuffles better than a shuffle buffer of 5,000 samples
_COPIED_PARTS_PER_RANK = 32  # a cache must hold a shard of each part, so use fewer parts


def window_size(mean_size: int, buffer: int | None, parts: int) -> int:
    """Return the number of samples in the shuffle window of each part.

    `buffer` is the number of samples in all windows together, by default about 32 MB of samples.
    """
    for name, value in (("parts", parts), ("buffer", buffer)):
        if value is not None:
            check_minimum(name, value)
    if buffer is not None:
        return max(1, buffer // parts)
    samples = max(1, min(_MAX_WINDOW_SAMPLES, _BUFFER_BYTES // parts // mean_size))
    return 1 << (samples * samples).bit_length() // 2  # windows of 2^n samples are permuted faster


def choose_parts(
    source: object, mean_size: int, ranks: int, buffer: int | None, parts: int | None, *, copies: bool
) -> tuple[int, int, int]:
    """Choose `parts`, `window` and `ranks` of `OrderOptions`.

    Usually, each rank reads its own parts. The returned `ranks` is 0 if `parts` is given, if the source consists of
    bundles, or if a mix has a cache.
    """
    types_with_parts_per_rank = (CatalogSamples,) if copies else (CatalogSamples, MixedSamples)
    if parts is not None or not isinstance(source, types_with_parts_per_rank):
        parts = DEFAULT_PARTS if parts is None else parts
        return parts, window_size(mean_size, buffer, parts), 0
    parts_per_rank = _PARTS_PER_RANK
    if copies and isinstance(source, CatalogSamples):
        parts_per_rank = max(DEFAULT_PARTS // ranks, min(_COPIED_PARTS_PER_RANK, len(source.catalog.sizes) // ranks), 1)
    parts = ranks * parts_per_rank
    return parts, window_size(mean_size, buffer, DEFAULT_PARTS if buffer is None else parts), ranks


@dataclass(frozen=True)
class CatalogSamples:
    """All samples of a catalog, or the samples with the numbers `chosen`, in this order."""

    catalog: Catalog
    chosen: Numbers | None = field(default=None, repr=False)

    @property
    def number_limit(self) -> int:
        """One more than the highest sample number."""
        return len(self.catalog)

    @cached_property
    def length(self) -> int:
        """Number of samples in an epoch."""
        return len(self.catalog) if self.chosen is None else len(self.chosen)

    def length_in(self, _: OrderOptions) -> int:
        """See `length`."""
        return self.length

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the samples."""
        if self.chosen is None:
            return self.catalog.order_hash
        digest = blake2b(self.catalog.order_hash.encode() + b"\n", digest_size=16)
        digest.update(np.ascontiguousarray(self.chosen, "<i8").data)
        return digest.hexdigest()

    def group_by_shard(self) -> Iterator[tuple[int, range | Numbers]]:
        """Yield each shard that contains chosen samples, with the numbers of these samples, ascending."""
        if self.chosen is not None:
            for shard, _, indexes in self.catalog.group_by_shard(self.chosen):
                yield shard, self.chosen[np.sort(indexes)]
            return
        for shard, (first, last) in enumerate(pairwise(self.catalog.first_samples.tolist())):
            if first < last:
                yield shard, range(first, last)

    def order(self, options: OrderOptions) -> Order:
        """Return the order of the samples in an epoch."""
        if self.chosen is None:
            return epoch_order(np.diff(self.catalog.first_samples), options)
        if not options.shuffle:
            return Order(len(self.chosen), partial(np.take, self.chosen))
        counts = np.diff(np.searchsorted(self._ascending, self.catalog.first_samples))
        length, indexes_at = epoch_order(counts, options)
        return Order(length, partial(_chosen_at, self._ascending, indexes_at))

    @cached_property
    def _ascending(self) -> Numbers:
        # sort the numbers, so a shuffle does not depend on the order of `chosen`
        chosen = np.zeros(0, np.int64) if self.chosen is None else self.chosen
        return chosen if (chosen[1:] >= chosen[:-1]).all() else np.sort(chosen)


def _chosen_at(chosen: Numbers, indexes_at: Callable[[Numbers], Numbers], positions: Numbers) -> Numbers:
    return chosen[indexes_at(positions)]


Stop = int | Literal["first", "all"]
Position = TypeVar("Position", int, "Numbers")
_MIX_BLOCK_POSITIONS = 64


# keep every product of a weight and a position below 2^63
_MAX_WEIGHT = 2**20
_MAX_POSITIONS = 2**40
_MAX_PRODUCT = 2**61


@dataclass(frozen=True)
class MixedSamples:
    """The samples of several datasets or mixes, with integer weights."""

    sources: tuple[EpochSamples, ...]
    weights: tuple[int, ...]
    length: int

    @classmethod
    def from_weights(cls, sources: Sequence[EpochSamples], weights: Sequence[float], stop: Stop) -> MixedSamples:
        """Create a mix from weights."""
        whole = _whole_weights(weights, len(sources))
        for at, source in enumerate(sources):
            if not source.length:
                raise InvalidRequest(f"dataset {at} of the mix", "no samples")
        return cls(tuple(sources), whole, _epoch_length(whole, [source.length for source in sources], stop))

    @classmethod
    def from_counts(
        cls, sources: Sequence[EpochSamples], choose: Sequence[int] | None, repeat: Sequence[float] | None
    ) -> MixedSamples:
        """Create a mix whose epochs contain `choose` samples of each dataset, or each dataset `repeat` times.

        Epochs of more than about a billion samples have rounded proportions.
        """
        if choose is not None:
            _check_numbers("choose", choose, len(sources))
            counts = [max(1, round(count)) for count in choose]
            if counts != [*choose]:
                raise InvalidRequest("choose", repr(choose), expected="whole numbers")
        else:
            factors = [1] * len(sources) if repeat is None else repeat
            _check_numbers("the mix" if repeat is None else "repeat", factors, len(sources))
            counts = [max(1, round(factor * source.length)) for factor, source in zip(factors, sources, strict=True)]
        length, divisor = sum(counts), math.gcd(*counts)
        mix = cls.from_weights(sources, counts, length)
        exact_weights = tuple(count // divisor for count in counts)
        return replace(mix, weights=exact_weights) if length * max(exact_weights) < _MAX_PRODUCT else mix

    @property
    def datasets(self) -> list[int]:
        """Number of datasets in each source. A source can be a mix."""
        return [sum(source.datasets) if isinstance(source, MixedSamples) else 1 for source in self.sources]

    @property
    def number_limit(self) -> int:
        """One more than the highest sample number."""
        return sum(source.number_limit for source in self.sources)

    def length_in(self, _: OrderOptions) -> int:
        """See `length`."""
        return self.length

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the samples, the weights and the length of an epoch."""
        texts = [*(source.fingerprint for source in self.sources), *map(str, self.weights), str(self.length)]
        return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()

    def order(self, options: OrderOptions) -> Order:
        """Return the order of the samples in an epoch."""
        return Order(self.length, partial(self._numbers_at, options, {}))

    def _numbers_at(self, options: OrderOptions, orders: dict[tuple[int, int], Order], positions: Numbers) -> Numbers:
        source_at, sample_counts = self.datasets_at(options, positions)
        numbers = np.empty_like(positions)
        first_number = 0
        for number, source in enumerate(self.sources):
            (indexes,) = np.nonzero(source_at == number)
            epochs, source_positions = np.divmod(sample_counts[indexes], source.length)
            for epoch in np.unique(epochs).tolist():
                is_in_epoch = epochs == epoch
                if (order := orders.get((number, epoch))) is None:
                    if len(orders) > 2 * len(self.sources):
                        orders.clear()
                    # use a seed per dataset, so datasets of equal size have different orders
                    seed = derive_state("mixed", options.seed, number)
                    order = orders[number, epoch] = source.order(replace(options, seed=seed, epoch=epoch))
                numbers[indexes[is_in_epoch]] = first_number + order.numbers(source_positions[is_in_epoch])
            first_number += source.number_limit
        return numbers

    def datasets_at(self, options: OrderOptions, positions: Numbers) -> tuple[Numbers, Numbers]:
        """For each position, return the dataset and the number of its earlier samples, including previous epochs."""
        blocks, block_row = np.unique(positions // _MIX_BLOCK_POSITIONS, return_inverse=True)
        starts, slots = blocks * _MIX_BLOCK_POSITIONS, np.arange(_MIX_BLOCK_POSITIONS)
        sizes = np.minimum(_MIX_BLOCK_POSITIONS, self.length - starts)
        in_previous_blocks = np.stack(_counts_before(self.weights, starts))
        ends = np.cumsum(np.stack(_counts_before(self.weights, starts + sizes)) - in_previous_blocks, axis=0)
        key = derive_state("mix", options.seed, options.epoch)
        sizes = np.repeat(sizes, _MIX_BLOCK_POSITIONS)
        permuted = permute_windows(
            key, np.repeat(blocks, _MIX_BLOCK_POSITIONS), np.tile(slots, len(blocks)), sizes, _MIX_BLOCK_POSITIONS
        )
        # in the last block of an epoch, slots beyond the end belong to no dataset
        dataset_at = (permuted.reshape(-1, 1, _MIX_BLOCK_POSITIONS) >= ends.T[:, :, None]).sum(axis=1)
        by_dataset = np.argsort(dataset_at, axis=1, kind="stable")
        rank_in_block = np.empty_like(by_dataset)
        np.put_along_axis(rank_in_block, by_dataset, slots[None, :], axis=1)
        slot = positions % _MIX_BLOCK_POSITIONS
        result = dataset_at[block_row, slot]
        first_ranks = np.concatenate((np.zeros((1, len(blocks)), np.int64), ends))[result, block_row]
        in_previous_epochs = options.epoch * np.array(_counts_before(self.weights, self.length))[result]
        in_this_block = rank_in_block[block_row, slot] - first_ranks
        return result, in_previous_epochs + in_previous_blocks[result, block_row] + in_this_block


EpochSamples = CatalogSamples | MixedSamples


def _counts_before(weights: Sequence[int], position: Position) -> list[Position]:
    counts: list[Position] = []
    remaining, total = position, sum(weights)
    for weight in weights[:-1]:
        count = (2 * remaining * weight + total) // (2 * total)
        counts.append(count)
        remaining, total = remaining - count, total - weight
    counts.append(remaining)
    return counts


def _epoch_length(weights: Sequence[int], lengths: Sequence[int], stop: Stop) -> int:
    if type(stop) is int and 0 < stop <= _MAX_POSITIONS:
        return stop
    if stop not in ("first", "all") or isinstance(stop, bool):
        raise InvalidRequest("stop", repr(stop), expected="'first', 'all', or a number of samples")
    any_or_all = any if stop == "first" else all

    def is_over(position: int) -> bool:
        counts = _counts_before(weights, position)
        return any_or_all(count >= length for count, length in zip(counts, lengths, strict=True))

    end = bisect_left(range(_MAX_POSITIONS + 1), x=True, key=is_over)
    if end > _MAX_POSITIONS:
        found = "an epoch would have more than 2^40 samples"
        raise InvalidRequest("weights", found, expected="weights that differ less")
    return end


def _check_numbers(name: str, numbers: Sequence[float], count: int) -> None:
    if not isinstance(numbers, Sized):
        raise InvalidRequest(name, repr(numbers), expected="a list with one number per dataset")
    if len(numbers) != count or not count:
        found, expected = f"{len(numbers)} for {count} datasets", "one number per dataset, and at least one dataset"
        raise InvalidRequest(name, found, expected=expected)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, Real) or not 0 < number < math.inf:
            raise InvalidRequest(name, repr(number), expected="numbers above 0")


def _whole_weights(weights: Sequence[float], count: int) -> tuple[int, ...]:
    _check_numbers("weights", weights, count)
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    divisor = math.gcd(*(int(weight * scale) for weight in exact))
    whole = [int(weight * scale) // divisor for weight in exact]
    largest = max(whole)
    if largest <= _MAX_WEIGHT // count:
        return tuple(whole)
    return tuple(max(1, round(Fraction(weight * _MAX_WEIGHT // count, largest))) for weight in whole)
