"""Join the columns of a table to samples, as metadata.

Each sample looks up its row by key. The number and order of samples do not change, and no payload is read. Five
million
samples need no Python object each.
"""

from __future__ import annotations

from dataclasses import replace
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
from shardtool.table.payload_values import missing_positions, nul_positions
from shardtool.table.render import has_text_form
from shardtool.table.rows import TableRows
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.table.base import Table


_DEFAULT_KEY_COLUMN = "key"  # the column that joins a table if `on` names none


_MAX_KEY_LETTERS = 120  # of a key in a message


_MAX_LISTED_KEYS = 3  # keys in a message


_EMPTY_TEXT, _NUL_TEXT = arrow.text_scalar(""), arrow.text_scalar("\0")


_NULL_ROW = pa.nulls(1, pa.int64())[0]


class JoinedSamples(NamedTuple):
    """Samples with the columns of a table.

    Attributes:
        entries: The samples, in their order.
        name: The table's name, without its folder.
        unmatched: How many samples have no row.
        unused: How many rows have no sample.
        notes: What people should know of these.
        classes: Of columns of class numbers, or of lists of these: the names of classes.
        columns: The joined columns, and their types.
    """

    entries: SampleTable
    name: str
    unmatched: int
    unused: int
    notes: tuple[str, ...]
    classes: Mapping[str, list[str]]
    columns: Mapping[str, pa.DataType]


def join_table(entries: SampleTable, table: object, on: str, form: DelimitedFormat = DEFAULT_FORMAT) -> JoinedSamples:
    """Return the samples with the columns of a table as metadata.

    A sample's row is the one with its key, or, where the samples have a column of metadata called `on`, with what that
    says of the sample. Where no key matches, it is, of files, the one with the path of a file of the sample, and else
    the one with a name that is the key up to its first dot. A column that the samples have already is replaced for
    those that have a row.

    Args:
        entries: The samples.
        table: See `open_table`.
        on: The table's column of keys; empty: the column that its format defines, or `key`.
        form: How the table is written, where its name does not say it.

    Raises:
        InvalidRequest: The table cannot be read, its keys are no keys, no row matches, or a column cannot be joined.
    """
    source, default_key = open_table(table, {on or _DEFAULT_KEY_COLUMN}, form), list[str]()
    if not (on := on or source.on):
        on = _default_key_column(source)
        default_key = [f"joined by the column {on!r}: use {option_text('on', 'COLUMN')} for another column"]
    names = _check_columns(source, on)
    had = {} if entries.metadata is None else {one.name: one.type for one in entries.metadata.schema}
    texts = {name for name in names if name in had and is_text_type(had[name])}
    columns = read_columns(source, [on, *names], {on, *texts})
    for name in names:
        if not has_text_form(columns[name].type):
            problem, expected = f"column {name!r}: {columns[name].type}", "text, numbers, times, or lists of these"
            remedy = f"Leave it out: df.drop(columns=[{name!r}]) does."
            raise InvalidRequest(source.where, problem, expected=expected, remedy=remedy)
    rows, keys = _row_keys(TableRows(source.where, columns, None), on), _sample_keys(entries, on)
    del columns[on]
    found, told = find_positions(keys, rows), [*source.notes, *default_key]
    if on not in had and not np.any(found >= 0):
        whose = "file's path"
        if _has_paths(entries):
            found = _match_paths(entries, rows, source.where)
        if not np.any(found >= 0) and not may_repeat(stems := _strip_endings(rows)):
            found, whose = find_positions(keys, stems), "key, with an ending"
        if on != source.on and np.any(found >= 0):
            told += [f"column {on!r} holds paths of files, not keys: samples have the row of their {whose}"]
    lone = np.flatnonzero(found < 0)
    if len(lone) == len(keys):
        side = "keys" if on not in had else f"values of the samples' column {on!r}"
        problem = f"no row matches a sample: column {on!r} holds {show_keys(rows, np.arange(1))}"
        expected = f"{side}, such as {show_keys(keys, np.flatnonzero(keys.lengths())[:1])}{_path_example(entries, on)}"
        raise InvalidRequest(
            source.where, problem, expected=expected, remedy=f"{option_text('on')} names another column."
        )
    used = np.zeros(len(rows) + 1, bool)  # and one for -1
    used[found] = True
    unused = np.flatnonzero(~used[:-1])
    kinds = {name: column.type for name, column in columns.items()}
    entries, replaced = add_table_columns(entries, source, columns, found)
    if heavy := find_byte_columns(source.schema):
        told.append(f"columns of bytes in {source.name} left out: {format_list(heavy)}")
    notes = (*told, *_match_notes(source.name, entries.keys, lone, rows, unused), *replaced)
    return JoinedSamples(entries, source.name, len(lone), len(unused), notes, source.classes, kinds)


