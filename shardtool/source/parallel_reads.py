"""Choose how many files each worker reads at the same time: several if opening a file is slow."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.shard_samples import FILE, LINK
from shardtool.storage import files
from shardtool.units import format_time

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable


_MAX_PROBED_FILES, _MAX_PROBE_SECONDS = 12, 1.0


_MAX_PROBED_ROWS = 256  # rows examined to find these files


_PROBE_STRIDE = 2_654_435_761  # prime, so that all fields and folders are probed


_PROBE_BYTES = 4096  # the start of a file comes with opening it


_SLOW_OPEN_SECONDS = 0.5e-3  # a thread costs a tenth of this per file, and a local disk responds faster


_MAX_READS_PER_WORKER = 16


_MAX_TOTAL_READS = 64  # across all workers: more takes memory, and seldom helps


_REMOTE_READS = 32  # stores and web servers: nearly all time is waiting


def choose_parallel_reads(entries: SampleTable, tasks: int) -> tuple[int, str]:
    """Return how many files each worker reads at the same time, and why, if measured."""
    if entries.is_remote:
        return _REMOTE_READS, ""
    open_seconds = measure_open_seconds(entries)
    reads = parallel_read_count(open_seconds, tasks)
    why = f"opening a file takes {format_time(open_seconds)}: each worker reads {reads} files at the same time"
    return reads, why if reads > 1 else ""


def measure_open_seconds(entries: SampleTable) -> float:
    """Return the median seconds to open a file and read its start; 0 if there is no file or an error."""
    rows, buffer = entries.rows, memoryview(bytearray(_PROBE_BYTES))
    times: list[float] = []
    end = time.monotonic() + _MAX_PROBE_SECONDS
    for row in (index * _PROBE_STRIDE % len(rows.kind) for index in range(min(_MAX_PROBED_ROWS, len(rows.kind)))):
        if len(times) == _MAX_PROBED_FILES or time.monotonic() > end:
            break
        if (kind := int(rows.kind[row])) in (FILE, LINK):
            start = time.perf_counter()
            with suppress(OSError):
                files.read_file(
                    entries.file_path(row), buffer, files.READ_PLAIN if kind == FILE else files.READ_FOLLOWING
                )
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] if times else 0.0


def parallel_read_count(open_seconds: float, workers: int) -> int:
    """Return how many files each worker reads at the same time."""
    return 1 if open_seconds < _SLOW_OPEN_SECONDS else max(1, min(_MAX_READS_PER_WORKER, _MAX_TOTAL_READS // workers))
