"""The base class of writers."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from shardtool import names, shard_samples, values
from shardtool.dataset.sidecar_write import written_index
from shardtool.entries.record_sizes import TRAILER_SIZE
from shardtool.errors import InvalidRequest, OutputFailed, printable, reporting_memory_errors
from shardtool.fingerprint import crc32c
from shardtool.format.tar_write import TRAILER
from shardtool.messages import option_text
from shardtool.plan.shard_task import hash_shard_plan
from shardtool.write.shard_records import ShardRecords
from shardtool.writer.metadata_columns import MetadataColumns
from shardtool.writer.sample_encoder import EncodedSample, SampleEncoder, SampleRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.skipped import Skipped
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile, StagedFile

    FinishedShard = tuple[DurableFile, ShardIndex, shard_samples.ShardContent, bytes, str]


_OPEN, _BUSY, _CLOSED = "open", "busy", "closed"
_NO_METADATA: dict[str, object] = {}


class SampleWriter(AbstractContextManager["SampleWriter"]):
    """Writes samples into shards, in one thread of one process.

    An exception in the `with` block discards unpublished samples.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None, max_bytes: int, max_count: int) -> None:
        self._encoder, self._columns = SampleEncoder(shard_format, dots), MetadataColumns()
        self._max_bytes, self._max_count = max_bytes, max_count
        self._shard: ShardBuilder | None = None
        self._last_key: str | None = None
        self._pid, self._state = os.getpid(), _OPEN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and os.getpid() == self._pid:
            self.close()
        else:
            self.abandon()

    def write(self, sample: Mapping[str, object], metadata: Mapping[str, object] | None = None) -> None:
        """Write a sample.

        Args:
            sample: The fields, and the key as `__key__`. Bytes are stored unchanged. Other values are encoded as in
                `create`: numbers and text become text (in TFRecord, numbers stay numbers), dicts and lists become
                JSON, arrays become npy, and Pillow images get the format of the field's extension.
            metadata: Values of metadata columns.

        Raises:
            InvalidRequest: The sample cannot be written (the writer remains usable), or the metadata of a full shard
                cannot be stored (the writer is closed).
            OutputFailed: The file system reports an error. The writer is closed.
            OutOfMemory: There is not enough memory. The writer may be closed.
        """
        if self._state != _OPEN or os.getpid() != self._pid:
            self._raise_unusable()
        try:
            encoded = self._encoder.encode(sample)
            row = self._columns.convert_row(metadata, printable(encoded.key)) if metadata else _NO_METADATA
        except SampleRefused as refused:
            self._refuse(sample, refused)
            return
        except Exception:
            with reporting_memory_errors("a sample"):
                raise
        self._state = _BUSY
        try:
            if self._accepts(encoded):
                self._add(encoded, row)
        except SampleRefused as refused:
            self._state = _OPEN
            raise refused.error from None
        except Exception:
            self.abandon()
            with reporting_memory_errors("a sample"):
                raise
        self._state = _OPEN

    def close(self) -> None:
        """Publish all samples. Closing a closed writer does nothing.

        Raises:
            InvalidRequest: The dataset is invalid, for example because it is empty.
            SampleFailed: All samples were skipped.
            OutputFailed: The file system reports an error.
        """
        if self._state == _CLOSED:
            return
        if self._state != _OPEN or os.getpid() != self._pid:
            self._raise_unusable()
        try:
            self._finish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the writer and discard unpublished samples."""
        if self._state != _CLOSED and os.getpid() == self._pid:
            self._state = _CLOSED
            try:
                if self._shard is not None:
                    self._shard.abandon()
            finally:
                self._release()

    def _add(self, sample: EncodedSample, row: Mapping[str, object]) -> None:
        shard = self._shard
        if shard is not None and (shard.size + sample.size > self._max_bytes or len(shard) >= self._max_count):
            self._publish(shard)
            shard = None
        if shard is None:
            shard = self._shard = self._next_shard(sample)
        self._encoder.accept(sample)
        if row:
            self._columns.accept(row)
        shard.add(sample, row)
        self._last_key = names.to_text(sample.key)

    def _raise_unusable(self) -> NoReturn:
        kind = type(self).__name__
        if os.getpid() != self._pid:
            found = "the writer was created before this process was forked"
            raise InvalidRequest(kind, found, remedy=f"Create a writer in this process, with {option_text('part')}.")
        found = "the writer is closed" if self._state == _CLOSED else "an earlier write was interrupted"
        self.abandon()
        raise InvalidRequest(kind, found, expected="writes inside its with block")

    def _refuse(self, _sample: Mapping[str, object], refused: SampleRefused) -> None:
        raise refused.error from None

    @abstractmethod
    def _accepts(self, sample: EncodedSample) -> bool:
        """Return True to write a sample or False to skip it, or raise SampleRefused."""

    @abstractmethod
    def _next_shard(self, sample: EncodedSample) -> ShardBuilder: ...

    @abstractmethod
    def _publish(self, shard: ShardBuilder) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _release(self) -> None: ...


_SYNC_STEP_BYTES = 2**25


class ShardBuilder:
    """A shard that is being written.

    Attributes:
        rows: The metadata of each sample.
        skipped: The samples that were skipped after the previous shard, up to the last sample of this shard.
    """

    def __init__(self, folder: OutputFolder, name: str, shard_format: str) -> None:
        self.name, self._format = name, shard_format
        self.file = _ChecksummedFile(folder.stage(name))
        self._records = ShardRecords(self.file.write)
        self.rows: list[Mapping[str, object]] = []
        self.skipped: list[Skipped] = []

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
            The staged file, its index, its content with fields sorted by name, the CRC-32C of each payload as uint32,
            and the plan fingerprint.
        """
        table = columns.table(self.rows)
        self._records.flush()
        if TRAILER_SIZE[self._format]:
            self.file.write(TRAILER)
        staged = self.file.finish()
        content = _sort_fields(self._records.content(encoder.stored_numbers, texts=encoder.has_inline))
        plan = hash_shard_plan(
            self._format, shard_samples.ShardSamples(content, b"", b"", b"", b"", b"", shard_samples.ShardSpans())
        )
        crcs = self._records.crcs.tobytes()
        return staged, written_index(self._format, content, table, crcs), content, crcs, plan

    def abandon(self) -> None:
        """Delete the staged file."""
        self.file.abandon()


class _ChecksummedFile:
    """A staged file with its size and checksum. A thread syncs the file to disk while bytes are appended."""

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
