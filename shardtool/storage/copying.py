"""A file is copied, and checked on the way: what appears has the bytes that its index says, or nothing appears."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.storage.places import open_blob
from shardtool.storage.reading import READ_FOLLOWING, read_blocks
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.storage.staging import Folder, Staged

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


def checked_copy(
    folder: Folder, original: Original, took: Callable[[int], None] = lambda _: None, mtime_ns: int | None = None
) -> Staged:
    """Stage a copy of a file that has the bytes that its index says.

    The last block is written only where the checksum of all is right: an object of a store appears with its last byte.

    Args:
        folder: Where the copy goes.
        original: What is copied.
        took: Called with the bytes of each block.
        mtime_ns: What becomes the copy's modification time; None: now.

    Raises:
        CorruptShard: It has other bytes, also when it is read again.
        OutputFailed: The copy cannot be written.
        OSError: It cannot be read.
        ShardError: A store or a server cannot be asked.
    """
    for last in range(_TRIES):
        with folder.stage(original.name) as file:
            size = crc = 0
            for block in blocks_of(original.path):
                size, crc = size + len(block), crc32c(block, crc)
                if size >= original.size and not original.is_met_by(size, crc):
                    break
                file.write(block)
                took(len(block))
            if original.is_met_by(size, crc):
                return file.finish(mtime_ns)
            file.abandon()
        if last == _TRIES - 1:
            break
    found = f"{size:,} bytes with the checksum {crc:08x}"
    expected = f"{original.size:,} bytes" + ("" if original.crc is None else f" with {original.crc:08x}")
    raise CorruptShard(original.path, found, expected=expected)


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
