"""The files in the folder of a cache: their names, and what a scan of the folder finds.

Every other name is foreign: it is never opened, and never removed.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.sidecar_read import load_sidecar, parse_facts
from shardtool.errors import AccessRefused, CorruptShard
from shardtool.storage.copying import OriginalFile
from shardtool.storage.files import READ_PLAIN, read_small
from shardtool.storage.locks import take_lock
from shardtool.storage.lookup import file_info, iter_entries
from shardtool.storage.remote.address import is_url
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.stored import StoredShard


CACHE_VERSION = 1


MARK_NAME, LOCK_NAME, COPIED, WRITTEN, COUNTS = "shardtool-cache.json", "lock", "copied", "written", "counts"


TOTAL_NAME = "total"  # of the processes that ended


FOLDERS = (COPIED, WRITTEN, COUNTS)


ROOM_PREFIX, PART_SUFFIX = ".room-", ".part"


_MAX_SHARD_NAME_CHARS = 80  # characters of a shard's own name: for people, and for the ending, which says its format


_UNSAFE_CHAR = re.compile(r"[^A-Za-z0-9._-]")


COPY_NAME = re.compile(r"[0-9a-f]{24}-(\d{1,18})-([0-9a-f]{8}|unknown)-[A-Za-z0-9._-]{1,80}")


WRITER_FILE_NAME = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})(?:[-.].{1,40})?")


WRITTEN_SHARD_NAME = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})-\d{6,18}\.(?:tar|tfrecord)")


COUNTS_FILE_NAME = re.compile(r"\d{1,10}-[0-9a-f]{8}")


def copy_original(shard: StoredShard) -> OriginalFile:
    """Return what a copy of a shard must be.

    The name of a copy holds a hash of what the sidecar says of the shard: its name, size and checksum, so that neither
    an equal name in another dataset nor a later version of the same shard is taken for it. Without a sidecar, the hash
    is of the shard's place, size and modification time, or of an object's version.

    Raises:
        OSError: There is no such shard.
    """
    try:
        fact = parse_facts(load_sidecar(shard.sidecar), shard.sidecar)
    except (OSError, CorruptShard, AccessRefused):  # the last is said of what is not there, too, where we may not list
        fact = None
    if fact is not None and fact.crc is not None:
        size, crc, known = fact.size, fact.crc, f"{shard.file_name}\0{fact.size}\0{fact.crc}"
    else:
        found, place = file_info(shard.path), shard.path if is_url(shard.path) else os.path.realpath(shard.path)
        size, crc, known = found.st_size, None, f"{place}\0{found.st_size}\0{found.st_mtime_ns}"
    digest = blake2b(os.fsencode(known), digest_size=12).hexdigest()
    shown = _UNSAFE_CHAR.sub("_", shard.file_name)[-_MAX_SHARD_NAME_CHARS:]
    return OriginalFile(shard.path, size, crc, f"{digest}-{size}-{'unknown' if crc is None else f'{crc:08x}'}-{shown}")


def writer_name(name: str) -> str | None:
    """Return which writer's a file in the folder of written shards is; None: it is foreign."""
    found = WRITER_FILE_NAME.fullmatch(
        name.removeprefix(ROOM_PREFIX) if name.startswith(ROOM_PREFIX) else name.removeprefix(".")
    )
    return found[1] if found else None


def copy_name(name: str) -> str | None:
    """Return which copy's a file in the folder of copies is: a shard, a room or a part; None: it is foreign."""
    bare = name.removeprefix(ROOM_PREFIX)
    if bare.startswith(".") and bare.endswith(PART_SUFFIX):
        bare = bare[1 : -len(PART_SUFFIX)]
    return bare if COPY_NAME.fullmatch(bare) else None


_MAX_ROOM_BYTES = 200  # bytes: numbers of a room


class CachedFile(NamedTuple):
    """A finished shard in the folder.

    Attributes:
        folder: `copied` or `written`.
        name: Its file name.
        size: Its bytes, with its sidecar's.
        came_ns: When it came.
        used_ns: When it was leased last.
        sidecar: The name of its sidecar; empty: a copy, which has none.
    """

    folder: str
    name: str
    size: int
    came_ns: int
    used_ns: int
    sidecar: str = ""

    @property
    def path(self) -> str:
        """Where it lies, from the cache's folder on."""
        return f"{self.folder}/{self.name}"

    @property
    def facts(self) -> tuple[int, int | None] | None:
        """The size and the CRC-32C in the name of a copy; None: it is not the name of one."""
        found = COPY_NAME.fullmatch(self.name)
        return (int(found[1]), None if found[2] == "unknown" else int(found[2], 16)) if found else None

    @property
    def unread(self) -> bool:
        """Whether no process has taken it yet."""
        return self.used_ns <= self.came_ns


@dataclass(slots=True)
class CacheContents:
    """What a look has found.

    Attributes:
        residents: The finished shards.
        taken: Bytes that live rooms have been given.
        wanted: Bytes that live rooms wait for.
        pids: The processes that write or wait for a room.
        foreign: Paths, from the folder on, of what is no file of a cache.
    """

    residents: list[CachedFile] = field(default_factory=list)
    taken: int = 0
    wanted: int = 0
    pids: list[int] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of the finished shards."""
        return sum(one.size for one in self.residents)


def encode_room(taken: int, wanted: int) -> bytes:
    """Return what a room says: bytes it has been given, bytes it waits for, and its process."""
    return b"%020d %020d %010d\n" % (taken, wanted, os.getpid())


def names_in_folder(folder: str) -> list[str]:
    return [entry.name for entry in scan_folder(folder)]


def scan_folder(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError):  # any other failure must not look like an empty folder
        yield from iter_entries(folder)


def file_facts(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return what is known of a plain file; None: it is none, or gone."""
    with suppress(OSError):
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False)
    return None


def count_room(folder: str, owner: str, found: CacheContents, but: str, unfinished: Iterable[str]) -> None:
    """Add what a room has taken; where its holder is dead, remove the room, and first what is unfinished."""
    path = os.path.join(folder, f"{ROOM_PREFIX}{owner}")
    if path == but:
        return
    try:
        room = take_lock(path)
    except OSError:
        _remove_room(folder, unfinished)
        return
    if room is not None:
        with room:
            _remove_room(folder, unfinished)
        return
    with suppress(OSError, ValueError):
        taken, wanted, pid = map(int, read_small(path, _MAX_ROOM_BYTES, flags=READ_PLAIN).split())
        found.taken += taken
        found.wanted += wanted
        found.pids.append(pid)


def _remove_room(folder: str, names: Iterable[str]) -> None:
    """Remove what a dead process has left, its room last: as long as that is there, the rest is found again."""
    Folder(folder).discard(*sorted(names, key=lambda one: one.startswith(ROOM_PREFIX)))
