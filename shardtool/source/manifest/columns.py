"""Which column of a manifest is what: the key, paths, bytes, values, and the rest.

Names alone decide, and types where they are known. What was not asked for is found by the usual
names, and noted, so that nobody has to guess what was guessed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardtool.errors import InvalidRequest, listing
from shardtool.values import Dots, counted, split_name, to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shardtool.source.manifest.options import ManifestOptions

KEY_NAMES = ("key", "__key__", "id", "sample_id", "object_id", "image_id", "uid", "uuid")
PATH_NAMES = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "img_path", "image_file",
    "image", "img",
)  # fmt: skip
META = "json"
META_CLASH = "The metadata is the field json: call the other something else, or leave it out with --meta none."
_FORMATS = frozenset({
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jxl", "jp2", "npy", "npz", "pdf", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov",
})  # fmt: skip
BAD_FIELD = re.compile(r"[/\x00-\x1f\x7f]|^\.|\.$|^$")
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas makes of an index without a name


@dataclass(frozen=True, slots=True)
class Roles:
    """What each column is for; see `ManifestOptions`.

    Attributes:
        key: None: the paths' stems, or the rows' numbers where there are none.
        path: None: there are none, or their fields are named.
        files: Likewise.
        binary: Likewise.
        fields: Likewise.
        meta: In the order of the table.
        notes: What was chosen by the usual names.
    """

    key: str | None
    path: str | None
    files: tuple[tuple[str, str], ...]
    binary: tuple[tuple[str, str], ...]
    fields: tuple[tuple[str, str], ...]
    meta: tuple[str, ...]
    notes: list[str] = field(default_factory=list)

    def texts(self) -> list[str]:
        """Return the columns that must stay text where types are inferred."""
        return [name for name in (self.key, *self.paths(), *self.streamed()) if name is not None]

    def streamed(self) -> list[str]:
        """Return the columns of bytes, which are not read whole."""
        return [column for _, column in self.binary]

    def paths(self) -> list[str]:
        """Return the columns of paths; the one whose endings name the field first."""
        return [*([self.path] if self.path is not None else []), *(column for _, column in self.files)]

    def values(self) -> list[str]:
        """Return the columns that are payload as they are."""
        return [column for _, column in self.fields]

    def field_names(self) -> list[str]:
        """Return the fields whose names are known, `json` among them where there is metadata."""
        names = [name for pairs in (self.files, self.binary, self.fields) for name, _ in pairs]
        return names + ([META] if self.meta else [])


def choose(name: str, schema: Any, options: ManifestOptions, first_ending: Callable[[str], str]) -> Roles:
    """Return what each column is for.

    Args:
        name: The manifest's.
        schema: Its columns.
        options: What was asked for.
        first_ending: Gives, for a column of `struct<bytes, path>`, the ending of the first path, or nothing.

    Raises:
        InvalidRequest: A column that is not there, no columns that could be samples, or fields that clash.
    """
    check_names(name, schema.names)
    for option, column in options.named():
        if column not in schema.names:
            raise no_column(option, column, schema.names)
    notes: list[str] = []
    path, binary = options.path, options.binary
    if path is None and not options.files and not binary:
        asked = {column for _, column in options.fields}
        path = _usual("path", PATH_NAMES, [one.name for one in schema if is_text(one.type)], asked, notes)
        if path is None:
            free = [one for one in heavy_columns(schema) if one not in asked]
            binary = _only_bytes(name, free, first_ending, notes)
    payload = {path, *(column for _, column in (*options.files, *binary, *options.fields))}
    key = options.key
    if key is None:
        key = _usual("key", KEY_NAMES, [one.name for one in schema if _is_key(one.type)], payload, notes)
    if isinstance(options.meta, tuple):
        asked = {*options.meta}
        meta = tuple(one for one in schema.names if one in asked)
    else:
        used = {key, *payload}
        meta = tuple(one for one in schema.names if one not in used and not is_index(one))
    first = path if path is not None else next((column for _, column in options.files), None)
    roles = Roles(
        key=None if key == first else key,
        path=path,
        files=options.files,
        binary=binary,
        fields=options.fields,
        meta=() if options.meta == "none" else meta,
        notes=notes,
    )
    check_fields(name, roles, options.classes)
    _check_payload(name, schema.names, roles)
    _note(roles, options)
    return roles


def _note(roles: Roles, options: ManifestOptions) -> None:
    """Add to the notes what no column was found for."""
    if not roles.paths() and not roles.binary:
        roles.notes.append("no column of files: samples hold the table's values alone (--path COLUMN names one)")
    if roles.key is None and options.key is None:
        where = "the paths without their endings" if roles.paths() else "the numbers of the rows"
        roles.notes.append(f"keys: {where} (--key COLUMN names a column)")
    if roles.meta and options.meta == "all":
        roles.notes.append(f"columns in the field {META}: {listing([*roles.meta], 8)} (--meta chooses)")


def _check_payload(name: str, columns: list[str], roles: Roles) -> None:
    if not roles.paths() and not roles.binary and not roles.fields:
        raise InvalidRequest(
            name, f"no column with a usual name for paths, among {listing(columns, 20)}",
            expected=f"one called {listing([*PATH_NAMES], len(PATH_NAMES))}",
            remedy="Name it: --path COLUMN, --file jpg=COLUMN, --bytes jpg=COLUMN, or --field txt=COLUMN.",
        )  # fmt: skip


def heavy_columns(schema: Any) -> list[str]:
    """Return the columns that hold bytes, which are streamed."""
    return [one.name for one in schema if is_bytes(one.type) or is_wrapped_bytes(one.type)]


def is_bytes(kind: Any) -> bool:
    """Tell whether a type is one of bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def is_wrapped_bytes(kind: Any) -> bool:
    """Tell whether a type is Hugging Face's `struct<bytes, path>`."""
    return bool(pa.types.is_struct(kind)) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type)


