"""The first of two passes of a shuffle: copy the payloads into a spool.

The parent assigns each payload an offset in the spool, and workers copy the payloads. The spool is divided into
regions that fit in memory. Each region holds the payloads of neighbouring samples of a shard. See
`write/scatter.py`
for the workers.
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
from shardtool.messages import option_text
from shardtool.names import to_text
from shardtool.plan.shard_bounds import ShardLimits, ShardRuns, cumulative_sizes
from shardtool.shard_samples import SPAN, SpanFile
from shardtool.storage.spool import spool_advice
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
    from shardtool.storage.staging import Folder
    from shardtool.values import OnError


_BUFFERS_BYTES = 2 * BUFFER_SIZE + MAX_GAP_BYTES  # what a worker needs of its share besides payloads


_TARGET_RUN_BYTES = 2**20  # bytes that a write should have on average: less would seek, more gains nothing


_MIN_REGION_BYTES, _MAX_REGION_BYTES = 4 * 2**20, 2**30


_CHUNK_ROWS = 2**20  # rows at a time: temporary columns stay small


class SpoolLimits(NamedTuple):
    """What the first pass may take.

    Attributes:
        folder: Where the spool is written.
        name: What it is called.
        memory: Bytes that all workers together may use, now and when they pack, besides what they use anyway.
        workers: How many there are.
        besides: Bytes that will be written where the spool lies, before it is removed.
    """

    folder: Folder
    name: str
    memory: int
    workers: int
    besides: int = 0


def scatter_payloads(
    plans: list[Plan], room: SpoolLimits, pool: Pool, observer: Observer, *, on_error: OnError = "stop"
) -> list[Plan]:
    """First pass: copy all planned payloads into a spool, in shard order; return the plans with offsets into it.

    No sample is in two plans. The caller removes the spool, whatever becomes of this.

    Args:
        plans: Plans of the same samples.
        room: What it may take.
        pool: The workers.
        observer: Gets the progress.
        on_error: Whether a payload that is not what its index says ends the run; otherwise its sample stays where it
            is, so that packing finds that again, and leaves it out. A damaged compressed shard always ends the run.

    Raises:
        CorruptShard: A payload is not what its index says, or a compressed shard is damaged.
        SampleFailed: A source file cannot be read, or is not the one that was listed.
        OutputFailed: There is no space for the spool, or it cannot be written.
    """
    first_pass = _ScatterPass(plans, room, observer, stop=on_error == "stop")
    spans, regions = first_pass.run(pool), first_pass.regions if len(first_pass.regions) else None
    return [replace(plan, entries=replace(plan.entries, spans=spans), regions=regions) for plan in plans]


def planned_samples(plan: Plan) -> NDArray[np.int64]:
    """Return the samples of a plan, in its order."""
    return np.arange(len(plan)) if plan.order is None else plan.order


class SpanPositions:
    """The places of each sample's SPAN rows.

    Attributes:
        file: Which of the files.
        start: int64[samples]: where the first of them starts; `NOWHERE` for samples that have none.
        sizes: int64[samples]: what they hold together.
    """

    NOWHERE = 2**62

    def __init__(self, entries: SampleTable) -> None:
        rows, spans = entries.rows, entries.known_spans
        some = np.flatnonzero(entries.counts())  # a sample may have no field
        self.file = spans.file
        self.start = np.full(len(entries), self.NOWHERE)
        self.sizes = np.zeros(len(entries), np.int64)
        if len(some):
            first, spanned = entries.first[some], rows.kind == SPAN
            self.start[some] = np.minimum.reduceat(np.where(spanned, spans.offset, self.NOWHERE), first)
            self.sizes[some] = np.add.reduceat(np.where(spanned, rows.size, 0), first)


def _assign_buckets(
    plans: list[Plan], held: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return int32[samples], the bucket of each (-1: it is in no plan), and int64[buckets], their bytes.

    Args:
        plans: Who wants samples.
        held: int64[samples]: bytes that go into the spool.
        room: What a bucket may hold, if it is not a single sample.
    """
    bucket, sizes, count = np.full(len(held), -1, np.int32), [], 0
    for plan in plans:
        total = cumulative_sizes(held[planned_samples(plan)])
        ends = _cut_buckets(total, plan.ends, room)
        numbers = np.arange(count, count + len(ends), dtype=np.int32)
        bucket[planned_samples(plan)] = np.repeat(numbers, np.diff(ends, prepend=0))
        sizes.append(np.diff(total[ends], prepend=0))
        count += len(ends)
    return bucket, np.concatenate(sizes)


