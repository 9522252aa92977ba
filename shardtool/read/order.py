"""In which order an epoch takes the samples: pure functions from positions of the epoch to numbers of samples.

An order depends on the data, the seed and the epoch alone. Ranks and loader workers divide its positions (`Share`),
and change nothing else, so that any number of them sees the same order; and any position can be asked for at once, so
that a run goes on in the middle of an epoch.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from hashlib import blake2b
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.order import permuted, random_at, random_numbers, random_start
from shardtool.request.settings import check_choice, check_least
from shardtool.values import counted

if TYPE_CHECKING:
    from shardtool.read.catalog import Catalog, Numbers

Shuffle = bool | Literal["full"]
_ROUND_BYTES = 2**25
_MOST_IN_WINDOW = 1024
_PARTS = 64
_OF_RANK = 128  # parts: 256 samples of a rank come from as many places, more than a buffer of 5,000 mixes
_OF_COPIES = 32  # parts of a rank where shards are copied before they are read, and must lie there at the same time
_LEAST_IN_PART = 4


@dataclass(frozen=True)
class OrderOptions:
    """What an order depends on, beside the data.

    Attributes:
        shuffle: Whether shards and samples are shuffled; `full`: one random order of all samples.
        seed: With the epoch, what the shuffle depends on.
        epoch: Counted from 0.
        parts: Into how many parts the samples are cut, which are read side by side.
        window: Samples of a part that are shuffled among themselves.
        ranks: Of a number by which the parts can be divided, each reads parts of its own, every so many samples in
            another order; 0: all parts come in turn, in the same order always, as in the first version of states.
    """

    shuffle: Shuffle = True
    seed: int = 0
    epoch: int = 0
    parts: int = _PARTS
    window: int = 16
    ranks: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.shuffle, bool) or self.shuffle == "full"):
            raise InvalidRequest("shuffle", repr(self.shuffle), expected="True, False or 'full'")
        for name in ("seed", "epoch"):
            if isinstance(value := getattr(self, name), np.integer):
                object.__setattr__(self, name, int(value))
        if type(self.seed) is not int:
            raise InvalidRequest("seed", repr(self.seed), expected="a whole number")
        for name, least in (("epoch", 0), ("parts", 1), ("window", 1), ("ranks", 0)):
            check_least(name, getattr(self, name), least)
        if self.ranks and self.parts % self.ranks:
            raise InvalidRequest("parts", f"{self.parts:,}", expected=f"a multiple of {self.ranks:,} ranks")

    @property
    def round(self) -> int:
        """Positions that are best read together: a window of each part."""
        return self.parts * self.window


def rng_at(options: OrderOptions, position: int, stage: int) -> np.random.Generator:
    """Return the random generator of a position of an epoch, and of a stage of what is done there.

    Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox: numbers of a key and a
    counter).
    """
    key = random_start("samples", options.seed, options.epoch)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, stage, position]))


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


def cut_for(
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
    kinds = (SampleView,) if copies else (SampleView, MixedSamples)
    if parts is not None or not isinstance(source, kinds):
        parts = _PARTS if parts is None else parts
        return parts, window_of(mean_size, buffer, parts), 0
    most = _OF_RANK
    if copies and isinstance(source, SampleView):
        most = max(_PARTS // ranks, min(_OF_COPIES, len(source.catalog.sizes) // ranks), 1)
    return ranks * most, window_of(mean_size, buffer, _PARTS if buffer is None else ranks * most), ranks


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

    def by_shard(self) -> Iterator[tuple[int, range | Numbers]]:
        """Yield each shard that samples lie in: its place, and their numbers, in the order of the view."""
        if self.chosen is not None:
            for shard, _, places in self.catalog.by_shard(self.chosen):
                yield shard, self.chosen[np.sort(places)]
            return
        for shard, (first, last) in enumerate(pairwise(self.catalog.firsts.tolist())):
            if first < last:
                yield shard, range(first, last)

    def order(self, options: OrderOptions) -> Order:
        """Return the order of an epoch, as numbers of samples in the catalog."""
        if self.chosen is None:
            return order_of(np.diff(self.catalog.firsts), options)
        if not options.shuffle:
            return Order(len(self.chosen), partial(np.take, self.chosen))
        counts = np.diff(np.searchsorted(self._ascending, self.catalog.firsts))
        length, places = order_of(counts, options)
        return Order(length, partial(_taken, self._ascending, places))

    @cached_property
    def _ascending(self) -> Numbers:
        """The chosen samples in the order of the data: what a shuffle starts from, however they were chosen."""
        chosen = np.zeros(0, np.int64) if self.chosen is None else self.chosen
        return chosen if (chosen[1:] >= chosen[:-1]).all() else np.sort(chosen)


def _taken(chosen: Numbers, places: Callable[[Numbers], Numbers], positions: Numbers) -> Numbers:
    """Return the sample at each position, of chosen ones in an order of their places."""
    return chosen[places(positions)]


class Order(NamedTuple):
    """The order of an epoch.

    Attributes:
        length: Samples in an epoch.
        numbers: Returns the sample at each position of it: its number.
    """

    length: int
    numbers: Callable[[Numbers], Numbers]


def order_of(counts: Numbers, options: OrderOptions) -> Order:
    """Return the order of an epoch: that of the dataset, or a random one.

    In a full shuffle, no sample is nearer to another than by chance. So are few samples shuffled in an order for ranks;
    others are cut into no more parts than have four samples each.

    Args:
        counts: int64 [shards]: samples of each.
        options: Which order.
    """
    length = int(counts.sum())
    if not options.shuffle:
        return Order(length, np.positive)
    each = min(options.parts, length // _LEAST_IN_PART) // max(1, options.ranks)
    if options.shuffle == "full" or (options.ranks and not each):
        key = np.uint64(random_start("full", options.seed, options.epoch))
        return Order(length, partial(permuted, size=length, keys=key))
    if options.ranks:
        options = replace(options, parts=each * options.ranks)
    order = np.argsort(random_numbers(random_start("shards", options.seed, options.epoch), len(counts)), kind="stable")
    starts, ends = (np.cumsum(counts) - counts)[order], np.cumsum(counts[order])
    return Order(length, partial(_shuffled, options, starts, ends))


def _shuffled(options: OrderOptions, starts: Numbers, ends: Numbers, positions: Numbers) -> Numbers:
    """Return the sample at each position: shards in random order, in parts side by side; samples shuffled in windows.

    The permuted sequence of shards is cut into `parts` contiguous parts. Position g is number g // parts of the part
    g % parts, and each window of so many samples of a part is permuted. With `ranks`, each row of positions, one of
    each part, is permuted, too, so that a position stays one of the same rank.

    Args:
        options: The parts, the windows, and what these depend on.
        starts: int64 [shards]: the first sample of each, in their random order.
        ends: int64 [shards]: the places in that order behind the last sample of each.
        positions: int64 [n].
    """
    part, at = positions % options.parts, positions // options.parts
    whole, more = divmod(int(ends[-1]), options.parts)
    if options.ranks:
        turn, rank = np.divmod(part, options.ranks)
        row = random_start("row", options.seed, options.epoch)
        keys = random_at(row, (at * options.ranks + rank).astype(np.uint64))
        turned = permuted(turn, options.parts // options.ranks, keys) * options.ranks + rank
        part = np.where(at < whole, turned, part)  # the last row may lack some of a rank's parts
    start, count = part * whole + np.minimum(part, more), whole + (part < more)
    window, within = at // options.window, at % options.window
    size = np.minimum(options.window, count - window * options.window)
    key = random_start("window", options.seed, options.epoch)
    spot = permuted_windows(key, window * options.parts + part, within, size, options.window)
    spot += start + window * options.window
    shard = np.searchsorted(ends, spot, side="right")
    before = np.concatenate((np.zeros(1, np.int64), ends))[shard]
    found: Numbers = starts[shard] + spot - before
    return found


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
_MOST_PRODUCT = 2**61


@dataclass(frozen=True)
class MixedSamples:
    """Samples of several datasets; their numbers follow each other.

    Attributes:
        sources: What is mixed.
        weights: Of each, a whole number.
        length: Samples in an epoch.
    """

    sources: tuple[Views, ...]
    weights: tuple[int, ...]
    length: int

    @classmethod
    def of(cls, sources: Sequence[Views], weights: Sequence[float], stop: Stop) -> MixedSamples:
        """Return a mix.

        Raises:
            InvalidRequest: There is nothing to mix, weights are not positive, or `stop` is none of its values.
        """
        whole = _whole_weights(weights, len(sources))
        for at, source in enumerate(sources):
            if not source.length:
                raise InvalidRequest(f"dataset {at} of the mix", "no samples")
        return cls(tuple(sources), whole, _length(whole, [source.length for source in sources], stop))

    @classmethod
    def of_counts(
        cls, sources: Sequence[Views], choose: Sequence[int] | None, repeat: Sequence[float] | None
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
        _check_each(name, times, len(sources))
        lengths = [source.length if choose is None else 1 for source in sources]
        counts = [max(1, round(one * length)) for one, length in zip(times, lengths, strict=True)]
        if choose is not None and counts != [*choose]:
            raise InvalidRequest("choose", repr(choose), expected="whole numbers")
        length, divisor = sum(counts), math.gcd(*counts)
        found, exact = cls.of(sources, counts, length), tuple(count // divisor for count in counts)
        return replace(found, weights=exact) if length * max(exact) < _MOST_PRODUCT else found

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
                    seed = random_start("mixed", options.seed, number)  # alike datasets are not shuffled alike
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
        blocks, row = np.unique(positions // _BLOCK, return_inverse=True)
        starts, places = blocks * _BLOCK, np.arange(_BLOCK)
        sizes = np.minimum(_BLOCK, self.length - starts)
        before = np.stack(_counts(self.weights, starts))
        ends = np.cumsum(np.stack(_counts(self.weights, starts + sizes)) - before, axis=0)
        key = random_start("mix", options.seed, options.epoch)
        sizes = np.repeat(sizes, _BLOCK)
        slots = permuted_windows(key, np.repeat(blocks, _BLOCK), np.tile(places, len(blocks)), sizes, _BLOCK)
        sets = (slots.reshape(-1, 1, _BLOCK) >= ends.T[:, :, None]).sum(axis=1)  # beyond a block's size: no dataset's
        by_set = np.argsort(sets, axis=1, kind="stable")
        nth = np.empty_like(by_set)
        np.put_along_axis(nth, by_set, places[None, :], axis=1)
        which = sets[row, positions % _BLOCK]
        firsts = np.concatenate((np.zeros((1, len(blocks)), np.int64), ends))[which, row]
        passed = options.epoch * np.array(_counts(self.weights, self.length))
        return which, passed[which] + before[which, row] + nth[row, positions % _BLOCK] - firsts


Views = SampleView | MixedSamples


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

    def is_over(position: int) -> bool:
        counts = _counts(weights, position)
        return enough(count >= length for count, length in zip(counts, lengths, strict=True))

    end = bisect_left(range(_MOST_POSITIONS + 1), x=True, key=is_over)
    if end > _MOST_POSITIONS:
        raise InvalidRequest("weights", "an epoch would have more than 2^40 samples", expected="more equal weights")
    return end


def _check_each(name: str, numbers: Sequence[float], count: int) -> None:
    if not isinstance(numbers, Sized):
        raise InvalidRequest(name, repr(numbers), expected="one for each dataset")
    if len(numbers) != count or not count:
        raise InvalidRequest(name, f"{len(numbers)} for {count} datasets", expected="one for each, and a dataset")
    for one in numbers:
        if isinstance(one, bool) or not isinstance(one, Real) or not 0 < one < math.inf:
            raise InvalidRequest(name, repr(one), expected="numbers above 0")


def _whole_weights(weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Return weights as whole numbers: exact where these are not large, else to one part in 2^20 of the largest."""
    _check_each("weights", weights, count)
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(one.denominator for one in exact))
    divisor = math.gcd(*(int(one * scale) for one in exact))
    whole = [int(one * scale) // divisor for one in exact]
    most = max(whole)
    if most <= _MOST_WEIGHT // count:
        return tuple(whole)
    return tuple(max(1, round(Fraction(one * _MOST_WEIGHT // count, most))) for one in whole)


Ends = Literal["drop", "pad", "uneven"]
MOST_OTHERS = 10_000
_NEAR = 64


@dataclass(frozen=True)
class Share:
    """The share of one reader in an epoch, or in what is left of it.

    Of the positions from `origin` on, rank r of W takes the r-th, and each W-th from there. It takes them in batches:
    worker w of N takes those batches whose number n, counted from `origin`, has n % N == w. So the n-th batches of
    all ranks together hold the same positions for any number of ranks and workers, as long as they hold as many.

    Attributes:
        rank: The rank.
        world_size: How many ranks there are.
        ends: What becomes of positions that are no multiple of the ranks: they are dropped (`drop`), filled up with
            the first ones of the epoch (`pad`), or given to the first ranks (`uneven`).
        worker: The loader worker.
        workers: How many there are.
        batch_size: Samples of a rank's batch: what a worker takes at a time.
        origin: The position where these ranks began to read: 0, or where a state was taken.
        alike: How many processes each rank stands for, which all read the same.
    """

    rank: int = 0
    world_size: int = 1
    ends: Ends = "drop"
    worker: int = 0
    workers: int = 1
    batch_size: int = 1
    origin: int = 0
    alike: int = 1

    def __post_init__(self) -> None:
        for name in ("world_size", "workers", "batch_size"):
            check_least(name, getattr(self, name))
        for name, value, total in (("rank", self.rank, self.world_size), ("worker", self.worker, self.workers)):
            if type(value) is not int or not 0 <= value < total:
                raise InvalidRequest(name, f"{value!r} of {total}", expected=f"0 to {total - 1}")
        check_least("origin", self.origin, 0)
        check_choice("ends", self.ends, Ends)

    def in_groups(self, groups: int | None) -> Share:
        """Return the share of a rank's group, where neighbouring ranks are so many groups, and all of one read alike.

        Raises:
            InvalidRequest: The ranks are no multiple of the groups.
        """
        if groups is None:
            return self
        check_least("groups", groups)
        alike, left = divmod(self.world_size, groups)
        if left:
            found = f"{groups:,}, of {counted(self.world_size, 'rank')}"
            raise InvalidRequest("groups", found, expected="a number by which the ranks can be divided")
        return replace(self, rank=self.rank // alike, world_size=groups, alike=alike)

    def end(self, length: int) -> int:
        """Return the position before which all ranks stop in an epoch of so many samples; `pad`: maybe past it."""
        left = max(0, length - self.origin)
        if self.ends == "uneven":
            return self.origin + left
        whole, more = divmod(left, self.world_size)
        return self.origin + (whole + (self.ends == "pad" and more > 0)) * self.world_size

    def count(self, length: int) -> int:
        """Return how many samples the rank takes from `origin` to the end of an epoch of so many."""
        return -(-(self.end(length) - self.origin - self.rank) // self.world_size)

    def positions(self, start: int, stop: int, length: int) -> Numbers:
        """Return the positions from `start` to `stop` of the epoch that are this reader's, in order.

        Args:
            start: Where to begin: at `origin` or later.
            stop: Where to end.
            length: Samples in the epoch. With `pad`, positions may be past it: they stand for those of its start.

        Returns:
            int64 [n].
        """
        shift = self.origin + self.rank
        first = -(-(start - shift) // self.world_size)
        last = -(-(min(stop, self.end(length)) - shift) // self.world_size)
        local = np.arange(max(0, first), max(0, last), dtype=np.int64)
        if self.workers > 1:
            local = local[(local // self.batch_size) % self.workers == self.worker]
        return local * self.world_size + shift

    def fills(self, *, damaged: bool) -> bool:
        """Return whether another sample replaces a skipped one.

        Args:
            damaged: Whether the skipped sample cannot be read; otherwise a stage dropped it. A single rank needs no
                replacement for a dropped sample, unless the caller wants padding.
        """
        return self.ends == "pad" or (self.ends == "drop" and (damaged or self.world_size > 1))

    def after(self, position: int) -> int:
        """Return where all ranks are when this one has taken a position: past as many as there are ranks."""
        return position - self.rank + self.world_size


def others(length: int, options: OrderOptions, position: int) -> Iterator[int]:
    """Yield positions whose samples stand in, in turn, for that of a position which gives nothing.

    They depend on the order and the position alone, as all samples do: not on ranks, workers, or where a run began. The
    first are of its round, which is read about now; then any of the epoch, ten thousand at most.

    Args:
        length: Samples in the epoch.
        options: What its order depends on.
        position: Which one; with `pad`, maybe past the end.
    """
    key = random_at(random_start("others", options.seed, options.epoch), np.array([position], np.uint64))[0]
    first = position % length // options.round * options.round
    near = min(options.round, length - first)
    for start, count, most in ((first, near, _NEAR), (0, length, MOST_OTHERS)):
        yield from (start + permuted(np.arange(min(count, most)), count, key)).tolist()


def default_share(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else those of the environment, where both are set, else 0 of 1.

    Raises:
        InvalidRequest: Only one is given, or the environment has no numbers.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        given = "rank" if rank is not None else "world_size"
        raise InvalidRequest(given, "given alone", expected="rank and world_size together")
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in texts:
        return 0, 1
    try:
        return int(texts[0] or ""), int(texts[1] or "")
    except ValueError:
        raise InvalidRequest("RANK, WORLD_SIZE", f"{texts[0]!r}, {texts[1]!r}", expected="two numbers") from None


# Where a stream is: a few numbers that go into a checkpoint, and come back in any number of ranks and workers.


_NUMBERS = ("seed", "epoch", "parts", "window", "position")
_OF_VERSION = {1: _NUMBERS, 2: (*_NUMBERS, "ranks")}  # of a state, and of the orders that it stands for
_REST = ("version", "fingerprint", "shuffle")
_REMEDY = "Give what `state_dict` returned, as it was."


class StreamState(NamedTuple):
    """Where a stream is.

    It holds the whole order, so that a stream goes on in it whatever seed, shuffle, parts or buffer it was made with.

    Attributes:
        fingerprint: Of the samples that are streamed.
        options: The order of the epoch.
        position: How many samples of the epoch all ranks together have taken: less than it has.
    """

    fingerprint: str
    options: OrderOptions
    position: int

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON can hold it."""
        order = {name: value for name, value in vars(self.options).items() if value or name != "ranks"}
        version = 2 if self.options.ranks else 1
        return {"version": version, "fingerprint": self.fingerprint, **order, "position": self.position}

    @classmethod
    def at(cls, source: Any, options: OrderOptions, position: int, end: int) -> StreamState:
        """Return the state at a position of an epoch; at its end, that of the start of the next one."""
        if position < end:
            return cls(source.fingerprint, options, position)
        return cls(source.fingerprint, replace(options, epoch=options.epoch + 1), 0)

    @classmethod
    def of(cls, given: object, source: Any) -> StreamState:
        """Return the state that `to_json` gave.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        values = _checked(given)
        if values["fingerprint"] != source.fingerprint:
            found = f"of other samples: fingerprint {values['fingerprint']}"
            remedy = "Open the dataset, and choose the samples, that the state was taken with."
            raise InvalidRequest("the state", found, expected=source.fingerprint, remedy=remedy)
        numbers = {name: cast("int", values[name]) for name in _OF_VERSION[cast("int", values["version"])]}
        position = numbers.pop("position")
        options = OrderOptions(cast("bool", values["shuffle"]), **numbers)
        length = max(1, source.length_in(options))
        if not 0 <= position < length:
            expected = f"0 to {length - 1}"
            raise InvalidRequest("position of the state", str(position), expected=expected, remedy=_REMEDY)
        return cls(source.fingerprint, options, position)


def _checked(given: object) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise InvalidRequest("the state", f"a {type(given).__name__}", expected="a dictionary", remedy=_REMEDY)
    if (version := given.get("version")) not in (*_OF_VERSION,) or type(version) is not int:
        found, expected = repr(given.get("version", "none")), " or ".join(map(str, _OF_VERSION))
        remedy = "Go on with the shardtool that it is of."
        raise InvalidRequest("version of the state", found, expected=expected, remedy=remedy)
    keys = (*_REST, *_OF_VERSION[version])
    missing = [key for key in keys if key not in given]
    if missing:
        raise InvalidRequest("the state", f"no {', '.join(missing)}", expected=", ".join(keys), remedy=_REMEDY)
    for name, kind in (("fingerprint", str), *((name, int) for name in _OF_VERSION[version])):
        if type(given[name]) is not kind:
            expected = "text" if kind is str else "a whole number"
            raise InvalidRequest(f"{name} of the state", repr(given[name]), expected=expected, remedy=_REMEDY)
    return given
