"""Assign samples to shards by the hash of their keys: adding or removing a sample changes one shard.

Source: docs/format.md, "Shards by hash".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.plan.shard_bounds import NO_LIMIT, RequestedShards, ShardBounds, ShardLimits
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings


_HEADROOM = 0.8  # of the bounds is used where the number of shards is free, so that it stays while a dataset grows


_STEP_DIVISOR = 16  # numbers of shards are tried in steps of this part of them


_MAX_EXHAUSTIVE_SHARDS = 100  # shards: up to so many, all are tried


class HashAssignment:
    """The samples of a plan, each of which goes into the shard that the hash of its key says.

    Args:
        keys: Their keys.
        sizes: int64[samples]: bytes of their records.
        limits: What a shard may hold.
        bounds: What was asked for.
    """

    def __init__(self, keys: PackedStrings, sizes: NDArray[np.int64], limits: ShardLimits, bounds: ShardBounds) -> None:
        self._keys, self._sizes, self._limits, self._bounds = keys, sizes, limits, bounds
        self._hashes = keys.hashes(b"shardtool place")
        self._max_count = NO_LIMIT if limits.max_count is None else limits.max_count

    def divide(
        self, asked: RequestedShards | None, seed: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
        """Return the samples in the order of their shards, the place after each shard's last sample, and notes.

        Within a shard they stand in the order of the bytes of their keys, or of hashes that the seed decides.

        Raises:
            InvalidRequest: So many shards, or any number where none is asked for, cannot hold them.
        """
        count, notes = self._choose() if asked is None else self._check(asked)
        if seed is None:
            order = self._keys.sorted_order()
        else:
            order = np.argsort(self._keys.hashes(b"shardtool order", seed), kind="stable")
        shard, counts, _ = self._loads(count)
        return order[np.argsort(shard[order], kind="stable")], np.cumsum(counts), notes

    def _check(self, asked: RequestedShards) -> tuple[int, tuple[str, ...]]:
        """Return the number of shards that is asked for, unless one of them would be over the bounds, or empty."""
        samples, count, found, expected = pluralize(len(self._keys), "sample"), asked.number, "", "a sample in each"
        _, counts, sizes = self._loads(min(count, len(self._keys)))
        one = f"in one of {pluralize(count, 'shard')} by hash"
        if count > len(self._keys):
            found = f"{count:,} shards for {samples}"
        elif empty := int(np.count_nonzero(counts == 0)):
            found = f"{empty:,} of {count:,} shards by hash without one of {samples}"
        elif counts.max() > self._max_count:
            found, expected = f"{pluralize(int(counts.max()), 'sample')} {one}", f"at most {self._max_count:,}"
        elif sizes.max() > self._limits.planned:
            found, expected = (
                f"{format_size(int(sizes.max()))} {one}",
                f"at most {format_size(self._bounds.max_size or 0)}",
            )
        if found:
            fewer = expected == "a sample in each"
            other = self._first(self._downward(count - 1) if fewer else self._upward(count + 1, 1), 1)
            raise InvalidRequest(asked.where, found, expected=expected, remedy=_advise_count(other))
        return count, ()

    def _choose(self) -> tuple[int, tuple[str, ...]]:
        """Return how many shards hold the samples, and a note if it cannot be as many as before."""
        before = self._bounds.before
        if before is not None and self._holds(before, 1):
            return before, ()
        count = self._first(self._upward(1, _HEADROOM), _HEADROOM) or self._first(self._upward(1, 1), 1)
        if not count:
            found = f"{pluralize(len(self._keys), 'sample')}: any number of shards leaves one empty, or over the bounds"
            raise InvalidRequest(option_text("place", "hash"), found, remedy=_advise_count())
        if before is None:
            return count, ()
        gone = f"{pluralize(before, 'shard')} by hash cannot hold the samples any more"
        return count, (f"{gone}: now {count:,}, and all are written again",)

    def _loads(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return the shard of each sample, how many samples each shard gets, and their bytes."""
        shard: NDArray[np.int64] = (self._hashes % np.uint64(count)).astype(np.int64)
        counts = np.bincount(shard, minlength=count).astype(np.int64)
        return shard, counts, np.asarray(np.bincount(shard, weights=self._sizes, minlength=count), np.float64)

    def _holds(self, count: int, share: float) -> bool:
        """Tell whether so many shards all get a sample, and none more than a share of the bounds."""
        if count > len(self._keys) or count % self._bounds.multiple_of:
            return False
        _, counts, sizes = self._loads(count)
        room, most = self._limits.planned * share, self._max_count * share
        return bool(counts.min() > 0 and counts.max() <= most and sizes.max() <= room)

    def _first(self, numbers: Iterator[int], share: float) -> int:
        """Return the first number of shards that hold the samples; 0 where none does."""
        return next((count for count in numbers if self._holds(count, share)), 0)

    def _upward(self, start: int, share: float) -> Iterator[int]:
        """Yield numbers of shards, from the least that can hold the samples until most shards would be empty."""
        samples, multiple = len(self._keys), self._bounds.multiple_of
        of_size = int(self._sizes.sum() / (self._limits.planned * share))
        start = max(start, of_size, int(samples / (self._max_count * share)), 1)
        count = -(-start // multiple) * multiple
        while count <= (samples if samples < _MAX_EXHAUSTIVE_SHARDS else samples // 2):
            yield count
            count += _next_step(count, multiple)

    def _downward(self, start: int) -> Iterator[int]:
        multiple = self._bounds.multiple_of
        count = min(start, len(self._keys)) // multiple * multiple
        while count > 0:
            yield count
            count -= _next_step(count, multiple)


def _next_step(count: int, multiple: int) -> int:
    """Return how far the next number of shards to try is from one."""
    return multiple if count <= _MAX_EXHAUSTIVE_SHARDS else max(1, count // _STEP_DIVISOR // multiple) * multiple


def _advise_count(count: int = 0) -> str:
    """Return what to do about a number of shards: `count` is one that would do, if there is any."""
    order = option_text("place", "order")
    if count:
        return f"Choose {option_text('shards', count)}, or {order}."
    return f"Choose {order}, or larger shards: {option_text('max_size')}, {option_text('max_count')}."
