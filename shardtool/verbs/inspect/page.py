"""The page: one HTML file that shows a dataset, and needs nothing but itself.

Everything that comes out of the dataset is taken for hostile: the templates escape it, with what could steer a
terminal or turn the direction of text made visible, and the page's own policy lets nothing run or load but its one
script and one style sheet, by their hashes. It can be read without JavaScript; with it, samples can be searched and
opened. The same files give the same bytes: no absolute path, and no clock but the date of the dataset file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from importlib import resources
from operator import attrgetter
from typing import TYPE_CHECKING
from urllib.parse import quote

from shardtool.dataset.find import StoredDataset, natural
from shardtool.errors import listing, printable
from shardtool.request.run_record import command_line
from shardtool.storage.folders import write_target
from shardtool.storage.places import base_name, file_stat
from shardtool.values import counted, output_text, show_size
from shardtool.verbs.inspect.inspect import FieldSummary, LabelSummary, together
from shardtool.verbs.inspect.samples import check_report
from shardtool.verbs.inspect.thumbnails import (
    SPLIT,
    Budget,
    ChosenSamples,
    MediaRoom,
    Thumbnail,
    common_start,
    dataset_name,
    gather,
    label_text,
    shorten,
    show_samples,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2 import Environment

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.verbs.inspect.thumbnails import ShownSample

    # A label, how many values it has, and the rows of a table of these.
    _Compared = tuple[str, int, list[tuple[str, list[tuple[int, float]], float]]]


_MOST_SAMPLES = 2000  # of all datasets
_USUAL_SAMPLES = 200
_IMAGE_BYTES = 3_000_000  # of all thumbnails: a third more in base64, and the page stays below 5 MB
_TEXT_BYTES = 600_000
_MEDIA_BYTES = 6_000_000  # of all audio and video, where there is any
_EDGES = (384, 96)  # pixels of a thumbnail, at most and at least
_EDGE_BYTES = 8.0  # pixels a byte, about, of a photograph as WebP
_MOST_SETS = 6  # of labels
_MOST_FIELDS = 60
_META = 40  # metadata columns of a sample
_MOST_COLOURS = 24  # of a mask, that are explained
_LISTED = 9  # shards without a dataset file that are named one by one: a glob may mean others, too
_READ_FIELDS = 4  # that the program names which reads the dataset
_SEEN_AT_ONCE = 20  # samples, of which none needs to be called odd
_ANCHOR = 120  # characters
_TEMPLATES = "shardtool.verbs.inspect"
DATASET = "dataset"  # the label that says which of several datasets a sample is of


def write_page(
    datasets: StoredDataset | Sequence[StoredDataset], path: str, *, seed: int = 0, overwrite: bool = False
) -> None:
    """Write a page that shows a dataset, or several side by side.

    It shows 200 samples in all, or one of each label where these are more, at most 2,000. Each dataset has as many,
    spread over labels, or over shards where there are none.

    Args:
        datasets: What to show. It may be damaged: the page says so.
        path: The HTML file.
        seed: Decides which samples these are.
        overwrite: Replace a file that is there already.

    Raises:
        InvalidRequest: `path` is no name for a new file.
        OutputExists: There is a file already.
        OutputFailed: The file cannot be written.
    """
    given = [datasets] if isinstance(datasets, StoredDataset) else [*datasets]
    for dataset in given:
        check_report(dataset, path, overwrite=overwrite, ending=".html")
    most, usual = (-(-count // len(given)) for count in (_MOST_SAMPLES, _USUAL_SAMPLES))
    gathered = [gather(dataset, most, seed, usual=usual) for dataset in given]
    odd = [
        one.odd.found(one.overview.dataset.shards) if one.summary.samples > _SEEN_AT_ONCE else [] for one in gathered
    ]
    budget = _budget(sum(map(len, odd)) + sum(len(one.chosen) for one in gathered))
    views = []
    for number, (name, each, found) in enumerate(zip(_names(given), gathered, odd, strict=True), 1):
        strange = [*show_samples(each, budget, [sample for _, sample in found])]
        for one, (why, _) in zip(strange, found, strict=True):
            one.why = why
        shown = [*show_samples(each, budget)]
        if each.summary.samples > _SEEN_AT_ONCE and not any(one.why.startswith("widest") for one in strange):
            strange += _shapes(shown)
        at = number if len(given) > 1 else 0
        views.append(DatasetView(**vars(each), name=name, shown=shown, strange=strange, number=at))
    _give_anchors(views)
    write_target(path, _page(views).encode())


def _budget(samples: int) -> Budget:
    image = _IMAGE_BYTES // max(samples, 1)
    edge = int(min(max((image * _EDGE_BYTES) ** 0.5, _EDGES[1]), _EDGES[0]))
    texts = min(max(_TEXT_BYTES // max(samples, 1), 240), 6000)
    return Budget(edge, image, texts, media=MediaRoom(_MEDIA_BYTES, samples))


def _names(datasets: Sequence[StoredDataset]) -> list[str]:
    """Return what datasets are called: the same name gets a number."""
    names, seen = [dataset_name(one) for one in datasets], Counter[str]()
    for at, name in enumerate(names):
        seen[name] += 1
        names[at] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def _shapes(shown: Sequence[ShownSample]) -> list[ShownSample]:
    """Return, of the images that are shown, the widest and the tallest: for want of columns that know all shapes."""
    found = {one.images[0].full[0] / one.images[0].full[1]: one for one in reversed(shown) if one.images}
    if len(found) <= 1:
        return []
    ends = (("widest", found[max(found)]), ("tallest", found[min(found)]))
    return [
        replace(one, why=f"{why} shown: {one.images[0].full[0]:,} by {one.images[0].full[1]:,}") for why, one in ends
    ]


def _all(views: Sequence[DatasetView]) -> list[ShownSample]:
    """Return the samples of a page, the odd ones last."""
    return [one for view in views for one in view.shown] + [one for view in views for one in view.strange]


def _give_anchors(views: Sequence[DatasetView]) -> None:
    """Give each sample an id that tells its key, so that a link to it stays right as far as keys do."""
    seen: Counter[str] = Counter()
    for one in _all(views):
        name = "s-" + quote(one.chosen.key, safe="/", errors="replace")[:_ANCHOR]
        name += f"~{one.why.partition(':')[0].replace(' ', '-')}" if one.why and name in seen else ""
        seen[name] += 1
        one.anchor = f"{name}~{seen[name]}" if seen[name] > 1 else name
    if len(views) > 1:
        for view in views:
            for one in view.shown + view.strange:
                one.labels.setdefault(DATASET, view.name)


@dataclass(frozen=True)
class DatasetView(ChosenSamples):
    """A dataset as the page shows it.

    Attributes:
        name: What it is called.
        shown: Its samples.
        strange: Those that stand out.
        number: Which of several datasets it is, from 1; 0: it is the only one.
    """

    name: str
    shown: list[ShownSample]
    strange: list[ShownSample]
    number: int

    @property
    def dataset(self) -> StoredDataset:
        """The dataset."""
        return self.overview.dataset

    @property
    def file(self) -> DatasetFile | None:
        """What its dataset file says."""
        return self.dataset.file

    def id(self, name: str) -> str:
        """Return the id of a part of the page that is about it."""
        return f"{name}-{self.number}" if self.number else name

    @property
    def state(self) -> tuple[str, str]:
        """How whole it is: `good`, `warn` or `bad`, and a few words."""
        summary = self.summary
        if missing := sum(one.code == "missing-shard" for one in summary.problems):
            return "bad", f"{counted(missing, 'shard')} missing"
        if summary.problems:
            return "bad", counted(len(summary.problems), "problem")
        return ("good", "complete") if summary.complete else ("warn", "no dataset file: completeness unknown")

    @property
    def pattern(self) -> str:
        """The names of its shards."""
        shards = self.dataset.shards
        return self.file.pattern if self.file else " to ".join(dict.fromkeys((shards[0].name, shards[-1].name)))

    @cached_property
    def written(self) -> str:
        """When its dataset file, or else its last shard, was written, as the file system has it; empty: not known."""
        try:
            time = file_stat(self.dataset.dataset_file or self.dataset.shards[-1].path).st_mtime
            return f"{datetime.fromtimestamp(time, timezone.utc):%Y-%m-%d %H:%M} UTC"
        except (OSError, ValueError, OverflowError):  # it is not there, or in a store; or no date
            return ""

    @property
    def program(self) -> str:
        """A few lines of Python that read it."""
        shards = [shard.name for shard in self.dataset.shards]
        start, end = (common_start([one[::step] for one in shards]).rstrip("0123456789") for step in (1, -1))
        given: str | list[str] = output_text(base_name(self.dataset.dataset_file or ""))
        given = given or (f"{start}*{end[::-1]}" if start and shards[_LISTED:] else shards)
        shown = "".join(f"    sample[{json.dumps(name)}]\n" for name, _ in self.fields[:_READ_FIELDS])
        return (
            f"import shardtool\n\ndataset = shardtool.open({json.dumps(given)})\n"
            f"stream = dataset.stream(shuffle=True, seed=0)\nfor sample in stream.decode():\n{shown}"
        )

    @cached_property
    def fields(self) -> list[tuple[str, FieldSummary]]:
        """Its fields, those of most samples first."""
        found = sorted(self.summary.fields.items(), key=lambda one: (-one[1].samples, -one[1].size.total, one[0]))
        return found[:_MOST_FIELDS]

    @property
    def labels(self) -> list[tuple[str, LabelSummary, list[tuple[str, int]]]]:
        """What may be labels, with their values and how many samples have each."""
        labels = [*self.summary.labels.items()][:_MOST_SETS]
        return [(name, one, [(value.name, value.samples) for value in one.values]) for name, one in labels]

    @cached_property
    def firsts(self) -> dict[tuple[str, str], str]:
        """Label and value to the id of the first sample that is shown of it."""
        return {both: one.anchor for one in reversed(self.shown) for both in one.labels.items()}

    @property
    def _pictures(self) -> list[Thumbnail]:
        return [one.images[0] for one in self.shown if one.images]

    @property
    def tallies(self) -> list[list[tuple[str, int]]]:
        """The formats of its pictures, and their modes, with how many there are of each."""
        counts = [Counter(map(attrgetter(name), self._pictures)) for name in ("kind", "mode")]
        return [sorted(one.items(), key=lambda both: (-both[1], both[0]))[:6] for one in counts]

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """Width and height of its pictures."""
        return [one.full for one in self._pictures]

    @property
    def dots(self) -> list[tuple[int, int, int, float]]:
        """Width and height of its pictures, how many have both, and the radius of a dot for these."""
        return [
            (*size, count, min(9.0, 2.6 * math.sqrt(count) if count < _FEW else 3.6 + math.log2(count) * 0.6))
            for size, count in sorted(Counter(self.pixels).items())
        ]

    @cached_property
    def shards(self) -> list[tuple[int, str, int | None, int | None]]:
        """Number, name, bytes and samples of each shard; what is missing or unknown is None."""
        found = []
        for shard in self.dataset.shards:
            entry, size = shard.entry, shard.size()
            samples = self.overview.counts.get(shard.number) if entry is None else entry.samples
            held = size if size is None or entry is None else entry.size
            found.append((shard.number, shard.file_name, held, samples))
        return found


def _page(views: Sequence[DatasetView]) -> str:
    files = resources.files(_TEMPLATES) / "templates"
    style, script = ((files / name).read_text("utf-8") for name in ("page.css", "page.js"))
    sources = f"img-src data:; media-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    shown = [one for view in views for one in view.shown]
    template = _environment().get_template("page.html")
    return template.render(
        policy=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=script_json([_sample(one) for one in _all(views)]),
        title=listing([view.name for view in views], 3),
        views=views,
        total=together([((view.dataset, view.overview.counts), view.summary) for view in views]),
        compared=_compared(views),
        problems=_problems(views),
        shown=shown,
        filters=_filters(views),
    )


def _compared(views: Sequence[DatasetView]) -> list[_Compared]:
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
        rows.sort(key=lambda row: (-sum(count for count, _ in row[1]), natural(row[0])))
        found.append((name, len(rows), rows))
    return found[:_MOST_SETS]


def _problems(views: Sequence[DatasetView]) -> list[tuple[str, str, str]]:
    """Return what reading the indexes and the samples met: where, what, and the id of the sample if it is shown."""
    found = [(base_name(one.where), one.message, "") for view in views for one in view.summary.problems]
    told = set()
    for one in _all(views):
        where, place = f"{shorten(one.key, 80)} in {one.chosen.shard.file_name}", (one.chosen.shard, one.chosen.number)
        found += [(where, what, one.anchor) for what in one.problems if place not in told]
        told.add(place)
    return found


def _environment() -> Environment:
    """Return the templates: they escape what they show, and make visible what could steer a terminal."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(_TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters.update(
        counted=counted, short=shorten, whole=whole, size=show_size, plain=_plain, asked=command_line,
        label_of=label_text, json=lambda value: json.dumps(value, ensure_ascii=False), described=described,
    )  # fmt: skip
    environment.globals.update(log_scale=LogScale, show_size=show_size, show_whole=whole)
    return environment


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _filters(views: Sequence[DatasetView]) -> list[tuple[str, list[str]]]:
    """Return each label with its values that are shown."""
    names = dict.fromkeys(name for view in views for name in (*view.summary.labels, SPLIT, DATASET))
    shown = [one for view in views for one in view.shown]
    found = [(name, sorted({one.labels[name] for one in shown if name in one.labels}, key=natural)) for name in names]
    return [(name, values) for name, values in found if values]


