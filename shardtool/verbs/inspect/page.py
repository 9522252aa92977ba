"""The page: one HTML file that shows a dataset, and needs nothing but itself.

Everything that comes out of the dataset is taken for hostile: the templates escape it, with what could steer a
terminal or turn the direction of text made visible, and the page's own policy lets nothing run or load but its one
script and one style sheet, by their hashes. It can be read without JavaScript; with it, samples can be searched and
opened. The same dataset gives the same bytes: no clock, no absolute path.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from operator import attrgetter
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.request.results import command_line
from shardtool.storage.places import base_name
from shardtool.values import counted, show_size
from shardtool.verbs.inspect.table import check_report, write_target
from shardtool.verbs.inspect.thumbnails import (
    SPLIT,
    Budget,
    dataset_name,
    gather,
    label_text,
    shorten,
    show_samples,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2 import Environment

    from shardtool.dataset.find import StoredDataset
    from shardtool.verbs.inspect.inspect import Summary
    from shardtool.verbs.inspect.overview import Overview, Sizes
    from shardtool.verbs.inspect.thumbnails import ChosenSamples, ShownSample, Thumbnail


MOST_SAMPLES = 2000
_IMAGE_BYTES = 3_000_000  # of all thumbnails: a third more in base64, and the page stays below 5 MB
_TEXT_BYTES = 600_000
_EDGES = (384, 96)  # pixels of a thumbnail, at most and at least
_EDGE_BYTES = 8.0  # pixels a byte, about, of a photograph as WebP
_MOST_SETS = 6  # of labels
_MOST_FIELDS = 60
_META = 40  # metadata columns of a sample
_TEMPLATES = "shardtool.verbs.inspect"


def write_page(
    dataset: StoredDataset, path: str, *, samples: int = 200, seed: int = 0, overwrite: bool = False
) -> None:
    """Write a page that shows a dataset.

    Args:
        dataset: What to show. It may be damaged: the page says so.
        path: The HTML file.
        samples: How many samples are shown, at most 2,000; spread over labels, or over shards where there are none.
        seed: Decides which samples these are.
        overwrite: Replace a file that is there already.

    Raises:
        InvalidRequest: `samples` is out of range, or `path` is no name for a new local file.
        OutputExists: There is a file already.
        OutputFailed: The file cannot be written.
    """
    if not 0 <= samples <= MOST_SAMPLES:
        raise InvalidRequest("samples", f"{samples:,}", expected=f"0 to {MOST_SAMPLES:,}")
    check_report(dataset, path, overwrite=overwrite, ending=".html")
    gathered = gather(dataset, samples, seed)
    shown = list(show_samples(gathered, _budget(len(gathered.chosen))))
    write_target(path, _page(gathered, shown).encode())


def _budget(samples: int) -> Budget:
    image = _IMAGE_BYTES // max(samples, 1)
    edge = int(min(max((image * _EDGE_BYTES) ** 0.5, _EDGES[1]), _EDGES[0]))
    return Budget(edge, image, min(max(_TEXT_BYTES // max(samples, 1), 240), 6000))


def _page(gathered: ChosenSamples, shown: Sequence[ShownSample]) -> str:
    files = resources.files(_TEMPLATES) / "templates"
    style, script = ((files / name).read_text("utf-8") for name in ("page.css", "page.js"))
    sources = f"img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    overview, summary = gathered.overview, gathered.summary
    dataset, shards = overview.dataset, _shards(overview)
    fields = sorted(summary.fields.items(), key=lambda one: (-one[1].samples, -one[1].size.total, one[0]))
    fields = fields[:_MOST_FIELDS]
    labels = [*summary.labels.items()][:_MOST_SETS]
    bound = dataset.file.made.options.get("max_size") if dataset.file else None
    pictures = [one.images[0] for one in shown if one.images]
    template = _environment().get_template("page.html")
    return template.render(
        policy=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=script_json([_sample(one) for one in shown]),
        title=dataset_name(dataset),
        gathered=gathered,
        overview=overview,
        summary=summary,
        dataset=dataset,
        file=dataset.file,
        state=_state(summary),
        problems=_problems(gathered, shown),
        fields=fields,
        labels=[(name, one, [(value.name, value.samples) for value in one.values]) for name, one in labels],
        sizes=overview.sample_sizes.spread(),
        tallies=[Counter(map(attrgetter(name), pictures)).most_common(6) for name in ("kind", "mode")],
        pixels=[one.full for one in pictures],
        shards=shards,
        by_size=balance([size or 0 for *_, size, _ in shards], show_size, bound if type(bound) is int else None),
        by_count=balance([samples or 0 for *_, samples in shards], whole),
        shown=shown,
        filters=_filters(gathered, shown),
    )


def _problems(gathered: ChosenSamples, shown: Sequence[ShownSample]) -> list[tuple[str, str, int | None]]:
    """Return what reading the indexes and the samples met: where, what, and the number of the sample if it is shown."""
    found: list[tuple[str, str, int | None]] = []
    found += [(base_name(one.where), one.message, None) for one in gathered.summary.problems]
    for number, one in enumerate(shown):
        where = f"{shorten(one.key, 80)} in {one.chosen.shard.file_name}"
        found += [(where, what, number) for what in one.problems]
    return found


def _state(summary: Summary) -> tuple[str, str]:
    """Return how whole the dataset is: `good`, `warn` or `bad`, and a few words."""
    missing = sum(one.code == "missing-shard" for one in summary.problems)
    if missing:
        return "bad", f"{counted(missing, 'shard')} missing"
    if summary.problems:
        return "bad", counted(len(summary.problems), "problem")
    return ("good", "complete") if summary.complete else ("warn", "no dataset file: completeness unknown")


def _shards(overview: Overview) -> list[tuple[int, str, int | None, int | None]]:
    """Return number, name, bytes and samples of each shard; what is missing or unknown is None."""
    found = []
    for shard in overview.dataset.shards:
        entry, size = shard.entry, shard.size()
        samples = overview.counts.get(shard.number) if entry is None else entry.samples
        found.append((shard.number, shard.file_name, size if size is None or entry is None else entry.size, samples))
    return found


def _environment() -> Environment:
    """Return the templates: they escape what they show, and make visible what could steer a terminal."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(_TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters.update(
        counted=counted, short=shorten, whole=whole, size=show_size, plain=_plain, asked=command_line
    )
    environment.filters.update(label_of=label_text, json=lambda value: json.dumps(value, ensure_ascii=False))
    environment.globals.update(spark=spark, histogram=histogram, scatter=scatter)
    return environment


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _filters(gathered: ChosenSamples, shown: Sequence[ShownSample]) -> list[tuple[str, list[str]]]:
    """Return each label with its values that are shown."""
    names = [*gathered.summary.labels, SPLIT]
    found = [(name, sorted({one.labels[name] for one in shown if name in one.labels})) for name in names]
    return [(name, values) for name, values in found if values]


