"""Divide the positions of an epoch among ranks and workers."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from shardtool.dataclass import dataclass
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
    """The positions of an epoch that one worker of one rank reads.

    Rank r of W reads the positions origin + r, origin + r + W, and so on, in batches. Worker w of N reads each batch
    number n with n % N == w, counted from `origin`. The n-th batches of all ranks together therefore contain the same
    positions for any number of ranks and workers with the same total batch size.

    Attributes:
        ends: What to do with the last positions if they cannot be divided evenly: `drop` them, add the first positions
            of the epoch (`pad`), or give them to the first ranks (`uneven`).
        origin: Position where these ranks started: 0, or the position of a loaded state.
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
        """Return the position at which all ranks stop. With `pad`, it may be after the end of the epoch."""
        remaining = max(0, length - self.origin)
        if self.ends == "uneven":
            return self.origin + remaining
        whole, remainder = divmod(remaining, self.world_size)
        return self.origin + (whole + (self.ends == "pad" and remainder > 0)) * self.world_size

    def count(self, length: int) -> int:
        """Return the number of samples that the rank reads from `origin` on."""
        return -(-(self.end(length) - self.origin - self.rank) // self.world_size)

    def positions(self, start: int, stop: int, length: int) -> Numbers:
        """Return the positions in range(start, stop) that this worker reads, ascending, int64 [n].

        With `pad`, positions can be `length` or more. The caller subtracts `length` from such a position.
        """
        shift = self.origin + self.rank
        first = -(-(start - shift) // self.world_size)
        last = -(-(min(stop, self.end(length)) - shift) // self.world_size)
        local = np.arange(max(0, first), max(0, last), dtype=np.int64)
        if self.workers > 1:
            local = local[(local // self.batch_size) % self.workers == self.worker]
        return local * self.world_size + shift

    def replaces(self, *, damaged: bool) -> bool:
        """Return whether another sample replaces a skipped sample. `damaged` means that it could not be read."""
        return self.ends == "pad" or (self.ends == "drop" and (damaged or self.world_size > 1))

    def next_position(self, position: int) -> int:
        """Return the first unread position, given that all ranks have read as many samples as this rank.

        `position` is the last position that this rank has read.
        """
        return position - self.rank + self.world_size


def replacement_positions(length: int, options: OrderOptions, position: int) -> Iterator[int]:
    """Yield positions whose samples can replace the skipped sample at `position`, nearby positions first.

    With `pad`, `position` may be greater than the number of samples.
    """
    key = random_at(derive_state("others", options.seed, options.epoch), np.array([position], np.uint64))[0]
    first = position % length // options.round_size * options.round_size
    nearby = min(options.round_size, length - first)
    for start, count, maximum in ((first, nearby, _NEAR_POSITIONS), (0, length, MAX_REPLACEMENTS)):
        yield from (start + permute_positions(np.arange(min(count, maximum)), count, key)).tolist()


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: the arguments, or else RANK and WORLD_SIZE in the environment, or else 0 and 1."""
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
