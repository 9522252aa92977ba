"""Columns as text: the JSON of a row, and the value of a column.

The text of five million rows is never held: its sizes are, and it is made again for the rows of a
shard. No Python object is made for a row.

A row's JSON is what `json.dumps(row, ensure_ascii=False, separators=(",", ":"))` gives, keys in the
order of the columns. What JSON has no form for: NaN is null; a float32 is the shortest number that
reads back as the same float32; a decimal is a number with all its digits; dates, times and
timestamps are ISO 8601 text (UTC, with a Z, where they have a time zone); a duration is
`PT` seconds `S`; a map is an object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import Classes, number_classes
from shardtool.errors import InvalidRequest
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.values import Number, ValueType

    Render = Callable[[pa.Table], pa.Array]


_CONTROLS = 32  # characters below it are control characters
_CHUNK, _CHUNK_BYTES = 2**16, 2**24  # rows, or bytes of their columns, at a time
_EMPTY = arrow.text("")
_NULL = arrow.text("null")
_QUOTE = arrow.text('"')
_END = arrow.text("\0")
_SIMPLE = (1e-4, 1e10)  # the floats that Arrow writes as Python does, but for ".0"


@dataclass(frozen=True, slots=True)
class ArrowTexts:
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

    def take(self, which: NDArray[np.int64]) -> ArrowTexts:
        """Return the texts `which`, in that order."""
        return replace(self, which=which if self.which is None else self.which[which])

    def lengths(self) -> NDArray[np.int64]:
        """Return the bytes of each payload: of the text, its NUL not counted, or of what it stands for."""
        if self.size is not None:
            return np.full(len(self), self.size, np.int64)
        found, done = np.empty(len(self), np.int64), 0
        for part in self._parts(0, len(self)):
            found[done : done + len(part)] = arrow.lengths(part) - 1
            done += len(part)
        return found

    def span(self, first: int, last: int) -> bytes:
        """Return texts `first` to `last` (exclusive), a NUL after each."""
        return b"".join([arrow.payload(part) for part in self._parts(first, last)])

    def gather(self, which: NDArray[np.int64]) -> bytes:
        """Return the texts `which`, in that order, a NUL after each."""
        return self.take(which).span(0, len(which))

    def _parts(self, first: int, last: int) -> Iterator[pa.Array]:
        for at in range(first, last, self.step):
            some = slice(at, min(at + self.step, last))
            yield self.render(some if self.which is None else self.which[some])


def column_texts(table: pa.Table, render: Render) -> ArrowTexts:
    """Return a text for each row of a table, of columns of one chunk each; `render` makes those of a slice of it."""

    def texts(which: NDArray[np.int64] | slice) -> pa.Array:
        if isinstance(which, slice):
            return render(table.slice(which.start, which.stop - which.start))
        return render(table.take(arrow.number_array(which)))

    row = table.nbytes // max(1, table.num_rows) + 1
    return ArrowTexts(table.num_rows, texts, max(1, min(_CHUNK, _CHUNK_BYTES // row)))


def render_rows(table: pa.Table) -> pa.Array:
    """Return the JSON object of each row, and a NUL."""
    return _object(table.column_names, [_json(arrow.one_chunk(column)) for column in table.columns], "}\0")


def render_values(table: pa.Table) -> pa.Array:
    """Return the value of each row of a table of one column, and a NUL; without quotes, and 0 or 1 for a truth."""
    array = arrow.plain(arrow.one_chunk(table.column(0)))
    if pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.int8())
    return _join(_json(array) if pa.types.is_nested(array.type) else _plain(array), _END)


def has_text(kind: pa.DataType) -> bool:
    """Tell whether values of an Arrow type have a text: all but bytes, intervals and such."""
    try:
        _json(pa.nulls(0, kind))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, TypeError):
        return False
    return True


def _join(*pieces: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, _EMPTY, null_handling="replace", null_replacement="null")


def _object(names: list[str], values: list[pa.Array], end: str) -> pa.Array:
    pieces: list[pa.Array] = []
    for name, value in zip(names, values, strict=True):
        label = f"{json.dumps(name, ensure_ascii=False)}:"
        pieces += [arrow.text(("," if pieces else "{") + label), value]
    return _join(*pieces, arrow.text(end))


def _json(array: pa.Array) -> pa.Array:
    """Return the JSON of each value, as large_string; a null may stay one."""
    array = arrow.plain(array)
    kind = array.type
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return _unless_null(array, arrow.texts(["{}"] * len(array)))
        names = [kind.field(at).name for at in range(kind.num_fields)]
        return _unless_null(array, _object(names, [_json(part) for part in array.flatten()], "}"))
    if pa.types.is_map(kind):
        pairs = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _list(pc.cast(array, pa.list_(pairs)), _pairs, "{}")
    if pa.types.is_fixed_size_list(kind):
        array = pc.cast(array, pa.list_(kind.value_type))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _list(array, _json, "[]")
    if pa.types.is_nested(kind):
        raise TypeError(kind)
    found = _plain(array)
    if number_of(kind) is not None or pa.types.is_null(kind):
        return found
    return pc.binary_join_element_wise(_QUOTE, _escape(found), _QUOTE, _EMPTY)


def _pairs(array: pa.Array) -> pa.Array:
    keys, values = array.flatten()
    return _join(_QUOTE, _escape(_plain(arrow.plain(keys))), arrow.text('":'), _json(values))


def _list(array: pa.Array, render: Render, brackets: str) -> pa.Array:
    counts = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.concatenate(([0], np.cumsum(arrow.numbers(counts), dtype=np.int64)))
    elements = _join(render(array.flatten()))  # so that a null in a list is the text null
    joined = pc.binary_join(pa.LargeListArray.from_arrays(arrow.number_array(offsets), elements), arrow.text(","))
    return _unless_null(array, _join(arrow.text(brackets[0]), joined, arrow.text(brackets[1])))


def _unless_null(array: pa.Array, found: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(array), found, _NULL) if array.null_count else found


def _plain(array: pa.Array) -> pa.Array:
    """Return the text of each value that is no list or the like, without quotes, as large_string; a null stays one."""
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        raise TypeError(kind)
    if pa.types.is_timestamp(kind):
        found = _whole(pc.cast(array.view(pa.timestamp(kind.unit)), pa.large_string()))
        found = pc.replace_substring(found, " ", "T")
        return found if kind.tz is None else pc.binary_join_element_wise(found, arrow.text("Z"), _EMPTY)
    if pa.types.is_duration(kind):
        return _seconds(array)
    found = pc.cast(array, pa.large_string())
    if pa.types.is_floating(kind):
        return _as_python(array, found)
    return _whole(found) if pa.types.is_time(kind) else found


def _whole(found: pa.Array) -> pa.Array:
    """Return times without a fraction of zero: the same instant has the same text, whatever the unit of its column."""
    return pc.replace_substring_regex(found, r"\.0+$", "")


def _seconds(array: pa.Array) -> pa.Array:
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[array.type.unit]
    found: list[str | None] = []
    for count in array.view(pa.int64()).to_pylist():
        if count is None:
            found.append(None)
            continue
        whole, part = divmod(abs(count), 10**digits)
        fraction = f".{part:0{digits}}" if part else ""
        found.append(f"{'-' if count < 0 else ''}PT{whole}{fraction}S")
    return arrow.texts(found)


def _as_python(array: pa.Array, found: pa.Array) -> pa.Array:
    """Return what Python's `repr` says of floats whose shortest digits are `found`: 1.0 for 1, 1e-05 for 0.00001."""
    values = arrow.numbers(array)
    size = np.abs(values)
    simple = ((size >= _SIMPLE[0]) & (size < _SIMPLE[1])) | (size == 0)
    found = pc.replace_substring_regex(found, pattern=r"^(-?\d+)$", replacement=r"\1.0")
    other = np.flatnonzero(~simple)
    if len(other):
        again = found.take(arrow.number_array(other)).to_pylist()
        shown = [None if one in (None, "nan") else repr(float(one)) for one in again]
        mask = arrow.truths(~simple)
        found = pc.replace_with_mask(found, mask, arrow.texts(shown))
    return found


