"""Reads spans of the files that a shard's samples lie in: shards of a dataset, or a spool.

Strategy: what follows the last span is read ahead, more and more of it, so that samples in the order of their
file cost one system call for many; what lies elsewhere is read by itself, straight to where it is wanted.
"""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from shardtool.storage import SpanSource
from shardtool.write.task import Failed

if TYPE_CHECKING:
    from shardtool.sample import SpanFile

_WINDOW = 512 * 1024  # fits the second level cache
_LEAST_AHEAD = 4096
_NEAR = 64 * 1024
_OPEN_FILES = 64

_window: memoryview | None = None  # one a process, made at the first span


def _shared_window() -> memoryview:
    global _window  # noqa: PLW0603 - as for the packer's buffer
    if _window is None:
        _window = memoryview(bytearray(_WINDOW))
    return _window


class SpanReader:
    """Reads spans of `files`. Files stay open until `close`, or until many others were opened since."""

    def __init__(self, files: tuple[SpanFile, ...]) -> None:
        self._files = files
        self._open: dict[int, SpanSource] = {}
        self._file = -1  # whose bytes the window holds
        self._start = self._held = self._end = self._ahead = 0  # where; how many; where the last span ended

    def path(self, file: int) -> bytes:
        """Return where a file is."""
        return self._files[file].path

    def read(self, file: int, offset: int, into: memoryview) -> None:
        """Fill `into` from a file, from `offset` on, by one system call.

        Raises:
            OSError: It cannot be read, or ends before.
            Failed: It is not the file that the plan saw.
        """
        source = self._open.get(file) or self._opened(file)
        got = source.read(into, offset)
        if got != len(into):
            raise OSError(errno.EIO, f"ends at {offset + got:,}, {len(into) - got:,} bytes too early")

    def fill(self, file: int, offset: int, into: memoryview) -> None:
        """Fill `into` as `read` does, from what was read ahead where it can be."""
        size, at = len(into), offset - self._start
        if file == self._file and at >= 0 and at + size <= self._held:
            into[:] = _shared_window()[at : at + size]
        elif file == self._file and 0 <= offset - self._end <= _NEAR and size < _WINDOW:
            self._read_ahead(file, offset, size)
            into[:] = _shared_window()[:size]
        else:
            self.read(file, offset, into)
            self._file, self._held, self._ahead = file, 0, 0
        self._end = offset + size

    def close(self) -> None:
        """Close all files."""
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _read_ahead(self, file: int, offset: int, size: int) -> None:
        self._ahead = min(max(2 * self._ahead, _LEAST_AHEAD), _WINDOW)
        held = max(size, min(self._ahead, self._files[file].size - offset))
        self._held = 0
        self.read(file, offset, _shared_window()[:held])
        self._start, self._held = offset, held

    def _opened(self, file: int) -> SpanSource:
        if len(self._open) >= _OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        planned = self._files[file]
        source = SpanSource(planned.path)
        fact = source.fact()
        if not stat.S_ISREG(fact.st_mode):
            found = "is no plain file"
        elif fact.st_size != planned.size:
            found = f"changed while it was read: {planned.size:,} bytes in the plan, {fact.st_size:,} now"
        elif planned.mtime_ns >= 0 and fact.st_mtime_ns != planned.mtime_ns:
            found = "changed while it was read: its modification time is another"
        else:
            self._open[file] = source
            return source
        source.close()
        raise Failed(planned.path, "changed", found)
