"""Metadata columns that a verb adds to its samples' sidecars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.entries.arrow import number_array, strings

if TYPE_CHECKING:
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


def with_split(columns: pa.Table | None, names: tuple[str, ...], number: NDArray[np.int16]) -> pa.Table:
    """Return metadata columns with each sample's split."""
    values = strings([name.encode() for name in names]).take(number_array(number))
    return with_column(columns, "split", values)


def with_images(columns: pa.Table | None, images: list[tuple[int, int, str] | None]) -> pa.Table | None:
    """Return metadata columns with the width, height and mode of images, in place of what has these names."""
    for at, (name, kind) in enumerate((("width", pa.int32()), ("height", pa.int32()), ("mode", pa.string()))):
        values = pa.array([None if image is None else image[at] for image in images], kind)
        columns = with_column(columns, name, values)
    return columns
