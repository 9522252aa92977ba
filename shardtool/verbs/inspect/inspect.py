"""`inspect`: what is in a dataset, as one value. The library twin of `shardtool inspect`.

It reads the dataset file and the sidecars, one at a time, and of the shards only a seeded few images and labels. Shards
without a sidecar are walked.
"""

from __future__ import annotations

import heapq
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.dataset.dataset_file import numbers_in
from shardtool.dataset.find import (
    StoredDataset,
    StoredShard,
    damaged_file,
    given_datasets,
    natural,
    open_dataset,
    splits_in,
)
from shardtool.dataset.payload import IMAGE_LIMIT, content_of, image_fact, is_label, label_of
from shardtool.dataset.shard_file import PackedFile, ShardFile, is_packed, open_shard, payload
from shardtool.dataset.shard_index import FIELDS, FieldRow, ShardIndex, ends_of
from shardtool.entries.arrow import python_rows
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable, reason, without_secrets
from shardtool.fingerprint import crc32c
from shardtool.pattern import SIDECAR_SUFFIX
from shardtool.request.options import InspectOptions
from shardtool.request.settings import Observer, by_names
from shardtool.storage.places import file_fact, for_each
from shardtool.values import Given, output_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.values import Kind

    Shards = tuple[StoredDataset, Mapping[int, int]]  # a dataset, and how many samples each index has


@by_names(InspectOptions)
def inspect(dataset: Given, options: InspectOptions, observer: Observer) -> Summary:
    """Return what is in a dataset, or in several.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards; with `{split}` in a name, or of several
            such in a list, the summary has `datasets`, those of each.
        options: See `InspectOptions`.
        observer: Hears of progress.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: The dataset file is damaged, or no shard can be read.
    """
    opened = [open_dataset(one) for one in given_datasets(dataset)]
    return together([_seen(one, options, observer) for one in opened])


def _seen(dataset: StoredDataset, options: InspectOptions, observer: Observer) -> tuple[Shards, Summary]:
    overview = Overview(dataset, options, observer)
    for _ in overview.read():
        pass
    overview.look()
    summary = summarize(overview)
    if not overview.counts:
        where, problem = dataset.dataset_file or dataset.shards[0].path, summary.problems[0]
        found = f"no shard can be read: {problem.where}: {problem.message}"
        raise CorruptShard(where, found, remedy="Get the shards again.")
    return (dataset, overview.counts), summary  # of many datasets, not the overviews, which are large


# What is in a dataset, as one value that the terminal, `--json` and the page show.
#
# What is missing or damaged is a problem in it, as long as something can be read: to prove that a dataset is whole is
# the work of `verify`.


