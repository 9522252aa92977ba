"""The rows of a plan file: samples as Arrow tables, a row each, and back.

Text lies there as bytes, for names of files need not be UTF-8. What is read may say anything: whatever does not make
samples is a `ValueError`. Where their paths lead is for `checks`.

Source: docs/format.md, "Plan files".
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.entries.arrow import number_array, numbers
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues
from shardtool.errors import InvalidRequest, printable
from shardtool.names import Names
from shardtool.source.manifest.stat import PathChecks
from shardtool.values import FILE, INLINE, LINK, SPAN, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyarrow.parquet import ParquetFile

    from shardtool.names import Texts
    from shardtool.source.planned.place import SourcePlace


KEY, FIELDS, DIVIDES = "__key__", "__fields__", "__divides__"
_INLINE = "__inline_{}__"
_NUMBERS = (
    ("field", np.uint16),
    ("kind", np.uint8),
    ("size", np.int64),
    ("mtime_ns", np.int64),
    ("changed_ns", np.int64),
)
_OF_SPANS = (("offset", np.int64), ("crc32c", np.int64))
_PATH = "path"
_GROUPS, _LEAST_ROWS = 64, 2**17  # row groups at most, of so many samples at least: a group is held while it is made
_MOST_FIELDS, _MOST_SIZE, _MOST_BYTES = 2**16 - 1, 2**50, 2.0**62


@dataclass(frozen=True, slots=True)
class PlanColumns:
    """The columns that a plan file has, beside those of metadata.

    Attributes:
        inline: The fields that have payloads of their own.
        paths: Whether each field has a path; otherwise it is key + "." + field.
        spans: Whether fields lie in an archive.
        divides: The type of the column that samples are divided by; None: there is none.
    """

    inline: tuple[str, ...]
    paths: bool
    spans: bool
    divides: pa.DataType | None

    def schema(self) -> pa.Schema:
        """Return the columns and their types."""
        found = [pa.field(KEY, pa.large_binary(), nullable=False), pa.field(FIELDS, self._fields(), nullable=False)]
        found += [pa.field(_INLINE.format(at), pa.large_binary(), nullable=False) for at in range(len(self.inline))]
        return pa.schema(found if self.divides is None else [*found, pa.field(DIVIDES, self.divides)])

    def kinds(self) -> list[tuple[str, type[np.generic]]]:
        """Return the numbers that each field has."""
        return [*_NUMBERS, *(_OF_SPANS if self.spans else ())]

    def _fields(self) -> pa.DataType:
        found = [pa.field(name, pa.from_numpy_dtype(kind), nullable=False) for name, kind in self.kinds()]
        found += [pa.field(_PATH, pa.large_binary(), nullable=False)] if self.paths else []
        return pa.list_(pa.field("element", pa.struct(found), nullable=False))


def shape_of(entries: Entries, divides: pa.ChunkedArray | None) -> PlanColumns:
    """Return the columns that hold samples, and what they are divided by."""
    spans, paths = entries.spans is not None, entries.rows.paths is not None
    return PlanColumns((*entries.values.inline,), paths, spans, None if divides is None else divides.type)


def tables(entries: Entries, divides: pa.ChunkedArray | None) -> Iterator[pa.Table]:
    """Yield samples as tables, each of which becomes a row group."""
    shape = shape_of(entries, divides)
    schema, at_once = shape.schema(), max(_LEAST_ROWS, -(-len(entries) // _GROUPS))
    for first in range(0, len(entries), at_once):
        last = min(first + at_once, len(entries))
        texts: list[Texts] = [entries.keys, *entries.values.inline.values()]
        key, *inline = (_array(text.span(first, last)) for text in texts)
        columns = [key, _fields(entries, shape, first, last), *inline]
        columns += [] if divides is None else [divides.slice(first, last - first)]
        table = pa.Table.from_arrays(columns, schema=schema)
        metadata = pa.table({}) if entries.metadata is None else entries.metadata.slice(first, last - first)
        for field, column in zip(metadata.schema, metadata.columns, strict=True):
            table = table.append_column(field, column)
        yield table


def _fields(entries: Entries, shape: PlanColumns, first: int, last: int) -> pa.Array:
    """Return the fields of some samples, a list for each."""
    starts = entries.first[first : last + 1]
    rows, known, spans = slice(int(starts[0]), int(starts[-1])), entries.rows, entries.spans
    columns: list[Any] = [known.code, known.kind, known.size, known.mtime_ns, known.changed_ns]
    columns += [] if spans is None else [spans.offset, spans.expected]
    arrays = [number_array(column[rows]) for column in columns]
    if known.paths is not None:
        arrays.append(_array(known.paths.span(rows.start, rows.stop)))
    kind = shape.schema().field(FIELDS).type
    structs = pa.StructArray.from_arrays(arrays, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(number_array((starts - starts[0]).astype(np.int32)), structs, type=kind)


def _array(data: bytes) -> pa.LargeBinaryArray:
    """Return texts, each of which ends with a NUL, without these."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == 0)
    offsets = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(raw[raw != 0])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)


