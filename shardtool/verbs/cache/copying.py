"""A shard is copied into a cache: once, whole and checked, while who wants it, too, waits."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.storage.folders import checked_copy
from shardtool.storage.reading import plain_size
from shardtool.storage.shared import take_lock
from shardtool.storage.staging import Folder
from shardtool.verbs.cache.names import COPIED, PART
from shardtool.verbs.cache.residents import Pauses, room_path

if TYPE_CHECKING:
    from typing_extensions import Self

    from shardtool.storage.folders import Original
    from shardtool.storage.shared import Lock
    from shardtool.verbs.cache.residents import Space


# Leases on shards of a cache: for as long as one is held, no process evicts the shard.


_MOMENT_S = 1.0  # for a look at a shard's lock, or an eviction: system calls


@dataclass(slots=True)
class CachedShard:
    """A shard to read: the copy in a cache, held until `close`, or the shard itself where there is no copy.

    Attributes:
        path: Where to read it.
        lock: The lease on that; None: it is the shard itself.
    """

    path: str
    lock: Lock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the shard go: from now on it may be evicted. Closing twice is no error."""
        if self.lock is not None:
            self.lock.close()


def lease(path: str) -> Lock | None:
    """Return a lease on a shard in a cache, and note that it is used; None: it is not there.

    Raises:
        OSError: It cannot be read.
    """
    pauses = Pauses(_MOMENT_S)
    while True:
        try:
            lock = take_lock(path, shared=True)
        except FileNotFoundError:
            return None
        if lock is not None:
            lock.used(time.time_ns())
            return lock
        if not pauses.wait():  # a process holds it alone and does nothing
            return None


class NoRoomError(Exception):
    """What is there cannot be evicted: it is read, or the policy keeps it."""


class StuckError(Exception):
    """Another process holds the room of a shard, and writes nothing."""


def leased_copy(space: Space, original: Original) -> Lock | None:
    """Return a lease on the copy of a shard; None: there is none, or one of another size, which the next replaces.

    Raises:
        OSError: It cannot be read.
    """
    path = os.path.join(space.folder, COPIED, original.name)
    lock = lease(path)
    if lock is None or lock.fact.st_size == original.size:
        return lock
    lock.close()
    return None


def copied(space: Space, original: Original) -> tuple[Lock, int | None]:
    """Return a lease on the copy of a shard, once a process has made it, and what had to be evicted for it.

    Returns:
        The lease, and how many shards were evicted; None: another process has made the copy.

    Raises:
        NoRoomError: It does not fit, for what is there cannot be evicted.
        StuckError: Another process began to copy it, and goes on no more.
        CorruptShard: The shard is not what its sidecar says.
        OutputFailed: It cannot be written.
        OSError: It cannot be read, or the cache's files cannot be opened.
    """
    folder = Folder(os.path.join(space.folder, COPIED))
    part = folder.full_path(f".{original.name}{PART}")
    pauses, seen = Pauses(), plain_size(part)
    while True:
        room = take_lock(room_path(folder, original.name), create=True)
        if room is None:
            if (lock := leased_copy(space, original)) is not None:
                return lock, None
            if (size := plain_size(part)) != seen:
                seen = size
                pauses.restart()
            if not pauses.wait():
                raise StuckError
            continue
        with room:
            try:
                if (lock := leased_copy(space, original)) is not None:
                    return lock, None
                return _copy(space, folder, original, room)
            finally:
                folder.discard(os.path.basename(room.path))


def _copy(space: Space, folder: Folder, original: Original, room: Lock) -> tuple[Lock, int]:
    """Copy a shard, whose room is held."""
    with space.locked():
        evicted = space.give(room, original.size)
    if evicted is None:
        raise NoRoomError
    staged = checked_copy(folder, original)
    try:
        lock = take_lock(staged.token, shared=True)
        with space.locked():  # a look at the folder sees the one name or the other
            folder.publish(staged)
    except BaseException:
        folder.discard_staged([original.name])
        raise
    if lock is None:
        raise StuckError
    lock.used(time.time_ns())
    lock.path = folder.full_path(original.name)
    return lock, evicted
