"""Summarize a dataset from its dataset file and sidecars, and from a few images and labels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.expand import expand_datasets, splits_in
from shardtool.dataset.find import find_damaged_file, open_dataset
from shardtool.dataset.payload import content_type, is_label_name
from shardtool.errors import CorruptShard, format_list, os_error_text, redact_secrets
from shardtool.names import to_output_name
from shardtool.pattern import SIDECAR_SUFFIX
from shardtool.request.dataset_options import InspectOptions
from shardtool.request.verb_call import accepts_options
from shardtool.storage.files import files_at, map_paths
from shardtool.verbs.inspect.overview import DatasetOverview, FieldTally
from shardtool.verbs.inspect.summary import (
    MAX_LABEL_VALUES,
    ColumnTally,
    FieldSummary,
    ImageSummary,
    Label,
    LabelSummary,
    Problem,
    SizeTally,
    Spread,
    StatisticsScope,
    Summary,
    printable_path,
    sort_labels,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardtool.dataset.stored import StoredDataset
    from shardtool.request.observer import Observer
    from shardtool.values import DatasetLike

    Shards = tuple[StoredDataset, Mapping[int, int]]


@accepts_options(InspectOptions)
def inspect(dataset: DatasetLike, options: InspectOptions, observer: Observer) -> Summary:
    """Return a summary of one or several datasets.

    Args:
        dataset: A dataset file, shard pattern, glob, folder, or list of shards. For several datasets (a list, or a name
            with `{split}`), the summaries are in `Summary.datasets`.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: The dataset file is damaged, or no shard can be read.
    """
    opened = [open_dataset(name) for name in expand_datasets(dataset)]
    return combine_summaries([_inspect_one(stored, options, observer) for stored in opened])


def _inspect_one(dataset: StoredDataset, options: InspectOptions, observer: Observer) -> tuple[Shards, Summary]:
    overview = DatasetOverview(dataset, options, observer)
    for _ in overview.read():
        pass
    overview.inspect_samples()
    summary = summarize(overview)
    if not overview.counts:
        path = dataset.dataset_file or dataset.shards[0].path
        error = overview.damage[0]
        found = f"no shard can be read: {error.where}: {error.found}"
        raise CorruptShard(path, found, remedy="Copy or create the shards again.")
    return (dataset, overview.counts), summary  # drop the overview, to save memory


_MAX_COLUMN_VALUES = 10
_SCOPE_FIELDS = ("samples", "shards", "walked")
_MAX_CLASSES = 1000
_MAX_MEAN_NAME_CHARS = 32  # values with a larger mean length are text, not class names
_MAX_LISTED_IMAGES = 10
_MAX_RECORDED_SIZE = 2**62  # limits sizes in damaged dataset files, so their sums do not overflow


def summarize(overview: DatasetOverview, max_values: int = MAX_LABEL_VALUES) -> Summary:
    """Summarize the statistics of a dataset, with at most `max_values` values of each label."""
    stored = overview.dataset
    file = stored.file
    problems = (*_find_file_problems(stored), *_find_damaged(overview))
    siblings = splits_in(stored.folder, file.run) if file else {}
    sizes, counts = _shard_spreads([(stored, overview.counts)])
    fields = _field_summaries(overview)
    payload_bytes = None if overview.partial else sum(field.size.total for field in fields.values())
    return Summary(
        dataset=redact_secrets(to_output_name(stored.dataset_file or stored.folder or ".")),
        dataset_file=None if stored.dataset_file is None else redact_secrets(to_output_name(stored.dataset_file)),
        name=file.name if file else None,
        format=file.format if file else stored.shards[0].format,
        samples=counts.total,
        size=sizes.total,
        field_bytes=file.field_bytes if file and not file.part_of else payload_bytes,
        skipped=file.skipped if file else 0,
        complete=not problems if file else None,
        problems=problems,
        fingerprint=(file.fingerprint or None) if file else None,
        made=file.run.document if file else None,
        looked=StatisticsScope(overview.samples, len(overview.counts), overview.scanned),
        shard_sizes=sizes,
        shard_samples=counts,
        fields=fields,
        images=_image_summary(overview),
        labels=_label_summaries(overview, max_values),
        splits=_column_values(overview, "split"),
        siblings={sibling.run.split: to_output_name(name) for name, sibling in siblings.items()},
        columns={name: column.summary(_MAX_COLUMN_VALUES) for name, column in overview.columns.items()},
        part_of=(file.part_of or None) if file else None,
    )


def _find_file_problems(stored: StoredDataset) -> Iterator[Problem]:
    if stored.file is None:
        if (damaged := find_damaged_file(stored)) is not None:
            yield Problem("dataset-file-damaged", printable_path(damaged), "damaged")
        return
    for path in stored.unlisted:
        yield Problem("extra-shard", printable_path(path), "not in the dataset file")
    sizes = map_paths(_size_or_error, [path for shard in stored.shards for path in (shard.path, shard.sidecar)])
    for shard, entry in zip(stored.shards, stored.file.shards, strict=True):
        for kind, path, size in (("shard", shard.path, entry.size), ("sidecar", shard.sidecar, entry.sidecar_size)):
            actual = next(sizes)
            if isinstance(actual, str):
                yield Problem(f"missing-{kind}", printable_path(path), actual)
            elif actual != size:
                found = f"{actual:,} bytes; the dataset file records {size:,}"
                yield Problem(f"{kind}-size", printable_path(path), found)


def _size_or_error(path: str) -> int | str:
    try:
        return files_at(path).info(path).st_size
    except OSError as error:
        return os_error_text(error)


def _find_damaged(overview: DatasetOverview) -> Iterator[Problem]:
    for shard, samples, keys in overview.interleaved:
        found = f"{samples:,} samples, but only {keys:,} keys: the fields of a sample are not adjacent"
        yield Problem("torn-samples", printable_path(shard.path), found)
    for error in overview.damage:
        code = "damaged-sidecar" if error.where.endswith(SIDECAR_SUFFIX) else "damaged-shard"
        yield Problem(code, error.where, error.found)


def _shard_spreads(datasets: Iterable[Shards]) -> tuple[Spread, Spread]:
    sizes, counts = list[int](), list[int]()
    for dataset, samples_by_shard in datasets:
        if (file := dataset.file) is None:
            sizes += [size for entry in dataset.shards if (size := entry.size()) is not None]
            counts += samples_by_shard.values()
        else:
            sizes += [min(entry.size, _MAX_RECORDED_SIZE) for entry in file.shards]
            counts += [min(entry.samples, _MAX_RECORDED_SIZE) for entry in file.shards]
    return _spread_of(sizes), _spread_of(counts)


def _spread_of(values: Iterable[int]) -> Spread:
    sizes = SizeTally()
    sizes.add(np.array([*values], np.uint64))
    return sizes.spread()


def combine_summaries(datasets: Sequence[tuple[Shards, Summary]]) -> Summary:
    """Combine the summaries of several datasets."""
    summaries = [summary for _, summary in datasets]
    if len(summaries) == 1:
        return summaries[0]
    sizes, counts = _shard_spreads(shards for shards, _ in datasets)
    payload_sizes = [summary.field_bytes for summary in summaries]
    completeness = [summary.complete for summary in summaries]
    scopes = [summary.looked for summary in summaries]
    return Summary(
        dataset=format_list([summary.dataset for summary in summaries], 3),
        format=", ".join(sorted({summary.format for summary in summaries})),
        samples=counts.total,
        size=sizes.total,
        field_bytes=None if None in payload_sizes else sum(size or 0 for size in payload_sizes),
        skipped=sum(summary.skipped for summary in summaries),
        complete=False if False in completeness else None if None in completeness else True,
        problems=tuple(problem for summary in summaries for problem in summary.problems),
        looked=StatisticsScope(**{name: sum(getattr(scope, name) for scope in scopes) for name in _SCOPE_FIELDS}),
        shard_sizes=sizes,
        shard_samples=counts,
        datasets=tuple(summaries),
    )


def _field_summaries(overview: DatasetOverview) -> dict[str, FieldSummary]:
    file = overview.dataset.file
    listed = file.fields if file else {}
    summaries = {}
    for name in sorted(overview.fields):
        kind, size = overview.kinds.get(name, "bytes"), overview.fields[name].sizes.spread()
        summaries[name] = FieldSummary(kind, content_type(name, kind), listed.get(name, size.count), size)
    return summaries


def _image_summary(overview: DatasetOverview) -> dict[str, ImageSummary]:
    width, height = overview.widths.spread(), overview.heights.spread()
    summaries = {}
    if width.count and height.count:
        modes = _column_values(overview, "mode")
        summaries["width, height"] = ImageSummary("columns", width.count, width, height, modes)
    for name, inspected in overview.images.items():
        readable = [info for _, info in inspected if not isinstance(info, str)]
        width, height = _spread_of(wide for wide, _, _ in readable), _spread_of(tall for _, tall, _ in readable)
        modes = dict(sorted(Counter(mode for *_, mode in readable).items(), key=lambda item: (-item[1], item[0])))
        unreadable = tuple((key, info) for key, info in inspected if isinstance(info, str))[:_MAX_LISTED_IMAGES]
        summaries[name] = ImageSummary("sampled", len(inspected), width, height, modes, unreadable)
    return summaries


def _label_summaries(overview: DatasetOverview, max_values: int) -> dict[str, LabelSummary]:
    candidates = {name: _field_label(overview, name, tally, max_values) for name, tally in overview.fields.items()}
    candidates |= {
        name: _column_label(overview, name, column, max_values) for name, column in overview.label_columns().items()
    }
    labels = {name: label for name, label in candidates.items() if label is not None}
    return dict(sorted(labels.items(), key=lambda item: (overview.label_rank(item[0]), item[0])))


def _column_label(overview: DatasetOverview, name: str, column: ColumnTally, max_values: int) -> LabelSummary | None:
    values = column.counts.values
    if not values:
        return None
    has_few_values = len(values) <= min(_MAX_CLASSES, column.filled // 2)
    is_short = sum(len(str(value)) for value in values) <= _MAX_MEAN_NAME_CHARS * len(values)
    if not is_label_name(name) and not (has_few_values and column.type in ("string", "bool") and is_short):
        return None
    listed = tuple(Label(str(value), None, count) for value, count in column.counts.most_frequent()[:max_values])
    return LabelSummary("column", sum(values.values()), overview.partial, len(values), listed)


def _field_label(overview: DatasetOverview, name: str, tally: FieldTally, max_values: int) -> LabelSummary | None:
    if tally.lacks_checksums:  # only opened samples count
        if not tally.labels:
            return None
        values = sort_labels(tally.labels.items())[:max_values]
        return LabelSummary("field", tally.labels.total(), sampled=True, distinct=len(tally.labels), values=values)
    counts, samples, is_named_label = tally.counts.values, tally.sizes.spread().count, overview.is_label(name)
    if not counts or (not is_named_label and not 1 < len(counts) <= min(_MAX_CLASSES, samples // 2)):
        return None
    values = overview.labels(name, max_values)
    # numbers may be measurements
    if not is_named_label and all(value.number is not None for value in values):
        return None
    return LabelSummary("field", samples, overview.partial, len(counts), values)


def _column_values(overview: DatasetOverview, name: str) -> dict[str, int]:
    column = overview.columns.get(name)
    return {str(value): count for value, count in column.counts.most_frequent()[:MAX_LABEL_VALUES]} if column else {}
