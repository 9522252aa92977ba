"""The first of two passes of a shuffle: what lies in a file goes where the plan wants it in a spool. Runs in a worker.

Strategy: as many payloads as memory may hold are read in the order of their file, each straight to where it stands in
the order of the spool. What one file gives to one region of the spool is one run there, so that a write is as
large as it can be. The parent has decided on all places: workers share a spool, and need to know nothing of each other.
"""

from __future__ import annotations

import errno
import os
from array import array
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from shardtool.fingerprint import crc32c
from shardtool.storage.files import MAX_IOVEC, MAX_READS
from shardtool.storage.spool import SpoolFile
from shardtool.write.buffers import MAX_GAP_BYTES, get_arena, get_buffer
from shardtool.write.source_errors import SourceFailed, read_error
from shardtool.write.span_reader import open_span_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.shard_samples import SpanFile
    from shardtool.skipped import SkipCode

ROW_OVERHEAD_BYTES = 512  # bytes of memory that a payload takes on its way besides its own: numbers, a view, its place
ROW_OVERHEAD_SHARE = 8  # one in so many parts of memory is for that
MIN_ROW_BYTES = ROW_OVERHEAD_BYTES * (ROW_OVERHEAD_SHARE - 1)  # so a payload counts as so many bytes at least
_READ_BLOCK_BYTES = 4 * 2**20  # read at a time, and summed while it is in the processor's cache
_MAX_READ_ROWS = MAX_IOVEC // 2  # a gap and a payload each


class ScatterTask(NamedTuple):
    """Payloads of one file, in the order of their places in it.

    Attributes:
        source: The file.
        packed: Whether it is compressed: places count in what it unpacks to.
        spool: Where payloads go.
        offsets: int64 per payload: where it starts in the file.
        sizes: int64 per payload: its bytes.
        targets: int64 per payload: where it starts in the spool.
        expected: int64 per payload: the CRC-32C that it must have, -1 where it is unknown.
        room: Bytes of memory for payloads.
        stop: Whether a bad payload ends the task.
    """

    source: SpanFile
    packed: bool
    spool: str
    offsets: bytes
    sizes: bytes
    targets: bytes
    expected: bytes
    room: int
    stop: bool


class ScatterResult(NamedTuple):
    """The result of a task.

    Attributes:
        wrong: Payloads, by their number in the task, that are not what their index says, and the CRC-32C of each.
        failed: Why the file cannot be read, as a code and a message: none of its payloads can be relied on.
    """

    wrong: tuple[tuple[int, int], ...] = ()
    failed: tuple[SkipCode, str] | None = None


def scatter_rows(task: ScatterTask, report: Callable[[int, int], None]) -> ScatterResult:
    """Copy payloads to their places in the spool; `report` is called with the bytes done.

    Raises:
        CorruptShard: A compressed file is damaged.
        OutputFailed: The spool cannot be written.
    """
    with closing(SpoolFile(task.spool)) as spool:
        try:
            has_crcs = min(array("q", task.expected), default=-1) >= 0
            for _ in range(MAX_READS):
                with closing(_UnpackedFile(task.source) if task.packed else _PlainFile(task.source)) as source:
                    found = _Scatterer(task, source, spool).run(report)
                with closing(open_span_file(task.source)) as read:  # still what the plan saw, now that it was read
                    if has_crcs or read.fact().st_ctime_ns == source.ctime_ns:
                        return found
        except (SourceFailed, OSError) as error:
            failed = error if isinstance(error, SourceFailed) else read_error(task.source.path, error)
            return ScatterResult((), (failed.code, failed.message))
    return ScatterResult((), ("changed", "changed while it was read"))


