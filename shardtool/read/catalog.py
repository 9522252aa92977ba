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
import zlib
from bisect import bisect_right
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.dataset_file import agreed_types, numbers_in
from shardtool.dataset.find import StoredDataset, StoredShard, find_dataset, given_datasets, open_dataset, recorded_dots
from shardtool.dataset.shard_index import UNREAD, ShardIndex, ends_of, with_shard
from shardtool.entries.arrow import python_values, string_array
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable, without_secrets
from shardtool.fingerprint import crc32c
from shardtool.pattern import DATASET_SUFFIX
from shardtool.select.query import matching
from shardtool.storage.places import base_name, folder_of, for_each, is_url
from shardtool.storage.remote.blob import together
from shardtool.storage.shared import ForkLock, SharedBlocks
from shardtool.values import Given, Kind, ValueType, counted
from shardtool.wording import made_again, option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]


_THREADS = 4  # that walk shards: more than one where a disk is far away
_log = logging.getLogger("shardtool")


@dataclass(frozen=True)
class Catalog:
    """The shards of one or several datasets.

    Attributes:
        name: What was opened, for messages.
        shards: In order.
        firsts: int64 [shards + 1]: the number of each shard's first sample, and how many samples there are.
        sizes: int64 [shards]: bytes.
        fingerprint: Equal for equal samples in an equal order, as far as that is known without reading them.
        fields: How many samples have each field; empty where any dataset does not say so.
        kinds: Field to `int64` or `float`, of TFRecords.
        classes: Field to the names of its class numbers, where all datasets agree.
        types: Field to what its values were, of which payloads are the texts, where all datasets agree.
        lists: Features of TFRecords that are lists of values in every sample.
        content: The content fingerprint, which neither order nor sharding nor format changes; empty if not known.
        key_ranges: The first and the last key of each shard, as dataset files say; empty where one does not.
        parts: The catalog of each of several datasets; empty of one.
        shared: What processes share: of one dataset, the indexes of its shards that were read, each at its place
            there; after the last shard's, one of keys.
        crcs: int64 [shards]: the CRC-32C of each shard, as a dataset file says; -1 where none does.
        split: Of one dataset, its name among others: the split that it is, or what its file or folder is called.
        listed: Whether dataset files of ours list all shards.
        walks: Whether it is known where keys end in the names of members, so that a shard can be walked.
        appends: Of one dataset, the places of shards from which on sidecars may have other columns.
    """

    name: str
    shards: tuple[StoredShard, ...] = field(repr=False)
    firsts: Numbers = field(repr=False)
    sizes: Numbers = field(repr=False)
    fingerprint: str
    fields: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    classes: Mapping[str, list[str]] = field(default_factory=dict)
    types: Mapping[str, ValueType] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    content: str = ""
    key_ranges: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    parts: tuple[Catalog, ...] = field(default=(), repr=False)
    shared: SharedBlocks = field(default_factory=SharedBlocks, repr=False)
    crcs: Numbers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    split: str = ""
    listed: bool = False
    walks: bool = True
    appends: tuple[int, ...] = ()

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def places(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return the shard of each sample, and its row there.

        Args:
            numbers: int64 [n]: numbers of samples, each below `len`.
        """
        shards = np.searchsorted(self.firsts, numbers, side="right") - 1
        return shards, numbers - self.firsts[shards]

    def by_shard(self, numbers: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yield each shard that samples lie in: its place, their rows, ascending, and their places in `numbers`."""
        order = np.argsort(numbers, kind="stable")
        shards, rows = self.places(numbers[order])
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]
        for first, last in pairwise(cuts):
            if first < last:
                yield int(shards[first]), rows[first:last], order[first:last]

    @property
    def datasets(self) -> tuple[Catalog, ...]:
        """The catalog of each dataset."""
        return self.parts or (self,)

    def dataset(self, shard: int) -> tuple[Catalog, int]:
        """Return the catalog of the dataset that a shard is of, and its place there."""
        for one in self.parts:
            if shard < len(one.shards):
                return one, shard
            shard -= len(one.shards)
        return self, shard

    @cached_property
    def is_remote(self) -> bool:
        """Whether any shard lies in a store or behind HTTP."""
        return any(is_url(shard.path) for shard in self.shards)

    @property
    def splits(self) -> Mapping[str, list[Catalog]]:
        """Split to its datasets."""
        found: dict[str, list[Catalog]] = {}
        for one in self.datasets:
            found.setdefault(one.split, []).append(one)
        return found

    def bounds(self, split: str) -> list[tuple[int, int]]:
        """Return the number of the first sample of each dataset of a split, and of the one behind its last."""
        ends = [*accumulate(map(len, self.datasets), initial=0)]
        return [pair for pair, one in zip(pairwise(ends), self.datasets, strict=True) if one.split == split]


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

    def full(path: str) -> str:
        return path if is_url(path) or os.path.isabs(path) else os.path.join(os.getcwd(), path)

    beside = None if opened.index_folder is None else full(opened.index_folder)
    shards = (replace(one, path=full(one.path), index_folder=beside) for one in opened.shards)
    return replace(opened, shards=tuple(shards))


