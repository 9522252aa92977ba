"""Parts of a run become one dataset: each leaves a record beside its shards, and one dataset file takes their place.

Parts say nothing to each other. Each makes the whole plan, writes the shards that are its own, and records which plan
that was. Shards of one plan are those of one machine, so their dataset file is, too. The one that finds all records
publishes it, under the lock that every part shares and only a merge holds alone: no part runs then.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import reduce
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import read_dataset
from shardtool.entries.arrow import ipc_stream
from shardtool.errors import Bug, CorruptShard, InvalidRequest, OutputExists, SampleFailed, listing
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.pattern import sidecar_name
from shardtool.publish import records
from shardtool.publish.publisher import Destination, Publisher, clean, names_left
from shardtool.publish.records import PartRecord
from shardtool.request.results import IndexResult
from shardtool.skipped import in_order, reasons
from shardtool.values import counted, local_name, output_text
from shardtool.verbs.create.append import joined
from shardtool.verbs.create.result import check_fingerprint, dataset_of
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.names import Texts
    from shardtool.pattern import ShardPattern
    from shardtool.plan.plan import Plan
    from shardtool.request.results import Notes, Observer, RunRecord
    from shardtool.request.texts import Part
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import FileFact
    from shardtool.verbs.create.run import Output, Run

_CHUNK = 2**16  # samples at a time
_SHOWN = 8  # of a plan's fingerprint
_LOOKED_AT = 8  # parts that show whether others have the same plan


def plan_fingerprint(plan: Plan, made: RunRecord) -> str:
    """Return a hash of a whole plan: parts of one plan make one dataset.

    As in the plan fingerprint of a shard, there is no time in it and no folder.

    Args:
        plan: The plan of all parts, with all that it leaves out.
        made: How the dataset is made.
    """
    digest = blake2b(b"shardtool parts 1", digest_size=16)
    for one in _plan_bytes(plan, made):
        digest.update(b"%d:" % memoryview(one).nbytes)
        digest.update(one)
    return digest.hexdigest()


def _plan_bytes(plan: Plan, made: RunRecord) -> Iterator[bytes | memoryview]:
    """Yield what a plan says, some samples at a time: no copy of its columns is made."""
    e, values, spans = plan.entries, plan.entries.values, plan.entries.spans
    facts = [plan.format, e.fields, made.document, values.numbers, values.lists, values.classes, [*values.inline]]
    yield json.dumps(facts).encode()
    yield records.encode_skipped(plan.skipped)
    columns = [e.first, e.rows.code, e.rows.size, plan.order, plan.ends, None if spans is None else spans.expected]
    for column in columns:
        yield b"" if column is None else np.ascontiguousarray(column).data.cast("B")
    texts: list[Texts] = [e.keys, *([] if e.rows.paths is None else [e.rows.paths]), *values.inline.values()]
    for text in texts:
        for first in range(0, len(text), _CHUNK):
            yield text.span(first, min(first + _CHUNK, len(text)))
    rows = pa.table({}) if e.metadata is None else e.metadata
    for first in range(0, len(rows), _CHUNK):
        yield memoryview(ipc_stream(rows.slice(first, _CHUNK)))


def begin_part(run: Run, output: Output) -> None:
    """Begin a part, under its lock: it has no record until it ends.

    Raises:
        InvalidRequest: Parts that have ended are of another plan, and this one does not go on with what is there.
    """
    there, pattern, plans = output.destination, output.pattern, []
    if there.own is None:
        raise Bug(pattern.text, "a part of nothing")
    mine = there.own.part
    for part in [one for one in records.find_parts(pattern, there.folder.names())[0] if one != mine][:_LOOKED_AT]:
        with suppress(CorruptShard):  # a merge names it
            plans.append(_plan_of(records.read_record(there.folder, pattern, part)))
    output.part_plan = plan_fingerprint(output.plan, run.record(output))
    found, expected = _another_plan([*plans, (mine, output.part_plan, run.record(output))])
    if found and not there.resumes:
        remedy = "Run all parts over the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    if found:
        run.notes.add(f"{found}; expected {expected}: all of one plan make a dataset, so run the others again, too")
    output.publisher.begin()


def end_part(run: Run, output: Output) -> DatasetFile:
    """Leave the record of a part, whose shards are published; return what the dataset file is to say of these.

    Where that is there and says it already, it stays, unless another part finds that it is to say something else.
    """
    there, planned, made = output.destination, output.plan.shards, run.record(output)
    if there.own is None:
        raise Bug(output.pattern.text, "a part of nothing")
    skipped, shards = in_order(output.totals.skipped), there.own.part.shards(planned)
    dataset = dataset_of(output.totals, there.pattern, skipped, made)
    if shards:
        dataset = replace(dataset, pattern=output_text(names_left(output.pattern, shards.start).text))
    content = run.listed.digest if len(run.outputs) == 1 else None  # what all parts together must have
    record = PartRecord(
        part=there.own.part,
        plan=output.part_plan,
        planned=planned,
        resumed=there.resumes,
        content="" if content is None else show_fingerprint(content),
        dataset=dataset if shards else None,
        skipped=tuple(skipped),
    )
    old = records.read_there(there.folder, output.pattern.dataset_file)
    output.publisher.end_part(record, stays=old is not None and old.made == made and _is_in(old, record))
    return dataset


def _is_in(dataset: DatasetFile, record: PartRecord) -> bool:
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
    if (state := _state(output)) is not None:
        if not state and output.own is not None:
            ended, parts = len(records.find_parts(pattern, folder.names())[0]), output.own.part.parts
            notes.add(f"{ended:,} of {parts:,} parts have ended; the dataset file is published after the last")
        return state
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.lock(pattern.base))
        except OutputExists:
            notes.add("all parts have left their records; a run that holds the lock of the dataset publishes its file")
            return False
        if (state := _state(output)) is not None:  # another has merged, or a part was begun again
            return state
        _merge(folder, pattern)
    return True


def _state(output: Destination) -> bool | None:
    """Return whether the dataset file is there, with records that stay or gone; None: all records wait for a merge.

    Where only some parts have left a record beside a dataset file, others may yet find a source that has changed.
    """
    names = output.folder.names()
    ended, _ = records.find_parts(output.pattern, names)
    all_ended = output.own is not None and len(ended) >= output.own.part.parts
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
        parts, dataset = _merge(folder, pattern)
    return merge_result(folder, pattern, parts, dataset, observer)


def merge_result(
    folder: OutputFolder, pattern: ShardPattern, parts: int, dataset: DatasetFile, observer: Observer
) -> IndexResult:
    """Return what a merge has made of so many parts, once the observer knows it."""
    samples = sum(shard.samples for shard in dataset.shards)
    note = f"{counted(samples, 'sample')} of {counted(parts, 'part')}"
    observer.note(note)
    where, shards = folder.full_path(pattern.dataset_file), len(dataset.shards)
    return IndexResult(where, shards, shards, samples, (note,))


def _merge(folder: OutputFolder, pattern: ShardPattern) -> tuple[int, DatasetFile]:
    """Make one dataset of all parts, under its lock; return how many there were, and what its file says."""
    ended, begun = records.find_parts(pattern, folder.names())
    if pattern.dataset_file in folder.facts([pattern.dataset_file]):
        return _merged_before(folder, pattern, ended)
    counts = {part.parts for part in (*ended, *begun)}
    known = {part.number for part in ended}
    killed = [str(part) for part in begun if part.number not in known]
    missing = [f"{n}/{count}" for count in counts for n in range(1, count + 1) if n not in known]
    missing = [one for one in missing if one not in killed]
    check_all_ended(pattern.text, counts, killed, missing, option("if_exists", "resume"))
    left = [records.read_record(folder, pattern, part) for part in ended]
    _check_one_plan(left, pattern)
    files = [record.dataset for record in left if record.dataset is not None]
    existing = folder.facts(name for name in folder.names() if pattern.owns(name))
    for record in left:
        _check_files(folder, pattern, record, existing)
    names = [pattern.shard(number) for number in range(left[0].planned)]
    stale = sorted({*existing} - {*names, *map(sidecar_name, names), pattern.skipped_file})
    if stale and not any(record.resumed for record in left):
        found = f"{counted(len(stale), 'file')} of this pattern that no part has made: {listing(stale, 3)}"
        raise OutputExists(folder.path or ".", found, remedy="Move them away, and merge again.")
    skipped = in_order(one for record in left for one in record.skipped)
    dataset = joined_parts(files, skipped, pattern)
    if left[0].content and not skipped:
        check_fingerprint(dataset.made.source, dataset.fingerprint, left[0].content)
    if not any(shard.samples for shard in dataset.shards):
        problem = f"no part could pack a sample: {reasons(skipped)}"
        raise SampleFailed(pattern.text, problem, remedy="No dataset file was written.")
    output = Destination(folder, pattern, "resume", existing)
    clean(output)
    Publisher(output).finish(names, dataset.encode(), skipped)
    return len(ended), dataset


def _merged_before(folder: OutputFolder, pattern: ShardPattern, ended: Sequence[Part]) -> tuple[int, DatasetFile]:
    """Return a dataset that is there: a merge was killed when it removed records, or another came first."""
    where = folder.full_path(pattern.dataset_file)
    dataset = read_dataset(records.read_output(folder, pattern.dataset_file), where)
    others = [str(part) for part in ended if not _is_in(dataset, records.read_record(folder, pattern, part))]
    if others:
        found = f"a dataset file of other shards than the parts {listing(others)} have left"
        raise OutputExists(where, found, remedy="Move it away, and merge again.")
    records.remove_records(folder, pattern)
    return len(ended), dataset


def check_all_ended(where: str, counts: Collection[int], open_: list[str], missing: list[str], how: str) -> None:
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
        found = f"parts of runs of {listing([str(count) for count in sorted(counts)])} parts"
        raise InvalidRequest(where, found, expected="those of one run", remedy="Move the others away.")
    wrong = [f"did not end: {listing(open_)}"] if open_ else []
    wrong += [f"missing: {listing(missing)}"] if missing else []
    if wrong:
        remedy = f"Write these to their end, with {how} where they were killed, and merge again."
        raise InvalidRequest(where, f"parts: {'; '.join(wrong)}", expected="all of them, each ended", remedy=remedy)


_PlanOf = tuple["Part", str, "RunRecord | None"]  # of a part; how its dataset is made, if it has shards that say it


def _plan_of(record: PartRecord) -> _PlanOf:
    return record.part, record.plan, None if record.dataset is None else record.dataset.made


def _another_plan(parts: Sequence[_PlanOf]) -> tuple[str, str]:
    """Return which parts are of another plan than most, and what most are of; empty texts: all are of one."""
    ((plan, most),) = Counter(plan for _, plan, _ in parts).most_common(1)
    odd = [one for one in parts if one[1] != plan]
    if not odd:
        return "", ""
    usual = next(made for _, one, made in parts if one == plan)
    _, other, made = odd[0]
    found = f"another plan in {listing([str(part) for part, *_ in odd])}: {_difference(usual, made)} ({other[:_SHOWN]})"
    return found, f"the plan of the other {counted(most, 'part')} ({plan[:_SHOWN]})"


def _difference(before: RunRecord | None, now: RunRecord | None) -> str:
    """Say in which of what was asked for two parts differ, as far as is known."""
    if before is None or now is None:
        return "another source, or other options"
    then, asked = before.options, now.options
    names = [option(name) for name in {**then, **asked} if then.get(name) != asked.get(name)]
    if names:
        return f"other options: {listing(names)}"
    if before.source != now.source:
        return f"the source {now.source}, not {before.source}"
    return "other samples in the source" if before.document == now.document else f"{now.verb} by {now.tool}"


def _check_one_plan(left: Sequence[PartRecord], pattern: ShardPattern) -> None:
    """Refuse parts that saw different sources, or were asked for different things."""
    found, expected = _another_plan([*map(_plan_of, left)])
    if found:
        remedy = f"Run these again with {option('if_exists', 'resume')}, over the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    made = [record.dataset.made for record in left if record.dataset is not None]
    if len({(record.planned, record.content) for record in left}) > 1 or any(one != made[0] for one in made):
        raise CorruptShard(pattern.text, "records of one plan that do not say the same of it")


def _check_files(
    folder: OutputFolder, pattern: ShardPattern, record: PartRecord, existing: Mapping[str, FileFact]
) -> None:
    """Check that the shards of a part are there, by their sizes, and their sidecars, by their checksums and content."""
    dataset, content = record.dataset, list[int | None]()
    for shard in () if dataset is None else dataset.shards:
        name = local_name(shard.name)
        fact = existing.get(name)
        if fact is None or fact.size != shard.size:
            problem = "no such file" if fact is None else f"{fact.size:,} bytes"
            raise _not_left(folder.full_path(name), record.part, problem, f"{shard.size:,} bytes")
        try:
            index = records.read_listed(folder, shard, existing)
            content.append(index.fingerprint() if dataset is not None and dataset.format == "tar" else None)
        except CorruptShard as error:
            expected = error.expected.partition(", as ")[0] or "its sidecar"
            raise _not_left(error.where, record.part, error.found, expected) from None
    found = show_fingerprint(sum(one for one in content if one is not None))
    is_known = dataset is not None and dataset.format == "tar" and None not in content
    if dataset is not None and is_known and found != dataset.fingerprint:
        where = folder.full_path(records.record_name(pattern, record.part))
        raise _not_left(where, record.part, f"the fingerprint {dataset.fingerprint}", f"{found}, that of the sidecars")


def _not_left(where: str, part: Part, found: str, expected: str) -> CorruptShard:
    remedy = f"Run {option('part', str(part))} again with {option('if_exists', 'resume')}."
    return CorruptShard(where, found, expected=f"{expected}, as the part {part} has left it", remedy=remedy)


def joined_parts(files: Sequence[DatasetFile], skipped: Sequence[Skipped], pattern: ShardPattern) -> DatasetFile:
    """Return what the dataset file says of the shards of all parts, in their order: what one machine's says."""
    dataset, rows = reduce(joined, files), records.encode_skipped(skipped)
    return replace(
        dataset,
        pattern=output_text(pattern.text),
        made=files[0].made,
        appends=(),
        skipped=len(skipped),
        skipped_crc=crc32c(rows) if rows else None,
    )
