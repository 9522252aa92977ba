"""What the packers of all formats share: their task, reading payloads, the buffer, leaving samples out, the tally.

Strategy: files are read straight into one reusable buffer, behind a gap for what stands before them,
checksummed there while the cache is warm, and written a buffer at a time. A sample that fits the buffer is
never split by a write, so leaving it out is setting a number back; a larger one is streamed, and to leave it
out the shard is begun again without it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from array import array
from bisect import bisect_right
from collections import deque
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from shardtool.errors import (
    OF_PROCESS,
    CorruptShard,
    SampleFailed,
    ShardError,
    is_out_of_memory,
    printable,
    raise_if_machines,
    reason,
)
from shardtool.fingerprint import content_digest, crc32c
from shardtool.format import tar, tfrecord, zip_read
from shardtool.skipped import CHOSEN, SkipCode, Skipped
from shardtool.storage.places import READ_FOLLOWING, READ_PLAIN, open_source, read_file, read_unchanged
from shardtool.storage.remote.retry import waited
from shardtool.values import FILE, INLINE, LINK, SPAN, Number, ShardContent, SpanFile, inline_payload, placed, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.places import File, FileFact
    from shardtool.storage.staging import DurableFile
    from shardtool.transform import Transform
    from shardtool.values import Dots, OnError, Oversize, ShardSamples

    Read = tuple[int, FileFact]
    Report = Callable[..., None]
    Put = Callable[[memoryview | bytes], object]
    Parts = list[bytes | memoryview]


# A shard to write, and what became of it: plain values that travel to a worker and back.


class Keep(NamedTuple):
    """A file of the shard's name has a sound sidecar, of a source that has not changed: it stays if it is that file.

    Attributes:
        crc: What the sidecar says of the file.
        field_crcs: uint32 per field, as the sidecar has them.
        size: The file's bytes.
        unread: Whether its size is enough to know it, so that not even the file is read.
    """

    crc: int
    field_crcs: bytes
    size: int
    unread: bool


Todo: TypeAlias = "Keep | Literal['write', 'compare']"


class TransformWork(NamedTuple):
    """The changes to samples, whose sizes the plan then only estimates, and the limits of the shard.

    Attributes:
        transform: What to do to each sample.
        room: Bytes of records that the shard may hold.
        max_count: The most samples; None: any number.
        oversize: What becomes of a sample that fits in no shard.
        dots: Where keys end in the names of a tar's members.
        known: The columns that the transform's condition names, as far as the plan has them: a stream of Arrow.
    """

    transform: Transform
    room: int
    max_count: int | None
    oversize: Oversize
    dots: Dots = "first"
    known: bytes = b""


class TransformedSamples(NamedTuple):
    """A shard's samples as transforms made them.

    Attributes:
        content: What was written; its `inline` has the text of numbers only.
        sources: int64 per sample: the place in the task of the sample that it was made of.
        consumed: How many of the task's samples are dealt with; the rest wants another shard.
        dropped: How many of these the user's function dropped.
        found: Of each sample, what was found when it was read: a value for each column of `Transform.found`.
    """

    content: ShardContent
    sources: bytes
    consumed: int
    dropped: int
    found: list[tuple[object, ...]]


class ShardTask(NamedTuple):
    """A shard to write.

    Attributes:
        shard: Its number in the plan.
        name: Its final name.
        format: `tar` or `tfrecord`.
        folder: Where it goes.
        samples: What goes into it.
        on_error: Whether a sample that cannot be read ends the run, or is left out.
        mtime_ns: The modification time that the file gets.
        todo: Whether to write it, or to keep what an earlier run has left: `compare` keeps a file of its name if
            reading the source again gives the same bytes.
        work: What is done to the samples; None: nothing, they are packed as they are.
        reads: How many files are read at the same time.
        size: Its bytes, if nothing is left out; None: they are not known.
    """

    shard: int
    name: str
    format: str
    folder: OutputFolder
    samples: ShardSamples
    on_error: OnError
    mtime_ns: int
    todo: Todo = "write"
    work: TransformWork | None = None
    reads: int = 1
    size: int | None = None


class ShardResult(NamedTuple):
    """The result of a shard's task.

    Attributes:
        shard: Its number in the plan.
        staged: The file, to be published; None: the one that is there is right.
        size: Bytes.
        crc: CRC-32C of the whole file.
        field_crcs: uint32 for each field that was written, of its bytes in the shard.
        digest: The content fingerprint of its samples.
        skipped: What was left out, each with its place in the shard.
        made: What transforms made; None: what was planned.
        compared: Whether the file that is there was found right by reading the source again.
        wrong: Whether the file that is there is not to be kept, and nothing was written yet; then all else is empty.
    """

    shard: int
    staged: DurableFile | None
    size: int
    crc: int
    field_crcs: bytes
    digest: int
    skipped: tuple[tuple[int, Skipped], ...]
    made: TransformedSamples | None = None
    compared: bool = False
    wrong: bool = False


class SourceFailed(Exception):
    """A file cannot be read, or is not what the plan saw; or a transform cannot take the sample."""

    def __init__(self, path: bytes, code: SkipCode, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.path, self.code, self.message, self.detail = path, code, message, detail


def split_names(names: bytes) -> list[bytes]:
    """Return the names in a buffer with a NUL after each."""
    return names[:-1].split(b"\0") if names else []


def digest(content: ShardContent, field_crcs: bytes, skipped: Collection[int], ones: Sequence[int] = ()) -> int:
    """Return the content fingerprint of the samples that were written: all but those at the places `skipped`.

    Args:
        content: What was planned.
        field_crcs: uint32 for each field that was written.
        skipped: Places of samples that were not.
        ones: For each field of lists that holds a single number: its place in `field_crcs`, and the length and checksum
            of the number's text.
    """
    keys, counts = split_names(content.keys), array("H", content.counts).tolist()
    codes, sizes = content.codes, content.sizes
    texts = split_names(content.inline) if content.numbers and content.inline else []
    for sample in sorted(skipped, reverse=True):
        row = sum(counts[:sample])
        end = row + counts[sample]
        codes, sizes = codes[: 2 * row] + codes[2 * end :], sizes[: 8 * row] + sizes[8 * end :]
        del keys[sample], counts[sample], texts[row:end]
    if texts:  # content is the number's text, however a format stores it
        crcs = array("I", field_crcs)
        for row, code in enumerate(array("H", codes)):
            if code in content.numbers:
                crcs[row] = crc32c(texts[row])
        field_crcs = crcs.tobytes()
    if ones:
        lengths, crcs = array("q", sizes), array("I", field_crcs)
        for row, length, crc in zip(ones[::3], ones[1::3], ones[2::3], strict=True):
            lengths[row], crcs[row] = length, crc
        sizes, field_crcs = lengths.tobytes(), crcs.tobytes()
    return content_digest(keys, counts, content.fields, codes=codes, lengths=sizes, crcs=field_crcs)


# Reads spans of the files that a shard's samples lie in: shards of a dataset, an archive, or a spool.
#
# Strategy: what follows the last span is read ahead, more and more of it, so that samples in the order of their
# file cost one system call for many; what lies elsewhere is read by itself, straight to where it is wanted. Regions of
# a spool, each of them as much as memory may hold, are read whole when the first span in them is asked for.


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


def check_unchanged(source: File, planned: SpanFile, ctime_ns: int | None) -> None:
    """Check that a file which was read is still what the plan saw.

    Args:
        source: The open file.
        planned: What the plan saw.
        ctime_ns: Its ctime before it was read; None: the checksums of the payloads show every change.

    Raises:
        SampleFailed: It is not.
        SourceTouched: Only its ctime changed.
    """
    fact = source.fact()
    if planned.mtime_ns >= 0 and (fact.st_size, fact.st_mtime_ns) != (planned.size, planned.mtime_ns):
        expected = "a shard that stays as it was when the run began"
        remedy = f"Run the same command with {option('if_exists', 'resume')}."
        raise SampleFailed(to_text(planned.path), "changed while it was read", expected=expected, remedy=remedy)
    if planned.mtime_ns >= 0 and ctime_ns not in (None, fact.st_ctime_ns):
        raise SourceTouched(planned.path)


class SpanReader:
    """Reads spans of `files`. Files stay open until `close`, or until many others were opened since.

    Args:
        files: What spans lie in.
        regions: int64 pairs, ascending: where parts of the first file start and end that are read whole.
        has_crcs: Whether the caller compares the checksum of every payload.
    """

    def __init__(self, files: tuple[SpanFile, ...], regions: bytes = b"", *, has_crcs: bool = False) -> None:
        self._files, self._has_crcs = files, has_crcs
        bounds = array("q", regions)
        self._regions = list(zip(bounds[::2], bounds[1::2], strict=True))
        self._region = (0, 0)  # which the arena holds
        self._open: dict[int, File] = {}
        self._ctimes: dict[int, int | None] = {}  # of open files, before they are read
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
            check_unchanged(source, self._files[file], self._ctimes[file])

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
            except OSError as error:
                if not self._open or error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._close_oldest()  # of the machine, and no fault of the file
            else:
                has_crcs = self._has_crcs or self._files[file].form == "zip"
                self._ctimes[file] = None if has_crcs else source.fact().st_ctime_ns
                return source

    def _close_oldest(self) -> None:
        oldest = next(iter(self._open))
        check_unchanged(self._open[oldest], self._files[oldest], self._ctimes[oldest])
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


# Reads the files of a shard several at a time, where opening one takes long: over a network, mostly.
#
# Strategy: threads read the files that come next, whole, in the order in which they will be asked for; who asks gets
# them one after the other. What is not as it was planned is not used: it is read again by itself, so that errors, and
# what is left out, are those of a shard that is read one file at a time. So are the bytes: no thread knows anything of
# the shard. Where files open at once there is none of this, for a thread costs more than such a file.


_QUEUED = 2  # times as many as are read: no thread waits while a buffer is written


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
        newest_ns: int = sys.maxsize,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.memory = at_once * BUFFER_SIZE
        self.largest = self.memory // 2  # or it would be read alone
        self.held = 0  # bytes of files that are read and not asked for yet
        self._at_once, self._threads = at_once, ThreadPoolExecutor(at_once)  # which starts none before it is asked
        self._read, self._newest_ns = read, newest_ns
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
            error = waited(one.read).exception()  # for one that was left out too: its memory counts
            self.held -= one.file.size
            if one.file[:3] != (path, flags, size):
                continue
            if isinstance(error, ShardError):
                raise error  # a store that refuses, or fails time and again: it is not asked once more
            if isinstance(error, OSError) and error.errno in OF_PROCESS:  # reading one file at a time may not meet it
                for other in self._begun:
                    other.read.exception()
            if error is not None:
                return None
            got, fact = one.read.result()
            is_planned = (got, fact.st_size, fact.st_mtime_ns) == (size, size, one.file.mtime_ns)
            return one if is_planned and fact.st_ctime_ns <= self._newest_ns else None
        return None

    def close(self) -> None:
        """End the threads; what they read is given up."""
        self._next = None
        self._threads.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """Have the next files read, as many as there is room for."""
        while self._next and len(self._begun) < _QUEUED * self._at_once and self.held + self._next.size <= self.memory:
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


def _blocks(data: memoryview, view: memoryview) -> Iterator[memoryview]:
    for done in range(0, len(data), len(view)):
        block = data[done : done + len(view)]
        view[: len(block)] = block
        yield view[: len(block)]


_REPORT_S = 0.1


def no_report(*_: object) -> None:
    """Take no notice of what is done, or given."""


class StartAgain(Exception):
    """A sample failed after a part of it was written."""


class SourceTouched(StartAgain):
    """The ctime of a file changed during a read, so the shard may contain a mixture of two versions."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path


