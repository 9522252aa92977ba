"""Read Parquet, Feather and Arrow files.

Byte columns are read twice: first to plan shards, then to write them. The files must not change in between.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, SampleFailed, format_list
from shardtool.messages import resume_hint
from shardtool.storage import remote
from shardtool.storage.files import files_at, map_paths
from shardtool.storage.remote import address
from shardtool.table.base import Table, dataset_classes, parse_numbers, reading_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import pyarrow.parquet as pq


_BUFFER_BYTES = 2**20  # without a limit, pyarrow reads a whole column of a row group
_BATCH_ROWS = 64


def _arrow_input(path: str) -> pa.NativeFile | str:
    return pa.PythonFile(remote.objects.open_object(path), "r") if address.is_url(path) else path


def _file_stat(path: str) -> tuple[int, int, int]:
    info = files_at(path).info(path)
    return getattr(info, "st_ino", 0), info.st_size, info.st_mtime_ns


class _FileTable(Table):
    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path)
        self._files = files
        self._file_stats = self._stat_files()

    def _stat_files(self) -> list[tuple[int, int, int]]:
        return list(map_paths(_file_stat, self._files))

    def _check_same(self) -> None:
        is_same = False
        with suppress(OSError):
            is_same = self._stat_files() == self._file_stats
        if not is_same:
            expected = "a table that does not change during the run"
            remedy = f"Run again; {resume_hint()} keeps the finished shards."
            raise SampleFailed(self.location, "changed while it was read", expected=expected, remedy=remedy)


class ParquetTable(_FileTable):
    """One or more Parquet files. A folder name such as `year=2024` adds a column `year`."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path, files)
        self._partitions = [_hive_partition(os.path.relpath(file, path)) for file in files] if files != [path] else [{}]
        with reading_table(path):
            schemas = [file.schema_arrow for _, file in self._open_files()]
            self.classes, schema = dataset_classes(schemas[0]), schemas[0].remove_metadata()
            if len(schemas) > 1:
                schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
        for name in sorted({name for partition in self._partitions for name in partition}):
            schema = schema if name in schema.names else schema.append(pa.field(name, pa.string()))
        self.schema = schema

    def _open_files(self, **reading: Any) -> Iterator[tuple[str, pq.ParquetFile]]:
        import pyarrow.parquet as pq

        for path in self._files:
            with pq.ParquetFile(_arrow_input(path), **reading) as file:
                yield path, file

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        partition_columns = [name for name in columns if any(name in partition for partition in self._partitions)]
        tables = []
        with reading_table(self.location):
            for (_, file), partition in zip(self._open_files(pre_buffer=False), self._partitions, strict=True):
                file_columns = [name for name in file.schema_arrow.names if name in columns]
                table = _read_columns(file, file_columns)
                for name in partition_columns:
                    if name in partition and name not in file_columns:
                        zeros = arrow.number_array(np.zeros(table.num_rows, np.int64))
                        table = table.append_column(name, arrow.text_array([partition[name]]).take(zeros))
                tables.append(table)
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
        self._check_same()
        for name in partition_columns:
            index = table.column_names.index(name)
            table = table.set_column(index, name, parse_numbers(table.column(index)))
        return table.select(columns)

    def count(self) -> int:
        with reading_table(self.location):
            return sum(file.metadata.num_rows for _, file in self._open_files())

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with reading_table(self.location):
            for path, file in self._open_files(pre_buffer=False, buffer_size=_BUFFER_BYTES):
                if missing := [name for name in columns if name not in file.schema_arrow.names]:
                    raise InvalidRequest(path, f"no column {format_list([repr(name) for name in missing])}")
                yield from file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False)
        self._check_same()

    def iter_struct_field(self, column: str, field: str) -> Iterator[pa.Array]:
        for _, file in self._open_files(pre_buffer=False):
            for group in range(file.num_row_groups):
                for chunk in file.read_row_group(group, columns=[f"{column}.{field}"], use_threads=False)[0].chunks:
                    yield chunk.flatten()[chunk.type.get_field_index(field)]
        self._check_same()


def _read_columns(file: pq.ParquetFile, names: list[str]) -> pa.Table:
    # Reading one column at a time takes a quarter less memory.
    schema, columns = file.schema_arrow, []
    for name in names:
        groups = [
            file.read_row_group(group_index, columns=[name], use_threads=False).column(name)
            for group_index in range(file.num_row_groups)
        ]
        chunks = [chunk for group in groups for chunk in group.chunks]
        del groups
        columns.append(arrow.to_one_chunk(pa.chunked_array(chunks, schema.field(name).type)))
        del chunks
    pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(columns, names)


def _hive_partition(path: str) -> dict[str, str | None]:
    partition: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            partition[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return partition


class ArrowTable(_FileTable):
    """An Arrow file, such as Feather, or an Arrow stream, such as the files of Hugging Face datasets."""

    def __init__(self, path: str) -> None:
        super().__init__(path, [path])
        with self._reader(None) as reader:
            self.schema, self.classes = reader.schema.remove_metadata(), dataset_classes(reader.schema)

    @contextmanager
    def _reader(
        self, columns: list[str] | None, open_local: Callable[[str], pa.NativeFile] = pa.OSFile
    ) -> Iterator[pa.RecordBatchReader]:
        with open_local(self.location) if isinstance(source := _arrow_input(self.location), str) else source as file:
            fields = None if columns is None else [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            try:
                reader = pa.ipc.open_file(file, options=options)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file, options=options)
            yield reader

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        if not columns:
            return pa.table({})
        with reading_table(self.location), self._reader(columns) as reader:
            table = reader.read_all()
        self._check_same()
        return table

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        # A memory map saves memory, because a batch may be the whole file.
        with reading_table(self.location), self._reader(columns, pa.memory_map) as reader:
            if isinstance(reader, pa.RecordBatchFileReader):
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)
            else:
                yield from reader
        self._check_same()
