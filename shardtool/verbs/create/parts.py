"""Parts of a run, and their merge into one dataset.

Parts do not communicate. Each computes the whole plan, writes its own shards, and leaves a record with the
fingerprint of that plan. The part that finds all records publishes the dataset file. It holds the lock that all
parts share, exclusively, so no part runs during a merge.
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
from shardtool.entries.arrow import ipc_stream
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputExists,
    SampleFailed,
    format_list,
)
from shardtool.fingerprint import format_fingerprint
from shardtool.messages import option_text
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import ShardPattern, sidecar_name
from shardtool.plan.shard_task import hash_columns
from shardtool.publish import listed_files, part_records
from shardtool.publish.append_target import remaining_names
from shardtool.publish.destination import Destination
from shardtool.publish.join_datasets import join_parts
from shardtool.publish.part_records import PartRecord
from shardtool.publish.publish_dataset import check_fingerprint
from shardtool.publish.publisher import Publisher, remove_staged
from shardtool.publish.skipped_list import encode_skipped
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
    from shardtool.verbs.create.run import Run, RunOutput


_SHOWN_DIGITS = 8  # of a plan's fingerprint


_MAX_COMPARED_PARTS = 8  # parts that show whether others have the same plan


def _encode_plan(plan: Plan, made: RunRecord) -> Iterator[bytes | memoryview]:
    """Yield what a whole plan says, some samples at a time: parts of one plan make one dataset.

    As in the plan fingerprint of a shard, there is no time in it and no folder. No copy of its columns is made.

    Args:
        plan: The plan of all parts, with all that it leaves out.
        made: How the dataset is made.
    """
    e, values, spans = plan.entries, plan.entries.values, plan.entries.spans
    facts = [plan.format, e.fields, made.document, values.numbers, values.lists, values.classes, [*values.inline]]
    yield json.dumps(facts).encode()
    yield encode_skipped(plan.skipped)
    columns = [e.first, e.rows.code, e.rows.size, plan.order, plan.ends, None if spans is None else spans.expected]
    for column in columns:
        yield b"" if column is None else np.ascontiguousarray(column).data.cast("B")
    texts: list[StringColumn] = [e.keys, *([] if e.rows.paths is None else [e.rows.paths]), *values.inline.values()]
    for text in texts:
        for some in chunk_slices(len(text)):
            yield text.span(some.start, some.stop)
    rows = pa.table({}) if e.metadata is None else e.metadata
    for some in chunk_slices(len(rows)):
        yield memoryview(ipc_stream(rows[some]))


def start_part(run: Run, output: RunOutput, mine: RunPart) -> None:
    """Begin a part, under its lock: it has no record until it ends.

    Raises:
        InvalidRequest: Parts that have ended are of another plan, and this one does not go on with what is there.
    """
    there, pattern, plans = output.destination, output.pattern, []
    for part in [one for one in part_records.find_part_records(pattern, there.folder.names())[0] if one != mine][
        :_MAX_COMPARED_PARTS
    ]:
        with suppress(CorruptShard):  # a merge names it
            plans.append(_get_part_plan(part_records.read_part_record(there.folder, pattern, part)))
    made = run.record(output)
    output.plan_fingerprint = hash_columns(b"shardtool parts 1", _encode_plan(output.plan, made))
    found, expected = _find_other_plan([*plans, (mine, output.plan_fingerprint, made)])
    if found and not there.resumes:
        remedy = "Run all parts over the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    if found:
        run.notes.add(f"{found}; expected {expected}: all of one plan make a dataset, so run the others again, too")
    output.publisher.begin()


def finish_part(run: Run, output: RunOutput, part: RunPart) -> DatasetFile:
    """Leave the record of a part, whose shards are published; return what the dataset file is to say of these.

    Where that is there and says it already, it stays, unless another part finds that it is to say something else.
    """
    there, planned, made = output.destination, output.plan.shards, run.record(output)
    skipped, shards = sort_rows(output.totals.skipped), part.shards(planned)
    dataset = build_dataset_file(output.totals, there.pattern, skipped, made)
    if shards:
        dataset = replace(dataset, pattern=to_output_name(remaining_names(output.pattern, shards.start).text))
    content = run.listed.digest if len(run.outputs) == 1 else None  # what all parts together must have
    record = PartRecord(
        part=part,
        plan=output.plan_fingerprint,
        planned=planned,
        resumed=there.resumes,
        content="" if content is None else format_fingerprint(content),
        dataset=dataset if shards else None,
        skipped=tuple(skipped),
    )
    old = read_valid_dataset(there.dataset_file)
    output.publisher.finish_part(record, stays=old is not None and old.made == made and _contains_part(old, record))
    return dataset


def _contains_part(dataset: DatasetFile, record: PartRecord) -> bool:
    """Tell whether a dataset has the shards of a part, of as many in all, and was made as that was."""
    own, found = record.part.shards(record.planned), () if record.dataset is None else record.dataset.shards
    made = record.dataset is None or record.dataset.made == dataset.made
    return made and len(dataset.shards) == record.planned and dataset.shards[own.start : own.stop] == found


def merge_if_last(output: Destination, notes: Notes) -> bool:
    """Publish the dataset file, if all parts have left their records; return whether it is there.

    Of parts that end at once, one finds all records and no other at work: the last to give its lock back, or one
    before it that found the same.

    Raises:
        InvalidRequest: Parts are of different plans.
        CorruptShard: What a part has left is damaged.
        OutputExists: There are shards of no part.
    """
    folder, pattern = output.folder, output.pattern
    if (state := _find_merge_state(output)) is not None:
        if not state and output.part is not None:
            ended, parts = len(part_records.find_part_records(pattern, folder.names())[0]), output.part.parts
            notes.add(f"{ended:,} of {parts:,} parts have ended; the dataset file is published after the last")
        return state
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.lock(pattern.base))
        except OutputExists:
            notes.add("all parts have left their records; a run that holds the lock of the dataset publishes its file")
            return False
        if (state := _find_merge_state(output)) is not None:  # another has merged, or a part was begun again
            return state
        _merge_locked(folder, pattern)
    return True


def _find_merge_state(output: Destination) -> bool | None:
    """Return whether the dataset file is there, with records that stay or gone; None: all records wait for a merge.

    Where only some parts have left a record beside a dataset file, others may yet find a source that has changed.
    """
    names = output.folder.names()
    ended, _ = part_records.find_part_records(output.pattern, names)
    all_ended = output.part is not None and len(ended) >= output.part.parts
    return None if all_ended else output.pattern.dataset_file in names


def merge_parts(folder: OutputFolder, pattern: ShardPattern, observer: Observer) -> IndexResult:
    """Publish the dataset file of parts that have all ended, and remove their records.

    Raises:
        InvalidRequest: Parts are missing, did not end, or are of different plans. Nothing was touched.
        CorruptShard: What a part has left is damaged.
        OutputExists: There are shards of no part, or a part is running.
        OutputFailed: The file system refuses.
    """
    with folder.lock(pattern.base):
        parts, dataset = _merge_locked(folder, pattern)
    return make_merge_result(folder, pattern, parts, dataset, observer)


def make_merge_result(
    folder: OutputFolder, pattern: ShardPattern, parts: int, dataset: DatasetFile, observer: Observer
) -> IndexResult:
    """Return what a merge has made of so many parts, once the observer knows it."""
    samples = sum(shard.samples for shard in dataset.shards)
    note = f"{pluralize(samples, 'sample')} of {pluralize(parts, 'part')}"
    observer.note(note)
    where, shards = folder.full_path(pattern.dataset_file), len(dataset.shards)
    return IndexResult(where, shards, shards, samples, (note,))


def _merge_locked(folder: OutputFolder, pattern: ShardPattern) -> tuple[int, DatasetFile]:
    """Make one dataset of all parts, under its lock; return how many there were, and what its file says."""
    ended, begun = part_records.find_part_records(pattern, folder.names())
    if (there := listed_files.read_existing_dataset(folder, pattern.dataset_file)) is not None:
        return _finish_earlier_merge(folder, pattern, ended, there)
    counts = {part.parts for part in (*ended, *begun)}
    known = {part.number for part in ended}
    killed = [str(part) for part in begun if part.number not in known]
    missing = [f"{n}/{count}" for count in counts for n in range(1, count + 1) if n not in known]
    missing = [one for one in missing if one not in killed]
    check_all_finished(pattern.text, counts, killed, missing, option_text("if_exists", "resume"))
    left = [part_records.read_part_record(folder, pattern, part) for part in ended]
    _check_one_plan(left, pattern)
    files = [record.dataset for record in left if record.dataset is not None]
    existing = folder.facts(name for name in folder.names() if pattern.owns(name))
    for record in left:
        _check_part_files(folder, pattern, record, existing)
    names = [pattern.shard(number) for number in range(left[0].planned)]
    stale = sorted({*existing} - {*names, *map(sidecar_name, names), pattern.skipped_file})
    if stale and not any(record.resumed for record in left):
        found = f"{pluralize(len(stale), 'file')} of this pattern that no part has made: {format_list(stale, 3)}"
        raise OutputExists(folder.path or ".", found, remedy="Move them away, and merge again.")
    skipped = sort_rows(one for record in left for one in record.skipped)
    dataset = join_parts(files, skipped, pattern)
    if left[0].content and not skipped:
        check_fingerprint(dataset.made.source, dataset.fingerprint, left[0].content)
    if not any(shard.samples for shard in dataset.shards):
        problem = f"no part could pack a sample: {count_reasons(skipped)}"
        raise SampleFailed(pattern.text, problem, remedy="No dataset file was written.")
    output = Destination(folder, pattern, "resume", existing)
    remove_staged(output)
    Publisher(output).finish(names, dataset.encode(), skipped)
    return len(ended), dataset


def _finish_earlier_merge(
    folder: OutputFolder, pattern: ShardPattern, ended: Sequence[RunPart], dataset: DatasetFile
) -> tuple[int, DatasetFile]:
    """Return a dataset that is there: a merge was killed when it removed records, or another came first."""
    others = [
        str(part) for part in ended if not _contains_part(dataset, part_records.read_part_record(folder, pattern, part))
    ]
    if others:
        found = f"a dataset file of other shards than the parts {format_list(others)} have left"
        raise OutputExists(folder.full_path(pattern.dataset_file), found, remedy="Move it away, and merge again.")
    part_records.remove_part_records(folder, pattern)
    return len(ended), dataset


def check_all_finished(where: str, counts: Collection[int], open_: list[str], missing: list[str], how: str) -> None:
    """Refuse to make a dataset of less than all parts, and say which are missing.

    Args:
        where: The dataset's pattern.
        counts: Of how many each part is one.
        open_: The parts that were begun and did not end.
        missing: Those of which nothing is there.
        how: The option by which a part goes on.

    Raises:
        InvalidRequest: Parts are missing, or of different runs.
    """
    if len(counts) > 1:
        found = f"parts of runs of {format_list([str(count) for count in sorted(counts)])} parts"
        raise InvalidRequest(where, found, expected="those of one run", remedy="Move the others away.")
    wrong = [f"did not end: {format_list(open_)}"] if open_ else []
    wrong += [f"missing: {format_list(missing)}"] if missing else []
    if wrong:
        remedy = f"Write these to their end, with {how} where they were killed, and merge again."
        raise InvalidRequest(where, f"parts: {'; '.join(wrong)}", expected="all of them, each ended", remedy=remedy)


_PartPlan = tuple[
    "RunPart", str, "RunRecord | None"
]  # of a part; how its dataset is made, if it has shards that say it


def _get_part_plan(record: PartRecord) -> _PartPlan:
    return record.part, record.plan, None if record.dataset is None else record.dataset.made


def _find_other_plan(parts: Sequence[_PartPlan]) -> tuple[str, str]:
    """Return which parts are of another plan than most, and what most are of; empty texts: all are of one."""
    ((plan, most),) = Counter(plan for _, plan, _ in parts).most_common(1)
    odd = [one for one in parts if one[1] != plan]
    if not odd:
        return "", ""
    usual = next(made for _, one, made in parts if one == plan)
    _, other, made = odd[0]
    found = f"another plan in {format_list([str(part) for part, *_ in odd])}: {_describe_difference(usual, made)} ({other[:_SHOWN_DIGITS]})"
    return found, f"the plan of the other {pluralize(most, 'part')} ({plan[:_SHOWN_DIGITS]})"


def _describe_difference(before: RunRecord | None, now: RunRecord | None) -> str:
    """Say in which of what was asked for two parts differ, as far as is known."""
    if before is None or now is None:
        return "another source, or other options"
    then, asked = before.options, now.options
    names = [option_text(name) for name in {**then, **asked} if then.get(name) != asked.get(name)]
    if names:
        return f"other options: {format_list(names)}"
    if before.source != now.source:
        return f"the source {now.source}, not {before.source}"
    return "other samples in the source" if before.document == now.document else f"{now.verb} by {now.tool}"


def _check_one_plan(left: Sequence[PartRecord], pattern: ShardPattern) -> None:
    """Refuse parts that saw different sources, or were asked for different things."""
    found, expected = _find_other_plan([*map(_get_part_plan, left)])
    if found:
        remedy = (
            f"Run these again with {option_text('if_exists', 'resume')}, over the same source with the same options."
        )
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    made = [record.dataset.made for record in left if record.dataset is not None]
    if len({(record.planned, record.content) for record in left}) > 1 or any(one != made[0] for one in made):
        raise CorruptShard(pattern.text, "records of one plan that do not say the same of it")


def _check_part_files(
    folder: OutputFolder, pattern: ShardPattern, record: PartRecord, existing: Mapping[str, EntryInfo]
) -> None:
    """Check that the shards of a part are there, by their sizes, and their sidecars, by their checksums and content."""
    dataset, content = record.dataset, list[int | None]()
    for shard in () if dataset is None else dataset.shards:
        try:
            listed_files.check_file_size(folder, to_local_name(shard.name), shard.size, existing)
            index = listed_files.read_listed_sidecar(folder, shard, existing)
            content.append(index.fingerprint() if dataset is not None and dataset.format == "tar" else None)
        except CorruptShard as error:
            expected = error.expected.partition(", as ")[0] or "its sidecar"
            raise _part_file_error(error.where, record.part, error.found, expected) from None
    found = format_fingerprint(sum(one for one in content if one is not None))
    is_known = dataset is not None and dataset.format == "tar" and None not in content
    if dataset is not None and is_known and found != dataset.fingerprint:
        where = folder.full_path(part_records.part_record_name(pattern, record.part))
        raise _part_file_error(
            where, record.part, f"the fingerprint {dataset.fingerprint}", f"{found}, that of the sidecars"
        )


def _part_file_error(where: str, part: RunPart, found: str, expected: str) -> CorruptShard:
    remedy = f"Run {option_text('part', str(part))} again with {option_text('if_exists', 'resume')}."
    return CorruptShard(where, found, expected=f"{expected}, as the part {part} has left it", remedy=remedy)
