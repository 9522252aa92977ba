"""What lies in a cache's folder, as a look at it finds it."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardtool.pattern import sidecar_name
from shardtool.storage.reading import READ_PLAIN, entries_in, read_small
from shardtool.storage.shared import Lock, take_lock
from shardtool.storage.staging import Folder
from shardtool.verbs.cache.names import (
    COPIED,
    COUNTS,
    FOLDERS,
    LOCK,
    MARK,
    PART,
    ROOM,
    TOTAL,
    WRITTEN,
    copy_of,
    is_counts,
    is_written,
    writer_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_ROOM_SIZE = 200  # bytes: numbers of a room


@dataclass(frozen=True, slots=True)
class Resident:
    """A finished shard in the folder.

    Attributes:
        folder: `copied` or `written`.
        name: Its file name.
        size: Its bytes, with its sidecar's.
        came_ns: When it came.
        used_ns: When it was leased last.
        sidecar: The name of its sidecar; empty: a copy, which has none.
    """

    folder: str
    name: str
    size: int
    came_ns: int
    used_ns: int
    sidecar: str = ""

    @property
    def unread(self) -> bool:
        """Whether no process has taken it yet."""
        return self.used_ns <= self.came_ns


@dataclass(slots=True)
class CacheContents:
    """What a look has found.

    Attributes:
        residents: The finished shards.
        taken: Bytes that live rooms have been given.
        wanted: Bytes that live rooms wait for.
        pids: The processes that write or wait for a room.
        foreign: Paths, from the folder on, of what is no file of a cache.
    """

    residents: list[Resident] = field(default_factory=list)
    taken: int = 0
    wanted: int = 0
    pids: list[int] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of the finished shards."""
        return sum(one.size for one in self.residents)


def room_text(taken: int, wanted: int) -> bytes:
    """Return what a room says: bytes it has been given, bytes it waits for, and its process."""
    return b"%020d %020d %010d\n" % (taken, wanted, os.getpid())


def look(folder: str, *, but: str = "") -> CacheContents:
    """Return what is in a cache's folder, and remove what dead processes have left; the folder's lock must be held.

    Args:
        folder: The cache's folder.
        but: The path of a room that is not to be counted: one's own.

    Raises:
        OSError: A folder cannot be listed.
    """
    found = CacheContents()
    for name in _names(folder):
        if name not in (MARK, LOCK, *FOLDERS):
            found.foreign.append(name)
    _look_at_copies(os.path.join(folder, COPIED), found, but)
    _look_at_written(os.path.join(folder, WRITTEN), found, but)
    found.foreign += [f"{COUNTS}/{name}" for name in _names(os.path.join(folder, COUNTS)) if not _counts_part(name)]
    return found


def _counts_part(name: str) -> bool:
    return name == TOTAL or is_counts(name) or name == f".{TOTAL}{PART}"


def _names(folder: str) -> list[str]:
    return [entry.name for entry in _entries(folder)]


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError):  # any other failure must not look like an empty folder
        yield from entries_in(folder)


