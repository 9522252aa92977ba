"""Join a table to samples: match its rows by key, and add its columns to the metadata."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow, metadata_columns
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.request.option_values import DEFAULT_FORMAT, DelimitedFormat
from shardtool.select.field_rows import list_source_paths
from shardtool.shard_samples import INLINE
from shardtool.table.columns import (
    check_column_names,
    check_sidecar_names,
    find_byte_columns,
    is_index_name,
    is_text_type,
    missing_name_error,
)
from shardtool.table.keys import find_positions, inexact_positions, is_key_type, iter_key_texts, may_repeat
from shardtool.table.open import open_table, read_columns
from shardtool.table.payloads import missing_positions, nul_positions
from shardtool.table.render import has_text_form
from shardtool.table.rows import ALL_COLUMNS, TableRows, collect_rows, collected_note, group_rows
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.table.base import Table


_DEFAULT_KEY_COLUMN = "key"
_MAX_KEY_LETTERS = 120
_MAX_LISTED_KEYS = 3
_EMPTY_TEXT, _NUL_TEXT = arrow.text_scalar(""), arrow.text_scalar("\0")
_NULL_ROW = pa.nulls(1, pa.int64())[0]


class JoinedSamples(NamedTuple):
    """The result of `join_table`.

    Attributes:
        unmatched: Number of samples without a row in the table.
        unused: Number of rows that match no sample. With `collect`, the number of table keys that match no sample.
        classes: Class names by column.
        columns: Type of each joined column.
    """

    entries: SampleTable
    name: str
    unmatched: int
    unused: int
    notes: tuple[str, ...]
    classes: Mapping[str, list[str]]
    columns: Mapping[str, pa.DataType]


def join_table(
    entries: SampleTable, table: object, on: str, form: DelimitedFormat = DEFAULT_FORMAT, collect: Sequence[str] = ()
) -> JoinedSamples:
    """Add the columns of a table to the metadata of samples.

    A row matches a sample if the row's value in the column `on` is the key of the sample. If no row matches, the values
    of `on` are compared with the paths of the samples' files, and if that fails, the values without their
    extensions with the keys. If the samples have a metadata column `on`, the values are compared only with this column.

    Columns that the metadata already has get new values only for matched samples.

    Args:
        on: The key column of the table. The default is `file_name` for COCO annotations, else `key`.
        collect: The columns whose values become one list per key. `all` means all columns. If empty, each
            key must have only one row.
    """
    source = open_table(table, {on or _DEFAULT_KEY_COLUMN}, form)
    default_key_notes: list[str] = []
    if not (on := on or source.key_column):
        on = _default_key_column(source)
        default_key_notes = [f"using {on} as the key column (change with {option_text('on', 'COLUMN')})"]
    names = _check_columns(source, on)
    sample_types = {} if entries.metadata is None else {column.name: column.type for column in entries.metadata.schema}
    text_columns = {name for name in names if name in sample_types and is_text_type(sample_types[name])}
    columns = read_columns(source, [on, *names], {on, *text_columns})
    for name in names:
        if not has_text_form(columns[name].type):
            problem, expected = f"column {name!r}: {columns[name].type}", "text, numbers, times, or lists of these"
            remedy = f"Remove the column, for example with df.drop(columns=[{name!r}])."
            raise InvalidRequest(source.location, problem, expected=expected, remedy=remedy)
    keys, (rows, columns, unique_notes) = _sample_keys(entries, on), _unique_rows(source, columns, on, collect)
    matched_rows, table_notes = find_positions(keys, rows), [*source.notes, *default_key_notes, *unique_notes]
    if on not in sample_types and not np.any(matched_rows >= 0):
        matched_part = "file's path"
        if _has_paths(entries):
            matched_rows = _match_paths(entries, rows, source.location)
        if not np.any(matched_rows >= 0) and not may_repeat(stems := _strip_endings(rows)):
            matched_rows, matched_part = find_positions(keys, stems), "path without its extension"
        if on != source.key_column and np.any(matched_rows >= 0):
            table_notes += [f"column {on!r} contains file paths, not keys: rows were matched by the {matched_part}"]
    unmatched = np.flatnonzero(matched_rows < 0)
    if len(unmatched) == len(keys):
        side = "keys" if on not in sample_types else f"values of the samples' column {on!r}"
        expected = f"{side}, such as {show_keys(keys, np.flatnonzero(keys.lengths())[:1])}{_path_example(entries, on)}"
        raise _no_match_error(source.location, on, rows, keys, expected)
    used = np.zeros(len(rows) + 1, bool)  # the last element is for samples without a row (-1)
    used[matched_rows] = True
    unused = np.flatnonzero(~used[:-1])
    kinds = {name: column.type for name, column in columns.items()}
    entries, replaced = add_table_columns(entries, source, columns, matched_rows)
    if heavy := find_byte_columns(source.schema):
        table_notes.append(f"columns of bytes in {source.name} excluded: {format_list(heavy)}")
    thing = f"{'key' if collect else 'row'} of {source.name}"
    notes = (*table_notes, *_match_notes(source.name, thing, entries.keys, unmatched, rows, unused), *replaced)
    return JoinedSamples(entries, source.name, len(unmatched), len(unused), notes, source.classes, kinds)


def _unique_rows(
    source: Table, columns: dict[str, pa.Array], on: str, collect: Sequence[str]
) -> tuple[PackedStrings, dict[str, pa.Array], list[str]]:
    table = TableRows(source.location, columns, None)
    keys, names = _row_keys(table, on), [name for name in columns if name != on]
    if not collect:
        expected = f"one row for each value of column {on!r}"
        remedy = f"Collect the rows of each key into lists with {option_text('collect', ALL_COLUMNS)}."
        table.refuse_repeated_keys(keys, expected=expected, remedy=remedy)
        return keys, {name: columns[name] for name in names}, []
    if source.key_column:  # COCO
        problem, expected = f"the columns of {source.name} are already lists", "a table with one value per row"
        raise InvalidRequest(option_text("collect"), problem, expected=expected)
    groups = group_rows(keys.array())
    unique, collected = keys.take(groups.first), collect_rows(table, names, collect, groups)
    return unique, collected, [collected_note(len(keys), len(unique), source.name)]


def _has_paths(entries: SampleTable) -> bool:
    return entries.spans is None or all(file.form for file in entries.spans.files)  # shards have no `form`


def _path_example(entries: SampleTable, on: str) -> str:
    if not _has_paths(entries) or (entries.metadata is not None and on in entries.metadata.column_names):
        return ""
    file = int(np.argmax(entries.rows.kind != INLINE))
    return f", or paths of files, such as '{printable(entries.path(file))}'"


def add_table_columns(
    entries: SampleTable, source: Table, columns: dict[str, pa.Array], rows: NDArray[np.int64]
) -> tuple[SampleTable, tuple[str, ...]]:
    """Add columns of a table to the metadata of samples. Return the samples, and notes about replaced columns.

    `rows` contains the table row of each sample, or -1. `columns` is emptied, to free memory.
    """
    old_table, table, notes = entries.metadata, entries.metadata, list[str]()
    matched = pluralize(int(np.count_nonzero(rows >= 0)), "sample")
    for name in [*columns]:
        column, before = columns.pop(name), None
        if old_table is not None and name in old_table.column_names:
            before = metadata_column(old_table, name)
            if (unified := _unify_types(column, before)) is None:
                problem, remedy = f"column {name!r} holds {column.type}", "Convert or rename the column."
                expected = f"{before.type}, the type of the dataset's column of that name"
                raise InvalidRequest(source.location, problem, expected=expected, remedy=remedy)
            column, before = unified
        table = metadata_columns.with_column(table, name, _take_values(column, rows, before))
        if old_table is not None and name in old_table.column_names and not table[name].equals(old_table[name]):
            notes.append(f"column {name!r} replaced for {matched}")
    pa.default_memory_pool().release_unused()
    return replace(entries, metadata=table), tuple(notes)


def _match_paths(entries: SampleTable, rows: PackedStrings, where: str) -> NDArray[np.int64]:
    row_of_path = find_positions(list_source_paths(entries), rows)
    hits = np.flatnonzero(row_of_path >= 0)
    samples = np.asarray(entries.samples_of(hits))
    twice = hits[1:][samples[1:] == samples[:-1]]
    if len(twice):
        example = show_keys(rows, row_of_path[twice[0] - 1 : twice[0] + 1])
        problem = f"two rows for files of one sample, such as {example}"
        remedy = "Keep the row of one file of each sample."
        raise InvalidRequest(where, problem, expected="one row for each sample", remedy=remedy)
    row_of_sample = np.full(len(entries), -1, np.int64)
    row_of_sample[samples] = row_of_path[hits]
    return row_of_sample


def _strip_endings(names: PackedStrings) -> PackedStrings:
    folders = (name.rpartition(b"/") for _, chunk in names.chunks() for name in chunk)
    return PackedStrings.of(folder + slash + name.partition(b".")[0] for folder, slash, name in folders)


def _no_match_error(where: str, on: str, rows: PackedStrings, keys: PackedStrings, expected: str) -> InvalidRequest:
    problem = f"no row matches a sample: column {on!r} contains {show_keys(rows, np.arange(1))}"
    remedy = f"Choose another column with {option_text('on')}."
    if folder := _find_extra_folder(keys, rows):
        include = option_text("include", (f"{folder}**",))
        remedy = f"These paths start with {folder}: pack the folder that contains {folder}, with {include}."
    return InvalidRequest(where, problem, expected=expected, remedy=remedy)


def _find_extra_folder(keys: PackedStrings, rows: PackedStrings) -> str:
    if not len(rows):
        return ""
    path = _strip_endings(PackedStrings.of([rows[0]]))[0]
    for end in (end for end in range(1, len(path)) if path[end - 1 : end] == b"/"):
        if np.any(find_positions(keys, PackedStrings.of([path[end:]])) >= 0):
            return printable(path[:end])
    return ""


def _default_key_column(source: Table) -> str:
    columns = source.schema.names
    if _DEFAULT_KEY_COLUMN not in columns:
        remedy = f"Name the key column with {option_text('on', 'COLUMN')}."
        found = f"no column {_DEFAULT_KEY_COLUMN!r} among {format_list(columns, 100)}"
        raise InvalidRequest(source.location, found, expected="a key column", remedy=remedy)
    return _DEFAULT_KEY_COLUMN


def _check_columns(source: Table, on: str) -> list[str]:
    columns = source.schema.names
    check_column_names(source.location, columns)
    if on not in columns:
        raise missing_name_error("column", option_text("on"), on, columns)
    unread = {on, *find_byte_columns(source.schema)}
    names = [name for name in columns if name not in unread and not is_index_name(name)]
    check_sidecar_names(source.location, names, remedy="remove them from the table")
    if not names:
        expected = "columns to join, other than columns of bytes"
        raise InvalidRequest(source.location, f"no column except {on!r}", expected=expected)
    return names


def _row_keys(rows: TableRows, on: str) -> PackedStrings:
    column = rows.columns[on]
    if not len(column):
        raise InvalidRequest(rows.location, "no rows", expected="a row for each key")
    remedy = "Remove these rows from the table."
    no_key = f"column {on!r}: no key (empty, null or NaN)"
    rows.refuse(missing_positions(column), no_key, expected="a key in each row", remedy=remedy)
    if not is_key_type(column.type):
        found = f"column {on!r} (key) holds {column.type}"
        raise InvalidRequest(rows.location, found, expected="text or whole numbers")
    inexact = inexact_positions(column)
    rows.refuse(inexact, f"column {on!r}: a key is not a whole number", expected="text or whole numbers")
    rows.refuse(nul_positions(column), f"column {on!r}: a NUL in the text", expected="text without NUL")
    keys = _pack_keys(column)
    rows.refuse(np.flatnonzero(keys.lengths() == 0), no_key, expected="a key in each row", remedy=remedy)
    return keys


def _sample_keys(entries: SampleTable, on: str) -> PackedStrings:
    if entries.metadata is None or on not in entries.metadata.column_names:
        return entries.keys
    column = metadata_column(entries.metadata, on)
    if not is_key_type(column.type):
        problem = f"the samples' column {on!r} holds {column.type}"
        raise InvalidRequest(option_text("on"), problem, expected="a column of text or whole numbers")
    invalid = np.union1d(inexact_positions(column), nul_positions(column))
    if len(invalid):
        mask = np.zeros(len(column), bool)
        mask[invalid] = True
        column = pc.if_else(arrow.boolean_array(mask), pa.nulls(1, column.type)[0], column)
    return _pack_keys(column)


def _pack_keys(column: pa.Array) -> PackedStrings:
    join = partial(pc.binary_join_element_wise, null_handling="replace")
    chunks = [join(keys, _NUL_TEXT, _EMPTY_TEXT) for keys in iter_key_texts(column)]
    return PackedStrings.parse(b"".join(map(arrow.concat_values, chunks)))


def metadata_column(table: pa.Table, name: str) -> pa.Array:
    """Return a metadata column as one array of a plain type (see `to_plain`)."""
    return arrow.to_one_chunk(arrow.to_plain(table.column(name)))


def show_keys(keys: PackedStrings, positions: NDArray[np.int64]) -> str:
    """Return the keys at the first few `positions`, for messages."""
    first_keys = [keys[position][:_MAX_KEY_LETTERS] for position in positions[:_MAX_LISTED_KEYS].tolist()]
    return format_list([f"'{printable(key)}'" for key in first_keys]) or "none"


def _match_notes(
    name: str,
    thing: str,
    samples: PackedStrings,
    unmatched: NDArray[np.int64],
    rows: PackedStrings,
    unused: NDArray[np.int64],
) -> list[str]:
    notes = []
    if len(unmatched):
        have = "has" if len(unmatched) == 1 else "have"
        count = f"{len(unmatched):,} of {pluralize(len(samples), 'sample')}"
        notes.append(f"{count} {have} no row in {name}, such as {show_keys(samples, unmatched)}")
    if len(unused):
        match = "matches" if len(unused) == 1 else "match"
        notes.append(f"{pluralize(len(unused), thing)} {match} no sample, such as {show_keys(rows, unused)}")
    return notes


def _unify_types(*columns: pa.Array) -> list[pa.Array] | None:
    kinds = [column.type for column in columns]
    if any(map(pa.types.is_decimal, kinds)) and any(map(pa.types.is_floating, kinds)):
        return None  # no common type, because Arrow would round decimals to floats
    try:
        schemas = [pa.schema([pa.field("", kind)]) for kind in kinds]
        kind = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        return [pc.cast(column, kind) for column in columns]
    except MemoryError:
        raise
    except pa.ArrowException:  # no common type exists, or a number is out of range
        return None


def _take_values(column: pa.Array, sample_rows: NDArray[np.int64], before: pa.Array | None) -> pa.Array:
    # Many copies of a long text could exceed the 2 GiB limit of one Arrow array, so take values in chunks.
    chunks = []
    for chunk in chunk_slices(len(sample_rows)):
        rows = sample_rows[chunk]
        has_row = arrow.boolean_array(rows >= 0)
        values = column.take(pc.if_else(has_row, arrow.number_array(rows), _NULL_ROW))
        if before is not None:
            values = pc.if_else(has_row, values, before[chunk])
        chunks.append(values)
    return arrow.to_one_chunk(pa.chunked_array(chunks, column.type))
