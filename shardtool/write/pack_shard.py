"""One planned shard becomes one file. Runs in a worker; knows no other shard.

What comes back is numbers: checksums, and what was left out. The offsets follow from the plan.
"""

from __future__ import annotations

import hashlib
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.errors import SampleFailed
from shardtool.fingerprint import crc32c
from shardtool.write.buffers import packing_buffer
from shardtool.write.packer import NullSink, Packer, StartAgain, no_report
from shardtool.write.task import Keep, ShardResult, ShardTask, Write, digest, split_names

if TYPE_CHECKING:
    from shardtool.skipped import Skipped
    from shardtool.write.packer import Output, Report


def pack_shard(task: ShardTask, report: Report) -> ShardResult:
    """Write a shard, staged and durable, or find that the one which is there is right.

    Args:
        task: What to write.
        report: Called now and then with the samples and bytes done since the last time.

    Raises:
        SampleFailed: A sample cannot be read, or is not what the plan saw, and `on_error` is `stop`.
        OutputFailed: The file cannot be written.
    """
    if result := _left(task):
        report(len(split_names(task.samples.content.keys)), result.size)
        return result
    if not isinstance(task.todo, Write) and not task.folder.hides:
        return ShardResult(
            task.shard, None, 0, 0, b"", 0, (), wrong=True
        )  # what replaces it would be seen at once: others must know first
    if task.work is not None:
        from shardtool.write.transformed import pack_transformed

        return pack_transformed(task, task.work, report)
    skipped: dict[int, Skipped] = {}

    def pack(output: Output) -> Packer:
        with closing(_packer(task, output, report, skipped)) as packer:
            packer.run()
            packer.spans.check()
        return packer

    while True:
        with suppress(StartAgain):
            size = None if skipped else task.size
            packer, staged = task.folder.write(task.name, pack, size, task.mtime_ns)
            return packer.result(staged)


def _packer(task: ShardTask, output: Output, report: Report, skipped: dict[int, Skipped]) -> Packer:
    if task.samples.spans.runs:
        from shardtool.write.tar import SpanTarPacker

        return SpanTarPacker(task, output, report, skipped)
    if task.format == "tar":
        from shardtool.write.tar import TarPacker

        return TarPacker(task, output, report, skipped)
    from shardtool.write.tfrecord import TFRecordPacker

    return TFRecordPacker(task, output, report, skipped)


def _left(task: ShardTask) -> ShardResult | None:
    """Return the result for a file that an earlier run has left; None if there is none, or it is not right."""
    if isinstance(task.todo, Write):
        return None
    with suppress(OSError):
        if isinstance(task.todo, Keep):
            right = task.todo.unread or task.todo.crc == _file_crc(task)[1]
            return _kept(task, task.todo) if right else None
        if md5 := task.folder.md5(task.name):
            return _compared_by(task, md5)
        there = _file_crc(task)
        result = _from_source(task, NullSink())
        return result if result and (result.size, result.crc) == there else None
    return None


def _compared_by(task: ShardTask, md5: str) -> ShardResult | None:
    """Return the result for a file of which the store says what may be the MD5; None if the source gives another."""
    hashed = _HashSink()
    result = _from_source(task, hashed)
    if result is None or hashed.md5.hexdigest() == md5:
        return result
    return result if (result.size, result.crc) == _file_crc(task) else None  # stores that encrypt give other numbers


class _HashSink(NullSink):
    """Takes the bytes of a shard that is only compared, by their MD5."""

    def __init__(self) -> None:
        self.md5 = hashlib.md5(usedforsecurity=False)

    def write(self, data: memoryview | bytes) -> None:
        """Add `data` to it."""
        self.md5.update(data)


def _from_source(task: ShardTask, output: _HashSink | NullSink) -> ShardResult | None:
    """Return the result for a file that is what the source gives; None where that cannot be read."""
    skipped: dict[int, Skipped] = {}
    with suppress(SampleFailed):  # writing the shard will meet it again
        while True:
            if isinstance(output, _HashSink):
                output.md5 = hashlib.md5(usedforsecurity=False)
            packer = _packer(task, output, no_report, skipped)
            with suppress(StartAgain), closing(packer):
                packer.run()
                packer.spans.check()
                return replace(packer.result(None), compared=True)
    return None


def _kept(task: ShardTask, keep: Keep) -> ShardResult:
    """Return the result for a file that is what its sidecar says."""
    content = 0 if task.work is not None else digest(task.samples.content, keep.field_crcs, ())  # its sidecar has it
    return ShardResult(task.shard, None, keep.size, keep.crc, keep.field_crcs, content, ())


def _file_crc(task: ShardTask) -> tuple[int, int]:
    """Return the size and CRC-32C of the file that is there."""
    view = packing_buffer()
    size = crc = 0
    for got in task.folder.blocks(task.name, view):
        if isinstance(got, int):
            crc = crc32c(view[:got], crc)
            size += got
    return size, crc
