"""The rows of a table, and how messages name them: row 1 is the first after the header."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_SHOWN = 5  # rows in a message
_EXAMPLES = 3  # values
_SHOWN_LETTERS = 120  # of each value, or key


def mixed_types(name: str, column: str, kinds: dict[str, list[int]]) -> InvalidRequest:
    """Return the error for a column with values of several types; `kinds` gives the rows of each."""
    most, *rare = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    found = [f"{kind} in {rows_text(kinds[kind])}" for kind in rare]
    what = f"column {column!r} mixes types: {most} in {counted(len(kinds[most]), 'row')}, {listing(found)}"
    return InvalidRequest(name, what, expected="values of one type")


def rows_text(rows: list[int], *, total: int | None = None) -> str:
    """Return `row 3`, or `rows 3, 17 and 12 more`, for the numbers of rows, of which there are `total`."""
    total = len(rows) if total is None else total
    return f"row{'' if total == 1 else 's'} {listing([f'{row:,}' for row in rows[:_SHOWN]], total=total)}"


@dataclass(frozen=True, slots=True)
class Rows:
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
        first = at[:_SHOWN]
        shown = (first if self.numbers is None else self.numbers[first]) + 1
        return rows_text(shown.tolist(), total=len(at))

    def refuse(self, at: NDArray[np.int64], found: str, *, expected: str = "", remedy: str = "") -> None:
        """Raise for the rows at these places, where there are any.

        Raises:
            InvalidRequest: There are.
        """
        if len(at):
            raise InvalidRequest(self.where, f"{found} in {self.named(at)}", expected=expected, remedy=remedy)

    def examples(self, column: pa.ChunkedArray, at: NDArray[np.int64]) -> str:
        """Return the first few of the values at these places."""
        values = column.take(number_array(at[:_EXAMPLES])).to_pylist()
        return listing([f"'{short(printable(str(value)))}'" for value in values], _EXAMPLES, total=len(at))


def short(text: str) -> str:
    """Return the first letters of a text."""
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."
