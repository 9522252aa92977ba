"""Reads spans of the files that a shard's samples lie in: shards of a dataset, an archive, or a spool.

Strategy: what follows the last span is read ahead, more and more of it, so that samples in the order of their
file cost one system call for many; what lies elsewhere is read by itself, straight to where it is wanted. Regions of
a spool, each of them as much as memory may hold, are read whole when the first span in them is asked for.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_right
from functools import cache
from typing import TYPE_CHECKING, Literal

from shardtool.errors import CorruptShard, OutputFailed, SampleFailed
from shardtool.format import zip_read
from shardtool.storage.open_file import open_source
from shardtool.values import SpanFile, to_text
from shardtool.wording import option
from shardtool.write.task import SourceFailed, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.open_file import File, FileFact


_LEAST_AHEAD = 4096
_NEAR = 64 * 1024
OPEN_FILES = 64


def open_span_file(planned: SpanFile) -> File:
    """Return a file for reading.

    Raises:
        OSError: It cannot be opened.
        SourceFailed: It is not the file that the plan saw.
    """
    source = open_source(planned.path)
    fact = source.fact()
    special = isinstance(fact, os.stat_result) and not stat.S_ISREG(fact.st_mode)
    mtime_ns = planned.mtime_ns if planned.mtime_ns >= 0 else None  # of a spool, which changes while it is read
    found = "is no plain file" if special else difference(fact, planned.size, mtime_ns, "read")
    if not found:
        return source
    source.close()
    raise SourceFailed(planned.path, "changed", found)


def difference(fact: FileFact, size: int, mtime_ns: int | None, doing: str) -> str:
    """Return in what a file is not the one that the plan saw, for messages; empty: in nothing; None is any time."""
    if fact.st_size != size:
        return f"changed while it was {doing}: {size:,} bytes in the plan, {fact.st_size:,} now"
    if mtime_ns in (None, fact.st_mtime_ns):
        return ""
    what = "modification time" if isinstance(fact, os.stat_result) else "version (ETag)"
    return f"changed while it was {doing}: its {what} is another"


def check_unchanged(source: File, planned: SpanFile) -> None:
    """Check that a file which was read is still what the plan saw.

    Raises:
        SampleFailed: It is not.
    """
    fact = source.fact()
    if planned.mtime_ns >= 0 and (fact.st_size, fact.st_mtime_ns) != (planned.size, planned.mtime_ns):
        expected = "a shard that stays as it was when the run began"
        remedy = f"Run the same command with {option('if_exists', 'resume')}."
        raise SampleFailed(to_text(planned.path), "changed while it was read", expected=expected, remedy=remedy)


class SpanReader:
    """Reads spans of `files`. Files stay open until `close`, or until many others were opened since.

    Args:
        files: What spans lie in.
        regions: int64 pairs, ascending: where parts of the first file start and end that are read whole.
    """

    def __init__(self, files: tuple[SpanFile, ...], regions: bytes = b"") -> None:
        self._files = files
        bounds = numbers("q", regions)
        self._regions = list(zip(bounds[::2], bounds[1::2], strict=True))
        self._region = (0, 0)  # which the arena holds
        self._open: dict[int, File] = {}
        self._file = -1  # whose bytes the window holds
        self._start = self._held = self._end = self._ahead = 0  # where; how many; where the last span ended

    def read(self, file: int, offset: int, into: memoryview) -> None:
        """Fill `into` from a file, from `offset` on: from a region, or by one system call.

        Raises:
            OSError: It cannot be read, or ends before.
            SourceFailed: It is not the file that the plan saw.
        """
        if self._regions and not file:
            end = offset + len(into)
            start, stop = self._region
            if not start <= offset < stop:
                start, stop = self._enter(offset)
            if end <= stop:
                into[:] = arena(stop - start)[offset - start : end - start]
                return
        self._read(file, offset, into)

    def fill(self, file: int, offset: int, into: memoryview) -> None:
        """Fill `into` as `read` does, from what was read ahead where it can be."""
        if self._regions:
            self.read(file, offset, into)
            return
        size, at = len(into), offset - self._start
        if self._files[file].form == "zip":
            done = 0
            for block in self._unpacked(file, offset, size):
                into[done : done + len(block)] = block
                done += len(block)
            return
        if file == self._file and at >= 0 and at + size <= self._held:
            into[:] = buffer("window")[at : at + size]
        elif file == self._file and 0 <= offset - self._end <= _NEAR and size < BUFFER_SIZE:
            self._read_ahead(file, offset, size)
            into[:] = buffer("window")[:size]
        else:
            self._read(file, offset, into)
            self._file, self._held, self._ahead = file, 0, 0
        self._end = offset + size

    def view(self, file: int, offset: int, size: int) -> memoryview:
        """Return a span of at most `BUFFER_SIZE` of a shard; the next call may write over it."""
        at = offset - self._start
        if file != self._file or at < 0 or at + size > self._held:
            at = 0
            if file == self._file and 0 <= offset - self._end <= _NEAR:
                self._read_ahead(file, offset, size)
            else:
                self._held = self._ahead = 0
                self._read(file, offset, buffer("window")[:size])
                self._file, self._start, self._held = file, offset, size
        self._end = offset + size
        return buffer("window")[at : at + size]

    def blocks(self, file: int, offset: int, size: int, view: memoryview) -> Iterator[memoryview]:
        """Yield a span of any size block by block; `view` holds each of them.

        Raises:
            OSError: It cannot be read, or is damaged.
            SourceFailed: The file is not the one that the plan saw.
        """
        if self._files[file].form == "zip":
            for unpacked in self._unpacked(file, offset, size):
                yield memoryview(unpacked)
            return
        for done in range(0, size, len(view)):
            block = view[: min(len(view), size - done)]
            self.fill(file, offset + done, block)
            yield block

    def _unpacked(self, file: int, offset: int, size: int) -> Iterator[bytes | memoryview]:
        """Yield the payload of a zip's member.

        Raises:
            OSError: It is damaged, or cannot be read.
            SourceFailed: The file is not the one that the plan saw.
        """
        source = self._open.get(file) or self._opened(file)

        def read(start: int, length: int) -> memoryview:
            held = memoryview(bytearray(min(length, max(0, self._files[file].size - start))))
            return held[: source.read_into(held, start)]

        try:
            yield from zip_read.payload(read, offset, size, to_text(self._files[file].path))
        except CorruptShard as error:
            raise OSError(errno.EIO, error.found) from None

    def check(self) -> None:
        """Check that the files are still what the plan saw, now that they were read.

        Raises:
            SampleFailed: One is not.
        """
        for file, source in self._open.items():
            check_unchanged(source, self._files[file])

    def close(self) -> None:
        """Close all files."""
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _enter(self, offset: int) -> tuple[int, int]:
        """Read the region that `offset` lies in; return where it starts and ends: nowhere where there is none."""
        start, stop = self._regions[max(0, bisect_right(self._regions, (offset, self._files[0].size + 1)) - 1)]
        if not start <= offset < stop:
            return 0, 0
        self._region = (0, 0)
        self._read(0, start, arena(stop - start))
        self._region = (start, stop)
        return start, stop

    def _read(self, file: int, offset: int, into: memoryview) -> None:
        source = self._open.get(file) or self._opened(file)
        got = source.read_into(into, offset)
        if got != len(into):
            raise OSError(errno.EIO, f"ends at {offset + got:,}, {len(into) - got:,} bytes too early")

    def _read_ahead(self, file: int, offset: int, size: int) -> None:
        self._ahead = min(max(2 * self._ahead, _LEAST_AHEAD), BUFFER_SIZE)
        held = max(size, min(self._ahead, self._files[file].size - offset))
        self._held = 0
        self._read(file, offset, buffer("window")[:held])
        self._start, self._held = offset, held

    def _opened(self, file: int) -> File:
        if len(self._open) >= OPEN_FILES:
            self._close_oldest()
        while True:
            try:
                source = self._open[file] = open_span_file(self._files[file])
            except OSError as error:  # of the machine, and no fault of the file
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                if not self._open:
                    remedy = f"Raise the limit (ulimit -n), or use fewer {option('workers')}."
                    raise OutputFailed(to_text(self._files[file].path), "too many open files", remedy=remedy) from None
                self._close_oldest()
            else:
                return source

    def _close_oldest(self) -> None:
        oldest = next(iter(self._open))
        check_unchanged(self._open[oldest], self._files[oldest])
        self._open.pop(oldest).close()


# The memory that a worker reads into and writes from: one of each a process, made when it is first asked for.
#
# Page faults for fresh buffers would cost as much as a shard of small files.


BUFFER_SIZE = 512 * 1024  # read or written at a time, larger payloads are streamed: fits the second level cache; a
# larger one costs up to double
GAP = 2**20  # bytes between payloads are read over, up to this: a disk would take as long to seek

_arena = memoryview(b"")  # as large as it had to be so far


@cache
def buffer(use: Literal["shard", "window", "gap"]) -> memoryview:
    """Return the memory for a use.

    Args:
        use: `shard`: a shard is put together in it; `window`: spans of files are read ahead into it; `gap`: it takes
            the bytes between payloads, which are not used.
    """
    return memoryview(bytearray(GAP if use == "gap" else BUFFER_SIZE))


def arena(size: int) -> memoryview:
    """Return `size` bytes of memory for payloads that lie scattered; who asked before must be done with it."""
    global _arena  # noqa: PLW0603 - there must be one only: it is all of the share of memory
    if len(_arena) < size:
        _arena = memoryview(b"")  # before there is another
        _arena = memoryview(bytearray(size))
    return _arena[:size]