MOST_VALUES = 100  # of a label, in a summary
_MOST_OF_COLUMN = 10  # values
_SUMMARY_VERSION = 1
_OF_ALL = ("dataset", "format", "samples", "size", "field_bytes", "skipped", "complete")  # of several datasets
_SCOPE = ("samples", "shards", "walked")
_MOST_CLASSES = 1000  # values of what is not called a label
_NAME = 32  # characters of the name of a class, on average
_NAMED = 10  # unreadable images that are named
_MOST = 2**62  # what a file of another tool may say


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is missing or damaged: `code` is for programs, `where` a file."""

    code: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """A field: what it holds by its name, how it is stored (`kind`), how many samples have it, bytes of payloads."""

    kind: str
    content: str
    samples: int
    size: Spread


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """Images: where the numbers are from (`columns`, or `sampled` headers), how many, and what they are.

    Attributes:
        source: `columns` or `sampled`.
        images: How many the numbers are about.
        width: As a viewer shows them.
        height: As a viewer shows them.
        modes: Pillow's mode to how many images have it.
        unreadable: (key, what is wrong) of those that are no image.
    """

    source: str
    images: int
    width: Spread
    height: Spread
    modes: Mapping[str, int]
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Label:
    """A value of a label: what it is called, its number where it is a class's, and how many samples have it."""

    name: str
    number: int | float | None
    samples: int


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """The distribution of a label.

    Attributes:
        source: `field` or `column`.
        samples: How many were counted.
        sampled: Whether these are only some.
        distinct: How many values there are.
        values: The most frequent ones, most frequent first.
    """

    source: str
    samples: int
    sampled: bool
    distinct: int
    values: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class StatisticsScope:
    """The scope of the statistics: how many samples and shards of all, and how many shards had to be walked."""

    samples: int
    shards: int
    walked: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The content of a dataset.

    Attributes:
        dataset: What was given; of a dataset file, its path.
        dataset_file: Its path; None where there is none.
        name: The name of the dataset; None without a dataset file.
        format: `tar` or `tfrecord`.
        samples: In all shards.
        size: Bytes of all shards that are there, or are listed.
        field_bytes: Bytes of all payloads; None where only some sidecars were read and there is no dataset file.
        skipped: What was left out, when it was made.
        complete: Whether all that the dataset file lists is there; None without one.
        problems: What is missing or damaged.
        fingerprint: The hash of the content; None where unknown.
        made: How it was made, as the dataset file has it.
        looked: What the statistics below are about.
        shard_sizes: Bytes.
        shard_samples: Counts.
        fields: By name.
        images: By field, or by the columns they are from.
        labels: By field or column, the likeliest first.
        splits: Split to how many samples have it.
        siblings: The other splits' dataset files, beside this one: split to file name.
        columns: The metadata.
        part_of: How many shards the dataset has of which some were named; None: all of it was.
        datasets: Where several were given, the summary of each. Of what is above, all of them have sizes and counts,
            `complete` and `problems`; the rest is in `datasets`.
    """

    dataset: str
    dataset_file: str | None = None
    name: str | None = None
    format: str
    samples: int
    size: int
    field_bytes: int | None
    skipped: int
    complete: bool | None
    problems: tuple[Problem, ...]
    fingerprint: str | None = None
    made: Mapping[str, object] | None = None
    looked: StatisticsScope
    shard_sizes: Spread
    shard_samples: Spread
    fields: Mapping[str, FieldSummary] = field(default_factory=dict)
    images: Mapping[str, ImageSummary] = field(default_factory=dict)
    labels: Mapping[str, LabelSummary] = field(default_factory=dict)
    splits: Mapping[str, int] = field(default_factory=dict)
    siblings: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, ColumnSummary] = field(default_factory=dict)
    part_of: int | None = None
    datasets: tuple[Summary, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the summary as data, the way `--json` prints it (docs/json.md)."""
        if self.datasets:
            found: dict[str, object] = {name: getattr(self, name) for name in _OF_ALL}
            found |= {"problems": [asdict(one) for one in self.problems]}
            return {"summary_version": _SUMMARY_VERSION, **found, "datasets": [one.to_json() for one in self.datasets]}
        found = asdict(self)
        for name in ("datasets", *(("part_of",) if self.part_of is None else ())):
            del found[name]
        return {"summary_version": _SUMMARY_VERSION, **found}


def summarize(overview: Overview, most_values: int = MOST_VALUES) -> Summary:
    """Return what the indexes of a dataset say.

    Args:
        overview: What was read.
        most_values: How many values of a label are named.
    """
    opened = overview.dataset
    file = opened.file
    problems = (*_missing(opened), *_damaged(overview))
    others = splits_in(opened.folder, file.made) if file else {}
    sizes, counts = _of_shards([(opened, overview.counts)])
    fields = _fields(overview)
    payloads = None if overview.partial else sum(one.size.total for one in fields.values())
    return Summary(
        dataset=without_secrets(output_text(opened.dataset_file or opened.folder or ".")),
        dataset_file=None if opened.dataset_file is None else without_secrets(output_text(opened.dataset_file)),
        name=file.name if file else None,
        format=file.format if file else opened.shards[0].format,
        samples=counts.total,
        size=sizes.total,
        field_bytes=file.field_bytes if file and not file.part_of else payloads,
        skipped=file.skipped if file else 0,
        complete=not problems if file else None,
        problems=problems,
        fingerprint=(file.fingerprint or None) if file else None,
        made=file.made.document if file else None,
        looked=StatisticsScope(overview.samples, len(overview.counts), overview.walked),
        shard_sizes=sizes,
        shard_samples=counts,
        fields=fields,
        images=_images(overview),
        labels=_labels(overview, most_values),
        splits=_values(overview, "split"),
        siblings={one.made.split: output_text(name) for name, one in others.items()},
        columns={name: column.summary(_MOST_OF_COLUMN) for name, column in overview.columns.items()},
        part_of=(file.part_of or None) if file else None,
    )


