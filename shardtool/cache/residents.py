"""What lies in a cache's folder, as a look at it finds it."""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardtool.cache.names import (
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
from shardtool.pattern import sidecar_name
from shardtool.storage.locks import Lock, take_lock
from shardtool.storage.reading import READ_PLAIN, entries_in, read_small
from shardtool.storage.staging import Folder

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
class Found:
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


def look(folder: str, *, but: str = "") -> Found:
    """Return what is in a cache's folder, and remove what dead processes have left; the folder's lock must be held.

    Args:
        folder: The cache's folder.
        but: The path of a room that is not to be counted: one's own.

    Raises:
        OSError: A folder cannot be listed.
    """
    found = Found()
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


def _grouped(folder: str, found: Found) -> dict[str, dict[str, os.stat_result]]:
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


def _look_at_copies(folder: str, found: Found, but: str) -> None:
    for owner, files in _grouped(folder, found).items():
        if (shard := files.pop(owner, None)) is not None:
            found.residents.append(Resident(COPIED, owner, shard.st_size, shard.st_mtime_ns, shard.st_atime_ns))
        _count_room(folder, owner, found, but, files)


def _look_at_written(folder: str, found: Found, but: str) -> None:
    for owner, files in _grouped(folder, found).items():
        for name in [name for name in files if is_written(name)]:
            sidecar = sidecar_name(name)
            if sidecar in files:
                shard, size = files.pop(name), files.pop(sidecar).st_size
                times = shard.st_mtime_ns, shard.st_atime_ns
                found.residents.append(Resident(WRITTEN, name, shard.st_size + size, *times, sidecar))
        _count_room(folder, owner, found, but, files)


def _count_room(folder: str, owner: str, found: Found, but: str, unfinished: Iterable[str]) -> None:
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