def _has_paths(entries: SampleTable) -> bool:
    """Tell whether payloads are files, in folders or in an archive."""
    return entries.spans is None or all(file.form for file in entries.spans.files)


def _path_example(entries: SampleTable, on: str) -> str:
    """Return what a column may hold beside keys, for a message."""
    if not _has_paths(entries) or (entries.metadata is not None and on in entries.metadata.column_names):
        return ""
    file = int(np.argmax(entries.rows.kind != INLINE))
    return f", or paths of files, such as '{printable(entries.path(file))}'"


def add_table_columns(
    entries: SampleTable, source: Table, columns: dict[str, pa.Array], found: NDArray[np.int64]
) -> tuple[SampleTable, tuple[str, ...]]:
    """Return the samples with columns of a table as metadata, and what people should know of those replaced.

    Args:
        entries: The samples.
        source: The table, for messages.
        columns: The columns by name, one chunk each; none is left.
        found: int64[samples], the row of each; -1 where it has none.

    Raises:
        InvalidRequest: The samples have a column of that name, and another type.
    """
    had, table, notes = entries.metadata, entries.metadata, list[str]()
    matched = pluralize(int(np.count_nonzero(found >= 0)), "sample")
    for name in [*columns]:
        column, before = columns.pop(name), None
        if had is not None and name in had.column_names:
            before = metadata_column(had, name)
            if (both := _unify_types(column, before)) is None:
                problem, cure = f"column {name!r} holds {column.type}", "Give it that type, or another name."
                expected = f"{before.type}, as the dataset's column of that name does"
                raise InvalidRequest(source.where, problem, expected=expected, remedy=cure)
            column, before = both
        table = metadata_columns.with_column(table, name, _take_values(column, found, before))
        if had is not None and name in had.column_names and not table[name].equals(had[name]):
            notes.append(f"column {name!r} replaced for {matched}")
    pa.default_memory_pool().release_unused()
    return replace(entries, metadata=table), tuple(notes)


def _match_paths(entries: SampleTable, rows: PackedStrings, where: str) -> NDArray[np.int64]:
    """Return the place among `rows` of the path of each sample's file; -1 where it has none.

    Raises:
        InvalidRequest: Two files of a sample have rows.
    """
    places = find_positions(list_source_paths(entries), rows)
    hits = np.flatnonzero(places >= 0)
    owners = np.asarray(entries.owners(hits))
    twice = hits[1:][owners[1:] == owners[:-1]]
    if len(twice):
        problem = f"two rows for files of one sample, such as {show_keys(rows, places[twice[0] - 1 : twice[0] + 1])}"
        remedy = "Leave the rows of all but one file of each sample out of the table."
        raise InvalidRequest(where, problem, expected="one row for each sample", remedy=remedy)
    found = np.full(len(entries), -1, np.int64)
    found[owners] = places[hits]
    return found


def _strip_endings(names: PackedStrings) -> PackedStrings:
    """Return names of files without their endings, the keys that samples of such files have."""
    folders = (name.rpartition(b"/") for _, some in names.chunks() for name in some)
    return PackedStrings.of(above + slash + name.partition(b".")[0] for above, slash, name in folders)


def _default_key_column(source: Table) -> str:
    """Return the column of keys of a table if `on` names none."""
    columns = source.schema.names
    if _DEFAULT_KEY_COLUMN not in columns:
        remedy = f"Name the column of keys with {option_text('on', 'COLUMN')}."
        raise InvalidRequest(
            source.where,
            f"no column {_DEFAULT_KEY_COLUMN!r} among {format_list(columns, 100)}",
            expected="a column of keys",
            remedy=remedy,
        )
    return _DEFAULT_KEY_COLUMN


def _check_columns(source: Table, on: str) -> list[str]:
    """Return the columns to be joined; what is wrong with their names is said before a value is read."""
    columns = source.schema.names
    check_column_names(source.where, columns)
    if on not in columns:
        raise missing_name_error("column", option_text("on"), on, columns)
    unread = {on, *find_byte_columns(source.schema)}
    names = [name for name in columns if name not in unread and not is_index_name(name)]
    check_sidecar_names(source.where, names, remedy="leave them out of the table")
    if not names:
        expected = "columns to be joined, which hold no bytes"
        raise InvalidRequest(source.where, f"no column but {on!r}", expected=expected)
    return names


