"""In which order an epoch takes the samples: pure functions from positions of the epoch to numbers of samples.

An order depends on the data, the seed and the epoch alone. Ranks and loader workers divide its positions
(`shardtool.read.order.share`), so that any number of them sees the same order; and any position can be asked for at
once, so that a run goes on in the middle of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from hashlib import blake2b
from numbers import Real
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.shuffle import permuted, random_at, random_numbers, random_start
from shardtool.request.choices import check_least

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardtool.read.catalog import Catalog

    Numbers = NDArray[np.int64]


Shuffle = bool | Literal["full"]
_ROUND_BYTES = 2**25
_MOST_IN_WINDOW = 1024


@dataclass(frozen=True)
class OrderOptions:
    """What an order depends on, beside the data.

    Attributes:
        shuffle: Whether shards and samples are shuffled; `full`: one random order of all samples.
        seed: With the epoch, what the shuffle depends on.
        epoch: Counted from 0.
        parts: Into how many parts the samples are cut, which are read side by side.
        window: Samples of a part that are shuffled among themselves.
    """

    shuffle: Shuffle = True
    seed: int = 0
    epoch: int = 0
    parts: int = 64
    window: int = 16

    def __post_init__(self) -> None:
        if not (isinstance(self.shuffle, bool) or self.shuffle == "full"):
            raise InvalidRequest("shuffle", repr(self.shuffle), expected="True, False or 'full'")
        for name in ("seed", "epoch"):
            if isinstance(value := getattr(self, name), np.integer):
                object.__setattr__(self, name, int(value))
        if type(self.seed) is not int:
            raise InvalidRequest("seed", repr(self.seed), expected="a whole number")
        for name, least in (("epoch", 0), ("parts", 1), ("window", 1)):
            check_least(name, getattr(self, name), least)


def window_of(mean_size: int, buffer: int | None, parts: int) -> int:
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
            check_least(name, value)
    if buffer is not None:
        return max(1, buffer // parts)
    room = max(1, min(_MOST_IN_WINDOW, _ROUND_BYTES // parts // mean_size))
    return 1 << (room * room).bit_length() // 2  # the nearest power of two: it is permuted faster


class Order(Protocol):
    """An order of an epoch: its positions are 0 to `length` - 1."""

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        ...

    @property
    def round(self) -> int:
        """Positions that are best read together."""
        ...

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position.

        Args:
            positions: int64 [n], each below `length`.

        Returns:
            int64 [n].
        """
        ...


class OrderedSamples(Protocol):
    """Samples that an epoch takes in some order: of a catalog, or of several that are mixed."""

    @property
    def span(self) -> int:
        """How many numbers there are: those of the samples are below."""
        ...

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples."""
        ...

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        ...

    def order(self, options: OrderOptions) -> Order:
        """Return the order of an epoch."""
        ...


@dataclass(frozen=True)
class SampleView:
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

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        return len(self.catalog) if self.chosen is None else len(self.chosen)

    @cached_property
    def fingerprint(self) -> str:
        """What is equal for equal samples."""
        if self.chosen is None:
            return self.catalog.fingerprint
        digest = blake2b(self.catalog.fingerprint.encode() + b"\n", digest_size=16)
        digest.update(np.ascontiguousarray(self.chosen, "<i8").data)
        return digest.hexdigest()

    def order(self, options: OrderOptions) -> Order:
        """Return the order of an epoch, as numbers of samples in the catalog."""
        if self.chosen is None:
            return order_of(np.diff(self.catalog.firsts), options)
        if not options.shuffle:
            return ChosenOrder(order_of(np.array([len(self.chosen)]), options), self.chosen)
        counts = np.diff(np.searchsorted(self._ascending, self.catalog.firsts))
        return ChosenOrder(order_of(counts, options), self._ascending)

    @cached_property
    def _ascending(self) -> Numbers:
        """The chosen samples in the order of the data: what a shuffle starts from, however they were chosen."""
        chosen = np.zeros(0, np.int64) if self.chosen is None else self.chosen
        return chosen if (chosen[1:] >= chosen[:-1]).all() else np.sort(chosen)


def order_of(counts: Numbers, options: OrderOptions) -> Order:
    """Return the order of an epoch.

    Args:
        counts: int64 [shards]: samples of each.
        options: Which order.
    """
    together = options.window * options.parts
    if not options.shuffle:
        return InOrder(int(counts.sum()), together)
    if options.shuffle == "full":
        return FullShuffle(int(counts.sum()), together, options.seed, options.epoch)
    return ShuffledOrder(counts, options.seed, options.epoch, options.parts, options.window)


@dataclass(frozen=True)
class ChosenOrder:
    """The order of some samples of a catalog.

    Attributes:
        order: Of the chosen ones, numbered from 0.
        chosen: int64 [n]: the number of each in the catalog.
    """

    order: Order
    chosen: Numbers = field(repr=False)

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        return self.order.length

    @property
    def round(self) -> int:
        """Positions that are best read together."""
        return self.order.round

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position."""
        return self.chosen[self.order.numbers(positions)]


