"""The bytes of a cache: reserved before they are written, and freed by evicting whole shards that no process reads."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import asdict
from errno import EBUSY
from typing import TYPE_CHECKING, Literal, NamedTuple

from shardtool.errors import InvalidRequest, OutputFailed, os_error_text
from shardtool.pattern import sidecar_name
from shardtool.storage.files import READ_PLAIN, read_small
from shardtool.storage.locks import UNSUPPORTED_LOCK_ERRNOS, FileLock, take_lock
from shardtool.storage.lookup import list_folder_names
from shardtool.storage.staging import Folder
from shardtool.verbs.cache.counts import CacheCounts, read_counts
from shardtool.verbs.cache.folder import (
    CACHE_VERSION,
    COPIED,
    COUNTS,
    COUNTS_FILE_NAME,
    FOLDERS,
    LOCK_NAME,
    MARK_NAME,
    PART_SUFFIX,
    ROOM_PREFIX,
    TOTAL_NAME,
    WRITTEN,
    WRITTEN_SHARD_NAME,
    CacheContents,
    CachedFile,
    copy_name,
    count_room,
    encode_room,
    file_facts,
    names_in_folder,
    scan_folder,
    writer_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Policy = Literal["least-used", "oldest", "keep"]


_MAX_MARK_BYTES = 4096


MAX_WAIT_S = 30.0  # for a process that holds the folder's lock, or copies, and does nothing: one that was stopped


_SOON_S, _LATER_S = 0.001, 0.05  # between two looks


def lock_room(folder: Folder, name: str) -> FileLock | None:
    """Return the lock on the room of a copy, or of a writer, which is made where it is missing; None: another has it.

    Raises:
        OSError: It cannot be opened.
    """
    return take_lock(folder.full_path(f"{ROOM_PREFIX}{name}"), create=True)


class Backoff:
    """Longer and longer pauses, for as long as there is patience."""

    def __init__(self, patience_s: float | None = None) -> None:
        self._patience_s, self._pause_s = MAX_WAIT_S if patience_s is None else patience_s, _SOON_S
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


class CacheSpace(NamedTuple):
    """The folder of a cache and its space, as one process may use them.

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
        pauses = Backoff()
        while (lock := take_lock(os.path.join(self.folder, LOCK_NAME), create=True)) is None:
            if not pauses.wait():
                raise OSError(EBUSY, "a process holds its lock, and does nothing")
        with lock:
            yield

    def is_cache(self) -> bool:
        """Return whether the folder is a cache already.

        Raises:
            InvalidRequest: It is one of another version, a file, or its folders are links, which may lead anywhere.
        """
        folder = self.folder
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise InvalidRequest(folder, "a file", expected="a folder, or none yet")
        for name, fact in Folder(folder).facts(FOLDERS).items():
            if not fact.is_folder:
                where, expected = os.path.join(folder, name), "a folder of the cache, or none"
                raise InvalidRequest(where, "a link or a file", expected=expected)
        path = os.path.join(folder, MARK_NAME)
        if not os.path.lexists(path):
            return False
        try:
            version = json.loads(read_small(path, _MAX_MARK_BYTES, flags=READ_PLAIN))["shardtool-cache"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            version = "that cannot be read"
        if version != CACHE_VERSION:
            remedy = "Take another folder, or remove this one."
            raise InvalidRequest(
                folder, f"a cache of the version {version}", expected=f"{CACHE_VERSION}", remedy=remedy
            )
        return True

    def prepare(self) -> list[str]:
        """Make the folder a cache, if it is none, remove what dead processes left there, and return what is foreign.

        Raises:
            InvalidRequest: It is the cache of another version, its folders are links, or locks do not work there.
            OutputFailed: It cannot be made.
            OSError: It cannot be written.
        """
        folder = Folder(self.folder)
        self.is_cache()
        for one in ("", *FOLDERS):
            Folder(folder.full_path(one)).ready()
        try:
            with self.locked():
                if (second := take_lock(folder.full_path(LOCK_NAME))) is not None:
                    second.close()
                    raise _no_locks_error(self.folder, "two processes can hold one lock at once")
                if not os.path.lexists(folder.full_path(MARK_NAME)):
                    folder.publish(folder.stage_bytes(MARK_NAME, b'{"shardtool-cache": %d}\n' % CACHE_VERSION))
                self.counts()
                return self.look().foreign
        except OSError as error:
            if error.errno in UNSUPPORTED_LOCK_ERRNOS:
                raise _no_locks_error(self.folder, f"no locks: {os_error_text(error)}") from None
            raise

    def look(self, *, but: str = "") -> CacheContents:
        """Return what is in the folder, and remove what dead processes have left; the folder's lock must be held.

        Args:
            but: The path of a room that is not to be counted: one's own.

        Raises:
            OSError: A folder cannot be listed.
        """
        folder, found = self.folder, CacheContents()
        found.foreign += [name for name in names_in_folder(folder) if name not in (MARK_NAME, LOCK_NAME, *FOLDERS)]
        for part, owner_of in ((COPIED, copy_name), (WRITTEN, writer_name)):
            # The files of each copy, or of each writer.
            groups: dict[str, dict[str, os.stat_result]] = defaultdict(dict)
            for entry in scan_folder(os.path.join(folder, part)):
                owner, fact = owner_of(entry.name), file_facts(entry)
                if owner is None or fact is None:
                    found.foreign.append(f"{part}/{entry.name}")
                else:
                    groups[owner][entry.name] = fact
            for owner, files in groups.items():
                for name in (
                    [owner] if part == COPIED else [name for name in files if WRITTEN_SHARD_NAME.fullmatch(name)]
                ):
                    sidecar = "" if part == COPIED else sidecar_name(name)
                    if name in files and (not sidecar or sidecar in files):
                        shard, more = files.pop(name), files.pop(sidecar).st_size if sidecar else 0
                        times = shard.st_mtime_ns, shard.st_atime_ns
                        found.residents.append(CachedFile(part, name, shard.st_size + more, *times, sidecar))
                count_room(os.path.join(folder, part), owner, found, but, files)
        for name in names_in_folder(os.path.join(folder, COUNTS)):
            if name not in (TOTAL_NAME, f".{TOTAL_NAME}{PART_SUFFIX}") and not COUNTS_FILE_NAME.fullmatch(name):
                found.foreign.append(f"{COUNTS}/{name}")
        return found

    def counts(self) -> tuple[CacheCounts, list[int]]:
        """Return the counts of all processes, and which of them live; the folder's lock must be held.

        Raises:
            OutputFailed: Counts of ended processes cannot be added up on disk.
        """
        place = Folder(os.path.join(self.folder, COUNTS))
        total, ended, pids = read_counts(place, TOTAL_NAME), [], []
        living = CacheCounts()
        for name in filter(COUNTS_FILE_NAME.fullmatch, list_folder_names(place.path)):
            try:
                lock = take_lock(place.full_path(name))
            except OSError:
                continue
            counts = read_counts(place, name)
            if lock is None:
                living.add(counts)
                pids.append(int(name.partition("-")[0]))
            else:
                total.add(counts)
                ended.append(name)
                lock.close()
        if ended:
            with suppress(OutputFailed):
                place.publish(place.stage_bytes(TOTAL_NAME, json.dumps(asdict(total)).encode()))
                place.remove(ended)
        living.add(total)
        return living, sorted({*pids})

    def give(self, room: FileLock, size: int) -> int | None:
        """Give `size` bytes to a room, if they fit or shards can be evicted for them; the folder's lock must be held.

        Returns:
            How many shards were evicted; None: it does not fit, nothing was evicted, and the room waits.

        Raises:
            OSError: The room cannot be written.
        """
        room.write(encode_room(0, size))
        found = self.look(but=room.path)
        evicted = self.evict(self.in_order(found.residents), self.over(found, size))
        if evicted is not None:
            room.write(encode_room(size, 0))
        return evicted

    def over(self, found: CacheContents, size: int) -> int:
        """Return how many bytes are too many for `size` more, by the bound or by what the disk has left."""
        return max(found.size + found.taken + size - self.max_bytes, size - Folder(self.folder).free_bytes())

    def evict(self, shards: Iterable[CachedFile], over: int) -> int | None:
        """Evict shards, the first ones first, until `over` bytes are free; the folder's lock must be held.

        Returns:
            How many; None: none, for those that no process reads are too few.
        """
        victims: list[tuple[CachedFile, FileLock]] = []
        try:
            for one in shards if self.policy != "keep" else ():
                if over <= 0:
                    break
                if lock := self.lock_alone(one.path):
                    victims.append((one, lock))
                    over -= one.size
            if over > 0:
                return None
            for one, _ in victims:
                self.remove(one)
            return len(victims)
        finally:
            for _, lock in victims:
                lock.close()

    def in_order(self, residents: list[CachedFile]) -> list[CachedFile]:
        """Return shards in the order in which they would be evicted."""
        if self.policy == "oldest":
            return sorted(residents, key=lambda one: (one.came_ns, one.name))
        # What no process has used yet goes last: it was written to be read.
        return sorted(residents, key=lambda one: (one.unread, one.used_ns, one.came_ns, one.name))

    def lock_alone(self, path: str) -> FileLock | None:
        """Return the lock on a shard, by its path from the folder on, that no process reads; None: one does.

        None, too, where it may not be touched.
        """
        with suppress(OSError):
            return take_lock(os.path.join(self.folder, path))
        return None

    def is_held(self, path: str) -> bool:
        """Tell whether a process has a lease on a shard."""
        with suppress(OSError):
            if (lock := take_lock(os.path.join(self.folder, path))) is None:
                return True
            lock.close()
        return False

    def remove(self, one: CachedFile) -> None:
        """Remove a shard, and then its sidecar: what a kill leaves between is no finished shard."""
        Folder(os.path.join(self.folder, one.folder)).discard(*filter(None, (one.name, one.sidecar)))


def _no_locks_error(folder: str, found: str) -> InvalidRequest:
    expected, remedy = "a file system with locks, which leases need", "Take a folder on a local disk."
    return InvalidRequest(folder, found, expected=expected, remedy=remedy)
