"""Values of a column as payload: which of them cannot be one, and what a field of them is.

Where a value is null there is none to judge; `missing_places` finds those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.entries.classes import number_classes
from shardtool.table import arrays
from shardtool.table.json_text import ColumnTexts, render_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.classes import Classes
    from shardtool.values import Number

_INT64 = 2**63 - 1


def missing_places(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a column is null or NaN."""
    if pa.types.is_floating(column.type):
        return arrays.places(pc.is_null(column, nan_is_null=True))
    return arrays.places(pc.is_null(column)) if column.null_count else np.zeros(0, np.int64)


def nul_places(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a text has a NUL in it."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return np.zeros(0, np.int64)
    return arrays.places(pc.match_substring(column, "\0"))


def large_places(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a number is more than fits into int64."""
    if not pa.types.is_uint64(column.type):
        return np.zeros(0, np.int64)
    found = np.flatnonzero(arrow.numbers(column) > _INT64)
    return np.setdiff1d(found, missing_places(column), assume_unique=True)  # at a null stands anything


def number_of(kind: pa.DataType) -> Number | None:
    """Return the number that the text of a value of an Arrow type stands for, where it stands for one."""
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int64"
    return "float" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else None


def numbered(labels: pa.ChunkedArray, field: str, known: Classes | None = None) -> tuple[pa.Array, list[str]]:
    """Return labels, none of them null, as the numbers of their names, and these.

    Args:
        labels: One per sample.
        field: That they become.
        known: The numbers that classes have already; None: names are in the order of their bytes.

    Raises:
        InvalidRequest: A label that is not among these.
    """
    found = labels.dictionary_encode()
    texts = ColumnTexts(pa.table({"": found.dictionary}), render_values)
    shown = texts.span(0, len(texts)).split(b"\0")[:-1]
    place, names = number_classes(set(shown), field, known)
    numbers = np.array([place[label] for label in shown], np.int32)[arrow.numbers(found.indices)]
    return number_array(numbers), names
