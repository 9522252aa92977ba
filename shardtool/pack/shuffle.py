"""Choose how to read the samples for a shuffle that exceeds memory.

- `gather` reads each sample at its offset. This is slow in stores and on hard disks, and impossible in compressed
  files.
- `scatter` reads each source file once, and copies the payloads in shard order into a temporary file (the spool).
  Packing then reads the spool region by region.

Both methods give the same output.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.errors import reporting_memory_errors
from shardtool.pack.outputs import Spool
from shardtool.pack.resume import list_unwritten_sizes
from shardtool.pack.scatter_pass import SpanPositions, SpoolLimits, planned_samples, scatter_payloads
from shardtool.storage.paths import is_address
from shardtool.storage.staging import local_folder
from shardtool.units import format_size, format_time, parse_size
from shardtool.write.buffers import MAX_GAP_BYTES
from shardtool.write.source_errors import SourceFailed
from shardtool.write.span_reader import MAX_OPEN_FILES, open_span_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pack.run import Output, Planned, Run
    from shardtool.plan.plan import Plan
    from shardtool.shard_samples import SpanFile
    from shardtool.values import ReadMethod


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

    A run with `--part` has no spool, because the spool would contain the samples of all parts.
    """
    if run.shuffle is None or run.part is not None:
        return None
    temp, pattern, output_folder = run.shuffle.temp_dir, outputs[0].pattern, outputs[0].destination.folder
    folder = output_folder.temporary if temp is None else local_folder(temp)
    dataset_path = (
        os.path.realpath(os.path.join(pattern.folder, pattern.base))
        if output_folder.has_staging
        else output_folder.full_path(pattern.base)
    )
    return Spool(folder, f"{pattern.base}-{blake2b(os.fsencode(dataset_path), digest_size=6).hexdigest()}.spool")


@reporting_memory_errors("arranging the payloads")
def arrange_payloads(planned: Planned, spool: Spool | None) -> Planned:
    """Copy the payloads into `spool` in shard order, if this is faster than reading each sample at its offset."""
    run, outputs, compressed = planned.run, planned.outputs, planned.listed.listing.compressed
    if run.shuffle is None or spool is None or planned.listed.entries.known_spans.row_file is not None:
        return planned
    to_write = sum(sum(list_unwritten_sizes(planned.listed, output)) for output in outputs)
    if not to_write and not compressed:
        return planned
    plans = [output.plan for output in outputs]
    memory, workers = parse_size(run.shuffle.memory), run.pool.max_per_machine
    method = choose_read_strategy(plans, workers=workers, is_compressed=compressed, requested=run.shuffle.method)
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
        name: `order` if the samples are already in output order, else `gather` or `scatter`.
    """

    name: Literal["order", "gather", "scatter"]
    note: str = ""


def choose_read_strategy(
    plans: list[Plan], *, workers: int, is_compressed: bool, requested: ReadMethod
) -> ReadStrategy:
    """Choose how to read the samples of `plans`.

    For local files, some reads are timed. For stores, typical times are assumed, because request times vary too much.
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
    breaks = (file[1:] != file[:-1]) | (start[1:] < start[:-1])
    return int(np.count_nonzero(breaks)) < max(1, int(np.count_nonzero(np.bincount(file))))


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
        rng = random.Random(0)  # noqa: S311 - seeded, so that runs measure the same offsets
        orders = [order[positions.sizes[order] > 0] for order in map(planned_samples, plans)]
        chosen = [int(order[rng.randrange(len(order))]) for order in orders for _ in range(MAX_PROBES) if len(order)]
        rng.shuffle(chosen)
        spans = [(files[int(positions.file[number])], int(positions.start[number])) for number in chosen]
        try:
            cost = measure_read_cost(spans, size // samples, opening=len(files) > MAX_OPEN_FILES)
        except (OSError, SourceFailed):
            return ReadStrategy("gather")  # any method will do, because the workers will raise this error
        reason = f"a random read takes {format_time(cost.sample_s)} per sample"
    if is_gathering_cheaper(samples, size, scatter_bytes, workers, cost):
        return ReadStrategy("gather", f"reading samples by offset: {reason}")
    return ReadStrategy("scatter", f"shuffled in two passes over {format_size(size)}: {reason}")


def is_gathering_cheaper(samples: int, size: int, scatter_bytes: int, workers: int, cost: ReadCost) -> bool:
    """Return whether `gather` is faster than `scatter`. `scatter` reads `scatter_bytes`, including unused gaps."""
    return samples * cost.sample_s / workers + size * cost.byte_s <= (scatter_bytes + 3 * size) * cost.byte_s


class ReadCost(NamedTuple):
    """Seconds to read one sample at a random offset, and seconds to read one byte in sequence."""

    sample_s: float
    byte_s: float


def measure_read_cost(spans: Sequence[tuple[SpanFile, int]], length: int, *, opening: bool) -> ReadCost:
    """Measure how long it takes to read `length` bytes at random offsets, and to read in sequence.

    If `opening` is true, a random read includes opening the file.

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
            first += source.read_into(buffer, first)
        started, read_bytes = time.perf_counter(), 0
        for offset in range(first, min(first + _SEQUENCE_BYTES, planned.size), _READ_STEP_BYTES):
            read_bytes += source.read_into(buffer, offset)
        return (time.perf_counter() - started) / max(1, read_bytes)
