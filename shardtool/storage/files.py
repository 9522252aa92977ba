"""Open, read and look up files and objects, and list folders.

Opening a local FIFO or device never blocks. Symbolic links are followed, because Hugging Face's cache, DVC and
git-annex store shards behind links. Web servers cannot be listed.

Functions and methods raise `OSError` if a file is missing, unreadable or not regular, or if an object has changed,
unless they say otherwise. They raise `ShardError` if the machine, a store or a server fails.
"""

from __future__ import annotations

import errno
import io
import os
import queue
import stat
import threading
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from shardtool.errors import AccessRefused, raise_if_machine_error, raising_machine_errors
from shardtool.fingerprint import crc32c
from shardtool.names import to_bytes
from shardtool.storage import remote
from shardtool.storage.paths import base_name, folder_of, is_address, source_address
from shardtool.storage.remote import address
from shardtool.storage.remote.address import display_address, is_url, is_web, parse_address
from shardtool.storage.remote.requests import Item, Result, imap_requests, request_threads
from shardtool.storage.remote.retry import SLICE_S, wait_interruptibly
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from typing_extensions import Buffer

    from shardtool.storage.remote.buckets import BucketEntry
    from shardtool.storage.remote.objects import FileInfo, ObjectInfo, RemoteObject


_LARGE_FILE_BYTES = 2**25
READ_FOLLOWING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
READ_PLAIN = READ_FOLLOWING | os.O_NOFOLLOW
MAX_IOVEC = 1024
_CLOSE_TIMEOUT_S = 1.0
_MAX_QUEUED_PIECES = 16


# While reads are sequential, each request is twice as large as the previous one.
_MIN_READ_AHEAD_BYTES, _MAX_READ_AHEAD_BYTES = 2**16, 2**21
_MAX_GAP_BYTES = 2**16
_MAX_WHOLE_BYTES = 2**30  # limit for reading an object into memory if the server does not support range requests
MAX_READS = 3
_open, _readv, _fstat, _close = os.open, os.readv, os.fstat, os.close


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"", flags: int = READ_FOLLOWING) -> bytes:
    """Return the whole content of a file or object.

    Raise `OSError` if the file is larger than `limit` bytes, or larger than 32 MiB without `ending` at its end.
    """
    where = display_address(path) if is_url(path) else path

    def check(size: int, read_end: Callable[[], bytes]) -> None:
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, too large", where)
        if ending and size > _LARGE_FILE_BYTES and read_end() != ending:
            raise OSError(errno.EINVAL, "content does not match the file name", where)

    if is_url(path):
        read_end = partial(remote.objects.read_object_end, path, len(ending))
        return remote.objects.read_object(path, lambda size: check(size, read_end))[0]
    with open_file(path, flags) as file:
        size = file.stat().st_size
        check(size, lambda: file.read(size - len(ending), len(ending)))
        return file.read(0, size)


def read_optional(path: str) -> bytes | None:
    """Return the content of a small file, or None if the file cannot be read."""
    try:
        return read_small(path)
    except (OSError, AccessRefused):  # a store that denies listing also denies access to objects that do not exist
        return None


def read_head(path: str, limit: int, flags: int = READ_FOLLOWING) -> tuple[bytes, int]:
    """Return the first `limit` bytes of a regular file, and its size."""
    with open_file(path, flags) as file:
        return file.read(0, limit), file.stat().st_size


def read_tail(path: str, limit: int) -> bytes:
    """Return the last `limit` bytes of a regular file or object."""
    if is_url(path):
        return remote.objects.read_object_end(path, limit)
    with open_file(path) as file:
        return file.read(max(0, file.stat().st_size - limit), limit)


