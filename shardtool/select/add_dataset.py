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
    """Return int64[samples]: the place among others of the one with the same key; -1 where there is none.

    Args:
        entries: The samples.
        other: The others, each with a key of its own.
        where: What the others are called.

    Raises:
        InvalidRequest: Both have a field of one name.
    """
    both = sorted({*entries.used_fields()} & {*other.used_fields()}, key=to_bytes)
    if both:
        found = f"{format_list([repr(name) for name in both])} in {where}, too"
        renamed = option_text("rename_fields", {both[0]: "NEW"})
        remedy = f"{option_text('drop_fields', tuple(both))} leaves those of the samples out, {renamed} gives one another name."
        raise InvalidRequest(option_text("add"), found, expected="fields that the samples lack", remedy=remedy)
    return find_positions(entries.keys, other.keys)


def merge_fields(entries: SampleTable, other: SampleTable) -> SampleTable:
    """Return samples with the fields of others, one for each in the same order, and with columns that they lack.

    All of them lie in shards.
    """
    names = sorted({*entries.used_fields(), *other.used_fields()}, key=to_bytes)
    check_field_count(option_text("add"), names)
    codes, columns = [field_codes(one, names) for one in (entries, other)], entries.metadata
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
    """Return where the payloads of both lie: the files of the others come after those of the samples."""
    ours, theirs = entries.known_spans, other.known_spans
    files = [one.file_numbers(np.arange(len(one.rows.code))) for one in (entries, other)]
    wholes = [np.zeros(len(one.offset), np.bool_) if one.whole is None else one.whole for one in (ours, theirs)]
    return replace(
        ours,
        files=(*ours.files, *theirs.files),
        offset=np.concatenate((ours.offset, theirs.offset)),
        expected=concat_columns((ours.expected, theirs.expected)),
        whole=None if ours.whole is None and theirs.whole is None else np.concatenate(wholes),
        row_file=np.concatenate((files[0], files[1] + np.uint32(len(ours.files)))),
    )
