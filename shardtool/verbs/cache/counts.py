"""How often each process found shards in a cache: a small file per process, which only that process writes.

The next process that takes the folder's lock adds the counts of ended processes to the file `total`.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from secrets import token_hex
from typing import TYPE_CHECKING

from shardtool.storage.files import READ_PLAIN, read_small
from shardtool.storage.locks import FileLock, take_lock
from shardtool.verbs.cache.folder import COUNTS

if TYPE_CHECKING:
    from shardtool.storage.staging import Folder


_MAX_COUNTS_BYTES = 4096  # bytes of a file


_COUNTS_BYTES = 200


@dataclass(slots=True)
class CacheCounts:
    """How often shards were there.

    Attributes:
        hits: A shard was there.
        copies: A shard was copied.
        passed: A shard was read at its own place: it did not fit, or the cache could not be used.
        evicted: A shard was evicted for another.
    """

    hits: int = 0
    copies: int = 0
    passed: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Which share of the openings found a copy; None: there were none."""
        total = self.hits + self.copies + self.passed
        return self.hits / total if total else None

    def add(self, other: CacheCounts) -> None:
        """Add other counts."""
        for one in fields(CacheCounts):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class CountsFile:
    """The counts of this process, kept on disk where that is possible.

    Args:
        folder: The cache's folder.
    """

    def __init__(self, folder: str) -> None:
        self.counts, self._counting = CacheCounts(), threading.Lock()
        self._lock: FileLock | None = None
        with suppress(OSError):
            self._lock = take_lock(os.path.join(folder, COUNTS, f"{os.getpid()}-{token_hex(4)}"), create=True)

    def __del__(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def add(self, **more: int) -> None:
        """Count, in any thread."""
        with self._counting, suppress(OSError):
            self.counts.add(CacheCounts(**more))
            if self._lock is not None:
                self._lock.write(json.dumps(asdict(self.counts)).ljust(_COUNTS_BYTES).encode())


def read_counts(folder: Folder, name: str) -> CacheCounts:
    """Return the counts in a file; none where it holds no such."""
    try:
        found = json.loads(read_small(folder.full_path(name), _MAX_COUNTS_BYTES, flags=READ_PLAIN))
        known = {one.name: found[one.name] for one in fields(CacheCounts)}
        return (
            CacheCounts(**known)
            if all(type(one) is int and 0 <= one < 2**63 for one in known.values())
            else CacheCounts()
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return CacheCounts()
