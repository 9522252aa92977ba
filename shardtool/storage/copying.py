"""Copy one file and verify its checksum: the copy appears only if its bytes match the index."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.storage import files
from shardtool.storage.remote.address import (
    is_url,
)
from shardtool.storage.remote.lock import check_held
from shardtool.storage.remote.store_copy import can_copy_inside, copy_in_store
from shardtool.storage.staging import DurableFile, Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.storage.folders import OutputFolder


class OriginalFile(NamedTuple):
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

    def check(self, size: int, crc: int) -> None:
        """See that bytes of this number and checksum are its own, as far as that is known.

        Raises:
            CorruptShard: They are others.
        """
        if size != self.size or self.crc not in (None, crc):
            found = f"{size:,} bytes with the checksum {crc:08x}"
            expected = f"{self.size:,} bytes" + ("" if self.crc is None else f" with {self.crc:08x}")
            raise CorruptShard(self.path, found, expected=expected)


def copy_verified(
    folder: OutputFolder,
    original: OriginalFile,
    took: Callable[[int], None] = lambda _: None,
    *,
    keep_mtime: bool = False,
) -> DurableFile:
    """Write a copy of a file that has the bytes that its index says; where files are hidden, it is staged.

    The last block is written only where the checksum of all is right: an object of a store appears with its last byte.

    Args:
        folder: Where the copy goes.
        original: What is copied.
        took: Called with the bytes of each block.
        keep_mtime: Whether the modification time of a local file becomes that of its copy.

    Raises:
        CorruptShard: It has other bytes, also when it is read again.
        OutputFailed: The copy cannot be written.
        OSError: It cannot be read.
        ShardError: A store or a server cannot be asked.
    """
    keeps = keep_mtime and not is_url(original.path)
    mtime_ns = os.stat(original.path).st_mtime_ns if keeps else time.time_ns()

    def fill(file: Sink) -> None:
        size = crc = 0
        for block in files.read_blocks(original.path):
            size, crc = size + len(block), crc32c(block, crc)
            if size >= original.size:
                original.check(size, crc)
            file.write(block)
            took(len(block))
        original.check(size, crc)

    with suppress(CorruptShard):  # a network file system may return other bytes once
        return folder.write(original.name, fill, original.size, mtime_ns)[1]
    return folder.write(original.name, fill, original.size, mtime_ns)[1]


def copy_inside_store(
    folder: OutputFolder, original: OriginalFile, took: Callable[[int], None] = lambda _: None
) -> DurableFile | None:
    """Have a store copy a file that lies in it, and see that the copy has the bytes that its index says.

    The store says the checksum of the copy; where it does not, the copy is read. One with other bytes, which is there
    until that is known, is removed.

    Args:
        folder: Where the copy goes.
        original: What is copied.
        took: Called with the bytes of what was copied, or of each block that was read.

    Returns:
        The copy; None: there is none, and `copy_verified` may make it.

    Raises:
        NotCopied: The store has made none.
        OutputExists: The lock is lost.
        ShardError: The store cannot be asked.
    """
    where = folder.full_path(original.name)
    if original.crc is None or not can_copy_inside(original.path, where):
        return None
    check_held(folder.path)
    crc = copy_in_store(original.path, where, original.size, original.crc)
    if crc == original.crc:
        took(original.size)
    elif crc is None:
        with suppress(OSError):  # it is not there
            crc = files.read_crc(where, took)[1]
    if crc == original.crc:
        return DurableFile(original.name, "")
    folder.remove([original.name])
    return None
