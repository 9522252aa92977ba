"""New labels and metadata for samples that there are: a table's columns become metadata, and metadata become fields.

Each sample seeks its row by key. Samples keep their number and their order, no payload is read, and of five million
samples there is no Python object for each. A table that is itself the source of samples is `manifest`'s affair.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from keyword import iskeyword
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import Classes
from shardtool.entries.entries import Names
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.request.texts import BY_NAME, TextForm
from shardtool.select.fields import Field, paths_of, with_fields
from shardtool.table.columns import (
    Rows,
    broken_numbers,
    check_fields,
    check_labels,
    check_names,
    check_sidecar_names,
    heavy_columns,
    is_index,
    is_key,
    is_text,
    key_texts,
    may_repeat,
    no_such,
    places_among,
)
from shardtool.table.open import Table, open_table, read_columns
from shardtool.table.payloads import check_field_values, field_texts, field_type
from shardtool.table.values import (
    check_list_field,
    has_text,
    missing_places,
    nul_places,
    numbered,
)
from shardtool.values import INLINE, ValueType, chunks_of, counted, numbers_among
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries

_KEY = "key"  # the column that joins a table if `on` names none
_LETTERS = 120  # of a key in a message
_SHOWN = 3  # keys in a message
_EMPTY, _END = arrow.text(""), arrow.text("\0")
_NOWHERE = pa.nulls(1, pa.int64())[0]


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

    entries: Entries
    name: str
    unmatched: int
    unused: int
    notes: tuple[str, ...]
    classes: Mapping[str, list[str]]
    columns: Mapping[str, pa.DataType]


def join(entries: Entries, table: object, on: str, form: TextForm = BY_NAME) -> JoinedSamples:
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
    source, default_key = open_table(table, {on or _KEY}, form), list[str]()
    if not (on := on or source.on):
        on = _key_column(source)
        default_key = [f"joined by the column {on!r}: use {option('on', 'COLUMN')} for another column"]
    names = _check_columns(source, on)
    had = {} if entries.metadata is None else {one.name: one.type for one in entries.metadata.schema}
    texts = {name for name in names if name in had and is_text(had[name])}
    columns = read_columns(source, [on, *names], {on, *texts})
    for name in names:
        if not has_text(columns[name].type):
            problem, expected = f"column {name!r}: {columns[name].type}", "text, numbers, times, or lists of these"
            remedy = f"Leave it out: df.drop(columns=[{name!r}]) does."
            raise InvalidRequest(source.where, problem, expected=expected, remedy=remedy)
    rows, keys = _row_keys(Rows(source.where, columns, None), on), _sample_keys(entries, on)
    del columns[on]
    found, told = places_among(keys, rows), [*source.notes, *default_key]
    if on not in had and not np.any(found >= 0):
        whose = "file's path"
        if _has_paths(entries):
            found = _places_by_path(entries, rows, source.where)
        if not np.any(found >= 0) and not may_repeat(stems := _stems(rows)):
            found, whose = places_among(keys, stems), "key, with an ending"
        if on != source.on and np.any(found >= 0):
            told += [f"column {on!r} holds paths of files, not keys: samples have the row of their {whose}"]
    lone = np.flatnonzero(found < 0)
    if len(lone) == len(keys):
        side = "keys" if on not in had else f"values of the samples' column {on!r}"
        problem = f"no row matches a sample: column {on!r} holds {_shown(rows, np.arange(1))}"
        expected = f"{side}, such as {_shown(keys, np.flatnonzero(keys.lengths())[:1])}{_or_path(entries, on)}"
        raise InvalidRequest(source.where, problem, expected=expected, remedy=f"{option('on')} names another column.")
    used = np.zeros(len(rows) + 1, bool)  # and one for -1
    used[found] = True
    unused = np.flatnonzero(~used[:-1])
    kinds = {name: column.type for name, column in columns.items()}
    entries, replaced = with_columns(entries, source, columns, found)
    if heavy := heavy_columns(source.schema):
        told.append(f"columns of bytes in {source.name} left out: {listing(heavy)}")
    notes = (*told, *_notes(source.name, entries.keys, lone, rows, unused), *replaced)
    return JoinedSamples(entries, source.name, len(lone), len(unused), notes, source.classes, kinds)


def _has_paths(entries: Entries) -> bool:
    """Tell whether payloads are files, in folders or in an archive."""
    return entries.spans is None or all(file.form for file in entries.spans.files)


def _or_path(entries: Entries, on: str) -> str:
    """Return what a column may hold beside keys, for a message."""
    if not _has_paths(entries) or (entries.metadata is not None and on in entries.metadata.column_names):
        return ""
    file = int(np.argmax(entries.rows.kind != INLINE))
    return f", or paths of files, such as '{printable(entries.path(file))}'"


def with_columns(
    entries: Entries, source: Table, columns: dict[str, pa.Array], found: NDArray[np.int64]
) -> tuple[Entries, tuple[str, ...]]:
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
    matched = counted(int(np.count_nonzero(found >= 0)), "sample")
    for name in [*columns]:
        column, before = columns.pop(name), None
        if had is not None and name in had.column_names:
            before = _one(had, name)
            if (both := _united(column, before)) is None:
                problem, cure = f"column {name!r} holds {column.type}", "Give it that type, or another name."
                expected = f"{before.type}, as the dataset's column of that name does"
                raise InvalidRequest(source.where, problem, expected=expected, remedy=cure)
            column, before = both
        table = arrow.with_column(table, name, _spread(column, found, before))
        if had is not None and name in had.column_names and not table[name].equals(had[name]):
            notes.append(f"column {name!r} replaced for {matched}")
    pa.default_memory_pool().release_unused()
    return replace(entries, metadata=table), tuple(notes)


def _places_by_path(entries: Entries, rows: Names, where: str) -> NDArray[np.int64]:
    """Return the place among `rows` of the path of each sample's file; -1 where it has none.

    Raises:
        InvalidRequest: Two files of a sample have rows.
    """
    places = places_among(paths_of(entries), rows)
    hits = np.flatnonzero(places >= 0)
    owners = np.asarray(entries.owners(hits))
    twice = hits[1:][owners[1:] == owners[:-1]]
    if len(twice):
        problem = f"two rows for files of one sample, such as {_shown(rows, places[twice[0] - 1 : twice[0] + 1])}"
        remedy = "Leave the rows of all but one file of each sample out of the table."
        raise InvalidRequest(where, problem, expected="one row for each sample", remedy=remedy)
    found = np.full(len(entries), -1, np.int64)
    found[owners] = places[hits]
    return found


def _stems(names: Names) -> Names:
    """Return names of files without their endings, the keys that samples of such files have."""
    folders = (name.rpartition(b"/") for _, some in names.chunks() for name in some)
    return Names.of(above + slash + name.partition(b".")[0] for above, slash, name in folders)


def _key_column(source: Table) -> str:
    """Return the column of keys of a table if `on` names none."""
    columns = source.schema.names
    if _KEY not in columns:
        remedy = f"Name the column of keys with {option('on', 'COLUMN')}."
        raise InvalidRequest(
            source.where,
            f"no column {_KEY!r} among {listing(columns, 100)}",
            expected="a column of keys",
            remedy=remedy,
        )
    return _KEY


def _check_columns(source: Table, on: str) -> list[str]:
    """Return the columns to be joined; what is wrong with their names is said before a value is read."""
    columns = source.schema.names
    check_names(source.where, columns)
    if on not in columns:
        raise no_such("column", option("on"), on, columns)
    unread = {on, *heavy_columns(source.schema)}
    names = [name for name in columns if name not in unread and not is_index(name)]
    check_sidecar_names(source.where, names, remedy="leave them out of the table")
    if not names:
        expected = "columns to be joined, which hold no bytes"
        raise InvalidRequest(source.where, f"no column but {on!r}", expected=expected)
    return names


def _row_keys(rows: Rows, on: str) -> Names:
    """Return the keys of a table's rows.

    Raises:
        InvalidRequest: A row without one, or two rows with the same.
    """
    column = rows.columns[on]
    if not len(column):
        raise InvalidRequest(rows.where, "no rows", expected="a row for each key")
    remedy = "Leave such rows out of the table."
    none = f"column {on!r}: no key (empty, null or NaN)"
    rows.refuse(missing_places(column), none, expected="a key in each row", remedy=remedy)
    if not is_key(column.type):
        raise InvalidRequest(rows.where, f"column {on!r} (key) holds {column.type}", expected="text or whole numbers")
    broken = broken_numbers(column)
    rows.refuse(broken, f"column {on!r}: a key that is no whole number", expected="text or whole numbers")
    rows.refuse(nul_places(column), f"column {on!r}: a NUL in the text", expected="text without")
    found = _names(column)
    rows.refuse(np.flatnonzero(found.lengths() == 0), none, expected="a key in each row", remedy=remedy)
    expected = f"one row for each value of column {on!r}"
    rows.refuse_repeated(found, expected=expected, remedy="df.drop_duplicates leaves one of each.")
    return found


def _sample_keys(entries: Entries, on: str) -> Names:
    """Return what the rows' keys are compared with; nothing where it can be none.

    Raises:
        InvalidRequest: The dataset's column holds no keys.
    """
    if entries.metadata is None or on not in entries.metadata.column_names:
        return entries.keys
    column = _one(entries.metadata, on)
    if not is_key(column.type):
        found = f"the samples' column {on!r} holds {column.type}"
        raise InvalidRequest(option("on"), found, expected="one of text or whole numbers")
    never = np.union1d(broken_numbers(column), nul_places(column))
    if len(never):
        mask = np.zeros(len(column), bool)
        mask[never] = True
        column = pc.if_else(arrow.truths(mask), pa.nulls(1, column.type)[0], column)
    return _names(column)


def _names(column: pa.Array) -> Names:
    """Return the keys that values are, nothing for a null."""
    ended = (pc.binary_join_element_wise(keys, _END, _EMPTY, null_handling="replace") for keys in key_texts(column))
    return Names.parse(b"".join([bytes(arrow.payload(keys)) for keys in ended]))


def _one(table: pa.Table, name: str) -> pa.Array:
    return arrow.one_chunk(arrow.plain(table.column(name)))


def _shown(keys: Names, at: NDArray[np.int64]) -> str:
    """Return the first of some keys, and of those that are far too long the start."""
    return listing([f"'{printable(keys[place][:_LETTERS])}'" for place in at[:_SHOWN].tolist()]) or "none"


def _notes(name: str, samples: Names, lone: NDArray[np.int64], rows: Names, unused: NDArray[np.int64]) -> list[str]:
    """Return what people should know of samples without a row, and of rows without a sample."""
    notes = []
    if len(lone):
        have = "has" if len(lone) == 1 else "have"
        of = f"{len(lone):,} of {counted(len(samples), 'sample')}"
        notes.append(f"{of} {have} no row in {name}, such as {_shown(samples, lone)}")
    if len(unused):
        match = "matches" if len(unused) == 1 else "match"
        notes.append(f"{counted(len(unused), f'row of {name}')} {match} no sample, such as {_shown(rows, unused)}")
    return notes


def _united(*columns: pa.Array) -> list[pa.Array] | None:
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


def _spread(column: pa.Array, found: NDArray[np.int64], before: pa.Array | None) -> pa.Array:
    """Return the value of each sample's row; without a row, the one from before, or null.

    Some samples at a time, so that one row's text may be that of a million samples.
    """
    chunks = []
    for some in chunks_of(len(found)):
        rows = found[some]
        known = arrow.truths(rows >= 0)
        values = column.take(pc.if_else(known, arrow.number_array(rows), _NOWHERE))
        if before is not None:
            values = pc.if_else(known, values, before[some])
        chunks.append(values)
    return arrow.one_chunk(pa.chunked_array(chunks, column.type))


def set_fields(
    entries: Entries,
    fields: tuple[tuple[str, str], ...],
    classes: Sequence[str],
    known: Classes | None = None,
    names: Mapping[str, list[str]] = MappingProxyType({}),
    *,
    may_lack: bool = False,
) -> tuple[Entries, tuple[str, ...]]:
    """Return the samples with values of metadata as fields, in place of fields of these names, and notes.

    Where the value is null, a sample keeps the payload that it has; but not where that, or the value, is a number or a
    label: of these, all samples have one, and of one kind.

    Args:
        entries: The samples.
        fields: (field, column).
        classes: Those of the fields whose values are numbered, in the order of their bytes.
        known: The numbers that classes have already.
        names: Of columns of class numbers, or of lists of these: the names of classes.
        may_lack: Whether a sample without a value lacks the field; otherwise that is an error.

    Raises:
        InvalidRequest: A column that is not there, or holds what cannot be a field.
    """
    check_fields(option("values"), [name for name, _ in fields])
    check_labels(classes, fields)
    made, notes = [], list[str]()
    for name, column in fields:
        had = _samples_with(entries, name)
        labels = (known or Classes("", {}, grows=True)) if name in classes else None
        made.append(_field(entries, (name, column), had, labels, names.get(column), may_lack=may_lack))
        notes += _notes_of(made[-1], column, int(np.count_nonzero(had)))
    return with_fields(entries, made), tuple(notes)


def _field(
    entries: Entries,
    pair: tuple[str, str],
    had: NDArray[np.bool_],
    known: Classes | None,
    called: list[str] | None,
    *,
    may_lack: bool,
) -> Field:
    """Return the field that a column is.

    Args:
        entries: The samples.
        pair: The field, and the column.
        had: Which samples have a field of its name.
        known: The numbers that classes have already, where the values are labels; None: they are not.
        called: The names of classes, where the values are their numbers.
        may_lack: Whether a sample without a value lacks the field.
    """
    (name, column), label = pair, known is not None
    values = _metadata(entries, name, column, label=label)
    if called is not None:
        check_list_field(name, column, values.type)
    check_field_values(name, column, values, called, partial(_refuse, entries))
    kind: ValueType | None = "int64" if label else field_type(name, values.type)
    number = numbers_among({} if kind is None else {name: kind})
    missing = missing_places(values)
    alike = bool(number) or name in entries.values.inline or name in entries.values.classes
    expected = "a value for each sample" + ("" if alike else f" that has no field {name!r}")
    query = f"{column if column.isidentifier() and not iskeyword(column) else f'`{column}`'}.notna()"
    found, remedy = f"column {column!r}: no value (null or NaN)", f'{option("where")} "{query}" leaves them out.'
    if not may_lack or len(missing) == len(values):
        _refuse(entries, missing if alike else missing[~had[missing]], found, expected, remedy)
    elif len(missing):
        values = values.fill_null(values.drop_null()[0])  # the samples that lack the field ignore it
    labels = called
    if label and called is None:
        values, labels = numbered(values, name, known)
    elif label:
        values = values.cast(pa.int64())
    given = np.ones(len(entries), bool)
    given[missing] = False
    return Field(name, field_texts(name, values), given, kind, labels, values if number else None)


def _metadata(entries: Entries, name: str, column: str, *, label: bool) -> pa.Array:
    """Return a column of metadata as it is to become a field; some values may be null."""
    if entries.metadata is None:
        remedy = f"{option('join')} adds a table's, {option('columns_from')} those of JSON fields."
        raise InvalidRequest(option("values"), f"no column {column!r}, nor any other", remedy=remedy)
    if column not in entries.metadata.column_names:
        raise no_such("column", option("values"), column, entries.metadata.column_names)
    values = _one(entries.metadata, column)
    if not has_text(values.type) or (label and pa.types.is_nested(values.type)):
        found = f"column {column!r} ({'labels' if label else f'field {name}'}) holds {values.type}"
        raise InvalidRequest(option("values"), found, expected="text or numbers")
    return values


def _refuse(entries: Entries, samples: NDArray[np.int64], found: str, expected: str, remedy: str = "") -> None:
    """Raise for some samples, where there are any."""
    if len(samples):
        found = f"{found} in {counted(len(samples), 'sample')}, such as {_shown(entries.keys, samples)}"
        raise InvalidRequest(option("values"), found, expected=expected, remedy=remedy)


def _samples_with(entries: Entries, name: str) -> NDArray[np.bool_]:
    """Return bool[samples]: which have a field."""
    found = np.zeros(len(entries), bool)
    if name in entries.fields:
        rows = np.flatnonzero(entries.rows.code == entries.fields.index(name))
        found[entries.owners(rows)] = True
    return found


def _notes_of(field: Field, column: str, had: int) -> Iterator[str]:
    """Yield what people should know of a field that `had` samples had before; one that is only added was asked for."""
    kept = int(np.count_nonzero(~field.given))
    done = [f"replaced in {counted(had - kept, 'sample')}"] if had > kept else []
    if len(field.given) > had:
        done.append(f"added to {counted(len(field.given) - had, 'sample')}")
    if kept:
        done.append(f"kept in {counted(kept, 'sample')} where that is null")
    if had or kept:
        yield f"field {field.name!r} of column {column!r}: {', '.join(done)}"
