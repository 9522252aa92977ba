"""Count how often a cache is used."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import asdict, fields
from secrets import token_hex
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.storage.files import READ_PLAIN, read_small
from shardtool.storage.locks import FileLock, take_lock
from shardtool.verbs.cache.layout import COUNTS

if TYPE_CHECKING:
    from shardtool.storage.staging import Folder


_MAX_COUNTS_BYTES = 4096

_COUNTS_BYTES = 200


@dataclass(slots=True)
class CacheCounts:
    """Statistics of cache use.

    Attributes:
        hits: Opened shards that were already in the cache.
        copies: Opened shards that were copied first.
        passed: Shards read from the original location, because the shard did not fit or the cache failed.
    """

    hits: int = 0
    copies: int = 0
    passed: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The fraction of opened shards that were already in the cache, or None if no shard was opened."""
        total = self.hits + self.copies + self.passed
        return self.hits / total if total else None

    def add(self, other: CacheCounts) -> None:
        """Add other counts."""
        for field in fields(CacheCounts):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class CountsFile:
    """The statistics of this process, stored in a file if possible."""

    def __init__(self, folder: str) -> None:
        self.counts, self._mutex = CacheCounts(), threading.Lock()
        self._lock: FileLock | None = None
        with suppress(OSError):
            self._lock = take_lock(os.path.join(folder, COUNTS, f"{os.getpid()}-{token_hex(4)}"), create=True)

    def __del__(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def add(self, **more: int) -> None:
        """Add counts. Any thread can call this."""
        with self._mutex, suppress(OSError):
            self.counts.add(CacheCounts(**more))
            if self._lock is not None:
                self._lock.write(json.dumps(asdict(self.counts)).ljust(_COUNTS_BYTES).encode())


def read_counts(folder: Folder, name: str) -> CacheCounts:
    """Return the statistics in a file, or zeros if the file is missing or invalid."""
    try:
        document = json.loads(read_small(folder.full_path(name), _MAX_COUNTS_BYTES, flags=READ_PLAIN))
        values = {field.name: document[field.name] for field in fields(CacheCounts)}
        is_valid = all(type(value) is int and 0 <= value < 2**63 for value in values.values())
        return CacheCounts(**values) if is_valid else CacheCounts()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return CacheCounts()
