"""Write files into a local folder under temporary names, and rename them when they are complete.

The temporary name is `.NAME.part`, or `.NAME~ATTEMPT.part` if several attempts at a task may write the file. Workers
write these staged files. The parent process publishes (renames) them.

Methods raise `OutputFailed` if the disk is full or failing, and `OutputExists` if an entry must not be replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest, OutputExists, OutputFailed, os_error_text
from shardtool.messages import flag_text, option_text
from shardtool.pattern import replacement_plan_name
from shardtool.storage import file_system
from shardtool.storage.descriptors import write_all
from shardtool.storage.files import READ_PLAIN, list_folder, read_small
from shardtool.storage.locks import take_lock
from shardtool.storage.remote.address import is_url, refuse_mistyped_address

Result = TypeVar("Result")


_STAGED_NAME = re.compile(r"\.(.+?)(?:~[0-9a-f]{8})?\.part", re.DOTALL)
_attempt_suffix = ""


class DurableFile(NamedTuple):
    """A complete file or object, usually not yet published.

    Attributes:
        path: Location of the staged file, or "" for an object that already has its final name or is in memory.
        data: Content of a small file that must still be uploaded, or None.
    """

    name: str
    path: str
    data: bytes | None = None


class Sink(Protocol):
    """A file to append bytes to."""

    def write(self, data: memoryview | bytes) -> None:
        """Append all of `data`."""


class StagedFile(AbstractContextManager["StagedFile"]):
    """A file with a temporary name. It is complete after `finish`. An error in the `with` block deletes the file."""

    _make_error: Callable[[str, OSError], OutputExists | OutputFailed]

    def __init__(self, path: str, name: str) -> None:
        self._make_error = file_system.write_error
        self.path, self._name, self._final_path = path, name, os.path.join(os.path.dirname(path), name)
        with file_system.write_errors(path):
            self._fd = file_system.create_file(path)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def write(self, data: memoryview | bytes) -> None:
        """Append all of `data`."""
        with file_system.write_errors(self._final_path, self._make_error):
            write_all(self._fd, data)

    @property
    def size(self) -> int:
        """Number of bytes written."""
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        """Return the descriptor, open for reading and writing."""
        return self._fd

    def sync(self) -> None:
        """Sync the bytes written so far to disk. Other threads may write at the same time."""
        with file_system.write_errors(self._final_path):
            os.fdatasync(self._fd)

    def finish(self, mtime_ns: int | None = None) -> DurableFile:
        """Set the modification time, sync the file to disk, and close it."""
        with file_system.write_errors(self._final_path):
            if mtime_ns is not None:
                os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            os.fsync(self._fd)
            # Do not close the descriptor twice, because its number may already belong to another file.
            fd, self._fd = self._fd, -1
            os.close(fd)
        return DurableFile(self._name, self.path)

    def abandon(self) -> None:
        """Delete the staged file."""
        fd, self._fd = self._fd, -1
        with suppress(OSError):
            os.close(fd)
        with suppress(OSError):
            os.unlink(self.path)


@dataclass(frozen=True, slots=True)
class Folder:
    """A local output folder.

    Attributes:
        path: The user's path, or "" for the current folder.
    """

    path: str
    has_staging: ClassVar[bool] = True
    max_file_bytes: ClassVar[int | None] = None

    @property
    def temporary(self) -> Folder:
        """Folder for temporary files of this output."""
        return self

    def create(self) -> None:
        """Create the folder and missing parents, and sync them to disk."""
        with file_system.write_errors(self.path):
            for created in file_system.make_folders(self.path):
                file_system.sync_folder(created.parent)

    def names(self) -> list[str]:
        """Return the names of all entries, or an empty list if the folder does not exist."""
        with file_system.write_errors(self.path), suppress(FileNotFoundError, NotADirectoryError):
            return list_folder(self.path)
        return []

    def find_entries(self, names: Iterable[str]) -> dict[str, file_system.EntryInfo]:
        """Return an `EntryInfo` for each of `names` that exists, by name."""
        entries = {}
        for name in names:
            with suppress(OSError):
                path = self.full_path(name)
                info = os.lstat(path)
                special = file_system.special_kind(path, info.st_mode)
                entries[name] = file_system.EntryInfo(info.st_size, info.st_mtime_ns, special)
        return entries

    def stage(self, name: str) -> StagedFile:
        """Create a file with a temporary name."""
        file_system.check_replaceable(self.full_path(name))
        return StagedFile(staged_path(self, name), name)

    def stage_bytes(self, name: str, data: bytes) -> DurableFile:
        """Write a small file with a temporary name."""
        with self.stage(name) as file:
            file.write(data)
            return file.finish()

    def write(
        self, name: str, fill: Callable[[Sink], Result], _size: int | None, mtime_ns: int, /
    ) -> tuple[Result, DurableFile]:
        """Let `fill` write a file with a temporary name."""
        with self.stage(name) as file:
            return fill(file), file.finish(mtime_ns)

    def spool(self, name: str, size: int) -> str:
        """Create a temporary file of `size` bytes and return its path."""
        path = staged_path(self, name)
        with file_system.write_errors(self.path, spool_error):
            os.close(file_system.create_file(path))
            os.truncate(path, size)
        return path

    def publish(self, *staged: DurableFile) -> None:
        """Rename staged files to their final names, and sync the folder to disk."""
        for file in staged:
            file_system.check_replaceable(self.full_path(file.name))
        with file_system.write_errors(self.full_path(staged[0].name) if staged else self.path):
            for file in staged:
                os.rename(file.path, self.full_path(file.name))
            file_system.sync_folder(self.path or ".")

    def publish_bytes(self, name: str, data: bytes) -> None:
        """Write a small file and publish it."""
        self.publish(self.stage_bytes(name, data))

    def set_mtime(self, name: str, mtime_ns: int) -> None:
        """Set the modification time of a file if this is permitted."""
        with suppress(OSError):
            os.utime(self.full_path(name), ns=(mtime_ns, mtime_ns), follow_symlinks=False)

    def discard_staged(self, names: Iterable[str]) -> None:
        """Delete the staged files whose final names are in `names`."""
        final_names = {*names}
        with suppress(OutputFailed):
            self.discard(*(os.path.basename(file.path) for file in self.staged() if file.name in final_names))

    def discard(self, *names: str) -> None:
        """Delete files if possible, without syncing to disk."""
        for name in names:
            with suppress(OSError, OutputExists):
                file_system.unlink_file(self.full_path(name))

    def staged_names(self) -> list[str]:
        """Return the final names of the staged files."""
        return [*dict.fromkeys(file.name for file in self.staged())]

    def staged(self) -> list[DurableFile]:
        """Return the staged files, including incomplete files."""
        return find_staged(self, self.names())

    def remove(self, names: list[str]) -> None:
        """Delete published files and sync the folder to disk. Ignore missing files."""
        with file_system.write_errors(self.full_path(names[0]) if names else self.path):
            for name in names:
                with suppress(FileNotFoundError):
                    file_system.unlink_file(self.full_path(name))
            if names:
                file_system.sync_folder(self.path or ".")

    def read(self, name: str) -> bytes:
        """Return the content of a small file."""
        return read_small(self.full_path(name), flags=READ_PLAIN)

    def append(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Append data to an existing file. If the process is killed, only a part of the data may be written."""
        file_system.check_replaceable(self.full_path(name))
        with file_system.write_errors(self.full_path(name)):
            fd = os.open(self.full_path(name), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                write_all(fd, data)
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)

    def read_staged(self, name: str) -> bytes:
        """Return the content of a small staged file."""
        return read_small(staged_path(self, name))

    def version(self, name: str) -> str:  # noqa: ARG002 - file systems have no versions
        """Return the version of a file, which changes with its content. In a local folder, the version is ""."""
        return ""

    def md5(self, name: str) -> str | None:  # noqa: ARG002 - file systems store no checksum
        """Return the MD5 that a store has recorded for a file, or None."""
        return None

    def full_path(self, name: str) -> str:
        """Return the path of `name`."""
        return os.path.join(self.path, name)

    def shares_space(self, other: str) -> bool:
        """Return whether the folder `other` is on the same file system."""
        try:
            return os.stat(self.path or ".").st_dev == os.stat(other or ".").st_dev
        except OSError:
            return False

    def free_bytes(self) -> int:
        """Return the free disk space in bytes."""
        with file_system.write_errors(self.path):
            info = os.statvfs(self.path or ".")
        return info.f_bavail * info.f_frsize

    @contextmanager
    def lock(
        self, base: str, *, shared: bool = False, continues_replacement: bool = False, output_name: str = "this dataset"
    ) -> Iterator[None]:
        """Hold the lock of the dataset `base` during the `with` block.

        Args:
            shared: Let other runs hold shared locks, too. Keep the lock file at the end, because they may still use it.
            continues_replacement: Whether this run continues an interrupted replacement of shards.

        Raises:
            OutputExists: Another run holds the lock, or was interrupted while it replaced shards.
        """
        path = self.full_path(f".{base}.lock")
        file_system.check_replaceable(path)  # the lock must be a regular file, because it is deleted at the end
        with file_system.write_errors(path):
            lock = take_lock(path, shared=shared, create=True)
        if lock is None:
            found = f"another run is writing {output_name}"
            raise OutputExists(path, found, remedy="Wait for it to finish, or choose another output.")
        with lock:
            try:
                plan_path = self.full_path(replacement_plan_name(base))
                if not continues_replacement and os.path.lexists(plan_path):
                    raise unfinished_error(plan_path)
                yield
            finally:
                if not shared:
                    with suppress(OSError):
                        os.unlink(path)


