"""Exact size of every record in a shard before a byte is read.

Each payload has a head before it and a tail after it in every format. The records of a sample are its heads,
payloads
and tails in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.format import tar_write, tfrecord_write
from shardtool.names import to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray


TRAILER_SIZE = {"tar": len(tar_write.TRAILER), "tfrecord": 0, "files": 0}


MAX_SAMPLE_BYTES = {"tar": 2**62, "tfrecord": tfrecord_write.MAX_RECORD_BYTES}


_CHUNK_ROWS = 2**18  # samples at a time: temporary columns stay small


STORES_NUMBERS = {
    "tar": False,
    "tfrecord": True,
    "files": False,
}  # whether a format has numbers; others store their text


class RecordColumns(NamedTuple):
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

    keys: PackedStrings
    first: NDArray[np.int64]
    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    stored: NDArray[np.int64]
    whole: NDArray[np.bool_] | None = None


def head_and_tail_sizes(shard_format: str, payloads: RecordColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return int64[rows], int64[rows]: the bytes before and after each payload."""
    return _tar_sizes(payloads) if shard_format == "tar" else _tfrecord_sizes(payloads)


def sample_sizes(shard_format: str, payloads: RecordColumns) -> NDArray[np.int64]:
    """Return int64[samples]: all records of each sample."""
    sizes = np.empty(len(payloads.keys), np.int64)
    for start in range(0, len(sizes), _CHUNK_ROWS):
        part = _slice_samples(payloads, start, min(start + _CHUNK_ROWS, len(sizes)))
        heads, tails = head_and_tail_sizes(shard_format, part)
        sizes[start : start + _CHUNK_ROWS] = np.add.reduceat(heads + part.stored + tails, part.first[:-1])
    return sizes


def _slice_samples(p: RecordColumns, start: int, stop: int) -> RecordColumns:
    """Return what samples `start` to `stop` hold."""
    rows = slice(int(p.first[start]), int(p.first[stop]))
    keys, first = (
        PackedStrings(p.keys.data, p.keys.starts[start : stop + 1]),
        p.first[start : stop + 1] - p.first[start],
    )
    whole = None if p.whole is None else p.whole[rows]
    return RecordColumns(keys, first, p.fields, p.code[rows], p.stored[rows], whole)


def _tar_sizes(p: RecordColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    endings = [b"." + to_bytes(field) for field in p.fields]
    lengths = np.repeat(p.keys.lengths(), np.diff(p.first))
    lengths += np.array([len(ending) for ending in endings] or [0], np.int64)[p.code]
    heads = np.full(len(p.stored), tar_write.TAR_BLOCK_BYTES, np.int64)
    for row in np.flatnonzero((lengths > tar_write.USTAR_NAME_BYTES) | (p.stored > tar_write.MAX_USTAR_SIZE)).tolist():
        name = p.keys[int(np.searchsorted(p.first, row, "right")) - 1] + endings[int(p.code[row])]
        splits = tar_write.split_prefix(name) is not None
        heads[row] = tar_write.header_size(len(name), int(p.stored[row]), splits=splits)
    return heads, -p.stored & (tar_write.TAR_BLOCK_BYTES - 1)


def _tfrecord_sizes(p: RecordColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    names = [to_bytes(field) for field in p.fields]
    lengths = np.array([len(name) for name in names] or [0], np.int64)[p.code]
    heads = _feature_sizes(lengths, p.stored, p.whole) - p.stored
    tails = np.zeros(len(heads), np.int64)
    keys = _feature_sizes(np.int64(len(tfrecord_write.KEY_FEATURE)), p.keys.lengths())
    starts, lasts = p.first[:-1], p.first[1:] - 1
    data = np.add.reduceat(heads + p.stored, starts) + keys
    heads[starts] += tfrecord_write.FRAME_HEAD_BYTES + 1 + _varint_sizes(data)
    tails[lasts] += tfrecord_write.FRAME_TAIL_BYTES
    # The feature of the key stands where its name belongs: before the first field that sorts after it.
    before = np.array([name < tfrecord_write.KEY_FEATURE for name in names] or [False])[p.code]
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