class LocalFile(AbstractContextManager["LocalFile"]):
    """An open local file.

    Attributes:
        max_gap_bytes: Ranges with a gap of at most this size are read together, to save a system call.
    """

    sequential_read_bytes, random_read_bytes, max_gap_bytes = 2**17, 2**12, 2**16

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __exit__(self, *_: object) -> None:
        self.close()

    def stat(self) -> os.stat_result:
        return _fstat(self._fd)

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, or fewer at the end of the file."""
        data = os.pread(self._fd, length, offset)
        while len(data) < length and (more := os.pread(self._fd, length - len(data), offset + len(data))):
            data += more  # a network file system may return fewer bytes
        return data

    def read_into(self, into: memoryview, offset: int) -> int:
        total = len(into)
        done = os.preadv(self._fd, (into,), offset)
        while done < total and (count := os.preadv(self._fd, (into[done:],), offset + done)):
            done += count
        return done

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        """Fill at most `MAX_IOVEC` buffers with `total` bytes from `offset`. Return the number of bytes read."""
        done = os.preadv(self._fd, parts, offset)
        if done == total or not done:
            return done
        # a network file system may return fewer bytes, and a system call returns at most 2 GiB
        before = 0
        for part in parts:
            missing = part[max(0, done - before) :]
            before += len(part)
            done += self.read_into(missing, offset + done)
        return done

    def blocks(self, into: memoryview) -> Iterator[memoryview]:
        """Yield the rest of a regular file in blocks. All blocks use the buffer `into`, so copy what you keep."""
        if stat.S_ISREG(self.stat().st_mode):
            while count := _readv(self._fd, (into,)):
                yield into[:count]

    def stream(self) -> io.BufferedReader:
        """Return a file object that reads from the current position. The caller must also close this `LocalFile`."""
        return os.fdopen(os.dup(self._fd), "rb")

    def expect_random_reads(self) -> None:
        """Tell the operating system not to read ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        _close(self._fd)


class RemoteFile(AbstractContextManager["RemoteFile"]):
    """An object in a store or on a web server, with the methods of `LocalFile`.

    Sequential reads request the next bytes in advance.
    """

    sequential_read_bytes, random_read_bytes, max_gap_bytes = 2**22, 2**16, 2**20

    def __init__(self, address: str) -> None:
        self._object = remote.objects.open_remote(address)
        self._window, self._window_start, self._request_bytes = b"", 0, 0
        self._next_request: tuple[int, Future[bytes]] | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def stat(self) -> ObjectInfo:
        return self._object.stat()

    def read(self, offset: int, length: int) -> bytes:
        return self._object.read(offset, length)

    def read_into(self, into: memoryview, offset: int) -> int:
        done = 0
        while done < len(into) and offset + done < self._object.size:
            start = offset + done - self._window_start
            if not 0 <= start < len(self._window):
                self._load_window(offset + done, len(into) - done)
                start = 0
            piece = self._window[start : start + len(into) - done]
            into[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        done = 0
        for part in parts:
            done += self.read_into(part, offset + done)
        return min(done, total)

    def blocks(self, _into: memoryview) -> Iterator[memoryview]:
        """Yield the whole object and verify its checksum at the end."""
        return map(memoryview, self._object.verified_pieces())

    def stream(self) -> io.BufferedReader:
        return io.BufferedReader(ReadAheadStream(self._object), self.sequential_read_bytes)

    def expect_random_reads(self) -> None:
        """Do nothing, because only sequential reads are read ahead."""

    def close(self) -> None:
        if self._next_request is not None:
            self._next_request[1].cancel()

    def _load_window(self, offset: int, min_bytes: int) -> None:
        is_sequential = 0 <= offset - self._window_start - len(self._window) <= _MAX_GAP_BYTES and bool(self._window)
        next_bytes = 2 * self._request_bytes if is_sequential else _MIN_READ_AHEAD_BYTES
        self._request_bytes = min(_MAX_READ_AHEAD_BYTES, next_bytes)
        request, self._next_request = self._next_request, None
        if request is not None and request[0] == offset:
            self._window = wait_interruptibly(request[1]).result()
        else:
            self._window = self._object.read(offset, max(self._request_bytes, min(min_bytes, _MAX_READ_AHEAD_BYTES)))
        self._window_start = offset
        end = offset + len(self._window)
        if is_sequential and end < self._object.size:
            self._next_request = end, request_threads().submit(self._object.read, end, self._request_bytes)


OpenFile = LocalFile | RemoteFile


class ReadAheadStream(io.RawIOBase):
    """A stream of an object's bytes, which a thread downloads in advance with one request."""

    def __init__(self, source: RemoteObject) -> None:
        super().__init__()
        self._object, self._piece = source, memoryview(b"")
        self._queue: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()
        self._free_slots = threading.Semaphore(_MAX_QUEUED_PIECES)
        self._stopped, self._ended = False, False
        self._thread: threading.Thread | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, into: Buffer, /) -> int:
        view, done = memoryview(into).cast("B"), 0
        while done < len(view) and (self._piece or self._next_piece()):
            chunk = self._piece[: len(view) - done]
            view[done : done + len(chunk)] = chunk
            self._piece = self._piece[len(chunk) :]
            done += len(chunk)
        return done

    def close(self) -> None:
        self._stopped = True
        self._free_slots.release()  # wake the thread, which may be waiting for a slot
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        super().close()

    def _next_piece(self) -> bool:
        if self._ended:
            return False
        if self._thread is None:  # a daemon thread does not prevent the process from exiting
            self._thread = threading.Thread(target=self._fetch, name="shardtool-ahead", daemon=True)
            self._thread.start()
        piece: bytes | BaseException | None = None
        while piece is None:
            with suppress(queue.Empty):
                piece = self._queue.get(timeout=SLICE_S)
        self._free_slots.release()
        self._ended = not isinstance(piece, bytes) or not piece
        if isinstance(piece, BaseException):
            raise piece
        self._piece = memoryview(piece)
        return bool(piece)

    def _fetch(self) -> None:
        try:
            for piece in self._object.pieces():
                self._free_slots.acquire()
                if self._stopped:
                    return
                self._queue.put(piece)
            self._queue.put(b"")
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that reads
            self._queue.put(error)


