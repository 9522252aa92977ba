"""Write one part of a run (`--part`).

Each part plans the whole dataset, and writes its own shards and a record with the plan's fingerprint. The part that
finds all records merges the parts.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import DatasetFile, read_valid_dataset
from shardtool.dataset.skipped_list import encode_skipped
from shardtool.entries.arrow import hashable_stream
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists
from shardtool.fingerprint import format_fingerprint
from shardtool.names import to_output_name
from shardtool.plan.shard_task import hash_columns
from shardtool.publish import parts
from shardtool.publish.append_target import remaining_names
from shardtool.publish.journal import Journal
from shardtool.publish.merge_parts import contains_part, describe_other_plan, get_part_plan, merge_run_parts
from shardtool.publish.parts import PartRecord
from shardtool.publish.totals import build_dataset_file
from shardtool.skipped import sort_rows
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from shardtool.entries.strings import StringColumn
    from shardtool.pack.run import PackedOutput, Planned, PlannedOutput
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.request.observer import Notes
    from shardtool.request.run_part import RunPart
    from shardtool.request.run_record import RunRecord


_MAX_COMPARED_PARTS = 8


def _encode_plan(plan: Plan, record: RunRecord) -> Iterator[bytes | memoryview]:
    entries, values, spans = plan.entries, plan.entries.values, plan.entries.spans
    facts = [plan.format, entries.fields, record.document, values.numbers, values.lists, values.classes]
    yield json.dumps([*facts, [*values.inline]]).encode()
    yield encode_skipped(plan.skipped)
    columns = [
        entries.first_rows,
        entries.rows.code,
        entries.rows.size,
        plan.order,
        plan.ends,
        None if spans is None else spans.crc,
    ]
    for column in columns:
        yield b"" if column is None else np.ascontiguousarray(column).data.cast("B")
    texts: list[StringColumn] = [
        entries.keys,
        *([] if entries.rows.paths is None else [entries.rows.paths]),
        *values.inline.values(),
    ]
    for text in texts:
        for chunk in chunk_slices(len(text)):
            yield text.span(chunk.start, chunk.stop)
    rows = pa.table({}) if entries.metadata is None else entries.metadata
    for chunk in chunk_slices(len(rows)):
        yield hashable_stream(rows[chunk])


def start_parts(planned: Planned, own_part: RunPart) -> Planned:
    """Delete the record of an earlier run of this part. Return `planned` with plan fingerprints."""
    outputs = [replace(output, plan_fingerprint=_start_part(planned, output, own_part)) for output in planned.outputs]
    return replace(planned, outputs=tuple(outputs))


def _start_part(planned: Planned, output: PlannedOutput, own_part: RunPart) -> str:
    destination, pattern, plans = output.destination, output.pattern, []
    finished, _ = parts.find_run_parts(pattern, destination.folder.names())
    for part in [part for part in finished if part != own_part][:_MAX_COMPARED_PARTS]:
        with suppress(CorruptShard):
            plans.append(get_part_plan(parts.read_part_record(destination.folder, pattern, part)))
    record = planned.listed.record(output)
    fingerprint = hash_columns(b"shardtool parts 1", _encode_plan(output.plan, record))
    found, expected = describe_other_plan([*plans, (own_part, fingerprint, record)])
    if found and not destination.resumes:
        remedy = "Run all parts on the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    if found:
        problem = f"{found}; expected {expected}"
        planned.run.notes.add(f"{problem}. Only parts of one plan can be merged: run the other parts again, too")
    if (name := parts.part_record_name(pattern, own_part)) in destination.existing:
        destination.folder.remove([name])
    return fingerprint


def finish_part(planned: Planned, output: PackedOutput, part: RunPart) -> DatasetFile:
    """Write the record of a finished part, and return a dataset that contains only this part.

    Delete an existing dataset file, unless it contains this part with the same content.
    """
    planned_output, totals, listed = output.planned, output.totals, planned.listed
    destination, planned_shards = planned_output.destination, planned_output.plan.shards
    run_record = listed.record(planned_output)
    skipped, shards = sort_rows(totals.skipped), part.shards(planned_shards)
    dataset = build_dataset_file(totals, destination.pattern, skipped, run_record)
    if shards:
        dataset = replace(dataset, pattern=to_output_name(remaining_names(destination.pattern, shards.start).text))
    content = listed.listing.digest if len(planned.outputs) == 1 else None
    record = PartRecord(
        part=part,
        plan=planned_output.plan_fingerprint,
        planned=planned_shards,
        resumed=destination.resumes,
        content="" if content is None else format_fingerprint(content),
        dataset=dataset if shards else None,
        skipped=tuple(skipped),
    )
    old_dataset = read_valid_dataset(destination.dataset_file)
    is_contained = old_dataset is not None and old_dataset.run == run_record and contains_part(old_dataset, record)
    staged = destination.folder.stage_bytes(parts.part_record_name(destination.pattern, part), record.encode())
    if not is_contained:
        output.publication.withdraw()
    destination.folder.publish(staged)
    Journal(destination.folder, f"{destination.pattern.base}.{part.tag}").remove()
    return dataset


def merge_finished_parts(planned: Planned) -> bool:
    """Call `merge_if_last` for each dataset. Return whether all dataset files exist."""
    merged = [merge_if_last(output.destination, planned.run.notes) for output in planned.outputs]
    return all(merged)


def merge_if_last(destination: Destination, notes: Notes) -> bool:
    """Merge the parts of a dataset if all have finished. Return whether the dataset file exists."""
    folder, pattern = destination.folder, destination.pattern
    names = folder.names()
    if not _all_parts_finished(destination, names):
        is_merged = pattern.dataset_file in names
        if not is_merged and destination.part is not None:
            finished, count = len(parts.find_run_parts(pattern, names)[0]), destination.part.parts
            notes.add(f"{finished:,} of {count:,} parts have finished; the last part publishes the dataset file")
        return is_merged
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.lock(pattern.base))
        except OutputExists:
            notes.add("all parts have finished; another run holds the lock and publishes the dataset file")
            return False
        names = folder.names()
        if not _all_parts_finished(destination, names):  # another run has merged them
            return pattern.dataset_file in names
        merge_run_parts(folder, pattern)
    return True


def _all_parts_finished(destination: Destination, names: Collection[str]) -> bool:
    finished, _ = parts.find_run_parts(destination.pattern, names)
    return destination.part is not None and len(finished) >= destination.part.parts
