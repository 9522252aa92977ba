"""Any table becomes Arrow: files of several formats, and tables in memory.

What a table means is not decided here, but for standard input: that may be a list of paths.
"""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, SampleFailed, is_out_of_memory, listing, printable
from shardtool.storage import places
from shardtool.storage.open_file import open_blob, open_object
from shardtool.storage.places import file_fact
from shardtool.table.columns import PATH_NAMES, Rows, check_names, check_shape, mixed_types
from shardtool.table.kinds import ARROW, JSON_LINES, PARQUET, SEPARATORS, is_frame, is_glob, parquet_files, table_ending
from shardtool.table.text import DelimitedTable, MemoryTable, Table, numbers_of, read_json_lines, read_list
from shardtool.values import counted, is_utf8
from shardtool.wording import create_again, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import BinaryIO

    import pandas as pd
    import pyarrow.parquet as pq
    from numpy.typing import NDArray


# Tables in files of columns: Parquet, and Arrow's own formats.
#
# Light columns are read whole, and again only the columns of bytes, a batch at a time.


_BUFFER = 2**20  # of a file: without one, pyarrow reads a whole column of a row group at once
_BATCH = 64  # rows of bytes at a time; a page of them, which is what a writer made it, is in memory besides


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Say of whatever goes wrong in reading a table that it is the table's fault, but for a lack of memory."""
    try:
        yield
    except MemoryError:  # an ArrowException, too
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, ArithmeticError) as error:
        if is_out_of_memory(error):
            raise
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidRequest(name, f"cannot be read: {(said.splitlines() or [type(error).__name__])[0]}") from None


def base_name(path: str) -> str:
    """Return the name of a file, links followed."""
    return places.base_name(path.rstrip("/")) if places.is_url(path) else os.path.basename(os.path.realpath(path))


def folder_of(path: str) -> str:
    """Return the folder that a file, or a folder, lies in."""
    if places.is_url(path):
        return places.folder_of(path.rstrip("/"))
    return os.path.dirname(path.rstrip("/")) or "."


def opened(path: str) -> pa.NativeFile | str:
    """Return what pyarrow can open: a path as it is, and an address as a file."""
    return pa.PythonFile(open_object(path), "r") if places.is_url(path) else path


def _fact(path: str) -> tuple[int, int, int]:
    fact = file_fact(path)
    return getattr(fact, "st_ino", 0), fact.st_size, fact.st_mtime_ns


