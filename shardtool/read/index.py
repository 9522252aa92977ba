"""Where the samples of each shard lie, as columns: read when a shard is first needed, and shared between processes.

A sidecar is read once, by the process that needs it first, which leaves its columns in the catalog's `SharedBlocks`:
other processes, and later rounds of a stream, map them from there. So an index takes no memory of a process, except
where there are no shared blocks: each process then keeps as many indexes as there is room for.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.opened import FIELDS, count_samples, file_size, read_part, read_rows, sidecar_schema
from shardtool.dataset.sidecar import UNREAD, with_shard
from shardtool.errors import CorruptShard, printable
from shardtool.read.shard_index import ShardIndex
from shardtool.select.query import matching
from shardtool.storage.places import is_url
from shardtool.storage.shared import ForkLock
from shardtool.values import counted, output_text
from shardtool.wording import made_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedIndex, OpenedRows, OpenedShard
    from shardtool.read.catalog import Catalog, CatalogDataset

    Numbers = NDArray[np.int64]


# What a query can ask of samples that lie in shards: the columns of sidecars, and a few that follow from them.


def asked_table(shard: OpenedShard, part: OpenedIndex, columns: Iterable[str]) -> pa.Table:
    """Return what can be asked of a shard's samples, as of those of `reshard` (`select.order.table_of`).

    Args:
        shard: The shard.
        part: Its index, with metadata.
        columns: Those of other shards, too: where this one lacks them, they are null.
    """
    table = part.table.select([name for name in part.table.column_names if not name.startswith("__")])
    for name in sorted({*columns}.difference(table.column_names)):
        table = table.append_column(name, pa.nulls(part.samples))
    starts = part.starts()
    sums = np.concatenate(([0], np.cumsum(part.fields().field("length").to_numpy()))).astype(np.int64)
    own: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: part.table.column("__key__"),
        "shard": lambda: pa.array([printable(shard.name)] * part.samples, pa.string()),
        "size": lambda: pa.array(np.diff(sums[starts]) if part.samples else np.zeros(0, np.int64)),
        "fields": lambda: pc.list_value_length(part.table.column(FIELDS)).cast(pa.int64()),
    }
    for name, make in own.items():
        if name not in table.column_names:
            table = table.append_column(name, make())
    return table


# The columns of a catalog's sidecars: as one table, and the samples that a query takes.


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


_ROOM = 2**25  # bytes of indexes that a process looks at, or keeps where there are no shared blocks
_MOST_KEPT = 4096  # indexes, each with a few arrays
_VERIFY = "Run `shardtool verify`."
_log = logging.getLogger("shardtool")


@dataclass(slots=True)
class _IndexAtHand:
    """An index that is at hand, and when this process last looked at it for the first time: see `IndexStore._look`."""

    index: ShardIndex
    seen: int


class IndexStore:
    """The indexes of a catalog's shards; safe in threads and after a fork, and picklable without them.

    Args:
        catalog: Whose.
        given_back: Called when indexes, or their pages, are no longer kept: who keeps some at hand lets them go.
    """

    def __init__(self, catalog: Catalog, given_back: Callable[[], None] | None = None) -> None:
        self._catalog, self._given_back = catalog, given_back
        self._kept: OrderedDict[int, _IndexAtHand] = OrderedDict()
        self._looked_at = self._turn = 0
        self._tables: OrderedDict[int, pa.Table] = OrderedDict()
        self._schema: pa.Schema | None = None
        self._lock = ForkLock()

    def __reduce__(self) -> tuple[type[IndexStore], tuple[Catalog]]:
        return IndexStore, (self._catalog,)

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard, by its place in the catalog.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be read; or it has other samples than the
                dataset file says.
        """
        with self._lock:
            kept = self._kept.get(shard)
            if kept is not None:
                self._look(shard, kept)
                return kept.index
        block = self._catalog.shared.read(shard)
        if block is not None:
            return self._keep(shard, ShardIndex.unpacked(block))
        return self.add(shard, read_index(self._catalog, shard))

    def metadata(self, shard: int) -> pa.Table:
        """Return the metadata of a shard's samples: the columns of all sidecars, null where this one lacks them.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be read.
        """
        with self._lock:
            found = self._tables.get(shard)
            if found is not None:
                self._tables.move_to_end(shard)
                return found
            schema = self._schema
        if schema is None:
            schema = self._schema = metadata_schema(self._catalog)
        found = whole_table(self._catalog.shards[shard], schema)
        with self._lock:
            self._tables[shard] = found
            while sum(table.nbytes for table in self._tables.values()) > _ROOM and len(self._tables) > 1:
                self._tables.popitem(last=False)
        return found

    def add(self, shard: int, index: ShardIndex) -> ShardIndex:
        """Keep an index that was just read, for this process and others; return it as it is kept."""
        return self._keep(shard, index.put_into(self._catalog.shared, shard))

    def _keep(self, shard: int, index: ShardIndex) -> ShardIndex:
        with self._lock:
            kept = self._kept.setdefault(shard, _IndexAtHand(index, -1))
            self._look(shard, kept)
        return kept.index

    def _look(self, shard: int, kept: _IndexAtHand) -> None:
        """Note that an index is looked at. Where that makes too many, pages go back to the system, or indexes go."""
        self._kept.move_to_end(shard)
        if kept.seen != self._turn:
            kept.seen, self._looked_at = self._turn, self._looked_at + kept.index.nbytes
        if kept.index.is_shared:
            if self._looked_at > _ROOM:
                self._catalog.shared.let_go()
                self._looked_at, self._turn = 0, self._turn + 1
                self._let_go()
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
                self._let_go()
            return
        while self._looked_at > _ROOM and len(self._kept) > 1:
            self._looked_at -= self._kept.popitem(last=False)[1].index.nbytes
            self._let_go()

    def _let_go(self) -> None:
        if self._given_back is not None:
            self._given_back()


