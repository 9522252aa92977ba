"""Reads the files of a shard several at a time, where opening one takes long: over a network, mostly.

Strategy: threads read the files that come next, whole, in the order in which they will be asked for; who asks gets them
one after the other. What is not as it was planned is not used: it is read again by itself, so that errors, and what is
left out, are those of a shard that is read one file at a time. So are the bytes: no thread knows anything of the shard.
Where files open at once there is none of this, for a thread costs more than such a file.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import ShardError, is_out_of_memory
from shardtool.write.buffers import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

    from shardtool.storage.sources import FileFact

    Read = tuple[int, FileFact]
    ReadFile = Callable[[bytes, memoryview, int], Read]

_QUEUED = 2  # times as many as are read: no thread waits while a buffer is written
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # errors that reading one file at a time may not meet


class PlannedFile(NamedTuple):
    """A file that is to be read, as the plan saw it; `flags` open it."""

    path: bytes
    flags: int
    size: int
    mtime_ns: int


class _Reading(NamedTuple):
    """A file that is read, or was."""

    file: PlannedFile
    data: memoryview
    read: Future[Read]


class ReadAhead:
    """Gives the contents of files that are asked for in their order, some of them left out; `close` it.

    It holds `memory` bytes at most. Files that are too large for that are none of its business.

    Args:
        files: All that may be asked for, in order.
        at_once: How many are read at the same time.
        read_file: Reads one: that of `storage.reading`, or of `storage.sources`.
    """

    def __init__(self, files: Iterator[PlannedFile], at_once: int, read_file: ReadFile) -> None:
        self.memory = at_once * BUFFER_SIZE
        self.largest = self.memory // 2  # or it would be read alone
        self.held = 0  # bytes of files that are read and not asked for yet
        self._at_once, self._read_file = at_once, read_file
        self._files = (file for file in files if file.size <= self.largest)
        self._next = next(self._files, None)
        self._begun: deque[_Reading] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def read(self, path: bytes, into: memoryview, flags: int) -> Read:
        """Do what `read_file` does.

        Raises:
            OSError: The file cannot be opened or read.
            ShardError: A store cannot be asked.
        """
        data = self.take(path, len(into), flags)
        if data is None:
            return self._read_file(path, into, flags)
        got, fact = data.read.result()
        into[:] = data.data
        return got, fact

    def blocks(self, path: bytes, size: int, flags: int, view: memoryview) -> Iterator[memoryview] | None:
        """Return what yields a whole file in blocks that lie in `view`; None: it is to be read by itself."""
        data = self.take(path, size, flags)
        return None if data is None else _blocks(data.data, view)

    def take(self, path: bytes, size: int, flags: int) -> _Reading | None:
        """Return a file that is as planned; None: it is to be read by itself."""
        if size > self.largest:
            return None
        self._begin()
        while self._begun:
            one = self._begun.popleft()
            error = one.read.exception()  # waits, for one that was left out too: its memory counts
            self.held -= one.file.size
            if one.file[:3] != (path, flags, size):
                continue
            if isinstance(error, ShardError):
                raise error  # a store that refuses, or fails time and again: it is not asked once more
            if isinstance(error, OSError) and error.errno in _TOO_MANY:
                for other in self._begun:
                    other.read.exception()
            return one if error is None and _as_planned(one) else None
        return None

    def close(self) -> None:
        """End the threads; what they read is given up."""
        self._next = None
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """Have the next files read, as many as there is room for."""
        while self._next and len(self._begun) < _QUEUED * self._at_once and self.held + self._next.size <= self.memory:
            file = self._next
            try:
                data = memoryview(bytearray(file.size))
                read = self._pool().submit(self._read_file, file.path, data, file.flags)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._next = None  # from here on one file at a time, which takes less
                return
            self._begun.append(_Reading(file, data, read))
            self.held += file.size
            self._next = next(self._files, None)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(self._at_once)
        return self._threads


def _as_planned(one: _Reading) -> bool:
    got, fact = one.read.result()
    return got == fact.st_size == one.file.size and fact.st_mtime_ns == one.file.mtime_ns


def _blocks(data: memoryview, view: memoryview) -> Iterator[memoryview]:
    for done in range(0, len(data), len(view)):
        block = data[done : done + len(view)]
        view[: len(block)] = block
        yield view[: len(block)]