class _Scatterer:
    """A task at work."""

    def __init__(self, task: ScatterTask, source: _PlainFile | _UnpackedFile, spool: SpoolFile) -> None:
        self._task, self._source, self._spool = task, source, spool
        self._arena = get_arena(task.room)
        self._offsets, self._sizes = array("q", task.offsets), array("q", task.sizes)
        self._targets, self._expected = array("q", task.targets), array("q", task.expected)
        self._wrong: list[tuple[int, int]] = []

    def run(self, report: Callable[[int, int], None]) -> ScatterResult:
        """Copy all payloads, as many at a time as memory can hold."""
        for first, last in self._batches():
            if self._sizes[first] > self._task.room:
                self._stream(first)
            else:
                self._copy(first, last)
            report(0, sum(self._sizes[first:last]))
            if self._wrong and self._task.stop:
                break
        return ScatterResult(tuple(self._wrong))

    def _batches(self) -> Iterator[tuple[int, int]]:
        """Yield runs of payloads that memory can hold; one that it cannot hold is alone."""
        first = taken = 0
        room = self._task.room
        for row, size in enumerate(self._sizes):
            counts_as = max(size, MIN_ROW_BYTES)
            if row > first and taken + counts_as > room:
                yield first, row
                first, taken = row, 0
            taken += counts_as
        if first < len(self._sizes):
            yield first, len(self._sizes)

    def _copy(self, first: int, last: int) -> None:
        """Copy payloads that memory holds together: about 1.5 us each, besides the bytes."""
        arena, sizes, targets = self._arena, self._sizes[first:last].tolist(), self._targets[first:last].tolist()
        views: list[memoryview] = [arena] * len(sizes)
        runs: list[tuple[int, int]] = []  # where each starts in the spool, and in memory
        at, target_end = 0, -1
        for row in sorted(range(len(sizes)), key=targets.__getitem__):
            size, target = sizes[row], targets[row]
            if target != target_end:
                runs.append((target, at))
            start, at = at, at + size
            views[row] = arena[start:at]
            target_end = target + size
        step = max(1, min(_MAX_READ_ROWS, _READ_BLOCK_BYTES * len(sizes) // (at + 1)))
        for start in range(0, len(sizes), step):
            some = views[start : start + step]
            self._source.fill(self._offsets[first + start : first + start + len(some)], some)
            self._check(first + start, list(map(crc32c, some)))
        runs.append((0, at))
        for (target, start), (_, stop) in pairwise(runs):
            self._spool.write(arena[start:stop], target)

    def _stream(self, row: int) -> None:
        """Copy a payload that memory cannot hold, block by block."""
        offset, size, target, crc = self._offsets[row], self._sizes[row], self._targets[row], 0
        for done in range(0, size, len(self._arena)):
            block = self._arena[: min(len(self._arena), size - done)]
            self._source.fill(array("q", [offset + done]), [block])
            crc = crc32c(block, crc)
            self._spool.write(block, target + done)
        self._check(row, [crc])

    def _check(self, first: int, crcs: list[int]) -> None:
        """Check that payloads from `first` on, which have these checksums, are what their index says."""
        wanted = self._expected[first : first + len(crcs)].tolist()
        if wanted != crcs:
            pairs = enumerate(zip(crcs, wanted, strict=True), first)
            self._wrong += [(row, crc) for row, (crc, right) in pairs if crc != right and right >= 0]


class _PlainFile:
    """A file, read from its start on.

    Raises:
        OSError: It cannot be opened.
        SourceFailed: It is not the file that the plan saw.
    """

    def __init__(self, planned: SpanFile) -> None:
        self._source = open_span_file(planned)
        self.ctime_ns = self._source.fact().st_ctime_ns

    def fill(self, offsets: array[int], views: list[memoryview]) -> None:
        """Fill views, `_MOST_ROWS` at most, from these places, which ascend or are read again."""
        gap_view = get_buffer("gap")
        parts: list[memoryview] = []
        start = end = offsets[0]
        for offset, view in zip(offsets, views, strict=True):
            gap = offset - end
            if gap:
                if 0 < gap <= MAX_GAP_BYTES:
                    parts.append(gap_view[:gap])
                else:
                    self._read(parts, start, end)
                    parts, start = [], offset
            parts.append(view)
            end = offset + len(view)
        self._read(parts, start, end)

    def _read(self, parts: list[memoryview], start: int, end: int) -> None:
        got = self._source.read_parts(parts, start, end - start)
        if got != end - start:
            raise OSError(errno.EIO, f"ends at {start + got:,}, {end - start - got:,} bytes too early")

    def close(self) -> None:
        self._source.close()


class _UnpackedFile:
    """A compressed file, unpacked from its start on.

    Raises:
        CorruptShard: It cannot be opened.
        SourceFailed: It is not the file that the plan saw.
    """

    def __init__(self, planned: SpanFile) -> None:
        from shardtool.dataset.shard_file import CompressedFile

        with closing(open_span_file(planned)) as source:
            self.ctime_ns = source.fact().st_ctime_ns
        self._file = CompressedFile(os.fsdecode(planned.path))

    def fill(self, offsets: array[int], views: list[memoryview]) -> None:
        for offset, view in zip(offsets, views, strict=True):
            done, size = 0, len(view)
            while done < size:
                block = self._file.read(offset + done, min(size - done, MAX_GAP_BYTES))
                if not block:
                    raise OSError(errno.EIO, f"ends before {offset + done:,}")
                view[done : done + len(block)] = block
                done += len(block)

    def close(self) -> None:
        self._file.__exit__()