def joined(parts: Sequence[Catalog]) -> Catalog:
    """Return one catalog of all shards of several, one after the other."""
    if len(parts) == 1:
        return parts[0]
    counts, ranges = [Counter(one.fields) for one in parts], [one.key_ranges for one in parts]
    return Catalog(
        name=", ".join(one.name for one in parts),
        shards=tuple(shard for one in parts for shard in one.shards),
        firsts=ends_of(np.concatenate([np.diff(one.firsts) for one in parts])),
        sizes=np.concatenate([one.sizes for one in parts]),
        fields=dict(sum(counts, Counter[str]())) if all(counts) else {},
        kinds={name: kind for one in parts for name, kind in one.kinds.items()},
        classes=_agreed(one.classes for one in parts),
        types=agreed_types([(one.types, one.fields) for one in parts]),
        fingerprint=_hash(*(one.fingerprint for one in parts)),
        lists=frozenset(name for one in parts for name in one.lists),
        key_ranges=tuple(pair for some in ranges for pair in some) if all(ranges) else (),
        parts=tuple(parts),
        crcs=np.concatenate([one.crcs for one in parts]),
        listed=all(one.listed for one in parts),
    )


def _catalog(opened: StoredDataset) -> Catalog:
    """Return the catalog of one dataset: as its dataset file says, or sidecars, and walks over the other shards."""
    file, shared, shards = opened.file, SharedBlocks(), opened.shards
    entries: Sequence[tuple[int, int, int | None]]  # samples, bytes, CRC-32C
    if file is None:
        heads = [*for_each(StoredShard.head, shards, lambda shard: shard.path)]
        if None in heads:  # keys of shards that are walked end where those of the others do
            shards = opened.with_dots(recorded_dots(opened)).shards
        walked = _walk([shard for shard, head in zip(shards, heads, strict=True) if head is None], shared)
        sizes = for_each(StoredShard.size, shards, lambda shard: shard.path)
        entries = [
            (walked[number], size or 0, None) if head is None else (head[0], size or 0, head[1].crc)
            for number, (head, size) in enumerate(zip(heads, sizes, strict=True))
        ]
        facts = [shard.file_name + f" {size} {crc}" for shard, (_, size, crc) in zip(shards, entries, strict=True)]
        known: dict[str, Any] = {"walks": None in heads}
    else:
        shards = tuple(replace(one, entry=None) for one in shards)  # they go to other processes: `firsts` says it
        entries = [(one.samples, one.size, one.crc) for one in file.shards]
        facts = [file.fingerprint, *(f"{one.size} {one.crc} {one.first_key}" for one in file.shards)]
        known = {name: getattr(file, name) for name in ("fields", "classes", "types", "appends")}
        known |= {"kinds": numbers_in(file.features), "content": file.fingerprint, "listed": True}
        known["lists"] = frozenset(name for name, one in file.features.items() if one.is_list)
        known["key_ranges"] = tuple((one.first_key, one.last_key) for one in file.shards)
    counts = [samples for samples, _, _ in entries]
    return Catalog(
        name=without_secrets(opened.dataset_file or listing([*opened.paths], 1)),
        shards=shards,
        firsts=ends_of(counts),
        sizes=np.array([size for _, size, _ in entries], np.int64),
        fingerprint=_hash(file.fingerprint if file else "", str(counts), *facts),
        shared=shared,
        crcs=np.array([-1 if crc is None else crc for _, _, crc in entries], np.int64),
        split=(file.made.split if file else "") or _called(opened),
        **known,
    )


