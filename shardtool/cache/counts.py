"""What each process that uses a cache has found there: a small file for each, which only it writes.

Those of processes that ended are added up in `total`, by the next process that looks, under the folder's lock.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from secrets import token_hex

from shardtool.cache.names import COUNTS, TOTAL, is_counts
from shardtool.errors import OutputFailed
from shardtool.storage.locks import Lock, take_lock
from shardtool.storage.reading import READ_PLAIN, names_in, read_small
from shardtool.storage.staging import Folder, write_whole

_MOST = 4096  # bytes of a file
_WIDTH = 200


@dataclass(slots=True)
class Counts:
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

    def add(self, other: Counts) -> None:
        """Add other counts."""
        for one in fields(Counts):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Counter:
    """The counts of this process, kept on disk where that is possible.

    Args:
        folder: The cache's folder.
    """

    def __init__(self, folder: str) -> None:
        self.counts = Counts()
        self.pid = os.getpid()
        self._lock: Lock | None = None
        with suppress(OSError):
            self._lock = take_lock(os.path.join(folder, COUNTS, f"{self.pid}-{token_hex(4)}"), create=True)

    def __del__(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def add(self, **more: int) -> None:
        """Count."""
        self.counts.add(Counts(**more))
        if self._lock is not None:
            with suppress(OSError):
                self._lock.put(json.dumps(asdict(self.counts)).ljust(_WIDTH).encode())


def all_counts(folder: str) -> tuple[Counts, list[int]]:
    """Return the counts of all processes, and which of them live; the folder's lock must be held.

    Raises:
        OutputFailed: Counts of ended processes cannot be added up on disk.
    """
    place = Folder(os.path.join(folder, COUNTS))
    total, ended, pids = _read(place, TOTAL), [], []
    living = Counts()
    for name in filter(is_counts, names_in(place.path)):
        try:
            lock = take_lock(place.full_path(name))
        except OSError:
            continue
        counts = _read(place, name)
        if lock is None:
            living.add(counts)
            pids.append(int(name.partition("-")[0]))
        else:
            total.add(counts)
            ended.append(name)
            lock.close()
    if ended:
        with suppress(OutputFailed):
            place.publish(write_whole(place, TOTAL, json.dumps(asdict(total)).encode()))
            place.remove(ended)
    living.add(total)
    return living, sorted({*pids})


def _read(folder: Folder, name: str) -> Counts:
    """Return the counts in a file; none where it holds no such."""
    try:
        found = json.loads(read_small(folder.full_path(name), _MOST, flags=READ_PLAIN))
        known = {one.name: found[one.name] for one in fields(Counts)}
        return Counts(**known) if all(type(one) is int and 0 <= one < 2**63 for one in known.values()) else Counts()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Counts()
