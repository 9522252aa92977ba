"""Locks on files that die with their process, whatever ends it: `flock`, taken without waiting.

A lock belongs to what `open` returned. It ends when the last descriptor of that is closed, which the kernel does for a
killed process, too. A forked child has descriptors of its own: it keeps a *shared* lock of its parent alive, for it
may read that file, and lets go an *exclusive* one at once, for the thread that works under it stays with the parent.
POSIX's own locks (`lockf`) would end with any descriptor of the file that is closed in the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system without
_BUSY = (errno.EAGAIN, errno.EACCES)
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Lock:
    """A lock that is held until it is closed.

    Attributes:
        path: The file that is locked.
        fact: What fstat said of it.
    """

    def __init__(self, path: str, fd: int, *, shared: bool) -> None:
        self.path, self.fact, self._fd, self._shared = path, os.fstat(fd), fd, shared
        if not shared:
            _exclusive[fd] = self

    def __enter__(self) -> Self:
        return self

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
