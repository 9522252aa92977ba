"""Parquet, Feather and Arrow files.

Light columns are read whole. Columns of bytes are read again later, a batch at a time; the files must not change
meanwhile.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, SampleFailed, format_list
from shardtool.messages import resume_hint
from shardtool.storage import lookup
from shardtool.storage.files import open_object
from shardtool.storage.lookup import file_info
from shardtool.storage.remote import address
from shardtool.table.base import Table, dataset_classes, parse_numbers, reading_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import pyarrow.parquet as pq


_BUFFER_BYTES = 2**20  # of a file: without one, pyarrow reads a whole column of a row group at once


_BATCH_ROWS = 64  # rows of bytes at a time; a page of them, which is what a writer made it, is in memory besides


def arrow_input(path: str) -> pa.NativeFile | str:
    """Return what pyarrow can open: a path as it is, and an address as a file."""
    return pa.PythonFile(open_object(path), "r") if address.is_url(path) else path


def _file_stat(path: str) -> tuple[int, int, int]:
    fact = file_info(path)
    return getattr(fact, "st_ino", 0), fact.st_size, fact.st_mtime_ns


class _FileTable(Table):
    """A table of files that are read again for their bytes; they must stay as they are meanwhile."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path)
        self._files = files
        self._facts = self._look()

    def _look(self) -> list[tuple[int, int, int]]:
        return list(lookup.map_paths(_file_stat, self._files))

    def _check_same(self) -> None:
        try:
            same = self._look() == self._facts
        except OSError:
            same = False
        if not same:
            expected = "a table that stays as it was when the run began"
            remedy = f"Run it again; {resume_hint()} keeps what is finished."
            raise SampleFailed(self.where, "changed while it was read", expected=expected, remedy=remedy)


class ParquetTable(_FileTable):
    """A Parquet file, or the files of a folder; parts of their paths such as `year=2024/` are columns."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path, files)
        self._partitions = [_hive_partition(os.path.relpath(file, path)) for file in files] if files != [path] else [{}]
        with reading_table(path):
            schemas = [file.schema_arrow for _, file in self._each()]
            self.classes, schema = dataset_classes(schemas[0]), schemas[0].remove_metadata()
            if len(schemas) > 1:
                schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
        for name in sorted({name for one in self._partitions for name in one}):
            schema = schema if name in schema.names else schema.append(pa.field(name, pa.string()))
        self.schema = schema

    def _each(self, **reading: Any) -> Iterator[tuple[str, pq.ParquetFile]]:
        """Yield the path of each file, and what reads it."""
        import pyarrow.parquet as pq

        for path in self._files:
            with pq.ParquetFile(arrow_input(path), **reading) as file:
                yield path, file

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns."""
        folders = [name for name in columns if any(name in one for one in self._partitions)]
        tables = []
        with reading_table(self.where):
            for (_, file), partition in zip(self._each(pre_buffer=False), self._partitions, strict=True):
                own = [name for name in file.schema_arrow.names if name in columns]
                table = _read_columns(file, own)
                for name in folders:
                    if name in partition and name not in own:
                        same = arrow.number_array(np.zeros(table.num_rows, np.int64))
                        table = table.append_column(name, arrow.text_array([partition[name]]).take(same))
                tables.append(table)
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
        self._check_same()
        for name in folders:
            at = table.column_names.index(name)
            table = table.set_column(at, name, parse_numbers(table.column(at)))
        return table.select(columns)

    def count(self) -> int:
        """Return the number of rows."""
        with reading_table(self.where):
            return sum(file.metadata.num_rows for _, file in self._each())

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns."""
        with reading_table(self.where):
            for path, file in self._each(pre_buffer=False, buffer_size=_BUFFER_BYTES):
                missing = [name for name in columns if name not in file.schema_arrow.names]
                if missing:
                    raise InvalidRequest(path, f"no column {format_list([repr(name) for name in missing])}")
                yield from file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False)
        self._check_same()

    def parts(self, column: str, part: str) -> Iterator[pa.Array]:
        """Yield a part of a column of structs; the others are not read."""
        for _, file in self._each(pre_buffer=False):
            for group in range(file.num_row_groups):
                for chunk in file.read_row_group(group, columns=[f"{column}.{part}"], use_threads=False)[0].chunks:
                    yield chunk.flatten()[chunk.type.get_field_index(part)]
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
        columns.append(arrow.to_one_chunk(pa.chunked_array(chunks, schema.field(name).type)))
        del chunks
    pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(columns, names)


def _hive_partition(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say, Hive's way: `year=2024`."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return found


class ArrowTable(_FileTable):
    """An Arrow file, which is what Feather is, or the stream format, which Hugging Face datasets writes."""

    def __init__(self, path: str) -> None:
        super().__init__(path, [path])
        with self._reader(None) as reader:
            self.schema, self.classes = reader.schema.remove_metadata(), dataset_classes(reader.schema)

    @contextmanager
    def _reader(
        self, columns: list[str] | None, local: Callable[[str], pa.NativeFile] = pa.OSFile
    ) -> Iterator[pa.RecordBatchReader]:
        with local(self.where) if isinstance(found := arrow_input(self.where), str) else found as file:
            fields = None if columns is None else [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            try:
                reader = pa.ipc.open_file(file, options=options)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file, options=options)
            yield reader

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns."""
        if not columns:
            return pa.table({})
        with reading_table(self.where), self._reader(columns) as reader:
            table = reader.read_all()
        self._check_same()
        return table

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns."""
        with reading_table(self.where), self._reader(columns, pa.memory_map) as reader:  # a batch may be the whole file
            if isinstance(reader, pa.RecordBatchFileReader):
                for at in range(reader.num_record_batches):
                    yield reader.get_batch(at)
            else:
                yield from reader
        self._check_same()
