"""Compute checksums of payloads before they are packed."""

from __future__ import annotations

from array import array
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.dataset.shard_file import ShardFile, iter_payload, open_shard
from shardtool.errors import CorruptShard, is_out_of_memory
from shardtool.execute.local_pool import usable_cores
from shardtool.fingerprint import PAYLOAD_DIGEST_SIZE, crc32c
from shardtool.format import zip_read
from shardtool.format.tfrecord_write import encode_number
from shardtool.request.observer import Observer
from shardtool.shard_samples import FILE, INLINE, LINK, SPAN, decode_inline_payload
from shardtool.source.read_tasks import FILES_PER_TASK, FileReads, SpanReads, choose_parallel_reads, payload_tasks
from shardtool.storage import files
from shardtool.storage.remote import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.source.base import Source

    Int64Array = NDArray[np.int64]
    Rows = Int64Array


_BLOCK_BYTES = 2**16  # larger buffers are slower for small files


class _Crc32c:
    def __init__(self) -> None:
        self._crc = 0

    def update(self, block: bytes | memoryview, /) -> None:
        self._crc = crc32c(block, self._crc)

    def value(self) -> int:
        return self._crc


class _Digest:
    def __init__(self) -> None:
        self._hash = blake2b(digest_size=PAYLOAD_DIGEST_SIZE)
        self.update = self._hash.update

    def value(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")


_Checksum = _Crc32c | _Digest


def source_checksums(
    source: Source | None, entries: SampleTable, rows: Rows, pool: Pool, observer: Observer | None = None
) -> Int64Array:
    """Return the CRC-32C of each row's payload as int64, or -1 for an unreadable payload.

    No row may be INLINE (payload stored as text in the plan).

    `source` is needed only for payloads in tables and compressed archives.
    """
    import numpy as np

    sums, spans = np.full(len(rows), -1, np.int64), entries.rows.kind[rows] == SPAN
    if spans.any() and entries.known_spans.files:
        sums[spans] = entries.known_spans.crc[rows[spans]]
    unknown = np.flatnonzero(sums < 0)
    sums[unknown] = _read_checksums(source, entries, rows[unknown], pool, observer, _Crc32c)
    return sums


def source_digests(
    source: Source | None, entries: SampleTable, rows: Rows, pool: Pool, observer: Observer | None = None
) -> NDArray[np.bytes_]:
    """Return the 16-byte digest of each row's payload, or zeros for an unreadable payload."""
    import numpy as np

    inline, digests = entries.rows.kind[rows] == INLINE, np.zeros(len(rows), f"S{PAYLOAD_DIGEST_SIZE}")
    texts = inline_payloads(entries, rows[inline], as_numbers=False)
    digests[inline] = [_encode_digest(_checksum_blocks([text], _Digest())) for text in texts]
    digests[~inline] = [*map(_encode_digest, _read_checksums(source, entries, rows[~inline], pool, observer, _Digest))]
    return digests


def _encode_digest(digest: int) -> bytes:
    return b"" if digest < 0 else digest.to_bytes(PAYLOAD_DIGEST_SIZE, "little")


def inline_checksums(entries: SampleTable, rows: Rows, *, as_numbers: bool) -> tuple[Int64Array, Int64Array]:
    """Return the payload size and CRC-32C of each row. For rows that are not INLINE, the CRC-32C is -1."""
    import numpy as np

    sizes, sums = entries.rows.size[rows], np.full(len(rows), -1, np.int64)
    inline = np.flatnonzero(entries.rows.kind[rows] == INLINE)
    payloads = inline_payloads(entries, rows[inline], as_numbers=as_numbers)
    for index, data in zip(inline.tolist(), payloads, strict=True):
        sizes[index], sums[index] = len(data), crc32c(data)
    return sizes, sums


def inline_payloads(entries: SampleTable, rows: Rows, *, as_numbers: bool) -> Iterator[bytes]:
    """Yield the payloads of INLINE rows. If `as_numbers`, encode numbers as TFRecord shards do."""
    samples, numbers = entries.samples_of(rows), entries.values.numbers
    for sample, code in zip(samples.tolist(), entries.rows.code[rows].tolist(), strict=True):
        field = entries.fields[code]
        text, number = entries.values.inline[field].span(sample, sample + 1)[:-1], numbers.get(field)
        yield decode_inline_payload(text) if number is None or not as_numbers else encode_number(text, number)


def _read_checksums(
    source: Source | None,
    entries: SampleTable,
    rows: Rows,
    pool: Pool,
    observer: Observer | None,
    checksum_type: type[_Checksum],
) -> list[int]:
    import numpy as np

    sums, kinds = [-1] * len(rows), entries.rows.kind[rows]
    spans, files = np.flatnonzero(kinds == SPAN), int(np.count_nonzero((kinds == FILE) | (kinds == LINK)))
    reads = choose_parallel_reads(entries, min(-(-files // FILES_PER_TASK), usable_cores()))[0] if files else 1
    tasks = payload_tasks(entries, rows, reads=reads)
    if len(spans) and source is not None and not entries.known_spans.files:
        sink = _SpanChecksums(entries.known_spans.offset[rows[spans]], entries.rows.size[rows[spans]], checksum_type)
        source.write_payloads(sink)
        for index, value in zip(spans.tolist(), sink.checksums, strict=True):
            sums[index] = value
    function = checksum_payloads if checksum_type is _Crc32c else _digest_payloads
    observer = observer or Observer()
    observer.phase("computing checksums", int(entries.rows.size[rows].sum()))
    for number, values in pool.map(function, [task for _, task in tasks]):
        indices = tasks[number][0]
        observer.advance(0, int(entries.rows.size[rows[indices]].sum()), 0)
        for index, value in zip(indices.tolist(), values, strict=True):
            sums[index] = value
    return sums


class _SpanChecksums:
    def __init__(self, offsets: Int64Array, sizes: Int64Array, checksum_type: type[_Checksum]) -> None:
        self._checksum_type, self._current = checksum_type, checksum_type()
        self.checksums = [self._current.value()] * len(offsets)
        self._order = offsets.argsort(kind="stable")
        self._starts, self._ends = offsets[self._order], (offsets + sizes)[self._order]
        self._at = self._next = 0

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        first, last = self._at, self._at + len(view)
        while self._next < len(self._starts) and self._starts[self._next] < last:
            start, end = int(self._starts[self._next]), int(self._ends[self._next])
            self._current.update(view[max(0, start - first) : min(end, last) - first])
            if end > last:
                break
            self.checksums[int(self._order[self._next])] = self._current.value()
            self._current = self._checksum_type()
            self._next += 1
        self._at = last


def checksum_payloads(task: FileReads | SpanReads, checksum_type: Callable[[], _Checksum] = _Crc32c) -> list[int]:
    """Return a checksum of each payload, or -1 for an unreadable file or zip member."""
    if isinstance(task, SpanReads):
        return _checksum_spans(task, checksum_type)
    files, checksums = [*zip(task.paths, task.links, strict=True)], [-1] * len(task.paths)
    if task.reads > 1:  # opening these files is slow, so use threads
        try:
            checksums = [*requests.imap_requests(partial(_checksum_file, checksum_type), files, task.reads)]
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    # Threads may open too many files or use too much memory. Read the failed files again, without threads.
    results = zip(files, checksums, strict=True)
    return [_checksum_file(checksum_type, file) if value < 0 else value for file, value in results]


def _digest_payloads(task: FileReads | SpanReads) -> list[int]:
    return checksum_payloads(task, _Digest)


def _checksum_file(checksum_type: Callable[[], _Checksum], file: tuple[bytes, int]) -> int:
    path, link = file
    try:
        with files.open_source_file(path, files.READ_FOLLOWING if link else files.READ_PLAIN) as opened:
            return _checksum_blocks(opened.blocks(memoryview(bytearray(_BLOCK_BYTES))), checksum_type())
    except OSError as error:
        if is_out_of_memory(error):
            raise
        return -1


def _checksum_spans(task: SpanReads, checksum_type: Callable[[], _Checksum]) -> list[int]:
    spans = zip(array("q", task.offsets), array("q", task.lengths), strict=True)
    if task.form == "zip":
        with ShardFile(task.path) as file:
            return [_checksum_member(file, checksum_type(), *span) for span in spans]
    with open_shard(task.path) as shard:
        return [_checksum_blocks(iter_payload(shard, *span, task.path), checksum_type()) for span in spans]


def _checksum_member(file: ShardFile, checksum: _Checksum, offset: int, length: int) -> int:
    try:
        return _checksum_blocks(zip_read.iter_zip_payload(file.read, offset, length, file.path), checksum)
    except CorruptShard:
        return -1


def _checksum_blocks(blocks: Iterable[bytes | memoryview], checksum: _Checksum) -> int:
    for block in blocks:
        checksum.update(block)
    return checksum.value()
