"""What processes share: locks on files, locks that survive a fork, and blocks of bytes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import threading
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Locks on files that die with their process, whatever ends it: `flock`, taken without waiting.
#
# A lock belongs to what `open` returned. It ends when the last descriptor of that is closed, which the kernel does for
# a killed process, too. A forked child has descriptors of its own: it keeps a *shared* lock of its parent alive, for it
# may read that file, and lets go an *exclusive* one at once, for the thread that works under it stays with the parent.
# POSIX's own locks (`lockf`) would end with any descriptor of the file that is closed in the process.


NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system without
_BUSY = (errno.EAGAIN, errno.EACCES)
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Lock(AbstractContextManager["Lock"]):
    """A lock that is held until it is closed.

    Attributes:
        path: The file that is locked.
        fact: What fstat said of it.
    """

    def __init__(self, path: str, fd: int, *, shared: bool) -> None:
        self.path, self.fact, self._fd, self._shared = path, os.fstat(fd), fd, shared
        if not shared:
            _exclusive[fd] = self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._shared:  # the others are kept in a table until they are closed
            self.close()

    def used(self, now_ns: int) -> None:
        """Note in the file's access time that it is used, where that is allowed."""
        with suppress(OSError):
            os.utime(self._fd, ns=(now_ns, self.fact.st_mtime_ns))

    def put(self, data: bytes) -> None:
        """Make `data` the beginning of the file, which must be locked exclusively.

        Raises:
            OSError: The disk is full, or refuses.
        """
        os.pwrite(self._fd, data, 0)

    def close(self) -> None:
        """Let the lock go. The file stays."""
        if _exclusive is None:  # the interpreter ends: its modules are gone, and the system closes files
            return
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if not self._shared:
                _exclusive.pop(fd, None)
            os.close(fd)


_exclusive: dict[int, Lock] = {}


