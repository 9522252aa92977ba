"""The share of one rank and loader worker in an epoch, and the positions that replace skipped samples."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.random_order import derive_state, permute_positions, random_at
from shardtool.request.option_checks import check_choice, check_minimum
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.read.catalog import Numbers
    from shardtool.read.order import OrderOptions


Ends = Literal["drop", "pad", "uneven"]


MAX_REPLACEMENTS = 10_000


_NEAR_POSITIONS = 64


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
            check_minimum(name, getattr(self, name))
        for name, value, total in (("rank", self.rank, self.world_size), ("worker", self.worker, self.workers)):
            if type(value) is not int or not 0 <= value < total:
                raise InvalidRequest(name, f"{value!r} of {total}", expected=f"0 to {total - 1}")
        check_minimum("origin", self.origin, 0)
        check_choice("ends", self.ends, Ends)

    def in_groups(self, groups: int | None) -> Share:
        """Return the share of a rank's group, where neighbouring ranks are so many groups, and all of one read alike.

        Raises:
            InvalidRequest: The ranks are no multiple of the groups.
        """
        if groups is None:
            return self
        check_minimum("groups", groups)
        alike, left = divmod(self.world_size, groups)
        if left:
            found = f"{groups:,}, of {pluralize(self.world_size, 'rank')}"
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


def replacement_positions(length: int, options: OrderOptions, position: int) -> Iterator[int]:
    """Yield positions whose samples stand in, in turn, for that of a position which gives nothing.

    They depend on the order and the position alone, as all samples do: not on ranks, workers, or where a run began. The
    first are of its round, which is read about now; then any of the epoch, ten thousand at most.

    Args:
        length: Samples in the epoch.
        options: What its order depends on.
        position: Which one; with `pad`, maybe past the end.
    """
    key = random_at(derive_state("others", options.seed, options.epoch), np.array([position], np.uint64))[0]
    first = position % length // options.round * options.round
    near = min(options.round, length - first)
    for start, count, most in ((first, near, _NEAR_POSITIONS), (0, length, MAX_REPLACEMENTS)):
        yield from (start + permute_positions(np.arange(min(count, most)), count, key)).tolist()


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
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
