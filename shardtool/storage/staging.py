"""Where bytes live: the only module that knows of paths, descriptors, fsync and rename.

Two small things are behind this seam, so that an object store can take a local disk's place:

- an *output folder*: its files are staged (written where no reader sees them), then published
  (they appear whole, under their final name) or discarded;
- a *source*: its files are read into memory that the caller owns.

Locally, staging is a file called `.NAME.part` beside the final one, and publishing is fsync,
rename, and fsync of the folder. An object store's is a multipart upload and its completion.
A `Staged` file travels between processes: a worker stages, its parent publishes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat as stat_module
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardtool.errors import InvalidRequest, OutputExists, OutputFailed, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

_STAGED_SUFFIX = ".part"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
READ_FOLLOWING = _READ
READ_PLAIN = _READ | os.O_NOFOLLOW
_SMALL = 2**30
PARTS = 1024  # that one system call can fill: IOV_MAX
SPOOL_REMEDY = "Choose another --temp-dir, or --method gather, which needs none."
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW

_open, _readv, _fstat, _close = os.open, os.readv, os.fstat, os.close


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that is whole and durable, but not visible yet."""

    name: str
    token: str


@dataclass(frozen=True, slots=True)
class FileFact:
    """What a listing tells: bytes, the modification time in nanoseconds, and whether it is a folder."""

    size: int
    mtime_ns: int
    is_folder: bool


class Output(Protocol):
    """A file being written where no reader sees it; `finish` or `abandon` ends it."""

    @property
    def path(self) -> str:
        """Where our own processes can read it meanwhile."""

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it."""

    def finish(self, mtime_ns: int | None = None) -> Staged:
        """Make the file durable; it stays invisible."""

    def abandon(self) -> None:
        """Remove what was written."""


class Folder(Protocol):
    """Where a dataset goes: what `LocalFolder` does on a file system, and an object store could do in its own way.

    A plain value that travels to workers. See `LocalFolder` for what each method raises.
    """

    @property
    def path(self) -> str:
        """What the user called it."""

    def ready(self) -> None:
        """Make it where it is missing."""

    def names(self) -> list[str]:
        """Return the names of all that lies in it."""

    def facts(self, names: Iterable[str]) -> dict[str, FileFact]:
        """Return what is known of those of `names` that are there."""

    def stage(self, name: str) -> Output:
        """Start a file that will be called `name`."""

    def spool(self, name: str, size: int) -> Spool:
        """Start a temporary file; `discard_staged` removes it."""

    def publish(self, *staged: Staged) -> None:
        """Make staged files appear, whole, in this order."""

    def set_time(self, name: str, mtime_ns: int) -> None:
        """Set the modification time of a published file, where that is allowed."""

    def staged_names(self) -> list[str]:
        """Return the final names of what killed runs have staged."""

    def discard_staged(self, names: Iterable[str]) -> None:
        """Remove what is staged under these final names."""

    def remove(self, names: list[str]) -> None:
        """Remove published files."""

    def read(self, name: str) -> bytes:
        """Return a whole small file."""

    def blocks(self, name: str, into: memoryview) -> Iterator[int | os.stat_result]:
        """Read a published file block by block."""

    def full_path(self, name: str) -> str:
        """Return where a file lies, for people."""

    def free_bytes(self) -> int:
        """Return how many more bytes fit."""

    def shares_space(self, other: Folder) -> bool:
        """Tell whether what is written to the other folder leaves less space here."""

    def lock(self, base: str) -> AbstractContextManager[None]:
        """Hold the lock of the dataset `base`."""


@dataclass(frozen=True, slots=True)
class Spool:
    """A temporary file that several processes write to at once, each at places of its own. It travels to them.

    Attributes:
        path: Where it is.
        folder: What the user called its folder.
    """

    path: str
    folder: str

    def open(self) -> SpoolFile:
        """Open it for writing.

        Raises:
            OutputFailed: It cannot be opened.
        """
        return SpoolFile(self)


class SpoolFile:
    """A spool that is being written; `close` it."""

    def __init__(self, spool: Spool) -> None:
        self._folder = spool.folder
        try:
            self._fd = os.open(spool.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise _spool_failed(self._folder, error) from None

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at a place.

        Raises:
            OutputFailed: The disk is full, or fails.
        """
        done, total = 0, len(data)
        try:
            while done < total:
                done += os.pwrite(self._fd, data[done:] if done else data, offset + done)
        except OSError as error:
            raise _spool_failed(self._folder, error) from None

    def close(self) -> None:
        """Give the descriptor back."""
        _close(self._fd)


