"""One pass over the indexes of a dataset: counts, sizes and columns, and a random few images and labels from the
shards.

Memory does not grow with the number of samples. The seed decides which samples are read, not the order of the work.
Damage is recorded, and the pass continues.
"""

from __future__ import annotations

import heapq
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.dataset.features import number_features
from shardtool.dataset.payload import MAX_INSPECTED_IMAGE_BYTES, content_type, image_info, is_label_name, label_name
from shardtool.dataset.shard_file import CompressedFile, ShardFile, is_compressed, iter_payload, open_shard
from shardtool.dataset.shard_index import ShardIndex, part_ends
from shardtool.dataset.sidecar_schema import FIELDS_COLUMN, FieldRow
from shardtool.entries.arrow import to_python_rows
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.fingerprint import crc32c
from shardtool.verbs.inspect.statistics import ColumnTally, SizeTally, ValueCounts, is_scalar_type
from shardtool.verbs.inspect.summary import Label, sort_labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.request.dataset_options import InspectOptions
    from shardtool.request.observer import Observer
    from shardtool.values import FeatureType

    Shards = tuple[StoredDataset, Mapping[int, int]]  # a dataset, and how many samples each index has


MAX_READ_SAMPLES = 4_000_000  # whose sidecars are read unless all are asked for: a few seconds


_MAX_FIELDS = 1000  # names; more is no dataset of fields


MAX_LABEL_BYTES = 64  # bytes of a payload that may be a label


_MAX_UNPACKED_BYTES = 2**26  # bytes of a compressed shard that are decompressed to look into it


_MAX_LABEL_READS = 20_000  # label payloads that are read because no index has their checksums


_INDEX_COLUMNS = ("__key__", "__offset__", "__size__", FIELDS_COLUMN)


NON_LABEL_COLUMNS = ("split", "mode", "width", "height")


class FieldPayloads(NamedTuple):
    """The payloads of a field in one shard.

    Attributes:
        rows: The place of each one's sample in the shard.
        offsets: As in the index.
        lengths: As in the index.
        crcs: Their checksums; None where unknown.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    crcs: NDArray[np.uint64] | None

    def groups(self) -> NDArray[np.uint64]:
        """Return a number for each payload that tells short ones apart: length and CRC-32C."""
        groups: NDArray[np.uint64] = self.lengths << np.uint64(32)
        return groups if self.crcs is None else groups | self.crcs


@dataclass(frozen=True)
class StoredSample:
    """A sample, and where it lies.

    Attributes:
        shard: Its shard.
        number: In the dataset, or in the shard, counted from 0.
        key: Its key.
        offset: Where it starts in the shard.
        size: Bytes of its records.
        fields: As its index has them: `name`, `offset`, `length`, `crc32c` (None: not known).
        metadata: The other columns.
        kinds: Field to `int64` or `float`, as far as that is known.
        classes: Field to the names of its class numbers.
    """

    shard: StoredShard
    number: int
    key: str
    offset: int
    size: int
    fields: Sequence[FieldRow]
    metadata: Mapping[str, object]
    kinds: Mapping[str, FeatureType] = field(default_factory=dict)
    classes: Mapping[str, list[str]] = field(default_factory=dict)


def stored_samples(
    shard: StoredShard, index: ShardIndex, rows: NDArray[np.int64], names: Sequence[str] | None = None, first: int = 0
) -> list[StoredSample]:
    """Return samples of a shard.

    Args:
        shard: The shard.
        index: Its index.
        rows: Their places in it.
        names: The columns of metadata that are wanted; None: all.
        first: The number of the shard's first sample.
    """
    table = index.table if names is None else index.table.select([*_INDEX_COLUMNS, *names])
    found = []
    taken = table.slice(int(rows[0]), 1) if len(rows) == 1 else table.take(pa.array(rows))
    for row, one in zip(rows.tolist(), to_python_rows(taken), strict=True):
        key, offset, size, fields = (one.pop(name) for name in _INDEX_COLUMNS)
        found.append(StoredSample(shard, first + row, key, offset, size, fields, one))
    return found


class FieldTally:
    """A field in all shards: its sizes, and how often each short payload is there, by length and CRC-32C.

    Attributes:
        sizes: Bytes of the payloads.
        groups: Length and checksum, as one number, to how often they are there; of no use where `unknown` is true.
        places: The same to the number of a shard and the offset there of one such payload.
        unknown: Some payloads have no checksum in the index.
        labels: Name and number, as the payloads that were looked into have them, to how often.
    """

    def __init__(self) -> None:
        self.sizes = SizeTally()
        self.groups = ValueCounts[int]()
        self.places: dict[int, tuple[int, int]] = {}
        self.unknown = False
        self.labels: Counter[tuple[str, int | float | None]] = Counter()

    def add(self, number: int, payloads: FieldPayloads) -> None:
        """Take the field's payloads in the shard of that number."""
        self.sizes.add(payloads.lengths)
        if payloads.crcs is None:
            self.unknown = True
        if self.groups.values is None or self.unknown:
            return
        if int(payloads.lengths.max()) > MAX_LABEL_BYTES:
            self.groups.values = None
            return
        found, first, counts = np.unique(payloads.groups(), return_index=True, return_counts=True)
        self.groups.add(zip(found.tolist(), counts.tolist(), strict=True))
        if self.groups.values is None:
            self.places = {}
            return
        for group, offset in zip(found.tolist(), payloads.offsets[first].tolist(), strict=True):
            self.places.setdefault(group, (number, offset))


