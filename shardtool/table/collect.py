"""Collect the values of rows that share a key into lists, in the order of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.messages import option_text
from shardtool.table.columns import missing_name_error
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.table.rows import TableRows


ALL_COLUMNS = "all"


class RowGroups(NamedTuple):
    """Groups of rows with the same key.

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
    """Return columns with one list per group. `of_row` is the group of each row, or -1 for rows to ignore."""
    order = np.argsort(of_row, kind="stable")[int(np.count_nonzero(of_row < 0)) :]
    ends = np.cumsum(np.bincount(of_row[order], minlength=count))
    offsets, rows = arrow.number_array(np.append(0, ends).astype(np.int32)), arrow.number_array(order)
    return {name: pa.ListArray.from_arrays(offsets, column.take(rows)) for name, column in columns.items()}


def collect_rows(
    rows: TableRows, names: Sequence[str], requested: Sequence[str], groups: RowGroups
) -> dict[str, pa.Array]:
    """Return the columns `names` with one value per group of rows.

    In `requested` columns (or `all`), this value is a list. In others, all rows of a group must have the same value.
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