class StagedFile:
    """A file being written under its temporary name; `finish` or `abandon` ends it."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self._name = path, name
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._fd = os.open(path, _CREATE, 0o666)
        except OSError as error:
            raise _failed(path, error) from None

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it.

        Raises:
            OutputFailed: The disk is full, or refuses.
        """
        total = len(data)
        try:
            done = os.write(self._fd, data)
            while done < total:
                done += os.write(self._fd, memoryview(data)[done:])
        except OSError as error:
            raise _failed(self._name, error) from None

    def finish(self, mtime_ns: int | None = None) -> Staged:
        """Make the file durable; it stays invisible. `mtime_ns` becomes its modification time."""
        try:
            if mtime_ns is not None:
                os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            os.fsync(self._fd)
            os.close(self._fd)
        except OSError as error:
            raise _failed(self._name, error) from None
        return Staged(self._name, self.path)

    def abandon(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        with contextlib.suppress(OSError):
            os.unlink(self.path)


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """An output folder on a file system. A plain value: it may travel to a worker.

    Attributes:
        path: As the user gave it; "" is the current folder.
    """

    path: str

    def ready(self) -> None:
        """Make the folder where it is missing, durably, and prove that it is one.

        Raises:
            OutputFailed: It cannot be made, or is no folder.
        """
        path = self.path or "."
        try:
            missing = []
            while not os.path.isdir(path):
                missing.append(path)
                path = os.path.dirname(path.rstrip("/")) or "."
                if path == missing[-1]:
                    break
            for path in reversed(missing):
                os.mkdir(path)
                _sync_folder(os.path.dirname(path.rstrip("/")) or ".")
        except OSError as error:
            raise _failed(self.path, error) from None

    def names(self) -> list[str]:
        """Return the names of all that lies in the folder; none where there is no folder.

        Raises:
            OutputFailed: It cannot be listed.
        """
        try:
            return os.listdir(self.path or ".")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed(self.path, error) from None

    def facts(self, names: Iterable[str]) -> dict[str, FileFact]:
        """Return what is known of those of `names` that are there."""
        found = {}
        for name in names:
            with contextlib.suppress(OSError):
                fact = os.lstat(self.full_path(name))
                found[name] = FileFact(fact.st_size, fact.st_mtime_ns, stat_module.S_ISDIR(fact.st_mode))
        return found

    def stage(self, name: str) -> StagedFile:
        """Start a file that will be called `name`.

        Raises:
            OutputFailed: The folder cannot be written to.
        """
        return StagedFile(self.full_path(f".{name}{_STAGED_SUFFIX}"), name)

    def spool(self, name: str, size: int) -> Spool:
        """Start a temporary file of `size` bytes; `discard_staged` removes it.

        Raises:
            OutputFailed: The folder cannot be written to, or may not hold a file so large.
        """
        path = self.full_path(f".{name}{_STAGED_SUFFIX}")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            fd = os.open(path, _CREATE, 0o666)
            try:
                os.ftruncate(fd, size)
            finally:
                os.close(fd)
        except OSError as error:
            raise _spool_failed(self.path, error) from None
        return Spool(path, self.path)

    def publish(self, *staged: Staged) -> None:
        """Give staged files their final names, each in place of what had it, and make that durable.

        Raises:
            OutputFailed: The file system refuses.
        """
        try:
            for one in staged:
                os.rename(one.token, self.full_path(one.name))
            _sync_folder(self.path or ".")
        except OSError as error:
            raise _failed(staged[0].name, error) from None

    def set_time(self, name: str, mtime_ns: int) -> None:
        """Set the modification time of a published file, where that is allowed."""
        with contextlib.suppress(OSError):
            os.utime(self.full_path(name), ns=(mtime_ns, mtime_ns), follow_symlinks=False)

    def discard_staged(self, names: Iterable[str]) -> None:
        """Remove what a run has left of the files `names` under temporary names."""
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(self.full_path(f".{name}{_STAGED_SUFFIX}"))

    def staged_names(self) -> list[str]:
        """Return the final names of the files that lie here under temporary ones."""
        return [name[1 : -len(_STAGED_SUFFIX)] for name in self.names() if is_staged(name)]

    def remove(self, names: list[str]) -> None:
        """Remove published files, durably; those that are gone already are no error."""
        if not names:
            return
        try:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.full_path(name))
            _sync_folder(self.path or ".")
        except OSError as error:
            raise _failed(names[0], error) from None

    def read(self, name: str) -> bytes:
        """Return a whole file, which must be small.

        Raises:
            OSError: It cannot be read.
        """
        with open(os.open(self.full_path(name), READ_PLAIN), "rb") as file:
            fact = os.fstat(file.fileno())
            if not stat_module.S_ISREG(fact.st_mode):
                raise OSError(errno.EINVAL, "no plain file", name)
            if fact.st_size > _SMALL:
                raise OSError(errno.EFBIG, f"{fact.st_size:,} bytes, too large", name)
            return file.read()

    def blocks(self, name: str, into: memoryview) -> Iterator[int | os.stat_result]:
        """Read a published file block by block; see `read_blocks`."""
        return read_blocks(os.fsencode(self.full_path(name)), into, READ_PLAIN)

    def full_path(self, name: str) -> str:
        """Return where `name` lies."""
        return os.path.join(self.path, name)

    def shares_space(self, other: Folder) -> bool:
        """Tell whether what is written to the other folder leaves less space here."""
        try:
            return os.stat(self.path or ".").st_dev == os.stat(other.path or ".").st_dev
        except OSError:
            return False

    def free_bytes(self) -> int:
        """Return how many more bytes fit."""
        try:
            fact = os.statvfs(self.path or ".")
        except OSError as error:
            raise _failed(self.path, error) from None
        return fact.f_bavail * fact.f_frsize

    @contextlib.contextmanager
    def lock(self, base: str) -> Iterator[None]:
        """Hold the lock of the dataset `base` in this folder; it ends with the process, however that ends.

        Raises:
            OutputExists: Another run holds it.
        """
        path = self.full_path(f".{base}.lock")
        fd = self._locked(path)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(fd)

    def _locked(self, path: str) -> int:
        while True:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except OSError as error:
                raise _failed(path, error) from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The last holder removes the file: a lock on a name that is gone guards nothing.
                if os.fstat(fd).st_ino == os.stat(path).st_ino:
                    return fd
            except FileNotFoundError:
                pass
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise OutputExists(
                        path, "another run is writing this dataset", remedy="Wait for it to end, or write elsewhere."
                    ) from None
                raise _failed(path, error) from None
            os.close(fd)


