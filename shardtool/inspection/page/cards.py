"""The page above the samples: the headline, the key numbers, and a card for each thing that can be counted."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from shardtool.inspection.page import charts
from shardtool.inspection.page.markup import WORD, card, facts, folded, name_cell, number_cells, table
from shardtool.inspection.page.naming import dataset_name, state
from shardtool.inspection.page.thumbnails import shorten
from shardtool.request.command_line import appended_runs, command_line
from shardtool.values import counted, show_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.opened import OpenedDataset
    from shardtool.inspection.page.figures import Figures, LabelSet, ShardFigure, Sizes
    from shardtool.inspection.page.thumbnails import Shown

_OPEN_LABELS = 8
_MOST_SETS = 6
_OPEN_FIELDS = 12
_MOST_FIELDS = 60
_MOST_COLUMNS = 40  # metadata columns, and options
_MOST_SHARDS = 200  # rows of the table


def headline(dataset: OpenedDataset, figures: Figures, samples: int, problems: int) -> str:
    """Return the name, the state, the key numbers and the links."""
    kind, words = state(dataset, figures)
    links = [("problems", counted(problems, "problem"))] if problems else []
    links += [("samples", f"{counted(samples, 'sample')} to look at"), ("fields", "Fields")]
    if figures.labels:
        links.append(("labels", "Labels" if figures.labels[0].is_label else "Columns"))
    links += [("sizes", "Sizes"), ("shards", "Shards"), ("made", "How it was made")]
    nav = "".join(f'<li><a href="#{where}">{escape(text)}</a></li>' for where, text in links)
    return (
        f'<header class="wrap head"><div class="line"><h1><bdi>{escape(dataset_name(dataset))}</bdi></h1>'
        f'<span class="state {kind}">{escape(words)}</span></div>'
        f'<p class="sub">{escape(_subtitle(dataset, figures))}</p>{_numbers(dataset, figures)}'
        f'<nav aria-label="On this page"><ul>{nav}</ul></nav></header>'
    )


def _subtitle(dataset: OpenedDataset, figures: Figures) -> str:
    kind = "WebDataset tar" if dataset.format == "tar" else "TFRecord"
    names = [shard.name for shard in figures.shards]
    pattern = dataset.file.pattern if dataset.file else " to ".join(dict.fromkeys((names[0], names[-1])))
    said = f"{kind} shards, {shorten(pattern, 200)}"
    source = str(dataset.file.made.get("source", "")) if dataset.file else ""
    return f"{said}, made from {shorten(source, 200)}" if source else said


def _numbers(dataset: OpenedDataset, figures: Figures) -> str:
    rows = [
        (_noun(figures.samples, "sample"), ("" if figures.samples_known else "≥ ") + f"{figures.samples:,}"),
        (_noun(len(figures.shards), "shard"), f"{len(figures.shards):,}"),
        ("in all", show_size(figures.size)),
    ]
    if figures.sizes.count:
        rows.append(("a sample, median", show_size(figures.sizes.median)))
    rows.append((_noun(len(figures.fields), "field"), f"{len(figures.fields):,}"))
    if figures.labels:
        labels = figures.labels[0]
        what = _noun(len(labels.counts), "label" if labels.is_label else "value")
        rows.append((f"{what} in {shorten(labels.name, 24)}", f"{len(labels.counts):,}"))
    if dataset.file:
        rows.append(("left out", f"{dataset.file.skipped:,}"))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
    return f'<dl class="numbers">{cells}</dl>'


def _noun(number: int, thing: str) -> str:
    return counted(number, thing).rpartition(" ")[2]


def cards(dataset: OpenedDataset, figures: Figures, shown: Sequence[Shown]) -> str:
    """Return a card for each thing that can be counted."""
    found = []
    for number, labels in enumerate(figures.labels[:_MOST_SETS]):
        name = shorten(labels.name, 60)
        title = f"Labels: {name}" if labels.is_label else f"Column {name}"
        found.append(_labels(labels, figures, title, "" if number else "labels"))
    if figures.splits is not None:
        found.append(_labels(figures.splits, figures, "Splits", ""))
    found += [_sizes(figures), _images(shown), _shards(dataset, figures), _made(dataset, figures)]
    return f'{_fields(figures)}<div class="cards">{"".join(found)}</div>'


def _of_shards(figures: Figures) -> str:
    """Say on what the numbers rest, where that is not all."""
    if figures.counted == len(figures.shards):
        return ""
    return f"Counted in {figures.counted:,} of {len(figures.shards):,} shards ({figures.counted_samples:,} samples)."


def _fields(figures: Figures) -> str:
    if not figures.fields:
        return card(
            "fields", "Fields", _of_shards(figures), "<p>There are none in an index that can be read.</p>", "full"
        )
    ordered = sorted(figures.fields.items(), key=lambda one: (-one[1].count, -one[1].total, one[0]))[:_MOST_FIELDS]
    ends = min(sizes.smallest for _, sizes in ordered), max(sizes.largest for _, sizes in ordered)
    rows = [_field_row(name, sizes, figures.counted_samples, ends) for name, sizes in ordered]
    scale = f"sizes, {show_size(ends[0])} to {show_size(ends[1])}"
    heads = ("field", "#samples", "#in all", "#smallest", "#median", "#largest", scale)
    html = table(heads, rows[:_OPEN_FIELDS])
    if len(rows) > _OPEN_FIELDS:
        cut = (
            f", of which the {_MOST_FIELDS - _OPEN_FIELDS} most frequent" if len(figures.fields) > _MOST_FIELDS else ""
        )
        html += folded(f"{len(figures.fields) - _OPEN_FIELDS:,} more{cut}", table(heads, rows[_OPEN_FIELDS:]))
    if figures.columns:
        columns = [f"{shorten(name, 40)} ({shorten(kind, 40)})" for name, kind in figures.columns.items()]
        more = f" and {len(columns) - _MOST_COLUMNS:,} more" if len(columns) > _MOST_COLUMNS else ""
        said = escape(", ".join(columns[:_MOST_COLUMNS]) + more)
        html += f'<h3>Metadata columns</h3><p class="note">{said}</p>'
    return card("fields", "Fields", _of_shards(figures), html, "full")


def _field_row(name: str, sizes: Sizes, samples: int, ends: tuple[int, int]) -> str:
    share = "all" if sizes.count == samples else f"{sizes.count:,} ({_percent(sizes.count, samples)})"
    shown = [show_size(size) for size in (sizes.total, sizes.smallest, sizes.median, sizes.largest)]
    chart = f'<td class="sizes">{charts.spark(sizes, *ends)}</td>'
    return f"<tr>{name_cell(name)}{number_cells(share, *shown)}{chart}</tr>"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.3g}%"


def _labels(labels: LabelSet, figures: Figures, title: str, place: str) -> str:
    ordered = sorted(labels.counts.items(), key=lambda one: (-one[1], one[0]))
    most, least, total = ordered[0][1], ordered[-1][1], labels.total
    note = [f"{len(ordered):,} different"]
    if len(ordered) > 1:
        note.append(f"{least:,} to {most:,} samples each" if least < most else f"{counted(most, 'sample')} each")
    if total < figures.counted_samples:
        note.append(f"{counted(figures.counted_samples - total, 'sample')} without")
    rows = [
        f'<tr><td class="name">{escape(shorten(name, WORD))}</td><td class="what">{charts.bar(count / most)}</td>'
        f"{number_cells(f'{count:,}', _percent(count, total))}</tr>"
        for name, count in ordered
    ]
    opened = len(rows) if len(rows) <= _OPEN_LABELS + 2 else _OPEN_LABELS
    heads = ("value", "", "#samples", "#share")
    html = table(heads, rows[:opened])
    if opened < len(rows):
        html += folded(f"{len(rows) - opened:,} more", table(heads, rows[opened:]))
    return card(place, title, f"{', '.join(note)}. {_of_shards(figures)}".strip(), html)


def _sizes(figures: Figures) -> str:
    sizes = figures.sizes
    if not sizes.count:
        return card("sizes", "Sample sizes", "", "<p>There are none in an index that can be read.</p>")
    ends = f"{show_size(sizes.smallest)} to {show_size(sizes.largest)}"
    label = f"Histogram of sample sizes: {ends}, median {show_size(sizes.median)}"
    note = f"Payload bytes of a sample, {ends}. {_of_shards(figures)}".strip()
    return card("sizes", "Sample sizes", note, charts.histogram(sizes, label))


def _images(shown: Sequence[Shown]) -> str:
    images = [one.images[0] for one in shown if one.images]
    if not images:
        return ""
    kinds, modes = Counter(image.kind for image in images), Counter(image.mode for image in images)
    said = "; ".join(
        ", ".join(f"{name} {count:,}" for name, count in counts.most_common(6)) for counts in (kinds, modes)
    )
    note = f"Width and height, in pixels, of {counted(len(images), 'image')} shown below. {said}."
    widths, heights = sorted(image.full[0] for image in images), sorted(image.full[1] for image in images)
    if len({image.full for image in images}) == 1:
        return card("images", "Image sizes", note, f"<p>All {widths[0]:,} by {heights[0]:,} pixels.</p>")
    label = f"Widths from {widths[0]:,} to {widths[-1]:,} pixels, heights from {heights[0]:,} to {heights[-1]:,}"
    return card("images", "Image sizes", note, charts.scatter([image.full for image in images], label))


def _shards(dataset: OpenedDataset, figures: Figures) -> str:
    sizes = [shard.size or 0 for shard in figures.shards]
    counts = [shard.samples or 0 for shard in figures.shards]
    options = dataset.file.made.get("options") if dataset.file else None
    bound = options.get("max_size") if isinstance(options, dict) else None
    note = f"{show_size(min(sizes))} to {show_size(max(sizes))}, {min(counts):,} to {max(counts):,} samples."
    drawn = charts.balance(sizes, show_size, f"Sizes of the shards: {note}", bound if type(bound) is int else None)
    html = f"<h3>Size</h3>{drawn}"
    html += f"<h3>Samples</h3>{charts.balance(counts, charts.whole, f'Samples of the shards: {note}')}"
    rows, half = [_shard_row(*one) for one in enumerate(figures.shards)], _MOST_SHARDS // 2
    said = "All shards"
    if len(rows) > _MOST_SHARDS:
        said = f"The first and last {half} of {len(rows):,} shards"
        rows = [*rows[:half], *rows[-half:]]
    html += folded(said, table(("#no.", "shard", "#size", "#samples"), rows))
    return card("shards", "Shards", note, html)


def _shard_row(number: int, shard: ShardFigure) -> str:
    size = "missing" if shard.size is None else f"{shard.size:,}"
    samples = "unknown" if shard.samples is None else f"{shard.samples:,}"
    return f"<tr>{number_cells(f'{number:,}')}{name_cell(shard.name)}{number_cells(size, samples)}</tr>"


def _made(dataset: OpenedDataset, figures: Figures) -> str:
    rows = [("state", state(dataset, figures)[1])]
    if dataset.file is None:
        rows.append(("made by", "not known: there is no dataset file (`shardtool index` makes one)"))
        return card("made", "How it was made", "", facts(rows))
    made, first = dataset.file.made, ("tool", "verb", "source")
    rows += [(name, _plain(made[name])) for name in first if name in made]
    options = made.get("options")
    if isinstance(options, dict):
        rows += [
            (name.replace("_", " "), _option(name, value)) for name, value in list(options.items())[:_MOST_COLUMNS]
        ]
    rows += [(name, _plain(value)) for name, value in made.items() if name not in (*first, "options", "appended")]
    rows += [("appended", command_line(run)) for run in appended_runs(made)[:_MOST_COLUMNS]]
    skipped = dataset.file.skipped
    rows.append(("left out", f"{skipped:,}" + (", listed in its .skipped file" if skipped else "")))
    rows.append(("payload", show_size(dataset.file.field_bytes)))
    rows.append(("fingerprint", dataset.file.fingerprint))
    return card("made", "How it was made", "", facts(rows, ("fingerprint",)))


def _option(name: str, value: object) -> str:
    return show_size(value) if name == "max_size" and type(value) is int else _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(one) for one in value)
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
