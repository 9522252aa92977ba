"""Write a self-contained HTML page about a dataset (`inspect --html`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from shardtool.dataset.stored import StoredDataset
from shardtool.storage.target_file import write_target
from shardtool.verbs.inspect.page.charts import ColumnCharts
from shardtool.verbs.inspect.page.choose import choose_samples
from shardtool.verbs.inspect.page.dataset_view import DatasetView, set_anchors, set_dataset_labels, set_rows
from shardtool.verbs.inspect.page.media import MediaBudget
from shardtool.verbs.inspect.page.rendering import render_page
from shardtool.verbs.inspect.page.rows import MAX_ROW_BYTES, MAX_ROWS, RowTable
from shardtool.verbs.inspect.page.samples import SampleBudget, ShownSample, dataset_title, show_samples
from shardtool.verbs.inspect.samples import check_report_path

_MAX_SAMPLES = 2000
_DEFAULT_SAMPLES = 200
_IMAGE_BYTES = 3_000_000  # limit for all thumbnails: 4 MB in base64
_TEXT_BYTES = 600_000
_OUTLINES = 10_000  # maximum outlines on the page, at about 150 bytes each
_MEDIA_BYTES = 6_000_000
_MAX_MIN_EDGE_PIXELS = (384, 96)
_PIXELS_PER_BYTE = 8.0
_MAX_SAMPLES_WITHOUT_UNUSUAL = 20  # in a dataset of up to this many samples, none is shown as unusual


def write_page(
    datasets: StoredDataset | Sequence[StoredDataset], path: str, *, seed: int = 0, overwrite: bool = False
) -> None:
    """Write a page about one or several datasets. Damage is reported on the page.

    The page shows 200 samples. If there are more labels, it shows one sample per label, at most 2,000.
    """
    stored_datasets = [datasets] if isinstance(datasets, StoredDataset) else [*datasets]
    for dataset in stored_datasets:
        check_report_path(dataset, path, overwrite=overwrite, ending=".html")
    max_samples, default_count = (-(-count // len(stored_datasets)) for count in (_MAX_SAMPLES, _DEFAULT_SAMPLES))
    names, collected, choices = _unique_names(stored_datasets), [], []
    for dataset, name in zip(stored_datasets, names, strict=True):
        rows = RowTable(name, MAX_ROWS // len(names), MAX_ROW_BYTES // len(names))
        charts = ColumnCharts()
        collectors = rows.add, charts.add
        choices.append(choose_samples(dataset, max_samples, seed, default_count=default_count, collectors=collectors))
        collected.append((name, rows, charts))
    unusual = [
        choice.unusual.find(choice.overview.dataset.shards)
        if choice.summary.samples > _MAX_SAMPLES_WITHOUT_UNUSUAL
        else []
        for choice in choices
    ]
    budget = _sample_budget(sum(map(len, unusual)) + sum(len(choice.chosen) for choice in choices))
    views = []
    for number, ((name, rows, charts), choice, unusual_pairs) in enumerate(
        zip(collected, choices, unusual, strict=True), 1
    ):
        unusual_shown = [*show_samples(choice, budget, [sample for _, sample in unusual_pairs])]
        for sample, (reason, _) in zip(unusual_shown, unusual_pairs, strict=True):
            sample.reason = reason
        shown = [*show_samples(choice, budget)]
        if choice.summary.samples > _MAX_SAMPLES_WITHOUT_UNUSUAL and not any(
            sample.reason.startswith("widest") for sample in unusual_shown
        ):
            unusual_shown += _extreme_image_shapes(shown)
        views.append(
            DatasetView(
                **vars(choice),
                name=name,
                rows=rows,
                charts=charts.charts(choice.summary.columns, choice.overview.samples),
                class_counts=charts.class_counts,
                shown=shown,
                unusual_shown=unusual_shown,
                number=number if len(stored_datasets) > 1 else 0,
            )
        )
    set_anchors(views)
    set_dataset_labels(views)
    set_rows(views)
    write_target(path, render_page(views).encode())


def _sample_budget(samples: int) -> SampleBudget:
    image_bytes = _IMAGE_BYTES // max(samples, 1)
    edge = int(min(max((image_bytes * _PIXELS_PER_BYTE) ** 0.5, _MAX_MIN_EDGE_PIXELS[1]), _MAX_MIN_EDGE_PIXELS[0]))
    text_bytes = min(max(_TEXT_BYTES // max(samples, 1), 240), 6000)
    outlines = min(max(_OUTLINES // max(samples, 1), 10), 200)
    return SampleBudget(edge, image_bytes, text_bytes, outlines=outlines, media=MediaBudget(_MEDIA_BYTES, samples))


def _unique_names(datasets: Sequence[StoredDataset]) -> list[str]:
    names, counts = [dataset_title(dataset) for dataset in datasets], Counter[str]()
    for index, name in enumerate(names):
        counts[name] += 1
        names[index] = f"{name} ({counts[name]})" if counts[name] > 1 else name
    return names


def _extreme_image_shapes(shown: Sequence[ShownSample]) -> list[ShownSample]:
    by_ratio = {
        sample.images[0].full[0] / sample.images[0].full[1]: sample for sample in reversed(shown) if sample.images
    }
    if len(by_ratio) <= 1:
        return []
    extremes = (("widest", by_ratio[max(by_ratio)]), ("tallest", by_ratio[min(by_ratio)]))
    return [
        replace(sample, reason=f"{reason} shown: {sample.images[0].full[0]:,} by {sample.images[0].full[1]:,}")
        for reason, sample in extremes
    ]
