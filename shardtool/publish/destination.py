"""The folder and files of a dataset to write, and the files that a run may change."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.dataset import skipped_list
from shardtool.dataset.dataset_file import DatasetFile, has_appends, may_be_dataset_file, parse_shard_names
from shardtool.errors import InvalidRequest, OutputExists, format_list
from shardtool.messages import choose_text, flag_text
from shardtool.names import to_local_name
from shardtool.pattern import ShardPattern, replacement_plan_name, sidecar_name
from shardtool.publish import listed_files, parts
from shardtool.publish.append_target import Append, FinishedAppend, check_existing_dataset, list_later_files
from shardtool.publish.foreign_index_files import StaleIndexes
from shardtool.publish.publication import OldDataset, Publication
from shardtool.storage.file_system import EntryInfo, check_entries
from shardtool.storage.folders import check_space
from shardtool.units import already_exist_text, pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.request.run_part import RunPart
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import StagedFile
    from shardtool.values import IfExists


@dataclass(frozen=True, slots=True)
class Destination:
    """The folder and file names of a dataset.

    Attributes:
        existing: The dataset's files when the folder was last listed.
        repaired_dataset: The dataset file that the new shards must match, or None.
        own_names: With `--part`, the files that this part writes.
    """

    folder: OutputFolder
    pattern: ShardPattern
    if_exists: IfExists
    existing: Mapping[str, EntryInfo] = field(default_factory=dict)
    append: Append | None = None
    part: RunPart | None = None
    repaired_dataset: DatasetFile | None = None
    own_names: frozenset[str] = frozenset()

    def owns(self, name: str) -> bool:
        """Return whether this run may replace or delete the file `name`."""
        return self.pattern.owns(name) if self.part is None else name in self.own_names

    def with_shard_count(self, shards: int) -> Destination:
        """If this run writes a part, return a copy with `own_names` set. `shards` is the shard count of all parts."""
        if self.part is None:
            return self
        names = [self.pattern.shard(number) for number in self.part.shards(shards)]
        own_names = frozenset((*names, *map(sidecar_name, names), parts.part_record_name(self.pattern, self.part)))
        kept_names = {self.pattern.dataset_file, *own_names}
        existing = {name: self.existing[name] for name in self.existing if name in kept_names}
        return replace(self, own_names=own_names, existing=existing)

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file."""
        return self.folder.full_path(self.pattern.dataset_file)

    @property
    def skipped_file(self) -> str:
        """The path of the list of skipped samples."""
        return self.folder.full_path(self.pattern.skipped_file)

    @property
    def appends(self) -> bool:
        """Whether new shards are added to an existing dataset."""
        if self.if_exists == "update":
            return self.pattern.dataset_file in self.existing
        return self.if_exists in ("append", "append-resume")

    @property
    def resumes(self) -> bool:
        """Whether this run reuses the finished shards of an earlier run."""
        return self.if_exists in ("resume", "resume-overwrite", "append-resume", "update")

    @property
    def old(self) -> DatasetFile | None:
        """The existing dataset that this run appends to, or None."""
        return None if self.append is None else self.append.old

    @property
    def first(self) -> int:
        """Number of the first shard of this run."""
        return 0 if self.append is None else self.append.first

    def open_publication(self, part_record: str = "") -> Publication:
        """Return a `Publication` of this dataset, or of the part with the record `part_record`."""
        indexes = StaleIndexes(self.folder, self.pattern, self.folder.names(), appends=self.appends)
        old_policy: OldDataset = "replace" if self.if_exists == "overwrite" else "withdraw"
        if self.appends:
            old_policy = "keep"
        if self.repaired_dataset is not None:
            old_policy = "exchange"
        existing = {**self.existing, **self.folder.find_entries([part_record] if part_record else [])}
        return Publication(self.folder, part_record or self.pattern.dataset_file, old_policy, existing, indexes)

    def check_space(self, size: int) -> None:
        """Raise an error if there is too little space for shards of `size` bytes in total."""
        check_space(self.folder, size, "written", keeps_old=self.if_exists == "overwrite" and bool(self.existing))

    def create_spool(self, size: int) -> StagedFile:
        """Create a temporary file for `size` bytes of payloads."""
        if self.folder.temporary == self.folder:
            self.check_space(size)
        return self.folder.temporary.stage(self._spool_name)

    @property
    def _spool_name(self) -> str:
        is_inside = self.folder.temporary == self.folder
        suffix = "" if is_inside else "-" + blake2b(os.fsencode(self.folder.path), digest_size=6).hexdigest()
        return f"{self.pattern.base}{suffix}.spool"

    def discard_staged(self) -> None:
        """Delete staged files, unless an interrupted exchange needs them (see `Publication`)."""
        if self.repaired_dataset is not None and self.folder.find_entries([replacement_plan_name(self.pattern.base)]):
            return
        staged = self.folder.staged_names()
        run_files = [] if self.part is not None else parts.list_run_files(self.pattern, staged)
        self.folder.discard_staged([*filter(self.owns, staged), *run_files])
        self.folder.temporary.discard_staged([self._spool_name])

    def load_skipped(self) -> list[Skipped]:
        """Return the existing list of skipped samples."""
        name = self.pattern.skipped_file
        data = listed_files.read_output_file(self.folder, name) if name in self.existing else b""
        return skipped_list.parse_skipped(data, self.skipped_file)

    def load_removed(self) -> dict[str, Skipped]:
        """Return the samples that `shardtool remove` has deleted, by key hash."""
        name = self.pattern.skipped_file
        with suppress(OSError):
            if name in self.existing and b'"removed"' in self.folder.read(name):
                return {row.key: row for row in self.load_skipped() if row.code == "removed"}
        return {}


