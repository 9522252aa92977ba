"""Add fields to the samples of a `SampleTable`: new values (`--field`), or the fields of another dataset (`--add`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from shardtool.entries import metadata_columns
from shardtool.entries.sample_table import FieldRows, FieldSpans, FieldValues, SampleTable, concat_columns, take_values
from shardtool.entries.strings import PackedStrings, StringColumn
from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.select.field_rows import check_field_count, field_codes, order_rows
from shardtool.shard_samples import INLINE
from shardtool.table.keys import find_positions
from shardtool.values import ValueType, chunk_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.table.render import ArrowStrings


_Number = TypeVar("_Number", bound=np.generic)


class NewField(NamedTuple):
    """A field to add to samples.

    Attributes:
        texts: The value for each sample as text (see `decode_inline_payload`).
        has_value: bool[samples], whether the sample gets the field.
        labels: The class names, if the values are class numbers.
        column: The values, if they are numbers. `add_fields` also adds these values to the metadata.
    """

    name: str
    texts: ArrowStrings | PackedStrings
    has_value: NDArray[np.bool_]
    kind: ValueType | None = None
    labels: list[str] | None = None
    column: pa.Array | None = None


def add_fields(entries: SampleTable, new_fields: Sequence[NewField]) -> SampleTable:
    """Add fields, or replace fields of the same name. Also remove unused names from `SampleTable.fields`."""
    new_fields = [field for field in new_fields if field.has_value.any()]
    if not new_fields:
        return entries
    rows, values, spans = entries.rows, entries.values, entries.spans
    old_names, names = {*entries.used_fields()}, [field.name for field in new_fields]
    fields = tuple(sorted(old_names.union(names), key=to_bytes))
    check_field_count(option_text("field"), fields, f"Drop some with {option_text('drop_fields')}.")
    sizes = [field.texts.lengths()[field.has_value] for field in new_fields]
    codes = [np.full(len(size), fields.index(name), np.uint16) for name, size in zip(names, sizes, strict=True)]
    codes.append(field_codes(entries, fields))
    first_rows = [np.append(0, np.cumsum(field.has_value)) for field in new_fields]
    order, first = order_rows([*first_rows, entries.first_rows], codes)
    new_rows = sum(map(len, sizes))

    def extend(values: NDArray[_Number], value: int) -> NDArray[_Number]:
        return take_values(concat_columns((np.broadcast_to(values.dtype.type(value), new_rows), values)), order)

    if spans is not None:
        is_list = None if spans.is_list is None else extend(spans.is_list, 0)
        row_file = None if spans.row_file is None else extend(spans.row_file, 0)
        offset, crc = extend(spans.offset, 0), extend(spans.crc, -1)
        spans = replace(spans, offset=offset, crc=crc, is_list=is_list, row_file=row_file)

    def is_one_type(field: NewField) -> bool:
        # Samples without a new value keep the old payload, which may have another type.
        return bool(field.has_value.all()) or field.name not in old_names or values.types.get(field.name) == field.kind

    columns = {field.name: field.column for field in new_fields}
    field_values = FieldValues(
        inline={field.name: field.texts for field in new_fields},
        types={field.name: field.kind for field in new_fields if field.kind and is_one_type(field)},
        classes={field.name: field.labels for field in new_fields if field.labels is not None},
    )
    return replace(
        entries,
        first_rows=first,
        fields=fields,
        rows=FieldRows(
            code=np.concatenate(codes)[order],
            kind=extend(rows.kind, INLINE),
            size=np.concatenate([*sizes, rows.size])[order],
            mtime_ns=extend(rows.mtime_ns, 0),
            changed_ns=extend(rows.changed_ns, 0),
            paths=None if rows.paths is None else _extend_paths(rows.paths, order - new_rows),
        ),
        values=values.select({*fields}.difference(names)).merge(field_values),
        spans=spans,
        metadata=metadata_columns.with_number_columns(entries.metadata, columns),
    )


def _extend_paths(paths: StringColumn, source: NDArray[np.int64]) -> PackedStrings:
    parts = []
    for chunk in map(source.__getitem__, chunk_slices(len(source))):
        texts = iter(paths.gather(chunk[chunk >= 0]).split(b"\0"))
        parts.append(b"".join([(next(texts) if row >= 0 else b"") + b"\0" for row in chunk.tolist()]))
    return PackedStrings.parse(b"".join(parts))


def match_samples(entries: SampleTable, other: SampleTable, where: str) -> NDArray[np.int64]:
    """For each sample, return the index of its key in `other`, or -1. Raise an error if a field is in both tables."""
    if shared := sorted({*entries.used_fields()} & {*other.used_fields()}, key=to_bytes):
        found = f"fields that exist in both: {format_list([repr(name) for name in shared])} (also in {where})"
        drop, rename = option_text("drop_fields", tuple(shared)), option_text("rename_fields", {"NEW": shared[0]})
        remedy = f"Drop them from the samples with {drop}, or rename one with {rename}."
        raise InvalidRequest(option_text("add"), found, expected="fields that the samples lack", remedy=remedy)
    return find_positions(entries.keys, other.keys)


def merge_fields(entries: SampleTable, other: SampleTable) -> SampleTable:
    """Add the fields and new metadata columns of `other`. Both tables must have the same samples in the same order."""
    names = sorted({*entries.used_fields(), *other.used_fields()}, key=to_bytes)
    check_field_count(option_text("add"), names)
    codes = [field_codes(table, names) for table in (entries, other)]
    columns = entries.metadata
    order, first = order_rows([entries.first_rows, other.first_rows], codes)
    if other.metadata is not None:
        for name in other.metadata.column_names:
            if columns is None or name not in columns.column_names:
                columns = metadata_columns.with_column(columns, name, other.metadata.column(name))
    return replace(
        entries,
        first_rows=first,
        fields=tuple(names),
        rows=FieldRows.concat([entries.rows, other.rows], codes).take(order),
        values=entries.values.merge(other.values),
        spans=_merge_spans(entries, other).take_rows(order),
        metadata=columns,
        source_identity=f"{entries.source_identity} {other.source_identity}",
    )


def _merge_spans(entries: SampleTable, other: SampleTable) -> FieldSpans:
    spans, other_spans = entries.known_spans, other.known_spans
    file_numbers = [table.file_numbers(np.arange(len(table.rows.code))) for table in (entries, other)]
    flags = [(side.is_list, len(side.offset)) for side in (spans, other_spans)]
    list_flags = [np.zeros(count, np.bool_) if is_list is None else is_list for is_list, count in flags]
    return replace(
        spans,
        files=(*spans.files, *other_spans.files),
        offset=np.concatenate((spans.offset, other_spans.offset)),
        crc=concat_columns((spans.crc, other_spans.crc)),
        is_list=None if spans.is_list is None and other_spans.is_list is None else np.concatenate(list_flags),
        row_file=np.concatenate((file_numbers[0], file_numbers[1] + np.uint32(len(spans.files)))),
    )
