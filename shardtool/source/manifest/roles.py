"""Choose what each column of a manifest is: key, path, bytes, URL, value or metadata.

The choice depends on names, and on types where they are known. Columns that no option names are found by their
usual
names and reported in a note.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import choose_text, option_text
from shardtool.names import split_name, to_bytes, to_text
from shardtool.request.option_values import parse_pairs
from shardtool.table import columns as tables
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shardtool.request.create_options import CreateOptions
    from shardtool.values import Dots


KEY_NAMES = ("key", "__key__", "id", "sample_id", "object_id", "image_id", "uid", "uuid")


META_FIELD = "json"


PATH_OPTIONS = ("root", "allow_outside", "stat", "symlinks")


_MEDIA_ENDINGS = frozenset({
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jxl", "jp2", "npy", "npz", "pdf", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The role of each column; pairs are of a field and the column that it is made of.

    Attributes:
        key: None: the paths' stems, or the rows' numbers where there are none.
        path: None: there are none, or their fields are named.
        files: Columns of paths.
        binary: Columns of bytes, in the order of the fields' names.
        urls: Columns of URLs.
        values: Columns whose values are the payload.
        meta: In the order of the table.
        notes: What was chosen by the usual names.
    """

    key: str | None
    path: str | None
    files: tuple[tuple[str, str], ...]
    binary: tuple[tuple[str, str], ...]
    urls: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, str], ...]
    meta: tuple[str, ...]
    notes: list[str] = field(default_factory=list)

    def columns_of(self, role: str) -> list[str]:
        """Return the columns of `files`, `urls`, `binary` or `values`."""
        return [column for _, column in getattr(self, role)]

    def texts(self) -> list[str]:
        """Return the columns that must stay text where types are inferred."""
        keys = [self.key] if self.key is not None else []
        return [*keys, *self.paths(), *self.columns_of("urls"), *self.columns_of("binary")]

    def paths(self) -> list[str]:
        """Return the columns of paths; the one whose endings name the field first."""
        return [*([self.path] if self.path is not None else []), *self.columns_of("files")]

    def field_names(self) -> list[str]:
        """Return the fields whose names are known, `json` among them where there is metadata."""
        names = [name for pairs in (self.files, self.urls, self.binary, self.values) for name, _ in pairs]
        return names + ([META_FIELD] if self.meta else [])


def requested_columns(options: CreateOptions) -> list[tuple[str, str]]:
    """Return (option, column) for every column that is asked for."""
    found = [(name, getattr(options, name)) for name in ("key", "path", "size")]
    for name in ("files", "binary", "urls", "values"):
        found += [(name, column) for _, column in parse_pairs(name, getattr(options, name))]
    if options.meta not in (None, "all", "none"):
        found += [("meta", column) for column in options.meta.split(",")]
    return [(option_text(name), column) for name, column in found if column is not None]


def choose_roles(
    where: str, schema: pa.Schema, options: CreateOptions, first_ending: Callable[[str], str]
) -> ColumnRoles:
    """Return what each column is for.

    Args:
        where: What the manifest is called.
        schema: Its columns.
        options: What was asked for.
        first_ending: Gives, for a column of `struct<bytes, path>`, the ending of the first path, or nothing.

    Raises:
        InvalidRequest: A column that is not there, no columns that could be samples, or fields that clash.
    """
    for named_by, column in requested_columns(options):
        if column not in schema.names:
            raise tables.missing_name_error("column", named_by, column, schema.names)
    notes: list[str] = []
    files, binary, urls, values = (
        parse_pairs(name, getattr(options, name)) for name in ("files", "binary", "urls", "values")
    )
    path = options.path
    if path is None and not files and not binary and not urls:
        asked = {column for _, column in values}
        if values:  # columns that --meta names stay metadata
            asked |= {one for one in (options.meta or "").split(",") if one.casefold() in tables.MEDIA_NAMES}
        path = _find_usual_column(
            "path", tables.PATH_NAMES, [one.name for one in schema if tables.is_text_type(one.type)], asked, notes
        )
        if path is None:
            some = [one.name for one in schema if tables.is_bytes_type(one.type) or tables.is_wrapped_bytes(one.type)]
            some = [one for one in some if one not in asked]
            binary = _find_bytes_column(where, some, first_ending, notes, needed=not values)
    payload = {path, *(column for _, column in (*files, *urls, *binary, *values))}
    key = options.key
    if key is None:
        key = _find_usual_column(
            "key", KEY_NAMES, [one.name for one in schema if _can_be_key(one.type)], payload, notes
        )
    unasked = [one for one in tables.find_byte_columns(schema) if one not in payload]
    wanted = {*schema.names} - {key, *payload, *unasked, *filter(tables.is_index_name, schema.names)}
    if options.meta not in (None, "all"):
        wanted = {*options.meta.split(",")} if options.meta != "none" else set()
    roles = ColumnRoles(
        key=None if key == (path if path is not None else next((column for _, column in files), None)) else key,
        path=path,
        files=files,
        binary=tuple(sorted(binary, key=lambda pair: to_bytes(pair[0]))),
        urls=urls,
        values=values,
        meta=tuple(one for one in schema.names if one in wanted),
        notes=notes,
    )
    names = roles.field_names()
    clash = bool(roles.meta) and names.count(META_FIELD) > 1
    tables.check_field_names(where, names, remedy=meta_field_advice() if clash else tables.RENAME_HINT)
    tables.check_labels(options.classes, roles.values)
    if not (roles.paths() or roles.binary or urls or values):
        found = f"no column with a usual name for paths, among {format_list(schema.names, 20)}"
        expected = f"one called {format_list([*tables.PATH_NAMES], len(tables.PATH_NAMES))}"
        asked_by = [option_text(name, {"jpg": "COLUMN"}) for name in ("files", "urls", "binary")]
        named = ", ".join([option_text("path", "COLUMN"), *asked_by])
        remedy = f"Name it: {named}, or {option_text('values', {'txt': 'COLUMN'})}."
        raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    _add_notes(roles, options)
    if unasked := [one for one in unasked if one not in roles.meta]:
        taken = option_text("binary", {"FIELD": "COLUMN"})
        notes.append(f"columns of bytes left out: {format_list(unasked)} ({taken} takes one)")
    return roles


