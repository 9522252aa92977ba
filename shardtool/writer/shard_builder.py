"""The shard to which a writer adds samples: a staged file and the index of its samples."""

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


_SYNC_STEP_BYTES = 2**25


class ShardBuilder:
    """A shard to which samples are added."""

    def __init__(self, folder: OutputFolder, name: str, shard_format: str) -> None:
        self.name, self._format = name, shard_format
        self.file = _ChecksummedFile(folder.stage(name))
        self._records = ShardRecords(self.file.write)
        self.rows: list[Mapping[str, object]] = []

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        """Number of record bytes so far."""
        return self._records.size

    def add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        """Append a sample."""
        self._records.add(sample.key, sample.parts, sample.size, sample.fields)
        self.rows.append(row)

    def finish(self, encoder: SampleEncoder, columns: MetadataColumns) -> FinishedShard:
        """Complete the file and sync it to disk.

        Returns:
            The staged file, its index, its content with sorted fields, the CRC-32C of each field as uint32, and the
            plan fingerprint.
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
        """Delete the staged file."""
        self.file.abandon()


class _ChecksummedFile:
    """A staged file with its size and checksum.

    While bytes are appended, a thread syncs the file to disk. `finish` raises the errors of this thread.
    """

    def __init__(self, staged: StagedFile) -> None:
        self._staged = staged
        self.size = self.crc = 0
        self._synced_bytes = 0
        self._sync_thread: Thread | None = None
        self._sync_errors: list[OutputFailed] = []

    def write(self, data: bytes | memoryview) -> None:
        self._staged.write(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)
        is_syncing = self._sync_thread is not None and self._sync_thread.is_alive()
        if self.size - self._synced_bytes > _SYNC_STEP_BYTES and not is_syncing:
            self._synced_bytes = self.size
            self._sync_thread = Thread(target=_sync, args=(self._staged, self._sync_errors), daemon=True)
            self._sync_thread.start()

    def finish(self) -> DurableFile:
        self._wait()
        if self._sync_errors:
            raise self._sync_errors[0]
        return self._staged.finish()

    def abandon(self) -> None:
        self._wait()
        self._staged.abandon()

    def _wait(self) -> None:
        if self._sync_thread is not None:
            self._sync_thread.join()


def _sync(staged: StagedFile, errors: list[OutputFailed]) -> None:
    try:
        staged.sync()
    except OutputFailed as error:
        errors.append(error)


def _sort_fields(content: shard_samples.ShardContent) -> shard_samples.ShardContent:
    fields = tuple(sorted(content.fields))
    code_by_name = {name: code for code, name in enumerate(fields)}
    codes = np.array([code_by_name[name] for name in content.fields], np.uint16)
    numbers = {code_by_name[content.fields[code]]: kind for code, kind in content.numbers.items()}
    sorted_codes = codes[np.frombuffer(content.codes, np.uint16)].tobytes()
    return replace(content, fields=fields, codes=sorted_codes, numbers=numbers)
