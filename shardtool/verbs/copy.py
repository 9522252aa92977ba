"""`copy`: datasets, as they are, in another place. The library twin of `shardtool copy`.

A dataset is looked at, compared, copied shard by shard, and published, the dataset file last. What is there is right if
it has the bytes that the source's dataset file says: of a folder of a file system, all of them are read. In a store a
shard is right if it has the right size, its sidecar, which comes after the whole of a shard, has the right bytes, and
the MD5 that the store says of it is that of the source, as far as both are to be had without reading an object. A copy
takes the place of nothing else, unless that was asked for; only shards that the dataset file there lists are removed,
for only they are known to be the dataset's.

The order makes every instant safe, as that of `publish.publisher` does: a shard, then its sidecar; where something of
another dataset is replaced, all is staged first, and the old dataset file goes before the first of its shards does. A
run that was killed has left finished files only, which the next one finds right.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardtool import errors
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_dataset, shard_names
from shardtool.dataset.find import check_not_damaged, find_dataset, given_datasets, recorded_pattern
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, is_shard_name, parse_pattern
from shardtool.publish.foreign_indexes import StaleIndexes, copy_indexes, copy_lists, folder_below
from shardtool.publish.publisher import check_space
from shardtool.publish.records import LOOK, skipped_bytes, wrong_size
from shardtool.request.options import CopyOptions
from shardtool.request.results import CopiedDataset, CopyResult
from shardtool.request.settings import Notes, Observer, by_names
from shardtool.request.texts import rate
from shardtool.storage import folders, places
from shardtool.storage.folders import Original, open_folder
from shardtool.storage.places import blocks_of, file_crc
from shardtool.storage.remote.retry import RequestStopped, until
from shardtool.storage.staging import DurableFile, FileFact, check_facts
from shardtool.values import BLOCK, Given, Trust, already_exist, counted, local_name, show_size
from shardtool.wording import flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Staged = tuple[list[DurableFile], list[DurableFile]]  # of a shard, and of its sidecar


_THREADS, _MOST_THREADS = 4, 16


@by_names(CopyOptions)
def copy(dataset: Given, where: str | os.PathLike[str], options: CopyOptions, observer: Observer) -> CopyResult:
    """Copy datasets into a folder, each file checked on the way by the checksum that the dataset file has for it.

    Shards, sidecars, the list of what was left out, indexes of other tools that are right, and at last the dataset
    file; all keep their names. What is there with the right bytes is not copied again: so a run that was killed goes
    on, and of a dataset that was appended to only the new shards are copied.

    Args:
        dataset: A dataset with a dataset file, or several, as `verify` takes them.
        where: The folder; made where it is missing.
        options: See `CopyOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: There is no such dataset, or the request makes no sense.
        CorruptShard: A file is not what the dataset file says, or is missing; nothing of it is visible.
        OutputExists: Another dataset is there, or another run is writing it.
        OutputFailed: The copy cannot be written.
        StoreFailed: A store or a server fails time and again.
    """
    notes, begun = Notes(observer), time.monotonic()
    target = _target(where)
    sources = [_open_source(given) for given in given_datasets(_as_sources(dataset, options.source_endpoint))]
    goals = _goals(sources, target)
    datasets = [_copy_dataset(source, place, options, notes) for source, place in zip(sources, goals, strict=True)]
    if not options.dry_run:
        for place in dict.fromkeys(goals):
            here = [source for source, one in zip(sources, goals, strict=True) if one == place]
            copy_lists([source.file for source in here], here[0].folder, open_folder(place))
    return CopyResult(tuple(datasets), tuple(notes.said), time.monotonic() - begun, options.dry_run)


def _as_sources(given: Given, endpoint: str | None) -> Given:
    """Return what is given by the addresses by which a source's server is asked."""
    if isinstance(given, str | os.PathLike):
        return places.as_source(os.fspath(given), endpoint)
    return [places.as_source(os.fspath(one), endpoint) for one in given] if isinstance(given, list | tuple) else given


def _target(given: object) -> str:
    """Return the folder that datasets are copied into; refuse what is none, as far as its name shows."""
    expected = "a folder, or a prefix of a store: the files keep their names"
    where = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    name = places.base_name(where.rstrip("/"))
    if not where or places.is_web(where) or "\0" in where:
        raise errors.InvalidRequest(where or "the destination", "nowhere that can be written to", expected=expected)
    is_file = os.path.exists(where) and not os.path.isdir(where)
    is_named_so = is_shard_name(name) or name.endswith(DATASET_SUFFIX) or any(mark in name for mark in "{}<>*")
    if is_file or (is_named_so and not os.path.isdir(where)):
        raise errors.InvalidRequest(where, "a file, or a pattern of files", expected=expected)
    return where


def _goals(sources: Sequence[CopySource], where: str) -> list[str]:
    """Return the folder for each dataset: of datasets in several folders, one of the same name below.

    Raises:
        InvalidRequest: Two would have one place, or one would be copied onto itself.
    """
    in_one = len({source.folder for source in sources}) == 1
    goals = [where if in_one else places.join(where, places.base_name(source.folder)) for source in sources]
    names = Counter(
        (place, name)
        for source, place in zip(sources, goals, strict=True)
        for name in (source.name, *(pair.sidecar.name for pair in source.pairs))
    )
    if twice := sorted({name for (_, name), count in names.items() if count > 1}):
        found = f"several datasets have files of one name: {errors.listing([*map(errors.printable, twice)], 3)}"
        raise errors.InvalidRequest(where, found, expected="one folder for each", remedy="Copy them one by one.")
    for source, place in zip(sources, goals, strict=True):
        if places.same_place(source.folder, place):
            raise errors.InvalidRequest(place, "the folder that the dataset lies in", expected="another one")
    return goals


# What is copied: the files of a dataset, and what its dataset file says that each of them is.


class ShardState(NamedTuple):
    """A shard and its sidecar, as they are to be copied, and what is there of each.

    Attributes:
        shard: The shard.
        sidecar: Its sidecar.
        samples: How many samples it has.
        shard_right: True if what is there of it is right, False if it is not, None if nothing is.
        sidecar_right: The same of its sidecar.
    """

    shard: Original
    sidecar: Original
    samples: int
    shard_right: bool | None = None
    sidecar_right: bool | None = None

    @property
    def wrong(self) -> list[str]:
        """The names of what is there and is not right."""
        return [one.name for one, right in self.parts if right is False]

    @property
    def size(self) -> int:
        """The bytes that are copied."""
        return sum(one.size for one, right in self.parts if not right)

    @property
    def parts(self) -> tuple[tuple[Original, bool | None], tuple[Original, bool | None]]:
        """The shard and the sidecar, each with whether it is right."""
        return (self.shard, self.shard_right), (self.sidecar, self.sidecar_right)


class CopySource(NamedTuple):
    """A dataset that is copied.

    Attributes:
        path: Where its dataset file is.
        data: The bytes of that file, which are what is copied, whatever becomes of the file meanwhile.
        file: What it says.
        pairs: Its shards and their sidecars, in order, of which nothing is known elsewhere.
        skipped: The list of what was left out; empty: there is none.
    """

    path: str
    data: bytes
    file: DatasetFile
    pairs: tuple[ShardState, ...]
    skipped: bytes

    @property
    def name(self) -> str:
        """The name of the dataset file."""
        return places.base_name(self.path)

    @property
    def folder(self) -> str:
        """Where the dataset file and the sidecars are."""
        return places.folder_of(self.path)

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names of all that lies beside the dataset file, itself too, and those of the shards."""
        beside = [self.name, self.file.skipped_file, *(one.sidecar.name for one in self.pairs)]
        return beside, [one.shard.name for one in self.pairs]

    def has_changed(self) -> bool:
        """Tell whether the dataset file is another one by now, or gone."""
        try:
            return places.read_small(self.path) != self.data
        except OSError:
            return True


def _open_source(given: Given) -> CopySource:
    """Return a dataset that can be copied: all of its files are there, as far as their sizes show.

    Raises:
        InvalidRequest: There is no such dataset, it has no dataset file, or only some of its shards are given.
        CorruptShard: Its dataset file is damaged, or a file that it lists is not there, or has another size.
    """
    found = find_dataset(given)
    if found.dataset_file is None or not found.own:
        check_not_damaged(found)
        expected, remedy = "a dataset with a dataset file, which says what its shards must be", "`index` makes one."
        raise errors.InvalidRequest(found.where, "no dataset file of shardtool", expected=expected, remedy=remedy)
    path, data = found.dataset_file, _read(found.dataset_file)
    file = read_dataset(data, path)
    names = {shard.name for shard in found.shards}
    if lacking := [shard.name for shard in file.shards if shard.name not in names]:
        what = f"{counted(len(names), 'shard')}, without {errors.listing(lacking, 3)}"
        remedy = "Give that file to copy them all; `reshard` makes a dataset of some shards."
        raise errors.InvalidRequest(path, what, expected=f"all {len(file.shards):,} that it lists", remedy=remedy)
    folder = places.folder_of(path)
    below = places.join(folder, local_name(file.shards_folder)) if file.shards_folder else folder
    shards = [_original(below, one.name, one.size, one.crc) for one in file.shards]
    sidecars = [_original(folder, one.sidecar, one.sidecar_size, one.sidecar_crc) for one in file.shards]
    if not places.is_web(folder):  # there, each is asked for when it is copied
        _check_sizes([*shards, *sidecars])
    pairs = tuple(map(ShardState, shards, sidecars, (one.samples for one in file.shards)))
    return CopySource(path, data, file, pairs, skipped_bytes(file, folder))


def _original(folder: str, name: str, size: int, crc: int | None) -> Original:
    return Original(places.join(folder, local_name(name)), size, crc, local_name(name))


def _read(path: str) -> bytes:
    try:
        return places.read_small(path)
    except OSError as error:
        raise errors.CorruptShard(path, f"cannot be read: {errors.reason(error)}", remedy=LOOK) from None


def _check_sizes(originals: Sequence[Original]) -> None:
    """Check that files are there with the sizes that the dataset file says, before the first of them is copied."""
    for one, size in zip(originals, places.plain_sizes([one.path for one in originals]), strict=True):
        if size != one.size:
            raise wrong_size(errors.printable(one.path), size, one.size)


# Where a copy goes: what is there, what of it is right, and whether the rest may be touched. Nothing is changed.


class CopyDestination(NamedTuple):
    """The place of a copy, and what was there.

    Attributes:
        source: The dataset that is copied.
        folder: Of its dataset file, and of sidecars.
        below: Of its shards: the same, or one below it.
        facts: The files there that have names of the dataset's: of `folder`, then of `below`.
        data: The bytes of the dataset file that is there; None: there is none.
        old: What it says; None: there is none, or it is damaged.
        old_below: Where the shards are that it lists.
    """

    source: CopySource
    folder: folders.OutputFolder
    below: folders.OutputFolder
    facts: tuple[Mapping[str, FileFact], Mapping[str, FileFact]]
    data: bytes | None
    old: DatasetFile | None
    old_below: folders.OutputFolder

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file."""
        return self.folder.full_path(self.source.name)

    @property
    def has_grown(self) -> bool:
        """Whether the dataset that is there is this one, as it is or as it was before shards were appended."""
        if self.data is None:
            return True
        if self.old is None or self.old.shards_folder != self.source.file.shards_folder:
            return False
        return {*map(_content, self.old.shards)} <= {*map(_content, self.source.file.shards)}

    def removed(self) -> tuple[list[str], list[str]]:
        """Return what only the old dataset file lists: names in its folder, and names of its shards in theirs."""
        if self.old is None:
            return [], []
        same, pairs = self.old.shards_folder == self.source.file.shards_folder, self.source.pairs
        gone = {local_name(one.sidecar) for one in self.old.shards} - {one.sidecar.name for one in pairs}
        shards = {local_name(one.name) for one in self.old.shards} - {one.shard.name for one in pairs if same}
        if self.old.skipped and not self.source.skipped:
            gone.add(self.source.file.skipped_file)
        return sorted(gone), sorted(shards)


def _look(source: CopySource, where: str) -> CopyDestination:
    """Return what is at the place of a copy.

    Raises:
        OutputExists: Something has a name of the dataset's that no run replaces.
    """
    folder = open_folder(where)
    below = folder_below(folder, local_name(source.file.shards_folder))
    named, shards = source.names
    facts = folder.facts(named), below.facts(shards)
    for place, found in zip((folder, below), facts, strict=True):
        check_facts(place.full_path, found)
    data, old = None, None
    if source.name in facts[0]:
        data = b""
        with suppress(OSError):
            data = folder.read(source.name)
        file = folder.full_path(source.name)
        if shard_names(data) is None:
            what = "a file that is no dataset file of shardtool"
            raise errors.OutputExists(file, what, remedy="Choose another folder, or move it away.")
        with suppress(errors.CorruptShard):
            old = read_dataset(data, file)
    old_below = below if old is None else folder_below(folder, local_name(old.shards_folder))
    return CopyDestination(source, folder, below, facts, data, old, old_below)


def _to_copy(goal: CopyDestination, options: CopyOptions, notes: Notes) -> list[ShardState]:
    """Return what is to be copied, now that all that is there was read: first what takes the place of nothing.

    Raises:
        OutputExists: Another dataset, or other files, would be replaced, and that was not asked for.
    """
    pairs, (beside, below) = goal.source.pairs, goal.facts
    there = [one for one in pairs if one.shard.name in below or one.sidecar.name in beside]
    if there:
        sizes = [below[one.shard.name].size for one in there if one.shard.name in below]
        notes.observer.phase("comparing", sum(sizes))
    known, compare = dict[str, ShardState](), partial(_state_of, goal, options.trust)
    for pair, state in side_by_side(compare, there, options, notes.observer):
        known[pair.shard.name] = state
    cure = f"Choose another folder, or {flag('overwrite')}."
    if not goal.has_grown and not options.overwrite:
        raise errors.OutputExists(goal.dataset_file, _rival(goal), expected=f"{goal.source.path}, or none", remedy=cure)
    listed = {*map(_content, goal.old.shards)} if goal.old else set()
    states = [known.get(pair.shard.name, pair) for pair in pairs]
    mended, others = list[str](), list[str]()
    for state, entry in zip(states, goal.source.file.shards, strict=True):
        (mended if _content(entry) in listed else others).extend(state.wrong)
    if others and not options.overwrite:
        found = f"{already_exist(len(others), 'file')} with other bytes: {errors.listing(others, 3)}"
        raise errors.OutputExists(goal.folder.path or ".", errors.printable(found), remedy=cure)
    if mended:
        what = "not what the dataset file there says, and copied again"
        notes.add(f"{errors.listing(sorted(mended), 3)} at the destination: {what}")
    todo = [one for one in states if not (one.shard_right and one.sidecar_right)]
    return sorted(todo, key=lambda one: bool(one.wrong))


def _rival(goal: CopyDestination) -> str:
    if goal.old is None:
        return "a dataset file that is damaged"
    if goal.old.shards_folder != goal.source.file.shards_folder:
        return "the dataset file of shards in another folder"
    ours = {*map(_content, goal.source.file.shards)}
    others = [one.name for one in goal.old.shards if _content(one) not in ours]
    shown = errors.listing(others, 3)
    return f"a dataset with {counted(len(others), 'shard')} that the source does not have so: {shown}"


def _content(entry: ShardEntry) -> tuple[object, ...]:
    return entry.name, entry.size, entry.crc, entry.sidecar_size, entry.sidecar_crc


def _state_of(goal: CopyDestination, trust: Trust | None, pair: ShardState, meter: Meter) -> ShardState:
    """Return what is there of a shard and its sidecar; `trust`: by what a shard of the right size is known unread."""
    sidecar = _is_right(goal.folder, goal.facts[0], pair.sidecar, meter)
    fact = goal.facts[1].get(pair.shard.name)
    if fact is None or fact.size != pair.shard.size:
        return pair._replace(shard_right=None if fact is None else False, sidecar_right=sidecar)
    if sidecar and trust and _is_trusted(goal, pair.shard, fact, trust, meter):
        right: bool | None = True
    elif pair.shard.crc is None or (sidecar is not None and not goal.below.hides):
        right = bool(sidecar) and _is_same_object(goal.below, pair.shard, meter)
    else:  # without its sidecar in a store, too: a kill leaves a shard before that
        right = _is_right(goal.below, goal.facts[1], pair.shard, meter)
    return pair._replace(shard_right=right, sidecar_right=sidecar)


def _is_right(
    folder: folders.OutputFolder, facts: Mapping[str, FileFact], original: Original, meter: Meter
) -> bool | None:
    """Tell whether a file has the bytes that it should have; None: there is none."""
    fact = facts.get(original.name)
    if fact is None:
        return None
    if fact.size != original.size:
        return False
    path = folder.full_path(original.name)
    with suppress(OSError):  # a link, or what cannot be read
        said = places.stored_crc(path)
        return (file_crc(path, meter.took)[1] if said is None else said) == original.crc
    return False


def _is_trusted(goal: CopyDestination, shard: Original, fact: FileFact, trust: Trust, meter: Meter) -> bool:
    """Tell whether a shard of the right size is known without reading it; two stores are asked for its MD5."""
    if places.is_url(shard.path):
        return trust == "size" and (goal.below.hides or _is_same_object(goal.below, shard, meter))
    return trust == "size" or (goal.below.hides and fact.mtime_ns == places.file_stat(shard.path).st_mtime_ns)


def _is_same_object(folder: folders.OutputFolder, original: Original, meter: Meter) -> bool:
    """Tell whether the MD5 of an object, where its store says it, is that of the original, where that can be known."""
    there = folder.md5(original.name)
    if there is None or places.is_web(original.path):
        return True
    if places.is_url(original.path):
        return folders.md5_there(original.path) in (None, there)
    md5 = hashlib.md5(usedforsecurity=False)
    for block in blocks_of(original.path):
        md5.update(block)
        meter.took(len(block))
    return md5.hexdigest() == there


# A dataset is copied.


def _copy_dataset(source: CopySource, where: str, options: CopyOptions, notes: Notes) -> CopiedDataset:
    """Copy a dataset into a folder, or say what that would do.

    Raises:
        CorruptShard: A file of the source is not what its dataset file says; nothing of it is visible.
        OutputExists: Another dataset is there, or another run is writing it; nothing was touched.
        OutputFailed: The folder cannot be written to.
        StoreFailed: A store or a server fails time and again.
    """
    goal, indexes = _look(source, where), 0
    if options.dry_run:
        todo = _to_copy(goal, options, notes)
    else:
        goal.folder.ready()
        goal.below.ready()
        with goal.folder.lock(source.name.removesuffix(DATASET_SUFFIX)):
            goal = _look(source, where)
            _discard(goal)
            try:
                todo = _to_copy(goal, options, notes)
                _check_space(goal, todo)
                _Carrier(goal, todo, options, notes).run()
                indexes = copy_indexes(source.path, source.file, goal.folder, notes)
            finally:
                _discard(goal)
    shards = source.file.shards
    return CopiedDataset(
        source=errors.without_secrets(errors.printable(source.path)),
        dataset_file=errors.printable(goal.dataset_file),
        shards=len(shards),
        copied=len(todo),
        kept=len(shards) - len(todo),
        removed=len(goal.removed()[1]),
        samples=sum(one.samples for one in shards),
        size=sum(one.size for one in shards),
        copied_size=sum(one.size for one in todo),
        indexes=indexes,
    )


def _discard(goal: CopyDestination) -> None:
    """Remove what this or a killed run has left under temporary names. Call it under the lock."""
    for folder, names in zip((goal.folder, goal.below), goal.source.names, strict=True):
        folder.discard_staged(sorted({*names}.intersection(folder.staged_names())))


def _check_space(goal: CopyDestination, todo: Sequence[ShardState]) -> None:
    largest = goal.below.largest
    if largest is not None and (too_large := [one.shard for one in todo if one.shard.size > largest]):
        found, expected = show_size(too_large[0].size), f"{show_size(largest)} at most, as stores take at once"
        raise errors.InvalidRequest(too_large[0].path, found, expected=expected, remedy="`reshard` makes smaller ones.")
    check_space(goal.folder, sum(one.size for one in todo), "copied")


class _Carrier:
    """One copy, under its lock."""

    def __init__(self, goal: CopyDestination, todo: list[ShardState], options: CopyOptions, notes: Notes) -> None:
        self.goal, self.todo, self._notes = goal, todo, notes
        self._options, self._refusal = options, ""  # why a store makes no copies itself
        self._grows, self._pattern = goal.has_grown, _pattern_of(goal.source)
        there = () if self._pattern is None else goal.folder.names()
        self._beside = StaleIndexes(goal.folder, self._pattern, there, appends=self._grows)

    def run(self) -> None:
        """Copy all shards that are to be copied, and publish."""
        observer, goal = self._notes.observer, self.goal
        waiting: list[Staged] = []
        observer.start(sum(one.samples for one in self.todo), sum(one.size for one in self.todo), len(self.todo))
        if not self._grows and not goal.folder.hides:
            self._withdraw()
        for state, staged in side_by_side(self._staged, self.todo, self._options, observer):
            if staged[0] and self._pattern is not None:
                self._beside.compare(state.shard.name, partial(_read, state.sidecar.path), written=True)
            if state.wrong and goal.folder.hides and not self._grows:
                waiting.append(staged)
            else:
                self._publish([staged])
            observer.advance(state.samples, 0, 1)
            observer.shard(state.shard.name, "copied", state.samples, state.size)
        if self._refusal:
            how = "the bytes came through this machine"
            self._notes.add_new(f"the store makes no copies itself ({self._refusal}): {how}")
        self._finish(waiting)

    def _withdraw(self) -> None:
        """Where a shard is seen at once, have nothing lead to those that are replaced or removed."""
        self._notes.add("the old dataset file is removed first: in a store, shards are replaced one by one")
        self.goal.folder.remove([self.goal.source.name])
        for state in self.todo:
            if state.wrong:
                self._beside.drop(state.shard.name)
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove what only the old dataset file lists, and what leads to it."""
        self._beside.keep_only([one.name for one in self.goal.source.file.shards])
        self._beside.remove()
        gone, gone_shards = self.goal.removed()
        self.goal.folder.remove(gone)
        self.goal.old_below.remove(gone_shards)

    def _staged(self, state: ShardState, meter: Meter) -> Staged:
        """Copy a shard and its sidecar, under temporary names; what is right already stays."""
        found: Staged = ([], [])
        goals = self.goal.below, self.goal.folder
        for staged, folder, (original, is_right) in zip(found, goals, state.parts, strict=True):
            if not is_right:
                inside = is_right is None or not self._grows  # else what is there may be right, and the source wrong
                try:
                    made = self._made_inside(folder, original, meter) if inside else None
                    staged.append(made or folders.checked_copy(folder, original, meter.took, keep_time=True))
                except (OSError, errors.CorruptShard) as error:
                    errors.raise_if_machines(error, original.path)
                    raise self._source_error(original, error) from None
        return found

    def _made_inside(self, folder: folders.OutputFolder, original: Original, meter: Meter) -> DurableFile | None:
        """Return the copy that a store has made of its own file; None: it is to be read and written."""
        if not self._refusal:
            try:
                return folders.copy_inside(folder, original, meter.took)
            except folders.NotCopied as error:
                self._refusal = self._refusal or str(error)
        return None

    def _source_error(self, original: Original, error: OSError | errors.CorruptShard) -> errors.CorruptShard:
        """Return what is said of a file of the source that is not what the dataset file says, or cannot be read."""
        cure = "`shardtool verify` shows what is damaged at the source."
        if self.goal.source.has_changed():
            cure = "The source was changed while it was copied: run the same command again."
        if isinstance(error, OSError):
            return errors.CorruptShard(original.path, f"cannot be read: {errors.reason(error)}", remedy=cure)
        expected = f"{error.expected}, as the dataset file says"
        return errors.CorruptShard(original.path, error.problem, expected=expected, remedy=cure)

    def _publish(self, staged: Sequence[Staged]) -> None:
        """Give shards, then their sidecars, their names."""
        self._beside.remove()
        for folder, part in ((self.goal.below, 0), (self.goal.folder, 1)):
            if files := [file for one in staged for file in one[part]]:
                folder.publish(*files)

    def _finish(self, waiting: Sequence[Staged]) -> None:
        """Publish what waits, remove what only the old dataset file lists, and publish the new one."""
        goal, source = self.goal, self.goal.source
        first: list[DurableFile] = []
        fact = goal.facts[0].get(source.file.skipped_file)
        there = fact is not None and fact.size == len(source.skipped)
        if source.skipped and not (there and goal.folder.read(source.file.skipped_file) == source.skipped):
            first.append(goal.folder.stage_whole(source.file.skipped_file, source.skipped))
        if goal.data == source.data and not first:
            return
        last = goal.folder.stage_whole(source.name, source.data)
        if not self._grows and goal.folder.hides:
            goal.folder.remove([source.name])
            self._remove_old()
        self._publish(waiting)
        again = "Run the same command again."
        folders.check_there(goal.below, {one.shard.name: one.shard.size for one in source.pairs}, again)
        folders.check_there(goal.folder, {one.sidecar.name: one.sidecar.size for one in source.pairs}, again)
        goal.folder.publish(*first, last)


def _pattern_of(source: CopySource) -> ShardPattern | None:
    """Return the names of shards, where they lie beside the dataset file and are such as a pattern can have."""
    if source.file.shards_folder:
        return None
    if (pattern := recorded_pattern(source.file)) is not None:
        return pattern
    with suppress(errors.InvalidRequest):
        return parse_pattern([one.shard.name for one in source.pairs])
    return None


# Several shards at once, each in a thread: they wait for disks and servers, and all that counts bytes frees Python.


Task = TypeVar("Task")
Result = TypeVar("Result")
_TICK_S = 0.2  # between two looks at how many bytes there are
_LOOK_S, _GAIN = 1.0, 1.2
_SILENT_S = 10  # between two blocks of a thread: S3 gives a connection up on which nothing came for 20 s


class Meter:
    """The bytes that threads have dealt with, and the word that they are to stop.

    Args:
        limit: How many they may deal with in a second, together; None: as many as they can.

    Attributes:
        stopped: Set when the run has ended: threads end at their next block, and requests wherever they are.
    """

    def __init__(self, limit: int | None) -> None:
        self._lock, self._bytes, self.stopped = threading.Lock(), 0, threading.Event()
        self._limit, self._free_at = limit, 0.0  # when what was dealt with so far fits the limit

    def took(self, size: int) -> None:
        """Count bytes, and wait until there were no more than the limit allows.

        Raises:
            Stopped: The run has ended.
        """
        wait_s = 0.0
        with self._lock:
            self._bytes += size
            if self._limit is not None:
                now = time.monotonic()
                self._free_at = max(self._free_at, now) + size / self._limit
                wait_s = self._free_at - now
        if self.stopped.wait(wait_s):
            raise RequestStopped

    def taken(self) -> int:
        """Return the bytes since the last call."""
        with self._lock:
            size, self._bytes = self._bytes, 0
        return size


class Pace:
    """How many tasks run at once: as many as asked for, or as many as gain something.

    Strategy: begin with four. When as many tasks have ended as run at once, and a second has passed, twice as many run
    if that has brought a fifth more bytes a second than before; else half as many, and that number stays.

    Args:
        asked: How many were asked for; None: the number is looked for.

    Attributes:
        at_once: How many may run now.
    """

    def __init__(self, asked: int | None) -> None:
        self.at_once, self._looks = asked or _THREADS, asked is None
        self._before, self._began = 0.0, time.monotonic()
        self._moved = self._ended = 0

    def note(self, size: int, ended: int, now: float) -> None:
        """Take in that bytes were moved, and tasks ended, by a time of `time.monotonic`."""
        self._moved += size + ended  # a task that moves nothing counts, too
        self._ended += ended
        passed_s = now - self._began
        if not self._looks or self._ended < self.at_once or passed_s < _LOOK_S:
            return
        gained = self._moved / passed_s > _GAIN * self._before
        self._looks = gained and self.at_once < _MOST_THREADS
        self.at_once = min(2 * self.at_once, _MOST_THREADS) if gained else self.at_once // 2
        self._before, self._began, self._moved, self._ended = self._moved / passed_s, now, 0, 0


def _fed_by(limit: int | None) -> int | None:
    """Return how many threads get a block in time under a limit of bytes a second; None: as many as gain something."""
    fed = _MOST_THREADS if limit is None else limit * _SILENT_S // BLOCK
    return None if fed >= _MOST_THREADS else min(max(fed, 1), _THREADS)


def side_by_side(
    work: Callable[[Task, Meter], Result], tasks: Iterable[Task], options: CopyOptions, observer: Observer
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with what came of it, as it is done; tasks are drawn as threads become free.

    Whatever ends the loop, no thread runs on after it.

    Args:
        work: What is done; it calls `Meter.took` for each block.
        tasks: What with.
        options: How many at a time, and how many bytes a second.
        observer: Gets progress, in this thread.
    """
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    limit = None if options.limit is None else rate("limit", options.limit)
    pace, left, meter = Pace(options.workers or _fed_by(limit)), iter(tasks), Meter(limit)

    def carry_out(task: Task) -> Result:
        with until(meter.stopped):
            return work(task, meter)

    with ThreadPoolExecutor(options.workers or _MOST_THREADS, "shardtool-copy") as pool:
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                while len(running) < pace.at_once and (task := next(left, None)) is not None:
                    running[pool.submit(carry_out, task)] = task
                if not running:
                    return
                done, _ = wait(running, _TICK_S, FIRST_COMPLETED)
                size = meter.taken()
                observer.advance(0, size, 0)
                pace.note(size, len(done), time.monotonic())
                for one in [one for one in running if one in done]:
                    yield running.pop(one), one.result()
        finally:
            meter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
