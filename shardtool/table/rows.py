"""The selected rows of a table, and how messages name them. Row 1 is the first after the header."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.table.keys import find_repeated
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings


_MAX_LISTED_ROWS = 5  # rows in a message


_MAX_EXAMPLES = 3  # values, or keys


_MAX_SHOWN_CHARS = 120  # of each value, or key


def mixed_types_error(name: str, column: str, kinds: dict[str, list[int]]) -> InvalidRequest:
    """Return the error for a column with values of several types; `kinds` gives the rows of each."""
    most, *rare = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    found = [f"{kind} in {format_rows(kinds[kind])}" for kind in rare]
    what = f"column {column!r} mixes types: {most} in {pluralize(len(kinds[most]), 'row')}, {format_list(found)}"
    return InvalidRequest(name, what, expected="values of one type")


def format_rows(rows: list[int], *, total: int | None = None) -> str:
    """Return `row 3`, or `rows 3, 17 and 12 more`, for the numbers of rows, of which there are `total`."""
    total = len(rows) if total is None else total
    return f"row{'' if total == 1 else 's'} {format_list([f'{row:,}' for row in rows[:_MAX_LISTED_ROWS]], total=total)}"


class TableRows(NamedTuple):
    """The rows of a table that are left.

    Attributes:
        where: What the table is called.
        columns: Those that hold no bytes, an array each.
        numbers: int64, their numbers in the table, counted from 0; None: all are left.
    """

    where: str
    columns: Mapping[str, pa.ChunkedArray]
    numbers: NDArray[np.int64] | None

    def named(self, at: NDArray[np.int64]) -> str:
        """Return `rows 3, 17 and 12 more` for places among these rows."""
        first = at[:_MAX_LISTED_ROWS]
        shown = (first if self.numbers is None else self.numbers[first]) + 1
        return format_rows(shown.tolist(), total=len(at))

    def refuse(self, at: NDArray[np.int64], found: str, *, expected: str = "", remedy: str = "") -> None:
        """Raise for the rows at these places, where there are any.

        Raises:
            InvalidRequest: There are.
        """
        if len(at):
            raise InvalidRequest(self.where, f"{found} in {self.named(at)}", expected=expected, remedy=remedy)

    def refuse_repeated_keys(
        self, keys: PackedStrings, which: NDArray[np.int64] | None = None, *, expected: str, remedy: str
    ) -> None:
        """Raise for rows that share a key, where there are any: among those at the places `which`, or among all.

        Raises:
            InvalidRequest: There are.
        """
        if twice := find_repeated(keys if which is None else keys.take(which)):
            places = [np.array(at, np.int64) for at in islice(twice.values(), _MAX_EXAMPLES)]
            rows = [self.named(at if which is None else which[at]) for at in places]
            some = [f"'{shorten(printable(key))}' ({named})" for key, named in zip(twice, rows, strict=False)]
            found = (
                f"{pluralize(len(twice), 'key')} more than once: {format_list(some, _MAX_EXAMPLES, total=len(twice))}"
            )
            raise InvalidRequest(self.where, found, expected=expected, remedy=remedy)

    def examples(self, column: pa.ChunkedArray, at: NDArray[np.int64]) -> str:
        """Return the first few of the values at these places."""
        values = column.take(arrow.number_array(at[:_MAX_EXAMPLES])).to_pylist()
        return format_list([f"'{shorten(printable(str(value)))}'" for value in values], _MAX_EXAMPLES, total=len(at))


def shorten(text: str) -> str:
    """Return the first letters of a text."""
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
