"""Make fields of metadata columns (`--values`), with numbered class labels where requested."""

from __future__ import annotations

from functools import partial
from keyword import iskeyword
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries.classes import Classes
from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.select.add_fields import NewField, add_fields
from shardtool.select.join import metadata_column, show_keys
from shardtool.table.columns import (
    check_field_names,
    check_labels,
    missing_name_error,
)
from shardtool.table.payload_values import check_list_field, missing_positions, number_labels
from shardtool.table.payloads import check_field_values, field_texts, field_type
from shardtool.table.render import has_text_form
from shardtool.units import pluralize
from shardtool.values import ValueType, number_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


def set_value_fields(
    entries: SampleTable,
    fields: tuple[tuple[str, str], ...],
    classes: Sequence[str],
    known: Classes | None = None,
    names: Mapping[str, list[str]] = MappingProxyType({}),
    *,
    may_lack: bool = False,
) -> tuple[SampleTable, tuple[str, ...]]:
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
    check_field_names(option_text("values"), [name for name, _ in fields])
    check_labels(classes, fields)
    made, notes = [], list[str]()
    for name, column in fields:
        had = _samples_with(entries, name)
        labels = (known or Classes("", {}, grows=True)) if name in classes else None
        made.append(_make_field(entries, (name, column), had, labels, names.get(column), may_lack=may_lack))
        notes += _field_notes(made[-1], column, int(np.count_nonzero(had)))
    return add_fields(entries, made), tuple(notes)


def _make_field(
    entries: SampleTable,
    pair: tuple[str, str],
    had: NDArray[np.bool_],
    known: Classes | None,
    called: list[str] | None,
    *,
    may_lack: bool,
) -> NewField:
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
    values = _value_column(entries, name, column, label=label)
    if called is not None:
        check_list_field(name, column, values.type)
    check_field_values(name, column, values, called, partial(_refuse_samples, entries))
    kind: ValueType | None = "int64" if label else field_type(name, values.type)
    number = number_fields({} if kind is None else {name: kind})
    missing = missing_positions(values)
    alike = bool(number) or name in entries.values.inline or name in entries.values.classes
    expected = "a value for each sample" + ("" if alike else f" that has no field {name!r}")
    query = f"{column if column.isidentifier() and not iskeyword(column) else f'`{column}`'}.notna()"
    found, remedy = f"column {column!r}: no value (null or NaN)", f'{option_text("where")} "{query}" leaves them out.'
    if not may_lack or len(missing) == len(values):
        _refuse_samples(entries, missing if alike else missing[~had[missing]], found, expected, remedy)
    elif len(missing):
        values = values.fill_null(values.drop_null()[0])  # the samples that lack the field ignore it
    labels = called
    if label and called is None:
        values, labels = number_labels(values, name, known)
    elif label:
        values = values.cast(pa.int64())
    given = np.ones(len(entries), bool)
    given[missing] = False
    return NewField(name, field_texts(name, values), given, kind, labels, values if number else None)


def _value_column(entries: SampleTable, name: str, column: str, *, label: bool) -> pa.Array:
    """Return a column of metadata as it is to become a field; some values may be null."""
    if entries.metadata is None:
        remedy = f"{option_text('join')} adds a table's, {option_text('columns_from')} those of JSON fields."
        raise InvalidRequest(option_text("values"), f"no column {column!r}, nor any other", remedy=remedy)
    if column not in entries.metadata.column_names:
        raise missing_name_error("column", option_text("values"), column, entries.metadata.column_names)
    values = metadata_column(entries.metadata, column)
    if not has_text_form(values.type) or (label and pa.types.is_nested(values.type)):
        found = f"column {column!r} ({'labels' if label else f'field {name}'}) holds {values.type}"
        raise InvalidRequest(option_text("values"), found, expected="text or numbers")
    return values


def _refuse_samples(
    entries: SampleTable, samples: NDArray[np.int64], found: str, expected: str, remedy: str = ""
) -> None:
    """Raise for some samples, where there are any."""
    if len(samples):
        found = f"{found} in {pluralize(len(samples), 'sample')}, such as {show_keys(entries.keys, samples)}"
        raise InvalidRequest(option_text("values"), found, expected=expected, remedy=remedy)


def _samples_with(entries: SampleTable, name: str) -> NDArray[np.bool_]:
    """Return bool[samples]: which have a field."""
    found = np.zeros(len(entries), bool)
    if name in entries.fields:
        rows = np.flatnonzero(entries.rows.code == entries.fields.index(name))
        found[entries.owners(rows)] = True
    return found


def _field_notes(field: NewField, column: str, had: int) -> Iterator[str]:
    """Yield what people should know of a field that `had` samples had before; one that is only added was asked for."""
    kept = int(np.count_nonzero(~field.given))
    done = [f"replaced in {pluralize(had - kept, 'sample')}"] if had > kept else []
    if len(field.given) > had:
        done.append(f"added to {pluralize(len(field.given) - had, 'sample')}")
    if kept:
        done.append(f"kept in {pluralize(kept, 'sample')} where that is null")
    if had or kept:
        yield f"field {field.name!r} of column {column!r}: {', '.join(done)}"