def _assign_offsets(entries: SampleTable, placed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[all rows]: where they start if `placed` lie end to end, in this order."""
    offset: NDArray[np.int64] = entries.known_spans.offset.copy()
    size, at = entries.rows.size, 0
    for first in range(0, len(placed), _CHUNK_ROWS):
        some = placed[first : first + _CHUNK_ROWS]
        ends = np.cumsum(size[some]) + at
        offset[some] = ends - size[some]
        at = int(ends[-1])
    return offset


def _choose_region_bytes(size: int, share: int) -> int:
    """Return how many bytes of payloads a worker holds at a time: all that it may, or enough for writes of a megabyte.

    The first pass writes a run to every region each time that its memory is full: so with M bytes of memory, regions
    of M bytes and D bytes of data, a run has M * M / D.
    """
    enough = max(_MIN_REGION_BYTES, min(isqrt(size * _TARGET_RUN_BYTES), _MAX_REGION_BYTES))
    return min(enough, max(share - _BUFFERS_BYTES, share // 2) * (ROW_OVERHEAD_SHARE - 1) // ROW_OVERHEAD_SHARE)


def _cut_buckets(total: NDArray[np.int64], shard_ends: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """Return the places after each bucket: as much of a shard as `room` holds, or one sample."""
    ends, at = [np.zeros(0, np.int64)], 0
    for end in shard_ends.tolist():
        ends.append(at + ShardRuns(total[at : end + 1], ShardLimits(planned=room)).fill())
        at = end
    return np.concatenate(ends)


def _sort_by_file(entries: SampleTable, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Return rows in the order in which they lie in their files, and of each file, where its rows end."""
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
    """The first pass: where each payload goes in the spool, and how it gets there.

    Args:
        plans: Who wants them.
        room: What it may take.
        observer: Gets the progress.
        stop: Whether a payload that is not what its index says ends the run.

    Attributes:
        regions: int64[regions, 2]: where parts of the spool that are read whole start and end.
    """

    def __init__(self, plans: list[Plan], room: SpoolLimits, observer: Observer, *, stop: bool) -> None:
        self._entries = entries = plans[0].entries
        self._spans, self._place, self._observer, self._stop = entries.known_spans, room, observer, stop
        held = SpanPositions(entries).sizes
        self._room = _choose_region_bytes(
            sum(int(held[planned_samples(plan)].sum()) for plan in plans), room.memory // room.workers
        )
        bucket, sizes = _assign_buckets(plans, held, self._room)
        of_row = np.repeat(bucket, entries.counts())
        # Those that go into the spool, in the order in which they lie in their files; and where those of each file end.
        self._rows, self._files = _sort_by_file(entries, np.flatnonzero((of_row >= 0) & (entries.rows.kind == SPAN)))
        of_row = of_row[self._rows]
        if len(sizes) < 2**16:
            of_row = of_row.astype(np.uint16)  # is sorted several times faster
        self._offset = _assign_offsets(entries, self._rows[np.argsort(of_row, kind="stable")])  # of all rows
        ends = np.cumsum(sizes)
        self.regions = np.column_stack((ends - sizes, ends))[(sizes > 0) & (sizes <= self._room)]
        self._buckets, self._size = len(sizes), int(sizes.sum())
        self._tasks: list[tuple[int, int]] = []  # of each, its first of `_read_rows`, and the one after its last
        self._told: defaultdict[int, int] = defaultdict(int)

    def run(self, pool: Pool) -> FieldSpans:
        """Have workers copy all payloads; return where they lie then: in the spool, but for those that could not be."""
        spool, bad = self._open_spool(), [np.zeros(0, np.int64)]
        for number, result in pool.map(scatter_rows, self._make_tasks(spool), self._progress):
            first, last = self._tasks[number]
            rows = self._rows[first:last]
            self._progress(number, 0, int(self._entries.rows.size[rows].sum()) - self._told[number])
            bad.append(self._bad(rows, result))
        file = SpanFile(os.fsencode(spool), self._size, -1)
        return _make_spooled_spans(self._entries, file, np.concatenate(bad), self._offset)

    def _open_spool(self) -> str:
        """Return the spool, if there is space for it and for what is written later."""
        temp, need = self._place.folder, self._size + self._place.besides
        try:
            free = temp.free_bytes()
        except OutputFailed as error:
            raise OutputFailed(error.where, error.found, remedy=spool_advice()) from None
        if free < need:
            found = f"{format_size(free)} free, {format_size(need)} needed for the two passes of a shuffle"
            raise OutputFailed(temp.path or ".", found, remedy=spool_advice())
        spool = temp.spool(self._place.name, self._size)
        where = f"{format_size(self._size)} to {pluralize(self._buckets, 'bucket')} in {temp.path or '.'}"
        self._observer.log(f"first pass of two: {where}")
        self._observer.phase("first pass", self._size)
        return spool

    def _progress(self, number: int, _samples: int, size: int) -> None:
        self._told[number] += size
        self._observer.advance(0, size, 0)

    def _make_tasks(self, spool: str) -> Iterator[ScatterTask]:
        spans, size, first = self._spans, self._entries.rows.size, 0
        for at, end in self._files:
            source = spans.files[at]
            packed = is_compressed(os.fsdecode(source.path))
            for last in [end] if packed else self._parts(first, end):
                rows = self._rows[first:last]
                self._tasks.append((first, last))
                offsets, targets = spans.offset[rows].tobytes(), self._offset[rows].tobytes()
                sizes, expected = size[rows].tobytes(), spans.expected[rows].tobytes()
                yield ScatterTask(source, packed, spool, offsets, sizes, targets, expected, self._room, self._stop)
                first = last

    def _parts(self, first: int, end: int) -> list[int]:
        """Return where to cut what is wanted of one file, so that memory holds each part, or it is one payload."""
        total = cumulative_sizes(np.maximum(self._entries.rows.size[self._rows[first:end]], MIN_ROW_BYTES))
        return [first + int(cut) for cut in _cut_buckets(total, np.array([end - first]), self._room)]

    def _bad(self, rows: NDArray[np.int64], result: ScatterResult) -> NDArray[np.int64]:
        """Return those of a task's rows that were not copied.

        Raises:
            CorruptShard: There are such, and they end the run.
            SampleFailed: The file cannot be read, and that ends the run.
        """
        entries, spans = self._entries, self._spans
        at = rows[result.wrong[0][0] if result.wrong else 0]
        sample = int(entries.owners(at))
        source = spans.files[int(spans.file[sample])]
        ends_run = self._stop or is_compressed(os.fsdecode(source.path))
        if result.wrong and ends_run:
            crc, name = result.wrong[0][1], entries.fields[int(entries.rows.code[at])]
            place = f"{entries.key(sample)}: at {int(spans.offset[at]):,}"
            found = f"{place}: field {name!r} has the CRC-32C {crc:08x}, not {int(spans.expected[at]):08x}"
            remedy = "Nothing of it was copied. `shardtool verify` shows what else is wrong with that dataset."
            raise CorruptShard(to_text(source.path), found, remedy=remedy)
        if result.failed is not None:
            if not ends_run:
                return rows
            code, message = result.failed
            expected = "a file that stays as it was when the run began" if code == "changed" else ""
            again, skips = option_text("if_exists", "resume"), option_text("on_error", "skip")
            remedy = f"Mend it and run again with {again}, or leave such samples out with {skips}."
            raise SampleFailed(to_text(source.path), message, expected=expected, remedy=remedy)
        return rows[[row for row, _ in result.wrong]]


def _make_spooled_spans(
    entries: SampleTable, spool: SpanFile, bad: NDArray[np.int64], offset: NDArray[np.int64]
) -> FieldSpans:
    """Return where payloads lie after the first pass: in the spool, but for samples that stay in their shards.

    Args:
        entries: The samples.
        spool: The spool, which becomes file 0.
        bad: Rows that were not copied: their samples stay.
        offset: int64[all rows]: where they start in the spool.
    """
    spans, samples = entries.known_spans, np.unique(entries.owners(bad))
    file = np.zeros(len(entries), np.uint32)
    used, place = np.unique(spans.file[samples], return_inverse=True)
    file[samples] = place + 1
    rows = entries.rows_of(samples)
    offset[rows] = spans.offset[rows]
    return replace(spans, files=(spool, *(spans.files[at] for at in used.tolist())), file=file, offset=offset)
