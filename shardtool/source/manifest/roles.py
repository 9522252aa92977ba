"""Choose a role for each column of a manifest: key, path, bytes, URL, value or metadata."""

from __future__ import annotations

import os
import re
from dataclasses import field
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataclass import dataclass
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
PAIR_OPTIONS = ("file", "bytes", "url", "field")
_URL_NAMES = frozenset(("url", "urls", "image_url", "img_url", "image_urls", "link"))
_TEXT_NAMES = frozenset(("txt", "text", "caption", "content", "prompt", "sentence", "body"))
PATH_OPTIONS = ("root", "allow_outside", "stat", "symlinks")
_MEDIA_ENDINGS = frozenset({
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jxl", "jp2", "npy", "npz", "pdf", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov",
})  # fmt: skip
_SIGNATURES = (
    (re.compile(rb"\xff\xd8\xff"), "jpg"), (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"), (re.compile(rb"fLaC"), "flac"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "webp"), (re.compile(rb"RIFF....WAVE", re.DOTALL), "wav"),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), "mp3"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The columns of a manifest, by role. Each pair contains a field name and a column name.

    If `key` is None, keys are the paths, without extensions, of the first column of `paths()`, or of a column of
    `struct<bytes, path>` with unique paths. If there is neither, keys are row numbers.
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
        """Return the columns with the role `files`, `urls`, `binary` or `values`."""
        return [column for _, column in getattr(self, role)]

    def texts(self) -> list[str]:
        """Return the columns that must be read as text."""
        keys = [self.key] if self.key is not None else []
        return [*keys, *self.paths(), *self.columns_of("urls"), *self.columns_of("binary")]

    def paths(self) -> list[str]:
        """Return the columns of paths, with the column `path` first."""
        return [*([self.path] if self.path is not None else []), *self.columns_of("files")]

    def field_names(self) -> list[str]:
        """Return the fields of all roles, and `json` if there is metadata."""
        names = [name for pairs in (self.files, self.urls, self.binary, self.values) for name, _ in pairs]
        return names + ([META_FIELD] if self.meta else [])


def requested_columns(options: CreateOptions) -> list[tuple[str, str]]:
    """Return a pair for each column that an option names: the option as text, and the column."""
    columns = [(name, getattr(options, name)) for name in ("key", "path", "size_column")]
    for name in PAIR_OPTIONS:
        columns += [(name, column) for _, column in parse_pairs(name, getattr(options, name))]
    if options.meta not in (None, "all", "none"):
        columns += [("meta", column) for column in options.meta.split(",")]
    return [(option_text(name), column) for name, column in columns if column is not None]


def choose_roles(
    where: str, schema: pa.Schema, options: CreateOptions, first_ending: Callable[[str], str]
) -> ColumnRoles:
    """Choose the role of each column from the options, or from usual column names.

    `first_ending` returns the extension of the first value in a column, or "".
    """
    _check_columns_exist(schema, options)
    notes: list[str] = []
    files, binary, urls, values = (parse_pairs(name, getattr(options, name)) for name in PAIR_OPTIONS)
    path = options.path
    if path is None and not files and not binary and not urls:
        named_columns = {column for _, column in values}
        if values:  # if the user lists a media column in --meta, do not pack it as a field
            named_columns |= {name for name in (options.meta or "").split(",") if name.casefold() in tables.MEDIA_NAMES}
        texts = [column.name for column in schema if tables.is_text_type(column.type)]
        path = _find_usual_column("path", tables.PATH_NAMES, texts, named_columns, notes)
        if path is None:
            others = [column for column in schema if column.name not in named_columns]
            candidates = [column.name for column in others if _holds_bytes(column.type)]
            binary = _find_bytes_column(where, candidates, first_ending, notes, needed=not values)
    payload = {path, *(column for _, column in (*files, *urls, *binary, *values))}
    key = options.key
    if key is None:
        possible_keys = [column.name for column in schema if _can_be_key(column.type)]
        key = _find_usual_column("key", KEY_NAMES, possible_keys, payload, notes)
    unused_bytes = [name for name in tables.find_byte_columns(schema) if name not in payload]
    meta_columns = {*schema.names} - {key, *payload, *unused_bytes, *filter(tables.is_index_name, schema.names)}
    if options.meta not in (None, "all"):
        meta_columns = {*options.meta.split(",")} if options.meta != "none" else set()
    key_path = path if path is not None else next((column for _, column in files), None)
    roles = ColumnRoles(
        key=None if key == key_path else key,
        path=path,
        files=files,
        binary=tuple(sorted(binary, key=lambda pair: to_bytes(pair[0]))),
        urls=urls,
        values=values,
        meta=tuple(name for name in schema.names if name in meta_columns),
        notes=notes,
    )
    names = roles.field_names()
    clash = bool(roles.meta) and names.count(META_FIELD) > 1
    tables.check_field_names(where, names, remedy=meta_field_advice() if clash else tables.RENAME_HINT)
    tables.check_labels(options.classes, roles.values)
    if not (roles.paths() or roles.binary or urls or values):
        found = f"no column with a usual name for paths, among {format_list(schema.names, 20)}"
        expected = f"one named {format_list([*tables.PATH_NAMES], 6)}"
        other_options = [option_text(name, {"jpg": "COLUMN"}) for name in ("file", "url", "bytes")]
        named = ", ".join([option_text("path", "COLUMN"), *other_options])
        remedy = f"Name the column: {named}, or {option_text('field', {'txt': 'COLUMN'})}."
        if likely := [
            option_text(option, {field: name})
            for name in schema.names
            for option, field, usual in (("url", "jpg", _URL_NAMES), ("field", "txt", _TEXT_NAMES))
            if name.casefold() in usual and tables.is_text_type(schema.field(name).type)
        ]:
            remedy = f"If these columns contain the fields, add {' '.join(likely)}. Otherwise, name others: {named}."
        raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    _add_notes(roles, options)
    if unused_bytes := [name for name in unused_bytes if name not in roles.meta]:
        add_option = option_text("bytes", {"FIELD": "COLUMN"})
        notes.append(f"columns of bytes excluded: {format_list(unused_bytes)} (add one with {add_option})")
    return roles


def _check_columns_exist(schema: pa.Schema, options: CreateOptions) -> None:
    for named_by, column in requested_columns(options):
        if column not in schema.names:
            error = tables.missing_name_error("column", named_by, column, schema.names)
            for option in PAIR_OPTIONS if not error.remedy else ():
                tables.check_direction(option, parse_pairs(option, getattr(options, option)), schema.names)
            raise error


def meta_field_advice() -> str:
    """Return advice for a field that is named json, like the metadata field."""
    none = option_text("meta", "none")
    return f"The metadata is the field json: rename the other field, or omit the metadata with {none}."


def _add_notes(roles: ColumnRoles, options: CreateOptions) -> None:
    if idle := [option_text(name) for name in PATH_OPTIONS if not roles.paths() and options.is_given(name)]:
        roles.notes.append(f"{format_list(idle)}: no effect, because no column contains file paths")
    if options.size_column is not None and options.stat and not roles.urls:
        without_stat = choose_text("stat=False", "--no-stat")
        roles.notes.append(f"{option_text('size_column')} has no effect without {without_stat}")
    if roles.key is None and options.key is None and not roles.paths() and not roles.binary:
        roles.notes.append(f"using row numbers as keys (change with {option_text('key', 'COLUMN')})")
    if roles.meta and options.meta in (None, "all"):
        columns = format_list([*roles.meta], 8)
        roles.notes.append(f"stored in the {META_FIELD} field: {columns} (choose with {option_text('meta')})")


def _holds_bytes(kind: pa.DataType) -> bool:
    return tables.is_bytes_type(kind) or tables.is_wrapped_bytes(kind)


def _can_be_key(kind: pa.DataType) -> bool:
    return tables.is_text_type(kind) or bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _find_usual_column(
    role: str, names: Iterable[str], columns: list[str], taken: Collection[str | None], notes: list[str]
) -> str | None:
    lower = {column.casefold(): column for column in reversed(columns) if column not in taken}
    column_name = next((lower[name] for name in names if name in lower), None)
    if column_name is not None and column_name.casefold() != role:
        notes.append(f"using {column_name} as the {role} (change with {option_text(role)})")
    return column_name


def _find_bytes_column(
    name: str, columns: list[str], first_ending: Callable[[str], str], notes: list[str], *, needed: bool
) -> tuple[tuple[str, str], ...]:
    if not columns or (len(columns) > 1 and not needed):
        return ()
    if len(columns) > 1:
        found = f"{pluralize(len(columns), 'column of bytes')}: {format_list(columns)}"
        remedy = f"Choose one, and its field: {option_text('bytes', {'jpg': columns[0]})}."
        raise InvalidRequest(name, found, remedy=remedy)
    column = columns[0]
    ending = column.casefold() if column.casefold() in _MEDIA_ENDINGS else first_ending(column)
    if not ending and not needed:
        return ()
    if not ending:
        found = f"column {column!r} holds bytes of an unknown kind"
        remedy = f"Name their field: {option_text('bytes', {'jpg': column})}."
        raise InvalidRequest(name, found, remedy=remedy)
    other = option_text("bytes", {"FIELD": "COLUMN"})
    notes.append(f"storing the bytes of {column} as the field {ending} (change with {other})")
    return ((ending, column),)


def path_ending(path: str | None, dots: Dots) -> str:
    """Return the field that the extension of a path defines, or ""."""
    split = split_name(to_bytes(os.path.basename(path)), dots) if path else None
    return to_text(split[1]) if split else ""


def ending_of_bytes(data: bytes) -> str:
    """Return the usual extension of an image or audio file, or "" for other content."""
    return next((ending for signature, ending in _SIGNATURES if signature.match(data)), "")