def script_json(value: object) -> str:
    """Return JSON that may stand in a script element: nothing in it can end that."""
    document = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        document = document.replace(char, f"\\u{ord(char):04x}")
    return document


def _sample(one: ShownSample) -> dict[str, object]:
    return {
        "key": one.key,
        "labels": one.labels,
        "shard": shorten(one.chosen.shard.file_name, 200),
        "offset": one.chosen.offset,
        "size": one.chosen.size,
        "fields": [list(field) for field in one.fields[:_META]],
        "images": [_image(image, with_data=at > 0) for at, image in enumerate(one.images)],
        "texts": [
            {"field": text.field, "kind": text.kind, "text": text.text, "cut": text.is_cut} for text in one.texts
        ],
        "meta": _meta(one.chosen.metadata, one.labels),
        "problems": one.problems,
        "notes": one.notes,
    }


def _image(image: Thumbnail, *, with_data: bool) -> dict[str, object]:
    """Return what the script needs; the first picture stands in the tile already."""
    shown: dict[str, object] = {"field": shorten(image.field, 200), "full": image.full, "size": image.size}
    shown |= {"mode": image.mode, "kind": image.kind}
    return {**shown, "src": image.url} if with_data else shown


def _meta(values: Mapping[str, object], labels: dict[str, str]) -> list[tuple[str, str]]:
    rows = [
        (shorten(name, 100), shorten(_value(value), 300))
        for name, value in values.items()
        if name not in labels and value is not None
    ]
    return rows[:_META]


