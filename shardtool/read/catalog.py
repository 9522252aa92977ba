"""What is read: the shards of one or several datasets in order, and where the samples of each lie.

A catalog holds nothing for a sample. Where those of a shard lie is read when the shard is first needed, and shared
between processes: by the process that needs it first, which leaves the columns in the catalog's `SharedBlocks`. Others,
and later rounds of a stream, map them from there. So an index takes no memory of a process, except where there are no
shared blocks: each process then keeps as many indexes as there is room for.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.dataset_file import numbers_in
from shardtool.dataset.find import StoredShard, find_dataset, given_datasets, open_dataset, recorded_dots
from shardtool.dataset.shard_index import UNREAD, ShardIndex, ends_of, with_shard
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable, without_secrets
from shardtool.pattern import DATASET_SUFFIX
from shardtool.select.query import matching
from shardtool.storage.places import base_name, folder_of, for_each, is_url
from shardtool.storage.shared import ForkLock, JoinedBlocks, SharedBlocks
from shardtool.values import counted
from shardtool.wording import made_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredDataset
    from shardtool.values import Given, Kind

    Numbers = NDArray[np.int64]

_THREADS = 4  # that walk shards: more than one where a disk is far away
_log = logging.getLogger("shardtool")


@dataclass(frozen=True)
class CatalogDataset:
    """One of the datasets of a catalog.

    Attributes:
        split: Its name among the others: the split that it is, or what its file or folder is called.
        shards: How many it has.
        listed: Whether a dataset file of ours lists them.
        walks: Whether it is known where keys end in the names of members, so that a shard can be walked.
        appends: The places of shards, counted from 0 in the dataset, from which on sidecars may have other columns.
    """

    split: str
    shards: int
    listed: bool
    walks: bool = True
    appends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Catalog:
    """The shards of one or several datasets.

    Attributes:
        name: What was opened, for messages.
        shards: In order.
        firsts: int64 [shards + 1]: the number of each shard's first sample, and how many samples there are.
        sizes: int64 [shards]: bytes.
        fields: How many samples have each field; empty where any dataset does not say so.
        kinds: Field to `int64` or `float`, of TFRecords.
        classes: Field to the names of its class numbers, where all datasets agree.
        fingerprint: Equal for equal samples in an equal order, as far as that is known without reading them.
        lists: Features of TFRecords that are lists of values in every sample.
        content: The content fingerprint, which neither order nor sharding nor format changes; empty if not known.
        key_ranges: The first and the last key of each shard, as a dataset file says; empty texts where none does.
        origins: The datasets, in order.
        parts: The catalog of each of several datasets; empty of one.
        shared: The indexes that were read, shared by all processes; after those of shards, one of keys.
        crcs: int64 [shards]: the CRC-32C of each shard, as a dataset file says; -1 where none does.
    """

    name: str
    shards: tuple[StoredShard, ...] = field(repr=False)
    firsts: NDArray[np.int64] = field(repr=False)
    sizes: NDArray[np.int64] = field(repr=False)
    fields: Mapping[str, int]
    kinds: Mapping[str, Kind]
    classes: Mapping[str, list[str]]
    fingerprint: str
    lists: frozenset[str] = frozenset()
    content: str = ""
    key_ranges: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    origins: tuple[CatalogDataset, ...] = ()
    parts: tuple[Catalog, ...] = field(default=(), repr=False)
    shared: SharedBlocks | JoinedBlocks = field(default_factory=partial(SharedBlocks, 0), repr=False)
    crcs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard of each sample, and its row there.

        Args:
            numbers: int64 [n]: numbers of samples, each below `len`.
        """
        shards = np.searchsorted(self.firsts, numbers, side="right") - 1
        return shards, numbers - self.firsts[shards]

    def by_shard(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each shard that samples lie in: its place, and for each sample its row, and its place in `numbers`."""
        shards, rows = self.places(numbers)
        order = np.argsort(shards, kind="stable")
        for which in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            if len(which):
                yield int(shards[which[0]]), rows[which], which

    def origin(self, shard: int) -> CatalogDataset:
        """Return the dataset of a shard."""
        return self.origins[int(np.searchsorted(self._origin_ends, shard, side="right"))]

    @cached_property
    def _origin_ends(self) -> NDArray[np.int64]:
        return np.cumsum([one.shards for one in self.origins])

    @cached_property
    def is_remote(self) -> bool:
        """Whether any shard lies in a store or behind HTTP."""
        return any(is_url(shard.path) for shard in self.shards)

    @property
    def splits(self) -> Mapping[str, list[Catalog]]:
        """Split to its datasets."""
        found: dict[str, list[Catalog]] = {}
        for one in self.parts or (self,):
            found.setdefault(one.origins[0].split, []).append(one)
        return found

    def bounds(self, split: str) -> list[tuple[int, int]]:
        """Return the number of the first sample of each dataset of a split, and of the one behind its last."""
        ends = [*accumulate((len(one) for one in self.parts or (self,)), initial=0)]
        return [pair for pair, one in zip(pairwise(ends), self.origins, strict=True) if one.split == split]


@dataclass(frozen=True)
class _ShardFacts:
    """What is known of the shards of a dataset: attributes as those of `Catalog`."""

    shards: Sequence[StoredShard]
    counts: Sequence[int]
    sizes: Sequence[int]
    key_ranges: Sequence[tuple[str, str]]
    facts: Sequence[str]
    crcs: Sequence[int | None]
    walks: bool = True


def open_catalog(given: Given) -> Catalog:
    """Return the catalog of all datasets that `given` means.

    Raises:
        InvalidRequest: There are none.
        CorruptShard: A dataset file is damaged, or a shard that has no sidecar cannot be read.
    """
    opened = [open_dataset(one, dots="first") for one in given_datasets(given)]
    if not opened:
        find_dataset(given)
        raise InvalidRequest(str(given), "no dataset")
    for one in opened:
        if one.unlisted:
            _log.warning("%s does not list %s, left out.", one.dataset_file, listing(sorted(one.unlisted)))
    return joined([_catalog(one) for one in map(_anywhere, opened)])


def _anywhere(opened: StoredDataset) -> StoredDataset:
    """Return a dataset whose shards are found from any folder, for programs that go to another one."""
    beside, paths = opened.index_folder, opened.paths
    if all(map(_is_full, paths if beside is None else (beside, *paths))):
        return opened
    here = os.getcwd()
    beside = None if beside is None else os.path.join(here, beside)
    shards = (replace(one, path=os.path.join(here, one.path), index_folder=beside) for one in opened.shards)
    return replace(opened, shards=tuple(shards))


def _is_full(path: str) -> bool:
    return is_url(path) or os.path.isabs(path)


def joined(parts: Sequence[Catalog]) -> Catalog:
    """Return one catalog of all shards of several, one after the other."""
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([np.diff(one.firsts) for one in parts])
    return Catalog(
        name=", ".join(one.name for one in parts),
        shards=tuple(shard for one in parts for shard in one.shards),
        firsts=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        sizes=np.concatenate([one.sizes for one in parts]),
        fields=_summed([one.fields for one in parts]),
        kinds={name: kind for one in parts for name, kind in one.kinds.items()},
        classes=_agreed(one.classes for one in parts),
        fingerprint=_hash(*(one.fingerprint for one in parts)),
        lists=frozenset(name for one in parts for name in one.lists),
        key_ranges=tuple(pair for one in parts for pair in one.key_ranges),
        origins=tuple(origin for one in parts for origin in one.origins),
        parts=tuple(parts),
        shared=JoinedBlocks([(one.shared, len(one.shards)) for one in parts]),
        crcs=np.concatenate([one.crcs for one in parts]),
    )


def _catalog(opened: StoredDataset) -> Catalog:
    file, shared = opened.file, SharedBlocks(len(opened.shards) + 1)
    found = _described(opened, shared)
    content = "" if file is None else file.fingerprint
    features = {} if file is None else file.features
    return Catalog(
        name=without_secrets(opened.dataset_file or listing([*opened.paths, *opened.unlisted], 1)),
        shards=tuple(replace(one, entry=None) for one in found.shards),  # they go to other processes: `firsts` says it
        firsts=np.cumsum([0, *found.counts], dtype=np.int64),
        sizes=np.array(found.sizes, np.int64),
        fields={} if file is None else file.fields,
        kinds=numbers_in(features),
        classes={} if file is None else file.classes,
        fingerprint=_hash(content, str(found.counts), *found.facts),
        lists=frozenset(name for name, one in features.items() if one.is_list),
        content=content,
        key_ranges=tuple(found.key_ranges),
        origins=(_origin(opened, found),),
        shared=shared,
        crcs=np.array([-1 if one is None else one for one in found.crcs], np.int64),
    )


def _described(opened: StoredDataset, shared: SharedBlocks) -> _ShardFacts:
    """Return what the dataset file says of the shards; else what sidecars, and walks over the other shards, say."""
    if opened.file is not None:
        of = opened.file.shards
        return _ShardFacts(
            shards=opened.shards,
            counts=[one.samples for one in of],
            sizes=[one.size for one in of],
            key_ranges=[(one.first_key, one.last_key) for one in of],
            facts=[opened.file.fingerprint, *(f"{one.size} {one.crc} {one.first_key}" for one in of)],
            crcs=[one.crc for one in of],
        )
    shards, heads = opened.shards, [*for_each(StoredShard.head, opened.shards, lambda shard: shard.path)]
    if None in heads:  # keys of shards that are walked end where those of the others do
        dots = recorded_dots(opened)
        shards = tuple(replace(shard, dots=dots) for shard in shards)
    walked = _walk([shard for shard, head in zip(shards, heads, strict=True) if head is None], shared)
    counts = [walked[number] if head is None else head[0] for number, head in enumerate(heads)]
    sizes = [size or 0 for size in for_each(StoredShard.size, shards, lambda shard: shard.path)]
    crcs = [None if head is None else head[1].crc for head in heads]
    facts = [f"{shard.file_name} {size} {crc}" for shard, size, crc in zip(shards, sizes, crcs, strict=True)]
    return _ShardFacts(shards, counts, sizes, [("", "")] * len(counts), facts, crcs, walks=None in heads)


def _walk(shards: list[StoredShard], shared: SharedBlocks) -> dict[int, int]:
    """Walk shards once, for all processes; return how many samples each has, by its number in its dataset."""
    if not shards:
        return {}

    def walk(shard: StoredShard) -> int:
        found = shard.index()
        if found.error is not None:
            raise found.error
        found.for_reading().put_into(shared, shard.number)
        return len(found)

    started = time.monotonic()
    with ThreadPoolExecutor(min(_THREADS, len(shards)), "shardtool-walk") as pool:
        counts = dict(zip((shard.number for shard in shards), pool.map(walk, shards), strict=True))
    _log.warning(
        "%s without a sound sidecar, such as %s: walked in %.1f s. `shardtool index` makes sidecars.",
        counted(len(shards), "shard"), shards[0].file_name, time.monotonic() - started,
    )  # fmt: skip
    return counts


def _origin(opened: StoredDataset, described: _ShardFacts) -> CatalogDataset:
    file = opened.file
    split = file.made.split if file is not None else ""
    if not split:
        where = opened.dataset_file
        path = opened.shards[0].path
        folder = folder_of(path if is_url(path) else os.path.abspath(path))
        split = base_name(where).removesuffix(DATASET_SUFFIX) if where else base_name(folder)
    appends = () if file is None else file.appends
    return CatalogDataset(split, len(opened.shards), listed=file is not None, walks=described.walks, appends=appends)


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return how many samples of several datasets have each field; nothing where that is not known of one."""
    if not all(counts):
        return {}
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _agreed(classes: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Return the classes of all datasets; without those of fields whose numbers mean different things."""
    found: dict[str, list[str]] = {}
    bad: set[str] = set()
    for field_name, names in ((name, names) for one in classes for name, names in one.items()):
        if found.setdefault(field_name, names) != names:
            bad.add(field_name)
    for name in sorted(bad):
        _log.warning("%s: its numbers stand for other classes in another dataset; classes are left out.", name)
    return {name: names for name, names in found.items() if name not in bad}


def _hash(*texts: str) -> str:
    return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


# What a query can ask of samples that lie in shards: the columns of sidecars, and a few that follow from them.


def asked_table(shard: StoredShard, part: ShardIndex, columns: Iterable[str]) -> pa.Table:
    """Return what can be asked of a shard's samples, as of those of `reshard` (`select.order.table_of`).

    Args:
        shard: The shard.
        part: Its index, with metadata.
        columns: Those of other shards, too: where this one lacks them, they are null.
    """
    table = part.table.select([name for name in part.table.column_names if not name.startswith("__")])
    for name in sorted({*columns}.difference(table.column_names)):
        table = table.append_column(name, pa.nulls(len(part)))
    sums = ends_of(part.lengths)
    own: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: part.table.column("__key__"),
        "shard": lambda: pa.array([printable(shard.file_name)] * len(part), pa.string()),
        "size": lambda: pa.array(np.diff(sums[part.firsts])),
        "fields": lambda: pa.array(part.counts),
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
        found += [catalog.shards[first + place].schema() for place in places]
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
    for has_sidecar, group in groupby(catalog.shards, lambda shard: shard.head() is not None):
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


def whole_table(shard: StoredShard, schema: pa.Schema) -> pa.Table:
    """Return the table of a shard's sidecar, with the columns of all."""
    part = _part(shard)
    columns = {name: part.table.column(name) for name in part.table.column_names}
    columns["__shard__"] = pa.array([shard.name] * len(part), pa.string())
    found = [columns.get(one.name, pa.nulls(len(part), one.type)) for one in schema]
    return pa.table([pc.cast(column, one.type) for column, one in zip(found, schema, strict=True)], schema=schema)


def _part(shard: StoredShard) -> ShardIndex:
    part = shard.index(metadata=True)
    if part.error is not None:
        raise part.error
    return part


_ROOM = 2**25  # bytes of indexes that a process looks at, or keeps where there are no shared blocks
_MOST_KEPT = 4096  # indexes, each with a few arrays
_VERIFY = "Run `shardtool verify`."


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
    found = shard.index()
    if found.walk is not None:
        _look_at_walk(shard, found, origin)
    samples, expected = len(found), int(catalog.firsts[number + 1] - catalog.firsts[number])
    if samples != expected:
        raise _other_samples(shard, samples, expected)
    crc = int(catalog.crcs[number])
    if found.fact.crc is not None and crc not in (found.fact.crc, -1):
        what = f"the checksum {found.fact.crc:08x}, as its sidecar says"
        expected_crc = f"{crc:08x}, as when the dataset was opened"
        raise CorruptShard(shard.path, what, expected=expected_crc, remedy="Was it replaced? Open the dataset again.")
    return found.for_reading()


def _other_samples(shard: StoredShard, found: int, expected: int) -> CorruptShard:
    what = f"{expected:,}, as when the dataset was opened, or as its dataset file says"
    return CorruptShard(shard.path, counted(found, "sample"), expected=what, remedy=_VERIFY)


def _check_size(shard: StoredShard, expected: int) -> None:
    if is_url(shard.path):
        return  # it has that size, or the first read of it fails
    size = shard.size()  # of one that is missing, what opens it says more
    if size is not None and size != expected:
        found = f"{size:,} bytes"
        raise CorruptShard(shard.path, found, expected=f"{expected:,}, as the dataset file says", remedy=_VERIFY)


def _look_at_walk(shard: StoredShard, found: ShardIndex, origin: CatalogDataset) -> None:
    """Raise what ended a walk, and say of a sidecar that should be there that it is not."""
    if not origin.walks:
        raise found.damage or CorruptShard(shard.sidecar, "missing", remedy=made_again())
    if found.error is not None:
        raise found.error
    if origin.listed or found.damage is not None:
        problem = "missing" if found.damage is None else found.damage.found
        _log.warning("%s: %s; its shard was walked instead. `shardtool index` makes it again.", shard.sidecar, problem)
