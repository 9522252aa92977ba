"""What is copied: the files of a dataset, and what its dataset file says that each of them is."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from shardtool.dataset.dataset_file import read_dataset, shard_names
from shardtool.dataset.find import find_dataset, given_datasets, recorded_pattern
from shardtool.errors import (
    AccessRefused,
    CorruptShard,
    InvalidRequest,
    OutputExists,
    OutputFailed,
    ShardError,
    StoreFailed,
    current_folder,
    listing,
    printable,
    raise_if_machines,
    reason,
    without_secrets,
)
from shardtool.interop.indexes import (
    EXPORTS,
    HEAD_SIZE,
    ONCE,
    README,
    IndexedShard,
    difference,
    form_of,
    index_limit,
    index_name,
    is_ours,
    listed,
)
from shardtool.pattern import DATASET_SUFFIX, SKIPPED_SUFFIX, is_packed_name, is_shard_name, parse_pattern
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.publish.records import check_skipped_file
from shardtool.request.options import CopyOptions
from shardtool.request.results import CopiedDataset, CopyResult, Notes, Observer
from shardtool.request.settings import given_options
from shardtool.storage.folders import Original, check_there, checked_copy, open_folder, write_whole
from shardtool.storage.open_file import blocks_of, file_crc
from shardtool.storage.places import (
    base_name,
    file_stat,
    folder_of,
    is_file,
    is_url,
    is_web,
    join,
    names_in,
    plain_sizes,
    read_head,
    read_small,
    same_place,
)
from shardtool.storage.remote.retry import RequestStopped, until
from shardtool.storage.staging import check_facts
from shardtool.values import counted, output_text, show_size, to_bytes
from shardtool.wording import flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.pattern import ShardPattern
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile, FileFact
    from shardtool.values import Given, Trust


_EXPECTED_SOURCE = "a dataset with a dataset file, which says what its shards must be"
_CURE = "`shardtool verify` shows what is damaged."


@dataclass(frozen=True, slots=True)
class ShardPair:
    """A shard and its sidecar, as they are to be copied."""

    shard: Original
    sidecar: Original
    samples: int


@dataclass(frozen=True, slots=True)
class CopySource:
    """A dataset that is copied.

    Attributes:
        path: Where its dataset file is.
        data: The bytes of that file, which are what is copied, whatever becomes of the file meanwhile.
        file: What it says.
        pairs: Its shards and their sidecars, in order.
        skipped: The list of what was left out; empty: there is none.
    """

    path: str
    data: bytes
    file: DatasetFile
    pairs: tuple[ShardPair, ...]
    skipped: bytes

    @property
    def name(self) -> str:
        """The name of the dataset file."""
        return base_name(self.path)

    @property
    def base(self) -> str:
        """The same without its ending."""
        return self.name.removesuffix(DATASET_SUFFIX)

    @property
    def skipped_name(self) -> str:
        """The name of the list of what was left out."""
        return local_name(self.file.name) + SKIPPED_SUFFIX

    @property
    def pattern(self) -> ShardPattern | None:
        """The names of its shards, where they lie beside the dataset file and are such as a pattern can have."""
        if self.file.shards_folder:
            return None
        if (pattern := recorded_pattern(self.file)) is not None:
            return pattern
        with suppress(InvalidRequest):
            return parse_pattern([one.shard.name for one in self.pairs])
        return None

    def has_changed(self) -> bool:
        """Tell whether the dataset file is another one by now, or gone."""
        try:
            return read_small(self.path) != self.data
        except StoreFailed:
            raise
        except (OSError, ShardError):
            return True

    @property
    def folder(self) -> str:
        """Where the dataset file and the sidecars are."""
        return folder_of(self.path)


def open_origin(given: Given) -> CopySource:
    """Return a dataset that can be copied: all of its files are there, as far as their sizes show.

    Raises:
        InvalidRequest: There is no such dataset, it has no dataset file, or only some of its shards are given.
        CorruptShard: Its dataset file is damaged, or a file that it lists is not there, or has another size.
    """
    found = find_dataset(given)
    if found.dataset_file is None or not found.own:
        where = found.dataset_file or found.folder or "."
        raise InvalidRequest(
            where, "no dataset file of shardtool", expected=_EXPECTED_SOURCE, remedy="`index` makes one."
        )
    path, data = found.dataset_file, _read_listed(found.dataset_file)
    file = read_dataset(data, path)
    names = {shard.name for shard in found.shards}
    if lacking := [shard.name for shard in file.shards if shard.name not in names]:
        what = f"{counted(len(names), 'shard')}, without {listing(lacking, 3)}"
        remedy = "Give that file to copy them all; `reshard` makes a dataset of some shards."
        raise InvalidRequest(path, what, expected=f"all {len(file.shards):,} that it lists", remedy=remedy)
    folder = folder_of(path)
    below = join(folder, local_name(file.shards_folder)) if file.shards_folder else folder
    pairs = tuple(
        ShardPair(
            _original(below, shard.name, shard.size, shard.crc),
            _original(folder, shard.sidecar, shard.sidecar_size, shard.sidecar_crc),
            shard.samples,
        )
        for shard in file.shards
    )
    _check_sizes(below, [one.shard for one in pairs])
    _check_sizes(folder, [one.sidecar for one in pairs])
    origin = CopySource(path, data, file, pairs, b"")
    if not file.skipped:
        return origin
    list_path = join(folder, origin.skipped_name)
    skipped = _read_listed(list_path)
    check_skipped_file(skipped, file, list_path)
    return CopySource(path, data, file, pairs, skipped)


def local_name(name: str) -> str:
    """Return what the file system calls a file, by its name in a dataset file."""
    return os.fsdecode(to_bytes(name))


def _original(folder: str, name: str, size: int, crc: int | None) -> Original:
    name = local_name(name)
    return Original(join(folder, name), size, crc, name)


def _read_listed(path: str) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        raise CorruptShard(path, f"cannot be read: {reason(error)}", remedy=_CURE) from None


def _check_sizes(folder: str, originals: list[Original]) -> None:
    """Check that files are there with the sizes that the dataset file says, before the first of them is copied."""
    if is_web(folder):
        return  # each is asked for when it is copied
    for one, size in zip(originals, plain_sizes([one.path for one in originals]), strict=True):
        if size != one.size:
            found = "no such file" if size is None else f"{size:,} bytes"
            expected = f"{one.size:,} bytes, as the dataset file says"
            raise CorruptShard(printable(one.path), found, expected=expected, remedy=_CURE)


# Several shards at once, each in a thread: they wait for disks and servers, and all that counts bytes frees Python.


Task = TypeVar("Task")
Result = TypeVar("Result")
_TICK_S = 0.2  # between two looks at how many bytes there are


class Meter:
    """The bytes that threads have dealt with, and the word that they are to stop.

    Attributes:
        stopped: Set when the run has ended: threads end at their next block, and requests wherever they are.
    """

    def __init__(self) -> None:
        self._lock, self._bytes, self.stopped = threading.Lock(), 0, threading.Event()

    def took(self, size: int) -> None:
        """Count bytes.

        Raises:
            Stopped: The run has ended.
        """
        with self._lock:
            self._bytes += size
        if self.stopped.is_set():
            raise RequestStopped

    def taken(self) -> int:
        """Return the bytes since the last call."""
        with self._lock:
            size, self._bytes = self._bytes, 0
        return size


def side_by_side(
    work: Callable[[Task, Meter], Result], tasks: Iterable[Task], threads: int, observer: Observer
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with what came of it, as it is done; tasks are drawn as threads become free.

    Whatever ends the loop, no thread runs on after it.

    Args:
        work: What is done; it calls `Meter.took` for each block.
        tasks: What with.
        threads: How many at a time.
        observer: Gets progress, in this thread.
    """
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    meter, left = Meter(), iter(tasks)

    def carry_out(task: Task) -> Result:
        with until(meter.stopped):
            return work(task, meter)

    with ThreadPoolExecutor(threads, "shardtool-copy") as pool:
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                while len(running) < 2 * threads and (task := next(left, None)) is not None:
                    running[pool.submit(carry_out, task)] = task
                if not running:
                    return
                done, _ = wait(running, _TICK_S, FIRST_COMPLETED)
                observer.advance(0, meter.taken(), 0)
                for one in [one for one in running if one in done]:
                    yield running.pop(one), one.result()
        finally:
            meter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)


