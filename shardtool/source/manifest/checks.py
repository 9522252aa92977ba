"""Check the columns of a manifest.

Each kind of problem is one error that lists the row numbers. Row 1 is the first row after the header.
"""

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
from shardtool.table import keys, payload_values, render, rows
from shardtool.table.payloads import check_field_values
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings
    from shardtool.select.grouping import SampleGroups


def check_column_types(rows: rows.TableRows, roles: ColumnRoles, classes: Collection[str], schema: pa.Schema) -> None:
    """Refuse columns whose types cannot be what they are used for.

    Args:
        rows: The rows of the table.
        roles: What each column is for.
        classes: The fields whose values are numbered.
        schema: The columns of the table, with those of bytes.

    Raises:
        InvalidRequest: There are such columns.
    """
    bytes_remedy, any_text = f"{option_text('binary')} takes a column of bytes.", "text or numbers"
    not_in_meta = f"leave it out of {option_text('meta')}."
    wanted: list[tuple[str, str, Callable[[pa.DataType], bool], str, str]] = []
    if roles.key is not None:
        wanted.append((roles.key, "key", keys.is_key_type, "text or whole numbers", ""))
    wanted += [(column, "path", tables.is_text_type, "text", bytes_remedy) for column in roles.paths()]
    wanted += [(column, "URL", tables.is_text_type, "text", "") for column in roles.columns_of("urls")]
    for one, column in roles.values:
        wanted.append((column, f"field {one}", render.has_text_form, any_text, bytes_remedy))
        if one in classes:
            wanted.append((column, "labels", lambda kind: not pa.types.is_nested(kind), any_text, ""))
    for column in roles.meta:
        cure = f"Make it a field ({option_text('binary', {'jpg': column})}), or {not_in_meta}"
        wanted.append((column, "metadata", render.has_text_form, "what JSON has a form for", cure))
        expected = "objects with a name in some row, as Parquet needs"
        wanted.append(
            (column, "metadata", lambda kind: not tables.is_empty_struct(kind), expected, not_in_meta.capitalize())
        )
    cure = f"{option_text('values')} takes a column of numbers."
    wanted += [(column, "bytes", _holds_bytes, "bytes, or text", cure) for column in roles.columns_of("binary")]
    for column, role, is_right, expected, remedy in wanted:
        kind = rows.columns[column].type if column in rows.columns else schema.field(column).type
        if not is_right(kind):
            raise InvalidRequest(
                rows.where, f"column {column!r} ({role}) holds {kind}", expected=expected, remedy=remedy
            )


def _holds_bytes(kind: pa.DataType) -> bool:
    return tables.is_bytes_type(kind) or tables.is_wrapped_bytes(kind) or tables.is_text_type(kind)


def check_column_values(rows: rows.TableRows, roles: ColumnRoles, classes: Mapping[str, list[str]]) -> None:
    """Refuse nulls where a value must be, and values that cannot be written.

    Args:
        rows: The rows of the table.
        roles: What each column is for.
        classes: Of columns of class numbers, or of lists of these: the names of classes.

    Raises:
        InvalidRequest: There are such values.
    """
    needed = [("key", roles.key)] if roles.key is not None else []
    needed += [("path", name) for name in roles.paths()] + [("value", name) for name in roles.columns_of("values")]
    for role, name in needed:
        missing = payload_values.missing_positions(rows.columns[name])
        found = f"column {name!r}: no {role} (null or NaN)"
        remedy = f"{option_text('where')} can leave such rows out."
        rows.refuse(missing, found, expected=f"a {role} in each row", remedy=remedy)
    for one, name in roles.values:
        check_field_values(one, name, rows.columns[name], classes.get(name), rows.refuse)
    for name in (*roles.paths(), *roles.columns_of("urls")):
        payload_values.check_payload(name, rows.columns[name], classes.get(name), rows.refuse)
    for name in roles.meta:
        problem = f"column {name!r}: an infinite number"
        remedy = f"Make it null, or leave the column out of {option_text('meta')}."
        rows.refuse(
            payload_values.infinite_positions(rows.columns[name]),
            problem,
            expected="what JSON has a form for",
            remedy=remedy,
        )


def check_sizes(rows: rows.TableRows, name: str) -> NDArray[np.int64]:
    """Return the column of sizes as int64[rows].

    Raises:
        InvalidRequest: It holds something else.
    """
    column = rows.columns.get(name)
    if column is None or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InvalidRequest(option_text("size"), f"column {name!r} holds no numbers", expected="bytes of the file")
    rows.refuse(
        payload_values.missing_positions(column),
        f"column {name!r}: no size (null or NaN)",
        expected="bytes of the file",
    )
    broken = keys.inexact_positions(column)
    rows.refuse(broken, f"column {name!r}: no whole number", expected="bytes of the file")
    sizes = arrow.number_values(column).astype(np.int64)
    rows.refuse(np.flatnonzero(sizes < 0), f"column {name!r}: a negative size", expected="bytes of the file")
    return sizes


