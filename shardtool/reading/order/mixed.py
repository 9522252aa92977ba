"""Several datasets as one, by weights: which of them stands at a position is arithmetic, as is all of an order.

Of t positions, the first dataset has its share of t, rounded; the second its share of the rest, rounded, and so on.
So each count grows by 0 or 1 with each position, and is never further from its exact share than the number of
datasets. The positions of a block, in which counts are thus exact, are shuffled among themselves. Each dataset goes
through its own epochs, one after the other, also from an epoch of the mix to the next: nothing is seen twice before
all of that dataset was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from numbers import Real
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.shuffle import random_start
from shardtool.reading.order.orders import permuted_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardtool.reading.order.orders import Order, Ordered, OrderOptions

    Numbers = NDArray[np.int64]

Stop = int | Literal["first", "all"]
Position = TypeVar("Position", int, "Numbers")
_BLOCK = 64  # positions that are shuffled among themselves
_MOST_WEIGHT = 2**20  # of a dataset, so that no product of a weight and a position is beyond 2^63:
_MOST_POSITIONS = 2**40


@dataclass(frozen=True)
class Mix:
    """Samples of several datasets; their numbers follow each other.

    Attributes:
        sources: What is mixed.
        weights: Of each, a whole number.
        length: Samples in an epoch.
    """

    sources: tuple[Ordered, ...]
    weights: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, sources: Sequence[Ordered], weights: Sequence[float], stop: Stop) -> Mix:
        """Return a mix.

        Raises:
            InvalidRequest: There is nothing to mix, weights are not positive, or `stop` is none of its values.
        """
        whole = _whole_weights(weights, len(sources))
        for at, source in enumerate(sources):
            if not source.length:
                raise InvalidRequest(f"dataset {at} of the mix", "no samples")
        return cls(tuple(sources), whole, _length(whole, [source.length for source in sources], stop))

    @property
    def span(self) -> int:
        """How many numbers there are: those of the samples are below."""
        return sum(source.span for source in self.sources)

    @cached_property
    def fingerprint(self) -> str:
        """What is equal for equal samples in an equal mix."""
        texts = [*(source.fingerprint for source in self.sources), *map(str, self.weights), str(self.length)]
        return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()

    def order(self, options: OrderOptions) -> Mixed:
        """Return the order of an epoch."""
        return Mixed(self.sources, self.weights, self.length, options)


@dataclass(frozen=True)
class Mixed:
    """The order of an epoch of a mix.

    Attributes:
        sources: What is mixed.
        weights: Of each.
        length: Samples in an epoch.
        options: Which order.
    """

    sources: tuple[Ordered, ...]
    weights: tuple[int, ...]
    length: int
    options: OrderOptions
    _own: Callable[[int, int], Order] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_own", lru_cache(2 * len(self.sources))(self._order_of))

    @property
    def round(self) -> int:
        """Positions that are best read together."""
        return self.options.parts * self.options.window

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position."""
        which, turns = self.turns(positions)
        found = np.empty_like(positions)
        first = 0
        for number, source in enumerate(self.sources):
            (here,) = np.nonzero(which == number)
            epochs, at = np.divmod(turns[here], source.length)
            for epoch in np.unique(epochs).tolist():
                of_epoch = epochs == epoch
                found[here[of_epoch]] = first + self._own(number, epoch).numbers(at[of_epoch])
            first += source.span
        return found

    def turns(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """Return the dataset at each position, and how many samples of it came before, in all epochs of the mix.

        Args:
            positions: int64 [n].

        Returns:
            int64 [n], int64 [n].
        """
        blocks, row = np.unique(positions // _BLOCK, return_inverse=True)
        starts, places = blocks * _BLOCK, np.arange(_BLOCK)
        sizes = np.minimum(_BLOCK, self.length - starts)
        before = np.stack(_counts(self.weights, starts))
        ends = np.cumsum(np.stack(_counts(self.weights, starts + sizes)) - before, axis=0)
        key = random_start("mix", self.options.seed, self.options.epoch)
        sizes = np.repeat(sizes, _BLOCK)
        slots = permuted_windows(key, np.repeat(blocks, _BLOCK), np.tile(places, len(blocks)), sizes, _BLOCK)
        sets = (slots.reshape(-1, 1, _BLOCK) >= ends.T[:, :, None]).sum(axis=1)  # beyond a block's size: no dataset's
        by_set = np.argsort(sets, axis=1, kind="stable")
        nth = np.empty_like(by_set)
        np.put_along_axis(nth, by_set, places[None, :], axis=1)
        which = sets[row, positions % _BLOCK]
        firsts = np.concatenate((np.zeros((1, len(blocks)), np.int64), ends))[which, row]
        passed = self.options.epoch * np.array(_counts(self.weights, self.length))
        return which, passed[which] + before[which, row] + nth[row, positions % _BLOCK] - firsts

    def _order_of(self, number: int, epoch: int) -> Order:
        seed = random_start("mixed", self.options.seed, number)  # alike datasets are not shuffled alike
        return self.sources[number].order(replace(self.options, seed=seed, epoch=epoch))


def _counts(weights: Sequence[int], position: Position) -> list[Position]:
    """Return how many samples of each dataset come before a position, or before each of several."""
    found: list[Position] = []
    left, total = position, sum(weights)
    for weight in weights[:-1]:
        taken = (2 * left * weight + total) // (2 * total)
        found.append(taken)
        left, total = left - taken, total - weight
    found.append(left)
    return found


def _length(weights: Sequence[int], lengths: Sequence[int], stop: Stop) -> int:
    if type(stop) is int and 0 < stop <= _MOST_POSITIONS:
        return stop
    if stop not in ("first", "all") or isinstance(stop, bool):
        raise InvalidRequest("stop", repr(stop), expected="'first', 'all', or a number of samples")
    enough = any if stop == "first" else all
    low, high = 0, _MOST_POSITIONS + 1
    while high - low > 1:
        middle = (low + high) // 2
        counts = _counts(weights, middle)
        done = enough(count >= length for count, length in zip(counts, lengths, strict=True))
        low, high = (low, middle) if done else (middle, high)
    if high > _MOST_POSITIONS:
        raise InvalidRequest("weights", "an epoch would have more than 2^40 samples", expected="more equal weights")
    return high


def _whole_weights(weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Return weights as whole numbers: exact where these are not large, else to one part in 2^20 of the largest."""
    if not isinstance(weights, Sized):
        raise InvalidRequest("weights", repr(weights), expected="one for each dataset")
    if len(weights) != count or not count:
        raise InvalidRequest("weights", f"{len(weights)} for {count} datasets", expected="one for each, and a dataset")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < weight < math.inf:
            raise InvalidRequest("weights", repr(weight), expected="numbers above 0")
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(one.denominator for one in exact))
    divisor = math.gcd(*(int(one * scale) for one in exact))
    whole = [int(one * scale) // divisor for one in exact]
    most = max(whole)
    if most <= _MOST_WEIGHT // count:
        return tuple(whole)
    return tuple(max(1, round(Fraction(one * _MOST_WEIGHT // count, most))) for one in whole)