# Where a copy goes: what is there already, what of it is right, and whether the rest may be touched.
#
# Nothing is changed here. What is there is right if it has the bytes that the source's dataset file says: of a folder
# of a file system, all of them are read. In a store a shard is right if it has the right size, its sidecar, which
# comes after the whole of a shard, has the right bytes, and the MD5 that the store says of it is that of the source,
# as far as both are to be had without reading an object. A copy takes the place of nothing else, unless that was
# asked for; only shards that the dataset file there lists are removed, for only they are known to be the dataset's.


@dataclass(frozen=True, slots=True)
class CopyDestination:
    """The place of a copy, and what was there.

    Attributes:
        origin: The dataset that is copied.
        folder: Of its dataset file, and of sidecars.
        below: Of its shards: the same, or one below it.
        facts: The files there that have names of the dataset's: of `folder`, then of `below`.
        data: The bytes of the dataset file that is there; None: there is none.
        old: What it says; None: there is none, or it is damaged.
        old_below: Where the shards are that it lists.
    """

    origin: CopySource
    folder: OutputFolder
    below: OutputFolder
    facts: tuple[Mapping[str, FileFact], Mapping[str, FileFact]]
    data: bytes | None
    old: DatasetFile | None
    old_below: OutputFolder

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file."""
        return self.folder.full_path(self.origin.name)

    @property
    def has_grown(self) -> bool:
        """Whether the dataset that is there is this one, as it is or as it was before shards were appended."""
        if self.data is None:
            return True
        if self.old is None or self.old.shards_folder != self.origin.file.shards_folder:
            return False
        return {*map(_content, self.old.shards)} <= {*map(_content, self.origin.file.shards)}

    def removed(self) -> tuple[list[str], list[str]]:
        """Return what only the old dataset file lists: names in its folder, and names of its shards in theirs."""
        if self.old is None:
            return [], []
        same = self.old.shards_folder == self.origin.file.shards_folder
        shards, sidecars = ({one.name for one in part} for part in self._originals())
        old = [local_name(one.name) for one in self.old.shards]
        gone = [local_name(one.sidecar) for one in self.old.shards if local_name(one.sidecar) not in sidecars]
        if self.old.skipped and not self.origin.skipped:
            gone.append(self.origin.skipped_name)
        return sorted(gone), sorted(name for name in old if not same or name not in shards)

    def _originals(self) -> tuple[list[Original], list[Original]]:
        return [one.shard for one in self.origin.pairs], [one.sidecar for one in self.origin.pairs]


@dataclass(frozen=True, slots=True)
class ShardState:
    """What is there of a shard and of its sidecar: True if it is right, False if it is not, None if nothing is."""

    shard: bool | None
    sidecar: bool | None

    @property
    def is_right(self) -> bool:
        """Whether nothing is to be copied."""
        return bool(self.shard and self.sidecar)


@dataclass(slots=True)
class CopyPlan:
    """What a copy has to do.

    Attributes:
        missing: Shards to be copied, of which nothing that is there is replaced; and their states.
        replaced: Those in whose place there is something.
        kept: How many are right.
        mended: The names of files that are replaced since they are not what the dataset file beside them says.
    """

    missing: list[tuple[ShardPair, ShardState]] = field(default_factory=list)
    replaced: list[tuple[ShardPair, ShardState]] = field(default_factory=list)
    kept: int = 0
    mended: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[tuple[ShardPair, ShardState]]:
        """All shards that are copied, or whose sidecars are."""
        return [*self.missing, *self.replaced]

    @property
    def size(self) -> int:
        """The bytes that are copied."""
        shards = sum(pair.shard.size for pair, state in self.all if not state.shard)
        return shards + sum(pair.sidecar.size for pair, state in self.all if not state.sidecar)


def look(origin: CopySource, where: str) -> CopyDestination:
    """Return what is at the place of a copy.

    Raises:
        OutputExists: Something has a name of the dataset's that no run replaces.
    """
    folder = open_folder(where)
    below = _below(folder, local_name(origin.file.shards_folder))
    named = [origin.name, origin.skipped_name, *(one.sidecar.name for one in origin.pairs)]
    facts = folder.facts(named), below.facts([one.shard.name for one in origin.pairs])
    for place, found in zip((folder, below), facts, strict=True):
        check_facts(place.full_path, found)
    data, old = None, None
    if origin.name in facts[0]:
        data = b""
        with suppress(OSError):
            data = folder.read(origin.name)
        file = folder.full_path(origin.name)
        if shard_names(data) is None:
            what = "a file that is no dataset file of shardtool"
            raise OutputExists(file, what, remedy="Choose another folder, or move it away.")
        with suppress(CorruptShard):
            old = read_dataset(data, file)
    old_below = below if old is None else _below(folder, local_name(old.shards_folder))
    return CopyDestination(origin, folder, below, facts, data, old, old_below)


def state_of(goal: CopyDestination, pair: ShardPair, meter: Meter, trust: Trust | None = None) -> ShardState:
    """Return what is there of a shard and its sidecar; `trust`: by what a shard of the right size is known unread."""
    sidecar = _is_right(goal.folder, goal.facts[0], pair.sidecar, meter)
    fact = goal.facts[1].get(pair.shard.name)
    if fact is None or fact.size != pair.shard.size:
        return ShardState(None if fact is None else False, sidecar)
    if sidecar and trust and _is_trusted(goal, pair.shard, fact, trust, meter):
        return ShardState(shard=True, sidecar=True)
    if pair.shard.crc is not None and (goal.below.hides or sidecar is None):  # a kill leaves a shard before its sidecar
        return ShardState(_is_right(goal.below, goal.facts[1], pair.shard, meter), sidecar)
    return ShardState(bool(sidecar) and _is_same_object(goal.below, pair.shard, meter), sidecar)


def decide(goal: CopyDestination, states: Mapping[str, ShardState], *, overwrite: bool) -> CopyPlan:
    """Return what is to be done.

    Args:
        goal: The place.
        states: What is there of each shard, by its name.
        overwrite: Whether another dataset, or other files, may be replaced.

    Raises:
        OutputExists: They would be, and that was not asked for.
    """
    cure = f"Choose another folder, or {flag('overwrite')}."
    if not goal.has_grown and not overwrite:
        raise OutputExists(goal.dataset_file, _rival(goal), expected=f"{goal.origin.path}, or none", remedy=cure)
    todo, others = CopyPlan(), list[str]()
    listed = {_content(one) for one in goal.old.shards} if goal.old else set()
    entries = {local_name(one.name): _content(one) for one in goal.origin.file.shards}
    for pair in goal.origin.pairs:
        state = states[pair.shard.name]
        parts = ((pair.shard, state.shard), (pair.sidecar, state.sidecar))
        wrong = [one.name for one, right in parts if right is False]
        if state.is_right:
            todo.kept += 1
        elif not wrong:
            todo.missing.append((pair, state))
        else:
            todo.replaced.append((pair, state))
            (todo.mended if entries[pair.shard.name] in listed else others).extend(wrong)
    if others and not overwrite:
        found = f"{counted(len(others), 'file')} there already with other bytes: {listing(others, 3)}"
        raise OutputExists(goal.folder.path or ".", printable(found), remedy=cure)
    return todo


def _rival(goal: CopyDestination) -> str:
    if goal.old is None:
        return "a dataset file that is damaged"
    if goal.old.shards_folder != goal.origin.file.shards_folder:
        return "the dataset file of shards in another folder"
    ours = {*map(_content, goal.origin.file.shards)}
    others = [one.name for one in goal.old.shards if _content(one) not in ours]
    return f"a dataset with {counted(len(others), 'shard')} that the source does not have so: {listing(others, 3)}"


def _content(entry: ShardEntry) -> tuple[object, ...]:
    return entry.name, entry.size, entry.crc, entry.sidecar_size, entry.sidecar_crc


def _is_right(folder: OutputFolder, facts: Mapping[str, FileFact], original: Original, meter: Meter) -> bool | None:
    """Tell whether a file has the bytes that it should have; None: there is none."""
    fact = facts.get(original.name)
    if fact is None:
        return None
    if fact.size != original.size:
        return False
    with suppress(OSError):  # a link, or what cannot be read
        return file_crc(folder.full_path(original.name), meter.took)[1] == original.crc
    return False


def _is_trusted(goal: CopyDestination, shard: Original, fact: FileFact, trust: Trust, meter: Meter) -> bool:
    """Tell whether a shard of the right size is known without reading it; two stores are asked for its MD5."""
    if is_url(shard.path):
        return trust == "size" and (goal.below.hides or _is_same_object(goal.below, shard, meter))
    return trust == "size" or (goal.below.hides and fact.mtime_ns == file_stat(shard.path).st_mtime_ns)


def _is_same_object(folder: OutputFolder, original: Original, meter: Meter) -> bool:
    """Tell whether the MD5 of an object, where its store says it, is that of the original, where that can be known."""
    there = folder.md5(original.name)
    if there is None or is_web(original.path):
        return True
    if is_url(original.path):
        return open_folder(folder_of(original.path)).md5(original.name) in (None, there)
    md5 = hashlib.md5(usedforsecurity=False)
    for block in blocks_of(original.path):
        md5.update(block)
        meter.took(len(block))
    return md5.hexdigest() == there


def _below(folder: OutputFolder, names: str) -> OutputFolder:
    """Return the folder of the shards, which is no link that leads elsewhere."""
    for name in names.split("/") if names else ():
        fact = folder.facts([name]).get(name)
        if fact is not None and not fact.is_folder:
            raise OutputExists(folder.full_path(name), "no folder", remedy="Move it away.")
        folder = open_folder(folder.full_path(name))
    return folder


# The indexes of other tools that lie beside a dataset: they are copied with it where they are right.
#
# No checksum covers them, so each is held against what the sidecars say of the shards, which were copied and checked.
# What has the name of an index at the destination already stays. On the web nothing is listed, and so none is found.


_LIST_LIMIT = 2**28  # bytes of a file that lists a folder's shards


def copy_indexes(goal: CopyDestination, notes: Notes) -> int:
    """Copy the index files that lead into a shard, where they are right; return how many were.

    Raises:
        OutputFailed: One cannot be written.
    """
    origin = goal.origin
    if is_web(origin.path) or origin.file.shards_folder:
        return 0
    try:
        names, copied, wrong = {*names_in(origin.folder, needed=True)}, 0, list[str]()
    except AccessRefused:
        notes.add("indexes of other tools were not looked for: the store does not let us list")
        return 0
    for pair in origin.pairs:
        for name in sorted(_names_of(pair, names) - {origin.name}):
            data = _index_data(join(origin.folder, name), name, pair)
            if data is None:
                wrong.append(output_text(name))
            elif data and _put(goal.folder, name, data):
                copied += 1
    if wrong:
        found = f"{counted(len(wrong), 'index file')} of other tools"
        notes.add(f"{found} not copied, for they are not those of their shards: {listing(sorted(wrong), 3)}")
    return copied


def copy_lists(origins: Sequence[CopySource], where: str) -> int:
    """Copy the files of other tools that list the shards of a folder, where all of those are copied; return how many.

    Args:
        origins: The datasets of one folder that were copied.
        where: The folder that they were copied to.

    Raises:
        OutputFailed: One cannot be written.
    """
    source, folder = origins[0].folder, open_folder(where)
    if is_web(source) or any(origin.file.shards_folder for origin in origins):
        return 0
    shards = {shard.name: shard.samples for origin in origins for shard in origin.file.shards}
    copied = 0
    for name, data in _right_lists(origins, source, shards):
        copied += _put(folder, name, data)
    return copied


def _right_lists(origins: Sequence[CopySource], source: str, shards: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and the bytes of such files, in the order in which they should appear."""
    for once in ONCE.values():
        counts = once.counts(_read(join(source, once.info), _LIST_LIMIT))
        if counts and counts == {name: shards[name] for name in counts if name in shards}:
            with suppress(InvalidRequest):
                paths = once.encode([origin.file.split_shards() for origin in origins])
                yield from ((path, _read(join(source, path), _LIST_LIMIT)) for path in paths)
    readme = _read(join(source, README), _LIST_LIMIT)
    if is_ours(readme) and listed(readme, [*map(output_text, names_in(source))]) == {*shards}:
        yield README, readme


