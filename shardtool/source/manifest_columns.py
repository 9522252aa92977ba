"""Which column of a manifest is what: the key, paths, bytes, values, and the rest.

Names alone decide, and types where they are known. What was not asked for is found by the usual
names, and noted, so that what was guessed is known.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.fetch import LONGEST, shown_url
from shardtool.request.texts import pairs
from shardtool.storage.open_file import is_place
from shardtool.table import columns as keys
from shardtool.table.columns import (
    NAME_APART,
    PATH_NAMES,
    Rows,
    check_fields,
    check_labels,
    heavy_columns,
    is_bytes,
    is_index,
    is_text,
    is_wrapped_bytes,
    no_such,
    short,
)
from shardtool.table.values import ArrowTexts, has_text, large_places, missing_places, nul_places
from shardtool.values import NAME_LIMIT, counted, split_name, to_bytes, to_text
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.names import Names
    from shardtool.request.options import CreateOptions
    from shardtool.select.names import Groups
    from shardtool.values import Dots


KEY_NAMES = ("key", "__key__", "id", "sample_id", "object_id", "image_id", "uid", "uuid")
META = "json"
_FORMATS = frozenset({
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jxl", "jp2", "npy", "npz", "pdf", "wav", "flac",
    "mp3", "ogg", "opus", "m4a", "mp4", "webm", "mkv", "avi", "mov",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Roles:
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
        return [*keys, *self.paths(), *self.columns_of("urls"), *self.streamed()]

    def streamed(self) -> list[str]:
        """Return the columns of bytes, which are not read whole."""
        return self.columns_of("binary")

    def paths(self) -> list[str]:
        """Return the columns of paths; the one whose endings name the field first."""
        return [*([self.path] if self.path is not None else []), *self.columns_of("files")]

    def field_names(self) -> list[str]:
        """Return the fields whose names are known, `json` among them where there is metadata."""
        names = [name for pairs in (self.files, self.urls, self.binary, self.values) for name, _ in pairs]
        return names + ([META] if self.meta else [])


def asked_columns(options: CreateOptions) -> list[tuple[str, str]]:
    """Return (option, column) for every column that is asked for."""
    found = [(name, getattr(options, name)) for name in ("key", "path", "size")]
    for name in ("files", "binary", "urls", "values"):
        found += [(name, column) for _, column in pairs(name, getattr(options, name))]
    if options.meta not in ("all", "none"):
        found += [("meta", column) for column in options.meta.split(",")]
    return [(option(name), column) for name, column in found if column is not None]


def choose(where: str, schema: pa.Schema, options: CreateOptions, first_ending: Callable[[str], str]) -> Roles:
    """Return what each column is for.

    Args:
        where: What the manifest is called.
        schema: Its columns.
        options: What was asked for.
        first_ending: Gives, for a column of `struct<bytes, path>`, the ending of the first path, or nothing.

    Raises:
        InvalidRequest: A column that is not there, no columns that could be samples, or fields that clash.
    """
    for named_by, column in asked_columns(options):
        if column not in schema.names:
            raise no_such("column", named_by, column, schema.names)
    notes: list[str] = []
    files, binary, urls, values = (
        pairs(name, getattr(options, name)) for name in ("files", "binary", "urls", "values")
    )
    path = options.path
    if path is None and not files and not binary and not urls:
        asked = {column for _, column in values}
        path = _usual("path", PATH_NAMES, [one.name for one in schema if is_text(one.type)], asked, notes)
        if path is None:
            binary = _only_bytes(where, [one for one in heavy_columns(schema) if one not in asked], first_ending, notes)
    payload = {path, *(column for _, column in (*files, *urls, *binary, *values))}
    key = options.key
    if key is None:
        key = _usual("key", KEY_NAMES, [one.name for one in schema if _is_key(one.type)], payload, notes)
    wanted = {*schema.names} - {key, *payload, *filter(is_index, schema.names)}
    if options.meta != "all":
        wanted = {*options.meta.split(",")} if options.meta != "none" else set()
    roles = Roles(
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
    clash = bool(roles.meta) and names.count(META) > 1
    check_fields(where, names, remedy=meta_clash() if clash else NAME_APART)
    check_labels(options.classes, roles.values)
    if not (roles.paths() or roles.binary or urls or values):
        found = f"no column with a usual name for paths, among {listing(schema.names, 20)}"
        expected = f"one called {listing([*PATH_NAMES], len(PATH_NAMES))}"
        asked_by = [option(name, {"jpg": "COLUMN"}) for name in ("files", "urls", "binary")]
        named = ", ".join([option("path", "COLUMN"), *asked_by])
        remedy = f"Name it: {named}, or {option('values', {'txt': 'COLUMN'})}."
        raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    _note(roles, options)
    return roles


def meta_clash() -> str:
    """Return what to do where another field is called as the metadata's."""
    none = option("meta", "none")
    return f"The metadata is the field json: call the other something else, or leave it out with {none}."


