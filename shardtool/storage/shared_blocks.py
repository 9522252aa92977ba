"""Memory blocks shared by processes: the first process that needs a block creates it.

Blocks are stored in one unnamed temporary file in TMPDIR, which disappears when the last process closes it. The
kernel keeps one copy of its pages for all processes and reclaims them when memory is short. Forked processes share
the file; other processes (spawn, forkserver) open it through /proc, as long as the process that created it lives.
If
that fails, each process makes its own blocks.

File layout: a word for the start of free space, then offset and size of each block. A block is visible once its
offset is written.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

from shardtool.storage.descriptors import write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_fork_hooks: WeakSet[ForkLock | SharedBlocks] = WeakSet()  # `after_fork` of each is called in a forked process


def _run_fork_hooks() -> None:
    for one in list(_fork_hooks):
        one.after_fork()


os.register_at_fork(after_in_child=_run_fork_hooks)


class ForkLock:
    """A lock that is free in a forked process, whichever thread held it at the fork."""

    def __init__(self) -> None:
        self.after_fork()
        _fork_hooks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()


_MAX_TOTAL_BYTES = 2**33  # bytes of blocks, and no more than a part of what the folder has free:


_FREE_SPACE_DIVISOR = 4


_ALIGNMENT_BYTES = 8


_ENTRY = struct.Struct("<qq")


_END = struct.Struct("<q")


_MAX_BLOCKS = 2**20


_HEADER_BYTES = _END.size + _MAX_BLOCKS * _ENTRY.size


class _FileOrigin(NamedTuple):
    """Where a process finds the file that another one made."""

    pid: int
    fd: int
    identity: tuple[int, int]

    def open(self) -> int | None:
        """Return a descriptor of its own; None where the file is gone."""
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        if _file_identity(fd) == self.identity:
            return fd
        os.close(fd)  # another process has the number now
        return None


def _file_identity(fd: int) -> tuple[int, int]:
    fact = os.fstat(fd)
    return fact.st_dev, fact.st_ino


class SharedBlocks:
    """Blocks by number, of which the first million are kept.

    They are safe in threads and processes, and picklable: the other process then shares them.
    """

    def __init__(self) -> None:
        self._most = 0
        self._start(_create_unnamed_file())
        if self._origin is not None:
            free = os.fstatvfs(self._fd)
            self._most = min(_MAX_TOTAL_BYTES, free.f_bavail * free.f_frsize // _FREE_SPACE_DIVISOR)

    def _start(self, fd: int | None) -> None:
        self._fd, self._lock = -1 if fd is None else fd, threading.Lock()
        self._maps: list[mmap.mmap] = []  # of the file as it grew: the last one has all of it
        self._origin: _FileOrigin | None = None
        if fd is not None:
            self._origin = _FileOrigin(os.getpid(), fd, _file_identity(fd))
            _fork_hooks.add(self)

    def after_fork(self) -> None:
        """Open the file anew: `flock` keeps apart only those who opened it by themselves."""
        fd = None if self._origin is None else _FileOrigin(os.getpid(), self._origin.fd, self._origin.identity).open()
        if self._is_open():
            os.close(self._fd)
        before = self._maps
        self._start(fd)
        self._maps = before

    def __getstate__(self) -> tuple[int, _FileOrigin | None]:
        return self._most, self._origin

    def __setstate__(self, state: tuple[int, _FileOrigin | None]) -> None:
        self._most, origin = state
        self._start(None if origin is None else origin.open())

    def __del__(self) -> None:
        if os is not None and self._is_open():  # at the interpreter's end, modules are gone
            os.close(self._fd)

    def read(self, number: int) -> memoryview | None:
        """Return a block; None where no process has made it."""
        if number >= _MAX_BLOCKS or not self._is_open():
            return None
        entry = os.pread(self._fd, _ENTRY.size, self._entry(number))
        start, size = _ENTRY.unpack(entry) if len(entry) == _ENTRY.size else (0, 0)
        if not start:
            return None
        with self._lock:
            if not self._maps or start + size > len(self._maps[-1]):
                self._maps.append(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))
            return memoryview(self._maps[-1])[start : start + size]

    def write(self, number: int, size: int, parts: Iterable[tuple[int, bytes | memoryview]]) -> memoryview | None:
        """Make a block, and return it; None where there is no room for it.

        Args:
            number: Which block.
            size: Its bytes.
            parts: Places in it, and what stands there.
        """
        if number >= _MAX_BLOCKS or not self._is_open():
            return None
        try:
            start = self._reserve(size)
            if start is None:
                return None
            for at, data in parts:
                write_all(self._fd, data, start + at)
            os.pwrite(self._fd, _END.pack(size), self._entry(number) + _ALIGNMENT_BYTES)
            os.pwrite(self._fd, _END.pack(start), self._entry(number))
        except OSError:  # a full disk
            self._most = 0
            return None
        return self.read(number)

    def release_lease(self) -> None:
        """Let the system take back the pages that this process has looked at; they are there when next needed."""
        with self._lock:
            for one in self._maps if hasattr(mmap, "MADV_DONTNEED") else ():
                one.madvise(mmap.MADV_DONTNEED)

    def _is_open(self) -> bool:
        """Tell whether the descriptor is still that of the file: a program may close all descriptors."""
        if self._origin is None:
            return False
        try:
            return _file_identity(self._fd) == self._origin.identity
        except OSError:
            return False

    def _entry(self, number: int) -> int:
        return _END.size + number * _ENTRY.size

    def _reserve(self, size: int) -> int | None:
        """Return where a block of such a size may stand; None where that would be too much."""
        fd = self._fd
        with self.alone():
            (start,) = _END.unpack(os.pread(fd, _END.size, 0) or bytes(_END.size))
            start = -(-max(int(start), _HEADER_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = start + size
            if end > _HEADER_BYTES + self._most:
                return None
            os.pwrite(fd, _END.pack(end), 0)
            if end > os.fstat(fd).st_size:
                os.ftruncate(fd, 2 * end)  # sparse, so that it is seldom mapped anew
            return start

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep out other threads and, where there is a file, other processes."""
        with self._lock:
            locks = self._is_open()
            if locks:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if locks:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)


def _create_unnamed_file() -> int | None:
    """Return the descriptor of a new file; None where files cannot be shared, or there is no folder for it."""
    from tempfile import TemporaryFile

    if not os.path.isdir("/proc/self/fd"):
        return None
    try:
        with TemporaryFile() as file:
            return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