class Packer:
    """The state of one shard being written; a format's packer says what stands around the payloads.

    Args:
        task: What to write.
        put: Takes the bytes of the shard, some at a time.
        report: Called now and then with the samples and bytes done since the last time.
        skipped: Samples to leave out, by their place; grows.
    """

    def __init__(self, task: ShardTask, put: Put, report: Report, skipped: dict[int, Skipped]) -> None:
        self.task, self.put, self.report = task, put, report
        self.skipped = skipped
        self.view = buffer("shard")
        self.size = self.crc = 0  # of what was written
        self.record_crc = 0  # of a streamed sample, since its packer set it to zero
        self.field_crcs = array("I")
        self.ones = array("Q")  # of each single number in a field of lists: its place in `field_crcs`, length, checksum
        self.reported = (0, 0, time.monotonic())  # samples, bytes, when
        samples, self.content = task.samples, task.samples.content
        self.root, self.kinds, self.files = samples.root, samples.kinds, samples.spans.files
        self.keys = split_names(self.content.keys)
        self.counts = array("H", self.content.counts)
        self.endings = [b"." + name for name in self.content.fields]
        self.codes = array("H", self.content.codes).tolist()
        self.sizes = array("q", self.content.sizes).tolist()
        self.inline = [*map(inline_payload, split_names(self.content.inline))]
        self.mtimes = array("q", samples.mtimes).tolist()
        self.paths = split_names(samples.paths) if samples.paths else None
        if samples.folders and self.paths is not None:
            self.paths = [placed(path, samples.folders) for path in self.paths]
        self.offsets = array("q", samples.spans.offsets).tolist()
        self.expected = array("q", samples.spans.expected).tolist()
        self.spans = SpanReader(self.files, samples.spans.regions, has_crcs=min(self.expected, default=-1) >= 0)
        # A later ctime shows a change since the listing. If that is unknown (links, several file systems, a clock
        # ahead), each file is compared with itself, which costs another system call.
        if samples.changed_ns < time.time_ns():
            read, self.newest_ns = read_file, samples.changed_ns
        else:
            read, self.newest_ns = read_unchanged, sys.maxsize
        is_ahead = task.reads > 1
        self.ahead = ReadAhead(self._planned_files(), task.reads, read, self.newest_ns) if is_ahead else None
        self.read_file = self.ahead.read if self.ahead else read
        self.file_of_row = array("I", samples.spans.file).tolist() if self.files else []

    def run(self) -> None:
        """Write all samples, and the end of the file."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what was opened for reading."""
        self.spans.close()
        if self.ahead:
            self.ahead.close()

    def result(self, staged: DurableFile | None) -> ShardResult:
        """Return the result of the finished shard."""
        crcs = self.field_crcs.tobytes()
        skipped = tuple(sorted(self.skipped.items()))
        content = digest(self.content, crcs, self.skipped, self.ones)
        return ShardResult(self.task.shard, staged, self.size, self.crc, crcs, content, skipped)

    def read_span(self, row: int, payload: memoryview) -> None:
        """Fill `payload` from the file that it is a span of.

        Raises:
            OSError: It cannot be read, or is too short.
            SourceFailed: The file is not what the plan saw.
        """
        self.spans.fill(self.file_of_row[row], self.offsets[row], payload)

    def check_crc(self, row: int, crc: int) -> None:
        """Check that a payload with the checksum `crc` is what its index says.

        Raises:
            SourceFailed: It is not.
        """
        wanted = self.expected[row]
        if crc != wanted and wanted >= 0:
            name = to_text(self.content.fields[self.codes[row]])
            message = f"at {self.offsets[row]:,}: field {name!r} has the CRC-32C {crc:08x}, not {wanted:08x}"
            raise SourceFailed(self.span_path(row, self._name_of(row)), "corrupt", message)

    def span_path(self, row: int, name: bytes) -> bytes:
        """Return the file that a row's payload lies in, for messages; of a spool, which is ours, the field's `name`.

        Of an archive, it is the name of the member, behind a colon.
        """
        file = self.files[self.file_of_row[row]]
        if file.form:
            return file.path + b":" + name
        return file.path if file.mtime_ns >= 0 else name

    def path_of(self, row: int, name: bytes) -> bytes:
        """Return where a row's payload is read; `name`: the path of a file, where the plan has none for it."""
        if self.kinds[row] == SPAN:
            return self.span_path(row, name)
        return name if self.paths is None else self.paths[row]

    def _name_of(self, row: int) -> bytes:
        """Return the name of a row's member."""
        return self.keys[bisect_right([*accumulate(self.counts)], row)] + self.endings[self.codes[row]]

    def stream_payload(self, name: bytes, row: int) -> int:
        """Write a payload of any size, block by block; return its checksum.

        Args:
            name: The path of a file, where the plan has none for it.
            row: The row of the payload.
        """
        kind = self.kinds[row]
        if kind == INLINE:
            self.write_streamed(self.inline[row])
            return crc32c(self.inline[row])
        path, crc = self.path_of(row, name), 0
        if kind == SPAN:
            blocks = self.spans.blocks(self.file_of_row[row], self.offsets[row], self.sizes[row], self.view)
        else:
            blocks = self._file_blocks(path, row)
        try:
            for block in blocks:
                crc = crc32c(block, crc)
                self.write_streamed(block)
                self.report_progress(0)
        except OSError as error:
            raise unreadable(path, error) from None
        if self.expected:
            self.check_crc(row, crc)
        return crc

    def _file_blocks(self, path: bytes, row: int) -> Iterator[memoryview]:
        view, size, done = self.view, self.sizes[row], 0
        whole, flags = self.root + path, READ_PLAIN if self.kinds[row] == FILE else READ_FOLLOWING
        if self.ahead and (one := self.ahead.take(whole, size, flags)):
            yield from _blocks(one.data, view)
            return
        with open_source(whole, flags) as file:
            before = file.fact()
            for block in file.blocks(view):
                done += len(block)
                if done > size:
                    raise SourceFailed(path, "changed", f"grew beyond {size:,} bytes while it was packed")
                yield block
            fact = file.fact()
        if done != size or fact.st_size != size or fact.st_mtime_ns != self.mtimes[row]:
            raise changed(path, size, self.mtimes[row], done, fact)
        if fact.st_ctime_ns != before.st_ctime_ns:
            raise SourceTouched(whole)

    def read_payload(self, name: bytes, row: int, payload: memoryview) -> None:
        """Fill `payload` from wherever the plan says.

        Raises:
            OSError: It cannot be read.
            SourceFailed: It is not what the plan saw.
        """
        kind = self.kinds[row]
        if kind == INLINE:
            payload[:] = self.inline[row]
        elif kind == SPAN:
            self.read_span(row, payload)
        else:
            path = name if self.paths is None else self.paths[row]
            read = self.read_file(self.root + path, payload, READ_PLAIN if kind == FILE else READ_FOLLOWING)
            self.check_read(path, row, payload, read)

    def check_read(self, path: bytes, row: int, payload: memoryview, read: Read) -> None:
        """Check that a file is what the plan saw; if only its ctime is later, read the file again.

        Raises:
            OSError: The file cannot be read again.
            SourceFailed: The file has changed.
        """
        size, mtime_ns, (got, fact) = self.sizes[row], self.mtimes[row], read
        if (got, fact.st_size, fact.st_mtime_ns) == (size, size, mtime_ns):
            if fact.st_ctime_ns <= self.newest_ns:
                return
            flags = READ_PLAIN if self.kinds[row] == FILE else READ_FOLLOWING
            got, fact = read_unchanged(self.root + path, payload, flags)
        if (got, fact.st_size, fact.st_mtime_ns) != (size, size, mtime_ns):
            raise changed(path, size, mtime_ns, got, fact)

    def _planned_files(self) -> Iterator[PlannedFile]:
        """Yield the files that are read, in order, but for those of samples that are left out by then."""
        end = 0
        for sample, (key, count) in enumerate(zip(self.keys, self.counts, strict=True)):
            row, end = end, end + count
            if sample in self.skipped:
                continue
            for at in range(row, end):
                kind = self.kinds[at]
                if kind in (FILE, LINK):
                    path = key + self.endings[self.codes[at]] if self.paths is None else self.paths[at]
                    flags = READ_PLAIN if kind == FILE else READ_FOLLOWING
                    yield PlannedFile(self.root + path, flags, self.sizes[at], self.mtimes[at])

    def skip(self, sample: int, failed: SourceFailed, *, streamed: bool) -> None:
        """Note a sample that failed, or end the run."""
        path, key, leave_out = to_text(failed.path), to_text(self.keys[sample]), option("on_error", "skip")
        stops = self.task.on_error == "stop" and failed.code not in CHOSEN
        if stops and failed.code == "corrupt":
            cure = f"`shardtool verify` shows what else is wrong there; {leave_out} leaves such samples out."
            raise CorruptShard(path, f"{key}: {failed.message}", remedy=f"Nothing of it was copied. {cure}")
        if stops:
            where = to_text(self.root) + path if failed.path else key
            expected = "a file that stays as it was when the run began" if failed.code == "changed" else ""
            again = f"Mend it and run again with {option('if_exists', 'resume')}"
            remedy = f"{again}, or leave such samples out with {leave_out}."
            raise SampleFailed(where, failed.message, expected=expected, remedy=remedy, detail=failed.detail)
        for file in self.files:  # no folder of this machine goes into an output
            if failed.path == file.path or failed.path.startswith(file.path + b":"):
                path = to_text(file.path.rpartition(b"/")[2] + failed.path[len(file.path) :])
        for name, folder in self.task.samples.folders.items():
            if failed.path.startswith(folder):
                path = to_text(name + b"/" + failed.path[len(folder) :])
        self.skipped[sample] = Skipped(key, path, failed.code, failed.message)
        if streamed:
            raise StartAgain

    def flush(self, used: int, samples: int) -> None:
        """Write the first `used` bytes of the buffer; `samples` are done."""
        if used:
            self.write(self.view[:used])
        self.report_progress(samples)

    def write(self, data: memoryview | bytes) -> None:
        """Write a part of the shard."""
        self.put(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)

    def write_streamed(self, data: memoryview | bytes) -> None:
        """Write a part of a sample that is larger than the buffer."""
        self.write(data)

    def more_done(self) -> tuple[int, ...]:
        """Return what else is to be reported, since the last time."""
        return ()

    def report_progress(self, samples: int) -> None:
        """Report progress, if the last report is a while ago; `samples` are done."""
        done_samples, done_bytes, when = self.reported
        now = time.monotonic()
        if now - when > _REPORT_S or samples == len(self.keys):
            samples = max(samples, done_samples)
            self.report(samples - done_samples, self.size - done_bytes, *self.more_done())
            self.reported = (samples, self.size, now)


