"""Column names and types of a table: which hold text or bytes, and which names are not allowed."""

from __future__ import annotations

import re
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import flag_text, option_text
from shardtool.names import is_utf8, to_bytes
from shardtool.table.limits import nested_types

if TYPE_CHECKING:
    from collections.abc import Sequence


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


RENAME_HINT = "Name them apart."


_PANDAS_INDEX = re.compile(r"__index_level_\d+__")  # what pandas makes of an index without a name


def find_byte_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that hold bytes, however deep: they are streamed, or never read."""
    return [one.name for one in schema if any(is_bytes_type(kind) for kind, _ in nested_types(one.type))]


def is_bytes_type(kind: pa.DataType) -> bool:
    """Tell whether a type is one of bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def is_empty_struct(kind: pa.DataType) -> bool:
    """Tell whether objects without any name are in a type: what JSON's `{}` in all rows becomes."""
    return any(pa.types.is_struct(one) and not one.num_fields for one, _ in nested_types(kind))


def is_wrapped_bytes(kind: pa.DataType) -> bool:
    """Tell whether a type is Hugging Face's `struct<bytes, path>`."""
    return (
        bool(pa.types.is_struct(kind))
        and kind.get_field_index("bytes") >= 0
        and is_bytes_type(kind.field("bytes").type)
    )


def is_index_name(column: str) -> bool:
    """Tell whether a name is what pandas calls the column that it makes of an index without a name."""
    return _PANDAS_INDEX.match(column) is not None


def is_text_type(kind: pa.DataType) -> bool:
    """Tell whether a type is one of text, behind a dictionary or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def check_column_names(name: str, columns: list[str]) -> None:
    """Refuse columns without a name, and several of one.

    Raises:
        InvalidRequest: There are such columns.
    """
    without = [str(at) for at, column in enumerate(columns, 1) if not column.strip()]
    if without:
        found = f"column {format_list(without)} without a name"
        remedy = "pandas writes its index like that: df.to_csv(..., index=False) does not."
        raise InvalidRequest(name, found, expected="a name for each", remedy=remedy)
    twice = sorted(repr(column) for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InvalidRequest(name, f"columns of the same name: {format_list(twice)}", remedy="Rename them.")


def missing_name_error(thing: str, option: str, name: str, names: Sequence[str]) -> InvalidRequest:
    """Return the error for a column or field that is not there, with the nearest names."""
    lower = {one.casefold(): one for one in names}
    near = [lower[one] for one in get_close_matches(name.casefold(), lower, n=3)]
    remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
    if name.isdigit() and thing == "column":
        remedy = f"{flag_text('no_header')} calls columns of a text by their numbers."
    return InvalidRequest(
        option, f"no {thing} {name!r}", expected=f"one of {format_list([*names], 100)}", remedy=remedy
    )


def check_sidecar_names(where: str, columns: list[str], *, remedy: str) -> None:
    """Refuse columns of metadata with names that the sidecars have for themselves.

    Raises:
        InvalidRequest: There are such columns.
    """
    own = [repr(name) for name in columns if name.startswith("__")]
    if own:
        found = f"column {format_list(own)}: names that start with two underscores are the sidecar's own"
        raise InvalidRequest(where, found, remedy=f"Rename them, or {remedy}.")


def check_field_name(where: str, found: str, name: str) -> None:
    """Refuse a new name that no field can have, or that `--fields` could not say of one.

    Raises:
        InvalidRequest: It is such.
    """
    if BAD_FIELD.search(name) or _UNTYPABLE.search(name) or not is_utf8(to_bytes(name)):
        expected = "an ending, such as jpg, cls or seg.png, without =, a comma, and a - or blank at its ends"
        raise InvalidRequest(where, found, expected=expected)


def check_field_names(where: str, names: Sequence[str], *, remedy: str = RENAME_HINT) -> None:
    """Refuse names that no field can have, and one that several columns give to theirs.

    Raises:
        InvalidRequest: There are such names.
    """
    for name in names:
        check_field_name(f"field {name!r}", "no name for a field", name)
    twice = sorted({repr(name) for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(where, f"several columns become the field {format_list(twice)}", remedy=remedy)


def check_labels(classes: Sequence[str], fields: Sequence[tuple[str, str]]) -> None:
    """Refuse labels that are none of the fields, given as (field, column).

    Raises:
        InvalidRequest: There are such labels.
    """
    unknown = [name for name in classes if name not in dict(fields)]
    if unknown:
        remedy = f"Name its column: {option_text('values', {unknown[0]: 'COLUMN'})}."
        raise InvalidRequest(
            option_text("classes"), f"no field {format_list([repr(name) for name in unknown])}", remedy=remedy
        )