def _called(opened: StoredDataset) -> str:
    """Return what the dataset file is called, or else the folder of the shards."""
    if opened.dataset_file:
        return base_name(opened.dataset_file).removesuffix(DATASET_SUFFIX)
    path = opened.shards[0].path
    return base_name(folder_of(path if is_url(path) else os.path.abspath(path)))


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
    counts = dict(zip((shard.number for shard in shards), together(walk, shards, _THREADS), strict=True))
    _log.warning(
        "%s without a sound sidecar, such as %s: walked in %.1f s. `shardtool index` makes sidecars.",
        counted(len(shards), "shard"), shards[0].file_name, time.monotonic() - started,
    )  # fmt: skip
    return counts


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


def asked_table(shard: StoredShard, part: ShardIndex, columns: Iterable[str], labels: Collection[str] = ()) -> pa.Table:
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
        "size": pa.array(np.diff(ends_of(part.lengths)[part.firsts])),
        "fields": pa.array(part.counts),
    }
    return pa.table({**there, **lacking, **{name: one for name, one in own.items() if name not in {*there, *lacking}}})


# The columns of a catalog's sidecars: as one table, and the samples that a query takes.


def schema_of(catalog: Catalog) -> pa.Schema:
    """Return the columns of all sidecars and their types."""
    return pa.schema([*with_shard(UNREAD), *metadata_schema(catalog)])


def metadata_schema(catalog: Catalog) -> pa.Schema:
    """Return the columns of metadata of all sidecars and their types: where one shard has a wider one, that."""
    found = [pa.schema([])]
    for one in catalog.datasets:
        places = sorted({0, *one.appends}) if one.listed else range(len(one.shards))
        schemas = [one.shards[place].schema() for place in places]
        found += [pa.schema([column for column in some if not column.name.startswith("__")]) for some in schemas]
    return pa.unify_schemas(found, promote_options="permissive")


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
        table = asked_table(catalog.shards[shard], part, columns, catalog.classes)
        found.append(matching(table, query, catalog.classes) + catalog.firsts[shard])
    taken = np.concatenate(found)
    return taken if chosen is None else chosen[np.isin(chosen, taken)]


