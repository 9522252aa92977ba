"""The first of two passes of a shuffle: copy the payloads into a temporary file (the spool).

The parent assigns the offsets, and workers copy the payloads. The spool is divided into regions that fit in memory.
A region contains the payloads of consecutive samples of a shard.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.dataset.shard_file import is_compressed
from shardtool.errors import CorruptShard, OutputFailed, SampleFailed
from shardtool.messages import flag_text, option_text
from shardtool.names import to_text
from shardtool.plan.shard_bounds import ShardCapacity, ShardRuns, cumulative_sizes
from shardtool.shard_samples import SPAN, SpanFile
from shardtool.storage.staging import Folder, spool_advice
from shardtool.units import format_size, pluralize
from shardtool.write.buffers import BUFFER_SIZE, MAX_GAP_BYTES
from shardtool.write.scatter import MIN_ROW_BYTES, ROW_OVERHEAD_SHARE, ScatterResult, ScatterTask, scatter_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import FieldSpans, SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.request.observer import Observer
    from shardtool.values import OnError


_BUFFERS_BYTES = 2 * BUFFER_SIZE + MAX_GAP_BYTES
_TARGET_RUN_BYTES = 2**20  # per write to the spool: less causes seeks, and more is not faster
_MIN_REGION_BYTES, _MAX_REGION_BYTES = 4 * 2**20, 2**30
_CHUNK_ROWS = 2**20


class SpoolLimits(NamedTuple):
    """The spool file of a shuffle, and the limits of the pass that fills the spool.

    Attributes:
        other_bytes: Bytes to keep free for the output, if the output is on the file system of the spool.
    """

    folder: Folder
    name: str
    memory: int
    workers: int
    other_bytes: int = 0


def scatter_payloads(
    plans: list[Plan], limits: SpoolLimits, pool: Pool, observer: Observer, *, on_error: OnError = "raise"
) -> list[Plan]:
    """Copy all planned payloads into a spool, in shard order. Return plans that read the spool.

    The caller must delete the spool. With `on_error="skip"`, packing skips the samples with damaged payloads.
    """
    first_pass = _ScatterPass(plans, limits, observer, stop=on_error == "raise")
    spans, regions = first_pass.run(pool), first_pass.regions if len(first_pass.regions) else None
    return [replace(plan, entries=replace(plan.entries, spans=spans), regions=regions) for plan in plans]


def planned_samples(plan: Plan) -> NDArray[np.int64]:
    """Return the positions of the planned samples in the sample table, in plan order."""
    return np.arange(len(plan)) if plan.order is None else plan.order


class SpanPositions:
    """Where the payloads of each sample are in the source shards.

    Attributes:
        start: int64[samples], the lowest payload offset, or `NOWHERE` if no payload is in a shard.
        sizes: int64[samples], total payload bytes.
    """

    NOWHERE = 2**62

    def __init__(self, entries: SampleTable) -> None:
        rows, spans = entries.rows, entries.known_spans
        with_fields = np.flatnonzero(entries.counts())
        self.file = spans.file
        self.start = np.full(len(entries), self.NOWHERE)
        self.sizes = np.zeros(len(entries), np.int64)
        if len(with_fields):
            first, spanned = entries.first[with_fields], rows.kind == SPAN
            self.start[with_fields] = np.minimum.reduceat(np.where(spanned, spans.offset, self.NOWHERE), first)
            self.sizes[with_fields] = np.add.reduceat(np.where(spanned, rows.size, 0), first)


def _assign_buckets(
    plans: list[Plan], sample_bytes: NDArray[np.int64], max_bucket_bytes: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    bucket, sizes, bucket_count = np.full(len(sample_bytes), -1, np.int32), [], 0
    for plan in plans:
        total = cumulative_sizes(sample_bytes[planned_samples(plan)])
        ends = _cut_buckets(total, plan.ends, max_bucket_bytes)
        numbers = np.arange(bucket_count, bucket_count + len(ends), dtype=np.int32)
        bucket[planned_samples(plan)] = np.repeat(numbers, np.diff(ends, prepend=0))
        sizes.append(np.diff(total[ends], prepend=0))
        bucket_count += len(ends)
    return bucket, np.concatenate(sizes)


def _assign_offsets(entries: SampleTable, ordered_rows: NDArray[np.int64]) -> NDArray[np.int64]:
    offset: NDArray[np.int64] = entries.known_spans.offset.copy()
    size, end_offset = entries.rows.size, 0
    for first in range(0, len(ordered_rows), _CHUNK_ROWS):
        chunk = ordered_rows[first : first + _CHUNK_ROWS]
        ends = np.cumsum(size[chunk]) + end_offset
        offset[chunk] = ends - size[chunk]
        end_offset = int(ends[-1])
    return offset


def _choose_region_bytes(size: int, share: int) -> int:
    target = max(_MIN_REGION_BYTES, min(isqrt(size * _TARGET_RUN_BYTES), _MAX_REGION_BYTES))
    return min(target, max(share - _BUFFERS_BYTES, share // 2) * (ROW_OVERHEAD_SHARE - 1) // ROW_OVERHEAD_SHARE)


def _cut_buckets(total: NDArray[np.int64], shard_ends: NDArray[np.int64], max_bucket_bytes: int) -> NDArray[np.int64]:
    ends, start = [np.zeros(0, np.int64)], 0
    for end in shard_ends.tolist():
        runs = ShardRuns(total[start : end + 1], ShardCapacity(planned=max_bucket_bytes))
        ends.append(start + runs.find_fewest_ends())
        start = end
    return np.concatenate(ends)


def _sort_by_file(entries: SampleTable, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    if not len(rows):
        return rows, []
    spans = entries.known_spans
    file, offset = np.repeat(spans.file, entries.counts())[rows], spans.offset[rows]
    later = (file[1:] > file[:-1]) | ((file[1:] == file[:-1]) & (offset[1:] >= offset[:-1]))
    if not later.all():
        order = np.lexsort((offset, file))
        rows, file = rows[order], file[order]
    starts = [0, *(np.flatnonzero(np.diff(file)) + 1).tolist()]
    return rows, [*zip(file[starts].tolist(), [*starts[1:], len(rows)], strict=True)]


class _ScatterPass:
    def __init__(self, plans: list[Plan], limits: SpoolLimits, observer: Observer, *, stop: bool) -> None:
        self._entries = entries = plans[0].entries
        self._spans, self._limits, self._observer, self._stop = entries.known_spans, limits, observer, stop
        sample_bytes = SpanPositions(entries).sizes
        size = sum(int(sample_bytes[planned_samples(plan)].sum()) for plan in plans)
        self._region_bytes = _choose_region_bytes(size, limits.memory // limits.workers)
        bucket, sizes = _assign_buckets(plans, sample_bytes, self._region_bytes)
        row_bucket = np.repeat(bucket, entries.counts())
        rows = np.flatnonzero((row_bucket >= 0) & (entries.rows.kind == SPAN))
        self._rows, self._file_ends = _sort_by_file(entries, rows)
        row_bucket = row_bucket[self._rows]
        if len(sizes) < 2**16:
            # sort 16-bit numbers, which is several times faster
            row_bucket = row_bucket.astype(np.uint16)
        self._offset = _assign_offsets(entries, self._rows[np.argsort(row_bucket, kind="stable")])
        ends = np.cumsum(sizes)
        self.regions = np.column_stack((ends - sizes, ends))[(sizes > 0) & (sizes <= self._region_bytes)]
        self._buckets, self._size = len(sizes), int(sizes.sum())
        self._task_rows: list[tuple[int, int]] = []
        self._reported: defaultdict[int, int] = defaultdict(int)

    def run(self, pool: Pool) -> FieldSpans:
        spool, failed = self._open_spool(), [np.zeros(0, np.int64)]
        for number, result in pool.map(scatter_rows, self._make_tasks(spool), self._advance):
            first, last = self._task_rows[number]
            rows = self._rows[first:last]
            self._advance(number, 0, int(self._entries.rows.size[rows].sum()) - self._reported[number])
            failed.append(self._find_failed_rows(rows, result))
        file = SpanFile(os.fsencode(spool), self._size, -1)
        return _make_spooled_spans(self._entries, file, np.concatenate(failed), self._offset)

    def _open_spool(self) -> str:
        temp, need = self._limits.folder, self._size + self._limits.other_bytes
        try:
            free = temp.free_bytes()
        except OutputFailed as error:
            raise OutputFailed(error.where, error.found, remedy=spool_advice()) from None
        if free < need:
            found = f"{format_size(free)} free, {format_size(need)} needed for the two passes of a shuffle"
            raise OutputFailed(temp.path or ".", found, remedy=spool_advice())
        spool = temp.spool(self._limits.name, self._size)
        where = f"{format_size(self._size)} to {pluralize(self._buckets, 'bucket')} in {temp.path or '.'}"
        self._observer.log(f"first pass of two: {where}")
        self._observer.phase("first pass", self._size)
        return spool

    def _advance(self, number: int, _samples: int, size: int) -> None:
        self._reported[number] += size
        self._observer.advance(0, size, 0)

    def _make_tasks(self, spool: str) -> Iterator[ScatterTask]:
        spans, size, first = self._spans, self._entries.rows.size, 0
        for file_index, end in self._file_ends:
            source = spans.files[file_index]
            is_packed = is_compressed(os.fsdecode(source.path))
            for stop in [end] if is_packed else self._cut_tasks(first, end):
                rows = self._rows[first:stop]
                self._task_rows.append((first, stop))
                offsets, targets = spans.offset[rows].tobytes(), self._offset[rows].tobytes()
                sizes, expected = size[rows].tobytes(), spans.expected[rows].tobytes()
                yield ScatterTask(
                    source, is_packed, spool, offsets, sizes, targets, expected, self._region_bytes, self._stop
                )
                first = stop

    def _cut_tasks(self, first: int, end: int) -> list[int]:
        total = cumulative_sizes(np.maximum(self._entries.rows.size[self._rows[first:end]], MIN_ROW_BYTES))
        return [first + int(cut) for cut in _cut_buckets(total, np.array([end - first]), self._region_bytes)]

    def _find_failed_rows(self, rows: NDArray[np.int64], result: ScatterResult) -> NDArray[np.int64]:
        entries, spans = self._entries, self._spans
        row = rows[result.wrong[0][0] if result.wrong else 0]
        sample = int(entries.owners(row))
        source = spans.files[int(spans.file[sample])]
        ends_run = self._stop or is_compressed(os.fsdecode(source.path))
        if result.wrong and ends_run:
            crc, name = result.wrong[0][1], entries.fields[int(entries.rows.code[row])]
            where = f"{entries.key(sample)}: at {int(spans.offset[row]):,}"
            found = f"{where}: field {name!r} has the CRC-32C {crc:08x}, not {int(spans.expected[row]):08x}"
            remedy = "This file was not copied. Run `shardtool verify` on the source dataset to list all damage."
            raise CorruptShard(to_text(source.path), found, remedy=remedy)
        if result.failed is not None:
            if not ends_run:
                return rows
            code, message = result.failed
            expected = "a file that does not change during the run" if code == "changed" else ""
            resume_text, skip_text = flag_text("resume"), option_text("on_error", "skip")
            remedy = f"Fix the file and run again with {resume_text}, or skip such samples with {skip_text}."
            raise SampleFailed(to_text(source.path), message, expected=expected, remedy=remedy)
        return rows[[index for index, _ in result.wrong]]


def _make_spooled_spans(
    entries: SampleTable, spool: SpanFile, failed: NDArray[np.int64], offset: NDArray[np.int64]
) -> FieldSpans:
    spans, samples = entries.known_spans, np.unique(entries.owners(failed))
    file = np.zeros(len(entries), np.uint32)
    used_files, file_index = np.unique(spans.file[samples], return_inverse=True)
    file[samples] = file_index + 1
    rows = entries.rows_of(samples)
    offset[rows] = spans.offset[rows]
    files = (spool, *(spans.files[index] for index in used_files.tolist()))
    return replace(spans, files=files, file=file, offset=offset)
