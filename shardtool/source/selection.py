"""Apply the options that select fields, columns and samples of a source."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries import metadata_columns
from shardtool.errors import InvalidRequest, printable
from shardtool.messages import option_text
from shardtool.request.option_values import parse_pairs
from shardtool.select.sample_table import make_sample_table, sort_order, table_column
from shardtool.select.splits import sample_with_notes
from shardtool.select.storable_names import has_dotted_keys
from shardtool.source.base import Listing, check_skipped, no_match_error
from shardtool.source.json_columns import add_json_columns
from shardtool.source.keys_from import key_list_name, match_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.request.selecting_options import SelectingOptions


def apply_field_options(listing: Listing, options: SelectingOptions, pool: Pool, to_format: str = "tar") -> Listing:
    """Add metadata columns from JSON fields, then select, drop and rename fields."""
    if options.columns_from:
        for field in options.columns_from:
            listing = add_json_columns(listing, field, pool)
        check_skipped(listing.where, listing.skipped, options.on_error, f"omit {option_text('columns_from')}")
    if not (options.select_fields or options.drop_fields or options.rename_fields):
        return listing
    from shardtool.select.field_rows import list_source_paths
    from shardtool.select.select_fields import select_fields

    entries, renames = listing.entries, parse_pairs("rename_fields", options.rename_fields)
    if renames and not listing.shards:
        entries = replace(entries, rows=replace(entries.rows, paths=list_source_paths(entries)))
    entries, empty = select_fields(entries, options.select_fields, options.drop_fields, renames, to_format=to_format)
    entries, dropped = _update_label_columns(
        listing.entries.fields, entries, {old: new for new, old in renames}, options.columns_from
    )
    return replace(listing, entries=entries, skipped=listing.skipped + empty, dropped=dropped)


def _update_label_columns(
    old_fields: Sequence[str], entries: SampleTable, renames: Mapping[str, str], kept: Sequence[str]
) -> tuple[SampleTable, tuple[str, ...]]:
    columns = entries.metadata
    if columns is None:
        return entries, ()
    numbers = [column.name for column in columns.schema if metadata_columns.is_number_type(column.type)]
    labels = [name for name in numbers if name in old_fields]
    moved = {renames[name]: columns.column(name) for name in labels if name in renames}
    moved = {name: values for name, values in moved.items() if name in renames or name not in columns.column_names}
    dropped = tuple(name for name in labels if name not in (*entries.fields, *kept))
    return replace(entries, metadata=metadata_columns.with_number_columns(columns, moved)), dropped


def find_listed_samples(
    keys: PackedStrings, options: SelectingOptions, is_known: Callable[[bytes], bool] | None
) -> tuple[NDArray[np.int64], list[str]]:
    """Find the keys that `keys_from` lists. Return their positions in `keys`, and notes.

    A listed key that is not in `keys` is an error, unless `is_known` returns true. With `on_error="skip"`, return
    a note instead if `keys` contains another listed key.
    """
    samples, problem = match_keys(keys, options.keys_from, is_known, may_lack=options.on_error == "skip")
    return samples, [f"{option_text('keys_from')}: {problem}"] if problem else []


def join_and_filter(listing: Listing, options: SelectingOptions, *, optional_values: bool = False) -> Listing:
    """Apply the options `join`, `keys_from`, `where` and `field`, in this order."""
    names: dict[str, list[str]] = {}
    if options.join is not None:
        from shardtool.select.join import join_table

        on = options.on or ""
        form, collect = options.delimited_format, options.collect
        joined = join_table(listing.entries, options.join, on, form, collect)
        recorded, names = {**listing.recorded, "join": joined.name}, {**joined.classes}
        notes, columns = (*listing.notes, *joined.notes), (*joined.columns,)
        listing = replace(listing, entries=joined.entries, recorded=recorded, notes=notes, joined=columns)
    if options.keys_from is not None:
        skipped = {row.key for row in listing.skipped if row.key}
        is_known = (lambda key: printable(key) in skipped) if skipped else None
        samples, found_notes = find_listed_samples(listing.entries.keys, options, is_known)
        recorded = {**listing.recorded, "keys_from": key_list_name(options.keys_from)}
        entries, notes = listing.entries.take(samples), (*listing.notes, *found_notes)
        listing = replace(listing, entries=entries, recorded=recorded, notes=notes)
    if (query := options.where) is not None:
        from shardtool.select.query import match_partially

        table = make_sample_table(listing.entries, listing.shards)
        query_table = add_field_columns(table, parse_pairs("field", options.field))
        selected, condition = match_partially(
            query_table, query, options.file_columns, {**listing.all_classes, **names}
        )
        if not len(selected):
            raise no_match_error(query)
        listing = replace(listing, entries=listing.entries.take(selected), condition=condition)
    values = parse_pairs("field", options.field)
    if not (values or options.classes):
        return listing
    from shardtool.dataset.class_names import read_classes
    from shardtool.select.value_fields import set_value_fields
    from shardtool.table.payloads import renumber_columns

    known_classes, entries = read_classes(options.classes_from), listing.entries
    column_of = make_sample_table(entries, listing.shards).column
    label_fields = (*options.classes, *(("cls",) if getattr(options, "label_from_folder", False) else ()))
    for name, numbers in renumber_columns(column_of, names, values, label_fields, known_classes):
        entries = replace(entries, metadata=metadata_columns.with_column(entries.metadata, name, numbers))
    entries, notes = set_value_fields(entries, values, options.classes, known_classes, names, optional=optional_values)
    return replace(listing, entries=entries, notes=(*listing.notes, *notes))


def add_field_columns(table: pa.Table, values: Iterable[tuple[str, str]]) -> pa.Table:
    """Copy each field's column to a column with the field's name, so queries can use both names."""
    for name, column in values:
        if name not in table.column_names and column in table.column_names:
            table = table.append_column(name, table.column(column))
    return table


def sort_and_limit(listing: Listing, options: SelectingOptions) -> Listing:
    """Sort the samples by `sort_by`, and keep the first `head` samples."""
    entries = listing.entries
    if (name := options.sort_by) is not None:
        column = table_column(make_sample_table(entries, listing.shards), name, option_text("sort_by"))
        entries = entries.take(sort_order(column, name, descending=options.descending)[: options.head])
    elif options.head is not None and options.head < len(entries):
        entries = entries.take(np.arange(options.head))
    return listing if entries is listing.entries else replace(listing, entries=entries)


def rename_listed_keys(
    listing: Listing,
    options: SelectingOptions,
    column_of: Callable[[str], pa.ChunkedArray] | None = None,
    *,
    by_key: bool = False,
) -> Listing:
    """Rename keys with `rename_keys`. If `by_key`, sort the samples by the new keys.

    `column_of` returns the column with the new keys, by default from `make_sample_table`.
    """
    if (rename := options.rename_keys) is None or not len(listing.entries):
        return listing
    from shardtool.select.rename_keys import rename_keys, rename_skipped

    column_of = column_of or partial(_key_column, listing)
    entries, notes = rename_keys(listing.entries, rename, column_of, has_paths=not listing.shards)
    if by_key:
        entries = entries.take(entries.keys.sorted_order())
    recorded = dict(listing.recorded)
    if listing.shards and recorded.pop("dots", None) and has_dotted_keys(entries.keys):
        recorded["dots"] = "last"
    skipped, notes = rename_skipped(listing.skipped, rename), [*listing.notes, *notes]
    return replace(listing, entries=entries, skipped=skipped, notes=tuple(notes), recorded=recorded, digest=None)


def _key_column(listing: Listing, name: str) -> pa.ChunkedArray:
    try:
        return table_column(make_sample_table(listing.entries, listing.shards), name, option_text("rename_keys"))
    except InvalidRequest as error:
        error.expected = f"s/PATTERN/REPLACEMENT/, or {error.expected}"
        error.remedy = error.remedy or f"Add columns from a table with {option_text('join')}."
        raise


def take_sample(listing: Listing, options: SelectingOptions) -> Listing:
    """Keep the share of samples that `sample` requests."""
    if options.sample is None:
        return listing
    samples, notes = sample_with_notes(listing.entries.keys, options.sample)
    return replace(listing, entries=listing.entries.take(samples), notes=(*listing.notes, *notes))
