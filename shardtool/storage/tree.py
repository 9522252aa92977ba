"""Write files below one folder and nowhere else, whatever their names contain.

Each path is opened component by component from the descriptor of the folder, without following symbolic links.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from shardtool.errors import InvalidRequest, OutputExists, OutputFailed, os_error_text
from shardtool.messages import choose_text
from shardtool.storage.descriptors import write_all
from shardtool.storage.file_system import (
    CREATE_FLAGS,
    ERRNO_ADVICE,
    OPEN_FOLDER_FLAGS,
    make_folders,
    not_a_folder,
    unlink_file,
    write_errors,
)
from shardtool.storage.files import READ_PLAIN, LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_CONFLICT_ERRNOS = (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EISDIR)


_MAX_NAME_BYTES = 255  # bytes of a name in a folder


_MAX_PATH_BYTES = 4000


_MAX_OPEN_PARENTS = 64


_UNSAFE_PART = re.compile(rb"(?:^|[/\0])\.{0,2}(?:[/\0]|$)")  # a part that is empty, `.` or `..`


ExistingFile = Literal["error", "overwrite", "keep", "finish"]


def are_safe_paths(paths: bytes, longest: int) -> bool:
    """Tell whether `path_problem` finds nothing in any of many paths, with a NUL between each; False: it may.

    Args:
        paths: The paths.
        longest: Bytes of the longest of them.
    """
    return longest <= _MAX_NAME_BYTES and not _UNSAFE_PART.search(paths)


def path_problem(path: bytes) -> str:
    """Return what keeps a path from naming a file below a folder; empty: nothing."""
    if _UNSAFE_PART.search(path) or b"\0" in path:
        return "no path below a folder"
    too_long = len(path) > _MAX_PATH_BYTES or max(map(len, path.split(b"/"))) > _MAX_NAME_BYTES
    return "too long for a file" if too_long else ""


class FolderTree:
    """A folder and all below it; `close` it. The folder is made where it is missing: links in its path are the user's.

    Raises:
        OutputExists: Something else is in the way.
        OutputFailed: It cannot be made.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with write_errors(folder, _tree_error):
            make_folders(folder)
            self._root = os.open(folder or ".", OPEN_FOLDER_FLAGS)
        self._parents: dict[bytes, int] = {}  # the folders that were written to last, for files come folder by folder

    def close(self) -> None:
        """Give the descriptors back."""
        self._close_parents()
        os.close(self._root)

    def write(
        self,
        path: bytes,
        data: bytes | memoryview | Callable[[], Iterable[bytes | memoryview]],
        there: ExistingFile = "error",
    ) -> bool:
        """Write a file, whose folders are made on the way; of one that fails nothing stays.

        Args:
            path: Its path below the folder.
            data: Its bytes; or what gives them block by block, each time that it is called.
            there: What becomes of a file that is there: an error; it is replaced; it is kept if it has these bytes; or
                the latter, and what has only the first of them, as a killed process leaves it, is replaced.

        Returns:
            Whether it was written, and not kept.

        Raises:
            OutputExists: There is a file already, or something else where a folder must be.
            OutputFailed: It cannot be written.
            InvalidRequest: The path is none below the folder.
        """
        if (b"\0" in path or not are_safe_paths(path, len(path))) and (problem := path_problem(path)):
            raise InvalidRequest(os.fsdecode(path), problem)
        folder, _, name = path.rpartition(b"/")
        blocks = data if callable(data) else (data,).__iter__
        try:
            parent = self._parents.get(folder) or self._parent(folder)
            if there == "overwrite":
                with suppress(FileNotFoundError):
                    unlink_file(name, parent)
            try:
                _write_file(parent, name, blocks())
            except FileExistsError:
                same = there in ("keep", "finish") and _compare_file(parent, name, blocks())
                if same == "whole":
                    return False
                if there != "finish" or not same:
                    raise
                unlink_file(name, parent)
                _write_file(parent, name, blocks())
        except OSError as error:
            self._check_parents(folder)
            raise _tree_error(self.full_path(path), error) from None
        return True

    def check_free(self, paths: Iterable[bytes], sizes: Iterable[int]) -> None:
        """Refuse to write files where there are others, as far as their sizes show: before the first is written.

        Raises:
            OutputExists: There is such a file, or something else.
        """
        known = set[bytes]()
        for path, size in zip(paths, sizes, strict=True):
            if (folder := path.rpartition(b"/")[0]) not in known:
                self._check_parents(folder)
                known.add(folder)
            with suppress(FileNotFoundError):
                fact = os.stat(path, dir_fd=self._root, follow_symlinks=False)
                if (stat.S_ISREG(fact.st_mode), fact.st_size) != (True, size):
                    raise _tree_error(self.full_path(path), FileExistsError(errno.EEXIST, ""))

    def full_path(self, path: bytes) -> str:
        """Return where a file lies."""
        return os.path.join(self._folder, os.fsdecode(path))

    def _check_parents(self, folder: bytes) -> None:
        """Refuse a folder below where something else is, or a link, on the way to it.

        Raises:
            OutputExists: There is such.
        """
        parts = folder.split(b"/")
        for end in range(1, len(parts) + 1):
            above = b"/".join(parts[:end])
            with suppress(OSError):
                mode = os.lstat(above, dir_fd=self._root).st_mode
                if not stat.S_ISDIR(mode):
                    raise not_a_folder(self.full_path(above), mode)

    def _parent(self, folder: bytes) -> int:
        """Return the descriptor of a folder below, made on the way; no link is followed."""
        if len(self._parents) >= _MAX_OPEN_PARENTS:
            self._close_parents()
        found = os.dup(self._root)
        try:
            for name in folder.split(b"/") if folder else ():
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=found)
                below = os.open(name, OPEN_FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=found)
                os.close(found)
                found = below
        except OSError:
            os.close(found)
            raise
        self._parents[folder] = found
        return found

    def _close_parents(self) -> None:
        for folder in self._parents.values():
            os.close(folder)
        self._parents.clear()


def _tree_error(path: str, error: OSError) -> OutputExists | OutputFailed:
    if error.errno not in _CONFLICT_ERRNOS:
        return OutputFailed(path, os_error_text(error), remedy=ERRNO_ADVICE.get(error.errno or 0, ""))
    found = "already exists" if error.errno == errno.EEXIST else f"in the way: {os_error_text(error)}"
    remedy = f"Choose another folder, or {choose_text('overwrite=True', '--overwrite files')}."
    return OutputExists(path, found, remedy=remedy)


def _write_file(parent: int, name: bytes, blocks: Iterable[bytes | memoryview]) -> None:
    file = os.open(name, CREATE_FLAGS, 0o666, dir_fd=parent)
    try:
        for block in blocks:
            if (done := os.write(file, block)) < len(block):
                write_all(file, memoryview(block)[done:])
    except BaseException:
        os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(file)


def _compare_file(parent: int, name: bytes, blocks: Iterable[bytes | memoryview]) -> Literal["whole", "start", ""]:
    """Return whether a file has all of these bytes, or the first of them and no others; empty: it has others."""
    with suppress(OSError), LocalFile(os.open(name, READ_PLAIN, dir_fd=parent)) as file:
        at, size = 0, file.fact().st_size
        for block in blocks:
            if file.read(at, len(block)) != bytes(block)[: max(0, size - at)]:
                return ""
            at += len(block)
        return "whole" if at == size else "start" if size < at else ""
    return ""
