"""The checksums of payloads as their source has them: files, shards, members of archives, and values of a table.

A CRC-32C compares payloads with what an index says of them. A digest proves that two payloads are the same: BLAKE2b
(RFC 7693) of 16 bytes, which nobody makes two of.
"""

from __future__ import annotations

from array import array
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.dataset.shard_file import ShardFile, open_shard, payload
from shardtool.errors import CorruptShard, is_out_of_memory
from shardtool.execute.local import cores
from shardtool.fingerprint import crc32c
from shardtool.format import zip_read
from shardtool.format.tfrecord import encode_number
from shardtool.request.observer import Observer
from shardtool.source.base import FILES_A_TASK, Files, Source, Spans, files_at_once, payload_tasks
from shardtool.storage.open_file import READ_FOLLOWING, READ_PLAIN, open_source
from shardtool.storage.places import together
from shardtool.values import FILE, INLINE, LINK, SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool

    Rows = NDArray[np.int64]

_DIGEST_SIZE = 16  # bytes
_BLOCK = 2**16  # bytes of a file at a time: of many that are small, a larger buffer for each would cost more


class _Crc:
    """The CRC-32C of what it is given."""

    def __init__(self) -> None:
        self._crc = 0

    def update(self, block: bytes | memoryview, /) -> None:
        self._crc = crc32c(block, self._crc)

    def value(self) -> int:
        return self._crc


class _Digest:
    """The digest of what it is given, as a number."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_DIGEST_SIZE)
        self.update = self._hash.update

    def value(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")


_Sum = _Crc | _Digest


def source_sums(
    source: Source | None, entries: Entries, rows: Rows, pool: Pool, observer: Observer | None = None
) -> Rows:
    """Return the CRC-32C of the payloads of rows that are not INLINE: int64, -1 where it cannot be had.

    What an index says is taken for it.

    Args:
        source: Where payloads of a table, or of an archive that is read in sequence, come from; else None.
        entries: The samples.
        rows: The payloads.
        pool: Reads them.
        observer: Gets progress.

    Raises:
        CorruptShard: A shard of the source cannot be read.
    """
    import numpy as np

    sums, spans = np.full(len(rows), -1, np.int64), entries.rows.kind[rows] == SPAN
    if spans.any() and entries.known_spans.files:
        sums[spans] = entries.known_spans.expected[rows[spans]]
    unknown = np.flatnonzero(sums < 0)
    sums[unknown] = _read(source, entries, rows[unknown], pool, observer, _Crc)
    return sums


def source_digests(
    source: Source | None, entries: Entries, rows: Rows, pool: Pool, observer: Observer | None = None
) -> NDArray[np.bytes_]:
    """Return the digest of the payload of each row, 16 bytes, all 0 where it cannot be had; all are read.

    Raises:
        CorruptShard: A shard of the source cannot be read.
    """
    import numpy as np

    inline, found = entries.rows.kind[rows] == INLINE, np.zeros(len(rows), f"S{_DIGEST_SIZE}")
    texts = inline_payloads(entries, rows[inline], as_numbers=False)
    found[inline] = [_shown(_sum_of([text], _Digest())) for text in texts]
    found[~inline] = [*map(_shown, _read(source, entries, rows[~inline], pool, observer, _Digest))]
    return found


def _shown(digest: int) -> bytes:
    return b"" if digest < 0 else digest.to_bytes(_DIGEST_SIZE, "little")


def inline_sums(entries: Entries, rows: Rows, *, as_numbers: bool) -> tuple[Rows, Rows]:
    """Return the bytes and the CRC-32C of payloads as far as nothing is read for it: -1 where they are not INLINE."""
    import numpy as np

    sizes, sums = entries.rows.size[rows], np.full(len(rows), -1, np.int64)
    inline = np.flatnonzero(entries.rows.kind[rows] == INLINE)
    payloads = inline_payloads(entries, rows[inline], as_numbers=as_numbers)
    for at, data in zip(inline.tolist(), payloads, strict=True):
        sizes[at], sums[at] = len(data), crc32c(data)
    return sizes, sums


def inline_payloads(entries: Entries, rows: Rows, *, as_numbers: bool) -> Iterator[bytes]:
    """Yield the payloads of INLINE rows; `as_numbers`: of numbers, what a TFRecord holds for them."""
    owners, numbers = entries.owners(rows), entries.values.numbers
    for sample, code in zip(owners.tolist(), entries.rows.code[rows].tolist(), strict=True):
        field = entries.fields[code]
        text, number = entries.values.inline[field].span(sample, sample + 1)[:-1], numbers.get(field)
        yield text if number is None or not as_numbers else encode_number(text, number)


def _read(
    source: Source | None, entries: Entries, rows: Rows, pool: Pool, observer: Observer | None, kind: type[_Sum]
) -> list[int]:
    """Return a sum of each payload that workers, or for a table this process, read; -1 where it cannot be had."""
    import numpy as np

    sums, kinds = [-1] * len(rows), entries.rows.kind[rows]
    spans, files = np.flatnonzero(kinds == SPAN), int(np.count_nonzero((kinds == FILE) | (kinds == LINK)))
    reads = files_at_once(entries, min(-(-files // FILES_A_TASK), cores()))[0] if files else 1
    tasks = payload_tasks(entries, rows, reads=reads)
    if len(spans) and source is not None and not entries.known_spans.files:
        sink = _Sums(entries.known_spans.offset[rows[spans]], entries.rows.size[rows[spans]], kind)
        source.write_binary(sink)
        for at, value in zip(spans.tolist(), sink.sums, strict=True):
            sums[at] = value
    function, observer = sum_task if kind is _Crc else digest_task, observer or Observer()
    observer.phase("comparing", int(entries.rows.size[rows].sum()))
    for number, found in pool.map(function, [task for _, task in tasks]):
        which = tasks[number][0]
        observer.advance(0, int(entries.rows.size[rows[which]].sum()), 0)
        for at, value in zip(which.tolist(), found, strict=True):
            sums[at] = value
    return sums


class _Sums:
    """Takes a spool's bytes in order, and keeps nothing of them but the sums of spans."""

    def __init__(self, offsets: Rows, sizes: Rows, kind: type[_Sum]) -> None:
        self.sums, self._kind, self._sum = [kind().value()] * len(offsets), kind, kind()
        self._order = offsets.argsort(kind="stable")
        self._starts, self._ends = offsets[self._order], (offsets + sizes)[self._order]
        self._at = self._next = 0

    def write(self, data: bytes | memoryview) -> None:
        """Take the bytes that follow."""
        view = memoryview(data)
        first, last = self._at, self._at + len(view)
        while self._next < len(self._starts) and self._starts[self._next] < last:
            start, end = int(self._starts[self._next]), int(self._ends[self._next])
            self._sum.update(view[max(0, start - first) : min(end, last) - first])
            if end > last:
                break
            self.sums[int(self._order[self._next])], self._sum = self._sum.value(), self._kind()
            self._next += 1
        self._at = last