def unreadable(path: bytes, error: OSError) -> SourceFailed:
    """Return the failure of a file that cannot be read; a lack of memory is raised, for it is no fault of the file."""
    if is_out_of_memory(error):
        raise error
    raise_if_machines(error, printable(path), OF_PROCESS)
    if error.errno == errno.ESTALE:
        return SourceFailed(path, "changed", "changed while it was packed")
    code: SkipCode = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return SourceFailed(path, code, reason(error))


def changed(path: bytes, size: int, mtime_ns: int, got: int, fact: FileFact) -> SourceFailed:
    """Return the failure of a file that is not what the plan saw."""
    if got != size == fact.st_size:
        return SourceFailed(path, "changed", f"gives {got:,} bytes where the file system says {size:,}")
    return SourceFailed(path, "changed", difference(fact, size, mtime_ns, "packed"))


# Samples that are in memory become records of a shard: their bytes, buffered, and columns of what they hold.


_COPIED = 2**16  # bytes of a part, up to which copying it costs less than another write


class Field(NamedTuple):
    """A field of a sample, encoded.

    Attributes:
        name: Its name.
        size: Bytes of its payload.
        stored: What the shard holds of it: the payload, or the number that it stands for.
        text: The payload where the plan of a table would carry it; empty otherwise.
    """

    name: bytes
    size: int
    stored: bytes | memoryview
    text: bytes = b""


