"""The names of the files in a cache's folder. Every other name is foreign: it is never opened, and never removed."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from secrets import token_hex
from typing import TYPE_CHECKING

from shardtool.dataset.sidecar_read import read_bytes, read_facts
from shardtool.errors import AccessRefused, CorruptShard, OutputFailed
from shardtool.storage.folders import Original
from shardtool.storage.open_file import file_fact
from shardtool.storage.places import is_url
from shardtool.storage.reading import READ_PLAIN, names_in, read_small
from shardtool.storage.shared import Lock, take_lock
from shardtool.storage.staging import Folder, write_whole

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedShard


VERSION = 1
MARK, LOCK, COPIED, WRITTEN, COUNTS = "shardtool-cache.json", "lock", "copied", "written", "counts"
TOTAL = "total"  # of the processes that ended
FOLDERS = (COPIED, WRITTEN, COUNTS)
ROOM, PART, SIDECAR = ".room-", ".part", ".index"
_KEPT = 80  # characters of a shard's own name: for people, and for the ending, which says its format
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_COPY = re.compile(r"[0-9a-f]{24}-(\d{1,18})-([0-9a-f]{8}|unknown)-[A-Za-z0-9._-]{1,80}")
_WRITER = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})(?:[-.].{1,40})?")
_SHARD = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})-\d{6,18}\.(?:tar|tfrecord)")
_COUNTS = re.compile(r"\d{1,10}-[0-9a-f]{8}")


def original_of(shard: OpenedShard) -> Original:
    """Return what a copy of a shard must be.

    The name of a copy holds a hash of what the sidecar says of the shard: its name, size and checksum, so that neither
    an equal name in another dataset nor a later version of the same shard is taken for it. Without a sidecar, the hash
    is of the shard's place, size and modification time, or of an object's version.

    Raises:
        OSError: There is no such shard.
    """
    try:
        fact = read_facts(read_bytes(shard.sidecar), shard.sidecar)
    except (OSError, CorruptShard, AccessRefused):  # the last is said of what is not there, too, where we may not list
        fact = None
    if fact is not None and fact.crc is not None:
        size, crc, known = fact.size, fact.crc, f"{shard.name}\0{fact.size}\0{fact.crc}"
    else:
        found, place = file_fact(shard.path), shard.path if is_url(shard.path) else os.path.realpath(shard.path)
        size, crc, known = found.st_size, None, f"{place}\0{found.st_size}\0{found.st_mtime_ns}"
    digest = blake2b(os.fsencode(known), digest_size=12).hexdigest()
    shown = _ODD.sub("_", shard.name)[-_KEPT:]
    return Original(shard.path, size, crc, f"{digest}-{size}-{'unknown' if crc is None else f'{crc:08x}'}-{shown}")


def copy_facts(name: str) -> tuple[int, int | None] | None:
    """Return the size and the CRC-32C in the name of a copy; None: it is not the name of one."""
    found = _COPY.fullmatch(name)
    return (int(found[1]), None if found[2] == "unknown" else int(found[2], 16)) if found else None


def is_written(name: str) -> bool:
    """Tell whether a file is a shard that a sampler wrote, by its name."""
    return _SHARD.fullmatch(name) is not None


def writer_of(name: str) -> str | None:
    """Return which writer's a file in the folder of written shards is; None: it is foreign."""
    found = _WRITER.fullmatch(name.removeprefix(ROOM) if name.startswith(ROOM) else name.removeprefix("."))
    return found[1] if found else None


def copy_of(name: str) -> str | None:
    """Return which copy's a file in the folder of copies is: a shard, a room or a part; None: it is foreign."""
    bare = name.removeprefix(ROOM)
    if bare.startswith(".") and bare.endswith(PART):
        bare = bare[1 : -len(PART)]
    return bare if _COPY.fullmatch(bare) else None


def is_counts(name: str) -> bool:
    """Tell whether a file has the counts of a process, by its name."""
    return _COUNTS.fullmatch(name) is not None


# What each process that uses a cache has found there: a small file for each, which only it writes.
#
# Those of processes that ended are added up in `total`, by the next process that looks, under the folder's lock.


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
