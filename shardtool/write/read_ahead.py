"""Read the source files of a shard ahead, in threads. This helps if opening files is slow, for example on NFS."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import ShardError, is_out_of_memory
from shardtool.storage.remote.retry import wait_interruptibly
from shardtool.write.task import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from shardtool.storage.remote.objects import FileInfo

    Read = tuple[int, FileInfo]


_QUEUE_FACTOR = 2


class PlannedFile(NamedTuple):
    """A file to read, with its planned size and mtime."""

    path: bytes
    flags: int
    size: int
    mtime_ns: int


class _FileRead(NamedTuple):
    file: PlannedFile
    data: memoryview
    read: Future[Read]


class ReadAhead:
    """Reads files ahead, in threads.

    The caller must request the files in the order of `files`, but may skip some. Files that were read but not requested
    use at most `memory` bytes. The caller must read a file itself if it is larger than half of `memory`, differs from
    the plan, or changed after `max_ctime_ns`.
    """

    def __init__(
        self,
        files: Iterator[PlannedFile],
        threads: int,
        read: Callable[[bytes, memoryview, int], Read],
        max_ctime_ns: int,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.memory = threads * BUFFER_SIZE
        self.largest = self.memory // 2
        self.held = 0
        self._thread_count, self._pool = threads, ThreadPoolExecutor(threads)
        self._read, self._max_ctime_ns = read, max_ctime_ns
        self._files = (file for file in files if file.size <= self.largest)
        self._next = next(self._files, None)
        self._pending: deque[_FileRead] = deque()

    def read(self, path: bytes, into: memoryview, flags: int, _folder: int | None = None) -> Read:
        """Read a file like `read_file`, but from memory if it was read ahead."""
        data = self.take(path, len(into), flags)
        if data is None:
            return self._read(path, into, flags)
        size, info = data.read.result()
        into[:] = data.data
        return size, info

    def take(self, path: bytes, size: int, flags: int) -> _FileRead | None:
        """Return a file that was read ahead, or None if the caller must read it."""
        if size > self.largest:
            return None
        self._submit_next()
        while self._pending:
            file_read = self._pending.popleft()
            # wait for skipped files too, because a thread may still be filling the buffer
            error = wait_interruptibly(file_read.read).exception()
            self.held -= file_read.file.size
            if file_read.file[:3] != (path, flags, size):
                continue
            if isinstance(error, ShardError):
                raise error
            if error is not None:
                return None
            size_read, info = file_read.read.result()
            is_planned = (size_read, info.st_size, info.st_mtime_ns) == (size, size, file_read.file.mtime_ns)
            return file_read if is_planned and info.st_ctime_ns <= self._max_ctime_ns else None
        return None

    def close(self) -> None:
        """Stop the threads, and discard what they have read."""
        self._next = None
        self._pool.shutdown(cancel_futures=True)

    def _submit_next(self) -> None:
        while (
            self._next
            and len(self._pending) < _QUEUE_FACTOR * self._thread_count
            and self.held + self._next.size <= self.memory
        ):
            file = self._next
            try:
                data = memoryview(bytearray(file.size))
                read = self._pool.submit(self._read, file.path, data, file.flags)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._next = None
                return
            self._pending.append(_FileRead(file, data, read))
            self.held += file.size
            self._next = next(self._files, None)