def _value(value: object) -> str:
    return f"{show_size(len(value))} of bytes" if isinstance(value, bytes) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(one) for one in value)
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


# Charts as shapes with classes; the template draws them as inline SVG, the style sheet colours them.


_WIDTH, _HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 16, 24  # room around the plot: the counts stand above, the ticks below
_MOST_BARS = 40
_SPARK = (120, 22)
_FEW = 4  # images of a size, up to which a dot has the area of their number
_TICKS = 3  # fewer tell no scale
_MOST_SHARD_BARS = 120
_BALANCE_HEIGHT, _SCATTER_HEIGHT = 100, 220
_COUNT_WIDTH, _TITLE_LINE = 64, 11  # where the texts above a plot stand
_LETTER = 6.2  # pixels of a letter of a tick, about


@dataclass(frozen=True)
class SvgShape:
    """An element of SVG: its name, class, place, and its text (of a `text`) or title."""

    tag: str
    kind: str
    place: dict[str, float]
    text: str = ""


@dataclass(frozen=True)
class Chart:
    """A picture."""

    width: int
    height: int
    shapes: list[SvgShape]


def whole(value: float) -> str:
    """Return a whole number for people."""
    return f"{value:,.0f}"


def histogram(sizes: Sizes) -> Chart | None:
    """Return how many there are of each size, on a log scale."""
    columns = sizes.columns(_MOST_BARS)
    if not columns:
        return None
    plot = _Log(columns[0][0], columns[-1][1], _LEFT, _WIDTH - _RIGHT)
    high, floor = max(count for *_, count in columns), _HEIGHT - _BOTTOM
    parts = [_line(_LEFT, floor, _WIDTH - _RIGHT, floor, "axis")]
    for low, up, count in columns:
        if count:
            left, right = plot.at(low), plot.at(up)
            tall = max(1.0, (floor - _TOP) * count / high)
            tip = f"{show_size(low)} to {show_size(up)}: {count:,}"
            parts.append(_rect(left + 0.5, floor - tall, max(1.0, right - left - 1), tall, "fill", tip))
    parts += [_text(_LEFT, 11, f"{high:,}", "tick")]
    parts += plot.ticks(floor, show_size)
    median = sizes.spread().median
    middle, said = plot.at(max(median, 1)), f"median {show_size(median)}"
    parts.append(_line(middle, _TOP - 2, middle, floor, "median"))
    beside = min(middle + 5, _WIDTH - len(said) * _LETTER - 2)  # within the picture, and clear of the count on the left
    parts.append(_text(max(beside, _COUNT_WIDTH), _TITLE_LINE, said, "tick strong"))
    return Chart(_WIDTH, _HEIGHT, parts)


def spark(sizes: Sizes, low: float, high: float) -> Chart:
    """Return a small histogram between `low` and `high`, which all fields of a table share."""
    width, height = _SPARK
    plot = _Log(max(low, 1), max(high, low * 2, 2), 1, width - 1)
    columns = sizes.columns(30)
    most = max((count for *_, count in columns), default=0)
    parts = [_line(0, height - 0.5, width, height - 0.5, "axis")]
    for start, end, count in columns:
        if count:
            left, right = plot.at(start), plot.at(end)
            tall = max(1.5, (height - 2) * count / most)
            parts.append(_rect(left, height - 1 - tall, max(2.0, right - left - 0.4), tall, "fill"))
    return Chart(width, height, parts)


