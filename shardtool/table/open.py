"""Open a table: a file, a folder of Parquet files, standard input, or a table in memory."""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, printable
from shardtool.messages import option_text
from shardtool.names import is_utf8
from shardtool.request.option_values import DEFAULT_FORMAT, DelimitedFormat
from shardtool.storage import paths, remote
from shardtool.storage.files import is_file
from shardtool.storage.remote import address
from shardtool.table import detect
from shardtool.table.base import RECODE_HINT, MemoryTable, Table, dataset_classes, reading_table
from shardtool.table.columnar import ArrowTable, ParquetTable
from shardtool.table.columns import PATH_NAMES, check_column_names, check_shape
from shardtool.table.concatenated import ConcatenatedTable
from shardtool.table.delimited import DelimitedTable
from shardtool.table.json_lines import read_json_lines
from shardtool.table.rows import TableRows, format_rows, mixed_types_error
from shardtool.units import pluralize

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


def _read_list(name: str, data: bytes, column: str) -> pa.Table:
    if b"\0" in data:
        lines = data.removesuffix(b"\0").split(b"\0")
    else:
        lines = data.removesuffix(b"\n").split(b"\n")
        if all(line.endswith(b"\r") for line in lines[:-1]):
            lines = [line.removesuffix(b"\r") for line in lines]
    if bad := [number for number, line in enumerate(lines, 1) if not is_utf8(line)]:
        raise InvalidRequest(name, f"{format_rows(bad)}: not valid UTF-8", expected="paths in UTF-8")
    if lines == [b""]:
        lines = []
    return pa.table({column: arrow.text_array([line.decode() for line in lines])})


# Times with more seconds overflow, because Parquet stores them as int64 milliseconds.
_MAX_SECONDS = 2**63 // 1000 - 1
_STDIN_NAME = "stdin"


def open_table(source: object, named: Collection[str], form: DelimitedFormat = DEFAULT_FORMAT) -> Table:
    """Open a table.

    Args:
        source: One or several paths, a glob, `-` for standard input, or a table in memory.
        named: Column names in the user's options. If the first line of standard input contains one of these names, the
            input is a table, not a list of paths.
        form: The format of delimited text. By default, it depends on the file name.
    """
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if path is not None and (files := _expand_glob(path)):
        source, path = files, None
    if isinstance(source, list) and all(isinstance(file, str | os.PathLike) for file in source):
        table: Table = ConcatenatedTable([*map(os.fspath, source)], lambda file: open_table(file, named, form))
    else:
        table = _open_in_memory(source) if path is None else _open_path(path, named, form)
    if form != DEFAULT_FORMAT and not isinstance(table, DelimitedTable | ConcatenatedTable):
        given = option_text("delimiter" if form.delimiter else "no_header")
        raise InvalidRequest(table.location, f"used with {given}", expected="CSV or other delimited text")
    with reading_table(table.location):
        check_column_names(table.location, table.schema.names)
        check_shape(table.location, table.schema)
    return table


def _open_path(path: str, named: Collection[str], form: DelimitedFormat) -> Table:
    if path == "-":
        return _read_standard_input(sys.stdin.buffer.read(), named, form)
    is_remote = address.is_url(path)
    if detect.is_parquet_glob(path) and (files := detect.list_parquet_files(path)):
        return ParquetTable(path, files)
    if not is_remote and not os.path.exists(path):
        raise InvalidRequest(path, "no such file or folder", expected="a table", remedy=paths.similar_path(path))
    if detect.table_ending(path) if is_remote else not os.path.isdir(path):
        with reading_table(path):
            return _open_file(path, form)
    if not (files := detect.list_parquet_files(path)):
        raise InvalidRequest(path, "a folder with other files", expected="a folder of Parquet files only")
    return ParquetTable(path, files)


def _expand_glob(path: str) -> list[str]:
    if not any(mark in paths.base_name(path) for mark in "*?[") or detect.is_parquet_glob(path) or is_file(path):
        return []
    if not (files := detect.match_glob(path)):
        raise InvalidRequest(path, "a glob that matches no file", expected="a table, or a glob of tables")
    return files


def _open_file(path: str, form: DelimitedFormat) -> Table:
    ending = detect.table_ending(path)
    if ending == detect.PARQUET_ENDING:
        return ParquetTable(path, [path])
    if ending in detect.ARROW_ENDINGS:
        return ArrowTable(path)
    if ending == detect.JSON_ENDING:
        return _read_json_file(path)
    if ending in detect.DELIMITERS or (form.delimiter and ending not in detect.JSON_LINES_ENDINGS):
        return DelimitedTable(path, _stream_opener(path), form, detect.DELIMITERS.get(ending, ""))
    if ending in detect.JSON_LINES_ENDINGS:
        return MemoryTable(path, read_json_lines(path, _stream_opener(path)))
    remedy = f"For delimited text, set the separator with {option_text('delimiter')}."
    raise InvalidRequest(path, "not a table", expected="CSV, TSV, JSON, Parquet or Feather", remedy=remedy)


