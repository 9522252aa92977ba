"""The shards that samplers wrote into a cache, as a trainer takes them for an epoch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, overload

from shardtool.cache.leases import CachedShard
from shardtool.cache.names import WRITTEN
from shardtool.cache.residents import look
from shardtool.storage.locks import take_lock

if TYPE_CHECKING:
    from shardtool.cache.residents import Found, Resident
    from shardtool.cache.space import Space
    from shardtool.dataset.opened import OpenedShard
    from shardtool.storage.locks import Lock

_DOOMED = 2  # no more than one half of what is there makes room for writers at once


class CacheShards(Sequence[str]):
    """The paths of the finished shards of a cache, held until `close`, or until nothing refers to this any more.

    Another process that gets it has the same paths, and holds those that are still there.

    Args:
        locks: The leases.
        paths: Of the shards; None: of those that are leased.
    """

    def __init__(self, locks: Sequence[Lock], paths: Sequence[str] | None = None) -> None:
        self._locks = [*locks]
        self._paths = [lock.path for lock in locks] if paths is None else [*paths]

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
        return _leased_again, (self._paths,)

    def open(self, shard: OpenedShard) -> CachedShard:
        """Return one of the shards, which is held already."""
        return CachedShard(shard.path)

    def used(self, now_ns: int) -> None:
        """Note that the shards are used now."""
        for lock in self._locks:
            lock.used(now_ns)

    def keep(self, max_bytes: int) -> None:
        """Let shards go, the first ones, until the others have no more than so many bytes."""
        size = sum(lock.fact.st_size for lock in self._locks)
        while size > max_bytes:
            size -= self._locks[0].fact.st_size
            self._locks.pop(0).close()
            self._paths.pop(0)

    def close(self) -> None:
        """Let the shards go: from now on they may be evicted."""
        for lock in self._locks:
            lock.close()


def _leased(paths: Sequence[str]) -> list[Lock]:
    locks = []
    for path in paths:
        with suppress(FileNotFoundError):
            if lock := take_lock(path, shared=True):
                locks.append(lock)
    return locks


def _leased_again(paths: Sequence[str]) -> CacheShards:
    """Return the shards that another process took: of one that is gone since, who reads it is told."""
    return CacheShards(_leased(paths), paths)


def take_shards(space: Space, max_bytes: int | None) -> CacheShards:
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
        found = look(space.folder)
        doomed = _doomed(space, found)
        if space.policy != "keep":
            for one in doomed:
                space.evict([one], one.size)
        written = [one for one in space.in_order(found.residents) if one.folder == WRITTEN and one not in doomed]
        paths = [os.path.join(space.folder, WRITTEN, one.name) for one in sorted(written, key=_age)]
        shards = CacheShards(_leased(paths))
        shards.used(time.time_ns())  # all of them, so that each may be evicted from now on
        if max_bytes is not None:
            shards.keep(max_bytes)
        return shards


def _age(one: Resident) -> tuple[int, str]:
    return one.came_ns, one.name


def _doomed(space: Space, found: Found) -> set[Resident]:
    """Return the shards that go first, as many as writers that wait need, and no more than half of what is there."""
    over = min(space.over(found, found.wanted), found.size // _DOOMED)
    doomed = set()
    for one in space.in_order(found.residents):
        if over <= 0 or not found.wanted:
            break
        if not one.unread:
            doomed.add(one)
            over -= one.size
    return doomed