def _fact(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return what is known of a plain file; None: it is none, or gone."""
    with suppress(OSError):
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False)
    return None


def _grouped(folder: str, found: CacheContents) -> dict[str, dict[str, os.stat_result]]:
    """Return the files of each copy, or of each writer, by their names."""
    owner, part = (copy_of, COPIED) if os.path.basename(folder) == COPIED else (writer_of, WRITTEN)
    groups: dict[str, dict[str, os.stat_result]] = defaultdict(dict)
    for entry in _entries(folder):
        name, fact = owner(entry.name), _fact(entry)
        if name is None or fact is None:
            found.foreign.append(f"{part}/{entry.name}")
        else:
            groups[name][entry.name] = fact
    return groups


def _look_at_copies(folder: str, found: CacheContents, but: str) -> None:
    for owner, files in _grouped(folder, found).items():
        if (shard := files.pop(owner, None)) is not None:
            found.residents.append(Resident(COPIED, owner, shard.st_size, shard.st_mtime_ns, shard.st_atime_ns))
        _count_room(folder, owner, found, but, files)


def _look_at_written(folder: str, found: CacheContents, but: str) -> None:
    for owner, files in _grouped(folder, found).items():
        for name in [name for name in files if is_written(name)]:
            sidecar = sidecar_name(name)
            if sidecar in files:
                shard, size = files.pop(name), files.pop(sidecar).st_size
                times = shard.st_mtime_ns, shard.st_atime_ns
                found.residents.append(Resident(WRITTEN, name, shard.st_size + size, *times, sidecar))
        _count_room(folder, owner, found, but, files)


def _count_room(folder: str, owner: str, found: CacheContents, but: str, unfinished: Iterable[str]) -> None:
    """Add what a room has taken; where its holder is dead, remove the room, and first what is unfinished."""
    path = os.path.join(folder, f"{ROOM}{owner}")
    if path == but:
        return
    try:
        room = take_lock(path)
    except OSError:
        _remove(folder, unfinished)
        return
    if room is not None:
        with room:
            _remove(folder, unfinished)
        return
    with suppress(OSError, ValueError):
        taken, wanted, pid = map(int, read_small(path, _ROOM_SIZE, flags=READ_PLAIN).split())
        found.taken += taken
        found.wanted += wanted
        found.pids.append(pid)


def _remove(folder: str, names: Iterable[str]) -> None:
    """Remove what a dead process has left, its room last: as long as that is there, the rest is found again."""
    Folder(folder).discard(*sorted(names, key=lambda one: one.startswith(ROOM)))


def held(path: str) -> bool:
    """Tell whether a process has a lease on a shard."""
    try:
        lock = take_lock(path)
    except OSError:
        return False
    if lock is None:
        return True
    lock.close()
    return False


def lock_alone(path: str) -> Lock | None:
    """Return the lock on a shard that no process reads; None: one does, or it may not be touched."""
    try:
        return take_lock(path)
    except OSError:
        return None


# The bytes of a cache: given out before they are written, and got back by evicting whole shards that are not read.


Policy = Literal["least-used", "oldest", "keep"]
PATIENCE_S = 30.0  # for a process that holds the folder's lock, or copies, and does nothing: one that was stopped
_SOON_S, _LATER_S = 0.001, 0.05  # between two looks


class Pauses:
    """Longer and longer pauses, for as long as there is patience."""

    def __init__(self, patience_s: float | None = None) -> None:
        self._patience_s, self._pause_s = PATIENCE_S if patience_s is None else patience_s, _SOON_S
        self.restart()

    def restart(self) -> None:
        """Be patient anew: something has moved."""
        self._end_s = time.monotonic() + self._patience_s

    def wait(self) -> bool:
        """Wait a moment, and return True; False: the patience is at its end."""
        if time.monotonic() > self._end_s:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LATER_S)
        return True


class FolderBusyError(OSError):
    """Another process holds the folder's lock, and does nothing."""


@dataclass(frozen=True, slots=True)
class Space:
    """The space of a cache's folder, as one process may use it.

    Attributes:
        folder: The cache's folder.
        max_bytes: What may lie there at any time.
        policy: Which shards are evicted first; `keep`: none is.
    """

    folder: str
    max_bytes: int
    policy: Policy

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock: for moments, never while bytes are copied.

        Raises:
            OSError: It cannot be had.
        """
        pauses = Pauses()
        while (lock := take_lock(os.path.join(self.folder, LOCK), create=True)) is None:
            if not pauses.wait():
                raise FolderBusyError(self.folder)
        with lock:
            yield

    def give(self, room: Lock, size: int) -> int | None:
        """Give `size` bytes to a room, if they fit or shards can be evicted for them; the folder's lock must be held.

        Returns:
            How many shards were evicted; None: it does not fit, nothing was evicted, and the room waits.

        Raises:
            OSError: The room cannot be written.
        """
        room.put(room_text(0, size))
        found = look(self.folder, but=room.path)
        evicted = self.evict(self.in_order(found.residents), self.over(found, size))
        if evicted is not None:
            room.put(room_text(size, 0))
        return evicted

    def over(self, found: CacheContents, size: int) -> int:
        """Return how many bytes are too many for `size` more, by the bound or by what the disk has left."""
        return max(found.size + found.taken + size - self.max_bytes, size - Folder(self.folder).free_bytes())

    def evict(self, shards: Iterable[Resident], over: int) -> int | None:
        """Evict shards, the first ones first, until `over` bytes are free; the folder's lock must be held.

        Returns:
            How many; None: none, for those that no process reads are too few.
        """
        victims: list[tuple[Resident, Lock]] = []
        try:
            for one in shards if self.policy != "keep" else ():
                if over <= 0:
                    break
                if lock := lock_alone(os.path.join(self.folder, one.folder, one.name)):
                    victims.append((one, lock))
                    over -= one.size
            if over > 0:
                return None
            for one, _ in victims:
                remove_shard(self.folder, one)
            return len(victims)
        finally:
            for _, lock in victims:
                lock.close()

    def in_order(self, residents: list[Resident]) -> list[Resident]:
        """Return shards in the order in which they would be evicted."""
        if self.policy == "oldest":
            return sorted(residents, key=lambda one: (one.came_ns, one.name))
        # What no process has used yet goes last: it was written to be read.
        return sorted(residents, key=lambda one: (one.unread, one.used_ns, one.came_ns, one.name))


def remove_shard(folder: str, one: Resident) -> None:
    """Remove a shard, and then its sidecar: what a kill leaves between is no finished shard."""
    Folder(os.path.join(folder, one.folder)).discard(*filter(None, (one.name, one.sidecar)))


def room_path(folder: Folder, name: str) -> str:
    """Return the path of the room of a copy, or of a writer."""
    return folder.full_path(f"{ROOM}{name}")