def unfinished_error(plan_path: str) -> OutputExists:
    """Return the error for an interrupted replacement of shards."""
    remedy = f"Run the same command again to finish it: `remove`, or `verify` with {flag_text('repair')}."
    return OutputExists(plan_path, "an interrupted run was replacing shards", remedy=remedy)


def local_folder(path: str | os.PathLike[str], remedy: str = "") -> Folder:
    """Return a local folder. For a URL, raise `InvalidRequest` with `remedy`."""
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise InvalidRequest(f"{path!r:.80}", "not a path", expected="a local folder")
    if is_url(folder := os.fspath(path)):
        raise InvalidRequest(folder, "a URL", expected="a local folder", remedy=remedy)
    refuse_mistyped_address(folder)
    return Folder(folder)


def named_local_folder(path: str | os.PathLike[str]) -> Folder:
    """Return the folder at the user's path. Raise `InvalidRequest` for "", which an unset shell variable may cause."""
    if path == "":
        raise InvalidRequest("the folder", "''", expected="a local folder (`.` is the current one)")
    return local_folder(path)


class NamedFiles(Protocol):
    """A folder that returns the paths of its files."""

    def full_path(self, name: str, /) -> str:
        """Return the path of the file `name`."""


def staged_path(folder: NamedFiles, name: str) -> str:
    """Return the temporary path of the file `name`."""
    return folder.full_path(f".{name}{_attempt_suffix}.part")


