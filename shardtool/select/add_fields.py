"""Add fields with known values, replacing fields of the same names. Rows stay in the byte order of field names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from shardtool.entries import metadata_columns
from shardtool.entries.sample_table import FieldRows, FieldValues, SampleTable, concat_columns, take_values
from shardtool.entries.strings import PackedStrings, StringColumn
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.select.field_rows import check_field_count, field_codes, order_rows
from shardtool.shard_samples import INLINE
from shardtool.values import ValueType, chunk_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.table.render import ArrowStrings


_Number = TypeVar("_Number", bound=np.generic)


class NewField(NamedTuple):
    """A field with a known value per sample.

    Attributes:
        texts: The values, one per sample.
        given: bool[samples]: which samples get the field; the others keep what they have.
        kind: The type of the values; None: bytes.
        labels: The class names, if the values are class numbers; else None.
        column: The numbers, which replace a metadata column of the field's name; None: not a column.
    """

    name: str
    texts: ArrowStrings | PackedStrings
    given: NDArray[np.bool_]
    kind: ValueType | None = None
    labels: list[str] | None = None
    column: pa.Array | None = None


def add_fields(entries: SampleTable, new_fields: Sequence[NewField]) -> SampleTable:
    """Return the samples with these fields, without fields that no sample has any more."""
    new_fields = [field for field in new_fields if field.given.any()]
    if not new_fields:
        return entries
    rows, values, spans = entries.rows, entries.values, entries.spans
    old_names, names = {*entries.used_fields()}, {field.name for field in new_fields}
    fields = tuple(sorted(old_names | names, key=to_bytes))
    check_field_count(option_text("values"), fields, f"Drop some with {option_text('drop_fields')}.")
    sizes = [field.texts.lengths()[field.given] for field in new_fields]
    new_codes = [
        np.full(len(size), fields.index(field.name), np.uint16) for field, size in zip(new_fields, sizes, strict=True)
    ]
    firsts, codes = (
        [np.append(0, np.cumsum(field.given)) for field in new_fields],
        [*new_codes, field_codes(entries, fields)],
    )
    order, first = order_rows([*firsts, entries.first], codes)
    new_rows = sum(map(len, new_codes))

    def extend(values: NDArray[_Number], value: int) -> NDArray[_Number]:
        """Return a value for each row; all new rows have `value`."""
        return take_values(concat_columns((np.broadcast_to(values.dtype.type(value), new_rows), values)), order)

    if spans is not None:
        whole = None if spans.whole is None else extend(spans.whole, 0)
        row_file = None if spans.row_file is None else extend(spans.row_file, 0)
        offset, expected = extend(spans.offset, 0), extend(spans.expected, -1)
        spans = replace(spans, offset=offset, expected=expected, whole=whole, row_file=row_file)

    def is_one_type(field: NewField) -> bool:
        """Check whether all values of a field are of one type; samples that do not get it may have another."""
        return bool(field.given.all()) or field.name not in old_names or values.types.get(field.name) == field.kind

    field_values = FieldValues(
        inline={field.name: field.texts for field in new_fields},
        types={field.name: field.kind for field in new_fields if field.kind and is_one_type(field)},
        classes={field.name: field.labels for field in new_fields if field.labels is not None},
    )
    return replace(
        entries,
        first=first,
        fields=fields,
        rows=FieldRows(
            code=np.concatenate(codes)[order],
            kind=extend(rows.kind, INLINE),
            size=np.concatenate([*sizes, rows.size])[order],
            mtime_ns=extend(rows.mtime_ns, 0),
            changed_ns=extend(rows.changed_ns, 0),
            paths=None if rows.paths is None else _extend_paths(rows.paths, order - new_rows),
        ),
        values=values.select({*fields} - names).merge(field_values),
        spans=spans,
        metadata=metadata_columns.with_number_columns(
            entries.metadata, {field.name: field.column for field in new_fields}
        ),
    )


def _extend_paths(paths: StringColumn, source: NDArray[np.int64]) -> PackedStrings:
    parts = []
    for chunk in map(source.__getitem__, chunk_slices(len(source))):
        texts = iter(paths.gather(chunk[chunk >= 0]).split(b"\0"))
        parts.append(b"".join([(next(texts) if row >= 0 else b"") + b"\0" for row in chunk.tolist()]))
    return PackedStrings.parse(b"".join(parts))
