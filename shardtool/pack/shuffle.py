"""Read the samples for a shuffle that exceeds memory.

- `gather` reads each sample at its offset. It is slow in stores and on hard disks, and impossible in compressed files.
- `scatter` reads each source file once, and copies the payloads in shard order into a temporary file (the spool).
  Packing then reads the spool region by region. A region fits in memory, and contains consecutive samples of a shard.

Both methods give the same output.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from math import isqrt
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.dataset.shard_file import is_compressed
from shardtool.errors import CorruptShard, OutputFailed, SampleFailed, reporting_memory_errors
from shardtool.messages import flag_text, option_text
from shardtool.names import to_text
from shardtool.pack.outputs import Spool
from shardtool.pack.resume import sum_unwritten_sizes
from shardtool.plan.shard_bounds import ShardCapacity, ShardRuns, cumulative_sizes
from shardtool.shard_samples import SPAN, SpanFile
from shardtool.storage.paths import is_address
from shardtool.storage.staging import Folder, local_folder, spool_advice
from shardtool.units import format_size, format_time, parse_size, pluralize
from shardtool.write.scatter import MIN_ROW_BYTES, ROW_OVERHEAD_SHARE, ScatterResult, ScatterTask, scatter_rows
from shardtool.write.source_errors import SourceFailed
from shardtool.write.span_reader import MAX_OPEN_FILES, open_span_file
from shardtool.write.task import BUFFER_SIZE, MAX_GAP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import FieldSpans, SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.pack.run import Output, Planned, Run
    from shardtool.plan.plan import Plan
    from shardtool.request.observer import Observer
    from shardtool.values import OnError, ReadMethod


_BUFFERS_BYTES = 2 * BUFFER_SIZE + MAX_GAP_BYTES
_TARGET_RUN_BYTES = 2**20  # smaller writes cause seeks, larger writes are not faster
_MIN_REGION_BYTES, _MAX_REGION_BYTES = 4 * 2**20, 2**30
_CHUNK_ROWS = 2**20


class SpoolLimits(NamedTuple):
    """The spool file of a shuffle, and the limits of the pass that fills the spool.

    Attributes:
        other_bytes: Bytes to keep free on the spool's file system for output.
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
    spans = first_pass.run(pool)
    regions = first_pass.regions if len(first_pass.regions) else None
    return [replace(plan, entries=replace(plan.entries, spans=spans), regions=regions) for plan in plans]


def planned_samples(plan: Plan) -> NDArray[np.int64]:
    """Return the planned samples' positions in the sample table, in plan order."""
    return np.arange(len(plan)) if plan.order is None else plan.order


class SpanPositions:
    """The location of each sample's payloads in the source shards.

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
            first, spanned = entries.first_rows[with_fields], rows.kind == SPAN
            self.start[with_fields] = np.minimum.reduceat(np.where(spanned, spans.offset, self.NOWHERE), first)
            self.sizes[with_fields] = np.add.reduceat(np.where(spanned, rows.size, 0), first)


def _assign_buckets(
    plans: list[Plan], sample_bytes: NDArray[np.int64], max_bucket_bytes: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return each sample's bucket (-1 if not planned), and the bucket sizes."""
    sample_buckets, bucket_sizes, bucket_count = np.full(len(sample_bytes), -1, np.int32), [], 0
    for plan in plans:
        numbers = planned_samples(plan)
        offsets = cumulative_sizes(sample_bytes[numbers])
        ends = _cut_buckets(offsets, plan.ends, max_bucket_bytes)
        buckets = np.arange(bucket_count, bucket_count + len(ends), dtype=np.int32)
        sample_buckets[numbers] = np.repeat(buckets, np.diff(ends, prepend=0))
        bucket_sizes.append(np.diff(offsets[ends], prepend=0))
        bucket_count += len(ends)
    return sample_buckets, np.concatenate(bucket_sizes)


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


def _cut_buckets(offsets: NDArray[np.int64], shard_ends: NDArray[np.int64], max_bucket_bytes: int) -> NDArray[np.int64]:
    ends, start = [np.zeros(0, np.int64)], 0
    for end in shard_ends.tolist():
        runs = ShardRuns(offsets[start : end + 1], ShardCapacity(max_planned_bytes=max_bucket_bytes))
        ends.append(start + runs.find_fewest_ends())
        start = end
    return np.concatenate(ends)


