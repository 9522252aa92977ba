"""One planned shard becomes one file. Runs in a worker; knows no other shard.

What comes back is numbers: checksums, and what was left out. The offsets follow from the plan.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.errors import SampleFailed
from shardtool.fingerprint import crc32c
from shardtool.write.buffers import packing_buffer
from shardtool.write.packer import Nowhere, Packer, StartAgain, no_report
from shardtool.write.task import Compare, Keep, ShardResult, ShardTask, Write, digest, split_names

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
    if task.work is not None:
        from shardtool.write.transformed import pack_transformed

        return pack_transformed(task, task.work, report)
    skipped: dict[int, Skipped] = {}
    while True:
        with suppress(StartAgain), task.folder.stage(task.name) as output:
            with closing(_packer(task, output, report, skipped)) as packer:
                packer.run()
                packer.spans.check()
            return packer.result(output.finish(task.mtime_ns))


def _packer(task: ShardTask, output: Output, report: Report, skipped: dict[int, Skipped]) -> Packer:
    if task.samples.spans.runs:
        from shardtool.write.tar_copy import SpanTarPacker

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
    if isinstance(task.todo, Keep) and task.todo.unread:
        return _kept(task, task.todo)
    try:
        size, crc = _file_crc(task)
    except OSError:
        return None
    if isinstance(task.todo, Compare):
        return _compared(task, size, crc)
    return _kept(task, task.todo) if task.todo.crc == crc else None


def _compared(task: ShardTask, size: int, crc: int) -> ShardResult | None:
    """Return the result for a file that is what the source gives; None if it is not."""
    skipped: dict[int, Skipped] = {}
    with suppress(SampleFailed):  # writing the shard will meet it again
        while True:
            packer = _packer(task, Nowhere(), no_report, skipped)
            with suppress(StartAgain), closing(packer):
                packer.run()
                packer.spans.check()
                same = (packer.size, packer.crc) == (size, crc)
                return replace(packer.result(None), compared=True) if same else None
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
