"""Write files into a local folder: first under a temporary name, then renamed.

A staged file is named `.NAME.part`, or `.NAME~ATTEMPT.part` if several attempts may write it, and is synced to
disk.
Publishing renames it and syncs the folder. Workers stage files and send a `DurableFile` to the parent process,
which
publishes them.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeVar

from shardtool.errors import InvalidRequest, OutputExists, OutputFailed
from shardtool.pattern import replacement_plan_name
from shardtool.storage.descriptors import write_all
from shardtool.storage.file_system import (
    EntryInfo,
    check_replaceable,
    create_file,
    make_folders,
    special_kind,
    sync_folder,
    unlink_file,
    write_error,
    write_errors,
)
from shardtool.storage.files import READ_PLAIN, read_small
from shardtool.storage.locks import take_lock
from shardtool.storage.lookup import list_folder
from shardtool.storage.remote.address import is_url, refuse_near_url
from shardtool.storage.spool import spool_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


Made = TypeVar("Made")


_STAGED_NAME = re.compile(r"\.(.+?)(?:~[0-9a-f]{8})?\.part", re.DOTALL)


_attempt_suffix = ""  # sets the temporary names of this process apart from those of other attempts at the same task


class DurableFile(NamedTuple):
    """A file that is whole and durable, and in a folder not visible yet.

    Attributes:
        name: Its final name.
        token: Where it lies until then; in a store empty.
        data: What a store is to be given, of a small file; None: it has it, or this is a folder.
    """

    name: str
    token: str
    data: bytes | None = None


class Sink(Protocol):
    """Takes the bytes of a file."""

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it."""


