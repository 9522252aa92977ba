"""Name, recognise and read the files of a cache. Other files are foreign, and are never opened or deleted."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.dataset.sidecar_read import load_sidecar, parse_facts
from shardtool.errors import AccessRefused, CorruptShard
from shardtool.storage.copying import OriginalFile
from shardtool.storage.files import READ_PLAIN, files_at, iter_entries, read_small
from shardtool.storage.locks import take_lock
from shardtool.storage.paths import real_path
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.stored import StoredShard


CACHE_VERSION = 1

MARK_NAME, LOCK_NAME, COPIED, WRITTEN, COUNTS = "shardtool-cache.json", "lock", "copied", "written", "counts"

TOTAL_NAME = "total"  # the file with the statistics of exited processes

FOLDERS = (COPIED, WRITTEN, COUNTS)

RESERVATION_PREFIX, PART_SUFFIX = ".room-", ".part"

_MAX_RESERVATION_BYTES = 200

_MAX_SHARD_NAME_CHARS = 80  # a copy's name contains at most this many characters from the end of the shard name

_UNSAFE_CHAR = re.compile(r"[^A-Za-z0-9._-]")

COPY_NAME = re.compile(r"[0-9a-f]{24}-(\d{1,18})-([0-9a-f]{8}|unknown)-[A-Za-z0-9._-]{1,80}")

WRITER_FILE_NAME = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})(?:[-.].{1,40})?")

WRITTEN_SHARD_NAME = re.compile(r"(grown-part_[A-Za-z0-9_]{1,40})-\d{6,18}\.(?:tar|tfrecord)")

COUNTS_FILE_NAME = re.compile(r"\d{1,10}-[0-9a-f]{8}")


def original_file(shard: StoredShard) -> OriginalFile:
    """Return a shard's path, size and checksum, and the name of its copy.

    The copy's name contains a hash of the shard's name, size and checksum. If no valid sidecar
    records a checksum, the hash uses the path, the size and the modification time (for a URL, the object version).
    """
    try:
        facts = parse_facts(load_sidecar(shard.sidecar), shard.sidecar)
    except (OSError, CorruptShard, AccessRefused):  # S3 may refuse access to a missing sidecar
        facts = None
    if facts is not None and facts.crc is not None:
        size, crc, identity = facts.size, facts.crc, f"{shard.file_name}\0{facts.size}\0{facts.crc}"
    else:
        info, path = files_at(shard.path).info(shard.path), real_path(shard.path)
        size, crc, identity = info.st_size, None, f"{path}\0{info.st_size}\0{info.st_mtime_ns}"
    digest = blake2b(os.fsencode(identity), digest_size=12).hexdigest()
    name = _UNSAFE_CHAR.sub("_", shard.file_name)[-_MAX_SHARD_NAME_CHARS:]
    return OriginalFile(shard.path, size, crc, f"{digest}-{size}-{'unknown' if crc is None else f'{crc:08x}'}-{name}")


def writer_name(name: str) -> str | None:
    """Return the name of the writer that created a file in `written/`, or None for a foreign file."""
    prefix = RESERVATION_PREFIX if name.startswith(RESERVATION_PREFIX) else "."
    match = WRITER_FILE_NAME.fullmatch(name.removeprefix(prefix))
    return match[1] if match else None


def copy_name(name: str) -> str | None:
    """Return the name of the copy that a file in `copied/` belongs to, or None for a foreign file."""
    stem = name.removeprefix(RESERVATION_PREFIX)
    if stem.startswith(".") and stem.endswith(PART_SUFFIX):
        stem = stem[1 : -len(PART_SUFFIX)]
    return stem if COPY_NAME.fullmatch(stem) else None


class CachedFile(NamedTuple):
    """A finished shard in a cache.

    Attributes:
        size: Bytes of the shard and its sidecar.
        added_ns, used_ns: When the shard was added, and when it was last leased, in nanoseconds since 1970.
        sidecar: Name of the sidecar, or "" for a copy.
    """

    folder: str
    name: str
    size: int
    added_ns: int
    used_ns: int
    sidecar: str = ""

    @property
    def path(self) -> str:
        """Path of the shard in the cache."""
        return f"{self.folder}/{self.name}"

    @property
    def facts(self) -> tuple[int, int | None] | None:
        """The size and CRC-32C (or None) in the name of a copy. For a shard in `written/`, None."""
        match = COPY_NAME.fullmatch(self.name)
        return (int(match[1]), None if match[2] == "unknown" else int(match[2], 16)) if match else None

    @property
    def never_used(self) -> bool:
        """Whether no process has read the shard yet."""
        return self.used_ns <= self.added_ns


@dataclass(slots=True)
class CacheContents:
    """The files in a cache.

    Attributes:
        reserved: Bytes that running processes have reserved.
        requested: Bytes that running processes are waiting to reserve.
    """

    shards: list[CachedFile] = field(default_factory=list)
    reserved: int = 0
    requested: int = 0
    pids: list[int] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of the finished shards."""
        return sum(shard.size for shard in self.shards)


def encode_reservation(reserved: int, requested: int) -> bytes:
    """Return the content of a reservation file."""
    return b"%020d %020d %010d\n" % (reserved, requested, os.getpid())


def names_in_folder(folder: str) -> list[str]:
    """Return the names of a folder's entries, or [] if the folder does not exist."""
    return [entry.name for entry in scan_folder(folder)]


def scan_folder(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, or nothing if the folder does not exist."""
    with suppress(FileNotFoundError):
        yield from iter_entries(folder)


def file_facts(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the stat result of a regular file, or None for other or deleted entries."""
    with suppress(OSError):
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False)
    return None


def add_reservation(
    folder: str, owner: str, contents: CacheContents, ignored_path: str, unfinished: Iterable[str]
) -> None:
    """Read the reservation of `owner` (a copy or a writer), and add its bytes to `contents`.

    If the owner's process has exited, only delete the `unfinished` files, including the reservation. If `ignored_path`
    is the path of the reservation, do nothing.
    """
    path = os.path.join(folder, f"{RESERVATION_PREFIX}{owner}")
    if path == ignored_path:
        return
    try:
        lock = take_lock(path)
    except OSError:
        _remove_reservation(folder, unfinished)
        return
    if lock is not None:
        with lock:
            _remove_reservation(folder, unfinished)
        return
    with suppress(OSError, ValueError):
        reserved, requested, pid = map(int, read_small(path, _MAX_RESERVATION_BYTES, flags=READ_PLAIN).split())
        contents.reserved += reserved
        contents.requested += requested
        contents.pids.append(pid)


def _remove_reservation(folder: str, names: Iterable[str]) -> None:
    """Delete files, the reservation last, so a later scan can finish an interrupted deletion."""
    Folder(folder).discard(*sorted(names, key=lambda name: name.startswith(RESERVATION_PREFIX)))
