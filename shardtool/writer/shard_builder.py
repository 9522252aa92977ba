"""The shard that a writer fills: a staged file, and the index of its samples."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from shardtool import shard_samples
from shardtool.dataset.sidecar_write import written_index
from shardtool.entries.record_sizes import TRAILER_SIZE
from shardtool.errors import OutputFailed
from shardtool.fingerprint import crc32c
from shardtool.format.tar_write import TRAILER
from shardtool.plan.shard_task import hash_shard_plan
from shardtool.write.shard_records import ShardRecords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile, StagedFile
    from shardtool.writer.metadata_columns import MetadataColumns
    from shardtool.writer.sample_encoder import EncodedSample, SampleEncoder

    FinishedShard = tuple[DurableFile, ShardIndex, shard_samples.ShardContent, bytes, str]


_SYNC_STEP_BYTES = 2**25  # bytes: the disk is sent these while more are encoded


class ShardBuilder:
    """A shard being written.

    Args:
        folder: Where it goes.
        name: What it will be called.
        shard_format: `tar` or `tfrecord`.

    Attributes:
        file: The staged file, its size and checksum.
        rows: The metadata of each sample.
    """

    def __init__(self, folder: OutputFolder, name: str, shard_format: str) -> None:
        self.name, self._format = name, shard_format
        self.file = _ChecksummedFile(folder.stage(name))
        self._records = ShardRecords(self.file.write)
        self.rows: list[Mapping[str, object]] = []

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        """Bytes of the records so far."""
        return self._records.size

    def add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        """Append a sample.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._records.add(sample.key, sample.parts, sample.size, sample.fields)
        self.rows.append(row)

    def finish(self, encoder: SampleEncoder, columns: MetadataColumns) -> FinishedShard:
        """Make the file whole and durable, and where a folder hides files not visible yet.

        Args:
            encoder: Knows the fields of the dataset so far.
            columns: The metadata of the dataset so far.

        Returns:
            The file; its index; what it holds, its fields numbered in the order of the bytes of their names; uint32 for
            each field, the CRC-32C of its bytes in the shard; the fingerprint that a plan of `create` has for it.

        Raises:
            InvalidRequest: Its metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        table = columns.table(self.rows)
        self._records.flush()
        if TRAILER_SIZE[self._format]:
            self.file.write(TRAILER)
        staged = self.file.finish()
        content = _sort_fields(self._records.content(encoder.stored_numbers, texts=encoder.inline))
        plan = hash_shard_plan(
            self._format, shard_samples.ShardSamples(content, b"", b"", b"", b"", b"", shard_samples.ShardSpans())
        )
        crcs = self._records.crcs.tobytes()
        return staged, written_index(self._format, content, table, crcs), content, crcs, plan

    def abandon(self) -> None:
        """Remove what was written."""
        self.file.abandon()


class _ChecksummedFile:
    """A staged file, its size and checksum so far. It leads to no shard: what one holds is freed with it.

    Strategy: the disk is sent what was written, some at a time, by a thread beside the one that writes, so that little
    is left to be waited for at the end of the file. What goes wrong there is raised there: the disk says it once.
    """

    def __init__(self, staged: StagedFile) -> None:
        self._staged = staged
        self.size = self.crc = 0
        self._sent = 0
        self._sending: Thread | None = None
        self._failed: list[OutputFailed] = []

    def write(self, data: bytes | memoryview) -> None:
        self._staged.write(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)
        if self.size - self._sent > _SYNC_STEP_BYTES and (self._sending is None or not self._sending.is_alive()):
            self._sent = self.size
            self._sending = Thread(target=_sync, args=(self._staged, self._failed), daemon=True)
            self._sending.start()

    def finish(self) -> DurableFile:
        self._wait()
        if self._failed:
            raise self._failed[0]
        return self._staged.finish()

    def abandon(self) -> None:
        self._wait()
        self._staged.abandon()

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.join()


def _sync(staged: StagedFile, failed: list[OutputFailed]) -> None:
    try:
        staged.sync()
    except OutputFailed as error:
        failed.append(error)


def _sort_fields(content: shard_samples.ShardContent) -> shard_samples.ShardContent:
    """Return the same content, its fields numbered in the order of the bytes of their names."""
    fields = tuple(sorted(content.fields))
    place = {name: at for at, name in enumerate(fields)}
    codes = np.array([place[name] for name in content.fields], np.uint16)
    numbers = {place[content.fields[code]]: kind for code, kind in content.numbers.items()}
    again = codes[np.frombuffer(content.codes, np.uint16)].tobytes()
    return replace(content, fields=fields, codes=again, numbers=numbers)
