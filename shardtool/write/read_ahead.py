"""Read the files of a shard in several threads, where opening a file is slow, such as over a network.

Threads read the next files whole, in the order of the plan. A file that differs from the plan is discarded and read
again by the caller, so errors and skipped samples are the same as without threads. Where files open quickly, a
thread costs more than a file, so none is used.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import (
    PROCESS_ERRNOS,
    ShardError,
    is_out_of_memory,
)
from shardtool.storage.files import read_file
from shardtool.storage.remote.retry import wait_interruptibly
from shardtool.write.buffers import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from shardtool.storage.remote.objects import FileInfo

    Read = tuple[int, FileInfo]


_QUEUE_FACTOR = 2  # times as many as are read: no thread waits while a buffer is written


class PlannedFile(NamedTuple):
    """A file that is to be read, as the plan saw it; `flags` open it."""

    path: bytes
    flags: int
    size: int
    mtime_ns: int


class _FileRead(NamedTuple):
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
        read: Reads one.
        newest_ns: The latest ctime that shows no change.
    """

    def __init__(
        self,
        files: Iterator[PlannedFile],
        at_once: int,
        read: Callable[[bytes, memoryview, int], Read] = read_file,
        max_ctime_ns: int = sys.maxsize,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.memory = at_once * BUFFER_SIZE
        self.largest = self.memory // 2  # or it would be read alone
        self.held = 0  # bytes of files that are read and not asked for yet
        self._at_once, self._threads = at_once, ThreadPoolExecutor(at_once)  # which starts none before it is asked
        self._read, self._max_ctime_ns = read, max_ctime_ns
        self._files = (file for file in files if file.size <= self.largest)
        self._next = next(self._files, None)
        self._begun: deque[_FileRead] = deque()

    def read(self, path: bytes, into: memoryview, flags: int) -> Read:
        """Do what `read_file` does.

        Raises:
            OSError: The file cannot be opened or read.
            ShardError: A store cannot be asked.
        """
        data = self.take(path, len(into), flags)
        if data is None:
            return self._read(path, into, flags)
        got, fact = data.read.result()
        into[:] = data.data
        return got, fact

    def take(self, path: bytes, size: int, flags: int) -> _FileRead | None:
        """Return a file that is as planned; None: it is to be read by itself."""
        if size > self.largest:
            return None
        self._begin()
        while self._begun:
            one = self._begun.popleft()
            error = wait_interruptibly(one.read).exception()  # for one that was left out too: its memory counts
            self.held -= one.file.size
            if one.file[:3] != (path, flags, size):
                continue
            if isinstance(error, ShardError):
                raise error  # a store that refuses, or fails time and again: it is not asked once more
            if (
                isinstance(error, OSError) and error.errno in PROCESS_ERRNOS
            ):  # reading one file at a time may not meet it
                for other in self._begun:
                    other.read.exception()
            if error is not None:
                return None
            got, fact = one.read.result()
            is_planned = (got, fact.st_size, fact.st_mtime_ns) == (size, size, one.file.mtime_ns)
            return one if is_planned and fact.st_ctime_ns <= self._max_ctime_ns else None
        return None

    def close(self) -> None:
        """End the threads; what they read is given up."""
        self._next = None
        self._threads.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """Have the next files read, as many as there is room for."""
        while (
            self._next
            and len(self._begun) < _QUEUE_FACTOR * self._at_once
            and self.held + self._next.size <= self.memory
        ):
            file = self._next
            try:
                data = memoryview(bytearray(file.size))
                read = self._threads.submit(self._read, file.path, data, file.flags)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._next = None  # from here on one file at a time, which takes less
                return
            self._begun.append(_FileRead(file, data, read))
            self.held += file.size
            self._next = next(self._files, None)
