"""The finished shards that samplers wrote into a cache, held for an epoch of training."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, overload

from shardtool.storage.locks import FileLock, take_lock
from shardtool.verbs.cache.folder import WRITTEN
from shardtool.verbs.cache.leases import LeasedShard

if TYPE_CHECKING:
    from shardtool.dataset.stored import StoredShard
    from shardtool.verbs.cache.cache_space import CacheSpace
    from shardtool.verbs.cache.folder import CacheContents, CachedFile


_MAX_RECLAIMED_DIVISOR = 2  # no more than one half of what is there makes room for writers at once


class CacheShards(Sequence[str]):
    """The paths of the finished shards of a cache, held until `close`, or until nothing refers to this any more.

    Another process that gets it has the same paths, and holds those that are still there.

    Args:
        locks: The leases.
        paths: Of the shards, also of those that are gone.
    """

    def __init__(self, locks: list[FileLock], paths: list[str]) -> None:
        self._locks, self._paths = locks, paths

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...

    def __getitem__(self, which: int | slice) -> str | list[str]:
        return self._paths[which]

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"CacheShards({self._paths!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _lease_unpickled, (self._paths,)

    def open(self, shard: StoredShard) -> LeasedShard:
        """Return one of the shards, which is held already."""
        return LeasedShard(shard.path)

    def close(self) -> None:
        """Let the shards go: from now on they may be evicted."""
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
    """Return the shards that another process took: of one that is gone since, who reads it is told."""
    return CacheShards(_lease_paths(paths), paths)


def lease_written_shards(space: CacheSpace, max_bytes: int | None) -> CacheShards:
    """Return leases on the finished shards that samplers wrote, the oldest first.

    Before that, the shards that the policy evicts first make room for writers that wait; those that a process holds
    are not leased again, so that they can go when they are let go.

    Args:
        space: The cache's space.
        max_bytes: Of how many bytes at most, the newest ones; None: all.

    Raises:
        OSError: The folder's lock cannot be had.
    """
    with space.locked():
        found = space.look()
        doomed = _shards_to_reclaim(space, found)
        if space.policy != "keep":
            for one in doomed:
                space.evict([one], one.size)
        written = [one for one in found.residents if one.folder == WRITTEN and one not in doomed]
        written.sort(key=lambda one: (one.came_ns, one.name))
        locks = _lease_paths([os.path.join(space.folder, one.path) for one in written])
        for lock in locks:  # also of those that are let go, so that each may be evicted from now on
            lock.record_use(time.time_ns())
        size = sum(lock.fact.st_size for lock in locks)
        while max_bytes is not None and size > max_bytes:
            with locks.pop(0) as lock:
                size -= lock.fact.st_size
        return CacheShards(locks, [lock.path for lock in locks])


def _shards_to_reclaim(space: CacheSpace, found: CacheContents) -> set[CachedFile]:
    """Return the shards that go first, as many as writers that wait need, and no more than half of what is there."""
    over = min(space.over(found, found.wanted), found.size // _MAX_RECLAIMED_DIVISOR)
    doomed = set()
    for one in space.in_order(found.residents):
        if over <= 0 or not found.wanted:
            break
        if not one.unread:
            doomed.add(one)
            over -= one.size
    return doomed
