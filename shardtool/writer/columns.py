"""Metadata of samples as columns, whose types grow with what is written: as those of a table of all of them would."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, object]

_FAMILIES: dict[type, str] = {
    bool: "truths", int: "numbers", float: "numbers", str: "text", list: "lists", tuple: "lists", dict: "objects",
    datetime: "timestamps", date: "dates", time: "times", timedelta: "durations", Decimal: "decimals",
}  # fmt: skip
_INT64 = 2**63


class Columns:
    """The columns of metadata of a run.

    Attributes:
        schema: Each column so far and its type; of nulls alone, `null`.
    """

    def __init__(self) -> None:
        self.schema = pa.schema([])
        self._families: dict[str, str] = {}

    def check(self, row: Row, where: str) -> dict[str, object]:
        """Return the values of a sample, if they go with those before.

        Raises:
            InvalidRequest: They do not.
        """
        found = {}
        for name, value in row.items():
            plain = value.item() if isinstance(value, np.generic) else value
            if not isinstance(name, str) or not name.strip() or name.startswith("__"):
                problem = f"metadata called {name!r}: names that start with two underscores are the sidecar's own"
                raise InvalidRequest(where, problem, remedy="Rename it.")
            found[name] = plain
            if plain is None:
                continue
            family = _FAMILIES.get(type(plain), "")
            known = self._families.get(name, family)
            if not family or family != known or (type(plain) is int and not -_INT64 <= plain < _INT64):
                shown = f"a value of the type {type(value).__name__}" if family != "numbers" else f"the number {plain}"
                expected = (
                    f"{known}, as in the samples before" if known and family != known else "what a column can hold"
                )
                raise InvalidRequest(where, f"metadata {name!r}: {shown}", expected=expected)
        return found

    def accept(self, row: Row) -> None:
        """Settle what the columns of a sample hold that will be written."""
        for name, value in row.items():
            if name not in self._families and value is not None:
                self._families[name] = _FAMILIES[type(value)]

    def table(self, rows: Sequence[Row], names: Sequence[str]) -> pa.Table | None:
        """Return the rows of a shard, a column for each name so far; None where there are none.

        Raises:
            InvalidRequest: Values of a column cannot stand together.
        """
        known = dict.fromkeys([*self.schema.names, *names])
        if not known:
            return None
        arrays = {name: self._array(name, [row.get(name) for row in rows]) for name in known}
        table = pa.table(arrays)
        self.add(table.schema)
        return table.select(self.schema.names).cast(self.schema)

    def add(self, schema: pa.Schema) -> None:
        """Take the columns of a shard."""
        self.schema = pa.unify_schemas([self.schema, schema], promote_options="permissive")

    def _array(self, name: str, values: list[object]) -> pa.Array:
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidRequest(f"metadata {name!r}", f"values that no column can hold: {error}") from None
