"""What lies on the file system, read: names, sizes, small files whole, files of any size by blocks or spans.

A file is opened so that no FIFO or device can make us wait; what is there may be hostile, so that callers choose
whether the last link is followed: those of datasets are, for stores of content (Hugging Face's cache, DVC, git-annex)
hand shards out as links. The per-file reads (`read_file`, `SpanSource`) are hot paths.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, machine_reads, raise_if_machines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ_FOLLOWING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
READ_PLAIN = READ_FOLLOWING | os.O_NOFOLLOW
PARTS = 1024  # that one system call can fill: IOV_MAX
_LARGE = 2**25

_open, _readv, _fstat, _close = os.open, os.readv, os.fstat, os.close


def source_root(source: str) -> bytes:
    """Return the path of a source folder, ending in a slash.

    Raises:
        InvalidRequest: There is no such folder.
    """
    if not os.path.isdir(source):
        found = "no folder" if os.path.exists(source) else "no such file or folder"
        raise InvalidRequest(source, found, expected="a folder of samples")
    return os.fsencode(source).rstrip(b"/") + b"/"


def inside(folder: str, root: bytes) -> bytes | None:
    """Return where an output folder lies below a source: empty, or a path ending in a slash; None: elsewhere."""
    above, below = os.path.realpath(root).rstrip(b"/") + b"/", os.path.realpath(os.fsencode(folder or ".")) + b"/"
    return below[len(above) :] if below.startswith(above) else None


def identity(root: bytes) -> str:
    """Return what distinguishes the folder that a path leads to now from any other."""
    fact = os.stat(root)
    return f"{fact.st_dev} {fact.st_ino}"


def file_stat(path: str) -> os.stat_result:
    """Return what the file system says of what a path leads to.

    Raises:
        OSError: It leads to nothing, or nowhere that we may look.
    """
    return os.stat(path)


def plain_size(path: str) -> int | None:
    """Return the bytes of the plain file that a path leads to; None where it leads to none.

    Raises:
        StoreFailed: The machine cannot tell.
    """
    try:
        fact = os.stat(path)
    except OSError as error:
        raise_if_machines(error, path)
        return None
    except ValueError:
        return None
    return fact.st_size if stat.S_ISREG(fact.st_mode) else None


def dangling(path: str) -> str | None:
    """Return where a link leads that leads to nothing; None: it is no such link."""
    try:
        return None if os.path.exists(path) else os.readlink(path)
    except (OSError, ValueError):
        return None


def list_folder(folder: str) -> list[str]:
    """Return the names of all that lies in a folder; "" is the current one.

    Raises:
        OSError: It cannot be listed.
        StoreFailed: The machine has no means to.
    """
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        if not isinstance(error, PermissionError):  # one who may read a file need not be allowed to list
            raise_if_machines(error, folder or ".")
        raise


def names_in(folder: str) -> list[str]:
    """Return the sorted names of all that lies in a folder; none where it cannot be listed."""
    try:
        return sorted(list_folder(folder))
    except OSError:
        return []


def entries_in(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder, which may be millions of files, no further than it is asked for.

    Raises:
        OSError: It cannot be listed.
    """
    with os.scandir(folder) as entries:
        yield from entries


def open_plain(path: str, flags: int = READ_FOLLOWING) -> tuple[int, os.stat_result]:
    """Return the descriptor of a plain file, and what fstat says of it.

    Raises:
        OSError: It cannot be opened, or is no plain file.
        StoreFailed: The machine is to blame.
    """
    with machine_reads(path):
        fd = _open(path, flags)
    fact = _fstat(fd)
    if stat.S_ISREG(fact.st_mode):
        return fd, fact
    _close(fd)
    raise OSError(errno.EINVAL, "no plain file", path)


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"", flags: int = READ_FOLLOWING) -> bytes:
    """Return a whole file that must be small and plain.

    Args:
        path: The path of the file.
        limit: Bytes that it may have.
        ending: How a large one must end, or none of it is read: large files that hold nothing are cheap to make.
        flags: `READ_FOLLOWING` or `READ_PLAIN`.

    Raises:
        OSError: It cannot be read, or is too large.
    """
    fd, fact = open_plain(path, flags)
    with open(fd, "rb") as file:
        check_small(path, fact.st_size, limit, lambda: os.pread(fd, len(ending), fact.st_size - len(ending)), ending)
        return file.read()


def check_small(path: str, size: int, limit: int, read_end: Callable[[], bytes], ending: bytes) -> None:
    """Check that a file which is to be read whole is not too large, and ends as it must where it is large.

    Raises:
        OSError: It is, or does not.
    """
    if size > limit:
        raise OSError(errno.EFBIG, f"{size:,} bytes, too large", path)
    if size > _LARGE and read_end() != ending:
        raise OSError(errno.EINVAL, "not what its name says", path)


def read_head(path: str, limit: int) -> tuple[bytes, int]:
    """Return the first bytes of a plain file, and how many it has.

    Raises:
        OSError: It cannot be read.
    """
    fd, fact = open_plain(path)
    with open(fd, "rb") as file:
        return file.read(limit), fact.st_size


def read_tail(path: str, limit: int) -> bytes:
    """Return the last bytes of a plain file.

    Raises:
        OSError: It cannot be read.
    """
    fd, fact = open_plain(path)
    with open(fd, "rb") as file:
        file.seek(max(0, fact.st_size - limit))
        return file.read(limit)


def read_file(path: bytes, into: memoryview, flags: int) -> tuple[int, os.stat_result]:
    """Fill `into` from the start of a file; return how much there was, and what fstat says after that.

    A hot path: one call a source file. The caller compares both with what was planned, so a file
    of another size, or one that changed while it was read, cannot pass.

    Raises:
        OSError: It cannot be opened or read.
    """
    fd = _open(path, flags)
    try:
        got = _readv(fd, (into,))
        while got < len(into) and (more := _readv(fd, (into[got:],))):  # a network file system may return less
            got += more
        return got, _fstat(fd)
    finally:
        _close(fd)


class SpanSource:
    """A file that is read at any place, and that must stay as the plan saw it; `close` it.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: bytes) -> None:
        self._fd = _open(path, READ_FOLLOWING)

    def fact(self) -> os.stat_result:
        """Return what fstat says of it."""
        return _fstat(self._fd)

    def read(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; return how much there was.

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
            if missing:
                got = self.read(missing, offset + done)
                done += got
                if got < len(missing):
                    break
        return done

    def expect_random(self) -> None:
        """Ask the system to read nothing ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Give the descriptor back."""
        _close(self._fd)


def read_blocks(path: bytes, into: memoryview, flags: int) -> Iterator[int | os.stat_result]:
    """Read a file of any size block by block: fill `into`, yield the bytes that are new, and again.

    At its end, yields what fstat says of the file.

    Raises:
        OSError: It cannot be opened or read.
    """
    fd = _open(path, flags)
    try:
        if stat.S_ISREG(_fstat(fd).st_mode):
            while got := _readv(fd, (into,)):
                yield got
        yield _fstat(fd)
    finally:
        _close(fd)
