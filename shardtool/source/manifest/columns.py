"""Which column of a manifest is what: the key, paths, bytes, values, and the rest.

Names alone decide, and types where they are known. What was not asked for is found by the usual
names, and noted, so that what was guessed is known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest, listing
from shardtool.table.columns import (
    NAME_APART,
    PATH_NAMES,
    check_fields,
    check_labels,
    check_names,
    heavy_columns,
    is_index,
    is_text,
    no_such,
)
from shardtool.values import Dots, counted, split_name, to_bytes, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shardtool.source.manifest.options import ManifestOptions

KEY_NAMES = ("key", "__key__", "id", "sample_id", "object_id", "image_id", "uid", "uuid")
META = "json"
_FORMATS = frozenset({
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jxl", "jp2", "npy", "npz", "pdf", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each column; see `ManifestOptions`.

    Attributes:
        key: None: the paths' stems, or the rows' numbers where there are none.
        path: None: there are none, or their fields are named.
        files: Field to column of paths.
        binary: Field to column of bytes.
        urls: Field to column of URLs.
        fields: Field to column of values.
        meta: In the order of the table.
        notes: What was chosen by the usual names.
    """

    key: str | None
    path: str | None
    files: tuple[tuple[str, str], ...]
    binary: tuple[tuple[str, str], ...]
    urls: tuple[tuple[str, str], ...]
    fields: tuple[tuple[str, str], ...]
    meta: tuple[str, ...]
    notes: list[str] = field(default_factory=list)

    def texts(self) -> list[str]:
        """Return the columns that must stay text where types are inferred."""
        return [name for name in (self.key, *self.paths(), *self.url_columns(), *self.streamed()) if name is not None]

    def url_columns(self) -> list[str]:
        """Return the columns of URLs."""
        return [column for _, column in self.urls]

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
        names = [name for pairs in (self.files, self.urls, self.binary, self.fields) for name, _ in pairs]
        return names + ([META] if self.meta else [])


def choose(name: str, schema: pa.Schema, options: ManifestOptions, first_ending: Callable[[str], str]) -> Roles:
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
    for named_by, column in options.named():
        if column not in schema.names:
            raise no_such("column", named_by, column, schema.names)
    notes: list[str] = []
    path, binary = options.path, options.binary
    if path is None and not options.files and not binary and not options.urls:
        asked = {column for _, column in options.fields}
        path = _usual("path", PATH_NAMES, [one.name for one in schema if is_text(one.type)], asked, notes)
        if path is None:
            free = [one for one in heavy_columns(schema) if one not in asked]
            binary = _only_bytes(name, free, first_ending, notes)
    payload = {path, *(column for _, column in (*options.files, *options.urls, *binary, *options.fields))}
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
        urls=options.urls,
        fields=options.fields,
        meta=() if options.meta == "none" else meta,
        notes=notes,
    )
    names = roles.field_names()
    clash = bool(roles.meta) and names.count(META) > 1
    check_fields(name, names, remedy=meta_clash() if clash else NAME_APART)
    check_labels(options.classes, roles.fields)
    _check_payload(name, schema.names, roles)
    _note(roles, options)
    return roles


def meta_clash() -> str:
    """Return what to do where another field is called as the metadata's."""
    none = option("meta", "none")
    return f"The metadata is the field json: call the other something else, or leave it out with {none}."


def _note(roles: Roles, options: ManifestOptions) -> None:
    """Add to the notes what no column was found for."""
    if not roles.paths() and not roles.binary and not roles.urls:
        roles.notes.append(
            f"no column of files: samples hold the table's values alone ({option('path', 'COLUMN')} names one)"
        )
    if roles.key is None and options.key is None:
        where = "the paths without their endings" if roles.paths() else "the numbers of the rows"
        roles.notes.append(f"keys: {where} ({option('key', 'COLUMN')} names a column)")
    if roles.meta and options.meta == "all":
        roles.notes.append(f"columns in the field {META}: {listing([*roles.meta], 8)} ({option('meta')} chooses)")


def _check_payload(name: str, columns: list[str], roles: Roles) -> None:
    if not roles.paths() and not roles.binary and not roles.urls and not roles.fields:
        found = f"no column with a usual name for paths, among {listing(columns, 20)}"
        expected = f"one called {listing([*PATH_NAMES], len(PATH_NAMES))}"
        remedy = (
            f"Name it: {option('path', 'COLUMN')}, {option('files', {'jpg': 'COLUMN'})}, "
            f"{option('urls', {'jpg': 'COLUMN'})}, {option('binary', {'jpg': 'COLUMN'})}, or "
            f"{option('values', {'txt': 'COLUMN'})}."
        )
        raise InvalidRequest(name, found, expected=expected, remedy=remedy)


def _is_key(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _usual(
    role: str, names: Iterable[str], columns: list[str], taken: Collection[str | None], notes: list[str]
) -> str | None:
    """Return the column with the first of some names, in any case; None where there is none that is free."""
    lower = {column.casefold(): column for column in reversed(columns) if column not in taken}
    found = next((lower[name] for name in names if name in lower), None)
    if found is not None:
        notes.append(f"{role} column: {found} ({option(role)} names another)")
    return found


def _only_bytes(
    name: str, columns: list[str], first_ending: Callable[[str], str], notes: list[str]
) -> tuple[tuple[str, str], ...]:
    """Return the one column of bytes, with a field for it; none where there is not one."""
    if not columns:
        return ()
    if len(columns) > 1:
        remedy = f"Say which, and the fields that they become: {option('binary', {'jpg': columns[0]})}."
        raise InvalidRequest(name, f"{counted(len(columns), 'column of bytes')}: {listing(columns)}", remedy=remedy)
    column = columns[0]
    ending = column.casefold() if column.casefold() in _FORMATS else first_ending(column)
    if not ending:
        found = f"column {column!r} holds bytes, and nothing says of what kind"
        raise InvalidRequest(
            name, found, remedy=f"Name the field that they become: {option('binary', {'jpg': column})}."
        )
    notes.append(
        f"bytes column: {column}, as the field {ending} ({option('binary', {'FIELD': 'COLUMN'})} names another)"
    )
    return ((ending, column),)


def ending_of(path: str | None, dots: Dots) -> str:
    """Return the field that a path names; empty where it names none."""
    split = split_name(to_bytes(os.path.basename(path)), dots) if path else None
    return to_text(split[1]) if split else ""