def _read_json_file(path: str) -> MemoryTable:
    from shardtool.table.coco import IMAGE_COLUMN, read_coco
    from shardtool.table.json_stream import JsonStream, to_json_lines

    with _stream_opener(path)() as stream:
        document = JsonStream(path, stream)
        if document.peek() == "{":
            table, classes, notes = read_coco(path, document)
            opened = MemoryTable(path, table)
            opened.classes, opened.key_column, opened.notes = classes, IMAGE_COLUMN, notes
            return opened
        lines = to_json_lines(path, document)
    return MemoryTable(path, read_json_lines(path, lambda: pa.input_stream(lines, compression="lz4")))


def _stream_opener(path: str) -> Callable[[], BinaryIO]:
    if address.is_url(path):
        blob = remote.objects.open_remote(path)
        data = pa.py_buffer(blob.read(0, blob.size))  # keep the text in memory, because it is read more than once
        name = paths.base_name(path).lower()
        compression = next((codec for ending, codec in detect.COMPRESSIONS.items() if name.endswith(ending)), None)
        return lambda: pa.input_stream(data, compression=compression)
    return lambda: pa.input_stream(path, compression="detect")


def read_columns(table: Table, names: Collection[str], text: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """Read columns in the table's order, converted with `arrow.to_plain`. For `text`, see `Table.read`."""
    with reading_table(table.location):
        selected = table.read([name for name in table.schema.names if name in names], text)
        columns = {}
        remaining = selected.columns[::-1]
        column_names, selected = selected.column_names, None
        for name in column_names:
            column = remaining.pop()  # another reference would keep the unconverted column in memory
            check_column(table.location, name, column)
            columns[name] = arrow.to_one_chunk(arrow.to_plain(column))
            del column
    return columns


def _read_standard_input(data: bytes, named: Collection[str], form: DelimitedFormat) -> Table:
    name = "standard input"
    line, _, rest = data.partition(b"\n")
    header = line.decode("utf-8-sig", "replace").strip("\r")
    separator = "\t" if "\t" in header else ","
    cells = {cell.strip('"') for cell in header.split(separator)}
    path_columns = {cell.casefold() for cell in cells} & set(PATH_NAMES)
    if b"\0" not in data and (form != DEFAULT_FORMAT or cells & set(named) or (path_columns and len(cells) > 1)):
        with reading_table(name):
            return DelimitedTable(name, lambda: io.BytesIO(data), form, separator, _STDIN_NAME)
    if path_columns and b"\0" not in data:
        data = rest
    return MemoryTable(name, _read_list(name, data, "path"), _STDIN_NAME)


def check_column(location: str, name: str, column: pa.ChunkedArray) -> None:
    """Raise an error for invalid values that pyarrow has read, and for times that Parquet cannot store."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column.validate()
            found = f"column {name!r}: invalid UTF-8"
            TableRows(location, {}, None).refuse(_undecodable_rows(column), found, expected="UTF-8", remedy=RECODE_HINT)
        raise InvalidRequest(location, f"column {name!r}: {str(error).splitlines()[0]}") from None
    if pa.types.is_timestamp(column.type) and column.type.unit == "s":
        seconds = column.cast(pa.int64()).combine_chunks().fill_null(0).to_numpy()
        found = f"column {name!r}: a time that Parquet cannot store"
        expected = "milliseconds since 1970 that fit into 63 bits"
        TableRows(location, {}, None).refuse(np.flatnonzero(np.abs(seconds) > _MAX_SECONDS), found, expected=expected)


def _undecodable_rows(column: pa.ChunkedArray) -> NDArray[np.int64]:
    binary_type = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    values = (value for chunk in column.chunks for value in chunk.view(binary_type).to_pylist())
    return np.array([row for row, value in enumerate(values) if value is not None and not is_utf8(value)], np.int64)


_NESTED_TYPES = ("list", "dict", "tuple", "ndarray")


def _open_in_memory(source: object) -> MemoryTable:
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
    columns = [str(column) for column in frame.columns]
    check_column_names(name, columns)
    keep = all(level is not None for level in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=keep).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        has_paths = [any(isinstance(value, os.PathLike) for value in values) for _, values in frame.items()]
        if any(has_paths):
            return _from_pandas(name, _with_paths_as_text(frame, has_paths))
        for index, column in enumerate(columns):
            _check_frame_column(name, column, frame, index)
        raise


def _with_paths_as_text(frame: pd.DataFrame, has_paths: list[bool]) -> pd.DataFrame:
    converted: pd.DataFrame = frame.copy(deep=False)
    for index in itertools.compress(itertools.count(), has_paths):
        values = frame.iloc[:, index]
        converted.isetitem(index, [os.fsdecode(value) if isinstance(value, os.PathLike) else value for value in values])
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
