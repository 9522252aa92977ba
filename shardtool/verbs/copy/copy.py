"""`copy`: datasets, as they are, in another place. The library twin of `shardtool copy`."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from shardtool.dataset.several import given_datasets
from shardtool.errors import (  # fmt: skip
    CorruptShard,
    InvalidRequest,
    OutputFailed,
    current_folder,
    listing,
    printable,
    raise_if_machines,
    reason,
    without_secrets,
)
from shardtool.pattern import DATASET_SUFFIX, is_shard_name
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.request.choices import given_options
from shardtool.request.options import CopyOptions
from shardtool.request.results import CopiedDataset, CopyResult, Notes, Observer
from shardtool.storage.folders import check_there, checked_copy
from shardtool.storage.places import base_name, is_web, join, read_small, same_place
from shardtool.storage.staging import write_whole
from shardtool.values import show_size
from shardtool.verbs.copy.goal import (
    CopyDestination,
    CopyPlan,
    ShardState,
    copy_indexes,
    copy_lists,
    decide,
    look,
    state_of,
)
from shardtool.verbs.copy.origin import open_origin, side_by_side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.storage.folders import Original
    from shardtool.storage.staging import DurableFile
    from shardtool.values import Given, Trust
    from shardtool.verbs.copy.origin import CopySource, Meter, ShardPair


# A dataset is copied: looked at, compared, copied shard by shard, and published, the dataset file last.
#
# The order makes every instant safe, as that of `publish.publisher` does: a shard, then its sidecar; where something of
# another dataset is replaced, all is staged first, and the old dataset file goes before the first of its shards does. A
# run that was killed has left finished files only, which the next one finds right.


_THREADS = 4
_SPACE_FOR_INDEXES = 1.01
_CURE = "`shardtool verify` shows what is damaged at the source."


def copy_dataset(origin: CopySource, where: str, options: CopyOptions, notes: Notes) -> CopiedDataset:
    """Copy a dataset into a folder, or say what that would do.

    Raises:
        CorruptShard: A file of the source is not what its dataset file says; nothing of it is visible.
        OutputExists: Another dataset is there, or another run is writing it; nothing was touched.
        OutputFailed: The folder cannot be written to.
        StoreFailed: A store or a server fails time and again.
    """
    goal = look(origin, where)
    if options.dry_run:
        return _result(goal, _compared(goal, options, notes))
    goal.folder.ready()
    goal.below.ready()
    with goal.folder.lock(origin.base):
        goal = look(origin, where)
        _discard(goal)
        try:
            todo = _compared(goal, options, notes)
            _check_space(goal, todo)
            _Carrier(goal, todo, options, notes).run()
            copied = copy_indexes(goal, notes)
        finally:
            _discard(goal)
    return _result(goal, todo, copied)


def _discard(goal: CopyDestination) -> None:
    """Remove what this or a killed run has left under temporary names. Call it under the lock."""
    origin = goal.origin
    names = {origin.name, origin.skipped_name, *(one.sidecar.name for one in origin.pairs)}
    goal.folder.discard_staged([name for name in goal.folder.staged_names() if name in names])
    names = {one.shard.name for one in origin.pairs}
    goal.below.discard_staged([name for name in goal.below.staged_names() if name in names])


def _compared(goal: CopyDestination, options: CopyOptions, notes: Notes) -> CopyPlan:
    """Return what is to be done, once all that is there was read."""
    pairs = goal.origin.pairs
    there = [one for one in pairs if one.shard.name in goal.facts[1] or one.sidecar.name in goal.facts[0]]
    states = {one.shard.name: ShardState(None, None) for one in pairs}
    if there:
        sizes = [goal.facts[1][one.shard.name].size for one in there if one.shard.name in goal.facts[1]]
        notes.observer.phase("comparing", sum(sizes))
    threads = options.workers or _THREADS
    for pair, state in side_by_side(partial(_state_in, goal, options.trust), there, threads, notes.observer):
        states[pair.shard.name] = state
    todo = decide(goal, states, overwrite=options.overwrite)
    if todo.mended:
        what = "not what the dataset file there says, and copied again"
        notes.add(f"{listing(sorted(todo.mended), 3)} at the destination: {what}")
    return todo


def _state_in(goal: CopyDestination, trust: Trust | None, pair: ShardPair, meter: Meter) -> ShardState:
    return state_of(goal, pair, meter, trust)


def _check_space(goal: CopyDestination, todo: CopyPlan) -> None:
    largest = goal.below.largest()
    if largest is not None and (too_large := [pair for pair, _ in todo.all if pair.shard.size > largest]):
        found, expected = show_size(too_large[0].shard.size), f"{show_size(largest)} at most, as stores take at once"
        raise InvalidRequest(too_large[0].shard.path, found, expected=expected, remedy="`reshard` makes smaller ones.")
    need, free = int(todo.size * _SPACE_FOR_INDEXES), goal.folder.free_bytes()
    if free is not None and need > free:
        found = f"{show_size(free)} free, {show_size(need)} needed; nothing was copied"
        raise OutputFailed(goal.folder.path or ".", found, remedy="Make space, then run the same command.")


class _Carrier:
    """One copy, under its lock."""

    def __init__(self, goal: CopyDestination, todo: CopyPlan, options: CopyOptions, notes: Notes) -> None:
        self.goal, self.todo, self._notes = goal, todo, notes
        self._threads = options.workers or _THREADS
        self._beside = None
        if (pattern := goal.origin.pattern) is not None:
            self._beside = StaleIndexes(goal.folder, pattern, appends=goal.has_grown)
            self._beside.look(goal.folder.names())
        self._waiting: list[tuple[list[DurableFile], list[DurableFile]]] = []

    def run(self) -> None:
        """Copy all shards that are to be copied, and publish."""
        observer, todo = self._notes.observer, self.todo
        samples = sum(pair.samples for pair, _ in todo.all)
        observer.start(samples, todo.size, len(todo.all))
        waits: set[str] = set()
        if not self.goal.has_grown:
            waits = {pair.shard.name for pair, _ in todo.replaced if self.goal.folder.hides}
            self._withdraw()
        for (pair, _), staged in side_by_side(self._staged, todo.all, self._threads, observer):
            if self._beside is not None and staged[0]:
                self._beside.compare(pair.shard.name, read_small(pair.sidecar.path), written=True)
            if pair.shard.name in waits:
                self._waiting.append(staged)
            else:
                self._publish([staged])
            observer.advance(pair.samples, 0, 1)
            observer.log(pair.shard.name)
        self._finish()

    def _withdraw(self) -> None:
        """Where a shard is seen at once, have nothing lead to those that are replaced or removed; else that waits."""
        goal = self.goal
        if not goal.folder.hides:
            self._notes.add("the old dataset file is removed first: in a store, shards are replaced one by one")
            goal.folder.remove([goal.origin.name])
            for pair, _ in self.todo.replaced:
                if self._beside is not None:
                    self._beside.drop(pair.shard.name)
            self._remove_old()

    def _remove_old(self) -> None:
        """Remove what only the old dataset file lists, and what leads to it."""
        if self._beside is not None:
            self._beside.keep_only([one.name for one in self.goal.origin.file.shards])
            self._beside.remove()
        gone, gone_shards = self.goal.removed()
        self.goal.folder.remove(gone)
        self.goal.old_below.remove(gone_shards)

    def _staged(self, task: tuple[ShardPair, ShardState], meter: Meter) -> tuple[list[DurableFile], list[DurableFile]]:
        """Copy a shard and its sidecar, under temporary names; what is right already stays."""
        (pair, state), goal = task, self.goal
        found: tuple[list[DurableFile], list[DurableFile]] = ([], [])
        parts = ((goal.below, pair.shard, state.shard), (goal.folder, pair.sidecar, state.sidecar))
        for staged, (folder, original, is_right) in zip(found, parts, strict=True):
            if not is_right:
                try:
                    staged.append(checked_copy(folder, original, meter.took, keep_time=True))
                except (OSError, CorruptShard) as error:
                    raise_if_machines(error, original.path)
                    raise self._source_error(original, error) from None
        return found

    def _source_error(self, original: Original, error: OSError | CorruptShard) -> CorruptShard:
        """Return what is said of a file of the source that is not what the dataset file says, or cannot be read."""
        found, expected = (
            (f"cannot be read: {reason(error)}", "")
            if isinstance(error, OSError)
            else (error.problem, f"{error.expected}, as the dataset file says")
        )
        cure = _CURE
        if self.goal.origin.has_changed():
            cure = "The source was changed while it was copied: run the same command again."
        return CorruptShard(original.path, found, expected=expected, remedy=cure)

    def _publish(self, staged: list[tuple[list[DurableFile], list[DurableFile]]]) -> None:
        """Give shards, then their sidecars, their names."""
        if self._beside is not None:
            self._beside.remove()
        for folder, part in ((self.goal.below, 0), (self.goal.folder, 1)):
            if files := [file for one in staged for file in one[part]]:
                folder.publish(*files)

    def _finish(self) -> None:
        """Publish what waits, remove what only the old dataset file lists, and publish the new one."""
        goal, origin = self.goal, self.goal.origin
        first = []
        if origin.skipped and not _has(goal, origin.skipped_name, origin.skipped):
            first.append(write_whole(goal.folder, origin.skipped_name, origin.skipped))
        if goal.data == origin.data and not first:
            return
        last = write_whole(goal.folder, origin.name, origin.data)
        if not goal.has_grown and goal.folder.hides:
            goal.folder.remove([origin.name])
            self._remove_old()
        self._publish(self._waiting)
        _check_there(goal)
        goal.folder.publish(*first, last)


def _check_there(goal: CopyDestination) -> None:
    """See that a store has all that the dataset file is to name."""
    pairs, again = goal.origin.pairs, "Run the same command again."
    check_there(goal.below, {one.shard.name: one.shard.size for one in pairs}, again)
    check_there(goal.folder, {one.sidecar.name: one.sidecar.size for one in pairs}, again)


def _has(goal: CopyDestination, name: str, data: bytes) -> bool:
    fact = goal.facts[0].get(name)
    return fact is not None and fact.size == len(data) and goal.folder.read(name) == data


def _result(goal: CopyDestination, todo: CopyPlan, indexes: int = 0) -> CopiedDataset:
    shards, gone = goal.origin.file.shards, goal.removed()[1]
    return CopiedDataset(
        source=without_secrets(printable(goal.origin.path)),
        dataset_file=printable(goal.dataset_file),
        shards=len(shards),
        copied=len(todo.all),
        kept=todo.kept,
        removed=len(gone),
        samples=sum(one.samples for one in shards),
        size=sum(one.size for one in shards),
        copied_size=todo.size,
        indexes=indexes,
    )


_EXPECTED = "a folder, or a prefix of a store: the files keep their names"


@current_folder()
def copy(
    dataset: Given, where: str | os.PathLike[str], options: CopyOptions | None = None, *,
    observer: Observer | None = None,
) -> CopyResult:  # fmt: skip
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
    options, notes, begun = given_options(options, CopyOptions), Notes(observer or Observer()), time.monotonic()
    target = os.fspath(where)
    _check_target(target)
    origins = [open_origin(given) for given in given_datasets(dataset)]
    places = _places(origins, target)
    datasets = []
    for origin, place in zip(origins, places, strict=True):
        datasets.append(copy_dataset(origin, place, options, notes))
    if not options.dry_run:
        for place in dict.fromkeys(places):
            copy_lists([origin for origin, one in zip(origins, places, strict=True) if one == place], place)
    return CopyResult(tuple(datasets), tuple(notes.said), time.monotonic() - begun, options.dry_run)


def _check_target(where: str) -> None:
    """Refuse what is no folder, as far as its name shows."""
    name = base_name(where.rstrip("/"))
    if not where or is_web(where):
        raise InvalidRequest(where or "the destination", "nowhere that can be written to", expected=_EXPECTED)
    is_file = os.path.exists(where) and not os.path.isdir(where)
    is_named_so = is_shard_name(name) or name.endswith(DATASET_SUFFIX) or any(mark in name for mark in "{}<>*")
    if is_file or (is_named_so and not os.path.isdir(where)):
        raise InvalidRequest(where, "a file, or a pattern of files", expected=_EXPECTED)


def _places(origins: Sequence[CopySource], where: str) -> list[str]:
    """Return the folder for each dataset: of datasets in several folders, one of the same name below.

    Raises:
        InvalidRequest: Two would have one place, or one would be copied onto itself.
    """
    folders = {origin.folder for origin in origins}
    places = [where if len(folders) == 1 else join(where, base_name(origin.folder)) for origin in origins]
    names = Counter(
        (place, name)
        for origin, place in zip(origins, places, strict=True)
        for name in (origin.name, *(pair.sidecar.name for pair in origin.pairs))
    )
    if twice := sorted({name for (_, name), count in names.items() if count > 1}):
        found = f"several datasets have files of one name: {listing([printable(name) for name in twice], 3)}"
        raise InvalidRequest(where, found, expected="one folder for each", remedy="Copy them one by one.")
    for origin, place in zip(origins, places, strict=True):
        if same_place(origin.folder, place):
            raise InvalidRequest(place, "the folder that the dataset lies in", expected="another one")
    return places