def _missing(opened: StoredDataset) -> Iterator[Problem]:
    """Yield what the dataset file lists and is not there, or not of the size that it lists."""
    if opened.file is None:
        if (damaged := damaged_file(opened)) is not None:
            yield Problem("dataset-file-damaged", shown(damaged), "not what was written")
        return
    for path in opened.unlisted:  # a range found it beside those of the dataset
        yield Problem("extra-shard", shown(path), "not in the dataset file")
    sizes = for_each(_size, [path for shard in opened.shards for path in (shard.path, shard.sidecar)])
    for shard, entry in zip(opened.shards, opened.file.shards, strict=True):
        for what, path, size in (("shard", shard.path, entry.size), ("sidecar", shard.sidecar, entry.sidecar_size)):
            found = next(sizes)
            if isinstance(found, str):
                yield Problem(f"missing-{what}", shown(path), found)
            elif found != size:
                yield Problem(f"{what}-size", shown(path), f"{found:,} bytes; the dataset file says {size:,}")


def _size(path: str) -> int | str:
    """Return the size of a file, or why it has none."""
    try:
        return file_fact(path).st_size
    except OSError as error:
        return reason(error)


def _damaged(overview: Overview) -> Iterator[Problem]:
    for shard, samples, known in overview.torn:
        found = f"{samples:,} samples, but only {known:,} keys: fields of one sample do not lie next to each other"
        yield Problem("torn-samples", shown(shard.path), found)
    for error in overview.damage:
        code = "damaged-sidecar" if error.where.endswith(SIDECAR_SUFFIX) else "damaged-shard"
        yield Problem(code, error.where, error.found)


def shown(path: str) -> str:
    """Return a path as people and programs get to see it."""
    return without_secrets(printable(output_text(path)))


def _of_shards(datasets: Iterable[Shards]) -> tuple[Spread, Spread]:
    """Return the sizes of the shards of datasets, and how many samples they hold."""
    sizes, counts = list[int](), list[int]()
    for dataset, known in datasets:
        if (file := dataset.file) is None:
            sizes += [size for one in dataset.shards if (size := one.size()) is not None]
            counts += known.values()
        else:
            sizes += [min(one.size, _MOST) for one in file.shards]
            counts += [min(one.samples, _MOST) for one in file.shards]
    return _spread(sizes), _spread(counts)


def _spread(values: Iterable[int]) -> Spread:
    sizes = Sizes()
    sizes.add(np.array([*values], np.uint64))
    return sizes.spread()


def together(datasets: Sequence[tuple[Shards, Summary]]) -> Summary:
    """Return the summary of several datasets, with the counts of their overviews; of one alone, its own."""
    summaries = [summary for _, summary in datasets]
    if len(summaries) == 1:
        return summaries[0]
    sizes, counts = _of_shards(shards for shards, _ in datasets)
    bytes_of = [one.field_bytes for one in summaries]
    known = [one.complete for one in summaries]
    looked = [one.looked for one in summaries]
    return Summary(
        dataset=listing([one.dataset for one in summaries], 3),
        format=", ".join(sorted({one.format for one in summaries})),
        samples=counts.total,
        size=sizes.total,
        field_bytes=None if None in bytes_of else sum(one or 0 for one in bytes_of),
        skipped=sum(one.skipped for one in summaries),
        complete=False if False in known else None if None in known else True,
        problems=tuple(problem for one in summaries for problem in one.problems),
        looked=StatisticsScope(*(sum(getattr(one, name) for one in looked) for name in _SCOPE)),
        shard_sizes=sizes,
        shard_samples=counts,
        datasets=tuple(summaries),
    )


def _fields(overview: Overview) -> dict[str, FieldSummary]:
    file = overview.dataset.file
    listed = file.fields if file else {}
    found = {}
    for name, tally in overview.fields.items():
        kind, size = overview.kinds.get(name, "bytes"), tally.sizes.spread()
        count = listed.get(name)
        samples = count if isinstance(count, int) else size.count
        found[name] = FieldSummary(kind, content_of(name, kind), samples, size)
    return dict(sorted(found.items()))


def _images(overview: Overview) -> dict[str, ImageSummary]:
    width, height = (sizes.spread() for sizes in overview.pixels)
    found = {}
    if width.count and height.count:
        found["width, height"] = ImageSummary("columns", width.count, width, height, _values(overview, "mode"))
    for name, looks in overview.images.items():
        facts = [fact for _, fact in looks if not isinstance(fact, str)]
        width, height = _spread(wide for wide, _, _ in facts), _spread(tall for _, tall, _ in facts)
        modes = dict(sorted(Counter(mode for *_, mode in facts).items(), key=lambda one: (-one[1], one[0])))
        wrong = tuple((key, fact) for key, fact in looks if isinstance(fact, str))[:_NAMED]
        found[name] = ImageSummary("sampled", len(looks), width, height, modes, wrong)
    return found