def column_of(catalog: Catalog, chosen: Numbers | None, name: str) -> list[Any]:
    """Return a column of metadata, a value a sample, None where a sample has none; a shard at a time.

    Raises:
        InvalidRequest: No sidecar has it.
        CorruptShard: A shard has no sound sidecar, and is damaged.
    """
    there = metadata_schema(catalog)
    if name not in there.names:
        remedy = f"Of a field of numbers or short texts, reshard makes a column: {option('columns_from', name)}."
        problem = f"no such column of the sidecars, which have {listing(there.names)}"
        raise InvalidRequest(f"column {name!r}", problem, remedy=remedy)
    numbers = np.arange(len(catalog)) if chosen is None else chosen
    return [*python_values(_rows(catalog, numbers, pa.schema([there.field(name)])).column(name))]


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
_FEW = 16  # keys that are looked for in a shard one by one
_AT_ONCE = 2**22  # keys that are sorted in memory at a time
_WORD = 8  # bytes of a hash
Key = TypeVar("Key")
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """What was made for keys, and used last; safe in threads and after a fork.

    Args:
        room: How much is kept; a value at least.
        size: How much of that a value takes.
        given_back: Called when something is no longer kept: who keeps some at hand lets it go.
    """

    def __init__(
        self, room: int, size: Callable[[Value], int] = lambda _: 1, given_back: Callable[[], None] = lambda: None
    ) -> None:
        self.room, self._size, self._given_back = room, size, given_back
        self._kept, self._used, self._lock = OrderedDict[Key, Value](), 0, ForkLock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now or before."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()  # meanwhile, another thread may make it, too
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._used += self._size(made)
            found = self._kept[key]
            while self._used > self.room and len(self._kept) > 1:
                self._used -= self._size(self._kept.popitem(last=False)[1])
                self._given_back()
        return found


