"""Open and read files and objects.

An open file is a `LocalFile` or a `RemoteFile`. Local files are opened so that a FIFO or device cannot block the
process. File contents are untrusted. The caller decides whether to follow a symbolic link: dataset files are
followed, because Hugging Face's cache, DVC and git-annex store shards behind links.

`read_file` runs once per source file and is a hot path.
"""

from __future__ import annotations

import errno
import io
import os
import queue
import stat
import threading
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, BinaryIO

from shardtool.errors import AccessRefused, raising_machine_errors
from shardtool.fingerprint import crc32c
from shardtool.storage.paths import is_address, source_address
from shardtool.storage.remote import objects
from shardtool.storage.remote.address import display_address, is_url
from shardtool.storage.remote.objects import FileInfo, ObjectInfo, RemoteObject, open_remote
from shardtool.storage.remote.requests import request_threads
from shardtool.storage.remote.retry import SLICE_S, wait_interruptibly
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from typing_extensions import Buffer


_LARGE_FILE_BYTES = 2**25


READ_FOLLOWING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)


READ_PLAIN = READ_FOLLOWING | os.O_NOFOLLOW


MAX_IOVEC = 1024  # that one system call can fill: IOV_MAX


_CLOSE_TIMEOUT_S = 1.0  # a stalled server keeps the thread for longer; it ends by itself


_MAX_QUEUED_PIECES = 16  # pieces, of 1 MiB at most, that wait to be taken


_MIN_READ_AHEAD_BYTES, _MAX_READ_AHEAD_BYTES = (
    2**16,
    2**21,
)  # bytes of a request: more and more while spans follow each other


_MAX_GAP_BYTES = 2**16  # bytes between two spans that follow each other


_MAX_WHOLE_BYTES = 2**30  # bytes that are held, of an object that its server gives whole only


MAX_READS = 3  # of a file whose ctime changes during each of them


_open, _readv, _fstat, _close = os.open, os.readv, os.fstat, os.close


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"", flags: int = READ_FOLLOWING) -> bytes:
    """Return a whole file that must be small and plain.

    Args:
        path: Where it is.
        limit: Bytes that it may have.
        ending: How a large one must end, or none of it is read: large files that hold nothing are cheap to make.
        flags: Whether a link is followed.

    Raises:
        OSError: It cannot be read, or is too large.
        ShardError: The machine, a store or a server fails.
    """
    where = display_address(path) if is_url(path) else path

    def check(size: int, read_end: Callable[[], bytes]) -> None:
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, too large", where)
        if ending and size > _LARGE_FILE_BYTES and read_end() != ending:
            raise OSError(errno.EINVAL, "not what its name says", where)

    if is_url(path):
        return objects.read_object(path, lambda size: check(size, lambda: objects.read_object_end(path, len(ending))))[
            0
        ]
    with open_file(path, flags) as file:
        size = file.fact().st_size
        check(size, lambda: file.read(size - len(ending), len(ending)))
        return file.read(0, size)


def read_optional(path: str) -> bytes | None:
    """Return a small file that may be there; None where it cannot be read, or a store says that we may not.

    That it says also of what is not there, to those who may read and not list.

    Raises:
        ShardError: A store or a server fails.
    """
    try:
        return read_small(path)
    except (OSError, AccessRefused):
        return None


def read_head(path: str, limit: int, flags: int = READ_FOLLOWING) -> tuple[bytes, int]:
    """Return the first bytes of a plain file, and how many it has.

    Raises:
        OSError: It cannot be read.
        ShardError: The machine, a store or a server fails.
    """
    with open_file(path, flags) as file:
        return file.read(0, limit), file.fact().st_size


def read_tail(path: str, limit: int) -> bytes:
    """Return the last bytes of a plain file.

    Raises:
        OSError: It cannot be read.
        ShardError: The machine, a store or a server fails.
    """
    if is_url(path):
        return objects.read_object_end(path, limit)
    with open_file(path) as file:
        return file.read(max(0, file.fact().st_size - limit), limit)


