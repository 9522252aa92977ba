"""The parts of a run, and their merge into one dataset.

Parts do not communicate. Each computes the whole plan, writes its own shards, and leaves a record with the fingerprint
of that plan. The part that finds all records merges them, under an exclusive lock that excludes running parts.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import DatasetFile, read_valid_dataset
from shardtool.dataset.skipped_list import encode_skipped
from shardtool.entries.arrow import ipc_stream
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputExists,
    SampleFailed,
    format_list,
)
from shardtool.fingerprint import format_fingerprint
from shardtool.messages import flag_text, option_text
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import ShardPattern, sidecar_name
from shardtool.plan.shard_task import hash_columns
from shardtool.publish import listed_files, part_records
from shardtool.publish.append_target import remaining_names
from shardtool.publish.destination import Destination
from shardtool.publish.join_datasets import join_parts
from shardtool.publish.journal import Journal
from shardtool.publish.part_records import PartRecord
from shardtool.publish.publish_dataset import check_fingerprint, finish_dataset
from shardtool.publish.totals import build_dataset_file
from shardtool.request.results import IndexResult
from shardtool.skipped import count_reasons, sort_rows
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardtool.entries.strings import StringColumn
    from shardtool.plan.plan import Plan
    from shardtool.request.observer import Notes, Observer
    from shardtool.request.run_part import RunPart
    from shardtool.request.run_record import RunRecord
    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder
    from shardtool.verbs.create.run import PackedOutput, Planned, PlannedOutput


_SHOWN_DIGITS = 8


_MAX_COMPARED_PARTS = 8


def _encode_plan(plan: Plan, record: RunRecord) -> Iterator[bytes | memoryview]:
    entries, values, spans = plan.entries, plan.entries.values, plan.entries.spans
    facts = [
        plan.format,
        entries.fields,
        record.document,
        values.numbers,
        values.lists,
        values.classes,
        [*values.inline],
    ]
    yield json.dumps(facts).encode()
    yield encode_skipped(plan.skipped)
    columns = [
        entries.first,
        entries.rows.code,
        entries.rows.size,
        plan.order,
        plan.ends,
        None if spans is None else spans.expected,
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
        yield memoryview(ipc_stream(rows[chunk]))


def start_parts(planned: Planned, own_part: RunPart) -> Planned:
    """Delete the records of a part, because it is no longer finished; return the plans with their fingerprints."""
    outputs = [replace(output, plan_fingerprint=_start_part(planned, output, own_part)) for output in planned.outputs]
    return replace(planned, outputs=tuple(outputs))


def _start_part(planned: Planned, output: PlannedOutput, own_part: RunPart) -> str:
    destination, pattern, plans = output.destination, output.pattern, []
    for part in [
        part for part in part_records.find_part_records(pattern, destination.folder.names())[0] if part != own_part
    ][:_MAX_COMPARED_PARTS]:
        with suppress(CorruptShard):  # a merge reports the damaged record
            plans.append(_get_part_plan(part_records.read_part_record(destination.folder, pattern, part)))
    record = planned.listed.record(output)
    fingerprint = hash_columns(b"shardtool parts 1", _encode_plan(output.plan, record))
    found, expected = _find_other_plan([*plans, (own_part, fingerprint, record)])
    if found and not destination.resumes:
        remedy = "Run all parts on the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    if found:
        problem = f"{found}; expected {expected}"
        planned.run.notes.add(f"{problem}. Only parts of one plan can be merged: run the others again, too")
    if (name := part_records.part_record_name(pattern, own_part)) in destination.existing:
        destination.folder.remove([name])
    return fingerprint


def finish_part(run_plan: Planned, output: PackedOutput, part: RunPart) -> DatasetFile:
    """Write the record of a part; return a dataset file for its shards.

    A dataset file that already contains the part is kept.
    """
    planned, totals, listed = output.planned, output.totals, run_plan.listed
    destination, planned_shards, run_record = planned.destination, planned.plan.shards, listed.record(planned)
    skipped, shards = sort_rows(totals.skipped), part.shards(planned_shards)
    dataset = build_dataset_file(totals, destination.pattern, skipped, run_record)
    if shards:
        dataset = replace(dataset, pattern=to_output_name(remaining_names(destination.pattern, shards.start).text))
    content = listed.listing.digest if len(run_plan.outputs) == 1 else None
    record = PartRecord(
        part=part,
        plan=planned.plan_fingerprint,
        planned=planned_shards,
        resumed=destination.resumes,
        content="" if content is None else format_fingerprint(content),
        dataset=dataset if shards else None,
        skipped=tuple(skipped),
    )
    old_dataset = read_valid_dataset(destination.dataset_file)
    is_contained = old_dataset is not None and old_dataset.made == run_record and _contains_part(old_dataset, record)
    name = part_records.part_record_name(destination.pattern, part)
    staged = destination.folder.stage_bytes(name, record.encode())
    if not is_contained:
        output.publication.withdraw()
    destination.folder.publish(staged)
    Journal(destination.folder, name[1:]).remove()
    return dataset


def _contains_part(dataset: DatasetFile, record: PartRecord) -> bool:
    own_range, part_shards = record.part.shards(record.planned), () if record.dataset is None else record.dataset.shards
    is_same_run = record.dataset is None or record.dataset.made == dataset.made
    return (
        is_same_run
        and len(dataset.shards) == record.planned
        and dataset.shards[own_range.start : own_range.stop] == part_shards
    )


def merge_finished_parts(planned: Planned) -> bool:
    """Publish the dataset files of which all parts have records; return whether all dataset files exist."""
    merged = [merge_if_last(output.destination, planned.run.notes) for output in planned.outputs]
    return all(merged)


def merge_if_last(output: Destination, notes: Notes) -> bool:
    """Publish the dataset file if all parts have records; return whether it exists.

    If parts finish at the same time, at least one finds all records and no running part.
    """
    folder, pattern = output.folder, output.pattern
    if (state := _find_merge_state(output)) is not None:
        if not state and output.part is not None:
            finished, parts = len(part_records.find_part_records(pattern, folder.names())[0]), output.part.parts
            notes.add(f"{finished:,} of {parts:,} parts have finished; the last one publishes the dataset file")
        return state
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.lock(pattern.base))
        except OutputExists:
            notes.add("all parts have finished; another run holds the lock and publishes the dataset file")
            return False
        if (state := _find_merge_state(output)) is not None:
            return state
        _merge_locked(folder, pattern)
    return True


def _find_merge_state(output: Destination) -> bool | None:
    """Return whether the dataset file exists; None if all records are ready to be merged."""
    names = output.folder.names()
    finished, _ = part_records.find_part_records(output.pattern, names)
    all_finished = output.part is not None and len(finished) >= output.part.parts
    return None if all_finished else output.pattern.dataset_file in names


def merge_parts(folder: OutputFolder, pattern: ShardPattern, observer: Observer) -> IndexResult:
    """Publish the dataset file of finished parts, and delete their records.

    Raises:
        InvalidRequest: Parts are missing, unfinished, or have different plans. Nothing was changed.
        CorruptShard: Files of a part are damaged.
        OutputExists: Shards belong to no part, or a part is running.
        OutputFailed: The file system reports an error.
    """
    with folder.lock(pattern.base):
        parts, dataset = _merge_locked(folder, pattern)
    return make_merge_result(folder, pattern, parts, dataset, observer)


def make_merge_result(
    folder: OutputFolder, pattern: ShardPattern, parts: int, dataset: DatasetFile, observer: Observer
) -> IndexResult:
    """Return the result of a merge, and notify the observer."""
    samples = sum(shard.samples for shard in dataset.shards)
    note = f"{pluralize(samples, 'sample')} of {pluralize(parts, 'part')}"
    observer.note(note)
    where, shards = folder.full_path(pattern.dataset_file), len(dataset.shards)
    return IndexResult(where, shards, shards, samples, (note,))


def _merge_locked(folder: OutputFolder, pattern: ShardPattern) -> tuple[int, DatasetFile]:
    finished, started = part_records.find_part_records(pattern, folder.names())
    if (existing_dataset := listed_files.read_existing_dataset(folder, pattern.dataset_file)) is not None:
        return _finish_earlier_merge(folder, pattern, finished, existing_dataset)
    counts = {part.parts for part in (*finished, *started)}
    finished_numbers = {part.number for part in finished}
    interrupted = [str(part) for part in started if part.number not in finished_numbers]
    missing = [f"{n}/{count}" for count in counts for n in range(1, count + 1) if n not in finished_numbers]
    missing = [part_text for part_text in missing if part_text not in interrupted]
    check_all_finished(pattern.text, counts, interrupted, missing, flag_text("resume"))
    records = [part_records.read_part_record(folder, pattern, part) for part in finished]
    _check_one_plan(records, pattern)
    files = [record.dataset for record in records if record.dataset is not None]
    existing = folder.find_entries(name for name in folder.names() if pattern.owns(name))
    for record in records:
        _check_part_files(folder, pattern, record, existing)
    names = [pattern.shard(number) for number in range(records[0].planned)]
    stale = sorted({*existing} - {*names, *map(sidecar_name, names), pattern.skipped_file})
    if stale and not any(record.resumed for record in records):
        found = f"{pluralize(len(stale), 'file')} that match the pattern but belong to no part: {format_list(stale, 3)}"
        raise OutputExists(folder.path or ".", found, remedy="Move them to another folder and merge again.")
    skipped = sort_rows(row for record in records for row in record.skipped)
    dataset = join_parts(files, skipped, pattern)
    if records[0].content and not skipped:
        check_fingerprint(dataset.made.source, dataset.fingerprint, records[0].content)
    if not any(shard.samples for shard in dataset.shards):
        problem = f"no part packed a sample: {count_reasons(skipped)}"
        raise SampleFailed(pattern.text, problem, remedy="No dataset file was written.")
    output = Destination(folder, pattern, "resume", existing)
    output.discard_staged()
    finish_dataset(output.open_publication(), output, names, dataset, skipped)
    return len(finished), dataset


def _finish_earlier_merge(
    folder: OutputFolder, pattern: ShardPattern, finished: Sequence[RunPart], dataset: DatasetFile
) -> tuple[int, DatasetFile]:
    others = [
        str(part)
        for part in finished
        if not _contains_part(dataset, part_records.read_part_record(folder, pattern, part))
    ]
    if others:
        found = f"a dataset file that does not match parts {format_list(others)}"
        raise OutputExists(
            folder.full_path(pattern.dataset_file), found, remedy="Move it to another folder and merge again."
        )
    folder.remove(part_records.list_run_files(folder, pattern))
    return len(finished), dataset


def check_all_finished(
    where: str, counts: Collection[int], unfinished: list[str], missing: list[str], resume_option: str
) -> None:
    """Refuse to merge before all parts have finished. `counts` are the total numbers in the part names."""
    if len(counts) > 1:
        found = f"parts of runs of {format_list([str(count) for count in sorted(counts)])} parts"
        raise InvalidRequest(
            where, found, expected="parts of one run", remedy="Move the files of other runs to another folder."
        )
    problems = [f"not finished: {format_list(unfinished)}"] if unfinished else []
    problems += [f"missing: {format_list(missing)}"] if missing else []
    if problems:
        remedy = f"Run these parts, with {resume_option} if they were interrupted, and merge again."
        raise InvalidRequest(where, f"parts: {'; '.join(problems)}", expected="all parts finished", remedy=remedy)


_PartPlan = tuple["RunPart", str, "RunRecord | None"]  # part, plan fingerprint, run record if the part has shards


def _get_part_plan(record: PartRecord) -> _PartPlan:
    return record.part, record.plan, None if record.dataset is None else record.dataset.made


def _find_other_plan(parts: Sequence[_PartPlan]) -> tuple[str, str]:
    """Return the parts that differ from the most frequent plan, and that plan; empty if all agree."""
    ((plan, count),) = Counter(plan for _, plan, _ in parts).most_common(1)
    others = [part_plan for part_plan in parts if part_plan[1] != plan]
    if not others:
        return "", ""
    usual_record = next(record for _, part_plan, record in parts if part_plan == plan)
    _, other_plan, record = others[0]
    found = (
        f"another plan in {format_list([str(part) for part, *_ in others])}: "
        f"{_describe_difference(usual_record, record)} ({other_plan[:_SHOWN_DIGITS]})"
    )
    return found, f"the plan of the other {pluralize(count, 'part')} ({plan[:_SHOWN_DIGITS]})"


def _describe_difference(before: RunRecord | None, now: RunRecord | None) -> str:
    if before is None or now is None:
        return "another source, or other options"
    old_options, new_options = before.options, now.options
    names = [
        option_text(name) for name in {**old_options, **new_options} if old_options.get(name) != new_options.get(name)
    ]
    if names:
        return f"other options: {format_list(names)}"
    if before.source != now.source:
        return f"source {now.source} instead of {before.source}"
    return "other samples in the source" if before.document == now.document else f"{now.verb} with {now.tool}"


def _check_one_plan(records: Sequence[PartRecord], pattern: ShardPattern) -> None:
    found, expected = _find_other_plan([*map(_get_part_plan, records)])
    if found:
        remedy = f"Run these again with {flag_text('resume')}, on the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    run_records = [record.dataset.made for record in records if record.dataset is not None]
    if len({(record.planned, record.content) for record in records}) > 1 or any(
        run_record != run_records[0] for run_record in run_records
    ):
        raise CorruptShard(pattern.text, "part records that contradict each other")


def _check_part_files(
    folder: OutputFolder, pattern: ShardPattern, record: PartRecord, existing: Mapping[str, EntryInfo]
) -> None:
    dataset, content = record.dataset, list[int | None]()
    for shard in () if dataset is None else dataset.shards:
        try:
            listed_files.check_file_size(folder, to_local_name(shard.name), shard.size, existing)
            index = listed_files.read_listed_sidecar(folder, shard, existing)
            content.append(index.fingerprint() if dataset is not None and dataset.format == "tar" else None)
        except CorruptShard as error:
            expected = error.expected.partition(", as ")[0] or "its sidecar"
            raise _part_file_error(error.where, record.part, error.found, expected) from None
    found = format_fingerprint(sum(shard_content for shard_content in content if shard_content is not None))
    is_known = dataset is not None and dataset.format == "tar" and None not in content
    if dataset is not None and is_known and found != dataset.fingerprint:
        where = folder.full_path(part_records.part_record_name(pattern, record.part))
        raise _part_file_error(where, record.part, f"fingerprint {dataset.fingerprint}", f"{found} as in the sidecars")


def _part_file_error(where: str, part: RunPart, found: str, expected: str) -> CorruptShard:
    remedy = f"Run {option_text('part', str(part))} again with {flag_text('resume')}."
    return CorruptShard(where, found, expected=f"{expected}, as part {part} recorded", remedy=remedy)
