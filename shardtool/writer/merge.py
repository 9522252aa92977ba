"""`merge`: create one dataset file that lists the shards of all parts. The shards do not change.

Files of the parts are deleted only after the merged dataset file exists, so an interrupted merge can be repeated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from shardtool import names, units
from shardtool.dataset import skipped_list
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, OutputExists, explaining_missing_cwd, format_list, printable
from shardtool.messages import flag_text
from shardtool.pattern import ShardPattern, abbreviate_names, check_writable, parse_pattern
from shardtool.publish import join_datasets, listed_files, part_records
from shardtool.publish.append_target import check_existing_dataset
from shardtool.publish.dataset_keys import read_dataset_keys
from shardtool.publish.journal import list_journals
from shardtool.publish.publication import Publication
from shardtool.request.observer import Observer
from shardtool.storage.folders import open_folder
from shardtool.table.keys import find_repeated
from shardtool.verbs.create import parts
from shardtool.writer.output import make_writer_record
from shardtool.writer.parts import EMPTY_SUFFIX, PartFiles, add_tag, find_writer_parts, make_part_tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.results import IndexResult
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.values import OutputNames


_MERGED_KEY = "merged"


@explaining_missing_cwd()
def merge(output: OutputNames, *, observer: Observer | None = None) -> IndexResult:
    """Create one dataset from the parts that several writers, or runs of `create`, wrote with one pattern.

    Later parts are added by another merge. The shards stay where they are.

    Args:
        output: The pattern of the writers, such as `out-{000000..}.tar`.
        observer: Receives notes.

    Raises:
        InvalidRequest: Parts are missing or unfinished, share a key, or have contradictory fields or columns. Nothing
            was changed.
        CorruptShard: A part is damaged.
        OutputExists: The dataset file is not the result of a merge, or another run is writing.
        OutputFailed: The file system reports an error.
    """
    pattern = parse_pattern(output)
    check_writable(pattern)
    folder = open_folder(pattern.folder)
    names = folder.names()
    if any(part_records.find_part_records(pattern, names)):
        return parts.merge_parts(folder, pattern, observer or Observer())
    if not find_writer_parts(pattern, names):
        found, expected = "no part of a ShardWriter or of a run", "the pattern of a ShardWriter or of `create`"
        raise InvalidRequest(pattern.text, found, expected=expected)
    with folder.lock(pattern.base):
        merger = _Merge(folder, pattern)
        dataset = merger.run()
    return parts.make_merge_result(folder, pattern, len(merger.parts), dataset, observer or Observer())


class _Merge:
    def __init__(self, folder: OutputFolder, pattern: ShardPattern) -> None:
        self._folder, self._pattern = folder, pattern
        self.parts = find_writer_parts(pattern, folder.names())
        self._old = self._find_old()
        self._listed = {shard.name for shard in self._old.shards} if self._old else set()
        old_tags = [] if self._old is None else self._old.made.document[_MERGED_KEY]
        self._old_tags = [str(tag) for tag in old_tags] if isinstance(old_tags, list) else []

    def run(self) -> DatasetFile:
        """Publish the merged dataset file, then delete those of the parts."""
        new_parts = [part for part in self.parts.values() if not self._is_merged(part)]
        self._check_all_finished(new_parts)
        new_datasets = [self._read_part_dataset(part) for part in new_parts if part.dataset_file]
        datasets = [*([self._old] if self._old else []), *new_datasets]
        if not datasets:
            raise InvalidRequest(self._pattern.text, "parts without samples", expected="at least one sample")
        self._check_keys(datasets)
        skipped: list[Skipped] = reduce(skipped_list.merge_skipped, map(self._read_skipped, new_datasets), [])
        if self._old is not None:
            name = self._old.skipped_file
            old_rows, where = self._parse_skipped(name), self._folder.full_path(name)
            skipped = skipped_list.merge_new_rows(old_rows, self._old, skipped, where)
        rows = skipped_list.encode_skipped(skipped)
        tags = [*dict.fromkeys([*self._old_tags, *(part.tag for part in new_parts)])]
        dataset = self._join(datasets, skipped, tags)
        part_files = list[str]()
        for part_pattern in (add_tag(self._pattern, tag) for tag in self.parts):
            part_files += [
                part_pattern.dataset_file,
                part_pattern.skipped_file,
                part_pattern.base + EMPTY_SUFFIX,
                *list_journals(part_pattern.base, self._folder.names()),
            ]
        if new_datasets:
            small = {self._pattern.skipped_file: rows} if rows else {}
            Publication(self._folder, self._pattern.dataset_file, "keep").finish(dataset.encode(), before=small)
        self._folder.remove([*self._folder.find_entries(part_files)])
        return dataset

    def _find_old(self) -> DatasetFile | None:
        old = listed_files.read_existing_dataset(self._folder, self._pattern.dataset_file)
        if old is not None and _MERGED_KEY not in old.made.document:
            where = self._folder.full_path(self._pattern.dataset_file)
            found = "a dataset file that is not the result of a merge"
            raise OutputExists(
                where, found, remedy="Move that dataset to another folder, or use another pattern for the writers."
            )
        return old

    def _is_merged(self, part: PartFiles) -> bool:
        listed_shards = [name for name in part.shards if names.to_output_name(name) in self._listed]
        if listed_shards and len(listed_shards) < len(part.shards):
            summary = f"{len(listed_shards):,} already merged"
            found = f"{part.tag}: {units.pluralize(len(part.shards), 'shard')}, {summary}"
            raise InvalidRequest(self._pattern.text, found, expected="a part that does not change after its merge")
        return bool(listed_shards) or (part.tag in self._old_tags and not part.shards)

    def _check_all_finished(self, new_parts: Sequence[PartFiles]) -> None:
        where = self._pattern.text
        counts = {part.parts for part in self.parts.values() if part.parts is not None}
        unfinished = [
            f"{part.tag} ({units.pluralize(len(part.shards), 'shard')})" for part in new_parts if not part.finished
        ]
        known_tags = {*self.parts, *self._old_tags}
        expected_tags = [make_part_tag(number, count) for count in counts for number in range(count)]
        missing = [tag for tag in expected_tags if tag not in known_tags]
        parts.check_all_finished(where, counts, unfinished, missing, flag_text("resume"))

    def _read_part_dataset(self, part: PartFiles) -> DatasetFile:
        part_pattern = add_tag(self._pattern, part.tag)
        existing = self._folder.find_entries(name for name in self._folder.names() if part_pattern.owns(name))
        return check_existing_dataset(
            self._folder, part_pattern, existing, listed_files.read_output_file(self._folder, part.dataset_file)
        )

    def _check_keys(self, datasets: Iterable[DatasetFile]) -> None:
        key_lists = [read_dataset_keys(self._folder, dataset.shards) for dataset in datasets]
        repeated = find_repeated(
            PackedStrings.parse(b"".join(packed_keys.span(0, len(packed_keys)) for packed_keys in key_lists))
        )
        if repeated:
            examples = format_list([printable(key) for key in [*repeated][:5]], total=len(repeated))
            found = f"{units.pluralize(len(repeated), 'key')} in two parts: {examples}"
            raise InvalidRequest(self._pattern.text, found, expected="unique keys")

    def _join(self, datasets: Sequence[DatasetFile], skipped: Sequence[Skipped], tags: list[str]) -> DatasetFile:
        dataset = join_datasets.join_parts(datasets, skipped, self._pattern)
        part_options = [dataset.made.options for dataset in datasets]
        options = {
            name: value
            for name, value in part_options[0].items()
            if all(options.get(name) == value for options in part_options)
        }
        if any(dataset.made.dots == "last" for dataset in datasets):
            options["dots"] = "last"
            if dotted := [name for name in dataset.fields if "." in name]:
                found = f"keys with dots in their last part, and fields with dots: {format_list(dotted)}"
                expected = "names that can all be split at the first dot, or all at the last"
                raise InvalidRequest(self._pattern.text, found, expected=expected)
        pattern = abbreviate_names([shard.name for shard in dataset.shards])
        record = make_writer_record({"options": options, _MERGED_KEY: tags})
        return replace(dataset, name=names.to_output_name(self._pattern.base), pattern=pattern, made=record)

    def _read_skipped(self, dataset: DatasetFile) -> list[Skipped]:
        rows = self._parse_skipped(dataset.skipped_file)
        where = self._folder.full_path(dataset.skipped_file)
        skipped_list.check_skipped_file(skipped_list.encode_skipped(rows), dataset, where)
        return rows

    def _parse_skipped(self, name: str) -> list[Skipped]:
        data = listed_files.read_output_file(self._folder, name) if self._folder.find_entries([name]) else b""
        return skipped_list.parse_skipped(data, self._folder.full_path(name))
