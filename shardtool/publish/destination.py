"""The destination of a dataset: its folder and names, the existing files, and whether a run may change them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import (
    DatasetFile,
    has_appends,
    may_be_own,
    parse_shard_names,
)
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, format_list, os_error_text
from shardtool.messages import choose_text, option_text
from shardtool.names import to_local_name
from shardtool.pattern import ShardPattern, sidecar_name
from shardtool.publish import part_records, skipped_list
from shardtool.publish.append_target import Append, FinishedAppend, check_existing_dataset, list_later_files
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.storage.file_system import EntryInfo, check_entries
from shardtool.units import already_exist_text, pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.request.run_part import RunPart
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.values import IfExists


@dataclass(frozen=True, slots=True)
class Destination:
    """The place of a dataset, and what was there when a run looked.

    Attributes:
        folder: The folder.
        pattern: The names.
        if_exists: What to do about an earlier output.
        existing: What is known of the files that are there under the pattern's names.
        append: The dataset that is appended to, and how far this append is; None if the run does not append.
        part: The part that runs, which leaves all other files alone; None: all is its own.
        own: The names of that part's files: shards, sidecars and its record; none while the plan is not made.
    """

    folder: OutputFolder
    pattern: ShardPattern
    if_exists: IfExists
    existing: Mapping[str, EntryInfo] = field(default_factory=dict)
    append: Append | None = None
    part: RunPart | None = None
    own: frozenset[str] = frozenset()

    def owns(self, name: str) -> bool:
        """Tell whether a file called `name` is one that this run may replace or remove."""
        return self.pattern.owns(name) if self.part is None else name in self.own

    def planned(self, shards: int) -> Destination:
        """Return the place, and what is there of this run's own files, now that it is known how many shards there are.

        Args:
            shards: Those of all parts.
        """
        if self.part is None:
            return self
        names = [self.pattern.shard(number) for number in self.part.shards(shards)]
        own = frozenset((*names, *map(sidecar_name, names), part_records.part_record_name(self.pattern, self.part)))
        wanted = {self.pattern.dataset_file, *own}
        return replace(self, own=own, existing={name: self.existing[name] for name in self.existing if name in wanted})

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file."""
        return self.folder.full_path(self.pattern.dataset_file)

    @property
    def skipped_file(self) -> str:
        """The path of the list of what was left out."""
        return self.folder.full_path(self.pattern.skipped_file)

    @property
    def appends(self) -> bool:
        """Whether the new shards join those of a dataset that is there."""
        if self.if_exists == "update":
            return self.pattern.dataset_file in self.existing
        return self.if_exists in ("append", "append-resume")

    @property
    def resumes(self) -> bool:
        """Whether shards that a killed run has finished are kept."""
        return self.if_exists in ("resume", "resume-overwrite", "append-resume", "update")

    @property
    def old(self) -> DatasetFile | None:
        """The dataset that is appended to; None if there is none."""
        return None if self.append is None else self.append.old

    @property
    def first(self) -> int:
        """The number of the first shard of this run."""
        return 0 if self.append is None else self.append.first

    def load_skipped(self) -> list[Skipped]:
        """Return the list of what was left out that is there.

        Raises:
            CorruptShard: It is none.
        """
        name = self.pattern.skipped_file
        try:
            return skipped_list.parse_skipped(
                self.folder.read(name) if name in self.existing else b"", self.skipped_file
            )
        except OSError as error:
            raise CorruptShard(self.skipped_file, f"cannot be read: {os_error_text(error)}") from None

    def removed(self) -> dict[str, Skipped]:
        """Return the samples that `remove` has taken out of the dataset that is there, by the marks of their keys.

        Raises:
            CorruptShard: The list of what was left out has such samples, and is damaged.
        """
        name = self.pattern.skipped_file
        with suppress(OSError):
            if name in self.existing and b'"removed"' in self.folder.read(name):
                return {one.key: one for one in self.load_skipped() if one.code == "removed"}
        return {}


def inspect_destination(before: Destination) -> Destination:
    """Return what is there, or refuse to touch it if that was not asked for.

    Args:
        before: The output, and what was known of it until now.

    Raises:
        OutputExists: There is output, and `if_exists` is `error`; or shards that were appended, and it is
            `resume`; or what a killed append has left, and it is `append`; or the dataset that is appended to
            has changed since it was looked at before.
        InvalidRequest: There is nothing to append to, or its shards have other names.
        CorruptShard: What is appended to is damaged.
    """
    folder, pattern, there = before.folder, before.pattern, before.folder.names()
    found = replace(before, existing=folder.facts(name for name in there if pattern.owns(name) or before.owns(name)))
    where, names = folder.path or ".", sorted(found.existing)
    check_entries(folder.full_path, found.existing)
    if pattern.dataset_file in found.existing:
        _check_dataset_file(found)
    if rivals := sorted(name for name in there if pattern.rivals(name)):
        what = f"shards of another format under these names: {format_list(rivals, 3)}"
        remedy = "Choose another name, or move them away."
        raise OutputExists(where, what, expected="none that would share their indexes", remedy=remedy)
    if found.part is not None:
        found = _inspect_part(found)
    elif found.appends:
        found = replace(found, append=_find_append(found))
    elif found.if_exists == "update":
        _check_unfinished(found)
    elif found.existing and found.if_exists == "error":
        ended = pattern.dataset_file in found.existing
        finish = "." if ended else f", or finish that run with {option_text('if_exists', 'resume')}."
        what = f"{already_exist_text(len(names), 'file')}: {format_list(names, 3)}"
        raise OutputExists(
            where, what, remedy=f"Choose another name, or {option_text('if_exists', 'overwrite')}{finish}"
        )
    if not found.resumes and found.if_exists != "overwrite":
        StaleIndexes(folder, pattern, there, appends=found.appends).check_no_leftovers(set(there))
    return found


