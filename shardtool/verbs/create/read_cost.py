"""Measure the cost of reading: one sample at its offset, and one byte in sequence. Both depend on the disk."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from shardtool.write.span_reader import open_span_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.shard_samples import SpanFile


MAX_PROBES = 64
_MIN_PROBES = 12
_MAX_PROBE_S = 1.0
_DROPPED_OUTLIERS = 8  # the slowest reads measure pauses of the machine
_MAX_PROBE_BYTES = 2**20
_SEQUENCE_BYTES = 4 * 2**20
_READ_STEP_BYTES = 2**18
REMOTE_REQUEST_S, REMOTE_BYTE_S = 30e-3, 1 / 100e6  # typical for object stores


class ReadCost(NamedTuple):
    """Seconds per sample at a random offset, and seconds per byte in sequence."""

    sample_s: float
    byte_s: float


def measure_read_cost(spans: Sequence[tuple[SpanFile, int]], length: int, *, opening: bool) -> ReadCost:
    """Measure reads of `length` bytes at random offsets, and in sequence.

    With `opening`, each read opens a file.

    Raises:
        OSError: A file cannot be read.
        SourceFailed: A file changed after it was planned.
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
