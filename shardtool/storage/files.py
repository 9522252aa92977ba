"""Open, read and look up files and objects, and list folders.

Opening a local FIFO or device never blocks. Symbolic links are followed, because Hugging Face's cache, DVC and
git-annex store shards behind links.

Unless a docstring says otherwise, functions and methods raise `OSError` if a file is missing or not regular, or
if an object has changed. They raise `ShardError` if a store or server fails or denies access, or if a local file
cannot be opened (for source files, `OSError`).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessRefused, raise_if_machine_error, raising_machine_errors
from shardtool.fingerprint import crc32c
from shardtool.storage import remote
from shardtool.storage.paths import base_name, folder_of, is_address, source_address
from shardtool.storage.remote.address import display_address, is_url, is_web
from shardtool.storage.remote.requests import Item, Result, imap_requests
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from shardtool.storage.remote.objects import FileInfo, RemoteFiles, RemoteObject

    OpenFile: TypeAlias = "LocalFile | RemoteObject"


_LARGE_FILE_BYTES = 2**25
READ_FOLLOWING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
READ_PLAIN = READ_FOLLOWING | os.O_NOFOLLOW
MAX_IOVEC = 1024
MAX_READS = 3
_MAX_SINGLE_LOOKUPS = 4
_open, _readv, _fstat, _close = os.open, os.readv, os.fstat, os.close


class LocalFile(AbstractContextManager["LocalFile"]):
    """An open local file.

    Attributes:
        max_gap_bytes: `ShardFile` reads ahead if at most this many bytes are skipped between two reads.
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
        while len(data) < length and (rest := os.pread(self._fd, length - len(data), offset + len(data))):
            data += rest  # a network file system may return fewer bytes than requested
        return data

    def read_into(self, into: memoryview, offset: int) -> int:
        size = os.preadv(self._fd, (into,), offset)
        while size < len(into) and (count := os.preadv(self._fd, (into[size:],), offset + size)):
            size += count
        return size

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        """Read `total` bytes at `offset` into `parts`, at most `MAX_IOVEC` buffers. Return the number of bytes read."""
        size = os.preadv(self._fd, parts, offset)
        if size == total or not size:
            return size
        # a network file system may return fewer bytes than requested, and a system call returns at most 2 GiB
        part_start = 0
        for part in parts:
            missing = part[max(0, size - part_start) :]
            part_start += len(part)
            size += self.read_into(missing, offset + size)
        return size

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


def open_plain(path: str, flags: int = READ_FOLLOWING) -> tuple[int, os.stat_result]:
    """Open a regular file, and return its descriptor and stat result."""
    with raising_machine_errors(path):
        fd = _open(path, flags)
    info = _fstat(fd)
    if stat.S_ISREG(info.st_mode):
        return fd, info
    _close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


class LocalFiles:
    """Reads local files and folders. Has the same methods as `RemoteFiles`."""

    def open(self, path: str, flags: int = READ_FOLLOWING) -> LocalFile:
        return LocalFile(open_plain(path, flags)[0])

    def read(self, path: str, check_size: Callable[[int], object], flags: int = READ_FOLLOWING) -> bytes:
        """Return the content of a file. `check_size` receives the size before the content is read."""
        with self.open(path, flags) as file:
            check_size(size := file.stat().st_size)
            return file.read(0, size)

    def read_end(self, path: str, limit: int) -> bytes:
        with self.open(path) as file:
            return file.read(max(0, file.stat().st_size - limit), limit)

    def blocks(self, path: str, flags: int = READ_FOLLOWING) -> Iterator[memoryview]:
        with raising_machine_errors(path), self.open(path, flags) as file:
            yield from file.blocks(memoryview(bytearray(BLOCK_BYTES)))

    def info(self, path: str) -> os.stat_result:
        return os.stat(path)

    def size(self, path: str) -> int | None:
        try:
            info = os.stat(path)
        except (OSError, ValueError) as error:
            raise_if_machine_error(error, path)
            return None
        return info.st_size if stat.S_ISREG(info.st_mode) else None

    def crc(self, _path: str) -> None:
        """Return None, because file systems store no checksum."""

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder or ".")
        except OSError as error:
            if not isinstance(error, PermissionError):  # files may be readable although the folder cannot be listed
                raise_if_machine_error(error, folder or ".")
            raise

    def list_folders(self, folder: str) -> list[str]:
        """Return the unsorted names of the subfolders of a folder. Links to folders are excluded."""
        return [entry.name for entry in iter_entries(folder or ".") if entry.is_dir(follow_symlinks=False)]

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)


_LOCAL = LocalFiles()


def stat_file(path: str | bytes) -> os.stat_result:
    """Return the stat result of a local path."""
    return os.stat(path)


def is_regular(path: str) -> bool:
    """Return whether a local path is a regular file, not a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def dangling_target(path: str) -> str | None:
    """Return the target of a broken symbolic link, or None for any other path."""
    try:
        return None if is_url(path) or os.path.exists(path) else os.readlink(path)
    except (OSError, ValueError):
        return None


def iter_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder one by one, because there can be millions."""
    with os.scandir(folder) as entries:
        yield from entries


