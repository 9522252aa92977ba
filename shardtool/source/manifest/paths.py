"""Paths as a manifest gives them: where they lead from the root, and what their names say.

Nothing is looked up on a disk here; links are for `listed`.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.storage.sources import is_place
from shardtool.table import arrays

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.values import Dots

_CHUNK = 2**16  # rows at a time
_EMPTY = arrays.text("")
_END = arrays.text("\0")
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
    return arrays.places(pc.starts_with(paths, "/"))


def upward_places(paths: pa.Array) -> NDArray[np.int64]:
    """Return which of `relative` paths leave the root by `..`, whatever links are on the way."""
    found = arrays.places(pc.match_substring_regex(paths, _UP))
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
    return os.path.commonpath({os.path.dirname(text) for text in texts if text}), arrays.texts(texts)


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
    """

    def __init__(self, paths: pa.Array, dots: Dots) -> None:
        self._paths, self._dots = paths, dots
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
        found = pc.struct_field(pc.extract_regex(chunk, _SPLIT[self._dots]), [1])
        found = pc.coalesce(_large(found), _EMPTY).dictionary_encode()
        known = {name: at for at, name in enumerate(self.names)}
        codes = [known.setdefault(name, len(known)) for name in found.dictionary.to_pylist()]
        if len(known) > np.iinfo(np.uint16).max:
            raise OverflowError
        self.names = list(known)
        taken: NDArray[np.uint16] = np.array(codes, np.uint16)[arrow.numbers(found.indices)]
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


class RowPaths:
    """The paths of the rows of samples, made of the columns they stand in: a row that is no file has none.

    Args:
        samples: How many there are.
        columns: Columns of paths, each with a value per sample.
        roles: For each ending, which column each row of a sample takes its path from; -1 for none.
        endings: uint16[samples], or None where there is one for all.
        which: Rows, or None for all.
    """

    __slots__ = ("_columns", "_endings", "_roles", "_samples", "_which")

    def __init__(
        self,
        samples: int,
        columns: Sequence[pa.Array],
        roles: NDArray[np.int64],
        endings: NDArray[np.uint16] | None,
        which: NDArray[np.int64] | None = None,
    ) -> None:
        self._samples, self._columns, self._roles, self._endings, self._which = samples, columns, roles, endings, which

    def __len__(self) -> int:
        return self._samples * self._roles.shape[1] if self._which is None else len(self._which)

    def __getitem__(self, row: int) -> bytes:
        return self.span(row, row + 1)[:-1]

    def take(self, which: NDArray[np.int64]) -> RowPaths:
        """Return the paths of rows `which`, in that order."""
        which = which if self._which is None else self._which[which]
        return RowPaths(self._samples, self._columns, self._roles, self._endings, which)

    def span(self, first: int, last: int) -> bytes:
        """Return the paths of rows `first` to `last` (exclusive), a NUL after each."""
        return self.gather(np.arange(first, last))

    def gather(self, which: NDArray[np.int64]) -> bytes:
        """Return the paths of rows `which`, in that order, a NUL after each."""
        rows = which if self._which is None else self._which[which]
        return b"".join([self._texts(rows[at : at + _CHUNK]) for at in range(0, len(rows), _CHUNK)])

    def _texts(self, rows: NDArray[np.int64]) -> bytes:
        if not self._columns:
            return bytes(len(rows))
        samples, place = np.divmod(rows, self._roles.shape[1])
        endings = 0 if self._endings is None else self._endings[samples]
        role = self._roles[endings, place]
        taken = [_large(column.take(number_array(samples))) for column in self._columns]
        texts = pc.choose(number_array(role + 1), _EMPTY, *taken)
        return bytes(arrays.payload(pc.binary_join_element_wise(texts, _END, _EMPTY)))


def join_rows(columns: Sequence[pa.Array], first: int, last: int) -> bytes:
    """Return the paths of samples `first` to `last` (exclusive), those of a sample together, a NUL after each."""
    parts = [part for column in columns for part in (_large(column.slice(first, last - first)), _END)]
    return bytes(arrays.payload(pc.binary_join_element_wise(*parts, _EMPTY)))
