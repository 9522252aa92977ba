"""Merge the parts of one run, or of several writers, by writing a dataset file for all shards.

Shards are not renamed. Other files of the parts are deleted last, so an interrupted merge can be repeated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING

from shardtool.dataset import skipped_list
from shardtool.entries.strings import PackedStrings
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputExists,
    SampleFailed,
    explaining_missing_cwd,
    format_list,
    printable,
)
from shardtool.fingerprint import format_fingerprint
from shardtool.messages import flag_text, option_text
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import ShardPattern, abbreviate_names, check_writable, parse_pattern, sidecar_name
from shardtool.publish import listed_files, parts
from shardtool.publish.append_target import check_existing_dataset
from shardtool.publish.dataset_keys import read_dataset_keys
from shardtool.publish.destination import Destination
from shardtool.publish.publication import Publication
from shardtool.publish.publish_dataset import check_fingerprint, finish_dataset, join_parts
from shardtool.request.observer import Observer, default_observer
from shardtool.request.results import IndexResult
from shardtool.request.run_part import RunPart
from shardtool.request.run_record import RunRecord, make_writer_record
from shardtool.skipped import Skipped, count_reasons, sort_rows
from shardtool.storage.folders import open_folder
from shardtool.storage.remote.store_options import with_options, without_markers
from shardtool.table.keys import find_repeated
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.publish.parts import PartRecord, WriterPart
    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.remote.store_options import StorageOptions
    from shardtool.values import OutputNames


_MERGED_KEY = "merged"
_SHOWN_DIGITS = 8


@explaining_missing_cwd()
def merge(
    output: OutputNames, *, observer: Observer | None = None, storage_options: StorageOptions | None = None
) -> IndexResult:
    """Create one dataset from the parts that writers or runs of `create` wrote with the same pattern.

    To add the parts of later writers, call `merge` again.

    Args:
        output: The pattern of the writers or runs, such as `out-{000000..}.tar`.
        observer: Receives notes.
        storage_options: Options for stores, as for `open`.

    Raises:
        InvalidRequest: Parts are missing or unfinished, share a key, or have contradictory fields or columns. Nothing
            was changed.
        CorruptShard: A part is damaged.
        OutputExists: An existing file does not belong to the parts, or another run is writing.
        OutputFailed: The file system reports an error.
    """
    pattern = parse_pattern(with_options(output, storage_options))
    check_writable(pattern)
    folder = open_folder(pattern.folder)
    names = folder.names()
    is_run = any(parts.find_run_parts(pattern, names))
    if not is_run and not parts.find_writer_parts(pattern, names):
        found, expected = "no parts to merge", f"the pattern of runs with {option_text('part')}, or of ShardWriters"
        raise InvalidRequest(pattern.text, found, expected=expected)
    with folder.lock(pattern.base):
        count, dataset = merge_run_parts(folder, pattern) if is_run else _WriterMerge(folder, pattern).run()
    samples, shards = sum(shard.samples for shard in dataset.shards), len(dataset.shards)
    note = f"{pluralize(samples, 'sample')} of {pluralize(count, 'part')}"
    (observer or default_observer()).note(note)
    path = without_markers(folder.full_path(pattern.dataset_file))
    return IndexResult(str(path), shards, shards, samples, (note,))


class _WriterMerge:
    def __init__(self, folder: OutputFolder, pattern: ShardPattern) -> None:
        self._folder, self._pattern = folder, pattern
        self.parts = parts.find_writer_parts(pattern, folder.names())
        self._old = self._find_old()
        self._listed_names = {shard.name for shard in self._old.shards} if self._old else set()
        old_tags = [] if self._old is None else self._old.run.document[_MERGED_KEY]
        self._old_tags = [str(tag) for tag in old_tags] if isinstance(old_tags, list) else []

    def run(self) -> tuple[int, DatasetFile]:
        new_parts = [part for part in self.parts.values() if not self._is_merged(part)]
        self._check_finished(new_parts)
        records = [parts.read_part_record(self._folder, self._pattern, part.tag) for part in new_parts]
        new_datasets = [self._read_checked(record, record.dataset) for record in records if record.dataset is not None]
        datasets = [*([self._old] if self._old else []), *new_datasets]
        if not datasets:
            raise InvalidRequest(self._pattern.text, "parts without samples", expected="at least one sample")
        self._check_keys(datasets)
        skipped: list[Skipped] = reduce(skipped_list.merge_skipped, (record.skipped for record in records), [])
        if self._old is not None:
            old_rows = self._read_old_skipped(self._old.skipped_file)
            where = self._folder.full_path(self._old.skipped_file)
            skipped = skipped_list.merge_new_rows(old_rows, self._old, skipped, where)
        skipped_rows = skipped_list.encode_skipped(skipped)
        tags = [*dict.fromkeys([*self._old_tags, *(part.tag for part in new_parts)])]
        dataset = self._join(datasets, skipped, tags)
        if new_datasets:
            before = {self._pattern.skipped_file: skipped_rows} if skipped_rows else {}
            Publication(self._folder, self._pattern.dataset_file, old="keep").finish(dataset.encode(), before=before)
        names = self._folder.names()
        part_files = [parts.list_writer_part_files(self._pattern, tag, names) for tag in self.parts]
        self._folder.remove([*chain.from_iterable(part_files)])
        return len(self.parts), dataset

    def _find_old(self) -> DatasetFile | None:
        old = listed_files.read_existing_dataset(self._folder, self._pattern.dataset_file)
        if old is not None and _MERGED_KEY not in old.run.document:
            where = self._folder.full_path(self._pattern.dataset_file)
            found = "a dataset file that is not the result of a merge"
            remedy = "Move that dataset to another folder, or use another pattern for the writers."
            raise OutputExists(where, found, remedy=remedy)
        return old

    def _is_merged(self, part: WriterPart) -> bool:
        listed_shards = [name for name in part.shards if to_output_name(name) in self._listed_names]
        if listed_shards and len(listed_shards) < len(part.shards):
            found = f"{part.tag}: {pluralize(len(part.shards), 'shard')}, {len(listed_shards):,} already merged"
            raise InvalidRequest(self._pattern.text, found, expected="a part that does not change after its merge")
        return bool(listed_shards) or (part.tag in self._old_tags and not part.shards)

    def _check_finished(self, new_parts: Sequence[WriterPart]) -> None:
        where = self._pattern.text
        counts = {part.parts for part in self.parts.values() if part.parts is not None}
        unfinished = [f"{part.tag} ({pluralize(len(part.shards), 'shard')})" for part in new_parts if not part.finished]
        known_tags = {*self.parts, *self._old_tags}
        expected_tags = [parts.make_part_tag(number, count) for count in counts for number in range(count)]
        missing = [tag for tag in expected_tags if tag not in known_tags]
        _check_all_finished(where, counts, unfinished, missing, flag_text("resume"))

    def _read_checked(self, record: PartRecord, dataset: DatasetFile) -> DatasetFile:
        part_pattern = parts.add_tag(self._pattern, str(record.part))
        existing = self._folder.find_entries(name for name in self._folder.names() if part_pattern.owns(name))
        return check_existing_dataset(self._folder, part_pattern, existing, dataset.encode())

    def _check_keys(self, datasets: Iterable[DatasetFile]) -> None:
        key_lists = [read_dataset_keys(self._folder, dataset.shards) for dataset in datasets]
        all_keys = b"".join(packed_keys.span(0, len(packed_keys)) for packed_keys in key_lists)
        if repeated := find_repeated(PackedStrings.parse(all_keys)):
            examples = format_list([printable(key) for key in [*repeated][:5]], total=len(repeated))
            found = f"{pluralize(len(repeated), 'key')} in two parts: {examples}"
            raise InvalidRequest(self._pattern.text, found, expected="unique keys")

    def _join(self, datasets: Sequence[DatasetFile], skipped: Sequence[Skipped], tags: list[str]) -> DatasetFile:
        dataset = join_parts(datasets, skipped, self._pattern)
        part_options = [dataset.run.options for dataset in datasets]
        options = {
            name: value
            for name, value in part_options[0].items()
            if all(options.get(name) == value for options in part_options)
        }
        if self._pattern.format == "tar" and any(dataset.run.dots == "last" for dataset in datasets):
            options["dots"] = "last"
            if dotted := [name for name in dataset.fields if "." in name]:
                found = f"keys with dots in their last part, and fields with dots: {format_list(dotted)}"
                expected = "names that can all be split at the first dot, or all at the last"
                raise InvalidRequest(self._pattern.text, found, expected=expected)
        pattern = abbreviate_names([shard.name for shard in dataset.shards])
        record = make_writer_record({"options": options, _MERGED_KEY: tags})
        return replace(dataset, name=to_output_name(self._pattern.base), pattern=pattern, run=record)

    def _read_old_skipped(self, name: str) -> list[Skipped]:
        data = listed_files.read_output_file(self._folder, name) if self._folder.find_entries([name]) else b""
        return skipped_list.parse_skipped(data, self._folder.full_path(name))


def contains_part(dataset: DatasetFile, record: PartRecord) -> bool:
    """Return whether the dataset file lists the shards of a part."""
    if not isinstance(record.part, RunPart):
        return False
    part_range = record.part.shards(record.planned)
    part_shards = () if record.dataset is None else record.dataset.shards
    if record.dataset is not None and record.dataset.run != dataset.run:
        return False
    return len(dataset.shards) == record.planned and dataset.shards[part_range.start : part_range.stop] == part_shards


def merge_run_parts(folder: OutputFolder, pattern: ShardPattern) -> tuple[int, DatasetFile]:
    """Publish a dataset file for the parts of a run. Return the number of parts and the file.

    The caller must hold the lock.
    """
    finished, started = parts.find_run_parts(pattern, folder.names())
    if (existing_dataset := listed_files.read_existing_dataset(folder, pattern.dataset_file)) is not None:
        return _finish_earlier_merge(folder, pattern, finished, existing_dataset)
    counts = {part.parts for part in (*finished, *started)}
    finished_numbers = {part.number for part in finished}
    interrupted = [str(part) for part in started if part.number not in finished_numbers]
    missing = [f"{n}/{count}" for count in counts for n in range(1, count + 1) if n not in finished_numbers]
    missing = [part_text for part_text in missing if part_text not in interrupted]
    _check_all_finished(pattern.text, counts, interrupted, missing, flag_text("resume"))
    records = [parts.read_part_record(folder, pattern, part) for part in finished]
    _check_one_plan(records, pattern)
    datasets = [record.dataset for record in records if record.dataset is not None]
    existing = folder.find_entries(name for name in folder.names() if pattern.owns(name))
    for record in records:
        _check_part_files(folder, pattern, record, existing)
    names = [pattern.shard(number) for number in range(records[0].planned)]
    stale = sorted({*existing} - {*names, *map(sidecar_name, names), pattern.skipped_file})
    if stale and not any(record.resumed for record in records):
        found = f"{pluralize(len(stale), 'file')} that match the pattern but belong to no part: {format_list(stale, 3)}"
        raise OutputExists(folder.path or ".", found, remedy="Move them to another folder and merge again.")
    skipped = sort_rows(row for record in records for row in record.skipped)
    dataset = join_parts(datasets, skipped, pattern)
    if records[0].content and not skipped:
        check_fingerprint(dataset.run.source, dataset.fingerprint, records[0].content)
    if not any(shard.samples for shard in dataset.shards):
        problem = f"no part packed a sample: {count_reasons(skipped)}"
        raise SampleFailed(pattern.text, problem, remedy="No dataset file was written.")
    destination = Destination(folder, pattern, "resume", existing)
    destination.discard_staged()
    finish_dataset(destination.open_publication(), destination, names, dataset, skipped)
    return len(finished), dataset


def _finish_earlier_merge(
    folder: OutputFolder, pattern: ShardPattern, finished: Sequence[RunPart], dataset: DatasetFile
) -> tuple[int, DatasetFile]:
    records = [parts.read_part_record(folder, pattern, part) for part in finished]
    if others := [str(record.part) for record in records if not contains_part(dataset, record)]:
        found = f"a dataset file that does not match parts {format_list(others)}"
        remedy = "Move it to another folder and merge again."
        raise OutputExists(folder.full_path(pattern.dataset_file), found, remedy=remedy)
    folder.remove(parts.list_run_files(pattern, folder.names()))
    return len(finished), dataset


def _check_all_finished(
    where: str, counts: Collection[int], unfinished: list[str], missing: list[str], resume_option: str
) -> None:
    if len(counts) > 1:
        found = f"different numbers of parts: {format_list([str(count) for count in sorted(counts)])}"
        remedy = "Move the files of other runs to another folder."
        raise InvalidRequest(where, found, expected="parts of one run", remedy=remedy)
    problems = [f"not finished: {format_list(unfinished)}"] if unfinished else []
    problems += [f"missing: {format_list(missing)}"] if missing else []
    if problems:
        remedy = f"Run these parts, with {resume_option} if they were interrupted, and merge again."
        raise InvalidRequest(where, f"parts: {'; '.join(problems)}", expected="all parts finished", remedy=remedy)


# a part, its plan fingerprint, and its run record (None for a part without shards)
_PartPlan = tuple["RunPart | str", str, "RunRecord | None"]


def get_part_plan(record: PartRecord) -> _PartPlan:
    """Return the values of a part that `describe_other_plan` compares."""
    return record.part, record.plan, None if record.dataset is None else record.dataset.run


def describe_other_plan(parts: Sequence[_PartPlan]) -> tuple[str, str]:
    """Compare the plans of parts. Return the texts `found` and `expected` for an error, or "", "" if all are equal.

    The most common plan is expected.
    """
    ((plan, count),) = Counter(plan for _, plan, _ in parts).most_common(1)
    others = [part_plan for part_plan in parts if part_plan[1] != plan]
    if not others:
        return "", ""
    usual_record = next(record for _, part_plan, record in parts if part_plan == plan)
    _, other_plan, record = others[0]
    found = (
        f"a different plan in {format_list([str(part) for part, *_ in others])}: "
        f"{_describe_difference(usual_record, record)} ({other_plan[:_SHOWN_DIGITS]})"
    )
    return found, f"the plan of the other {pluralize(count, 'part')} ({plan[:_SHOWN_DIGITS]})"


def _describe_difference(before: RunRecord | None, now: RunRecord | None) -> str:
    if before is None or now is None:
        return "another source, or other options"
    old_options, new_options = before.options, now.options
    names = [name for name in {**old_options, **new_options} if old_options.get(name) != new_options.get(name)]
    if names:
        return f"other options: {format_list([*map(option_text, names)])}"
    if before.source != now.source:
        return f"source {now.source} instead of {before.source}"
    return "other samples in the source" if before.document == now.document else f"{now.verb} with {now.tool}"


def _check_one_plan(records: Sequence[PartRecord], pattern: ShardPattern) -> None:
    found, expected = describe_other_plan([*map(get_part_plan, records)])
    if found:
        remedy = f"Run these again with {flag_text('resume')}, on the same source with the same options."
        raise InvalidRequest(pattern.text, found, expected=expected, remedy=remedy)
    run_records = [record.dataset.run for record in records if record.dataset is not None]
    totals = {(record.planned, record.content) for record in records}
    if len(totals) != 1 or any(run_record != run_records[0] for run_record in run_records):
        raise CorruptShard(pattern.text, "part records that contradict each other")


def _check_part_files(
    folder: OutputFolder, pattern: ShardPattern, record: PartRecord, existing: Mapping[str, EntryInfo]
) -> None:
    dataset = record.dataset
    fingerprints = list[int | None]()
    for shard in () if dataset is None else dataset.shards:
        try:
            listed_files.check_file_size(folder, to_local_name(shard.name), shard.size, existing)
            index = listed_files.read_listed_sidecar(folder, shard, existing)
            fingerprints.append(index.fingerprint() if dataset is not None and dataset.format == "tar" else None)
        except CorruptShard as error:
            expected = error.expected.partition(", as ")[0] or "its sidecar"
            raise _part_file_error(error.where, record.part, error.found, expected) from None
    found = format_fingerprint(sum(fingerprint for fingerprint in fingerprints if fingerprint is not None))
    is_known = dataset is not None and dataset.format == "tar" and None not in fingerprints
    if dataset is not None and is_known and found != dataset.fingerprint:
        where = folder.full_path(parts.part_record_name(pattern, record.part))
        raise _part_file_error(where, record.part, f"fingerprint {dataset.fingerprint}", f"{found} as in the sidecars")


def _part_file_error(where: str, part: RunPart | str, found: str, expected: str) -> CorruptShard:
    remedy = f"Run {option_text('part', str(part))} again with {flag_text('resume')}."
    return CorruptShard(where, found, expected=f"{expected}, as part {part} recorded", remedy=remedy)
