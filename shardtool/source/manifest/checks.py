"""What can be wrong with a manifest's columns: each kind of problem is one error, with the numbers of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.source.manifest import paths as places
from shardtool.source.manifest.columns import META, Roles, meta_clash
from shardtool.table import arrays, keys
from shardtool.table.columns import is_bytes, is_text, is_wrapped_bytes
from shardtool.table.json_text import has_text
from shardtool.table.row_names import Rows, short
from shardtool.table.values import large_places, missing_places, nul_places
from shardtool.values import NAME_LIMIT, counted
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

    from shardtool.names import Names
    from shardtool.source.grouping import Groups

_SHOWN = 3  # keys and paths in a message


def check_types(rows: Rows, roles: Roles, classes: Collection[str], schema: pa.Schema) -> None:
    """Refuse columns whose types cannot be what they are used for.

    Args:
        rows: The rows of the table.
        roles: What each column is for.
        classes: The fields whose values are numbered.
        schema: The columns of the table, with those of bytes.

    Raises:
        InvalidRequest: There are such columns.
    """
    kinds = {name: column.type for name, column in rows.columns.items()}
    null, bytes_remedy = pa.null(), f"{option('binary')} takes a column of bytes."

    def want(column: str, role: str, expected: str, *, right: bool, remedy: str = "") -> None:
        if not right:
            kind = kinds.get(column, schema.field(column).type)
            found = f"column {column!r} ({role}) holds {kind}"
            raise InvalidRequest(rows.where, found, expected=expected, remedy=remedy)

    if roles.key is not None:
        right = keys.is_key(kinds.get(roles.key, null))
        want(roles.key, "key", "text or whole numbers", right=right)
    for column in roles.paths():
        want(column, "path", "text", right=is_text(kinds.get(column, null)), remedy=bytes_remedy)
    for column in roles.url_columns():
        want(column, "URL", "text", right=is_text(kinds.get(column, null)))
    for field, column in roles.fields:
        right = column in kinds and has_text(kinds[column])
        want(column, f"field {field}", "text or numbers", right=right, remedy=bytes_remedy)
        is_array = field.rpartition(".")[2].lower() == "npy"
        cure = f"Call the field json; or {bytes_remedy} ShardWriter takes arrays."
        want(column, f"field {field}", "the bytes of a .npy file", right=not is_array, remedy=cure)
        if field in classes:
            want(column, "labels", "text or numbers", right=not pa.types.is_nested(kinds[column]))
    for column in roles.meta:
        right = column in kinds and has_text(kinds[column])
        remedy = f"Make it a field ({option('binary', {'jpg': column})}), or leave it out of {option('meta')}."
        want(column, "metadata", "what JSON has a form for", right=right, remedy=remedy)
    for _, column in roles.binary:
        kind = schema.field(column).type
        right = is_bytes(kind) or is_wrapped_bytes(kind) or is_text(kind)
        want(column, "bytes", "bytes, or text", right=right, remedy=f"{option('values')} takes a column of numbers.")


def check_values(rows: Rows, roles: Roles) -> None:
    """Refuse nulls where a value must be, and values that cannot be written.

    Raises:
        InvalidRequest: There are such values.
    """
    needed = [("key", roles.key)] if roles.key is not None else []
    needed += [("path", name) for name in roles.paths()] + [("value", name) for name in roles.values()]
    for role, name in needed:
        missing = missing_places(rows.columns[name])
        found = f"column {name!r}: no {role} (null or NaN)"
        rows.refuse(
            missing, found, expected=f"a {role} in each row", remedy=f"{option('where')} can leave such rows out."
        )
    for name in (*roles.values(), *roles.paths(), *roles.url_columns()):
        rows.refuse(nul_places(rows.columns[name]), f"column {name!r}: a NUL in the text", expected="text without")
    for name in roles.values():
        bad = large_places(rows.columns[name])
        rows.refuse(bad, f"column {name!r}: a number over 2^63", expected="what fits into int64")
    for name in roles.meta:
        problem = f"column {name!r}: an infinite number"
        remedy = f"Make it null, or leave the column out of {option('meta')}."
        rows.refuse(_infinite(rows.columns[name]), problem, expected="what JSON has a form for", remedy=remedy)


def _infinite(column: pa.Array) -> NDArray[np.int64]:
    """Return where a column holds an infinite float, however deep."""
    kind = column.type
    if pa.types.is_floating(kind):
        return arrays.places(pc.is_inf(column))
    if not pa.types.is_nested(kind) or not _has_infinite(column):
        return np.zeros(0, np.int64)
    return np.array([at for at in range(len(column)) if _has_infinite(column.slice(at, 1))], np.int64)


def _has_infinite(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_struct(kind):
        return any(_has_infinite(part) for part in column.flatten())
    if pa.types.is_map(kind):
        return _has_infinite(pc.cast(column, pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))))
    if pa.types.is_nested(kind):
        return _has_infinite(column.flatten())
    return bool(pa.types.is_floating(kind) and pc.any(pc.is_inf(column)).as_py())


def check_sizes(rows: Rows, name: str) -> NDArray[np.int64]:
    """Return the column of sizes as int64[rows].

    Raises:
        InvalidRequest: It holds something else.
    """
    column = rows.columns.get(name)
    if column is None or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise InvalidRequest(option("size"), f"column {name!r} holds no numbers", expected="bytes of the file")
    rows.refuse(missing_places(column), f"column {name!r}: no size (null or NaN)", expected="bytes of the file")
    broken = keys.broken_numbers(column)
    rows.refuse(broken, f"column {name!r}: no whole number", expected="bytes of the file")
    sizes = arrow.numbers(column).astype(np.int64)
    rows.refuse(np.flatnonzero(sizes < 0), f"column {name!r}: a negative size", expected="bytes of the file")
    return sizes


def check_paths(rows: Rows, name: str, found: pa.Array, *, outside: bool) -> None:
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
    empty = np.flatnonzero(arrays.lengths(original) == 0)
    rows.refuse(empty, f"{column}: an empty path", expected="a path in each row")
    is_url = pc.match_substring_regex(original, r"^[A-Za-z][A-Za-z0-9+.-]+://")
    urls = arrays.places(pc.and_(is_url, pc.match_substring_regex(found, r"^[A-Za-z][A-Za-z0-9+.-]+:/")))
    if len(urls):
        problem = f"{column}: a URL, such as {rows.examples(original, urls[:1])},"
        remedy = f"{option('urls', {'jpg': name})} fetches them."
        if pc.all(pc.match_substring_regex(original, "^(?i:s3|gs|az)://")).as_py():
            remedy = f"What they count from, such as {option('root', 's3://BUCKET')}, must be named."
        rows.refuse(urls, problem, expected="paths of files", remedy=remedy)
    if outside:
        return
    away = np.union1d(places.absolute_places(found), places.upward_places(found))
    if len(away):
        what = f"{column}: a path that leaves the root, such as {rows.examples(original, away[:1])},"
        cure = f"Name their common folder with {option('root')}, or take them with {flag('allow_outside')}."
        rows.refuse(away, what, expected=f"paths below the manifest's folder, or {option('root')}", remedy=cure)


def check_endings(rows: Rows, name: str, endings: places.Endings, known: list[str]) -> None:
    """Refuse paths that name no field, or one that the sample has already.

    Raises:
        InvalidRequest: There are such paths.
    """
    column = rows.columns[name]
    if "" in endings.names:
        bad = np.flatnonzero(endings.codes == endings.names.index(""))
        found = f"column {name!r}: a name without an ending, such as {rows.examples(column, bad[:1])},"
        expected = "an ending that names the field, such as .jpg"
        rows.refuse(bad, found, expected=expected, remedy=f"Name the field: {option('files', {'jpg': name})}.")
    for field in sorted(set(endings.names) & set(known)):
        bad = np.flatnonzero(endings.codes == endings.names.index(field))
        remedy = meta_clash() if field == META else "Name them apart."
        rows.refuse(bad, f"column {name!r}: a file whose ending is another column's field {field!r}", remedy=remedy)


def check_keys(rows: Rows, column: str | None, bad: NDArray[np.int64]) -> None:
    """Refuse keys that are no sound names.

    Args:
        rows: The rows of the table.
        column: Where the keys come from: the column of keys or, without one, of paths; None: they are numbers.
        bad: The places of those that are no sound names.

    Raises:
        InvalidRequest: There are such keys.
    """
    if column is not None and len(bad):
        problem = (
            f"column {column!r}: {counted(len(bad), 'value')} that cannot be keys, such as "
            f"{rows.examples(rows.columns[column], bad)},"
        )
        expected = f"text of 1 to {NAME_LIMIT:,} bytes, without control characters and parts such as '', '.' or '..'"
        rows.refuse(bad, problem, expected=expected, remedy=_other_key())


def check_endings_differ(rows: Rows, column: str | None, found: Names, fields: NDArray[np.int64]) -> None:
    """Refuse keys that two rows have whose files would be the same field.

    Args:
        rows: The rows of the table.
        column: Where the keys come from; see `check_keys`.
        found: The keys.
        fields: A number for each field of each key.

    Raises:
        InvalidRequest: There are such keys.
    """
    order = np.argsort(fields, kind="stable")
    again = np.flatnonzero(np.diff(fields[order]) == 0)
    if len(again):
        check_unique(rows, column, found, np.union1d(order[again], order[again + 1]))


def check_agreement(rows: Rows, columns: Iterable[str], groups: Groups) -> None:
    """Refuse values that differ among the rows of a key, for a sample has one.

    Raises:
        InvalidRequest: There are such values.
    """
    first = number_array(groups.first[groups.of_part])
    for name in columns:
        column = rows.columns[name]
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        wanted = column.take(first)
        if not column.equals(wanted):
            bad = [at for at in range(len(column)) if not column[at].equals(wanted[at])]
            problem = f"column {name!r}: another value than in the first row of the same key"
            remedy = f"Leave it out of {option('meta')}, or of {option('values')}."
            rows.refuse(np.array(bad, np.int64), problem, expected="one value for all files of a sample", remedy=remedy)


def _other_key() -> str:
    return f"{option('key', 'COLUMN')} names another; the column of paths means the paths without their endings."


def check_unique(rows: Rows, column: str | None, found: Names, which: NDArray[np.int64] | None = None) -> None:
    """Refuse keys that are not each one's own.

    Args:
        rows: The rows of the table.
        column: Where the keys come from; see `check_keys`.
        found: The keys.
        which: The places of those to look at; None: all.

    Raises:
        InvalidRequest: There are such keys.
    """
    twice = keys.repeated(found if which is None else found.take(which))
    if which is not None:
        twice = {key: which[places].tolist() for key, places in twice.items()}
    if twice:
        first = [*twice.items()][:_SHOWN]
        some = [f"'{short(printable(key))}' ({rows.named(np.array(at, np.int64))})" for key, at in first]
        problem = f"{counted(len(twice), 'key')} more than once: {listing(some, _SHOWN, total=len(twice))}"
        expected = "a key of its own for each row" + (f", from column {column!r}" if column else "")
        raise InvalidRequest(rows.where, problem, expected=expected, remedy=_other_key())
