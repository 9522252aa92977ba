"""Arrow arrays from the bytes of columns, and back.

`pyarrow.array` and `to_numpy` would import pandas to ask whether an argument is its: 0.3 s, more than packing 10,000
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

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


def ipc_stream(table: pa.Table) -> pa.Buffer:
    """Return a table as one batch of an Arrow stream, for a hash of what is in it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


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


def with_columns(columns: pa.Table | None, more: Mapping[str, pa.Array | None]) -> pa.Table | None:
    """Return a table with the columns that number fields are; None is none, nor is one of a sidecar's own names.

    A column of that name that holds no numbers, such as the names of classes, stays.
    """
    for name, values in more.items():
        if values is None or name.startswith("__"):
            continue
        if columns is None or name not in columns.column_names or is_number(columns.schema.field(name).type):
            columns = with_column(columns, name, values)
    return columns


def without_numbers(columns: pa.Table, names: Collection[str]) -> pa.Table | None:
    """Return a table without those of some columns that hold numbers; None where none is left."""
    left = [one.name for one in columns.schema if one.name not in names or not is_number(one.type)]
    return columns.select(left) if left else None


def is_number(kind: pa.DataType) -> bool:
    """Tell whether a type is one of numbers or truths, or of nothing but nulls."""
    tests = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null
    return any(test(kind) for test in tests)


def class_names(column: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """Return the names of classes, of which a column has the numbers; it stays as it is where it holds anything else.

    So what is divided by labels is divided alike, whatever their numbers, and messages have their names.
    """
    if not names or not pa.types.is_integer(column.type):
        return column
    codes = numbers(one_chunk(column))
    if column.null_count or (len(codes) and (codes.min() < 0 or codes.max() >= len(names))):
        return column
    return pa.chunked_array([texts([*names]).take(number_array(codes))])


def with_split(columns: pa.Table | None, names: tuple[str, ...], number: NDArray[np.int16]) -> pa.Table:
    """Return metadata columns with each sample's split."""
    values = strings([name.encode() for name in names]).take(number_array(number))
    return with_column(columns, "split", values)


def with_found(
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


# Arrays of tables, by their buffers.
#
# Source: the Arrow columnar format, "Physical memory layout"; pyarrow, `Array.buffers`.


_STRING_LIMIT = 2**31 - 1  # bytes that the offsets of a `string` array reach


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return a large_string array; None is null."""
    data = [(value or "").encode() for value in values]
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in data]))).astype(np.int64)
    valid = np.packbits(np.array([value is not None for value in values], bool), bitorder="little")
    parts = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.large_string(), len(data), parts)


def unended(data: bytes, kind: pa.DataType) -> pa.Array:
    """Return texts, each of which ends with a NUL, without these; `kind` is large_binary or large_string."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == 0)
    offsets = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int64)
    return pa.Array.from_buffers(kind, len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(raw[raw != 0])])


def ended(array: pa.Array) -> bytes:
    """Return the values of an array of text or bytes, none of them null, a NUL after each."""
    ends = np.cumsum(lengths(array))
    return np.insert(np.frombuffer(payload(array), np.uint8), ends, 0).tobytes()


def text(value: str) -> pa.Scalar:
    """Return a large_string scalar."""
    return texts([value])[0]


def truths(mask: NDArray[np.bool_]) -> pa.Array:
    """Return a boolean array."""
    bits = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(bits)])


def places(mask: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a boolean array, or a chunked one, is true; a null is not."""
    import pyarrow.compute as pc

    return numbers(pc.indices_nonzero(mask)).astype(np.int64)


def lengths(array: pa.Array) -> NDArray[np.int64]:
    """Return the bytes of each value of an array of text or bytes; a null has none."""
    return np.diff(_offsets(array)).astype(np.int64)


def payload(array: pa.Array) -> memoryview:
    """Return the values of an array of text or bytes, end to end, without a copy."""
    offsets = _offsets(array)
    return memoryview(array.buffers()[2] or b"").cast("B")[int(offsets[0]) : int(offsets[-1])]


def _offsets(array: pa.Array) -> NDArray[Any]:
    kind = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    return np.frombuffer(array.buffers()[1] or bytes(8), kind)[array.offset : array.offset + len(array) + 1]


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return an array, or a chunked one, in the plain type that holds its values: no dictionary, view or extension."""
    import pyarrow.compute as pc

    while True:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            array = _storage(array)
        elif pa.types.is_run_end_encoded(kind):
            array = pc.run_end_decode(array)
        elif pa.types.is_float16(kind):
            array = pc.cast(array, pa.float32())
        elif plain_type(kind) != kind:
            array = _cast(array, plain_type(kind))
        else:
            return array


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that `plain` gives to what is inside of lists and the like."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = kind.value_field.with_type(plain_type(kind.value_type))
        return pa.list_(value) if pa.types.is_list(kind) else pa.large_list(value)
    if pa.types.is_struct(kind):
        parts = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([part.with_type(plain_type(part.type)) for part in parts])
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _storage(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array([chunk.storage for chunk in array.chunks], array.type.storage_type)
    return array.storage


def _cast(array: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    import pyarrow.compute as pc

    try:
        return pc.cast(array, kind)
    except pa.ArrowNotImplementedError:  # pyarrow before 18
        made = pa.array(array.to_pylist(), kind)
        return pa.chunked_array([made]) if isinstance(array, pa.ChunkedArray) else made


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a chunked array as one array; text beyond 2 GiB becomes large_string."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_string(column.type) and column.nbytes > _STRING_LIMIT:
        column = column.cast(pa.large_string())
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else found.chunk(0)


def compact(table: pa.Table) -> pa.Table:
    """Return a table with one chunk a column; those of `table` are given up one by one, if nothing else holds it."""
    names, columns, left = table.column_names, [], table.columns[::-1]
    del table
    while left:
        columns.append(one_chunk(left.pop()))
    pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(columns, names)
