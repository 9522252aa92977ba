"""A file that is open for reading at any place, wherever it lies."""

from __future__ import annotations

import io
import os
import queue
from contextlib import suppress
from threading import Thread
from typing import IO, TYPE_CHECKING, Protocol, cast

from shardtool.errors import machine_reads
from shardtool.storage.places import is_url, open_blob
from shardtool.storage.reading import SpanSource, file_stat, open_plain
from shardtool.storage.remote.blob import Blob, ObjectFact, requests, version_number
from shardtool.storage.sources import address_of, is_place, object_fact

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shardtool.storage.sources import FileFact


# An object read in its order, whole or span by span: what follows is asked for while what came is worked on.


_CLOSE_S = 1.0  # a stalled server keeps the thread for longer; it ends by itself
_HELD = 16  # pieces, of 1 MiB at most, that wait to be taken
_LEAST, _MOST = 2**16, 2**21  # bytes of a request: more and more while spans follow each other
_NEAR = 2**16  # bytes between two spans that follow each other


class Ahead:
    """The bytes of an object in order, some MB ahead, by one request where nothing fails; `close` it.

    Args:
        blob: The object.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_HELD)
        self._stopped, self._ended = False, False
        self._piece = memoryview(b"")
        self._thread: Thread | None = None

    def read_into(self, view: memoryview) -> int:
        """Fill `view` with what comes next; return how much there was: less only at the end.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again.
        """
        done = 0
        while done < len(view) and (self._piece or self._next()):
            some = self._piece[: len(view) - done]
            view[done : done + len(some)] = some
            self._piece = self._piece[len(some) :]
            done += len(some)
        return done

    def close(self) -> None:
        """Ask for no more."""
        self._stopped = True
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _next(self) -> bool:
        if self._ended:
            return False
        if self._thread is None:
            self._thread = Thread(target=self._fetch, name="shardtool-ahead", daemon=True)
            self._thread.start()
        got = self._queue.get()
        self._ended = not isinstance(got, bytes)
        if isinstance(got, BaseException):
            raise got
        self._piece = memoryview(got or b"")
        return got is not None

    def _fetch(self) -> None:
        try:
            for piece in self._blob.pieces():
                if not self._put(piece):
                    return
        except BaseException as error:  # noqa: BLE001 - raised by the thread that reads
            self._put(error)
        else:
            self._put(None)

    def _put(self, what: bytes | BaseException | None) -> bool:
        """Hand it over; return False where nothing is wanted any more."""
        while not self._stopped:
            with suppress(queue.Full):
                self._queue.put(what, timeout=0.1)
                return True
        return False


class AheadFile(io.RawIOBase):
    """The same as a file of Python's, for those who unpack it."""

    def __init__(self, blob: Blob) -> None:
        super().__init__()
        self._ahead = Ahead(blob)

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Fill a buffer with what comes next."""
        with memoryview(buffer) as view:
            return self._ahead.read_into(view.cast("B"))

    def close(self) -> None:
        """Ask for no more."""
        if not self.closed:
            self._ahead.close()
        super().close()


class ObjectSpans:
    """An object that must stay as the plan saw it; see `storage.reading.SpanSource`.

    Raises:
        OSError: It is not there.
        ShardError: A store or a server cannot be asked.
    """

    def __init__(self, address: str) -> None:
        self._blob = Blob(address)
        self._start, self._window, self._size = 0, b"", 0
        self._next: tuple[int, Future[bytes]] | None = None

    def fact(self) -> ObjectFact:
        """Return what the server said of it: it fails to be read once that has changed."""
        return ObjectFact(self._blob.size, version_number(self._blob.version))

    def read(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; return how much there was.

        Raises:
            OSError: It is another one by now, or it is gone.
            ShardError: A store or a server cannot be asked.
        """
        done = 0
        while done < len(into) and offset + done < self._blob.size:
            at = offset + done - self._start
            if not 0 <= at < len(self._window):
                self._enter(offset + done, len(into) - done)
                at = 0
            some = self._window[at : at + len(into) - done]
            into[done : done + len(some)] = some
            done += len(some)
        return done

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        """Fill `parts`, of `total` bytes, one after the other from `offset` on; return how much there was.

        Raises:
            OSError: It is another one by now, or it is gone.
            ShardError: A store or a server cannot be asked.
        """
        done = 0
        for part in parts:
            done += self.read(part, offset + done)
        return min(done, total)

    def expect_random(self) -> None:
        """Do nothing: of a span that follows no other, little more is read than is asked for."""

    def close(self) -> None:
        """Ask for no more."""
        if self._next is not None:
            self._next[1].cancel()

    def _enter(self, offset: int, wanted: int) -> None:
        """Put the bytes from `offset` on into the window, and ask for those behind where spans follow each other."""
        follows = 0 <= offset - self._start - len(self._window) <= _NEAR and bool(self._window)
        self._size = min(_MOST, 2 * self._size) if follows else _LEAST
        asked, self._next = self._next, None
        if asked is not None and asked[0] == offset:
            self._window = asked[1].result()
        else:
            self._window = self._blob.read(offset, max(self._size, min(wanted, _MOST)))
        self._start = offset
        end = offset + len(self._window)
        if follows and end < self._blob.size:
            self._next = end, requests().submit(self._blob.read, end, self._size)


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
