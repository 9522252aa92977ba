"""Sort, merge and check the field rows of a `SampleTable`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, printable
from shardtool.names import MAX_FIELDS
from shardtool.shard_samples import INLINE
from shardtool.skipped import Skipped
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.table.rows import RowGroups


def list_source_paths(entries: SampleTable) -> PackedStrings:
    """Return the path of each row's source file, or "" if the payload is not from a file."""
    if (paths := entries.rows.paths) is not None:
        return PackedStrings.parse(paths.span(0, len(paths)))
    chunks = []
    for chunk in chunk_slices(len(entries.rows.kind)):
        row_paths = entries.paths(np.arange(chunk.start, chunk.stop))
        for index in np.flatnonzero(entries.rows.kind[chunk] == INLINE).tolist():
            row_paths[index] = b""
        chunks.append(b"\0".join(row_paths) + b"\0")
    return PackedStrings.parse(b"".join(chunks))


def drop_empty_samples(
    entries: SampleTable, where: str, found: str, why: str
) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Skip samples without fields.

    `why` is the reason in each `Skipped`. If no sample has a field, raise an error with `where` and `found`.
    """
    counts = entries.counts()
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return entries, ()
    if len(empty) == len(entries):
        remedy = "" if entries.spans is None else "`shardtool inspect` lists the fields."
        raise InvalidRequest(where, found, remedy=remedy)
    skipped = tuple(Skipped(entries.key(sample), "", "no-field", why) for sample in empty.tolist())
    return entries.take(np.flatnonzero(counts)), skipped


def check_field_count(where: str, names: Sequence[str] | Sequence[bytes], remedy: str = "") -> None:
    """Raise `InvalidRequest` if there are more than `MAX_FIELDS` field names."""
    if len(names) > MAX_FIELDS:
        found = f"{len(names):,} different fields, such as {printable(names[0])!r}"
        raise InvalidRequest(where, found, expected=f"at most {MAX_FIELDS:,}", remedy=remedy)


def field_codes(entries: SampleTable, fields: Sequence[str]) -> NDArray[np.uint16]:
    """Return the field of each row, as an index into `fields`. Fields that are not in `fields` get 0."""
    code_of = {name: code for code, name in enumerate(fields)}
    return np.array([code_of.get(name, 0) for name in entries.fields], np.uint16)[entries.rows.code]


def order_rows(
    first_rows: Sequence[NDArray[np.int64]], codes: Sequence[NDArray[np.uint16]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Merge the rows of several tables that contain the same samples, and sort the rows by sample and field.

    Return the merged rows, as indexes into the concatenated tables, and the `first_rows` of the merged table. If
    several tables contain the same field of a sample, keep only the rows from the first of these tables.

    Args:
        first_rows: `SampleTable.first_rows` of each table.
        codes: The field of each row of each table, as an index into a shared list of fields.
    """
    orders, counts = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
    table_starts = np.cumsum([0, *map(len, codes)])
    for samples in chunk_slices(len(first_rows[0]) - 1):
        bounds = [first[samples.start : samples.stop + 1] for first in first_rows]
        ranges = [slice(bound[0], bound[-1]) for bound in bounds]
        numbered = zip(ranges, table_starts, strict=False)
        rows = np.concatenate([np.arange(part.start, part.stop) + start for part, start in numbered])
        sample_of_row = np.concatenate([np.repeat(np.arange(len(bound) - 1), np.diff(bound)) for bound in bounds])
        code = np.concatenate([table_codes[part] for part, table_codes in zip(ranges, codes, strict=True)])
        order = np.lexsort((code, sample_of_row))
        rows, sample_of_row, code = rows[order], sample_of_row[order], code[order]
        table = np.searchsorted(table_starts, rows, "right")
        # For each row, find the first row with the same sample and field.
        first_equal = np.arange(len(rows))
        first_equal[1:][(sample_of_row[1:] == sample_of_row[:-1]) & (code[1:] == code[:-1])] = 0
        is_kept = table == table[np.maximum.accumulate(first_equal)]
        orders.append(rows[is_kept])
        counts.append(np.bincount(sample_of_row[is_kept], minlength=len(bounds[0]) - 1))
    return np.concatenate(orders), np.cumsum(np.concatenate(counts))


def group_sorted(keys: PackedStrings) -> RowGroups:
    """Group the samples with the same key, and sort the groups by key."""
    import pyarrow.compute as pc

    from shardtool.entries.arrow import true_positions
    from shardtool.table.rows import RowGroups

    order = keys.sorted_order()
    sorted_keys = keys.take(order).array()
    is_first = np.arange(len(order)) == 0
    is_first[1 + true_positions(pc.not_equal(sorted_keys[1:], sorted_keys[:-1]))] = True
    group_of_sample = np.empty(len(order), np.int64)
    group_of_sample[order] = np.cumsum(is_first) - 1
    return RowGroups(order[is_first], group_of_sample)


def merge_groups(entries: SampleTable, groups: RowGroups) -> SampleTable:
    """Merge each group of samples into one sample.

    The merged sample has the fields of all samples in the group, but the metadata and INLINE fields of only the first
    sample. If two samples of a group have the same field, the result has this field twice, so the caller must check for
    repeated fields.
    """
    sample_of_row = np.repeat(np.arange(len(entries)), entries.counts())
    group_of_row = groups.of_row[sample_of_row]
    kept = np.flatnonzero((entries.rows.kind != INLINE) | (groups.first[group_of_row] == sample_of_row))
    rows = kept[np.lexsort((entries.rows.code[kept], group_of_row[kept]))]
    counts = np.bincount(group_of_row[kept], minlength=len(groups.first))
    spans = None if entries.spans is None else entries.spans.take(groups.first, rows)
    return replace(
        entries.take(groups.first),
        spans=spans,
        first_rows=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        rows=entries.rows.take(rows),
    )