def take_lock(path: str, *, shared: bool = False, create: bool = False) -> Lock | None:
    """Return a lock on a plain file; None: another holds one that excludes it.

    A file that lost its name meanwhile is tried again under its name: a lock on a file without a name guards nothing.

    Args:
        path: The file. A link is not followed.
        shared: Others may hold it, too, unless they want it alone.
        create: Make an empty file where there is none.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It cannot be opened, is no plain file, or the file system knows no locks.
    """
    flags = (os.O_RDONLY if shared else os.O_RDWR) | (os.O_CREAT if create else 0) | _OPEN
    while True:
        fd = os.open(path, flags, 0o666)
        lock = Lock(path, fd, shared=shared)
        try:
            if not _locked(lock, fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                lock.close()
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(lock.fact, os.lstat(path)):
                    return lock
        except BaseException:
            lock.close()
            raise
        lock.close()


def _locked(lock: Lock, fd: int, kind: int) -> bool:
    """Take a lock; return whether it was to be had."""
    if not stat.S_ISREG(lock.fact.st_mode):
        raise OSError(errno.EINVAL, "no plain file", lock.path)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def _let_go() -> None:
    """Close the exclusive locks of the parent, in a child that was just forked."""
    for lock in [*_exclusive.values()]:
        lock.close()


os.register_at_fork(after_in_child=_let_go)


def open_by(folder: str) -> dict[str, list[int]]:
    """Return which processes have files below a folder open, as far as this system shows: path to their ids."""
    found: dict[str, list[int]] = {}
    top = os.path.join(os.path.realpath(folder), "")
    with suppress(OSError):
        for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
            with suppress(OSError):  # it ended, or is another user's
                paths = {_target(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                for path in paths:
                    if path.startswith(top):
                        found.setdefault(path, []).append(pid)
    return found


def _target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)
    return ""


def write_all(fd: int, data: bytes | memoryview, at: int | None = None) -> None:
    """Write all of `data`, at a place in a file or behind what was written last, in as many calls as that takes.

    Raises:
        OSError: The disk is full, or refuses.
    """
    rest = memoryview(data).cast("B")
    while rest:
        done = os.write(fd, rest) if at is None else os.pwrite(fd, rest, at)
        rest, at = rest[done:], None if at is None else at + done


# Blocks of bytes that several processes share: each is made once, by the process that needs it first.
#
# They lie in one temporary file without a name, in the folder that TMPDIR says: nothing is left of it when the last
# process that has it open ends, however that happens. Its pages belong to the system, which has them once for all
# processes and takes them back when memory is short. Forked processes share the file as they are; others (spawn,
# forkserver) open it by way of /proc, from the process that made it and for as long as that lives. Where none of this
# can be done, there are no shared blocks, and each process makes its own.
#
# The file starts with a word for where free space begins, and room for two of each block, which takes none before they
# are written: its place and its size. A block is seen once it has a place.


# Objects with locks, made fit for use in a process that was forked while another thread held them.


_OBJECTS: WeakSet[ForkLock | SharedBlocks] = WeakSet()  # `after_fork` of each is called in a forked process


def _renew() -> None:
    for one in list(_OBJECTS):
        one.after_fork()


os.register_at_fork(after_in_child=_renew)


class ForkLock:
    """A lock that is free in a forked process, whichever thread held it at the fork."""

    def __init__(self) -> None:
        self.after_fork()
        _OBJECTS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()


_MOST = 2**33  # bytes of blocks, and no more than a part of what the folder has free:
_PART_OF_FREE = 4
_WORD = 8
_ENTRY = struct.Struct("<qq")
_END = struct.Struct("<q")
_MOST_BLOCKS = 2**20
_HEAD = _END.size + _MOST_BLOCKS * _ENTRY.size


class _Origin(NamedTuple):
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
        if _identity(fd) == self.identity:
            return fd
        os.close(fd)  # another process has the number now
        return None


def _identity(fd: int) -> tuple[int, int]:
    fact = os.fstat(fd)
    return fact.st_dev, fact.st_ino


class SharedBlocks:
    """Blocks by number, of which the first million are kept.

    They are safe in threads and processes, and picklable: the other process then shares them.
    """

    def __init__(self) -> None:
        self._most = 0
        self._start(_made())
        if self._origin is not None:
            free = os.fstatvfs(self._fd)
            self._most = min(_MOST, free.f_bavail * free.f_frsize // _PART_OF_FREE)

    def _start(self, fd: int | None) -> None:
        self._fd, self._lock = -1 if fd is None else fd, threading.Lock()
        self._maps: list[mmap.mmap] = []  # of the file as it grew: the last one has all of it
        self._origin: _Origin | None = None
        if fd is not None:
            self._origin = _Origin(os.getpid(), fd, _identity(fd))
            _OBJECTS.add(self)

    def after_fork(self) -> None:
        """Open the file anew: `flock` keeps apart only those who opened it by themselves."""
        fd = None if self._origin is None else _Origin(os.getpid(), self._origin.fd, self._origin.identity).open()
        if self._is_open():
            os.close(self._fd)
        before = self._maps
        self._start(fd)
        self._maps = before

    def __getstate__(self) -> tuple[int, _Origin | None]:
        return self._most, self._origin

    def __setstate__(self, state: tuple[int, _Origin | None]) -> None:
        self._most, origin = state
        self._start(None if origin is None else origin.open())

    def __del__(self) -> None:
        if os is not None and self._is_open():  # at the interpreter's end, modules are gone
            os.close(self._fd)

    def read(self, number: int) -> memoryview | None:
        """Return a block; None where no process has made it."""
        if number >= _MOST_BLOCKS or not self._is_open():
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
        if number >= _MOST_BLOCKS or not self._is_open():
            return None
        try:
            start = self._reserve(size)
            if start is None:
                return None
            for at, data in parts:
                write_all(self._fd, data, start + at)
            os.pwrite(self._fd, _END.pack(size), self._entry(number) + _WORD)
            os.pwrite(self._fd, _END.pack(start), self._entry(number))
        except OSError:  # a full disk
            self._most = 0
            return None
        return self.read(number)

    def let_go(self) -> None:
        """Let the system take back the pages that this process has looked at; they are there when next needed."""
        with self._lock:
            for one in self._maps if hasattr(mmap, "MADV_DONTNEED") else ():
                one.madvise(mmap.MADV_DONTNEED)

    def _is_open(self) -> bool:
        """Tell whether the descriptor is still that of the file: a program may close all descriptors."""
        if self._origin is None:
            return False
        try:
            return _identity(self._fd) == self._origin.identity
        except OSError:
            return False

    def _entry(self, number: int) -> int:
        return _END.size + number * _ENTRY.size

    def _reserve(self, size: int) -> int | None:
        """Return where a block of such a size may stand; None where that would be too much."""
        fd = self._fd
        with self.alone():
            (start,) = _END.unpack(os.pread(fd, _END.size, 0) or bytes(_END.size))
            start = -(-max(int(start), _HEAD) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = start + size
            if end > _HEAD + self._most:
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


def _made() -> int | None:
    """Return the descriptor of a new file; None where files cannot be shared, or there is no folder for it."""
    from tempfile import TemporaryFile

    if not os.path.isdir("/proc/self/fd"):
        return None
    try:
        with TemporaryFile() as file:
            return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
