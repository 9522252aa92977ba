"""Pack one planned shard into a file."""

from __future__ import annotations

import hashlib
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import SampleFailed, StoreFailed
from shardtool.messages import flag_text
from shardtool.names import to_text
from shardtool.storage.files import MAX_READS, read_crc
from shardtool.write.packer import Packer, no_report
from shardtool.write.source_errors import RestartShard, SourceTouched
from shardtool.write.tar_packer import SpanTarPacker, TarPacker
from shardtool.write.task import KeepShard, ShardResult, ShardTask, compute_content_fingerprint, split_names
from shardtool.write.tfrecord_packer import TFRecordPacker

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.skipped import Skipped
    from shardtool.storage.staging import Sink
    from shardtool.write.packer import Put, Report


Result = TypeVar("Result")


def pack_shard(task: ShardTask, report: Report) -> ShardResult:
    """Write a shard to a staged file, unless the existing shard can be kept."""
    try:
        return _pack_or_keep(task, report)
    except StoreFailed as error:
        # threads that read ahead may exhaust descriptors or memory, so retry without threads
        if not error.is_process_limit or task.parallel_reads == 1:
            raise
    return _pack_or_keep(task._replace(parallel_reads=1), report)


def _pack_or_keep(task: ShardTask, report: Report) -> ShardResult:
    if result := _check_existing(task):
        report(len(split_names(task.samples.content.keys)), result.size)
        return result
    if task.action != "write" and not task.folder.has_staging:
        # Without staging, a worker would overwrite the existing shard. `wrong` makes the parent delete the dataset
        # file, and then write the shard in another task.
        return ShardResult(None, 0, 0, b"", 0, (), wrong=True)
    if task.work is not None:
        from shardtool.write.transform_packer import pack_transformed

        work = task.work
        return _retry_until_stable(lambda: pack_transformed(task, work, report))
    skipped: dict[int, Skipped] = {}

    def fill(file: Sink) -> Packer:
        return _run_packer(task, file.write, report, skipped)

    def pack() -> ShardResult:
        packer, staged = task.folder.write(task.name, fill, None if skipped else task.size, task.mtime_ns)
        return packer.result(staged)

    return _retry_until_stable(pack)


def _retry_until_stable(pack: Callable[[], Result]) -> Result:
    touch_count = 0
    while True:
        try:
            return pack()
        except SourceTouched as error:
            touch_count += 1
            if touch_count == MAX_READS:
                remedy = f"Run the same command with {flag_text('resume')}."
                expected, found = "a file that does not change during the run", "changed while it was packed"
                raise SampleFailed(to_text(error.path), found, expected=expected, remedy=remedy) from None
        except RestartShard:
            pass


def _run_packer(task: ShardTask, write: Put, report: Report, skipped: dict[int, Skipped]) -> Packer:
    packer_class = SpanTarPacker if task.samples.spans.runs else TarPacker if task.format == "tar" else TFRecordPacker
    with closing(packer_class(task, write, report, skipped)) as packer:
        packer.run()
        packer.spans.check()
    return packer


def _check_existing(task: ShardTask) -> ShardResult | None:
    if task.action == "write":
        return None
    path = task.folder.full_path(task.name)
    with suppress(OSError):
        if isinstance(task.action, KeepShard):
            keep = task.action
            if not keep.trusts_size and keep.crc != read_crc(path)[1]:
                return None
            digest = (
                0 if task.work is not None else compute_content_fingerprint(task.samples.content, keep.field_crcs, ())
            )
            return ShardResult(None, keep.size, keep.crc, keep.field_crcs, digest, ())
        md5 = task.folder.md5(task.name)
        size_and_crc = None if md5 else read_crc(path)
        result, source_md5 = _reread_source(task, hashes=bool(md5))
        if (
            result is None
            or (md5 and md5 == source_md5)
            or (result.size, result.crc) == (size_and_crc or read_crc(path))
        ):
            return result
    return None


def _reread_source(task: ShardTask, *, hashes: bool) -> tuple[ShardResult | None, str]:
    skipped: dict[int, Skipped] = {}

    def compare() -> tuple[ShardResult, str]:
        md5 = hashlib.md5(usedforsecurity=False)
        packer = _run_packer(task, md5.update if hashes else no_report, no_report, skipped)
        return packer.result(None)._replace(compared=True), md5.hexdigest()

    with suppress(SampleFailed):
        return _retry_until_stable(compare)
    return None, ""


def read_fingerprint(task: ShardTask) -> int | None:
    """Return the content fingerprint of the task's samples, or None if a file has changed or cannot be read."""
    result, _ = _reread_source(task, hashes=False)
    return None if result is None else result.digest