def is_index(column: str) -> bool:
    """Tell whether a name is what pandas calls the column that it makes of an index without a name."""
    return _INDEX.match(column) is not None


def is_text(kind: Any) -> bool:
    """Tell whether a type is one of text, behind a dictionary or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_key(kind: Any) -> bool:
    return is_text(kind) or bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def check_names(name: str, columns: list[str]) -> None:
    """Refuse columns without a name, and several of one.

    Raises:
        InvalidRequest: There are such columns.
    """
    without = [str(at) for at, column in enumerate(columns, 1) if not column.strip()]
    if without:
        raise InvalidRequest(
            name, f"column {listing(without)} without a name",
            expected="a name for each",
            remedy="pandas writes its index like that: df.to_csv(..., index=False) does not.",
        )  # fmt: skip
    twice = sorted(repr(column) for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InvalidRequest(name, f"columns of the same name: {listing(twice)}", remedy="Rename them.")


def no_column(option: str, column: str, columns: list[str]) -> InvalidRequest:
    """Return the error for a column that is not there, with the nearest names."""
    lower = {one.casefold(): one for one in columns}
    near = [lower[one] for one in get_close_matches(column.casefold(), lower, n=3)]
    remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return InvalidRequest(option, f"no column {column!r}", expected=f"one of {listing(columns, 100)}", remedy=remedy)


def _usual(
    role: str, names: Iterable[str], columns: list[str], taken: Collection[str | None], notes: list[str]
) -> str | None:
    """Return the column with the first of some names, in any case; None where there is none that is free."""
    lower = {column.casefold(): column for column in reversed(columns) if column not in taken}
    found = next((lower[name] for name in names if name in lower), None)
    if found is not None:
        notes.append(f"{role} column: {found} (--{role} names another)")
    return found


def _only_bytes(
    name: str, columns: list[str], first_ending: Callable[[str], str], notes: list[str]
) -> tuple[tuple[str, str], ...]:
    """Return the one column of bytes, with a field for it; none where there is not one."""
    if not columns:
        return ()
    if len(columns) > 1:
        raise InvalidRequest(
            name, f"{counted(len(columns), 'column of bytes')}: {listing(columns)}",
            remedy=f"Say which, and the fields that they become: --bytes jpg={columns[0]}.",
        )  # fmt: skip
    column = columns[0]
    ending = column.casefold() if column.casefold() in _FORMATS else first_ending(column)
    if not ending:
        raise InvalidRequest(
            name, f"column {column!r} holds bytes, and nothing says of what kind",
            remedy=f"Name the field that they become: --bytes jpg={column}.",
        )  # fmt: skip
    notes.append(f"bytes column: {column}, as the field {ending} (--bytes FIELD=COLUMN names another)")
    return ((ending, column),)


def ending_of(path: str | None, dots: Dots) -> str:
    """Return the field that a path names; empty where it names none."""
    split = split_name(to_bytes(os.path.basename(path)), dots) if path else None
    return to_text(split[1]) if split else ""


def check_fields(name: str, roles: Roles, classes: tuple[str, ...]) -> None:
    """Refuse names that no field can have, or that several columns give to theirs, and labels that are no field.

    Raises:
        InvalidRequest: There are such names.
    """
    names = roles.field_names()
    for one in names:
        if BAD_FIELD.search(one):
            raise InvalidRequest(
                f"field {one!r}", "no name for a field", expected="an ending, such as jpg, cls or seg.png"
            )
    twice = sorted({repr(one) for one in names if names.count(one) > 1})
    if twice:
        remedy = META_CLASH if repr(META) in twice and roles.meta else "Name them apart."
        raise InvalidRequest(name, f"several columns become the field {listing(twice)}", remedy=remedy)
    unknown = [one for one in classes if one not in dict(roles.fields)]
    if unknown:
        remedy = f"Name its column: --field {unknown[0]}=COLUMN."
        raise InvalidRequest("--classes", f"no field {listing([repr(one) for one in unknown])}", remedy=remedy)