def _labels(overview: Overview, most: int) -> dict[str, LabelSummary]:
    """Return what looks like labels: fields with classes first, then what is called so, then columns of few values."""
    found = {name: _field_label(overview, name, tally, most) for name, tally in overview.fields.items()}
    found |= {name: _column_label(overview, name, one, most) for name, one in overview.label_columns().items()}
    labels = {name: label for name, label in found.items() if label is not None}
    return dict(sorted(labels.items(), key=lambda item: (overview.rank(item[0]), item[0])))


def _column_label(overview: Overview, name: str, column: Column, most: int) -> LabelSummary | None:
    """Return the distribution of a column; None where it is no label."""
    values = column.counts.values
    if not values:
        return None
    few = len(values) <= min(_MOST_CLASSES, column.filled // 2)
    short = sum(len(str(value)) for value in values) <= _NAME * len(values)  # names, not sentences
    if not is_label(name) and not (few and column.type in ("string", "bool") and short):
        return None
    shown = tuple(Label(str(value), None, count) for value, count in column.counts.most()[:most])
    return LabelSummary("column", sum(values.values()), overview.partial, len(values), shown)


def _field_label(overview: Overview, name: str, tally: FieldTally, most: int) -> LabelSummary | None:
    """Return the distribution of a field's payloads; None where it is no label."""
    if tally.unknown:
        if not tally.labels:
            return None
        values = _by_count(tally.labels.items())[:most]
        return LabelSummary("field", tally.labels.total(), sampled=True, distinct=len(tally.labels), values=values)
    groups, samples, called = tally.groups.values, tally.sizes.spread().count, overview.rank(name) <= 1
    if not groups or (not called and not 1 < len(groups) <= min(_MOST_CLASSES, samples // 2)):
        return None
    values = overview.labels(name, most)
    if not called and all(value.number is not None for value in values):
        return None  # numbers that are not called a label are measurements
    return LabelSummary("field", samples, overview.partial, len(groups), values)


def _values(overview: Overview, name: str) -> dict[str, int]:
    """Return the most frequent values of a column, and how often each is there."""
    column = overview.columns.get(name)
    return {str(value): count for value, count in column.counts.most()[:MOST_VALUES]} if column else {}


# One pass over the indexes of a dataset that adds up what a summary and the page show, and a few looks into shards.
#
# Memory does not grow with the number of samples. Which samples are looked at follows from a seed, not from the order
# of the work. Damage is noted, and the pass goes on.


MOST_SAMPLES = 4_000_000  # whose sidecars are read unless all are asked for: a few seconds
_MOST_FIELDS = 1000  # names; more is no dataset of fields
SHORT = 64  # bytes of a payload that may be a label
_NEAR = 2**26  # bytes of a compressed shard that are decompressed to look into it
_MOST_READS = 20_000  # label payloads that are read because no index has their checksums
_OWN = ("__key__", "__offset__", "__size__", FIELDS)
NO_LABELS = ("split", "mode", "width", "height")


class Payloads(NamedTuple):
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
class FoundSample:
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
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    classes: Mapping[str, list[str]] = field(default_factory=dict)


def found_samples(
    shard: StoredShard, index: ShardIndex, rows: NDArray[np.int64], names: Sequence[str] | None = None, first: int = 0
) -> list[FoundSample]:
    """Return samples of a shard.

    Args:
        shard: The shard.
        index: Its index.
        rows: Their places in it.
        names: The columns of metadata that are wanted; None: all.
        first: The number of the shard's first sample.
    """
    table = index.table if names is None else index.table.select([*_OWN, *names])
    found = []
    taken = table.slice(int(rows[0]), 1) if len(rows) == 1 else table.take(pa.array(rows))
    for row, one in zip(rows.tolist(), python_rows(taken), strict=True):
        key, offset, size, fields = (one.pop(name) for name in _OWN)
        found.append(FoundSample(shard, first + row, key, offset, size, fields, one))
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
        self.sizes = Sizes()
        self.groups = ValueCounts[int]()
        self.places: dict[int, tuple[int, int]] = {}
        self.unknown = False
        self.labels: Counter[tuple[str, int | float | None]] = Counter()

    def add(self, number: int, payloads: Payloads) -> None:
        """Take the field's payloads in the shard of that number."""
        self.sizes.add(payloads.lengths)
        if payloads.crcs is None:
            self.unknown = True
        if self.groups.values is None or self.unknown:
            return
        if int(payloads.lengths.max()) > SHORT:
            self.groups.values = None
            return
        found, first, counts = np.unique(payloads.groups(), return_index=True, return_counts=True)
        self.groups.add(zip(found.tolist(), counts.tolist(), strict=True))
        if self.groups.values is None:
            self.places = {}
            return
        for group, offset in zip(found.tolist(), payloads.offsets[first].tolist(), strict=True):
            self.places.setdefault(group, (number, offset))


def draw(seed: int, number: int, count: int) -> NDArray[np.float64]:
    """Return a random number for each sample of the shard of that number."""
    return np.random.default_rng([seed % 2**64, number]).random(count)


class Overview:
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
        self.sample_sizes = Sizes()
        self.damage: list[CorruptShard] = []
        self.torn: list[tuple[StoredShard, int, int]] = []
        self.fields: dict[str, FieldTally] = {}
        self.columns: dict[str, Column] = {}
        self.pixels = (Sizes(), Sizes())
        self.images: dict[str, list[tuple[str, tuple[int, int, str] | str]]] = {}
        self.kinds = numbers_in(dataset.file.features) if dataset.file else {}
        self.classes = dataset.file.classes if dataset.file else {}
        self._looks: list[tuple[float, int, int, FoundSample]] = []
        self._reads_left = _MOST_READS

    @property
    def samples(self) -> int:
        """The number of samples in the indexes that were read."""
        return sum(self.counts.values())

    @property
    def partial(self) -> bool:
        """Whether only some indexes were read."""
        return len(self.counts) < len(self.dataset.shards)

    def read(self) -> Iterator[tuple[StoredShard, ShardIndex, dict[str, Payloads]]]:
        """Read the indexes of all shards, or of evenly many where there are too many samples.

        Each is yielded once it is added, with the payloads of its fields.
        """
        file, step = self.dataset.file, 1
        if file is not None and not self.options.full:
            step = max(1, -(-sum(shard.samples for shard in file.shards) // MOST_SAMPLES))
        for shard in self.dataset.shards[::step]:
            try:
                part = shard.index(metadata=True)
            except CorruptShard as error:
                self.damage.append(error)
                continue
            yield shard, part, self._add(shard, part)

    def _add(self, shard: StoredShard, part: ShardIndex) -> dict[str, Payloads]:
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
            column = self.columns.setdefault(one.name, Column(str(one.type)))
            column.add_type(str(one.type))
            values = part.table.column(one.name)
            if not is_plain(one.type):
                column.add_nested(values)
                continue
            column.add(values)
            if one.name in ("width", "height") and pt.is_integer(one.type):
                numbers = values.combine_chunks().drop_null().to_numpy(zero_copy_only=False)
                self.pixels[one.name == "height"].add(numbers[numbers >= 0].astype(np.uint64))

    def _payloads(self, shard: StoredShard, part: ShardIndex) -> dict[str, Payloads]:
        """Return the payloads of each field, and count how large the samples are."""
        order = np.argsort(part.codes, kind="stable")
        bounds = np.searchsorted(part.codes[order], np.arange(len(part.names) + 1))
        offsets, lengths = part.offsets.view(np.uint64), part.lengths.view(np.uint64)
        known = None if part.crcs is None else part.crcs.astype(np.uint64)
        ends, parents = ends_of(part.lengths), part.owners()
        self.sample_sizes.add(np.diff(ends[part.firsts]).astype(np.uint64))
        found: dict[str, Payloads] = {}
        room = _MOST_FIELDS - len(self.fields)
        for code, name in enumerate(part.names):
            rows = order[bounds[code] : bounds[code + 1]]
            if len(rows) and (name in self.fields or room > 0):
                room -= name not in self.fields
                crc = self._checksums(shard, name, offsets[rows], lengths[rows]) if known is None else known[rows]
                found[name] = Payloads(parents[rows], offsets[rows], lengths[rows], crc)
        return found

    def _checksums(
        self, shard: StoredShard, name: str, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]
    ) -> NDArray[np.uint64] | None:
        """Return the checksums of a label's payloads that no index has; None where these are no few short reads."""
        few = len(lengths) <= self._reads_left and lengths.max() <= SHORT
        if not few or self.rank(name) > 1 or is_packed(shard.path):
            return None
        self._reads_left -= len(lengths)
        found = np.empty(len(lengths), np.uint64)
        try:
            with open_shard(shard.path) as file:
                for at in np.argsort(offsets).tolist():
                    data = payload(file, int(offsets[at]), int(lengths[at]), shard.path)
                    found[at] = crc32c(b"".join(data))
        except CorruptShard:
            return None
        return found

    def _choose(self, shard: StoredShard, part: ShardIndex) -> None:
        """Keep those samples whose random numbers are the smallest of all."""
        most = self.options.looks
        if most < 1:
            return
        ranks = draw(self.options.seed, shard.number, len(part))
        rows = np.argpartition(ranks, most)[:most] if len(ranks) > most else np.arange(len(ranks))
        for row in rows.tolist():
            rank = -float(ranks[row])
            if len(self._looks) >= most and rank <= self._looks[0][0]:
                continue
            push = heapq.heappush if len(self._looks) < most else heapq.heapreplace
            push(self._looks, (rank, shard.number, row, found_samples(shard, part, np.array([row]), ())[0]))

    def look(self, *, images: bool = True) -> None:
        """Look into the chosen samples, shard by shard: for labels that no index holds, and for images."""
        told = {"width", "height", "mode"} <= {*self.columns} and self.pixels[0].spread().count
        pictures = [name for name in self.fields if content_of(name, self.kinds.get(name, "bytes")) == "image"]
        pictures = pictures if images and not told else []
        labels = [name for name, tally in self.fields.items() if tally.unknown and self.rank(name) <= 1]
        most = dict.fromkeys(labels, SHORT) | dict.fromkeys(pictures, IMAGE_LIMIT)  # bytes that are read of each
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

    def _look_into(self, look: FoundSample, file: ShardFile | PackedFile, most: Mapping[str, int]) -> None:
        for one in sorted((one for one in look.fields if one["name"] in most), key=itemgetter("offset")):
            name, offset, length = one["name"], one["offset"], one["length"]
            if length > most[name] or (is_packed(look.shard.path) and offset + length > _NEAR):
                continue
            data = b"".join(payload(file, offset, length, f"{look.shard.path}, field {name!r} of {look.key}"))
            if most[name] == IMAGE_LIMIT:
                self.images.setdefault(name, []).append((look.key, image_fact(data)))
            else:
                label = label_of(data, self.kinds.get(name, "bytes"), self.classes.get(name))
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
                    data = b"".join(payload(file, offset, group >> 32, path))
                    names[group] = label_of(data, kind, classes)
        return _by_count([(names.get(group, ("?", None)), count) for group, count in groups])

    def rank(self, name: str) -> int:
        """Return how likely a field or column is a label: 0 has classes, 1 is called so, 2 is a column, 3 a field."""
        return 0 if name in self.classes else 1 if is_label(name) else 3 if name in self.fields else 2

    def label_columns(self) -> dict[str, Column]:
        """Return the columns that may be labels, and are not there as fields, too."""
        return {name: one for name, one in self.columns.items() if name not in (*NO_LABELS, *self.fields)}

    def label_names(self) -> list[str]:
        """Return what is a label by its name or its classes, as far as all values are known, the likeliest first."""
        found = [name for name, one in self.fields.items() if one.groups.values and not one.unknown]
        found += [name for name, one in self.label_columns().items() if one.counts.values]
        return sorted((name for name in found if self.rank(name) <= 1), key=lambda name: (self.rank(name), name))


# What is said of many values in few numbers: sizes, counts and columns, added up shard by shard in bounded memory.
#
# It opens nothing: Arrow and NumPy in, plain values out.


Value = TypeVar("Value")

_EXACT = 2**17  # values that are kept as they are, for an exact median
_BITS = 10  # of larger numbers of values, these leading bits are kept: a median within 0.2 %
_STEPS = 64  # of an octave, for the columns of a histogram
_MOST_COUNTED = 10_000
_LONGEST = 200  # characters of a value: more is prose, and no label


@dataclass(frozen=True, slots=True)
class Spread:
    """Numbers: how many, the smallest, the one in the middle, the largest, and their sum."""

    count: int
    smallest: int
    median: int
    largest: int
    total: int


class Sizes:
    """Numbers from zero on, added up to a `Spread`."""

    def __init__(self) -> None:
        self._count = self._total = self._largest = 0
        self._smallest = 2**64
        self._kept: list[NDArray[np.uint64]] = []
        self._held = 0
        self._buckets = Counter[int]()

    def add(self, values: NDArray[np.uint64]) -> None:
        """Take some more."""
        if not len(values):
            return
        self._count += len(values)
        largest = int(values.max())
        few = largest < 2**62 // len(values)
        self._total += int(values.sum()) if few else sum(values.tolist())
        self._smallest, self._largest = min(self._smallest, int(values.min())), max(self._largest, largest)
        self._kept.append(values)
        self._held += len(values)
        if self._held > _EXACT:
            self._fold()

    def _fold(self) -> None:
        values = np.concatenate(self._kept)
        self._kept, self._held = [], 0
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - _BITS, 0).astype(np.uint64)
        found, counts = np.unique((shift << np.uint64(_BITS + 1)) | (values >> shift), return_counts=True)
        self._buckets.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def spread(self) -> Spread:
        """Return what is known so far."""
        if not self._count:
            return Spread(0, 0, 0, 0, 0)
        return Spread(self._count, self._smallest, self._median(), self._largest, self._total)

    def _median(self) -> int:
        if not self._buckets:
            return int(np.sort(np.concatenate(self._kept))[self._count // 2])
        if self._kept:
            self._fold()
        left = self._count // 2
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left < 0:
                break
        return max(self._smallest, min(self._largest, _middle(bucket)))

    def columns(self, most: int) -> list[tuple[float, float, int]]:
        """Return at most `most` columns (from, to, count) over all but zeros, equally wide on a log scale."""
        values = np.concatenate([*self._kept, np.array([_middle(one) for one in self._buckets], np.uint64)])
        counts = np.concatenate([np.ones(self._held, np.int64), np.array([*self._buckets.values()], np.int64)])
        steps = (np.log2(values[values > 0].astype(np.float64)) * _STEPS).astype(np.int64)
        if not len(steps):
            return []
        first = int(steps.min())
        wide = max(_STEPS // 16, -(-(int(steps.max()) + 1 - first) // most))
        found = np.zeros((int(steps.max()) - first) // wide + 1, np.int64)
        np.add.at(found, (steps - first) // wide, counts[values > 0])
        starts = range(first, first + wide * len(found), wide)
        return [
            (2 ** (start / _STEPS), 2 ** ((start + wide) / _STEPS), count)
            for start, count in zip(starts, found.tolist(), strict=True)
        ]


def _middle(bucket: int) -> int:
    """Return the number in the middle of a bucket."""
    shift = bucket >> (_BITS + 1)
    low: int = (bucket & (2 ** (_BITS + 1) - 1)) << shift
    return low + (1 << shift >> 1)


class ValueCounts(Generic[Value]):
    """How often each value is there; None, once there are too many to be labels."""

    def __init__(self, most: int = _MOST_COUNTED) -> None:
        self._most = most
        self.values: dict[Value, int] | None = {}

    def add(self, values: Iterable[tuple[Value, int]]) -> None:
        """Take some more: a value and how often it is there."""
        if self.values is None:
            return
        for value, count in values:
            if isinstance(value, str) and len(value) > _LONGEST:
                self.values = None
                return
            self.values[value] = self.values.get(value, 0) + count
        if len(self.values) > self._most:
            self.values = None

    def add_array(self, values: pa.Array) -> None:
        """Take the values of an Arrow array without nulls."""
        if self.values is None:
            return
        found = values.value_counts()
        if len(found) > self._most:
            self.values = None
            return
        names = found.field("values")
        names = names.dictionary_decode() if pt.is_dictionary(names.type) else names
        self.add(zip(names.to_pylist(), found.field("counts").to_pylist(), strict=True))

    def most(self) -> list[tuple[Value, int]]:
        """Return the values, most frequent first."""
        return sorted((self.values or {}).items(), key=lambda item: (-item[1], natural(str(item[0]))))


def _by_count(labels: Iterable[tuple[tuple[str, int | float | None], int]]) -> tuple[Label, ...]:
    """Return labels, most frequent first; of equally many, by name."""
    found = sorted(labels, key=lambda one: (-one[1], natural(one[0][0])))
    return tuple(Label(*called, count) for called, count in found)


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """A value of a column, and how many samples have it."""

    value: str
    samples: int


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """A column of metadata.

    Attributes:
        type: Its name in Arrow.
        filled: How many samples have a value.
        distinct: How many values; None where there are too many to count.
        smallest: The smallest number, or the first time.
        largest: The largest number, or the last time.
        mean: The mean of the numbers.
        values: The most frequent ones; none where all differ.
        element: The Arrow type of the elements of lists; None if no value is a list.
        lengths: The lengths of the lists; None if no value is a list.
    """

    type: str
    filled: int = 0
    distinct: int | None = None
    smallest: int | float | str | None = None
    largest: int | float | str | None = None
    mean: float | None = None
    values: tuple[ColumnValue, ...] = ()
    element: str | None = None
    lengths: Spread | None = None


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a column of that type holds numbers, text, truth or times: no lists and the like."""
    flat = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)
    return bool(flat or pt.is_string(kind) or pt.is_temporal(kind))


class Column:
    """The values of a column of metadata, added up to a `ColumnSummary`."""

    def __init__(self, kind: str) -> None:
        self.type, self.filled, self.counts = kind, 0, ValueCounts[object]()
        self._element, self._lengths = "null", Sizes()
        self._ends: list[Any] = []  # the smallest and the largest value of each shard
        self._total, self._numbers, self._counted = 0.0, 0, False
        self._kinds: set[str] = set()

    def add_type(self, kind: str) -> None:
        """Take the type that the column has in another shard: where none of its samples has a value, that is `null`."""
        self.type = _either_type(self.type, kind)

    def add(self, values: pa.ChunkedArray) -> None:
        """Take a chunked array."""
        values = values.combine_chunks()
        kind = values.type
        self.filled += len(values) - values.null_count
        values = values.drop_null()
        if not len(values):
            return
        is_number = pt.is_integer(kind) or pt.is_floating(kind)
        self._kinds.add("number" if is_number else "time" if pt.is_temporal(kind) else "other")
        if is_number:
            self._add_numbers(values)
        elif pt.is_temporal(kind):
            self._add_ends(values.cast(pa.string()))
            return
        self._counted = True
        if not pt.is_floating(kind):
            self.counts.add_array(values)

    def add_nested(self, values: pa.ChunkedArray) -> None:
        """Count the values of a column that is not plain, and measure its lists."""
        import pyarrow.compute as pc

        kind, count = values.type, len(values) - values.null_count
        if not count:
            return
        self.filled += count
        self._kinds.add("nested")
        if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
            self._element = _either_type(self._element, str(kind.value_type))
            self._lengths.add(pc.list_value_length(values).drop_null().to_numpy().astype(np.uint64))

    def _add_numbers(self, values: pa.Array) -> None:
        import pyarrow.compute as pc  # here, as below, for it takes 40 ms

        if pt.is_floating(values.type):
            values = values.filter(pc.is_finite(values))
            self.counts.values = None
        if len(values):
            self._add_ends(values)
            self._total += float(values.cast(pa.float64()).sum().as_py())
            self._numbers += len(values)

    def _add_ends(self, values: pa.Array) -> None:
        import pyarrow.compute as pc

        self._ends += pc.min_max(values).as_py().values()

    def summary(self, most: int) -> ColumnSummary:
        """Return what is known so far, with at most this many values."""
        known = self.counts.values if self._counted and "nested" not in self._kinds else None
        alike = len(self._kinds) == 1  # of a number and a time, none is the smaller
        low, high = (min(self._ends), max(self._ends)) if alike and self._ends else (None, None)
        mean = self._total / self._numbers if self._numbers and alike else None
        shown = self.counts.most()[:most] if known and len(known) < self.filled else []
        values = tuple(ColumnValue(str(value), count) for value, count in shown)
        distinct, lengths = None if known is None else len(known), self._lengths.spread()
        found = ColumnSummary(self.type, self.filled, distinct, low, high, mean, values)
        return replace(found, element=self._element, lengths=lengths) if lengths.count else found


def _either_type(types: str, kind: str) -> str:
    """Return `A or B` for a column of several types; `null` only if no other type is known."""
    known = [one for one in types.split(" or ") if one != "null"]
    return types if kind == "null" or kind in known else " or ".join([*known, kind])
