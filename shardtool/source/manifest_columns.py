"""Which column of a manifest is what: the key, paths, bytes, values, and the rest.

Names alone decide, and types where they are known. What was not asked for is found by the usual
names, and noted, so that what was guessed is known.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.request.texts import pairs
from shardtool.source import manifest_rows as places
from shardtool.table import arrays
from shardtool.table import columns as keys
from shardtool.table.columns import (
    NAME_APART,
    PATH_NAMES,
    Rows,
    check_fields,
    check_labels,
    check_names,
    heavy_columns,
    is_bytes,
    is_index,
    is_text,
    is_wrapped_bytes,
    no_such,
    short,
)
from shardtool.table.values import has_text, large_places, missing_places, nul_places
from shardtool.values import NAME_LIMIT, Dots, counted, split_name, to_bytes, to_text
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from numpy.typing import NDArray

    from shardtool.entries.classes import Classes
    from shardtool.names import Names
    from shardtool.request.options import CreateOptions
    from shardtool.source.naming import Groups


KEY_NAMES = ("key", "__key__", "id", "sample_id", "object_id", "image_id", "uid", "uuid")
META = "json"
_FORMATS = frozenset({
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jxl", "jp2", "npy", "npz", "pdf", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """The options that say what a manifest's columns are for.

    Attributes:
        key: The column of keys; None: one with a usual name, or the paths without their endings. The path column
            itself means the latter.
        path: The column of paths whose endings name the field.
        files: (field, column): paths whose field is named.
        binary: (field, column): the bytes themselves, or `struct<bytes, path>` with the bytes there, or text that is
            too long to be held; read a batch at a time.
        urls: (field, column): URLs whose files are the field; a worker fetches them.
        fields: (field, column): the value itself is the payload; the column is held.
        classes: Those of `fields` whose values are numbered, in the order of their bytes.
        known_classes: The numbers that classes have already; None: none has.
        meta: The columns that go into the field `json`, and into the sidecars.
        root: What relative paths count from; None: the manifest's folder.
        allow_outside: Paths may lead out of `root`.
        size: A column with the bytes of the file, for plans of files that are not there, or that lie in the web.
        stat: Look at the files; False: plan with what `size` says.
        dots: Where a file's name ends and its field begins.
    """

    key: str | None = None
    path: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    binary: tuple[tuple[str, str], ...] = ()
    urls: tuple[tuple[str, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    classes: tuple[str, ...] = ()
    known_classes: Classes | None = None
    meta: Literal["all", "none"] | tuple[str, ...] = "all"
    root: str | None = None
    allow_outside: bool = False
    size: str | None = None
    stat: bool = True
    dots: Dots = "first"

    def named(self) -> list[tuple[str, str]]:
        """Return (option, column) for every column that is asked for."""
        found = [("key", self.key), ("path", self.path), ("size", self.size)]
        given = ("files", self.files), ("binary", self.binary), ("urls", self.urls), ("values", self.fields)
        for name, named in given:
            found += [(name, column) for _, column in named]
        if isinstance(self.meta, tuple):
            found += [("meta", column) for column in self.meta]
        return [(option(name), column) for name, column in found if column is not None]


def manifest_options(options: CreateOptions) -> ManifestOptions:
    """Return what is asked of a manifest."""
    from shardtool.dataset.dataset_file import open_classes

    return ManifestOptions(
        key=options.key,
        path=options.path,
        files=pairs("files", options.files),
        binary=pairs("binary", options.binary),
        urls=pairs("urls", options.urls),
        fields=pairs("values", options.values),
        classes=tuple(options.classes),
        known_classes=open_classes(options.classes_from),
        meta=options.meta if options.meta in ("all", "none") else tuple(options.meta.split(",")),  # type: ignore[arg-type]
        root=None if options.root is None else os.fspath(options.root),
        allow_outside=options.allow_outside,
        size=options.size,
        stat=options.stat,
        dots=options.dots or "first",
    )


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


# What can be wrong with a manifest's columns: each kind of problem is one error, with the numbers of its rows.


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
    for one, column in roles.fields:
        right = column in kinds and has_text(kinds[column])
        want(column, f"field {one}", "text or numbers", right=right, remedy=bytes_remedy)
        is_array = one.rpartition(".")[2].lower() == "npy"
        cure = f"Call the field json; or {bytes_remedy} ShardWriter takes arrays."
        want(column, f"field {one}", "the bytes of a .npy file", right=not is_array, remedy=cure)
        if one in classes:
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
    for one in sorted(set(endings.names) & set(known)):
        bad = np.flatnonzero(endings.codes == endings.names.index(one))
        remedy = meta_clash() if one == META else "Name them apart."
        rows.refuse(bad, f"column {name!r}: a file whose ending is another column's field {one!r}", remedy=remedy)


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
