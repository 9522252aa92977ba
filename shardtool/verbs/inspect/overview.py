"""Collect the statistics of a dataset in one pass over its indexes, and inspect some random images and labels.

Memory does not grow with the number of samples.
"""

from __future__ import annotations

import heapq
from collections import Counter
from contextlib import suppress
from dataclasses import field
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.dataclass import dataclass
from shardtool.dataset.features import number_features
from shardtool.dataset.payload import MAX_INSPECTED_IMAGE_BYTES, content_type, image_info, is_label_name, label_name
from shardtool.dataset.shard_file import CompressedFile, ShardFile, is_compressed, iter_payload, open_shard
from shardtool.dataset.shard_index import ShardIndex, part_offsets
from shardtool.dataset.sidecar_schema import FIELDS_COLUMN, FieldRow
from shardtool.entries.arrow import to_python_rows
from shardtool.errors import CorruptShard, InvalidRequest, redact_secrets
from shardtool.fingerprint import crc32c
from shardtool.verbs.inspect.summary import ColumnTally, Label, SizeTally, ValueCounts, is_scalar_type, sort_labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.request.dataset_options import InspectOptions
    from shardtool.request.observer import Observer
    from shardtool.values import FeatureType


MAX_READ_SAMPLES = 4_000_000
_MAX_FIELDS = 1000
MAX_LABEL_BYTES = 64
_MAX_UNPACKED_BYTES = 2**26
_MAX_LABEL_READS = 20_000  # read at most this many labels to compute missing checksums
_INDEX_COLUMNS = ("__key__", "__offset__", "__size__", FIELDS_COLUMN)
NON_LABEL_COLUMNS = ("split", "mode", "width", "height")


class FieldPayloads(NamedTuple):
    """The payloads of a field in one shard.

    Attributes:
        rows: The row of each payload's sample.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    crcs: NDArray[np.uint64] | None

    def content_ids(self) -> NDArray[np.uint64]:
        """Return one number per payload, computed from length and (if known) CRC-32C."""
        lengths: NDArray[np.uint64] = self.lengths << np.uint64(32)
        return lengths if self.crcs is None else lengths | self.crcs


@dataclass(frozen=True)
class StoredSample:
    """A sample and its location.

    Attributes:
        number: The sample's index in its shard, plus the argument `first` of `stored_samples`.
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
    """Return the samples in the rows `rows` of a shard.

    If `names` is given, include only these metadata columns. `first` is the number of the shard's first sample.
    """
    table = index.table if names is None else index.table.select([*_INDEX_COLUMNS, *names])
    samples = []
    selected = table.slice(int(rows[0]), 1) if len(rows) == 1 else table.take(pa.array(rows))
    for row, metadata in zip(rows.tolist(), to_python_rows(selected), strict=True):
        key, offset, size, fields = (metadata.pop(name) for name in _INDEX_COLUMNS)
        samples.append(StoredSample(shard, first + row, key, offset, size, fields, metadata))
    return samples


class FieldTally:
    """The statistics of a field over all shards.

    Attributes:
        counts: Number of payloads by content id (`FieldPayloads.content_ids`), if `lacks_checksums` is false.
        locations: Shard number and offset of the first payload with each content id.
        lacks_checksums: Whether some checksums are missing.
        labels: Number of inspected payloads by label (name, class number).
    """

    def __init__(self) -> None:
        self.sizes = SizeTally()
        self.counts = ValueCounts[int]()
        self.locations: dict[int, tuple[int, int]] = {}
        self.lacks_checksums = False
        self.labels: Counter[tuple[str, int | float | None]] = Counter()

    def add(self, number: int, payloads: FieldPayloads) -> None:
        """Add the payloads of shard `number`."""
        self.sizes.add(payloads.lengths)
        if payloads.crcs is None:
            self.lacks_checksums = True
        if self.counts.values is None or self.lacks_checksums:
            return
        if int(payloads.lengths.max()) > MAX_LABEL_BYTES:
            self.counts.values = None
            return
        ids, first, counts = np.unique(payloads.content_ids(), return_index=True, return_counts=True)
        self.counts.add(zip(ids.tolist(), counts.tolist(), strict=True))
        if self.counts.values is None:
            self.locations = {}
            return
        for content_id, offset in zip(ids.tolist(), payloads.offsets[first].tolist(), strict=True):
            self.locations.setdefault(content_id, (number, offset))


