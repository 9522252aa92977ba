"""Render rows as JSON and values as text, in Arrow, without a Python object per row.

The text of five million rows is never held: only its sizes are, and the text is rendered again for the rows of a
shard.

A row's JSON equals `json.dumps(row, ensure_ascii=False, separators=(",", ":"))`, with keys in column order. Values
without a JSON form: NaN is null; a float32 is the shortest number that reads back as the same float32; a decimal is
a
number with all its digits; dates, times and timestamps are ISO 8601 text (UTC, with a Z, if they have a time zone);
a
duration is `PT` seconds `S`; a map is an object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardtool.values import NumberType

    Render = Callable[[pa.Table], pa.Array]


_CONTROL_CODES = 32  # characters below it are control characters


_CHUNK_ROWS, _CHUNK_BYTES = 2**16, 2**24  # rows, or bytes of their columns, at a time


_EMPTY = arrow.text_scalar("")


_NULL = arrow.text_scalar("null")


_QUOTE = arrow.text_scalar('"')


_NUL = arrow.text_scalar("\0")


_PLAIN_FLOAT_RANGE = (1e-4, 1e10)  # the floats that Arrow writes as Python does, but for ".0"


@dataclass(frozen=True, slots=True)
class ArrowStrings:
    """Texts that are made when asked for.

    Attributes:
        count: How many there are.
        render: Makes some of them, with a NUL after each: those of a slice, or at some places.
        step: How many at a time.
        which: Those that are meant, of `count`; None: all.
        size: Bytes of the payload that each stands for, where all are coded (see `inline_payload`) and of one size.
    """

    count: int
    render: Callable[[NDArray[np.int64] | slice], pa.Array]
    step: int
    which: NDArray[np.int64] | None = None
    size: int | None = None

    def __len__(self) -> int:
        return self.count if self.which is None else len(self.which)

    def take(self, which: NDArray[np.int64]) -> ArrowStrings:
        """Return the texts `which`, in that order."""
        return replace(self, which=which if self.which is None else self.which[which])

    def lengths(self) -> NDArray[np.int64]:
        """Return the bytes of each payload: of the text, its NUL not counted, or of what it stands for."""
        if self.size is not None:
            return np.full(len(self), self.size, np.int64)
        found, done = np.empty(len(self), np.int64), 0
        for part in self._parts(0, len(self)):
            found[done : done + len(part)] = arrow.byte_lengths(part) - 1
            done += len(part)
        return found

    def span(self, first: int, last: int) -> bytes:
        """Return texts `first` to `last` (exclusive), a NUL after each."""
        return b"".join([arrow.concat_values(part) for part in self._parts(first, last)])

    def gather(self, which: NDArray[np.int64]) -> bytes:
        """Return the texts `which`, in that order, a NUL after each."""
        return self.take(which).span(0, len(which))

    def _parts(self, first: int, last: int) -> Iterator[pa.Array]:
        for at in range(first, last, self.step):
            some = slice(at, min(at + self.step, last))
            yield self.render(some if self.which is None else self.which[some])


def render_column(table: pa.Table, render: Render) -> ArrowStrings:
    """Return a text for each row of a table, of columns of one chunk each; `render` makes those of a slice of it."""

    def texts(which: NDArray[np.int64] | slice) -> pa.Array:
        if isinstance(which, slice):
            return render(table.slice(which.start, which.stop - which.start))
        return render(table.take(arrow.number_array(which)))

    row = table.nbytes // max(1, table.num_rows) + 1
    return ArrowStrings(table.num_rows, texts, max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // row)))


def render_rows(table: pa.Table) -> pa.Array:
    """Return the JSON object of each row, and a NUL."""
    return _render_object(
        table.column_names, [_render_json(arrow.to_one_chunk(column)) for column in table.columns], "}\0"
    )


def render_values(table: pa.Table) -> pa.Array:
    """Return the value of each row of a table of one column, and a NUL; without quotes, and 0 or 1 for a truth."""
    array = arrow.to_plain(arrow.to_one_chunk(table.column(0)))
    if pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.int8())
    return _join_texts(_render_json(array) if pa.types.is_nested(array.type) else _render_scalar(array), _NUL)


def has_text_form(kind: pa.DataType) -> bool:
    """Tell whether values of an Arrow type have a text: all but bytes, intervals and such."""
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
    """Return the JSON of each value, as large_string; a null may stay one."""
    array = arrow.to_plain(array)
    kind = array.type
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return _keep_nulls(array, arrow.text_array(["{}"] * len(array)))
        names = [kind.field(at).name for at in range(kind.num_fields)]
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
    found = _render_scalar(array)
    if number_type(kind) is not None or pa.types.is_null(kind):
        return found
    return pc.binary_join_element_wise(_QUOTE, _escape_json(found), _QUOTE, _EMPTY)


def _render_map(array: pa.Array) -> pa.Array:
    keys, values = array.flatten()
    return _join_texts(
        _QUOTE, _escape_json(_render_scalar(arrow.to_plain(keys))), arrow.text_scalar('":'), _render_json(values)
    )


def _render_list(array: pa.Array, render: Render, brackets: str) -> pa.Array:
    counts = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.concatenate(([0], np.cumsum(arrow.number_values(counts), dtype=np.int64)))
    elements = _join_texts(render(array.flatten()))  # so that a null in a list is the text null
    joined = pc.binary_join(
        pa.LargeListArray.from_arrays(arrow.number_array(offsets), elements), arrow.text_scalar(",")
    )
    return _keep_nulls(array, _join_texts(arrow.text_scalar(brackets[0]), joined, arrow.text_scalar(brackets[1])))


def _keep_nulls(array: pa.Array, found: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(array), found, _NULL) if array.null_count else found


def _render_scalar(array: pa.Array) -> pa.Array:
    """Return the text of each value that is no list or the like, without quotes, as large_string; a null stays one."""
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        raise TypeError(kind)
    if pa.types.is_timestamp(kind):
        found = _drop_zero_fraction(pc.cast(array.view(pa.timestamp(kind.unit)), pa.large_string()))
        found = pc.replace_substring(found, " ", "T")
        return found if kind.tz is None else pc.binary_join_element_wise(found, arrow.text_scalar("Z"), _EMPTY)
    if pa.types.is_duration(kind):
        return _render_seconds(array)
    found = pc.cast(array, pa.large_string())
    if pa.types.is_floating(kind):
        return _python_float_text(array, found)
    return _drop_zero_fraction(found) if pa.types.is_time(kind) else found


def _drop_zero_fraction(found: pa.Array) -> pa.Array:
    """Return times without a fraction of zero: the same instant has the same text, whatever the unit of its column."""
    return pc.replace_substring_regex(found, r"\.0+$", "")


def _render_seconds(array: pa.Array) -> pa.Array:
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[array.type.unit]
    found: list[str | None] = []
    for count in array.view(pa.int64()).to_pylist():
        if count is None:
            found.append(None)
            continue
        whole, part = divmod(abs(count), 10**digits)
        fraction = f".{part:0{digits}}" if part else ""
        found.append(f"{'-' if count < 0 else ''}PT{whole}{fraction}S")
    return arrow.text_array(found)


def _python_float_text(array: pa.Array, found: pa.Array) -> pa.Array:
    """Return what Python's `repr` says of floats whose shortest digits are `found`: 1.0 for 1, 1e-05 for 0.00001."""
    values = arrow.number_values(array)
    size = np.abs(values)
    simple = ((size >= _PLAIN_FLOAT_RANGE[0]) & (size < _PLAIN_FLOAT_RANGE[1])) | (size == 0)
    found = pc.replace_substring_regex(found, pattern=r"^(-?\d+)$", replacement=r"\1.0")
    other = np.flatnonzero(~simple)
    if len(other):
        again = found.take(arrow.number_array(other)).to_pylist()
        shown = [None if one in (None, "nan") else repr(float(one)) for one in again]
        mask = arrow.boolean_array(~simple)
        found = pc.replace_with_mask(found, mask, arrow.text_array(shown))
    return found


def _escape_json(array: pa.Array) -> pa.Array:
    """Return text as it stands between the quotes of JSON."""
    data = np.frombuffer(arrow.concat_values(array), np.uint8)
    special = [*b'\\"', *range(_CONTROL_CODES if (data < _CONTROL_CODES).any() else 0)]  # the backslash first
    for code in special:
        if (data == code).any():
            char = chr(code)
            array = pc.replace_substring(array, char, json.dumps(char)[1:-1])
    return array


def number_type(kind: pa.DataType) -> NumberType | None:
    """Return the number that the text of a value of an Arrow type stands for, where it stands for one."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int64"
    return "float" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else None
