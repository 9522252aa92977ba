"""Assign samples to shards by the hash of their keys. Adding or removing a sample then changes only one shard.

Source: docs/format.md, "Shards by hash".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.plan.shard_bounds import NO_LIMIT, RequestedShards, ShardBounds, ShardCapacity
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings


_HEADROOM = 0.8  # fill new shards to this share of the limits, so a growing dataset can keep its number of shards
_STEP_DIVISOR = 16
_MAX_EXHAUSTIVE_SHARDS = 100


class HashAssignment:
    """Assigns samples to shards by the hash of their keys. `sizes` are the bytes of each sample in its shard."""

    def __init__(
        self, keys: PackedStrings, sizes: NDArray[np.int64], limits: ShardCapacity, bounds: ShardBounds
    ) -> None:
        self._keys, self._sizes, self._limits, self._bounds = keys, sizes, limits, bounds
        self._hashes = keys.hashes(b"shardtool place")
        self._max_count = NO_LIMIT if limits.max_count is None else limits.max_count

    def divide(
        self, requested: RequestedShards | None, seed: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
        """Return the samples in shard order, the end of each shard, and notes.

        The samples of a shard are sorted by key or, if there is a seed, by a seeded hash of the key.
        """
        count, notes = self._choose_count() if requested is None else self._check_requested(requested)
        if seed is None:
            order = self._keys.sorted_order()
        else:
            order = np.argsort(self._keys.hashes(b"shardtool order", seed), kind="stable")
        shard, counts, _ = self._count_per_shard(count)
        return order[np.argsort(shard[order], kind="stable")], np.cumsum(counts), notes

    def _check_requested(self, requested: RequestedShards) -> tuple[int, tuple[str, ...]]:
        samples, count = pluralize(len(self._keys), "sample"), requested.number
        found, expected = "", "a sample in each shard"
        _, counts, sizes = self._count_per_shard(min(count, len(self._keys)))
        in_one_shard = f"in one of {pluralize(count, 'shard')} by hash"
        if count > len(self._keys):
            found = f"{count:,} shards for {samples}"
        elif empty := int(np.count_nonzero(counts == 0)):
            found = f"{empty:,} of {count:,} shards by hash would be empty, with {samples}"
        elif counts.max() > self._max_count:
            found, expected = f"{pluralize(int(counts.max()), 'sample')} {in_one_shard}", f"at most {self._max_count:,}"
        elif sizes.max() > self._limits.planned:
            found = f"{format_size(int(sizes.max()))} {in_one_shard}"
            expected = f"at most {format_size(self._bounds.max_size or 0)}"
        if found:
            fewer = expected == "a sample in each shard"
            candidates = self._counts_downward(count - 1) if fewer else self._counts_upward(count + 1, 1)
            alternative = self._first_valid(candidates, 1)
            raise InvalidRequest(requested.where, found, expected=expected, remedy=_advise_count(alternative))
        return count, ()

    def _choose_count(self) -> tuple[int, tuple[str, ...]]:
        before = self._bounds.current_shards
        if before is not None and self._can_hold(before, 1):
            return before, ()
        with_headroom = self._first_valid(self._counts_upward(1, _HEADROOM), _HEADROOM)
        count = with_headroom or self._first_valid(self._counts_upward(1, 1), 1)
        if not count:
            samples = pluralize(len(self._keys), "sample")
            found = f"{samples}: every number of shards leaves a shard empty or over the limits"
            raise InvalidRequest(option_text("place", "hash"), found, remedy=_advise_count())
        if before is None:
            return count, ()
        problem = f"{pluralize(before, 'shard')} by hash can no longer hold the samples"
        return count, (f"{problem}: writing all samples to {count:,} new shards",)

    def _count_per_shard(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        shard: NDArray[np.int64] = (self._hashes % np.uint64(count)).astype(np.int64)
        counts = np.bincount(shard, minlength=count).astype(np.int64)
        return shard, counts, np.asarray(np.bincount(shard, weights=self._sizes, minlength=count), np.float64)

    def _can_hold(self, count: int, share: float) -> bool:
        if count > len(self._keys) or count % self._bounds.multiple_of:
            return False
        _, counts, sizes = self._count_per_shard(count)
        max_bytes, max_samples = self._limits.planned * share, self._max_count * share
        return bool(counts.min() > 0 and counts.max() <= max_samples and sizes.max() <= max_bytes)

    def _first_valid(self, numbers: Iterator[int], share: float) -> int:
        return next((count for count in numbers if self._can_hold(count, share)), 0)

    def _counts_upward(self, start: int, share: float) -> Iterator[int]:
        samples, multiple = len(self._keys), self._bounds.multiple_of
        needed_by_size = int(self._sizes.sum() / (self._limits.planned * share))
        start = max(start, needed_by_size, int(samples / (self._max_count * share)), 1)
        count = -(-start // multiple) * multiple
        while count <= (samples if samples < _MAX_EXHAUSTIVE_SHARDS else samples // 2):
            yield count
            count += _next_step(count, multiple)

    def _counts_downward(self, start: int) -> Iterator[int]:
        multiple = self._bounds.multiple_of
        count = min(start, len(self._keys)) // multiple * multiple
        while count > 0:
            yield count
            count -= _next_step(count, multiple)


def _next_step(count: int, multiple: int) -> int:
    return multiple if count <= _MAX_EXHAUSTIVE_SHARDS else max(1, count // _STEP_DIVISOR // multiple) * multiple


def _advise_count(count: int = 0) -> str:
    order = option_text("place", "order")
    if count:
        return f"Use {option_text('shards', count)} or {order}."
    return f"Use {order}, or allow larger shards with {option_text('max_size')} and {option_text('max_count')}."
