"""`inspect`: what is in a dataset. The library twin of `shardtool inspect`.

It reads the dataset file and the sidecars, one at a time, and of the shards only a seeded few images and labels. Shards
without a sidecar are walked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.find import StoredDataset, given_datasets, open_dataset, splits_in
from shardtool.dataset.payload import content_of, is_label
from shardtool.errors import CorruptShard, listing, printable, reason, without_secrets
from shardtool.pattern import SIDECAR_SUFFIX
from shardtool.request.options import InspectOptions
from shardtool.request.settings import Observer, by_names
from shardtool.storage.places import file_fact, for_each
from shardtool.values import Given, output_text
from shardtool.verbs.inspect.overview import Column, ColumnSummary, FieldTally, Overview, Sizes, Spread, by_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    return LabelSummary("column", column.filled, overview.partial, len(values), shown)


def _field_label(overview: Overview, name: str, tally: FieldTally, most: int) -> LabelSummary | None:
    """Return the distribution of a field's payloads; None where it is no label."""
    if tally.unknown:
        if not tally.labels:
            return None
        values = tuple(Label(*one) for one in by_count(tally.labels.items())[:most])
        return LabelSummary("field", tally.labels.total(), sampled=True, distinct=len(tally.labels), values=values)
    groups, samples, called = tally.groups.values, tally.sizes.spread().count, overview.rank(name) <= 1
    if not groups or (not called and not 1 < len(groups) <= min(_MOST_CLASSES, samples // 2)):
        return None
    values = tuple(Label(*one) for one in overview.labels(name, most))
    if not called and all(value.number is not None for value in values):
        return None  # numbers that are not called a label are measurements
    return LabelSummary("field", samples, overview.partial, len(groups), values)


def _values(overview: Overview, name: str) -> dict[str, int]:
    """Return the most frequent values of a column, and how often each is there."""
    column = overview.columns.get(name)
    return {str(value): count for value, count in column.counts.most()[:MOST_VALUES]} if column else {}