def files_at(path: str) -> LocalFiles | RemoteFiles:
    """Return `RemoteFiles` if `path` is an address, else `LocalFiles`."""
    return remote.objects.REMOTE if is_url(path) else _LOCAL


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"", flags: int = READ_FOLLOWING) -> bytes:
    """Return the whole content of a file or object.

    Raise `OSError` if the file is larger than `limit` bytes, or if it is larger than 32 MiB and does not end with
    `ending`.
    """
    files = files_at(path)

    def check_size(size: int) -> None:
        if size > limit:
            raise OSError(errno.EFBIG, f"{size:,} bytes, too large", display_address(path))
        if ending and size > _LARGE_FILE_BYTES and files.read_end(path, len(ending)) != ending:
            raise OSError(errno.EINVAL, "content does not match the file name", display_address(path))

    return files.read(path, check_size, flags)


def read_optional(path: str) -> bytes | None:
    """Return the content of a small file, or None if it does not exist or a store denies access."""
    try:
        return read_small(path)
    except (OSError, AccessRefused):  # without list permission, requests for a missing object are denied
        return None


def read_head(path: str, limit: int, flags: int = READ_FOLLOWING) -> tuple[bytes, int]:
    """Return the first `limit` bytes of a regular file or object, and its size."""
    with files_at(path).open(path, flags) as file:
        return file.read(0, limit), file.stat().st_size


def read_tail(path: str, limit: int) -> bytes:
    """Return the last `limit` bytes of a regular file or object."""
    return files_at(path).read_end(path, limit)


def open_source_file(path: bytes, flags: int = READ_FOLLOWING) -> OpenFile:
    """Open a source file or object, without checking that a local file is regular."""
    return remote.objects.open_remote(source_address(path)) if is_address(path) else LocalFile(_open(path, flags))


def read_file(path: bytes, into: memoryview, flags: int, folder: int | None = None) -> tuple[int, FileInfo]:
    """Read a source file into `into`. Return the number of bytes read, and the stat result after reading.

    `folder` works like `dir_fd` in `os.open`.
    """
    if folder is None and is_address(path):
        data, info = remote.objects.read_object(source_address(path), lambda size: size == len(into))
        into[: len(data)] = data
        return len(data), info
    fd = _open(path, flags, dir_fd=folder)
    try:
        count = _readv(fd, (into,))
        while count < len(into) and (more_bytes := _readv(fd, (into[count:],))):
            count += more_bytes
        return count, _fstat(fd)
    finally:
        _close(fd)


def read_unchanged(path: bytes, into: memoryview, flags: int, folder: int | None = None) -> tuple[int, FileInfo]:
    """Read a source file as `read_file` does. If the ctime of a local file changes during the read, read it again.

    Raises:
        OSError: The file changed during each of `MAX_READS` attempts.
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
    """Yield the content of a file or object in blocks. A block is valid only until the next one is read."""
    return files_at(path).blocks(path, flags)


def read_crc(path: str, report_bytes: Callable[[int], object] = lambda _: None) -> tuple[int, int]:
    """Return the size and CRC-32C of an object or a regular file. Raise `OSError` for a symbolic link."""
    size = crc = 0
    for block in read_blocks(path, READ_PLAIN):
        size, crc = size + len(block), crc32c(block, crc)
        report_bytes(len(block))
    return size, crc


def is_file(path: str) -> bool:
    """Return whether a location is a regular file or an object."""
    return plain_size(path) is not None


def plain_size(path: str) -> int | None:
    """Return the size of a regular file or object, or None for anything else."""
    return files_at(path).size(path)


def plain_sizes(paths: Iterable[str]) -> list[int | None]:
    """Return the `plain_size` of each path, with few requests."""
    paths = list(paths)
    folders = [*{folder_of(path) for path in paths}]
    if len(paths) > _MAX_SINGLE_LOOKUPS and len(folders) == 1 and is_url(folders[0]) and not is_web(folders[0]):
        with suppress(AccessRefused):  # a store may allow reading but not listing
            sizes = {entry.name: entry.size for entry in remote.objects.list_entries(folders[0]) if not entry.is_folder}
            return [sizes.get(base_name(path)) for path in paths]
    return list(map_paths(plain_size, paths))


def map_paths(
    look_up: Callable[[Item], Result], items: Iterable[Item], path_of: Callable[[Item], str] = str
) -> Iterator[Result]:
    """Yield `look_up(item)` for each item, in order. If any path is a URL, the calls run in parallel threads."""
    items = list(items)
    return imap_requests(look_up, items) if any(is_url(path_of(item)) for item in items) else map(look_up, items)


def is_folder(path: str) -> bool:
    """Return whether a path is a folder. An address is a folder if a store has objects below it."""
    return files_at(path).is_folder(path)


def list_folder(folder: str) -> list[str]:
    """Return the names of the entries of a folder, unsorted."""
    return files_at(folder).names(folder)


def list_folder_names(folder: str, *, needed: bool = False) -> list[str]:
    """Return the sorted names in a folder, or [] for a web server or if a local folder cannot be read.

    If a store denies listing, return [] or, with `needed`, raise `AccessRefused`.
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
