"""The names of the files in a cache's folder. Every other name is foreign: it is never opened, and never removed."""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.dataset.sidecar_read import read_bytes, read_facts
from shardtool.errors import AccessRefused, CorruptShard
from shardtool.storage.copying import Original
from shardtool.storage.open_file import file_fact
from shardtool.storage.places import is_url

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
