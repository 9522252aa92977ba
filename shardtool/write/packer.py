"""What the packers of all formats share: the buffer, reading payloads, leaving samples out, the tally.

Strategy: files are read straight into one reusable buffer, behind a gap for what stands before them,
checksummed there while the cache is warm, and written a buffer at a time. A buffer of 512 KiB fits the
second level cache; larger ones cost up to double. A sample that fits the buffer is never split by a
write, so leaving it out is setting a number back; a larger one is streamed, and to leave it out the
shard is begun again without it.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from shardtool.errors import CorruptShard, SampleFailed, is_out_of_memory, reason
from shardtool.fingerprint import crc32c
from shardtool.storage.reading import READ_FOLLOWING, READ_PLAIN, read_blocks, read_file
from shardtool.values import FILE, INLINE, SPAN, Skipped, to_text
from shardtool.wording import option
from shardtool.write.spans import SpanReader
from shardtool.write.task import Failed, ShardResult, ShardTask, digest, numbers, split_names

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from shardtool.storage.staging import Staged

    Report = Callable[[int, int], None]

_BUFFER_SIZE = 512 * 1024
_REPORT_S = 0.1
CORRUPT = "corrupt"  # what became of a sample whose bytes are not those that its index tells of

_buffer: memoryview | None = None  # one a process, made at the first shard


class Output(Protocol):
    """Takes the bytes of a shard."""

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`."""


class Nowhere:
    """Takes the bytes of a shard that is only measured or checked."""

    def write(self, data: memoryview | bytes) -> None:
        """Do nothing."""


def no_report(_samples: int, _bytes: int) -> None:
    """Report progress to no one."""


class StartAgain(Exception):
    """A sample failed after a part of it was written."""


def shared_buffer() -> memoryview:
    """Return this process's buffer."""
    global _buffer  # noqa: PLW0603 - page faults for a fresh one would cost as much as a shard of small files
    if _buffer is None:
        _buffer = memoryview(bytearray(_BUFFER_SIZE))
    return _buffer


