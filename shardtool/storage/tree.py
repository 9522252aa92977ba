"""Files written below a folder and nowhere else, whatever their names say.

A path is walked part by part from the folder's descriptor, and links on the way are not followed.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shardtool.errors import OutputExists, OutputFailed, reason
from shardtool.storage.staging import check_replaceable
from shardtool.wording import either

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_IN_THE_WAY = (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EISDIR)


class Tree:
    """A folder and all below it; `close` it. The folder is made where it is missing: links in its path are the user's.

    Raises:
        OutputExists: Something else is in the way.
        OutputFailed: It cannot be made.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        with _failures(folder):
            os.makedirs(folder, exist_ok=True)
            self._root = os.open(folder, _FOLDER)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._root)

    def write(self, parts: Sequence[bytes], blocks: Iterable[bytes], *, overwrite: bool) -> str:
        """Write a file, whose folders are made on the way, and return its path; of one that fails nothing stays.

        Args:
            parts: The parts of its path below the folder: plain names.
            blocks: Its bytes.
            overwrite: Whether a file that is there is replaced.

        Raises:
            OutputExists: There is a file already, or something else where a folder must be.
            OutputFailed: It cannot be written.
        """
        path = os.path.join(self._folder, *map(os.fsdecode, parts))
        with _failures(path), _parent(self._root, parts[:-1]) as parent:
            if overwrite:
                check_replaceable(parts[-1], parent)
                with suppress(FileNotFoundError):
                    os.unlink(parts[-1], dir_fd=parent)
            _write(parent, parts[-1], blocks)
        return path


@contextmanager
def _failures(path: str) -> Iterator[None]:
    """Turn what the operating system says into errors that a user understands."""
    try:
        yield
    except OSError as error:
        found = reason(error)
        if error.errno in _IN_THE_WAY:
            found = "there already" if error.errno == errno.EEXIST else f"in the way: {found}"
            raise OutputExists(
                path, found, remedy=f"Choose another folder, or {either('overwrite=True', '--overwrite files')}."
            ) from None
        raise OutputFailed(path, found) from None


@contextmanager
def _parent(root: int, names: Sequence[bytes]) -> Iterator[int]:
    """Give the descriptor of the folder `names` below `root`, made on the way; no link is followed."""
    folder = os.dup(root)
    try:
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _write(parent: int, name: bytes, blocks: Iterable[bytes]) -> None:
    file = os.open(name, _CREATE, 0o666, dir_fd=parent)
    try:
        for block in blocks:
            left = memoryview(block)
            while left:
                left = left[os.write(file, left) :]
    except BaseException:
        os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(file)
