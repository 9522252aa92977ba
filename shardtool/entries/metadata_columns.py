"""Metadata columns that a command adds to the sidecars of its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.entries.arrow import bytes_array, number_array, number_values, text_array, to_one_chunk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


def with_column(columns: pa.Table | None, name: str, values: pa.Array) -> pa.Table:
    """Return a table with one more column, or another in place of the one of that name; `columns` may be None."""
    field = pa.field(name, values.type)
    if columns is None:
        return pa.Table.from_arrays([values], schema=pa.schema([field]))
    if name in columns.column_names:
        return columns.set_column(columns.column_names.index(name), field, values)
    return columns.append_column(field, values)


def with_number_columns(columns: pa.Table | None, more: Mapping[str, pa.Array | None]) -> pa.Table | None:
    """Return a table with the columns that number fields are; None is none, nor is one of a sidecar's own names.

    A column of that name that holds no numbers, such as the names of classes, stays.
    """
    for name, values in more.items():
        if values is None or name.startswith("__"):
            continue
        if columns is None or name not in columns.column_names or is_number_type(columns.schema.field(name).type):
            columns = with_column(columns, name, values)
    return columns


def drop_number_columns(columns: pa.Table, names: Collection[str]) -> pa.Table | None:
    """Return a table without those of some columns that hold numbers; None where none is left."""
    left = [one.name for one in columns.schema if one.name not in names or not is_number_type(one.type)]
    return columns.select(left) if left else None


def is_number_type(kind: pa.DataType) -> bool:
    """Tell whether a type is one of numbers or truths, or of nothing but nulls."""
    tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null
    return any(test(kind) for test in tests)


def to_class_names(column: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """Return the names of classes, of which a column has the numbers; it stays as it is where it holds anything else.

    So what is divided by labels is divided alike, whatever their numbers, and messages have their names.
    """
    if not names or not pa.types.is_integer(column.type):
        return column
    codes = number_values(to_one_chunk(column))
    if column.null_count or (len(codes) and (codes.min() < 0 or codes.max() >= len(names))):
        return column
    return pa.chunked_array([text_array([*names]).take(number_array(codes))])


def with_split(columns: pa.Table | None, names: tuple[str, ...], number: NDArray[np.int16]) -> pa.Table:
    """Return metadata columns with each sample's split."""
    values = bytes_array([name.encode() for name in names]).take(number_array(number))
    return with_column(columns, "split", values)


def with_measured_columns(
    columns: pa.Table | None, kinds: Iterable[tuple[str, str]], found: Sequence[tuple[object, ...]]
) -> pa.Table | None:
    """Return metadata columns with those that were found as samples were read, in place of what has these names.

    Args:
        columns: What there is.
        kinds: The name of each new column, and its type.
        found: Of each sample a value for each of them.
    """
    for at, (name, kind) in enumerate(kinds):
        columns = with_column(columns, name, pa.array([one[at] for one in found], pa.type_for_alias(kind)))
    return columns
