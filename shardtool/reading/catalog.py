"""What is read: the shards of one or several datasets in order, and how many samples each has; nothing a sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.feature import numbers_in
from shardtool.dataset.find import find_dataset
from shardtool.dataset.opened import open_dataset, read_part
from shardtool.dataset.several import given_datasets
from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedDataset, OpenedShard
    from shardtool.values import Given, Kind


@dataclass(frozen=True)
class Catalog:
    """The shards of one or several datasets.

    Attributes:
        name: What was opened, for messages.
        shards: In order.
        firsts: int64 [shards + 1]: the number of each shard's first sample, and how many samples there are.
        sizes: int64 [shards]: bytes.
        fields: How many samples have each field; empty where no dataset file says so.
        kinds: Field to `int64` or `float`, of TFRecords.
        lists: Features of TFRecords that are lists of values in every sample.
        classes: Field to the names of its class numbers.
        fingerprint: Equal for equal content, as far as that is known without reading it.
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

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def places(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard of each sample, and its row there.

        Args:
            numbers: int64 [n]: numbers of samples, each below `len`.
        """
        shards = np.searchsorted(self.firsts, numbers, side="right") - 1
        return shards, numbers - self.firsts[shards]


def open_catalog(given: Given) -> Catalog:
    """Return the catalog of all datasets that `given` means.

    Raises:
        InvalidRequest: There are none, or they have no samples.
        CorruptShard: A dataset file is damaged, or a shard that no dataset file lists cannot be read.
    """
    opened = [open_dataset(one) for one in given_datasets(given)]
    if not opened:
        find_dataset(given)
        raise InvalidRequest(str(given), "no dataset")
    return joined([_catalog(one) for one in opened])


def joined(catalogs: list[Catalog]) -> Catalog:
    """Return one catalog of all shards of several."""
    if len(catalogs) == 1:
        return catalogs[0]
    fields: dict[str, int] = {}
    kinds: dict[str, Kind] = {}
    classes: dict[str, list[str]] = {}
    for one in catalogs:
        fields = {name: fields.get(name, 0) + one.fields.get(name, 0) for name in [*fields, *one.fields]}
        kinds |= one.kinds
        classes |= one.classes
    counts = np.concatenate([np.diff(one.firsts) for one in catalogs])
    return Catalog(
        name=", ".join(one.name for one in catalogs),
        shards=tuple(shard for one in catalogs for shard in one.shards),
        firsts=_firsts(counts),
        sizes=np.concatenate([one.sizes for one in catalogs]),
        fields=fields,
        kinds=kinds,
        classes=classes,
        fingerprint=_hash(*(one.fingerprint for one in catalogs)),
        lists=frozenset().union(*(one.lists for one in catalogs)),
    )


def _catalog(opened: OpenedDataset) -> Catalog:
    file, name = opened.file, opened.found.dataset_file or opened.shards[0].path
    if file is not None:
        counts = np.array([shard.samples for shard in file.shards], np.int64)
        sizes = np.array([shard.size for shard in file.shards], np.int64)
        fields, kinds, classes = dict(file.fields), dict(numbers_in(file.features)), dict(file.classes)
        known = file.fingerprint or _hash(*(f"{one.name} {one.size} {one.crc}" for one in file.shards))
        lists = frozenset(name for name, one in file.features.items() if one.is_list)
        return Catalog(name, opened.shards, _firsts(counts), sizes, fields, kinds, classes, known, lists)
    parts = [read_part(shard) for shard in opened.shards]
    counts = np.array([part.samples for part in parts], np.int64)
    sizes = np.array([int(part.table.column("__size__")[-1].as_py()) if part.samples else 0 for part in parts])
    kinds = {name: kind for part in parts for name, kind in part.kinds.items() if kind != "bytes"}
    known = _hash(*(f"{shard.name} {count}" for shard, count in zip(opened.shards, counts.tolist(), strict=True)))
    return Catalog(name, opened.shards, _firsts(counts), sizes, {}, kinds, {}, known)


def _firsts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))


def _hash(*texts: str) -> str:
    return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
