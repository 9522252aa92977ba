"""Choose how many files each worker reads at the same time: several where opening a file is slow."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.shard_samples import FILE, LINK
from shardtool.storage import files
from shardtool.units import format_time

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable


_MAX_PROBED_FILES, _MAX_PROBE_SECONDS = 12, 1.0  # files, and seconds for all of them


_MAX_PROBED_ROWS = 256  # rows, to find these


_PROBE_STRIDE = 2_654_435_761  # between them, around the end: a prime, so that they are of all fields and folders


_PROBE_BYTES = 4096  # bytes of each: a file's first come with it


_SLOW_OPEN_SECONDS = 0.5e-3  # a thread costs a tenth of that a file, and a disk of this machine answers before


_MAX_READS_PER_WORKER = 16  # files that one worker reads at the same time


_MAX_TOTAL_READS = 64  # that all workers read: more is of no use to most servers, and takes memory


_REMOTE_READS = 32  # of a store or server, where nearly all of the time is waiting


def choose_parallel_reads(entries: SampleTable, tasks: int) -> tuple[int, str]:
    """Return how many files each of so many tasks is to read at the same time; and why, where they were tried."""
    if entries.is_remote:
        return _REMOTE_READS, ""
    open_seconds = measure_open_seconds(entries)
    reads = parallel_read_count(open_seconds, tasks)
    why = f"opening a file takes {format_time(open_seconds)}: each worker reads {reads} at the same time"
    return reads, why if reads > 1 else ""


def measure_open_seconds(entries: SampleTable) -> float:
    """Return the seconds that it takes to open a file and read its start: the median of a few; 0 where none is read.

    What is wrong with a file is found when it is packed.
    """
    rows, into = entries.rows, memoryview(bytearray(_PROBE_BYTES))
    times: list[float] = []
    end = time.monotonic() + _MAX_PROBE_SECONDS
    for row in (at * _PROBE_STRIDE % len(rows.kind) for at in range(min(_MAX_PROBED_ROWS, len(rows.kind)))):
        if len(times) == _MAX_PROBED_FILES or time.monotonic() > end:
            break
        if (kind := int(rows.kind[row])) in (FILE, LINK):
            begun = time.perf_counter()
            with suppress(OSError):
                files.read_file(
                    entries.file_path(row), into, files.READ_PLAIN if kind == FILE else files.READ_FOLLOWING
                )
            times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2] if times else 0.0


def parallel_read_count(open_seconds: float, workers: int) -> int:
    """Return how many files each of `workers` is to read at the same time, if opening one takes `file_s` seconds."""
    return 1 if open_seconds < _SLOW_OPEN_SECONDS else max(1, min(_MAX_READS_PER_WORKER, _MAX_TOTAL_READS // workers))
