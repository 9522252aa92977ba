"""Tables in memory as Arrow: pandas DataFrames, Arrow tables, and dicts of columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.errors import InvalidRequest, printable
from shardtool.messages import option_text
from shardtool.table import detect
from shardtool.table.base import MemoryTable, dataset_classes, reading_table
from shardtool.table.columns import check_column_names
from shardtool.table.rows import mixed_types_error
from shardtool.units import pluralize

if TYPE_CHECKING:
    import pandas as pd


_NESTED_TYPES = ("list", "dict", "tuple", "ndarray")


def open_in_memory(source: object) -> MemoryTable:
    """Open a DataFrame, an Arrow object, or a dict of columns."""
    name = type(source).__name__
    with reading_table(name):
        if isinstance(source, pa.Table):
            table = source
        elif detect.is_frame(source):
            table = _from_pandas(name, source)
        elif hasattr(source, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(source).read_all()
        elif isinstance(source, Mapping) or hasattr(source, "__arrow_c_array__"):
            table = pa.Table.from_batches([pa.record_batch(source)])
        else:
            expected = "a path, a DataFrame, an Arrow table, or a dict of columns"
            raise InvalidRequest(f"{source!r:.80}", "neither a path nor a table", expected=expected)
    opened = MemoryTable(name, table, name)
    opened.classes = dataset_classes(table.schema)
    return opened


def _from_pandas(name: str, frame: pd.DataFrame) -> pa.Table:
    """A named index becomes columns; an unnamed one is dropped."""
    columns = [str(column) for column in frame.columns]
    check_column_names(name, columns)
    keep = all(level is not None for level in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=keep).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        path_columns = [
            index
            for index in range(len(columns))
            if any(isinstance(value, os.PathLike) for value in frame.iloc[:, index])
        ]
        if path_columns:
            return _from_pandas(name, _with_paths_as_text(frame, path_columns))
        for index, column in enumerate(columns):
            _check_frame_column(name, column, frame, index)
        raise


def _with_paths_as_text(frame: pd.DataFrame, columns: list[int]) -> pd.DataFrame:
    converted: pd.DataFrame = frame.copy(deep=False)
    for index in columns:
        converted.isetitem(
            index, [os.fsdecode(value) if isinstance(value, os.PathLike) else value for value in frame.iloc[:, index]]
        )
    return converted


def _check_frame_column(name: str, column: str, frame: pd.DataFrame, index: int) -> None:
    values = frame.iloc[:, index]
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        kinds: dict[str, list[int]] = {}
        for row, (value, missing) in enumerate(zip(values.tolist(), values.isna(), strict=True), 1):
            if not missing:
                kinds.setdefault(type(value).__name__, []).append(row)
        if len(kinds) > 1:
            raise mixed_types_error(name, column, kinds) from None
        type_name = printable(next(iter(kinds), "nothing"))
        found = f"column {column!r} holds {type_name} in {pluralize(len(values), 'row')}"
        if next(iter(kinds), "") not in _NESTED_TYPES:
            raise InvalidRequest(name, found, expected="values that Arrow supports") from None
        found += f" with elements of different types: {str(error).splitlines()[0]}"
        as_json = f"{option_text('field', {'json': column})} with {option_text('meta', 'none')}"
        remedy = f"Convert it to text with frame[{column!r}].map(json.dumps), then use {as_json}."
        raise InvalidRequest(name, found, expected="elements of one type in all rows", remedy=remedy) from None
