"""`inspect`: summarize a dataset. It reads the dataset file and the sidecars, and of the shards only a few images and
labels.

Shards without a sidecar are scanned.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.expand import expand_datasets, splits_in
from shardtool.dataset.find import damaged_file, open_dataset
from shardtool.dataset.payload import content_type, is_label_name
from shardtool.errors import CorruptShard, format_list, os_error_text, redact_secrets
from shardtool.names import to_output_name
from shardtool.pattern import SIDECAR_SUFFIX
from shardtool.request.dataset_options import InspectOptions
from shardtool.request.verb_call import accepts_options
from shardtool.storage.lookup import file_info, map_paths
from shardtool.verbs.inspect.overview import DatasetOverview, FieldTally
from shardtool.verbs.inspect.statistics import ColumnTally, SizeTally, Spread, printable_path
from shardtool.verbs.inspect.summary import (
    MAX_LABEL_VALUES,
    FieldSummary,
    ImageSummary,
    Label,
    LabelSummary,
    Problem,
    StatisticsScope,
    Summary,
    sort_labels,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardtool.dataset.stored import StoredDataset
    from shardtool.request.observer import Observer
    from shardtool.values import DatasetLike

    Shards = tuple[StoredDataset, Mapping[int, int]]  # a dataset, and how many samples each index has


@accepts_options(InspectOptions)
def inspect(dataset: DatasetLike, options: InspectOptions, observer: Observer) -> Summary:
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
    opened = [open_dataset(one) for one in expand_datasets(dataset)]
    return combine_summaries([_inspect_one(one, options, observer) for one in opened])


def _inspect_one(dataset: StoredDataset, options: InspectOptions, observer: Observer) -> tuple[Shards, Summary]:
    overview = DatasetOverview(dataset, options, observer)
    for _ in overview.read():
        pass
    overview.look()
    summary = summarize(overview)
    if not overview.counts:
        where, problem = dataset.dataset_file or dataset.shards[0].path, summary.problems[0]
        found = f"no shard can be read: {problem.where}: {problem.message}"
        raise CorruptShard(where, found, remedy="Get the shards again.")
    return (dataset, overview.counts), summary  # of many datasets, not the overviews, which are large


_MAX_COLUMN_VALUES = 10  # values


_SCOPE_FIELDS = ("samples", "shards", "walked")


_MAX_CLASSES = 1000  # values of what is not called a label


_MAX_MEAN_NAME_CHARS = 32  # characters of the name of a class, on average


_MAX_LISTED_IMAGES = 10  # unreadable images that are named


_MAX_RECORDED_SIZE = 2**62  # what a file of another tool may say


def summarize(overview: DatasetOverview, most_values: int = MAX_LABEL_VALUES) -> Summary:
    """Return what the indexes of a dataset say.

    Args:
        overview: What was read.
        most_values: How many values of a label are named.
    """
    opened = overview.dataset
    file = opened.file
    problems = (*_find_missing(opened), *_find_damaged(overview))
    others = splits_in(opened.folder, file.made) if file else {}
    sizes, counts = _shard_spreads([(opened, overview.counts)])
    fields = _field_summaries(overview)
    payloads = None if overview.partial else sum(one.size.total for one in fields.values())
    return Summary(
        dataset=redact_secrets(to_output_name(opened.dataset_file or opened.folder or ".")),
        dataset_file=None if opened.dataset_file is None else redact_secrets(to_output_name(opened.dataset_file)),
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
        images=_image_summary(overview),
        labels=_label_summaries(overview, most_values),
        splits=_column_values(overview, "split"),
        siblings={one.made.split: to_output_name(name) for name, one in others.items()},
        columns={name: column.summary(_MAX_COLUMN_VALUES) for name, column in overview.columns.items()},
        part_of=(file.part_of or None) if file else None,
    )


def _find_missing(opened: StoredDataset) -> Iterator[Problem]:
    """Yield what the dataset file lists and is not there, or not of the size that it lists."""
    if opened.file is None:
        if (damaged := damaged_file(opened)) is not None:
            yield Problem("dataset-file-damaged", printable_path(damaged), "not what was written")
        return
    for path in opened.unlisted:  # a range found it beside those of the dataset
        yield Problem("extra-shard", printable_path(path), "not in the dataset file")
    sizes = map_paths(_file_size, [path for shard in opened.shards for path in (shard.path, shard.sidecar)])
    for shard, entry in zip(opened.shards, opened.file.shards, strict=True):
        for what, path, size in (("shard", shard.path, entry.size), ("sidecar", shard.sidecar, entry.sidecar_size)):
            found = next(sizes)
            if isinstance(found, str):
                yield Problem(f"missing-{what}", printable_path(path), found)
            elif found != size:
                yield Problem(f"{what}-size", printable_path(path), f"{found:,} bytes; the dataset file says {size:,}")


def _file_size(path: str) -> int | str:
    """Return the size of a file, or why it has none."""
    try:
        return file_info(path).st_size
    except OSError as error:
        return os_error_text(error)


def _find_damaged(overview: DatasetOverview) -> Iterator[Problem]:
    for shard, samples, known in overview.torn:
        found = f"{samples:,} samples, but only {known:,} keys: fields of one sample do not lie next to each other"
        yield Problem("torn-samples", printable_path(shard.path), found)
    for error in overview.damage:
        code = "damaged-sidecar" if error.where.endswith(SIDECAR_SUFFIX) else "damaged-shard"
        yield Problem(code, error.where, error.found)


def _shard_spreads(datasets: Iterable[Shards]) -> tuple[Spread, Spread]:
    """Return the sizes of the shards of datasets, and how many samples they hold."""
    sizes, counts = list[int](), list[int]()
    for dataset, known in datasets:
        if (file := dataset.file) is None:
            sizes += [size for one in dataset.shards if (size := one.size()) is not None]
            counts += known.values()
        else:
            sizes += [min(one.size, _MAX_RECORDED_SIZE) for one in file.shards]
            counts += [min(one.samples, _MAX_RECORDED_SIZE) for one in file.shards]
    return _spread_of(sizes), _spread_of(counts)


def _spread_of(values: Iterable[int]) -> Spread:
    sizes = SizeTally()
    sizes.add(np.array([*values], np.uint64))
    return sizes.spread()


def combine_summaries(datasets: Sequence[tuple[Shards, Summary]]) -> Summary:
    """Return the summary of several datasets, with the counts of their overviews; of one alone, its own."""
    summaries = [summary for _, summary in datasets]
    if len(summaries) == 1:
        return summaries[0]
    sizes, counts = _shard_spreads(shards for shards, _ in datasets)
    bytes_of = [one.field_bytes for one in summaries]
    known = [one.complete for one in summaries]
    looked = [one.looked for one in summaries]
    return Summary(
        dataset=format_list([one.dataset for one in summaries], 3),
        format=", ".join(sorted({one.format for one in summaries})),
        samples=counts.total,
        size=sizes.total,
        field_bytes=None if None in bytes_of else sum(one or 0 for one in bytes_of),
        skipped=sum(one.skipped for one in summaries),
        complete=False if False in known else None if None in known else True,
        problems=tuple(problem for one in summaries for problem in one.problems),
        looked=StatisticsScope(*(sum(getattr(one, name) for one in looked) for name in _SCOPE_FIELDS)),
        shard_sizes=sizes,
        shard_samples=counts,
        datasets=tuple(summaries),
    )


def _field_summaries(overview: DatasetOverview) -> dict[str, FieldSummary]:
    file = overview.dataset.file
    listed = file.fields if file else {}
    found = {}
    for name, tally in overview.fields.items():
        kind, size = overview.kinds.get(name, "bytes"), tally.sizes.spread()
        count = listed.get(name)
        samples = count if isinstance(count, int) else size.count
        found[name] = FieldSummary(kind, content_type(name, kind), samples, size)
    return dict(sorted(found.items()))


def _image_summary(overview: DatasetOverview) -> dict[str, ImageSummary]:
    width, height = (sizes.spread() for sizes in overview.pixels)
    found = {}
    if width.count and height.count:
        found["width, height"] = ImageSummary("columns", width.count, width, height, _column_values(overview, "mode"))
    for name, looks in overview.images.items():
        facts = [fact for _, fact in looks if not isinstance(fact, str)]
        width, height = _spread_of(wide for wide, _, _ in facts), _spread_of(tall for _, tall, _ in facts)
        modes = dict(sorted(Counter(mode for *_, mode in facts).items(), key=lambda one: (-one[1], one[0])))
        wrong = tuple((key, fact) for key, fact in looks if isinstance(fact, str))[:_MAX_LISTED_IMAGES]
        found[name] = ImageSummary("sampled", len(looks), width, height, modes, wrong)
    return found


def _label_summaries(overview: DatasetOverview, most: int) -> dict[str, LabelSummary]:
    """Return what looks like labels: fields with classes first, then what is called so, then columns of few values."""
    found = {name: _field_label(overview, name, tally, most) for name, tally in overview.fields.items()}
    found |= {name: _column_label(overview, name, one, most) for name, one in overview.label_columns().items()}
    labels = {name: label for name, label in found.items() if label is not None}
    return dict(sorted(labels.items(), key=lambda item: (overview.rank(item[0]), item[0])))


def _column_label(overview: DatasetOverview, name: str, column: ColumnTally, most: int) -> LabelSummary | None:
    """Return the distribution of a column; None where it is no label."""
    values = column.counts.values
    if not values:
        return None
    few = len(values) <= min(_MAX_CLASSES, column.filled // 2)
    short = sum(len(str(value)) for value in values) <= _MAX_MEAN_NAME_CHARS * len(values)  # names, not sentences
    if not is_label_name(name) and not (few and column.type in ("string", "bool") and short):
        return None
    shown = tuple(Label(str(value), None, count) for value, count in column.counts.most()[:most])
    return LabelSummary("column", sum(values.values()), overview.partial, len(values), shown)


def _field_label(overview: DatasetOverview, name: str, tally: FieldTally, most: int) -> LabelSummary | None:
    """Return the distribution of a field's payloads; None where it is no label."""
    if tally.unknown:
        if not tally.labels:
            return None
        values = sort_labels(tally.labels.items())[:most]
        return LabelSummary("field", tally.labels.total(), sampled=True, distinct=len(tally.labels), values=values)
    groups, samples, called = tally.groups.values, tally.sizes.spread().count, overview.rank(name) <= 1
    if not groups or (not called and not 1 < len(groups) <= min(_MAX_CLASSES, samples // 2)):
        return None
    values = overview.labels(name, most)
    if not called and all(value.number is not None for value in values):
        return None  # numbers that are not called a label are measurements
    return LabelSummary("field", samples, overview.partial, len(groups), values)


def _column_values(overview: DatasetOverview, name: str) -> dict[str, int]:
    """Return the most frequent values of a column, and how often each is there."""
    column = overview.columns.get(name)
    return {str(value): count for value, count in column.counts.most()[:MAX_LABEL_VALUES]} if column else {}