# In the workers, which import nothing heavy.


def sum_task(task: Files | Spans) -> list[int]:
    """Return the CRC-32C of each payload; -1 for a file that cannot be read. Runs in a worker.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    return _sum(task, _Crc)


def digest_task(task: Files | Spans) -> list[int]:
    """Return the digest of each payload; -1 for a file that cannot be read. Runs in a worker.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    return _sum(task, _Digest)


def _sum(task: Files | Spans, kind: Callable[[], _Sum]) -> list[int]:
    if isinstance(task, Spans):
        return _sum_spans(task, kind)
    files, found = [*zip(task.paths, task.links, strict=True)], [-1] * len(task.paths)
    if task.reads > 1:  # where opening a file takes long
        try:
            found = [*together(partial(_sum_file, kind), files, task.reads)]
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    # All; else what is left once no threads take memory, and not too many files are open.
    return [_sum_file(kind, file) if value < 0 else value for file, value in zip(files, found, strict=True)]


def _sum_file(kind: Callable[[], _Sum], file: tuple[bytes, int]) -> int:
    """Return the sum of a file, which is read through a link or is none; -1 for one that cannot be read."""
    path, link = file
    try:
        with open_source(path, READ_FOLLOWING if link else READ_PLAIN) as opened:
            return _sum_of(opened.blocks(memoryview(bytearray(_BLOCK))), kind())
    except OSError as error:
        if is_out_of_memory(error):
            raise
        return -1


def _sum_spans(task: Spans, kind: Callable[[], _Sum]) -> list[int]:
    places = zip(array("q", task.offsets), array("q", task.lengths), strict=True)
    if task.form == "zip":
        with ShardFile(task.path) as file:
            return [_sum_member(file, kind(), *place) for place in places]
    with open_shard(task.path) as shard:
        return [_sum_of(payload(shard, *place, task.path), kind()) for place in places]


def _sum_member(file: ShardFile, into: _Sum, offset: int, length: int) -> int:
    """Return the sum of the payload of a zip's member; -1 where it is damaged."""
    try:
        return _sum_of(zip_read.payload(file.read, offset, length, file.path), into)
    except CorruptShard:
        return -1


def _sum_of(blocks: Iterable[bytes | memoryview], into: _Sum) -> int:
    for block in blocks:
        into.update(block)
    return into.value()
