"""Divide the payloads to read into tasks for workers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardtool.names import resolve_source_path
from shardtool.shard_samples import FILE, LINK, SPAN
from shardtool.storage import files
from shardtool.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable

    Rows = NDArray[np.int64]


FILES_PER_TASK = 1000


class FileReads(NamedTuple):
    """Files to read, `reads` of them in parallel. `links` has one byte per path, which is 1 for a link."""

    paths: tuple[bytes, ...]
    links: bytes
    reads: int = 1


class SpanReads(NamedTuple):
    """Payloads to read from `path`: int64 offsets (ascending), lengths and CRC-32C (-1 if unknown)."""

    path: str
    offsets: bytes
    lengths: bytes
    crcs: bytes
    form: str


def payload_tasks(
    entries: SampleTable, rows: Rows, *, reads: int = 1, max_files: int = FILES_PER_TASK
) -> list[tuple[Rows, FileReads | SpanReads]]:
    """Return tasks that read the payloads of `rows`. Each task is paired with the positions of its payloads in `rows`.

    A task contains at most `max_files` FILE and LINK rows, or all SPAN rows of one shard or archive.
    """
    import numpy as np

    kinds = entries.rows.kind[rows]
    indices = np.flatnonzero((kinds == FILE) | (kinds == LINK))
    chunks = [indices[start : start + max_files] for start in range(0, len(indices), max_files)]
    tasks: list[tuple[Rows, FileReads | SpanReads]] = []
    for chunk in chunks:
        relative = [resolve_source_path(path, entries.folders) for path in entries.paths(rows[chunk])]
        paths = tuple([entries.root + path for path in relative])
        tasks.append((chunk, FileReads(paths, bytes(kinds[chunk] == LINK), reads)))
    indices = np.flatnonzero(kinds == SPAN)
    return [*tasks, *(_span_tasks(entries, rows, indices) if len(indices) else ())]


def _span_tasks(entries: SampleTable, rows: Rows, indices: Rows) -> Iterator[tuple[Rows, SpanReads]]:
    import numpy as np

    spans = entries.known_spans
    files = entries.file_numbers(rows[indices]).astype(np.int64)
    order = np.lexsort((spans.offset[rows[indices]], files))
    bounds = np.searchsorted(files[order], np.arange(len(spans.files) + 1)).tolist()
    for number, file in enumerate(spans.files):
        chosen = indices[order[bounds[number] : bounds[number + 1]]]
        if len(chosen):
            columns = (spans.offset, entries.rows.size, spans.crc)
            offsets, lengths, crcs = (column[rows[chosen]].astype(np.int64).tobytes() for column in columns)
            yield chosen, SpanReads(os.fsdecode(file.path), offsets, lengths, crcs, file.form)


_MAX_PROBED_FILES, _MAX_PROBE_SECONDS = 12, 1.0
_MAX_PROBED_ROWS = 256
_PROBE_STRIDE = 2_654_435_761  # this prime spreads the probed files over fields and folders
_PROBE_BYTES = 4096
_SLOW_OPEN_SECONDS = 0.5e-3  # ten times the cost of starting a thread
_MAX_READS_PER_WORKER = 16
_MAX_TOTAL_READS = 64
_REMOTE_READS = 32


def choose_parallel_reads(entries: SampleTable, tasks: int) -> tuple[int, str]:
    """Return the number of parallel reads per worker, and a message if opening files is slow."""
    if entries.is_remote:
        return _REMOTE_READS, ""
    open_seconds = measure_open_seconds(entries)
    reads = parallel_read_count(open_seconds, tasks)
    why = f"opening a file takes {format_time(open_seconds)}: each worker reads {reads} files at the same time"
    return reads, why if reads > 1 else ""


def measure_open_seconds(entries: SampleTable) -> float:
    """Return the median seconds to open a file and read its start, or 0 if there are no files."""
    rows, buffer = entries.rows, memoryview(bytearray(_PROBE_BYTES))
    times: list[float] = []
    end = time.monotonic() + _MAX_PROBE_SECONDS
    for row in (index * _PROBE_STRIDE % len(rows.kind) for index in range(min(_MAX_PROBED_ROWS, len(rows.kind)))):
        if len(times) == _MAX_PROBED_FILES or time.monotonic() > end:
            break
        if (kind := int(rows.kind[row])) in (FILE, LINK):
            start = time.perf_counter()
            flags = files.READ_PLAIN if kind == FILE else files.READ_FOLLOWING
            with suppress(OSError):
                files.read_file(entries.file_path(row), buffer, flags)
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] if times else 0.0


def parallel_read_count(open_seconds: float, workers: int) -> int:
    """Return the number of parallel reads per worker."""
    return 1 if open_seconds < _SLOW_OPEN_SECONDS else max(1, min(_MAX_READS_PER_WORKER, _MAX_TOTAL_READS // workers))
