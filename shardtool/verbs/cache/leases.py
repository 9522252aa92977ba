"""Leases on shards of a cache, and the copy that the first reader of a shard makes.

While a lease is held, no process evicts the shard. A shard is copied once, whole and checked, while other readers
of it wait.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from shardtool.storage.copying import OriginalFile, copy_verified
from shardtool.storage.locks import FileLock, take_lock
from shardtool.storage.lookup import plain_size
from shardtool.storage.staging import Folder, staged_path
from shardtool.verbs.cache.cache_space import Backoff, CacheSpace, lock_room
from shardtool.verbs.cache.folder import COPIED

LOCAL_LOCKS_FIX = "A cache rests on locks of this machine. Samplers write to a store by `ShardWriter`."


_LOCK_WAIT_S = 1.0  # for a look at a shard's lock, or an eviction: system calls


@dataclass(slots=True)
class LeasedShard(AbstractContextManager["LeasedShard"]):
    """A shard to read: the copy in a cache, held until `close`, or the shard itself where there is no copy.

    Attributes:
        path: Where to read it.
        lock: The lease on that; None: it is the shard itself.
    """

    path: str
    lock: FileLock | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the shard go: from now on it may be evicted. Closing twice is no error."""
        if self.lock is not None:
            self.lock.close()


class NotCopiedWarning(Exception):
    """A shard has no copy, and gets none now: the kind of note that says it to the user, and its text."""


def _stalled_error(original: OriginalFile) -> NotCopiedWarning:
    found = f"the process that copies {original.path} goes on no more"
    return NotCopiedWarning("stuck", f"{found}; it is read at its own place")


def lease_copy(space: CacheSpace, original: OriginalFile) -> FileLock | None:
    """Return a lease on the copy of a shard, and note that it is used.

    Returns:
        The lease; None: there is no copy, or one of another size, which the next replaces.

    Raises:
        OSError: It cannot be read.
    """
    pauses, path = Backoff(_LOCK_WAIT_S), os.path.join(space.folder, COPIED, original.name)
    while True:
        try:
            lock = take_lock(path, shared=True)
        except FileNotFoundError:
            return None
        if lock is not None:
            lock.record_use(time.time_ns())
            if lock.fact.st_size == original.size:
                return lock
            lock.close()
            return None
        if not pauses.wait():  # a process holds it alone and does nothing
            return None


def copy_and_lease(space: CacheSpace, original: OriginalFile) -> tuple[FileLock, int | None]:
    """Return a lease on the copy of a shard, once a process has made it, and what had to be evicted for it.

    Returns:
        The lease, and how many shards were evicted; None: another process has made the copy.

    Raises:
        NotCopiedError: It does not fit, for what is there is read or kept; or another process began to copy it, and
            goes on no more.
        CorruptShard: The shard is not what its sidecar says.
        OutputFailed: It cannot be written.
        OSError: It cannot be read, or the cache's files cannot be opened.
    """
    folder = Folder(os.path.join(space.folder, COPIED))
    part = staged_path(folder, original.name)
    pauses, seen = Backoff(), plain_size(part)
    while True:
        room = lock_room(folder, original.name)
        if room is None:
            if (lock := lease_copy(space, original)) is not None:
                return lock, None
            if (size := plain_size(part)) != seen:
                seen = size
                pauses.restart()
            if not pauses.wait():
                raise _stalled_error(original)
            continue
        with room:
            try:
                if (lock := lease_copy(space, original)) is not None:
                    return lock, None
                return _copy_shard(space, folder, original, room)
            finally:
                folder.discard(os.path.basename(room.path))


def _copy_shard(space: CacheSpace, folder: Folder, original: OriginalFile, room: FileLock) -> tuple[FileLock, int]:
    """Copy a shard, whose room is held."""
    with space.locked():
        evicted = space.give(room, original.size)
    if evicted is None:
        raise NotCopiedWarning("room", "full of shards that are read or kept; others are read at their own place")
    staged = copy_verified(folder, original)
    try:
        lock = take_lock(staged.token, shared=True)
        with space.locked():  # a look at the folder sees the one name or the other
            folder.publish(staged)
    except BaseException:
        folder.discard_staged([original.name])
        raise
    if lock is None:
        raise _stalled_error(original)
    lock.record_use(time.time_ns())
    lock.path = folder.full_path(original.name)
    return lock, evicted
