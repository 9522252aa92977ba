"""Metadata of samples as Arrow columns, whose types widen as samples are added, as in a table of all samples."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
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
    from collections.abc import Sequence

    Row = Mapping[str, object]


_FAMILY_BY_TYPE: dict[type, str] = {
    bool: "truths", int: "numbers", float: "numbers", str: "text", list: "lists", tuple: "lists", dict: "objects",
    datetime: "timestamps", date: "dates", time: "times", timedelta: "durations", Decimal: "decimals",
}  # fmt: skip


_ARROW_FAMILIES = (
    ("truths", pa.types.is_boolean), ("numbers", pa.types.is_integer), ("numbers", pa.types.is_floating),
    ("text", pa.types.is_string), ("text", pa.types.is_large_string), ("lists", pa.types.is_list),
    ("objects", pa.types.is_struct), ("timestamps", pa.types.is_timestamp), ("dates", pa.types.is_date),
    ("times", pa.types.is_time), ("durations", pa.types.is_duration), ("decimals", pa.types.is_decimal),
)  # fmt: skip


_TYPED_VALUES = (list, tuple, dict, datetime)  # a value of them may not go with another of its family


_MAX_EXACT_INT = 2**53  # whole numbers up to which a float can hold each


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # of a surrogate pair: UTF-8 holds only both


class MetadataColumns:
    """The columns of metadata of a run.

    Attributes:
        schema: Each column so far and its type; of nulls alone, `null`.
    """

    def __init__(self) -> None:
        self.schema = pa.schema([])
        self._families: dict[str, str] = {}
        self._types: dict[str, pa.DataType] = {}
        self._forms: dict[str, str] = {}  # of numbers: floats, or whole numbers that no float can hold
        self._found: dict[str, pa.DataType] = {}  # of the row that was checked last

    def check(self, row: Row, where: str) -> dict[str, object]:
        """Return the values of a sample, if they go with those before.

        Raises:
            SampleRefused: They do not.
        """
        if not isinstance(row, Mapping):
            raise make_refusal(where, f"metadata of the type {type(row).__name__}", expected="a dict of columns")
        found, self._found = dict[str, object](), {}
        for name, value in row.items():
            plain = value.item() if isinstance(value, np.generic) else value
            if not isinstance(name, str) or not name.strip() or name.startswith("__"):
                expected = "a name that does not start with two underscores, which are the sidecar's own"
                raise make_refusal(where, f"metadata called {name!r}", expected=expected)
            if _LONE_SURROGATE.search(name) or (type(plain) is str and _LONE_SURROGATE.search(plain)):
                problem = f"metadata {name!r}: half of a surrogate pair"
                raise make_refusal(where, problem, expected="text that UTF-8 can hold")
            found[name] = plain
            if plain is None:
                continue
            family = _FAMILY_BY_TYPE.get(type(plain), "")
            known = self._families.get(name, family)
            if not family or family != known or (type(plain) is int and not -INT64_LIMIT <= plain < INT64_LIMIT):
                shown = f"a value of the type {type(value).__name__}" if family != "numbers" else f"the number {plain}"
                before = f"{known}, as in the samples before" if known and family != known else ""
                expected = before or "what a column can hold"
                raise make_refusal(where, f"metadata {name!r}: {shown}", expected=expected)
            if isinstance(plain, _TYPED_VALUES):
                self._found[name] = self._joined(name, plain, where)
            elif (form := _get_number_form(plain)) and self._forms.get(name, form) != form:
                problem = f"metadata {name!r}: {plain}, in a column of {self._forms[name]}"
                raise make_refusal(where, problem, expected="floats, or whole numbers over 2^53, but not both")
        return found

    def _joined(self, name: str, value: object, where: str) -> pa.DataType:
        """Return the type of a column that has a value, too."""
        try:
            found = pa.array([value]).type  # made, since text deep in it may be none that UTF-8 holds
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise make_refusal(where, f"metadata {name!r}: {error}", expected="what a column can hold") from None
        known = self._types.get(name, found)
        if known == found or (isinstance(value, datetime) and bool(known.tz) == bool(found.tz)):
            return known  # of several time zones, a column has the first
        try:
            return _unify_schemas(pa.schema([(name, known)]), pa.schema([(name, found)]))[0].type
        except pa.ArrowTypeError:
            expected = f"{known}, as in the samples before"
            raise make_refusal(where, f"metadata {name!r}: {found}", expected=expected) from None

    def accept(self, row: Row) -> None:
        """Settle what the columns of a sample hold that will be written."""
        for name, value in row.items():
            if name not in self._families and value is not None:
                self._families[name] = _FAMILY_BY_TYPE[type(value)]
            if form := _get_number_form(value):
                self._forms[name] = form
        self._types.update(self._found)

    def state(self) -> dict[str, object]:
        """Return what a journal keeps of the columns: their types, which Parquet does not keep all, and their forms."""
        return {"schema": b64encode(self.schema.serialize()).decode(), "forms": dict(self._forms)}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Take what an earlier writer knew of the columns: what goes with them is settled. Tell whether it is read."""
        try:
            self.schema = pa.ipc.read_schema(pa.py_buffer(b64decode(state["schema"], validate=True)))
            self._forms = {str(name): str(form) for name, form in state["forms"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            return False
        self._types = dict(zip(self.schema.names, self.schema.types, strict=True))
        for name, kind in self._types.items():
            self._families |= [(name, family) for family, fits in _ARROW_FAMILIES if fits(kind)]
        return True

    def table(self, rows: Sequence[Row]) -> pa.Table | None:
        """Return the rows of a shard, a column for each name so far; None where there are none.

        Raises:
            InvalidRequest: Values of a column cannot stand together.
        """
        known = dict.fromkeys(chain(self.schema.names, *rows))
        if not known:
            return None
        table = pa.table({name: self._array(name, [row.get(name) for row in rows]) for name in known})
        self.schema = _unify_schemas(self.schema, table.schema)
        return table.select(self.schema.names).cast(self.schema)

    def _array(self, name: str, rows: list[object]) -> pa.Array:
        known = self._types.get(name)
        try:
            return pa.array(rows, known if known is not None and pa.types.is_timestamp(known) else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidRequest(f"metadata {name!r}", f"values that no column can hold: {error}") from None


def _get_number_form(value: object) -> str:
    """Return what a column of numbers that has a value cannot have besides; empty: it can have all."""
    if type(value) is float:
        return "floats"
    return "whole numbers over 2^53" if type(value) is int and not -_MAX_EXACT_INT <= value <= _MAX_EXACT_INT else ""


def _unify_schemas(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    return pa.unify_schemas([first, second], promote_options="permissive")
