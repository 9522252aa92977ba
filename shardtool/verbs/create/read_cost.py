"""Measure the cost of reading: one sample at its offset, and one byte in sequence. Both differ from disk to disk."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from shardtool.write.span_reader import open_span_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.shard_samples import SpanFile


MAX_PROBES = 64  # places read at


_MIN_PROBES = 12


_MAX_PROBE_S = 1.0  # at most, but for the first few


_DROPPED_OUTLIERS = 8  # the slowest are left out: a pause of the machine is none of the disk's


_MAX_PROBE_BYTES = 2**20  # bytes at each place: from there on, there is little between them and a sequence


_SEQUENCE_BYTES = 4 * 2**20


_READ_STEP_BYTES = 2**18


REMOTE_REQUEST_S, REMOTE_BYTE_S = 30e-3, 1 / 100e6  # of a store, as a rule: until an answer begins; and a byte of it


class ReadCost(NamedTuple):
    """The cost of reading: seconds for a sample at its place, and for a byte in sequence."""

    sample_s: float
    byte_s: float


def measure_read_cost(spans: Sequence[tuple[SpanFile, int]], length: int, *, opening: bool) -> ReadCost:
    """Read at some places, and some megabytes in sequence, and see how long that takes.

    Args:
        spans: Files, and where in them what is to be read starts: in a random order, `PROBES` at least.
        length: Bytes to be read at each place.
        opening: Whether a file is opened anew for each.

    Raises:
        OSError: A file cannot be read.
        SourceFailed: It is not the one that the plan saw.
    """
    taken = min(length, _MAX_PROBE_BYTES)
    times: list[float] = []
    end = time.monotonic() + _MAX_PROBE_S
    for file, start in spans[:MAX_PROBES]:
        times.append(_time_read(file, start, taken, opening=opening))
        if len(times) >= _MIN_PROBES and time.monotonic() > end:
            break
    kept = sorted(times)[: max(1, len(times) - _DROPPED_OUTLIERS)]
    byte_s = _time_sequence(*spans[-1])
    return ReadCost(sum(kept) / len(kept) + (length - taken) * byte_s, byte_s)


def _time_read(planned: SpanFile, offset: int, length: int, *, opening: bool) -> float:
    """Return the seconds that it takes to read at a place, and, if that counts, to open the file."""
    into = memoryview(bytearray(length))
    begun = time.perf_counter()
    with closing(open_span_file(planned)) as source:
        source.expect_random_reads()
        if not opening:
            begun = time.perf_counter()
        source.read_into(into, offset)
        return time.perf_counter() - begun


def _time_sequence(planned: SpanFile, start: int) -> float:
    """Return the seconds that a byte takes when many are read in sequence."""
    into = memoryview(bytearray(_READ_STEP_BYTES))
    first = max(0, min(start, planned.size - _SEQUENCE_BYTES))
    with closing(open_span_file(planned)) as source:
        if planned.size > 2 * _READ_STEP_BYTES:
            first += source.read_into(into, first)  # the way there does not count
        begun, done = time.perf_counter(), 0
        for at in range(first, min(first + _SEQUENCE_BYTES, planned.size), _READ_STEP_BYTES):
            done += source.read_into(into, at)
        return (time.perf_counter() - begun) / max(1, done)