def meta_field_advice() -> str:
    """Return what to do where another field is called as the metadata's."""
    none = option_text("meta", "none")
    return f"The metadata is the field json: call the other something else, or leave it out with {none}."


def _add_notes(roles: ColumnRoles, options: CreateOptions) -> None:
    """Add to the notes what no column was found for, and nothing that was asked for says what becomes of that."""
    idle = [option_text(name) for name in PATH_OPTIONS if not roles.paths() and options.is_given(name)]
    if idle:
        roles.notes.append(f"{format_list(idle)}: no effect, for no column holds paths of files")
    if options.size is not None and options.stat and not roles.urls:
        roles.notes.append(f"{option_text('size')} has no effect without {choose_text('stat=False', '--no-stat')}")
    if roles.key is None and options.key is None and not roles.paths() and not roles.binary:
        roles.notes.append(f"keys: the numbers of the rows ({option_text('key', 'COLUMN')} names a column)")
    if roles.meta and options.meta in (None, "all"):
        roles.notes.append(
            f"columns in the field {META_FIELD}: {format_list([*roles.meta], 8)} ({option_text('meta')} chooses)"
        )


def _can_be_key(kind: pa.DataType) -> bool:
    return tables.is_text_type(kind) or bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _find_usual_column(
    role: str, names: Iterable[str], columns: list[str], taken: Collection[str | None], notes: list[str]
) -> str | None:
    """Return the column with the first of some names, in any case; None where there is none that is free."""
    lower = {column.casefold(): column for column in reversed(columns) if column not in taken}
    found = next((lower[name] for name in names if name in lower), None)
    if found is not None and found.casefold() != role:
        notes.append(f"{role} column: {found} ({option_text(role)} names another)")
    return found


def _find_bytes_column(
    name: str, columns: list[str], first_ending: Callable[[str], str], notes: list[str], *, needed: bool
) -> tuple[tuple[str, str], ...]:
    """Return the one column of bytes, with a field for it; none where there is not one, and no other payload needs it.

    Raises:
        InvalidRequest: Nothing says which of several columns is meant, or what kind of bytes one holds.
    """
    if not columns or (len(columns) > 1 and not needed):
        return ()
    if len(columns) > 1:
        remedy = f"Say which, and the fields that they become: {option_text('binary', {'jpg': columns[0]})}."
        raise InvalidRequest(
            name, f"{pluralize(len(columns), 'column of bytes')}: {format_list(columns)}", remedy=remedy
        )
    column = columns[0]
    ending = column.casefold() if column.casefold() in _MEDIA_ENDINGS else first_ending(column)
    if not ending and not needed:
        return ()
    if not ending:
        found = f"column {column!r} holds bytes, and nothing says of what kind"
        remedy = f"Name the field that they become: {option_text('binary', {'jpg': column})}."
        raise InvalidRequest(name, found, remedy=remedy)
    other = option_text("binary", {"FIELD": "COLUMN"})
    notes.append(f"bytes column: {column}, as the field {ending} ({other} names another)")
    return ((ending, column),)


def path_ending(path: str | None, dots: Dots) -> str:
    """Return the field that a path names; empty where it names none."""
    split = split_name(to_bytes(os.path.basename(path)), dots) if path else None
    return to_text(split[1]) if split else ""
