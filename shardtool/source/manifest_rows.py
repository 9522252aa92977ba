"""Parts of samples, a column each, become rows: in each sample ordered by the bytes of the fields' names.

Every sample has the same parts. Only the first can have another name from sample to sample, and so
another place among the others: the path whose ending names the field.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.fetch import LONGEST, shown_url
from shardtool.storage.open_file import is_place
from shardtool.table import arrays
from shardtool.table.columns import is_wrapped_bytes
from shardtool.table.open import readable
from shardtool.values import to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.source.base import Writable
    from shardtool.source.scan import ListedPart
    from shardtool.table.open import Table
    from shardtool.values import Dots


_CHUNK = 2**16  # samples at a time
_Number = TypeVar("_Number", bound=np.generic)
_OneOrEach = Union[int, "NDArray[np.integer]"]  # a value for all samples, or one for each


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of each sample's fields.

    Attributes:
        fields: All names, sorted.
        code: uint16[endings, parts], the name at each place.
        part: int64[endings, parts], the part at each place.
        endings: uint16[samples], or None where there is one for all.
    """

    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    part: NDArray[np.int64]
    endings: NDArray[np.uint16] | None

    def take(self, samples: NDArray[np.int64]) -> Layout:
        """Return the layout of some samples."""
        endings = None if self.endings is None else self.endings[samples]
        return Layout(self.fields, self.code, self.part, endings)

    def codes(self, samples: int) -> NDArray[np.uint16]:
        """Return uint16[rows], the name of each row."""
        found = np.empty((samples, self.code.shape[1]), np.uint16)
        found[:] = self.code[0] if self.endings is None else self.code[self.endings]
        return found.reshape(-1)

    def spread(self, parts: Sequence[_OneOrEach], samples: int, kind: type[_Number]) -> NDArray[_Number]:
        """Return a value for each row, out of an array or one value for each part; where all are 0, in no memory."""
        if not any(isinstance(part, np.ndarray) or part for part in parts):
            return np.broadcast_to(kind(0), samples * len(parts))
        found = np.empty((samples, len(parts)), kind)
        if self.endings is None:
            for place, part in enumerate(self.part[0].tolist()):
                found[:, place] = parts[part]
            return found.reshape(-1)
        for part, values in enumerate(parts):
            found[:, part] = values
        for first in range(0, samples, _CHUNK):
            chunk = found[first : first + _CHUNK]
            chunk[:] = np.take_along_axis(chunk, self.part[self.endings[first : first + _CHUNK]], axis=1)
        return found.reshape(-1)


def lay_out(endings: Sequence[str], known: Sequence[str], codes: NDArray[np.uint16] | None) -> Layout:
    """Return the layout of samples.

    Args:
        endings: The names that the first part can have; empty where `known` names that too.
        known: The names of the other parts, in their order.
        codes: uint16[samples] of `endings`.
    """
    fields = tuple(sorted({*endings, *known}, key=to_bytes))
    number = {name: at for at, name in enumerate(fields)}
    code, part = [], []
    for names in [[ending, *known] for ending in endings] or [[*known]]:
        order = sorted(range(len(names)), key=lambda at: to_bytes(names[at]))
        code.append([number[names[at]] for at in order])
        part.append(order)
    several = codes if len(endings) > 1 else None
    return Layout(fields, np.array(code, np.uint16), np.array(part, np.int64), several)


class FieldColumn(NamedTuple):
    """A field of each sample: one value for all, or an array with one per sample."""

    kind: _OneOrEach
    size: _OneOrEach
    mtime_ns: _OneOrEach
    changed_ns: _OneOrEach

    def take(self, samples: NDArray[np.int64]) -> FieldColumn:
        """Return the field of some samples; all values are arrays."""
        return FieldColumn(*(np.asarray(values)[samples] for values in self))