def shard_random_numbers(seed: int, number: int, count: int) -> NDArray[np.float64]:
    """Return a reproducible random number for each sample of shard `number`."""
    return np.random.default_rng([seed % 2**64, number]).random(count)


class DatasetOverview:
    """The statistics of a dataset. `read` collects them from the indexes.

    Attributes:
        counts: Number of samples of each read shard, by shard number.
        scanned: Number of shards without a valid sidecar.
        interleaved: Shard, sample count and distinct key count of each scanned shard with repeated keys.
        images: Inspected images by field: the sample's key, and either (width, height, mode) or an error message.
        label_texts: Label texts that `labels` has read, by field and content id.
    """

    def __init__(self, dataset: StoredDataset, options: InspectOptions, observer: Observer) -> None:
        if not dataset.shards:
            raise InvalidRequest(dataset.where, "no shards", expected="at least one shard")
        self.dataset, self.options, self.observer = dataset, options, observer
        self.counts: dict[int, int] = {}
        self.scanned = 0
        self.sample_sizes = SizeTally()
        self.damage: list[CorruptShard] = []
        self.interleaved: list[tuple[StoredShard, int, int]] = []
        self.fields: dict[str, FieldTally] = {}
        self.columns: dict[str, ColumnTally] = {}
        self.widths, self.heights = SizeTally(), SizeTally()
        self.images: dict[str, list[tuple[str, tuple[int, int, str] | str]]] = {}
        self.kinds = number_features(dataset.file.features) if dataset.file else {}
        self.classes = dataset.file.classes if dataset.file else {}
        self.label_texts: dict[str, dict[int, str]] = {}
        self._chosen: list[tuple[float, int, int, StoredSample]] = []
        self._all_chosen, self._max_examined_samples = False, options.looks
        self._reads_left = _MAX_LABEL_READS

    @property
    def samples(self) -> int:
        """Number of samples in the indexes that were read."""
        return sum(self.counts.values())

    @property
    def partial(self) -> bool:
        """Whether some indexes were not read."""
        return len(self.counts) < len(self.dataset.shards)

    def read(self) -> Iterator[tuple[StoredShard, ShardIndex, dict[str, FieldPayloads]]]:
        """Yield each shard, its index, and its payloads by field.

        If the dataset file lists more than `MAX_READ_SAMPLES` samples, skip some shards, unless `full` is set.
        """
        file, step = self.dataset.file, 1
        if file is not None:
            samples = sum(shard.samples for shard in file.shards)
            step = 1 if self.options.full else max(1, -(-samples // MAX_READ_SAMPLES))
            self._all_chosen = samples <= self._max_examined_samples
        for shard in self.dataset.shards[::step]:
            try:
                shard_index = shard.index(metadata=True)
            except CorruptShard as error:
                self.damage.append(error)
                continue
            yield shard, shard_index, self._add(shard, shard_index)

    def _add(self, shard: StoredShard, shard_index: ShardIndex) -> dict[str, FieldPayloads]:
        self.damage += shard_index.problems
        self.counts[shard.number] = len(shard_index)
        self.scanned += shard_index.scan is not None
        self.kinds |= {name: kind for name, kind in shard_index.kinds.items() if kind != "bytes"}
        if shard_index.scan is not None and (keys := len({*shard_index.all_keys()})) < len(shard_index):
            self.interleaved.append((shard, len(shard_index), keys))
        self._add_columns(shard_index)
        fields = self._payloads(shard, shard_index) if len(shard_index) else {}
        for name, payloads in fields.items():
            self.fields.setdefault(name, FieldTally()).add(shard.number, payloads)
        if len(shard_index):
            self._choose_samples(shard, shard_index)
        self.observer.listed(len(shard_index))
        how = ", scanned" if shard_index.scan else ""
        self.observer.log(f"{redact_secrets(shard.path)}: {len(shard_index):,} samples{how}")
        return fields

    def _add_columns(self, shard_index: ShardIndex) -> None:
        for arrow_field in shard_index.schema:
            if arrow_field.name.startswith("__"):
                continue
            column = self.columns.setdefault(arrow_field.name, ColumnTally(str(arrow_field.type)))
            column.add_type(str(arrow_field.type))
            values = shard_index.table.column(arrow_field.name)
            if not is_scalar_type(arrow_field.type):
                column.add_nested(values)
                continue
            column.add(values)
            if arrow_field.name in ("width", "height") and pt.is_integer(arrow_field.type):
                numbers = values.combine_chunks().drop_null().to_numpy(zero_copy_only=False)
                tally = self.widths if arrow_field.name == "width" else self.heights
                tally.add(numbers[numbers >= 0].astype(np.uint64))

    def _payloads(self, shard: StoredShard, shard_index: ShardIndex) -> dict[str, FieldPayloads]:
        order = np.argsort(shard_index.codes, kind="stable")
        bounds = np.searchsorted(shard_index.codes[order], np.arange(len(shard_index.names) + 1))
        offsets, lengths = shard_index.offsets.view(np.uint64), shard_index.lengths.view(np.uint64)
        crcs = None if shard_index.crcs is None else shard_index.crcs.astype(np.uint64)
        cumulative_lengths, sample_numbers = part_offsets(shard_index.lengths), shard_index.sample_of_row()
        self.sample_sizes.add(np.diff(cumulative_lengths[shard_index.first_rows]).astype(np.uint64))
        payloads: dict[str, FieldPayloads] = {}
        free_fields = _MAX_FIELDS - len(self.fields)
        for code, name in enumerate(shard_index.names):
            rows = order[bounds[code] : bounds[code + 1]]
            if len(rows) and (name in self.fields or free_fields > 0):
                free_fields -= 0 if name in self.fields else 1
                field_crcs = self._checksums(shard, name, offsets[rows], lengths[rows]) if crcs is None else crcs[rows]
                payloads[name] = FieldPayloads(sample_numbers[rows], offsets[rows], lengths[rows], field_crcs)
        return payloads

    def _checksums(
        self, shard: StoredShard, name: str, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> NDArray[np.uint64] | None:
        is_cheap = len(lengths) <= self._reads_left and lengths.max() <= MAX_LABEL_BYTES
        if not is_cheap or not self.is_label(name) or is_compressed(shard.path):
            return None
        self._reads_left -= len(lengths)
        crcs = np.empty(len(lengths), np.uint64)
        try:
            with open_shard(shard.path) as file:
                for row in np.argsort(offsets).tolist():
                    crcs[row] = crc32c(b"".join(iter_payload(file, int(offsets[row]), int(lengths[row]), shard.path)))
        except CorruptShard:
            return None
        return crcs

    def _choose_samples(self, shard: StoredShard, shard_index: ShardIndex) -> None:
        max_chosen = self._max_examined_samples
        if max_chosen < 1:
            return
        if self._all_chosen:  # do not import numpy.random, which takes 8 ms
            ranks = np.zeros(len(shard_index))
        else:
            ranks = shard_random_numbers(self.options.seed, shard.number, len(shard_index))
        rows = np.argpartition(ranks, max_chosen)[:max_chosen] if len(ranks) > max_chosen else np.arange(len(ranks))
        for row in rows.tolist():
            rank = -float(ranks[row])
            if len(self._chosen) >= max_chosen and rank <= self._chosen[0][0]:
                continue
            push = heapq.heappush if len(self._chosen) < max_chosen else heapq.heapreplace
            push(self._chosen, (rank, shard.number, row, stored_samples(shard, shard_index, np.array([row]), ())[0]))

    def inspect_samples(self, *, images: bool = True) -> None:
        """Read the images of the chosen samples, and the labels of fields without checksums."""
        has_image_columns = {"width", "height", "mode"} <= {*self.columns} and self.widths.spread().count
        labels = [name for name, tally in self.fields.items() if tally.lacks_checksums and self.is_label(name)]
        max_bytes = dict.fromkeys(labels, MAX_LABEL_BYTES)
        if images and not has_image_columns and find_spec("PIL") is not None:
            kinds = {name: content_type(name, self.kinds.get(name, "bytes")) for name in self.fields}
            max_bytes |= {name: MAX_INSPECTED_IMAGE_BYTES for name, kind in kinds.items() if kind == "image"}
        if not max_bytes:
            return
        samples = [candidate[-1] for candidate in sorted(self._chosen, key=lambda candidate: candidate[1:3])]
        for shard, chosen in groupby(samples, key=lambda sample: sample.shard):
            try:
                with open_shard(shard.path) as file:
                    for sample in chosen:
                        self._inspect_sample(sample, file, max_bytes)
            except CorruptShard as error:
                self.damage.append(error)

    def _inspect_sample(
        self, sample: StoredSample, file: ShardFile | CompressedFile, max_bytes: Mapping[str, int]
    ) -> None:
        for item in sorted((item for item in sample.fields if item["name"] in max_bytes), key=itemgetter("offset")):
            name, offset, length = item["name"], item["offset"], item["length"]
            if length > max_bytes[name] or (is_compressed(sample.shard.path) and offset + length > _MAX_UNPACKED_BYTES):
                continue
            data = b"".join(iter_payload(file, offset, length, f"{sample.shard.path}, field {name!r} of {sample.key}"))
            if max_bytes[name] == MAX_INSPECTED_IMAGE_BYTES:
                self.images.setdefault(name, []).append((sample.key, image_info(data)))
            else:
                label = label_name(data, self.kinds.get(name, "bytes"), self.classes.get(name))
                self.fields[name].labels[label] += 1

    def labels(self, name: str, max_values: int) -> tuple[Label, ...]:
        """Return a field's most frequent values. Read the name of each value from a payload. If this fails, use `?`."""
        tally = self.fields[name]
        kind, classes = self.kinds.get(name, "bytes"), self.classes.get(name)
        items = (tally.counts.values or {}).items()
        counts = sorted(items, key=lambda item: (-item[1], tally.locations[item[0]]))[:max_values]
        names = {}
        in_order = sorted((*tally.locations[content_id], content_id) for content_id, _ in counts)
        for number, locations in groupby(in_order, key=lambda location: location[0]):
            path = self.dataset.shards[number].path
            with suppress(CorruptShard), open_shard(path) as file:
                for _, offset, content_id in locations:
                    data = b"".join(iter_payload(file, offset, content_id >> 32, path))
                    names[content_id] = label_name(data, kind, classes)
        self.label_texts[name] = {content_id: label for content_id, (label, _) in names.items()}
        return sort_labels([(names.get(content_id, ("?", None)), count) for content_id, count in counts])

    def is_label(self, name: str) -> bool:
        """Return whether a field or column has class names, or is named like a label."""
        return self.label_rank(name) <= 1

    def label_rank(self, name: str) -> int:
        """Rank a field or column from 0 (most likely a label) to 3.

        0: has class names. 1: is named like a label. 2: other columns. 3: other fields.
        """
        return 0 if name in self.classes else 1 if is_label_name(name) else 3 if name in self.fields else 2

    def label_columns(self) -> dict[str, ColumnTally]:
        """Return the columns that can be labels, except columns with the name of a field."""
        return {name: column for name, column in self.columns.items() if name not in (*NON_LABEL_COLUMNS, *self.fields)}

    def label_names(self) -> list[str]:
        """Return the labels for which all values were counted, the likeliest label first."""
        names = [name for name, tally in self.fields.items() if tally.counts.values and not tally.lacks_checksums]
        names += [name for name, column in self.label_columns().items() if column.counts.values]
        return sorted(filter(self.is_label, names), key=lambda name: (self.label_rank(name), name))
