"""The shard that a writer is filling: a staged file, and what went into it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import OutputFailed
from shardtool.fingerprint import crc32c
from shardtool.format.sizes import TRAILER_SIZE
from shardtool.format.tar import TRAILER
from shardtool.plan.shard_samples import fingerprint
from shardtool.values import ShardContent, ShardSamples, ShardSpans
from shardtool.write.records import ShardRecords
from shardtool.write.task import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.storage.staging import Folder, Staged, StagedFile
    from shardtool.values import Number
    from shardtool.writer.samples import Sample

_SENT_AT_ONCE = 2**25  # bytes: the disk is sent these while more are encoded


@dataclass(frozen=True, slots=True)
class PackedShard:
    """A shard that is whole and durable, and not visible yet.

    Attributes:
        name: Its name.
        staged: The file.
        size: Its bytes.
        crc: CRC-32C of the file.
        content: What it holds, its fields numbered in the order of the bytes of their names.
        crcs: uint32 for each field, of its bytes in the shard.
        rows: The metadata of each sample.
        columns: The names in these, in the order in which they were met.
        digest: The content fingerprint.
        plan: The fingerprint that a plan of `create` for these samples has.
    """

    name: str
    staged: Staged
    size: int
    crc: int
    content: ShardContent
    crcs: bytes
    rows: list[Mapping[str, object]]
    columns: list[str]
    digest: int
    plan: str


class OpenShard:
    """A shard being written.

    Args:
        folder: Where it goes.
        name: What it will be called.
        shard_format: `tar` or `tfrecord`.
    """

    def __init__(self, folder: Folder, name: str, shard_format: str) -> None:
        self.name, self._format = name, shard_format
        self._file = _SummedFile(folder.stage(name))
        self._records = ShardRecords(self._file.write)
        self._rows: list[Mapping[str, object]] = []
        self._columns: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        """Bytes of the records so far."""
        return self._records.size

    def add(self, sample: Sample, row: Mapping[str, object]) -> None:
        """Append a sample.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._records.add(sample.key, sample.parts, sample.size, sample.fields)
        self._rows.append(row)
        if row:
            self._columns.update(dict.fromkeys(row))

    def finish(self, numbers: Mapping[bytes, Number], *, inline: bool) -> PackedShard:
        """Make the file whole and durable.

        Args:
            numbers: The fields that are stored as numbers, and of what kind.
            inline: Whether the plan of a table would carry a value of the dataset.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._records.flush()
        if TRAILER_SIZE[self._format]:
            self._file.write(TRAILER)
        staged = self._file.finish()
        content = _in_order(self._records.content(numbers, texts=inline))
        crcs = self._records.crcs.tobytes()
        samples = ShardSamples(content, b"", b"", b"", b"", b"", ShardSpans())
        return PackedShard(
            self.name, staged, self._file.size, self._file.crc, content, crcs, self._rows, [*self._columns],
            digest(content, crcs, ()), fingerprint(self._format, samples),
        )  # fmt: skip

    def abandon(self) -> None:
        """Remove what was written."""
        self._file.abandon()


class _SummedFile:
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
        if self.size - self._sent > _SENT_AT_ONCE and (self._sending is None or not self._sending.is_alive()):
            self._sent = self.size
            self._sending = Thread(target=_send, args=(self._staged, self._failed), daemon=True)
            self._sending.start()

    def finish(self) -> Staged:
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


def _send(staged: StagedFile, failed: list[OutputFailed]) -> None:
    try:
        staged.sync()
    except OutputFailed as error:
        failed.append(error)


def _in_order(content: ShardContent) -> ShardContent:
    """Return the same content, its fields numbered in the order of the bytes of their names."""
    fields = tuple(sorted(content.fields))
    place = {name: at for at, name in enumerate(fields)}
    codes = np.array([place[name] for name in content.fields], np.uint16)
    numbers = {place[content.fields[code]]: kind for code, kind in content.numbers.items()}
    again = codes[np.frombuffer(content.codes, np.uint16)].tobytes()
    return replace(content, fields=fields, codes=again, numbers=numbers)
