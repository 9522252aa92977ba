"""Prepare the data of a dataset for the templates of the HTML page."""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import datetime, timezone
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from shardtool.dataclass import dataclass
from shardtool.names import to_output_name
from shardtool.storage.files import stat_file
from shardtool.storage.paths import base_name
from shardtool.units import pluralize
from shardtool.verbs.inspect.page.choose import ChosenSamples
from shardtool.verbs.inspect.page.samples import ShownSample, common_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.stored import StoredDataset
    from shardtool.transform.thumbnail import Thumbnail
    from shardtool.verbs.inspect.page.charts import Chart
    from shardtool.verbs.inspect.page.rows import RowTable
    from shardtool.verbs.inspect.summary import FieldSummary

MAX_LABEL_SETS = 6
_MAX_FIELDS = 60
# Without a dataset file, the example program uses a glob for more than this many shards.
_MAX_LISTED_SHARDS = 9
_MAX_EXAMPLE_FIELDS = 4
_LOG_RADIUS_FROM_COUNT = 4  # below this count, a dot's area is proportional to the count
_MAX_ANCHOR_CHARS = 120
_DATASET_LABEL = "dataset"


def all_samples(views: Sequence[DatasetView]) -> list[ShownSample]:
    """Return the samples of all views, unusual samples last."""
    shown = [sample for view in views for sample in view.shown]
    return shown + [sample for view in views for sample in view.unusual_shown]


def set_anchors(views: Sequence[DatasetView]) -> None:
    """Set each sample's element id from its key, so links stay valid when the page is recreated."""
    counts: Counter[str] = Counter()
    for sample in all_samples(views):
        anchor = "s-" + quote(sample.chosen.key, safe="/", errors="replace")[:_MAX_ANCHOR_CHARS]
        anchor += f"~{sample.reason.partition(':')[0].replace(' ', '-')}" if sample.reason and anchor in counts else ""
        counts[anchor] += 1
        sample.anchor = f"{anchor}~{counts[anchor]}" if counts[anchor] > 1 else anchor


class LabelSet(NamedTuple):
    """The values of a label or column, the most frequent first.

    Attributes:
        total: Number of samples with a value, or number of annotations if `unit` is `annotation`.
        note: Appended text, such as `, 5 samples without a value`.
    """

    name: str
    values: list[tuple[str, int]]
    distinct: int
    total: int
    unit: str
    note: str = ""
    is_label: bool = True


def set_dataset_labels(views: Sequence[DatasetView]) -> None:
    """If the page shows several datasets, add the label `dataset` to each sample."""
    for view in views if len(views) > 1 else ():
        for sample in view.samples:
            sample.labels.setdefault(_DATASET_LABEL, view.name)


def set_row_numbers(views: Sequence[DatasetView]) -> None:
    """Set the row of each sample in the page's table of metadata."""
    first = 0
    for view in views:
        view.row_table.set_row_numbers(view.samples, view.overview)
        for sample in view.samples:
            sample.row += first
        first += view.row_table.row_count


