"""The metadata columns of a catalog's sidecars: as one table, and the samples that match a query."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.shard_index import ShardIndex, part_ends
from shardtool.dataset.sidecar_schema import SCHEMA_WITHOUT_CRC, with_shard_column
from shardtool.entries.arrow import string_array, to_python_values
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.select.query import match_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredShard
    from shardtool.read.catalog import Catalog

    Numbers = NDArray[np.int64]


def queryable_table(
    shard: StoredShard, part: ShardIndex, columns: Iterable[str], labels: Collection[str] = ()
) -> pa.Table:
    """Return what can be asked of a shard's samples, as of those of `reshard` (`select.order.table_of`).

    Args:
        shard: The shard.
        part: Its index, with metadata.
        columns: Those of other shards, too: where this one lacks them, they are null.
        labels: Those of labels: they are not null, but unknown, where the shard has such a field and no column.
    """
    there = {name: part.metadata.column(name) for name in part.metadata.column_names}
    unknown = {*labels}.intersection(part.names)
    lacking = dict.fromkeys(sorted({*columns}.difference(there, unknown)), pa.nulls(len(part)))
    own = {
        "key": string_array(bytes(part.keys), part.key_sizes),
        "shard": pa.array([printable(shard.file_name)] * len(part), pa.string()),
        "size": pa.array(np.diff(part_ends(part.lengths)[part.firsts])),
        "fields": pa.array(part.counts),
    }
    return pa.table({**there, **lacking, **{name: one for name, one in own.items() if name not in {*there, *lacking}}})


def arrow_schema(catalog: Catalog) -> pa.Schema:
    """Return the columns of all sidecars and their types."""
    return pa.schema([*with_shard_column(SCHEMA_WITHOUT_CRC), *metadata_schema(catalog)])


def metadata_schema(catalog: Catalog) -> pa.Schema:
    """Return the columns of metadata of all sidecars and their types: where one shard has a wider one, that."""
    found = [pa.schema([])]
    for one in catalog.datasets:
        places = sorted({0, *one.appends}) if one.listed else range(len(one.shards))
        schemas = [one.shards[place].schema() for place in places]
        found += [pa.schema([column for column in some if not column.name.startswith("__")]) for some in schemas]
    return pa.unify_schemas(found, promote_options="permissive")


def matching_samples(catalog: Catalog, chosen: Numbers | None, query: str) -> Numbers:
    """Return the numbers of the samples for which a query is true, in their order; a shard at a time.

    Raises:
        InvalidRequest: It is no query.
        CorruptShard: A shard has no sound sidecar, and is damaged.
    """
    columns = metadata_schema(catalog).names
    found = [np.zeros(0, np.int64)]
    shards = range(len(catalog.shards)) if chosen is None else np.unique(catalog.places(chosen)[0]).tolist()
    for shard in shards:
        part = _index_of(catalog.shards[shard])
        table = queryable_table(catalog.shards[shard], part, columns, catalog.classes)
        found.append(match_rows(table, query, catalog.classes) + catalog.firsts[shard])
    taken = np.concatenate(found)
    return taken if chosen is None else chosen[np.isin(chosen, taken)]


def read_column(catalog: Catalog, chosen: Numbers | None, name: str) -> list[Any]:
    """Return a column of metadata, a value a sample, None where a sample has none; a shard at a time.

    Raises:
        InvalidRequest: No sidecar has it.
        CorruptShard: A shard has no sound sidecar, and is damaged.
    """
    there = metadata_schema(catalog)
    if name not in there.names:
        remedy = f"Of a field of numbers or short texts, reshard makes a column: {option_text('columns_from', name)}."
        problem = f"no such column of the sidecars, which have {format_list(there.names)}"
        raise InvalidRequest(f"column {name!r}", problem, remedy=remedy)
    numbers = np.arange(len(catalog)) if chosen is None else chosen
    return [*to_python_values(_read_rows(catalog, numbers, pa.schema([there.field(name)])).column(name))]


def read_table(catalog: Catalog, chosen: Numbers | None) -> pads.Dataset:
    """Return the sidecars as one table; of chosen samples, their rows, in memory."""
    import pyarrow.dataset as pads

    schema = arrow_schema(catalog)
    if chosen is not None:
        return pads.dataset(_read_rows(catalog, chosen, schema))
    parts = []
    for has_sidecar, group in groupby(catalog.shards, lambda shard: shard.head() is not None):
        if has_sidecar:
            parts.append(pads.dataset([shard.sidecar for shard in group], schema=schema, format="parquet"))
        else:
            parts.append(pads.dataset(pa.concat_tables([read_sidecar_table(shard, schema) for shard in group])))
    return parts[0] if len(parts) == 1 else pads.dataset(parts)


def _read_rows(catalog: Catalog, chosen: Numbers, schema: pa.Schema) -> pa.Table:
    parts, places = [schema.empty_table()], [np.zeros(0, np.int64)]
    for shard, rows, which in catalog.group_by_shard(chosen):
        parts.append(read_sidecar_table(catalog.shards[shard], schema).take(pa.array(rows)))
        places.append(which)
    found, order = pa.concat_tables(parts), np.concatenate(places)
    return found if (np.diff(order) == 1).all() else found.take(pa.array(np.argsort(order)))


def read_sidecar_table(shard: StoredShard, schema: pa.Schema) -> pa.Table:
    """Return the table of a shard's sidecar, with the columns of all."""
    part = _index_of(shard)
    columns = {name: part.table.column(name) for name in part.table.column_names}
    columns["__shard__"] = pa.array([shard.name] * len(part), pa.string())
    found = [columns.get(one.name, pa.nulls(len(part), one.type)) for one in schema]
    return pa.table([pc.cast(column, one.type) for column, one in zip(found, schema, strict=True)], schema=schema)


def _index_of(shard: StoredShard) -> ShardIndex:
    part = shard.index(metadata=True)
    if part.error is not None:
        raise part.error
    return part
