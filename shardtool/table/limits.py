"""Limits of a table's shape that readers and output files can handle: columns, nesting, row size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text

if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_COLUMNS = 10_000  # each has its own part in the sidecar of each shard


MAX_NESTING = 32  # lists and structs in each other: Parquet's reader takes 100 of its own, up to three a level


MAX_ROW_BYTES = 2**28  # bytes of text: they are in memory several times, and a few in a compressed file may mean all


def check_shape(where: str, schema: pa.Schema) -> None:
    """Refuse a table with too many columns, or with one that is nested too deep.

    Raises:
        InvalidRequest: It has.
    """
    if len(schema) > MAX_COLUMNS:
        raise column_count_error(where, len(schema))
    for one in schema:
        left = MAX_COLUMNS
        for _, level in nested_types(one.type):
            if level > MAX_NESTING:
                raise nesting_error(f"{where}, column {one.name!r}")
            left -= 1
            if left < 0:
                found = f"column {one.name!r} with more than {MAX_COLUMNS:,} parts"
                raise InvalidRequest(where, found, expected="fewer")


def nested_types(kind: pa.DataType) -> Iterator[tuple[pa.DataType, int]]:
    """Yield each type within a type and its level, 1 for what lies in a column."""
    stack = [(kind, 0)]
    while stack:
        one, level = stack.pop()
        yield one, level
        if isinstance(one, pa.BaseExtensionType):
            stack.append((one.storage_type, level))
        elif pa.types.is_dictionary(one):
            stack.append((one.value_type, level))
        elif pa.types.is_nested(one):
            stack += [(one.field(at).type, level + 1) for at in range(one.num_fields)]


def column_count_error(where: str, count: int | None = None) -> InvalidRequest:
    """Return the error for a table with too many columns."""
    found = f"more than {MAX_COLUMNS:,} columns" if count is None else f"{count:,} columns"
    remedy = "Put numbers that belong together into one column of lists."
    return InvalidRequest(where, found, expected=f"at most {MAX_COLUMNS:,}", remedy=remedy)


def nesting_error(where: str) -> InvalidRequest:
    """Return the error for values that are nested too deep."""
    found = f"lists or objects more than {MAX_NESTING} deep in each other"
    return InvalidRequest(where, found, expected=f"at most {MAX_NESTING}", remedy="Write such a value as text.")


def row_size_error(where: str) -> InvalidRequest:
    """Return the error for a row that is too long."""
    found = f"a row of more than {MAX_ROW_BYTES >> 20} MiB"
    remedy = f"Write it to a file, and its path into the table ({option_text('files', {'FIELD': 'COLUMN'})})."
    return InvalidRequest(where, found, expected="less text in a row", remedy=remedy)
