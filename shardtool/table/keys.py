"""Keys as a table gives them: text in one buffer, sound as names, each once, and found among others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.names import Names
from shardtool.table import arrays
from shardtool.values import NAME_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_CHUNK = 2**16  # rows at a time
_PARTS = 16  # of keys that are sought among others, one at a time in a hash table
_BAD = r"\p{Cc}|(?:^|/)\.{0,2}(?:/|$)"  # a control character, or a part that is empty, `.` or `..`
_BAD_PARTS = (b"//", b"/./", b"/../")
_CONTROLS = bytes([*range(32), 127, 0xC2])  # and the first byte of those beyond ASCII


def is_key(kind: pa.DataType) -> bool:
    """Tell whether values of an Arrow type can be keys: text, whole numbers, and floats that happen to be whole."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating)
    return any(test(kind) for test in tests) or bool(pa.types.is_decimal(kind) and kind.scale == 0)


def broken_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a column of floats is not a whole number that a float can distinguish from its neighbours."""
    if not pa.types.is_floating(column.type):
        return np.zeros(0, np.int64)
    values = arrow.numbers(column)
    return np.flatnonzero(~((np.abs(values) < 2.0**53) & (values == np.floor(values))))


def key_texts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the keys that the values of a column are."""
    import pyarrow.compute as pc

    for first in range(0, len(column), _CHUNK):
        chunk = column.slice(first, _CHUNK)
        yield pc.cast(pc.cast(chunk, pa.int64()) if pa.types.is_floating(chunk.type) else chunk, pa.large_string())


def row_numbers(rows: NDArray[np.int64]) -> Iterator[pa.Array]:
    """Yield keys that are the numbers of rows, counted from 0, with nine digits or more."""
    for first in range(0, len(rows), _CHUNK):
        yield arrays.texts([f"{row:09}" for row in rows[first : first + _CHUNK].tolist()])


def gather(chunks: Iterable[pa.Array]) -> tuple[Names, NDArray[np.int64]]:
    """Return keys in one buffer, and the places of those that are no sound names."""
    parts, bad, before = [], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        lengths = arrays.lengths(chunk)
        parts.append(np.insert(np.frombuffer(arrays.payload(chunk), np.uint8), np.cumsum(lengths), 0).tobytes())
        if int(lengths.max(initial=0)) > NAME_LIMIT or _may_be_unsound(parts[-1], len(chunk)):
            bad.append(_unsound(chunk, lengths) + before)
        before += len(chunk)
    places = np.concatenate(bad)
    return (Names.of([]) if len(places) else Names.parse(b"".join(parts))), places


def _may_be_unsound(data: bytes, count: int) -> bool:
    """Tell whether any of so many keys may be no sound name, each with a NUL after it."""
    if len(data) - len(data.translate(None, _CONTROLS)) != count:
        return True
    paths = b"/" + data.replace(b"\0", b"/")
    return any(part in paths for part in _BAD_PARTS)


def _unsound(chunk: pa.Array, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    found = lengths > NAME_LIMIT
    found[arrays.places(pc.match_substring_regex(chunk, _BAD))] = True
    return np.flatnonzero(found)


def may_repeat(keys: Names) -> bool:
    """Tell whether keys may occur more than once: their hashes do."""
    ordered = np.sort(hashes(keys))
    return bool(np.any(ordered[1:] == ordered[:-1]))


def repeated(keys: Names) -> dict[bytes, list[int]]:
    """Return the keys that occur more than once, with their places.

    By 64-bit hashes, sorted: a table of ten million keys takes gigabytes. Only keys that share a hash are compared.
    """
    found_hashes = hashes(keys)
    ordered = np.sort(found_hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return {}
    found: dict[bytes, list[int]] = {}
    for place in np.flatnonzero(np.isin(found_hashes, twice)).tolist():
        found.setdefault(keys[place], []).append(place)
    return {key: places for key, places in found.items() if len(places) > 1}


def places_among(keys: Names, others: Names) -> NDArray[np.int64]:
    """Return the place of each key among others that are all different; -1 where it is not among them.

    One hash table of five million keys would take 480 MB; in parts it is as fast, and takes less than half of that.
    """
    import pyarrow.compute as pc

    found = np.full(len(keys), -1, np.int64)
    ours, theirs = (hashes(names) % np.uint64(_PARTS) for names in (keys, others))
    for part in range(_PARTS):
        some, among = np.flatnonzero(ours == part), np.flatnonzero(theirs == part)
        place = pc.index_in(_arrow(keys, some), value_set=_arrow(others, among))
        known = arrays.places(place.is_valid())
        found[some[known]] = among[arrow.numbers(place)[known]]
    return found


def _arrow(keys: Names, which: NDArray[np.int64]) -> pa.Array:
    """Return some keys, each with its NUL, as an Arrow array."""
    parts = [None, pa.py_buffer(keys.starts), pa.py_buffer(keys.data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(keys), parts).take(number_array(which))


def hashes(keys: Names) -> NDArray[np.uint64]:
    """Return Python's hash of each key: the same in this process only."""
    found = np.empty(len(keys), np.int64)
    for first, names in keys.chunks():
        found[first : first + len(names)] = np.fromiter(map(hash, names), np.int64, len(names))
    return found.view(np.uint64)


def among(sought: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which hashes are among others, which are sorted.

    They are sought in order: `np.isin` of five million takes 12 s, and this 2 s.
    """
    found = np.zeros(len(sought), bool)
    if len(ordered):
        order = np.argsort(sought)
        sought = sought[order]
        found[order] = ordered[np.minimum(np.searchsorted(ordered, sought), len(ordered) - 1)] == sought
    return found