@dataclass(frozen=True)
class InOrder:
    """The order of the dataset."""

    length: int
    round: int

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position: its number."""
        return positions


@dataclass(frozen=True)
class ShuffledOrder:
    """Shards in random order, cut into parts that are read side by side; samples shuffled in windows.

    The permuted sequence of shards is cut into `parts` contiguous parts. Position g is number g // parts of the part
    g % parts, and each window of so many samples of a part is permuted.

    Attributes:
        counts: int64 [shards]: samples of each.
        seed: With the epoch, what the order depends on.
        epoch: Counted from 0.
        parts: How many parts there are.
        window: Samples of a part that are permuted among themselves.
    """

    counts: Numbers
    seed: int
    epoch: int
    parts: int
    window: int
    _starts: Numbers = field(init=False, repr=False)
    _ends: Numbers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        drawn = random_numbers(random_start("shards", self.seed, self.epoch), len(self.counts))
        order = np.argsort(drawn, kind="stable")
        firsts = np.cumsum(self.counts) - self.counts
        object.__setattr__(self, "_starts", firsts[order])
        object.__setattr__(self, "_ends", np.cumsum(self.counts[order]))

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def round(self) -> int:
        """Positions of a window in each part."""
        return self.parts * self.window

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position."""
        part, at = positions % self.parts, positions // self.parts
        whole, more = divmod(self.length, self.parts)
        start, count = part * whole + np.minimum(part, more), whole + (part < more)
        window, within = at // self.window, at % self.window
        size = np.minimum(self.window, count - window * self.window)
        key = random_start("window", self.seed, self.epoch)
        spot = permuted_windows(key, window * self.parts + part, within, size, self.window)
        spot += start + window * self.window
        shard = np.searchsorted(self._ends, spot, side="right")
        before = np.concatenate((np.zeros(1, np.int64), self._ends))[shard]
        found: Numbers = self._starts[shard] + spot - before
        return found


@dataclass(frozen=True)
class FullShuffle:
    """One random order of all samples, in which no sample is nearer to another than by chance.

    Attributes:
        length: Samples in an epoch.
        round: Positions that are best read together.
        seed: With the epoch, what the order depends on.
        epoch: Counted from 0.
    """

    length: int
    round: int
    seed: int
    epoch: int

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position."""
        return permuted(positions, self.length, np.uint64(random_start("full", self.seed, self.epoch)))


def permuted_windows(start: int, names: Numbers, within: Numbers, sizes: Numbers, window: int) -> Numbers:
    """Return where places go that are permuted within their windows.

    Args:
        start: The state of a generator: what the permutations depend on.
        names: int64 [n]: the window of each place.
        within: int64 [n]: where in its window it is; a place beyond the window's size stays.
        sizes: int64 [n]: of its window.
        window: The size of all windows but a few, which are smaller.

    Returns:
        int64 [n].
    """
    keys = random_at(start, names.astype(np.uint64))
    if (sizes == window).all():
        return permuted(within, window, keys)
    found: Numbers = within.copy()
    for one in {window, *np.unique(sizes[sizes < window]).tolist()}:
        (which,) = np.nonzero((sizes == one) & (within < one))
        found[which] = permuted(within[which], one, keys[which])
    return found


# Several datasets as one, by weights: which of them stands at a position is arithmetic, as is all of an order.
#
# Of t positions, the first dataset has its share of t, rounded; the second its share of the rest, rounded, and so on.
# So each count grows by 0 or 1 with each position, and is never further from its exact share than the number of
# datasets. The positions of a block, in which counts are thus exact, are shuffled among themselves. Each dataset goes
# through its own epochs, one after the other, also from an epoch of the mix to the next: nothing is seen twice before
# all of that dataset was seen.


Stop = int | Literal["first", "all"]
Position = TypeVar("Position", int, "Numbers")
_BLOCK = 64  # positions that are shuffled among themselves
_MOST_WEIGHT = 2**20  # of a dataset, so that no product of a weight and a position is beyond 2^63:
_MOST_POSITIONS = 2**40


@dataclass(frozen=True)
class MixedSamples:
    """Samples of several datasets; their numbers follow each other.

    Attributes:
        sources: What is mixed.
        weights: Of each, a whole number.
        length: Samples in an epoch.
    """

    sources: tuple[OrderedSamples, ...]
    weights: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, sources: Sequence[OrderedSamples], weights: Sequence[float], stop: Stop) -> MixedSamples:
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

    def order(self, options: OrderOptions) -> MixedOrder:
        """Return the order of an epoch."""
        return MixedOrder(self.sources, self.weights, self.length, options)


@dataclass(frozen=True)
class MixedOrder:
    """The order of an epoch of a mix.

    Attributes:
        sources: What is mixed.
        weights: Of each.
        length: Samples in an epoch.
        options: Which order.
    """

    sources: tuple[OrderedSamples, ...]
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