def _names_of(pair: ShardPair, names: set[str]) -> set[str]:
    """Return the files that may be indexes of a shard, by their names."""
    if is_packed_name(pair.shard.name):
        return set()
    return {index_name(pair.shard.name, export) for export in EXPORTS.values() if export.suffix} & names


def _index_data(path: str, name: str, pair: ShardPair) -> bytes | None:
    """Return the bytes of a shard's index; empty: the file is something else; None: it is not that of this shard."""
    from shardtool.dataset.sidecar import read_sidecar

    try:
        head, size = read_head(path, HEAD_SIZE)
        if not (form := form_of(name, head, size)):
            return b""
        sidecar = read_sidecar(read_small(pair.sidecar.path), pair.sidecar.path, None, metadata=False)
        shard = IndexedShard(output_text(pair.shard.name), pair.shard.size, sidecar.plain_table())
        if size > index_limit(shard):
            return None
        data = read_small(path)
        return None if difference(form, data, shard) else data
    except (OSError, KeyError, CorruptShard):
        return None


def _read(path: str, limit: int) -> bytes:
    """Return a whole file; nothing where there is none, or it cannot be read, which a store may say of none, too."""
    try:
        return read_small(path, limit) if is_file(path) else b""
    except (OSError, AccessRefused):
        return b""


def _put(folder: OutputFolder, path: str, data: bytes) -> bool:
    """Write a file where there is none of its name; return whether that was done."""
    below, name = os.path.split(path)
    if below:
        fact = folder.facts([below]).get(below)
        if fact is not None and not fact.is_folder:  # a link to one would lead elsewhere
            return False
        folder = open_folder(folder.full_path(below))
    if not data or folder.facts([name]):
        return False
    folder.ready()
    folder.publish(write_whole(folder, name, data))
    return True


# `copy`: datasets, as they are, in another place. The library twin of `shardtool copy`.


# A dataset is copied: looked at, compared, copied shard by shard, and published, the dataset file last.
#
# The order makes every instant safe, as that of `publish.publisher` does: a shard, then its sidecar; where something of
# another dataset is replaced, all is staged first, and the old dataset file goes before the first of its shards does. A
# run that was killed has left finished files only, which the next one finds right.


_THREADS = 4
_SPACE_FOR_INDEXES = 1.01
_AT_SOURCE = "`shardtool verify` shows what is damaged at the source."


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
    largest = goal.below.largest
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
        cure = _AT_SOURCE
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
