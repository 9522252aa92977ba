"""The values of a column as payloads of a field: the text of each, or, for a field that ends in npy, an array.

Every path that makes a field of a column uses these functions, so that all of them refuse the same values.
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.names import BINARY_ENDINGS
from shardtool.shard_samples import ENCODED_PAYLOAD_MARK
from shardtool.table.payload_values import check_payload, value_type
from shardtool.table.render import ArrowStrings, render_column, render_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shardtool.values import ValueType


# Arrow's types of numbers, and the dtypes of their arrays.
_DTYPES = {
    "bool": "|b1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "uint8": "|u1", "uint16": "<u2",
    "uint32": "<u4", "uint64": "<u8", "halffloat": "<f2", "float": "<f4", "double": "<f8",
}  # fmt: skip
_STEP_BYTES = 2**24  # of texts that are made at a time
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)  # two digits for each byte


def field_type(field: str, kind: pa.DataType) -> ValueType | None:
    """Return what the values of a column of this type are in a field; None: bytes."""
    return None if _ending(field) == "npy" else value_type(kind)


def check_field_values(
    field: str, name: str, column: pa.Array, called: Sequence[str] | None, refuse: Callable[..., None]
) -> None:
    """Refuse a column whose values the field cannot hold; nulls are ignored.

    Args:
        field: The field.
        name: The column's name.
        column: The column, in one chunk.
        called: The names of classes, where the values are their numbers, or lists of these.
        refuse: Raises for the rows at some places, where there are any: see `Rows.refuse`.

    Raises:
        InvalidRequest: The field's ending is that of a binary format, and the column holds no arrays of it; or there
            are values that no field can hold.
    """
    ending, kind = _ending(field), column.type
    dtype = _dtype_of(kind) if ending == "npy" else None
    if ending in BINARY_ENDINGS and dtype is None:
        other = "json" if pa.types.is_nested(kind) else "txt"
        expected = "lists of numbers of equal length" if ending == "npy" else f"a text format: {ending} is a binary one"
        remedy = f"Use another field: {option_text('values', {other: name})}."
        found = f"column {name!r} (field {field}) holds {kind}"
        raise InvalidRequest(option_text("values"), found, expected=expected, remedy=remedy)
    if dtype is None:
        check_payload(name, column, called, refuse)
    else:
        _check_shapes(field, name, column, refuse)


def field_texts(field: str, values: pa.Array) -> ArrowStrings:
    """Return the payload of each value as text; those of `.npy` files are coded (see `shardtool.values`).

    Args:
        field: The field.
        values: A column in one chunk, which `check_field_values` accepts.
    """
    if _ending(field) == "npy":
        return _npy_texts(values)
    return render_column(pa.table({field: values}), render_values)


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the dtype of the arrays that lists of this type become; None: they become none."""
    if not _is_list(kind):
        return None
    while _is_list(kind):
        kind = kind.value_type
    name = _DTYPES.get(str(kind))
    return None if name is None else np.dtype(name)


def _check_shapes(field: str, name: str, column: pa.Array, refuse: Callable[..., None]) -> None:
    """Refuse lists with nulls in them, and lists of different lengths at one level.

    Raises:
        InvalidRequest: There are such lists.
    """
    what = f"column {name!r} (field {field})"
    remedy = f"Change the values, or use a field of JSON: {option_text('values', {'json': name})}."
    level, row = column.drop_null(), arrow.true_positions(pc.is_valid(column))
    while len(level) and _is_list(level.type):
        lengths = arrow.number_values(pc.list_value_length(level))
        others = np.flatnonzero(lengths != lengths[0])
        if len(others):
            found = f"{what}: a list of {lengths[others[0]]:,} where the first has {lengths[0]:,},"
            refuse(np.unique(row[others]), found, expected="lists of numbers of equal length", remedy=remedy)
        level = level.flatten()
        if level.null_count or _is_list(level.type):
            row = np.repeat(row, lengths)
        if level.null_count:
            nulls = np.unique(row[arrow.true_positions(pc.is_null(level))])
            refuse(nulls, f"{what}: a null in a list", expected="a number in each place", remedy=remedy)


def _npy_texts(values: pa.Array) -> ArrowStrings:
    """Return the bytes of a `.npy` file for each list of numbers, coded; a null has an array of zeros.

    Source: NumPy, `numpy.lib.format`, version 1.0 of the format.
    """
    dtype, level, shape = _dtype_of(values.type), values.drop_null()[:1], list[int]()
    while _is_list(level.type):
        shape.append(int(arrow.number_values(pc.list_value_length(level))[0]) if len(level) else 0)
        level = level.flatten()
    stream = BytesIO()
    np.lib.format.write_array(stream, np.zeros(shape, dtype), allow_pickle=False)
    size, data_size = len(stream.getvalue()), np.zeros(shape, dtype).nbytes
    start = ENCODED_PAYLOAD_MARK + stream.getvalue()[: size - data_size].hex().encode()

    def render(table: pa.Table) -> pa.Array:
        rows = arrow.to_one_chunk(table.column(0))
        valid = arrow.true_positions(pc.is_valid(rows))
        data = _numbers_of(rows.drop_null()).view(np.uint8).reshape(len(valid), data_size)
        texts = np.zeros((len(rows), len(start) + 2 * data_size + 1), np.uint8)
        texts[:, : len(start)] = np.frombuffer(start, np.uint8)
        texts[:, len(start) : -1] = ord("0")
        texts[valid, len(start) : -1] = _HEX[data].view(np.uint8)
        ends = np.arange(len(rows) + 1, dtype=np.int64) * texts.shape[1]
        return pa.Array.from_buffers(pa.large_binary(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(texts)])

    step = max(1, _STEP_BYTES // (len(start) + 2 * data_size + 1))
    texts = render_column(pa.table({"": values}), render)
    return replace(texts, step=min(texts.step, step), size=size)


def _numbers_of(level: pa.Array) -> NDArray[Any]:
    """Return the numbers in lists, end to end."""
    while _is_list(level.type):
        level = level.flatten()
    if pa.types.is_boolean(level.type):
        level = pc.cast(level, pa.uint8())
    return np.ascontiguousarray(arrow.number_values(level))
