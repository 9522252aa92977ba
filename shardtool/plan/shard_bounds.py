"""Cut an order of samples into contiguous shards within bounds of bytes and count."""

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
    """The limits that were asked for.

    Attributes:
        max_size: Bytes of the finished file; None: no such bound was asked for.
        max_count: Samples in a shard, at most; None: no bound.
        shards: The number of shards; None: as many as the names or the bounds say.
        equal_count: Whether shards hold equally many samples, give or take one.
        multiple_of: The number of shards is a multiple of this.
        oversize: What becomes of a sample that fits in no shard: an error, a shard of its own, or left out.
        by_hash: Whether samples go into shards by the hash of their keys.
        before: The number of shards by hash that are there, which stays while it can.
    """

    max_size: int | None = None
    max_count: int | None = None
    shards: int | None = None
    equal_count: bool = False
    multiple_of: int = 1
    oversize: Oversize = "error"
    by_hash: bool = False
    before: int | None = None


class RequestedShards(NamedTuple):
    """The number of shards that was asked for, and by what: an option, or the pattern."""

    number: int
    where: str


class ShardLimits(NamedTuple):
    """The limits by which a plan's shards were cut.

    Attributes:
        room: Bytes of records that a shard may hold; `NO_LIMIT` where nothing bounds them.
        planned: What the plan fills of that: less, where it only estimates what samples take.
        max_count: Samples; None: any number.
    """

    room: int = NO_LIMIT
    planned: int = NO_LIMIT
    max_count: int | None = None


def cumulative_sizes(sizes: NDArray[np.int64], order: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return int64[places + 1]: bytes of the samples before each place.

    Args:
        sizes: Bytes of each sample.
        order: Which of them stands where; None: in their own order.
    """
    total = np.empty((len(sizes) if order is None else len(order)) + 1, np.int64)
    total[0] = 0
    if order is not None:
        np.take(sizes, order, out=total[1:], mode="clip")  # the only mode that makes no copy: all places are there
    np.cumsum(sizes if order is None else total[1:], out=total[1:])
    return total


def cut_shards(
    total: NDArray[np.int64], asked: RequestedShards | None, limits: ShardLimits, bounds: ShardBounds
) -> NDArray[np.int64]:
    """Return the ends of as many shards as were asked for; of as few as the bounds allow, where none were.

    Raises:
        InvalidRequest: There are fewer samples, or no such number of shards can hold them.
    """
    runs = ShardRuns(total, limits)
    if asked is None:
        return _cut_fewest(runs, bounds)
    count, samples = asked.number, runs.samples
    if count > samples:
        found, remedy = (
            f"{count:,} shards for {pluralize(samples, 'sample')}",
            f"At most {option_text('shards', samples)}.",
        )
        raise InvalidRequest(asked.where, found, expected="at least one sample a shard", remedy=remedy)
    if bounds.equal_count:
        ends = np.arange(1, count + 1, dtype=np.int64) * samples // count
        if runs.hold(ends):
            return ends
    elif len(runs.fill()) <= count:
        return runs.divide(count)
    found = f"{pluralize(count, 'shard')} cannot hold {pluralize(samples, 'sample')} within the bounds"
    holding = option_text("shards", len(_cut_fewest(runs, bounds)))
    remedy = f"Choose {holding}, or raise {option_text('max_size')} or {option_text('max_count')}."
    raise InvalidRequest(asked.where, found, remedy=remedy)


def _cut_fewest(runs: ShardRuns, bounds: ShardBounds) -> NDArray[np.int64]:
    """Return the ends of as few shards as the bounds allow."""
    ends = runs.fill()
    multiple, samples = bounds.multiple_of, runs.samples
    count = -(-len(ends) // multiple) * multiple
    if bounds.equal_count:
        while count <= samples:
            ends = np.arange(1, count + 1, dtype=np.int64) * samples // count
            if runs.hold(ends):
                return ends
            most = samples // multiple * multiple
            step = max(1, count // (64 * multiple)) * multiple  # near enough to the least, in a bounded number of tries
            count = count + step if count == most else min(count + step, most)
    elif count <= samples:
        return ends if count == len(ends) and multiple == 1 else runs.divide(count)
    found = f"{samples:,} samples cannot fill a multiple of {multiple:,} shards within the bounds"
    remedy = f"Choose a smaller multiple, or raise {option_text('max_size')} or {option_text('max_count')}."
    raise InvalidRequest(option_text("shards_multiple_of"), found, remedy=remedy)


class ShardRuns:
    """The runs of samples that can be a shard: within bytes and count, or one sample alone.

    Args:
        total: int64[samples + 1], bytes of the samples before each place.
        limits: What a shard may hold.
    """

    def __init__(self, total: NDArray[np.int64], limits: ShardLimits) -> None:
        self.total, self.room, self.samples = total, limits.planned, len(total) - 1
        self.max_count = self.samples if limits.max_count is None else limits.max_count

    def reach(self, first: int) -> int:
        """Return the last place at which a shard that starts at `first` can end."""
        end = int(np.searchsorted(self.total, self.total[first] + self.room, "right")) - 1
        return max(first + 1, min(end, first + self.max_count))

    def back(self, end: int) -> int:
        """Return the first place at which a shard that ends at `end` can start."""
        first = int(np.searchsorted(self.total, self.total[end] - self.room, "left"))
        return max(0, min(end - 1, max(first, end - self.max_count)))

    def hold(self, ends: NDArray[np.int64]) -> bool:
        """Tell whether each of these shards is within the limits."""
        starts = np.concatenate(([0], ends[:-1]))
        counts = ends - starts
        fits = (self.total[ends] - self.total[starts] <= self.room) & (counts <= self.max_count)
        return bool(np.all(fits | (counts == 1)))

    def fill(self) -> NDArray[np.int64]:
        """Fill each shard as far as it goes: the least number of them."""
        ends, at = [], 0
        while at < self.samples:
            at = self.reach(at)
            ends.append(at)
        return np.array(ends, np.int64)

    def divide(self, count: int) -> NDArray[np.int64]:
        """Return the ends of `count` shards, cut as near as the limits allow to equal shares of the bytes.

        Args:
            count: At least as many as `fill` needs, and at most one per sample.
        """
        least = [0] * (count + 1)  # least[k]: where shard k must start at the earliest, for the rest to fit
        least[count] = self.samples
        for shard in range(count - 1, 0, -1):
            least[shard] = max(self.back(least[shard + 1]), shard)
        ends, at = [], 0
        share = [int(self.total[-1]) * number // count for number in range(1, count + 1)]
        after = np.searchsorted(self.total, share, "left").tolist()
        for shard in range(count):
            cut = after[shard]
            if cut > 0 and share[shard] - self.total[cut - 1] < self.total[cut] - share[shard]:
                cut -= 1
            lowest = max(least[shard + 1], at + 1)
            highest = min(self.reach(at), self.samples - (count - 1 - shard))
            at = min(max(cut, lowest), highest)
            ends.append(at)
        return np.array(ends, np.int64)
