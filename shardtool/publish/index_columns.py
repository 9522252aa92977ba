"""Copy fields of existing shards into metadata columns of their sidecars (`index --columns-from`)."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.dataset.sidecar_read import parse_sidecar
from shardtool.dataset.sidecar_schema import SIDECAR_SCHEMA
from shardtool.dataset.sidecar_write import encode_sidecar
from shardtool.entries.arrow import boolean_array, to_one_chunk
from shardtool.entries.metadata_columns import with_column
from shardtool.errors import InvalidRequest, OutputExists, SampleFailed, format_list, printable
from shardtool.fingerprint import crc32c
from shardtool.messages import flag_text, option_text
from shardtool.names import to_local_name
from shardtool.publish.publication import Publication
from shardtool.source.json_columns import add_json_columns
from shardtool.source.shard_listing import list_datasets
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Notes
    from shardtool.storage.folders import OutputFolder


def add_columns(
    folder: OutputFolder, name: str, fields: Sequence[str], pool: Pool, notes: Notes, *, overwrite: bool
) -> tuple[tuple[str, ...], set[int]]:
    """Add fields as columns to the sidecars. Return the column names, and the numbers of shards with changed sidecars.

    Raises:
        SampleFailed: The value of a field is not a JSON object, a number or a short text.
        OutputExists: The dataset file or a sidecar is a symbolic link, or a sidecar has such a column with other
            values. Nothing was changed.
    """
    path = folder.full_path(name)
    _check_no_link(path)
    file = parse_dataset(folder.read(name), path)
    for entry in file.shards:
        _check_no_link(folder.full_path(entry.sidecar))
    columns, shard_numbers = _read_columns(path, fields, pool, notes)
    firsts = np.searchsorted(shard_numbers, np.arange(len(file.shards) + 1))
    parts = [columns.slice(first, last - first) for first, last in pairwise(firsts)]
    changed = {
        number
        for number, (part, index) in enumerate(zip(parts, _read_sidecars(folder, file), strict=True))
        if not _check_stored_columns(folder.full_path(file.shards[number].sidecar), index, part, overwrite=overwrite)
    }
    if not changed:
        return tuple(columns.column_names), changed
    publication = Publication(folder, name, old="keep")
    entries, schema = [*file.shards], {**file.schema}
    for number, index in enumerate(_read_sidecars(folder, file)):
        if number in changed:
            data, types = encode_sidecar(_with_columns(index, parts[number]), index.facts)
            publication.replace_sidecars({to_local_name(entries[number].name): data})
            entries[number] = replace(entries[number], sidecar_size=len(data), sidecar_crc=crc32c(data))
            schema.update({column: types[column] for column in columns.column_names})
    publication.finish(replace(file, shards=tuple(entries), schema=schema).encode())
    return tuple(columns.column_names), changed


def _check_no_link(path: str) -> None:
    if os.path.islink(path):
        remedy = "Use the dataset that contains the file itself."
        raise OutputExists(path, "a symbolic link", expected="a regular file", remedy=remedy)


def _read_columns(path: str, fields: Sequence[str], pool: Pool, notes: Notes) -> tuple[pa.Table, np.ndarray]:
    listed = list_datasets([path], pool, notes.observer, to_format="tar", only=fields)
    listed, columns = replace(listed, entries=replace(listed.entries, metadata=None), notes=()), None
    for field in dict.fromkeys(fields):
        added = add_json_columns(listed, field, pool)
        if added.skipped:
            failed = [f"{printable(row.key)} ({row.message})" for row in added.skipped]
            found = f"{pluralize(len(failed), 'sample')} without a value to store: {format_list(failed, 3)}"
            remedy = f"Omit the field from {option_text('columns_from')}. Nothing was changed."
            raise SampleFailed(path, found, remedy=remedy)
        notes.add(*added.notes)
        table: Any = added.entries.metadata
        for name in table.column_names:
            if columns is not None and name in columns.column_names:
                found = f"field {field!r} and another field both contain a value named {name!r}"
                remedy = "Add the columns of only one of these fields."
                raise InvalidRequest(option_text("columns_from"), found, expected="different names", remedy=remedy)
            columns = with_column(columns, name, to_one_chunk(table.column(name)))
    return columns, listed.entries.known_spans.file


def _read_sidecars(folder: OutputFolder, file: DatasetFile) -> Iterator[ShardIndex]:
    for entry in file.shards:
        yield parse_sidecar(folder.read(entry.sidecar), folder.full_path(entry.sidecar), entry.size)


def _check_stored_columns(path: str, index: ShardIndex, columns: pa.Table, *, overwrite: bool) -> bool:
    """Return whether a sidecar contains `columns`. Without `overwrite`, raise an error if other values are stored."""
    metadata, differing = index.plain_metadata(), []
    existing = [name for name in columns.column_names if name in metadata.column_names]
    for name in existing:
        old, new = metadata.column(name), columns.column(name)
        try:
            # Two columns of the type null contain only nulls, so they are equal.
            same = pc.fill_null(pc.equal(old, new.cast(old.type)), old.type == pa.null())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # the values cannot be converted to the column's type
            same = boolean_array(np.zeros(len(old), bool))
        wrong = pc.and_(pc.is_valid(old), pc.invert(same))
        if pc.any(wrong).as_py() and not overwrite:
            row = np.flatnonzero(wrong)[:1]
            found = f"column {name!r} exists, with other values than the field in "
            found += f"{pluralize(pc.sum(wrong).as_py(), 'sample')}, such as {printable(index.keys_of(row)[0])}"
            remedy = f"To replace the column, use {flag_text('overwrite')}."
            raise OutputExists(path, found, expected="no such column, or the values of the field", remedy=remedy)
        if not pc.all(pc.or_(same, pc.and_(pc.is_null(old), pc.is_null(new)))).as_py():
            differing.append(name)
    return len(existing) == columns.num_columns and not differing


def _with_columns(index: ShardIndex, columns: pa.Table) -> ShardIndex:
    metadata: Any = index.plain_metadata() if index.metadata.num_columns else None
    for name in columns.column_names:
        metadata = with_column(metadata, name, to_one_chunk(columns.column(name)))
    own = [index.schema.field(name) for name in SIDECAR_SCHEMA.names]
    return replace(index, metadata=metadata, schema=pa.schema([*own, *metadata.schema]))
