"""Write a self-contained HTML page about a dataset (`inspect --html`).

The dataset's content is untrusted. The templates escape it and make control characters visible. The content security
policy allows only the page's own script and style sheet, by hash. The page is readable without JavaScript.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from shardtool.dataset.find import natural_key
from shardtool.dataset.stored import StoredDataset
from shardtool.errors import format_list, printable
from shardtool.request.run_record import format_command_line
from shardtool.storage.paths import base_name
from shardtool.storage.target_file import write_target
from shardtool.units import format_size, pluralize
from shardtool.verbs.inspect.inspect import combine_summaries
from shardtool.verbs.inspect.page.charts import ColumnCharts
from shardtool.verbs.inspect.page.choose import choose_samples
from shardtool.verbs.inspect.page.dataset_view import (
    MAX_LABEL_SETS,
    DatasetView,
    all_samples,
    set_anchors,
    set_dataset_labels,
    set_row_numbers,
)
from shardtool.verbs.inspect.page.media import MediaBudget
from shardtool.verbs.inspect.page.rows import MAX_ROW_BYTES, MAX_ROWS, RowTable, cell_text, rows_json, script_json
from shardtool.verbs.inspect.page.samples import SampleBudget, ShownSample, dataset_title, shorten_text, show_samples
from shardtool.verbs.inspect.samples import check_report_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2 import Environment

    from shardtool.transform.thumbnail import Thumbnail

    _Compared = tuple[str, int, list[tuple[str, list[tuple[int, float]], float]]]


_MAX_METADATA_COLUMNS = 40
_MAX_LEGEND_COLOURS = 24
_FILES = "page.css", "rows.js", "page.js"
_TEMPLATE_PACKAGE = "shardtool.verbs.inspect"


def render_page(views: Sequence[DatasetView]) -> str:
    """Return an HTML page about one or several datasets."""
    files = resources.files(_TEMPLATE_PACKAGE) / "templates"
    style, rows_script, page_script = ((files / name).read_text("utf-8") for name in _FILES)
    script = rows_script + page_script
    sources = f"img-src data:; media-src data:; style-src '{_csp_hash(style)}'; script-src '{_csp_hash(script)}'"
    shown = [sample for view in views for sample in view.shown]
    template = _environment().get_template("page.html")
    return template.render(
        policy=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=script_json([_sample_json(sample) for sample in all_samples(views)]),
        title=format_list([view.name for view in views], 3),
        views=views,
        total=combine_summaries([((view.dataset, view.overview.counts), view.summary) for view in views]),
        compared=_shared_labels(views),
        problems=_all_problems(views),
        max_rows=MAX_ROWS,
        max_row_bytes=MAX_ROW_BYTES,
        rows=rows_json([view.row_table for view in views], [view.overview for view in views]),
        shown=shown,
    )


def _shared_labels(views: Sequence[DatasetView]) -> list[_Compared]:
    compared = []
    for name in dict.fromkeys(name for view in views for name in view.summary.labels):
        labels = [view.summary.labels.get(name) for view in views]
        if sum(label is not None for label in labels) < 2:  # noqa: PLR2004
            continue
        counts = [{value.name: value.samples for value in label.values} if label else {} for label in labels]
        counts_and_totals = [
            (count, max(label.samples, 1) if label else 1) for label, count in zip(labels, counts, strict=True)
        ]
        rows = []
        for value in {value for count in counts for value in count}:
            shares = [(count.get(value, 0), count.get(value, 0) / samples) for count, samples in counts_and_totals]
            rows.append((value, shares, max(share for _, share in shares)))
        rows.sort(key=lambda row: (-sum(count for count, _ in row[1]), natural_key(row[0])))
        compared.append((name, len(rows), rows))
    return compared[:MAX_LABEL_SETS]


def _all_problems(views: Sequence[DatasetView]) -> list[tuple[str, str, str]]:
    problems = [(base_name(problem.where), problem.message, "") for view in views for problem in view.summary.problems]
    reported = set()
    for sample in all_samples(views):
        location = f"{shorten_text(sample.key, 80)} in {sample.chosen.shard.file_name}"
        identity = sample.chosen.shard, sample.chosen.number
        problems += [(location, message, sample.anchor) for message in sample.problems if identity not in reported]
        reported.add(identity)
    return problems


@cache  # compiling templates takes most of the time of a small page
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(_TEMPLATE_PACKAGE)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters.update(
        counted=pluralize, short=shorten_text, whole=whole_number_text, size=format_size, plain=_plain_text,
        command=format_command_line, described=image_description, cell=cell_text,
    )  # fmt: skip
    environment.globals.update(log_scale=LogScale, show_size=format_size, show_whole=whole_number_text)
    return environment


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def image_description(sample: ShownSample, image: Thumbnail) -> str:
    """Return the text for the `alt` attribute of an image."""
    kind = f"mask of {pluralize(len(image.colours), 'value')}" if image.colours else f"{image.kind} image"
    outlines = sample.outlines if image is sample.images[0] else []
    names = format_list([outline.label for outline in outlines], 5)
    boxes = f"{pluralize(len(outlines), 'annotation')}: {names}" if outlines else ""
    parts = (sample.key, sample.label, f"{kind}, {image.full_size[0]:,} by {image.full_size[1]:,} pixels", boxes)
    return shorten_text(", ".join(filter(None, parts)), 300)


def _sample_json(sample: ShownSample) -> dict[str, object]:
    return {
        "id": sample.anchor,
        "row": sample.row,
        "why": sample.reason,
        "key": sample.key,
        "labels": sample.labels,
        "shard": shorten_text(sample.chosen.shard.file_name, 200),
        "offset": sample.chosen.offset,
        "size": sample.chosen.size,
        "fields": [list(field) for field in sample.fields[:_MAX_METADATA_COLUMNS]],
        "images": [
            _image_json(image, with_data=image not in (sample.images[0], sample.overlay)) for image in sample.images
        ],
        "over": sample.overlay is not None,
        "clips": [
            {"field": clip.field, "description": clip.description, "size": len(clip.data)} for clip in sample.clips
        ],
        "texts": [text._asdict() for text in sample.texts],
        "meta": _metadata_json(sample.chosen.metadata, {*sample.labels, *(text.field for text in sample.texts)}),
        "problems": sample.problems,
        "notes": sample.notes,
    }


def _image_json(image: Thumbnail, *, with_data: bool) -> dict[str, object]:
    # `with_data` is false if the sample's tile contains the image
    document: dict[str, object] = {"field": shorten_text(image.field, 200), "full": image.full_size, "size": image.size}
    document |= {"mode": image.mode, "kind": image.kind, "colours": image.colours[:_MAX_LEGEND_COLOURS]}
    return {**document, "src": image.url} if with_data else document


def _metadata_json(values: Mapping[str, object], others: set[str]) -> list[tuple[str, str]]:
    rows = [
        (shorten_text(name, 100), shorten_text(_value_text(value), 300))
        for name, value in values.items()
        if name not in others and value is not None
    ]
    return rows[:_MAX_METADATA_COLUMNS]


def _value_text(value: object) -> str:
    return f"{format_size(len(value))} of binary data" if isinstance(value, bytes) else str(value)


def _plain_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain_text(item) for item in value)
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


_CHART_PIXELS = 360
_MIN_TICKS = 3
_TICK_CHAR_PIXELS = 6.2


def whole_number_text(value: float) -> str:
    """Return a rounded number with thousands separators."""
    return f"{value:,.0f}"


class LogScale:
    """Maps values between two bounds to pixels on a log scale."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = math.log10(low), math.log10(high)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the position of a value on the drawing, in pixels."""
        share = (math.log10(value) - self._low) / ((self._high - self._low) or 1)
        return self._start + min(max(share, 0.0), 1.0) * (self._end - self._start)

    def marks(self) -> list[float]:
        """Return round values within the scale, such as 10, 20 and 50."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            values = [step * 10.0**decade for decade in decades for step in steps]
            marks = [value for value in values if self._low <= math.log10(value) <= self._high]
            if len(marks) >= _MIN_TICKS:
                return marks[:: -(-len(marks) // 6)]
        low, high = 10**self._low, 10**self._high
        rough = (high - low) / 3
        unit = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = unit * max((factor for factor in (1, 2, 5) if factor * unit <= rough), default=1)
        return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]

    def ticks(self, show: Callable[[float], str]) -> list[tuple[float, float, str]]:
        """Return the pixel of each mark, and the centre and text of its label ("" if labels would overlap)."""
        ticks, free_from = [], 0.0
        for value in self.marks():
            pixel, text = self.at(value), show(value)
            half = len(text) * _TICK_CHAR_PIXELS / 2
            centre = min(max(pixel, half), _CHART_PIXELS - half)
            if centre - half < free_from:
                text = ""
            else:
                free_from = centre + half + 6
            ticks.append((pixel, centre, text))
        return ticks


_MAX_SAMPLES = 2000
_DEFAULT_SAMPLES = 200
_IMAGE_BYTES = 3_000_000  # limit for all thumbnails; base64 expands them to 4 MB
_TEXT_BYTES = 600_000
_OUTLINES = 10_000  # maximum outlines on the page, at about 150 bytes each
_MEDIA_BYTES = 6_000_000
_MAX_EDGE_PIXELS, _MIN_EDGE_PIXELS = 384, 96
_PIXELS_PER_BYTE = 8.0
_MAX_SAMPLES_WITHOUT_UNUSUAL = 20


def write_page(
    datasets: StoredDataset | Sequence[StoredDataset], path: str, *, seed: int = 0, overwrite: bool = False
) -> None:
    """Write an HTML page about one or several datasets.

    The page shows 200 samples, or one sample per value if a label has more than 200 values, but at most 2,000.
    """
    stored_datasets = [datasets] if isinstance(datasets, StoredDataset) else [*datasets]
    for dataset in stored_datasets:
        check_report_path(dataset, path, overwrite=overwrite, ending=".html")
    max_samples, default_count = (-(-count // len(stored_datasets)) for count in (_MAX_SAMPLES, _DEFAULT_SAMPLES))
    names, collected, choices = _unique_names(stored_datasets), [], []
    for dataset, name in zip(stored_datasets, names, strict=True):
        row_table = RowTable(name, MAX_ROWS // len(names), MAX_ROW_BYTES // len(names))
        charts = ColumnCharts()
        collectors = row_table.add, charts.add
        choices.append(choose_samples(dataset, max_samples, seed, default_count=default_count, collectors=collectors))
        collected.append((name, row_table, charts))
    unusual = [
        choice.unusual.find(choice.overview.dataset.shards)
        if choice.summary.samples > _MAX_SAMPLES_WITHOUT_UNUSUAL
        else []
        for choice in choices
    ]
    budget = _sample_budget(sum(map(len, unusual)) + sum(len(choice.chosen) for choice in choices))
    views = []
    for number, ((name, row_table, charts), choice, unusual_pairs) in enumerate(
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
                row_table=row_table,
                charts=charts.charts(choice.summary.columns, choice.overview.samples),
                class_counts=charts.class_counts,
                shown=shown,
                unusual_shown=unusual_shown,
                number=number if len(stored_datasets) > 1 else 0,
            )
        )
    set_anchors(views)
    set_dataset_labels(views)
    set_row_numbers(views)
    write_target(path, render_page(views).encode())


def _sample_budget(samples: int) -> SampleBudget:
    image_bytes = _IMAGE_BYTES // max(samples, 1)
    edge = int(min(max((image_bytes * _PIXELS_PER_BYTE) ** 0.5, _MIN_EDGE_PIXELS), _MAX_EDGE_PIXELS))
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
    by_ratio = {}
    for sample in reversed(shown):
        if sample.images:
            width, height = sample.images[0].full_size
            by_ratio[width / height] = sample, f"{width:,} by {height:,}"
    if len(by_ratio) <= 1:
        return []
    extremes = (("widest", by_ratio[max(by_ratio)]), ("tallest", by_ratio[min(by_ratio)]))
    return [replace(sample, reason=f"{reason} shown: {size}") for reason, (sample, size) in extremes]
