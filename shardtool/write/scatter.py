"""Copy payloads from one source file to the spool, the temporary file of a shuffle."""

from __future__ import annotations

import errno
import os
from array import array
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from shardtool.fingerprint import crc32c
from shardtool.storage.files import MAX_IOVEC, MAX_READS
from shardtool.storage.staging import SpoolFile
from shardtool.write.source_errors import SourceFailed, read_error
from shardtool.write.span_reader import open_span_file
from shardtool.write.task import MAX_GAP_BYTES, get_arena, get_buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.shard_samples import SpanFile
    from shardtool.skipped import SkipCode

ROW_OVERHEAD_BYTES = 512
ROW_OVERHEAD_SHARE = 8
MIN_ROW_BYTES = ROW_OVERHEAD_BYTES * (ROW_OVERHEAD_SHARE - 1)
_READ_BLOCK_BYTES = 4 * 2**20  # small enough to stay in the CPU cache until the checksum is computed
_MAX_READ_ROWS = MAX_IOVEC // 2


class ScatterTask(NamedTuple):
    """The payloads to copy from one source file, in file order.

    Attributes:
        is_compressed: Whether `offsets` count decompressed bytes.
        offsets: int64, offset of each payload in the source file.
        sizes: int64, bytes of each payload.
        targets: int64, offset of each payload in the spool.
        expected: int64, CRC-32C of each payload, or -1 if unknown.
        memory: Bytes of memory for payloads.
        stop: Whether to stop after a wrong checksum.
    """

    source: SpanFile
    is_compressed: bool
    spool: str
    offsets: bytes
    sizes: bytes
    targets: bytes
    expected: bytes
    memory: int
    stop: bool


class ScatterResult(NamedTuple):
    """The result of a `ScatterTask`.

    Attributes:
        wrong: Index and CRC-32C of each payload with a wrong checksum.
        failed: Code and message if the file cannot be read, which makes copied payloads invalid.
    """

    wrong: tuple[tuple[int, int], ...] = ()
    failed: tuple[SkipCode, str] | None = None


def scatter_rows(task: ScatterTask, report: Callable[[int, int], None]) -> ScatterResult:
    """Copy the payloads of a task to the spool. Call `report(0, n)` after n bytes were copied."""
    with closing(SpoolFile(task.spool)) as spool:
        try:
            has_crcs = min(array("q", task.expected), default=-1) >= 0
            for _ in range(MAX_READS):
                with closing(_UnpackedFile(task.source) if task.is_compressed else _PlainFile(task.source)) as source:
                    result = _Scatterer(task, source, spool).run(report)
                # open the file again to detect changes
                with closing(open_span_file(task.source)) as reopened:
                    if has_crcs or reopened.stat().st_ctime_ns == source.ctime_ns:
                        return result
        except (SourceFailed, OSError) as error:
            failed = error if isinstance(error, SourceFailed) else read_error(task.source.path, error)
            return ScatterResult((), (failed.code, failed.message))
    return ScatterResult((), ("changed", "changed while it was read"))


class _Scatterer:
    def __init__(self, task: ScatterTask, source: _PlainFile | _UnpackedFile, spool: SpoolFile) -> None:
        self._task, self._source, self._spool = task, source, spool
        self._arena = get_arena(task.memory)
        self._offsets, self._sizes = array("q", task.offsets), array("q", task.sizes)
        self._targets, self._expected = array("q", task.targets), array("q", task.expected)
        self._wrong: list[tuple[int, int]] = []

    def run(self, report: Callable[[int, int], None]) -> ScatterResult:
        for first, last in self._batches():
            if self._sizes[first] > self._task.memory:
                self._stream(first)
            else:
                self._copy(first, last)
            report(0, sum(self._sizes[first:last]))
            if self._wrong and self._task.stop:
                break
        return ScatterResult(tuple(self._wrong))

    def _batches(self) -> Iterator[tuple[int, int]]:
        first = used = 0
        memory = self._task.memory
        for row, size in enumerate(self._sizes):
            counts_as = max(size, MIN_ROW_BYTES)
            if row > first and used + counts_as > memory:
                yield first, row
                first, used = row, 0
            used += counts_as
        if first < len(self._sizes):
            yield first, len(self._sizes)

    def _copy(self, first: int, last: int) -> None:
        # Payloads that will be adjacent in the spool are written with one call.
        arena, sizes, targets = self._arena, self._sizes[first:last].tolist(), self._targets[first:last].tolist()
        views: list[memoryview] = [arena] * len(sizes)
        runs: list[tuple[int, int]] = []
        position, target_end = 0, -1
        for row in sorted(range(len(sizes)), key=targets.__getitem__):
            size, target = sizes[row], targets[row]
            if target != target_end:
                runs.append((target, position))
            start, position = position, position + size
            views[row] = arena[start:position]
            target_end = target + size
        step = max(1, min(_MAX_READ_ROWS, _READ_BLOCK_BYTES * len(sizes) // (position + 1)))
        for start in range(0, len(sizes), step):
            block_views = views[start : start + step]
            self._source.fill(self._offsets[first + start : first + start + len(block_views)], block_views)
            self._check(first + start, list(map(crc32c, block_views)))
        runs.append((0, position))
        for (target, start), (_, stop) in pairwise(runs):
            self._spool.write(arena[start:stop], target)

    def _stream(self, row: int) -> None:
        offset, size, target, crc = self._offsets[row], self._sizes[row], self._targets[row], 0
        for done in range(0, size, len(self._arena)):
            block = self._arena[: min(len(self._arena), size - done)]
            self._source.fill(array("q", [offset + done]), [block])
            crc = crc32c(block, crc)
            self._spool.write(block, target + done)
        self._check(row, [crc])

    def _check(self, first: int, crcs: list[int]) -> None:
        expected = self._expected[first : first + len(crcs)].tolist()
        if expected != crcs:
            pairs = enumerate(zip(crcs, expected, strict=True), first)
            self._wrong += [
                (row, crc) for row, (crc, expected_crc) in pairs if crc != expected_crc and expected_crc >= 0
            ]


class _PlainFile:
    """Reads a file at ascending offsets."""

    def __init__(self, planned: SpanFile) -> None:
        self._source = open_span_file(planned)
        self.ctime_ns = self._source.stat().st_ctime_ns

    def fill(self, offsets: array[int], views: list[memoryview]) -> None:
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
        size_read = self._source.read_parts(parts, start, end - start)
        if size_read != end - start:
            raise OSError(errno.EIO, f"ends at {start + size_read:,}, {end - start - size_read:,} bytes too early")

    def close(self) -> None:
        self._source.close()


class _UnpackedFile:
    def __init__(self, planned: SpanFile) -> None:
        from shardtool.dataset.shard_file import CompressedFile

        with closing(open_span_file(planned)) as source:
            self.ctime_ns = source.stat().st_ctime_ns
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
