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
from importlib import resources
from operator import attrgetter
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.request.run_record import command_line
from shardtool.storage.places import base_name
from shardtool.values import counted, show_size
from shardtool.verbs.inspect import charts
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

    from shardtool.dataset.find import StoredDataset
    from shardtool.verbs.inspect.inspect import Summary
    from shardtool.verbs.inspect.overview import Overview
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
        data=script_json([_sample(dataset, one) for one in shown]),
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
        by_size=charts.balance([size or 0 for *_, size, _ in shards], show_size, bound if type(bound) is int else None),
        by_count=charts.balance([samples or 0 for *_, samples in shards], charts.whole),
        shown=shown,
        filters=_filters(gathered, shown),
    )


def _problems(gathered: ChosenSamples, shown: Sequence[ShownSample]) -> list[tuple[str, str, int | None]]:
    """Return what reading the indexes and the samples met: where, what, and the number of the sample if it is shown."""
    found: list[tuple[str, str, int | None]] = []
    found += [(base_name(one.where), one.message, None) for one in gathered.summary.problems]
    for number, one in enumerate(shown):
        where = f"{shorten(one.key, 80)} in {gathered.overview.dataset.shards[one.chosen.shard].file_name}"
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
        counted=counted, short=shorten, whole=charts.whole, size=show_size, plain=_plain, asked=command_line
    )
    environment.filters.update(label_of=label_text, json=lambda value: json.dumps(value, ensure_ascii=False))
    environment.globals.update(spark=charts.spark, histogram=charts.histogram, scatter=charts.scatter)
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


def _sample(dataset: StoredDataset, one: ShownSample) -> dict[str, object]:
    values = one.chosen.values
    return {
        "key": one.key,
        "labels": one.labels,
        "shard": shorten(dataset.shards[one.chosen.shard].file_name, 200),
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


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(one) for one in value)
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
