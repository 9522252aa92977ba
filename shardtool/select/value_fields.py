"""Create fields from metadata columns, and replace labels by class numbers."""

from __future__ import annotations

from dataclasses import replace
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
from shardtool.select.field_rows import field_codes
from shardtool.select.join import metadata_column, show_keys
from shardtool.table.columns import check_direction, check_field_names, check_labels, missing_name_error
from shardtool.table.payloads import (
    check_field_values,
    check_list_field,
    field_texts,
    field_type,
    missing_positions,
    number_labels,
)
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
    optional: bool = False,
) -> tuple[SampleTable, tuple[str, ...]]:
    """Add fields with the values of metadata columns. Return the samples and notes.

    A new field replaces an existing field of the same name. If the value of a sample is null, the sample keeps its
    existing payload. A null is an error in these cases:

    - The new field contains numbers or class numbers.
    - The existing field contains INLINE values or class numbers.
    - The sample has no existing payload.

    With `optional`, the sample instead has no such field in the result, unless all values are null.

    Args:
        fields: Pairs of a field and its column.
        classes: The fields whose values become class numbers.
        known: Existing class names. By default, classes are numbered in the byte order of their names.
        names: Class names by column, for columns that already contain class numbers.
    """
    check_field_names(option_text("field"), [name for name, _ in fields])
    check_labels(classes, fields)
    new_fields, notes = [], list[str]()
    for name, column in fields:
        has_field = _samples_with(entries, name)
        labels = (known or Classes("", {}, allows_new=True)) if name in classes else None
        field = _make_field(entries, (name, column), has_field, labels, names.get(column), optional=optional)
        new_fields.append(field)
        if optional and _needs_values(entries, name, is_number=field.column is not None):
            is_field = field_codes(entries, ("", name)) == 1
            is_kept = ~is_field | np.repeat(field.has_value, entries.counts())
            first = np.append(0, np.cumsum(is_kept))[entries.first_rows]
            entries = replace(entries.take_rows(np.flatnonzero(is_kept)), first_rows=first)
        notes += _field_notes(field, column, int(np.count_nonzero(has_field)))
    return add_fields(entries, new_fields), tuple(notes)


def _make_field(
    entries: SampleTable,
    pair: tuple[str, str],
    has_field: NDArray[np.bool_],
    known: Classes | None,
    class_names: list[str] | None,
    *,
    optional: bool,
) -> NewField:
    name, column = pair
    label = known is not None
    values = _value_column(entries, name, column, label=label)
    if class_names is not None:
        check_list_field(name, column, values.type)
    check_field_values(name, column, values, class_names, partial(_refuse_samples, entries))
    kind: ValueType | None = "int64" if label else field_type(name, values.type)
    number = number_fields({} if kind is None else {name: kind})
    missing = missing_positions(values)
    needs_all_values = _needs_values(entries, name, is_number=bool(number))
    expected = "a value for each sample" + ("" if needs_all_values else f" that has no field {name!r}")
    query = f"{column if column.isidentifier() and not iskeyword(column) else f'`{column}`'}.notna()"
    found, remedy = f"column {column!r}: no value (null or NaN)", f'Exclude them with {option_text("where")} "{query}".'
    if not optional or len(missing) == len(values):
        _refuse_samples(entries, missing if needs_all_values else missing[~has_field[missing]], found, expected, remedy)
    elif len(missing):
        # Any value can replace null, because these samples do not get the field.
        values = values.fill_null(values.drop_null()[0])
    labels = class_names
    if label and class_names is None:
        values, labels = number_labels(values, name, known)
    elif label:
        values = values.cast(pa.int64())
    has_value = np.ones(len(entries), bool)
    has_value[missing] = False
    return NewField(name, field_texts(name, values), has_value, kind, labels, values if number else None)


def _needs_values(entries: SampleTable, name: str, *, is_number: bool) -> bool:
    return is_number or name in entries.values.inline or name in entries.values.classes


def _value_column(entries: SampleTable, name: str, column: str, *, label: bool) -> pa.Array:
    if entries.metadata is None:
        join, columns_from = option_text("join"), option_text("columns_from")
        remedy = f"Add columns from a table with {join}, or from JSON fields with {columns_from}."
        raise InvalidRequest(option_text("field"), f"no column {column!r}, and no others", remedy=remedy)
    if column not in entries.metadata.column_names:
        error = missing_name_error("column", option_text("field"), column, entries.metadata.column_names)
        if not error.remedy:
            check_direction("field", [(name, column)], entries.metadata.column_names)
        if column in entries.fields:
            error.remedy = f"To rename the field {column!r}, use {option_text('rename_fields', {name: column})}."
        raise error
    values = metadata_column(entries.metadata, column)
    if not has_text_form(values.type) or (label and pa.types.is_nested(values.type)):
        found = f"column {column!r} ({'labels' if label else f'field {name}'}) holds {values.type}"
        raise InvalidRequest(option_text("field"), found, expected="text or numbers")
    return values


def _refuse_samples(
    entries: SampleTable, samples: NDArray[np.int64], found: str, expected: str, remedy: str = ""
) -> None:
    if len(samples):
        found = f"{found} in {pluralize(len(samples), 'sample')}, such as {show_keys(entries.keys, samples)}"
        raise InvalidRequest(option_text("field"), found, expected=expected, remedy=remedy)


def _samples_with(entries: SampleTable, name: str) -> NDArray[np.bool_]:
    has_field = np.zeros(len(entries), bool)
    if name in entries.fields:
        rows = np.flatnonzero(entries.rows.code == entries.fields.index(name))
        has_field[entries.samples_of(rows)] = True
    return has_field


def _field_notes(field: NewField, column: str, old_count: int) -> Iterator[str]:
    kept_count = int(np.count_nonzero(~field.has_value))
    changes = [f"replaced in {pluralize(old_count - kept_count, 'sample')}"] if old_count > kept_count else []
    if len(field.has_value) > old_count:
        changes.append(f"added to {pluralize(len(field.has_value) - old_count, 'sample')}")
    if kept_count:
        changes.append(f"kept in {pluralize(kept_count, 'sample')} where the column is null")
    if old_count or kept_count:
        yield f"field {field.name!r} from column {column!r}: {', '.join(changes)}"
