"""Write the sidecars of datasets as one Parquet or CSV table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataset.sidecar_schema import SCHEMA_WITHOUT_CRC, column_types
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.messages import cli_name
from shardtool.names import to_output_name
from shardtool.read.metadata import SelectedShard, selected_shards
from shardtool.storage.remote.store_options import without_markers
from shardtool.storage.target_file import create_target
from shardtool.verbs.inspect.samples import check_report_path, json_text
from shardtool.verbs.inspect.summary import is_scalar_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.stored import StoredDataset


SHARD_COLUMN = "__shard__"
TABLE_ENDINGS = (".parquet", ".csv")
# Many small shards must not create many small row groups.
_ROW_GROUP_ROWS = 2**16


def write_table(
    datasets: Sequence[StoredDataset], path: str, *, where: str | None = None, overwrite: bool = False
) -> int:
    """Write the table of `inspect_table`, and return the number of rows."""
    if not path.endswith(TABLE_ENDINGS):
        raise InvalidRequest(cli_name("table"), path, expected=f"a file name ending in {' or '.join(TABLE_ENDINGS)}")
    for dataset in datasets:
        check_report_path(dataset, path, overwrite=overwrite, ending=os.path.splitext(path)[1])
    from pyarrow import csv, parquet

    schema = _table_schema(datasets)
    rows, is_csv = 0, path.endswith(".csv")
    flat = pa.schema([(field.name, field.type if _is_csv_type(field) else pa.string()) for field in schema])
    with create_target(path) as file:
        target = pa.PythonFile(file, "w")
        with (
            csv.CSVWriter(target, flat) if is_csv else parquet.ParquetWriter(target, schema, compression="zstd")
        ) as writer:
            for table in _shard_tables(datasets, where, schema):
                writer.write_table(_flatten_table(table, flat) if is_csv else table)
                rows += table.num_rows
    return rows


def _table_schema(datasets: Sequence[StoredDataset]) -> pa.Schema:
    schemas = []
    for dataset in datasets:
        file, shards = dataset.file, dataset.shards
        is_uniform = file is not None and column_types(shards[0].schema()) == file.schema
        schemas += [shard.schema() for shard in (shards[:1] if is_uniform else shards)]
    metadata = [
        pa.schema([field.with_nullable(nullable=True) for field in schema if field.name[:2] != "__"])
        for schema in schemas
    ]
    try:
        merged = pa.unify_schemas(metadata, promote_options="permissive")
    except MemoryError:
        raise
    except pa.ArrowException as error:
        found = str(error).partition("\n")[0]
        expected, remedy = "columns of one type", "Write one table per dataset."
        raise InvalidRequest(cli_name("table"), found, expected=expected, remedy=remedy) from None
    columns = [*SCHEMA_WITHOUT_CRC]
    columns.insert(1, pa.field(SHARD_COLUMN, pa.dictionary(pa.int32(), pa.string()), nullable=False))
    return pa.schema([*columns, *merged])


def _shard_tables(datasets: Sequence[StoredDataset], where: str | None, schema: pa.Schema) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    for selected in selected_shards(datasets, where, metadata=True):
        pending.append(_shard_table(selected, schema, all_rows=where is None))
        selected.raise_damage()
        if sum(table.num_rows for table in pending) >= _ROW_GROUP_ROWS:
            yield pa.concat_tables(pending).unify_dictionaries()
            pending = []
    if pending:
        yield pa.concat_tables(pending).unify_dictionaries()


def _shard_table(selected: SelectedShard, schema: pa.Schema, *, all_rows: bool) -> pa.Table:
    stored = selected.shard_index.table if all_rows else selected.shard_index.table.take(selected.rows)
    rows = stored.num_rows
    if unlisted := [name for name in stored.column_names if name not in schema.names]:
        raise CorruptShard(selected.shard.sidecar, f"a column that the dataset file does not list: {unlisted[0]}")
    codes = pa.array([0] * rows, pa.int32())
    columns = {field.name: pa.nulls(rows, field.type) for field in schema if field.name not in stored.column_names}
    columns |= {name: _cast_column(stored.column(name), schema.field(name), selected) for name in stored.column_names}
    columns[SHARD_COLUMN] = pa.DictionaryArray.from_arrays(
        codes, [to_output_name(without_markers(selected.shard.path))]
    )
    return pa.table(columns, schema=schema)


def _cast_column(column: pa.ChunkedArray, field: pa.Field, selected: SelectedShard) -> pa.ChunkedArray:
    try:
        return _decode_dictionary(column).cast(field.type)
    except pa.ArrowInvalid as error:
        found = f"column {field.name}: {str(error)[:200]}"
        raise CorruptShard(selected.shard.sidecar, found, expected=f"{field.type}, as in the other shards") from None


def _flatten_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        _decode_dictionary(column)
        if _is_csv_type(field)
        else pa.array([*map(json_text, column.to_pylist())], pa.string())
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_csv_type(field: pa.Field) -> bool:
    kind = field.type
    return field.name == SHARD_COLUMN or (
        is_scalar_type(kind) and not pa.types.is_time(kind) and not pa.types.is_duration(kind)
    )