class LocalFile(AbstractContextManager["LocalFile"]):
    """A file of the file system; `close` it.

    Args:
        fd: Its descriptor.

    Attributes:
        window: Bytes that are best read at once where one place follows the other.
        hop: Bytes that are best read at a place that lies far from the last one.
        near: Bytes between two places that are read rather than passed over.
    """

    window, hop, near = 2**20, 2**12, 2**16

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __exit__(self, *_: object) -> None:
        self.close()

    def fact(self) -> os.stat_result:
        """Return what fstat says of it."""
        return _fstat(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            OSError: It cannot be read.
        """
        found = os.pread(self._fd, length, offset)
        while len(found) < length and (more := os.pread(self._fd, length - len(found), offset + len(found))):
            found += more  # a network file system may return less
        return found

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; return how much there was: less only at the end of the file.

        Raises:
            OSError: It cannot be read.
        """
        total = len(into)
        done = os.preadv(self._fd, (into,), offset)
        while done < total and (got := os.preadv(self._fd, (into[done:],), offset + done)):
            done += got
        return done

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        """Fill `parts`, of `total` bytes, one after the other from `offset` on; return how much there was.

        Args:
            parts: `PARTS` at most.
            offset: Where to start in the file.
            total: What `parts` hold together.

        Raises:
            OSError: It cannot be read.
        """
        done = os.preadv(self._fd, parts, offset)
        if done == total or not done:
            return done
        before = 0  # a network file system may return less, and no system call returns more than 2 GiB
        for part in parts:
            missing = part[max(0, done - before) :]
            before += len(part)
            done += self.read_into(missing, offset + done)
        return done

    def blocks(self, into: memoryview) -> Iterator[memoryview]:
        """Yield what is behind the last block, in `into`, which each block fills anew; of what is no plain file, none.

        Raises:
            OSError: It cannot be read.
        """
        if stat.S_ISREG(self.fact().st_mode):
            while got := _readv(self._fd, (into,)):
                yield into[:got]

    def stream(self) -> io.BufferedReader:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        return os.fdopen(os.dup(self._fd), "rb")

    def expect_random_reads(self) -> None:
        """Ask the system to read nothing ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Give the descriptor back."""
        _close(self._fd)


class RemoteFile(AbstractContextManager["RemoteFile"]):
    """An object, as a file; `close` it. What `stream` gives is read ahead, and so are spans that follow each other.

    It must stay as it was when this was made: it fails to be read once it has changed.

    Args:
        address: Where it is.

    Attributes:
        window: As those of `LocalFile`.
        hop: These too.
        near: And these.

    Raises:
        OSError: It is not there.
        ShardError: A store or a server cannot be asked.
    """

    window, hop, near = 2**22, 2**16, 2**20

    def __init__(self, address: str) -> None:
        self._blob = open_remote(address)
        self._window, self._start, self._size = b"", 0, 0  # what was read last, where, and by how much
        self._asked: tuple[int, Future[bytes]] | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def fact(self) -> ObjectInfo:
        """Return what the server said of it."""
        return self._blob.fact()

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the object."""
        return self._blob.read(offset, length)

    def read_into(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on, best where spans follow each other; return how much there was."""
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
        """Fill `parts`, of `total` bytes, one after the other from `offset` on; return how much there was."""
        done = 0
        for part in parts:
            done += self.read_into(part, offset + done)
        return min(done, total)

    def blocks(self, _into: memoryview) -> Iterator[memoryview]:
        """Yield all of it, checked at the end against what the store says of it; see `Blob.checked_pieces`."""
        return map(memoryview, self._blob.verified_pieces())

    def stream(self) -> io.BufferedReader:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        return io.BufferedReader(ReadAheadStream(self._blob), self.window)

    def expect_random_reads(self) -> None:
        """Do nothing: of a span that follows no other, little more is read than is asked for."""

    def close(self) -> None:
        """Ask for no more."""
        if self._asked is not None:
            self._asked[1].cancel()

    def _enter(self, offset: int, wanted: int) -> None:
        """Put the bytes from `offset` on into the window, and ask for those behind where spans follow each other."""
        follows = 0 <= offset - self._start - len(self._window) <= _MAX_GAP_BYTES and bool(self._window)
        self._size = min(_MAX_READ_AHEAD_BYTES, 2 * self._size) if follows else _MIN_READ_AHEAD_BYTES
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] == offset:
            self._window = wait_interruptibly(asked[1]).result()
        else:
            self._window = self._blob.read(offset, max(self._size, min(wanted, _MAX_READ_AHEAD_BYTES)))
        self._start = offset
        end = offset + len(self._window)
        if follows and end < self._blob.size:
            self._asked = end, request_threads().submit(self._blob.read, end, self._size)


