"""The rows of a plan file: convert samples to Arrow tables with one row per sample, and back.

Texts are stored as bytes, because file names need not be UTF-8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.entries.arrow import append_nuls, concat_values, number_array, number_values, strip_nuls
from shardtool.entries.sample_table import FieldRows, FieldSpans, FieldValues, SampleTable
from shardtool.entries.strings import PackedStrings, StringColumn
from shardtool.names import MAX_FIELDS, to_bytes
from shardtool.shard_samples import ENCODED_PAYLOAD_MARK, FILE, INLINE, SPAN, inline_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.source.plan_request import PlanRequest


KEY_COLUMN, FIELDS_COLUMN, SPLIT_COLUMN = "__key__", "__fields__", "__divides__"


_INLINE_COLUMN, _PATH_NAME = "__inline_{}__", "path"


_FIELD_TYPES = {"field": "uint16", "kind": "uint8", "size": "int64", "mtime_ns": "int64", "changed_ns": "int64"}


_SPAN_TYPES = {"offset": "int64", "crc32c": "int64"}


_MAX_ROW_GROUPS, _MIN_GROUP_ROWS = (
    64,
    2**17,
)  # row groups at most, of so many samples at least: a group is held while it is made


_MAX_PAYLOAD_BYTES, _MAX_TOTAL_BYTES = 2**50, 2.0**62


def plan_schema(inline: int, divides: pa.DataType | None, *, paths: bool, spans: bool) -> pa.Schema:
    """Return the columns of a plan file, but for those of metadata, which come after them.

    Args:
        inline: How many fields have payloads of their own.
        divides: The type of the column that samples are divided by; None: there is none.
        paths: Whether each field has a path; otherwise it is key + "." + field.
        spans: Whether fields lie in an archive.
    """
    of_field = {
        name: pa.type_for_alias(kind) for name, kind in {**_FIELD_TYPES, **(_SPAN_TYPES if spans else {})}.items()
    }
    of_field |= {_PATH_NAME: pa.large_binary()} if paths else {}
    element = pa.struct([pa.field(name, kind, nullable=False) for name, kind in of_field.items()])
    columns = {KEY_COLUMN: pa.large_binary(), FIELDS_COLUMN: pa.list_(pa.field("element", element, nullable=False))}
    columns |= {_INLINE_COLUMN.format(at): pa.large_binary() for at in range(inline)}
    found = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(found if divides is None else [*found, pa.field(SPLIT_COLUMN, divides)])


def entries_schema(entries: SampleTable, divides: pa.ChunkedArray | None) -> pa.Schema:
    """Return the columns that hold samples, what they are divided by, and their metadata."""
    by, metadata = None if divides is None else divides.type, entries.metadata
    paths, spans = entries.rows.paths is not None, entries.spans is not None
    own = plan_schema(len(entries.values.inline), by, paths=paths, spans=spans)
    return own if metadata is None else pa.schema([*own, *metadata.schema])


def entries_tables(entries: SampleTable, divides: pa.ChunkedArray | None) -> Iterator[pa.Table]:
    """Yield samples as tables, each of which becomes a row group."""
    schema, at_once = entries_schema(entries, divides), max(_MIN_GROUP_ROWS, -(-len(entries) // _MAX_ROW_GROUPS))
    for first in range(0, len(entries), at_once):
        last = min(first + at_once, len(entries))
        texts: list[StringColumn] = [entries.keys, *entries.values.inline.values()]
        key, *inline = (strip_nuls(text.span(first, last), pa.large_binary()) for text in texts)
        columns = [key, _field_lists(entries, schema.field(FIELDS_COLUMN).type, first, last), *inline]
        columns += [] if divides is None else [divides.slice(first, last - first)]
        columns += [] if entries.metadata is None else entries.metadata.slice(first, last - first).columns
        yield pa.Table.from_arrays(columns, schema=schema)


def _field_lists(entries: SampleTable, kind: pa.ListType, first: int, last: int) -> pa.Array:
    """Return the fields of some samples, a list for each."""
    starts = entries.first[first : last + 1]
    rows, known, spans = slice(int(starts[0]), int(starts[-1])), entries.rows, entries.spans
    columns: list[Any] = [known.code, known.kind, known.size, known.mtime_ns, known.changed_ns]
    columns += [] if spans is None else [spans.offset, spans.expected]
    arrays = [number_array(column[rows]) for column in columns]
    if known.paths is not None:
        arrays.append(strip_nuls(known.paths.span(rows.start, rows.stop), pa.large_binary()))
    structs = pa.StructArray.from_arrays(arrays, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(number_array((starts - starts[0]).astype(np.int32)), structs, type=kind)


def _join_texts(array: pa.LargeBinaryArray) -> bytes:
    """Return the texts of an array, a NUL after each."""
    if not np.frombuffer(concat_values(array), np.uint8).all():
        raise ValueError("a name with a NUL in it")
    return append_nuls(array)


def _read_names(file: pq.ParquetFile, column: str) -> PackedStrings:
    """Return a column of texts."""
    return PackedStrings.parse(b"".join([_join_texts(array) for array in _read_chunks(file, column)]))


def read_entries(
    file: pq.ParquetFile, schema: pa.Schema, names: tuple[str, ...], values: FieldValues, asked: PlanRequest
) -> SampleTable:
    """Return the samples of a plan file.

    Args:
        file: It, whose pages fit its size.
        schema: The columns that it must have, before those of metadata.
        names: The fields' names.
        values: What is known of the fields' values, yet without the payloads of `inline`.
        asked: Where the source lies.

    Raises:
        ValueError: It holds no samples.
    """
    there, own = file.schema_arrow, len(schema)
    if pa.schema([*there][:own]) != schema or any(name.startswith("__") for name in there.names[own:]):
        raise ValueError("other columns than those of a plan")
    keys = _read_names(file, KEY_COLUMN)
    first, columns, paths = _read_fields(file, schema.field(FIELDS_COLUMN).type.value_type)
    inline = {name: _read_names(file, _INLINE_COLUMN.format(at)) for at, name in enumerate(values.inline)}
    code, kind, size, mtime_ns, changed_ns, *lie = columns
    spans = FieldSpans((asked.archive,), np.zeros(len(keys), np.uint32), *lie) if asked.archive else None
    found = SampleTable(
        root=asked.root,
        keys=keys,
        first=first,
        fields=names,
        rows=FieldRows(code, kind, size, mtime_ns, changed_ns, paths),
        values=values._replace(inline=inline),
        spans=spans,
        metadata=file.read(there.names[own:]) if own < len(there) else None,
        identity=asked.identity,
        folders=asked.folders,
    )
    _check_entries(found)
    pa.default_memory_pool().release_unused()  # what decoding took
    return found


def _read_chunks(file: pq.ParquetFile, name: str) -> Iterator[Any]:
    """Yield the parts of a column, none of which has nulls."""
    for group in range(file.num_row_groups):
        for chunk in file.read_row_group(group, [name]).column(0).chunks:
            if chunk.null_count:
                raise ValueError(f"nulls in {name}")
            yield chunk


def _read_fields(
    file: pq.ParquetFile, kind: pa.StructType
) -> tuple[NDArray[np.int64], list[NDArray[Any]], PackedStrings | None]:
    """Return where the fields of each sample start, their numbers, and their paths."""
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    most = sum(group.column(1).num_values for group in groups)  # with one for each sample without any
    starts, sample, row = np.zeros(file.metadata.num_rows + 1, np.int64), 0, 0
    columns = [
        np.empty(most, str(one.type)) for one in kind if one.name != _PATH_NAME
    ]  # joined, they would be there twice
    has_paths, paths = kind.num_fields > len(columns), list[bytes]()
    for lists in _read_chunks(file, FIELDS_COLUMN):
        structs = lists.flatten()
        arrays = structs.flatten()
        if structs.null_count or any(array.null_count for array in arrays):
            raise ValueError(f"nulls in {FIELDS_COLUMN}")
        for column, array in zip(columns, arrays, strict=False):
            column[row : row + len(array)] = number_values(array)
        paths += [_join_texts(array) for array in arrays[len(columns) :]]  # one, or none; the array is not kept
        starts[sample + 1 : sample + 1 + len(lists)] = np.diff(number_values(lists.offsets))
        sample, row = sample + len(lists), row + len(structs)
    np.cumsum(starts, out=starts)
    return starts, [column[:row] for column in columns], PackedStrings.parse(b"".join(paths)) if has_paths else None


def _check_entries(entries: SampleTable) -> None:
    """Refuse rows that are no fields of samples.

    Raises:
        ValueError: There are such.
    """
    rows, counts, spans = entries.rows, entries.counts(), entries.spans
    least, most = (FILE, INLINE) if spans is None else (INLINE, SPAN)  # of FILE, LINK, INLINE, SPAN
    forbidden = {*(b"\0" if rows.paths is not None else b"/\0")}  # where no path is given, it is made of the name
    total = rows.size.sum(dtype=float)
    for wrong, what in (
        (counts.min(initial=1) < 1 or counts.max(initial=1) > MAX_FIELDS, "a sample without a field, or of too many"),
        (any(not name or {*to_bytes(name)} & forbidden for name in entries.fields), "a field without a name"),
        (rows.code.max(initial=0) >= max(1, len(entries.fields)), "a field of no name"),
        (
            rows.size.min(initial=0) < 0 or rows.size.max(initial=0) > _MAX_PAYLOAD_BYTES or total > _MAX_TOTAL_BYTES,
            "payloads of sizes that no file has",
        ),
        (rows.paths is not None and len(rows.paths) != len(rows.code), "paths for other fields"),
        (
            rows.kind.min(initial=least) < least or rows.kind.max(initial=least) > most,
            "fields that are read in no way that this source has",
        ),
    ):
        if wrong:
            raise ValueError(what)
    if spans is not None:
        size = rows.size if spans.files[0].form == "tar" else 0
        beyond = (spans.offset < 0) | (spans.offset + size > spans.files[0].size)
        if np.any(beyond & (rows.kind == SPAN)):
            raise ValueError("payloads beyond the end of the archive")
    left = rows.kind == INLINE
    for name, texts in entries.values.inline.items():
        mine = np.flatnonzero(left & (rows.code == entries.fields.index(name)))
        if len(texts) != len(entries) or not isinstance(texts, PackedStrings):
            raise ValueError(f"values of {name!r} for other samples")
        if not np.array_equal(_payload_lengths(texts)[entries.owners(mine)], rows.size[mine]):
            raise ValueError(f"values of {name!r} that are not as long as they say")
        left[mine] = False
    if left.any():
        raise ValueError("values of fields that have none")


def _payload_lengths(texts: PackedStrings) -> NDArray[np.int64]:
    """Return the bytes of the payloads that texts stand for.

    Raises:
        ValueError: One is coded, and not in hexadecimal digits.
    """
    found = texts.lengths()
    if ENCODED_PAYLOAD_MARK in texts.data:
        for first, some in texts.chunks():
            found[first : first + len(some)] = [len(inline_payload(text)) for text in some]
    return found
