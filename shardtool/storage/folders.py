"""Where a run's output goes: a folder of a file system, or what lies under a prefix of a store."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed
from shardtool.fingerprint import crc32c
from shardtool.storage.places import open_blob
from shardtool.storage.reading import READ_FOLLOWING, file_stat, read_blocks
from shardtool.storage.remote.address import STORES, WEB, is_url, parse_address, refuse_near_url
from shardtool.storage.remote.output import RemoteFolder
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from shardtool.storage.remote.blob import ObjectFact
    from shardtool.storage.staging import DurableFile, FileFact, Sink, StagedOutput


Made = TypeVar("Made")


class OutputFolder(Protocol):
    """A place that is written to: `Folder` or `RemoteFolder`, a plain value that travels to workers.

    Whatever cannot be written is an `OutputFailed`, or, in a store, a `StoreFailed`.
    """

    @property
    def path(self) -> str:
        """The folder as the user gave it, or its address; "" is the current folder."""

    @property
    def hides(self) -> bool:
        """Whether files that are written stay invisible until they are published."""

    @property
    def temporary(self) -> Folder:
        """The folder for temporary files of those who write here."""

    def largest(self) -> int | None:
        """Return how many bytes a file may have at most; None: any number."""

    def ready(self) -> None:
        """Make the folder where it is missing."""

    def names(self) -> list[str]:
        """Return the names of all that lies in the folder; none where there is no folder."""

    def facts(self, names: Iterable[str]) -> dict[str, FileFact]:
        """Return the facts of those of `names` that are there."""

    def stage(self, name: str) -> StagedOutput:
        """Start a small file that will be called `name`."""

    def write(
        self, name: str, fill: Callable[[Sink], Made], size: int | None, mtime_ns: int, /
    ) -> tuple[Made, DurableFile]:
        """Write a file of any size by `fill`, which may be called again; return what it has returned, and the file."""

    def publish(self, *staged: DurableFile) -> None:
        """Give staged files their final names, each in place of what had it."""

    def set_time(self, name: str, mtime_ns: int) -> None:
        """Set the modification time of a published file, where that is possible."""

    def discard_staged(self, names: Iterable[str]) -> None:
        """Remove what a run has left of the files `names` under temporary names."""

    def staged_names(self) -> list[str]:
        """Return the final names of the files that lie here under temporary ones."""

    def remove(self, names: list[str]) -> None:
        """Remove published files; those that are gone already are no error."""

    def read(self, name: str) -> bytes:
        """Return a whole file, which must be small."""

    def read_staged(self, name: str) -> bytes:
        """Return a whole staged file, which must be small; only where staged files are hidden."""

    def md5(self, name: str) -> str | None:
        """Return the MD5 of a file, as far as it is known without reading it; None: it is not."""

    def blocks(self, name: str, into: memoryview) -> Iterator[int | os.stat_result | ObjectFact]:
        """Read a published file block by block; see `storage.reading.read_blocks`."""

    def full_path(self, name: str) -> str:
        """Return where `name` lies."""

    def free_bytes(self) -> int | None:
        """Return how many more bytes fit; None: any number."""

    def lock(self, base: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold the lock of the dataset `base` in this folder; `shared`: beside others who share it."""


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
