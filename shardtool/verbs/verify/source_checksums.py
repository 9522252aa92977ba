"""The checksums of payloads as their source has them: files, shards, and values of a table. Read by workers.

It imports nothing heavy, for the workers. Where an index of the source knows a checksum, nothing is read.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from shardtool.dataset.shard_file import ShardFile, open_shard
from shardtool.dataset.walk import payload_crc
from shardtool.errors import CorruptShard, is_out_of_memory
from shardtool.execute.local import cores
from shardtool.fingerprint import crc32c
from shardtool.format import zip_read
from shardtool.format.tfrecord import encode_number
from shardtool.source.base import FILES_A_TASK, Files, Spans, file_tasks, files_at_once, span_tasks
from shardtool.storage.open_file import READ_FOLLOWING, READ_PLAIN, open_source
from shardtool.values import FILE, LINK, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.source.base import Source

    Rows = NDArray[np.int64]

_BLOCK = 2**20


def sum_task(task: Files | Spans) -> list[int]:
    """Return the CRC-32C of each payload; -1 for a file that cannot be read. Runs in a worker.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    if isinstance(task, Spans):
        return _sum_spans(task)
    return _sum_files(task) if task.reads == 1 else _sum_at_once(task)


def _sum_at_once(task: Files) -> list[int]:
    """Do what `_sum_files` does, several files at a time, for where opening one takes long."""
    from concurrent.futures import ThreadPoolExecutor

    reads = task.reads
    parts = [Files(task.paths[at::reads], task.links[at::reads], reads) for at in range(reads)]
    found = [-1] * len(task.paths)
    try:
        with ThreadPoolExecutor(reads) as threads:
            for at, sums in enumerate(threads.map(_sum_files, parts)):
                found[at::reads] = sums
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _sum_files(Files(task.paths, task.links))  # without threads, which takes less
    # By itself, for it may be that too many were open.
    bad = [at for at, crc in enumerate(found) if crc < 0]
    again = _sum_files(Files(tuple(task.paths[at] for at in bad), bytes(task.links[at] for at in bad)))
    for at, crc in zip(bad, again, strict=True):
        found[at] = crc
    return found


def _sum_files(task: Files) -> list[int]:
    """Return the CRC-32C of each file, one after the other; -1 for one that cannot be read."""
    buffer = memoryview(bytearray(_BLOCK // task.reads))
    found = []
    for path, link in zip(task.paths, task.links, strict=True):
        crc = 0
        try:
            with open_source(path, READ_FOLLOWING if link else READ_PLAIN) as file:
                for block in file.blocks(buffer):
                    crc = crc32c(block, crc)
        except OSError as error:
            if is_out_of_memory(error):
                raise
            crc = -1
        found.append(crc)
    return found


def _sum_spans(task: Spans) -> list[int]:
    offsets, lengths = array("q", task.offsets), array("q", task.lengths)
    if task.form == "zip":
        with ShardFile(task.path) as file:
            return [_member_crc(file, *place) for place in zip(offsets, lengths, strict=True)]
    with open_shard(task.path) as shard:
        return [payload_crc(shard, *place) for place in zip(offsets, lengths, strict=True)]


def _member_crc(file: ShardFile, offset: int, length: int) -> int:
    """Return the CRC-32C of the payload of a zip's member; -1 where it is damaged."""
    crc = 0
    try:
        for block in zip_read.payload(file.read, offset, length, file.path):
            crc = crc32c(block, crc)
    except CorruptShard:
        return -1
    return crc


def inline_payloads(entries: Entries, rows: Rows, *, as_numbers: bool) -> Iterator[bytes]:
    """Yield the payloads of INLINE rows; `as_numbers`: of numbers, what a TFRecord holds for them."""
    owners = entries.owners(rows)
    for sample, code in zip(owners.tolist(), entries.rows.code[rows].tolist(), strict=True):
        field = entries.fields[code]
        text, number = entries.values.inline[field].span(sample, sample + 1)[:-1], entries.values.numbers.get(field)
        yield text if number is None or not as_numbers else encode_number(text, number)


def source_sums(source: Source, entries: Entries, rows: Rows, pool: Pool) -> Rows:
    """Return the CRC-32C of the payloads of rows that are not INLINE: int64, -1 where it cannot be had.

    Raises:
        CorruptShard: A shard of the source cannot be read.
    """
    import numpy as np

    sums, kinds = np.full(len(rows), -1, np.int64), entries.rows.kind[rows]
    spans = np.flatnonzero(kinds == SPAN)
    files = np.flatnonzero((kinds == FILE) | (kinds == LINK))
    reads = 1
    if len(files):
        reads, _ = files_at_once(entries, min(-(-len(files) // FILES_A_TASK), cores()))
    tasks: list[tuple[Rows, Files | Spans]] = [*file_tasks(entries, rows, files, reads=reads)]
    if len(spans) and entries.known_spans.files:
        sums[spans] = entries.known_spans.expected[rows[spans]]
        tasks += span_tasks(entries, rows, spans[sums[spans] < 0])
    elif len(spans):
        sink = _Sums(entries.known_spans.offset[rows[spans]], entries.rows.size[rows[spans]])
        source.write_binary(sink)
        sums[spans] = sink.sums
    for number, found in pool.map(sum_task, [task for _, task in tasks]):
        sums[tasks[number][0]] = found
    return sums


class _Sums:
    """Takes a spool's bytes in order, and keeps nothing of them but the checksums of spans."""

    def __init__(self, offsets: Rows, sizes: Rows) -> None:
        import numpy as np

        self.sums = np.zeros(len(offsets), np.int64)
        self._order = np.argsort(offsets, kind="stable")
        self._starts, self._ends = offsets[self._order], (offsets + sizes)[self._order]
        self._at = self._next = 0

    def write(self, data: bytes | memoryview) -> None:
        """Take the bytes that follow."""
        view = memoryview(data)
        first, last = self._at, self._at + len(view)
        while self._next < len(self._starts) and self._starts[self._next] < last:
            start, end = int(self._starts[self._next]), int(self._ends[self._next])
            which = self._order[self._next]
            part = view[max(0, start - first) : min(end, last) - first]
            self.sums[which] = crc32c(part, int(self.sums[which]))
            if end > last:
                break
            self._next += 1
        self._at = last
