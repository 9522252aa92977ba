"""Add, replace and drop the metadata columns that sidecars store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.entries.arrow import bytes_array, number_array, number_values, text_array, to_one_chunk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


def with_column(columns: pa.Table | None, name: str, values: pa.Array) -> pa.Table:
    """Add a column, or replace the column of the same name. If `columns` is None, create a table."""
    field = pa.field(name, values.type)
    if columns is None:
        return pa.Table.from_arrays([values], schema=pa.schema([field]))
    if name in columns.column_names:
        return columns.set_column(columns.column_names.index(name), field, values)
    return columns.append_column(field, values)


def with_number_columns(columns: pa.Table | None, number_columns: Mapping[str, pa.Array | None]) -> pa.Table | None:
    """Add or replace columns. Skip columns that are None, start with `__`, or would replace a non-numeric column."""
    for name, values in number_columns.items():
        if values is None or name.startswith("__"):
            continue
        if columns is None or name not in columns.column_names or is_number_type(columns.schema.field(name).type):
            columns = with_column(columns, name, values)
    return columns


def drop_number_columns(columns: pa.Table, names: Collection[str]) -> pa.Table | None:
    """Drop the columns in `names` that are numeric. Return None if no column remains."""
    remaining = [field.name for field in columns.schema if field.name not in names or not is_number_type(field.type)]
    return columns.select(remaining) if remaining else None


def is_number_type(kind: pa.DataType) -> bool:
    """Return whether a type is numeric, boolean or null."""
    tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null
    return any(test(kind) for test in tests)


def to_class_names(column: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """Replace the class numbers in a column by class names. If any value is not a class number, change nothing."""
    if not names or not pa.types.is_integer(column.type):
        return column
    codes = number_values(to_one_chunk(column))
    if column.null_count or (len(codes) and (codes.min() < 0 or codes.max() >= len(names))):
        return column
    return pa.chunked_array([text_array([*names]).take(number_array(codes))])


def with_split(columns: pa.Table | None, names: tuple[str, ...], split_numbers: NDArray[np.int16]) -> pa.Table:
    """Add a column `split` with the name of each sample's split."""
    values = bytes_array([name.encode() for name in names]).take(number_array(split_numbers))
    return with_column(columns, "split", values)


def with_measured_columns(
    columns: pa.Table | None, kinds: Iterable[tuple[str, str]], sample_values: Sequence[tuple[object, ...]]
) -> pa.Table | None:
    """Add columns of values that workers measured, such as image sizes. Replace columns of the same name.

    `kinds` contains the name and type of each column. `sample_values` contains one tuple of values per sample.
    """
    for index, (name, kind) in enumerate(kinds):
        column = pa.array([values[index] for values in sample_values], pa.type_for_alias(kind))
        columns = with_column(columns, name, column)
    return columns
