"""Convert column values to payloads: strings, class numbers, or NumPy arrays if the field name ends in npy."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import Classes, number_classes
from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.names import BINARY_ENDINGS
from shardtool.shard_samples import ENCODED_PAYLOAD_MARK
from shardtool.table.render import ArrowStrings, number_type, render_column, render_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.values import ValueType


_DTYPES = {
    "bool": "|b1", "int8": "|i1", "int16": "<i2", "int32": "<i4", "int64": "<i8", "uint8": "|u1", "uint16": "<u2",
    "uint32": "<u4", "uint64": "<u8", "halffloat": "<f2", "float": "<f4", "double": "<f8",
}  # fmt: skip
_STEP_BYTES = 2**24
_MAX_INT64 = 2**63 - 1
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)


def field_type(field: str, kind: pa.DataType) -> ValueType | None:
    """Return the `ValueType` of a field with values of the type `kind`, or None if the field stores arrays."""
    return None if _ending(field) == "npy" else value_type(kind)


def check_field_values(
    field: str, name: str, column: pa.Array, class_names: Sequence[str] | None, refuse: Callable[..., None]
) -> None:
    """Raise an error if a field cannot store the values of a column. `refuse` works like `TableRows.refuse`."""
    ending, kind = _ending(field), column.type
    dtype = _dtype_of(kind) if ending == "npy" else None
    if ending in BINARY_ENDINGS and dtype is None:
        text_ending = "json" if pa.types.is_nested(kind) else "txt"
        expected = f"a text format, because {ending} is a binary format"
        expected = "lists of numbers of equal length" if ending == "npy" else expected
        remedy = f"Use another field: {option_text('field', {text_ending: name})}."
        found = f"column {name!r} (field {field}) holds {kind}"
        raise InvalidRequest(option_text("field"), found, expected=expected, remedy=remedy)
    if dtype is None:
        check_payload(name, column, class_names, refuse)
    else:
        _check_shapes(field, name, column, refuse)


def field_texts(field: str, values: pa.Array) -> ArrowStrings:
    """Return the payloads of a field as text (see `decode_inline_payload`). Call `check_field_values` first."""
    if _ending(field) == "npy":
        return _npy_texts(values)
    return render_column(pa.table({field: values}), render_values)


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


def _dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    if not arrow.is_list_type(kind):
        return None
    while arrow.is_list_type(kind):
        kind = kind.value_type
    name = _DTYPES.get(str(kind))
    return None if name is None else np.dtype(name)


def _check_shapes(field: str, name: str, column: pa.Array, refuse: Callable[..., None]) -> None:
    label = f"column {name!r} (field {field})"
    remedy = f"Change the values, or use a JSON field: {option_text('field', {'json': name})}."
    level, rows = column.drop_null(), arrow.true_positions(pc.is_valid(column))
    while len(level) and arrow.is_list_type(level.type):
        lengths = arrow.number_values(pc.list_value_length(level))
        other_lengths = np.flatnonzero(lengths != lengths[0])
        if len(other_lengths):
            found = f"{label}: a list of {lengths[other_lengths[0]]:,} although the first has {lengths[0]:,},"
            refuse(np.unique(rows[other_lengths]), found, expected="lists of numbers of equal length", remedy=remedy)
        level = level.flatten()
        if level.null_count or arrow.is_list_type(level.type):
            rows = np.repeat(rows, lengths)
        if level.null_count:
            nulls = np.unique(rows[arrow.true_positions(pc.is_null(level))])
            refuse(nulls, f"{label}: a null in a list", expected="a number in every position", remedy=remedy)


def _npy_texts(values: pa.Array) -> ArrowStrings:
    # Each list becomes an `.npy` file (NumPy, `numpy.lib.format`, version 1.0) in hexadecimal. Null becomes zeros.
    dtype, shape = _dtype_of(values.type), list[int]()
    level = values.drop_null()[:1]  # all values have the same shape
    while arrow.is_list_type(level.type):
        shape.append(int(arrow.number_values(pc.list_value_length(level))[0]) if len(level) else 0)
        level = level.flatten()
    stream = BytesIO()
    np.lib.format.write_array(stream, np.zeros(shape, dtype), allow_pickle=False)
    payload, data_size = stream.getvalue(), np.zeros(shape, dtype).nbytes
    start = ENCODED_PAYLOAD_MARK + payload[: len(payload) - data_size].hex().encode()

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
    return replace(texts, step=min(texts.step, step), size=len(payload))


def _numbers_of(level: pa.Array) -> NDArray[Any]:
    while arrow.is_list_type(level.type):
        level = level.flatten()
    if pa.types.is_boolean(level.type):
        level = pc.cast(level, pa.uint8())
    return np.ascontiguousarray(arrow.number_values(level))


def missing_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the positions of null and NaN."""
    if pa.types.is_floating(column.type):
        return arrow.true_positions(pc.is_null(column, nan_is_null=True))
    return arrow.true_positions(pc.is_null(column)) if column.null_count else np.zeros(0, np.int64)


def nul_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the positions of strings that contain a NUL."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return np.zeros(0, np.int64)
    return arrow.true_positions(pc.match_substring(column, "\0"))


def _over_int64_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    if not pa.types.is_uint64(column.type):
        return np.zeros(0, np.int64)
    too_large = np.flatnonzero(arrow.number_values(column) > _MAX_INT64)
    # The values of nulls are undefined.
    return np.setdiff1d(too_large, missing_positions(column), assume_unique=True)