def _texts(array: pa.LargeBinaryArray) -> bytes:
    """Return the texts of an array, a NUL after each."""
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[int(offsets[0]) : int(offsets[-1])]
    if not data.all():
        raise ValueError("a name with a NUL in it")
    found, is_text = np.zeros(len(data) + len(array), np.uint8), np.ones(len(data) + len(array), np.bool_)
    is_text[offsets[1:] - offsets[0] + np.arange(len(array))] = False
    found[is_text] = data
    return found.tobytes()


def read_entries(
    file: ParquetFile, shape: PlanColumns, fields: tuple[str, ...], values: FieldValues, place: SourcePlace
) -> Entries:
    """Return the samples of a plan file.

    Args:
        file: It, whose pages fit its size.
        shape: The columns that it must have.
        fields: The fields' names.
        values: What is known of the fields' values, yet without the payloads of `shape.inline`.
        place: Where the source lies.

    Raises:
        ValueError: It holds no samples.
    """
    schema, own = file.schema_arrow, shape.schema()
    if pa.schema([*schema][: len(own)]) != own or any(name.startswith("__") for name in schema.names[len(own) :]):
        raise ValueError("other columns than those of a plan")
    keys = Names.parse(b"".join([_texts(array) for array in _arrays(file, KEY)]))
    first, columns, paths = _read_fields(file, shape)
    inline = {
        name: Names.parse(b"".join([_texts(array) for array in _arrays(file, _INLINE.format(at))]))
        for at, name in enumerate(shape.inline)
    }
    spans = None
    if place.archive is not None:
        spans = FieldSpans((place.archive,), np.zeros(len(keys), np.uint32), columns[5], columns[6])
    metadata = file.read(schema.names[len(own) :]) if len(own) < len(schema) else None
    found = Entries(
        root=place.root,
        keys=keys,
        first=first,
        fields=fields,
        rows=FieldRows(columns[0], columns[1], columns[2], columns[3], columns[4], paths),
        values=replace(values, inline=inline),
        spans=spans,
        metadata=metadata,
        identity=place.identity,
        folders=place.folders,
    )
    _check(found)
    pa.default_memory_pool().release_unused()  # what decoding took
    return found


def _arrays(file: ParquetFile, name: str) -> Iterator[Any]:
    """Yield the parts of a column, none of which has nulls."""
    for group in range(file.num_row_groups):
        for chunk in file.read_row_group(group, [name]).column(0).chunks:
            if chunk.null_count:
                raise ValueError(f"nulls in {name}")
            yield chunk


