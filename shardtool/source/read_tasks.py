"""Divide the payloads of a source into tasks that workers read.

Imports neither NumPy nor pyarrow at module level, because workers import this file.
"""

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
    """Files to read: their paths, whether each is read through a link, and how many are read at the same time."""

    paths: tuple[bytes, ...]
    links: bytes
    reads: int = 1


class SpanReads(NamedTuple):
    """Payloads of a shard or archive to read.

    Attributes:
        path: Where it is.
        offsets: int64, ascending.
        lengths: int64.
        crcs: int64, the CRC-32C that they must have, -1: unknown.
        form: As `SpanFile` has it.
    """

    path: str
    offsets: bytes
    lengths: bytes
    crcs: bytes
    form: str


def payload_tasks(
    entries: SampleTable, rows: Rows, *, reads: int = 1, most: int = FILES_PER_TASK
) -> list[tuple[Rows, FileReads | SpanReads]]:
    """Return what to read for rows that are in files, shards or archives, and the places in `rows` of each task's.

    Args:
        entries: The samples.
        rows: The rows; what others hold is read otherwise.
        reads: How many files are read at the same time.
        most: How many files a task has.
    """
    import numpy as np

    kinds = entries.rows.kind[rows]
    places = np.flatnonzero((kinds == FILE) | (kinds == LINK))
    chunks = [places[at : at + most] for at in range(0, len(places), most)]
    tasks: list[tuple[Rows, FileReads | SpanReads]] = []
    for chunk in chunks:
        paths = tuple(
            [entries.root + resolve_source_path(path, entries.folders) for path in entries.paths(rows[chunk])]
        )
        tasks.append((chunk, FileReads(paths, bytes(kinds[chunk] == LINK), reads)))
    places = np.flatnonzero(kinds == SPAN)
    return [*tasks, *(_span_tasks(entries, rows, places) if len(places) else ())]


def _span_tasks(entries: SampleTable, rows: Rows, places: Rows) -> Iterator[tuple[Rows, SpanReads]]:
    """Yield, for each shard or archive, the places of its payloads in `rows`, in their order, and what to read."""
    import numpy as np

    lie = entries.known_spans
    files = entries.file_numbers(rows[places]).astype(np.int64)
    order = np.lexsort((lie.offset[rows[places]], files))
    bounds = np.searchsorted(files[order], np.arange(len(lie.files) + 1)).tolist()
    for number, file in enumerate(lie.files):
        chosen = places[order[bounds[number] : bounds[number + 1]]]
        if len(chosen):
            columns = (lie.offset, entries.rows.size, lie.expected)
            offsets, lengths, crcs = (column[rows[chosen]].astype(np.int64).tobytes() for column in columns)
            yield chosen, SpanReads(os.fsdecode(file.path), offsets, lengths, crcs, file.form)