def infinite_positions(column: pa.Array) -> NDArray[np.int64]:
    """Return the positions of values that are infinite or contain an infinite number."""
    kind = column.type
    if pa.types.is_floating(kind):
        return arrow.true_positions(pc.is_inf(column))
    if not pa.types.is_nested(kind) or not _has_infinite(column):
        return np.zeros(0, np.int64)
    return np.array([index for index in range(len(column)) if _has_infinite(column.slice(index, 1))], np.int64)


def _has_infinite(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_struct(kind):
        return any(_has_infinite(part) for part in column.flatten())
    if pa.types.is_map(kind):
        return _has_infinite(pc.cast(column, pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))))
    if pa.types.is_nested(kind):
        return _has_infinite(column.flatten())
    return bool(pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py())


def check_payload(
    name: str, column: pa.ChunkedArray, class_names: Sequence[str] | None, refuse: Callable[..., None]
) -> None:
    """Raise an error if a column contains values that no field can store.

    `refuse` works like `TableRows.refuse`. `class_names` is None if the column does not contain class numbers.
    """
    refuse(nul_positions(column), f"column {name!r}: a NUL in the text", expected="text without NUL")
    too_large = f"column {name!r}: a number over 2^63"
    refuse(_over_int64_positions(column), too_large, expected="a number that fits into int64")
    if class_names is not None:
        expected, remedy = f"0 to {len(class_names) - 1:,}", f"Exclude such rows with {option_text('where')}."
        found = f"column {name!r}: a number without a class"
        refuse(_unknown_class_positions(column, class_names), found, expected=expected, remedy=remedy)
    if pa.types.is_nested(column.type):
        infinite = infinite_positions(column)
        refuse(infinite, f"column {name!r}: an infinite number", expected="finite numbers: JSON has no infinity")


def _unknown_class_positions(column: pa.ChunkedArray, classes: Sequence[str]) -> NDArray[np.int64]:
    if not pa.types.is_integer(column.type):
        return np.zeros(0, np.int64)
    numbers = arrow.number_values(pc.fill_null(column, 0))
    return np.flatnonzero((numbers < 0) | (numbers >= len(classes)))


def check_list_field(name: str, column: str, kind: pa.DataType) -> None:
    """Raise an error if a column contains lists of class numbers, and its field name does not end in json."""
    if pa.types.is_nested(kind) and name.rpartition(".")[2].lower() != "json":
        found = f"column {column!r} (field {name}) holds lists of class numbers"
        remedy = f"Use {option_text('field', {f'{column}.json': column})}."
        raise InvalidRequest(option_text("field"), found, expected="a field name that ends in json", remedy=remedy)


def value_type(kind: pa.DataType) -> ValueType:
    """Return the `ValueType` for values of an Arrow type."""
    if pa.types.is_boolean(kind):
        return "bool"
    return "json" if pa.types.is_nested(kind) else number_type(kind) or "text"


def renumber_columns(
    column_of: Callable[[str], pa.ChunkedArray],
    classes: dict[str, list[str]],
    fields: Iterable[tuple[str, str]],
    requested_fields: Collection[str],
    class_lists: Classes | None,
) -> Iterator[tuple[str, pa.Array]]:
    """Renumber classes to match existing class lists. Yield each changed column with its new values.

    Args:
        classes: Class names by column. Updated in place.
        fields: Pairs of field and column.
        requested_fields: The fields to renumber. If empty, or if `class_lists` allows new classes, renumber all fields.
        class_lists: Existing class lists. If None, no column changes.
    """
    if class_lists is None:
        return
    if not (requested_fields or class_lists.allows_new or any(column in classes for _, column in fields)):
        expected = f"{option_text('classes')} in addition"
        raise InvalidRequest(option_text("classes_from"), "no field is converted to class numbers", expected=expected)
    for field, column in fields:
        is_requested = class_lists.allows_new or not requested_fields or field in requested_fields
        if column not in classes or not is_requested:
            continue
        values = column_of(column)
        if len(_unknown_class_positions(values, classes[column])):
            continue
        values = arrow.to_one_chunk(values) if isinstance(values, pa.ChunkedArray) else values
        is_list, class_names = pa.types.is_nested(values.type), [*map(unquote_to_bytes, classes[column])]
        flat = values.flatten() if is_list else values
        if class_lists.allows_new:
            all_names = [*dict.fromkeys([*class_lists.of(field), *classes[column]])]
            class_lists = class_lists._replace(names={**class_lists.names, field: all_names})
        used = {class_names[number] for number in pc.unique(flat).drop_null().to_pylist()}
        number_of, classes[column] = number_classes(used, field, class_lists)
        numbers = pa.array([number_of.get(name) for name in class_names], pa.int64()).take(flat)
        if len(classes[column]) <= 2 ** (flat.type.bit_width - 1):
            numbers = numbers.cast(flat.type)
        if is_list:
            ends = np.cumsum(arrow.number_values(pc.fill_null(pc.list_value_length(values), 0)))
            offsets = arrow.number_array(np.append(0, ends).astype(np.int32))
            numbers = pa.ListArray.from_arrays(offsets, numbers, mask=values.is_null())
        yield column, numbers


def number_labels(
    labels: pa.ChunkedArray, field: str, class_lists: Classes | None = None
) -> tuple[pa.Array, list[str]]:
    """Return the class number of each label as int64, and the class names (see `number_classes`).

    No label may be null.
    """
    encoded = labels.dictionary_encode()
    texts = render_column(pa.table({"": encoded.dictionary}), render_values)
    label_texts = texts.span(0, len(texts)).split(b"\0")[:-1]
    number_of, names = number_classes(set(label_texts), field, class_lists)
    numbers = np.array([number_of[label] for label in label_texts], np.int64)[arrow.number_values(encoded.indices)]
    return arrow.number_array(numbers), names
