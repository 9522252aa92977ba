"""A catalog lists the shards of one or several datasets, and the number of samples in each shard.

If there is no dataset file, opening a catalog scans the shards that have no valid sidecar. The scanned indexes are
stored in shared memory for worker processes.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.dataset.dataset_file import merge_value_types
from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.features import number_features
from shardtool.dataset.find import open_dataset
from shardtool.dataset.shard_index import part_offsets
from shardtool.dataset.stored import StoredDataset, StoredShard, recorded_dots
from shardtool.errors import format_list, redact_secrets
from shardtool.pattern import DATASET_SUFFIX
from shardtool.storage.files import map_paths
from shardtool.storage.paths import absolute_path, base_name, folder_of
from shardtool.storage.remote.address import is_url
from shardtool.storage.remote.requests import imap_requests
from shardtool.storage.shared_blocks import SharedBlocks
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.values import DatasetLike, FeatureType, ValueType

    Numbers = NDArray[np.int64]


_SCAN_THREADS = 4
logger = logging.getLogger("shardtool")


@dataclass(frozen=True)
class Catalog:
    """The shards of one or several datasets. An attribute is empty if its value is unknown.

    Attributes:
        first_samples: Number of each shard's first sample, followed by the total sample count, int64 [shards + 1].
        order_hash: A hash of the sizes, checksums and order of the shards.
        fields: Number of samples that have each field.
        kinds: The type of each numeric TFRecord field.
        lists: TFRecord features that are lists in every sample.
        fingerprint: Content fingerprint of the samples, from the dataset file.
        key_ranges: First and last key of each shard.
        parts: The catalog of each dataset, if there are several. In a joined catalog, `fingerprint`, `split` and
            `appends` are empty.
        shared: Shared memory with the index of all keys and, except in a joined catalog, the index of each shard.
        crcs: The CRC-32C of each shard, or -1 if unknown, int64 [shards].
        split: Name of the split. Without a split, the name of the dataset file or folder.
        listed: Whether every shard is listed in a dataset file of shardtool.
        can_scan: Whether a shard may be scanned if its sidecar is missing or damaged.
        appends: For each run that appended shards, the index of its first shard. Sidecars of different runs may
            have different columns.
    """

    name: str
    shards: tuple[StoredShard, ...] = field(repr=False)
    first_samples: Numbers = field(repr=False)
    sizes: Numbers = field(repr=False)
    order_hash: str
    fields: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, FeatureType] = field(default_factory=dict)
    classes: Mapping[str, list[str]] = field(default_factory=dict)
    types: Mapping[str, ValueType] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    fingerprint: str = ""
    key_ranges: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    parts: tuple[Catalog, ...] = field(default=(), repr=False)
    shared: SharedBlocks = field(default_factory=SharedBlocks, repr=False)
    crcs: Numbers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    split: str = ""
    listed: bool = False
    can_scan: bool = True
    appends: tuple[int, ...] = ()

    def __len__(self) -> int:
        return int(self.first_samples[-1])

    def locate(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """For each sample number, return the shard (an index in `shards`), and the row of the sample in this shard."""
        shards = np.searchsorted(self.first_samples, numbers, side="right") - 1
        return shards, numbers - self.first_samples[shards]

    def group_by_shard(self, numbers: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Group sample numbers by shard.

        Yield the index of each shard, the rows of its samples (ascending), and the indexes of these samples in
        `numbers`.
        """
        order = np.argsort(numbers, kind="stable")
        shards, rows = self.locate(numbers[order])
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]
        for first, last in pairwise(cuts):
            if first < last:
                yield int(shards[first]), rows[first:last], order[first:last]

    @property
    def datasets(self) -> tuple[Catalog, ...]:
        """One catalog per dataset."""
        return self.parts or (self,)

    def dataset(self, shard: int) -> tuple[Catalog, int]:
        """Return the catalog of the dataset that contains a shard, and the shard's index in this catalog."""
        for part in self.parts:
            if shard < len(part.shards):
                return part, shard
            shard -= len(part.shards)
        return self, shard

    @cached_property
    def is_remote(self) -> bool:
        """Whether any shard has a URL."""
        return any(is_url(shard.path) for shard in self.shards)

    @property
    def splits(self) -> Mapping[str, list[Catalog]]:
        """The catalogs of the datasets, by split name."""
        splits: dict[str, list[Catalog]] = {}
        for dataset in self.datasets:
            splits.setdefault(dataset.split, []).append(dataset)
        return splits

    def sample_ranges(self, split: str) -> list[tuple[int, int]]:
        """For each dataset in a split, return the range of its sample numbers (first, end)."""
        ends = [*accumulate(map(len, self.datasets), initial=0)]
        return [pair for pair, dataset in zip(pairwise(ends), self.datasets, strict=True) if dataset.split == split]


def open_catalog(dataset: DatasetLike) -> Catalog:
    """Open all datasets that `dataset` matches, and return their catalog."""
    datasets = [open_dataset(part, dots="first") for part in expand_datasets(dataset)]
    for opened in datasets:
        if opened.unlisted:
            where, unlisted = redact_secrets(opened.dataset_file or ""), format_list(sorted(opened.unlisted))
            logger.warning("Shards that %s does not list are ignored: %s.", where, unlisted)
    return join_catalogs([_catalog_of(opened) for opened in map(_with_absolute_paths, datasets)])


def _with_absolute_paths(opened: StoredDataset) -> StoredDataset:
    def absolute(path: str) -> str:
        return path if is_url(path) or os.path.isabs(path) else os.path.join(os.getcwd(), path)

    index_folder = None if opened.index_folder is None else absolute(opened.index_folder)
    shards = (replace(shard, path=absolute(shard.path), index_folder=index_folder) for shard in opened.shards)
    return replace(opened, shards=tuple(shards))