def _read_fields(file: ParquetFile, shape: PlanColumns) -> tuple[NDArray[np.int64], list[NDArray[Any]], Names | None]:
    """Return where the fields of each sample start, their numbers, and their paths."""
    starts, most = np.zeros(file.metadata.num_rows + 1, np.int64), _most_fields(file)
    columns: list[NDArray[Any]] = [
        np.empty(most, kind) for _, kind in shape.kinds()
    ]  # joined, they would be there twice
    paths: list[bytes] = []
    sample = row = 0
    for lists in _arrays(file, FIELDS):
        structs = lists.flatten()
        arrays = structs.flatten()
        if structs.null_count or any(array.null_count for array in arrays):
            raise ValueError(f"nulls in {FIELDS}")
        for column, array in zip(columns, arrays, strict=False):
            column[row : row + len(array)] = numbers(array)
        if shape.paths:
            paths.append(_texts(arrays[-1]))
        starts[sample + 1 : sample + 1 + len(lists)] = np.diff(numbers(lists.offsets))
        sample, row = sample + len(lists), row + len(structs)
    np.cumsum(starts, out=starts)
    return starts, [column[:row] for column in columns], Names.parse(b"".join(paths)) if shape.paths else None


def _most_fields(file: ParquetFile) -> int:
    """Return how many fields there are, with one for each sample without any."""
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    return sum(group.column(1).num_values for group in groups)


def _check(entries: Entries) -> None:
    """Refuse rows that are no fields of samples.

    Raises:
        ValueError: There are such.
    """
    rows, counts = entries.rows, entries.counts()
    if counts.min(initial=1) < 1 or counts.max(initial=1) > _MOST_FIELDS:
        raise ValueError("a sample without a field, or of too many")
    forbidden = {*(b"\0" if rows.paths is not None else b"/\0")}  # where no path is given, it is made of the name
    if any(not name or {*to_bytes(name)} & forbidden for name in entries.fields):
        raise ValueError("a field without a name")
    if rows.code.max(initial=0) >= max(1, len(entries.fields)):
        raise ValueError("a field of no name")
    if (
        rows.size.min(initial=0) < 0
        or rows.size.max(initial=0) > _MOST_SIZE
        or rows.size.sum(dtype=float) > _MOST_BYTES
    ):
        raise ValueError("payloads of sizes that no file has")
    if rows.paths is not None and len(rows.paths) != len(rows.code):
        raise ValueError("paths for other fields")
    _check_kinds(entries)
    _check_inline(entries)


def _check_kinds(entries: Entries) -> None:
    rows, spans = entries.rows, entries.spans
    least, most = (FILE, INLINE) if spans is None else (INLINE, SPAN)  # of FILE, LINK, INLINE, SPAN
    if rows.kind.min(initial=least) < least or rows.kind.max(initial=least) > most:
        raise ValueError("fields that are read in no way that this source has")
    if spans is not None:
        size = rows.size if spans.files[0].form == "tar" else 0
        wrong = (spans.offset < 0) | (spans.offset + size > spans.files[0].size)
        if np.any(wrong & (rows.kind == SPAN)):
            raise ValueError("payloads beyond the end of the archive")


def _check_inline(entries: Entries) -> None:
    rows, left = entries.rows, entries.rows.kind == INLINE
    for name, texts in entries.values.inline.items():
        if not isinstance(texts, Names) or len(texts) != len(entries):
            raise ValueError(f"values of {name!r} for other samples")
        mine = np.flatnonzero(left & (rows.code == entries.fields.index(name)))
        if not np.array_equal(texts.lengths()[entries.owners(mine)], rows.size[mine]):
            raise ValueError(f"values of {name!r} that are not as long as they say")
        left[mine] = False
    if left.any():
        raise ValueError("values of fields that have none")


# Where the paths of a plan file lead: into the source, unless what the user typed says that they may leave it.


_CHUNK = 2**16  # samples at a time
_LOOKED_AT = 16  # files, of which one at least must be there as it was listed


