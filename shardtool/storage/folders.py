"""Where a run's output goes: a folder of a file system, or what lies under a prefix of a store."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed
from shardtool.fingerprint import crc32c
from shardtool.storage.open_file import blocks_of
from shardtool.storage.places import file_stat
from shardtool.storage.remote.address import STORES, WEB, is_url, parse_address, refuse_near_url
from shardtool.storage.remote.output import RemoteFolder
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.storage.staging import DurableFile, Sink


OutputFolder: TypeAlias = Folder | RemoteFolder  # plain values, which travel to workers


def open_folder(path: str) -> OutputFolder:
    """Return the output folder that a path or an address means.

    Raises:
        InvalidRequest: It is an address that cannot be written to, or a path that looks like a torn one.
    """
    if not is_url(path):
        refuse_near_url(path)
        return Folder(path)
    at = parse_address(path)
    if at.scheme not in STORES:
        expected = "a folder, or an address in a store: s3://, gs://, az://"
        where = "a server of the web" if at.scheme in WEB else "a place that is only read"
        raise InvalidRequest(path, f"{where}, where nothing can be written", expected=expected)
    if any(part in ("", ".", "..") for part in at.key.rstrip("/").split("/") if at.key):
        raise InvalidRequest(path, "a name with an empty part, or . or ..", expected="names without `//` and `/../`")
    return RemoteFolder(path)


def check_there(folder: OutputFolder, sizes: Mapping[str, int], remedy: str) -> None:
    """See, by a listing, that a store still has what it was given: others may have removed something meanwhile.

    Args:
        folder: A folder; of a file system nothing is looked at.
        sizes: The bytes of each file, by its name.
        remedy: What to do where one is missing.

    Raises:
        OutputFailed: One is not there, or has another size.
    """
    if folder.hides:
        return
    there = folder.facts(sizes)
    for name, size in sizes.items():
        fact = there.get(name)
        if fact is None or fact.size != size:
            found = "not there" if fact is None else f"{fact.size:,} bytes"
            expected = f"{size:,} bytes, which the store has taken"
            raise OutputFailed(folder.full_path(name), found, expected=expected, remedy=remedy)


# A file is copied, and checked on the way: what appears has the bytes that its index says, or nothing appears.


_TRIES = 2  # a network file system may return other bytes once


@dataclass(frozen=True, slots=True)
class Original:
    """A file that may be copied.

    Attributes:
        path: Where it is: a path or an address.
        size: Its bytes.
        crc: CRC-32C of the file; None: no index says it.
        name: What its copy is called.
    """

    path: str
    size: int
    crc: int | None
    name: str

    def is_met_by(self, size: int, crc: int) -> bool:
        """Tell whether bytes of this number and checksum are its own, as far as that is known."""
        return size == self.size and self.crc in (None, crc)

    def differs(self, size: int, crc: int) -> CorruptShard:
        """Return the error that it has other bytes."""
        found = f"{size:,} bytes with the checksum {crc:08x}"
        expected = f"{self.size:,} bytes" + ("" if self.crc is None else f" with {self.crc:08x}")
        return CorruptShard(self.path, found, expected=expected)


def checked_copy(
    folder: OutputFolder, original: Original, took: Callable[[int], None] = lambda _: None, *, keep_time: bool = False
) -> DurableFile:
    """Write a copy of a file that has the bytes that its index says; where files are hidden, it is staged.

    The last block is written only where the checksum of all is right: an object of a store appears with its last byte.

    Args:
        folder: Where the copy goes.
        original: What is copied.
        took: Called with the bytes of each block.
        keep_time: Whether the modification time of a local file becomes that of its copy.

    Raises:
        CorruptShard: It has other bytes, also when it is read again.
        OutputFailed: The copy cannot be written.
        OSError: It cannot be read.
        ShardError: A store or a server cannot be asked.
    """
    mtime_ns = file_stat(original.path).st_mtime_ns if keep_time and not is_url(original.path) else time.time_ns()

    def fill(file: Sink) -> None:
        size = crc = 0
        for block in blocks_of(original.path):
            size, crc = size + len(block), crc32c(block, crc)
            if size >= original.size and not original.is_met_by(size, crc):
                raise original.differs(size, crc)
            file.write(block)
            took(len(block))
        if not original.is_met_by(size, crc):
            raise original.differs(size, crc)

    for _ in range(_TRIES - 1):
        with suppress(CorruptShard):
            return folder.write(original.name, fill, original.size, mtime_ns)[1]
    return folder.write(original.name, fill, original.size, mtime_ns)[1]
