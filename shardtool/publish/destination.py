"""Where a dataset goes, what is there already, and whether a run may touch it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import shard_names, tells_of_appends
from shardtool.errors import CorruptShard, OutputExists, listing, reason
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.publish.old_dataset import (
    EndedAppend,
    KilledAppend,
    NewAppend,
    check_none_left,
    check_old,
    later_files,
    names_left,
    nothing_there,
)
from shardtool.publish.records import check_skipped_file, encode_skipped, read_skipped
from shardtool.storage.staging import check_facts
from shardtool.values import IfExists, counted, to_bytes
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.pattern import ShardPattern
    from shardtool.publish.old_dataset import Append
    from shardtool.publish.records import PartShare
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import FileFact


@dataclass(frozen=True, slots=True)
class Destination:
    """The place of a dataset, and what was there when a run looked.

    Attributes:
        folder: The folder.
        pattern: The names.
        if_exists: What to do about an earlier output.
        existing: What is known of the files that are there under the pattern's names.
        append: The dataset that is appended to, and how far this append is; None if the run does not append.
        own: The share of the part that runs, which leaves all other files alone; None: all is its own.
    """

    folder: OutputFolder
    pattern: ShardPattern
    if_exists: IfExists
    existing: Mapping[str, FileFact] = field(default_factory=dict)
    append: Append | None = None
    own: PartShare | None = None

    def owns(self, name: str) -> bool:
        """Tell whether a file called `name` is one that this run may replace or remove."""
        return self.pattern.owns(name) if self.own is None else name in self.own.names

    def planned(self, shards: int) -> Destination:
        """Return the place, and what is there of this run's own files, now that it is known how many shards there are.

        Args:
            shards: Those of all parts.
        """
        if self.own is None:
            return self
        found = replace(self, own=self.own.planned(self.pattern, shards))
        wanted = {name: fact for name, fact in self.existing.items() if found.owns(name)}
        if self.pattern.dataset_file in self.existing:
            wanted[self.pattern.dataset_file] = self.existing[self.pattern.dataset_file]
        return replace(found, existing=wanted)

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
        return self.if_exists in ("append", "append-resume")

    @property
    def resumes(self) -> bool:
        """Whether shards that a killed run has finished are kept."""
        return self.if_exists in ("resume", "resume-overwrite", "append-resume")

    @property
    def old(self) -> DatasetFile | None:
        """The dataset that is appended to; None if there is none."""
        return None if self.append is None else self.append.old

    @property
    def first(self) -> int:
        """The number of the first shard of this run."""
        return 0 if self.append is None else self.append.first

    @property
    def pattern_left(self) -> ShardPattern:
        """The pattern of the names that this run may use.

        Raises:
            InvalidRequest: There are none.
        """
        return names_left(self.pattern, self.first)

    def listed_skipped(self) -> list[Skipped]:
        """Return the list of what was left out that is there.

        Raises:
            CorruptShard: It is none.
        """
        name = self.pattern.skipped_file
        try:
            return read_skipped(self.folder.read(name) if name in self.existing else b"", self.skipped_file)
        except OSError as error:
            raise CorruptShard(self.skipped_file, f"cannot be read: {reason(error)}") from None


def look(before: Destination) -> Destination:
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
    check_facts(folder.full_path, found.existing)
    if pattern.dataset_file in found.existing:
        _check_dataset_file(found)
    if rivals := sorted(name for name in there if pattern.rivals(name)):
        what = f"shards of another format under these names: {listing(rivals, 3)}"
        remedy = "Choose another name, or move them away."
        raise OutputExists(where, what, expected="none that would share their indexes", remedy=remedy)
    if found.own is not None:
        found = _look_at_own(found, found.own)
    elif found.appends:
        found = replace(found, append=_find_append(found))
    elif found.existing and found.if_exists == "error":
        ended = pattern.dataset_file in found.existing
        finish = "." if ended else f", or finish that run with {option('if_exists', 'resume')}."
        what = f"{counted(len(names), 'file')} there already: {listing(names, 3)}"
        raise OutputExists(where, what, remedy=f"Choose another name, or {option('if_exists', 'overwrite')}{finish}")
    if not found.resumes and found.if_exists != "overwrite":
        beside = StaleIndexes(folder, pattern, appends=found.appends)
        beside.look(there)
        beside.check_none_left(set(there))
    return found


def _look_at_own(found: Destination, own: PartShare) -> Destination:
    """Return what is there of a part's files, or refuse to touch it: other parts' files are nothing to it."""
    names = [found.pattern.dataset_file, *own.names]
    known = {name: found.existing[name] for name in names if name in found.existing}
    if known and found.if_exists == "error":
        what = f"{counted(len(known), 'file')} there already: {listing(sorted(known), 3)}"
        remedy = f"Choose another name, or go on with the part that made them with {option('if_exists', 'resume')}."
        raise OutputExists(found.folder.path or ".", what, remedy=remedy)
    return found if own.shards is None else replace(found, existing=known)


def _check_dataset_file(found: Destination) -> None:
    """Refuse what has the dataset file's name and is none, or lists a shard that would be left behind."""
    name, data = found.pattern.dataset_file, b""
    with suppress(OSError):
        data = found.folder.read(name)
    shards = shard_names(data)
    if shards is None:
        link = os.path.islink(found.dataset_file)
        what = (
            "a symbolic link, and no run writes through one" if link else "a file that is no dataset file of shardtool"
        )
        raise OutputExists(found.dataset_file, what, remedy="Choose another pattern, or move it away.")
    if found.appends:
        return  # damaged or not: `_find_append` says
    names = [os.fsdecode(to_bytes(shard)) for shard in shards]
    if foreign := [name for name in names if not found.pattern.owns(name)]:
        what = f"the dataset file of other shards: {listing(foreign, 3)}"
        remedy = "Choose another pattern, use that dataset's own, or remove it first."
        raise OutputExists(found.dataset_file, what, expected=f"those of {found.pattern.text}", remedy=remedy)
    if found.if_exists == "resume" and tells_of_appends(data):
        append = either(f"Choose {option('if_exists', 'append-resume')}", "Add --append")
        overwrite = either("'resume-overwrite'", "--overwrite")
        cure = f"{append} to go on with an append, or {overwrite} to replace the dataset by a new one."
        raise OutputExists(found.dataset_file, "shards that were appended, which this run would remove", remedy=cure)


def _find_append(found: Destination) -> Append:
    """Return the dataset to append to, which is the one that was there before, and how far the append is."""
    folder, pattern, before = found.folder, found.pattern, found.append
    if pattern.dataset_file not in found.existing:
        raise nothing_there(folder, pattern, found.existing)
    data = folder.read(pattern.dataset_file)
    if before is not None and before.data != data:
        what = "the dataset was changed meanwhile, by another run"
        expected = "the one that was there at the start"
        raise OutputExists(found.dataset_file, what, expected=expected, remedy="Run the same command again.")
    old = check_old(folder, pattern, found.existing, data)
    later = later_files(pattern, found.existing, len(old.shards))
    if not found.resumes:
        check_none_left(folder, later)
    if not later:  # a killed append may have put its own list there, with its shards
        check_skipped_file(encode_skipped(found.listed_skipped()), old, found.skipped_file)
    if isinstance(before, EndedAppend):
        return before
    return KilledAppend(old, data, len(old.shards)) if later else NewAppend(old, data, len(old.shards))