class _Files(Table):
    """A table of files that are read again for their bytes; they must stay as they are meanwhile."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path, folder_of(path), base_name(path))
        self._path, self._files = path, files
        self._facts = self._look()

    def _look(self) -> list[tuple[int, int, int]]:
        return list(places.for_each(_fact, self._files))

    def _check_same(self) -> None:
        try:
            same = self._look() == self._facts
        except OSError:
            same = False
        if not same:
            expected = "a table that stays as it was when the run began"
            remedy = f"Run it again; {create_again()} keeps what is finished."
            raise SampleFailed(self._path, "changed while it was read", expected=expected, remedy=remedy)


class ParquetTable(_Files):
    """A Parquet file, or the files of a folder; parts of their paths such as `year=2024/` are columns."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path, files)
        self._partitions = [_partition(os.path.relpath(file, path)) for file in files] if files != [path] else [{}]
        with readable(path):
            import pyarrow.parquet as pq

            self._open = pq.ParquetFile
            with self._open(opened(files[0])) as file:
                schema = file.schema_arrow
            for more in files[1:]:
                with self._open(opened(more)) as file:
                    schema = pa.unify_schemas([schema, file.schema_arrow], promote_options="permissive")
        schema = schema.remove_metadata()
        for name in sorted({name for one in self._partitions for name in one}):
            schema = schema if name in schema.names else schema.append(pa.field(name, pa.string()))
        self.schema = schema

    def read(self, columns: Collection[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns, in the order of the table."""
        names = [name for name in self.schema.names if name in columns]
        folders = [name for name in names if any(name in one for one in self._partitions)]
        tables = []
        with readable(self._path):
            for path, partition in zip(self._files, self._partitions, strict=True):
                with self._open(opened(path), pre_buffer=False) as file:
                    own = [name for name in file.schema_arrow.names if name in names]
                    table = _read_columns(file, own)
                for name in folders:
                    if name in partition and name not in own:
                        same = number_array(np.zeros(table.num_rows, np.int64))
                        table = table.append_column(name, arrow.texts([partition[name]]).take(same))
                tables.append(table)
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
        self._check_same()
        for name in folders:
            at = table.column_names.index(name)
            table = table.set_column(at, name, numbers_of(table.column(at)))
        return table.select(names)

    def count(self) -> int:
        """Return the number of rows."""
        with readable(self._path):
            total = 0
            for path in self._files:
                with self._open(opened(path)) as file:
                    total += file.metadata.num_rows
        return total

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns."""
        with readable(self._path):
            for path in self._files:
                with self._open(opened(path), pre_buffer=False, buffer_size=_BUFFER) as file:
                    missing = [name for name in columns if name not in file.schema_arrow.names]
                    if missing:
                        raise InvalidRequest(path, f"no column {listing([repr(name) for name in missing])}")
                    yield from file.iter_batches(_BATCH, columns=columns, use_threads=False)
        self._check_same()


def _read_columns(file: pq.ParquetFile, names: list[str]) -> pa.Table:
    """Return columns of a Parquet file.

    A column and a row group at a time, each column made one chunk at once: of five million rows that takes 550 MB
    where reading them as they come takes 750.
    """
    schema, columns = file.schema_arrow, []
    for name in names:
        groups = [
            file.read_row_group(at, columns=[name], use_threads=False).column(name) for at in range(file.num_row_groups)
        ]
        chunks = [chunk for group in groups for chunk in group.chunks]
        del groups
        columns.append(arrow.one_chunk(pa.chunked_array(chunks, schema.field(name).type)))
        del chunks
    pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(columns, names)


def _partition(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say, Hive's way: `year=2024`."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return found


class ArrowTable(_Files):
    """An Arrow file, which is what Feather is, or the stream format, which Hugging Face datasets writes."""

    def __init__(self, path: str) -> None:
        super().__init__(path, [path])
        with self._reader(None) as reader:
            self.schema = reader.schema.remove_metadata()

    @contextmanager
    def _reader(
        self, columns: list[str] | None, local: Callable[[str], pa.NativeFile] = pa.OSFile
    ) -> Iterator[pa.RecordBatchReader]:
        with local(self._path) if isinstance(found := opened(self._path), str) else found as file:
            fields = None if columns is None else [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            try:
                reader = pa.ipc.open_file(file, options=options)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file, options=options)
            yield reader

    def read(self, columns: Collection[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns, in the order of the table."""
        names = [name for name in self.schema.names if name in columns]
        if not names:
            return pa.table({})
        with readable(self._path), self._reader(names) as reader:
            table = reader.read_all()
        self._check_same()
        return table

    def count(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self.batches(self.schema.names[:1]))

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns."""
        with readable(self._path), self._reader(columns, pa.memory_map) as reader:  # a batch may be the whole file
            if isinstance(reader, pa.RecordBatchFileReader):
                for at in range(reader.num_record_batches):
                    yield reader.get_batch(at)
            else:
                yield from reader
        self._check_same()


_MOST_SECONDS = 2**63 // 1000 - 1  # Parquet has no seconds: sidecars hold milliseconds
_STDIN = "stdin"
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_NESTED = ("list", "dict", "tuple", "ndarray")


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
        blob = open_blob(path)
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
            columns[name] = arrow.one_chunk(arrow.plain(column))
            del column
    return columns


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