class StagedFile(AbstractContextManager["StagedFile"]):
    """A file being written under its temporary name; `finish` or `abandon` ends it, or a `with` block that fails."""

    _failed: Callable[[str, OSError], OutputExists | OutputFailed]

    def __init__(self, path: str, name: str) -> None:
        self._failed = write_error
        self.path, self._name, self._where = path, name, os.path.join(os.path.dirname(path), name)
        with write_errors(path):
            self._fd = create_file(path)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it.

        Raises:
            OutputFailed: The disk is full, or refuses.
        """
        with write_errors(self._where, self._failed):
            write_all(self._fd, data)

    @property
    def size(self) -> int:
        """Bytes that were written."""
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        """Return the descriptor of what was written, which can be read, too."""
        return self._fd

    def sync(self) -> None:
        """Make durable what was written so far; another thread may write meanwhile.

        Raises:
            OutputFailed: The disk refuses.
        """
        with write_errors(self._where):
            os.fdatasync(self._fd)

    def finish(self, mtime_ns: int | None = None) -> DurableFile:
        """Make the file durable; it stays invisible. `mtime_ns` becomes its modification time."""
        with write_errors(self._where):
            if mtime_ns is not None:
                os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1  # closed twice, it could be another file's by then
            os.close(fd)
        return DurableFile(self._name, self.path)

    def abandon(self) -> None:
        """Remove what was written."""
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            os.close(fd)
        with suppress(OSError):
            os.unlink(self.path)


@dataclass(frozen=True, slots=True)
class Folder:
    """An output folder on a file system. A plain value: it may travel to a worker.

    Attributes:
        path: As the user gave it; "" is the current folder.
        hides: Whether files that are written stay invisible until they are published.
        largest: How many bytes a file may have at most; None: any number.
    """

    path: str
    hides: ClassVar[bool] = True
    largest: ClassVar[int | None] = None

    @property
    def temporary(self) -> Folder:
        """The folder for temporary files of those who write here."""
        return self

    def ready(self) -> None:
        """Make the folder where it is missing, durably, and prove that it is one.

        Raises:
            OutputExists: Something else is in the way.
            OutputFailed: It cannot be made.
        """
        with write_errors(self.path):
            for one in make_folders(self.path):
                sync_folder(one.parent)

    def names(self) -> list[str]:
        """Return the names of all that lies in the folder; none where there is no folder.

        Raises:
            OutputFailed: It cannot be listed.
        """
        with write_errors(self.path), suppress(FileNotFoundError, NotADirectoryError):
            return list_folder(self.path)
        return []

    def facts(self, names: Iterable[str]) -> dict[str, EntryInfo]:
        """Return the facts of those of `names` that are there."""
        found = {}
        for name in names:
            with suppress(OSError):
                fact = os.lstat(self.full_path(name))
                found[name] = EntryInfo(
                    fact.st_size, fact.st_mtime_ns, special_kind(self.full_path(name), fact.st_mode)
                )
        return found

    def stage(self, name: str) -> StagedFile:
        """Start a file that will be called `name`.

        Raises:
            OutputExists: Something is called so that no file takes the place of.
            OutputFailed: The folder cannot be written to.
        """
        check_replaceable(self.full_path(name))
        return StagedFile(staged_path(self, name), name)

    def stage_bytes(self, name: str, data: bytes) -> DurableFile:
        """Stage a small file.

        Raises:
            OutputExists: Something is called so that no file takes the place of.
            OutputFailed: It cannot be written.
        """
        with self.stage(name) as file:
            file.write(data)
            return file.finish()

    def write(
        self, name: str, fill: Callable[[Sink], Made], _size: int | None, mtime_ns: int, /
    ) -> tuple[Made, DurableFile]:
        """Stage a file; return what `fill`, which writes it, has returned, and the file.

        Args:
            name: Its final name.
            fill: Writes it.
            _size: How many bytes it will have; None: that is not known.
            mtime_ns: What becomes its modification time.

        Raises:
            OutputFailed: It cannot be written.
        """
        with self.stage(name) as file:
            return fill(file), file.finish(mtime_ns)

    def spool(self, name: str, size: int) -> str:
        """Start a temporary file of `size` bytes, and return its path; `discard_staged` removes it.

        Raises:
            OutputFailed: The folder cannot be written to, or may not hold a file so large.
        """
        path = staged_path(self, name)
        with write_errors(self.path, spool_error):
            os.close(create_file(path))
            os.truncate(path, size)
        return path

    def publish(self, *staged: DurableFile) -> None:
        """Give staged files their final names, each in place of the file that had it, and make that durable.

        Raises:
            OutputExists: Something is called so that no file takes the place of.
            OutputFailed: The file system refuses.
        """
        for file in staged:
            check_replaceable(self.full_path(file.name))
        with write_errors(self.full_path(staged[0].name) if staged else self.path):
            for file in staged:
                os.rename(file.token, self.full_path(file.name))
            sync_folder(self.path or ".")

    def set_mtime(self, name: str, mtime_ns: int) -> None:
        """Set the modification time of a published file, where that is allowed."""
        with suppress(OSError):
            os.utime(self.full_path(name), ns=(mtime_ns, mtime_ns), follow_symlinks=False)

    def discard_staged(self, names: Iterable[str]) -> None:
        """Remove what a run has left of the files `names` under temporary names."""
        wanted = {*names}
        with suppress(OutputFailed):  # where nothing can be listed, nothing was staged
            self.discard(*(os.path.basename(one.token) for one in self.staged() if one.name in wanted))

    def discard(self, *names: str) -> None:
        """Remove files where that is possible; a power cut may bring them back."""
        for name in names:
            with suppress(OSError, OutputExists):
                unlink_file(self.full_path(name))

    def staged_names(self) -> list[str]:
        """Return the final names of the files that lie here under temporary ones."""
        return [*dict.fromkeys(one.name for one in self.staged())]

    def staged(self) -> list[DurableFile]:
        """Return the files that lie here under temporary names, whole or not."""
        found = {name: _STAGED_NAME.fullmatch(name) for name in self.names()}
        return [DurableFile(match[1], self.full_path(name)) for name, match in found.items() if match]

    def remove(self, names: list[str]) -> None:
        """Remove published files, durably; those that are gone already are no error."""
        with write_errors(self.full_path(names[0]) if names else self.path):
            for name in names:
                with suppress(FileNotFoundError):
                    unlink_file(self.full_path(name))
            if names:
                sync_folder(self.path or ".")

    def read(self, name: str) -> bytes:
        """Return a whole file, which must be small.

        Raises:
            OSError: It cannot be read.
        """
        return read_small(self.full_path(name), flags=READ_PLAIN)

    def append(self, name: str, data: bytes) -> None:
        """Append to a file that is there, durably; a kill may leave a part of `data`.

        Raises:
            OutputExists: It is no file.
            OutputFailed: It cannot be written.
        """
        check_replaceable(self.full_path(name))
        with write_errors(self.full_path(name)):
            fd = os.open(self.full_path(name), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)

    def read_staged(self, name: str) -> bytes:
        """Return a whole staged file, which must be small.

        Raises:
            OSError: It cannot be read.
        """
        return read_small(staged_path(self, name))

    def version(self, name: str) -> str:  # noqa: ARG002 - a file system knows none
        """Return what tells a file from any with other bytes, without reading it; empty: nothing does."""
        return ""

    def md5(self, name: str) -> str | None:  # noqa: ARG002 - a file system knows none
        """Return the MD5 of a file, as far as it is known without reading it; None: it is not."""
        return None

    def full_path(self, name: str) -> str:
        """Return where `name` lies."""
        return os.path.join(self.path, name)

    def shares_space(self, other: str) -> bool:
        """Tell whether what is written to another folder leaves less space here."""
        try:
            return os.stat(self.path or ".").st_dev == os.stat(other or ".").st_dev
        except OSError:
            return False

    def free_bytes(self) -> int:
        """Return how many more bytes fit."""
        with write_errors(self.path):
            fact = os.statvfs(self.path or ".")
        return fact.f_bavail * fact.f_frsize

    @contextmanager
    def lock(
        self, base: str, *, shared: bool = False, finishes: bool = False, what: str = "this dataset"
    ) -> Iterator[None]:
        """Hold the lock of the dataset `base` in this folder; it ends with the process, however that ends.

        Args:
            base: The dataset's name.
            shared: Others may hold it with us, unless they want it alone. The file is left to who does.
            finishes: Whether we end what a run has begun that replaces some of its shards.
            what: What whoever holds it writes, for messages.

        Raises:
            OutputExists: Another run holds it, or has not ended what it began.
        """
        path = self.full_path(f".{base}.lock")
        check_replaceable(path)  # it is removed in the end
        with write_errors(path):
            lock = take_lock(path, shared=shared, create=True)
        if lock is None:
            found = f"another run is writing {what}"
            raise OutputExists(path, found, remedy="Wait for it to end, or write elsewhere.")
        with lock:
            try:
                if not finishes and os.path.lexists(begun := self.full_path(replacement_plan_name(base))):
                    remedy = "Run `shardtool remove` again, as before: it goes on where that was."
                    raise OutputExists(begun, "shards are being replaced by a run that did not end", remedy=remedy)
                yield
            finally:
                if not shared:
                    with suppress(OSError):
                        os.unlink(path)


def local_folder(path: str | os.PathLike[str], remedy: str = "") -> Folder:
    """Return the folder of a file system that `path` means, for what is written nowhere else.

    Args:
        path: Its path.
        remedy: What to do instead, with a URL.

    Raises:
        InvalidRequest: It is a URL, or looks like a torn one, or is no path.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise InvalidRequest(f"{path!r:.80}", "no path", expected="a local folder")
    if is_url(folder := os.fspath(path)):
        raise InvalidRequest(folder, "a URL", expected="a local folder", remedy=remedy)
    refuse_near_url(folder)
    return Folder(folder)


def named_local_folder(path: str | os.PathLike[str]) -> Folder:
    """Return the folder that a user names for many files: an empty text, as of a variable of a shell, is no name.

    Raises:
        InvalidRequest: It is none, or as `local_folder` says.
    """
    if path == "":
        raise InvalidRequest("the folder", "''", expected="a local folder; . is the current one")
    return local_folder(path)


def staged_path(folder: Folder, name: str) -> str:
    """Return where a file lies until it is published."""
    return folder.full_path(f".{name}{_attempt_suffix}.part")


def set_attempt(token: str) -> None:
    """Give the files that this process stages from now on temporary names of their own.

    A task that runs a second time, while the first attempt still writes somewhere, must not meet its file.

    Args:
        token: Eight digits, hexadecimal; empty: there are no other attempts.
    """
    global _attempt_suffix  # noqa: PLW0603 - as the language of messages: of the process
    _attempt_suffix = f"~{token}" if token else ""
