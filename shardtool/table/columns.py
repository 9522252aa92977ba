"""Check the names, types and number of columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches

import pyarrow as pa

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.names import is_utf8, to_bytes

MEDIA_NAMES = (
    "video_path", "video_file", "video", "clip_path", "clip_file", "clip", "audio_path", "audio_file", "audio_filepath",
    "audio", "wav_path", "wav_file", "wav", "media_path", "media_file", "media", "mask_path", "mask_file", "mask",
)  # fmt: skip

PATH_NAMES = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "img_path", "image_file",
    "image", "img", *MEDIA_NAMES,
)  # fmt: skip

BAD_FIELD = re.compile(r"[/\x00-\x1f\x7f]|^\.|\.$|^$")
_UNTYPABLE = re.compile(r"[=,]|^-|^\s|\s$")
RENAME_HINT = "Use a different name for each."
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def find_byte_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that contain bytes, directly or in lists and structs."""
    return [field.name for field in schema if any(is_bytes_type(kind) for kind, _ in _nested_types(field.type))]


def is_bytes_type(kind: pa.DataType) -> bool:
    """Return whether the values of a type are bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def is_empty_struct(kind: pa.DataType) -> bool:
    """Return whether a type contains a struct without fields. Arrow infers such a type for `{}`."""
    return any(pa.types.is_struct(nested) and not nested.num_fields for nested, _ in _nested_types(kind))


def is_wrapped_bytes(kind: pa.DataType) -> bool:
    """Return whether a type is a struct with bytes, which Hugging Face datasets use for files."""
    has_bytes = bool(pa.types.is_struct(kind)) and kind.get_field_index("bytes") >= 0
    return has_bytes and is_bytes_type(kind.field("bytes").type)


def is_index_name(column: str) -> bool:
    """Return whether `column` is pandas' name for an unnamed index."""
    return _PANDAS_INDEX.match(column) is not None


