"""Render the page from its templates.

Everything that comes from the dataset is treated as hostile: the templates escape it and make control and direction
characters visible, and the page's own policy allows only its one script and one style sheet, by their hashes. The
page can
be read without JavaScript. The same files give the same bytes: no absolute path, and no clock but the date of the
dataset
file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from importlib import resources
from typing import TYPE_CHECKING

from shardtool.dataset.find import natural_key
from shardtool.errors import format_list, printable
from shardtool.request.run_record import format_command_line
from shardtool.storage.paths import base_name
from shardtool.units import format_size, pluralize
from shardtool.verbs.inspect.inspect import combine_summaries
from shardtool.verbs.inspect.page.dataset_view import DATASET_LABEL, MAX_LABEL_SETS, DatasetView, all_samples
from shardtool.verbs.inspect.page.samples import (
    SPLIT_COLUMN,
    label_text,
    shorten_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2 import Environment

    from shardtool.verbs.inspect.page.samples import ShownSample
    from shardtool.verbs.inspect.page.thumbnails import Thumbnail

    # A label, how many values it has, and the rows of a table of these.
    _Compared = tuple[str, int, list[tuple[str, list[tuple[int, float]], float]]]


_MAX_METADATA_COLUMNS = 40  # metadata columns of a sample


_MAX_LEGEND_COLOURS = 24  # of a mask, that are explained


_TEMPLATE_PACKAGE = "shardtool.verbs.inspect"


def render_page(views: Sequence[DatasetView]) -> str:
    files = resources.files(_TEMPLATE_PACKAGE) / "templates"
    style, script = ((files / name).read_text("utf-8") for name in ("page.css", "page.js"))
    sources = f"img-src data:; media-src data:; style-src '{_csp_hash(style)}'; script-src '{_csp_hash(script)}'"
    shown = [one for view in views for one in view.shown]
    template = _environment().get_template("page.html")
    return template.render(
        policy=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=script_json([_sample_json(one) for one in all_samples(views)]),
        title=format_list([view.name for view in views], 3),
        views=views,
        total=combine_summaries([((view.dataset, view.overview.counts), view.summary) for view in views]),
        compared=_shared_labels(views),
        problems=_all_problems(views),
        shown=shown,
        filters=_label_filters(views),
    )


def _shared_labels(views: Sequence[DatasetView]) -> list[_Compared]:
    """Return the labels that several datasets have.

    Each comes with how many values it has, and these: the value; how many samples of each dataset have it, and which
    share of those with a label that is; and the largest of these shares.
    """
    found = []
    for name in dict.fromkeys(name for view in views for name in view.summary.labels):
        labels = [view.summary.labels.get(name) for view in views]
        if sum(one is not None for one in labels) < 2:  # noqa: PLR2004 - nothing to compare
            continue
        counts = [{value.name: value.samples for value in one.values} if one else {} for one in labels]
        both = [(count, max(one.samples, 1) if one else 1) for one, count in zip(labels, counts, strict=True)]
        rows = []
        for value in {value for count in counts for value in count}:
            shares = [(count.get(value, 0), count.get(value, 0) / samples) for count, samples in both]
            rows.append((value, shares, max(share for _, share in shares)))
        rows.sort(key=lambda row: (-sum(count for count, _ in row[1]), natural_key(row[0])))
        found.append((name, len(rows), rows))
    return found[:MAX_LABEL_SETS]


def _all_problems(views: Sequence[DatasetView]) -> list[tuple[str, str, str]]:
    """Return what reading the indexes and the samples met: where, what, and the id of the sample if it is shown."""
    found = [(base_name(one.where), one.message, "") for view in views for one in view.summary.problems]
    told = set()
    for one in all_samples(views):
        where, place = (
            f"{shorten_text(one.key, 80)} in {one.chosen.shard.file_name}",
            (one.chosen.shard, one.chosen.number),
        )
        found += [(where, what, one.anchor) for what in one.problems if place not in told]
        told.add(place)
    return found


def _environment() -> Environment:
    """Return the templates: they escape what they show, and make visible what could steer a terminal."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(_TEMPLATE_PACKAGE)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters.update(
        counted=pluralize, short=shorten_text, whole=whole_number_text, size=format_size, plain=_plain_text, asked=format_command_line,
        label_of=label_text, json=lambda value: json.dumps(value, ensure_ascii=False), described=image_description,
    )  # fmt: skip
    environment.globals.update(log_scale=LogScale, show_size=format_size, show_whole=whole_number_text)
    return environment


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _label_filters(views: Sequence[DatasetView]) -> list[tuple[str, list[str]]]:
    """Return each label with its values that are shown."""
    names = dict.fromkeys(name for view in views for name in (*view.summary.labels, SPLIT_COLUMN, DATASET_LABEL))
    shown = [one for view in views for one in view.shown]
    found = [
        (name, sorted({one.labels[name] for one in shown if name in one.labels}, key=natural_key)) for name in names
    ]
    return [(name, values) for name, values in found if values]