def changed_meanwhile_error(found: Destination) -> OutputExists:
    """Return the error of a run that has waited for another, and finds another dataset than it looked at before."""
    what, expected = "the dataset was changed meanwhile, by another run", "what was there at the start"
    return OutputExists(found.dataset_file, what, expected=expected, remedy="Run the same command again.")


def _inspect_part(found: Destination) -> Destination:
    """Return what is there of a part's files, or refuse to touch it: other parts' files are nothing to it."""
    names = {found.pattern.dataset_file, *found.own}
    known = {name: fact for name, fact in found.existing.items() if name in names}
    if known and found.if_exists == "error":
        what = f"{already_exist_text(len(known), 'file')}: {format_list(sorted(known), 3)}"
        remedy = (
            f"Choose another name, or go on with the part that made them with {option_text('if_exists', 'resume')}."
        )
        raise OutputExists(found.folder.path or ".", what, remedy=remedy)
    return replace(found, existing=known) if found.own else found


def _check_dataset_file(found: Destination) -> None:
    """Refuse what has the dataset file's name and is none, or lists a shard that would be left behind."""
    name, data, may_be_replaced = found.pattern.dataset_file, b"", False
    with suppress(OSError):
        data = found.folder.read(name)
        may_be_replaced = may_be_own(data) and not os.path.islink(found.dataset_file)
    shards = parse_shard_names(data)
    if shards is None and not may_be_replaced:
        what = "a file that is no dataset file of shardtool"
        if os.path.islink(found.dataset_file):
            what = "a symbolic link, and no run writes through one"
        raise OutputExists(found.dataset_file, what, remedy="Choose another pattern, or move it away.")
    if found.appends:
        return  # damaged or not: `_find_append` says
    names = [to_local_name(shard) for shard in shards or ()]
    if foreign := [name for name in names if not found.pattern.owns(name)]:
        what = f"the dataset file of other shards: {format_list(foreign, 3)}"
        remedy = "Choose another pattern, use that dataset's own, or remove it first."
        raise OutputExists(found.dataset_file, what, expected=f"those of {found.pattern.text}", remedy=remedy)
    if found.if_exists == "resume" and has_appends(data):
        append = choose_text(f"Choose {option_text('if_exists', 'append-resume')}", "Add --append")
        overwrite = choose_text("'resume-overwrite'", "--overwrite")
        cure = f"{append} to go on with an append, or {overwrite} to replace the dataset by a new one."
        raise OutputExists(found.dataset_file, "shards that were appended, which this run would remove", remedy=cure)


def _check_unfinished(found: Destination) -> None:
    """Refuse to update shards of another tool: a first night that was killed has left its shards with sidecars.

    Only the last may lack its own; in a store, where workers write shards in place, those of all workers may.
    """
    shards = [name for name in found.existing if name.endswith(found.pattern.format)]
    if found.folder.hides and len(shards) > 1 and not any(sidecar_name(name) in found.existing for name in shards):
        what = (
            f"{pluralize(len(shards), 'shard')} without a dataset file or a sidecar: {format_list(sorted(shards), 3)}"
        )
        remedy = "`shardtool index` makes a dataset of another tool's shards; otherwise choose another name."
        raise OutputExists(found.folder.path or ".", what, expected="a dataset to add to, or none", remedy=remedy)


def _find_append(found: Destination) -> Append:
    """Return the dataset to append to, which is the one that was there before, and how far the append is."""
    folder, pattern, before = found.folder, found.pattern, found.append
    if pattern.dataset_file not in found.existing:
        remedy = f"Leave {option_text('if_exists', 'append')} out."
        if not found.existing:
            raise InvalidRequest(found.dataset_file, "nothing to append to: no such file", remedy=remedy)
        what = f"no dataset file, beside {pluralize(len(found.existing), 'file')} of its name"
        finish = option_text("if_exists", "resume") + choose_text("", ", without --append")
        remedy = f"Finish the run that made them with {finish}; those of another tool, `index` first."
        raise InvalidRequest(found.dataset_file, what, remedy=remedy)
    data = folder.read(pattern.dataset_file)
    if before is not None and before.data != data:
        raise changed_meanwhile_error(found)
    old = check_existing_dataset(folder, pattern, found.existing, data)
    later = list_later_files(pattern, found.existing, len(old.shards))
    if later and not found.resumes:
        what = f"{pluralize(len(later), 'file')} of an append that did not end: {format_list(later, 3)}"
        finish = option_text("if_exists", "append-resume")
        remedy = f"Finish it with {finish}, or remove them: the dataset does not list them."
        raise OutputExists(folder.path or ".", what, remedy=remedy)
    if not later:  # a killed append may have put its own list there, with its shards
        skipped_list.check_skipped_file(skipped_list.encode_skipped(found.load_skipped()), old, found.skipped_file)
    if isinstance(before, FinishedAppend):
        return before
    return Append(old, data, len(old.shards))
