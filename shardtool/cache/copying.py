"""A shard is copied into a cache: once, whole and checked, while who wants it, too, waits."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from shardtool.cache.leases import lease
from shardtool.cache.names import COPIED, PART
from shardtool.cache.space import Pauses, room_path
from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.storage.locks import take_lock
from shardtool.storage.reading import READ_FOLLOWING, plain_size, read_blocks
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.cache.names import Original
    from shardtool.cache.space import Space
    from shardtool.storage.locks import Lock
    from shardtool.storage.staging import Staged

_BLOCK = 2**20
_TRIES = 2  # a network file system may return other bytes once


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
    staged = _checked(folder, original)
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


def _checked(folder: Folder, original: Original) -> Staged:
    """Stage a copy of a shard that has the bytes that its sidecar says."""
    for last in range(_TRIES):
        with folder.stage(original.name) as file:
            size = crc = 0
            for block in _blocks(original.path):
                file.write(block)
                size, crc = size + len(block), crc32c(block, crc)
                if size > original.size:
                    break
            if size == original.size and original.crc in (None, crc):
                return file.finish()
            file.abandon()
        if last == _TRIES - 1:
            break
    found = f"{size:,} bytes with the checksum {crc:08x}"
    expected = f"{original.size:,} bytes" + ("" if original.crc is None else f" with {original.crc:08x}")
    raise CorruptShard(original.path, found, expected=expected)


def _blocks(path: str) -> Iterator[memoryview]:
    """Yield the bytes of a file, in a buffer that each block fills anew."""
    buffer = memoryview(bytearray(_BLOCK))
    for got in read_blocks(os.fsencode(path), buffer, READ_FOLLOWING):
        if isinstance(got, int):
            yield buffer[:got]
