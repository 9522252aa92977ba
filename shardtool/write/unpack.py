"""Samples of one shard become files again, one for each field. Runs in a worker, without NumPy or pyarrow.

Strategy: payloads are read in the order in which they lie, some of them ahead, each is compared with the checksum that
the index has for it, and only then written, under its own name, by one system call. One that is larger than the
buffer is written block by block, and removed where its checksum is wrong. So a process that is killed leaves one file
at most that is not whole, which has the first bytes of its payload: the next run knows it by these (`Tree.write`). A
temporary name for each file costs 40 % more CPU by a rename, which replaces what is there, 60 % more by a link.
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
from shardtool.write.buffers import BUFFER_SIZE
from shardtool.write.packer import Packer, no_report
from shardtool.write.source_errors import SourceFailed, read_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.shard_file import CompressedFile
    from shardtool.write.packer import Report
    from shardtool.write.task import ShardTask

_FILES_PER_REPORT = 64  # files after which the time is looked at


class UnpackTask(NamedTuple):
    """Samples that lie in one shard; `task.samples.paths` are the names of their files below `task.folder`.

    Attributes:
        task: What to write, and where.
        packed: Whether the shard is compressed.
        there: What becomes of files that are there.
    """

    task: ShardTask
    packed: bool
    there: ExistingFile

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.task.name


def unpack_samples(task: UnpackTask, report: Report) -> int:
    """Write the files of samples; return how many were there already.

    Args:
        task: What to write.
        report: Called now and then with the samples and bytes done since the last time.

    Raises:
        CorruptShard: A payload is not what its index says, or cannot be read; nothing of it is left.
        OutputExists: A file is there that is not to be replaced.
        OutputFailed: A file cannot be written.
    """
    with closing(SampleUnpacker(task, report)) as unpacker:
        unpacker.run()
        unpacker.spans.check()
    return unpacker.kept


class SampleUnpacker(Packer):
    """The files of one task being written.

    Attributes:
        kept: How many were there already.
    """

    def __init__(self, task: UnpackTask, report: Report) -> None:
        super().__init__(task.task, no_report, report, {})
        self.kept, self._there = 0, task.there
        self._tree = FolderTree(task.task.folder.path)
        self._packed: CompressedFile | None = None
        if task.packed:
            from shardtool.dataset.shard_file import CompressedFile

            self._packed = CompressedFile(os.fsdecode(self.files[0].path))

    def close(self) -> None:
        """Close what was opened."""
        super().close()
        self._tree.close()
        if self._packed is not None:
            self._packed.__exit__()

    def run(self) -> None:
        """Write all files, in the order in which their payloads lie."""
        paths, sizes, tree, there = self.paths or [], self.sizes, self._tree, self._there
        ends = [*accumulate(self.counts)]
        for done, row in enumerate(sorted(range(len(sizes)), key=self.offsets.__getitem__)):
            size, path = sizes[row], paths[row]
            try:
                if size > BUFFER_SIZE:
                    if self._packed is not None:
                        self._packed.hold(self.offsets[row], size)  # for it may be read twice
                    written = tree.write(path, partial(self._blocks, path, row), there)
                else:
                    (payload,) = self._blocks(path, row)
                    written = tree.write(path, payload, there)
            except SourceFailed as failed:
                raise self._failure(bisect_right(ends, row), failed) from None
            self.kept += not written
            self.size += size
            if not done % _FILES_PER_REPORT:
                self.report_progress(bisect_right(ends, row))
        self.report_progress(len(self.keys))

    def _blocks(self, path: bytes, row: int) -> Iterator[bytes | memoryview]:
        """Yield a payload block by block, the last one once its checksum is seen to be right."""
        if self.kinds[row] == INLINE:
            yield self.inline[row]
            return
        size, start, crc = self.sizes[row], 0, 0
        try:
            while start + BUFFER_SIZE < size:
                block = self._span(row, start, BUFFER_SIZE)
                crc, start = crc32c(block, crc), start + BUFFER_SIZE
                yield block
            block = self._span(row, start, size - start)
        except OSError as error:
            raise read_error(self.path_of(row, path), error) from None
        if self.expected:
            self.check_crc(row, crc32c(block, crc))
        yield block

    def _span(self, row: int, start: int, size: int) -> bytes | memoryview:
        """Return a part of a row's bytes, from `start` on."""
        offset = self.offsets[row] + start
        if self._packed is None:
            self.spans.fill(self.file_of_row[row], offset, self.view[:size])
            return self.view[:size]
        found = self._packed.read(offset, size)
        if len(found) != size:
            raise OSError(errno.EIO, f"ends {size - len(found):,} bytes too early")
        return found

    def _failure(self, sample: int, failed: SourceFailed) -> CorruptShard | SampleFailed:
        """Return the error of a sample whose payload cannot be had."""
        key, where = printable(self.keys[sample]), to_text(failed.path)
        if failed.code == "changed":
            return SampleFailed(where, failed.message, expected="a shard that stays as it was when the run began")
        remedy = "Nothing of this field was written. `shardtool verify` shows what else is wrong there."
        return CorruptShard(where, f"{key}: {failed.message}", remedy=remedy)
