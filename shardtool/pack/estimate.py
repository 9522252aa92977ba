"""What samples will take once they are changed: some are changed to find out, and the rest is estimated.

The estimate decides how many shards are planned, and never how large they are: the bound is kept while they
are written. It depends on the samples alone, so that the same request gives the same plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.plan.cuts import Bounds
from shardtool.plan.plan import make_plan
from shardtool.plan.shard_samples import shard_samples
from shardtool.plan.shuffle import shuffled
from shardtool.storage.folders import open_folder
from shardtool.write.task import ShardTask, Work, Write
from shardtool.write.transformed import measure_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.plan.plan import Plan
    from shardtool.transform.steps import Transform

_TRIED = 64  # samples
_AT_ONCE = 8
_SEED = 20
_LEAST = 8  # fewer say nothing of how the size depends on the source's
_BLOCK = 512  # what a small sample takes at least, in most formats


def estimate_sizes(
    entries: Entries, pattern: ShardPattern, transform: Transform | None, pool: Pool
) -> NDArray[np.int64]:
    """Return int64[samples]: about how many bytes the records of each changed sample take.

    Args:
        entries: The samples.
        pattern: The shards' names, which give the format.
        transform: What is done to them; None: it cannot be tried, so that their own sizes must do.
        pool: Tries it on some samples.
    """
    before: NDArray[np.int64] = np.add.reduceat(entries.rows.size, entries.first[:-1]) + _BLOCK
    if transform is None or not len(entries):
        return before
    tried = np.sort(shuffled(len(entries), _SEED)[:_TRIED])
    bounds = Bounds(max_count=_AT_ONCE)
    tries = replace(pattern, count=None, names=None)  # nothing gets these names
    plan = make_plan(entries, tries, bounds, which=tried, estimate=np.ones(len(entries), np.int64))
    after: dict[int, int] = {}
    for number, sizes in pool.map(measure_samples, _tasks(plan, transform)):
        places = tried[slice(*plan.span(number))].tolist()
        after |= {place: size for place, size in zip(places, sizes, strict=True) if size >= 0}
    if not after:
        return before
    x = before[list(after)].astype(np.float64)
    y = np.array(list(after.values()), np.float64)
    return np.maximum(1, _line(x, y, before)).astype(np.int64)


def _line(x: NDArray[np.float64], y: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a least-squares line of `y` over `x`; the mean where there is too little, or the line makes no sense."""
    spread = x - x.mean()
    if len(x) >= _LEAST and (square := float(spread @ spread)) > 0:
        slope = float(spread @ y) / square
        base = float(y.mean()) - slope * float(x.mean())
        if slope > 0:
            slope, base = (slope, base) if base > 0 else (float(y.sum()) / float(x.sum()), 0.0)
            return np.asarray(base + slope * at, np.float64)
    return np.full(len(at), y.mean(), np.float64)


def _tasks(plan: Plan, transform: Transform) -> Iterator[ShardTask]:
    work = Work(transform, 2**62, None, "alone")
    for shard in range(plan.shards):
        yield ShardTask(shard, "", plan.format, open_folder(""), shard_samples(plan, shard), "skip", 0, Write(), work)
