"""How messages name the rows of a table: row 1 is the first after the header."""

from __future__ import annotations

from shardtool.errors import InvalidRequest, listing
from shardtool.values import counted

_SHOWN = 5


def mixed_types(name: str, column: str, kinds: dict[str, list[int]]) -> InvalidRequest:
    """Return the error for a column with values of several types; `kinds` gives the rows of each."""
    most, *rare = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    found = [f"{kind} in {rows_text(kinds[kind])}" for kind in rare]
    return InvalidRequest(
        name, f"column {column!r} mixes types: {most} in {counted(len(kinds[most]), 'row')}, {listing(found)}",
        expected="values of one type",
    )  # fmt: skip


def rows_text(rows: list[int], *, total: int | None = None) -> str:
    """Return `row 3`, or `rows 3, 17 and 12 more`, for the numbers of rows, of which there are `total`."""
    total = len(rows) if total is None else total
    return f"row{'' if total == 1 else 's'} {listing([f'{row:,}' for row in rows[:_SHOWN]], total=total)}"
