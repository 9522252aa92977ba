"""Estimate the sizes of transformed samples: transform a few and extrapolate.

The estimate sets the number of planned shards. Their size limit is enforced while they are written. The estimate
depends on the samples alone, so the same request gives the same plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import (
    InvalidRequest,
    format_list,
)
from shardtool.messages import option_text
from shardtool.plan.plan import Plan, make_plan
from shardtool.plan.random_order import random_permutation
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from shardtool.request.output_options import TRANSFORM_OPTIONS
from shardtool.storage.folders import open_folder
from shardtool.verbs.create.packing import make_shard_work
from shardtool.write.task import ShardTask, TransformWork
from shardtool.write.transform_packer import measure_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.transform.transform import Transform
    from shardtool.verbs.create.run import Run


_MAX_TRIED_SAMPLES = 64  # samples


_SAMPLES_PER_TASK = 8


_SAMPLE_SEED = 20


_MIN_FITTED_SAMPLES = 8  # fewer say nothing of how the size depends on the source's


_SAMPLE_OVERHEAD_BYTES = 512  # what a small sample takes at least, in most formats


def estimate_sizes(run: Run, transform: Transform) -> NDArray[np.int64]:
    """Return int64[samples]: about how many bytes the records of each changed sample take."""
    entries = run.entries
    transform.check_fields(entries.fields)
    if lists := [*entries.values.lists]:
        asked = option_text(next(name for name in TRANSFORM_OPTIONS if getattr(run.options, name)))
        remedy = f"Leave them out with {option_text('drop_fields', tuple(lists))}."
        raise InvalidRequest(asked, f"lists of values: {format_list(lists)}", expected="single ones", remedy=remedy)
    before: NDArray[np.int64] = np.add.reduceat(entries.rows.size, entries.first[:-1]) + _SAMPLE_OVERHEAD_BYTES
    if run.is_binary or run.fetches or run.listed.compressed or not len(entries):  # a plan asks no server
        return before
    tried = np.sort(random_permutation(len(entries), _SAMPLE_SEED)[:_MAX_TRIED_SAMPLES])
    tries = replace(run.outputs[0].pattern, count=None, names=None)  # nothing gets these names
    plan = make_plan(
        entries, tries, ShardBounds(max_count=_SAMPLES_PER_TASK), which=tried, estimate=np.ones(len(entries), np.int64)
    )
    after: dict[int, int] = {}
    for number, sizes in run.pool.map(measure_samples, _make_tasks(plan, transform)):
        places = tried[slice(*plan.span(number))].tolist()
        after |= {place: size for place, size in zip(places, sizes, strict=True) if size >= 0}
    if not after:
        return before
    x = before[list(after)].astype(np.float64)
    y = np.array(list(after.values()), np.float64)
    return np.maximum(1, _fit_line(x, y, before)).astype(np.int64)


def _fit_line(x: NDArray[np.float64], y: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a least-squares line of `y` over `x`; the mean where there is too little, or the line makes no sense."""
    spread = x - x.mean()
    if len(x) >= _MIN_FITTED_SAMPLES and (square := float(spread @ spread)) > 0:
        slope = float(spread @ y) / square
        base = float(y.mean()) - slope * float(x.mean())
        if slope > 0:
            slope, base = (slope, base) if base > 0 else (float(y.sum()) / float(x.sum()), 0.0)
            return np.asarray(base + slope * at, np.float64)
    return np.full(len(at), y.mean(), np.float64)


def _make_tasks(plan: Plan, transform: Transform) -> Iterator[ShardTask]:
    work = TransformWork(transform, 2**62, None, "alone")
    for shard in range(plan.shards):
        samples, own = build_shard_samples(plan, shard), make_shard_work(plan, shard, work)
        yield ShardTask(shard, "", plan.format, open_folder(""), samples, "skip", 0, "write", own)
