"""Read several tables as one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, format_list
from shardtool.storage import paths
from shardtool.table.base import Table
from shardtool.table.delimited import DelimitedTable
from shardtool.table.detect import COMPRESSIONS

FILE_COLUMN = "file"
_MAX_NAMED_FILES = 3


class ConcatenatedTable(Table):
    """Several tables as one table. `folder` is empty if the tables are in different folders."""

    def __init__(self, files: Sequence[str], open_file: Callable[[str], Table]) -> None:
        names = [paths.base_name(file) for file in files]
        unnamed = len(names) - _MAX_NAMED_FILES
        name = ", ".join(names[:_MAX_NAMED_FILES]) + (f" and {unnamed:,} more" if unnamed > 0 else "")
        super().__init__(name, name)
        self._files, self._open_file = files, open_file
        self._tables = [open_file(file) for file in files]
        folders = {table.folder for table in self._tables}
        self.folder = folders.pop() if len(folders) == 1 else ""
        first = self._tables[0]
        self._check_columns()
        schemas = [table.schema for table in self._tables]
        try:
            self.schema = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise self._types_error(schemas) from None
        if any(table.classes != first.classes for table in self._tables):
            raise InvalidRequest(name, "class names differ between the files", expected="the same class names")
        self.classes, self.key_column = first.classes, first.key_column
        self.notes = tuple(note for table in self._tables for note in table.notes)

    def read(self, columns: list[str], text: Collection[str], /) -> pa.Table:
        """Read columns. If a column is text in one file, it is text in the result."""
        tables = self._read_all(columns, text)
        kinds = _types_by_column([table.schema for table in tables])
        if mixed := {name for name in kinds if len(kinds[name]) > 1 and kinds[name] & {"string", "large_string"}}:
            # Open the tables again, because a `DelimitedTable` infers its types only once.
            self._tables = [self._open_file(file) for file in self._files]
            tables = self._read_all(columns, mixed.union(text))
        try:
            return pa.concat_tables(tables, promote_options="permissive").select(columns)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise self._types_error([table.schema for table in tables]) from None

    def count(self) -> int:
        return sum(count for _, count in self.row_counts())

    def row_counts(self) -> list[tuple[str, int]]:
        return [(file, table.count()) for file, table in zip(self._files, self._tables, strict=True)]

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for table in self._tables:
            yield from table.batches(columns)

    def iter_struct_field(self, column: str, field: str) -> Iterator[pa.Array]:
        for table in self._tables:
            yield from table.iter_struct_field(column, field)

    def file_names(self) -> pa.Array:
        """Return each row's file name, without extensions, for the column `FILE_COLUMN`."""
        counts = [count for _, count in self.row_counts()]
        names = arrow.text_array([_name_without_extensions(file) for file in self._files])
        return names.take(arrow.number_array(np.repeat(np.arange(len(counts)), counts)))

    def _read_all(self, columns: list[str], text: Collection[str]) -> list[pa.Table]:
        return [table.read([name for name in table.schema.names if name in columns], text) for table in self._tables]

    def _types_error(self, schemas: Sequence[pa.Schema]) -> InvalidRequest:
        types = {name: sorted(kinds) for name, kinds in _types_by_column(schemas).items() if len(kinds) > 1}
        listed = format_list([f"{name!r} ({', '.join(kinds)})" for name, kinds in types.items()])
        found = f"types differ between the files: {listed}"
        return InvalidRequest(self.location, found, expected="values of one type in each column")

    def _check_columns(self) -> None:
        # Different columns in text files are probably a mistake, so do not fill missing columns with nulls.
        first = self._tables[0]
        for file, table in zip(self._files, self._tables, strict=True):
            differing = sorted({*table.schema.names} ^ {*first.schema.names})
            if isinstance(table, DelimitedTable) and differing:
                found = f"columns differ from those of {first.location}: {format_list(differing)}"
                raise InvalidRequest(file, found, expected="the same columns in each file")


def _types_by_column(schemas: Sequence[pa.Schema]) -> dict[str, set[str]]:
    types: dict[str, set[str]] = {}
    for field in (field for schema in schemas for field in schema):
        types.setdefault(field.name, set()).add(str(field.type))
    return types


def _name_without_extensions(file: str) -> str:
    stem, ending = os.path.splitext(paths.base_name(file))
    return os.path.splitext(stem)[0] if ending.lower() in COMPRESSIONS else stem