def inspect_destination(previous: Destination) -> Destination:
    """Return a copy of `previous` with the existing files. Raise an error if `if_exists` forbids changing them."""
    folder, pattern, names_in_folder = previous.folder, previous.pattern, previous.folder.names()
    destination = replace(
        previous,
        existing=folder.find_entries(name for name in names_in_folder if pattern.owns(name) or previous.owns(name)),
    )
    where = folder.path or "."
    own_files = sorted(destination.existing)
    check_entries(folder.full_path, destination.existing)
    if pattern.dataset_file in destination.existing:
        _check_dataset_file(destination)
    if rivals := sorted(name for name in names_in_folder if pattern.shares_sidecar_name(name)):
        found = f"shards of another format with these names: {format_list(rivals, 3)}"
        remedy = "Choose another name, or move these files to another folder."
        raise OutputExists(where, found, expected="no shards that would share sidecars", remedy=remedy)
    if destination.part is not None:
        destination = _inspect_part(destination)
    elif destination.appends:
        destination = replace(destination, append=_find_append(destination))
    elif destination.if_exists == "update":
        _check_unfinished(destination)
    elif destination.existing and destination.if_exists == "error":
        is_finished = pattern.dataset_file in destination.existing
        alternative = f"continue that run with {flag_text('resume')}"
        if is_finished:
            alternative = f"add new samples with {flag_text('update')}"
        found = f"{already_exist_text(len(own_files), 'file')}: {format_list(own_files, 3)}"
        remedy = f"Choose another name, {alternative}, or replace them with {flag_text('overwrite')}."
        raise OutputExists(where, found, remedy=remedy)
    if not destination.resumes and destination.if_exists != "overwrite":
        indexes = StaleIndexes(folder, pattern, names_in_folder, appends=destination.appends)
        indexes.check_no_leftovers(set(names_in_folder))
    return destination


def changed_meanwhile_error(destination: Destination) -> OutputExists:
    """Return the error for a dataset that another run has changed."""
    problem, expected = "another run changed the dataset", "the same dataset as at the start of this run"
    return OutputExists(destination.dataset_file, problem, expected=expected, remedy="Run the same command again.")


def _inspect_part(destination: Destination) -> Destination:
    names = {destination.pattern.dataset_file, *destination.own_names}
    part_files = {name: file_info for name, file_info in destination.existing.items() if name in names}
    if part_files and destination.if_exists == "error":
        found = f"{already_exist_text(len(part_files), 'file')}: {format_list(sorted(part_files), 3)}"
        remedy = f"Choose another name, or continue this part with {flag_text('resume')}."
        raise OutputExists(destination.folder.path or ".", found, remedy=remedy)
    return replace(destination, existing=part_files) if destination.own_names else destination