def image_description(one: ShownSample, image: Thumbnail) -> str:
    """Return what a picture shows, for those who do not see it."""
    what = f"mask of {pluralize(len(image.colours), 'value')}" if image.colours else f"{image.kind} image"
    said = (one.key, label_text(one), f"{what}, {image.full[0]:,} by {image.full[1]:,} pixels")
    return shorten_text(", ".join(filter(None, said)), 300)


def script_json(value: object) -> str:
    """Return JSON that may stand in a script element: nothing in it can end that."""
    document = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        document = document.replace(char, f"\\u{ord(char):04x}")
    return document


def _sample_json(one: ShownSample) -> dict[str, object]:
    return {
        "id": one.anchor,
        "why": one.why,
        "key": one.key,
        "labels": one.labels,
        "shard": shorten_text(one.chosen.shard.file_name, 200),
        "offset": one.chosen.offset,
        "size": one.chosen.size,
        "fields": [list(field) for field in one.fields[:_MAX_METADATA_COLUMNS]],
        "images": [_image_json(image, with_data=image not in (one.images[0], one.overlay)) for image in one.images],
        "over": one.overlay is not None,
        "players": [{"field": player.field, "said": player.said, "size": len(player.data)} for player in one.players],
        "texts": [text._asdict() for text in one.texts],
        "meta": _metadata_json(one.chosen.metadata, one.labels),
        "problems": one.problems,
        "notes": one.notes,
    }


def _image_json(image: Thumbnail, *, with_data: bool) -> dict[str, object]:
    """Return what the script needs; the first picture, and the mask laid over it, stand in the tile already."""
    shown: dict[str, object] = {"field": shorten_text(image.field, 200), "full": image.full, "size": image.size}
    shown |= {"mode": image.mode, "kind": image.kind, "colours": image.colours[:_MAX_LEGEND_COLOURS]}
    return {**shown, "src": image.url} if with_data else shown


def _metadata_json(values: Mapping[str, object], labels: dict[str, str]) -> list[tuple[str, str]]:
    rows = [
        (shorten_text(name, 100), shorten_text(_value_text(value), 300))
        for name, value in values.items()
        if name not in labels and value is not None
    ]
    return rows[:_MAX_METADATA_COLUMNS]


def _value_text(value: object) -> str:
    return f"{format_size(len(value))} of bytes" if isinstance(value, bytes) else str(value)


def _plain_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain_text(one) for one in value)
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


_CHART_PIXELS = 360  # pixels of a chart


_MIN_TICKS = 3  # fewer tell no scale


_TICK_CHAR_PIXELS = 6.2  # pixels of a letter of a tick, about


def whole_number_text(value: float) -> str:
    """Return a whole number for people."""
    return f"{value:,.0f}"


class LogScale:
    """A log scale between two values, laid on pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = math.log10(low), math.log10(high)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (math.log10(value) - self._low) / ((self._high - self._low) or 1)
        return self._start + min(max(share, 0.0), 1.0) * (self._end - self._start)

    def marks(self) -> list[float]:
        """Return round values in between, few enough to be read."""
        decades = range(math.floor(self._low), math.ceil(self._high) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
            values = [step * 10.0**decade for decade in decades for step in steps]
            found = [value for value in values if self._low <= math.log10(value) <= self._high]
            if len(found) >= _MIN_TICKS:
                return found[:: -(-len(found) // 6)]
        low, high = 10**self._low, 10**self._high
        rough = (high - low) / 3
        unit = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = unit * max((one for one in (1, 2, 5) if one * unit <= rough), default=1)
        return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]

    def ticks(self, show: Callable[[float], str]) -> list[tuple[float, float, str]]:
        """Return where marks stand, the middle of their texts, and these; empty where they would touch another."""
        found, free = [], 0.0
        for value in self.marks():
            at, text = self.at(value), show(value)
            half = len(text) * _TICK_CHAR_PIXELS / 2
            centre = min(max(at, half), _CHART_PIXELS - half)
            if centre - half < free:
                text = ""
            else:
                free = centre + half + 6
            found.append((at, centre, text))
        return found
