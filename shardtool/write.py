"""One planned shard becomes one file. Runs in a worker; knows no other shard.

Strategy: files are read straight into one reusable buffer, behind a gap for the header, checksummed
there while the cache is warm, and written a buffer at a time. A buffer of 512 KiB fits the second
level cache; larger ones cost up to double. A sample that fits the buffer is never split by a write,
so leaving it out is setting a number back; a larger one is streamed, and to leave it out the shard
is begun again without it.

What comes back is numbers: checksums, and what was left out. The offsets follow from the plan.
"""

from __future__ import annotations

import time
from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardtool.checksum import content_digest, crc32c
from shardtool.errors import SampleFailed
from shardtool.format.tar import BLOCK, TRAILER, header, put_header
from shardtool.sample import FILE, INLINE, OnError, ShardSamples, Skipped, to_text
from shardtool.storage import READ_FOLLOWING, READ_PLAIN, Folder, Staged, read_blocks, read_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    Report = Callable[[int, int], None]

_BUFFER_SIZE = 512 * 1024
_REPORT_S = 0.1
_PADDING = [bytes(size) for size in range(BLOCK)]

_buffer: memoryview | None = None  # one a process, made at the first shard


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that an earlier run has left under the shard's name, of the size that the plan wants.

    Attributes:
        crc: What its sound sidecar says of the file, where the source is known to be unchanged since;
            None: read the source again to find out.
        field_crcs: uint32 a field, likewise.
    """

    crc: int | None = None
    field_crcs: bytes = b""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard to write.

    Attributes:
        shard: Its number in the plan.
        name: Its final name.
        folder: Where it goes.
        samples: What goes into it.
        on_error: Whether a sample that cannot be read ends the run, or is left out.
        mtime_ns: The modification time that the file gets.
        kept: What an earlier run has left; it stays where it is right.
    """

    shard: int
    name: str
    folder: Folder
    samples: ShardSamples
    on_error: OnError
    mtime_ns: int
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of a shard.

    Attributes:
        shard: Its number in the plan.
        staged: The file, to be published; None: the one that is there is right.
        size: Bytes.
        crc: CRC-32C of the whole file.
        field_crcs: uint32 for each field that was written.
        digest: The content fingerprint of its samples.
        skipped: What was left out, each with its place in the shard.
    """

    shard: int
    staged: Staged | None
    size: int
    crc: int
    field_crcs: bytes
    digest: int
    skipped: tuple[tuple[int, Skipped], ...]


class _Output(Protocol):
    def write(self, data: memoryview | bytes) -> None: ...


class _Nowhere:
    """Takes the bytes of a shard that is only to be checked."""

    def write(self, data: memoryview | bytes) -> None:
        """Do nothing: the checksum is taken already."""


class _StartAgain(Exception):
    """A sample failed after a part of it was written."""


class _Failed(Exception):
    """A file cannot be read, or is not what the plan saw."""

    def __init__(self, path: bytes, code: str, message: str) -> None:
        super().__init__(message)
        self.path, self.code, self.message = path, code, message


def pack_shard(task: ShardTask, report: Report) -> ShardResult:
    """Write a shard, staged and durable, or find that the one which is there is right.

    Args:
        task: What to write.
        report: Called now and then with the samples and bytes done since the last time.

    Raises:
        SampleFailed: A sample cannot be read, or is not what the plan saw, and `on_error` is `stop`.
        OutputFailed: The file cannot be written.
    """
    if task.kept is not None and (result := _keep(task, task.kept)):
        report(len(_keys(task.samples)), result.size)
        return result
    without: dict[int, Skipped] = {}
    while True:
        output = task.folder.stage(task.name)
        try:
            packer = _Packer(task, output, report, without)
            packer.run()
            return packer.result(output.finish(task.mtime_ns))
        except _StartAgain:
            output.abandon()
        except BaseException:
            output.abandon()
            raise


def _keep(task: ShardTask, kept: Kept) -> ShardResult | None:
    """Return the result for a file that is there already; None where it is not what the plan wants."""
    try:
        size, crc = _file_crc(task)
    except OSError:
        return None
    if kept.crc is None:
        without: dict[int, Skipped] = {}
        with suppress(SampleFailed):  # writing the shard will meet it again
            while True:
                packer = _Packer(task, _Nowhere(), _no_report, without)
                with suppress(_StartAgain):
                    packer.run()
                    return packer.result(None) if (packer.size, packer.crc) == (size, crc) else None
        return None
    if kept.crc != crc:
        return None
    return ShardResult(task.shard, None, size, crc, kept.field_crcs, _digest(task.samples, kept.field_crcs, ()), ())


def _file_crc(task: ShardTask) -> tuple[int, int]:
    """Return the size and CRC-32C of the file that is there."""
    view = _shared_buffer()
    size = crc = 0
    for got in task.folder.blocks(task.name, view):
        if isinstance(got, int):
            crc = crc32c(view[:got], crc)
            size += got
    return size, crc


def _no_report(_samples: int, _bytes: int) -> None:
    """Tell nobody."""


def _shared_buffer() -> memoryview:
    global _buffer  # noqa: PLW0603 - page faults for a fresh one would cost as much as a shard of small files
    if _buffer is None:
        _buffer = memoryview(bytearray(_BUFFER_SIZE))
    return _buffer


def _keys(samples: ShardSamples) -> list[bytes]:
    return samples.keys[:-1].split(b"\0")


def _numbers(kind: str, data: bytes) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    return numbers


def _digest(samples: ShardSamples, field_crcs: bytes, without: tuple[int, ...]) -> int:
    """Return the content fingerprint of the samples that were written."""
    keys, counts = _keys(samples), _numbers("H", samples.counts).tolist()
    codes, sizes = samples.codes, samples.sizes
    for sample in sorted(without, reverse=True):
        row = sum(counts[:sample])
        end = row + counts[sample]
        codes, sizes = codes[: 2 * row] + codes[2 * end :], sizes[: 8 * row] + sizes[8 * end :]
        del keys[sample], counts[sample]
    return content_digest(keys, counts, samples.fields, codes=codes, lengths=sizes, crcs=field_crcs)


class _Packer:
    """The state of one shard being written."""

    def __init__(self, task: ShardTask, output: _Output, report: Report, without: dict[int, Skipped]) -> None:
        self.task, self.output, self.report = task, output, report
        self.without = without  # samples left out, by their place; grows
        self.view = _shared_buffer()
        self.size = self.crc = 0  # of what was written
        self.field_crcs = array("I")
        self.reported = (0, 0, time.monotonic())  # samples, bytes, when
        samples = task.samples
        self.keys = _keys(samples)
        self.endings = [b"." + name for name in samples.fields]
        self.codes = _numbers("H", samples.codes).tolist()
        self.sizes = _numbers("q", samples.sizes).tolist()
        self.mtimes = _numbers("q", samples.mtimes).tolist()
        self.paths = samples.paths[:-1].split(b"\0") if samples.paths is not None else None
        self.inline = samples.inline[:-1].split(b"\0") if samples.inline is not None else []

    def run(self) -> None:  # noqa: C901 - see below
        """Write all samples, and the end of the file.

        The per-file loop, so it is long and flat: of 15 us for a file of 7 KB, besides the write, 8.5 are
        its four system calls. A function a sample, and attributes of `self`, were seen to add about 1.
        """
        samples, view, limit, without = self.task.samples, self.view, len(self.view), self.without
        root, kinds, endings, codes, sizes = samples.root, samples.kinds, self.endings, self.codes, self.sizes
        mtimes, paths, inline, crcs, padding = self.mtimes, self.paths, self.inline, self.field_crcs, _PADDING
        columns = zip(self.keys, _numbers("q", samples.needs), _numbers("H", samples.counts), strict=True)
        used = end = 0
        for sample, (key, need, count) in enumerate(columns):
            row, end = end, end + count
            if without and sample in without:
                continue
            if used + need > limit:
                self._flush(used, sample)
                used = 0
            try:
                if need > limit:
                    self._stream(key, row, end)
                    continue
                at_start, crcs_at_start = used, len(crcs)
                for at in range(row, end):
                    path = name = key + endings[codes[at]]
                    size = sizes[at]
                    start = put_header(view, used, name, size)
                    stop = start + size
                    payload = view[start:stop]
                    kind = kinds[at]
                    if kind == INLINE:
                        payload[:] = inline[at]
                    else:
                        if paths is not None:
                            path = paths[at]
                        got, fact = read_file(root + path, payload, READ_PLAIN if kind == FILE else READ_FOLLOWING)
                        if got != size or fact.st_size != size or fact.st_mtime_ns != mtimes[at]:
                            raise _changed(path, size, got, fact)
                    crcs.append(crc32c(payload))
                    pad = -size & 511
                    used = stop + pad
                    view[stop:used] = padding[pad]
            except OSError as error:
                used = at_start
                del crcs[crcs_at_start:]
                self._leave_out(sample, _unreadable(path, error), streamed=False)
            except _Failed as failed:
                if need <= limit:
                    used = at_start
                    del crcs[crcs_at_start:]
                self._leave_out(sample, failed, streamed=need > limit)
        self._flush(used, len(self.keys))
        self._write(TRAILER)

    def result(self, staged: Staged | None) -> ShardResult:
        """Return what is to be told of the finished shard."""
        crcs = self.field_crcs.tobytes()
        skipped = tuple(sorted(self.without.items()))
        digest = _digest(self.task.samples, crcs, tuple(self.without))
        return ShardResult(self.task.shard, staged, self.size, self.crc, crcs, digest, skipped)

    def _stream(self, key: bytes, row: int, end: int) -> None:
        """Write one sample that is larger than the buffer, block by block. The buffer is empty before and after."""
        samples, crcs = self.task.samples, []
        for at in range(row, end):
            name = key + self.endings[self.codes[at]]
            size = self.sizes[at]
            self._write(header(name, size))
            if samples.kinds[at] == INLINE:
                crc = crc32c(self.inline[at])
                self._write(self.inline[at])
            else:
                crc = self._stream_file(name if self.paths is None else self.paths[at], at)
            crcs.append(crc)
            self._write(_PADDING[-size & (BLOCK - 1)])
        self.field_crcs.extend(crcs)

    def _stream_file(self, path: bytes, row: int) -> int:
        """Write a whole file; return its checksum."""
        view, size, samples = self.view, self.sizes[row], self.task.samples
        crc = done = 0
        blocks = read_blocks(samples.root + path, view, READ_PLAIN if samples.kinds[row] == FILE else READ_FOLLOWING)
        while True:
            try:
                got = next(blocks)
            except OSError as error:
                raise _unreadable(path, error) from None
            if not isinstance(got, int):
                if done != size or got.st_size != size or got.st_mtime_ns != self.mtimes[row]:
                    raise _changed(path, size, done, got)
                return crc
            done += got
            if done > size:
                raise _Failed(path, "changed", f"grew beyond {size:,} bytes while it was packed")
            crc = crc32c(view[:got], crc)
            self._write(view[:got])
            self._report(0)

    def _leave_out(self, sample: int, failed: _Failed, *, streamed: bool) -> None:
        """Note a sample that failed, or end the run."""
        path = to_text(failed.path)
        if self.task.on_error == "stop":
            raise SampleFailed(
                to_text(self.task.samples.root) + path, failed.message,
                expected="" if failed.code == "unreadable" else "a file that stays as it was when the run began",
                remedy="Mend it and run again with --resume, or leave such samples out with --on-error skip.",
            )  # fmt: skip
        key = to_text(self.keys[sample])
        self.without[sample] = Skipped(key, path, failed.code, failed.message)
        if streamed:
            raise _StartAgain

    def _flush(self, used: int, samples: int) -> None:
        """Write the first `used` bytes of the buffer; `samples` are done."""
        if used:
            self._write(self.view[:used])
        self._report(samples)

    def _write(self, data: memoryview | bytes) -> None:
        self.output.write(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)

    def _report(self, samples: int) -> None:
        done_samples, done_bytes, when = self.reported
        now = time.monotonic()
        if now - when > _REPORT_S or samples == len(self.keys):
            samples = max(samples, done_samples)
            self.report(samples - done_samples, self.size - done_bytes)
            self.reported = (samples, self.size, now)


def _unreadable(path: bytes, error: OSError) -> _Failed:
    code = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return _Failed(path, code, (error.strerror or str(error)).lower())


def _changed(path: bytes, planned: int, got: int, fact: os.stat_result) -> _Failed:
    if fact.st_size != planned:
        message = f"changed while it was packed: {planned:,} bytes in the plan, {fact.st_size:,} now"
    elif got != planned:
        message = f"gives {got:,} bytes where the file system says {planned:,}"
    else:
        message = "changed while it was packed: its modification time is another"
    return _Failed(path, "changed", message)
