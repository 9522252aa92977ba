"""Describe where the columns of a joined table are stored."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.messages import option_text, quote_for_shell, uses_cli_names
from shardtool.request.option_values import parse_pairs
from shardtool.request.results import JoinedTable
from shardtool.table.columns import is_text_type

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardtool.request.selecting_options import SelectingOptions
    from shardtool.source.base import Listing

_UNUSUAL_IN_FIELDS = re.compile(r"[^a-z0-9_]+")


def describe_join(listing: Listing, options: SelectingOptions) -> JoinedTable | None:
    """Describe where the joined columns are stored. Return None if no table was joined."""
    metadata = listing.entries.metadata
    if not listing.joined or metadata is None:
        return None
    fields = {name: column for name, column in parse_pairs("field", options.field) if column in listing.joined}
    others = [column for column in metadata.schema if column.name in {*listing.joined} - {*fields.values()}]
    names = _choose_fields(others, listing.entries.fields)
    pairs: object = (
        [quote_for_shell(f"{name}={column}") for name, column in names.items()] if uses_cli_names() else names
    )
    advice = option_text("field", pairs) if names else ""
    return JoinedTable(str(listing.recorded.get("join", "")), listing.joined, fields, advice)


def _choose_fields(columns: list[pa.Field], taken: Collection[str]) -> dict[str, str]:
    endings = [_usual_ending(column.type) for column in columns]
    names: dict[str, str] = {}
    for column, ending in zip(columns, endings, strict=True):
        start = _UNUSUAL_IN_FIELDS.sub("_", column.name.lower()).strip("_") or "column"
        is_only = ending != "json" and endings.count(ending) == 1 and ending not in taken
        name = ending if is_only else f"{start}.{ending}"
        number = 2
        while name in names or name in taken:
            name, number = f"{start}{number}.{ending}", number + 1
        names[name] = column.name
    return names


def _usual_ending(column_type: pa.DataType) -> str:
    is_text = is_text_type(column_type) or pa.types.is_temporal(column_type)
    return "txt" if is_text else "cls" if pa.types.is_integer(column_type) else "json"
