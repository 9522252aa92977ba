"""Read spans: byte ranges in shards, archives and the temporary file of a shuffle (the spool).

One system call reads many consecutive spans, or a region (a range of the spool that fits in memory).
"""

from __future__ import annotations

import errno
import os
import stat
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, SampleFailed
from shardtool.format import zip_read
from shardtool.messages import flag_text
from shardtool.names import to_text
from shardtool.storage.files import open_source_file
from shardtool.write.source_errors import SourceFailed, SourceTouched, describe_change
from shardtool.write.task import BUFFER_SIZE, get_arena, get_buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.shard_samples import SpanFile
    from shardtool.storage.files import OpenFile
    from shardtool.storage.remote.objects import FileInfo

    Read = tuple[int, FileInfo]


_MIN_AHEAD_BYTES = 4096

_MAX_AHEAD_GAP_BYTES = 64 * 1024

MAX_OPEN_FILES = 64


def open_span_file(planned: SpanFile) -> OpenFile:
    """Open a file for reading. Raise `SourceFailed` if the file differs from the plan."""
    source = open_source_file(planned.path)
    info = source.stat()
    is_special = isinstance(info, os.stat_result) and not stat.S_ISREG(info.st_mode)
    # the spool has no planned mtime: it is written during the run
    mtime_ns = planned.mtime_ns if planned.mtime_ns >= 0 else None
    problem = "is not a regular file" if is_special else describe_change(info, planned.size, mtime_ns, "read")
    if not problem:
        return source
    source.close()
    raise SourceFailed(planned.path, "changed", problem)


def check_unchanged(source: OpenFile, planned: SpanFile, ctime_ns: int | None) -> None:
    """Raise an error if a file has changed since it was planned.

    If `ctime_ns` is None, do not compare the ctime.

    Raises:
        SampleFailed: The size or modification time has changed.
        SourceTouched: Only the ctime differs from `ctime_ns`.
    """
    info = source.stat()
    if planned.mtime_ns >= 0 and (info.st_size, info.st_mtime_ns) != (planned.size, planned.mtime_ns):
        expected = "a shard that does not change during the run"
        remedy = f"Run the same command with {flag_text('resume')}."
        raise SampleFailed(to_text(planned.path), "changed while it was read", expected=expected, remedy=remedy)
    if planned.mtime_ns >= 0 and ctime_ns not in (None, info.st_ctime_ns):
        raise SourceTouched(planned.path)


class SpanReader:
    """Reads spans of `files`. Files stay open until `close`, or until too many are open.

    Args:
        regions: Start and end of each region of the spool (`files[0]`), as ascending int64 pairs.
        has_crcs: Whether the caller verifies a checksum of every payload. If true, do not compare ctimes.
    """

    def __init__(self, files: tuple[SpanFile, ...], regions: bytes, *, has_crcs: bool) -> None:
        self._files, self._has_crcs = files, has_crcs
        bounds = array("q", regions)
        self._regions = list(zip(bounds[::2], bounds[1::2], strict=True))
        self._region = (0, 0)
        self._open: dict[int, OpenFile] = {}
        self._ctimes: dict[int, int | None] = {}
        self._file = -1
        self._start = self._held = 0
        # the end offset of the last span, and the size of the last read-ahead
        self._end = self._ahead = 0

    def read(self, file: int, offset: int, into: memoryview) -> None:
        """Fill `into` with the bytes at `offset` of `files[file]`.

        If a region contains the bytes, read the whole region.
        """
        if self._regions and not file:
            end = offset + len(into)
            start, stop = self._region
            if not start <= offset < stop:
                start, stop = self._read_region(offset)
            if end <= stop:
                into[:] = get_arena(stop - start)[offset - start : end - start]
                return
        self._read(file, offset, into)

    def fill(self, file: int, offset: int, into: memoryview) -> None:
        """Fill `into` like `read`, but read consecutive spans ahead and decompress zip members."""
        if self._regions:
            self.read(file, offset, into)
            return
        size, window_offset = len(into), offset - self._start
        if self._files[file].form == "zip":
            done = 0
            for block in self._unpacked(file, offset, size):
                into[done : done + len(block)] = block
                done += len(block)
            return
        if file == self._file and window_offset >= 0 and window_offset + size <= self._held:
            into[:] = get_buffer("window")[window_offset : window_offset + size]
        elif file == self._file and 0 <= offset - self._end <= _MAX_AHEAD_GAP_BYTES and size < BUFFER_SIZE:
            self._read_ahead(file, offset, size)
            into[:] = get_buffer("window")[:size]
        else:
            self._read(file, offset, into)
            self._file, self._held, self._ahead = file, 0, 0
        self._end = offset + size

    def blocks(self, file: int, offset: int, size: int, view: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of a span in blocks. The next block may overwrite the previous one."""
        if self._files[file].form == "zip":
            for unpacked in self._unpacked(file, offset, size):
                yield memoryview(unpacked)
            return
        for done in range(0, size, len(view)):
            block = view[: min(len(view), size - done)]
            self.fill(file, offset + done, block)
            yield block

    def _unpacked(self, file: int, offset: int, size: int) -> Iterator[bytes | memoryview]:
        source = self._open.get(file) or self._open_file(file)

        def read(start: int, length: int) -> memoryview:
            data = memoryview(bytearray(min(length, max(0, self._files[file].size - start))))
            return data[: source.read_into(data, start)]

        try:
            yield from zip_read.iter_zip_payload(read, offset, size, to_text(self._files[file].path))
        except CorruptShard as error:
            raise OSError(errno.EIO, error.found) from None

    def check(self) -> None:
        """Raise an error if an open file has changed since it was opened."""
        for file, source in self._open.items():
            check_unchanged(source, self._files[file], self._ctimes[file])

    def close(self) -> None:
        """Close all files."""
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _read_region(self, offset: int) -> tuple[int, int]:
        start, stop = self._regions[max(0, bisect_right(self._regions, (offset, self._files[0].size + 1)) - 1)]
        if not start <= offset < stop:
            return 0, 0
        self._region = (0, 0)
        self._read(0, start, get_arena(stop - start))
        self._region = (start, stop)
        return start, stop

    def _read(self, file: int, offset: int, into: memoryview) -> None:
        source = self._open.get(file) or self._open_file(file)
        size_read = source.read_into(into, offset)
        if size_read != len(into):
            raise OSError(errno.EIO, f"ends at {offset + size_read:,}, {len(into) - size_read:,} bytes too early")

    def _read_ahead(self, file: int, offset: int, size: int) -> None:
        self._ahead = min(max(2 * self._ahead, _MIN_AHEAD_BYTES), BUFFER_SIZE)
        size_ahead = max(size, min(self._ahead, self._files[file].size - offset))
        self._held = 0
        self._read(file, offset, get_buffer("window")[:size_ahead])
        self._start, self._held = offset, size_ahead

    def _open_file(self, file: int) -> OpenFile:
        if len(self._open) >= MAX_OPEN_FILES:
            self._close_oldest()
        while True:
            try:
                source = self._open[file] = open_span_file(self._files[file])
            except OSError as error:
                if not self._open or error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._close_oldest()
            else:
                has_crcs = self._has_crcs or self._files[file].form == "zip"
                self._ctimes[file] = None if has_crcs else source.stat().st_ctime_ns
                return source

    def _close_oldest(self) -> None:
        oldest = next(iter(self._open))
        check_unchanged(self._open[oldest], self._files[oldest], self._ctimes[oldest])
        self._open.pop(oldest).close()
