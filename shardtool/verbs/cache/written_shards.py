"""The finished shards that samplers wrote into a cache, leased for an epoch of training."""

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


_MAX_RECLAIMED_DIVISOR = 2  # at most half of the cached bytes are freed for waiting writers at once


class CacheShards(Sequence[str]):
    """The paths of a cache's finished shards, leased until `close` or garbage collection.

    An unpickled copy in another process has the same paths, and leases the shards that still exist.
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
        """Return one of the shards, which is leased already."""
        return LeasedShard(shard.path)

    def close(self) -> None:
        """Release the shards for eviction."""
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
    """Lease the finished shards that samplers wrote, oldest first; the newest ones up to `max_bytes` (None: all).

    First, shards are evicted for waiting writers. Shards due for eviction but still in use are not leased again.
    """
    with space.locked():
        contents = space.scan()
        reclaimed = _shards_to_reclaim(space, contents)
        if space.policy != "keep":
            for shard in reclaimed:
                space.evict([shard], shard.size)
        written = [shard for shard in contents.shards if shard.folder == WRITTEN and shard not in reclaimed]
        written.sort(key=lambda shard: (shard.came_ns, shard.name))
        locks = _lease_paths([os.path.join(space.folder, shard.path) for shard in written])
        for lock in locks:  # mark all as used, including released ones, so that each may be evicted
            lock.record_use(time.time_ns())
        size = sum(lock.fact.st_size for lock in locks)
        while max_bytes is not None and size > max_bytes:
            with locks.pop(0) as lock:
                size -= lock.fact.st_size
        return CacheShards(locks, [lock.path for lock in locks])


def _shards_to_reclaim(space: CacheSpace, contents: CacheContents) -> set[CachedFile]:
    excess = min(space.excess_bytes(contents, contents.requested), contents.size // _MAX_RECLAIMED_DIVISOR)
    reclaimed = set()
    for shard in space.eviction_order(contents.shards):
        if excess <= 0 or not contents.requested:
            break
        if not shard.never_used:
            reclaimed.add(shard)
            excess -= shard.size
    return reclaimed
