"""`inspect`: what is in a dataset. The library twin of `shardtool inspect`.

It reads the dataset file and the sidecars, one at a time, and of the shards only a seeded few images and labels. Shards
without a sidecar are walked. What is missing or damaged is told, not raised, as long as something can be read:
to prove that a dataset is whole is the work of `verify`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataset.dataset_file import read_dataset
from shardtool.dataset.opened import open_dataset
from shardtool.dataset.payload import content_of, is_label
from shardtool.errors import CorruptShard, InvalidRequest, printable, reason
from shardtool.inspection.overview import Overview
from shardtool.inspection.statistics import Sizes
from shardtool.pattern import DATASET_SUFFIX, SIDECAR_SUFFIX
from shardtool.request.observer import Observer
from shardtool.request.ranges import check_ranges
from shardtool.storage.reading import file_stat, names_in, read_small
from shardtool.values import output_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.dataset.opened import OpenedDataset
    from shardtool.inspection.overview import FieldTally
    from shardtool.inspection.statistics import ColumnSummary, Spread

MOST_VALUES = 100  # of a label, in a summary
_MOST_OF_COLUMN = 10  # values
_SUMMARY_VERSION = 1
_MOST_CLASSES = 1000  # values of what is not called a label
_NAME = 32  # characters of the name of a class, on average
_MOST = 2**62  # what a file of somebody else's may say
_NO_LABELS = ("split", "mode", "width", "height")


@dataclass(frozen=True, slots=True)
class InspectOptions:
    """How to look at a dataset.

    Attributes:
        full: Read every sidecar, however many samples there are; otherwise a choice of them above four million.
        looks: How many samples are opened for their images, and for labels that no index tells.
        seed: Of the choice of samples.
    """

    full: bool = False
    looks: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


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
        height: Likewise.
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
class Looked:
    """What the statistics are about: how many samples and shards of all, and how many shards had to be walked."""

    samples: int
    shards: int
    walked: int


@dataclass(frozen=True)
class Summary:
    """What is in a dataset.

    Attributes:
        dataset: What was given; of a dataset file, its path.
        dataset_file: Its path; None where there is none.
        name: Of the dataset; None without a dataset file.
        format: `tar` or `tfrecord`.
        samples: In all shards.
        size: Bytes of all shards that are there, or are listed.
        field_bytes: Bytes of all payloads; None where only some sidecars were read and no dataset file tells.
        skipped: What was left out, when it was made.
        complete: Whether all that the dataset file lists is there; None without one.
        problems: What is missing or damaged.
        fingerprint: Of the content; None where nobody knows.
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
    """

    dataset: str
    dataset_file: str | None
    name: str | None
    format: str
    samples: int
    size: int
    field_bytes: int | None
    skipped: int
    complete: bool | None
    problems: tuple[Problem, ...]
    fingerprint: str | None
    made: Mapping[str, Any] | None
    looked: Looked
    shard_sizes: Spread
    shard_samples: Spread
    fields: Mapping[str, FieldSummary]
    images: Mapping[str, ImageSummary] = field(default_factory=dict)
    labels: Mapping[str, LabelSummary] = field(default_factory=dict)
    splits: Mapping[str, int] = field(default_factory=dict)
    siblings: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, ColumnSummary] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the summary as data, the way `--json` prints it (docs/cli.md)."""
        return {"summary_version": _SUMMARY_VERSION, **asdict(self)}


def inspect(
    dataset: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    options: InspectOptions | None = None,
    *,
    observer: Observer | None = None,
) -> Summary:
    """Return what is in a dataset.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.
        options: See `InspectOptions`.
        observer: Is told of progress.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: The dataset file is damaged, or no shard can be read.
    """
    opened = open_dataset(dataset)
    if not opened.shards:
        raise InvalidRequest(opened.found.dataset_file or "DATASET", "no shards", expected="one at least")
    overview = Overview(opened, options or InspectOptions(), observer or Observer())
    problems = [*_missing(opened), *_damaged(overview)]
    if not overview.shards:
        raise CorruptShard(
            opened.found.dataset_file or opened.shards[0].path, f"no shard can be read: {problems[0].where}: "
            f"{problems[0].message}", remedy="Get the shards again.",
        )  # fmt: skip
    return _summary(opened, overview, tuple(problems))


def _summary(opened: OpenedDataset, overview: Overview, problems: tuple[Problem, ...]) -> Summary:
    file, found = opened.file, opened.found
    sizes, counts = _shard_spreads(opened, overview)
    whole = overview.shards == len(opened.shards)
    fields = _fields(opened, overview)
    payloads = sum(one.size.total for one in fields.values()) if whole else None
    return Summary(
        dataset=output_text(found.dataset_file or found.folder or "."),
        dataset_file=None if found.dataset_file is None else output_text(found.dataset_file),
        name=file.name if file else None,
        format=file.format if file else opened.format,
        samples=counts.total,
        size=sizes.total,
        field_bytes=file.field_bytes if file else payloads,
        skipped=file.skipped if file else 0,
        complete=not problems if file else None,
        problems=problems,
        fingerprint=(file.fingerprint or None) if file else None,
        made=dict(file.made) if file else None,
        looked=Looked(overview.samples, overview.shards, overview.walked),
        shard_sizes=sizes,
        shard_samples=counts,
        fields=fields,
        images=_images(overview),
        labels=_labels(overview),
        splits=_splits(overview),
        siblings=_siblings(opened),
        columns={name: column.summary(_MOST_OF_COLUMN) for name, column in overview.columns.items()},
    )


