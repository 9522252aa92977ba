"""The order of an epoch: pure functions from positions of the epoch to numbers of samples.

An order depends on the data, the seed and the epoch alone. Any position can be computed at once, so that a run
resumes in
the middle of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.random_order import derive_state, permute_positions, random_at, random_numbers
from shardtool.request.option_checks import check_minimum

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.read.catalog import Numbers


Shuffle = bool | Literal["full"]


DEFAULT_PARTS = 64


_MIN_SAMPLES_IN_PART = 4


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
    parts: int = DEFAULT_PARTS
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
            check_minimum(name, getattr(self, name), least)
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
    key = derive_state("samples", options.seed, options.epoch)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, stage, position]))


class Order(NamedTuple):
    """The order of an epoch.

    Attributes:
        length: Samples in an epoch.
        numbers: Returns the sample at each position of it: its number.
    """

    length: int
    numbers: Callable[[Numbers], Numbers]


def epoch_order(counts: Numbers, options: OrderOptions) -> Order:
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
    each = min(options.parts, length // _MIN_SAMPLES_IN_PART) // max(1, options.ranks)
    if options.shuffle == "full" or (options.ranks and not each):
        key = np.uint64(derive_state("full", options.seed, options.epoch))
        return Order(length, partial(permute_positions, size=length, keys=key))
    if options.ranks:
        options = replace(options, parts=each * options.ranks)
    order = np.argsort(random_numbers(derive_state("shards", options.seed, options.epoch), len(counts)), kind="stable")
    starts, ends = (np.cumsum(counts) - counts)[order], np.cumsum(counts[order])
    return Order(length, partial(_shuffled_samples, options, starts, ends))


def _shuffled_samples(options: OrderOptions, starts: Numbers, ends: Numbers, positions: Numbers) -> Numbers:
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
        row = derive_state("row", options.seed, options.epoch)
        keys = random_at(row, (at * options.ranks + rank).astype(np.uint64))
        turned = permute_positions(turn, options.parts // options.ranks, keys) * options.ranks + rank
        part = np.where(at < whole, turned, part)  # the last row may lack some of a rank's parts
    start, count = part * whole + np.minimum(part, more), whole + (part < more)
    window, within = at // options.window, at % options.window
    size = np.minimum(options.window, count - window * options.window)
    key = derive_state("window", options.seed, options.epoch)
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
        return permute_positions(within, window, keys)
    found: Numbers = within.copy()
    for one in {window, *np.unique(sizes[sizes < window]).tolist()}:
        (which,) = np.nonzero((sizes == one) & (within < one))
        found[which] = permute_positions(within[which], one, keys[which])
    return found