def _check_dataset_file(destination: Destination) -> None:
    data, may_be_replaced = b"", False
    with suppress(OSError):
        data = destination.folder.read(destination.pattern.dataset_file)
        may_be_replaced = may_be_dataset_file(data) and not os.path.islink(destination.dataset_file)
    shards = parse_shard_names(data)
    if shards is None and not may_be_replaced:
        found = "a file that is not a shardtool dataset file"
        if os.path.islink(destination.dataset_file):
            found = "a symbolic link, which is never written through"
        remedy = "Choose another pattern, or move the file to another folder."
        raise OutputExists(destination.dataset_file, found, remedy=remedy)
    if destination.appends:
        return
    names = [to_local_name(shard) for shard in shards or ()]
    if foreign := [name for name in names if not destination.pattern.owns(name)]:
        found = f"a dataset file that lists other shards: {format_list(foreign, 3)}"
        remedy = "Choose another pattern, use the pattern of that dataset, or delete it first."
        expected = f"shards of {destination.pattern.text}"
        raise OutputExists(destination.dataset_file, found, expected=expected, remedy=remedy)
    if destination.if_exists == "resume" and has_appends(data):
        append = choose_text(f"Choose {flag_text('append', 'resume')}", "Add --append")
        overwrite = choose_text("'resume-overwrite'", "--overwrite")
        remedy = f"{append} to continue an append, or {overwrite} to replace the dataset."
        if destination.part is not None:  # neither option works with `part`
            remedy = "Delete the dataset first, or use another output."
        raise OutputExists(destination.dataset_file, "appended shards, which this run would delete", remedy=remedy)


def _check_unfinished(destination: Destination) -> None:
    # An interrupted run leaves at most one shard without a sidecar. Several such shards come from another tool.
    shards = sorted(name for name in destination.existing if name.endswith(destination.pattern.format))
    has_sidecar = any(sidecar_name(name) in destination.existing for name in shards)
    if destination.folder.has_staging and len(shards) > 1 and not has_sidecar:
        found = f"{pluralize(len(shards), 'shard')} without a dataset file or a sidecar: {format_list(shards, 3)}"
        expected = "a dataset to update, or no shards"
        remedy = "Run `shardtool index` to turn another tool's shards into a dataset, or choose another name."
        raise OutputExists(destination.folder.path or ".", found, expected=expected, remedy=remedy)


def _find_append(destination: Destination) -> Append:
    folder, pattern, previous = destination.folder, destination.pattern, destination.append
    if pattern.dataset_file not in destination.existing:
        remedy = f"Run without {flag_text('append')}."
        if not destination.existing:
            raise InvalidRequest(destination.dataset_file, "nothing to append to: no such file", remedy=remedy)
        found = f"no dataset file, but {pluralize(len(destination.existing), 'file')} of the pattern"
        option = flag_text("resume") + choose_text("", ", without --append")
        remedy = f"Continue the interrupted run with {option}."
        remedy += " Run `shardtool index` first if another tool wrote the shards."
        raise InvalidRequest(destination.dataset_file, found, remedy=remedy)
    data = folder.read(pattern.dataset_file)
    if previous is not None and previous.data != data:
        raise changed_meanwhile_error(destination)
    old = check_existing_dataset(folder, pattern, destination.existing, data)
    later = list_later_files(pattern, destination.existing, len(old.shards))
    if later and not destination.resumes:
        found = f"{pluralize(len(later), 'file')} of an interrupted append: {format_list(later, 3)}"
        option = flag_text("append", "resume")
        remedy = f"Continue it with {option}, or delete these files, which the dataset does not list."
        raise OutputExists(folder.path or ".", found, remedy=remedy)
    # Skip this check after an interrupted append, which may have replaced the list of skipped samples.
    if not later:
        rows = skipped_list.encode_skipped(destination.load_skipped())
        skipped_list.check_skipped_file(rows, old, destination.skipped_file)
    if isinstance(previous, FinishedAppend):
        return previous
    return Append(old, data, len(old.shards))