def _missing(opened: OpenedDataset) -> Iterator[Problem]:
    """Yield what the dataset file lists and is not there, or not of the size that it lists."""
    if opened.file is None:
        return
    for shard, entry in zip(opened.shards, opened.file.shards, strict=True):
        for what, path, size in (("shard", shard.path, entry.size), ("sidecar", shard.sidecar, entry.sidecar_size)):
            try:
                found = file_stat(path).st_size
            except OSError as error:
                yield Problem(f"missing-{what}", shown(path), reason(error))
                continue
            if found != size:
                yield Problem(f"{what}-size", shown(path), f"{found:,} bytes; the dataset file says {size:,}")


def _damaged(overview: Overview) -> Iterator[Problem]:
    for shard, samples, known in overview.torn:
        told = f"{samples:,} samples, but only {known:,} keys: fields of one sample do not lie next to each other"
        yield Problem("torn-samples", shown(shard.path), told)
    for error in overview.damage:
        code = "damaged-sidecar" if error.where.endswith(SIDECAR_SUFFIX) else "damaged-shard"
        yield Problem(code, error.where, error.found)


def shown(path: str) -> str:
    """Return a path as people and programs get to see it."""
    return printable(output_text(path))


def _shard_spreads(opened: OpenedDataset, overview: Overview) -> tuple[Spread, Spread]:
    """Return the sizes of the shards, and how many samples they hold."""
    sizes, counts = Sizes(), Sizes()
    if opened.file is not None:
        sizes.add(np.array([min(entry.size, _MOST) for entry in opened.file.shards], np.uint64))
        counts.add(np.array([min(entry.samples, _MOST) for entry in opened.file.shards], np.uint64))
        return sizes.spread(), counts.spread()
    found = []
    for shard in opened.shards:
        with suppress(OSError):
            found.append(file_stat(shard.path).st_size)
    sizes.add(np.array(found, np.uint64))
    return sizes.spread(), overview.shard_samples.spread()


def _fields(opened: OpenedDataset, overview: Overview) -> dict[str, FieldSummary]:
    listed = opened.file.fields if opened.file else {}
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
        mode = overview.columns.get("mode")
        modes = dict(mode.counts.most()[:MOST_VALUES]) if mode else {}
        found["width, height"] = ImageSummary("columns", width.count, width, height, modes)
    for name, tally in overview.images.items():
        found[name] = ImageSummary(
            "sampled", tally.images, tally.width.spread(), tally.height.spread(),
            dict(tally.modes.most_common()), tuple(tally.unreadable),
        )  # fmt: skip
    return found


def _labels(overview: Overview) -> dict[str, LabelSummary]:
    """Return what looks like labels: fields with classes first, then what is called so, then columns of few values."""
    found: list[tuple[int, str, LabelSummary]] = []
    for name, tally in overview.fields.items():
        rank = 0 if name in overview.classes else 1 if is_label(name) else 3
        if (label := field_label(overview, name, tally, rank)) is not None:
            found.append((rank, name, label))
    for name, column in overview.columns.items():
        if name in _NO_LABELS or name in overview.fields:
            continue
        values = column.counts.values
        few = values is not None and 1 <= len(values) <= min(_MOST_CLASSES, column.filled // 2)
        if values and (is_label(name) or (few and column.type in ("string", "bool") and _is_short(values))):
            most = tuple(Label(str(value), None, count) for value, count in column.counts.most()[:MOST_VALUES])
            label = LabelSummary("column", column.filled, overview.partial, len(values), most)
            found.append((1 if is_label(name) else 2, name, label))
    return {name: label for _, name, label in sorted(found, key=lambda one: one[:2])}


def field_label(overview: Overview, name: str, tally: FieldTally, rank: int) -> LabelSummary | None:
    """Return the distribution of a field's payloads; None where it is no label."""
    if tally.unknown:
        if not tally.labels:
            return None
        most = tally.labels.most_common(MOST_VALUES)
        values = tuple(Label(*label, count) for label, count in most)
        return LabelSummary("field", tally.labels.total(), True, len(tally.labels), values)  # noqa: FBT003
    groups, samples = tally.groups.values, tally.sizes.spread().count
    if not groups or (rank > 1 and not 1 < len(groups) <= min(_MOST_CLASSES, samples // 2)):
        return None
    values = tuple(Label(*one) for one in overview.labels(name, MOST_VALUES))
    if rank > 1 and all(value.number is not None for value in values):
        return None  # numbers that nobody calls a label are measurements
    return LabelSummary("field", samples, overview.partial, len(groups), values)


def _is_short(values: Mapping[Any, int]) -> bool:
    """Tell whether texts are names, not sentences."""
    return sum(len(str(value)) for value in values) <= _NAME * len(values)


def _splits(overview: Overview) -> dict[str, int]:
    column = overview.columns.get("split")
    return {str(value): count for value, count in column.counts.most()[:MOST_VALUES]} if column else {}


def _siblings(opened: OpenedDataset) -> dict[str, str]:
    """Return the dataset files beside this one that the same run made, for other splits."""
    if opened.file is None or "split" not in opened.file.made:
        return {}
    found: dict[str, str] = {}
    folder = opened.found.folder or "."
    for name in names_in(folder):
        path = os.path.join(folder, name)
        if not name.endswith(DATASET_SUFFIX) or name == os.path.basename(opened.found.dataset_file or ""):
            continue
        with suppress(OSError, CorruptShard):
            other = read_dataset(read_small(path), path)
            if opened.file.is_split_with(other):
                found[other.made["split"]] = output_text(name)
    return found
