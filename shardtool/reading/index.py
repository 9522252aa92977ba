"""Where the samples of each shard lie, as columns: read when a shard is first needed, and shared between processes.

A sidecar is read once, by the process that needs it first, which leaves its columns in the catalog's `SharedBlocks`:
other processes, and later rounds of a stream, map them from there. So an index takes no memory of a process, except
where there are no shared blocks: each process then keeps as many indexes as there is room for.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.dataset.opened import file_size, read_rows
from shardtool.errors import CorruptShard
from shardtool.reading.shard_index import ShardIndex
from shardtool.reading.tables import metadata_schema, whole_table
from shardtool.storage.forks import ForkLock
from shardtool.storage.places import is_url
from shardtool.values import counted
from shardtool.wording import made_again

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from shardtool.dataset.opened import OpenedRows, OpenedShard
    from shardtool.reading.catalog import Catalog, Origin

_ROOM = 2**25  # bytes of indexes that a process looks at, or keeps where there are no shared blocks
_MOST_KEPT = 4096  # indexes, each with a few arrays
_VERIFY = "Run `shardtool verify`."
_log = logging.getLogger("shardtool")


@dataclass(slots=True)
class _Kept:
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
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
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
            kept = self._kept.setdefault(shard, _Kept(index, -1))
            self._look(shard, kept)
        return kept.index

    def _look(self, shard: int, kept: _Kept) -> None:
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


def _look_at_walk(shard: OpenedShard, found: OpenedRows, origin: Origin) -> None:
    """Raise what ended a walk, and say of a sidecar that should be there that it is not."""
    if not origin.walks:
        raise found.damage or CorruptShard(shard.sidecar, "missing", remedy=made_again())
    if found.error is not None:
        raise found.error
    if origin.listed or found.damage is not None:
        problem = "missing" if found.damage is None else found.damage.found
        _log.warning("%s: %s; its shard was walked instead. `shardtool index` makes it again.", shard.sidecar, problem)
