"""The exact size of every sample in a shard, before a byte is read: columns in, columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.format import tar
from shardtool.sample import to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.source.entries import Entries

TRAILER_SIZE = {"tar": len(tar.TRAILER)}


def sample_sizes(entries: Entries) -> NDArray[np.int64]:
    """Return int64[samples]: headers, payloads and padding of each sample as tar records."""
    rows = _row_sizes(entries)
    if not len(rows):
        return np.zeros(len(entries), np.int64)
    return np.add.reduceat(rows, entries.first[:-1])


def _row_sizes(entries: Entries) -> NDArray[np.int64]:
    endings = np.array([len(to_bytes(field)) + 1 for field in entries.fields], np.int64)
    names = np.repeat(entries.keys.lengths(), entries.counts())
    if len(endings):
        names += endings[entries.code]
    sizes = (entries.size + (tar.BLOCK - 1)) & -tar.BLOCK
    sizes += tar.BLOCK
    for row in np.flatnonzero((names > tar.NAME_LIMIT) | (entries.size > tar.SIZE_LIMIT)).tolist():
        sample = int(np.searchsorted(entries.first, row, "right")) - 1
        name = entries.keys[sample] + b"." + to_bytes(entries.fields[entries.code[row]])
        splits = tar.split_prefix(name) is not None
        sizes[row] += tar.header_size(len(name), int(entries.size[row]), splits=splits) - tar.BLOCK
    return sizes
