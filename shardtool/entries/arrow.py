"""Convert between Arrow arrays and NumPy arrays or bytes without importing pandas (see `pandas_guard`).

Source: the Arrow columnar format, "Physical memory layout"; pyarrow, `Array.buffers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def number_array(values: NDArray[np.generic]) -> pa.Array:
    """Convert a NumPy array to an Arrow array."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def string_array(data: bytes, lengths: NDArray[np.int64]) -> pa.StringArray:
    """Convert concatenated strings to an Arrow array. `lengths` contains the length of each string in bytes."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))


def bytes_array(texts: list[bytes]) -> pa.StringArray:
    """Convert UTF-8 strings to an Arrow array."""
    return string_array(b"".join(texts), np.array([len(text) for text in texts], np.int64))


def decode_strings(texts: list[bytes], codes: NDArray[Any]) -> Any:
    """Return `texts[code]` for each code. `Array.take` is not used, because it would import pyarrow.compute."""
    lengths = np.array([len(text) for text in texts], np.int64)
    return string_array(b"".join(map(texts.__getitem__, codes.tolist())), lengths[codes])


def ipc_stream(table: pa.Table) -> pa.Buffer:
    """Return the table as an Arrow IPC stream with one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def hashable_stream(table: pa.Table) -> bytes:
    """Return the table as Arrow IPC streams. Null values are omitted, because their bytes are undefined."""
    streams = []
    for number, column in enumerate(table.columns):
        if column.null_count:
            table = table.set_column(number, table.column_names[number], column.is_valid())
            streams.append(ipc_stream(pa.table({"": column.drop_null()})))
    return b"".join([ipc_stream(table), *streams])


def to_python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dicts (see `to_python_values`)."""
    columns = {name: to_python_values(table.column(name)) for name in table.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def to_python_values(column: pa.ChunkedArray) -> list[object]:
    """Return the values of a column. Times that Python cannot represent become strings."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_to_python_value(value) for value in column]


def _to_python_value(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        kind = value.type
    if pa.types.is_struct(kind):
        return {kind.field(index).name: _to_python_value(value[index]) for index in range(kind.num_fields)}
    if pa.types.is_map(kind) or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return str(value.cast(pa.string()).as_py()) if pa.types.is_temporal(kind) else str(value)
    return [_to_python_value(item) for item in value.values]


def number_values(array: pa.Array) -> NDArray[Any]:
    """Convert an Arrow array of numbers to NumPy without a copy. Nulls become arbitrary numbers."""
    dtype = np.dtype(_FLOATS.get(str(array.type), str(array.type)))
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


_MAX_STRING_BYTES = 2**31 - 1  # maximum of a `string` array, because its offsets are int32


def text_array(values: Sequence[str | None]) -> pa.Array:
    """Return strings as a large_string array. None becomes null."""
    data = [(value or "").encode() for value in values]
    offsets = np.concatenate(([0], np.cumsum([len(text) for text in data]))).astype(np.int64)
    valid = np.packbits(np.array([value is not None for value in values], bool), bitorder="little")
    parts = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.large_string(), len(data), parts)


def split_at_nuls(data: bytes, kind: pa.DataType) -> pa.Array:
    """Split NUL-terminated strings into an array of the type `kind`, large_binary or large_string."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == 0)
    offsets = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int64)
    return pa.Array.from_buffers(kind, len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(raw[raw != 0])])


def append_nuls(array: pa.Array) -> bytes:
    """Return the values of a string or binary array, each followed by NUL. The array must not contain nulls."""
    ends = np.cumsum(byte_lengths(array))
    return np.insert(np.frombuffer(concat_values(array), np.uint8), ends, 0).tobytes()


def text_scalar(value: str) -> pa.Scalar:
    """Convert a string to an Arrow large_string scalar."""
    return text_array([value])[0]


def boolean_array(mask: NDArray[np.bool_]) -> pa.Array:
    """Convert a NumPy array of booleans to an Arrow array."""
    bits = np.packbits(mask, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(bits)])


def true_positions(mask: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the positions of true values. Null counts as false."""
    import pyarrow.compute as pc

    return number_values(pc.indices_nonzero(mask)).astype(np.int64)


def byte_lengths(array: pa.Array) -> NDArray[np.int64]:
    """Return the length in bytes of each value of a string or binary array, or 0 for null."""
    return np.diff(_offsets(array)).astype(np.int64)


def concat_values(array: pa.Array) -> memoryview:
    """Return the concatenated values of a string or binary array, without a copy."""
    offsets = _offsets(array)
    return memoryview(array.buffers()[2] or b"").cast("B")[int(offsets[0]) : int(offsets[-1])]


def _offsets(array: pa.Array) -> NDArray[Any]:
    kind = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    return np.frombuffer(array.buffers()[1] or bytes(8), kind)[array.offset : array.offset + len(array) + 1]


def to_plain(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Decode dictionaries, views, extension types and run-end encodings, and convert float16 to float32."""
    import pyarrow.compute as pc

    while True:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            array = _storage(array)
        elif pa.types.is_run_end_encoded(kind):
            array = pc.run_end_decode(array)
        elif pa.types.is_float16(kind):
            array = pc.cast(array, pa.float32())
        elif _plain_type(kind) != kind:
            array = _cast(array, _plain_type(kind))
        else:
            return array


def is_list_type(kind: pa.DataType) -> bool:
    """Return whether a type is a list type, of variable or fixed length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = kind.value_field.with_type(_plain_type(kind.value_type))
        return pa.list_(value) if pa.types.is_list(kind) else pa.large_list(value)
    if pa.types.is_struct(kind):
        parts = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([part.with_type(_plain_type(part.type)) for part in parts])
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
    except pa.ArrowNotImplementedError:  # pyarrow 21 cannot decode a dictionary of views
        converted = pa.array(array.to_pylist(), kind)
        return pa.chunked_array([converted]) if isinstance(array, pa.ChunkedArray) else converted


def to_one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. Strings of more than 2 GiB become large_string."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_string(column.type) and column.nbytes > _MAX_STRING_BYTES:
        column = column.cast(pa.large_string())
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)


def compact_table(table: pa.Table) -> pa.Table:
    """Return a table with one chunk per column. Each old column is freed after it was copied."""
    names, columns, remaining = table.column_names, [], table.columns[::-1]
    del table
    while remaining:
        columns.append(to_one_chunk(remaining.pop()))
    pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(columns, names)
