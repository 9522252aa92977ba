"""One pass over the indexes of a dataset that adds up what a summary tells, and a few looks into shards.

Memory does not grow with the number of samples. Which samples are looked at follows from a seed, not from the order of
the work. Damage is noted, and the pass goes on.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.types as pt

from shardtool.dataset.dataset_file import feature_kinds
from shardtool.dataset.opened import FIELDS, payload, read_part
from shardtool.dataset.payload import IMAGE_LIMIT, content_of, image_fact, is_label, label_of
from shardtool.dataset.shard_file import COMPRESSED, open_shard
from shardtool.errors import CorruptShard
from shardtool.inspection.statistics import Column, Counts, Sizes, is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedDataset, OpenedShard, Part
    from shardtool.dataset.shard_file import PackedFile, ShardFile
    from shardtool.inspection.summary import InspectOptions
    from shardtool.request.observer import Observer

MOST_SAMPLES = 4_000_000  # whose sidecars are read unless all are asked for: a few seconds
_MOST_FIELDS = 1000  # names; more is no dataset of fields
_SHORT = 64  # bytes of a payload that may be a label
_NEAR = 2**26  # bytes of a compressed shard that are decompressed to look into it
_TOLD = 10  # unreadable images that are named


@dataclass(frozen=True, slots=True)
class Look:
    """A sample to look into: its shard, key, and field to (offset, length)."""

    shard: OpenedShard
    key: str
    fields: dict[str, tuple[int, int]]


class FieldTally:
    """A field in all shards: its sizes, and how often each short payload is there, told apart by length and CRC-32C.

    Attributes:
        sizes: Of the payloads.
        groups: Length and checksum, as one number, to how often they are there; of no use where `unknown`.
        places: The same to the shard and offset of one such payload.
        unknown: Some payloads have no checksum in the index.
        labels: What the payloads that were looked into say: name and number to how often.
    """

    def __init__(self) -> None:
        self.sizes = Sizes()
        self.groups = Counts()
        self.places: dict[int, tuple[OpenedShard, int]] = {}
        self.unknown = False
        self.labels: Counter[tuple[str, int | float | None]] = Counter()

    def add(self, shard: OpenedShard, offsets: NDArray[Any], lengths: NDArray[Any], crcs: NDArray[Any] | None) -> None:
        """Take the field's payloads in one shard."""
        self.sizes.add(lengths)
        if crcs is None:
            self.unknown = True
        if self.groups.values is None or self.unknown or crcs is None:
            return
        if int(lengths.max()) > _SHORT:
            self.groups.values = None
            return
        found, first, counts = np.unique(lengths << np.uint64(32) | crcs, return_index=True, return_counts=True)
        self.groups.add(zip(found.tolist(), counts.tolist(), strict=True))
        if self.groups.values is None:
            self.places = {}
            return
        for group, at in zip(found.tolist(), first.tolist(), strict=True):
            if group not in self.places:
                self.places[group] = (shard, int(offsets[at]))


class ImageTally:
    """Images that were looked into."""

    def __init__(self) -> None:
        self.width, self.height = Sizes(), Sizes()
        self.modes: Counter[str] = Counter()
        self.unreadable: list[tuple[str, str]] = []
        self.images = 0

    def add(self, key: str, data: bytes) -> None:
        """Look at an image."""
        self.images += 1
        fact = image_fact(data)
        if isinstance(fact, str):
            if len(self.unreadable) < _TOLD:
                self.unreadable.append((key, fact))
            return
        self.width.add(np.array([fact[0]], np.uint64))
        self.height.add(np.array([fact[1]], np.uint64))
        self.modes[fact[2]] += 1


def class_names(dataset: OpenedDataset) -> dict[str, list[str]]:
    """Return field to the names of its class numbers, as far as the dataset file has names."""
    found = dataset.file.classes if dataset.file else {}
    return {field: names for field, names in found.items() if isinstance(names, list)}


