"""Create the HTML of a dataset and a few samples for notebooks."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.payload import content_type, is_label_name, label_name
from shardtool.errors import ShardError
from shardtool.notebook import MAX_ROWS, html_table, short_html
from shardtool.read.metadata import metadata_schema
from shardtool.read.sample_reader import SampleReader
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.read.catalog import Catalog, Numbers

_MAX_SECONDS = 3.0
_MAX_SAMPLES = 6
_MAX_CLASSES = 5
_EDGE_PIXELS = 120
_MAX_IMAGE_BYTES = 2**24
_MAX_TEXT_BYTES = 2**16
_MAX_LABEL_BYTES = 64
_MAX_KEY_CHARS = 40
_SAMPLE_STYLE = f"width:{_EDGE_PIXELS}px; margin:4px 8px 4px 0; overflow-wrap:anywhere; font-size:small"


def dataset_html(title: str, reader: SampleReader, numbers: Numbers | None) -> str:
    """Return HTML for a dataset, or for the samples in `numbers`. Omit parts that are not ready after three seconds."""
    parts: list[str] = []
    samples: list[str] = []
    builder = Thread(target=_build, args=(reader, numbers, parts, samples), daemon=True)
    builder.start()
    builder.join(_MAX_SECONDS)
    late = "<p>Reading more takes longer than three seconds.</p>" if builder.is_alive() else ""
    row = f'<div style="display:flex; flex-wrap:wrap">{"".join([*samples])}</div>'
    return f"<div><b>{short_html(title, 500)}</b>{''.join([*parts])}{row}{late}</div>"


def _build(reader: SampleReader, numbers: Numbers | None, parts: list[str], samples: list[str]) -> None:
    try:
        catalog = reader.catalog
        reader = SampleReader(catalog, replace(reader.options, cache=None)) if reader.copies else reader
        parts.append(_fields_html(reader, is_view=numbers is not None))
        schema = metadata_schema(catalog)
        if schema.names:
            rows = [(short_html(column.name), short_html(str(column.type))) for column in [*schema][:MAX_ROWS]]
            parts.append(html_table(("column", "type"), rows))
        first = np.arange(min(_MAX_SAMPLES, len(catalog))) if numbers is None else numbers[:_MAX_SAMPLES]
        samples.extend(_sample_htmls(reader, first.tolist(), schema.names))
    except Exception as error:  # noqa: BLE001 - after any error, show the parts that are ready
        parts.append(f"<p>{short_html(f'{type(error).__name__}: {error}', 500)}</p>")


def _fields_html(reader: SampleReader, *, is_view: bool) -> str:
    catalog = reader.catalog
    counts: Mapping[str, int | None] = dict.fromkeys(catalog.fields) if is_view else catalog.fields
    if not counts and catalog.shards:
        counts = dict.fromkeys(reader.store.index(0).names)
    rows = []
    for name, count in [*counts.items()][:MAX_ROWS]:
        kind, classes = catalog.kinds.get(name, "bytes"), catalog.classes.get(name, [])
        content = catalog.types.get(name) or (content_type(name) if kind == "bytes" else kind)
        class_text = ", ".join([*classes[:_MAX_CLASSES], *(["..."] if len(classes) > _MAX_CLASSES else [])])
        class_text = f"{len(classes):,}: {class_text}" if classes else ""
        rows.append([short_html(text) for text in (name, "" if count is None else f"{count:,}", content, class_text)])
    more = f"and {pluralize(len(counts) - MAX_ROWS, 'field')} more" if len(counts) > MAX_ROWS else ""
    return html_table(("field", "samples", "content", "classes"), rows) + more


def _sample_htmls(reader: SampleReader, numbers: list[int], columns: list[str]) -> Iterator[str]:
    catalog = reader.catalog
    label_columns = [name for name in columns if is_label_name(name)][:1]
    for number in numbers:
        shards, shard_rows = catalog.locate(np.array([number]))
        shard, row = int(shards[0]), int(shard_rows[0])
        index = reader.store.index(shard)
        first, last = index.first_rows[row : row + 2].tolist()
        names = [index.names[code] for code in index.codes[first:last].tolist()]
        sizes = dict(zip(names, index.lengths[first:last].tolist(), strict=True))
        shown = _shown_fields(sizes, catalog)
        sample = reader.with_options(fields=frozenset(shown.values()), metadata=False).read_one(number)
        key = index.keys_of(np.array([row]))[0]
        if isinstance(sample, ShardError):
            yield _sample_html(short_html(f"cannot be read: {sample}"), key, "")
            continue
        label = _label_text(sample, shown, catalog)
        if not label and label_columns:
            label = str(reader.store.metadata(shard).column(label_columns[0])[row].as_py())
        yield _sample_html(_picture_html(sample, shown, sizes), key, label)


def _shown_fields(sizes: Mapping[str, int], catalog: Catalog) -> dict[str, str]:
    shown: dict[str, str] = {}
    for name, size in sizes.items():
        content = content_type(name)
        is_label = name in catalog.classes or is_label_name(name.rpartition(".")[2])
        if is_label and size <= _MAX_LABEL_BYTES:
            shown.setdefault("label", name)
        elif content == "image" and size <= _MAX_IMAGE_BYTES:
            shown.setdefault("image", name)
        elif content in ("text", "json") and size <= _MAX_TEXT_BYTES:
            shown.setdefault("text", name)
    return shown


def _label_text(sample: Mapping[str, object], shown: Mapping[str, str], catalog: Catalog) -> str:
    if (name := shown.get("label")) is None:
        return ""
    value, classes = sample.get(name), catalog.classes.get(name)
    data = value if isinstance(value, bytes) else str(value).encode()
    return label_name(data, "bytes", classes)[0]


def _picture_html(sample: Mapping[str, object], shown: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    if (name := shown.get("image")) and isinstance(image := sample.get(name), bytes):
        from shardtool.transform.image_decode import BadImage
        from shardtool.transform.thumbnail import make_thumbnail

        try:
            thumbnail = make_thumbnail(image, name, _EDGE_PIXELS)
        except BadImage as error:
            return short_html(f"{name}: {error.message}")
        style = "max-width:100%; image-rendering:pixelated" if thumbnail.colours else "max-width:100%"
        width, height = thumbnail.full_size
        title = short_html(f"{name}: {thumbnail.kind}, {width:,} by {height:,} pixels")
        return f'<img src="{thumbnail.url}" title="{title}" alt="{title}" style="{style}">'
    if (name := shown.get("text")) and isinstance(text := sample.get(name), bytes):
        return short_html(text.decode("utf-8", "replace"))
    return "<br>".join(short_html(f"{name} {format_size(size)}") for name, size in [*sizes.items()][:_MAX_SAMPLES])


def _sample_html(picture: str, key: str, label: str) -> str:
    name = f'<code title="{short_html(key)}">{short_html(key, _MAX_KEY_CHARS)}</code>'
    return f'<div style="{_SAMPLE_STYLE}"><div>{picture}</div>{name}<br>{short_html(label, _MAX_KEY_CHARS)}</div>'
