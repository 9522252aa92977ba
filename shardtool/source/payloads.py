"""Payloads of a source's files and shards that workers read again: what each worker is to read, as tasks.

It imports nothing heavy, for the workers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.values import LINK, placed, to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries

    Rows = NDArray[np.int64]

FILES_A_TASK = 1000


@dataclass(frozen=True, slots=True)
class Files:
    """Files to read: their paths, whether each is read through a link, and how many are read at the same time."""

    paths: tuple[bytes, ...]
    links: bytes
    reads: int = 1


@dataclass(frozen=True, slots=True)
class Spans:
    """Payloads of a shard or archive to read: int64 offsets, ascending, and lengths; `form` is that of `SpanFile`."""

    path: str
    offsets: bytes
    lengths: bytes
    form: str


def file_tasks(
    entries: Entries, rows: Rows, places: Rows, *, reads: int = 1, most: int = FILES_A_TASK
) -> Iterator[tuple[Rows, Files]]:
    """Yield some of the places in `rows` of files at a time, `most` of them, and what to read for them."""
    for at in range(0, len(places), most):
        chunk = places[at : at + most]
        paths = tuple([entries.root + placed(path, entries.folders) for path in _paths(entries, rows[chunk])])
        yield chunk, Files(paths, bytes(entries.rows.kind[rows[chunk]] == LINK), reads)


def _paths(entries: Entries, rows: Rows) -> list[bytes]:
    if entries.rows.paths is not None:
        return entries.rows.paths.gather(rows)[:-1].split(b"\0")
    endings = [b"." + to_bytes(name) for name in entries.fields]
    keys = entries.keys.gather(entries.owners(rows))[:-1].split(b"\0")
    return [key + endings[code] for key, code in zip(keys, entries.rows.code[rows].tolist(), strict=True)]


def span_tasks(entries: Entries, rows: Rows, places: Rows) -> Iterator[tuple[Rows, Spans]]:
    """Yield, for each shard or archive, the places of its payloads in `rows`, in their order, and what to read."""
    import numpy as np

    lie = entries.known_spans
    files = lie.file[entries.owners(rows[places])].astype(np.int64)
    order = np.lexsort((lie.offset[rows[places]], files))
    bounds = np.searchsorted(files[order], np.arange(len(lie.files) + 1)).tolist()
    for number, file in enumerate(lie.files):
        chosen = places[order[bounds[number] : bounds[number + 1]]]
        if len(chosen):
            offsets, lengths = (column[rows[chosen]].astype(np.int64) for column in (lie.offset, entries.rows.size))
            yield chosen, Spans(os.fsdecode(file.path), offsets.tobytes(), lengths.tobytes(), file.form)
