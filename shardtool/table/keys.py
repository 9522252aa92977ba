"""Keys from a table: text in one buffer, checked as names, tested for repeats, and looked up."""

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


_LOOKUP_PARTS = 16  # of keys that are sought among others, one at a time in a hash table


_INVALID_NAME = r"\p{Cc}|(?:^|/)\.{0,2}(?:/|$)"  # a control character, or a part that is empty, `.` or `..`


_BAD_PARTS = (b"//", b"/./", b"/../")


_CONTROL_BYTES = bytes([*range(32), 127, 0xC2])  # and the first byte of those beyond ASCII


def is_key_type(kind: pa.DataType) -> bool:
    """Tell whether values of an Arrow type can be keys: text, whole numbers, and floats that happen to be whole."""
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_text_type(kind) or bool(numbers or (pa.types.is_decimal(kind) and kind.scale == 0))


def inexact_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a column of floats is not a whole number that a float can distinguish from its neighbours."""
    if not pa.types.is_floating(column.type):
        return np.zeros(0, np.int64)
    values = arrow.number_values(column)
    return np.flatnonzero(~((np.abs(values) < 2.0**53) & (values == np.floor(values))))


def iter_key_texts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the keys that the values of a column are."""
    import pyarrow.compute as pc

    for chunk in map(column.__getitem__, chunk_slices(len(column))):
        yield pc.cast(pc.cast(chunk, pa.int64()) if pa.types.is_floating(chunk.type) else chunk, pa.large_string())


def iter_row_numbers(rows: NDArray[np.int64]) -> Iterator[pa.Array]:
    """Yield keys that are the numbers of rows, counted from 0, with nine digits or more."""
    for some in chunk_slices(len(rows)):
        yield arrow.text_array([f"{row:09}" for row in rows[some].tolist()])


def gather_keys(chunks: Iterable[pa.Array]) -> tuple[PackedStrings, NDArray[np.int64]]:
    """Return keys in one buffer, and the places of those that are no sound names."""
    parts, bad, before = [], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        lengths = arrow.byte_lengths(chunk)
        parts.append(arrow.append_nuls(chunk))
        if int(lengths.max(initial=0)) > MAX_NAME_BYTES or _may_be_invalid(parts[-1], len(chunk)):
            bad.append(_invalid_positions(chunk, lengths) + before)
        before += len(chunk)
    places = np.concatenate(bad)
    return (PackedStrings.of([]) if len(places) else PackedStrings.parse(b"".join(parts))), places


def _may_be_invalid(data: bytes, count: int) -> bool:
    """Tell whether any of so many keys may be no sound name, each with a NUL after it."""
    if len(data) - len(data.translate(None, _CONTROL_BYTES)) != count:
        return True
    paths = b"/" + data.replace(b"\0", b"/")
    return any(part in paths for part in _BAD_PARTS)


def _invalid_positions(chunk: pa.Array, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    found = lengths > MAX_NAME_BYTES
    found[arrow.true_positions(pc.match_substring_regex(chunk, _INVALID_NAME))] = True
    return np.flatnonzero(found)


def may_repeat(keys: PackedStrings) -> bool:
    """Tell whether keys may occur more than once: their hashes do."""
    ordered = np.sort(hash_keys(keys))
    return bool(np.any(ordered[1:] == ordered[:-1]))


def find_repeated(keys: PackedStrings) -> dict[bytes, list[int]]:
    """Return the keys that occur more than once, with their places.

    By 64-bit hashes, sorted: a table of ten million keys takes gigabytes. Only keys that share a hash are compared.
    """
    found_hashes = hash_keys(keys)
    ordered = np.sort(found_hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return {}
    found: dict[bytes, list[int]] = {}
    for place in np.flatnonzero(np.isin(found_hashes, twice)).tolist():
        found.setdefault(keys[place], []).append(place)
    return {key: places for key, places in found.items() if len(places) > 1}


def find_positions(keys: PackedStrings, others: PackedStrings) -> NDArray[np.int64]:
    """Return the place of each key among others that are all different; -1 where it is not among them.

    One hash table of five million keys would take 480 MB; in parts it is as fast, and takes less than half of that.
    """
    import pyarrow.compute as pc

    found = np.full(len(keys), -1, np.int64)
    ours, theirs = (hash_keys(names) % np.uint64(_LOOKUP_PARTS) for names in (keys, others))
    sought, values = keys.array(), others.array()
    for part in range(_LOOKUP_PARTS):
        some, among = np.flatnonzero(ours == part), np.flatnonzero(theirs == part)
        place = pc.index_in(sought.take(arrow.number_array(some)), value_set=values.take(arrow.number_array(among)))
        known = arrow.true_positions(place.is_valid())
        found[some[known]] = among[arrow.number_values(place)[known]]
    return found


def hash_keys(keys: PackedStrings) -> NDArray[np.uint64]:
    """Return Python's hash of each key: the same in this process only."""
    found = np.empty(len(keys), np.int64)
    for first, names in keys.chunks():
        found[first : first + len(names)] = np.fromiter(map(hash, names), np.int64, len(names))
    return found.view(np.uint64)


def contains_hashes(sought: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which hashes are among others, which are sorted.

    They are sought in order: `np.isin` of five million takes 12 s, and this 2 s.
    """
    found = np.zeros(len(sought), bool)
    if len(ordered):
        order = np.argsort(sought)
        sought = sought[order]
        found[order] = ordered[np.minimum(np.searchsorted(ordered, sought), len(ordered) - 1)] == sought
    return found
