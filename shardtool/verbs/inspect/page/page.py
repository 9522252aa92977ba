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
from importlib import resources
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.values import counted, show_size
from shardtool.verbs.inspect.page import cards
from shardtool.verbs.inspect.page.charts import whole
from shardtool.verbs.inspect.page.thumbnails import (
    SPLIT,
    Budget,
    dataset_name,
    gather,
    label_text,
    shorten,
    show_samples,
)
from shardtool.verbs.inspect.table import check_report, write_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment

    from shardtool.dataset.opened import OpenedDataset
    from shardtool.verbs.inspect.page.thumbnails import ChosenSamples, ShownSample, Thumbnail

MOST_SAMPLES = 2000
_IMAGE_BYTES = 3_000_000  # of all thumbnails: a third more in base64, and the page stays below 5 MB
_TEXT_BYTES = 600_000
_EDGES = (384, 96)  # pixels of a thumbnail, at most and at least
_EDGE_BYTES = 8.0  # pixels a byte, about, of a photograph as WebP
_META = 40  # metadata columns of a sample
_TEMPLATES = "shardtool.verbs.inspect.page"


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
    dataset, problems = gathered.overview.dataset, cards.problems_of(gathered, shown)
    fields, scale = cards.fields(gathered)
    template = _environment().get_template("page.html")
    return template.render(
        policy=f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=script_json([_sample(dataset, one) for one in shown]),
        title=dataset_name(dataset),
        summary=gathered.summary,
        state=cards.state(gathered.summary),
        subtitle=cards.subtitle(gathered),
        numbers=cards.numbers(gathered),
        links=cards.links(gathered, len(shown), len(problems)),
        problems=problems,
        read_of=cards.read_of(gathered.overview),
        read_samples=gathered.overview.samples,
        fields=fields,
        scale=scale,
        labels=cards.labels(gathered),
        sizes=cards.sizes(gathered.overview),
        images=cards.images(shown),
        shards=cards.shards(gathered),
        made=cards.made(gathered),
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
    environment.filters.update(counted=counted, short=shorten, whole=whole, percent=cards.percent, size=show_size)
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