def random_numbers_of(seed: int, number: int, count: int) -> NDArray[np.float64]:
    """Return a random number for each sample of the shard of that number."""
    return np.random.default_rng([seed % 2**64, number]).random(count)


class DatasetOverview:
    """The indexes of a dataset, added up.

    Args:
        dataset: The dataset.
        options: How to look.
        observer: Hears of every shard.

    Attributes:
        counts: Number of a shard to how many samples its index has, of the shards that were read.
        walked: How many shards had no sound sidecar.
        sample_sizes: Payload bytes of a sample.
        torn: Shards with more samples than keys.
        pixels: The values of the columns width and height.
        images: Field to the images that were looked into: the key, and what each is, or what is wrong with it.

    Raises:
        InvalidRequest: The dataset has no shards.
    """

    def __init__(self, dataset: StoredDataset, options: InspectOptions, observer: Observer) -> None:
        if not dataset.shards:
            raise InvalidRequest(dataset.where, "no shards", expected="one at least")
        self.dataset, self.options, self.observer = dataset, options, observer
        self.counts: dict[int, int] = {}
        self.walked = 0
        self.sample_sizes = SizeTally()
        self.damage: list[CorruptShard] = []
        self.torn: list[tuple[StoredShard, int, int]] = []
        self.fields: dict[str, FieldTally] = {}
        self.columns: dict[str, ColumnTally] = {}
        self.pixels = (SizeTally(), SizeTally())
        self.images: dict[str, list[tuple[str, tuple[int, int, str] | str]]] = {}
        self.kinds = number_features(dataset.file.features) if dataset.file else {}
        self.classes = dataset.file.classes if dataset.file else {}
        self._looks: list[tuple[float, int, int, StoredSample]] = []
        self._reads_left = _MAX_LABEL_READS

    @property
    def samples(self) -> int:
        """The number of samples in the indexes that were read."""
        return sum(self.counts.values())

    @property
    def partial(self) -> bool:
        """Whether only some indexes were read."""
        return len(self.counts) < len(self.dataset.shards)

    def read(self) -> Iterator[tuple[StoredShard, ShardIndex, dict[str, FieldPayloads]]]:
        """Read the indexes of all shards, or of evenly many where there are too many samples.

        Each is yielded once it is added, with the payloads of its fields.
        """
        file, step = self.dataset.file, 1
        if file is not None and not self.options.full:
            step = max(1, -(-sum(shard.samples for shard in file.shards) // MAX_READ_SAMPLES))
        for shard in self.dataset.shards[::step]:
            try:
                part = shard.index(metadata=True)
            except CorruptShard as error:
                self.damage.append(error)
                continue
            yield shard, part, self._add(shard, part)

    def _add(self, shard: StoredShard, part: ShardIndex) -> dict[str, FieldPayloads]:
        self.damage += part.problems
        self.counts[shard.number] = len(part)
        self.walked += part.walk is not None
        self.kinds |= {name: kind for name, kind in part.kinds.items() if kind != "bytes"}
        if part.walk is not None and (known := len({*part.all_keys()})) < len(part):
            self.torn.append((shard, len(part), known))
        self._add_columns(part)
        fields = self._payloads(shard, part) if len(part) else {}
        for name, found in fields.items():
            self.fields.setdefault(name, FieldTally()).add(shard.number, found)
        if len(part):
            self._choose(shard, part)
        self.observer.listed(len(part))
        self.observer.log(f"{shard.path}: {len(part):,} samples{', walked' if part.walk else ''}")
        return fields

    def _add_columns(self, part: ShardIndex) -> None:
        for one in part.schema:
            if one.name.startswith("__"):
                continue
            column = self.columns.setdefault(one.name, ColumnTally(str(one.type)))
            column.add_type(str(one.type))
            values = part.table.column(one.name)
            if not is_scalar_type(one.type):
                column.add_nested(values)
                continue
            column.add(values)
            if one.name in ("width", "height") and pt.is_integer(one.type):
                numbers = values.combine_chunks().drop_null().to_numpy(zero_copy_only=False)
                self.pixels[one.name == "height"].add(numbers[numbers >= 0].astype(np.uint64))

    def _payloads(self, shard: StoredShard, part: ShardIndex) -> dict[str, FieldPayloads]:
        """Return the payloads of each field, and count how large the samples are."""
        order = np.argsort(part.codes, kind="stable")
        bounds = np.searchsorted(part.codes[order], np.arange(len(part.names) + 1))
        offsets, lengths = part.offsets.view(np.uint64), part.lengths.view(np.uint64)
        known = None if part.crcs is None else part.crcs.astype(np.uint64)
        ends, parents = part_ends(part.lengths), part.owners()
        self.sample_sizes.add(np.diff(ends[part.firsts]).astype(np.uint64))
        found: dict[str, FieldPayloads] = {}
        room = _MAX_FIELDS - len(self.fields)
        for code, name in enumerate(part.names):
            rows = order[bounds[code] : bounds[code + 1]]
            if len(rows) and (name in self.fields or room > 0):
                room -= name not in self.fields
                crc = self._checksums(shard, name, offsets[rows], lengths[rows]) if known is None else known[rows]
                found[name] = FieldPayloads(parents[rows], offsets[rows], lengths[rows], crc)
        return found

    def _checksums(
        self, shard: StoredShard, name: str, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> NDArray[np.uint64] | None:
        """Return the checksums of a label's payloads that no index has; None where these are no few short reads."""
        few = len(lengths) <= self._reads_left and lengths.max() <= MAX_LABEL_BYTES
        if not few or self.rank(name) > 1 or is_compressed(shard.path):
            return None
        self._reads_left -= len(lengths)
        found = np.empty(len(lengths), np.uint64)
        try:
            with open_shard(shard.path) as file:
                for at in np.argsort(offsets).tolist():
                    data = iter_payload(file, int(offsets[at]), int(lengths[at]), shard.path)
                    found[at] = crc32c(b"".join(data))
        except CorruptShard:
            return None
        return found

    def _choose(self, shard: StoredShard, part: ShardIndex) -> None:
        """Keep those samples whose random numbers are the smallest of all."""
        most = self.options.looks
        if most < 1:
            return
        ranks = random_numbers_of(self.options.seed, shard.number, len(part))
        rows = np.argpartition(ranks, most)[:most] if len(ranks) > most else np.arange(len(ranks))
        for row in rows.tolist():
            rank = -float(ranks[row])
            if len(self._looks) >= most and rank <= self._looks[0][0]:
                continue
            push = heapq.heappush if len(self._looks) < most else heapq.heapreplace
            push(self._looks, (rank, shard.number, row, stored_samples(shard, part, np.array([row]), ())[0]))

    def look(self, *, images: bool = True) -> None:
        """Look into the chosen samples, shard by shard: for labels that no index holds, and for images."""
        told = {"width", "height", "mode"} <= {*self.columns} and self.pixels[0].spread().count
        pictures = [name for name in self.fields if content_type(name, self.kinds.get(name, "bytes")) == "image"]
        pictures = pictures if images and not told else []
        labels = [name for name, tally in self.fields.items() if tally.unknown and self.rank(name) <= 1]
        most = dict.fromkeys(labels, MAX_LABEL_BYTES) | dict.fromkeys(
            pictures, MAX_INSPECTED_IMAGE_BYTES
        )  # bytes that are read of each
        if not most:
            return
        looks = [one[-1] for one in sorted(self._looks, key=lambda one: one[1:3])]
        for shard, chosen in groupby(looks, key=lambda one: one.shard):
            try:
                with open_shard(shard.path) as file:
                    for look in chosen:
                        self._look_into(look, file, most)
            except CorruptShard as error:
                self.damage.append(error)

    def _look_into(self, look: StoredSample, file: ShardFile | CompressedFile, most: Mapping[str, int]) -> None:
        for one in sorted((one for one in look.fields if one["name"] in most), key=itemgetter("offset")):
            name, offset, length = one["name"], one["offset"], one["length"]
            if length > most[name] or (is_compressed(look.shard.path) and offset + length > _MAX_UNPACKED_BYTES):
                continue
            data = b"".join(iter_payload(file, offset, length, f"{look.shard.path}, field {name!r} of {look.key}"))
            if most[name] == MAX_INSPECTED_IMAGE_BYTES:
                self.images.setdefault(name, []).append((look.key, image_info(data)))
            else:
                label = label_name(data, self.kinds.get(name, "bytes"), self.classes.get(name))
                self.fields[name].labels[label] += 1

    def labels(self, name: str, most: int) -> tuple[Label, ...]:
        """Return a field's most frequent payloads, ties by name: one of each is read.

        A class whose payload cannot be read has no name.
        """
        tally = self.fields[name]
        kind, classes = self.kinds.get(name, "bytes"), self.classes.get(name)
        found = (tally.groups.values or {}).items()
        groups, names = sorted(found, key=lambda one: (-one[1], tally.places[one[0]]))[:most], {}
        in_order = sorted((*tally.places[group], group) for group, _ in groups)
        for number, places in groupby(in_order, key=lambda place: place[0]):
            path = self.dataset.shards[number].path
            with suppress(CorruptShard), open_shard(path) as file:
                for _, offset, group in places:
                    data = b"".join(iter_payload(file, offset, group >> 32, path))
                    names[group] = label_name(data, kind, classes)
        return sort_labels([(names.get(group, ("?", None)), count) for group, count in groups])

    def rank(self, name: str) -> int:
        """Return how likely a field or column is a label: 0 has classes, 1 is called so, 2 is a column, 3 a field."""
        return 0 if name in self.classes else 1 if is_label_name(name) else 3 if name in self.fields else 2

    def label_columns(self) -> dict[str, ColumnTally]:
        """Return the columns that may be labels, and are not there as fields, too."""
        return {name: one for name, one in self.columns.items() if name not in (*NON_LABEL_COLUMNS, *self.fields)}

    def label_names(self) -> list[str]:
        """Return what is a label by its name or its classes, as far as all values are known, the likeliest first."""
        found = [name for name, one in self.fields.items() if one.groups.values and not one.unknown]
        found += [name for name, one in self.label_columns().items() if one.counts.values]
        return sorted((name for name in found if self.rank(name) <= 1), key=lambda name: (self.rank(name), name))
