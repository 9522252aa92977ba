"""Extract the samples of one shard to files.

A payload is verified, then written under its final name by one system call. A payload larger than the buffer is written
in blocks, and its file is deleted if the checksum is wrong. A killed process therefore leaves at most one incomplete
file, and the next run recognises this file.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard, SampleFailed, printable
from shardtool.fingerprint import crc32c
from shardtool.names import to_text
from shardtool.shard_samples import INLINE
from shardtool.storage.tree import ExistingFile, FolderTree
from shardtool.write.packer import Packer, no_report
from shardtool.write.source_errors import SourceFailed, read_error
from shardtool.write.task import BUFFER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.shard_file import CompressedFile
    from shardtool.write.packer import Report
    from shardtool.write.task import ShardTask

_FILES_PER_REPORT = 64


class UnpackTask(NamedTuple):
    """Samples to extract. `task.samples.paths` contains the paths of the files to write, relative to `task.folder`.

    Attributes:
        compressed: Whether some shards of the dataset are compressed.
    """

    task: ShardTask
    compressed: bool
    existing: ExistingFile

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.task.name


def unpack_samples(task: UnpackTask, report: Report) -> int:
    """Extract samples to files, and return how many files already existed."""
    with closing(_SampleUnpacker(task, report)) as unpacker:
        unpacker.run()
        unpacker.spans.check()
    return unpacker.kept


class _SampleUnpacker(Packer):
    def __init__(self, task: UnpackTask, report: Report) -> None:
        super().__init__(task.task, no_report, report, {})
        self.kept, self._existing = 0, task.existing
        self._tree = FolderTree(task.task.folder.path)
        self._compressed_file: CompressedFile | None = None
        if task.compressed:
            from shardtool.dataset.shard_file import CompressedFile, is_compressed

            if is_compressed(path := os.fsdecode(self.files[0].path)):
                self._compressed_file = CompressedFile(path)

    def close(self) -> None:
        super().close()
        self._tree.close()
        if self._compressed_file is not None:
            self._compressed_file.__exit__()

    def run(self) -> None:
        paths = self.paths or []
        sizes, tree, existing = self.sizes, self._tree, self._existing
        ends = [*accumulate(self.counts)]
        for done, row in enumerate(sorted(range(len(sizes)), key=self.offsets.__getitem__)):
            size, path = sizes[row], paths[row]
            try:
                if size > BUFFER_SIZE:
                    if self._compressed_file is not None:
                        self._compressed_file.hold(self.offsets[row], size)
                    written = tree.write(path, partial(self._blocks, path, row), existing)
                else:
                    (payload,) = self._blocks(path, row)
                    written = tree.write(path, payload, existing)
            except SourceFailed as failed:
                raise self._failure(bisect_right(ends, row), failed) from None
            self.kept += not written
            self.size += size
            if not done % _FILES_PER_REPORT:
                self.report_progress(bisect_right(ends, row))
        self.report_progress(len(self.keys))

    def _blocks(self, path: bytes, row: int) -> Iterator[bytes | memoryview]:
        if self.kinds[row] == INLINE:
            yield self.inline[row]
            return
        size, start, crc = self.sizes[row], 0, 0
        try:
            while start + BUFFER_SIZE < size:
                block = self._read_span(row, start, BUFFER_SIZE)
                crc, start = crc32c(block, crc), start + BUFFER_SIZE
                yield block
            block = self._read_span(row, start, size - start)
        except OSError as error:
            raise read_error(self.path_of(row, path), error) from None
        if self.expected:
            self.check_crc(row, crc32c(block, crc))
        yield block

    def _read_span(self, row: int, start: int, size: int) -> bytes | memoryview:
        offset = self.offsets[row] + start
        if self._compressed_file is None:
            self.spans.fill(self.file_of_row[row], offset, self.view[:size])
            return self.view[:size]
        data = self._compressed_file.read(offset, size)
        if len(data) != size:
            raise OSError(errno.EIO, f"ends {size - len(data):,} bytes too early")
        return data

    def _failure(self, sample: int, failed: SourceFailed) -> CorruptShard | SampleFailed:
        key, location = printable(self.keys[sample]), to_text(failed.path)
        if failed.code == "changed":
            return SampleFailed(location, failed.message, expected="a shard that does not change during the run")
        remedy = "This field was not written. Run `shardtool verify` on the dataset to find all damage."
        return CorruptShard(location, f"{key}: {failed.message}", remedy=remedy)
