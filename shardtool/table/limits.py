"""How large a table's shape may be: what readers, and the files that come of a table, stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_COLUMNS = 10_000  # each has its own part in the sidecar of each shard
MOST_LEVELS = 32  # lists and structs in each other: Parquet's reader takes 100 of its own, up to three a level
LONGEST_ROW = 2**28  # bytes of text: they are in memory several times, and a few in a compressed file may mean all


def check_shape(where: str, schema: pa.Schema) -> None:
    """Refuse a table with too many columns, or with one that is nested too deep.

    Raises:
        InvalidRequest: It has.
    """
    if len(schema) > MOST_COLUMNS:
        raise too_many_columns(where, len(schema))
    for one in schema:
        left = MOST_COLUMNS
        for level in _levels(one.type):
            if level > MOST_LEVELS:
                raise too_deep(f"{where}, column {one.name!r}")
            left -= 1
            if left < 0:
                found = f"column {one.name!r} with more than {MOST_COLUMNS:,} parts"
                raise InvalidRequest(where, found, expected="fewer")


def _levels(kind: pa.DataType) -> Iterator[int]:
    """Yield the level of each type within a type, 1 for what lies in a column."""
    stack = [(kind, 0)]
    while stack:
        one, level = stack.pop()
        yield level
        if isinstance(one, pa.BaseExtensionType):
            stack.append((one.storage_type, level))
        elif pa.types.is_dictionary(one):
            stack.append((one.value_type, level))
        elif pa.types.is_nested(one):
            stack += [(one.field(at).type, level + 1) for at in range(one.num_fields)]


def too_many_columns(where: str, count: int | None = None) -> InvalidRequest:
    """Return the error for a table with too many columns."""
    found = f"more than {MOST_COLUMNS:,} columns" if count is None else f"{count:,} columns"
    remedy = "Put numbers that belong together into one column of lists."
    return InvalidRequest(where, found, expected=f"at most {MOST_COLUMNS:,}", remedy=remedy)


def too_deep(where: str) -> InvalidRequest:
    """Return the error for values that are nested too deep."""
    found = f"lists or objects more than {MOST_LEVELS} deep in each other"
    return InvalidRequest(where, found, expected=f"at most {MOST_LEVELS}", remedy="Write such a value as text.")


def too_long(where: str) -> InvalidRequest:
    """Return the error for a row that is too long."""
    found = f"a row of more than {LONGEST_ROW >> 20} MiB"
    remedy = f"Write it to a file, and its path into the table ({option('files', {'FIELD': 'COLUMN'})})."
    return InvalidRequest(where, found, expected="less text in a row", remedy=remedy)
