"""Base class of the packers. A packer writes the samples of a planned shard.

Payloads are read into a buffer. A full buffer is written to the shard. A sample larger than the buffer is written in
blocks. If such a sample fails, the shard is packed from scratch.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, SampleFailed
from shardtool.fingerprint import crc32c
from shardtool.messages import flag_text, option_text
from shardtool.names import resolve_source_path, to_text
from shardtool.shard_samples import FILE, INLINE, LINK, SPAN, decode_inline_payload
from shardtool.skipped import INTENDED_CODES, Skipped
from shardtool.storage.files import READ_FOLLOWING, READ_PLAIN, open_source_file, read_file, read_unchanged
from shardtool.storage.paths import is_address
from shardtool.write.read_ahead import PlannedFile, ReadAhead
from shardtool.write.source_errors import RestartShard, SourceFailed, SourceTouched, change_error, read_error
from shardtool.write.span_reader import SpanReader
from shardtool.write.task import ShardResult, ShardTask, compute_content_fingerprint, get_buffer, split_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.storage.remote.objects import FileInfo
    from shardtool.storage.staging import DurableFile

    Read = tuple[int, FileInfo]
    Report = Callable[..., None]
    Put = Callable[[memoryview | bytes], object]


def _copy_blocks(data: memoryview, view: memoryview) -> Iterator[memoryview]:
    for done in range(0, len(data), len(view)):
        block = data[done : done + len(view)]
        view[: len(block)] = block
        yield view[: len(block)]


def _open_root(root: bytes) -> int | None:
    if root and not is_address(root):
        with suppress(OSError):
            return os.open(root, os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY))
    return None


_REPORT_INTERVAL_S = 0.1


def no_report(*_: object) -> None:
    """Ignore a progress report."""


class Packer:
    """Writes one shard. Subclasses write the headers and padding of their format.

    A row is one field of one sample. Rows are numbered from 0 in the order of the planned samples.

    Args:
        put: Writes bytes of the shard.
        report: Called regularly with the numbers of samples and bytes written since the last call.
        skipped: The skipped samples by index. The packer adds samples that it skips.
    """

    def __init__(self, task: ShardTask, put: Put, report: Report, skipped: dict[int, Skipped]) -> None:
        self.task, self.put, self.report = task, put, report
        self.skipped = skipped
        self.view = get_buffer("shard")
        self.size = self.crc = 0
        self.field_crcs = array("I")
        # see `compute_content_fingerprint`
        self.one_number_lists = array("Q")
        self.reported = (0, 0, time.monotonic())
        samples, self.content = task.samples, task.samples.content
        self.root, self.kinds, self.files = samples.root, samples.kinds, samples.spans.files
        self.keys = split_names(self.content.keys)
        self.counts = array("H", self.content.counts)
        self.endings = [b"." + name for name in self.content.fields]
        self.codes = array("H", self.content.codes).tolist()
        self.sizes = array("q", self.content.sizes).tolist()
        self.inline = [*map(decode_inline_payload, split_names(self.content.inline))]
        self.mtimes = array("q", samples.mtimes).tolist()
        self.paths = split_names(samples.paths) if samples.paths else None
        if samples.folders and self.paths is not None:
            self.paths = [resolve_source_path(path, samples.folders) for path in self.paths]
        self.offsets = array("q", samples.spans.offsets).tolist()
        self.expected = array("q", samples.spans.crcs).tolist()
        self.spans = SpanReader(self.files, samples.spans.regions, has_crcs=min(self.expected, default=-1) >= 0)
        # A ctime later than all listed ctimes means that the file has changed. If `latest_ctime_ns` is in the future
        # (unreliable ctimes, or a clock that is ahead), compare ctimes before and after reading.
        if samples.latest_ctime_ns < time.time_ns():
            read, self.max_ctime_ns = read_file, samples.latest_ctime_ns
        else:
            read, self.max_ctime_ns = read_unchanged, sys.maxsize
        self.ahead = None
        if task.parallel_reads > 1:
            self.ahead = ReadAhead(self._planned_files(), task.parallel_reads, read, self.max_ctime_ns)
        self.read_file = self.ahead.read if self.ahead else read
        is_remote = any(map(is_address, (self.root, *samples.folders.values())))
        self.reads_local_files = self.read_file is read_file and not is_remote
        self.dir_fd = None if self.ahead else _open_root(self.root)
        self.read_base = self.root if self.dir_fd is None else b""
        self.file_of_row = array("I", samples.spans.file_codes).tolist() if self.files else []

    def run(self) -> None:
        """Write the shard."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all source files."""
        self.spans.close()
        if self.ahead:
            self.ahead.close()
        if self.dir_fd is not None:
            os.close(self.dir_fd)

    def result(self, staged: DurableFile | None) -> ShardResult:
        """Return the result. `staged` is None if no file was written."""
        crcs = self.field_crcs.tobytes()
        skipped = tuple(sorted(self.skipped.items()))
        digest = compute_content_fingerprint(self.content, crcs, self.skipped, self.one_number_lists)
        return ShardResult(staged, self.size, self.crc, crcs, digest, skipped)

    def check_crc(self, row: int, crc: int) -> None:
        """Raise `SourceFailed` if the CRC-32C of a payload differs from the plan."""
        expected = self.expected[row]
        if crc != expected and expected >= 0:
            name = to_text(self.content.fields[self.codes[row]])
            message = f"at {self.offsets[row]:,}: field {name!r} has the CRC-32C {crc:08x}, not {expected:08x}"
            raise SourceFailed(self._span_path(row, self._field_name(row)), "corrupt", message)

    def _span_path(self, row: int, name: bytes) -> bytes:
        file = self.files[self.file_of_row[row]]
        if file.form:  # an archive
            return file.path + b":" + name
        return file.path if file.mtime_ns >= 0 else name  # do not show the path of a temporary file

    def path_of(self, row: int, name: bytes) -> bytes:
        """Return the path of a row's payload, or `name` if the plan contains no paths."""
        if self.kinds[row] == SPAN:
            return self._span_path(row, name)
        return name if self.paths is None else self.paths[row]

    def _field_name(self, row: int) -> bytes:
        return self.keys[bisect_right([*accumulate(self.counts)], row)] + self.endings[self.codes[row]]

    def stream_payload(self, name: bytes, row: int) -> int:
        """Write the payload of a row in blocks, and return its CRC-32C."""
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
            raise read_error(path, error) from None
        if self.expected:
            self.check_crc(row, crc)
        return crc

    def _file_blocks(self, path: bytes, row: int) -> Iterator[memoryview]:
        view, size, done = self.view, self.sizes[row], 0
        full_path, flags = self.root + path, READ_PLAIN if self.kinds[row] == FILE else READ_FOLLOWING
        if self.ahead and (file_read := self.ahead.take(full_path, size, flags)):
            yield from _copy_blocks(file_read.data, view)
            return
        with open_source_file(full_path, flags) as file:
            info_before = file.stat()
            for block in file.blocks(view):
                done += len(block)
                if done > size:
                    raise SourceFailed(path, "changed", f"grew beyond {size:,} bytes while it was packed")
                yield block
            info = file.stat()
        if done != size or info.st_size != size or info.st_mtime_ns != self.mtimes[row]:
            raise change_error(path, size, self.mtimes[row], done, info)
        if info.st_ctime_ns != info_before.st_ctime_ns:
            raise SourceTouched(full_path)

    def read_payload(self, name: bytes, row: int, payload: memoryview) -> None:
        """Read the payload of a row into `payload`.

        Raises:
            SourceFailed: The payload cannot be read, or differs from the plan.
        """
        kind = self.kinds[row]
        try:
            if kind == INLINE:
                payload[:] = self.inline[row]
            elif kind == SPAN:
                self.spans.fill(self.file_of_row[row], self.offsets[row], payload)
            else:
                path, flags = self.path_of(row, name), READ_PLAIN if kind == FILE else READ_FOLLOWING
                self._check_read(path, row, payload, self.read_file(self.read_base + path, payload, flags, self.dir_fd))
        except OSError as error:
            raise read_error(self.path_of(row, name), error) from None

    def _check_read(self, path: bytes, row: int, payload: memoryview, read: Read) -> None:
        # If only the ctime is too new, the content may be unchanged, so read the file again.
        size, mtime_ns, (size_read, info) = self.sizes[row], self.mtimes[row], read
        if (size_read, info.st_size, info.st_mtime_ns) == (size, size, mtime_ns):
            if info.st_ctime_ns <= self.max_ctime_ns:
                return
            flags = READ_PLAIN if self.kinds[row] == FILE else READ_FOLLOWING
            size_read, info = read_unchanged(self.root + path, payload, flags)
        if (size_read, info.st_size, info.st_mtime_ns) != (size, size, mtime_ns):
            raise change_error(path, size, mtime_ns, size_read, info)

    def _planned_files(self) -> Iterator[PlannedFile]:
        end = 0
        for sample, (key, count) in enumerate(zip(self.keys, self.counts, strict=True)):
            row, end = end, end + count
            if sample in self.skipped:
                continue
            for field_row in range(row, end):
                kind = self.kinds[field_row]
                if kind in (FILE, LINK):
                    path = key + self.endings[self.codes[field_row]] if self.paths is None else self.paths[field_row]
                    flags = READ_PLAIN if kind == FILE else READ_FOLLOWING
                    yield PlannedFile(self.root + path, flags, self.sizes[field_row], self.mtimes[field_row])

    def skip(self, sample: int, failed: SourceFailed, *, streamed: bool) -> None:
        """Skip a failed sample, or raise its error.

        If a skipped sample was partly written (`streamed`), raise RestartShard.
        """
        path, key = to_text(failed.path), to_text(self.keys[sample])
        skip_advice = f"or skip such samples with {option_text('on_error', 'skip')}."
        stops = self.task.on_error == "raise" and failed.code not in INTENDED_CODES
        if stops and failed.code == "corrupt":
            remedy = (
                f"The sample was not copied. Run `shardtool verify` on the source to find all damage, {skip_advice}"
            )
            raise CorruptShard(path, f"{key}: {failed.message}", remedy=remedy)
        if stops:
            location = to_text(self.root) + path if failed.path else key
            expected = "a file that does not change during the run" if failed.code == "changed" else ""
            remedy = f"Fix the sample and run again with {flag_text('resume')}, {skip_advice}"
            raise SampleFailed(location, failed.message, expected=expected, remedy=remedy, detail=failed.detail)
        # The output will list `path`, so remove the folders of this machine from it.
        for file in self.files:
            if failed.path == file.path or failed.path.startswith(file.path + b":"):
                path = to_text(file.path.rpartition(b"/")[2] + failed.path[len(file.path) :])
        for name, folder in self.task.samples.folders.items():
            if failed.path.startswith(folder):
                path = to_text(name + b"/" + failed.path[len(folder) :])
        self.skipped[sample] = Skipped(key, path, failed.code, failed.message)
        if streamed:
            raise RestartShard

    def flush(self, used: int, samples: int) -> None:
        """Write the first `used` bytes of the buffer, and report `samples` finished samples."""
        if used:
            self.write(self.view[:used])
        self.report_progress(samples)

    def write(self, data: memoryview | bytes) -> None:
        """Write bytes of the shard."""
        self.put(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)

    def write_streamed(self, data: memoryview | bytes) -> None:
        """Write part of a sample larger than the buffer."""
        self.write(data)

    def extra_progress(self) -> tuple[int, ...]:
        """Return additional arguments for `report`."""
        return ()

    def report_progress(self, samples: int) -> None:
        """Report the number of finished samples, unless the last report was recent."""
        done_samples, done_bytes, when = self.reported
        now = time.monotonic()
        if now - when > _REPORT_INTERVAL_S or samples == len(self.keys):
            samples = max(samples, done_samples)
            self.report(samples - done_samples, self.size - done_bytes, *self.extra_progress())
            self.reported = (samples, self.size, now)
