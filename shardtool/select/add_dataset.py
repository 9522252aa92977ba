"""Add the fields of another dataset's samples with the same keys (`--add`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries import metadata_columns
from shardtool.entries.sample_table import FieldRows, FieldSpans, SampleTable, concat_columns
from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.select.field_rows import check_field_count, field_codes, order_rows
from shardtool.table.keys import find_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray


def match_samples(entries: SampleTable, other: SampleTable, where: str) -> NDArray[np.int64]:
    """Return int64[samples]: the index in `other` of the sample with the same key, or -1. No field may be in both."""
    shared = sorted({*entries.used_fields()} & {*other.used_fields()}, key=to_bytes)
    if shared:
        found = f"fields that exist in both: {format_list([repr(name) for name in shared])} (also in {where})"
        drop, rename = option_text("drop_fields", tuple(shared)), option_text("rename_fields", {shared[0]: "NEW"})
        remedy = f"Drop them from the samples with {drop}, or rename one with {rename}."
        raise InvalidRequest(option_text("add"), found, expected="fields that the samples lack", remedy=remedy)
    return find_positions(entries.keys, other.keys)


def merge_fields(entries: SampleTable, other: SampleTable) -> SampleTable:
    """Return the samples with the fields and new metadata columns of one sample of `other` each."""
    names = sorted({*entries.used_fields(), *other.used_fields()}, key=to_bytes)
    check_field_count(option_text("add"), names)
    codes, columns = [field_codes(table, names) for table in (entries, other)], entries.metadata
    order, first = order_rows([entries.first, other.first], codes)
    if other.metadata is not None:
        for name in other.metadata.column_names:
            if columns is None or name not in columns.column_names:
                columns = metadata_columns.with_column(columns, name, other.metadata.column(name))
    return replace(
        entries,
        first=first,
        fields=tuple(names),
        rows=FieldRows.concat([entries.rows, other.rows], codes).take(order),
        values=entries.values.merge(other.values),
        spans=_merge_spans(entries, other).take_rows(order),
        metadata=columns,
        identity=f"{entries.identity} {other.identity}",
    )


def _merge_spans(entries: SampleTable, other: SampleTable) -> FieldSpans:
    spans, other_spans = entries.known_spans, other.known_spans
    file_numbers = [one.file_numbers(np.arange(len(one.rows.code))) for one in (entries, other)]
    whole_flags = [
        np.zeros(len(one.offset), np.bool_) if one.whole is None else one.whole for one in (spans, other_spans)
    ]
    return replace(
        spans,
        files=(*spans.files, *other_spans.files),
        offset=np.concatenate((spans.offset, other_spans.offset)),
        expected=concat_columns((spans.expected, other_spans.expected)),
        whole=None if spans.whole is None and other_spans.whole is None else np.concatenate(whole_flags),
        row_file=np.concatenate((file_numbers[0], file_numbers[1] + np.uint32(len(spans.files)))),
    )
