"""Write files below one folder and nowhere else, even if file names are malicious.

Each part of a path is opened relative to the descriptor of its folder, without following links.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal

from shardtool.errors import InvalidRequest, OutputExists, OutputFailed, os_error_text
from shardtool.messages import flag_text
from shardtool.storage import file_system
from shardtool.storage.descriptors import write_all
from shardtool.storage.files import READ_PLAIN, LocalFile

_CONFLICT_ERRNOS = (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EISDIR)
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4000
_MAX_OPEN_PARENTS = 64
# an empty, `.` or `..` component of a path
_UNSAFE_PART = re.compile(rb"(?:^|[/\0])\.{0,2}(?:[/\0]|$)")
ExistingFile = Literal["error", "overwrite", "keep", "finish"]


def are_safe_paths(paths: bytes, longest: int) -> bool:
    """Return whether all NUL-separated paths are safe to create. `longest` is the length of the longest path in bytes.

    If this returns False, check each path with `path_problem`, which is less strict.
    """
    return longest <= _MAX_NAME_BYTES and not _UNSAFE_PART.search(paths)


def path_problem(path: bytes) -> str:
    """Return why a file cannot be created at a path below a folder, or ""."""
    if _UNSAFE_PART.search(path) or b"\0" in path:
        return "not a path below the folder"
    too_long = len(path) > _MAX_PATH_BYTES or max(map(len, path.split(b"/"))) > _MAX_NAME_BYTES
    return "too long for a file" if too_long else ""


class FolderTree:
    """A folder to write files into, created if missing. The path of this folder may contain links."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with file_system.write_errors(folder, _tree_error):
            file_system.make_folders(folder)
            self._root = os.open(folder or ".", file_system.OPEN_FOLDER_FLAGS)
        self._parents: dict[bytes, int] = {}

    def close(self) -> None:
        """Close all descriptors."""
        self._close_parents()
        os.close(self._root)

    def write(
        self,
        path: bytes,
        data: bytes | memoryview | Callable[[], Iterable[bytes | memoryview]],
        if_exists: ExistingFile = "error",
    ) -> bool:
        """Write a file and create its folders. Return False if an existing file was kept.

        If writing fails, the file is deleted.

        Args:
            if_exists: `keep` keeps an existing file that contains `data`, and raises an error for other content.
                `finish` also replaces a file that contains only the start of `data`.
        """
        if (b"\0" in path or not are_safe_paths(path, len(path))) and (problem := path_problem(path)):
            raise InvalidRequest(os.fsdecode(path), problem)
        folder, _, name = path.rpartition(b"/")
        blocks = data if callable(data) else (data,).__iter__
        try:
            parent = self._parents.get(folder) or self._open_parent(folder)
            if if_exists == "overwrite":
                with suppress(FileNotFoundError):
                    file_system.unlink_file(name, parent)
            try:
                _write_file(parent, name, blocks())
            except FileExistsError:
                existing = _compare_file(parent, name, blocks()) if if_exists in ("keep", "finish") else ""
                if existing == "whole":
                    return False
                if if_exists != "finish" or not existing:
                    raise
                file_system.unlink_file(name, parent)
                _write_file(parent, name, blocks())
        except OutputExists as error:  # the error contains only the last part of the path
            error.where = self.full_path(path)
            raise
        except OSError as error:
            self._check_parents(folder)
            raise _tree_error(self.full_path(path), error) from None
        return True

    def check_no_conflicts(self, paths: Iterable[bytes], sizes: Iterable[int]) -> None:
        """Raise `OutputExists` if one of the paths exists and is not a file of the expected size."""
        checked = set[bytes]()
        for path, size in zip(paths, sizes, strict=True):
            if (folder := path.rpartition(b"/")[0]) not in checked:
                self._check_parents(folder)
                checked.add(folder)
            with suppress(FileNotFoundError):
                info = os.stat(path, dir_fd=self._root, follow_symlinks=False)
                if (stat.S_ISREG(info.st_mode), info.st_size) != (True, size):
                    raise _tree_error(self.full_path(path), FileExistsError(errno.EEXIST, ""))

    def full_path(self, path: bytes) -> str:
        """Return the full path of a file below the folder."""
        return os.path.join(self._folder, os.fsdecode(path))

    def _check_parents(self, folder: bytes) -> None:
        parts = folder.split(b"/")
        for end in range(1, len(parts) + 1):
            parent = b"/".join(parts[:end])
            with suppress(OSError):
                mode = os.lstat(parent, dir_fd=self._root).st_mode
                if not stat.S_ISDIR(mode):
                    raise file_system.not_a_folder(self.full_path(parent), mode)

    def _open_parent(self, folder: bytes) -> int:
        if len(self._parents) >= _MAX_OPEN_PARENTS:
            self._close_parents()
        fd = os.dup(self._root)
        try:
            for name in folder.split(b"/") if folder else ():
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
                child = os.open(name, file_system.OPEN_FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = child
        except OSError:
            os.close(fd)
            raise
        self._parents[folder] = fd
        return fd

    def _close_parents(self) -> None:
        for folder in self._parents.values():
            os.close(folder)
        self._parents.clear()


def _tree_error(path: str, error: OSError) -> OutputExists | OutputFailed:
    if error.errno not in _CONFLICT_ERRNOS:
        return file_system.write_error(path, error)
    found = "already exists" if error.errno == errno.EEXIST else f"cannot be created: {os_error_text(error)}"
    remedy = f"Choose another folder, or use {flag_text('overwrite')}."
    return OutputExists(path, found, remedy=remedy)


def _write_file(parent: int, name: bytes, blocks: Iterable[bytes | memoryview]) -> None:
    fd = os.open(name, file_system.CREATE_FLAGS, 0o666, dir_fd=parent)
    try:
        for block in blocks:
            if (written := os.write(fd, block)) < len(block):
                write_all(fd, memoryview(block)[written:])
    except BaseException:
        os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(fd)


def _compare_file(parent: int, name: bytes, blocks: Iterable[bytes | memoryview]) -> Literal["whole", "start", ""]:
    """Return how much of `blocks` a file contains, or "" for other content."""
    with suppress(OSError), LocalFile(os.open(name, READ_PLAIN, dir_fd=parent)) as file:
        offset, size = 0, file.stat().st_size
        for block in blocks:
            if file.read(offset, len(block)) != bytes(block)[: max(0, size - offset)]:
                return ""
            offset += len(block)
        return "whole" if offset == size else "start" if size < offset else ""
    return ""
