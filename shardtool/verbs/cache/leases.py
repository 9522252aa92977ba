"""Copy shards into a cache and lease them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from errno import ENOSPC
from typing import TYPE_CHECKING, overload

from shardtool.dataclass import dataclass
from shardtool.errors import os_error_text
from shardtool.storage.copying import OriginalFile, copy_verified
from shardtool.storage.files import plain_size
from shardtool.storage.locks import FileLock, take_lock
from shardtool.storage.staging import Folder, staged_path
from shardtool.verbs.cache.cache_space import Backoff, CacheSpace, lock_reservation
from shardtool.verbs.cache.layout import COPIED, WRITTEN, CacheContents, CachedFile

if TYPE_CHECKING:
    from shardtool.dataset.stored import StoredShard


LOCAL_LOCKS_FIX = "A cache needs a local folder, because it uses file locks. To write to a store, use `ShardWriter`."

_LOCK_WAIT_S = 1.0


@dataclass(slots=True)
class LeasedShard(AbstractContextManager["LeasedShard"]):
    """A shard to read: the copy in the cache (leased until `close`) or the original."""

    path: str
    lock: FileLock | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lease, if any."""
        if self.lock is not None:
            self.lock.close()


class NotCopiedWarning(Exception):
    """A shard cannot be copied now. The arguments are the kind (such as "stuck") and the text of a note."""


def _stalled_error(original: OriginalFile) -> NotCopiedWarning:
    found = f"the process that copies {original.path} makes no progress"
    return NotCopiedWarning("stuck", f"{found}; the shard is read from its original location")


def lease_copy(space: CacheSpace, original: OriginalFile) -> FileLock | None:
    """Lease the copy of a shard and record its use. Return None if there is no usable copy."""
    pauses, path = Backoff(_LOCK_WAIT_S), os.path.join(space.folder, COPIED, original.name)
    while True:
        try:
            lock = take_lock(path, shared=True)
        except FileNotFoundError:
            return None
        if lock is not None:
            lock.record_use(time.time_ns())
            if lock.info.st_size == original.size:
                return lock
            lock.close()
            return None
        if not pauses.wait():  # another process holds an exclusive lock but makes no progress
            return None


def copy_and_lease(space: CacheSpace, original: OriginalFile) -> tuple[FileLock, int | None]:
    """Copy a shard, or wait while another process copies it.

    Returns:
        A lease on the copy, and the number of shards evicted for the copy. The number is None if another process made
        the copy.

    Raises:
        NotCopiedWarning: There is no space, or the copying process makes no progress.
    """
    folder = Folder(os.path.join(space.folder, COPIED))
    part_path = staged_path(folder, original.name)
    pauses, last_size = Backoff(), plain_size(part_path)
    while True:
        reservation = lock_reservation(folder, original.name)
        if reservation is None:
            if (lock := lease_copy(space, original)) is not None:
                return lock, None
            if (size := plain_size(part_path)) != last_size:
                last_size = size
                pauses.restart()
            if not pauses.wait():
                raise _stalled_error(original)
            continue
        with reservation:
            try:
                if (lock := lease_copy(space, original)) is not None:
                    return lock, None
                return _copy_shard(space, folder, original, reservation)
            finally:
                folder.discard(os.path.basename(reservation.path))


def _copy_shard(
    space: CacheSpace, folder: Folder, original: OriginalFile, reservation: FileLock
) -> tuple[FileLock, int]:
    found = "full of shards that are in use or kept"
    with space.locked():
        try:
            evicted = space.reserve(reservation, original.size)
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            evicted, found = None, os_error_text(error)
    if evicted is None:
        raise NotCopiedWarning("room", f"{found}; uncached shards are read from their original location")
    staged = copy_verified(folder, original)
    try:
        lock = take_lock(staged.path, shared=True)
        with space.locked():  # other processes must not scan the folder during the rename
            folder.publish(staged)
    except BaseException:
        folder.discard_staged([original.name])
        raise
    if lock is None:
        raise _stalled_error(original)
    lock.record_use(time.time_ns())
    lock.path = folder.full_path(original.name)
    return lock, evicted


_MAX_RECLAIMED_DIVISOR = 2  # evict at most half of the cached bytes for waiting writers


class CacheShards(Sequence[str]):
    """The paths of finished shards in a cache, leased until `close` or garbage collection.

    Unpickling leases the shards that still exist.
    """

    def __init__(self, locks: list[FileLock], paths: list[str]) -> None:
        self._locks, self._paths = locks, paths

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._paths[index]

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"CacheShards({self._paths!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _lease_unpickled, (self._paths,)

    def open(self, shard: StoredShard) -> LeasedShard:
        """Return `shard`, which is already leased."""
        return LeasedShard(shard.path)

    def close(self) -> None:
        """Release the leases."""
        for lock in self._locks:
            lock.close()


def _lease_paths(paths: list[str]) -> list[FileLock]:
    locks = []
    for path in paths:
        with suppress(FileNotFoundError):
            if lock := take_lock(path, shared=True):
                locks.append(lock)
    return locks


def _lease_unpickled(paths: list[str]) -> CacheShards:
    return CacheShards(_lease_paths(paths), paths)


def lease_written_shards(space: CacheSpace, max_bytes: int | None) -> CacheShards:
    """Lease the newest shards in `written/`, up to `max_bytes` (None for all), and return them oldest first.

    First evict shards to free space for waiting writers. Do not lease shards that should be evicted but are in use.
    """
    with space.locked():
        contents = space.scan()
        reclaimed = _shards_to_reclaim(space, contents)
        if space.policy != "keep":
            for shard in reclaimed:
                with suppress(OSError):
                    space.evict([shard], shard.size)
        written = [shard for shard in contents.shards if shard.folder == WRITTEN and shard not in reclaimed]
        written.sort(key=lambda shard: (shard.added_ns, shard.name))
        locks = _lease_paths([os.path.join(space.folder, shard.path) for shard in written])
        # Record a use of all shards, including shards released below: `_shards_to_reclaim` evicts only used shards.
        for lock in locks:
            lock.record_use(time.time_ns())
        size = sum(lock.info.st_size for lock in locks)
        while max_bytes is not None and size > max_bytes:
            with locks.pop(0) as lock:
                size -= lock.info.st_size
        return CacheShards(locks, [lock.path for lock in locks])


def _shards_to_reclaim(space: CacheSpace, contents: CacheContents) -> set[CachedFile]:
    remaining = min(space.bytes_to_free(contents, contents.requested), contents.size // _MAX_RECLAIMED_DIVISOR)
    reclaimed = set()
    for shard in space.eviction_order(contents.shards):
        if remaining <= 0 or not contents.requested:
            break
        if not shard.never_used:
            reclaimed.add(shard)
            remaining -= shard.size
    return reclaimed
