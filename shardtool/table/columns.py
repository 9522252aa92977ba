"""The columns of a table by name and type: which hold text or bytes, and which names cannot be read."""

from __future__ import annotations

import re
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest, listing
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH_NAMES = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "img_path", "image_file",
    "image", "img",
)  # fmt: skip
BAD_FIELD = re.compile(r"[/\x00-\x1f\x7f]|^\.|\.$|^$")
NAME_APART = "Name them apart."
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas makes of an index without a name


def heavy_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that hold bytes, which are streamed."""
    return [one.name for one in schema if is_bytes(one.type) or is_wrapped_bytes(one.type)]


def is_bytes(kind: pa.DataType) -> bool:
    """Tell whether a type is one of bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def is_wrapped_bytes(kind: pa.DataType) -> bool:
    """Tell whether a type is Hugging Face's `struct<bytes, path>`."""
    return bool(pa.types.is_struct(kind)) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type)


def is_index(column: str) -> bool:
    """Tell whether a name is what pandas calls the column that it makes of an index without a name."""
    return _INDEX.match(column) is not None


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a type is one of text, behind a dictionary or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def check_names(name: str, columns: list[str]) -> None:
    """Refuse columns without a name, and several of one.

    Raises:
        InvalidRequest: There are such columns.
    """
    without = [str(at) for at, column in enumerate(columns, 1) if not column.strip()]
    if without:
        found = f"column {listing(without)} without a name"
        remedy = "pandas writes its index like that: df.to_csv(..., index=False) does not."
        raise InvalidRequest(name, found, expected="a name for each", remedy=remedy)
    twice = sorted(repr(column) for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InvalidRequest(name, f"columns of the same name: {listing(twice)}", remedy="Rename them.")


def no_such(thing: str, option: str, name: str, names: Sequence[str]) -> InvalidRequest:
    """Return the error for a column or field that is not there, with the nearest names."""
    lower = {one.casefold(): one for one in names}
    near = [lower[one] for one in get_close_matches(name.casefold(), lower, n=3)]
    remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return InvalidRequest(option, f"no {thing} {name!r}", expected=f"one of {listing([*names], 100)}", remedy=remedy)


def check_sidecar_names(where: str, columns: list[str], *, remedy: str) -> None:
    """Refuse columns of metadata with names that the sidecars have for themselves.

    Raises:
        InvalidRequest: There are such columns.
    """
    own = [repr(name) for name in columns if name.startswith("__")]
    if own:
        found = f"column {listing(own)}: names that start with two underscores are the sidecar's own"
        raise InvalidRequest(where, found, remedy=f"Rename them, or {remedy}.")


def check_fields(where: str, names: Sequence[str], *, remedy: str = NAME_APART) -> None:
    """Refuse names that no field can have, and one that several columns give to theirs.

    Raises:
        InvalidRequest: There are such names.
    """
    for name in names:
        if BAD_FIELD.search(name):
            found = "no name for a field"
            raise InvalidRequest(f"field {name!r}", found, expected="an ending, such as jpg, cls or seg.png")
    twice = sorted({repr(name) for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(where, f"several columns become the field {listing(twice)}", remedy=remedy)


def check_labels(classes: Sequence[str], fields: Sequence[tuple[str, str]]) -> None:
    """Refuse labels that are none of the fields, given as (field, column).

    Raises:
        InvalidRequest: There are such labels.
    """
    unknown = [name for name in classes if name not in dict(fields)]
    if unknown:
        remedy = f"Name its column: {option('values', {unknown[0]: 'COLUMN'})}."
        raise InvalidRequest(option("classes"), f"no field {listing([repr(name) for name in unknown])}", remedy=remedy)