def _escape(array: pa.Array) -> pa.Array:
    """Return text as it stands between the quotes of JSON."""
    data = np.frombuffer(arrow.payload(array), np.uint8)
    special = [*b'\\"', *range(_CONTROLS if (data < _CONTROLS).any() else 0)]  # the backslash first
    for code in special:
        if (data == code).any():
            char = chr(code)
            array = pc.replace_substring(array, char, json.dumps(char)[1:-1])
    return array


# Values of a column as payload: which of them cannot be one, and what a field of them is.
#
# Where a value is null there is none to judge; `missing_places` finds those.


_INT64 = 2**63 - 1


def missing_places(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a column is null or NaN."""
    if pa.types.is_floating(column.type):
        return arrow.places(pc.is_null(column, nan_is_null=True))
    return arrow.places(pc.is_null(column)) if column.null_count else np.zeros(0, np.int64)


def nul_places(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a text has a NUL in it."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return np.zeros(0, np.int64)
    return arrow.places(pc.match_substring(column, "\0"))


def large_places(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a number is more than fits into int64."""
    if not pa.types.is_uint64(column.type):
        return np.zeros(0, np.int64)
    found = np.flatnonzero(arrow.numbers(column) > _INT64)
    return np.setdiff1d(found, missing_places(column), assume_unique=True)  # at a null stands anything


def infinite_places(column: pa.Array) -> NDArray[np.int64]:
    """Return where a column holds an infinite float, however deep."""
    kind = column.type
    if pa.types.is_floating(kind):
        return arrow.places(pc.is_inf(column))
    if not pa.types.is_nested(kind) or not _has_infinite(column):
        return np.zeros(0, np.int64)
    return np.array([at for at in range(len(column)) if _has_infinite(column.slice(at, 1))], np.int64)


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
    name: str, column: pa.ChunkedArray, called: Sequence[str] | None, refuse: Callable[..., None]
) -> None:
    """Refuse values of a column that no field can hold.

    Args:
        name: What the column is called.
        column: It.
        called: The names of classes, where the values are their numbers, or lists of these.
        refuse: Raises for the rows at some places, where there are any: see `Rows.refuse`.

    Raises:
        InvalidRequest: There are such values.
    """
    refuse(nul_places(column), f"column {name!r}: a NUL in the text", expected="text without")
    refuse(large_places(column), f"column {name!r}: a number over 2^63", expected="what fits into int64")
    if called is not None:
        expected, remedy = f"0 to {len(called) - 1:,}", f"{option('where')} can leave such rows out."
        found = f"column {name!r}: the number of no class"
        refuse(unnamed_places(column, called), found, expected=expected, remedy=remedy)
    if pa.types.is_nested(column.type):
        infinite = infinite_places(column)
        refuse(infinite, f"column {name!r}: an infinite number", expected="what JSON has a form for")


