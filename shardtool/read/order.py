"""Compute the order of the samples in an epoch, and divide the positions of the epoch among ranks and workers.

An order maps each position to a sample number, and depends only on the data and `OrderOptions`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest
from shardtool.plan.random_order import derive_state, permute_positions, random_at, random_numbers
from shardtool.request.option_checks import check_choice, check_minimum
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.read.catalog import Numbers


Shuffle = bool | Literal["full"]
DEFAULT_PARTS = 64
_MIN_SAMPLES_IN_PART = 4


@dataclass(frozen=True)
class OrderOptions:
    """The parameters of an order.

    Attributes:
        shuffle: `full` shuffles all samples globally.
        parts: Number of parts into which the dataset is cut, a multiple of `ranks`. The parts are read in parallel.
        window: Number of samples of a part that are shuffled together.
        ranks: Number of ranks, if each rank reads its own parts. If 0, the order does not depend on the number of
            ranks, and position p reads from part p % `parts`. In stream states of version 1, `ranks` is 0.
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
        """Number of samples in a round: one window from each part. The samples of a round are read together."""
        return self.parts * self.window


def rng_at(options: OrderOptions, position: int, stage: int) -> np.random.Generator:
    """Return the random generator of a stage at a position of an epoch.

    Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox, a keyed counter).
    """
    key = derive_state("samples", options.seed, options.epoch)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, stage, position]))


class Order(NamedTuple):
    """The length of an epoch, and a function that converts positions to sample numbers."""

    length: int
    numbers: Callable[[Numbers], Numbers]


