"""Check the columns of a manifest."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, StoreFailed, format_list, printable
from shardtool.messages import flag_text, option_text
from shardtool.names import BINARY_ENDINGS, MAX_NAME_BYTES, to_bytes
from shardtool.source.manifest.paths import PathEndings, find_absolute, find_upward, relative_to_root
from shardtool.source.manifest.roles import META_FIELD, ColumnRoles, meta_field_advice, path_ending
from shardtool.source.stat_files import StatTask, stat_files
from shardtool.storage.files import stat_file
from shardtool.storage.paths import is_address
from shardtool.table import columns as tables
from shardtool.table import keys, payloads, render
from shardtool.table.columns import is_text_type
from shardtool.table.payloads import check_field_values
from shardtool.table.rows import ALL_COLUMNS
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings
    from shardtool.request.create_options import CreateOptions
    from shardtool.table.rows import TableRows
    from shardtool.values import Dots

    Texts = Sequence[str | None]


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
        remedy, expected = not_in_meta.capitalize(), "objects with members, because Parquet cannot store empty objects"
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
        payloads.check_payload(name, rows.columns[name], None, rows.refuse)
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
    """Refuse URLs, empty paths and, unless `outside`, paths that leave the root."""
    column = f"column {name!r}"
    original = rows.columns[name]
    empty = np.flatnonzero(arrow.byte_lengths(original) == 0)
    rows.refuse(empty, f"{column}: an empty path", expected="a path in each row")
    # In `paths`, `//` is `/`, and URLs below the root are relative.
    is_url = pc.match_substring_regex(original, r"^[A-Za-z][A-Za-z0-9+.-]+://")
    urls = arrow.true_positions(pc.and_(is_url, pc.match_substring_regex(paths, r"^[A-Za-z][A-Za-z0-9+.-]+:/")))
    if len(urls):
        problem = f"{column}: a URL, such as {rows.examples(original, urls[:1])},"
        remedy = f"Fetch them with {option_text('url', {'jpg': name})}."
        if pc.all(pc.match_substring_regex(original, "^(?i:s3|gs|az)://")).as_py():
            remedy = f"Name an address that contains them, such as {option_text('root', 's3://BUCKET')}."
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
        found = f"column {name!r}: a file has the extension {field!r}, which is also the field of another column,"
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
    rows: TableRows, column: str | None, row_keys: PackedStrings, key_field_numbers: NDArray[np.int64]
) -> None:
    """Refuse rows with equal `key_field_numbers`, because their keys and fields are equal."""
    order = np.argsort(key_field_numbers, kind="stable")
    repeated = np.flatnonzero(np.diff(key_field_numbers[order]) == 0)
    if len(repeated):
        check_unique(rows, column, row_keys, np.union1d(order[repeated], order[repeated + 1]))


def _key_advice() -> str:
    key = option_text("key", "COLUMN")
    return f"Choose another column with {key}. If you choose the path column, the keys are paths without extensions."


def check_unique(
    rows: TableRows, column: str | None, row_keys: PackedStrings, positions: NDArray[np.int64] | None = None
) -> None:
    """Refuse keys that occur more than once, among all rows or the rows at `positions`."""
    expected, remedy = "a unique key for each row", _key_advice()
    if column:
        expected += f", from column {column!r}"
        key, collect = option_text("key", "COLUMN"), option_text("collect", ALL_COLUMNS)
        remedy = f"Choose another column with {key}, or collect the rows of each key with {collect}."
    rows.refuse_repeated_keys(row_keys, positions, expected=expected, remedy=remedy)


MAX_CHECKED_ROWS = 100
_MAX_CHECKED_COLUMNS = 100
_MAX_MISSING_FILES = 10  # skip a column if none of its first strings is the path of a file
_MAX_CHECKED_OBJECTS = 3  # each check sends a request
_MAX_NAMED_COLUMNS = 8
_UNSAFE_FIELD_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")


def check_unused_paths(
    where: str, schema: pa.Schema, roles: ColumnRoles, options: CreateOptions, root: bytes,
    read_texts: Callable[[Sequence[str]], dict[str, list[str | None]]],
) -> list[str]:  # fmt: skip
    """Raise an error if a column contains paths of files that would not be packed.

    If options name the files to pack, return a note instead. `read_texts` returns the first values of named columns.
    """
    used = {*roles.paths(), *(name for role in ("urls", "binary", "values") for name in roles.columns_of(role))}
    if options.meta not in (None, "all", "none"):
        used |= {*roles.meta}
    # If no other column has payloads, an automatically chosen key column may contain file paths.
    if roles.key is not None and (options.key is not None or roles.paths() or roles.binary or roles.urls):
        used.add(roles.key)
    unused = [column.name for column in schema if is_text_type(column.type) and column.name not in used]
    values = read_texts([*roles.paths(), *unused[:_MAX_CHECKED_COLUMNS]])
    packed = [values.pop(name) for name in roles.paths()]
    examples = {name: example for name in values if (example := _find_unused_file(root, values[name], packed))}
    if not examples:
        return []
    name, example = next(iter(examples.items()))
    pack, names = _packing_options(roles, examples, options.dots or "first"), format_list([*map(repr, examples)])
    subject = f"column {names} holds" if len(examples) == 1 else f"columns {names} hold"
    found = f"{subject} paths of existing files, such as {printable(example)!r},"
    if options.path is not None or options.file or options.bytes or options.url:
        return [f"{found} which are not packed (pack them with {pack})"]
    named = [*roles.meta] if options.meta != "none" else []
    named += [column for column in examples if column not in named]
    kept = option_text("meta", ",".join(named) if len(named) <= _MAX_NAMED_COLUMNS else f"{name},...")
    remedy = f"Pack the files: {pack}. To store the paths as metadata only: {kept}."
    expected = "an option that names the path columns"
    raise InvalidRequest(where, f"{found} which would not be packed", expected=expected, remedy=remedy)


def _find_unused_file(root: bytes, texts: Texts, packed: Sequence[Texts]) -> str:
    # If most strings are paths of files, return the first path of a file that is not packed.
    if is_address(root):
        return _find_unused_object(root, texts, packed)
    folder, files, missing, example = os.fsdecode(root), 0, 0, ""
    for row, text in enumerate(texts):
        if not text:
            continue
        stat_result = _regular_file(folder, text)
        if stat_result is None:
            missing += 1
            if not files and missing >= _MAX_MISSING_FILES:
                return ""
            continue
        files += 1
        packed_files = [_regular_file(folder, column[row] or "") for column in packed if row < len(column)]
        if not example and not any(os.path.samestat(stat_result, other) for other in packed_files if other is not None):
            example = text
    return example if files > missing else ""


def _regular_file(folder: str, path: str) -> os.stat_result | None:
    try:
        stat_result = stat_file(os.path.join(folder, path))
    except (OSError, ValueError):  # a NUL in the path raises ValueError
        return None
    return stat_result if stat.S_ISREG(stat_result.st_mode) else None


def _find_unused_object(root: bytes, texts: Texts, packed: Sequence[Texts]) -> str:
    packed_texts = {text for column in packed for text in column}
    unpacked = [text for text in texts if text and text not in packed_texts and "\0" not in text]
    candidates = [text for text in unpacked if path_ending(text, "last").lower() in BINARY_ENDINGS]
    candidates = candidates[:_MAX_CHECKED_OBJECTS]
    if not candidates:
        return ""
    paths = [*relative_to_root(arrow.text_array(candidates), root).to_pylist()]
    data = b"".join([to_bytes(path) + b"\0" for path in paths])
    try:
        result = stat_files(StatTask(root, data, outside=False))
    except StoreFailed:  # the run fails later if it needs the store
        return ""
    return "" if result.problems else candidates[0]


def _packing_options(roles: ColumnRoles, examples: Mapping[str, str], dots: Dots) -> str:
    if len(examples) == 1 and not (roles.paths() or roles.binary or roles.urls):
        return option_text("path", next(iter(examples)))
    words = [option_text("path", roles.path)] if roles.path is not None else []
    used_fields = {*roles.field_names()}
    for name, example in examples.items():
        ending = path_ending(example, dots) or "FIELD"
        is_free = ending not in used_fields and roles.path is None
        field = ending if is_free else f"{_UNSAFE_FIELD_CHARACTER.sub('_', name)}.{ending}"
        used_fields.add(field)
        words.append(option_text("file", {field: name}))
    return " ".join(words)
