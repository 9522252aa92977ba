"""Paths and URLs in a manifest, and the keys and fields that they define."""

from __future__ import annotations

import os
import re
from copy import copy
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, printable
from shardtool.fetch.options import MAX_SHOWN_URL_LENGTH, redact_url
from shardtool.messages import option_text
from shardtool.select.field_rows import check_field_count
from shardtool.storage.paths import is_address, source_root
from shardtool.storage.remote.address import is_url, parse_address
from shardtool.table.render import ArrowStrings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.request.create_options import CreateOptions
    from shardtool.values import Dots


CHUNK_ROWS = 2**16
_MAY_NEED_REDACTION = r"[@#?\\]"  # `redact_url` changes only long URLs and URLs with these characters


def redact_urls(urls: pa.Array) -> pa.Array:
    """Remove secrets from URLs, as `redact_url` does."""
    chunks = [urls.slice(first, CHUNK_ROWS) for first in range(0, len(urls), CHUNK_ROWS)]
    for index, chunk in enumerate(chunks):
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


def choose_root(options: CreateOptions, folder: str) -> bytes:
    """Return the folder or URL to which paths are relative, with a final slash. The manifest is in `folder`."""
    if options.root is None and not folder:
        expected = f"tables in one folder, or {option_text('root')} with the folder to which their paths are relative"
        raise InvalidRequest("the source", "tables in several folders", expected=expected)
    root = os.fspath(options.root or folder)
    if is_url(root):
        parse_address(root)
        return bytes(source_root(root))
    if options.root is not None and options.stat and not os.path.isdir(options.root):
        found = f"no folder {os.fspath(options.root)!r}"
        expected = "the folder to which the manifest's paths are relative"
        raise InvalidRequest(option_text("root"), found, expected=expected)
    return os.fsencode(root).rstrip(b"/") + b"/"


def relative_to_root(paths: pa.Array, root: bytes) -> pa.Array:
    """Make absolute paths below `root` relative to `root`, and remove redundant `./` and `/`.

    A component `..` stays, because the component before it may be a link.
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


def use_common_folder(columns: Mapping[str, pa.Array], root: bytes) -> tuple[dict[str, pa.Array], bytes] | None:
    """If a path leaves `root`, return absolute paths, and the common folder of all paths. Otherwise, return None."""
    relative = {name: relative_to_root(paths, root) for name, paths in columns.items()}
    leaving = {name: find_upward(paths) for name, paths in relative.items()}
    if not any(len(leaving[name]) or len(find_absolute(paths)) for name, paths in relative.items()):
        return None
    top = os.path.join(os.path.realpath(os.fsdecode(root)), "")
    real = cache(lambda folder: os.path.realpath(os.path.join(top, folder)))
    folders, absolute = set[str](), dict[str, pa.Array]()
    for name, paths in relative.items():
        texts = paths.to_pylist()
        for row in leaving[name].tolist():
            folder, file = os.path.split(texts[row])
            texts[row] = os.path.join(real(folder), file)
        texts = [text and os.path.join(top, text) for text in texts]
        folders |= {os.path.dirname(text) for text in texts if text}
        absolute[name] = arrow.text_array(texts)
    return absolute, os.fsencode(os.path.join(os.path.commonpath(folders), ""))


def rebase_to_root(paths: pa.Array, root: bytes) -> pa.Array:
    """Make absolute paths relative to the real path of `root`, so they start with `..`."""
    if not len(find_absolute(paths)):
        return paths
    folder, up = os.path.realpath(os.fsdecode(root)), ""
    while folder != "/":
        folder, up = os.path.dirname(folder), f"{up}../"
        paths = pc.replace_substring_regex(_to_large_strings(paths), f"^{re.escape(folder.rstrip('/'))}/+", up)
    return paths


def _to_large_strings(paths: pa.Array) -> pa.Array:
    return pc.cast(paths, pa.large_string())


def find_folders(paths: pa.Array, root: bytes) -> list[int]:
    """Return the positions of paths that are folders below `root`."""
    texts, top = paths.to_pylist(), os.fsdecode(root)
    parents = {os.path.dirname(path) for path in texts}
    may_be_folder = [path.rstrip("/") in parents or "." not in os.path.basename(path) for path in texts]
    candidates = [row for row, path in enumerate(texts) if path and may_be_folder[row]]
    return [row for row in candidates if os.path.isdir(os.path.join(top, texts[row]))]


def find_containing_folder(root: bytes, path: str) -> str:
    """Return a folder near `root` that contains the file `path`, or ""."""
    if path.startswith("/") or ".." in path.split("/"):
        return ""
    from glob import escape, glob

    folder = os.fsdecode(root).rstrip("/") or "/"
    folders = (".", *(os.path.normpath(os.path.join(folder, *[".."] * levels)) for levels in (1, 2, 3)))
    below = sorted(glob(os.path.join(escape(folder), "*", escape(path))))
    matching = [folder for folder in folders if os.path.lexists(os.path.join(folder, path))]
    matching += [file.removesuffix(f"/{path}") for file in below]
    return printable(matching[0]) if matching else ""


class PathEndings:
    """The field names of paths, from their extensions.

    Attributes:
        names: Each field name once, in order of first occurrence. Without an extension, the field is "".
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
        """Return the endings of `rows`. Do not call `stems` on the result, because `stems` ignores `rows`."""
        taken = copy(self)
        taken.codes = self.codes[rows]
        return taken

    def stems(self) -> Iterator[pa.Array]:
        """Yield all paths without their extensions, in several arrays."""
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
    """Return the path of each field, sample by sample.

    `columns` has one path per sample. `endings` has the extension number of each sample, or is None if all are 0.
    `roles[e, r]` is the column of field r in samples with extension number e, or -1 for an empty path.
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
    """Return all paths of samples `first` to `last` (exclusive), sample by sample. A NUL follows each path."""
    parts = [part for column in columns for part in (_to_large_strings(column.slice(first, last - first)), _NUL_TEXT)]
    return bytes(arrow.concat_values(pc.binary_join_element_wise(*parts, _EMPTY_TEXT)))
