"""Collect the metadata of samples in Arrow columns. A column gets a wider type if later samples require it."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest
from shardtool.format.tfrecord_write import INT64_LIMIT
from shardtool.writer.sample_encoder import make_refusal

if TYPE_CHECKING:
    Row = Mapping[str, object]


_FAMILY_BY_TYPE: dict[type, str] = {
    bool: "booleans", int: "numbers", float: "numbers", str: "text", list: "lists", tuple: "lists", dict: "objects",
    datetime: "timestamps", date: "dates", time: "times", timedelta: "durations", Decimal: "decimals",
}  # fmt: skip


_ARROW_FAMILIES = (
    ("booleans", pa.types.is_boolean), ("numbers", pa.types.is_integer), ("numbers", pa.types.is_floating),
    ("text", pa.types.is_string), ("text", pa.types.is_large_string), ("lists", pa.types.is_list),
    ("objects", pa.types.is_struct), ("timestamps", pa.types.is_timestamp), ("dates", pa.types.is_date),
    ("times", pa.types.is_time), ("durations", pa.types.is_duration), ("decimals", pa.types.is_decimal),
)  # fmt: skip


_TYPE_DEPENDS_ON_VALUE = (list, tuple, dict, datetime)
_MAX_EXACT_INT = 2**53
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class MetadataColumns:
    """The metadata columns of a writer. `schema` contains all columns so far."""

    def __init__(self) -> None:
        self.schema = pa.schema([])
        self._families: dict[str, str] = {}
        self._types: dict[str, pa.DataType] = {}
        # Maps columns to "floats" or "whole numbers over 2^53". A column cannot contain both.
        self._number_forms: dict[str, str] = {}
        self._row_types: dict[str, pa.DataType] = {}

    def convert_row(self, row: Row, where: str) -> dict[str, object]:
        """Return the metadata of a sample as Python values. Raise `SampleRefused` if a column cannot store a value."""
        if not isinstance(row, Mapping):
            raise make_refusal(where, f"metadata of the type {type(row).__name__}", expected="a dict of columns")
        values, self._row_types = dict[str, object](), {}
        for name, value in row.items():
            scalar = value.item() if isinstance(value, np.generic) else value
            if not isinstance(name, str) or not name.strip() or name.startswith("__"):
                expected = "a name without a leading double underscore, which is reserved for sidecars"
                raise make_refusal(where, f"metadata named {name!r}", expected=expected)
            if _LONE_SURROGATE.search(name) or (type(scalar) is str and _LONE_SURROGATE.search(scalar)):
                problem = f"metadata {name!r}: an unpaired surrogate"
                raise make_refusal(where, problem, expected="valid Unicode")
            values[name] = scalar
            if scalar is None:
                continue
            family = _FAMILY_BY_TYPE.get(type(scalar), "")
            column_family = self._families.get(name, family)
            is_too_large = type(scalar) is int and not -INT64_LIMIT <= scalar < INT64_LIMIT
            if not family or family != column_family or is_too_large:
                found = f"the number {scalar}" if family == "numbers" else f"a value of the type {type(value).__name__}"
                earlier = f"{column_family}, as in earlier samples" if column_family and family != column_family else ""
                expected = earlier or "a type that Arrow supports"
                raise make_refusal(where, f"metadata {name!r}: {found}", expected=expected)
            if isinstance(scalar, _TYPE_DEPENDS_ON_VALUE):
                self._row_types[name] = self._join_type(name, scalar, where)
            elif (number_form := _get_number_form(scalar)) and self._number_forms.get(name, number_form) != number_form:
                problem = f"metadata {name!r}: {scalar} in a column of {self._number_forms[name]}"
                raise make_refusal(where, problem, expected="either floats or whole numbers over 2^53")
        return values

    def _join_type(self, name: str, value: object, where: str) -> pa.DataType:
        try:
            value_type = pa.array([value]).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise make_refusal(where, f"metadata {name!r}: {error}", expected="a type that Arrow supports") from None
        column_type = self._types.get(name, value_type)
        if column_type == value_type or (isinstance(value, datetime) and bool(column_type.tz) == bool(value_type.tz)):
            return column_type  # times are converted to the column's time zone
        try:
            return _unify_schemas(pa.schema([(name, column_type)]), pa.schema([(name, value_type)]))[0].type
        except pa.ArrowTypeError:
            expected = f"{column_type}, as in earlier samples"
            raise make_refusal(where, f"metadata {name!r}: {value_type}", expected=expected) from None

    def accept(self, row: Row) -> None:
        """Update the column types for the row that `convert_row` returned last."""
        for name, value in row.items():
            if name not in self._families and value is not None:
                self._families[name] = _FAMILY_BY_TYPE[type(value)]
            if number_form := _get_number_form(value):
                self._number_forms[name] = number_form
        self._types.update(self._row_types)

    def state(self) -> dict[str, object]:
        """Return the column types for the journal, because sidecars do not preserve all types."""
        return {"schema": b64encode(self.schema.serialize()).decode(), "forms": dict(self._number_forms)}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Restore the column types from the journal, or return False if they are invalid."""
        try:
            self.schema = pa.ipc.read_schema(pa.py_buffer(b64decode(state["schema"], validate=True)))
            self._number_forms = {str(name): str(number_form) for name, number_form in state["forms"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            return False
        self._types = dict(zip(self.schema.names, self.schema.types, strict=True))
        for name, kind in self._types.items():
            self._families |= [(name, family) for family, is_type in _ARROW_FAMILIES if is_type(kind)]
        return True

    def table(self, rows: Sequence[Row]) -> pa.Table | None:
        """Return the metadata of a shard as a table with all columns so far, or None if there are no columns."""
        names = dict.fromkeys(chain(self.schema.names, *rows))
        if not names:
            return None
        table = pa.table({name: self._make_array(name, [row.get(name) for row in rows]) for name in names})
        self.schema = _unify_schemas(self.schema, table.schema)
        return table.select(self.schema.names).cast(self.schema)

    def _make_array(self, name: str, values: list[object]) -> pa.Array:
        column_type = self._types.get(name)
        is_timestamp = column_type is not None and pa.types.is_timestamp(column_type)
        try:
            return pa.array(values, column_type if is_timestamp else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            found = f"values that Arrow cannot store in one column: {error}"
            raise InvalidRequest(f"metadata {name!r}", found) from None


def _get_number_form(value: object) -> str:
    if type(value) is float:
        return "floats"
    return "whole numbers over 2^53" if type(value) is int and not -_MAX_EXACT_INT <= value <= _MAX_EXACT_INT else ""


def _unify_schemas(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    return pa.unify_schemas([first, second], promote_options="permissive")