class ListedFiles:
    """The files of a manifest, as workers found them.

    Attributes:
        files: For each column of paths.
        problems: (code, message).
        problem: int64[samples, columns]: 0, or one more than the place in `problems`.
    """

    def __init__(self, parts: list[ListedPart], columns: int) -> None:
        self.problems = [problem for part in parts for problem in part.problems]
        before, problem = 0, []
        for part in parts:
            found = np.frombuffer(part.problem, np.uint32).astype(np.int64)
            problem.append(np.where(found > 0, found + before, 0))
            before += len(part.problems)
        self.problem = np.concatenate(problem).reshape(-1, columns)
        kinds = np.concatenate([np.frombuffer(part.kinds, np.uint8) for part in parts]).reshape(-1, columns)
        sizes, mtimes, changed = (
            np.concatenate([np.frombuffer(values, np.int64) for values in found]).reshape(-1, columns)
            for found in zip(*((part.sizes, part.mtimes, part.changed) for part in parts), strict=True)
        )
        self.files = [FieldColumn(kinds[:, at], sizes[:, at], mtimes[:, at], changed[:, at]) for at in range(columns)]

    def first_problem(self) -> NDArray[np.int64]:
        """Return the first file of each sample that has a problem; -1 where none has."""
        return np.where(np.any(self.problem > 0, axis=1), np.argmax(self.problem > 0, axis=1), -1)


# Bytes that a table holds: measured for the plan, and written end to end for the workers, in two passes over it.
#
# They are never in memory at once. Those of a row lie together, in the order of the columns.


_ROWS = 256  # at a time: some are taken out, which copies them


def measure(table: Table, columns: list[str]) -> list[NDArray[np.int64]]:
    """Return int64[rows] for each column: the bytes of its values, -1 for a null."""
    found: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in columns]
    for batch in _batches(table, columns):
        for array, lengths in zip(batch, found, strict=True):
            lengths.append(arrays.lengths(array))
            if array.null_count:
                lengths[-1][arrays.places(pc.is_null(array))] = -1
    return [np.concatenate(lengths) for lengths in found]


def write(
    table: Table, columns: list[str], rows: NDArray[np.int64] | None, lengths: list[NDArray[np.int64]], file: Writable
) -> bool:
    """Write the values of columns; return whether they were as long as they should be, or stop at those that are not.

    Args:
        table: What holds them.
        columns: Their names.
        rows: The numbers of those that are wanted, ascending; None: all.
        lengths: int64[wanted rows] for each column.
        file: Takes them, in order.
    """
    before = done = 0
    for batch in _batches(table, columns):
        count, kept = len(batch[0]), batch
        end = done + count
        if rows is not None:
            end = int(np.searchsorted(rows, before + count))
            wanted = number_array(rows[done:end] - before)
            kept = [array.take(wanted) for array in batch]
        before += count
        planned = [column[done:end] for column in lengths]
        if not all(np.array_equal(arrays.lengths(array), sizes) for array, sizes in zip(kept, planned, strict=True)):
            return False
        _write_rows(file, kept, planned)
        done = end
    return done == len(lengths[0])


def _batches(table: Table, columns: list[str]) -> Iterator[list[pa.Array]]:
    """Yield the values of columns, some rows at a time."""
    with readable(table.where):
        for batch in table.batches(columns):
            for first in range(0, batch.num_rows, _ROWS):
                some = batch.slice(first, _ROWS)
                some.validate(full=True)  # offsets that lead elsewhere would be followed
                yield [_bytes_of(some.column(at)) for at in range(len(columns))]


def _bytes_of(array: pa.Array) -> pa.Array:
    """Return the bytes in a column of them, of text, or of `struct<bytes, path>`."""
    if is_wrapped_bytes(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    array = arrays.plain(array)
    return pc.cast(array, pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _write_rows(file: Writable, batch: list[pa.Array], lengths: list[NDArray[np.int64]]) -> None:
    """Write the values of columns, those of a row together."""
    if len(batch) == 1:
        file.write(arrays.payload(batch[0]))
        return
    columns = []
    for array, sizes in zip(batch, lengths, strict=True):
        data, ends = arrays.payload(array), np.cumsum(sizes)
        columns.append([data[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)])
    for row in zip(*columns, strict=True):
        for value in row:
            file.write(value)


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