def _note(roles: Roles, options: CreateOptions) -> None:
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
_FIELD_LIMIT = 2**16 - 1
_CHUNK = 2**16  # rows at a time


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
    for column in roles.columns_of("urls"):
        want(column, "URL", "text", right=is_text(kinds.get(column, null)))
    for one, column in roles.values:
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
    needed += [("path", name) for name in roles.paths()] + [("value", name) for name in roles.columns_of("values")]
    for role, name in needed:
        missing = missing_places(rows.columns[name])
        found = f"column {name!r}: no {role} (null or NaN)"
        rows.refuse(
            missing, found, expected=f"a {role} in each row", remedy=f"{option('where')} can leave such rows out."
        )
    for name in (*roles.columns_of("values"), *roles.paths(), *roles.columns_of("urls")):
        rows.refuse(nul_places(rows.columns[name]), f"column {name!r}: a NUL in the text", expected="text without")
    for name in roles.columns_of("values"):
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
        return arrow.places(pc.is_inf(column))
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
    empty = np.flatnonzero(arrow.lengths(original) == 0)
    rows.refuse(empty, f"{column}: an empty path", expected="a path in each row")
    is_url = pc.match_substring_regex(original, r"^[A-Za-z][A-Za-z0-9+.-]+://")
    urls = arrow.places(pc.and_(is_url, pc.match_substring_regex(found, r"^[A-Za-z][A-Za-z0-9+.-]+:/")))
    if len(urls):
        problem = f"{column}: a URL, such as {rows.examples(original, urls[:1])},"
        remedy = f"{option('urls', {'jpg': name})} fetches them."
        if pc.all(pc.match_substring_regex(original, "^(?i:s3|gs|az)://")).as_py():
            remedy = f"What they count from, such as {option('root', 's3://BUCKET')}, must be named."
        rows.refuse(urls, problem, expected="paths of files", remedy=remedy)
    if outside:
        return
    away = np.union1d(absolute_places(found), upward_places(found))
    if len(away):
        what = f"{column}: a path that leaves the root, such as {rows.examples(original, away[:1])},"
        cure = f"Name their common folder with {option('root')}, or take them with {flag('allow_outside')}."
        rows.refuse(away, what, expected=f"paths below the manifest's folder, or {option('root')}", remedy=cure)


def check_endings(rows: Rows, name: str, endings: Endings, known: list[str]) -> None:
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
        shown = rows.examples(rows.columns[column], bad)
        problem = f"column {column!r}: {counted(len(bad), 'value')} that cannot be keys, such as {shown},"
        expected = f"text of 1 to {NAME_LIMIT:,} bytes, without control characters and parts such as '', '.' or '..'"
        rows.refuse(bad, problem, expected=expected, remedy=_other_key())


