"""The exact size of every record in a shard, before a byte is read: columns in, columns out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.format import tar
from shardtool.sample import to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.columns import Names

TRAILER_SIZE = {"tar": len(tar.TRAILER)}


def header_sizes(
    keys: Names, first: NDArray[np.int64], fields: tuple[str, ...], code: NDArray[np.uint16], size: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return int64[rows]: the bytes before each payload, for fields that become tar members.

    Args:
        keys: One a sample.
        first: int64[samples + 1], where the rows of each sample start.
        fields: The names that `code` stands for.
        code: uint16[rows].
        size: int64[rows], payload bytes.
    """
    endings = [b"." + to_bytes(field) for field in fields]
    lengths = np.repeat(keys.lengths(), np.diff(first))
    lengths += np.array([len(ending) for ending in endings] or [0], np.int64)[code]
    headers = np.full(len(size), tar.BLOCK, np.int64)
    for row in np.flatnonzero((lengths > tar.NAME_LIMIT) | (size > tar.SIZE_LIMIT)).tolist():
        name = keys[int(np.searchsorted(first, row, "right")) - 1] + endings[int(code[row])]
        splits = tar.split_prefix(name) is not None
        headers[row] = tar.header_size(len(name), int(size[row]), splits=splits)
    return headers


def record_sizes(headers: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[rows]: headers, payload and padding of each record."""
    return headers + ((size + (tar.BLOCK - 1)) & -tar.BLOCK)
