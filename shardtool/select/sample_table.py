"""Create a table of samples for queries, and sort samples by a column of this table."""

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
    """Return the positions that stably sort the values. Nulls and NaN are last in both directions."""
    import pyarrow.compute as pc

    kind = arrow.to_plain(values.slice(0, 0)).type
    if pa.types.is_null(kind):
        return np.arange(len(values))
    if not _is_sortable(kind):
        found = f"column {name!r} holds {values.type}"
        raise InvalidRequest(option_text("sort_by"), found, expected="numbers, text, booleans or times")
    values = arrow.to_plain(values)
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.nulls(1, kind)[0], values)
    order = pc.sort_indices(values, sort_keys=[("", "descending" if descending else "ascending")])
    return arrow.number_values(order).astype(np.int64)


def _is_sortable(kind: pa.DataType) -> bool:
    times = pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration
    return is_text_type(kind) or metadata_columns.is_number_type(kind) or any(test(kind) for test in times)


def make_sample_table(entries: SampleTable, shards: Sequence[str]) -> pa.Table:
    """Return a table with one row per sample, for queries.

    The table has the metadata columns, `key`, and `size` (total bytes). For samples in shards, the table also has
    `shard` (a file name) and `fields` (the number of fields). If `shards` is empty, the samples are in a folder: `size`
    counts only files, and the table also has `path` (first file or "") and `folder` (the key up to its last slash).
    """
    import pyarrow.compute as pc

    keys, sizes, is_file = entries.keys, entries.rows.size, entries.rows.kind != INLINE
    properties: dict[str, pa.Array] = {"key": arrow.split_at_nuls(keys.span(0, len(keys)), pa.large_string())}
    if shards:
        file = arrow.number_array(entries.known_spans.file.astype(np.int32))
        properties["shard"] = pa.DictionaryArray.from_arrays(file, arrow.text_array([*map(printable, shards)]))
    else:
        sizes, files = np.where(is_file, sizes, 0), np.append(np.flatnonzero(is_file), len(is_file))
        first = files[np.searchsorted(files, entries.first_rows[:-1])]
        has_file = first < entries.first_rows[1:]
        first[~has_file] = 0
        paths = PackedStrings.of(path for chunk in chunk_slices(len(first)) for path in entries.paths(first[chunk]))
        folders = PackedStrings.of(name.rpartition(b"/")[0] for _, chunk in keys.chunks() for name in chunk)
        path_texts = arrow.split_at_nuls(paths.data, pa.large_string())
        properties["path"] = pc.if_else(arrow.boolean_array(has_file), path_texts, arrow.text_scalar(""))
        properties["folder"] = arrow.split_at_nuls(folders.data, pa.large_string())
    properties["size"] = arrow.number_array(np.diff(np.append(0, np.cumsum(sizes))[entries.first_rows]))
    if shards:
        properties["fields"] = arrow.number_array(entries.counts())
    table = pa.Table.from_arrays([], names=[]) if entries.metadata is None else entries.metadata
    properties = {name: values for name, values in properties.items() if name not in table.column_names}
    return pa.Table.from_arrays([*table.columns, *properties.values()], names=[*table.column_names, *properties])


def table_column(table: pa.Table, name: str, option: str) -> pa.ChunkedArray:
    """Return a column. Raise an error about `option` unless exactly one column has this name."""
    indices: Sequence[int] = table.schema.get_all_field_indices(name)
    if not indices:
        raise missing_name_error("column", option, name, table.column_names)
    if len(indices) > 1:
        raise InvalidRequest(option, f"{len(indices)} columns {name!r}", expected="one")
    return table.column(indices[0])