def check_paths(rows: rows.TableRows, name: str, found: pa.Array, *, outside: bool) -> None:
    """Refuse paths that are empty, are no files' or lead out of the root.

    Args:
        rows: The rows of the table.
        name: The column.
        found: Its paths, relative to the root where they lead into it.
        outside: Whether they may lead out of it.

    Raises:
        InvalidRequest: There are such paths.
    """
    column = f"column {name!r}"
    original = rows.columns[name]
    empty = np.flatnonzero(arrow.byte_lengths(original) == 0)
    rows.refuse(empty, f"{column}: an empty path", expected="a path in each row")
    is_url = pc.match_substring_regex(original, r"^[A-Za-z][A-Za-z0-9+.-]+://")
    urls = arrow.true_positions(pc.and_(is_url, pc.match_substring_regex(found, r"^[A-Za-z][A-Za-z0-9+.-]+:/")))
    if len(urls):
        problem = f"{column}: a URL, such as {rows.examples(original, urls[:1])},"
        remedy = f"{option_text('urls', {'jpg': name})} fetches them."
        if pc.all(pc.match_substring_regex(original, "^(?i:s3|gs|az)://")).as_py():
            remedy = f"What they count from, such as {option_text('root', 's3://BUCKET')}, must be named."
        rows.refuse(urls, problem, expected="paths of files", remedy=remedy)
    if outside:
        return
    away = np.union1d(find_absolute(found), find_upward(found))
    if len(away):
        what = f"{column}: a path that leaves the root, such as {rows.examples(original, away[:1])},"
        cure = f"Name their common folder with {option_text('root')}, or take them with {flag_text('allow_outside')}."
        rows.refuse(away, what, expected=f"paths below the manifest's folder, or {option_text('root')}", remedy=cure)


def check_path_endings(rows: rows.TableRows, name: str, endings: PathEndings, known: list[str]) -> None:
    """Refuse paths that name no field, or one that the sample has already.

    Raises:
        InvalidRequest: There are such paths.
    """
    column = rows.columns[name]
    if "" in endings.names:
        bad = np.flatnonzero(endings.codes == endings.names.index(""))
        found = f"column {name!r}: a name without an ending, such as {rows.examples(column, bad[:1])},"
        expected = "an ending that names the field, such as .jpg"
        rows.refuse(bad, found, expected=expected, remedy=f"Name the field: {option_text('files', {'jpg': name})}.")
    for one in sorted(set(endings.names) & set(known)):
        bad = np.flatnonzero(endings.codes == endings.names.index(one))
        remedy = meta_field_advice() if one == META_FIELD else "Name them apart."
        rows.refuse(bad, f"column {name!r}: a file whose ending is another column's field {one!r}", remedy=remedy)


def check_keys(rows: rows.TableRows, column: str | None, bad: NDArray[np.int64]) -> None:
    """Refuse keys that are no sound names.

    Args:
        rows: The rows of the table.
        column: Where the keys come from: the column of keys or, without one, of paths; None: they are numbers.
        bad: The places of those that are no sound names.

    Raises:
        InvalidRequest: There are such keys.
    """
    if column is not None and len(bad):
        shown = rows.examples(rows.columns[column], bad)
        problem = f"column {column!r}: {pluralize(len(bad), 'value')} that cannot be keys, such as {shown},"
        expected = (
            f"text of 1 to {MAX_NAME_BYTES:,} bytes, without control characters and parts such as '', '.' or '..'"
        )
        rows.refuse(bad, problem, expected=expected, remedy=_key_advice())


def check_endings_differ(
    rows: rows.TableRows, column: str | None, found: PackedStrings, fields: NDArray[np.int64]
) -> None:
    """Refuse keys that two rows have whose files would be the same field, of which `fields` has a number for each.

    Raises:
        InvalidRequest: There are such keys.
    """
    order = np.argsort(fields, kind="stable")
    again = np.flatnonzero(np.diff(fields[order]) == 0)
    if len(again):
        check_unique(rows, column, found, np.union1d(order[again], order[again + 1]))


def check_agreement(rows: rows.TableRows, columns: Iterable[str], groups: SampleGroups) -> None:
    """Refuse values that differ among the rows of a key, for a sample has one.

    Raises:
        InvalidRequest: There are such values.
    """
    first = arrow.number_array(groups.first[groups.of_part])
    for name in columns:
        column = rows.columns[name]
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        wanted = column.take(first)
        if not column.equals(wanted):
            bad = [at for at in range(len(column)) if not column[at].equals(wanted[at])]
            problem = f"column {name!r}: another value than in the first row of the same key"
            remedy = f"Leave it out of {option_text('meta')}, or of {option_text('values')}."
            rows.refuse(np.array(bad, np.int64), problem, expected="one value for all files of a sample", remedy=remedy)


def _key_advice() -> str:
    return f"{option_text('key', 'COLUMN')} names another; the column of paths means the paths without their endings."


def check_unique(
    rows: rows.TableRows, column: str | None, found: PackedStrings, which: NDArray[np.int64] | None = None
) -> None:
    """Refuse keys that are not each one's own.

    Args:
        rows: The rows of the table.
        column: Where the keys come from; see `check_keys`.
        found: The keys.
        which: The places of those to look at; None: all.

    Raises:
        InvalidRequest: There are such keys.
    """
    expected = "a key of its own for each row" + (f", from column {column!r}" if column else "")
    rows.refuse_repeated_keys(found, which, expected=expected, remedy=_key_advice())
