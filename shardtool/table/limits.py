"""Limits on a table's columns, nesting and row size, which readers and output files can handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text

if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_COLUMNS = 10_000  # each takes space in the sidecar of every shard
MAX_NESTING = 32  # Parquet's reader accepts 100 levels, and a list or struct takes up to three
MAX_ROW_BYTES = 2**28  # text is copied several times, and a small compressed file may expand to this


def check_shape(location: str, schema: pa.Schema) -> None:
    """Refuse a table with too many columns, or with too deep nesting.

    Raises:
        InvalidRequest: The table exceeds a limit.
    """
    if len(schema) > MAX_COLUMNS:
        raise column_count_error(location, len(schema))
    for field in schema:
        remaining = MAX_COLUMNS
        for _, level in nested_types(field.type):
            if level > MAX_NESTING:
                raise nesting_error(f"{location}, column {field.name!r}")
            remaining -= 1
            if remaining < 0:
                found = f"column {field.name!r} with more than {MAX_COLUMNS:,} nested values"
                raise InvalidRequest(location, found, expected="fewer")


def nested_types(kind: pa.DataType) -> Iterator[tuple[pa.DataType, int]]:
    """Yield a type and all types nested in it, with their levels; the type itself has level 0."""
    stack = [(kind, 0)]
    while stack:
        current, level = stack.pop()
        yield current, level
        if isinstance(current, pa.BaseExtensionType):
            stack.append((current.storage_type, level))
        elif pa.types.is_dictionary(current):
            stack.append((current.value_type, level))
        elif pa.types.is_nested(current):
            stack += [(current.field(index).type, level + 1) for index in range(current.num_fields)]


def column_count_error(location: str, count: int | None = None) -> InvalidRequest:
    """Return the error for a table with too many columns."""
    found = f"more than {MAX_COLUMNS:,} columns" if count is None else f"{count:,} columns"
    remedy = "Store related numbers in one list column."
    return InvalidRequest(location, found, expected=f"at most {MAX_COLUMNS:,}", remedy=remedy)


def nesting_error(location: str) -> InvalidRequest:
    """Return the error for too deeply nested values."""
    found = f"lists or objects nested more than {MAX_NESTING} levels deep"
    return InvalidRequest(location, found, expected=f"at most {MAX_NESTING}", remedy="Store the value as text.")


def row_size_error(location: str) -> InvalidRequest:
    """Return the error for a row that is too long."""
    found = f"a row of more than {MAX_ROW_BYTES >> 20} MiB"
    remedy = f"Store the text in a file and its path in the table ({option_text('files', {'FIELD': 'COLUMN'})})."
    return InvalidRequest(location, found, expected="a shorter row", remedy=remedy)
