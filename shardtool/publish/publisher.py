"""Staged files become visible: shard, then sidecar, and after all of them the dataset file.

One `Publisher` for each dataset of a run, in the parent process, which alone gives final names: a worker that
outlived its time could never publish. It holds the order that makes every instant safe; what may be there
already is decided before (`look`):

- the dataset file names only files that are there and whole: whatever replaces or removes one of
  its shards removes the dataset file first;
- `--overwrite` stages everything beside the old dataset, and replaces it only when all is staged;
- in a store, where a shard is seen as soon as it is written, all that waits elsewhere is done before (`before`): so
  `--overwrite` takes the old dataset away first;
- `--append` touches no shard that the old dataset file names, so that file stays until another takes its place;
- an index file of another tool that would lead into other bytes is removed before its shard changes (`StaleIndexes`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import zip_longest
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import (
    DatasetFile,
    ShardEntry,
    may_be_own,
    read_dataset,
    shard_names,
    tells_of_appends,
)
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, OutputFailed, listing, reason
from shardtool.pattern import ShardPattern, sidecar_name, text_of
from shardtool.publish import records
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.skipped import Skipped, in_order
from shardtool.storage.folders import OutputFolder, check_there
from shardtool.storage.staging import DurableFile, FileFact, StagedFile, check_facts
from shardtool.values import IfExists, already_exist, counted, local_name, output_text, show_size
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardtool.publish.records import PartRecord
    from shardtool.request.texts import Part


_SPOOL_SUFFIX = ".spool"
_SPACE_FOR_INDEXES = 1.01  # sidecars and the dataset file, as a share of the shards


class Publisher:
    """The output of one run.

    Args:
        destination: Where it goes, and what is there, found out under the lock.

    Attributes:
        beside: The index files of other tools, and which of them were removed.
    """

    def __init__(self, destination: Destination) -> None:
        self.destination, self.folder, self.pattern = destination, destination.folder, destination.pattern
        self._existing = dict(destination.existing)
        self._waiting: list[DurableFile] = []
        self._spool: StagedFile | None = None
        self.beside = StaleIndexes(self.folder, self.pattern, self.folder.names(), appends=destination.appends)

    def all_skipped(self, skipped: Sequence[Skipped]) -> list[Skipped]:
        """Return all that the dataset leaves out: what this run did, and what the dataset that is appended to did.

        Raises:
            CorruptShard: The list that is there is not that of this dataset.
        """
        old, where = self.destination.old, self.destination.skipped_file
        if old is None:
            removed = self.destination.removed() if self.destination.if_exists == "resume" else {}
            return in_order([*skipped, *removed.values()]) if removed else [*skipped]
        listed = self.destination.listed_skipped()
        try:
            records.check_skipped_file(records.encode_skipped(listed), old, where)
        except CorruptShard:
            listed = records.unmerged(listed, skipped)  # an append may have been killed once its own list was there
            records.check_skipped_file(records.encode_skipped(listed), old, where)
        return records.merged(listed, skipped)

    def spool(self, size: int) -> StagedFile:
        """Return a temporary file that workers can read once payloads are written to it.

        Raises:
            OutputFailed: There is no space for `size` bytes, or the file system refuses.
        """
        if self.folder.hides:
            self.check_space([size])
        self._spool = self.folder.temporary.stage(_spool_name(self.destination))
        return self._spool

    def abandon(self) -> None:
        """Give up the temporary file; `clean` removes it."""
        if self._spool is not None:
            self._spool.abandon()
            self._spool = None

    def check_space(self, sizes: Sequence[int]) -> None:
        """Refuse to start what cannot end.

        Args:
            sizes: Bytes of the shards that are yet to be written.

        Raises:
            OutputFailed: The folder has less space than the shards take.
        """
        stays = self.destination.if_exists == "overwrite" and bool(self._existing)
        check_space(self.folder, sum(sizes), "written", old_stays=stays)

    def before(self, name: str) -> None:
        """Make ready for a shard that a worker writes: where it is seen at once, nothing may lead to it any more.

        Args:
            name: The shard's final name.

        Raises:
            OutputFailed: The old dataset file, or an index of another tool, cannot be removed.
        """
        if not self.folder.hides:
            self._withdraw_dataset_file()
            self.beside.drop(name)
            self.beside.remove()

    @property
    def _waits(self) -> bool:
        """Whether all is published at the end, in place of an old dataset that stays until then."""
        return self.destination.if_exists == "overwrite" and self.folder.hides

    def add(self, shard: DurableFile | None, sidecar: bytes, name: str) -> None:
        """Publish a shard and its sidecar, or keep them for the end of an `--overwrite`.

        Args:
            shard: The staged shard; None: the one that is there stays.
            sidecar: Its sidecar's bytes.
            name: The shard's final name.

        Raises:
            OutputFailed: The file system refuses.
        """
        staged = [] if shard is None else [shard]
        index = sidecar_name(name)
        if shard is not None or not self._has(index, sidecar):
            staged.append(self.folder.stage_whole(index, sidecar))
        self.beside.compare(name, lambda: sidecar, written=shard is not None)
        if self._waits:
            self._waiting += staged
        elif staged:
            self._withdraw_dataset_file()
            self.beside.remove()
            self.folder.publish(*staged)

    def sidecar(self, shard: str) -> bytes:
        """Return the bytes of a sidecar that this run has added, or that was there.

        Raises:
            OSError: It cannot be read.
        """
        index = sidecar_name(shard)
        return self.folder.read_staged(index) if self._waits else self.folder.read(index)

    def renew(self, sidecars: Mapping[str, bytes]) -> None:
        """Replace the sidecars of shards of this run by others, now that more is known.

        Args:
            sidecars: The bytes of each, by its shard's name.

        Raises:
            OutputFailed: The file system refuses.
        """
        staged = [self.folder.stage_whole(sidecar_name(shard), data) for shard, data in sidecars.items()]
        if staged and not self._waits:  # there, they wait under the same names
            self._withdraw_dataset_file()
            self.folder.publish(*staged)

    def check_there(self, shards: Sequence[ShardEntry]) -> None:
        """See that a store has what workers have given it: one listing before the dataset file names it all.

        Args:
            shards: What the dataset file is to say of each.

        Raises:
            OutputFailed: A shard or a sidecar is not there, or has another size.
        """
        sizes = {local_name(one.name): one.size for one in shards}
        sizes |= {local_name(one.sidecar): one.sidecar_size for one in shards}
        check_there(self.folder, sizes, f"Run the same command again with {option('if_exists', 'resume')}.")

    def finish(self, shards: Sequence[str], dataset_file: bytes, skipped: Sequence[Skipped]) -> None:
        """Publish what waits, remove what is stale, and publish the dataset file, last.

        Args:
            shards: The final names of all shards of this run.
            dataset_file: Its bytes.
            skipped: What was left out, in the order of its list: `all_skipped`.

        Raises:
            OutputFailed: The file system refuses.
        """
        wanted = {*shards, *map(sidecar_name, shards), self.pattern.dataset_file}
        rows = records.encode_skipped(skipped)
        if rows:
            wanted.add(self.pattern.skipped_file)
        stale, old = sorted(set(self._existing) - wanted), self.destination.old
        if old is not None:
            stale = later_files(self.pattern, self._existing, self.destination.first + len(shards))
        if rows and not self._has(self.pattern.skipped_file, rows):
            self._waiting.append(self.folder.stage_whole(self.pattern.skipped_file, rows))
        self.beside.keep_only([*shards, *(() if old is None else (one.name for one in old.shards))])
        self.beside.remove()
        if not (self._waiting or stale) and self._has(self.pattern.dataset_file, dataset_file):
            records.remove_records(self.folder, self.pattern)
            return
        last = self.folder.stage_whole(self.pattern.dataset_file, dataset_file)
        if self._waiting or stale:
            self._withdraw_dataset_file()
        if self._waiting:
            self.folder.publish(*self._waiting)
        self.folder.remove(stale)
        self.folder.publish(last)
        self._waiting = []
        records.remove_records(self.folder, self.pattern)

    def begin(self) -> None:
        """Remove the record that this part has left before: until it ends again, it has not ended.

        Raises:
            OutputFailed: The file system refuses.
        """
        part = self.destination.part
        if part is not None and (name := records.record_name(self.pattern, part)) in self._existing:
            self.folder.remove([name])

    def end_part(self, record: PartRecord, *, stays: bool) -> None:
        """Publish the record of a part whose shards are all there.

        Args:
            record: The record.
            stays: Whether the dataset file that is there lists these shards; otherwise it is removed before.

        Raises:
            OutputFailed: The file system refuses.
        """
        staged = self.folder.stage_whole(records.record_name(self.pattern, record.part), record.encode())
        if not stays:
            self._withdraw_dataset_file()
        self.folder.publish(staged)

    def take_back(self, shards: Sequence[str]) -> None:
        """Remove the shards of a run that nothing came of: they would be in the way of the next one."""
        if not isinstance(self.destination.append, EndedAppend):
            self.folder.remove(sorted(name for shard in shards for name in (shard, sidecar_name(shard))))

    def _withdraw_dataset_file(self) -> None:
        """Remove the old dataset file before the first of its shards changes; an append changes none."""
        if not self.destination.appends and self._existing.pop(self.pattern.dataset_file, None) is not None:
            self.folder.remove([self.pattern.dataset_file])

    def _has(self, name: str, data: bytes) -> bool:
        """Tell whether a file is there with exactly these bytes."""
        fact = self._existing.get(name)
        if fact is None or fact.size != len(data):
            return False
        with suppress(OSError):
            return self.folder.read(name) == data
        return False


def check_space(folder: OutputFolder, size: int, done: str, *, old_stays: bool = False) -> None:
    """Refuse to start what cannot end: `size` bytes of shards are yet to be `done`.

    Raises:
        OutputFailed: The folder has less space than the shards take.
    """
    need, free = int(size * _SPACE_FOR_INDEXES), folder.free_bytes()
    if free is not None and need > free:
        cure = ": the old dataset stays until the new one is complete." if old_stays else ", then run the same command."
        found = f"{show_size(free)} free, {show_size(need)} needed; nothing was {done}"
        raise OutputFailed(folder.path or ".", found, remedy=f"Make space{cure}")


def clean(destination: Destination) -> None:
    """Remove what this or a killed run has left under temporary names. Call it under the lock."""
    folder = destination.folder
    folder.discard_staged([name for name in folder.staged_names() if destination.owns(name)])
    folder.temporary.discard_staged([_spool_name(destination)])


def _spool_name(destination: Destination) -> str:
    """Return the name of the temporary file: where those of several datasets lie side by side, one of its own."""
    folder, base = destination.folder, destination.pattern.base
    own = "" if folder.hides else "-" + blake2b(os.fsencode(folder.path), digest_size=6).hexdigest()
    return f"{base}{own}{_SPOOL_SUFFIX}"


# Where a dataset goes, what is there already, and whether a run may touch it.


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
    existing: Mapping[str, FileFact] = field(default_factory=dict)
    append: Append | None = None
    part: Part | None = None
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
        own = frozenset((*names, *map(sidecar_name, names), records.record_name(self.pattern, self.part)))
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

    def listed_skipped(self) -> list[Skipped]:
        """Return the list of what was left out that is there.

        Raises:
            CorruptShard: It is none.
        """
        name = self.pattern.skipped_file
        try:
            return records.read_skipped(self.folder.read(name) if name in self.existing else b"", self.skipped_file)
        except OSError as error:
            raise CorruptShard(self.skipped_file, f"cannot be read: {reason(error)}") from None

    def removed(self) -> dict[str, Skipped]:
        """Return the samples that `remove` has taken out of the dataset that is there, by the marks of their keys.

        Raises:
            CorruptShard: The list of what was left out has such samples, and is damaged.
        """
        name = self.pattern.skipped_file
        with suppress(OSError):
            if name in self.existing and b'"removed"' in self.folder.read(name):
                return {one.key: one for one in self.listed_skipped() if one.code == "removed"}
        return {}


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
    if found.part is not None:
        found = _look_at_own(found)
    elif found.appends:
        found = replace(found, append=_find_append(found))
    elif found.if_exists == "update":
        _check_begun(found)
    elif found.existing and found.if_exists == "error":
        ended = pattern.dataset_file in found.existing
        finish = "." if ended else f", or finish that run with {option('if_exists', 'resume')}."
        what = f"{already_exist(len(names), 'file')}: {listing(names, 3)}"
        raise OutputExists(where, what, remedy=f"Choose another name, or {option('if_exists', 'overwrite')}{finish}")
    if not found.resumes and found.if_exists != "overwrite":
        StaleIndexes(folder, pattern, there, appends=found.appends).check_none_left(set(there))
    return found


def changed_meanwhile(found: Destination) -> OutputExists:
    """Return the error of a run that has waited for another, and finds another dataset than it looked at before."""
    what, expected = "the dataset was changed meanwhile, by another run", "what was there at the start"
    return OutputExists(found.dataset_file, what, expected=expected, remedy="Run the same command again.")


def _look_at_own(found: Destination) -> Destination:
    """Return what is there of a part's files, or refuse to touch it: other parts' files are nothing to it."""
    names = {found.pattern.dataset_file, *found.own}
    known = {name: fact for name, fact in found.existing.items() if name in names}
    if known and found.if_exists == "error":
        what = f"{already_exist(len(known), 'file')}: {listing(sorted(known), 3)}"
        remedy = f"Choose another name, or go on with the part that made them with {option('if_exists', 'resume')}."
        raise OutputExists(found.folder.path or ".", what, remedy=remedy)
    return replace(found, existing=known) if found.own else found


def _check_dataset_file(found: Destination) -> None:
    """Refuse what has the dataset file's name and is none, or lists a shard that would be left behind."""
    name, data, may_be_replaced = found.pattern.dataset_file, b"", False
    with suppress(OSError):
        data = found.folder.read(name)
        may_be_replaced = may_be_own(data) and not os.path.islink(found.dataset_file)
    shards = shard_names(data)
    if shards is None and not may_be_replaced:
        what = "a file that is no dataset file of shardtool"
        if os.path.islink(found.dataset_file):
            what = "a symbolic link, and no run writes through one"
        raise OutputExists(found.dataset_file, what, remedy="Choose another pattern, or move it away.")
    if found.appends:
        return  # damaged or not: `_find_append` says
    names = [local_name(shard) for shard in shards or ()]
    if foreign := [name for name in names if not found.pattern.owns(name)]:
        what = f"the dataset file of other shards: {listing(foreign, 3)}"
        remedy = "Choose another pattern, use that dataset's own, or remove it first."
        raise OutputExists(found.dataset_file, what, expected=f"those of {found.pattern.text}", remedy=remedy)
    if found.if_exists == "resume" and tells_of_appends(data):
        append = either(f"Choose {option('if_exists', 'append-resume')}", "Add --append")
        overwrite = either("'resume-overwrite'", "--overwrite")
        cure = f"{append} to go on with an append, or {overwrite} to replace the dataset by a new one."
        raise OutputExists(found.dataset_file, "shards that were appended, which this run would remove", remedy=cure)


