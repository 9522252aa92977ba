"""Acquire file locks (`flock`) without waiting.

A forked child keeps the shared locks of its parent, because the child may read the locked files. The child closes
exclusive locks; otherwise, files would stay locked after the parent releases its locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import AbstractContextManager, suppress

UNSUPPORTED_LOCK_ERRNOS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_LOCKED_ERRNOS = (errno.EAGAIN, errno.EACCES)
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileLock(AbstractContextManager["FileLock"]):
    """A lock, held until `close`. `info` is the stat result of the locked file."""

    def __init__(self, path: str, fd: int, *, shared: bool) -> None:
        self.path, self.info, self._fd, self._shared = path, os.fstat(fd), fd, shared
        if not shared:
            _exclusive_locks[fd] = self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._shared:
            self.close()

    def record_use(self, now_ns: int) -> None:
        """Set the access time of the locked file to `now_ns` if this is permitted."""
        with suppress(OSError):
            os.utime(self._fd, ns=(now_ns, self.info.st_mtime_ns))

    def write(self, data: bytes) -> None:
        """Write `data` at the start of the file."""
        os.pwrite(self._fd, data, 0)

    def close(self) -> None:
        """Release the lock, but do not delete the file."""
        if _exclusive_locks is None:  # at exit, Python sets module variables to None
            return
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if not self._shared:
                _exclusive_locks.pop(fd, None)
            os.close(fd)


_exclusive_locks: dict[int, FileLock] = {}


def take_lock(path: str, *, shared: bool = False, create: bool = False) -> FileLock | None:
    """Acquire a lock on a regular file. Return None if a conflicting lock is held.

    If the file is deleted before it is locked, this function opens the path again, because another process
    can lock a new file at this path.

    Raises:
        FileNotFoundError: The file does not exist, and `create` is false.
        OSError: The file is a link, not regular or not accessible, or the file system does not support locks.
    """
    flags = (os.O_RDONLY if shared else os.O_RDWR) | (os.O_CREAT if create else 0) | _OPEN_FLAGS
    while True:
        fd = _open(path, flags)
        lock = FileLock(path, fd, shared=shared)
        try:
            if not _try_lock(lock, fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                lock.close()
                return None
            with suppress(FileNotFoundError):
                if os.path.samestat(lock.info, os.lstat(path)):
                    return lock
        except BaseException:
            lock.close()
            raise
        lock.close()


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except PermissionError:
        with suppress(OSError):  # to lock a file of another user, it is enough to open it for reading
            return os.open(path, os.O_RDONLY | _OPEN_FLAGS)
        raise


def _try_lock(lock: FileLock, fd: int, kind: int) -> bool:
    if not stat.S_ISREG(lock.info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", lock.path)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LOCKED_ERRNOS:
            return False
        raise
    return True


def _close_exclusive_locks() -> None:
    for lock in [*_exclusive_locks.values()]:
        lock.close()


os.register_at_fork(after_in_child=_close_exclusive_locks)
