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
    """Return the table that an object is, or gives."""
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
    found = MemoryTable(name, table, name)
    found.classes = dataset_classes(table.schema)
    return found


def _from_pandas(name: str, frame: pd.DataFrame) -> pa.Table:
    """Return a DataFrame as Arrow; an index with names is columns, any other is left out.

    Raises:
        InvalidRequest: A column holds values of several types.
    """
    columns = [str(column) for column in frame.columns]
    check_column_names(name, columns)
    keep = all(level is not None for level in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=keep).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        paths = [at for at in range(len(columns)) if any(isinstance(one, os.PathLike) for one in frame.iloc[:, at])]
        if paths:
            return _from_pandas(name, _with_paths_as_text(frame, paths))
        for at, column in enumerate(columns):
            _check_frame_column(name, column, frame, at)
        raise


def _with_paths_as_text(frame: pd.DataFrame, columns: list[int]) -> pd.DataFrame:
    """Return a DataFrame with text in place of path objects in some columns."""
    found: pd.DataFrame = frame.copy(deep=False)
    for at in columns:
        found.isetitem(at, [os.fsdecode(one) if isinstance(one, os.PathLike) else one for one in frame.iloc[:, at]])
    return found


def _check_frame_column(name: str, column: str, frame: pd.DataFrame, at: int) -> None:
    """Refuse a column of a DataFrame that Arrow cannot hold."""
    values = frame.iloc[:, at]
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        kinds: dict[str, list[int]] = {}
        for row, (value, missing) in enumerate(zip(values.tolist(), values.isna(), strict=True), 1):
            if not missing:
                kinds.setdefault(type(value).__name__, []).append(row)
        if len(kinds) > 1:
            raise mixed_types_error(name, column, kinds) from None
        held = printable(next(iter(kinds), "nothing"))
        found = f"column {column!r} holds {held} in {pluralize(len(values), 'row')}"
        if next(iter(kinds), "") not in _NESTED_TYPES:
            raise InvalidRequest(name, found, expected="values that Arrow knows") from None
        found += f" whose parts differ in type: {str(error).splitlines()[0]}"
        as_json = f"{option_text('values', {'json': column})} with {option_text('meta', 'none')}"
        remedy = f"Make it text, frame[{column!r}].map(json.dumps): {as_json} takes it for the field json."
        raise InvalidRequest(name, found, expected="parts of one type in all rows", remedy=remedy) from None