class IndexStore(Kept[int, ShardIndex]):
    """The indexes of a catalog's shards, and what they say together; picklable without them.

    A key is looked for in the shard whose first and last key, as the dataset file says, lie around it. That keys ascend
    in between is only a guess: what is not found there is looked up in an index of all keys, 12 to 16 bytes a sample:
    their hashes, ascending, and the number of the sample of each. It is built once for all processes when it is first
    needed, and lies in the catalog's shared blocks behind those of shards, or in memory where there is no room for it.

    Args:
        catalog: Whose.
        given_back: Called when indexes, or their pages, are no longer kept.

    Attributes:
        catalog: As given.
    """

    def __init__(self, catalog: Catalog, given_back: Callable[[], None] = lambda: None) -> None:
        super().__init__(_ROOM, lambda one: _ROOM // _MOST_KEPT if one.is_shared else one.nbytes, given_back)
        self.catalog, self._tables = catalog, Kept[int, pa.Table](_ROOM, lambda one: one.nbytes)
        self._seen, self._looked_at = set[int](), 0  # shared indexes that this process has looked at, and their bytes
        self._all_keys: tuple[Hashes, NDArray[np.integer]] | None = None

    def __reduce__(self) -> tuple[type[IndexStore], tuple[Catalog]]:
        return IndexStore, (self.catalog,)

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard, by its place in the catalog.

        Where this makes too many that are shared, their pages go back to the system.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be read; or it has other samples than the
                dataset file says.
        """
        found = self.get(shard, lambda: self._read(shard))
        with self._lock:
            if found.is_shared and shard not in self._seen:
                self._seen.add(shard)
                self._looked_at += found.nbytes
                if self._looked_at > _ROOM:
                    for one in (self.catalog, *self.catalog.parts):
                        one.shared.let_go()
                    self._looked_at = 0
                    self._seen.clear()
                    self._given_back()
        return found

    def _read(self, shard: int) -> ShardIndex:
        dataset, place = self.catalog.dataset(shard)
        if (block := dataset.shared.read(place)) is None:
            return read_index(self.catalog, shard).put_into(dataset.shared, place)
        return ShardIndex.unpacked(block)

    def keys(self, numbers: Numbers) -> list[str]:
        """Return the keys of samples, in the order of their numbers in the argument."""
        found = [""] * len(numbers)
        for shard, rows, which in self.catalog.by_shard(numbers):
            for at, key in zip(which.tolist(), self.index(shard).keys_of(rows), strict=True):
                found[at] = key
        return found

    @cached_property
    def _first_keys(self) -> list[str]:
        """The first key of each shard, where all keys of a shard lie before those of the next; otherwise none."""
        ranges = self.catalog.key_ranges
        ascend = all(first <= last for first, last in ranges)
        ascend = ascend and all(before[1] < after[0] for before, after in pairwise(ranges))
        return [first for first, _ in ranges] if ascend and ("", "") not in ranges else []

    def numbers(self, keys: Sequence[str]) -> Numbers:
        """Return the number of the sample of each key, -1 where there is none: int64 [keys].

        Of several samples with one key, it is always the same one.

        Raises:
            CorruptShard: A shard that had to be looked at has no sound sidecar, and is damaged.
        """
        wanted = [key.encode("utf-8", "surrogatepass") for key in keys]  # half of a pair is in no key
        found = np.full(len(keys), -1, np.int64)
        if self._all_keys is None and self._first_keys:
            self._look_in_ranges(keys, wanted, found)
        left = np.flatnonzero(found < 0)
        if len(left):
            found[left] = self._in_index([wanted[at] for at in left.tolist()])
        return found

    def _look_in_ranges(self, keys: Sequence[str], wanted: list[bytes], found: Numbers) -> None:
        """Fill in the samples that lie in the shard whose first and last key say so."""
        by_shard: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            shard = bisect_right(self._first_keys, key) - 1
            if shard >= 0 and key <= self.catalog.key_ranges[shard][1]:
                by_shard.setdefault(shard, []).append(at)
        for shard, places in sorted(by_shard.items()):
            index, first = self.index(shard), int(self.catalog.firsts[shard])
            if len(places) <= _FEW:
                rows = [index.row_of(wanted[at]) for at in places]
            else:
                of_key = {key: row for row, key in reversed([*enumerate(index.all_keys())])}
                rows = [of_key.get(wanted[at], -1) for at in places]
            found[places] = [row if row < 0 else first + row for row in rows]

    def _in_index(self, keys: list[bytes]) -> Numbers:
        """Return the number of the first sample of each key, -1 where there is none."""
        if self._all_keys is None:
            self._all_keys = self._sorted_keys()
        known, number = self._all_keys
        wanted = hashes(keys)
        at = np.searchsorted(known, wanted)
        found, left = np.full(len(keys), -1, np.int64), np.arange(len(keys))
        while len(left):  # once, but for hashes that several keys share
            left = left[at[left] < len(known)]
            left = left[known[at[left]] == wanted[left]]
            numbers = number[at[left]].astype(np.int64)
            there = zip(self.keys(numbers), left.tolist(), strict=True)
            fits = np.array([key.encode() == keys[one] for key, one in there], np.bool_)
            found[left[fits]] = numbers[fits]
            left = left[~fits]
            at[left] += 1
        return found

    def _sorted_keys(self) -> tuple[Hashes, NDArray[np.integer]]:
        """Return the index of all keys, which the first process that needs it makes."""
        catalog, count = self.catalog, len(self.catalog)
        kind = np.dtype(np.uint32 if count < 2**32 else np.int64)
        size, place = count * (_WORD + kind.itemsize), len(catalog.shards)
        block: memoryview | bytearray | None = catalog.shared.read(place)
        if block is None:
            started = time.monotonic()
            block = catalog.shared.write(place, size, self._parts_of_keys(kind))
            if block is None:
                block = bytearray(size)
                for at, data in self._parts_of_keys(kind):
                    block[at : at + len(data)] = data
            _log.info("an index of %s keys was built in %.1f s", f"{count:,}", time.monotonic() - started)
        return np.frombuffer(block, np.uint64, count), np.frombuffer(block, kind, count, count * _WORD)

    def _parts_of_keys(self, kind: np.dtype[np.integer]) -> Iterator[tuple[int, bytes]]:
        """Yield parts of the block, and where they stand: hashes, and numbers, of so many keys at a time."""
        catalog, count = self.catalog, len(self.catalog)
        everything = _scratch(count)
        for shard, (first, last) in enumerate(pairwise(catalog.firsts.tolist())):
            everything[first:last] = hashes(self.index(shard).all_keys())
        parts, done = -(-count // _AT_ONCE), 0
        for part in range(parts):
            low, high = np.uint64(2**64 * part // parts), np.uint64(2**64 * (part + 1) // parts - 1)
            some = [everything[first : first + _AT_ONCE] for first in range(0, count, _AT_ONCE)]
            rows = [np.flatnonzero((one >= low) & (one <= high)) + at * _AT_ONCE for at, one in enumerate(some)]
            where = np.concatenate(rows)
            found = everything[where]
            order = np.argsort(found, kind="stable")
            yield done * _WORD, found[order].tobytes()
            yield count * _WORD + done * kind.itemsize, where[order].astype(kind).tobytes()
            done += len(where)

    def metadata(self, shard: int) -> pa.Table:
        """Return the metadata of a shard's samples: the columns of all sidecars, null where this one lacks them.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be read.
        """
        return self._tables.get(shard, lambda: whole_table(self.catalog.shards[shard], self._schema))

    @cached_property
    def _schema(self) -> pa.Schema:
        return metadata_schema(self.catalog)


def _scratch(count: int) -> Hashes:
    """Return room for so many hashes: many of them in a temporary file, if there is room for it."""
    from tempfile import TemporaryFile

    if count > _AT_ONCE and hasattr(os, "posix_fallocate"):
        with suppress(OSError), TemporaryFile() as file:  # the mapping outlives its descriptor
            os.posix_fallocate(file.fileno(), 0, count * _WORD)  # or a full disk would be a signal, not an error
            return np.memmap(file, np.uint64, "r+", shape=(count,))
    return np.empty(count, np.uint64)


def hashes(keys: list[bytes]) -> Hashes:
    """Return a hash of each key, uint64 [keys], which depends on nothing else: its checksums of two kinds."""
    high, low = (np.fromiter(map(crc, keys), np.uint64, len(keys)) for crc in (crc32c, zlib.crc32))
    found: Hashes = high << np.uint64(32) | low
    return found


def read_index(catalog: Catalog, number: int) -> ShardIndex:
    """Return the index of a shard: its sidecar, or what a walk finds.

    Raises:
        CorruptShard: There is no sound sidecar, and the shard is damaged; or it has other samples than the dataset
            file says.
    """
    shard, dataset, size = catalog.shards[number], catalog.dataset(number)[0], int(catalog.sizes[number])
    if dataset.listed and not is_url(shard.path):  # one that is elsewhere has that size, or the first read of it fails
        there = shard.size()  # of one that is missing, what opens it says more
        if there is not None and there != size:
            expected = f"{size:,}, as the dataset file says"
            raise CorruptShard(shard.path, f"{there:,} bytes", expected=expected, remedy=_VERIFY)
    found = shard.index()
    if found.walk is not None and not dataset.walks:
        raise found.damage or CorruptShard(shard.sidecar, "missing", remedy=made_again())
    if found.error is not None:
        raise found.error
    if found.walk is not None and (dataset.listed or found.damage is not None):
        problem = "missing" if found.damage is None else found.damage.found
        _log.warning("%s: %s; its shard was walked instead. `shardtool index` makes it again.", shard.sidecar, problem)
    samples = int(catalog.firsts[number + 1] - catalog.firsts[number])
    if len(found) != samples:
        expected = f"{samples:,}, as when the dataset was opened, or as its dataset file says"
        what, remedy = counted(len(found), "sample"), _VERIFY
        raise CorruptShard(shard.path, what, expected=expected, remedy=remedy)
    crc = int(catalog.crcs[number])
    if found.fact.crc is not None and crc not in (found.fact.crc, -1):
        what = f"the checksum {found.fact.crc:08x}, as its sidecar says"
        expected = f"{crc:08x}, as when the dataset was opened"
        raise CorruptShard(shard.path, what, expected=expected, remedy="Was it replaced? Open the dataset again.")
    return found.for_reading()