def _row_keys(rows: TableRows, on: str) -> PackedStrings:
    """Return the keys of a table's rows.

    Raises:
        InvalidRequest: A row without one, or two rows with the same.
    """
    column = rows.columns[on]
    if not len(column):
        raise InvalidRequest(rows.where, "no rows", expected="a row for each key")
    remedy = "Leave such rows out of the table."
    none = f"column {on!r}: no key (empty, null or NaN)"
    rows.refuse(missing_positions(column), none, expected="a key in each row", remedy=remedy)
    if not is_key_type(column.type):
        raise InvalidRequest(rows.where, f"column {on!r} (key) holds {column.type}", expected="text or whole numbers")
    broken = inexact_positions(column)
    rows.refuse(broken, f"column {on!r}: a key that is no whole number", expected="text or whole numbers")
    rows.refuse(nul_positions(column), f"column {on!r}: a NUL in the text", expected="text without")
    found = _key_names(column)
    rows.refuse(np.flatnonzero(found.lengths() == 0), none, expected="a key in each row", remedy=remedy)
    expected = f"one row for each value of column {on!r}"
    rows.refuse_repeated_keys(found, expected=expected, remedy="df.drop_duplicates leaves one of each.")
    return found


def _sample_keys(entries: SampleTable, on: str) -> PackedStrings:
    """Return what the rows' keys are compared with; nothing where it can be none.

    Raises:
        InvalidRequest: The dataset's column holds no keys.
    """
    if entries.metadata is None or on not in entries.metadata.column_names:
        return entries.keys
    column = metadata_column(entries.metadata, on)
    if not is_key_type(column.type):
        found = f"the samples' column {on!r} holds {column.type}"
        raise InvalidRequest(option_text("on"), found, expected="one of text or whole numbers")
    never = np.union1d(inexact_positions(column), nul_positions(column))
    if len(never):
        mask = np.zeros(len(column), bool)
        mask[never] = True
        column = pc.if_else(arrow.boolean_array(mask), pa.nulls(1, column.type)[0], column)
    return _key_names(column)


def _key_names(column: pa.Array) -> PackedStrings:
    """Return the keys that values are, nothing for a null."""
    ended = (
        pc.binary_join_element_wise(keys, _NUL_TEXT, _EMPTY_TEXT, null_handling="replace")
        for keys in iter_key_texts(column)
    )
    return PackedStrings.parse(b"".join([bytes(arrow.concat_values(keys)) for keys in ended]))


def metadata_column(table: pa.Table, name: str) -> pa.Array:
    return arrow.to_one_chunk(arrow.to_plain(table.column(name)))


def show_keys(keys: PackedStrings, at: NDArray[np.int64]) -> str:
    """Return the first of some keys, and of those that are far too long the start."""
    return (
        format_list([f"'{printable(keys[place][:_MAX_KEY_LETTERS])}'" for place in at[:_MAX_LISTED_KEYS].tolist()])
        or "none"
    )


def _match_notes(
    name: str, samples: PackedStrings, lone: NDArray[np.int64], rows: PackedStrings, unused: NDArray[np.int64]
) -> list[str]:
    """Return what people should know of samples without a row, and of rows without a sample."""
    notes = []
    if len(lone):
        have = "has" if len(lone) == 1 else "have"
        of = f"{len(lone):,} of {pluralize(len(samples), 'sample')}"
        notes.append(f"{of} {have} no row in {name}, such as {show_keys(samples, lone)}")
    if len(unused):
        match = "matches" if len(unused) == 1 else "match"
        notes.append(f"{pluralize(len(unused), f'row of {name}')} {match} no sample, such as {show_keys(rows, unused)}")
    return notes


def _unify_types(*columns: pa.Array) -> list[pa.Array] | None:
    """Return two columns in the type that holds the values of both; None: none does."""
    kinds = [column.type for column in columns]
    if any(map(pa.types.is_decimal, kinds)) and any(map(pa.types.is_floating, kinds)):
        return None  # Arrow would round the decimals
    try:
        schemas = [pa.schema([pa.field("", kind)]) for kind in kinds]
        kind = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
        return [pc.cast(column, kind) for column in columns]
    except MemoryError:
        raise
    except pa.ArrowException:  # a number that the other type has not, for example
        return None


def _take_values(column: pa.Array, found: NDArray[np.int64], before: pa.Array | None) -> pa.Array:
    """Return the value of each sample's row; without a row, the one from before, or null.

    Some samples at a time, so that one row's text may be that of a million samples.
    """
    chunks = []
    for some in chunk_slices(len(found)):
        rows = found[some]
        known = arrow.boolean_array(rows >= 0)
        values = column.take(pc.if_else(known, arrow.number_array(rows), _NULL_ROW))
        if before is not None:
            values = pc.if_else(known, values, before[some])
        chunks.append(values)
    return arrow.to_one_chunk(pa.chunked_array(chunks, column.type))
