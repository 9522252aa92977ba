"""`merge`: make one dataset file that lists the shards of all parts. The shards do not change.

Files of the parts are removed only after the merged dataset file exists. An interrupted merge can be repeated:
parts
that the dataset file lists are merged already.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from shardtool import names, units
from shardtool.entries.strings import PackedStrings
from shardtool.errors import (
    InvalidRequest,
    OutputExists,
    explaining_missing_cwd,
    format_list,
    printable,
)
from shardtool.messages import flag_text
from shardtool.pattern import (
    ShardPattern,
    abbreviate_names,
    check_writable,
    parse_pattern,
)
from shardtool.publish import join_datasets, listed_files, part_records, skipped_list
from shardtool.publish.append_target import check_existing_dataset
from shardtool.publish.dataset_keys import read_dataset_keys
from shardtool.request.observer import Observer
from shardtool.storage.folders import OutputFolder, open_folder
from shardtool.table.keys import find_repeated
from shardtool.verbs.create import parts
from shardtool.writer.journal import journal_name
from shardtool.writer.output import make_writer_record
from shardtool.writer.parts import EMPTY_SUFFIX, PartFiles, add_tag, find_writer_parts, make_part_tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.results import IndexResult
    from shardtool.skipped import Skipped
    from shardtool.verbs.create.run import OutputNames


_MERGED_KEY = "merged"  # in how a dataset was made: the parts that it was made of


@explaining_missing_cwd()
def merge(output: OutputNames, *, observer: Observer | None = None) -> IndexResult:
    """Make one dataset of the parts that several writers, or runs of `create`, have written under a pattern.

    Parts of writers that come later are added by another merge.

    Args:
        output: The pattern that the writers were given, such as `out-{000000..}.tar`.
        observer: Gets what the user should know.

    Returns:
        The dataset: its shards are those of all parts, which stay where they are.

    Raises:
        InvalidRequest: There are no parts; some are missing, or have not ended; a key is in two parts; or fields and
            columns do not go together. Nothing was touched.
        CorruptShard: A part is damaged.
        OutputExists: The dataset file is one that no merge has made, or another run is writing.
        OutputFailed: The file system refuses.
    """
    pattern = parse_pattern(output)
    check_writable(pattern)
    there = open_folder(pattern.folder)
    names = there.names()
    if any(part_records.find_part_records(pattern, names)):
        return parts.merge_parts(there, pattern, observer or Observer())
    if not find_writer_parts(pattern, names):
        found, expected = "no part of a ShardWriter or of a run", "the pattern that these were given"
        raise InvalidRequest(pattern.text, found, expected=expected)
    with there.lock(pattern.base):
        merging = _Merge(there, pattern)
        dataset = merging.run()
    return parts.make_merge_result(there, pattern, len(merging.parts), dataset, observer or Observer())


class _Merge:
    """A merge, under the lock of the whole dataset.

    Args:
        folder: Where the parts lie.
        pattern: The names of the whole dataset.
    """

    def __init__(self, folder: OutputFolder, pattern: ShardPattern) -> None:
        self._folder, self._pattern = folder, pattern
        self.parts = find_writer_parts(pattern, folder.names())
        self._old = self._find_old()
        self._listed = {shard.name for shard in self._old.shards} if self._old else set()
        before = [] if self._old is None else self._old.made.document[_MERGED_KEY]
        self._before = [str(tag) for tag in before] if isinstance(before, list) else []

    def run(self) -> DatasetFile:
        """Publish the dataset file of all, and remove those of the parts; return what it says."""
        new = [part for part in self.parts.values() if not self._is_merged(part)]
        self._check_whole(new)
        found = [self._dataset(part) for part in new if part.dataset_file]
        whole = [*([self._old] if self._old else []), *found]
        if not whole:
            raise InvalidRequest(self._pattern.text, "parts without a sample", expected="one sample at least")
        self._check_keys(whole)
        skipped: list[Skipped] = reduce(skipped_list.merge_skipped, map(self._skipped, whole), [])
        rows, tags = (
            skipped_list.encode_skipped(skipped),
            [*dict.fromkeys([*self._before, *(part.tag for part in new)])],
        )
        dataset = self._joined(whole, skipped, tags)
        if found:
            staged = [self._folder.stage_bytes(self._pattern.skipped_file, rows)] if rows else []
            self._folder.publish(*staged, self._folder.stage_bytes(self._pattern.dataset_file, dataset.encode()))
        replaced = list[str]()
        for own in (add_tag(self._pattern, tag) for tag in self.parts):
            replaced += [own.dataset_file, own.skipped_file, own.base + EMPTY_SUFFIX, journal_name(own.base)]
        self._folder.remove([*self._folder.facts(replaced)])
        return dataset

    def _find_old(self) -> DatasetFile | None:
        """Return the dataset of an earlier merge."""
        old = listed_files.read_existing_dataset(self._folder, self._pattern.dataset_file)
        if old is not None and _MERGED_KEY not in old.made.document:
            where, found = self._folder.full_path(self._pattern.dataset_file), "a dataset file that no merge has made"
            raise OutputExists(where, found, remedy="Move that dataset away, or give the writers another pattern.")
        return old

    def _is_merged(self, part: PartFiles) -> bool:
        """Tell whether an earlier merge has listed a part."""
        listed = [name for name in part.shards if names.to_output_name(name) in self._listed]
        if listed and len(listed) < len(part.shards):
            merged = f"{len(listed):,} were merged before"
            found = f"{part.tag}: {units.pluralize(len(part.shards), 'shard')}, of which {merged}"
            raise InvalidRequest(self._pattern.text, found, expected="a part that is whole before it is merged")
        return bool(listed) or (part.tag in self._before and not part.shards)

    def _check_whole(self, new: Sequence[PartFiles]) -> None:
        """Refuse to make a dataset of less than all parts, and say which are missing."""
        where = self._pattern.text
        counts = {part.parts for part in self.parts.values() if part.parts is not None}
        open_ = [f"{part.tag} ({units.pluralize(len(part.shards), 'shard')})" for part in new if not part.ended]
        there = {*self.parts, *self._before}
        wanted = [make_part_tag(number, count) for count in counts for number in range(count)]
        missing = [tag for tag in wanted if tag not in there]
        parts.check_all_finished(where, counts, open_, missing, flag_text("resume"))

    def _dataset(self, part: PartFiles) -> DatasetFile:
        """Return what the dataset file of a part says, whose shards are all there."""
        own = add_tag(self._pattern, part.tag)
        existing = self._folder.facts(name for name in self._folder.names() if own.owns(name))
        return check_existing_dataset(
            self._folder, own, existing, listed_files.read_output_file(self._folder, part.dataset_file)
        )

    def _check_keys(self, whole: Iterable[DatasetFile]) -> None:
        """Refuse keys that two parts have."""
        names = [read_dataset_keys(self._folder, dataset.shards) for dataset in whole]
        twice = find_repeated(PackedStrings.parse(b"".join(one.span(0, len(one)) for one in names)))
        if twice:
            shown = format_list([printable(key) for key in [*twice][:5]], total=len(twice))
            found = f"{units.pluralize(len(twice), 'key')} of samples in two parts: {shown}"
            raise InvalidRequest(self._pattern.text, found, expected="a key of its own for each sample")

    def _joined(self, whole: Sequence[DatasetFile], skipped: Sequence[Skipped], tags: list[str]) -> DatasetFile:
        dataset, given = join_datasets.join_parts(whole, skipped, self._pattern), [one.made.options for one in whole]
        options = {name: value for name, value in given[0].items() if all(one.get(name) == value for one in given)}
        if any(one.made.dots == "last" for one in whole):
            options["dots"] = "last"
            if dotted := [name for name in dataset.fields if "." in name]:
                found = f"keys with dots in their last part, and fields with dots: {format_list(dotted)}"
                expected = "names that the first dot divides, or the last"
                raise InvalidRequest(self._pattern.text, found, expected=expected)
        pattern, made = (
            abbreviate_names([shard.name for shard in dataset.shards]),
            make_writer_record({"options": options, _MERGED_KEY: tags}),
        )
        return replace(dataset, name=names.to_output_name(self._pattern.base), pattern=pattern, made=made)

    def _skipped(self, dataset: DatasetFile) -> list[Skipped]:
        """Return what a dataset has left out."""
        name, where = dataset.skipped_file, self._folder.full_path(dataset.skipped_file)
        data = listed_files.read_output_file(self._folder, name) if self._folder.facts([name]) else b""
        skipped_list.check_skipped_file(data, dataset, where)
        return skipped_list.parse_skipped(data, where)
