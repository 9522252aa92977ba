"""The page: one HTML file that shows a dataset, and needs nothing but itself.

Everything that comes out of the dataset is taken for hostile: it goes in escaped, with what could steer a terminal or
turn the direction of text made visible, and the page's own policy lets nothing run or load but its one script and one
style sheet, by their hashes. It can be read without JavaScript; with it, samples can be searched and opened.
The same dataset gives the same bytes: no clock, no absolute path.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.inspection.page.cards import cards, headline
from shardtool.inspection.page.choose_samples import gather
from shardtool.inspection.page.naming import dataset_name, label_of
from shardtool.inspection.page.output_file import check_target, write_target
from shardtool.inspection.page.problems import problem_card, problems_of
from shardtool.inspection.page.thumbnails import Budget, shorten, show_samples
from shardtool.values import counted, show_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.opened import OpenedDataset
    from shardtool.inspection.page.choose_samples import FindingLike, Gathered
    from shardtool.inspection.page.figures import Figures
    from shardtool.inspection.page.thumbnails import Shown, Text, Thumbnail

MOST_SAMPLES = 2000
_IMAGE_BYTES = 3_000_000  # of all thumbnails: a third more in base64, and the page stays below 5 MB
_TEXT_BYTES = 600_000
_EDGES = (384, 96)  # pixels of a thumbnail, at most and at least
_EDGE_BYTES = 8.0  # pixels a byte, about, of a photograph as WebP
_SNIPPET = 260  # characters of a tile without a picture
_META = 40  # metadata columns of a sample


def write_page(  # noqa: PLR0913 - each is an option of the command
    dataset: OpenedDataset,
    path: str,
    *,
    samples: int = 200,
    seed: int = 0,
    findings: Sequence[FindingLike] = (),
    overwrite: bool = False,
) -> None:
    """Write a page that shows a dataset.

    Args:
        dataset: What to show. It may be damaged: the page says so.
        path: Of the HTML file.
        samples: How many samples are shown, at most 2,000; spread over labels, or over shards where there are none.
        seed: Of their choice.
        findings: What is known to be wrong; the samples that they name are shown first of all, and marked.
        overwrite: Replace a file that is there already.

    Raises:
        InvalidRequest: `samples` is out of range, or `path` is no name for a new local file.
        OutputExists: There is a file already.
        OutputFailed: The file cannot be written.
    """
    if not 0 <= samples <= MOST_SAMPLES:
        raise InvalidRequest("samples", f"{samples:,}", expected=f"0 to {MOST_SAMPLES:,}")
    check_target(dataset, path, overwrite=overwrite)
    gathered = gather(dataset, samples, seed, findings)
    shown = list(show_samples(dataset, gathered.chosen, _budget(len(gathered.chosen))))
    write_target(path, _page(dataset, gathered, shown, findings).encode())


def _budget(samples: int) -> Budget:
    image = _IMAGE_BYTES // max(samples, 1)
    edge = int(min(max((image * _EDGE_BYTES) ** 0.5, _EDGES[1]), _EDGES[0]))
    return Budget(edge, image, min(max(_TEXT_BYTES // max(samples, 1), 240), 6000))


def _page(dataset: OpenedDataset, gathered: Gathered, shown: Sequence[Shown], findings: Sequence[FindingLike]) -> str:
    files = resources.files("shardtool.inspection.page")
    style, script = ((files / name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = [
        "default-src 'none'", "img-src data:", f"style-src '{_hash(style)}'", f"script-src '{_hash(script)}'",
        "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    problems = problems_of(gathered.figures, shown, findings)
    body = [
        headline(dataset, gathered.figures, len(shown), len(problems)),
        '<main class="wrap">',
        problem_card(problems, verified=bool(findings)),
        cards(dataset, gathered.figures, shown),
        _samples(gathered.figures, shown),
        "</main>",
    ]
    return Template((files / "page.html").read_text("utf-8")).substitute(
        policy=escape("; ".join(policy)),
        title=escape(f"{dataset_name(dataset)}: what is in it"),
        style=style,
        script=script,
        body="\n".join(part for part in body if part),
        data=script_json([_sample(dataset, one) for one in shown]),
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _samples(figures: Figures, shown: Sequence[Shown]) -> str:
    if not shown:
        said = (
            "There are none in the shards that can be read." if not figures.counted_samples else "None were asked for."
        )
        return f'<section id="samples"><h2>Samples</h2><p class="note">{said}</p></section>'
    tiles = "\n".join(_tile(number, one, figures) for number, one in enumerate(shown))
    return (
        f'<section id="samples"><h2>Samples</h2><p class="note">{_choice(figures, len(shown))}</p>'
        f'{_tools(figures, shown)}<ul class="sheet">\n{tiles}\n</ul><p class="none" id="none" hidden>No sample fits. '
        "Search for less, or choose all labels.</p></section>"
    )


def _choice(figures: Figures, shown: int) -> str:
    of = f"{'' if figures.samples_known else 'at least '}{figures.samples:,}"
    if shown == figures.samples:
        return f"All {of}, in the order of the dataset." if shown > 1 else "The only one."
    by_label = figures.labels and figures.labels[0].is_label
    spread = (
        f"spread over the labels of {escape(shorten(figures.labels[0].name, 60))}"
        if by_label
        else "spread over the shards"
    )
    if figures.counted < len(figures.shards):
        spread += f" of {figures.counted:,} of its {len(figures.shards):,} shards"
    return f"{shown:,} of {of}, drawn at random and {spread}; in the order of the dataset."


def _tools(figures: Figures, shown: Sequence[Shown]) -> str:
    """Return the line that filters; it stays hidden without JavaScript."""
    parts = ['<label>Search <input type="search" id="search" placeholder="part of a key" autocomplete="off"></label>']
    groups = []
    sets = [*figures.labels, *([figures.splits] if figures.splits else [])]
    for labels in sets:
        seen = sorted({one.chosen.labels[labels.name] for one in shown if labels.name in one.chosen.labels})
        options = "".join(_option(labels.name, value) for value in seen)
        groups.append(f'<optgroup label="{escape(labels.name)}">{options}</optgroup>' if len(sets) > 1 else options)
    if any(groups):
        every = f'<option value="">all ({counted(len(shown), "sample")})</option>'
        parts.append(f'<label>Label <select id="label">{every}{"".join(groups)}</select></label>')
    wrong = sum(bool(one.problems) for one in shown)
    if wrong:
        parts.append(f'<label><input type="checkbox" id="wrong"> only problems ({wrong:,})</label>')
    parts += [
        '<span class="keys"><kbd>/</kbd> search, <kbd>arrows</kbd> move, <kbd>Enter</kbd> opens</span>',
        '<output id="count" aria-live="polite"></output>',
    ]
    return f'<div class="tools" id="tools" role="search" hidden>{"".join(parts)}</div>'


def _option(name: str, value: str) -> str:
    chosen = json.dumps([name, value], ensure_ascii=False)
    return f'<option value="{escape(chosen)}">{escape(shorten(value, 60))}</option>'


def _tile(number: int, one: Shown, figures: Figures) -> str:
    values = one.chosen.values
    lines = [f'<span class="key" title="{escape(one.key)}"><bdi>{escape(shorten(values["__key__"], 52))}</bdi></span>']
    label = label_of(figures, one)
    if label:
        lines.append(f'<span class="label" title="{escape(label)}"><bdi>{escape(shorten(label, 60))}</bdi></span>')
    place = f"{figures.shards[one.chosen.shard].name} at {values['__offset__']:,}"
    lines.append(
        f'<span class="place" title="{escape(shorten(place, 200))}">{escape(shorten(_place(one, figures), 60))}</span>'
    )
    if one.problems:
        lines.append(f'<span class="flag">{escape(shorten(one.problems[0], 160))}</span>')
    wrong = ' class="wrong"' if one.problems else ""
    return (
        f'<li id="s{number}"{wrong}><button type="button" class="tile"><span class="pic">{_picture(one)}</span>'
        f'<span class="about">{"".join(lines)}</span></button></li>'
    )


def _place(one: Shown, figures: Figures) -> str:
    name = figures.shards[one.chosen.shard].name
    return f"{name.partition('.')[0] or name} @ {one.chosen.values['__offset__']:,}"


def _picture(one: Shown) -> str:
    if one.images:
        image = one.images[0]
        size = f"{image.full[0]:,} by {image.full[1]:,} pixels"
        width, height = image.size
        return f'<img src="{_data_url(image)}" width="{width}" height="{height}" alt="{image.kind} image, {size}">'
    if one.problems:
        return '<span class="broken"><b aria-hidden="true">!</b>cannot be shown</span>'
    # a label is shown as one: what the sample is about stands in its longest text
    if texts := [text for text in one.texts if text.kind != "bytes" and len(text.text) > 1]:
        best = max(texts, key=lambda text: (text.kind == "text", len(text.text)))
        kind = "words" if best.kind == "text" else "words code"
        return f'<span class="{kind}">{escape(best.text[:_SNIPPET])}</span>'
    if one.texts:
        return f'<span class="words code">{escape(one.texts[0].text)}</span>'
    return f'<span class="words">{escape("; ".join(one.notes) or counted(len(one.fields), "field"))}</span>'


def _data_url(image: Thumbnail) -> str:
    return "data:image/webp;base64," + base64.b64encode(image.data).decode()


def script_json(value: object) -> str:
    """Return JSON that may stand in a script element: nothing in it can end that."""
    document = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        document = document.replace(char, f"\\u{ord(char):04x}")
    return document


def _sample(dataset: OpenedDataset, one: Shown) -> dict[str, Any]:
    values = one.chosen.values
    return {
        "key": one.key,
        "labels": one.chosen.labels,
        "shard": shorten(dataset.shards[one.chosen.shard].name, 200),
        "offset": values["__offset__"],
        "size": values["__size__"],
        "fields": [list(field) for field in one.fields[:_META]],
        "images": [_image(image, with_data=at > 0) for at, image in enumerate(one.images)],
        "texts": [_text(text) for text in one.texts],
        "meta": _meta(values, one.chosen.labels),
        "problems": one.problems,
        "notes": one.notes,
    }


def _image(image: Thumbnail, *, with_data: bool) -> dict[str, Any]:
    """Return what the script needs; the first picture stands in the tile already."""
    shown = {
        "field": shorten(image.field, 200), "full": image.full, "size": image.size, "mode": image.mode,
        "kind": image.kind,
    }  # fmt: skip
    return {**shown, "src": _data_url(image)} if with_data else shown


def _text(text: Text) -> dict[str, Any]:
    return {"field": text.field, "kind": text.kind, "text": text.text, "cut": text.is_cut}


def _meta(values: dict[str, Any], labels: dict[str, str]) -> list[tuple[str, str]]:
    rows = [
        (shorten(name, 100), shorten(_value(value), 300))
        for name, value in values.items()
        if not name.startswith("__") and name not in labels and value is not None
    ]
    return rows[:_META]


def _value(value: object) -> str:
    if isinstance(value, bytes):
        return f"{show_size(len(value))} of bytes"
    return value if isinstance(value, str) else str(value)