class _ObjectFile(io.RawIOBase):
    def __init__(self, source: RemoteObject) -> None:
        self._object, self._position = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._object.size}[whence]
        return self._position

    def readinto(self, into: Buffer, /) -> int:
        view = memoryview(into).cast("B")
        data = self._object.read(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def open_object(address: str) -> BinaryIO:
    """Return a seekable file object that reads an object with range requests, if the server supports them."""
    source = remote.objects.open_remote(address)
    if not source.ranges and source.size <= _MAX_WHOLE_BYTES:
        return io.BytesIO(source.read(0, source.size))
    return io.BufferedReader(_ObjectFile(source), BLOCK_BYTES)


def open_plain(path: str, flags: int = READ_FOLLOWING) -> tuple[int, os.stat_result]:
    """Open a regular file, and return its descriptor and stat result."""
    with raising_machine_errors(path):
        fd = _open(path, flags)
    info = _fstat(fd)
    if stat.S_ISREG(info.st_mode):
        return fd, info
    _close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


def open_file(path: str, flags: int = READ_FOLLOWING) -> OpenFile:
    """Open a file or object for random access."""
    return RemoteFile(path) if is_url(path) else LocalFile(open_plain(path, flags)[0])


def open_source_file(path: bytes, flags: int = READ_FOLLOWING) -> OpenFile:
    """Open a source file or object, without checking that a local file is regular."""
    return RemoteFile(source_address(path)) if is_address(path) else LocalFile(_open(path, flags))


def read_file(path: bytes, into: memoryview, flags: int, folder: int | None = None) -> tuple[int, FileInfo]:
    """Read a source file into `into`. Return the number of bytes read, and the stat result after reading.

    `folder` is the descriptor of the folder that contains a relative `path`.
    """
    if folder is None and is_address(path):
        data, info = remote.objects.read_object(source_address(path), lambda size: size == len(into))
        into[: len(data)] = data
        return len(data), info
    fd = _open(path, flags, dir_fd=folder)
    try:
        count = _readv(fd, (into,))
        while count < len(into) and (more := _readv(fd, (into[count:],))):
            count += more
        return count, _fstat(fd)
    finally:
        _close(fd)


def read_unchanged(path: bytes, into: memoryview, flags: int, folder: int | None = None) -> tuple[int, FileInfo]:
    """Read a source file as `read_file` does, but repeat the read if the ctime of the file changes meanwhile.

    Raises:
        OSError: The file changed during `MAX_READS` attempts.
    """
    if folder is None and is_address(path):
        return read_file(path, into, flags)
    for _ in range(MAX_READS):
        before = os.stat(path, dir_fd=folder)
        count, after = read_file(path, into, flags, folder)
        if after.st_ctime_ns == before.st_ctime_ns:
            return count, after
    raise OSError(errno.ESTALE, "changed while it was read", path)


def read_blocks(path: str, flags: int = READ_FOLLOWING) -> Iterator[memoryview | bytes]:
    """Yield the content of a file or object in blocks. Each block may overwrite the previous one."""
    if is_url(path):
        yield from remote.objects.open_remote(path).pieces()
        return
    with raising_machine_errors(path), open_file(path, flags) as file:
        yield from file.blocks(memoryview(bytearray(BLOCK_BYTES)))


def read_crc(path: str, report_bytes: Callable[[int], object] = lambda _: None) -> tuple[int, int]:
    """Return the size and CRC-32C of an object or a regular file. A link raises `OSError`."""
    size = crc = 0
    for block in read_blocks(path, READ_PLAIN):
        size, crc = size + len(block), crc32c(block, crc)
        report_bytes(len(block))
    return size, crc


_MAX_SINGLE_LOOKUPS = 4


def stat_file(path: str) -> os.stat_result:
    """Return the stat result of a local path."""
    return os.stat(path)


def file_info(path: str | bytes) -> FileInfo:
    """Return the size and times of a file, or the size and version of an object."""
    location = to_bytes(path) if isinstance(path, str) else path
    return remote.objects.open_remote(source_address(location)).stat() if is_address(location) else os.stat(path)


def is_file(path: str) -> bool:
    """Return whether a location is a regular file or an object."""
    return plain_size(path) is not None


def is_regular(path: str) -> bool:
    """Return whether a local path is a regular file, and not a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def plain_size(path: str) -> int | None:
    """Return the size of a regular file or object, or None for anything else."""
    try:
        if is_url(path):
            return remote.objects.open_remote(path).size
        info = os.stat(path)
    except (OSError, ValueError) as error:
        if is_url(path) and not isinstance(error, FileNotFoundError):
            raise
        raise_if_machine_error(error, path)
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


def plain_sizes(paths: Iterable[str]) -> list[int | None]:
    """Return the `plain_size` of each path, with few requests."""
    paths = list(paths)
    folders = [*{folder_of(path) for path in paths}]
    if len(paths) > _MAX_SINGLE_LOOKUPS and len(folders) == 1 and is_url(folders[0]) and not is_web(folders[0]):
        with suppress(AccessRefused):  # a store may allow reading but not listing
            sizes = {entry.name: entry.size for entry in _list_remote(folders[0]) if not entry.is_folder}
            return [sizes.get(base_name(path)) for path in paths]
    return list(map_paths(plain_size, paths))


def recorded_crc(path: str) -> int | None:
    """Return the CRC-32C that a store has recorded for an object, or None."""
    return remote.objects.object_crc(path) if is_url(path) else None


def map_paths(
    look_up: Callable[[Item], Result], items: Iterable[Item], path_of: Callable[[Item], str] = str
) -> Iterator[Result]:
    """Yield `look_up(item)` for each item, in order. If any path is a URL, the calls run in parallel threads."""
    items = list(items)
    return imap_requests(look_up, items) if any(is_url(path_of(item)) for item in items) else map(look_up, items)


def dangling_target(path: str) -> str | None:
    """Return the target of a broken symbolic link, or None for any other path."""
    try:
        return None if os.path.exists(path) else os.readlink(path)
    except (OSError, ValueError):
        return None


def is_folder(path: str) -> bool:
    """Return whether a path is a folder. An address is a folder if a store has objects below it."""
    if not is_url(path) or is_web(path):
        return not is_url(path) and os.path.isdir(path)
    # one request lists the first objects below an address, but listing the names in a folder can take many
    entries = iter_objects(path) if parse_address(path).scheme in address.STORES else list_folder(path)
    return any(True for _ in entries)


def list_folder(folder: str) -> list[str]:
    """Return the names of the entries of a folder, unsorted."""
    if is_url(folder):
        return [entry.name for entry in _list_remote(folder)]
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        if not isinstance(error, PermissionError):  # files may be readable in a folder that cannot be listed
            raise_if_machine_error(error, folder or ".")
        raise


def list_folder_names(folder: str, *, needed: bool = False) -> list[str]:
    """Return the sorted names in a folder, or an empty list if the folder cannot be listed.

    If `needed`, raise an error if a store denies listing.
    """
    try:
        return [] if is_web(folder) else sorted(list_folder(folder))
    except OSError:
        if is_url(folder):
            raise
    except AccessRefused:
        if needed:
            raise
    return []


def list_folders(folder: str) -> list[str]:
    """Return the names of the subfolders of a folder, unsorted, without links to folders."""
    if is_url(folder):
        return [entry.name for entry in _list_remote(folder) if entry.is_folder]
    return [entry.name for entry in iter_entries(folder or ".") if entry.is_dir(follow_symlinks=False)]


def iter_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder one by one, because there can be millions."""
    with os.scandir(folder) as entries:
        yield from entries


def iter_objects(folder: str) -> Iterator[BucketEntry]:
    """Yield all objects below an address, with keys relative to the address.

    An empty object may represent a folder. Its key is returned without the slash at its end.
    """
    prefix_length = len(parse_address(folder).key.rstrip("/"))
    for entry in _list_remote(folder, below=True):
        if relative_key := entry.key[prefix_length:].lstrip("/"):
            yield entry._replace(key=relative_key)


def _list_remote(folder: str, *, below: bool = False) -> Iterator[BucketEntry]:
    if address.is_huggingface(folder) or address.uses_fsspec(folder):
        return remote.fsspec.list_fsspec(folder, below=below)
    return remote.buckets.list_objects(folder, below=below)
