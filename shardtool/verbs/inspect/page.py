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
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from shardtool.dataset.opened import file_size
from shardtool.errors import InvalidRequest, printable
from shardtool.request.run_record import command_line
from shardtool.storage.places import base_name
from shardtool.values import counted, show_size
from shardtool.verbs.inspect import charts
from shardtool.verbs.inspect.charts import whole
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
    from collections.abc import Sequence

    from jinja2 import Environment

    from shardtool.dataset.opened import OpenedDataset
    from shardtool.verbs.inspect.charts import Chart
    from shardtool.verbs.inspect.inspect import Summary
    from shardtool.verbs.inspect.overview import Overview
    from shardtool.verbs.inspect.thumbnails import ChosenSamples, ShownSample, Thumbnail


MOST_SAMPLES = 2000
_IMAGE_BYTES = 3_000_000  # of all thumbnails: a third more in base64, and the page stays below 5 MB
_TEXT_BYTES = 600_000
_EDGES = (384, 96)  # pixels of a thumbnail, at most and at least
_EDGE_BYTES = 8.0  # pixels a byte, about, of a photograph as WebP
_META = 40  # metadata columns of a sample
_TEMPLATES = "shardtool.verbs.inspect"


def write_page(
    dataset: OpenedDataset, path: str, *, samples: int = 200, seed: int = 0, overwrite: bool = False
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
    dataset, problems = gathered.overview.dataset, problems_of(gathered, shown)
    rows, scale = fields(gathered)
    template = _environment().get_template("page.html")
    return template.render(
        policy=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=script_json([_sample(dataset, one) for one in shown]),
        title=dataset_name(dataset),
        summary=gathered.summary,
        state=state(gathered.summary),
        subtitle=subtitle(gathered),
        numbers=numbers(gathered),
        links=links(gathered, len(shown), len(problems)),
        problems=problems,
        read_of=read_of(gathered.overview),
        read_samples=gathered.overview.samples,
        fields=rows,
        scale=scale,
        labels=labels(gathered),
        sizes=sizes(gathered.overview),
        images=images(shown),
        shards=shards(gathered),
        made=made(gathered),
        shown=shown,
        shard_names=[shard.name for shard in dataset.shards],
        choice=_choice(gathered),
        filters=_filters(gathered, shown),
        wrong=sum(bool(one.problems) for one in shown),
    )


def _environment() -> Environment:
    """Return the templates: they escape what they show, and make visible what could steer a terminal."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(_TEMPLATES)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.finalize = lambda value: printable(value) if type(value) is str else value
    environment.filters.update(counted=counted, short=shorten, whole=whole, percent=percent, size=show_size)
    environment.filters.update(label_of=label_text, json=lambda value: json.dumps(value, ensure_ascii=False))
    return environment


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _choice(gathered: ChosenSamples) -> str:
    """Return how the samples that are shown were chosen."""
    overview, shown = gathered.overview, len(gathered.chosen)
    if shown == gathered.summary.samples:
        return f"All {gathered.total}, in the order of the dataset." if shown > 1 else "The only one."
    label = gathered.spread
    spread = f"spread over the labels of {shorten(label, 60)}" if label else "spread over the shards"
    if overview.partial:
        spread += f" of {len(overview.counts):,} of its {len(overview.dataset.shards):,} shards"
    return f"{shown:,} of {gathered.total}, drawn at random and {spread}; in the order of the dataset."


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


def _sample(dataset: OpenedDataset, one: ShownSample) -> dict[str, object]:
    values = one.chosen.values
    return {
        "key": one.key,
        "labels": one.labels,
        "shard": shorten(dataset.shards[one.chosen.shard].name, 200),
        "offset": values["__offset__"],
        "size": values["__size__"],
        "fields": [list(field) for field in one.fields[:_META]],
        "images": [_image(image, with_data=at > 0) for at, image in enumerate(one.images)],
        "texts": [
            {"field": text.field, "kind": text.kind, "text": text.text, "cut": text.is_cut} for text in one.texts
        ],
        "meta": _meta(values, one.labels),
        "problems": one.problems,
        "notes": one.notes,
    }


def _image(image: Thumbnail, *, with_data: bool) -> dict[str, object]:
    """Return what the script needs; the first picture stands in the tile already."""
    shown: dict[str, object] = {"field": shorten(image.field, 200), "full": image.full, "size": image.size}
    shown |= {"mode": image.mode, "kind": image.kind}
    return {**shown, "src": image.url} if with_data else shown


def _meta(values: dict[str, object], labels: dict[str, str]) -> list[tuple[str, str]]:
    rows = [
        (shorten(name, 100), shorten(_value(value), 300))
        for name, value in values.items()
        if not name.startswith("__") and name not in labels and value is not None
    ]
    return rows[:_META]


def _value(value: object) -> str:
    return f"{show_size(len(value))} of bytes" if isinstance(value, bytes) else str(value)


# What the page says above the samples: the state, the key numbers, what is wrong, and what each card shows.


_MOST_SETS = 6  # of labels
_MOST_FIELDS = 60
_MOST_OPTIONS = 40
_MOST_SHARDS = 200  # rows of the table


@dataclass(frozen=True)
class ProblemRow:
    """Something wrong: where, what, and the number of the sample on the page, None where it is not shown."""

    where: str
    what: str
    shown: int | None = None


@dataclass(frozen=True)
class LabelCard:
    """The distribution of a label: each value, and how many of `samples` have it."""

    title: str
    note: str
    rows: Sequence[tuple[str, int]]
    samples: int


@dataclass(frozen=True)
class FieldRow:
    """A field: how many samples have it, their share, its sizes as texts and as a small histogram."""

    name: str
    samples: str
    sizes: Sequence[str]
    chart: Chart


@dataclass(frozen=True)
class ShardRow:
    """A shard; what is missing or unknown is None."""

    number: int
    name: str
    size: int | None
    samples: int | None


@dataclass(frozen=True)
class ShardsCard:
    """The shards: how large they are, and the first and last of them."""

    note: str
    charts: Sequence[tuple[str, Chart]]
    rows: Sequence[ShardRow]
    count: int


def problems_of(gathered: ChosenSamples, shown: Sequence[ShownSample]) -> list[ProblemRow]:
    """Return what reading the indexes and the samples met."""
    found = [ProblemRow(base_name(one.where), one.message) for one in gathered.summary.problems]
    for number, one in enumerate(shown):
        shard = gathered.overview.dataset.shards[one.chosen.shard].name
        found += [ProblemRow(f"{shorten(one.key, 80)} in {shard}", what, number) for what in one.problems]
    return found


def state(summary: Summary) -> tuple[str, str]:
    """Return how whole the dataset is: `good`, `warn` or `bad`, and a few words."""
    missing = sum(one.code == "missing-shard" for one in summary.problems)
    if missing:
        return "bad", f"{counted(missing, 'shard')} missing"
    if summary.problems:
        return "bad", counted(len(summary.problems), "problem")
    return ("good", "complete") if summary.complete else ("warn", "no dataset file: completeness unknown")


def subtitle(gathered: ChosenSamples) -> str:
    """Return what the dataset is, in a line."""
    dataset = gathered.overview.dataset
    kind = "WebDataset tar" if gathered.summary.format == "tar" else "TFRecord"
    ends = dict.fromkeys((dataset.shards[0].name, dataset.shards[-1].name))
    said = f"{kind} shards, {shorten(dataset.file.pattern if dataset.file else ' to '.join(ends), 200)}"
    source = dataset.file.made.source if dataset.file else ""
    return f"{said}, made from {shorten(source, 200)}" if source else said


def numbers(gathered: ChosenSamples) -> list[tuple[str, str]]:
    """Return the key numbers: what they are, and each for people."""
    summary, sizes = gathered.summary, gathered.overview.sample_sizes.spread()
    rows = [
        (_noun(summary.samples, "sample"), gathered.total.replace("at least", "≥")),
        (_noun(summary.shard_sizes.count, "shard"), f"{len(gathered.overview.dataset.shards):,}"),
        ("in all", show_size(summary.size)),
    ]
    if sizes.count:
        rows.append(("a sample, median", show_size(sizes.median)))
    rows.append((_noun(len(summary.fields), "field"), f"{len(summary.fields):,}"))
    if summary.labels:
        name, label = next(iter(summary.labels.items()))
        what = _noun(label.distinct, "label" if gathered.overview.rank(name) <= 1 else "value")
        rows.append((f"{what} in {shorten(name, 24)}", f"{label.distinct:,}"))
    if (file := gathered.overview.dataset.file) and not file.part_of:
        rows.append(("left out", f"{summary.skipped:,}"))
    return rows


def _noun(number: int, thing: str) -> str:
    return counted(number, thing).rpartition(" ")[2]


def links(gathered: ChosenSamples, samples: int, problems: int) -> list[tuple[str, str]]:
    """Return the parts of the page: the id of each, and what it is called."""
    found = [("problems", counted(problems, "problem"))] if problems else []
    found += [("samples", f"{counted(samples, 'sample')} to look at"), ("fields", "Fields")]
    for name in [*gathered.summary.labels][:1]:
        found.append(("labels", "Labels" if gathered.overview.rank(name) <= 1 else "Columns"))
    return [*found, ("sizes", "Sizes"), ("shards", "Shards"), ("made", "How it was made")]


def read_of(overview: Overview) -> str:
    """Return on what the numbers rest, where that is not all."""
    if not overview.partial:
        return ""
    read = f"{len(overview.counts):,} of {len(overview.dataset.shards):,} shards"
    return f"Counted in {read} ({overview.samples:,} samples)."


def fields(gathered: ChosenSamples) -> tuple[list[FieldRow], str]:
    """Return a row for each field, the most frequent first, and the scale of their histograms."""
    summary = gathered.summary
    ordered = sorted(summary.fields.items(), key=lambda one: (-one[1].samples, -one[1].size.total, one[0]))
    ordered = ordered[:_MOST_FIELDS]
    if not ordered:
        return [], ""
    ends = min(one.size.smallest for _, one in ordered), max(one.size.largest for _, one in ordered)
    rows = []
    for name, one in ordered:
        share = (
            "all" if one.samples == summary.samples else f"{one.samples:,} ({percent(one.samples, summary.samples)})"
        )
        sizes = (one.size.total, one.size.smallest, one.size.median, one.size.largest)
        chart = charts.spark(gathered.overview.fields[name].sizes, *ends)
        rows.append(FieldRow(name, share, [*map(show_size, sizes)], chart))
    return rows, f"sizes, {show_size(ends[0])} to {show_size(ends[1])}"


def percent(part: int, of: int) -> str:
    """Return a share for people."""
    return f"{100 * part / max(of, 1):.3g}%"


def labels(gathered: ChosenSamples) -> list[LabelCard]:
    """Return a card for each label, and one for the splits."""
    summary, cards = gathered.summary, list[LabelCard]()
    for name, one in [*summary.labels.items()][:_MOST_SETS]:
        title = f"{'Labels:' if gathered.overview.rank(name) <= 1 else 'Column'} {shorten(name, 60)}"
        rows = [(value.name, value.samples) for value in one.values]
        note = _label_note(rows, one.distinct)
        if one.source == "field" and one.sampled and not gathered.overview.partial:
            note += f", of {counted(one.samples, 'sample')} looked at"
        elif one.samples < gathered.overview.samples:
            note += f", {counted(gathered.overview.samples - one.samples, 'sample')} without"
        cards.append(LabelCard(title, f"{note}. {read_of(gathered.overview)}".strip(), rows, one.samples))
    if summary.splits:
        rows = [*summary.splits.items()]
        note = f"{_label_note(rows, len(rows))}. {read_of(gathered.overview)}".strip()
        cards.append(LabelCard("Splits", note, rows, gathered.overview.columns[SPLIT].filled))
    return cards


def _label_note(rows: Sequence[tuple[str, int]], distinct: int) -> str:
    least, most = rows[-1][1], rows[0][1]
    note = f"{distinct:,} different"
    if distinct > len(rows):
        return f"{note}, of which the {len(rows):,} most frequent"
    if distinct == 1:
        return note
    return f"{note}, {least:,} to {most:,} samples each" if least < most else f"{note}, {counted(most, 'sample')} each"


def sizes(overview: Overview) -> tuple[str, Chart | None]:
    """Return what is said of the samples' sizes, and their histogram."""
    spread = overview.sample_sizes.spread()
    if not spread.count:
        return "", None
    ends = f"{show_size(spread.smallest)} to {show_size(spread.largest)}"
    label = f"Histogram of sample sizes: {ends}, median {show_size(spread.median)}"
    note = f"Payload bytes of a sample, {ends}. {read_of(overview)}".strip()
    return note, charts.histogram(overview.sample_sizes, label)


def images(shown: Sequence[ShownSample]) -> tuple[str, str, Chart | None]:
    """Return what is said of the first images of the samples shown, the size of all if it is one, or their sizes."""
    found = [one.images[0] for one in shown if one.images]
    if not found:
        return "", "", None
    said = "; ".join(
        ", ".join(f"{name} {count:,}" for name, count in counts.most_common(6))
        for counts in (Counter(image.kind for image in found), Counter(image.mode for image in found))
    )
    note = f"Width and height, in pixels, of {counted(len(found), 'image')} shown below. {said}."
    widths, heights = sorted(image.full[0] for image in found), sorted(image.full[1] for image in found)
    if len({image.full for image in found}) == 1:
        return note, f"All {widths[0]:,} by {heights[0]:,} pixels.", None
    label = f"Widths from {widths[0]:,} to {widths[-1]:,} pixels, heights from {heights[0]:,} to {heights[-1]:,}"
    return note, "", charts.scatter([image.full for image in found], label)


def shards(gathered: ChosenSamples) -> ShardsCard:
    """Return how large the shards are, as the summary has it, and what there is of each."""
    overview, summary, file = gathered.overview, gathered.summary, gathered.overview.dataset.file
    rows = []
    for shard in overview.dataset.shards:
        entry, size = file.shards[shard.number] if file else None, file_size(shard.path)
        samples = overview.counts.get(shard.number) if entry is None else entry.samples
        rows.append(ShardRow(shard.number, shard.name, size if size is None or entry is None else entry.size, samples))
    bound = file.made.options.get("max_size") if file else None
    held, count = summary.shard_sizes, summary.shard_samples
    note = f"{show_size(held.smallest)} to {show_size(held.largest)}, {count.smallest:,} to {count.largest:,} samples."
    by_size = charts.balance(
        [row.size or 0 for row in rows],
        show_size,
        f"Sizes of the shards: {note}",
        bound if type(bound) is int else None,
    )
    by_count = charts.balance([row.samples or 0 for row in rows], charts.whole, f"Samples of the shards: {note}")
    few, half = rows if len(rows) <= _MOST_SHARDS else [], _MOST_SHARDS // 2
    return ShardsCard(note, [("Size", by_size), ("Samples", by_count)], few or rows[:half] + rows[-half:], len(rows))


def made(gathered: ChosenSamples) -> list[tuple[str, str]]:
    """Return how the dataset was made."""
    rows, file = [("state", state(gathered.summary)[1])], gathered.overview.dataset.file
    if file is None:
        return [*rows, ("made by", "not known: there is no dataset file (`shardtool index` makes one)")]
    first, run = ("tool", "verb", "source"), file.made.document
    rows += [(name, _plain(run[name])) for name in first if name in run]
    for name, value in [*file.made.options.items()][:_MOST_OPTIONS]:
        shown = show_size(value) if name == "max_size" and type(value) is int else _plain(value)
        rows.append((name.replace("_", " "), shown))
    rows += [(name, _plain(one)) for name, one in run.items() if name not in (*first, "options", "appended")]
    rows += [("appended", command_line(one)) for one in file.made.appended[:_MOST_OPTIONS]]
    if file.part_of:
        return [*rows, ("part", f"{counted(len(file.shards), 'shard')} of {file.part_of:,}")]
    rows.append(("left out", f"{file.skipped:,}" + (", listed in its .skipped file" if file.skipped else "")))
    rows.append(("payload", show_size(file.field_bytes)))
    return [*rows, ("fingerprint", file.fingerprint)]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(one) for one in value)
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