def unnamed_places(column: pa.ChunkedArray, classes: Sequence[str]) -> NDArray[np.int64]:
    """Return where a number is that of none of some classes; in lists, none is looked for."""
    if not pa.types.is_integer(column.type):
        return np.zeros(0, np.int64)
    found = arrow.numbers(pc.fill_null(column, 0))
    return np.flatnonzero((found < 0) | (found >= len(classes)))


def check_list_field(name: str, column: str, kind: pa.DataType) -> None:
    """Refuse lists of class numbers as a field that readers take for one number.

    Raises:
        InvalidRequest: The field does not end in json.
    """
    if pa.types.is_nested(kind) and name.rpartition(".")[2].lower() != "json":
        found = f"column {column!r} (field {name}) holds lists of class numbers"
        remedy = f"Call it so: {option('values', {f'{column}.json': column})}."
        raise InvalidRequest(option("values"), found, expected="a field that ends in json", remedy=remedy)


def number_of(kind: pa.DataType) -> Number | None:
    """Return the number that the text of a value of an Arrow type stands for, where it stands for one."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int64"
    return "float" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else None


def type_of(kind: pa.DataType) -> ValueType:
    """Return what a value of an Arrow type is, of which a field has the text."""
    if pa.types.is_boolean(kind):
        return "bool"
    return "json" if pa.types.is_nested(kind) else number_of(kind) or "text"


def numbers_kept(
    column_of: Callable[[str], pa.ChunkedArray],
    classes: dict[str, list[str]],
    fields: Iterable[tuple[str, str]],
    asked: Collection[str],
    known: Classes | None,
) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns of class numbers that become fields, numbered as the classes that are known already.

    Args:
        column_of: Returns a column.
        classes: The names of classes of columns; those that are known take their place.
        fields: (field, column).
        asked: The fields whose labels a list is for that does not grow; empty: for all.
        known: The numbers that classes have already; None: those of the columns stay.

    Raises:
        InvalidRequest: A class that a list does not have which does not grow; or it is for none of the fields.
    """
    if known is None:
        return
    if not (asked or known.grows or any(column in classes for _, column in fields)):
        raise InvalidRequest(option("classes_from"), "no labels to number", expected=f"it with {option('classes')}")
    for field, column in fields:
        values = column_of(column) if column in classes and (known.grows or not asked or field in asked) else None
        if values is None or len(unnamed_places(values, classes[column])):
            continue
        values = arrow.one_chunk(values) if isinstance(values, pa.ChunkedArray) else values
        is_list, called = pa.types.is_nested(values.type), [*map(unquote_to_bytes, classes[column])]
        flat = values.flatten() if is_list else values
        if known.grows:  # by all classes of the table, in its order
            known = known._replace(names={**known.names, field: [*dict.fromkeys([*known.of(field), *classes[column]])]})
        used = {called[number] for number in pc.unique(flat).drop_null().to_pylist()}
        place, classes[column] = number_classes(used, field, known)
        numbers = pa.array([place.get(name) for name in called], pa.int64()).take(flat)
        if len(classes[column]) <= 2 ** (flat.type.bit_width - 1):
            numbers = numbers.cast(flat.type)
        if is_list:
            ends = np.cumsum(arrow.numbers(pc.fill_null(pc.list_value_length(values), 0)))
            offsets = arrow.number_array(np.append(0, ends).astype(np.int32))
            numbers = pa.ListArray.from_arrays(offsets, numbers, mask=values.is_null())
        yield column, numbers


def numbered(labels: pa.ChunkedArray, field: str, known: Classes | None = None) -> tuple[pa.Array, list[str]]:
    """Return labels, none of them null, as the numbers of their names, int64, and these.

    Args:
        labels: One per sample.
        field: That they become.
        known: The numbers that classes have already; None: names are in the order of their bytes.

    Raises:
        InvalidRequest: A label that is not among these.
    """
    found = labels.dictionary_encode()
    texts = column_texts(pa.table({"": found.dictionary}), render_values)
    shown = texts.span(0, len(texts)).split(b"\0")[:-1]
    place, names = number_classes(set(shown), field, known)
    numbers = np.array([place[label] for label in shown], np.int64)[arrow.numbers(found.indices)]
    return arrow.number_array(numbers), names