def balance(values: Sequence[int], show: Callable[[float], str], bound: int | None = None) -> Chart:
    """Return a bar for each shard; of many shards, one for each run: the mean, and paler the largest.

    Args:
        values: A number for each shard.
        show: Turns a value into text.
        bound: What no shard may exceed: a dashed line.
    """
    step = -(-len(values) // _MOST_SHARD_BARS)
    runs = [values[at : at + step] for at in range(0, len(values), step)]
    near = bound if bound is not None and bound <= 3 * max(values) else None
    high, floor = max(*values, near or 0, 1), _BALANCE_HEIGHT - 16
    scale = (floor - _TOP) / high
    parts = [_line(_LEFT, floor, _WIDTH - _RIGHT, floor, "axis")]
    each = (_WIDTH - _LEFT - _RIGHT) / len(runs)
    wide = min(each - min(2.0, each * 0.2), 48)
    for at, run in enumerate(runs):
        left, first = _LEFT + at * each + (each - wide) / 2, at * step
        name = f"shard {first:,}" if len(run) == 1 else f"shards {first:,} to {first + len(run) - 1:,}, at most"
        tip, tall = f"{name}: {show(max(run))}", scale * sum(run) / len(run)
        if len(run) > 1:
            parts.append(_rect(left, floor - scale * max(run), wide, scale * max(run), "pale", tip))
        parts.append(_rect(left, floor - max(tall, 0.5), wide, max(tall, 0.5), "fill", tip))
    if near is not None:
        parts.append(_line(_LEFT, floor - scale * near, _WIDTH - _RIGHT, floor - scale * near, "bound"))
        parts.append(_text(_WIDTH - _RIGHT, floor - scale * near - 4, f"bound {show(near)}", "tick end"))
    else:
        parts.append(_text(_LEFT, _TITLE_LINE, show(high), "tick"))
    parts.append(_text(_LEFT, _BALANCE_HEIGHT - 3, "shard 0", "tick"))
    if len(values) > 1:
        parts.append(_text(_WIDTH - _RIGHT, _BALANCE_HEIGHT - 3, whole(len(values) - 1), "tick end"))
    return Chart(_WIDTH, _BALANCE_HEIGHT, parts)


def scatter(points: Sequence[tuple[int, int]]) -> Chart:
    """Return a dot for each image: width to the right, height upwards, both on one log scale."""
    low = min(min(point) for point in points)
    high = max(max(point) for point in points)
    ends = low / 1.15, max(high * 1.15, low * 1.6)
    side, left = _SCATTER_HEIGHT - _BOTTOM - 6, 52
    across, up = _Log(*ends, left, _WIDTH - _RIGHT), _Log(*ends, 6 + side, 6)
    parts = [
        _line(left, 6 + side, _WIDTH - _RIGHT, 6 + side, "axis"),
        _line(left, 6, left, 6 + side, "axis"),
        _line(left, 6 + side, _WIDTH - _RIGHT, 6, "grid"),
    ]
    for at in up.marks():
        parts.append(_text(left - 6, up.at(at) + 4, whole(at), "tick end"))
        parts.append(_line(left - 3, up.at(at), left, up.at(at), "axis"))
    parts += across.ticks(6 + side, whole)
    for (width, height), count in sorted(Counter(points).items()):
        radius = min(9.0, 2.6 * math.sqrt(count) if count < _FEW else 3.6 + math.log2(count) * 0.6)
        tip = f"{width:,} by {height:,}: {count:,}"
        place = {"cx": across.at(width), "cy": up.at(height), "r": radius}
        parts.append(SvgShape("circle", "dot", place, tip))
    return Chart(_WIDTH, _SCATTER_HEIGHT, parts)


class _Log:
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
            if len(found) >= _TICKS:
                return found[:: -(-len(found) // 6)]
        low, high = 10**self._low, 10**self._high
        rough = (high - low) / 3
        unit = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = unit * max((one for one in (1, 2, 5) if one * unit <= rough), default=1)
        return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]

    def ticks(self, floor: float, show: Callable[[float], str]) -> list[SvgShape]:
        """Return marks and texts below the line at `floor`; texts that would touch are left out."""
        parts: list[SvgShape] = []
        free = 0.0
        for value in self.marks():
            at, text = self.at(value), show(value)
            half = len(text) * _LETTER / 2
            centre = min(max(at, half), _WIDTH - half)
            parts.append(_line(at, floor, at, floor + 4, "axis"))
            if centre - half >= free:
                parts.append(_text(centre, floor + 17, text, "tick middle"))
                free = centre + half + 6
        return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> SvgShape:
    return SvgShape("line", kind, {"x1": x1, "y1": y1, "x2": x2, "y2": y2})


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> SvgShape:
    return SvgShape("rect", kind, {"x": x, "y": y, "width": width, "height": height}, title)


def _text(x: float, y: float, text: str, kind: str) -> SvgShape:
    return SvgShape("text", kind, {"x": x, "y": y}, text)
