"""The index of datasets as one table, Parquet or CSV: what all sidecars say, and the shard of each sample.

It is written a shard at a time, and appears whole. Columns that a shard lacks are null there.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv, parquet

from shardtool.dataset.shard_index import UNREAD, types_of
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.storage.folders import check_name, target_file
from shardtool.storage.places import is_url
from shardtool.storage.staging import check_target
from shardtool.values import output_text
from shardtool.verbs.inspect.overview import is_plain
from shardtool.verbs.inspect.samples import pieces, plain, texts_of
from shardtool.wording import flag, typed_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.find import StoredDataset
    from shardtool.verbs.inspect.samples import Piece


# Where a report goes: one file, written beside its final name and then renamed, never over a dataset's own.


_FORMS = {
    ".csv": (b'"__key__","__shard__"', b""),
    ".parquet": (b"PAR1", b"__shard__"),
    ".png": (b"\x89PNG\r\n\x1a\n", b""),
    ".html": (b"<!DOCTYPE html>", b'<meta http-equiv="Content-Security-Policy"'),
}


def check_report(dataset: StoredDataset, path: str, *, overwrite: bool, ending: str) -> None:
    """Refuse a path to which no report may be written.

    Args:
        dataset: What it is of.
        path: Where it will be.
        overwrite: Whether it may take the place of another report of its kind.
        ending: `.html`, `.png`, `.csv` or `.parquet`: what it is.

    Raises:
        InvalidRequest: It is no name of a file here or in a store, or one of the dataset's own files.
        OutputExists: There is something already that is not to be replaced.
    """
    check_name(path, f"report{ending}")
    own = [dataset.dataset_file, *(name for shard in dataset.shards for name in (shard.path, shard.sidecar))]
    if _real(path) in {_real(name) for name in own if name}:
        raise InvalidRequest(path, "a file of the dataset itself", remedy="Choose another name.")
    begins, holds = _FORMS[ending]
    check_target(path, overwrite=overwrite, begins=begins, holds=holds, cure=flag("overwrite"))


def _real(path: str) -> str:
    return path if is_url(path) else os.path.realpath(path)


SHARD = "__shard__"
ENDINGS = (".parquet", ".csv")
_ROWS = 2**16  # that are gathered before they are written, so that many small shards make no many small row groups


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
    if not path.endswith(ENDINGS):
        raise InvalidRequest(typed_name("table"), path, expected=f"a name that ends in {' or '.join(ENDINGS)}")
    for dataset in datasets:
        check_report(dataset, path, overwrite=overwrite, ending=os.path.splitext(path)[1])
    schema = _schema(datasets)
    rows, is_csv = 0, path.endswith(".csv")
    flat = pa.schema([(one.name, one.type if _is_flat(one) else pa.string()) for one in schema])
    with target_file(path) as file:
        target = pa.PythonFile(file, "w")
        with (
            csv.CSVWriter(target, flat) if is_csv else parquet.ParquetWriter(target, schema, compression="zstd")
        ) as writer:
            for table in _gathered(_tables(datasets, where, schema)):
                writer.write_table(_flattened(table, flat) if is_csv else table)
                rows += table.num_rows
    return rows


def _schema(datasets: Sequence[StoredDataset]) -> pa.Schema:
    """Return the table's columns: those of all sidecars."""
    schemas = []
    for dataset in datasets:
        first = dataset.shards[0].index().schema
        known = dataset.file is not None and types_of(first) == dataset.file.schema
        rest = () if known else dataset.shards[1:]
        schemas += [first, *(shard.index().schema for shard in rest)]
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
            typed_name("table"), found, expected="columns of one type", remedy="Make a table each."
        ) from None
    own = [*UNREAD]
    own.insert(1, pa.field(SHARD, pa.dictionary(pa.int32(), pa.string()), nullable=False))
    return pa.schema([*own, *merged])


def _tables(datasets: Sequence[StoredDataset], where: str | None, schema: pa.Schema) -> Iterator[pa.Table]:
    for piece in pieces(datasets, where, metadata=True):
        yield _table(piece, schema, every=where is None)
        piece.raise_damage()


def _table(piece: Piece, schema: pa.Schema, *, every: bool) -> pa.Table:
    """Return the rows of a shard that are asked for."""
    found = piece.part.table if every else piece.part.table.take(piece.rows)
    rows = found.num_rows
    if more := [name for name in found.column_names if name not in schema.names]:
        raise CorruptShard(piece.shard.sidecar, f"a column that the dataset file does not list: {more[0]}")
    codes = pa.array([0] * rows, pa.int32())
    columns = []
    for field in schema:
        if field.name == SHARD:
            columns.append(pa.DictionaryArray.from_arrays(codes, [output_text(piece.shard.path)]))
        elif field.name in found.column_names:
            columns.append(_cast(found.column(field.name), field, piece))
        else:
            columns.append(pa.nulls(rows, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, piece: Piece) -> pa.ChunkedArray:
    try:
        return texts_of(column).cast(field.type)
    except pa.ArrowInvalid as error:
        found = f"column {field.name}: {str(error)[:200]}"
        raise CorruptShard(piece.shard.sidecar, found, expected=f"{field.type}, as elsewhere") from None


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables of many rows each."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(one.num_rows for one in held) >= _ROWS:
            yield pa.concat_tables(held).unify_dictionaries()
            held = []
    if held:
        yield pa.concat_tables(held).unify_dictionaries()


def _flattened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table as CSV can hold it: what is no number, text, truth or time is JSON."""
    columns = [
        texts_of(column) if _is_flat(field) else pa.array([*map(_as_text, column.to_pylist())], pa.string())
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _is_flat(field: pa.Field) -> bool:
    kind = field.type
    return field.name == SHARD or (is_plain(kind) and not pa.types.is_time(kind) and not pa.types.is_duration(kind))


def _as_text(value: object) -> str | None:
    found = plain(value)
    return found if found is None or isinstance(found, str) else json.dumps(found, ensure_ascii=False)
