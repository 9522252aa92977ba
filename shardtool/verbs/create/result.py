"""What a run tells: notes before shards are written, the dataset file of those that are there, the result; and parts.

Parts of a run leave a record each beside their shards, and one dataset file takes the place of all records.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, features_of, sound_dataset
from shardtool.entries.arrow import ipc_stream
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, SampleFailed, listing, memory_for, printable
from shardtool.fingerprint import crc32c, show_fingerprint, sum_fingerprints
from shardtool.interop.indexes import Export, cure, index_name, misreading
from shardtool.interop.readers import unopenable
from shardtool.pattern import ShardPattern, sidecar_name
from shardtool.plan.plan import Plan, hash_of
from shardtool.publish import records
from shardtool.publish.foreign_indexes import has_own_readme
from shardtool.publish.publisher import Destination, EndedAppend, Publisher, clean, names_left
from shardtool.publish.records import PartRecord, encode_skipped
from shardtool.request.results import AppendedPart, CreateResult, DryRun, IndexResult, PlannedShard, SplitResult
from shardtool.skipped import Skipped, in_order, reasons
from shardtool.values import chunks_of, counted, local_name, output_text, to_bytes
from shardtool.verbs.create.earlier import joined, with_shards
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardtool.entries.entries import Texts
    from shardtool.request.run_record import RunRecord
    from shardtool.request.settings import Notes, Observer
    from shardtool.request.texts import Part
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import FileFact
    from shardtool.verbs.create.run import Output, Run, Totals


# What the user should know of readers before shards are written: of their names, and of their folder.


_WORKERS = 8  # of a loader: a usual number
_LARGE = 2**28  # bytes of a dataset that is worth reading with several workers
_READERS = {"huggingface": "Hugging Face datasets"}


def loader_notes(outputs: Sequence[tuple[Destination, int]], sizes: Sequence[int]) -> Iterator[str]:
    """Yield which datasets have fewer shards than a loader usually has workers, where they could have more.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        sizes: Bytes of its new shards, all together.
    """
    for (output, shards), size in zip(outputs, sizes, strict=True):
        total = output.first + shards
        if output.pattern.count is None and total < _WORKERS and size >= _LARGE:
            few = f"{output_text(output.pattern.dataset_file)}: {counted(total, 'shard')}"
            bound = option("max_size", f"{size // _WORKERS // 10**6}MB")
            yield f"{few}, and a loader of more workers leaves some without data: {bound} makes {_WORKERS} or more"


def name_notes(outputs: Sequence[tuple[Destination, int]], readers: Sequence[str]) -> Iterator[str]:
    """Yield what readers make of names of shards that they cannot open, each reader once.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        readers: Those that count.
    """
    said = set()
    for output, _ in outputs:
        name = output_text(output.pattern.shard(0))
        for reader, why in unopenable(name).items():
            if output.pattern.format == "tar" and reader in readers and reader not in said:
                said.add(reader)
                yield f"{_READERS.get(reader, reader)} cannot open shards called such as '{name}': it {why}"


def folder_notes(outputs: Sequence[tuple[Destination, int]], exports: Mapping[str, Export]) -> Iterator[str]:
    """Yield what `load_dataset` makes of each folder that is written to, where it does not take the shards.

    Args:
        outputs: As above.
        exports: The indexes of other tools that are written, too.
    """
    folders: dict[str, list[tuple[Destination, int]]] = {}
    for output, shards in () if any(export.readme for export in exports.values()) else outputs:
        folders.setdefault(output.folder.path, []).append((output, shards))
    notes = dict[str, None]()
    for group in folders.values():
        output = group[0][0]
        if output.pattern.format != "tar":
            wrong = f"reads no TFRecord, and takes {output.pattern.dataset_file} for the data"
            notes[f"Hugging Face load_dataset(folder) {wrong}: tar shards are what it reads"] = None
        elif not has_own_readme(output.folder) and (wrong := misreading(_names(group, exports))):
            notes[f"Hugging Face load_dataset(folder) {wrong}: {cure()}"] = None
    yield from notes


def _names(group: Sequence[tuple[Destination, int]], exports: Mapping[str, Export]) -> set[str]:
    """Return the names of the files that a folder gets, whatever else it has."""
    names: set[str] = set()
    for output, shards in group:
        pattern = output.pattern
        written = [pattern.shard(number) for number in range(output.first + shards)]
        indexes = (export for export in exports.values() if export.encode is not None)
        names |= {index_name(name, export) for export in indexes for name in written}
        names |= {*written, pattern.dataset_file}
    return {output_text(name) for name in names}


# The dataset file, which says what the packed shards of a plan hold together.


@memory_for("the dataset file")
def publish_dataset(totals: Totals, publisher: Publisher, made: RunRecord) -> DatasetFile:
    """Publish what was skipped and the dataset file; return what it says.

    Args:
        totals: What the shards hold.
        publisher: What published them.
        made: How the dataset was made, or what was appended.
    """
    output, pattern = publisher.destination, publisher.pattern
    last = output.first + len(totals.shards)
    if isinstance(output.append, EndedAppend):
        check_same(output.append, last, None, output)
        return output.append.old
    skipped = publisher.all_skipped(in_order(totals.skipped))
    dataset = dataset_of(totals, pattern, skipped, made)
    if output.old is not None:
        dataset = joined(output.old, dataset)
    publisher.check_there(totals.shards)
    publisher.finish([pattern.shard(shard) for shard in range(output.first, last)], dataset.encode(), skipped)
    return dataset


def dataset_of(
    totals: Totals, pattern: ShardPattern, skipped: Sequence[Skipped], made: RunRecord, shard_format: str = ""
) -> DatasetFile:
    """Return what the dataset file says of packed shards, and of all that is left out; the format is as names tell."""
    shard_format = shard_format or pattern.format
    values, is_tar = totals.values, shard_format == "tar"
    kinds = {**values.numbers, **values.lists}
    fields = {name: totals.fields[name] for name in sorted(totals.fields, key=to_bytes)}
    return DatasetFile(
        name=output_text(pattern.base),
        pattern=output_text(pattern.text),
        format=shard_format,
        shards=tuple(totals.shards),
        fields=fields,
        field_bytes=totals.field_bytes,
        skipped=len(skipped),
        schema=totals.schema,
        classes=values.classes,
        features={} if is_tar else features_of(totals.fields, kinds, totals.samples, values.lists),
        made=made,
        fingerprint=show_fingerprint(totals.digest),
        skipped_crc=crc32c(encode_skipped(skipped)) if skipped else None,
        types={name: values.types[name] for name in fields if name in values.types},
    )


def check_same(done: EndedAppend, number: int, shard: ShardEntry | None, output: Destination) -> None:
    """Refuse an append that the dataset has with other content.

    Args:
        done: The append, as the dataset has it.
        number: The number of a shard.
        shard: What this run says of it; None if there is none of that number.
        output: The dataset.

    Raises:
        InvalidRequest: The dataset says something else.
    """
    if [*done.old.shards[number : number + 1]] != ([] if shard is None else [shard]):
        found = "the dataset has these samples already, with other content"
        remedy = either(
            f"Give the new samples other keys, with {option('if_exists', 'append')}.",
            "Give the new samples other keys, and leave --resume out.",
        )
        raise InvalidRequest(output.pattern.text, found, remedy=remedy)


def check_content(run: Run) -> None:
    """See, before a dataset file is published, that all content is that of the source, if its digest is known.

    Raises:
        CorruptShard: It is not.
    """
    wanted = run.listed.digest
    if wanted is not None and not any(output.totals.skipped for output in run.outputs):
        found = sum(output.totals.digest for output in run.outputs)
        check_fingerprint(run.listed.name, show_fingerprint(found), show_fingerprint(wanted))


def check_fingerprint(source: str, found: str, wanted: str) -> None:
    """See that packed samples have the content fingerprint of their source.

    Raises:
        CorruptShard: They have another.
    """
    if found != wanted:
        problem, expected = f"samples with the fingerprint {found}", f"{wanted}, as their dataset files say"
        remedy = "No dataset file was written. `shardtool verify` shows what is wrong with the source."
        raise CorruptShard(source, problem, expected=expected, remedy=remedy)


# The result.


_COUNTS = ("shards", "kept", "samples", "skipped", "dropped", "size")  # that are added up over splits


def create_result(run: Run, *, merged: bool = False) -> CreateResult:
    """Return what a run made; `merged`: whether it was a part, and the dataset file of all is there."""
    written = [*run.untouched, *run.outputs]
    splits = {output.split: _of_split(output) for output in written}
    totals = {name: sum(getattr(one, name) for one in splits.values()) for name in _COUNTS}
    shards = [(one, one.kept, [local_name(shard.name) for shard in one.dataset.shards]) for one in written]
    return CreateResult(
        **totals,
        dataset_file=run.dataset_file,
        seconds=time.time() - run.begun,
        fingerprint=show_fingerprint(sum_fingerprints(output.dataset.fingerprint for output in written)),
        notes=tuple(run.notes.said),
        features=written[0].dataset.feature_texts() if run.part is None else {},
        urls=next(iter(splits.values())).urls if run.dividing is None else "",
        splits={} if run.dividing is None else splits,
        appended=_appended(written),
        exported=tuple(run.exports),
        changes=None if run.changes is None else with_shards(run.changes, shards),
        part="" if run.part is None else str(run.part),
        merged=merged,
    )


def _of_split(output: Output) -> SplitResult:
    """Return what was made of one dataset."""
    shards, pattern = output.dataset.shards, output.pattern
    urls = pattern.closed(len(shards)) if pattern.format == "tar" and output.destination.part is None else ""
    shard = os.path.join(pattern.folder, pattern.shard(0))
    unread = "{" in shard or "webdataset" in unopenable(output_text(shard))
    return SplitResult(
        dataset_file=output.destination.dataset_file,
        shards=len(shards),
        kept=output.kept,
        samples=sum(shard.samples for shard in shards),
        skipped=output.dataset.skipped,
        dropped=output.dropped,
        size=sum(shard.size for shard in shards),
        fingerprint=output.dataset.fingerprint,
        urls="" if unread else output_text(urls),
    )


def _appended(written: Sequence[Output]) -> AppendedPart | None:
    """Return what a run has added to datasets that were there; None if there were none."""
    if not any(output.destination.appends for output in written):
        return None
    new = [shard for output in written for shard in output.dataset.shards[output.destination.first :]]
    return AppendedPart(len(new), sum(one.samples for one in new), sum(one.size for one in new))


def dry_result(run: Run) -> DryRun:
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


# Parts of a run become one dataset: each leaves a record beside its shards, and one dataset file takes their place.
#
# Parts say nothing to each other. Each makes the whole plan, writes the shards that are its own, and records which plan
# that was. Shards of one plan are those of one machine, so their dataset file is, too. The one that finds all records
# publishes it, under the lock that every part shares and only a merge holds alone: no part runs then.


_SHOWN = 8  # of a plan's fingerprint
_LOOKED_AT = 8  # parts that show whether others have the same plan


def _plan_bytes(plan: Plan, made: RunRecord) -> Iterator[bytes | memoryview]:
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
    texts: list[Texts] = [e.keys, *([] if e.rows.paths is None else [e.rows.paths]), *values.inline.values()]
    for text in texts:
        for some in chunks_of(len(text)):
            yield text.span(some.start, some.stop)
    rows = pa.table({}) if e.metadata is None else e.metadata
    for some in chunks_of(len(rows)):
        yield memoryview(ipc_stream(rows[some]))


def begin_part(run: Run, output: Output, mine: Part) -> None:
    """Begin a part, under its lock: it has no record until it ends.

    Raises:
        InvalidRequest: Parts that have ended are of another plan, and this one does not go on with what is there.
    """
    there, pattern, plans = output.destination, output.pattern, []
    for part in [one for one in records.find_parts(pattern, there.folder.names())[0] if one != mine][:_LOOKED_AT]:
        with suppress(CorruptShard):  # a merge names it
            plans.append(_plan_of(records.read_record(there.folder, pattern, part)))
    made = run.record(output)
    output.part_plan = hash_of(b"shardtool parts 1", _plan_bytes(output.plan, made))
    found, expected = _another_plan([*plans, (mine, output.part_plan, made)])
    if found and not there.resumes:
        remedy = "Run all parts over the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    if found:
        run.notes.add(f"{found}; expected {expected}: all of one plan make a dataset, so run the others again, too")
    output.publisher.begin()


def end_part(run: Run, output: Output, part: Part) -> DatasetFile:
    """Leave the record of a part, whose shards are published; return what the dataset file is to say of these.

    Where that is there and says it already, it stays, unless another part finds that it is to say something else.
    """
    there, planned, made = output.destination, output.plan.shards, run.record(output)
    skipped, shards = in_order(output.totals.skipped), part.shards(planned)
    dataset = dataset_of(output.totals, there.pattern, skipped, made)
    if shards:
        dataset = replace(dataset, pattern=output_text(names_left(output.pattern, shards.start).text))
    content = run.listed.digest if len(run.outputs) == 1 else None  # what all parts together must have
    record = PartRecord(
        part=part,
        plan=output.part_plan,
        planned=planned,
        resumed=there.resumes,
        content="" if content is None else show_fingerprint(content),
        dataset=dataset if shards else None,
        skipped=tuple(skipped),
    )
    old = sound_dataset(there.dataset_file)
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
        if not state and output.part is not None:
            ended, parts = len(records.find_parts(pattern, folder.names())[0]), output.part.parts
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
    if (there := records.read_listing(folder, pattern.dataset_file)) is not None:
        return _merged_before(folder, pattern, ended, there)
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


def _merged_before(
    folder: OutputFolder, pattern: ShardPattern, ended: Sequence[Part], dataset: DatasetFile
) -> tuple[int, DatasetFile]:
    """Return a dataset that is there: a merge was killed when it removed records, or another came first."""
    others = [str(part) for part in ended if not _is_in(dataset, records.read_record(folder, pattern, part))]
    if others:
        found = f"a dataset file of other shards than the parts {listing(others)} have left"
        raise OutputExists(folder.full_path(pattern.dataset_file), found, remedy="Move it away, and merge again.")
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
        try:
            records.check_size(folder, local_name(shard.name), shard.size, existing)
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
    dataset, rows = reduce(joined, files), encode_skipped(skipped)
    return replace(
        dataset,
        pattern=output_text(pattern.text),
        made=files[0].made,
        appends=(),
        skipped=len(skipped),
        skipped_crc=crc32c(rows) if rows else None,
    )
