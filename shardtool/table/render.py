"""Convert rows of Arrow tables to JSON, and single values to text.

The JSON of a row is `json.dumps(row, ensure_ascii=False, separators=(",", ":"))`, with names in the order of columns.
Some values have no JSON type:

- NaN becomes null.
- A float32 becomes the shortest number with the same float32 value.
- A decimal becomes a number with all digits.
- A date or time becomes ISO 8601 text. If it has a time zone, the text is in UTC and ends in Z.
- A duration becomes a string such as `PT12.5S`.
- A map becomes an object.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataclass import dataclass
from shardtool.entries import arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardtool.values import NumberType

    Render = Callable[[pa.Table], pa.Array]


_CONTROL_CODES = 32
_CHUNK_ROWS, _CHUNK_BYTES = 2**16, 2**24
_EMPTY = arrow.text_scalar("")
_NULL = arrow.text_scalar("null")
_QUOTE = arrow.text_scalar('"')
_NUL = arrow.text_scalar("\0")
_PLAIN_FLOAT_RANGE = (1e-4, 1e10)  # in this range, Arrow and Python write floats alike, except for a final `.0`


@dataclass(frozen=True, slots=True)
class ArrowStrings:
    """Strings that are created each time they are read, to save memory.

    Attributes:
        render: Function that creates the strings for a slice or for positions. Each string is followed by NUL.
        step: Maximum number of strings per call of `render`.
        positions: The positions of the selected strings, or None for all strings.
        size: The bytes of each encoded payload (see `decode_inline_payload`), if all have one size, or None.
    """

    count: int
    render: Callable[[NDArray[np.int64] | slice], pa.Array]
    step: int
    positions: NDArray[np.int64] | None = None
    size: int | None = None

    def __len__(self) -> int:
        return self.count if self.positions is None else len(self.positions)

    def take(self, positions: NDArray[np.int64]) -> ArrowStrings:
        """Select the strings at `positions`, without creating them."""
        return replace(self, positions=positions if self.positions is None else self.positions[positions])

    def lengths(self) -> NDArray[np.int64]:
        """Return the length of each string in bytes, or `size` if it is not None."""
        if self.size is not None:
            return np.full(len(self), self.size, np.int64)
        lengths, start = np.empty(len(self), np.int64), 0
        for chunk in self._iter_chunks(0, len(self)):
            lengths[start : start + len(chunk)] = arrow.byte_lengths(chunk) - 1
            start += len(chunk)
        return lengths

    def span(self, first: int, last: int) -> bytes:
        """Create the strings `first` to `last` (exclusive), each followed by a NUL."""
        return b"".join([arrow.concat_values(part) for part in self._iter_chunks(first, last)])

    def gather(self, positions: NDArray[np.int64]) -> bytes:
        """Return the strings at `positions` as bytes, each followed by a NUL."""
        return self.take(positions).span(0, len(positions))

    def _iter_chunks(self, first: int, last: int) -> Iterator[pa.Array]:
        for start in range(first, last, self.step):
            chunk = slice(start, min(start + self.step, last))
            yield self.render(chunk if self.positions is None else self.positions[chunk])


def render_column(table: pa.Table, render: Render) -> ArrowStrings:
    """Return the strings that `render` creates for the rows of a table. Each column must be one chunk."""

    def texts(rows: NDArray[np.int64] | slice) -> pa.Array:
        if isinstance(rows, slice):
            return render(table.slice(rows.start, rows.stop - rows.start))
        return render(table.take(arrow.number_array(rows)))

    row_bytes = table.nbytes // max(1, table.num_rows) + 1
    return ArrowStrings(table.num_rows, texts, max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row_bytes)))


def render_rows(table: pa.Table) -> pa.Array:
    """Return each row of a table as a JSON object, followed by NUL."""
    values = [_render_json(arrow.to_one_chunk(column)) for column in table.columns]
    return _render_object(table.column_names, values, "}\0")


def render_values(table: pa.Table) -> pa.Array:
    """Return the values of a one-column table as unquoted text, each followed by NUL. Booleans are 0 or 1."""
    array = arrow.to_plain(arrow.to_one_chunk(table.column(0)))
    if pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.int8())
    return _join_texts(_render_json(array) if pa.types.is_nested(array.type) else _render_scalar(array), _NUL)


def has_text_form(kind: pa.DataType) -> bool:
    """Return whether values of a type can be written as text. Bytes and intervals cannot."""
    try:
        _render_json(pa.nulls(0, kind))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, TypeError):
        return False
    return True


def _join_texts(*pieces: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="replace", null_replacement="null")


def _render_object(names: list[str], values: list[pa.Array], end: str) -> pa.Array:
    pieces: list[pa.Array] = []
    for name, value in zip(names, values, strict=True):
        label = f"{json.dumps(name, ensure_ascii=False)}:"
        pieces += [arrow.text_scalar(("," if pieces else "{") + label), value]
    return _join_texts(*pieces, arrow.text_scalar(end))


def _render_json(array: pa.Array) -> pa.Array:
    array = arrow.to_plain(array)
    kind = array.type
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return _keep_nulls(array, arrow.text_array(["{}"] * len(array)))
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return _keep_nulls(array, _render_object(names, [_render_json(part) for part in array.flatten()], "}"))
    if pa.types.is_map(kind):
        pairs = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _render_list(pc.cast(array, pa.list_(pairs)), _render_map, "{}")
    if pa.types.is_fixed_size_list(kind):
        array = pc.cast(array, pa.list_(kind.value_type))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _render_list(array, _render_json, "[]")
    if pa.types.is_nested(kind):
        raise TypeError(kind)
    texts = _render_scalar(array)
    if number_type(kind) is not None or pa.types.is_null(kind):
        return texts
    return pc.binary_join_element_wise(_QUOTE, _escape_json(texts), _QUOTE, _EMPTY)


def _render_map(array: pa.Array) -> pa.Array:
    keys, values = array.flatten()
    names = _escape_json(_render_scalar(arrow.to_plain(keys)))
    return _join_texts(_QUOTE, names, arrow.text_scalar('":'), _render_json(values))


def _render_list(array: pa.Array, render: Render, brackets: str) -> pa.Array:
    counts = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.concatenate(([0], np.cumsum(arrow.number_values(counts), dtype=np.int64)))
    elements = _join_texts(render(array.flatten()))
    texts = pa.LargeListArray.from_arrays(arrow.number_array(offsets), elements)
    joined = pc.binary_join(texts, arrow.text_scalar(","))
    return _keep_nulls(array, _join_texts(arrow.text_scalar(brackets[0]), joined, arrow.text_scalar(brackets[1])))


def _keep_nulls(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(array), texts, _NULL) if array.null_count else texts


def _render_scalar(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        raise TypeError(kind)
    if pa.types.is_timestamp(kind):
        texts = _drop_zero_fraction(pc.cast(array.view(pa.timestamp(kind.unit)), pa.large_string()))
        texts = pc.replace_substring(texts, " ", "T")
        return texts if kind.tz is None else pc.binary_join_element_wise(texts, arrow.text_scalar("Z"), _EMPTY)
    if pa.types.is_duration(kind):
        return _render_durations(array)
    texts = pc.cast(array, pa.large_string())
    if pa.types.is_floating(kind):
        return _python_float_text(array, texts)
    return _drop_zero_fraction(texts) if pa.types.is_time(kind) else texts


def _drop_zero_fraction(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, r"\.0+$", "")


def _render_durations(array: pa.Array) -> pa.Array:
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[array.type.unit]
    texts: list[str | None] = []
    for count in array.view(pa.int64()).to_pylist():
        if count is None:
            texts.append(None)
            continue
        seconds, rest = divmod(abs(count), 10**digits)
        fraction = f".{rest:0{digits}}" if rest else ""
        texts.append(f"{'-' if count < 0 else ''}PT{seconds}{fraction}S")
    return arrow.text_array(texts)


def _python_float_text(array: pa.Array, texts: pa.Array) -> pa.Array:
    # Arrow writes 1 and 0.00001, but Python writes 1.0 and 1e-05.
    values = arrow.number_values(array)
    size = np.abs(values)
    simple = ((size >= _PLAIN_FLOAT_RANGE[0]) & (size < _PLAIN_FLOAT_RANGE[1])) | (size == 0)
    texts = pc.replace_substring_regex(texts, pattern=r"^(-?\d+)$", replacement=r"\1.0")
    other_positions = np.flatnonzero(~simple)
    if len(other_positions):
        other_texts = texts.take(arrow.number_array(other_positions)).to_pylist()
        reprs = [None if text in (None, "nan") else repr(float(text)) for text in other_texts]
        mask = arrow.boolean_array(~simple)
        texts = pc.replace_with_mask(texts, mask, arrow.text_array(reprs))
    return texts


def _escape_json(array: pa.Array) -> pa.Array:
    data = np.frombuffer(arrow.concat_values(array), np.uint8)
    special = [*b'\\"', *range(_CONTROL_CODES if (data < _CONTROL_CODES).any() else 0)]
    for code in special:
        if (data == code).any():
            char = chr(code)
            array = pc.replace_substring(array, char, json.dumps(char)[1:-1])
    return array


def number_type(kind: pa.DataType) -> NumberType | None:
    """Return `int64` for Arrow integers and booleans, `float` for floats and decimals, or None for other types."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int64"
    return "float" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else None
