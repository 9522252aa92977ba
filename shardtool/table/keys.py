"""Convert columns to keys, check keys, and look up keys among other keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.strings import PackedStrings
from shardtool.names import MAX_NAME_BYTES
from shardtool.table.columns import is_text_type
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray


_LOOKUP_PARTS = 16
_INVALID_NAME = r"\p{Cc}|(?:^|/)\.{0,2}(?:/|$)"  # matches a control character, or an empty, `.` or `..` component
_BAD_PARTS = (b"//", b"/./", b"/../")
_CONTROL_BYTES = bytes([*range(32), 127, 0xC2])


def is_key_type(kind: pa.DataType) -> bool:
    """Return whether a column of this type can contain keys. For floats, also call `inexact_positions`."""
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_text_type(kind) or bool(numbers or (pa.types.is_decimal(kind) and kind.scale == 0))


def inexact_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the positions of floats that are not whole numbers below 2^53."""
    if not pa.types.is_floating(column.type):
        return np.zeros(0, np.int64)
    values = arrow.number_values(column)
    return np.flatnonzero(~((np.abs(values) < 2.0**53) & (values == np.floor(values))))


def iter_key_texts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield chunks of a column, converted to strings."""
    import pyarrow.compute as pc

    for chunk in map(column.__getitem__, chunk_slices(len(column))):
        yield pc.cast(pc.cast(chunk, pa.int64()) if pa.types.is_floating(chunk.type) else chunk, pa.large_string())


def iter_row_numbers(rows: NDArray[np.int64]) -> Iterator[pa.Array]:
    """Yield row numbers, counted from 0, as keys with nine digits."""
    for chunk in chunk_slices(len(rows)):
        yield arrow.text_array([f"{row:09}" for row in rows[chunk].tolist()])


def gather_keys(chunks: Iterable[pa.Array]) -> tuple[PackedStrings, NDArray[np.int64]]:
    """Concatenate chunks of keys. Return the keys and the positions of invalid keys.

    If any key is invalid, return no keys.
    """
    parts, bad_chunks, before = [], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        lengths = arrow.byte_lengths(chunk)
        parts.append(arrow.append_nuls(chunk))
        if int(lengths.max(initial=0)) > MAX_NAME_BYTES or _may_be_invalid(parts[-1], len(chunk)):
            bad_chunks.append(_invalid_positions(chunk, lengths) + before)
        before += len(chunk)
    bad_positions = np.concatenate(bad_chunks)
    return (PackedStrings.of([]) if len(bad_positions) else PackedStrings.parse(b"".join(parts))), bad_positions


def _may_be_invalid(data: bytes, count: int) -> bool:
    if len(data) - len(data.translate(None, _CONTROL_BYTES)) != count:
        return True
    paths = b"/" + data.replace(b"\0", b"/")
    return any(part in paths for part in _BAD_PARTS)


def _invalid_positions(chunk: pa.Array, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    is_invalid = lengths > MAX_NAME_BYTES
    is_invalid[arrow.true_positions(pc.match_substring_regex(chunk, _INVALID_NAME))] = True
    return np.flatnonzero(is_invalid)


def may_repeat(keys: PackedStrings) -> bool:
    """Return whether keys may repeat, because two have the same hash."""
    sorted_hashes = np.sort(hash_keys(keys))
    return bool(np.any(sorted_hashes[1:] == sorted_hashes[:-1]))


def find_repeated(keys: PackedStrings) -> dict[bytes, list[int]]:
    """Return the positions of each key that occurs more than once."""
    # Compare hashes first, because a dict of all keys would take too much memory.
    hashes = hash_keys(keys)
    sorted_hashes = np.sort(hashes)
    repeated_hashes = sorted_hashes[1:][sorted_hashes[1:] == sorted_hashes[:-1]]
    if not len(repeated_hashes):
        return {}
    positions_by_key: dict[bytes, list[int]] = {}
    for position in np.flatnonzero(np.isin(hashes, repeated_hashes)).tolist():
        positions_by_key.setdefault(keys[position], []).append(position)
    return {key: positions for key, positions in positions_by_key.items() if len(positions) > 1}


def find_positions(keys: PackedStrings, others: PackedStrings) -> NDArray[np.int64]:
    """Look up each key in `others`, and return its position or -1. The keys in `others` must be unique."""
    # Group keys by hash and look up one group at a time, to halve the memory of the lookup table.
    import pyarrow.compute as pc

    positions = np.full(len(keys), -1, np.int64)
    key_parts, other_parts = (hash_keys(names) % np.uint64(_LOOKUP_PARTS) for names in (keys, others))
    key_array, other_array = keys.array(), others.array()
    for part in range(_LOOKUP_PARTS):
        key_indexes, other_indexes = np.flatnonzero(key_parts == part), np.flatnonzero(other_parts == part)
        values = other_array.take(arrow.number_array(other_indexes))
        matches = pc.index_in(key_array.take(arrow.number_array(key_indexes)), value_set=values)
        matched = arrow.true_positions(matches.is_valid())
        positions[key_indexes[matched]] = other_indexes[arrow.number_values(matches)[matched]]
    return positions


def hash_keys(keys: PackedStrings) -> NDArray[np.uint64]:
    """Return Python's hash of each key. The hashes differ between processes."""
    hashes = np.empty(len(keys), np.int64)
    for first, names in keys.chunks():
        hashes[first : first + len(names)] = np.fromiter(map(hash, names), np.int64, len(names))
    return hashes.view(np.uint64)


def contains_hashes(hashes: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each hash whether the sorted array `ordered` contains the hash. This is faster than `np.isin`."""
    is_contained = np.zeros(len(hashes), bool)
    if len(ordered):
        order = np.argsort(hashes)
        hashes = hashes[order]
        is_contained[order] = ordered[np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)] == hashes
    return is_contained
