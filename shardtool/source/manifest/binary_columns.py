"""Bytes that a table holds: measured for the plan, and written end to end for the workers, in two passes over it.

They are never in memory at once. Those of a row lie together, in the order of the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries.arrow import number_array
from shardtool.table import arrays
from shardtool.table.columns import is_wrapped_bytes
from shardtool.table.files import readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.source.base import Writable
    from shardtool.table.open import Table

_ROWS = 256  # at a time: some are taken out, which copies them


def measure(table: Table, columns: list[str]) -> list[NDArray[np.int64]]:
    """Return int64[rows] for each column: the bytes of its values, -1 for a null."""
    found: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in columns]
    for batch in _batches(table, columns):
        for array, lengths in zip(batch, found, strict=True):
            lengths.append(arrays.lengths(array))
            if array.null_count:
                lengths[-1][arrays.places(pc.is_null(array))] = -1
    return [np.concatenate(lengths) for lengths in found]


def write(
    table: Table, columns: list[str], rows: NDArray[np.int64] | None, lengths: list[NDArray[np.int64]], file: Writable
) -> bool:
    """Write the values of columns; return whether they were as long as they should be, or stop at those that are not.

    Args:
        table: What holds them.
        columns: Their names.
        rows: The numbers of those that are wanted, ascending; None: all.
        lengths: int64[wanted rows] for each column.
        file: Takes them, in order.
    """
    before = done = 0
    for batch in _batches(table, columns):
        count, kept = len(batch[0]), batch
        end = done + count
        if rows is not None:
            end = int(np.searchsorted(rows, before + count))
            wanted = number_array(rows[done:end] - before)
            kept = [array.take(wanted) for array in batch]
        before += count
        planned = [column[done:end] for column in lengths]
        if not all(np.array_equal(arrays.lengths(array), sizes) for array, sizes in zip(kept, planned, strict=True)):
            return False
        _write_rows(file, kept, planned)
        done = end
    return done == len(lengths[0])


def _batches(table: Table, columns: list[str]) -> Iterator[list[pa.Array]]:
    """Yield the values of columns, some rows at a time."""
    with readable(table.where):
        for batch in table.batches(columns):
            for first in range(0, batch.num_rows, _ROWS):
                some = batch.slice(first, _ROWS)
                some.validate(full=True)  # offsets that lead elsewhere would be followed
                yield [_bytes_of(some.column(at)) for at in range(len(columns))]


def _bytes_of(array: pa.Array) -> pa.Array:
    """Return the bytes in a column of them, of text, or of `struct<bytes, path>`."""
    if is_wrapped_bytes(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    array = arrays.plain(array)
    return pc.cast(array, pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _write_rows(file: Writable, batch: list[pa.Array], lengths: list[NDArray[np.int64]]) -> None:
    """Write the values of columns, those of a row together."""
    if len(batch) == 1:
        file.write(arrays.payload(batch[0]))
        return
    columns = []
    for array, sizes in zip(batch, lengths, strict=True):
        data, ends = arrays.payload(array), np.cumsum(sizes)
        columns.append([data[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)])
    for row in zip(*columns, strict=True):
        for value in row:
            file.write(value)