def join_catalogs(parts: Sequence[Catalog]) -> Catalog:
    """Join several catalogs into one, in order."""
    if len(parts) == 1:
        return parts[0]
    counts, ranges = [Counter(part.fields) for part in parts], [part.key_ranges for part in parts]
    return Catalog(
        name=", ".join(part.name for part in parts),
        shards=tuple(shard for part in parts for shard in part.shards),
        first_samples=part_offsets(np.concatenate([np.diff(part.first_samples) for part in parts])),
        sizes=np.concatenate([part.sizes for part in parts]),
        fields=dict(sum(counts, Counter[str]())) if all(counts) else {},
        kinds={name: kind for part in parts for name, kind in part.kinds.items()},
        classes=_agreed_classes(part.classes for part in parts),
        types=merge_value_types([(part.types, part.fields) for part in parts]),
        order_hash=hash_texts(*(part.order_hash for part in parts)),
        lists=frozenset(name for part in parts for name in part.lists),
        key_ranges=tuple(pair for pairs in ranges for pair in pairs) if all(ranges) else (),
        parts=tuple(parts),
        crcs=np.concatenate([part.crcs for part in parts]),
        listed=all(part.listed for part in parts),
    )


def _catalog_of(opened: StoredDataset) -> Catalog:
    file, shared, shards = opened.file, SharedBlocks(), opened.shards
    entries: Sequence[tuple[int, int, int | None]]  # number of samples, size and CRC-32C of each shard
    if file is None:
        heads = [*map_paths(StoredShard.read_footer, shards, lambda shard: shard.path)]
        if None in heads:
            # the scan must split file names into key and field as the existing sidecars do
            shards = opened.with_dots(recorded_dots(opened)).shards
        without_sidecar = [shard for shard, head in zip(shards, heads, strict=True) if head is None]
        counts_by_shard, lists = _scan_shards(without_sidecar, shared)
        sizes = map_paths(StoredShard.size, shards, lambda shard: shard.path)
        entries = [
            (counts_by_shard[number], size or 0, None) if head is None else (head[0], size or 0, head[1].crc)
            for number, (head, size) in enumerate(zip(heads, sizes, strict=True))
        ]
        files = zip(shards, entries, strict=True)
        fingerprint_parts = [f"{shard.file_name} {size} {crc}" for shard, (_, size, crc) in files]
        attributes: dict[str, Any] = {"can_scan": None in heads, "lists": lists}
    else:
        # remove `entry` to make pickles smaller
        shards = tuple(replace(shard, entry=None) for shard in shards)
        entries = [(shard.samples, shard.size, shard.crc) for shard in file.shards]
        fingerprint_parts = [
            file.fingerprint,
            *(f"{shard.size} {shard.crc} {shard.first_key}" for shard in file.shards),
        ]
        attributes = {name: getattr(file, name) for name in ("fields", "classes", "types", "appends")}
        attributes |= {"kinds": number_features(file.features), "fingerprint": file.fingerprint, "listed": True}
        attributes["lists"] = frozenset(name for name, feature in file.features.items() if feature.is_list)
        attributes["key_ranges"] = tuple((shard.first_key, shard.last_key) for shard in file.shards)
    counts = [samples for samples, _, _ in entries]
    return Catalog(
        name=redact_secrets(opened.dataset_file or format_list([*opened.paths], 1)),
        shards=shards,
        first_samples=part_offsets(counts),
        sizes=np.array([size for _, size, _ in entries], np.int64),
        order_hash=hash_texts(file.fingerprint if file else "", str(counts), *fingerprint_parts),
        shared=shared,
        crcs=np.array([-1 if crc is None else crc for _, _, crc in entries], np.int64),
        split=(file.run.split if file else "") or _display_name(opened),
        **attributes,
    )


def _display_name(opened: StoredDataset) -> str:
    if opened.dataset_file:
        return base_name(opened.dataset_file).removesuffix(DATASET_SUFFIX)
    path = opened.shards[0].path
    return base_name(folder_of(absolute_path(path)))


def _scan_shards(shards: list[StoredShard], shared: SharedBlocks) -> tuple[dict[int, int], frozenset[str]]:
    lists = set[str]()
    if not shards:
        return {}, frozenset()

    def scan(shard: StoredShard) -> int:
        index = shard.index()
        if index.error is not None:
            raise index.error
        lists.update(index.scan.list_features() if index.scan else ())
        index.for_reading().store_in(shared, shard.number)
        return len(index)

    started = time.monotonic()
    counts = dict(zip((shard.number for shard in shards), imap_requests(scan, shards, _SCAN_THREADS), strict=True))
    logger.warning(
        "Scanned %s without a valid sidecar, for example %s, in %.1f s. Run `shardtool index` to create sidecars.",
        pluralize(len(shards), "shard"), shards[0].file_name, time.monotonic() - started,
    )  # fmt: skip
    return counts, frozenset(lists)


def _agreed_classes(classes: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
    agreed: dict[str, list[str]] = {}
    conflicting: set[str] = set()
    for field_name, names in ((name, names) for dataset_classes in classes for name, names in dataset_classes.items()):
        if agreed.setdefault(field_name, names) != names:
            conflicting.add(field_name)
    for name in sorted(conflicting):
        logger.warning("%s: class numbers differ between the datasets; class names are omitted.", name)
    return {name: names for name, names in agreed.items() if name not in conflicting}


def hash_texts(*texts: str) -> str:
    """Return a 128-bit hash of several strings."""
    return blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()