def find_staged(folder: NamedFiles, names: Iterable[str]) -> list[DurableFile]:
    """Return the staged files among the entries `names` of a folder."""
    matches = {name: _STAGED_NAME.fullmatch(name) for name in names}
    return [DurableFile(match[1], folder.full_path(name)) for name, match in matches.items() if match]


def set_attempt(token: str) -> None:
    """Add `token` (eight hexadecimal digits, or "") to the temporary file names of this process."""
    global _attempt_suffix  # noqa: PLW0603 - a setting of the process
    _attempt_suffix = f"~{token}" if token else ""


def spool_advice() -> str:
    """Return advice for an error while writing temporary files."""
    gather = option_text("method", "gather")
    return f"Choose another {option_text('temp_dir')}, or use {gather}, which needs no temporary files."


class SpoolFile:
    """A temporary file from `Folder.spool`, open for writing."""

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path)
        with file_system.write_errors(self._folder, spool_error):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at an offset."""
        # Do not use `write_errors`, because a context manager takes as long as the write itself.
        try:
            write_all(self._fd, data, offset)
        except OSError as error:
            raise spool_error(self._folder, error) from None

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def spool_error(folder: str, error: OSError) -> OutputFailed:
    """Return the error for a temporary file that cannot be written."""
    return OutputFailed(folder or ".", f"cannot write a temporary file: {os_error_text(error)}", remedy=spool_advice())
