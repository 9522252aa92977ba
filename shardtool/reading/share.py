"""Which positions of an epoch one reader takes: ranks and loader workers divide them, and change nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ends = Literal["drop", "pad", "uneven"]


@dataclass(frozen=True)
class Share:
    """The share of one reader in an epoch.

    Rank r of W takes the positions g with g % W == r; of its batches of so many samples, worker w of N takes those
    whose number n has n % N == w.

    Attributes:
        rank: The rank.
        world_size: How many ranks there are.
        ends: What becomes of positions that are no multiple of the ranks.
        worker: The loader worker.
        workers: How many there are.
        batch_size: Samples of a rank's batch: what a worker takes at a time.
    """

    rank: int = 0
    world_size: int = 1
    ends: Ends = "drop"
    worker: int = 0
    workers: int = 1
    batch_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidRequest("rank", f"{self.rank} of {self.world_size}", expected="0 <= rank < world_size")
        if self.ends not in get_args(Ends):
            raise InvalidRequest("ends", repr(self.ends), expected=" or ".join(get_args(Ends)))
        if self.batch_size < 1:
            raise InvalidRequest("batch_size", str(self.batch_size), expected="1 or more")

    def count(self, length: int) -> int:
        """Return how many samples the rank takes of an epoch of so many."""
        whole, more = divmod(length, self.world_size)
        return whole + (self.ends == "pad" and more > 0) + (self.ends == "uneven" and self.rank < more)

    def positions(self, start: int, stop: int, length: int) -> NDArray[np.int64]:
        """Return the positions from `start` to `stop` of the epoch that are this reader's, in order.

        Args:
            start: Global positions that all ranks together are past.
            stop: Where to end; with `pad`, it may be past the epoch's length.
            length: Samples in the epoch.
        """
        count = self.count(length)
        first = -(-(start - self.rank) // self.world_size)
        last = min(count, -(-(stop - self.rank) // self.world_size))
        local = np.arange(max(0, first), max(0, last), dtype=np.int64)
        if self.workers > 1:
            local = local[(local // self.batch_size) % self.workers == self.worker]
        return local * self.world_size + self.rank


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
