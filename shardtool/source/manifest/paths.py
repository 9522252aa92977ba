"""Paths and URLs in the columns of a manifest: paths relative to the root, and the keys and fields that they name.

Nothing is looked up on disk except the real location of the root; `stat_files` follows links.
"""

from __future__ import annotations

import os
import re
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.fetch.urls import MAX_SHOWN_URL_LENGTH, redact_url
from shardtool.messages import option_text
from shardtool.select.field_rows import check_field_count
from shardtool.storage.paths import is_address
from shardtool.table import render
from shardtool.table import render as table_render

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.values import Dots


CHUNK_ROWS = 2**16  # samples at a time


_MAY_NEED_REDACTION = r"[@#?\\]"  # what must be in a URL of which something is not shown, but for its length


def redact_urls(urls: pa.Array) -> pa.Array:
    """Return what may be seen of URLs: see `redact_url`."""
    chunks = [urls.slice(first, CHUNK_ROWS) for first in range(0, len(urls), CHUNK_ROWS)]
    for at, chunk in enumerate(chunks):  # those that are shown whole are not looked at one by one
        mask = pc.or_(
            pc.match_substring_regex(chunk, _MAY_NEED_REDACTION),
            pc.greater(pc.utf8_length(chunk), MAX_SHOWN_URL_LENGTH),
        )
        if pc.any(mask).as_py():
            shown = [redact_url(text) for text in chunk.filter(mask).to_pylist()]
            chunks[at] = pc.replace_with_mask(chunk, mask, pa.array(shown, urls.type))
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
    """Return paths relative to `root` where they lead into it, without `./`, `//` and the like.

    Those that lead elsewhere stay absolute; `..` stays, for it may follow a link.
    """
    text = os.fsdecode(root)
    tidy = [(r"/(?:\.?/)+", "/"), (r"^\./", "")]
    if is_address(root):
        tidy = [(f"^{re.escape(text)}", ""), *tidy]
    else:
        tops = sorted({os.path.abspath(text), os.path.realpath(text)})
        tidy += [(f"^{re.escape(top.rstrip('/'))}/", "") for top in tops]
    for pattern, replacement in tidy:
        if pc.any(pc.match_substring_regex(paths, pattern)).as_py():
            paths = pc.replace_substring_regex(paths, pattern, replacement)
    return paths


def find_absolute(paths: pa.Array) -> NDArray[np.int64]:
    """Return which of `relative_to_root` paths are absolute: they lead out of the root."""
    return arrow.true_positions(pc.starts_with(paths, "/"))


def find_upward(paths: pa.Array) -> NDArray[np.int64]:
    """Return which of `relative_to_root` paths leave the root by `..`, whatever links are on the way."""
    found = arrow.true_positions(pc.match_substring_regex(paths, _PARENT_FOLDER))
    shown = paths.take(arrow.number_array(found)).to_pylist()
    return found[[os.path.normpath(path).startswith("..") for path in shown]] if shown else found


def rebase_to_root(paths: pa.Array, root: bytes) -> pa.Array:
    """Return `relative_to_root` paths that lead elsewhere as they count from `root`, by `..` from where it really lies."""
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
        for first in range(0, len(paths), CHUNK_ROWS):
            chunk = paths.slice(first, CHUNK_ROWS)
            self.codes[first : first + len(chunk)] = self._chunk(chunk)

    def _chunk(self, chunk: pa.Array) -> NDArray[np.uint16] | int:
        """Return the codes of some paths. Nearly always all have the ending of the last one, which is quickly seen."""
        if self.names:
            pattern = f"(?s){_BEFORE_ENDING[self._dots]}{re.escape(self.names[-1])}$"
            if self.names[-1] and pc.all(pc.match_substring_regex(chunk, pattern)).as_py():
                return len(self.names) - 1
        fields = pc.struct_field(pc.extract_regex(chunk, _SPLIT_PATTERNS[self._dots]), [1])
        fields = pc.coalesce(_to_large_strings(fields), _EMPTY_TEXT).dictionary_encode()
        known = {name: at for at, name in enumerate(self.names)}
        codes = [known.setdefault(name, len(known)) for name in fields.dictionary.to_pylist()]
        self.names = [*known]
        remedy = f"If the names have dots in them, {option_text('dots', 'last')} makes the last ending the field."
        check_field_count(self._where, self.names, remedy)
        taken: NDArray[np.uint16] = np.array(codes, np.uint16)[arrow.number_values(fields.indices)]
        return taken

    def take(self, rows: NDArray[np.int64]) -> PathEndings:
        """Return the endings of some of the paths, of which no stems are asked for."""
        found = copy(self)
        found.codes = self.codes[rows]
        return found

    def stems(self) -> Iterator[pa.Array]:
        """Yield arrays of the paths without their endings, before any were left out."""
        for first in range(0, len(self._paths), CHUNK_ROWS):
            chunk, codes = self._paths.slice(first, CHUNK_ROWS), self.codes[first : first + CHUNK_ROWS]
            ending = self.names[codes[0]]
            if not np.all(codes == codes[0]):
                yield pc.coalesce(pc.struct_field(pc.extract_regex(chunk, _SPLIT_PATTERNS[self._dots]), [0]), chunk)
            else:
                yield pc.replace_substring_regex(chunk, re.escape(f".{ending}") + "$", "") if ending else chunk


def row_paths(
    samples: int, columns: Sequence[pa.Array], roles: NDArray[np.int64], endings: NDArray[np.uint16] | None
) -> render.ArrowStrings:
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
        sample, place = np.divmod(rows, roles.shape[1])
        role = roles[0 if endings is None else endings[sample], place]
        taken = [_to_large_strings(column.take(arrow.number_array(sample))) for column in columns]
        texts = pc.choose(arrow.number_array(role + 1), _EMPTY_TEXT, *taken)
        return pc.binary_join_element_wise(texts, _NUL_TEXT, _EMPTY_TEXT)

    return table_render.ArrowStrings(count, render, CHUNK_ROWS)


def join_paths(columns: Sequence[pa.Array], first: int, last: int) -> bytes:
    """Return the paths of samples `first` to `last` (exclusive), those of a sample together, a NUL after each."""
    parts = [part for column in columns for part in (_to_large_strings(column.slice(first, last - first)), _NUL_TEXT)]
    return bytes(arrow.concat_values(pc.binary_join_element_wise(*parts, _EMPTY_TEXT)))
