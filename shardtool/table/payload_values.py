"""Column values as payloads: which values are not allowed, and the types and class numbers of the others.

Nulls are not checked here; `missing_positions` finds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import Classes, number_classes
from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.table.render import number_type, render_column, render_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.values import ValueType


_MAX_INT64 = 2**63 - 1


def missing_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a column is null or NaN."""
    if pa.types.is_floating(column.type):
        return arrow.true_positions(pc.is_null(column, nan_is_null=True))
    return arrow.true_positions(pc.is_null(column)) if column.null_count else np.zeros(0, np.int64)


def nul_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a text has a NUL in it."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return np.zeros(0, np.int64)
    return arrow.true_positions(pc.match_substring(column, "\0"))


def over_int64_positions(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a number is more than fits into int64."""
    if not pa.types.is_uint64(column.type):
        return np.zeros(0, np.int64)
    found = np.flatnonzero(arrow.number_values(column) > _MAX_INT64)
    return np.setdiff1d(found, missing_positions(column), assume_unique=True)  # at a null stands anything


def infinite_positions(column: pa.Array) -> NDArray[np.int64]:
    """Return where a column holds an infinite float, however deep."""
    kind = column.type
    if pa.types.is_floating(kind):
        return arrow.true_positions(pc.is_inf(column))
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
    refuse(nul_positions(column), f"column {name!r}: a NUL in the text", expected="text without")
    refuse(over_int64_positions(column), f"column {name!r}: a number over 2^63", expected="what fits into int64")
    if called is not None:
        expected, remedy = f"0 to {len(called) - 1:,}", f"{option_text('where')} can leave such rows out."
        found = f"column {name!r}: the number of no class"
        refuse(unknown_class_positions(column, called), found, expected=expected, remedy=remedy)
    if pa.types.is_nested(column.type):
        infinite = infinite_positions(column)
        refuse(infinite, f"column {name!r}: an infinite number", expected="what JSON has a form for")


def unknown_class_positions(column: pa.ChunkedArray, classes: Sequence[str]) -> NDArray[np.int64]:
    """Return where a number is that of none of some classes; in lists, none is looked for."""
    if not pa.types.is_integer(column.type):
        return np.zeros(0, np.int64)
    found = arrow.number_values(pc.fill_null(column, 0))
    return np.flatnonzero((found < 0) | (found >= len(classes)))


def check_list_field(name: str, column: str, kind: pa.DataType) -> None:
    """Refuse lists of class numbers as a field that readers take for one number.

    Raises:
        InvalidRequest: The field does not end in json.
    """
    if pa.types.is_nested(kind) and name.rpartition(".")[2].lower() != "json":
        found = f"column {column!r} (field {name}) holds lists of class numbers"
        remedy = f"Call it so: {option_text('values', {f'{column}.json': column})}."
        raise InvalidRequest(option_text("values"), found, expected="a field that ends in json", remedy=remedy)


def value_type(kind: pa.DataType) -> ValueType:
    """Return what a value of an Arrow type is, of which a field has the text."""
    if pa.types.is_boolean(kind):
        return "bool"
    return "json" if pa.types.is_nested(kind) else number_type(kind) or "text"


def renumber_columns(
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
        raise InvalidRequest(
            option_text("classes_from"), "no labels to number", expected=f"it with {option_text('classes')}"
        )
    for field, column in fields:
        values = column_of(column) if column in classes and (known.grows or not asked or field in asked) else None
        if values is None or len(unknown_class_positions(values, classes[column])):
            continue
        values = arrow.to_one_chunk(values) if isinstance(values, pa.ChunkedArray) else values
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
            ends = np.cumsum(arrow.number_values(pc.fill_null(pc.list_value_length(values), 0)))
            offsets = arrow.number_array(np.append(0, ends).astype(np.int32))
            numbers = pa.ListArray.from_arrays(offsets, numbers, mask=values.is_null())
        yield column, numbers


def number_labels(labels: pa.ChunkedArray, field: str, known: Classes | None = None) -> tuple[pa.Array, list[str]]:
    """Return labels, none of them null, as the numbers of their names, int64, and these.

    Args:
        labels: One per sample.
        field: That they become.
        known: The numbers that classes have already; None: names are in the order of their bytes.

    Raises:
        InvalidRequest: A label that is not among these.
    """
    found = labels.dictionary_encode()
    texts = render_column(pa.table({"": found.dictionary}), render_values)
    shown = texts.span(0, len(texts)).split(b"\0")[:-1]
    place, names = number_classes(set(shown), field, known)
    numbers = np.array([place[label] for label in shown], np.int64)[arrow.number_values(found.indices)]
    return arrow.number_array(numbers), names