def _check_begun(found: Destination) -> None:
    """Refuse to update shards of another tool: a first night that was killed has left its shards with sidecars.

    Only the last may lack its own; in a store, where workers write shards in place, those of all workers may.
    """
    shards = [name for name in found.existing if name.endswith(found.pattern.format)]
    if found.folder.hides and len(shards) > 1 and not any(sidecar_name(name) in found.existing for name in shards):
        what = f"{counted(len(shards), 'shard')} without a dataset file or a sidecar: {listing(sorted(shards), 3)}"
        remedy = "`shardtool index` makes a dataset of another tool's shards; otherwise choose another name."
        raise OutputExists(found.folder.path or ".", what, expected="a dataset to add to, or none", remedy=remedy)


def _find_append(found: Destination) -> Append:
    """Return the dataset to append to, which is the one that was there before, and how far the append is."""
    folder, pattern, before = found.folder, found.pattern, found.append
    if pattern.dataset_file not in found.existing:
        remedy = f"Leave {option('if_exists', 'append')} out."
        if not found.existing:
            raise InvalidRequest(found.dataset_file, "nothing to append to: no such file", remedy=remedy)
        what = f"no dataset file, beside {counted(len(found.existing), 'file')} of its name"
        finish = option("if_exists", "resume") + either("", ", without --append")
        remedy = f"Finish the run that made them with {finish}; those of another tool, `index` first."
        raise InvalidRequest(found.dataset_file, what, remedy=remedy)
    data = folder.read(pattern.dataset_file)
    if before is not None and before.data != data:
        raise changed_meanwhile(found)
    old = check_old(folder, pattern, found.existing, data)
    later = later_files(pattern, found.existing, len(old.shards))
    if later and not found.resumes:
        what = f"{counted(len(later), 'file')} of an append that did not end: {listing(later, 3)}"
        finish = option("if_exists", "append-resume")
        remedy = f"Finish it with {finish}, or remove them: the dataset does not list them."
        raise OutputExists(folder.path or ".", what, remedy=remedy)
    if not later:  # a killed append may have put its own list there, with its shards
        records.check_skipped_file(records.encode_skipped(found.listed_skipped()), old, found.skipped_file)
    if isinstance(before, EndedAppend):
        return before
    return Append(old, data, len(old.shards))


# The dataset that samples are appended to: is it whole, as far as a listing shows, and which names are left?
#
# Shards and sidecars are looked at by their sizes, and never read here.


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
            fact = existing.get(local_name(name))
            if fact is None or fact.size != size:
                if os.path.islink(path := folder.full_path(name)):
                    raise OutputExists(path, "a symbolic link", expected="the file itself, to append to")
                raise records.wrong_size(path, None if fact is None else fact.size, size)
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


def later_files(pattern: ShardPattern, existing: Collection[str], count: int) -> list[str]:
    """Return those of the pattern's files that are of shard `count`, counted from 0, or of a later one."""
    if pattern.names is not None:
        later = {file for name in pattern.names[count:] for file in (name, sidecar_name(name))}
        return sorted(later.intersection(existing))
    found = []
    for name in {*existing} - {pattern.dataset_file, pattern.skipped_file}:
        digits = sidecar_name(name).removeprefix(pattern.prefix).removesuffix(sidecar_name(pattern.suffix))
        if int(digits) - pattern.first >= count:
            found.append(name)
    return sorted(found)


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
