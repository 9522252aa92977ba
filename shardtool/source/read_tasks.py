"""Divide payloads into tasks for workers, which import this file without NumPy and pyarrow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from shardtool.names import resolve_source_path
from shardtool.shard_samples import FILE, LINK, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable

    Rows = NDArray[np.int64]


FILES_PER_TASK = 1000


class FileReads(NamedTuple):
    """Files: their paths, whether each is a link, and how many are read at the same time."""

    paths: tuple[bytes, ...]
    links: bytes
    reads: int = 1


class SpanReads(NamedTuple):
    """Payloads of a shard or archive: int64 offsets (ascending), lengths and expected CRC-32C (-1: unknown)."""

    path: str
    offsets: bytes
    lengths: bytes
    crcs: bytes
    form: str


def payload_tasks(
    entries: SampleTable, rows: Rows, *, reads: int = 1, max_files: int = FILES_PER_TASK
) -> list[tuple[Rows, FileReads | SpanReads]]:
    """Return tasks of at most `max_files` files, `reads` at the same time, and each task's indices into `rows`."""
    import numpy as np

    kinds = entries.rows.kind[rows]
    indices = np.flatnonzero((kinds == FILE) | (kinds == LINK))
    chunks = [indices[start : start + max_files] for start in range(0, len(indices), max_files)]
    tasks: list[tuple[Rows, FileReads | SpanReads]] = []
    for chunk in chunks:
        paths = tuple(
            [entries.root + resolve_source_path(path, entries.folders) for path in entries.paths(rows[chunk])]
        )
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
            columns = (spans.offset, entries.rows.size, spans.expected)
            offsets, lengths, crcs = (column[rows[chosen]].astype(np.int64).tobytes() for column in columns)
            yield chosen, SpanReads(os.fsdecode(file.path), offsets, lengths, crcs, file.form)
