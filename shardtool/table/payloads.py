"""Column values as field payloads: text, or an array for a field that ends in npy.

Every path from a column to a field uses these functions, so all refuse the same values.
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


# NumPy dtypes of Arrow's number types.
_DTYPES = {
    "bool": "|b1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "uint8": "|u1", "uint16": "<u2",
    "uint32": "<u4", "uint64": "<u8", "halffloat": "<f2", "float": "<f4", "double": "<f8",
}  # fmt: skip
_STEP_BYTES = 2**24  # text rendered at a time
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)  # two digits for each byte


def field_type(field: str, kind: pa.DataType) -> ValueType | None:
    """Return the value type of a column's values in a field; None: bytes."""
    return None if _ending(field) == "npy" else value_type(kind)


def check_field_values(
    field: str, name: str, column: pa.Array, class_names: Sequence[str] | None, refuse: Callable[..., None]
) -> None:
    """Refuse a column whose values the field cannot store; nulls are ignored. See `check_payload`.

    Raises:
        InvalidRequest: A value is refused, or the field is binary and the column has no suitable arrays.
    """
    ending, kind = _ending(field), column.type
    dtype = _dtype_of(kind) if ending == "npy" else None
    if ending in BINARY_ENDINGS and dtype is None:
        text_ending = "json" if pa.types.is_nested(kind) else "txt"
        expected = (
            "lists of numbers of equal length" if ending == "npy" else f"a text format: {ending} is a binary format"
        )
        remedy = f"Use another field: {option_text('values', {text_ending: name})}."
        found = f"column {name!r} (field {field}) holds {kind}"
        raise InvalidRequest(option_text("values"), found, expected=expected, remedy=remedy)
    if dtype is None:
        check_payload(name, column, class_names, refuse)
    else:
        _check_shapes(field, name, column, refuse)


def field_texts(field: str, values: pa.Array) -> ArrowStrings:
    """Return each value's payload as text; `.npy` files are encoded, see `shardtool.shard_samples`.

    `values` must have passed `check_field_values`.
    """
    if _ending(field) == "npy":
        return _npy_texts(values)
    return render_column(pa.table({field: values}), render_values)


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the dtype of arrays built from lists of this type; None: not possible."""
    if not _is_list(kind):
        return None
    while _is_list(kind):
        kind = kind.value_type
    name = _DTYPES.get(str(kind))
    return None if name is None else np.dtype(name)


def _check_shapes(field: str, name: str, column: pa.Array, refuse: Callable[..., None]) -> None:
    label = f"column {name!r} (field {field})"
    remedy = f"Change the values, or use a JSON field: {option_text('values', {'json': name})}."
    level, row = column.drop_null(), arrow.true_positions(pc.is_valid(column))
    while len(level) and _is_list(level.type):
        lengths = arrow.number_values(pc.list_value_length(level))
        other_lengths = np.flatnonzero(lengths != lengths[0])
        if len(other_lengths):
            found = f"{label}: a list of {lengths[other_lengths[0]]:,} although the first has {lengths[0]:,},"
            refuse(np.unique(row[other_lengths]), found, expected="lists of numbers of equal length", remedy=remedy)
        level = level.flatten()
        if level.null_count or _is_list(level.type):
            row = np.repeat(row, lengths)
        if level.null_count:
            nulls = np.unique(row[arrow.true_positions(pc.is_null(level))])
            refuse(nulls, f"{label}: a null in a list", expected="a number in every position", remedy=remedy)


def _npy_texts(values: pa.Array) -> ArrowStrings:
    """Return an encoded `.npy` file for each list of numbers; a null becomes an array of zeros.

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
    while _is_list(level.type):
        level = level.flatten()
    if pa.types.is_boolean(level.type):
        level = pc.cast(level, pa.uint8())
    return np.ascontiguousarray(arrow.number_values(level))
