"""The index of datasets as one table, Parquet or CSV: all sidecars, with the shard of each sample.

It is written a shard at a time, and appears complete. Columns that a shard lacks are null there.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataset.sidecar_schema import SCHEMA_WITHOUT_CRC, column_types
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.messages import cli_name
from shardtool.names import to_output_name
from shardtool.storage.target_file import create_target
from shardtool.verbs.inspect.find_samples import SelectedShard, decode_dictionary, selected_shards
from shardtool.verbs.inspect.sample_files import check_report_path
from shardtool.verbs.inspect.sample_view import json_value
from shardtool.verbs.inspect.statistics import is_scalar_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.stored import StoredDataset


SHARD_COLUMN = "__shard__"


TABLE_ENDINGS = (".parquet", ".csv")


_ROW_GROUP_ROWS = (
    2**16
)  # that are gathered before they are written, so that many small shards make no many small row groups


def write_table(
    datasets: Sequence[StoredDataset], path: str, *, where: str | None = None, overwrite: bool = False
) -> int:
    """Write a row for each sample: `__key__`, `__shard__` (a path), `__offset__`, `__size__`, `__fields__`, metadata.

    In CSV, what is no number, text, truth or time is JSON.

    Args:
        datasets: In order.
        path: Ends in `.parquet` or `.csv`.
        where: Only samples for which this query is true.
        overwrite: Replace a file that is there.

    Returns:
        How many rows there are.

    Raises:
        InvalidRequest: Another ending, a query that is none or true for no sample, columns that cannot be one.
        OutputExists: There is something already.
        OutputFailed: It cannot be written.
        CorruptShard: A sidecar, or a shard without one, is damaged.
    """
    if not path.endswith(TABLE_ENDINGS):
        raise InvalidRequest(cli_name("table"), path, expected=f"a name that ends in {' or '.join(TABLE_ENDINGS)}")
    for dataset in datasets:
        check_report_path(dataset, path, overwrite=overwrite, ending=os.path.splitext(path)[1])
    from pyarrow import csv, parquet

    schema = _table_schema(datasets)
    rows, is_csv = 0, path.endswith(".csv")
    flat = pa.schema([(one.name, one.type if _is_csv_type(one) else pa.string()) for one in schema])
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
    """Return the table's columns: those of all sidecars."""
    schemas = []
    for dataset in datasets:
        file, shards = dataset.file, dataset.shards
        known = file is not None and column_types(shards[0].schema()) == file.schema
        schemas += [shard.schema() for shard in (shards[:1] if known else shards)]
    metadata = [
        pa.schema([one.with_nullable(nullable=True) for one in schema if one.name[:2] != "__"]) for schema in schemas
    ]
    try:
        merged = pa.unify_schemas(metadata, promote_options="permissive")
    except MemoryError:
        raise
    except pa.ArrowException as error:
        found = str(error).partition("\n")[0]
        raise InvalidRequest(
            cli_name("table"), found, expected="columns of one type", remedy="Make a table each."
        ) from None
    own = [*SCHEMA_WITHOUT_CRC]
    own.insert(1, pa.field(SHARD_COLUMN, pa.dictionary(pa.int32(), pa.string()), nullable=False))
    return pa.schema([*own, *merged])


def _shard_tables(datasets: Sequence[StoredDataset], where: str | None, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows that are asked for, many at a time."""
    held: list[pa.Table] = []
    for piece in selected_shards(datasets, where, metadata=True):
        held.append(_shard_table(piece, schema, every=where is None))
        piece.raise_damage()
        if sum(one.num_rows for one in held) >= _ROW_GROUP_ROWS:
            yield pa.concat_tables(held).unify_dictionaries()
            held = []
    if held:
        yield pa.concat_tables(held).unify_dictionaries()


def _shard_table(piece: SelectedShard, schema: pa.Schema, *, every: bool) -> pa.Table:
    """Return the rows of a shard that are asked for."""
    found = piece.part.table if every else piece.part.table.take(piece.rows)
    rows = found.num_rows
    if more := [name for name in found.column_names if name not in schema.names]:
        raise CorruptShard(piece.shard.sidecar, f"a column that the dataset file does not list: {more[0]}")
    codes = pa.array([0] * rows, pa.int32())
    columns = {one.name: pa.nulls(rows, one.type) for one in schema if one.name not in found.column_names}
    columns |= {name: _cast_column(found.column(name), schema.field(name), piece) for name in found.column_names}
    columns[SHARD_COLUMN] = pa.DictionaryArray.from_arrays(codes, [to_output_name(piece.shard.path)])
    return pa.table(columns, schema=schema)


def _cast_column(column: pa.ChunkedArray, field: pa.Field, piece: SelectedShard) -> pa.ChunkedArray:
    try:
        return decode_dictionary(column).cast(field.type)
    except pa.ArrowInvalid as error:
        found = f"column {field.name}: {str(error)[:200]}"
        raise CorruptShard(piece.shard.sidecar, found, expected=f"{field.type}, as elsewhere") from None


def _flatten_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table as CSV can hold it: what is no number, text, truth or time is JSON."""
    columns = [
        decode_dictionary(column)
        if _is_csv_type(field)
        else pa.array([*map(_json_text, column.to_pylist())], pa.string())
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _is_csv_type(field: pa.Field) -> bool:
    kind = field.type
    return field.name == SHARD_COLUMN or (
        is_scalar_type(kind) and not pa.types.is_time(kind) and not pa.types.is_duration(kind)
    )


def _json_text(value: object) -> str | None:
    found = json_value(value)
    return found if found is None or isinstance(found, str) else json.dumps(found, ensure_ascii=False)
