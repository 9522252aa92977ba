"""Where a dataset goes, what is there already, and whether a run may touch it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset, shard_names, tells_of_appends
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, listing, reason
from shardtool.pattern import SIDECAR_SUFFIX, ShardPattern, sidecar_name, text_of
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.publish.records import check_skipped_file, encode_skipped, read_skipped
from shardtool.storage.staging import check_facts
from shardtool.values import IfExists, counted, output_text, to_bytes
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.dataset.dataset_file import DatasetFile
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
    return Append(old, data, len(old.shards))


# The dataset that samples are appended to: is it whole, as far as a listing shows, and which names are left?
#
# Shards and sidecars are looked at by their sizes, and never read here.


_REMEDY = "`shardtool verify` shows what is damaged."
_WIDER = "Use an open range such as out-{000000..}.tar, or a wider one."


@dataclass(frozen=True, slots=True)
class Append:
    """An append to a dataset.

    Attributes:
        old: What the dataset file says of it.
        data: The bytes of that file.
        first: The number of the append's first shard.
    """

    old: DatasetFile
    data: bytes
    first: int


class EndedAppend(Append):
    """It was killed after its end: the dataset file lists its shards. Nothing is published, only compared."""

    __slots__ = ()


def check_old(
    folder: OutputFolder, pattern: ShardPattern, existing: Mapping[str, FileFact], data: bytes
) -> DatasetFile:
    """Return the dataset that is there, if samples can be appended to it under the names of a pattern.

    Args:
        folder: Where it lies.
        pattern: The names of the shards, with those of the new ones.
        existing: What is known of the files that the pattern owns.
        data: The bytes of its dataset file.

    Raises:
        CorruptShard: The dataset file is damaged, or a file that it lists is missing or has another size.
        OutputExists: A file that it lists is a link: what it leads to may be changed by others.
        InvalidRequest: The pattern's first names are not those of its shards.
    """
    where = folder.full_path(pattern.dataset_file)
    old = read_dataset(data, where)
    _check_names(old, pattern, where)
    for shard in old.shards:
        for name, size in ((shard.name, shard.size), (shard.sidecar, shard.sidecar_size)):
            fact = existing.get(os.fsdecode(to_bytes(name)))
            if fact is None or fact.size != size:
                found = "no such file" if fact is None else f"{fact.size:,} bytes"
                expected = f"{size:,} bytes, as the dataset file says"
                if os.path.islink(path := folder.full_path(name)):
                    raise OutputExists(path, "a symbolic link", expected="the file itself, to append to")
                raise CorruptShard(path, found, expected=expected, remedy=_REMEDY)
    return old


def _check_names(old: DatasetFile, pattern: ShardPattern, where: str) -> None:
    count = len(old.shards)
    known = count if pattern.count is None else min(count, pattern.count)
    names = [output_text(pattern.shard(number)) for number in range(known)]
    for ours, theirs in zip_longest(names, (shard.name for shard in old.shards)):
        if ours != theirs:
            found = f"the pattern calls a shard {ours}" if ours else f"{pattern.count:,} names for {count:,} shards"
            expected = f"{theirs}, as {where} does" if ours else f"the pattern of {where}, which is {old.pattern}"
            raise InvalidRequest(pattern.text, found, expected=expected, remedy="Use that dataset's own pattern.")
    if old.format != pattern.format:
        raise InvalidRequest(pattern.text, f"{pattern.format} shards", expected=f"{old.format}, as {where} says")


def check_none_left(folder: OutputFolder, later: Collection[str]) -> None:
    """Refuse what a killed append has left, where it is not to be resumed.

    Raises:
        OutputExists: There is such a file.
    """
    if later:
        found = f"{counted(len(later), 'file')} of an append that did not end: {listing(sorted(later), 3)}"
        remedy = (
            f"Finish it with {option('if_exists', 'append-resume')}, or remove them: the dataset does not list them."
        )
        raise OutputExists(folder.path or ".", found, remedy=remedy)


def nothing_there(folder: OutputFolder, pattern: ShardPattern, existing: Collection[str]) -> InvalidRequest:
    """Return the error that there is no dataset to append to."""
    where = folder.full_path(pattern.dataset_file)
    if existing:
        found = f"no dataset file, beside {counted(len(existing), 'file')} of its name"
        finish = option("if_exists", "resume") + either("", ", without --append")
        remedy = f"Finish the run that made them with {finish}; those of another tool, `index` first."
        return InvalidRequest(where, found, remedy=remedy)
    return InvalidRequest(
        where, "nothing to append to: no such file", remedy=f"Leave {option('if_exists', 'append')} out."
    )


def later_files(pattern: ShardPattern, existing: Collection[str], count: int) -> list[str]:
    """Return those of the pattern's files that are of shard `count`, counted from 0, or of a later one."""
    if pattern.names is not None:
        later = {file for name in pattern.names[count:] for file in (name, sidecar_name(name))}
        return sorted(later.intersection(existing))
    shared = (pattern.dataset_file, pattern.skipped_file)
    return sorted(name for name in existing if name not in shared and _number(pattern, name) >= count)


def _number(pattern: ShardPattern, name: str) -> int:
    """Return the number of the shard that a file which the pattern owns belongs to, counted from 0."""
    stem, tail = _stem(name), _stem(pattern.suffix)
    return int(stem[len(pattern.prefix) : len(stem) - len(tail)]) - pattern.first


def _stem(name: str) -> str:
    return sidecar_name(name).removesuffix(SIDECAR_SUFFIX)


def names_left(pattern: ShardPattern, taken: int) -> ShardPattern:
    """Return the pattern of the names after the first `taken`.

    Raises:
        InvalidRequest: There are none.
    """
    if not taken:
        return pattern
    if pattern.count is not None and pattern.count <= taken:
        raise InvalidRequest(pattern.text, f"all of its {counted(pattern.count, 'name')} taken", remedy=_WIDER)
    count = None if pattern.count is None else pattern.count - taken
    if pattern.names is not None:
        names = pattern.names[taken:]
        return replace(pattern, count=count, names=names, text=text_of(names))
    first, width = pattern.first + taken, pattern.width
    last = "" if count is None else f"{first + count - 1:0{width}d}"
    text = f"{pattern.prefix}{{{first:0{width}d}..{last}}}{pattern.suffix}"
    return replace(pattern, first=first, count=count, text=text)