OpenFile = LocalFile | RemoteFile


class ReadAheadStream(io.RawIOBase):
    """The bytes of an object in order, some MB ahead, by one request where nothing fails; `close` it.

    Args:
        blob: The object.
    """

    def __init__(self, blob: RemoteObject) -> None:
        super().__init__()
        self._blob, self._piece = blob, memoryview(b"")
        self._queue: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(_MAX_QUEUED_PIECES)
        self._stopped, self._ended = False, False
        self._thread: threading.Thread | None = None

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, into: Buffer, /) -> int:
        """Fill `into` with what comes next; return how much there was: less only at the end.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again.
        """
        view, done = memoryview(into).cast("B"), 0
        while done < len(view) and (self._piece or self._next()):
            some = self._piece[: len(view) - done]
            view[done : done + len(some)] = some
            self._piece = self._piece[len(some) :]
            done += len(some)
        return done

    def close(self) -> None:
        """Ask for no more."""
        self._stopped = True
        self._room.release()  # a thread that waits for it looks then whether it is stopped
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        super().close()

    def _next(self) -> bool:
        if self._ended:
            return False
        if self._thread is None:  # a daemon: a server that stalls holds up no process that wants to end
            self._thread = threading.Thread(target=self._fetch, name="shardtool-ahead", daemon=True)
            self._thread.start()
        got: bytes | BaseException | None = None
        while got is None:
            with suppress(queue.Empty):
                got = self._queue.get(timeout=SLICE_S)
        self._room.release()
        self._ended = not isinstance(got, bytes) or not got
        if isinstance(got, BaseException):
            raise got
        self._piece = memoryview(got)
        return bool(got)

    def _fetch(self) -> None:
        """Hand over all pieces, and then nothing, or an error."""
        try:
            for piece in self._blob.pieces():
                self._room.acquire()
                if self._stopped:
                    return
                self._queue.put(piece)
            self._queue.put(b"")
        except BaseException as error:  # noqa: BLE001 - raised by the thread that reads
            self._queue.put(error)


