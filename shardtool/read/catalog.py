"""What is read: the shards of one or several datasets in order, and how many samples each has; nothing a sample."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.feature import numbers_in
from shardtool.dataset.find import find_dataset, recorded_dots
from shardtool.dataset.opened import count_samples, file_size, open_dataset, read_rows
from shardtool.dataset.several import given_datasets
from shardtool.errors import InvalidRequest, listing, without_secrets
from shardtool.pattern import DATASET_SUFFIX
from shardtool.read.shard_index import ShardIndex
from shardtool.storage.places import base_name, folder_of, for_each, is_url
from shardtool.storage.shared import JoinedBlocks, SharedBlocks
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedDataset, OpenedShard
    from shardtool.values import Given, Kind

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
    shards: tuple[OpenedShard, ...] = field(repr=False)
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

    shards: Sequence[OpenedShard]
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
        if more := sorted({*one.found.shards} - {shard.path for shard in one.shards}) if one.file else []:
            _log.warning("%s does not list %s, left out.", one.found.dataset_file, listing(more))
    return joined([_catalog(one) for one in map(_anywhere, opened)])


def _anywhere(opened: OpenedDataset) -> OpenedDataset:
    """Return a dataset whose shards are found from any folder, for programs that go to another one."""
    beside, paths = opened.found.index_folder, (shard.path for shard in opened.shards)
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


def _catalog(opened: OpenedDataset) -> Catalog:
    file, shared = opened.file, SharedBlocks(len(opened.shards) + 1)
    found = _described(opened, shared)
    content = "" if file is None else file.fingerprint
    features = {} if file is None else file.features
    return Catalog(
        name=without_secrets(opened.found.dataset_file or listing([*opened.found.shards], 1)),
        shards=tuple(found.shards),
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


def _described(opened: OpenedDataset, shared: SharedBlocks) -> _ShardFacts:
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
    shards, heads = opened.shards, [*for_each(count_samples, opened.shards, lambda shard: shard.path)]
    if None in heads:  # keys of shards that are walked end where those of the others do
        dots = recorded_dots(opened.found)
        shards = tuple(replace(shard, dots=dots) for shard in shards)
    walked = _walk([shard for shard, head in zip(shards, heads, strict=True) if head is None], shared)
    counts = [walked[number] if head is None else head[0] for number, head in enumerate(heads)]
    sizes = [size or 0 for size in for_each(file_size, [shard.path for shard in shards])]
    crcs = [None if head is None else head[1].crc for head in heads]
    facts = [f"{shard.name} {size} {crc}" for shard, size, crc in zip(shards, sizes, crcs, strict=True)]
    return _ShardFacts(shards, counts, sizes, [("", "")] * len(counts), facts, crcs, walks=None in heads)


def _walk(shards: list[OpenedShard], shared: SharedBlocks) -> dict[int, int]:
    """Walk shards once, for all processes; return how many samples each has, by its number in its dataset."""
    if not shards:
        return {}

    def walk(shard: OpenedShard) -> int:
        found = read_rows(shard)
        if found.error is not None:
            raise found.error
        ShardIndex.of(found.rows, found.kinds).put_into(shared, shard.number)
        return len(found.rows.counts)

    started = time.monotonic()
    with ThreadPoolExecutor(min(_THREADS, len(shards)), "shardtool-walk") as pool:
        counts = dict(zip((shard.number for shard in shards), pool.map(walk, shards), strict=True))
    _log.warning(
        "%s without a sound sidecar, such as %s: walked in %.1f s. `shardtool index` makes sidecars.",
        counted(len(shards), "shard"), shards[0].name, time.monotonic() - started,
    )  # fmt: skip
    return counts


def _origin(opened: OpenedDataset, described: _ShardFacts) -> CatalogDataset:
    file = opened.file
    split = file.made.split if file is not None else ""
    if not split:
        where = opened.found.dataset_file
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
