"""A file that is open for reading at any place, wherever it lies."""

from __future__ import annotations

import io
import os
from typing import IO, TYPE_CHECKING, Protocol, cast

from shardtool.errors import machine_reads
from shardtool.storage.places import is_url, open_blob
from shardtool.storage.reading import SpanSource, file_stat, open_plain
from shardtool.storage.remote.ahead import Ahead, AheadFile, ObjectSpans
from shardtool.storage.remote.whole import version_number
from shardtool.storage.sources import address_of, is_place, object_fact

if TYPE_CHECKING:
    from shardtool.storage.sources import FileFact


Spans = SpanSource | ObjectSpans


class OpenedFile(Protocol):
    """A file that can be read at any place; `close` it.

    Attributes:
        size: Its bytes.
        mtime_ns: When it was changed; of an object its version, as a number.
        window: Bytes that are best read at once where one place follows the other.
        hop: Bytes that are best read at a place that lies far from the last one.
        near: Bytes between two places that are read rather than passed over.
    """

    size: int
    mtime_ns: int
    window: int
    hop: int
    near: int

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the file."""
        ...

    def read_next(self, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset` on, best where the last such call ended; return how much there was."""
        ...

    def stream(self) -> IO[bytes]:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class LocalFile:
    """A plain file of the file system."""

    window, hop, near = 2**20, 2**12, 2**16

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd, fact = open_plain(path)
        self.size, self.mtime_ns = fact.st_size, fact.st_mtime_ns

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            StoreFailed: The disk fails.
        """
        with machine_reads(self._path):
            found = os.pread(self._fd, length, offset)
            while len(found) < length and (more := os.pread(self._fd, length - len(found), offset + len(found))):
                found += more  # a network file system may return less
            return found

    def read_next(self, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset` on; return how much there was.

        Raises:
            StoreFailed: The disk fails.
        """
        with machine_reads(self._path):
            return os.preadv(self._fd, [view], offset)

    def stream(self) -> IO[bytes]:
        """Return it as a file of Python's."""
        with machine_reads(self._path):
            return os.fdopen(os.dup(self._fd), "rb")

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


class RemoteFile:
    """An object in a store or behind HTTP: what follows in order is read ahead."""

    window, hop, near = 2**22, 2**16, 2**20

    def __init__(self, address: str) -> None:
        self._blob = open_blob(address)
        self.size, self.mtime_ns = self._blob.size, version_number(self._blob.version)
        self._ahead: Ahead | None = None
        self._next = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the object."""
        return self._blob.read(offset, length)

    def read_next(self, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset` on, best where the last such call ended; return how much there was."""
        if offset != self._next:
            return self._blob.read_into(view, offset)
        self._ahead = self._ahead or Ahead(self._blob)
        got = self._ahead.read_into(view)
        self._next += got
        return got

    def stream(self) -> IO[bytes]:
        """Return it as a file of Python's."""
        return cast("IO[bytes]", io.BufferedReader(AheadFile(self._blob), self.window))

    def close(self) -> None:
        """Ask for no more."""
        if self._ahead is not None:
            self._ahead.close()


def open_spans(path: bytes) -> Spans:
    """Return a source's file to be read span by span.

    Raises:
        OSError: It cannot be opened.
        ShardError: A store or a server cannot be asked.
    """
    return ObjectSpans(address_of(path)) if is_place(path) else SpanSource(path)


def plain_fact(path: str) -> FileFact:
    """Return what the file system says of a plain file that can be opened, or a server of an object.

    Raises:
        OSError: It cannot be opened, or is no plain file.
        ShardError: A store or a server cannot be asked.
    """
    if is_url(path):
        return object_fact(os.fsencode(path))
    fd, fact = open_plain(path)
    os.close(fd)
    return fact


def file_fact(path: str) -> FileFact:
    """Return what the file system says of what a path leads to, or a server of an object.

    Raises:
        OSError: It leads to nothing, or nowhere that we may look.
        ShardError: A store or a server cannot be asked.
    """
    return object_fact(os.fsencode(path)) if is_url(path) else file_stat(path)


def open_file(path: str) -> OpenedFile:
    """Return a file at a path or an address.

    Raises:
        OSError: It cannot be opened, or is no plain file.
        ShardError: A store or a server fails.
    """
    return RemoteFile(path) if is_url(path) else LocalFile(path)
