"""A temporary file that several processes write."""

from __future__ import annotations

import os

from shardtool.errors import OutputFailed, os_error_text
from shardtool.messages import option_text
from shardtool.storage.descriptors import write_all
from shardtool.storage.file_system import write_errors


def spool_advice() -> str:
    """Return advice for unwritable temporary files."""
    gather = option_text("method", "gather")
    return f"Choose another {option_text('temp_dir')}, or use {gather}, which needs no temporary files."


class SpoolFile:
    """A temporary file open for writing."""

    def __init__(self, path: str) -> None:
        self._folder = os.path.dirname(path)
        with write_errors(self._folder, spool_error):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at an offset."""
        try:  # hot path: a context manager takes as long as the write
            write_all(self._fd, data, offset)
        except OSError as error:
            raise spool_error(self._folder, error) from None

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def spool_error(folder: str, error: OSError) -> OutputFailed:
    """Return the error for an unwritable temporary file."""
    return OutputFailed(folder or ".", f"cannot write a temporary file: {os_error_text(error)}", remedy=spool_advice())