class Packer:
    """The state of one shard being written; a format's packer says what stands around the payloads.

    Args:
        task: What to write.
        output: Where to.
        report: Called now and then with the samples and bytes done since the last time.
        without: Samples to leave out, by their place; grows.
    """

    def __init__(self, task: ShardTask, output: Output, report: Report, without: dict[int, Skipped]) -> None:
        self.task, self.output, self.report = task, output, report
        self.without = without
        self.view = shared_buffer()
        self.size = self.crc = 0  # of what was written
        self.record_crc = 0  # of a streamed sample, since its packer set it to zero
        self.field_crcs = array("I")
        self.ones = array("Q")  # of each single number in a field of lists: its place in `field_crcs`, length, checksum
        self.reported = (0, 0, time.monotonic())  # samples, bytes, when
        samples = task.samples
        self.keys = split_names(samples.keys)
        self.endings = [b"." + name for name in samples.fields]
        self.codes = numbers("H", samples.codes).tolist()
        self.sizes = numbers("q", samples.sizes).tolist()
        self.mtimes = numbers("q", samples.mtimes).tolist()
        self.paths = split_names(samples.paths) if samples.paths is not None else None
        self.inline = split_names(samples.inline) if samples.inline is not None else []
        self.offsets = numbers("q", samples.offsets).tolist() if samples.offsets is not None else []
        self.expected = numbers("q", samples.expected).tolist() if samples.expected is not None else []
        self.spans = SpanReader(samples.files, samples.regions)
        self.file_of_row: list[int] = []
        if samples.file is not None:
            counts = numbers("H", samples.counts)
            for file, count in zip(numbers("I", samples.file), counts, strict=True):
                self.file_of_row += [file] * count

    def run(self) -> None:
        """Write all samples, and the end of the file."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what was opened for reading."""
        self.spans.close()

    def result(self, staged: Staged | None) -> ShardResult:
        """Return the result of the finished shard."""
        crcs = self.field_crcs.tobytes()
        skipped = tuple(sorted(self.without.items()))
        content = digest(self.task.samples, crcs, self.without, self.ones)
        return ShardResult(self.task.shard, staged, self.size, self.crc, crcs, content, skipped)

    def read_spooled(self, row: int, payload: memoryview) -> None:
        """Fill `payload` from the file that it is a span of.

        Raises:
            OSError: It cannot be read, or is too short.
            Failed: The file is not what the plan saw.
        """
        self.spans.fill(self.file_of(row), self.offsets[row], payload)

    def check_crc(self, row: int, crc: int) -> None:
        """Check that a payload with the checksum `crc` is what its index says.

        Raises:
            Failed: It is not.
        """
        wanted = self.expected[row]
        if crc != wanted and wanted >= 0:
            name = to_text(self.task.samples.fields[self.codes[row]])
            message = f"at {self.offsets[row]:,}: field {name!r} has the CRC-32C {crc:08x}, not {wanted:08x}"
            raise Failed(self.span_path(row, self._name_of(row)), CORRUPT, message)

    def file_of(self, row: int) -> int:
        """Return which of the files a row's payload lies in."""
        return self.file_of_row[row] if self.file_of_row else 0

    def span_path(self, row: int, name: bytes) -> bytes:
        """Return the file that a row's payload lies in, for messages; of a spool, which is ours, the field's `name`."""
        file = self.task.samples.files[self.file_of(row)]
        return file.path if file.mtime_ns >= 0 else name

    def path_of(self, row: int, name: bytes) -> bytes:
        """Return where a row's payload is read; `name`: the path of a file, where the plan has none for it."""
        if self.task.samples.kinds[row] == SPAN:
            return self.span_path(row, name)
        return name if self.paths is None else self.paths[row]

    def _name_of(self, row: int) -> bytes:
        """Return the name of a row's member."""
        counts = numbers("H", self.task.samples.counts)
        return self.keys[bisect_right([*accumulate(counts)], row)] + self.endings[self.codes[row]]

    def stream_payload(self, name: bytes, row: int) -> int:
        """Write a payload of any size, block by block; return its checksum.

        Args:
            name: The path of a file, where the plan has none for it.
            row: Whose payload.
        """
        samples = self.task.samples
        kind = samples.kinds[row]
        if kind == INLINE:
            self.write_streamed(self.inline[row])
            return crc32c(self.inline[row])
        path = self.path_of(row, name)
        crc, blocks = 0, self._spool_blocks(row) if kind == SPAN else self._file_blocks(path, row)
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

    def _spool_blocks(self, row: int) -> Iterator[memoryview]:
        view, size, offset = self.view, self.sizes[row], self.offsets[row]
        for done in range(0, size, len(view)):
            block = view[: min(len(view), size - done)]
            self.spans.fill(self.file_of(row), offset + done, block)
            yield block

    def _file_blocks(self, path: bytes, row: int) -> Iterator[memoryview]:
        view, size, samples, done = self.view, self.sizes[row], self.task.samples, 0
        for got in read_blocks(samples.root + path, view, READ_PLAIN if samples.kinds[row] == FILE else READ_FOLLOWING):
            if not isinstance(got, int):
                if done != size or got.st_size != size or got.st_mtime_ns != self.mtimes[row]:
                    raise changed(path, size, done, got)
                return
            done += got
            if done > size:
                raise Failed(path, "changed", f"grew beyond {size:,} bytes while it was packed")
            yield view[:got]

    def read_payload(self, name: bytes, row: int, payload: memoryview) -> bytes:
        """Fill `payload` from wherever the plan says; return the path that was read.

        Raises:
            OSError: It cannot be read.
            Failed: It is not what the plan saw.
        """
        kind, size = self.task.samples.kinds[row], self.sizes[row]
        if kind == INLINE:
            payload[:] = self.inline[row]
            return b""
        if kind == SPAN:
            self.read_spooled(row, payload)
            return b""
        path = name if self.paths is None else self.paths[row]
        got, fact = read_file(self.task.samples.root + path, payload, READ_PLAIN if kind == FILE else READ_FOLLOWING)
        if got != size or fact.st_size != size or fact.st_mtime_ns != self.mtimes[row]:
            raise changed(path, size, got, fact)
        return path

    def leave_out(self, sample: int, failed: Failed, *, streamed: bool) -> None:
        """Note a sample that failed, or end the run."""
        path = to_text(failed.path)
        if self.task.on_error == "stop" and failed.code == CORRUPT:
            raise CorruptShard(
                path,
                f"{to_text(self.keys[sample])}: {failed.message}",
                remedy="Nothing of it was copied. `shardtool verify` tells what else is wrong there; "
                f"{option('on_error', 'skip')} "
                "leaves such samples out.",
            )
        if self.task.on_error == "stop":
            where = to_text(self.task.samples.root) + path if failed.path else to_text(self.keys[sample])
            raise SampleFailed(
                where, failed.message,
                expected="a file that stays as it was when the run began" if failed.code == "changed" else "",
                remedy=f"Mend it and run again with {option('if_exists', 'resume')}, or leave such samples out with "
                f"{option('on_error', 'skip')}.",
                detail=failed.detail,
            )  # fmt: skip
        key = to_text(self.keys[sample])
        if any(file.path == failed.path for file in self.task.samples.files):
            path = path.rpartition("/")[2]  # no folder of this machine goes into an output
        self.without[sample] = Skipped(key, path, failed.code, failed.message)
        if streamed:
            raise StartAgain

    def flush(self, used: int, samples: int) -> None:
        """Write the first `used` bytes of the buffer; `samples` are done."""
        if used:
            self.write(self.view[:used])
        self.report_progress(samples)

    def write(self, data: memoryview | bytes) -> None:
        """Write a part of the shard."""
        self.output.write(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)

    def write_streamed(self, data: memoryview | bytes) -> None:
        """Write a part of a sample that is larger than the buffer."""
        self.write(data)

    def report_progress(self, samples: int) -> None:
        """Tell of progress, if the last time is a while ago; `samples` are done."""
        done_samples, done_bytes, when = self.reported
        now = time.monotonic()
        if now - when > _REPORT_S or samples == len(self.keys):
            samples = max(samples, done_samples)
            self.report(samples - done_samples, self.size - done_bytes)
            self.reported = (samples, self.size, now)


def unreadable(path: bytes, error: OSError) -> Failed:
    """Return the failure of a file that cannot be read; a lack of memory is raised, for it is no fault of the file."""
    if is_out_of_memory(error):
        raise error
    code = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return Failed(path, code, reason(error))


def changed(path: bytes, planned: int, got: int, fact: os.stat_result) -> Failed:
    """Return the failure of a file that is not what the plan saw."""
    if fact.st_size != planned:
        message = f"changed while it was packed: {planned:,} bytes in the plan, {fact.st_size:,} now"
    elif got != planned:
        message = f"gives {got:,} bytes where the file system says {planned:,}"
    else:
        message = "changed while it was packed: its modification time is another"
    return Failed(path, "changed", message)
