"""Paths and URLs in a manifest, and the keys and fields that they define. Links are not followed."""

from __future__ import annotations

import os
import re
import stat
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.errors import StoreFailed
from shardtool.fetch.options import MAX_SHOWN_URL_LENGTH, redact_url
from shardtool.messages import option_text
from shardtool.names import BINARY_ENDINGS, to_bytes
from shardtool.select.field_rows import check_field_count
from shardtool.source.manifest.roles import ColumnRoles, path_ending
from shardtool.source.stat_files import StatTask, stat_files
from shardtool.storage.lookup import stat_file
from shardtool.storage.paths import is_address
from shardtool.table.render import ArrowStrings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.values import Dots


CHUNK_ROWS = 2**16
_MAY_NEED_REDACTION = r"[@#?\\]"  # `redact_url` changes only URLs with these characters, and long URLs


def redact_urls(urls: pa.Array) -> pa.Array:
    """Remove secrets from URLs, as `redact_url` does."""
    chunks = [urls.slice(first, CHUNK_ROWS) for first in range(0, len(urls), CHUNK_ROWS)]
    for index, chunk in enumerate(chunks):  # chunks without secrets stay unchanged
        is_long = pc.greater(pc.utf8_length(chunk), MAX_SHOWN_URL_LENGTH)
        mask = pc.or_(pc.match_substring_regex(chunk, _MAY_NEED_REDACTION), is_long)
        if pc.any(mask).as_py():
            shown = [redact_url(text) for text in chunk.filter(mask).to_pylist()]
            chunks[index] = pc.replace_with_mask(chunk, mask, pa.array(shown, urls.type))
    return pa.concat_arrays(chunks) if chunks else urls


_EMPTY_TEXT = arrow.text_scalar("")
_NUL_TEXT = arrow.text_scalar("\0")
_PARENT_FOLDER = r"(?:^|/)\.\.(?:/|$)"
_SPLIT_PATTERNS = {
    "first": r"(?s)^(?P<stem>(?:.*/)?[^/][^./]*)\.(?P<field>[^/]+)$",
    "last": r"(?s)^(?P<stem>(?:.*/)?[^/]+)\.(?P<field>[^./]+)$",
}
_BEFORE_ENDING = {"first": r"(?:^|/)[^/][^./]*\.", "last": r"[^/]\."}


def relative_to_root(paths: pa.Array, root: bytes) -> pa.Array:
    """Make paths below `root` relative to `root`, and remove `./` and `//`.

    Other paths stay absolute. A component `..` stays, because the component before it may be a link.
    """
    text = os.fsdecode(root)
    replacements = [(r"/(?:\.?/)+", "/"), (r"^\./", "")]
    if is_address(root):
        replacements = [(f"^{re.escape(text)}", ""), *replacements]
    else:
        prefixes = sorted({os.path.abspath(text), os.path.realpath(text)})
        replacements += [(f"^{re.escape(top.rstrip('/'))}/", "") for top in prefixes]
    for pattern, replacement in replacements:
        if pc.any(pc.match_substring_regex(paths, pattern)).as_py():
            paths = pc.replace_substring_regex(paths, pattern, replacement)
    return paths


def find_absolute(paths: pa.Array) -> NDArray[np.int64]:
    """Return the positions of absolute paths."""
    return arrow.true_positions(pc.starts_with(paths, "/"))


def find_upward(paths: pa.Array) -> NDArray[np.int64]:
    """Return the positions of paths that leave the root with `..`."""
    positions = arrow.true_positions(pc.match_substring_regex(paths, _PARENT_FOLDER))
    shown = paths.take(arrow.number_array(positions)).to_pylist()
    return positions[[os.path.normpath(path).startswith("..") for path in shown]] if shown else positions


def rebase_to_root(paths: pa.Array, root: bytes) -> pa.Array:
    """Make absolute paths relative to the real path of `root`. The results start with `..`."""
    if not len(find_absolute(paths)):
        return paths
    folder, up = os.path.realpath(os.fsdecode(root)), ""
    while folder != "/":
        folder, up = os.path.dirname(folder), f"{up}../"
        paths = pc.replace_substring_regex(_to_large_strings(paths), f"^{re.escape(folder.rstrip('/'))}/+", up)
    return paths


def _to_large_strings(paths: pa.Array) -> pa.Array:
    return pc.cast(paths, pa.large_string())