def open_folder(path: str) -> Folder:
    """Return the output folder that `path` means.

    Raises:
        InvalidRequest: A URL: only local folders can be written so far.
    """
    if "://" in path:
        raise InvalidRequest(path, "a URL", expected="a local folder")
    return LocalFolder(path)


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
    """Return what tells the folder that a path leads to now from any other."""
    fact = os.stat(root)
    return f"{fact.st_dev} {fact.st_ino}"


def is_staged(name: str) -> bool:
    """Tell whether a file of this name is an unfinished one."""
    return name.startswith(".") and name.endswith(_STAGED_SUFFIX)


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
        self._fd = _open(path, READ_PLAIN)

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
            offset: Where.
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
        """Tell the system that nothing is to be read ahead."""
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
        if stat_module.S_ISREG(_fstat(fd).st_mode):
            while got := _readv(fd, (into,)):
                yield got
        yield _fstat(fd)
    finally:
        _close(fd)


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_AGAIN = "{}, then run the same command again; `create --resume` and `reshard --resume` keep what is finished."
_REMEDIES = {
    errno.ENOSPC: _AGAIN.format("Make space"),
    errno.EDQUOT: _AGAIN.format("Raise the quota"),
    errno.EFBIG: "Raise the file size limit (ulimit -f), or make smaller shards with `create --max-size`.",
    errno.EACCES: "Choose a folder that you may write to.",
    errno.EPERM: "Choose a folder that you may write to.",
    errno.EROFS: "Choose a folder that you may write to.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}


def _failed(where: str, error: OSError) -> OutputFailed:
    found = reason(error)
    return OutputFailed(where, f"cannot write: {found}", remedy=_REMEDIES.get(error.errno or 0, ""))


def _spool_failed(folder: str, error: OSError) -> OutputFailed:
    found = reason(error)
    return OutputFailed(folder or ".", f"cannot write a temporary file: {found}", remedy=SPOOL_REMEDY)
