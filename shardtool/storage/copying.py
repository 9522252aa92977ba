"""A file is copied, and checked on the way: what appears has the bytes that its index says, or nothing appears."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.storage.places import open_blob
from shardtool.storage.reading import READ_FOLLOWING, file_stat, read_blocks
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import Sink, Staged

_BLOCK = 2**20
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
) -> Staged:
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


def blocks_of(path: str) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a file; of a local one in a buffer that each block fills anew.

    Raises:
        OSError: It cannot be read.
        ShardError: A store or a server cannot be asked.
    """
    if is_url(path):
        yield from open_blob(path).pieces()
        return
    buffer = memoryview(bytearray(_BLOCK))
    for got in read_blocks(os.fsencode(path), buffer, READ_FOLLOWING):
        if isinstance(got, int):
            yield buffer[:got]
