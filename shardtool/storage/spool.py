"""A temporary file that several processes write at once, each at its own offsets. `Folder.spool` creates it."""

from __future__ import annotations

import os

from shardtool.errors import OutputFailed, os_error_text
from shardtool.messages import option_text
from shardtool.storage.descriptors import write_all
from shardtool.storage.file_system import write_errors


def spool_advice() -> str:
    """Return what to do where temporary files cannot be written."""
    return f"Choose another {option_text('temp_dir')}, or {option_text('method', 'gather')}, which needs none."


class SpoolFile:
    """A spool that is open for writing; `close` it.

    Args:
        path: Where it is.

    Raises:
        OutputFailed: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path)
        with write_errors(self._folder, spool_error):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at a place.

        Raises:
            OutputFailed: The disk is full, or fails.
        """
        try:  # a hot path: a context manager would take as long as the write
            write_all(self._fd, data, offset)
        except OSError as error:
            raise spool_error(self._folder, error) from None

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def spool_error(folder: str, error: OSError) -> OutputFailed:
    return OutputFailed(folder or ".", f"cannot write a temporary file: {os_error_text(error)}", remedy=spool_advice())
