"""Any table becomes Arrow: files of several formats, and tables in memory.

A manifest's light columns are read whole. Columns of bytes, which hold the images themselves, are
streamed a batch at a time; what a table means is not decided here.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from shardtool.arrow import number_array
from shardtool.errors import InvalidRequest, SampleFailed, listing, printable
from shardtool.sample import counted
from shardtool.source import buffers
from shardtool.source.request import ARROW, JSON_LINES, PARQUET, SEPARATORS, is_frame, parquet_files, table_ending
from shardtool.source.roles import PATH_NAMES
from shardtool.source.rows import mixed_types
from shardtool.source.textfile import DelimitedTable, read_json_lines, read_list

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_STDIN = "stdin"
_BATCH = 256  # rows of bytes at a time: images of a megabyte are 256 MB


class Table(Protocol):
    """A table that can be read.

    Attributes:
        name: Of the file, or of the kind of table.
        where: What the user called it.
        folder: What relative paths in it count from.
        schema: Its columns.
    """

    name: str
    where: str
    folder: str
    schema: Any

    def read(self, heavy: Collection[str], text: Collection[str]) -> Any:
        """Return all columns but the `heavy` ones; those in `text` stay text where types are inferred."""

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches of some columns, all rows in order."""


def open_table(source: Any, named: Collection[str]) -> Table:
    """Return the table that `source` is.

    Args:
        source: See `is_manifest`.
        named: The columns that the request names: where there are any, standard input is a table.

    Raises:
        InvalidRequest: There is none, or it cannot be read.
    """
    if not isinstance(source, str | os.PathLike):
        return _in_memory(source)
    path = os.fspath(source)
    if path == "-":
        return _standard_input(sys.stdin.buffer.read(), named)
    if not os.path.exists(path):
        raise InvalidRequest(path, "no such file or folder", expected="a table")
    if not os.path.isdir(path):
        with readable(path):
            return _open_file(path)
    files = parquet_files(path)
    if not files:
        raise InvalidRequest(path, "a folder", expected="one that holds Parquet files only")
    return _ParquetTable(path, files)


def _open_file(path: str) -> Table:
    ending = table_ending(path)
    if ending == PARQUET:
        return _ParquetTable(path, [path])
    if ending in ARROW:
        return _ArrowTable(path)
    if ending in SEPARATORS:
        table = DelimitedTable(path, _opener(path), SEPARATORS[ending])
        return _TextTable(_base(path), _folder(path), table)
    if ending in JSON_LINES:
        return MemoryTable(path, _folder(path), read_json_lines(path, _opener(path)), _base(path))
    raise InvalidRequest(path, "no table", expected="CSV, TSV, JSON lines, Parquet or Feather")


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Say of whatever goes wrong in reading a table that it is the table's fault."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidRequest(name, f"cannot be read: {(said.splitlines() or [type(error).__name__])[0]}") from None


def _base(path: str) -> str:
    return os.path.basename(os.path.realpath(path))


def _folder(path: str) -> str:
    return os.path.dirname(path.rstrip("/")) or "."


def _opener(path: str) -> Callable[[], Any]:
    return lambda: pa.input_stream(path, compression="detect")


