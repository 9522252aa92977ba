"""The shards of one or several datasets, in order, with the number of samples in each.

A catalog holds nothing per sample. Shards without a sidecar are scanned once, for all processes.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataset.dataset_file import merge_value_types
from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.features import number_features
from shardtool.dataset.find import find_dataset, open_dataset
from shardtool.dataset.shard_index import part_ends
from shardtool.dataset.stored import StoredDataset, StoredShard, recorded_dots
from shardtool.errors import InvalidRequest, format_list, redact_secrets
from shardtool.pattern import DATASET_SUFFIX
from shardtool.storage.lookup import map_paths
from shardtool.storage.paths import base_name, folder_of
from shardtool.storage.remote.address import is_url
from shardtool.storage.remote.requests import imap_requests
from shardtool.storage.shared_blocks import SharedBlocks
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.values import DatasetLike, FeatureType, ValueType

    Numbers = NDArray[np.int64]


_SCAN_THREADS = 4  # that walk shards: more than one where a disk is far away


logger = logging.getLogger("shardtool")


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
    kinds: Mapping[str, FeatureType] = field(default_factory=dict)
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

    def group_by_shard(self, numbers: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
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


def open_catalog(given: DatasetLike) -> Catalog:
    """Return the catalog of all datasets that `given` means.

    Raises:
        InvalidRequest: There are none.
        CorruptShard: A dataset file is damaged, or a shard that has no sidecar cannot be read.
    """
    opened = [open_dataset(one, dots="first") for one in expand_datasets(given)]
    if not opened:
        find_dataset(given)
        raise InvalidRequest(str(given), "no dataset")
    for one in opened:
        if one.unlisted:
            logger.warning("%s does not list %s, left out.", one.dataset_file, format_list(sorted(one.unlisted)))
    return join_catalogs([_catalog_of(one) for one in map(_with_absolute_paths, opened)])


def _with_absolute_paths(opened: StoredDataset) -> StoredDataset:
    """Return a dataset whose shards are found from any folder, for programs that go to another one."""

    def full(path: str) -> str:
        return path if is_url(path) or os.path.isabs(path) else os.path.join(os.getcwd(), path)

    beside = None if opened.index_folder is None else full(opened.index_folder)
    shards = (replace(one, path=full(one.path), index_folder=beside) for one in opened.shards)
    return replace(opened, shards=tuple(shards))


def join_catalogs(parts: Sequence[Catalog]) -> Catalog:
    """Return one catalog of all shards of several, one after the other."""
    if len(parts) == 1:
        return parts[0]
    counts, ranges = [Counter(one.fields) for one in parts], [one.key_ranges for one in parts]
    return Catalog(
        name=", ".join(one.name for one in parts),
        shards=tuple(shard for one in parts for shard in one.shards),
        firsts=part_ends(np.concatenate([np.diff(one.firsts) for one in parts])),
        sizes=np.concatenate([one.sizes for one in parts]),
        fields=dict(sum(counts, Counter[str]())) if all(counts) else {},
        kinds={name: kind for one in parts for name, kind in one.kinds.items()},
        classes=_agreed_classes(one.classes for one in parts),
        types=merge_value_types([(one.types, one.fields) for one in parts]),
        fingerprint=hash_texts(*(one.fingerprint for one in parts)),
        lists=frozenset(name for one in parts for name in one.lists),
        key_ranges=tuple(pair for some in ranges for pair in some) if all(ranges) else (),
        parts=tuple(parts),
        crcs=np.concatenate([one.crcs for one in parts]),
        listed=all(one.listed for one in parts),
    )


def _catalog_of(opened: StoredDataset) -> Catalog:
    """Return the catalog of one dataset: as its dataset file says, or sidecars, and walks over the other shards."""
    file, shared, shards = opened.file, SharedBlocks(), opened.shards
    entries: Sequence[tuple[int, int, int | None]]  # samples, bytes, CRC-32C
    if file is None:
        heads = [*map_paths(StoredShard.head, shards, lambda shard: shard.path)]
        if None in heads:  # keys of shards that are walked end where those of the others do
            shards = opened.with_dots(recorded_dots(opened)).shards
        walked = _scan_shards([shard for shard, head in zip(shards, heads, strict=True) if head is None], shared)
        sizes = map_paths(StoredShard.size, shards, lambda shard: shard.path)
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
        known |= {"kinds": number_features(file.features), "content": file.fingerprint, "listed": True}
        known["lists"] = frozenset(name for name, one in file.features.items() if one.is_list)
        known["key_ranges"] = tuple((one.first_key, one.last_key) for one in file.shards)
    counts = [samples for samples, _, _ in entries]
    return Catalog(
        name=redact_secrets(opened.dataset_file or format_list([*opened.paths], 1)),
        shards=shards,
        firsts=part_ends(counts),
        sizes=np.array([size for _, size, _ in entries], np.int64),
        fingerprint=hash_texts(file.fingerprint if file else "", str(counts), *facts),
        shared=shared,
        crcs=np.array([-1 if crc is None else crc for _, _, crc in entries], np.int64),
        split=(file.made.split if file else "") or _display_name(opened),
        **known,
    )


def _display_name(opened: StoredDataset) -> str:
    """Return what the dataset file is called, or else the folder of the shards."""
    if opened.dataset_file:
        return base_name(opened.dataset_file).removesuffix(DATASET_SUFFIX)
    path = opened.shards[0].path
    return base_name(folder_of(path if is_url(path) else os.path.abspath(path)))


def _scan_shards(shards: list[StoredShard], shared: SharedBlocks) -> dict[int, int]:
    """Walk shards once, for all processes; return how many samples each has, by its number in its dataset."""
    if not shards:
        return {}

    def walk(shard: StoredShard) -> int:
        found = shard.index()
        if found.error is not None:
            raise found.error
        found.for_reading().store_in(shared, shard.number)
        return len(found)

    started = time.monotonic()
    counts = dict(zip((shard.number for shard in shards), imap_requests(walk, shards, _SCAN_THREADS), strict=True))
    logger.warning(
        "%s without a sound sidecar, such as %s: walked in %.1f s. `shardtool index` makes sidecars.",
        pluralize(len(shards), "shard"), shards[0].file_name, time.monotonic() - started,
    )  # fmt: skip
    return counts


def _agreed_classes(classes: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    """Return the classes of all datasets; without those of fields whose numbers mean different things."""
    found: dict[str, list[str]] = {}
    bad: set[str] = set()
    for field_name, names in ((name, names) for one in classes for name, names in one.items()):
        if found.setdefault(field_name, names) != names:
            bad.add(field_name)
    for name in sorted(bad):
        logger.warning("%s: its numbers stand for other classes in another dataset; classes are left out.", name)
    return {name: names for name, names in found.items() if name not in bad}


def hash_texts(*texts: str) -> str:
    return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