def is_text_type(kind: pa.DataType) -> bool:
    """Return whether a type is text. The text may be dictionary-encoded or run-end encoded."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def check_column_names(name: str, columns: list[str]) -> None:
    """Raise an error if column names are empty or repeated."""
    if unnamed := [str(number) for number, column in enumerate(columns, 1) if not column.strip()]:
        found = f"column {format_list(unnamed)} without a name"
        remedy = "If pandas wrote it with its index, use df.to_csv(..., index=False)."
        raise InvalidRequest(name, found, expected="a name for each column", remedy=remedy)
    if repeated := sorted(repr(column) for column, count in Counter(columns).items() if count > 1):
        found = f"several columns with the same name: {format_list(repeated)}"
        raise InvalidRequest(name, found, remedy="Rename them.")


def missing_name_error(thing: str, option: str, name: str, names: Sequence[str]) -> InvalidRequest:
    """Return the error for an unknown name. `thing` is the kind of name, such as `column`."""
    by_lower_case = {candidate.casefold(): candidate for candidate in names}
    similar = [by_lower_case[candidate] for candidate in get_close_matches(name.casefold(), by_lower_case, n=3)]
    remedy = f"Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
    if "," in name and {*name.split(",")}.issubset(names):
        remedy = choose_text(f"Pass a list of {thing}s.", f"Repeat the option for each {thing}.")
    if name.isdigit() and thing == "column":
        remedy = f"To name the columns of a text file by number, use {flag_text('no_header')}."
    expected = f"one of {format_list([*names], 100)}"
    return InvalidRequest(option, f"no {thing} {name!r}", expected=expected, remedy=remedy)


def check_direction(option: str, pairs: Iterable[tuple[str, str]], names: Collection[str]) -> None:
    """Raise an error if a pair is (existing, new) instead of (new, existing). `names` are the existing names."""
    if swapped := {old: new for new, old in pairs if new in names and old not in names}:
        old, new = next(iter(swapped.items()))
        found, remedy = f"'{new}={old}': {new!r} exists, and {old!r} does not", option_text(option, swapped)
        expected = "the new name first: NEW=OLD"
        raise InvalidRequest(option_text(option), found, expected=expected, remedy=f"Did you mean {remedy}?")


def check_sidecar_names(location: str, columns: list[str], *, remedy: str) -> None:
    """Raise an error if a column name starts with two underscores."""
    if reserved := [repr(name) for name in columns if name.startswith("__")]:
        found = f"column {format_list(reserved)}: names that start with two underscores are reserved for the sidecar"
        raise InvalidRequest(location, found, remedy=f"Rename them, or {remedy}.")


def check_field_name(location: str, found: str, name: str) -> None:
    """Raise an error if a field name is invalid, or cannot be typed in `--fields`."""
    if BAD_FIELD.search(name) or _UNTYPABLE.search(name) or not is_utf8(to_bytes(name)):
        expected = "a name such as jpg, cls or seg.png, without '=' or ',', a leading '-', or a space at either end"
        raise InvalidRequest(location, found, expected=expected)


def check_field_names(location: str, names: Sequence[str], *, remedy: str = RENAME_HINT) -> None:
    """Raise an error if a field name is invalid or repeated."""
    for name in names:
        check_field_name(f"field {name!r}", "not a valid field name", name)
    if repeated := sorted({repr(name) for name in names if names.count(name) > 1}):
        raise InvalidRequest(location, f"several columns for the field {format_list(repeated)}", remedy=remedy)


def check_labels(classes: Sequence[str], fields: Sequence[tuple[str, str]]) -> None:
    """Raise an error if a field in `classes` is not in `fields`, which contains pairs of field and column."""
    if unknown := [name for name in classes if name not in dict(fields)]:
        remedy = f"Choose its column with {option_text('field', {unknown[0]: 'COLUMN'})}."
        found = f"no field {format_list([*map(repr, unknown)])}"
        raise InvalidRequest(option_text("classes"), found, remedy=remedy)


MAX_COLUMNS = 10_000  # each column takes space in the sidecar of every shard
MAX_NESTING = 32  # each nested list takes up to 3 of the 100 Parquet levels that pyarrow reads
MAX_ROW_BYTES = 2**28


def check_shape(location: str, schema: pa.Schema) -> None:
    """Raise an error if a table exceeds `MAX_COLUMNS` or `MAX_NESTING`."""
    if len(schema) > MAX_COLUMNS:
        raise column_count_error(location, len(schema))
    for field in schema:
        remaining = MAX_COLUMNS
        for _, level in _nested_types(field.type):
            if level > MAX_NESTING:
                raise nesting_error(f"{location}, column {field.name!r}")
            remaining -= 1
            if remaining < 0:
                found = f"column {field.name!r} with more than {MAX_COLUMNS:,} nested values"
                raise InvalidRequest(location, found, expected="fewer")


def _nested_types(kind: pa.DataType) -> Iterator[tuple[pa.DataType, int]]:
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
    """Return the error for too many columns."""
    found = f"more than {MAX_COLUMNS:,} columns" if count is None else f"{count:,} columns"
    remedy = "Store related numbers in one list column."
    return InvalidRequest(location, found, expected=f"at most {MAX_COLUMNS:,}", remedy=remedy)


def nesting_error(location: str) -> InvalidRequest:
    """Return the error for too deeply nested values."""
    found = f"lists or objects nested more than {MAX_NESTING} levels deep"
    return InvalidRequest(location, found, expected=f"at most {MAX_NESTING}", remedy="Store the value as text.")


def row_size_error(location: str) -> InvalidRequest:
    """Return the error for a row over `MAX_ROW_BYTES`."""
    found = f"a row of more than {MAX_ROW_BYTES >> 20} MiB"
    remedy = f"Store the text in a file and its path in the table ({option_text('file', {'FIELD': 'COLUMN'})})."
    return InvalidRequest(location, found, expected="a shorter row", remedy=remedy)
