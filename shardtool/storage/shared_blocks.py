"""Share blocks of memory between processes. The first process that needs a block creates it.

All blocks are in one unnamed temporary file in TMPDIR (docs/decisions/015-shared-indexes.md).

The file starts with a header: the offset of the free space, then the offset and size of each block.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakSet

from shardtool.storage.descriptors import write_all

_fork_hooks: WeakSet[ForkLock | SharedBlocks] = WeakSet()


def _run_fork_hooks() -> None:
    for hook in list(_fork_hooks):
        hook.after_fork()


os.register_at_fork(after_in_child=_run_fork_hooks)


class ForkLock:
    """A thread lock. A forked child creates a new lock, because a thread of the parent may hold the old one."""

    def __init__(self) -> None:
        self.after_fork()
        _fork_hooks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.Lock()


_MAX_TOTAL_BYTES = 2**33
_FREE_SPACE_DIVISOR = 4
_ENTRY = struct.Struct("<qq")
_NUMBER = struct.Struct("<q")
_MAX_BLOCKS = 2**20
_HEADER_BYTES = _NUMBER.size + _MAX_BLOCKS * _ENTRY.size


class _FileOrigin(NamedTuple):
    pid: int
    fd: int
    identity: tuple[int, int]

    def open(self) -> int | None:
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        if _file_identity(fd) == self.identity:
            return fd
        os.close(fd)
        return None


def _file_identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


class SharedBlocks:
    """Numbered blocks that processes share. Blocks with a number of 2**20 or more are not stored.

    All methods are thread-safe. An unpickled copy shares the blocks of the original.
    """

    def __init__(self) -> None:
        self._max_bytes = 0
        self._use_file(_create_unnamed_file())
        if self._origin is not None:
            info = os.fstatvfs(self._fd)
            self._max_bytes = min(_MAX_TOTAL_BYTES, info.f_bavail * info.f_frsize // _FREE_SPACE_DIVISOR)

    def _use_file(self, fd: int | None) -> None:
        self._fd = -1 if fd is None else fd
        self._lock = threading.Lock()
        self._mappings: list[mmap.mmap] = []
        self._origin: _FileOrigin | None = None
        if fd is not None:
            self._origin = _FileOrigin(os.getpid(), fd, _file_identity(fd))
            _fork_hooks.add(self)

    def after_fork(self) -> None:
        """Open the file again in a forked child. An inherited descriptor would share the parent's `flock` lock."""
        fd = None if self._origin is None else _FileOrigin(os.getpid(), self._origin.fd, self._origin.identity).open()
        if self._is_open():
            os.close(self._fd)
        mappings = self._mappings
        self._use_file(fd)
        self._mappings = mappings

    def __getstate__(self) -> tuple[int, _FileOrigin | None]:
        return self._max_bytes, self._origin

    def __setstate__(self, state: tuple[int, _FileOrigin | None]) -> None:
        self._max_bytes, origin = state
        self._use_file(None if origin is None else origin.open())

    def __del__(self) -> None:
        if os is not None and self._is_open():  # at exit, Python sets module variables to None
            os.close(self._fd)

    def read(self, number: int) -> memoryview | None:
        """Return a block, or None if it does not exist."""
        if number >= _MAX_BLOCKS or not self._is_open():
            return None
        entry = os.pread(self._fd, _ENTRY.size, self._entry_offset(number))
        start, size = _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else (0, 0)
        if not start:
            return None
        with self._lock:
            if not self._mappings or start + size > len(self._mappings[-1]):
                self._mappings.append(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))
            return memoryview(self._mappings[-1])[start : start + size]

    def write(self, number: int, size: int, parts: Iterable[tuple[int, bytes | memoryview]]) -> memoryview | None:
        """Create a block and return it, or None if there is no space.

        Each of `parts` is an offset in the block, and the data to write at this offset.
        """
        if number >= _MAX_BLOCKS or not self._is_open():
            return None
        try:
            start = self._reserve(size)
            if start is None:
                return None
            for offset, data in parts:
                write_all(self._fd, data, start + offset)
            # write the offset last, because it makes the block visible
            os.pwrite(self._fd, _NUMBER.pack(size), self._entry_offset(number) + _NUMBER.size)
            os.pwrite(self._fd, _NUMBER.pack(start), self._entry_offset(number))
        except OSError:
            self._max_bytes = 0
            return None
        return self.read(number)

    def release_pages(self) -> None:
        """Let the operating system reclaim the pages that this process has mapped."""
        with self._lock:
            for mapping in self._mappings if hasattr(mmap, "MADV_DONTNEED") else ():
                mapping.madvise(mmap.MADV_DONTNEED)

    def _is_open(self) -> bool:
        """Return whether the descriptor still refers to the file. The program may have closed it."""
        if self._origin is None:
            return False
        try:
            return _file_identity(self._fd) == self._origin.identity
        except OSError:
            return False

    def _entry_offset(self, number: int) -> int:
        return _NUMBER.size + number * _ENTRY.size

    def _reserve(self, size: int) -> int | None:
        fd = self._fd
        with self.locked():
            (start,) = _NUMBER.unpack(os.pread(fd, _NUMBER.size, 0) or bytes(_NUMBER.size))
            start = -(-max(int(start), _HEADER_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = start + size
            if end > _HEADER_BYTES + self._max_bytes:
                return None
            os.pwrite(fd, _NUMBER.pack(end), 0)
            if end > os.fstat(fd).st_size:
                # Double the file's size, so mmap is called rarely. The unused half is sparse.
                os.ftruncate(fd, 2 * end)
            return start

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other threads and processes during the `with` block."""
        with self._lock:
            is_open = self._is_open()
            if is_open:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if is_open:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)


def _create_unnamed_file() -> int | None:
    from tempfile import TemporaryFile

    if not os.path.isdir("/proc/self/fd"):
        return None
    try:
        with TemporaryFile() as file:
            return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
