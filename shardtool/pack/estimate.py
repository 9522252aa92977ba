"""Estimate the sizes of transformed samples from a few. The same request gives the same estimates."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.pack.packing import make_shard_work
from shardtool.plan.plan import Plan, make_plan
from shardtool.plan.random_order import random_permutation
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from shardtool.request.output_options import TRANSFORM_OPTIONS
from shardtool.storage.folders import open_folder
from shardtool.write.task import ShardTask, TransformWork
from shardtool.write.transform_packer import measure_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.pack.run import Listed
    from shardtool.transform.transform import Transform


_MAX_TRIED_SAMPLES = 64
_SAMPLES_PER_TASK = 8
_SAMPLE_SEED = 20
_MIN_FITTED_SAMPLES = 8
_SAMPLE_OVERHEAD_BYTES = 512  # minimum size of a record in most formats


def estimate_sizes(listed: Listed, transform: Transform) -> NDArray[np.int64]:
    """Return int64[samples]: the estimated record bytes of each transformed sample."""
    run, entries = listed.run, listed.entries
    transform.check_fields(entries.fields)
    if lists := [*entries.values.lists]:
        option = option_text(next(name for name in TRANSFORM_OPTIONS if getattr(run.options, name)))
        remedy = f"Drop these fields with {option_text('drop_fields', tuple(lists))}."
        raise InvalidRequest(option, f"lists of values: {format_list(lists)}", expected="single values", remedy=remedy)
    source_sizes: NDArray[np.int64] = np.add.reduceat(entries.rows.size, entries.first[:-1]) + _SAMPLE_OVERHEAD_BYTES
    if listed.is_binary or run.fetches or listed.listing.compressed or not len(entries):
        return source_sizes
    sample_numbers = np.sort(random_permutation(len(entries), _SAMPLE_SEED)[:_MAX_TRIED_SAMPLES])
    pattern = replace(listed.outputs[0].pattern, count=None, names=None)
    plan = make_plan(
        entries,
        pattern,
        ShardBounds(max_count=_SAMPLES_PER_TASK),
        which=sample_numbers,
        estimate=np.ones(len(entries), np.int64),
    )
    measured: dict[int, int] = {}
    for task, sizes in run.pool.map(measure_samples, _make_tasks(plan, transform)):
        numbers = sample_numbers[slice(*plan.span(task))].tolist()
        measured |= {number: size for number, size in zip(numbers, sizes, strict=True) if size >= 0}
    if not measured:
        return source_sizes
    x = source_sizes[list(measured)].astype(np.float64)
    y = np.array(list(measured.values()), np.float64)
    return np.maximum(1, _fit_line(x, y, source_sizes)).astype(np.int64)


def _fit_line(x: NDArray[np.float64], y: NDArray[np.float64], points: NDArray[np.int64]) -> NDArray[np.float64]:
    spread = x - x.mean()
    if len(x) >= _MIN_FITTED_SAMPLES and (square := float(spread @ spread)) > 0:
        slope = float(spread @ y) / square
        base = float(y.mean()) - slope * float(x.mean())
        if slope > 0:
            slope, base = (slope, base) if base > 0 else (float(y.sum()) / float(x.sum()), 0.0)
            return np.asarray(base + slope * points, np.float64)
    return np.full(len(points), y.mean(), np.float64)


def _make_tasks(plan: Plan, transform: Transform) -> Iterator[ShardTask]:
    work = TransformWork(transform, 2**62, None, "alone")
    for shard in range(plan.shards):
        samples, shard_work = build_shard_samples(plan, shard), make_shard_work(plan, shard, work)
        yield ShardTask(shard, "", plan.format, open_folder(""), samples, "skip", 0, "write", shard_work)
