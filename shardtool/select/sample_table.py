"""The table of sample facts and metadata that queries read, and sorting by its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow, metadata_columns
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, printable
from shardtool.messages import option_text
from shardtool.shard_samples import INLINE
from shardtool.table.columns import is_text_type, missing_name_error
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


def sort_order(values: pa.ChunkedArray, name: str, *, descending: bool = False) -> NDArray[np.int64]:
    """Return the places of values in order; equal ones keep theirs, and nulls and NaN come last, either way.

    Args:
        values: Numbers, text (in the order of its bytes), truths or times.
        name: What the column is called.
        descending: The greatest first.

    Raises:
        InvalidRequest: Values of another type.
    """
    import pyarrow.compute as pc

    kind = arrow.to_plain(values.slice(0, 0)).type
    if pa.types.is_null(kind):
        return np.arange(len(values))
    if not _is_sortable(kind):
        found = f"column {name!r} holds {values.type}"
        raise InvalidRequest(option_text("sort_by"), found, expected="numbers, text, truths or times")
    values = arrow.to_plain(values)
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.nulls(1, kind)[0], values)
    places = pc.sort_indices(values, sort_keys=[("", "descending" if descending else "ascending")])
    return arrow.number_values(places).astype(np.int64)


def _is_sortable(kind: pa.DataType) -> bool:
    times = pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration
    return is_text_type(kind) or metadata_columns.is_number_type(kind) or any(test(kind) for test in times)


def make_sample_table(entries: SampleTable, shards: Sequence[str]) -> pa.Table:
    """Return what can be asked of samples: their metadata and, where it has no such column, facts of our own.

    Of samples in shards these are `key`, `shard` (its name), `size` (bytes of all payloads) and `fields` (how many); of
    files `key`, `path` (of the sample's first file), `folder` (what stands before the key's last slash) and `size`
    (bytes of all its files). About 30 bytes a sample and its key, besides the metadata.

    Args:
        entries: The samples.
        shards: The names of the shards that they lie in; none: they are files.
    """
    keys, sizes, is_file = entries.keys, entries.rows.size, entries.rows.kind != INLINE
    own: dict[str, pa.Array] = {"key": arrow.strip_nuls(keys.span(0, len(keys)), pa.large_string())}
    if shards:
        file = arrow.number_array(entries.known_spans.file.astype(np.int32))
        own["shard"] = pa.DictionaryArray.from_arrays(file, arrow.text_array([*map(printable, shards)]))
    else:
        sizes, files = np.where(is_file, sizes, 0), np.append(np.flatnonzero(is_file), len(is_file))
        first = files[np.searchsorted(files, entries.first[:-1])]
        paths = PackedStrings.of(path for some in chunk_slices(len(first)) for path in entries.paths(first[some]))
        folders = PackedStrings.of(name.rpartition(b"/")[0] for _, some in keys.chunks() for name in some)
        own["path"] = arrow.strip_nuls(paths.data, pa.large_string())
        own["folder"] = arrow.strip_nuls(folders.data, pa.large_string())
    own["size"] = arrow.number_array(np.diff(np.append(0, np.cumsum(sizes))[entries.first]))
    if shards:
        own["fields"] = arrow.number_array(entries.counts())
    table = pa.Table.from_arrays([], names=[]) if entries.metadata is None else entries.metadata
    own = {name: values for name, values in own.items() if name not in table.column_names}
    return pa.Table.from_arrays([*table.columns, *own.values()], names=[*table.column_names, *own])


def table_column(table: pa.Table, name: str, option: str) -> pa.ChunkedArray:
    """Return a column of `table_of`.

    Raises:
        InvalidRequest: There is none of that name, or several.
    """
    at: Sequence[int] = table.schema.get_all_field_indices(name)
    if not at:
        raise missing_name_error("column", option, name, table.column_names)
    if len(at) > 1:
        raise InvalidRequest(option, f"{len(at)} columns {name!r}", expected="one")
    return table.column(at[0])