class Overview:
    """What the indexes of a dataset tell, added up.

    Args:
        dataset: Which.
        options: How to look.
        observer: Is told of every shard.
    """

    def __init__(self, dataset: OpenedDataset, options: InspectOptions, observer: Observer) -> None:
        self.dataset, self.options, self.observer = dataset, options, observer
        self.samples = self.shards = self.walked = 0
        self.shard_samples = Sizes()
        self.damage: list[CorruptShard] = []
        self.torn: list[tuple[OpenedShard, int, int]] = []  # shards with more samples than keys
        self.fields: dict[str, FieldTally] = {}
        self.columns: dict[str, Column] = {}
        self.pixels = (Sizes(), Sizes())  # of the columns width and height
        self.images: dict[str, ImageTally] = {}
        self.kinds = feature_kinds(dataset.file.features) if dataset.file else {}
        self.classes = class_names(dataset)
        self._looks: list[tuple[float, int, int, Look]] = []
        for shard in self._chosen():
            self._read(shard)
        self._look()

    def _chosen(self) -> Iterator[OpenedShard]:
        """Yield the shards to read: all, or evenly many where there are too many samples."""
        file, shards = self.dataset.file, self.dataset.shards
        step = 1
        if file is not None and not self.options.full:
            step = max(1, -(-sum(shard.samples for shard in file.shards) // MOST_SAMPLES))
        yield from shards[::step]

    def _read(self, shard: OpenedShard) -> None:
        try:
            part = read_part(shard, metadata=True)
        except CorruptShard as error:
            self.damage.append(error)
            return
        self.damage += part.damage
        self.samples += part.samples
        self.shards += 1
        self.walked += part.walked
        self.shard_samples.add(np.array([part.samples], np.uint64))
        self.kinds |= {name: kind for name, kind in part.kinds.items() if kind != "bytes"}
        if part.walked and (known := pc.count_distinct(part.table.column("__key__")).as_py()) < part.samples:
            self.torn.append((shard, part.samples, known))
        self._add_columns(part)
        if part.samples:
            self._add_fields(shard, part)
            self._choose(shard, part)
        self.observer.listed(part.samples)
        self.observer.log(f"{shard.path}: {part.samples:,} samples{', walked' if part.walked else ''}")

    def _add_columns(self, part: Part) -> None:
        for one in part.schema:
            if one.name.startswith("__"):
                continue
            column = self.columns.setdefault(one.name, Column(str(one.type)))
            column.add_type(str(one.type))
            if not is_plain(one.type):
                continue
            values = part.table.column(one.name)
            column.add(values)
            if one.name in ("width", "height") and pt.is_integer(one.type):
                numbers = values.combine_chunks().drop_null().to_numpy(zero_copy_only=False)
                self.pixels[one.name == "height"].add(numbers[numbers >= 0].astype(np.uint64))

    def _add_fields(self, shard: OpenedShard, part: Part) -> None:
        fields = part.fields()
        names = fields.field("name")
        names = names if pt.is_dictionary(names.type) else names.dictionary_encode()
        codes = names.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1))
        offsets, lengths = (fields.field(name).to_numpy() for name in ("offset", "length"))
        crcs = fields.field("crc32c")
        known = None if crcs.null_count else crcs.to_numpy().astype(np.uint64)
        for code, name in enumerate(names.dictionary.to_pylist()):
            rows = order[bounds[code] : bounds[code + 1]]
            if len(rows) and (name in self.fields or len(self.fields) < _MOST_FIELDS):
                tally = self.fields.setdefault(name, FieldTally())
                tally.add(shard, offsets[rows], lengths[rows], None if known is None else known[rows])

    def _choose(self, shard: OpenedShard, part: Part) -> None:
        """Keep those samples whose random numbers are the smallest of all."""
        most = self.options.looks
        if most < 1:
            return
        ranks = np.random.default_rng([self.options.seed % 2**64, shard.number]).random(part.samples)
        rows = np.argpartition(ranks, most)[:most] if len(ranks) > most else np.arange(len(ranks))
        for row in rows.tolist():
            rank = -float(ranks[row])
            if len(self._looks) >= most and rank <= self._looks[0][0]:
                continue
            one = part.table.slice(row, 1).select(["__key__", FIELDS]).to_pylist()[0]
            fields = {field["name"]: (field["offset"], field["length"]) for field in one[FIELDS]}
            push = heapq.heappush if len(self._looks) < most else heapq.heapreplace
            push(self._looks, (rank, shard.number, row, Look(shard, one["__key__"], fields)))

    def _look(self) -> None:
        """Look into the chosen samples, shard by shard."""
        images = [] if self._columns_tell_images() else self._of_content("image")
        labels = [name for name, tally in self.fields.items() if tally.unknown and self.is_label_field(name)]
        if not images and not labels:
            return
        looks = sorted(self._looks, key=lambda one: one[1:3])
        by_shard: dict[int, list[Look]] = {}
        for _, number, _, look in looks:
            by_shard.setdefault(number, []).append(look)
        for chosen in by_shard.values():
            try:
                with open_shard(chosen[0].shard.path) as file:
                    for look in chosen:
                        self._look_into(look, file, images, labels)
            except CorruptShard as error:
                self.damage.append(error)

    def _look_into(self, look: Look, file: ShardFile | PackedFile, images: list[str], labels: list[str]) -> None:
        wanted = sorted((*place, name) for name, place in look.fields.items() if name in images or name in labels)
        for offset, length, name in wanted:
            is_image = name in images
            far = look.shard.path.endswith(COMPRESSED) and offset + length > _NEAR
            if far or length > (IMAGE_LIMIT if is_image else _SHORT):
                continue
            data = b"".join(payload(file, offset, length, f"{look.shard.path}, field {name!r} of {look.key}"))
            if is_image:
                self.images.setdefault(name, ImageTally()).add(look.key, data)
            else:
                label = label_of(data, self.kinds.get(name, "bytes"), self.classes.get(name))
                self.fields[name].labels[label] += 1

    @property
    def partial(self) -> bool:
        """Whether only some sidecars were read."""
        return self.shards < len(self.dataset.shards)

    def labels(self, name: str, most: int) -> Iterator[tuple[str, int | float | None, int]]:
        """Yield name, number and count of a field's most frequent payloads: one of each is read, or told by its class.

        A class whose payload cannot be read has no name.
        """
        tally = self.fields[name]
        kind, classes = self.kinds.get(name, "bytes"), self.classes.get(name)
        for group, count in tally.groups.most()[:most]:
            shard, offset = tally.places[group]
            try:
                with open_shard(shard.path) as file:
                    data = b"".join(payload(file, offset, group >> 32, shard.path))
            except CorruptShard as error:
                self.damage.append(error)
                yield "?", None, count
                continue
            yield *label_of(data, kind, classes), count

    def is_label_field(self, name: str) -> bool:
        """Tell whether a field is a label by its name, or by the dataset file."""
        return name in self.classes or is_label(name)

    def _of_content(self, content: str) -> list[str]:
        return [name for name in self.fields if content_of(name, self.kinds.get(name, "bytes")) == content]

    def _columns_tell_images(self) -> bool:
        return {"width", "height", "mode"} <= set(self.columns) and self.pixels[0].spread().count > 0
