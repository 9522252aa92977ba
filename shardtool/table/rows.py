"""Raise errors with row numbers, and collect the rows with the same key. Row 1 follows the header."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.table.columns import missing_name_error
from shardtool.table.keys import find_repeated
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings


_MAX_LISTED_ROWS = 5
_MAX_EXAMPLES = 3
_MAX_SHOWN_CHARS = 120


def mixed_types_error(name: str, column: str, kinds: dict[str, list[int]]) -> InvalidRequest:
    """Return the error for a column that mixes types. `kinds` maps each type to its rows, counted from 1."""
    most, *rare = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    found = [f"{kind} in {format_rows(kinds[kind])}" for kind in rare]
    problem = f"column {column!r} mixes types: {most} in {pluralize(len(kinds[most]), 'row')}, {format_list(found)}"
    return InvalidRequest(name, problem, expected="values of one type")


def format_rows(rows: list[int], *, total: int | None = None) -> str:
    """Return a string such as `row 3`, or `rows 3, 17 and 12 more`. `rows` may be only the first of `total` rows."""
    total = len(rows) if total is None else total
    return f"row{'' if total == 1 else 's'} {format_list([f'{row:,}' for row in rows[:_MAX_LISTED_ROWS]], total=total)}"


class TableRows(NamedTuple):
    """The selected rows of a table.

    Attributes:
        numbers: The numbers of the selected rows, counted from 0. None for all rows.
        files: The result of `Table.row_counts`.
    """

    location: str
    columns: Mapping[str, pa.ChunkedArray]
    numbers: NDArray[np.int64] | None
    files: Sequence[tuple[str, int]] = ()

    def name_row(self, number: int) -> str:
        """Return a string such as `row 3` or `row 3 of b.csv`. `number` is counted from 0."""
        for file, count in self.files:
            if number < count:
                return f"row {number + 1:,} of {printable(file)}"
            number -= count
        return f"row {number + 1:,}"

    def _format_positions(self, positions: NDArray[np.int64]) -> str:
        first = positions[:_MAX_LISTED_ROWS]
        shown = first if self.numbers is None else self.numbers[first]
        if self.files:
            return format_list([self.name_row(number) for number in shown.tolist()], total=len(positions))
        return format_rows((shown + 1).tolist(), total=len(positions))

    def refuse(self, positions: NDArray[np.int64], found: str, *, expected: str = "", remedy: str = "") -> None:
        """Raise `InvalidRequest` for the rows at `positions`, if there are any."""
        if len(positions):
            found = f"{found} in {self._format_positions(positions)}"
            raise InvalidRequest(self.location, found, expected=expected, remedy=remedy)

    def refuse_differing(self, names: Iterable[str], first: NDArray[np.int64], *, expected: str, remedy: str) -> None:
        """Raise `InvalidRequest` if rows with the same key have different values in a column.

        `first[i]` is the first row with the same key as row i.
        """
        import pyarrow.compute as pc

        for name in names:
            column = self.columns[name]
            if pa.types.is_floating(column.type):
                column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
            first_values = column.take(arrow.number_array(first))
            if not column.equals(first_values):
                bad = [row for row in range(len(column)) if not column[row].equals(first_values[row])]
                found = f"column {name!r} differs from the first row with the same key,"
                self.refuse(np.array(bad, np.int64), found, expected=expected, remedy=remedy)

    def refuse_repeated_keys(
        self, keys: PackedStrings, positions: NDArray[np.int64] | None = None, *, expected: str, remedy: str
    ) -> None:
        """Raise `InvalidRequest` if a key occurs more than once.

        `positions` selects the keys to check (default: all).
        """
        if repeated := find_repeated(keys if positions is None else keys.take(positions)):
            position_lists = [np.array(at, np.int64) for at in islice(repeated.values(), _MAX_EXAMPLES)]
            rows = [self._format_positions(at if positions is None else positions[at]) for at in position_lists]
            pairs = zip(repeated, rows, strict=False)
            examples = [f"'{shorten(printable(key))}' ({row_text})" for key, row_text in pairs]
            listed = format_list(examples, _MAX_EXAMPLES, total=len(repeated))
            found = f"{pluralize(len(repeated), 'key')} more than once: {listed}"
            raise InvalidRequest(self.location, found, expected=expected, remedy=remedy)

    def examples(self, column: pa.ChunkedArray, positions: NDArray[np.int64]) -> str:
        """Return the values at the first few `positions`, for messages."""
        values = column.take(arrow.number_array(positions[:_MAX_EXAMPLES])).to_pylist()
        shown = [f"'{shorten(printable(str(value)))}'" for value in values]
        return format_list(shown, _MAX_EXAMPLES, total=len(positions))


def shorten(text: str) -> str:
    """Truncate a string for messages."""
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


ALL_COLUMNS = "all"


class RowGroups(NamedTuple):
    """Rows grouped by key.

    Attributes:
        first: int64[groups], the first row of each group.
        of_row: int64[rows], the group of each row.
    """

    first: NDArray[np.int64]
    of_row: NDArray[np.int64]


def group_rows(keys: pa.Array) -> RowGroups:
    """Group the rows with the same key. The groups are in the order of their first rows. No key may be null."""
    of_row = arrow.number_values(keys.dictionary_encode().indices).astype(np.int64)
    highest = np.maximum.accumulate(of_row)
    return RowGroups(np.flatnonzero(np.diff(highest, prepend=-1)), of_row)


def collected_note(rows: int, keys: int, name: str) -> str:
    """Return the note that rows of the table `name` were collected into lists."""
    return f"{pluralize(rows, 'row')} of {name} collected into lists for {pluralize(keys, 'key')}"


def collect_lists(columns: Mapping[str, pa.Array], of_row: NDArray[np.int64], count: int) -> dict[str, pa.Array]:
    """Return columns with one list per group. `of_row` has the group of each row, or -1 for a row to ignore."""
    order = np.argsort(of_row, kind="stable")[int(np.count_nonzero(of_row < 0)) :]
    ends = np.cumsum(np.bincount(of_row[order], minlength=count))
    offsets, rows = arrow.number_array(np.append(0, ends).astype(np.int32)), arrow.number_array(order)
    return {name: pa.ListArray.from_arrays(offsets, column.take(rows)) for name, column in columns.items()}


def collect_rows(
    rows: TableRows, names: Sequence[str], requested: Sequence[str], groups: RowGroups
) -> dict[str, pa.Array]:
    """Return the columns `names` with one value per group of rows.

    In `requested` columns, this value is the list of the group's values. `all` requests all columns. In other columns,
    all rows of a group must have the same value.
    """
    listed = names if [*requested] == [ALL_COLUMNS] else requested
    if unknown := [name for name in listed if name not in names]:
        raise missing_name_error("column", option_text("collect"), unknown[0], names)
    single = [name for name in names if name not in listed]
    remedy = f"Collect it, too, with {option_text('collect', ','.join([*listed, *single[:1]]))}."
    rows.refuse_differing(single, groups.first[groups.of_row], expected="one value for each key", remedy=remedy)
    lists = collect_lists({name: rows.columns[name] for name in listed}, groups.of_row, len(groups.first))
    first = arrow.number_array(groups.first)
    return {name: lists[name] if name in lists else rows.columns[name].take(first) for name in names}