class _ObjectFile(io.RawIOBase):
    """An object as a file that is read at any place, for libraries that want one: each read is a request."""

    def __init__(self, blob: RemoteObject) -> None:
        self._blob, self._at = blob, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._blob.size}[whence]
        return self._at

    def readinto(self, into: Buffer, /) -> int:
        view = memoryview(into).cast("B")
        data = self._blob.read(self._at, len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_object(address: str) -> BinaryIO:
    """Return an object at an address as a file of Python's; what is read of it is asked for then, some at a time.

    Raises:
        OSError: It is not there.
        ShardError: It cannot be read.
    """
    blob = open_remote(address)
    if not blob.ranges and blob.size <= _MAX_WHOLE_BYTES:
        return io.BytesIO(blob.read(0, blob.size))
    return io.BufferedReader(_ObjectFile(blob), BLOCK_BYTES)


def open_plain(path: str, flags: int = READ_FOLLOWING) -> tuple[int, os.stat_result]:
    """Return the descriptor of a plain file of the file system, and what fstat says of it.

    Raises:
        OSError: It cannot be opened, or is no plain file.
        StoreFailed: The machine is to blame.
    """
    with raising_machine_errors(path):
        fd = _open(path, flags)
    fact = _fstat(fd)
    if stat.S_ISREG(fact.st_mode):
        return fd, fact
    _close(fd)
    raise OSError(errno.EINVAL, "no plain file", path)


def open_file(path: str, flags: int = READ_FOLLOWING) -> OpenFile:
    """Return a plain file, or an object, to be read at any place.

    Raises:
        OSError: It cannot be opened, or is no plain file.
        ShardError: The machine, a store or a server fails.
    """
    return RemoteFile(path) if is_url(path) else LocalFile(open_plain(path, flags)[0])


def open_source_file(path: bytes, flags: int = READ_FOLLOWING) -> OpenFile:
    """Return a source's file to be read at any place; what it is, and whether it is what was listed, its fact tells.

    Raises:
        OSError: It cannot be opened.
        ShardError: A store or a server cannot be asked.
    """
    return RemoteFile(source_address(path)) if is_address(path) else LocalFile(_open(path, flags))


def read_file(path: bytes, into: memoryview, flags: int) -> tuple[int, FileInfo]:
    """Fill `into` from the start of a source's file; return how much there was, and what is said of it after that.

    A hot path: one call a source file. The caller compares both with what was planned, so a file
    of another size, or one that changed while it was read, cannot pass.

    Raises:
        OSError: It cannot be opened or read.
        ShardError: A store or a server cannot be asked.
    """
    if b"://" in path and is_address(path):
        data, said = objects.read_object(source_address(path), lambda size: size == len(into))
        into[: len(data)] = data
        return len(data), said
    fd = _open(path, flags)
    try:
        got = _readv(fd, (into,))
        while got < len(into) and (more := _readv(fd, (into[got:],))):  # a network file system may return less
            got += more
        return got, _fstat(fd)
    finally:
        _close(fd)


def read_unchanged(path: bytes, into: memoryview, flags: int) -> tuple[int, FileInfo]:
    """Read a source file as `read_file` does, again until its ctime is the same before and after the read.

    Raises:
        OSError: The file cannot be opened or read, or changes during every read.
        ShardError: A store or a server cannot be asked.
    """
    if is_address(path):
        return read_file(path, into, flags)
    for _ in range(MAX_READS):
        before = os.stat(path)
        got, fact = read_file(path, into, flags)
        if fact.st_ctime_ns == before.st_ctime_ns:
            return got, fact
    raise OSError(errno.ESTALE, "changed while it was read", path)


def read_blocks(path: str, flags: int = READ_FOLLOWING) -> Iterator[memoryview | bytes]:
    """Yield the bytes of a plain file, or of an object; of a local one in a buffer that each block fills anew.

    Raises:
        OSError: It cannot be opened or read, or is no plain file.
        ShardError: The machine, a store or a server fails.
    """
    if is_url(path):
        yield from open_remote(path).pieces()
        return
    with raising_machine_errors(path), open_file(path, flags) as file:
        yield from file.blocks(memoryview(bytearray(BLOCK_BYTES)))


def read_crc(path: str, took: Callable[[int], object] = lambda _: None) -> tuple[int, int]:
    """Return the size and the CRC-32C of a plain file that no link leads to, or of an object, which is read for that.

    Args:
        path: Where it is.
        took: Called with the bytes of each block.

    Raises:
        OSError: It cannot be opened or read, or is no plain file.
        ShardError: The machine, a store or a server fails.
    """
    size = crc = 0
    for block in read_blocks(path, READ_PLAIN):
        size, crc = size + len(block), crc32c(block, crc)
        took(len(block))
    return size, crc