def described(one: ShownSample, image: Thumbnail) -> str:
    """Return what a picture shows, for those who do not see it."""
    what = f"mask of {counted(len(image.colours), 'value')}" if image.colours else f"{image.kind} image"
    said = (one.key, label_text(one), f"{what}, {image.full[0]:,} by {image.full[1]:,} pixels")
    return shorten(", ".join(filter(None, said)), 300)


def script_json(value: object) -> str:
    """Return JSON that may stand in a script element: nothing in it can end that."""
    document = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        document = document.replace(char, f"\\u{ord(char):04x}")
    return document


def _sample(one: ShownSample) -> dict[str, object]:
    return {
        "id": one.anchor,
        "why": one.why,
        "key": one.key,
        "labels": one.labels,
        "shard": shorten(one.chosen.shard.file_name, 200),
        "offset": one.chosen.offset,
        "size": one.chosen.size,
        "fields": [list(field) for field in one.fields[:_META]],
        "images": [_image(image, with_data=image not in (one.images[0], one.overlay)) for image in one.images],
        "over": one.overlay is not None,
        "players": [{"field": player.field, "said": player.said, "size": len(player.data)} for player in one.players],
        "texts": [text._asdict() for text in one.texts],
        "meta": _meta(one.chosen.metadata, one.labels),
        "problems": one.problems,
        "notes": one.notes,
    }


def _image(image: Thumbnail, *, with_data: bool) -> dict[str, object]:
    """Return what the script needs; the first picture, and the mask laid over it, stand in the tile already."""
    shown: dict[str, object] = {"field": shorten(image.field, 200), "full": image.full, "size": image.size}
    shown |= {"mode": image.mode, "kind": image.kind, "colours": image.colours[:_MOST_COLOURS]}
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


# Charts, which the templates draw.


_WIDTH = 360  # pixels of a chart
_FEW = 4  # images of a size, up to which a dot has the area of their number
_TICKS = 3  # fewer tell no scale
_LETTER = 6.2  # pixels of a letter of a tick, about


def whole(value: float) -> str:
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
            if len(found) >= _TICKS:
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
            half = len(text) * _LETTER / 2
            centre = min(max(at, half), _WIDTH - half)
            if centre - half < free:
                text = ""
            else:
                free = centre + half + 6
            found.append((at, centre, text))
        return found
