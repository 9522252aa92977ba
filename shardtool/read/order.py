"""Compute the order in which an epoch reads the samples.

An order maps positions to sample numbers. It depends only on the data, the seed, the epoch and `OrderOptions`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.dataclass import dataclass
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
    """The parameters of an order.

    Attributes:
        shuffle: `full` puts all samples into one random order.
        parts: Number of parts of the dataset that are read in parallel, a multiple of `ranks`.
        window: Number of samples of a part that are shuffled together.
        ranks: Number of ranks, each of which reads its own parts. With 0, as in stream states of version 1, consecutive
            positions read from the parts in a fixed order.
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
        for name, minimum in (("epoch", 0), ("parts", 1), ("window", 1), ("ranks", 0)):
            check_minimum(name, getattr(self, name), minimum)
        if self.ranks and self.parts % self.ranks:
            raise InvalidRequest("parts", f"{self.parts:,}", expected=f"a multiple of {self.ranks:,} ranks")

    @property
    def round_size(self) -> int:
        """Number of samples that are read together: one window from each part."""
        return self.parts * self.window


def rng_at(options: OrderOptions, position: int, stage: int) -> np.random.Generator:
    """Return the random generator of a stage at a position of an epoch.

    Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox, a keyed counter).
    """
    key = derive_state("samples", options.seed, options.epoch)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, stage, position]))


class Order(NamedTuple):
    """The length of an epoch, and a function from positions to sample numbers."""

    length: int
    numbers: Callable[[Numbers], Numbers]


def epoch_order(counts: Numbers, options: OrderOptions) -> Order:
    """Return the order of an epoch. `counts` is the number of samples in each shard, int64 [shards].

    If `ranks` is set, parts have at least four samples. If a rank would then have no part, all samples are shuffled
    together.
    """
    length = int(counts.sum())
    if not options.shuffle:
        return Order(length, np.positive)
    parts_per_rank = min(options.parts, length // _MIN_SAMPLES_IN_PART) // max(1, options.ranks)
    if options.shuffle == "full" or (options.ranks and not parts_per_rank):
        key = np.uint64(derive_state("full", options.seed, options.epoch))
        return Order(length, partial(permute_positions, size=length, keys=key))
    if options.ranks:
        options = replace(options, parts=parts_per_rank * options.ranks)
    order = np.argsort(random_numbers(derive_state("shards", options.seed, options.epoch), len(counts)), kind="stable")
    starts, ends = (np.cumsum(counts) - counts)[order], np.cumsum(counts[order])
    return Order(length, partial(_shuffled_samples, options, starts, ends))


def _shuffled_samples(options: OrderOptions, starts: Numbers, ends: Numbers, positions: Numbers) -> Numbers:
    """Return the sample at each position.

    The shards, in random order, are cut into `parts` contiguous parts. Position g reads sample g // parts of part g %
    parts, so all parts are read in parallel. In each part, every window of `window` samples is permuted. With `ranks`,
    the parts of a rank are also permuted in each row of positions (one position per part), so that a rank still reads
    only its own parts.

    For the shards in random order, `starts` contains the numbers of the first samples, and `ends` the cumulative sample
    counts, int64 [shards].
    """
    part, row = positions % options.parts, positions // options.parts
    whole, longer_parts = divmod(int(ends[-1]), options.parts)
    if options.ranks:
        turn, rank = np.divmod(part, options.ranks)
        row_key = derive_state("row", options.seed, options.epoch)
        keys = random_at(row_key, (row * options.ranks + rank).astype(np.uint64))
        permuted_part = permute_positions(turn, options.parts // options.ranks, keys) * options.ranks + rank
        # do not permute the last row, in which a rank may have fewer parts
        part = np.where(row < whole, permuted_part, part)
    start, count = part * whole + np.minimum(part, longer_parts), whole + (part < longer_parts)
    window, within = row // options.window, row % options.window
    size = np.minimum(options.window, count - window * options.window)
    key = derive_state("window", options.seed, options.epoch)
    location = permute_windows(key, window * options.parts + part, within, size, options.window)
    location += start + window * options.window
    shard = np.searchsorted(ends, location, side="right")
    first_location = np.concatenate((np.zeros(1, np.int64), ends))[shard]
    numbers: Numbers = starts[shard] + location - first_location
    return numbers


def permute_windows(start: int, windows: Numbers, within: Numbers, sizes: Numbers, window: int) -> Numbers:
    """Permute items within their windows. Return the new index of each item in its window, int64 [n].

    `within` contains the index of each item in its window. `sizes` contains the size of this window, usually `window`.
    Indexes beyond the window stay unchanged.
    """
    keys = random_at(start, windows.astype(np.uint64))
    if (sizes == window).all():
        return permute_positions(within, window, keys)
    permuted: Numbers = within.copy()
    for size in {window, *np.unique(sizes[sizes < window]).tolist()}:
        (indexes,) = np.nonzero((sizes == size) & (within < size))
        permuted[indexes] = permute_positions(within[indexes], size, keys[indexes])
    return permuted