def check_paths(entries: Entries, place: SourcePlace, where: str) -> None:
    """Refuse paths that lead out of a source, and a plan of which no file is there.

    Only folders and links are looked at, each once: files are held to what was listed when they are read.

    Args:
        entries: The samples of a plan file.
        place: Where the source lies.
        where: The plan file.

    Raises:
        InvalidRequest: There are such paths, or it is another source.
    """
    is_file = (entries.rows.kind == FILE) | (entries.rows.kind == LINK)
    if not is_file.any():
        return
    inside = _PathCheck(place, where)
    seen: set[bytes] = set()
    for first in range(0, len(entries), _CHUNK):
        new = _folders(entries, is_file, first, min(first + _CHUNK, len(entries))) - seen
        seen |= new
        for folder in sorted(new):
            inside.check(folder)
    for row in np.flatnonzero(entries.rows.kind == LINK).tolist():
        inside.check(entries.path(row), link=True)
    _check_some(entries, where)


def _folders(entries: Entries, is_file: NDArray[np.bool_], first: int, last: int) -> set[bytes]:
    """Return the folders that the files of some samples lie in, each ending in a slash."""
    if entries.rows.paths is None:
        texts = entries.keys.span(first, last)[:-1].split(b"\0")
    else:
        start, end = int(entries.first[first]), int(entries.first[last])
        texts = [*compress(entries.rows.paths.span(start, end)[:-1].split(b"\0"), is_file[start:end].tolist())]
    return {text[: text.rfind(b"/") + 1] for text in texts}


class _PathCheck:
    """Tells whether paths stay in a source; looks at each folder once."""

    def __init__(self, place: SourcePlace, where: str) -> None:
        self._place, self._where = place, where
        roots = place.folders or {b"": place.root}
        self._looks = {top: PathChecks(root, outside=place.outside) for top, root in roots.items()}
        self._roots = {top: os.path.realpath(root).rstrip(b"/") + b"/" for top, root in roots.items()}

    def check(self, path: bytes, *, link: bool = False) -> None:
        """Refuse a path that leads out.

        Raises:
            InvalidRequest: It does.
        """
        top, below = b"", path
        if self._place.folders:
            top, _, below = path.partition(b"/")
        parts = below.split(b"/")
        if top not in self._looks or below.startswith(b"/"):
            raise self._leaves(path)
        root = (self._place.folders or {b"": self._place.root})[top]
        if not self._place.outside and b".." in parts:
            if not (os.path.realpath(root + below) + b"/").startswith(self._roots[top]):
                raise self._leaves(path)
            return
        problem = self._looks[top].link(below)[1] if link else self._looks[top].folder(below).problem
        if problem is not None and problem[0] == "link-outside":
            raise self._leaves(path)

    def _leaves(self, path: bytes) -> InvalidRequest:
        found = f"a plan with a path that leads out of the source: {printable(path)}"
        name, value = ("allow_outside", True) if self._place.kind == "manifest" else ("symlinks", "follow")
        return InvalidRequest(self._where, found, expected=f"paths below it, or {option(name, value)}")


def _check_some(entries: Entries, where: str) -> None:
    """Refuse a plan of which no file is there as it was listed: it is of another source, or of another time.

    Raises:
        InvalidRequest: It is one.
    """
    kind = entries.rows.kind
    rows = {*range(0, len(kind), -(-len(kind) // _LOOKED_AT)), int((kind == FILE).argmax())}
    some = [row for row in sorted(rows) if kind[row] == FILE]
    for row in some:
        try:
            fact = os.stat(entries.place(row))
        except (OSError, ValueError):
            continue
        if (fact.st_size, fact.st_mtime_ns) == (int(entries.rows.size[row]), int(entries.rows.mtime_ns[row])):
            return
    if some:
        found = f"a plan of which no file is there as it was listed, such as {printable(entries.path(some[0]))}"
        remedy = f"Is it the same source? Otherwise write a plan of it with {option('plan_only', 'FILE')}."
        raise InvalidRequest(where, found, expected="a plan of this source", remedy=remedy)
