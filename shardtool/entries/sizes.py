"""The exact size of every record in a shard, before a byte is read: columns in, columns out.

Each payload has bytes before it (its head) and after it (its tail), whatever the format: the records
of a sample are its heads, payloads and tails in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries.entries import Names
from shardtool.format import tar, tfrecord
from shardtool.values import to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

TRAILER_SIZE = {"tar": len(tar.TRAILER), "tfrecord": 0, "files": 0}
SAMPLE_LIMIT = {"tar": 2**62, "tfrecord": tfrecord.RECORD_LIMIT}
_CHUNK = 2**18  # samples at a time: temporary columns stay small
NUMBERS = {"tar": False, "tfrecord": True, "files": False}  # whether a format has numbers; others store their text


class Payloads(NamedTuple):
    """The content of a shard as columns; the fields of each sample in the order of the bytes of their names.

    Attributes:
        keys: One per sample.
        first: int64[samples + 1], where the rows of each sample start.
        fields: The names that `code` stands for.
        code: uint16[rows].
        stored: int64[rows], bytes that a payload takes in the shard.
        whole: bool[rows]: whether a payload is all that a list of a TFRecord holds, so that no tag and length stand
            between that list's and it; None: none is.
    """

    keys: Names
    first: NDArray[np.int64]
    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    stored: NDArray[np.int64]
    whole: NDArray[np.bool_] | None = None


def heads_and_tails(shard_format: str, payloads: Payloads) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return int64[rows], int64[rows]: the bytes before and after each payload."""
    return _tar(payloads) if shard_format == "tar" else _tfrecord(payloads)


def sample_sizes(shard_format: str, payloads: Payloads) -> NDArray[np.int64]:
    """Return int64[samples]: all records of each sample."""
    sizes = np.empty(len(payloads.keys), np.int64)
    for start in range(0, len(sizes), _CHUNK):
        part = _part(payloads, start, min(start + _CHUNK, len(sizes)))
        heads, tails = heads_and_tails(shard_format, part)
        sizes[start : start + _CHUNK] = np.add.reduceat(heads + part.stored + tails, part.first[:-1])
    return sizes


def _part(p: Payloads, start: int, stop: int) -> Payloads:
    """Return what samples `start` to `stop` hold."""
    rows = slice(int(p.first[start]), int(p.first[stop]))
    keys, first = Names(p.keys.data, p.keys.starts[start : stop + 1]), p.first[start : stop + 1] - p.first[start]
    whole = None if p.whole is None else p.whole[rows]
    return Payloads(keys, first, p.fields, p.code[rows], p.stored[rows], whole)


def _tar(p: Payloads) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    endings = [b"." + to_bytes(field) for field in p.fields]
    lengths = np.repeat(p.keys.lengths(), np.diff(p.first))
    lengths += np.array([len(ending) for ending in endings] or [0], np.int64)[p.code]
    heads = np.full(len(p.stored), tar.BLOCK, np.int64)
    for row in np.flatnonzero((lengths > tar.NAME_LIMIT) | (p.stored > tar.SIZE_LIMIT)).tolist():
        name = p.keys[int(np.searchsorted(p.first, row, "right")) - 1] + endings[int(p.code[row])]
        splits = tar.split_prefix(name) is not None
        heads[row] = tar.header_size(len(name), int(p.stored[row]), splits=splits)
    return heads, -p.stored & (tar.BLOCK - 1)


def _tfrecord(p: Payloads) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    names = [to_bytes(field) for field in p.fields]
    lengths = np.array([len(name) for name in names] or [0], np.int64)[p.code]
    heads = _feature_sizes(lengths, p.stored, p.whole) - p.stored
    tails = np.zeros(len(heads), np.int64)
    keys = _feature_sizes(np.int64(len(tfrecord.KEY_FEATURE)), p.keys.lengths())
    starts, lasts = p.first[:-1], p.first[1:] - 1
    data = np.add.reduceat(heads + p.stored, starts) + keys
    heads[starts] += tfrecord.FRAME_HEAD + 1 + _varint_sizes(data)
    tails[lasts] += tfrecord.FRAME_TAIL
    # The feature of the key stands where its name belongs: before the first field that sorts after it.
    before = np.array([name < tfrecord.KEY_FEATURE for name in names] or [False])[p.code]
    place = starts + np.add.reduceat(before, starts, dtype=np.int64)
    inside = place <= lasts
    heads[place[inside]] += keys[inside]
    tails[lasts[~inside]] += keys[~inside]
    return heads, tails


def _feature_sizes(
    name_lengths: NDArray[np.int64] | np.int64, sizes: NDArray[np.int64], whole: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return what a feature takes: a map entry of a name, and a list of one value of `sizes` bytes, or just these."""
    total = sizes + 1 + _varint_sizes(sizes)  # the list
    if whole is not None:
        total[whole] = sizes[whole]
    total += 1 + _varint_sizes(total)  # the feature that holds it
    total += 1 + _varint_sizes(total)  # as the value of a map entry
    total += 1 + _varint_sizes(np.asarray(name_lengths)) + name_lengths  # whose key is the name
    total += 1 + _varint_sizes(total)
    return total


def _varint_sizes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    sizes = np.ones(np.shape(numbers), np.int64)
    for bits in range(7, 63, 7):
        over = numbers >= 1 << bits
        if not np.any(over):
            break
        sizes += over
    return sizes
