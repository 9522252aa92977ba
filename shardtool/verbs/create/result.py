"""The results of `create` and `reshard`, and of their dry runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from shardtool.errors import (
    printable,
)
from shardtool.fingerprint import format_fingerprint, sum_fingerprints
from shardtool.interop.readers import unopenable_by
from shardtool.names import to_local_name, to_output_name
from shardtool.request.results import AppendedPart, CreateResult, DryRun, PlannedShard, SplitResult
from shardtool.verbs.create.changes import add_shard_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.verbs.create.run import Run, RunOutput


_SUMMED_FIELDS = ("shards", "kept", "samples", "skipped", "dropped", "size")  # that are added up over splits


def make_result(run: Run, *, merged: bool = False) -> CreateResult:
    """Return what a run made; `merged`: whether it was a part, and the dataset file of all is there."""
    written = [*run.untouched, *run.outputs]
    splits = {output.split: _make_split_result(output) for output in written}
    totals = {name: sum(getattr(one, name) for one in splits.values()) for name in _SUMMED_FIELDS}
    shards = [(one, one.kept, [to_local_name(shard.name) for shard in one.dataset.shards]) for one in written]
    return CreateResult(
        **totals,
        dataset_file=run.dataset_file,
        seconds=time.time() - run.started,
        fingerprint=format_fingerprint(sum_fingerprints(output.dataset.fingerprint for output in written)),
        notes=tuple(run.notes.said),
        features=written[0].dataset.feature_texts() if run.part is None else {},
        urls=next(iter(splits.values())).urls if run.split_options is None else "",
        splits={} if run.split_options is None else splits,
        appended=_make_appended_part(written),
        exported=tuple(run.exports),
        changes=None if run.changes is None else add_shard_counts(run.changes, shards),
        part="" if run.part is None else str(run.part),
        merged=merged,
    )


def _make_split_result(output: RunOutput) -> SplitResult:
    """Return what was made of one dataset."""
    shards, pattern = output.dataset.shards, output.pattern
    urls = pattern.closed(len(shards)) if pattern.format == "tar" and output.destination.part is None else ""
    shard = os.path.join(pattern.folder, pattern.shard(0))
    unread = "{" in shard or "webdataset" in unopenable_by(to_output_name(shard))
    return SplitResult(
        dataset_file=output.destination.dataset_file,
        shards=len(shards),
        kept=output.kept,
        samples=sum(shard.samples for shard in shards),
        skipped=output.dataset.skipped,
        dropped=output.dropped,
        size=sum(shard.size for shard in shards),
        fingerprint=output.dataset.fingerprint,
        urls="" if unread else to_output_name(urls),
    )


def _make_appended_part(written: Sequence[RunOutput]) -> AppendedPart | None:
    """Return what a run has added to datasets that were there; None if there were none."""
    if not any(output.destination.appends for output in written):
        return None
    new = [shard for output in written for shard in output.dataset.shards[output.destination.first :]]
    return AppendedPart(len(new), sum(one.samples for one in new), sum(one.size for one in new))


def make_dry_run(run: Run) -> DryRun:
    """Return what a run would write; a shard's name has its folder if splits lie in several."""
    folders = {output.split: os.path.abspath(output.pattern.folder or ".") for output in run.outputs}
    above, skipped, shards = os.path.commonpath([*folders.values()] or ["/"]), 0, []
    for output in run.outputs:
        plan, below = output.plan, os.path.relpath(folders[output.split], above)
        skipped += len(plan.skipped) if run.part is None or run.part.number == 1 else 0
        for shard in output.own_shards:
            first, last = plan.span(shard)
            keys = printable(plan.key_at(first)), printable(plan.key_at(last - 1))
            name = os.path.normpath(os.path.join(below, output.shard_name(shard)))
            shards.append(PlannedShard(name, last - first, int(plan.sizes[shard]), *keys))
    return DryRun(run.dataset_file, tuple(shards), skipped, tuple(run.notes.said), run.changes)
