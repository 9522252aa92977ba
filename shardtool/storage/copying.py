"""Copy one file and verify its checksum."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.storage import files, remote
from shardtool.storage.paths import base_name
from shardtool.storage.remote.address import is_url
from shardtool.storage.staging import DurableFile, Folder, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.storage.folders import OutputFolder


class OriginalFile(NamedTuple):
    """A file to copy.

    Attributes:
        crc: Expected CRC-32C, or None if unknown.
        name: File name of the copy.
    """

    path: str
    size: int
    crc: int | None
    name: str

    def check(self, size: int, crc: int) -> None:
        """Raise `CorruptShard` if the size or CRC-32C is not the expected one."""
        if size != self.size or self.crc not in (None, crc):
            found = f"{size:,} bytes with checksum {crc:08x}"
            expected = f"{self.size:,} bytes" + ("" if self.crc is None else f" with checksum {self.crc:08x}")
            raise CorruptShard(self.path, found, expected=expected)


def copy_verified(
    folder: OutputFolder,
    original: OriginalFile,
    report_bytes: Callable[[int], None] = lambda _: None,
    *,
    keep_mtime: bool = False,
) -> DurableFile:
    """Copy a file to `folder`, and verify its size and checksum.

    The last block is written only after the checksum matches, because a store shows an object once the last byte has
    arrived. With `keep_mtime`, a local copy of a local file keeps the modification time.
    """
    has_mtime = keep_mtime and not is_url(original.path)
    mtime_ns = os.stat(original.path).st_mtime_ns if has_mtime else time.time_ns()

    def fill(file: Sink) -> None:
        size = crc = 0
        for block in files.read_blocks(original.path):
            size, crc = size + len(block), crc32c(block, crc)
            if size >= original.size:
                original.check(size, crc)
            file.write(block)
            report_bytes(len(block))
        original.check(size, crc)

    # Try twice, because a network file system may return wrong bytes on the first read.
    with suppress(CorruptShard):
        return folder.write(original.name, fill, original.size, mtime_ns)[1]
    return folder.write(original.name, fill, original.size, mtime_ns)[1]


def copy_inside_store(
    folder: OutputFolder, original: OriginalFile, report_bytes: Callable[[int], None] = lambda _: None
) -> DurableFile | None:
    """Ask a store to copy one of its objects, and verify the copy.

    Return None if the checksum of the object is unknown, if the store cannot copy between the two locations, or if the
    copy is wrong. A wrong copy is visible until this function deletes it.

    Raises:
        NotCopied: The store made no copy.
    """
    address = folder.full_path(original.name)
    if original.crc is None or not is_url(address) or not remote.store_copy.can_copy_inside(original.path, address):
        return None
    remote.lock.check_held(folder.path)
    crc = remote.store_copy.copy_in_store(original.path, address, original.size, original.crc)
    if crc == original.crc:
        report_bytes(original.size)
    elif crc is None:
        with suppress(OSError):
            crc = files.read_crc(address, report_bytes)[1]
    if crc == original.crc:
        return DurableFile(original.name, "")
    folder.remove([original.name])
    return None


def publish_staged(folder: OutputFolder, staged: Sequence[OriginalFile]) -> None:
    """Rename each staged file from its `path` to its `name`.

    Stores cannot rename objects, so objects are copied, and the originals are deleted. To finish an
    interrupted call, pass the files that are still staged.
    """
    if isinstance(folder, Folder):
        folder.publish(*(DurableFile(file.name, file.path) for file in staged))
        return
    target = replace(folder, has_staging=False)
    for file in staged:
        copied = None
        with suppress(remote.store_copy.NotCopied):
            copied = copy_inside_store(target, file)
        if copied is None:
            copy_verified(target, file)
    folder.remove([base_name(file.path) for file in staged])
