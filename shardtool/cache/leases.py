"""Leases on shards of a cache: for as long as one is held, no process evicts the shard."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.cache.space import Pauses
from shardtool.storage.locks import take_lock

if TYPE_CHECKING:
    from typing_extensions import Self

    from shardtool.storage.locks import Lock

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
