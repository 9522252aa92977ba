"""Any table becomes Arrow: files of several formats, and tables in memory.

What a table means is not decided here, but for standard input: that may be a list of paths.
"""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest, listing, printable
from shardtool.storage import places
from shardtool.table import arrays
from shardtool.table.columns import PATH_NAMES, check_names
from shardtool.table.files import ArrowTable, ParquetTable, base_name, folder_of, readable
from shardtool.table.kinds import ARROW, JSON_LINES, PARQUET, SEPARATORS, is_frame, is_glob, parquet_files, table_ending
from shardtool.table.limits import check_shape
from shardtool.table.row_names import Rows, mixed_types
from shardtool.table.text import DelimitedTable, read_json_lines, read_list
from shardtool.values import counted, is_utf8
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import BinaryIO

    import pandas as pd
    from numpy.typing import NDArray

_MOST_SECONDS = 2**63 // 1000 - 1  # Parquet has no seconds: sidecars hold milliseconds
_STDIN = "stdin"
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_NESTED = ("list", "dict", "tuple", "ndarray")


class Table(Protocol):
    """A table that can be read.

    Attributes:
        name: The name of the file, or of the kind of table.
        where: What the user called it.
        folder: What relative paths in it count from.
        schema: Its columns.
    """

    name: str
    where: str
    folder: str
    schema: pa.Schema

    def read(self, columns: Collection[str], text: Collection[str], /) -> pa.Table:
        """Return some columns, in the order of the table, for no columns perhaps no rows; `text` stays text."""

    def count(self) -> int:
        """Return the number of rows."""

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns, all rows in order."""


def open_table(source: object, named: Collection[str]) -> Table:
    """Return the table that `source` is.

    Args:
        source: See `is_manifest`.
        named: The columns that the request names: where there are any, standard input is a table.

    Raises:
        InvalidRequest: There is none, it cannot be read, or it has too many columns, or one that is nested too deep.
    """
    table = _in_memory(source) if not isinstance(source, str | os.PathLike) else _open_path(os.fspath(source), named)
    with readable(table.where):  # names may be no UTF-8
        check_names(table.where, table.schema.names)
        check_shape(table.where, table.schema)
    return table


def _open_path(path: str, named: Collection[str]) -> Table:
    if path == "-":
        return _standard_input(sys.stdin.buffer.read(), named)
    is_remote = places.is_url(path)
    if is_glob(path) and (files := parquet_files(path)):
        return ParquetTable(path, files)
    if not is_remote and not os.path.exists(path):
        raise InvalidRequest(path, "no such file or folder", expected="a table")
    if table_ending(path) if is_remote else not os.path.isdir(path):
        with readable(path):
            return _open_file(path)
    files = parquet_files(path)
    if not files:
        raise InvalidRequest(path, "a folder", expected="one that holds Parquet files only")
    return ParquetTable(path, files)


def _open_file(path: str) -> Table:
    ending = table_ending(path)
    if ending == PARQUET:
        return ParquetTable(path, [path])
    if ending in ARROW:
        return ArrowTable(path)
    if ending in SEPARATORS:
        separator, folder = SEPARATORS[ending], folder_of(path)
        return DelimitedTable(path, _opener(path), separator, name=base_name(path), folder=folder)
    if ending in JSON_LINES:
        return MemoryTable(path, folder_of(path), read_json_lines(path, _opener(path)), base_name(path))
    raise InvalidRequest(path, "no table", expected="CSV, TSV, JSON lines, Parquet or Feather")


def _opener(path: str) -> Callable[[], BinaryIO]:
    if places.is_url(path):
        blob = places.open_blob(path)
        data = pa.py_buffer(blob.read(0, blob.size))  # a text is read more than once
        packed = next((kind for ending, kind in _PACKED.items() if base_name(path).lower().endswith(ending)), None)
        return lambda: pa.input_stream(data, compression=packed)
    return lambda: pa.input_stream(path, compression="detect")


def read_columns(table: Table, names: Collection[str], text: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """Return columns without bytes, an array in its plain type each, in the order of the table.

    Args:
        table: What to read.
        names: The columns.
        text: Where types are inferred, the columns that stay text.

    Raises:
        InvalidRequest: The table cannot be read, or holds text that is no UTF-8.
    """
    with readable(table.where):
        found = table.read(names, text)
        columns = {}
        columns_left = found.columns[::-1]
        names_left, found = found.column_names, None
        for name in names_left:
            column = columns_left.pop()  # so that it is not in memory twice
            check_sound(table.where, name, column)
            columns[name] = arrays.one_chunk(arrays.plain(column))
            del column
    return columns


class MemoryTable:
    """A table in memory."""

    def __init__(self, where: str, folder: str, table: pa.Table, name: str = "") -> None:
        self.name, self.where, self.folder, self._table = name or where, where, folder, table
        self.schema = table.schema

    def read(self, columns: Collection[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns, in the order of the table."""
        return self._table.select([name for name in self.schema.names if name in columns])

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns."""
        yield from self._table.select(columns).to_batches()


def _standard_input(data: bytes, named: Collection[str]) -> Table:
    """Return the table of what came in: paths, a line each, or a CSV or TSV with a header that can only be one."""
    name = "standard input"
    line, _, rest = data.partition(b"\n")
    header = line.decode("utf-8-sig", "replace").strip("\r")
    separator = "\t" if "\t" in header else ","
    cells = {cell.strip('"') for cell in header.split(separator)}
    usual = {cell.casefold() for cell in cells} & set(PATH_NAMES)
    if b"\0" not in data and (cells & set(named) or (usual and len(cells) > 1)):
        with readable(name):
            return DelimitedTable(name, lambda: io.BytesIO(data), separator, name=_STDIN, folder=".")
    if usual and b"\0" not in data:  # a column of paths with its header
        data = rest
    return MemoryTable(name, ".", read_list(name, data, "path"), _STDIN)


def _in_memory(source: object) -> MemoryTable:
    """Return the table that an object is, or gives."""
    name = type(source).__name__
    with readable(name):
        if isinstance(source, pa.RecordBatchReader):
            table = source.read_all()
        elif isinstance(source, pa.RecordBatch):
            table = pa.Table.from_batches([source])
        elif isinstance(source, pa.Table):
            table = source
        elif is_frame(source):
            table = _from_pandas(name, source)
        elif hasattr(source, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(source).read_all()
        else:
            table = pa.Table.from_batches([pa.record_batch(source)])
    return MemoryTable(name, ".", table)


def _from_pandas(name: str, frame: pd.DataFrame) -> pa.Table:
    """Return a DataFrame as Arrow; an index with names is columns, any other is left out.

    Raises:
        InvalidRequest: A column holds values of several types.
    """
    columns = [str(column) for column in frame.columns]
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InvalidRequest(name, f"columns of the same name: {listing(twice)}", remedy="Rename them.")
    keep = all(level is not None for level in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=keep).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        paths = [at for at in range(len(columns)) if any(isinstance(one, os.PathLike) for one in frame.iloc[:, at])]
        if paths:
            return _from_pandas(name, _with_text(frame, paths))
        for at, column in enumerate(columns):
            _check_values(name, column, frame, at)
        raise


def _with_text(frame: pd.DataFrame, columns: list[int]) -> pd.DataFrame:
    """Return a DataFrame with text in place of path objects in some columns."""
    found: pd.DataFrame = frame.copy(deep=False)
    for at in columns:
        found.isetitem(at, [os.fsdecode(one) if isinstance(one, os.PathLike) else one for one in frame.iloc[:, at]])
    return found


def _check_values(name: str, column: str, frame: pd.DataFrame, at: int) -> None:
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
            raise mixed_types(name, column, kinds) from None
        held = printable(next(iter(kinds), "nothing"))
        found = f"column {column!r} holds {held} in {counted(len(values), 'row')}"
        if next(iter(kinds), "") not in _NESTED:
            raise InvalidRequest(name, found, expected="values that Arrow knows") from None
        found += f" whose parts differ in type: {str(error).splitlines()[0]}"
        as_json = f"{option('values', {'json': column})} with {option('meta', 'none')}"
        remedy = f"Make it text, frame[{column!r}].map(json.dumps): {as_json} takes it for the field json."
        raise InvalidRequest(name, found, expected="parts of one type in all rows", remedy=remedy) from None


def check_sound(where: str, name: str, column: pa.ChunkedArray) -> None:
    """Refuse a column, a chunked array, that is not what its type says, and text that is no UTF-8: no reader looks.

    Raises:
        InvalidRequest: It is not.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column.validate()
            found = f"column {name!r}: text that is no UTF-8"
            remedy = "`iconv -f CP1252 -t UTF-8` turns what Excel writes into it."
            Rows(where, {}, None).refuse(_undecodable(column), found, expected="UTF-8", remedy=remedy)
        raise InvalidRequest(where, f"column {name!r}: {str(error).splitlines()[0]}") from None
    if pa.types.is_timestamp(column.type) and column.type.unit == "s":
        seconds = column.cast(pa.int64()).combine_chunks().fill_null(0).to_numpy()
        found = f"column {name!r}: a time that Parquet cannot hold"
        expected = "milliseconds since 1970 of 63 bits"
        Rows(where, {}, None).refuse(np.flatnonzero(np.abs(seconds) > _MOST_SECONDS), found, expected=expected)


def _undecodable(column: pa.ChunkedArray) -> NDArray[np.int64]:
    wide = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    values = (value for chunk in column.chunks for value in chunk.view(wide).to_pylist())
    return np.array([at for at, value in enumerate(values) if value is not None and not is_utf8(value)], np.int64)
