"""The columns of a catalog's sidecars: as one table, and the samples that a query takes."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.opened import count_samples, read_part, sidecar_schema
from shardtool.dataset.sidecar import UNREAD, with_shard
from shardtool.errors import printable
from shardtool.select.asked import asked_table
from shardtool.select.query import matching
from shardtool.values import output_text

if TYPE_CHECKING:
    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedIndex, OpenedShard
    from shardtool.reading.catalog import Catalog

    Numbers = NDArray[np.int64]


def schema_of(catalog: Catalog) -> pa.Schema:
    """Return the columns of all sidecars and their types: where one shard has a wider one, that."""
    first, found = 0, [with_shard(UNREAD)]
    for origin in catalog.origins:
        places = sorted({0, *origin.appends}) if origin.listed else range(origin.shards)
        found += [sidecar_schema(catalog.shards[first + place]) for place in places]
        first += origin.shards
    own, metadata = found[0], [pa.schema([one for one in schema if not one.name.startswith("__")]) for schema in found]
    return pa.schema([*own, *pa.unify_schemas(metadata, promote_options="permissive")])


def metadata_schema(catalog: Catalog) -> pa.Schema:
    """Return the columns of metadata of all sidecars and their types."""
    return pa.schema([one for one in schema_of(catalog) if not one.name.startswith("__")])


def matching_rows(catalog: Catalog, chosen: Numbers | None, query: str) -> Numbers:
    """Return the numbers of the samples for which a query is true, in their order; a shard at a time.

    Raises:
        InvalidRequest: It is no query.
        CorruptShard: A shard has no sound sidecar, and is damaged.
    """
    columns = metadata_schema(catalog).names
    found = [np.zeros(0, np.int64)]
    shards = range(len(catalog.shards)) if chosen is None else np.unique(catalog.places(chosen)[0]).tolist()
    for shard in shards:
        part = _part(catalog.shards[shard])
        found.append(matching(asked_table(catalog.shards[shard], part, columns), query) + catalog.firsts[shard])
    taken = np.concatenate(found)
    return taken if chosen is None else chosen[np.isin(chosen, taken)]


def table_of(catalog: Catalog, chosen: Numbers | None) -> pads.Dataset:
    """Return the sidecars as one table; of chosen samples, their rows, in memory."""
    import pyarrow.dataset as pads

    schema = schema_of(catalog)
    if chosen is not None:
        return pads.dataset(_rows(catalog, chosen, schema))
    parts = []
    for has_sidecar, group in groupby(catalog.shards, lambda shard: count_samples(shard) is not None):
        if has_sidecar:
            parts.append(pads.dataset([shard.sidecar for shard in group], schema=schema, format="parquet"))
        else:
            parts.append(pads.dataset(pa.concat_tables([whole_table(shard, schema) for shard in group])))
    return parts[0] if len(parts) == 1 else pads.dataset(parts)


def _rows(catalog: Catalog, chosen: Numbers, schema: pa.Schema) -> pa.Table:
    parts, places = [schema.empty_table()], [np.zeros(0, np.int64)]
    for shard, rows, which in catalog.by_shard(chosen):
        parts.append(whole_table(catalog.shards[shard], schema).take(pa.array(rows)))
        places.append(which)
    found, order = pa.concat_tables(parts), np.concatenate(places)
    return found if (np.diff(order) == 1).all() else found.take(pa.array(np.argsort(order)))


def whole_table(shard: OpenedShard, schema: pa.Schema) -> pa.Table:
    """Return the table of a shard's sidecar, with the columns of all."""
    part = _part(shard)
    columns = {name: part.table.column(name) for name in part.table.column_names}
    columns["__shard__"] = pa.array([output_text(shard.name)] * part.samples, pa.string())
    found = [columns.get(one.name, pa.nulls(part.samples, one.type)) for one in schema]
    return pa.table([pc.cast(column, one.type) for column, one in zip(found, schema, strict=True)], schema=schema)


def _part(shard: OpenedShard) -> OpenedIndex:
    part, of_sidecar = read_part(shard, metadata=True), printable(shard.sidecar)
    for error in part.damage if part.walked else ():
        if error.where != of_sidecar:
            raise error
    return part
