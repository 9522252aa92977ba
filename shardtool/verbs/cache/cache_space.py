"""Reserve and free the space of a cache."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from errno import EACCES, EBUSY, ENOSPC
from typing import Literal, NamedTuple

from shardtool.errors import InvalidRequest, OutputFailed, os_error_text
from shardtool.pattern import sidecar_name
from shardtool.storage.files import READ_PLAIN, list_folder_names, read_small
from shardtool.storage.locks import UNSUPPORTED_LOCK_ERRNOS, FileLock, take_lock
from shardtool.storage.staging import Folder
from shardtool.verbs.cache import layout
from shardtool.verbs.cache.counts import CacheCounts, read_counts

Policy = Literal["least-used", "oldest", "keep"]
_MAX_MARK_BYTES = 4096

MAX_WAIT_S = 30.0  # maximum wait for a process that holds a lock but makes no progress

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.001, 0.05


def lock_reservation(folder: Folder, name: str) -> FileLock | None:
    """Lock the reservation of a copy or writer, or return None if another process holds the lock."""
    return take_lock(folder.full_path(f"{layout.RESERVATION_PREFIX}{name}"), create=True)


class Backoff:
    """Waits with increasing pauses, until a total time has passed."""

    def __init__(self, max_wait_s: float | None = None) -> None:
        self._max_wait_s = MAX_WAIT_S if max_wait_s is None else max_wait_s
        self._pause_s = _MIN_PAUSE_S
        self.restart()

    def restart(self) -> None:
        """Reset the elapsed time to zero."""
        self._end_s = time.monotonic() + self._max_wait_s

    def wait(self) -> bool:
        """Pause and return True, or return False if the total time has passed."""
        if time.monotonic() > self._end_s:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        return True


class CacheSpace(NamedTuple):
    """The folder of a cache, and the size limit and policy that this process applies."""

    folder: str
    max_bytes: int
    policy: Policy

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock. Never copy a shard while the lock is held."""
        pauses = Backoff()
        while (lock := take_lock(os.path.join(self.folder, layout.LOCK_NAME), create=True)) is None:
            if not pauses.wait():
                raise OSError(EBUSY, "a process holds the lock but makes no progress")
        with lock:
            yield

    def is_cache(self) -> bool:
        """Return whether the folder is a cache. Raise `InvalidRequest` for a file, or a cache of another version."""
        folder = self.folder
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise InvalidRequest(folder, "a file", expected="a folder, or a path that does not exist")
        for name, info in Folder(folder).find_entries(layout.FOLDERS).items():
            if not info.is_folder:
                path, expected = os.path.join(folder, name), "a folder"
                raise InvalidRequest(path, "a link or a file", expected=expected)
        path = os.path.join(folder, layout.MARK_NAME)
        if not os.path.lexists(path):
            return False
        try:
            version = json.loads(read_small(path, _MAX_MARK_BYTES, flags=READ_PLAIN))["shardtool-cache"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            version = "unknown"
        if version != layout.CACHE_VERSION:
            remedy = "Use another folder, or delete this one."
            found, expected = f"cache version {version}", f"version {layout.CACHE_VERSION}"
            raise InvalidRequest(folder, found, expected=expected, remedy=remedy)
        return True

    def prepare(self) -> list[str]:
        """Create the cache if needed, and delete unfinished files of exited processes.

        Return the names of files that do not belong to the cache.
        """
        folder = Folder(self.folder)
        self.is_cache()
        for name in ("", *layout.FOLDERS):
            Folder(folder.full_path(name)).create()
        try:
            with self.locked():
                if (second_lock := take_lock(folder.full_path(layout.LOCK_NAME))) is not None:
                    second_lock.close()
                    raise _no_locks_error(self.folder, "two processes can hold the same lock")
                if not os.path.lexists(folder.full_path(layout.MARK_NAME)):
                    folder.publish_bytes(layout.MARK_NAME, b'{"shardtool-cache": %d}\n' % layout.CACHE_VERSION)
                self.counts()
                return self.scan().foreign
        except OSError as error:
            if error.errno in UNSUPPORTED_LOCK_ERRNOS:
                raise _no_locks_error(self.folder, f"file locks do not work: {os_error_text(error)}") from None
            raise

    def scan(self, *, ignored_path: str = "") -> layout.CacheContents:
        """Return the contents of the folder, and delete unfinished files of exited processes.

        The folder's lock must be held. Ignore the caller's reservation at `ignored_path`.
        """
        folder, contents = self.folder, layout.CacheContents()
        cache_names = layout.MARK_NAME, layout.LOCK_NAME, *layout.FOLDERS
        contents.foreign += [name for name in layout.names_in_folder(folder) if name not in cache_names]
        for subfolder, owner_of in ((layout.COPIED, layout.copy_name), (layout.WRITTEN, layout.writer_name)):
            groups: dict[str, dict[str, os.stat_result]] = defaultdict(dict)
            for entry in layout.scan_folder(os.path.join(folder, subfolder)):
                owner, info = owner_of(entry.name), layout.file_facts(entry)
                if owner is None or info is None:
                    contents.foreign.append(f"{subfolder}/{entry.name}")
                else:
                    groups[owner][entry.name] = info
            for owner, files in groups.items():
                is_copy = subfolder == layout.COPIED
                for name in [owner] if is_copy else [*filter(layout.WRITTEN_SHARD_NAME.fullmatch, files)]:
                    sidecar = "" if is_copy else sidecar_name(name)
                    if name in files and (not sidecar or sidecar in files):
                        shard = files.pop(name)
                        size = shard.st_size + (files.pop(sidecar).st_size if sidecar else 0)
                        times = shard.st_mtime_ns, shard.st_atime_ns
                        contents.shards.append(layout.CachedFile(subfolder, name, size, *times, sidecar))
                layout.add_reservation(os.path.join(folder, subfolder), owner, contents, ignored_path, files)
        total_names = layout.TOTAL_NAME, f".{layout.TOTAL_NAME}{layout.PART_SUFFIX}"
        for name in layout.names_in_folder(os.path.join(folder, layout.COUNTS)):
            if name not in total_names and not layout.COUNTS_FILE_NAME.fullmatch(name):
                contents.foreign.append(f"{layout.COUNTS}/{name}")
        return contents

    def counts(self) -> tuple[CacheCounts, list[int]]:
        """Return the statistics of all processes, and the ids of running processes. The folder's lock must be held.

        Merge the files of exited processes into the file `total`.
        """
        folder = Folder(os.path.join(self.folder, layout.COUNTS))
        total, ended, pids = read_counts(folder, layout.TOTAL_NAME), [], []
        live = CacheCounts()
        for name in filter(layout.COUNTS_FILE_NAME.fullmatch, list_folder_names(folder.path)):
            try:
                lock = take_lock(folder.full_path(name))
            except OSError:
                continue
            counts = read_counts(folder, name)
            if lock is None:
                live.add(counts)
                pids.append(int(name.partition("-")[0]))
            else:
                total.add(counts)
                ended.append(name)
                lock.close()
        if ended:
            with suppress(OutputFailed):
                folder.publish_bytes(layout.TOTAL_NAME, json.dumps(asdict(total)).encode())
                folder.remove(ended)
        live.add(total)
        return live, sorted({*pids})

    def reserve(self, reservation: FileLock, size: int) -> int | None:
        """Reserve `size` bytes, and return the number of evicted shards. The folder's lock must be held.

        If there is too little space, evict no shard, record the request in the reservation, and return None. Raise
        `OSError` if waiting cannot help: no bytes are reserved, and evicting all shards would free too little space.
        """
        reservation.write(layout.encode_reservation(0, size))
        contents = self.scan(ignored_path=reservation.path)
        excess, evictable = self.bytes_to_free(contents, size), sum(shard.size for shard in contents.shards)
        evicted = self.evict(self.eviction_order(contents.shards), excess)
        if evicted is not None:
            reservation.write(layout.encode_reservation(size, 0))
        elif evictable < excess and not contents.reserved and not (self.policy == "keep" and contents.shards):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        return evicted

    def bytes_to_free(self, contents: layout.CacheContents, size: int) -> int:
        """Return how many bytes must be freed to add `size` bytes. The result can be negative."""
        return max(contents.size + contents.reserved + size - self.max_bytes, size - Folder(self.folder).free_bytes())

    def evict(self, shards: Iterable[layout.CachedFile], size: int) -> int | None:
        """Evict shards to free `size` bytes, and return the number of evicted shards. The folder's lock must be held.

        If the shards that can be evicted are too small, evict none and return None. If a shard cannot be deleted, raise
        `OSError`.
        """
        victims: list[tuple[layout.CachedFile, FileLock]] = []
        try:
            for shard in shards if self.policy != "keep" else ():
                if size <= 0:
                    break
                if lock := self.lock_exclusively(shard.path):
                    victims.append((shard, lock))
                    size -= shard.size
            if size > 0:
                return None
            if not all(self.remove(shard) for shard, _ in victims):
                raise OSError(EACCES, "a shard cannot be deleted")
            return len(victims)
        finally:
            for _, lock in victims:
                lock.close()

    def eviction_order(self, shards: list[layout.CachedFile]) -> list[layout.CachedFile]:
        """Return the shards in the policy's order of eviction."""
        if self.policy == "oldest":
            return sorted(shards, key=lambda shard: (shard.added_ns, shard.name))
        # Evict unread shards last, because readers still need them.
        return sorted(shards, key=lambda shard: (shard.never_used, shard.used_ns, shard.added_ns, shard.name))

    def lock_exclusively(self, path: str) -> FileLock | None:
        """Lock a shard by its path in the cache. Return None if this fails, for example because the shard is in use."""
        with suppress(OSError):
            return take_lock(os.path.join(self.folder, path))
        return None

    def is_held(self, path: str) -> bool:
        """Return whether a process has a lease on a shard."""
        with suppress(OSError):
            if (lock := take_lock(os.path.join(self.folder, path))) is None:
                return True
            lock.close()
        return False

    def remove(self, shard: layout.CachedFile) -> bool:
        """Delete a shard and then its sidecar, so no shard lacks its sidecar. Return whether the shard was deleted."""
        folder = Folder(os.path.join(self.folder, shard.folder))
        folder.discard(*filter(None, (shard.name, shard.sidecar)))
        return not folder.find_entries([shard.name])


def _no_locks_error(folder: str, found: str) -> InvalidRequest:
    expected, remedy = "a file system with working file locks", "Use a folder on a local disk."
    return InvalidRequest(folder, found, expected=expected, remedy=remedy)