def read_index(catalog: Catalog, number: int) -> ShardIndex:
    """Return the index of a shard: its sidecar, or what a walk finds.

    Raises:
        CorruptShard: There is no sound sidecar, and the shard is damaged; or it has other samples than the dataset
            file says.
    """
    shard, origin = catalog.shards[number], catalog.origin(number)
    if origin.listed:
        _check_size(shard, int(catalog.sizes[number]))
    found = read_rows(shard)
    if found.walked:
        _look_at_walk(shard, found, origin)
    samples, expected = len(found.rows.counts), int(catalog.firsts[number + 1] - catalog.firsts[number])
    if samples != expected:
        raise _other_samples(shard, samples, expected)
    crc = int(catalog.crcs[number])
    if found.crc is not None and crc not in (found.crc, -1):
        what = f"the checksum {found.crc:08x}, as its sidecar says"
        expected_crc = f"{crc:08x}, as when the dataset was opened"
        raise CorruptShard(shard.path, what, expected=expected_crc, remedy="Was it replaced? Open the dataset again.")
    return ShardIndex.of(found.rows, found.kinds)


def _other_samples(shard: OpenedShard, found: int, expected: int) -> CorruptShard:
    what = f"{expected:,}, as when the dataset was opened, or as its dataset file says"
    return CorruptShard(shard.path, counted(found, "sample"), expected=what, remedy=_VERIFY)


def _check_size(shard: OpenedShard, expected: int) -> None:
    if is_url(shard.path):
        return  # it has that size, or the first read of it fails
    size = file_size(shard.path)  # of one that is missing, what opens it says more
    if size is not None and size != expected:
        found = f"{size:,} bytes"
        raise CorruptShard(shard.path, found, expected=f"{expected:,}, as the dataset file says", remedy=_VERIFY)


def _look_at_walk(shard: OpenedShard, found: OpenedRows, origin: CatalogDataset) -> None:
    """Raise what ended a walk, and say of a sidecar that should be there that it is not."""
    if not origin.walks:
        raise found.damage or CorruptShard(shard.sidecar, "missing", remedy=made_again())
    if found.error is not None:
        raise found.error
    if origin.listed or found.damage is not None:
        problem = "missing" if found.damage is None else found.damage.found
        _log.warning("%s: %s; its shard was walked instead. `shardtool index` makes it again.", shard.sidecar, problem)
