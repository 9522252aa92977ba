"""A temporary file that several processes fill, each at its own places; `Folder.spool` makes it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shardtool.errors import OutputFailed, reason
from shardtool.wording import option


def spool_remedy() -> str:
    """Return what to do where temporary files cannot be written."""
    return f"Choose another {option('temp_dir')}, or {option('method', 'gather')}, which needs none."


@dataclass(frozen=True, slots=True)
class Spool:
    """A spool's path. A plain value that travels to workers.

    Attributes:
        path: The path of the file.
        folder: Its folder, as the user gave it.
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
    """A spool that is open for writing; `close` it."""

    def __init__(self, spool: Spool) -> None:
        self._folder = spool.folder
        try:
            self._fd = os.open(spool.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise spool_failed(self._folder, error) from None

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
            raise spool_failed(self._folder, error) from None

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def spool_failed(folder: str, error: OSError) -> OutputFailed:
    """Return the error of a spool in `folder` that cannot be made or written."""
    return OutputFailed(folder or ".", f"cannot write a temporary file: {reason(error)}", remedy=spool_remedy())
