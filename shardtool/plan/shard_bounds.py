"""Divide ordered samples into shards that do not exceed a size and a number of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.units import pluralize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.values import Oversize


NO_LIMIT = 2**62


class ShardBounds(NamedTuple):
    """The limits that the user requested.

    `current_shards` is the number of existing shards. An assignment by hash keeps this number if the samples fit.
    """

    max_size: int | None = None
    max_count: int | None = None
    shards: int | None = None
    equal_count: bool = False
    multiple_of: int = 1
    oversize: Oversize = "error"
    by_hash: bool = False
    current_shards: int | None = None


class RequestedShards(NamedTuple):
    """The requested number of shards. `where` is the option or pattern that requests it, for messages."""

    number: int
    where: str


class ShardCapacity(NamedTuple):
    """The limits of one shard, computed from `ShardBounds`.

    Attributes:
        max_bytes: Maximum bytes of a shard's samples, or `NO_LIMIT`.
        max_planned_bytes: Maximum planned bytes of a shard's samples. Less than `max_bytes` if sizes are estimates.
    """

    max_bytes: int = NO_LIMIT
    max_planned_bytes: int = NO_LIMIT
    max_count: int | None = None


def cumulative_sizes(sizes: NDArray[np.int64], order: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return the cumulative sizes in `order`, from 0 to the total: int64[positions + 1]."""
    total = np.empty((len(sizes) if order is None else len(order)) + 1, np.int64)
    total[0] = 0
    if order is not None:
        np.take(sizes, order, out=total[1:], mode="clip")  # other values of `mode` copy the array
    np.cumsum(sizes if order is None else total[1:], out=total[1:])
    return total


def cut_shards(
    total: NDArray[np.int64], requested: RequestedShards | None, limits: ShardCapacity, bounds: ShardBounds
) -> NDArray[np.int64]:
    """Return the shard ends (see `Plan.ends`). If no number of shards is requested, use as few as possible."""
    runs = ShardRuns(total, limits)
    if requested is None:
        return _cut_fewest(runs, bounds)
    count, samples = requested.number, runs.samples
    if count > samples:
        found = f"{count:,} shards for {pluralize(samples, 'sample')}"
        remedy = f"Use at most {option_text('shards', samples)}."
        raise InvalidRequest(requested.where, found, expected="at least one sample per shard", remedy=remedy)
    if bounds.equal_count:
        ends = np.arange(1, count + 1, dtype=np.int64) * samples // count
        if runs.fit(ends):
            return ends
    elif len(runs.find_fewest_ends()) <= count:
        return runs.cut_evenly(count)
    found = f"{pluralize(count, 'shard')} cannot hold {pluralize(samples, 'sample')} within the limits"
    sufficient = option_text("shards", len(_cut_fewest(runs, bounds)))
    remedy = f"Use {sufficient}, or raise {option_text('max_size')} or {option_text('max_count')}."
    raise InvalidRequest(requested.where, found, remedy=remedy)


def _cut_fewest(runs: ShardRuns, bounds: ShardBounds) -> NDArray[np.int64]:
    ends = runs.find_fewest_ends()
    multiple, samples = bounds.multiple_of, runs.samples
    count = -(-len(ends) // multiple) * multiple
    if bounds.equal_count:
        while count <= samples:
            ends = np.arange(1, count + 1, dtype=np.int64) * samples // count
            if runs.fit(ends):
                return ends
            max_shards = samples // multiple * multiple
            step = max(1, count // (64 * multiple)) * multiple
            count = count + step if count == max_shards else min(count + step, max_shards)
    elif count <= samples:
        return ends if count == len(ends) and multiple == 1 else runs.cut_evenly(count)
    found = f"{pluralize(samples, 'sample')} cannot fill a multiple of {multiple:,} shards within the limits"
    remedy = f"Use a smaller multiple, or raise {option_text('max_size')} or {option_text('max_count')}."
    raise InvalidRequest(option_text("shards_multiple_of"), found, remedy=remedy)


class ShardRuns:
    """Cuts a sequence of samples into shards within the limits. `total` is `Plan.total`."""

    def __init__(self, total: NDArray[np.int64], limits: ShardCapacity) -> None:
        self.total, self.max_planned_bytes, self.samples = total, limits.max_planned_bytes, len(total) - 1
        self.max_count = self.samples if limits.max_count is None else limits.max_count

    def _last_end(self, first: int) -> int:
        end = int(np.searchsorted(self.total, self.total[first] + self.max_planned_bytes, "right")) - 1
        return max(first + 1, min(end, first + self.max_count))

    def _first_start(self, end: int) -> int:
        first = int(np.searchsorted(self.total, self.total[end] - self.max_planned_bytes, "left"))
        return max(0, min(end - 1, max(first, end - self.max_count)))

    def fit(self, ends: NDArray[np.int64]) -> bool:
        """Return whether shards with these ends are within the limits. A shard with one sample always fits."""
        starts = np.concatenate(([0], ends[:-1]))
        counts = ends - starts
        fits = (self.total[ends] - self.total[starts] <= self.max_planned_bytes) & (counts <= self.max_count)
        return bool(np.all(fits | (counts == 1)))

    def find_fewest_ends(self) -> NDArray[np.int64]:
        """Return the ends of as few shards as possible."""
        ends, position = [], 0
        while position < self.samples:
            position = self._last_end(position)
            ends.append(position)
        return np.array(ends, np.int64)

    def cut_evenly(self, count: int) -> NDArray[np.int64]:
        """Return the ends of `count` shards whose sizes are as similar as the limits allow.

        `count` must be at least the number of shards that `find_fewest_ends` returns.
        """
        # If shard k starts before earliest[k], shards k and later cannot hold all remaining samples.
        earliest = [0] * (count + 1)
        earliest[count] = self.samples
        for shard in range(count - 1, 0, -1):
            earliest[shard] = max(self._first_start(earliest[shard + 1]), shard)
        ends, position = [], 0
        targets = [int(self.total[-1]) * number // count for number in range(1, count + 1)]
        cuts = np.searchsorted(self.total, targets, "left").tolist()
        for shard in range(count):
            cut = cuts[shard]
            if cut > 0 and targets[shard] - self.total[cut - 1] < self.total[cut] - targets[shard]:
                cut -= 1
            lowest = max(earliest[shard + 1], position + 1)
            highest = min(self._last_end(position), self.samples - (count - 1 - shard))
            position = min(max(cut, lowest), highest)
            ends.append(position)
        return np.array(ends, np.int64)