class MemoryTable:
    """A table in memory."""

    def __init__(self, where: str, folder: str, table: Any, name: str = "") -> None:
        self.name, self.where, self.folder, self._table = name or where, where, folder, table
        self.schema = table.schema

    def read(self, heavy: Collection[str], text: Collection[str]) -> Any:  # noqa: ARG002 - it has its types
        """Return all columns but the `heavy` ones."""
        return self._table.select([name for name in self.schema.names if name not in heavy])

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches of some columns."""
        yield from self._table.select(columns).to_batches()


class _TextTable:
    """A file of values between separators."""

    def __init__(self, name: str, folder: str, table: DelimitedTable) -> None:
        self.name, self.where, self.folder, self._table = name, table.name, folder, table
        self.schema = table.schema

    def read(self, heavy: Collection[str], text: Collection[str]) -> Any:  # noqa: ARG002 - none of its columns is
        with readable(self._table.name):
            return self._table.read(text)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        raise NotImplementedError(columns)  # text holds no bytes


class _FileTable:
    """A table of files that are read again for their bytes; they must stay as they are meanwhile."""

    def __init__(self, path: str, files: list[str]) -> None:
        self.name, self.where, self.folder, self._path, self._files = _base(path), path, _folder(path), path, files
        self._facts = self._look()

    def _look(self) -> list[tuple[int, int, int]]:
        facts = [os.stat(file) for file in self._files]
        return [(fact.st_ino, fact.st_size, fact.st_mtime_ns) for fact in facts]

    def _check_same(self) -> None:
        try:
            same = self._look() == self._facts
        except OSError:
            same = False
        if not same:
            raise SampleFailed(
                self._path, "changed while it was read", expected="a table that stays as it was when the run began",
                remedy="Run again with --resume.",
            )  # fmt: skip


class _ParquetTable(_FileTable):
    """A Parquet file, or the files of a folder; parts of their paths such as `year=2024/` are columns."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path, files)
        self._partitions = [_partition(os.path.relpath(file, path)) for file in files] if files != [path] else [{}]
        with readable(path):
            import pyarrow.parquet as pq

            self._open = pq.ParquetFile
            with self._open(files[0]) as file:
                schema = file.schema_arrow
            for more in files[1:]:
                with self._open(more) as file:
                    schema = pa.unify_schemas([schema, file.schema_arrow], promote_options="permissive")
        schema = schema.remove_metadata()
        for name in sorted({name for one in self._partitions for name in one}):
            schema = schema if name in schema.names else schema.append(pa.field(name, pa.string()))
        self.schema = schema

    def read(self, heavy: Collection[str], text: Collection[str]) -> Any:
        """Return all columns but the `heavy` ones."""
        tables, names = [], [name for name in self.schema.names if name not in heavy]
        with readable(self._path):
            for path, partition in zip(self._files, self._partitions, strict=True):
                with self._open(path, pre_buffer=False) as file:
                    own = [name for name in file.schema_arrow.names if name in names]
                    table = _read_columns(file, own)
                    for name in sorted(partition.keys() - set(own)):
                        value = partition[name]
                        column = buffers.texts([value]).take(number_array(np.zeros(table.num_rows, np.int64)))
                        table = table.append_column(name, column)
                tables.append(table)
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
        self._check_same()
        inferred = {name for one in self._partitions for name in one} - set(text)
        return _with_numbers(table.select([name for name in names if name in table.column_names]), inferred)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches of some columns."""
        with readable(self._path):
            for path in self._files:
                with self._open(path, pre_buffer=False) as file:
                    yield from file.iter_batches(_BATCH, columns=columns, use_threads=False)
        self._check_same()


def _read_columns(file: Any, names: list[str]) -> Any:
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
        columns.append(buffers.one_chunk(pa.chunked_array(chunks, schema.field(name).type)))
        del chunks
    pa.default_memory_pool().release_unused()
    if not names:
        return file.read(columns=[])
    return pa.Table.from_arrays(columns, names)


def _partition(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say, Hive's way: `year=2024`."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return found


def _with_numbers(table: Any, columns: Collection[str]) -> Any:
    """Return a table with whole numbers in those of `columns` that hold nothing else."""
    import pyarrow.compute as pc

    for at, name in enumerate(table.column_names):
        if name in columns and pa.types.is_large_string(table.schema.field(at).type):
            column = table.column(at)
            whole = pc.all(pc.match_substring_regex(pc.drop_null(column), r"^(0|-?[1-9][0-9]{0,17})$")).as_py()
            if whole:
                table = table.set_column(at, name, pc.cast(column, pa.int64()))
    return table


class _ArrowTable(_FileTable):
    """An Arrow file, which is what Feather is, or the stream format, which Hugging Face datasets writes."""

    def __init__(self, path: str) -> None:
        super().__init__(path, [path])
        with self._reader(None) as reader:
            self.schema = reader.schema.remove_metadata()

    @contextmanager
    def _reader(self, columns: list[str] | None, opened: Callable[[str], Any] = pa.OSFile) -> Iterator[Any]:
        with opened(self._path) as file:
            fields = None if columns is None else [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            try:
                reader = pa.ipc.open_file(file, options=options)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file, options=options)
            yield reader

    def read(self, heavy: Collection[str], text: Collection[str]) -> Any:  # noqa: ARG002 - it has its types
        """Return all columns but the `heavy` ones."""
        with readable(self._path), self._reader([name for name in self.schema.names if name not in heavy]) as reader:
            table = reader.read_all()
        self._check_same()
        return table

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches of some columns."""
        with readable(self._path), self._reader(columns, pa.memory_map) as reader:  # a batch may be the whole file
            if isinstance(reader, pa.RecordBatchFileReader):
                for at in range(reader.num_record_batches):
                    yield reader.get_batch(at)
            else:
                yield from reader
        self._check_same()


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
            table = DelimitedTable(name, lambda: io.BytesIO(data), separator)
        return _TextTable(_STDIN, ".", table)
    if usual and b"\0" not in data:  # a column of paths with its header
        data = rest
    return MemoryTable(name, ".", read_list(name, data, "path"), _STDIN)


def _in_memory(source: Any) -> MemoryTable:
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


def _from_pandas(name: str, frame: Any) -> Any:
    """Return a DataFrame as Arrow; an index with names is columns, any other is left out.

    Raises:
        InvalidRequest: A column holds values of several types.
    """
    columns = [str(column) for column in frame.columns]
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise InvalidRequest(name, f"columns of the same name: {listing(twice)}", remedy="Rename them.")
    keep = all(level is not None for level in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=keep).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        for at, column in enumerate(columns):
            _check_values(name, column, frame.iloc[:, at])
        raise


def _check_values(name: str, column: str, values: Any) -> None:
    """Refuse a column of a DataFrame that Arrow cannot hold."""
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        kinds: dict[str, list[int]] = {}
        for row, (value, missing) in enumerate(zip(values.tolist(), values.isna(), strict=True), 1):
            if not missing:
                kinds.setdefault(type(value).__name__, []).append(row)
        if len(kinds) > 1:
            raise mixed_types(name, column, kinds) from None
        held = printable(next(iter(kinds), "nothing"))
        raise InvalidRequest(
            name, f"column {column!r} holds {held} in {counted(len(values), 'row')}", expected="values that Arrow knows"
        ) from None  # fmt: skip
