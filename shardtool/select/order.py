"""Which samples of a dataset are taken, in which order, and the table that queries see: pure, without I/O.

Where the samples of several sources share keys, see `duplicates`.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, printable
from shardtool.table import arrays
from shardtool.table.columns import is_text, no_such
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.names import Names

_HASHES = 2**64
_SHARE = re.compile(r"\s*(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,3})?\s*(%?)\s*", re.ASCII | re.IGNORECASE)


def sample_by_key(keys: Names, share: float | str) -> NDArray[np.int64]:
    """Return a random share of the samples, by the hash of each one's key alone.

    So a sample stays in or out when others come or go, and those of a smaller share are among those of a larger one.
    The hash is BLAKE2b (RFC 7693) of 8 bytes, little-endian: a sample is taken where it is below share * 2^64.

    Args:
        keys: One per sample.
        share: More than 0, at most 1: a number, `0.01` or `1%`.

    Returns:
        int64, the samples in order.

    Raises:
        InvalidRequest: `share` is no such number.
    """
    last = np.uint64(math.ceil(_share(share) * _HASHES) - 1)
    return np.flatnonzero(keys.hashes() <= last)


def _share(share: float | str) -> Fraction:
    """Return exactly what was written; of a float, what Python shows."""
    match = _SHARE.fullmatch(str(share))
    found = Fraction(match[1] + (match[2] or "")) / (100 if match[3] else 1) if match else Fraction(0)
    if not 0 < found <= 1:
        raise InvalidRequest(
            option("sample"), f"{str(share)!r}", expected="a share above 0 and at most 1, such as 0.01 or 1%"
        )
    return found


def sort_order(values: pa.ChunkedArray, name: str, *, descending: bool = False) -> NDArray[np.int64]:
    """Return the places of values in order; equal ones keep theirs, and nulls and NaN come last, either way.

    Args:
        values: Numbers, text (in the order of its bytes), truths or times.
        name: What the column is called.
        descending: The greatest first.

    Raises:
        InvalidRequest: Values of another type.
    """
    import pyarrow.compute as pc

    kind = arrays.plain(values.slice(0, 0)).type
    if pa.types.is_null(kind):
        return np.arange(len(values))
    if not _is_ordered(kind):
        raise InvalidRequest(
            option("sort_by"), f"column {name!r} holds {values.type}", expected="numbers, text, truths or times"
        )
    values = arrays.plain(values)
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.nulls(1, kind)[0], values)
    places = pc.sort_indices(values, sort_keys=[("", "descending" if descending else "ascending")])
    return arrow.numbers(places).astype(np.int64)


def _is_ordered(kind: pa.DataType) -> bool:
    types = pa.types
    numbers = types.is_integer, types.is_floating, types.is_decimal, types.is_boolean
    times = types.is_date, types.is_time, types.is_timestamp, types.is_duration
    return is_text(kind) or any(test(kind) for test in (*numbers, *times))


def table_of(entries: Entries, shard: NDArray[np.int32], shards: tuple[str, ...]) -> pa.Table:
    """Return what can be asked of samples: their metadata and, where it has no such column, facts of our own.

    These are `key`, `shard` (its name), `size` (bytes of all payloads) and `fields` (how many). About 30 bytes a
    sample and its key, besides the metadata.

    Args:
        entries: The samples.
        shard: Which of `shards` each sample lies in.
        shards: The names of the shards.
    """
    counts = entries.counts()
    made: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: _texts(entries.keys),
        "shard": lambda: pa.DictionaryArray.from_arrays(number_array(shard), arrays.texts([*map(printable, shards)])),
        "size": lambda: number_array(_sums(entries.rows.size, entries.first[:-1], counts)),
        "fields": lambda: number_array(counts),
    }
    table = entries.metadata
    own = {name: make() for name, make in made.items() if table is None or name not in table.column_names}
    if table is None:
        return pa.Table.from_arrays([*own.values()], names=[*own])
    for name, column in own.items():
        table = table.append_column(name, column)
    return table


def _texts(names: Names) -> pa.LargeStringArray:
    """Return names as an Arrow array: their buffer, without the NULs."""
    data = names.span(0, len(names)).replace(b"\0", b"")
    offsets = names.starts - names.starts[0] - np.arange(len(names) + 1)
    return pa.Array.from_buffers(pa.large_string(), len(names), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _sums(values: NDArray[np.int64], first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of each sample's values, 0 for a sample without any."""
    found = np.zeros(len(counts), np.int64)
    some = counts > 0  # reduceat gives an empty run its next value
    if some.any():
        found[some] = np.add.reduceat(values, first[some])
    return found


def column_of(table: pa.Table, name: str, option: str) -> pa.ChunkedArray:
    """Return a column of `table_of`.

    Raises:
        InvalidRequest: There is none of that name, or several.
    """
    at: Sequence[int] = table.schema.get_all_field_indices(name)
    if not at:
        raise no_such("column", option, name, table.column_names)
    if len(at) > 1:
        raise InvalidRequest(option, f"{len(at)} columns {name!r}", expected="one")
    return table.column(at[0])
