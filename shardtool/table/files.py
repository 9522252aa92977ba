"""Tables in files of columns: Parquet, and Arrow's own formats.

Light columns are read whole, and again only the columns of bytes, a batch at a time.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, SampleFailed, is_out_of_memory, listing
from shardtool.storage import places
from shardtool.storage.reading import file_stat
from shardtool.storage.sources import object_fact, open_object
from shardtool.table import arrays
from shardtool.table.text import numbers_of
from shardtool.values import to_bytes
from shardtool.wording import create_again

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import pyarrow.parquet as pq

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
    if places.is_url(path):
        return (0, *object_fact(to_bytes(path)))
    fact = file_stat(path)
    return fact.st_ino, fact.st_size, fact.st_mtime_ns


class _Files:
    """A table of files that are read again for their bytes; they must stay as they are meanwhile."""

    def __init__(self, path: str, files: list[str]) -> None:
        self.name, self.where, self.folder = base_name(path), path, folder_of(path)
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
                        table = table.append_column(name, arrays.texts([partition[name]]).take(same))
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
        columns.append(arrays.one_chunk(pa.chunked_array(chunks, schema.field(name).type)))
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
