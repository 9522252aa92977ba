"""Compute the exact size of every sample in a shard before reading any payload.

The head of a payload is the format's bytes before the payload, such as a tar header. The tail is the format's bytes
after the payload, such as padding.
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
_CHUNK_ROWS = 2**18

# whether each format stores numeric values as numbers, instead of text
STORES_NUMBERS = {"tar": False, "tfrecord": True, "files": False}


class RecordColumns(NamedTuple):
    """The input of `sample_sizes`. Each sample has one row per field, sorted by the bytes of the field names.

    Attributes:
        first_rows: int64[samples + 1], the first row of each sample, as in `SampleTable`.
        code: uint16[rows], the index in `fields` of each row's field.
        stored_sizes: int64[rows], size in bytes of each payload as stored in the shard.
        is_list: bool[rows], whether the payload is an encoded list of TFRecord values. None if there are no lists.
    """

    keys: PackedStrings
    first_rows: NDArray[np.int64]
    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    stored_sizes: NDArray[np.int64]
    is_list: NDArray[np.bool_] | None = None


def head_and_tail_sizes(shard_format: str, payloads: RecordColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the size in bytes of each payload's head and tail, both as int64[rows]."""
    return _tar_sizes(payloads) if shard_format == "tar" else _tfrecord_sizes(payloads)


def sample_sizes(shard_format: str, payloads: RecordColumns) -> NDArray[np.int64]:
    """Return the size in bytes of each sample in the shard, as int64[samples]."""
    sizes = np.empty(len(payloads.keys), np.int64)
    for start in range(0, len(sizes), _CHUNK_ROWS):
        part = _slice_samples(payloads, start, min(start + _CHUNK_ROWS, len(sizes)))
        heads, tails = head_and_tail_sizes(shard_format, part)
        sizes[start : start + _CHUNK_ROWS] = np.add.reduceat(heads + part.stored_sizes + tails, part.first_rows[:-1])
    return sizes


def _slice_samples(payloads: RecordColumns, start: int, stop: int) -> RecordColumns:
    rows = slice(int(payloads.first_rows[start]), int(payloads.first_rows[stop]))
    keys = PackedStrings(payloads.keys.data, payloads.keys.starts[start : stop + 1])
    first = payloads.first_rows[start : stop + 1] - payloads.first_rows[start]
    is_list = None if payloads.is_list is None else payloads.is_list[rows]
    return RecordColumns(keys, first, payloads.fields, payloads.code[rows], payloads.stored_sizes[rows], is_list)


def _tar_sizes(payloads: RecordColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    endings = [b"." + to_bytes(field) for field in payloads.fields]
    lengths = np.repeat(payloads.keys.lengths(), np.diff(payloads.first_rows))
    lengths += np.array([len(ending) for ending in endings] or [0], np.int64)[payloads.code]
    heads = np.full(len(payloads.stored_sizes), tar_write.TAR_BLOCK_BYTES, np.int64)
    is_special = (lengths > tar_write.USTAR_NAME_BYTES) | (payloads.stored_sizes > tar_write.MAX_USTAR_SIZE)
    for row in np.flatnonzero(is_special).tolist():
        sample = int(np.searchsorted(payloads.first_rows, row, "right")) - 1
        name = payloads.keys[sample] + endings[int(payloads.code[row])]
        splits = tar_write.split_prefix(name) is not None
        heads[row] = tar_write.header_size(len(name), int(payloads.stored_sizes[row]), splits=splits)
    return heads, -payloads.stored_sizes & (tar_write.TAR_BLOCK_BYTES - 1)


def _tfrecord_sizes(payloads: RecordColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    names = [to_bytes(field) for field in payloads.fields]
    lengths = np.array([len(name) for name in names] or [0], np.int64)[payloads.code]
    heads = _feature_sizes(lengths, payloads.stored_sizes, payloads.is_list) - payloads.stored_sizes
    tails = np.zeros(len(heads), np.int64)
    keys = _feature_sizes(np.int64(len(tfrecord_write.KEY_FEATURE)), payloads.keys.lengths())
    starts, lasts = payloads.first_rows[:-1], payloads.first_rows[1:] - 1
    data = np.add.reduceat(heads + payloads.stored_sizes, starts) + keys
    heads[starts] += tfrecord_write.FRAME_HEAD_BYTES + 1 + _varint_sizes(data)
    tails[lasts] += tfrecord_write.FRAME_TAIL_BYTES
    # Features are sorted by name, so `__key__` is before the first field whose name is greater.
    sorts_before_key = np.array([name < tfrecord_write.KEY_FEATURE for name in names] or [False])[payloads.code]
    key_rows = starts + np.add.reduceat(sorts_before_key, starts, dtype=np.int64)
    inside = key_rows <= lasts
    heads[key_rows[inside]] += keys[inside]
    tails[lasts[~inside]] += keys[~inside]
    return heads, tails


def _feature_sizes(
    name_lengths: NDArray[np.int64] | np.int64, sizes: NDArray[np.int64], is_list: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    # `sizes` are sizes of encoded lists where `is_list` is true, else of single values.
    total = sizes + 1 + _varint_sizes(sizes)
    if is_list is not None:
        total[is_list] = sizes[is_list]
    total += 1 + _varint_sizes(total)
    total += 1 + _varint_sizes(total)
    total += 1 + _varint_sizes(np.asarray(name_lengths)) + name_lengths
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