def encode_record(shard_format: str, key: bytes, fields: list[Field], numbers: Mapping[bytes, Number]) -> Parts:
    """Return the record of a sample, in parts.

    Args:
        shard_format: `tar` or `tfrecord`.
        key: The sample's key.
        fields: In the order of the bytes of their names.
        numbers: The fields of a TFRecord that are numbers, and of what kind.
    """
    stored = [(one.name, one.stored) for one in fields]
    return tar.encode_sample(key, stored) if shard_format == "tar" else tfrecord.encode_sample(key, stored, numbers)


class ShardRecords:
    """The samples of a shard, in the order in which they are added.

    Args:
        write: Takes the bytes of the shard, some at a time.

    Attributes:
        keys: The samples' keys.
        size: Bytes of all records so far.
        crcs: CRC-32C of each field, as it is stored.
    """

    def __init__(self, write: Put) -> None:
        self._write = write
        self.keys: list[bytes] = []
        self.size = 0
        self.crcs = array("I")
        self._places: dict[bytes, int] = {}  # field to its code
        self._counts, self._codes, self._sizes, self._stored = array("H"), array("H"), array("q"), array("q")
        self._texts: list[bytes] = []
        self._pending: Parts = []
        self._pending_size = 0

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: bytes, parts: Parts, size: int, fields: list[Field]) -> None:
        """Add a sample.

        Args:
            key: Its key.
            parts: The bytes of its record.
            size: How many there are.
            fields: What is in it.
        """
        self.keys.append(key)
        self._counts.append(len(fields))
        places = self._places
        for name, length, stored, text in fields:
            self._codes.append(places.setdefault(name, len(places)))
            self._sizes.append(length)
            self._stored.append(len(stored))
            self.crcs.append(crc32c(stored))
            self._texts.append(text)
        self._pending += parts
        self._pending_size += size
        self.size += size
        if self._pending_size > BUFFER_SIZE:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        run: Parts = []
        for part in self._pending:
            if len(part) < _COPIED:
                run.append(part)
            else:
                self._write(b"".join(run))
                self._write(part)
                run = []
        if run:
            self._write(b"".join(run))
        self._pending, self._pending_size = [], 0

    def content(self, numbers: Mapping[bytes, Number], *, texts: bool) -> ShardContent:
        """Return what the samples hold.

        Args:
            numbers: The fields that are stored as numbers, and of what kind.
            texts: Whether the text of fields belongs to it.
        """
        return ShardContent(
            keys=b"".join([key + b"\0" for key in self.keys]),
            counts=self._counts.tobytes(),
            fields=tuple(self._places),
            codes=self._codes.tobytes(),
            sizes=self._sizes.tobytes(),
            stored=self._stored.tobytes(),
            inline=b"\0".join(self._texts) + b"\0" if texts else b"",
            numbers={self._places[name]: kind for name, kind in numbers.items() if name in self._places},
        )