def check_endings_differ(rows: Rows, column: str | None, found: Names, fields: NDArray[np.int64]) -> None:
    """Refuse keys that two rows have whose files would be the same field, of which `fields` has a number for each.

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


# Columns of URLs, as outputs may have them.


_MAY_HIDE = r"[@#?\\]"  # what must be in a URL of which something is not shown, but for its length


def shown_column(urls: pa.Array) -> pa.Array:
    """Return what may be seen of URLs: see `shown_url`."""
    chunks = [urls.slice(first, _CHUNK) for first in range(0, len(urls), _CHUNK)]
    return pa.concat_arrays([_shown_chunk(chunk) for chunk in chunks]) if chunks else urls


def _shown_chunk(urls: pa.Array) -> pa.Array:
    """Return some of them; those that are shown whole are not looked at one by one."""
    mask = pc.or_(pc.match_substring_regex(urls, _MAY_HIDE), pc.greater(pc.utf8_length(urls), LONGEST))
    if not pc.any(mask).as_py():
        return urls
    shown = [shown_url(text) for text in urls.filter(mask).to_pylist()]
    return pc.replace_with_mask(urls, mask, pa.array(shown, urls.type))


# Paths as a manifest gives them: where they lead from the root, and what their names say.
#
# Nothing is looked up on a disk here; links are for `listed`.


_EMPTY = arrow.text("")
_END = arrow.text("\0")
_UP = r"(?:^|/)\.\.(?:/|$)"
_SPLIT = {
    "first": r"(?s)^(?P<stem>(?:.*/)?[^/][^./]*)\.(?P<field>[^/]+)$",
    "last": r"(?s)^(?P<stem>(?:.*/)?[^/]+)\.(?P<field>[^./]+)$",
}
_BEFORE = {"first": r"(?:^|/)[^/][^./]*\.", "last": r"[^/]\."}


def relative(paths: pa.Array, root: bytes) -> pa.Array:
    """Return paths relative to `root` where they lead into it, without `./`, `//` and the like.

    Those that lead elsewhere stay absolute; `..` stays, for it may follow a link.
    """
    text = os.fsdecode(root)
    tidy = [(r"/(?:\.?/)+", "/"), (r"^\./", "")]
    if is_place(root):
        tidy = [(f"^{re.escape(text)}", ""), *tidy]
    else:
        tops = sorted({os.path.abspath(text), os.path.realpath(text)})
        tidy += [(f"^{re.escape(top.rstrip('/'))}/", "") for top in tops]
    for pattern, replacement in tidy:
        if pc.any(pc.match_substring_regex(paths, pattern)).as_py():
            paths = pc.replace_substring_regex(paths, pattern, replacement)
    return paths


def absolute_places(paths: pa.Array) -> NDArray[np.int64]:
    """Return which of `relative` paths are absolute: they lead out of the root."""
    return arrow.places(pc.starts_with(paths, "/"))


def upward_places(paths: pa.Array) -> NDArray[np.int64]:
    """Return which of `relative` paths leave the root by `..`, whatever links are on the way."""
    found = arrow.places(pc.match_substring_regex(paths, _UP))
    shown = paths.take(number_array(found)).to_pylist()
    return found[[os.path.normpath(path).startswith("..") for path in shown]] if shown else found


def from_common_folder(paths: pa.Array, root: bytes) -> tuple[str, pa.Array] | None:
    """Return the folder above all of these paths, and the paths absolute; None where none of them leaves `root`."""
    paths = relative(paths, root)
    away, up = absolute_places(paths), upward_places(paths)
    if not len(away) and not len(up):
        return None
    top = os.path.join(os.path.realpath(os.fsdecode(root)), "")
    real = cache(lambda folder: os.path.realpath(os.path.join(top, folder)))
    texts = paths.to_pylist()
    for at in up.tolist():
        folder, name = os.path.split(texts[at])
        texts[at] = os.path.join(real(folder), name)
    texts = [text and os.path.join(top, text) for text in texts]  # absolute ones stay, and empty ones are refused later
    return os.path.commonpath({os.path.dirname(text) for text in texts if text}), arrow.texts(texts)


def from_root(paths: pa.Array, root: bytes) -> pa.Array:
    """Return `relative` paths that lead elsewhere as they count from `root`, by `..` from where it really lies."""
    if not len(absolute_places(paths)):
        return paths
    folder, up = os.path.realpath(os.fsdecode(root)), ""
    while folder != "/":
        folder, up = os.path.dirname(folder), f"{up}../"
        paths = pc.replace_substring_regex(_large(paths), f"^{re.escape(folder.rstrip('/'))}/+", up)
    return paths


def _large(paths: pa.Array) -> pa.Array:
    return pc.cast(paths, pa.large_string())


class Endings:
    """The fields that paths name.

    Attributes:
        names: Each once, in the order in which they were met; empty for names without one.
        codes: uint16[paths] of `names`.

    Raises:
        InvalidRequest: There are too many.
    """

    def __init__(self, where: str, paths: pa.Array, dots: Dots) -> None:
        self._where, self._paths, self._dots = where, paths, dots
        self.names: list[str] = []
        self.codes = np.zeros(len(paths), np.uint16)
        for first in range(0, len(paths), _CHUNK):
            chunk = paths.slice(first, _CHUNK)
            self.codes[first : first + len(chunk)] = self._chunk(chunk)

    def _chunk(self, chunk: pa.Array) -> NDArray[np.uint16] | int:
        """Return the codes of some paths. Nearly always all have the ending of the last one, which is quickly seen."""
        if self.names:
            pattern = f"(?s){_BEFORE[self._dots]}{re.escape(self.names[-1])}$"
            if self.names[-1] and pc.all(pc.match_substring_regex(chunk, pattern)).as_py():
                return len(self.names) - 1
        fields = pc.struct_field(pc.extract_regex(chunk, _SPLIT[self._dots]), [1])
        fields = pc.coalesce(_large(fields), _EMPTY).dictionary_encode()
        known = {name: at for at, name in enumerate(self.names)}
        codes = [known.setdefault(name, len(known)) for name in fields.dictionary.to_pylist()]
        if len(known) > _FIELD_LIMIT:
            found = f"more than {_FIELD_LIMIT:,} different fields"
            remedy = f"If the names have dots in them, {option('dots', 'last')} makes the last ending the field."
            raise InvalidRequest(self._where, found, expected="a few", remedy=remedy)
        self.names = list(known)
        taken: NDArray[np.uint16] = np.array(codes, np.uint16)[arrow.numbers(fields.indices)]
        return taken

    def stems(self) -> Iterator[pa.Array]:
        """Yield arrays of the paths without their endings, before any were left out."""
        for first in range(0, len(self._paths), _CHUNK):
            chunk, codes = self._paths.slice(first, _CHUNK), self.codes[first : first + _CHUNK]
            ending = self.names[codes[0]]
            if not np.all(codes == codes[0]):
                yield pc.coalesce(pc.struct_field(pc.extract_regex(chunk, _SPLIT[self._dots]), [0]), chunk)
            else:
                yield pc.replace_substring_regex(chunk, re.escape(f".{ending}") + "$", "") if ending else chunk


def row_paths(
    samples: int, columns: Sequence[pa.Array], roles: NDArray[np.int64], endings: NDArray[np.uint16] | None
) -> ArrowTexts:
    """Return the paths of the rows of samples, made of the columns they stand in: a row that is no file has none.

    Args:
        samples: How many there are.
        columns: Columns of paths, each with a value per sample.
        roles: For each ending, which column each row of a sample takes its path from; -1 for none.
        endings: uint16[samples], or None where there is one for all.
    """
    count = samples * roles.shape[1]

    def render(which: NDArray[np.int64] | slice) -> pa.Array:
        rows = np.arange(which.start, which.stop) if isinstance(which, slice) else which
        if not columns:
            return arrow.texts(["\0"] * len(rows))
        sample, place = np.divmod(rows, roles.shape[1])
        role = roles[0 if endings is None else endings[sample], place]
        taken = [_large(column.take(number_array(sample))) for column in columns]
        texts = pc.choose(number_array(role + 1), _EMPTY, *taken)
        return pc.binary_join_element_wise(texts, _END, _EMPTY)

    return ArrowTexts(count, render, _CHUNK)


def join_rows(columns: Sequence[pa.Array], first: int, last: int) -> bytes:
    """Return the paths of samples `first` to `last` (exclusive), those of a sample together, a NUL after each."""
    parts = [part for column in columns for part in (_large(column.slice(first, last - first)), _END)]
    return bytes(arrow.payload(pc.binary_join_element_wise(*parts, _EMPTY)))