@dataclass(frozen=True)
class DatasetView(ChosenSamples):
    """A dataset on the HTML page. `number` counts datasets from 1, and is 0 for a single dataset."""

    name: str
    row_table: RowTable
    charts: list[Chart]
    class_counts: dict[str, Counter[str]]
    shown: list[ShownSample]
    unusual_shown: list[ShownSample]
    number: int

    @property
    def samples(self) -> list[ShownSample]:
        """The samples, unusual samples last."""
        return self.shown + self.unusual_shown

    @property
    def dataset(self) -> StoredDataset:
        """The dataset on disk."""
        return self.overview.dataset

    @property
    def file(self) -> DatasetFile | None:
        """The dataset file, or None."""
        return self.dataset.file

    def id(self, name: str) -> str:
        """Return the element id of a section about this dataset."""
        return f"{name}-{self.number}" if self.number else name

    @property
    def state(self) -> tuple[str, str]:
        """The state of the files (`good`, `warn` or `bad`), and its description."""
        summary = self.summary
        if missing := sum(problem.code == "missing-shard" for problem in summary.problems):
            return "bad", f"{pluralize(missing, 'shard')} missing"
        if summary.problems:
            return "bad", pluralize(len(summary.problems), "problem")
        return ("good", "complete") if summary.complete else ("warn", "no dataset file: completeness unknown")

    @property
    def pattern(self) -> str:
        """The shard pattern or, without a dataset file, the names of the first and last shard."""
        shards = self.dataset.shards
        return self.file.pattern if self.file else " to ".join(dict.fromkeys((shards[0].name, shards[-1].name)))

    @cached_property
    def written(self) -> str:
        """The modification time of the dataset file or, if there is none, of the last shard."""
        try:
            time = stat_file(self.dataset.dataset_file or self.dataset.shards[-1].path).st_mtime
            return f"{datetime.fromtimestamp(time, timezone.utc):%Y-%m-%d %H:%M} UTC"
        except (OSError, ValueError, OverflowError):
            return ""

    @property
    def program(self) -> str:
        """A Python program that reads the dataset."""
        shards = [shard.name for shard in self.dataset.shards]
        start, end = (common_prefix([shard[::step] for shard in shards]).rstrip("0123456789") for step in (1, -1))
        location: str | list[str] = to_output_name(base_name(self.dataset.dataset_file or ""))
        location = location or (f"{start}*{end[::-1]}" if start and shards[_MAX_LISTED_SHARDS:] else shards)
        field_lines = "".join(f"    sample[{json.dumps(name)}]\n" for name, _ in self.fields[:_MAX_EXAMPLE_FIELDS])
        return (
            f"import shardtool\n\ndataset = shardtool.open({json.dumps(location)})\n"
            f"stream = dataset.stream(shuffle=True, seed=0)\nfor sample in stream.decode():\n{field_lines}"
        )

    @cached_property
    def fields(self) -> list[tuple[str, FieldSummary]]:
        """The fields, the most frequent first."""
        fields = sorted(self.summary.fields.items(), key=lambda item: (-item[1].samples, -item[1].size.total, item[0]))
        return fields[:_MAX_FIELDS]

    @cached_property
    def labels(self) -> list[LabelSet]:
        """A `LabelSet` for each column with lists of class numbers, then one for each likely label."""
        overview, sets = self.overview, []
        for name in overview.classes:
            if counts := self.class_counts.get(name.rpartition(".")[0]):
                values = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                sets.append(LabelSet(name, values, len(counts), counts.total(), "annotation"))
        for name, label in self.summary.labels.items():
            values = [(value.name, value.samples) for value in label.values]
            note = ""
            if label.source == "field" and label.sampled and not overview.partial:
                note = f", from {pluralize(label.samples, 'sample')} read"
            elif label.samples < overview.samples:
                note = f", {pluralize(overview.samples - label.samples, 'sample')} without a value"
            if name not in (label_set.name for label_set in sets):
                is_label = overview.is_label(name)
                sets.append(LabelSet(name, values, label.distinct, label.samples, "sample", note, is_label=is_label))
        return sets[:MAX_LABEL_SETS]

    @property
    def splits(self) -> LabelSet | None:
        """The splits of the dataset, or None if there are no splits."""
        values = [*self.summary.splits.items()]
        filled = self.overview.columns["split"].filled if values else 0
        return LabelSet("split", values, len(values), filled, "sample", is_label=False) if values else None

    @cached_property
    def first_anchors(self) -> dict[tuple[str, str], str]:
        """For each (label, value) pair, the element id of the first sample with this value."""
        return {label: sample.anchor for sample in reversed(self.shown) for label in sample.labels.items()}

    @property
    def _first_images(self) -> list[Thumbnail]:
        return [sample.images[0] for sample in self.shown if sample.images]

    @property
    def tallies(self) -> list[list[tuple[str, int]]]:
        """The most frequent formats and modes, with counts, of the shown samples' first images."""
        counts = [Counter(map(attrgetter(name), self._first_images)) for name in ("kind", "mode")]
        return [sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:6] for counter in counts]

    @property
    def image_sizes(self) -> list[tuple[int, int]]:
        """The size of each shown sample's first image."""
        return [image.full_size for image in self._first_images]

    @property
    def dots(self) -> list[tuple[int, int, int, float]]:
        """Width, height, count and dot radius of each image size."""

        def radius(count: int) -> float:
            return 2.6 * math.sqrt(count) if count < _LOG_RADIUS_FROM_COUNT else 3.6 + math.log2(count) * 0.6

        sizes = sorted(Counter(self.image_sizes).items())
        return [(*size, count, min(9.0, radius(count))) for size, count in sizes]

    @cached_property
    def shards(self) -> list[tuple[int, str, int | None, int | None]]:
        """Number, name, size in bytes and sample count of each shard."""
        rows = []
        for shard in self.dataset.shards:
            entry, size = shard.entry, shard.size()
            samples = self.overview.counts.get(shard.number) if entry is None else entry.samples
            listed_size = size if size is None or entry is None else entry.size
            rows.append((shard.number, shard.file_name, listed_size, samples))
        return rows
