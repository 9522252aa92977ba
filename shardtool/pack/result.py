"""Build the results of `create` and `reshard`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from shardtool.errors import printable
from shardtool.fingerprint import format_fingerprint, sum_fingerprints
from shardtool.interop.readers import unopenable_by
from shardtool.names import to_local_name, to_output_name
from shardtool.pack.changes import add_shard_counts
from shardtool.request.results import AppendedPart, CreateResult, PlannedShard, SplitResult
from shardtool.source.joined_columns import describe_join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pack.run import FinishedOutput, Planned


_SUMMED_FIELDS = ("shards", "kept", "samples", "skipped", "dropped", "size")


def make_result(planned: Planned, finished: Sequence[FinishedOutput], *, merged: bool = False) -> CreateResult:
    """Return the result of a finished run."""
    run, outputs = planned.run, [*planned.listed.unchanged_outputs, *finished]
    splits = {output.split: _make_split_result(output) for output in outputs}
    totals = {name: sum(getattr(split, name) for split in splits.values()) for name in _SUMMED_FIELDS}
    shards = [
        (output.destination, output.kept, [to_local_name(shard.name) for shard in output.dataset.shards])
        for output in outputs
    ]
    return CreateResult(
        **totals,
        dataset_file=run.dataset_file,
        seconds=time.time() - run.started,
        fingerprint=format_fingerprint(sum_fingerprints(output.dataset.fingerprint for output in outputs)),
        notes=tuple(run.notes.texts),
        features=outputs[0].dataset.feature_texts() if run.part is None else {},
        urls=next(iter(splits.values())).urls if run.split_options is None else "",
        splits={} if run.split_options is None else splits,
        appended=_make_appended_part(outputs),
        exported=tuple(run.exports),
        changes=None if planned.changes is None else add_shard_counts(planned.changes, shards),
        part="" if run.part is None else str(run.part),
        merged=merged,
        joined=describe_join(planned.listed.listing, run.options),
    )


def _make_split_result(output: FinishedOutput) -> SplitResult:
    shards, pattern = output.dataset.shards, output.destination.pattern
    urls = pattern.closed_pattern(len(shards)) if pattern.format == "tar" and output.destination.part is None else ""
    shard = os.path.join(pattern.folder, pattern.shard(0))
    is_unreadable = "{" in shard or "webdataset" in unopenable_by(to_output_name(shard))
    return SplitResult(
        dataset_file=output.destination.dataset_file,
        shards=len(shards),
        kept=output.kept,
        samples=sum(shard.samples for shard in shards),
        skipped=output.dataset.skipped,
        dropped=output.dropped,
        size=sum(shard.size for shard in shards),
        fingerprint=output.dataset.fingerprint,
        urls="" if is_unreadable else to_output_name(urls),
    )


def _make_appended_part(outputs: Sequence[FinishedOutput]) -> AppendedPart | None:
    if not any(output.destination.appends for output in outputs):
        return None
    new_shards = [shard for output in outputs for shard in output.dataset.shards[output.destination.first :]]
    samples, size = sum(shard.samples for shard in new_shards), sum(shard.size for shard in new_shards)
    return AppendedPart(len(new_shards), samples, size)


def make_dry_run(planned: Planned) -> CreateResult:
    """Return the result of a dry run, with the planned shards."""
    run = planned.run
    folders = {output.split: os.path.abspath(output.pattern.folder or ".") for output in planned.outputs}
    common_folder, skipped, shards = os.path.commonpath([*folders.values()] or ["/"]), 0, []
    for output in planned.outputs:
        plan, subfolder = output.plan, os.path.relpath(folders[output.split], common_folder)
        skipped += len(plan.skipped) if run.part is None or run.part.number == 1 else 0
        for shard in output.own_shards:
            first, last = plan.span(shard)
            first_and_last_key = printable(plan.key_at(first)), printable(plan.key_at(last - 1))
            name = os.path.normpath(os.path.join(subfolder, output.shard_name(shard)))
            shards.append(PlannedShard(name, last - first, int(plan.sizes[shard]), *first_and_last_key))
    return CreateResult(
        dataset_file=run.dataset_file,
        shards=len(shards),
        kept=0,
        samples=sum(shard.samples for shard in shards),
        skipped=skipped,
        size=sum(shard.size for shard in shards),
        seconds=time.time() - run.started,
        fingerprint="",
        notes=tuple(run.notes.texts),
        changes=planned.changes,
        dry_run=True,
        planned=tuple(shards),
        joined=describe_join(planned.listed.listing, run.options),
    )