def _sort_by_file(entries: SampleTable, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Sort rows by file and offset. Also return (file, end) for each file's rows."""
    if not len(rows):
        return rows, []
    spans = entries.known_spans
    file, offset = np.repeat(spans.file, entries.counts())[rows], spans.offset[rows]
    is_ascending = (file[1:] > file[:-1]) | ((file[1:] == file[:-1]) & (offset[1:] >= offset[:-1]))
    if not is_ascending.all():
        order = np.lexsort((offset, file))
        rows, file = rows[order], file[order]
    ends = [*(np.flatnonzero(np.diff(file)) + 1).tolist(), len(rows)]
    return rows, [(int(file[end - 1]), end) for end in ends]


class _ScatterPass:
    def __init__(self, plans: list[Plan], limits: SpoolLimits, observer: Observer, *, stop: bool) -> None:
        self._entries = entries = plans[0].entries
        self._spans, self._limits, self._observer, self._stop = entries.known_spans, limits, observer, stop
        sample_bytes = SpanPositions(entries).sizes
        size = sum(int(sample_bytes[planned_samples(plan)].sum()) for plan in plans)
        self._region_bytes = _choose_region_bytes(size, limits.memory // limits.workers)
        sample_buckets, sizes = _assign_buckets(plans, sample_bytes, self._region_bytes)
        row_bucket = np.repeat(sample_buckets, entries.counts())
        rows = np.flatnonzero((row_bucket >= 0) & (entries.rows.kind == SPAN))
        self._rows, self._file_ends = _sort_by_file(entries, rows)
        row_bucket = row_bucket[self._rows]
        if len(sizes) < 2**16:
            # NumPy sorts 16-bit numbers several times faster
            row_bucket = row_bucket.astype(np.uint16)
        self._offset = _assign_offsets(entries, self._rows[np.argsort(row_bucket, kind="stable")])
        ends = np.cumsum(sizes)
        self.regions = np.column_stack((ends - sizes, ends))[(sizes > 0) & (sizes <= self._region_bytes)]
        self._bucket_count, self._size = len(sizes), int(sizes.sum())
        self._task_rows: list[tuple[int, int]] = []
        self._reported: defaultdict[int, int] = defaultdict(int)

    def run(self, pool: Pool) -> FieldSpans:
        spool, failed = self._open_spool(), [np.zeros(0, np.int64)]
        for number, result in pool.map(scatter_rows, self._make_tasks(spool), self._advance):
            first, last = self._task_rows[number]
            rows = self._rows[first:last]
            self._advance(number, 0, int(self._entries.rows.size[rows].sum()) - self._reported[number])
            failed.append(self._check_result(rows, result))
        file = SpanFile(os.fsencode(spool), self._size, -1)
        return _make_spooled_spans(self._entries, file, np.concatenate(failed), self._offset)

    def _open_spool(self) -> str:
        temp, needed_bytes = self._limits.folder, self._size + self._limits.other_bytes
        try:
            free_bytes = temp.free_bytes()
        except OutputFailed as error:
            raise OutputFailed(error.where, error.found, remedy=spool_advice()) from None
        if free_bytes < needed_bytes:
            found = (
                f"{format_size(free_bytes)} free, {format_size(needed_bytes)} needed for the two passes of a shuffle"
            )
            raise OutputFailed(temp.path or ".", found, remedy=spool_advice())
        spool = temp.spool(self._limits.name, self._size)
        where = f"{format_size(self._size)} to {pluralize(self._bucket_count, 'bucket')} in {temp.path or '.'}"
        self._observer.log(f"first pass of two: {where}")
        self._observer.phase("first pass", self._size)
        return spool

    def _advance(self, number: int, _samples: int, size: int) -> None:
        self._reported[number] += size
        self._observer.advance(0, size, 0)

    def _make_tasks(self, spool: str) -> Iterator[ScatterTask]:
        spans, size, first = self._spans, self._entries.rows.size, 0
        for file_index, file_end in self._file_ends:
            source = spans.files[file_index]
            is_packed = is_compressed(os.fsdecode(source.path))
            for task_end in [file_end] if is_packed else self._cut_tasks(first, file_end):
                rows = self._rows[first:task_end]
                self._task_rows.append((first, task_end))
                offsets, targets = spans.offset[rows].tobytes(), self._offset[rows].tobytes()
                sizes, crcs = size[rows].tobytes(), spans.crc[rows].tobytes()
                yield ScatterTask(
                    source, is_packed, spool, offsets, sizes, targets, crcs, self._region_bytes, self._stop
                )
                first = task_end

    def _cut_tasks(self, first: int, end: int) -> list[int]:
        offsets = cumulative_sizes(np.maximum(self._entries.rows.size[self._rows[first:end]], MIN_ROW_BYTES))
        return [first + int(cut) for cut in _cut_buckets(offsets, np.array([end - first]), self._region_bytes)]

    def _check_result(self, rows: NDArray[np.int64], result: ScatterResult) -> NDArray[np.int64]:
        """Raise an error, or return the rows to skip."""
        entries, spans = self._entries, self._spans
        row = rows[result.wrong[0][0] if result.wrong else 0]
        sample = int(entries.samples_of(row))
        source = spans.files[int(spans.file[sample])]
        ends_run = self._stop or is_compressed(os.fsdecode(source.path))
        if result.wrong and ends_run:
            crc, name = result.wrong[0][1], entries.fields[int(entries.rows.code[row])]
            where = f"{entries.key(sample)}: at {int(spans.offset[row]):,}"
            found = f"{where}: field {name!r} has the CRC-32C {crc:08x}, not {int(spans.crc[row]):08x}"
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
    spans, samples = entries.known_spans, np.unique(entries.samples_of(failed))
    file = np.zeros(len(entries), np.uint32)
    used_files, file_index = np.unique(spans.file[samples], return_inverse=True)
    file[samples] = file_index + 1
    rows = entries.rows_of(samples)
    offset[rows] = spans.offset[rows]
    files = (spool, *(spans.files[index] for index in used_files.tolist()))
    return replace(spans, files=files, file=file, offset=offset)


MAX_PROBES = 64
_MIN_PROBES = 12
_MAX_PROBE_S = 1.0
_DROPPED_OUTLIERS = 8  # slowest reads to ignore, because other programs may have delayed them
_MAX_PROBE_BYTES = 2**20
_SEQUENCE_BYTES = 4 * 2**20
_READ_STEP_BYTES = 2**18
REMOTE_REQUEST_S, REMOTE_BYTE_S = 30e-3, 1 / 100e6


def get_spool(run: Run, outputs: Sequence[Output]) -> Spool | None:
    """Return the spool of a `reshard`, or None.

    A run with `--part` has no spool, because a spool would contain the samples of all parts.
    """
    if run.reshard_options is None or run.part is not None:
        return None
    temp, pattern, output_folder = run.reshard_options.temp_dir, outputs[0].pattern, outputs[0].destination.folder
    folder = output_folder.temporary if temp is None else local_folder(temp)
    dataset_path = (
        os.path.realpath(os.path.join(pattern.folder, pattern.base))
        if output_folder.has_staging
        else output_folder.full_path(pattern.base)
    )
    return Spool(folder, f"{pattern.base}-{blake2b(os.fsencode(dataset_path), digest_size=6).hexdigest()}.spool")


@reporting_memory_errors("arranging the payloads")
def arrange_payloads(planned: Planned, spool: Spool | None) -> Planned:
    """Copy the payloads into `spool` in shard order, if the read strategy is `scatter`."""
    run, outputs, compressed = planned.run, planned.outputs, planned.listed.listing.compressed
    options = run.reshard_options
    if options is None or spool is None or planned.listed.entries.known_spans.row_file is not None:
        return planned
    to_write = sum(sum_unwritten_sizes(planned.listed, output) for output in outputs)
    if not to_write and not compressed:
        return planned
    plans = [output.plan for output in outputs]
    memory, workers = parse_size(options.memory), run.pool.max_per_machine
    method = choose_read_strategy(plans, workers=workers, is_compressed=compressed, requested=options.method)
    if method.note:
        run.notes.observer.log(method.note)
    if method.name != "scatter":
        return planned
    other_bytes = to_write if spool.folder.shares_space(outputs[0].destination.folder.path) else 0
    limits = SpoolLimits(spool.folder, spool.name, memory, workers, other_bytes)
    plans = scatter_payloads(plans, limits, run.pool, run.notes.observer, on_error=run.options.on_error)
    arranged = [replace(output, plan=plan) for output, plan in zip(outputs, plans, strict=True)]
    return replace(planned, outputs=tuple(arranged))


class ReadStrategy(NamedTuple):
    """How to read the samples of a shuffle.

    Attributes:
        name: `order` if the samples are in output order, else `gather` or `scatter`.
    """

    name: Literal["order", "gather", "scatter"]
    note: str = ""


def choose_read_strategy(
    plans: list[Plan], *, workers: int, is_compressed: bool, requested: ReadMethod
) -> ReadStrategy:
    """Choose how to read the samples of `plans`.

    For local files, measure the time of some reads. For stores, assume typical times, because request times vary.
    """
    entries = plans[0].entries
    positions = SpanPositions(entries)
    size = sum(int(positions.sizes[planned_samples(plan)].sum()) for plan in plans)
    if is_compressed:
        note = f"two passes over {format_size(size)}: compressed shards can only be read in sequence"
        return ReadStrategy("scatter", note)
    if all(_is_in_order(plan, positions) for plan in plans):
        return ReadStrategy("order")
    if requested != "auto":
        return ReadStrategy(requested)
    return _choose_cheaper(plans, entries.known_spans.files, positions, size, workers)


def _is_in_order(plan: Plan, positions: SpanPositions) -> bool:
    numbers = planned_samples(plan)
    numbers = numbers[positions.start[numbers] < positions.NOWHERE]
    file, start = positions.file[numbers], positions.start[numbers]
    seeks = (file[1:] != file[:-1]) | (start[1:] < start[:-1])
    used_files = int(np.count_nonzero(np.bincount(file)))
    return int(np.count_nonzero(seeks)) < max(1, used_files)


def _choose_cheaper(
    plans: list[Plan], files: Sequence[SpanFile], positions: SpanPositions, size: int, workers: int
) -> ReadStrategy:
    samples = sum(map(len, plans))
    if samples <= MAX_PROBES or not size:
        return ReadStrategy("gather")
    scatter_bytes = min(size + samples * MAX_GAP_BYTES, sum(file.size for file in files))
    if is_address(files[0].path):
        reason = f"assuming {format_time(REMOTE_REQUEST_S)} for each of {samples:,} requests, one per sample"
        cost = ReadCost(REMOTE_REQUEST_S + size / samples * REMOTE_BYTE_S, REMOTE_BYTE_S)
        workers = 1
    else:
        rng = random.Random(0)  # noqa: S311 - seeded, so runs measure the same offsets
        orders = [order[positions.sizes[order] > 0] for order in map(planned_samples, plans)]
        chosen = [int(order[rng.randrange(len(order))]) for order in orders for _ in range(MAX_PROBES) if len(order)]
        rng.shuffle(chosen)
        spans = [(files[int(positions.file[number])], int(positions.start[number])) for number in chosen]
        try:
            cost = measure_read_cost(spans, size // samples, opening=len(files) > MAX_OPEN_FILES)
        except (OSError, SourceFailed):
            return ReadStrategy("gather")  # the workers will raise this error
        reason = f"a random read takes {format_time(cost.sample_s)} per sample"
    if is_gathering_cheaper(samples, size, scatter_bytes, workers, cost):
        return ReadStrategy("gather", f"reading samples by offset: {reason}")
    return ReadStrategy("scatter", f"shuffled in two passes over {format_size(size)}: {reason}")


def is_gathering_cheaper(samples: int, size: int, scatter_bytes: int, workers: int, cost: ReadCost) -> bool:
    """Return whether `gather` is faster than `scatter`.

    `size` is the total size of the payloads. `scatter` reads `scatter_bytes`, including the gaps between payloads.
    """
    return samples * cost.sample_s / workers + size * cost.byte_s <= (scatter_bytes + 3 * size) * cost.byte_s


class ReadCost(NamedTuple):
    """Seconds to read one sample at a random offset, and one byte in sequence."""

    sample_s: float
    byte_s: float


def measure_read_cost(spans: Sequence[tuple[SpanFile, int]], length: int, *, opening: bool) -> ReadCost:
    """Measure the time to read `length` bytes at a random offset, and to read one byte in sequence.

    If `opening` is true, random reads include opening the file.

    Raises:
        OSError: A file cannot be read.
        SourceFailed: A file has changed since it was planned.
    """
    read_bytes = min(length, _MAX_PROBE_BYTES)
    times: list[float] = []
    end = time.monotonic() + _MAX_PROBE_S
    for file, start in spans[:MAX_PROBES]:
        times.append(_time_read(file, start, read_bytes, opening=opening))
        if len(times) >= _MIN_PROBES and time.monotonic() > end:
            break
    fastest = sorted(times)[: max(1, len(times) - _DROPPED_OUTLIERS)]
    byte_s = _time_sequence(*spans[-1])
    return ReadCost(sum(fastest) / len(fastest) + (length - read_bytes) * byte_s, byte_s)


def _time_read(planned: SpanFile, offset: int, length: int, *, opening: bool) -> float:
    buffer = memoryview(bytearray(length))
    started = time.perf_counter()
    with closing(open_span_file(planned)) as source:
        source.expect_random_reads()
        if not opening:
            started = time.perf_counter()
        source.read_into(buffer, offset)
        return time.perf_counter() - started


def _time_sequence(planned: SpanFile, start: int) -> float:
    buffer = memoryview(bytearray(_READ_STEP_BYTES))
    first = max(0, min(start, planned.size - _SEQUENCE_BYTES))
    with closing(open_span_file(planned)) as source:
        if planned.size > 2 * _READ_STEP_BYTES:
            first += source.read_into(buffer, first)  # not measured, because it seeks
        started, read_bytes = time.perf_counter(), 0
        for offset in range(first, min(first + _SEQUENCE_BYTES, planned.size), _READ_STEP_BYTES):
            read_bytes += source.read_into(buffer, offset)
        return (time.perf_counter() - started) / max(1, read_bytes)
