"""Convert samples to the rows of a plan file, and back.

Strings are stored as bytes, because some file names are not valid UTF-8.
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
from shardtool.shard_samples import ENCODED_PAYLOAD_MARK, FILE, INLINE, SPAN, decode_inline_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.source.plan_request import PlanRequest


KEY_COLUMN, FIELDS_COLUMN, SPLIT_COLUMN = "__key__", "__fields__", "__divides__"
_INLINE_COLUMN, _PATH_NAME = "__inline_{}__", "path"
_FIELD_TYPES = {"field": "uint16", "kind": "uint8", "size": "int64", "mtime_ns": "int64", "changed_ns": "int64"}
_SPAN_TYPES = {"offset": "int64", "crc32c": "int64"}
_MAX_ROW_GROUPS, _MIN_GROUP_ROWS = 64, 2**17
_MAX_PAYLOAD_BYTES, _MAX_TOTAL_BYTES = 2**50, 2.0**62


def plan_schema(inline: int, split_type: pa.DataType | None, *, paths: bool, spans: bool) -> pa.Schema:
    """Return the schema of a plan file without its metadata columns.

    `inline` is the number of fields whose payloads are in the plan. Without `paths`, each path is key + "." + field.
    """
    type_names = {**_FIELD_TYPES, **(_SPAN_TYPES if spans else {})}
    field_types = {name: pa.type_for_alias(kind) for name, kind in type_names.items()}
    field_types |= {_PATH_NAME: pa.large_binary()} if paths else {}
    element = pa.struct([pa.field(name, kind, nullable=False) for name, kind in field_types.items()])
    columns = {KEY_COLUMN: pa.large_binary(), FIELDS_COLUMN: pa.list_(pa.field("element", element, nullable=False))}
    columns |= {_INLINE_COLUMN.format(index): pa.large_binary() for index in range(inline)}
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields if split_type is None else [*fields, pa.field(SPLIT_COLUMN, split_type)])


def entries_schema(entries: SampleTable, split_values: pa.ChunkedArray | None) -> pa.Schema:
    """Return the schema of the plan file for `entries`."""
    split_type, metadata = None if split_values is None else split_values.type, entries.metadata
    paths, spans = entries.rows.paths is not None, entries.spans is not None
    schema = plan_schema(len(entries.values.inline), split_type, paths=paths, spans=spans)
    return schema if metadata is None else pa.schema([*schema, *metadata.schema])


def entries_tables(entries: SampleTable, split_values: pa.ChunkedArray | None) -> Iterator[pa.Table]:
    """Yield the rows of a plan file as one table per row group."""
    schema = entries_schema(entries, split_values)
    group_rows = max(_MIN_GROUP_ROWS, -(-len(entries) // _MAX_ROW_GROUPS))
    for first in range(0, len(entries), group_rows):
        last = min(first + group_rows, len(entries))
        texts: list[StringColumn] = [entries.keys, *entries.values.inline.values()]
        key, *inline = (strip_nuls(text.span(first, last), pa.large_binary()) for text in texts)
        columns = [key, _field_lists(entries, schema.field(FIELDS_COLUMN).type, first, last), *inline]
        columns += [] if split_values is None else [split_values.slice(first, last - first)]
        columns += [] if entries.metadata is None else entries.metadata.slice(first, last - first).columns
        yield pa.Table.from_arrays(columns, schema=schema)


def _field_lists(entries: SampleTable, kind: pa.ListType, first: int, last: int) -> pa.Array:
    starts = entries.first[first : last + 1]
    rows, field_rows, spans = slice(int(starts[0]), int(starts[-1])), entries.rows, entries.spans
    columns: list[Any] = [field_rows.code, field_rows.kind, field_rows.size, field_rows.mtime_ns, field_rows.changed_ns]
    columns += [] if spans is None else [spans.offset, spans.expected]
    arrays = [number_array(column[rows]) for column in columns]
    if field_rows.paths is not None:
        arrays.append(strip_nuls(field_rows.paths.span(rows.start, rows.stop), pa.large_binary()))
    structs = pa.StructArray.from_arrays(arrays, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(number_array((starts - starts[0]).astype(np.int32)), structs, type=kind)


def _join_texts(array: pa.LargeBinaryArray) -> bytes:
    if not np.frombuffer(concat_values(array), np.uint8).all():
        raise ValueError("a name with a NUL in it")
    return append_nuls(array)


def _read_names(file: pq.ParquetFile, column: str) -> PackedStrings:
    return PackedStrings.parse(b"".join([_join_texts(array) for array in _read_chunks(file, column)]))


def read_entries(
    file: pq.ParquetFile, schema: pa.Schema, names: tuple[str, ...], values: FieldValues, request: PlanRequest
) -> SampleTable:
    """Return the samples of a plan file. The caller must check beforehand how much memory the columns need.

    `schema` comes from `plan_schema`. The names in `values.inline` are the fields whose payloads the plan contains.

    Raises:
        ValueError: The rows are invalid.
    """
    stored_schema, expected_count = file.schema_arrow, len(schema)
    metadata_names = stored_schema.names[expected_count:]
    has_reserved = any(name.startswith("__") for name in metadata_names)
    if pa.schema([*stored_schema][:expected_count]) != schema or has_reserved:
        raise ValueError("unexpected columns")
    keys = _read_names(file, KEY_COLUMN)
    first, columns, paths = _read_fields(file, schema.field(FIELDS_COLUMN).type.value_type)
    inline = {name: _read_names(file, _INLINE_COLUMN.format(index)) for index, name in enumerate(values.inline)}
    code, kind, size, mtime_ns, changed_ns, *span_columns = columns
    spans = FieldSpans((request.archive,), np.zeros(len(keys), np.uint32), *span_columns) if request.archive else None
    entries = SampleTable(
        root=request.root,
        keys=keys,
        first=first,
        fields=names,
        rows=FieldRows(code, kind, size, mtime_ns, changed_ns, paths),
        values=values._replace(inline=inline),
        spans=spans,
        metadata=file.read(metadata_names).replace_schema_metadata() if metadata_names else None,
        identity=request.identity,
        folders=request.folders,
    )
    _check_entries(entries)
    pa.default_memory_pool().release_unused()
    return entries


def _read_chunks(file: pq.ParquetFile, name: str) -> Iterator[Any]:
    for group in range(file.num_row_groups):
        for chunk in file.read_row_group(group, [name]).column(0).chunks:
            if chunk.null_count:
                raise ValueError(f"nulls in {name}")
            yield chunk


def _read_fields(
    file: pq.ParquetFile, kind: pa.StructType
) -> tuple[NDArray[np.int64], list[NDArray[Any]], PackedStrings | None]:
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    max_rows = sum(group.column(1).num_values for group in groups)
    starts, sample, row = np.zeros(file.metadata.num_rows + 1, np.int64), 0, 0
    # Fill arrays of the final size, because concatenating chunks would take twice the memory.
    columns = [np.empty(max_rows, str(member.type)) for member in kind if member.name != _PATH_NAME]
    has_paths, paths = kind.num_fields > len(columns), list[bytes]()
    for lists in _read_chunks(file, FIELDS_COLUMN):
        structs = lists.flatten()
        arrays = structs.flatten()
        if structs.null_count or any(array.null_count for array in arrays):
            raise ValueError(f"nulls in {FIELDS_COLUMN}")
        for column, array in zip(columns, arrays, strict=False):
            column[row : row + len(array)] = number_values(array)
        paths += [_join_texts(array) for array in arrays[len(columns) :]]
        starts[sample + 1 : sample + 1 + len(lists)] = np.diff(number_values(lists.offsets))
        sample, row = sample + len(lists), row + len(structs)
    np.cumsum(starts, out=starts)
    return starts, [column[:row] for column in columns], PackedStrings.parse(b"".join(paths)) if has_paths else None


def _check_entries(entries: SampleTable) -> None:
    rows, counts, spans = entries.rows, entries.counts(), entries.spans
    min_kind, max_kind = (FILE, INLINE) if spans is None else (INLINE, SPAN)
    # Without stored paths, the field name is part of the path, so it must not contain a slash.
    forbidden = {*(b"\0" if rows.paths is not None else b"/\0")}
    has_bad_size = rows.size.min(initial=0) < 0 or rows.size.max(initial=0) > _MAX_PAYLOAD_BYTES
    has_bad_kind = rows.kind.min(initial=min_kind) < min_kind or rows.kind.max(initial=min_kind) > max_kind
    for is_invalid, problem in (
        (counts.min(initial=1) < 1 or counts.max(initial=1) > MAX_FIELDS, "a sample with no or too many fields"),
        (any(not name or {*to_bytes(name)} & forbidden for name in entries.fields), "an invalid field name"),
        (rows.code.max(initial=0) >= max(1, len(entries.fields)), "a field without a name"),
        (has_bad_size or rows.size.sum(dtype=float) > _MAX_TOTAL_BYTES, "impossible payload sizes"),
        (
            rows.paths is not None and len(rows.paths) != len(rows.code),
            "a number of paths that differs from the number of fields",
        ),
        (has_bad_kind, "payloads of a different kind of source"),
    ):
        if is_invalid:
            raise ValueError(problem)
    if spans is not None:
        size = rows.size if spans.files[0].form == "tar" else 0
        beyond = (spans.offset < 0) | (spans.offset + size > spans.files[0].size)
        if np.any(beyond & (rows.kind == SPAN)):
            raise ValueError("payloads beyond the end of the archive")
    remaining = rows.kind == INLINE
    for name, texts in entries.values.inline.items():
        field_rows = np.flatnonzero(remaining & (rows.code == entries.fields.index(name)))
        if len(texts) != len(entries) or not isinstance(texts, PackedStrings):
            raise ValueError(f"a number of values of {name!r} that differs from the number of samples")
        if not np.array_equal(_payload_lengths(texts)[entries.owners(field_rows)], rows.size[field_rows]):
            raise ValueError(f"values of {name!r} whose sizes differ from the listed sizes")
        remaining[field_rows] = False
    if remaining.any():
        raise ValueError("inline fields without values")


def _payload_lengths(texts: PackedStrings) -> NDArray[np.int64]:
    lengths = texts.lengths()
    if ENCODED_PAYLOAD_MARK in texts.data:
        for first, chunk in texts.chunks():
            lengths[first : first + len(chunk)] = [len(decode_inline_payload(text)) for text in chunk]
    return lengths