class PathEndings:
    """The field that the extension of each path defines.

    Attributes:
        names: The different fields, in the order of first occurrence. A path without an extension has the field "".
        codes: uint16[paths], indices into `names`.
    """

    def __init__(self, where: str, paths: pa.Array, dots: Dots) -> None:
        self._where, self._paths, self._dots = where, paths, dots
        self.names: list[str] = []
        self.codes = np.zeros(len(paths), np.uint16)
        for first in range(0, len(paths), CHUNK_ROWS):
            chunk = paths.slice(first, CHUNK_ROWS)
            self.codes[first : first + len(chunk)] = self._chunk_codes(chunk)

    def _chunk_codes(self, chunk: pa.Array) -> NDArray[np.uint16] | int:
        if self.names:
            pattern = f"(?s){_BEFORE_ENDING[self._dots]}{re.escape(self.names[-1])}$"
            if self.names[-1] and pc.all(pc.match_substring_regex(chunk, pattern)).as_py():
                return len(self.names) - 1
        fields = pc.struct_field(pc.extract_regex(chunk, _SPLIT_PATTERNS[self._dots]), [1])
        fields = pc.coalesce(_to_large_strings(fields), _EMPTY_TEXT).dictionary_encode()
        code_of = {name: index for index, name in enumerate(self.names)}
        codes = [code_of.setdefault(name, len(code_of)) for name in fields.dictionary.to_pylist()]
        self.names = [*code_of]
        remedy = f"If names contain dots, use {option_text('dots', 'last')} to make the last extension the field."
        check_field_count(self._where, self.names, remedy)
        taken: NDArray[np.uint16] = np.array(codes, np.uint16)[arrow.number_values(fields.indices)]
        return taken

    def take(self, rows: NDArray[np.int64]) -> PathEndings:
        """Return the endings at the given rows. `stems` of the result must not be used."""
        taken = copy(self)
        taken.codes = self.codes[rows]
        return taken

    def stems(self) -> Iterator[pa.Array]:
        """Yield arrays with all paths without their extensions. Call this method before `take`."""
        for first in range(0, len(self._paths), CHUNK_ROWS):
            chunk, codes = self._paths.slice(first, CHUNK_ROWS), self.codes[first : first + CHUNK_ROWS]
            ending = self.names[codes[0]]
            if not np.all(codes == codes[0]):
                yield pc.coalesce(pc.struct_field(pc.extract_regex(chunk, _SPLIT_PATTERNS[self._dots]), [0]), chunk)
            else:
                yield pc.replace_substring_regex(chunk, re.escape(f".{ending}") + "$", "") if ending else chunk


def row_paths(
    samples: int, columns: Sequence[pa.Array], roles: NDArray[np.int64], endings: NDArray[np.uint16] | None
) -> ArrowStrings:
    """Return the path of each row. Each array in `columns` has one path per sample.

    `endings` is the extension number of each sample, or None if all are 0. In samples with extension number `ending`,
    the path of row `row` is in the column `roles[ending, row]`, or empty if this is -1.
    """
    count = samples * roles.shape[1]

    def render(selection: NDArray[np.int64] | slice) -> pa.Array:
        rows = np.arange(selection.start, selection.stop) if isinstance(selection, slice) else selection
        sample, row_of_sample = np.divmod(rows, roles.shape[1])
        column_numbers = roles[0 if endings is None else endings[sample], row_of_sample]
        taken = [_to_large_strings(column.take(arrow.number_array(sample))) for column in columns]
        texts = pc.choose(arrow.number_array(column_numbers + 1), _EMPTY_TEXT, *taken)
        return pc.binary_join_element_wise(texts, _NUL_TEXT, _EMPTY_TEXT)

    return ArrowStrings(count, render, CHUNK_ROWS)


def join_paths(columns: Sequence[pa.Array], first: int, last: int) -> bytes:
    """Return the paths of samples `first` to `last` (exclusive), row by row, each followed by NUL."""
    parts = [part for column in columns for part in (_to_large_strings(column.slice(first, last - first)), _NUL_TEXT)]
    return bytes(arrow.concat_values(pc.binary_join_element_wise(*parts, _EMPTY_TEXT)))


MAX_CHECKED_ROWS = 100
MAX_CHECKED_COLUMNS = 100
MAX_MISSING_FILES = 10  # if none of this many texts names a file, the column does not contain paths
MAX_CHECKED_OBJECTS = 3  # in a store, each check takes a request
MAX_NAMED_COLUMNS = 8


def find_unused_file(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    """Return a path in a column that is not packed, or an empty text.

    Most of `texts`, the values of this column, must be paths of files. The columns in `packed` must not contain the
    same file in the same row.
    """
    if is_address(root):
        return _find_unused_object(root, texts, packed)
    folder, files, missing, example = os.fsdecode(root), 0, 0, ""
    for row, text in enumerate(texts):
        if not text:
            continue
        stat_result = _regular_file(folder, text)
        if stat_result is None:
            missing += 1
            if not files and missing >= MAX_MISSING_FILES:
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
    except (OSError, ValueError):  # ValueError is raised if the path contains a NUL
        return None
    return stat_result if stat.S_ISREG(stat_result.st_mode) else None


def _find_unused_object(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    packed_texts = {text for column in packed for text in column}
    unpacked = [text for text in texts if text and text not in packed_texts and "\0" not in text]
    candidates = [text for text in unpacked if path_ending(text, "last").lower() in BINARY_ENDINGS]
    candidates = candidates[:MAX_CHECKED_OBJECTS]
    if not candidates:
        return ""
    paths = [*relative_to_root(arrow.text_array(candidates), root).to_pylist()]
    data = b"".join([to_bytes(path) + b"\0" for path in paths])
    try:
        part = stat_files(StatTask(root, data, outside=False))
    except StoreFailed:  # the run reports the error later, if it needs the store
        return ""
    problems = np.frombuffer(part.facts, np.int64).reshape(-1, 4)[:, 3]
    return candidates[0] if not problems.any() else ""


def packing_options(roles: ColumnRoles, examples: Mapping[str, str], dots: Dots) -> str:
    """Return the options that also pack the columns in `examples`, which maps a column to one of its paths."""
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


_UNSAFE_FIELD_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")