def epoch_order(counts: Numbers, options: OrderOptions) -> Order:
    """Return the order of an epoch. `counts` is the number of samples in each shard, int64 [shards].

    With `ranks`, each part has at least four samples. If there are too few samples for one part per rank, all samples
    are shuffled globally.
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
    """Return the sample number at each position.

    The shards are concatenated in random order, and the result is cut into `parts` contiguous parts. With 64 parts, the
    positions 0 to 63 (a row) read the first sample of each part, the positions 64 to 127 the second sample, and so on.
    In each part, every window of `window` samples is permuted. With `ranks`, each rank also reads its parts in a
    different order in each row.

    `starts` contains the number of each shard's first sample, and `ends` the cumulative number of samples, int64
    [shards], in the random order of the shards.
    """
    row, part = np.divmod(positions, options.parts)
    min_part_size, longer_parts = divmod(int(ends[-1]), options.parts)
    if options.ranks:
        part_of_rank, rank = np.divmod(part, options.ranks)
        row_key = derive_state("row", options.seed, options.epoch)
        keys = random_at(row_key, (row * options.ranks + rank).astype(np.uint64))
        permuted_part = permute_positions(part_of_rank, options.parts // options.ranks, keys) * options.ranks + rank
        # In the last row, a rank may have fewer parts than in other rows, so this row is not permuted.
        part = np.where(row < min_part_size, permuted_part, part)
    part_start = part * min_part_size + np.minimum(part, longer_parts)
    part_size = min_part_size + (part < longer_parts)
    window, index = np.divmod(row, options.window)
    window_size = np.minimum(options.window, part_size - window * options.window)
    key = derive_state("window", options.seed, options.epoch)
    index = permute_windows(key, window * options.parts + part, index, window_size, options.window)
    location = part_start + window * options.window + index
    shard = np.searchsorted(ends, location, side="right")
    first_location = np.concatenate((np.zeros(1, np.int64), ends))[shard]
    numbers: Numbers = starts[shard] + location - first_location
    return numbers


def permute_windows(start: int, windows: Numbers, within: Numbers, sizes: Numbers, window: int) -> Numbers:
    """Permute items within their windows. Return the new index of each item in its window, int64 [n].

    For each item, `windows` contains the number of the item's window, `within` the index of the item in the window, and
    `sizes` the size of the window, at most `window`. Indexes beyond the end of a window stay unchanged.
    """
    keys = random_at(start, windows.astype(np.uint64))
    if (sizes == window).all():
        return permute_positions(within, window, keys)
    permuted: Numbers = within.copy()
    for size in {window, *np.unique(sizes[sizes < window]).tolist()}:
        (indexes,) = np.nonzero((sizes == size) & (within < size))
        permuted[indexes] = permute_positions(within[indexes], size, keys[indexes])
    return permuted


Ends = Literal["drop", "pad", "uneven"]
MAX_REPLACEMENTS = 10_000
_NEAR_POSITIONS = 64


@dataclass(frozen=True)
class Share:
    """The positions of an epoch that one worker of one rank reads.

    For example, rank 1 of 4 reads the positions `origin` + 1, `origin` + 5, and so on, in batches. Worker 0 of 2 reads
    the batches 0, 2, 4, and so on of its rank. If the total batch size stays the same, all ranks together read the same
    positions in step n, for any number of ranks and workers.

    Attributes:
        ends: What to do with the last positions if they cannot be divided evenly: `drop` them, add the first positions
            of the epoch (`pad`), or give them to the first ranks (`uneven`).
        origin: Position at which all ranks started: 0, or the position of a loaded state.
    """

    rank: int = 0
    world_size: int = 1
    ends: Ends = "drop"
    worker: int = 0
    workers: int = 1
    batch_size: int = 1
    origin: int = 0
    group_size: int = 1

    def __post_init__(self) -> None:
        for name in ("world_size", "workers", "batch_size"):
            check_minimum(name, getattr(self, name))
        for name, value, total in (("rank", self.rank, self.world_size), ("worker", self.worker, self.workers)):
            if type(value) is not int or not 0 <= value < total:
                raise InvalidRequest(name, f"{value!r} of {total}", expected=f"0 to {total - 1}")
        check_minimum("origin", self.origin, 0)
        check_choice("ends", self.ends, Ends)

    def in_groups(self, groups: int | None) -> Share:
        """Return the share of this rank's group, or raise InvalidRequest if the ranks cannot be divided evenly."""
        if groups is None:
            return self
        check_minimum("groups", groups)
        group_size, remainder = divmod(self.world_size, groups)
        if remainder:
            found = f"{groups:,} for {pluralize(self.world_size, 'rank')}"
            raise InvalidRequest("groups", found, expected="a divisor of the number of ranks")
        return replace(self, rank=self.rank // group_size, world_size=groups, group_size=group_size)

    def end(self, length: int) -> int:
        """Return the position at which all ranks stop. With `pad`, this may be after the end of the epoch."""
        remaining = max(0, length - self.origin)
        if self.ends == "uneven":
            return self.origin + remaining
        if self.ends == "pad":
            remaining += -remaining % self.world_size
        return self.origin + remaining // self.world_size * self.world_size

    def count(self, length: int) -> int:
        """Return the number of samples that the rank reads from `origin` on."""
        return -(-(self.end(length) - self.origin - self.rank) // self.world_size)

    def positions(self, start: int, stop: int, length: int) -> Numbers:
        """Return the positions in range(start, stop) that this worker reads, ascending, int64 [n].

        With `pad`, positions can be `length` or more, and the caller subtracts `length`.
        """
        shift = self.origin + self.rank
        first = -(-(start - shift) // self.world_size)
        last = -(-(min(stop, self.end(length)) - shift) // self.world_size)
        steps = np.arange(max(0, first), max(0, last), dtype=np.int64)
        if self.workers > 1:
            steps = steps[(steps // self.batch_size) % self.workers == self.worker]
        return steps * self.world_size + shift

    def replaces_skipped(self, *, damaged: bool) -> bool:
        """Return whether a skipped sample is replaced. `damaged` means that the sample could not be read."""
        return self.ends == "pad" or (self.ends == "drop" and (damaged or self.world_size > 1))

    def next_position(self, position: int) -> int:
        """Return the first unread position, assuming that all ranks have read as many samples as this rank.

        `position` is the last position that this rank has read.
        """
        return position - self.rank + self.world_size


def replacement_positions(length: int, options: OrderOptions, position: int) -> Iterator[int]:
    """Yield positions whose samples can replace the skipped sample at `position`, nearby positions first."""
    key = random_at(derive_state("others", options.seed, options.epoch), np.array([position], np.uint64))[0]
    round_start = position % length // options.round_size * options.round_size
    round_size = min(options.round_size, length - round_start)
    for start, size, maximum in ((round_start, round_size, _NEAR_POSITIONS), (0, length, MAX_REPLACEMENTS)):
        yield from (start + permute_positions(np.arange(min(size, maximum)), size, key)).tolist()


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: the arguments, else RANK and WORLD_SIZE in the environment, else 0 and 1."""
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        name = "rank" if rank is not None else "world_size"
        raise InvalidRequest(name, "given alone", expected="rank and world_size together")
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in texts:
        return 0, 1
    try:
        return int(texts[0] or ""), int(texts[1] or "")
    except ValueError:
        raise InvalidRequest("RANK, WORLD_SIZE", f"{texts[0]!r}, {texts[1]!r}", expected="two whole numbers") from None
