"""Arrow arrays from the bytes of columns, and back.

`pyarrow.array` and `to_numpy` would import pandas to ask whether an argument is its: 0.3 s, more than packing 10,000
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names, and NumPy's


def number_array(values: NDArray[np.generic]) -> pa.Array:
    """Return an Arrow array of the same numbers."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def string_array(data: bytes, lengths: NDArray[np.int64]) -> pa.StringArray:
    """Return an Arrow array of strings that lie end to end in `data`."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


def strings(texts: list[bytes]) -> pa.StringArray:
    """Return an Arrow array of strings."""
    return string_array(b"".join(texts), np.array([len(text) for text in texts], np.int64))


def coded_strings(texts: list[bytes], codes: NDArray[Any]) -> Any:
    """Return an Arrow array of the texts that codes stand for; `take` would import pyarrow.compute."""
    lengths = np.array([len(text) for text in texts], np.int64)
    return string_array(b"".join(map(texts.__getitem__, codes.tolist())), lengths[codes])


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts; times that Python does not know, beyond the year 9999, as text."""
    columns = {name: python_values(table.column(name)) for name in table.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def python_values(column: pa.ChunkedArray) -> list[object]:
    """Return the values of a column; times that Python does not know as text."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_python_value(value) for value in column]


def _python_value(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        kind = value.type
    if pa.types.is_struct(kind):
        return {kind.field(at).name: _python_value(value[at]) for at in range(kind.num_fields)}
    if pa.types.is_map(kind) or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return str(value.cast(pa.string()).as_py()) if pa.types.is_temporal(kind) else str(value)
    return [_python_value(one) for one in value.values]


def numbers(array: pa.Array) -> NDArray[Any]:
    """Return the values of an array of integers or floats, without a copy; at a null stands anything."""
    dtype = np.dtype(_FLOATS.get(str(array.type), str(array.type)))
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


# Metadata columns that a verb adds to its samples' sidecars.


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
