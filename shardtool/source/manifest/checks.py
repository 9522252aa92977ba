"""Check the columns of a manifest. An error lists all rows with the same problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest
from shardtool.messages import flag_text, option_text
from shardtool.names import MAX_NAME_BYTES
from shardtool.source.manifest.paths import PathEndings, find_absolute, find_upward
from shardtool.source.manifest.roles import META_FIELD, ColumnRoles, meta_field_advice
from shardtool.table import columns as tables
from shardtool.table import keys, payloads, render
from shardtool.table.collect import ALL_COLUMNS
from shardtool.table.payloads import check_field_values
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings
    from shardtool.table.rows import TableRows


def check_column_types(rows: TableRows, roles: ColumnRoles, classes: Collection[str], schema: pa.Schema) -> None:
    """Raise an error if the type of a column does not fit its role."""
    bytes_remedy, any_text = f"Pack a column of bytes with {option_text('bytes')}.", "text or numbers"
    not_in_meta = f"exclude it from {option_text('meta')}."
    requirements: list[tuple[str, str, Callable[[pa.DataType], bool], str, str]] = []
    if roles.key is not None:
        requirements.append((roles.key, "key", keys.is_key_type, "text or whole numbers", ""))
    requirements += [(column, "path", tables.is_text_type, "text", bytes_remedy) for column in roles.paths()]
    requirements += [(column, "URL", tables.is_text_type, "text", "") for column in roles.columns_of("urls")]
    for name, column in roles.values:
        requirements.append((column, f"field {name}", render.has_text_form, any_text, bytes_remedy))
        if name in classes:
            requirements.append((column, "labels", lambda kind: not pa.types.is_nested(kind), any_text, ""))
    for column in roles.meta:
        remedy = f"Make it a field ({option_text('bytes', {'jpg': column})}), or {not_in_meta}"
        requirements.append((column, "metadata", render.has_text_form, "values that JSON can represent", remedy))
        remedy, expected = not_in_meta.capitalize(), "objects with a name in at least one row, which Parquet requires"
        requirements.append((column, "metadata", lambda kind: not tables.is_empty_struct(kind), expected, remedy))
    remedy = f"Pack a column of numbers with {option_text('field')}."
    requirements += [(column, "bytes", _holds_bytes, "bytes or text", remedy) for column in roles.columns_of("binary")]
    for column, role, is_right, expected, remedy in requirements:
        kind = rows.columns[column].type if column in rows.columns else schema.field(column).type
        if not is_right(kind):
            found = f"column {column!r} ({role}) holds {kind}"
            raise InvalidRequest(rows.location, found, expected=expected, remedy=remedy)


def _holds_bytes(kind: pa.DataType) -> bool:
    return tables.is_bytes_type(kind) or tables.is_wrapped_bytes(kind) or tables.is_text_type(kind)


def check_column_values(rows: TableRows, roles: ColumnRoles, classes: Mapping[str, list[str]]) -> None:
    """Refuse nulls in columns that must have values, and values that cannot be stored."""
    needed = [("key", roles.key)] if roles.key is not None else []
    needed += [("path", name) for name in roles.paths()] + [("value", name) for name in roles.columns_of("values")]
    for role, name in needed:
        missing = payloads.missing_positions(rows.columns[name])
        found = f"column {name!r}: no {role} (null or NaN)"
        remedy = f"Exclude such rows with {option_text('where')}."
        rows.refuse(missing, found, expected=f"a {role} in each row", remedy=remedy)
    for field, name in roles.values:
        check_field_values(field, name, rows.columns[name], classes.get(name), rows.refuse)
    for name in (*roles.paths(), *roles.columns_of("urls")):
        payloads.check_payload(name, rows.columns[name], classes.get(name), rows.refuse)
    for name in roles.meta:
        infinite = payloads.infinite_positions(rows.columns[name])
        expected = "values that JSON can represent"
        remedy = f"Make it null, or exclude the column from {option_text('meta')}."
        rows.refuse(infinite, f"column {name!r}: an infinite number", expected=expected, remedy=remedy)


def check_sizes(rows: TableRows, name: str) -> NDArray[np.int64]:
    """Check the column of file sizes, and return it as int64[rows]."""
    column, expected = rows.columns.get(name), "bytes of the file"
    if column is None or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InvalidRequest(option_text("size_column"), f"column {name!r} has no numbers", expected=expected)
    missing, inexact = payloads.missing_positions(column), keys.inexact_positions(column)
    rows.refuse(missing, f"column {name!r}: no size (null or NaN)", expected=expected)
    rows.refuse(inexact, f"column {name!r}: not a whole number", expected=expected)
    sizes = arrow.number_values(column).astype(np.int64)
    rows.refuse(np.flatnonzero(sizes < 0), f"column {name!r}: a negative size", expected=expected)
    return sizes


def check_paths(rows: TableRows, name: str, paths: pa.Array, *, outside: bool) -> None:
    """Refuse empty paths and URLs. Unless `outside` is true, also refuse paths that leave the root."""
    column = f"column {name!r}"
    original = rows.columns[name]
    empty = np.flatnonzero(arrow.byte_lengths(original) == 0)
    rows.refuse(empty, f"{column}: an empty path", expected="a path in each row")
    is_url = pc.match_substring_regex(original, r"^[A-Za-z][A-Za-z0-9+.-]+://")
    urls = arrow.true_positions(pc.and_(is_url, pc.match_substring_regex(paths, r"^[A-Za-z][A-Za-z0-9+.-]+:/")))
    if len(urls):
        problem = f"{column}: a URL, such as {rows.examples(original, urls[:1])},"
        remedy = f"Fetch them with {option_text('url', {'jpg': name})}."
        if pc.all(pc.match_substring_regex(original, "^(?i:s3|gs|az)://")).as_py():
            remedy = f"Name the address to which they are relative, such as {option_text('root', 's3://BUCKET')}."
        rows.refuse(urls, problem, expected="paths of files", remedy=remedy)
    if outside:
        return
    leaving = np.union1d(find_absolute(paths), find_upward(paths))
    if len(leaving):
        problem = f"{column}: a path that leaves the root, such as {rows.examples(original, leaving[:1])},"
        allow = flag_text("allow_outside")
        remedy = f"Name their common folder with {option_text('root')}, or allow them with {allow}."
        expected = f"paths below the manifest's folder, or {option_text('root')}"
        rows.refuse(leaving, problem, expected=expected, remedy=remedy)


def check_path_endings(rows: TableRows, name: str, endings: PathEndings, other_fields: list[str]) -> None:
    """Refuse paths without an extension, and extensions that equal the field name of another column."""
    column = rows.columns[name]
    if "" in endings.names:
        rows_with_problem = np.flatnonzero(endings.codes == endings.names.index(""))
        found = f"column {name!r}: a name without an extension, such as {rows.examples(column, rows_with_problem[:1])},"
        expected = "an extension that names the field, such as .jpg"
        remedy = f"Name the field: {option_text('file', {'jpg': name})}."
        rows.refuse(rows_with_problem, found, expected=expected, remedy=remedy)
    for field in sorted(set(endings.names) & set(other_fields)):
        rows_with_problem = np.flatnonzero(endings.codes == endings.names.index(field))
        found = f"column {name!r}: the extension of a file is the field {field!r} of another column"
        remedy = meta_field_advice() if field == META_FIELD else "Give the fields different names."
        rows.refuse(rows_with_problem, found, remedy=remedy)


def check_keys(rows: TableRows, column: str | None, bad: NDArray[np.int64]) -> None:
    """Refuse the invalid keys at the positions `bad`. `column` is None if keys are row numbers."""
    if column is not None and len(bad):
        shown = rows.examples(rows.columns[column], bad)
        problem = f"column {column!r}: {pluralize(len(bad), 'value')} that cannot be keys, such as {shown},"
        parts = "without control characters and parts such as '', '.' or '..'"
        expected = f"text of 1 to {MAX_NAME_BYTES:,} bytes, {parts}"
        rows.refuse(bad, problem, expected=expected, remedy=_key_advice())


def check_fields_differ(
    rows: TableRows, column: str | None, row_keys: PackedStrings, fields: NDArray[np.int64]
) -> None:
    """Refuse rows with the same key and field. `fields` has one number per row, which identifies key and field."""
    order = np.argsort(fields, kind="stable")
    repeated = np.flatnonzero(np.diff(fields[order]) == 0)
    if len(repeated):
        check_unique(rows, column, row_keys, np.union1d(order[repeated], order[repeated + 1]))


def _key_advice() -> str:
    key = option_text("key", "COLUMN")
    return f"Choose another column with {key}; the path column means the paths without their extensions."


def check_unique(
    rows: TableRows, column: str | None, row_keys: PackedStrings, positions: NDArray[np.int64] | None = None
) -> None:
    """Refuse keys that occur more than once, among all rows or those at `positions`."""
    expected, remedy = "a unique key for each row", _key_advice()
    if column:
        expected += f", from column {column!r}"
        key, collect = option_text("key", "COLUMN"), option_text("collect", ALL_COLUMNS)
        remedy = f"Choose another column with {key}, or collect the rows of each key with {collect}."
    rows.refuse_repeated_keys(row_keys, positions, expected=expected, remedy=remedy)
