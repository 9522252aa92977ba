"""Draw a contact sheet: a PNG with thumbnails, keys and labels of samples."""

from __future__ import annotations

from bisect import bisect
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

from shardtool.storage.target_file import write_target
from shardtool.transform.thumbnail import encode_image
from shardtool.units import pluralize
from shardtool.verbs.inspect.page.choose import ChosenSamples, choose_samples
from shardtool.verbs.inspect.page.samples import SampleBudget, ShownSample, dataset_title, shorten_text, show_samples
from shardtool.verbs.inspect.samples import check_report_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.ImageFont import FreeTypeFont, ImageFont

    from shardtool.dataset.stored import StoredDataset

    Font = FreeTypeFont | ImageFont


_EDGE_PIXELS, _LINE_PIXELS = 160, 17
_MARGIN, _GAP, _PADDING = 24, 14, 8
_FONT_SIZES = {"title": 22, "text": 13, "small": 12}
_COLOURS = {
    "paper": "#f7f7f5", "card": "#ffffff", "line": "#d5d8dc", "empty": "#eceef1", "ink": "#1c2026", "soft": "#565e6a",
    "bad": "#a8201a",
}  # fmt: skip

_MAX_SAMPLES, _TILES_PER_ROW = 100, 10
_FONT_FILES = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf")
_NO_GLYPH = "\U0010fffd"


def write_contact_sheet(dataset: StoredDataset, path: str, *, seed: int = 0, overwrite: bool = False) -> None:
    """Write a PNG with up to 100 samples, as `choose_samples` chooses them."""
    check_report_path(dataset, path, overwrite=overwrite, ending=".png")
    chosen = choose_samples(dataset, _MAX_SAMPLES, seed)
    samples = list(show_samples(chosen, SampleBudget(_EDGE_PIXELS, None, 400, 1)))
    sheet = _ContactSheet(min(_TILES_PER_ROW, max(len(samples), 3)), len(samples))
    sheet.draw_title(dataset_title(dataset), _subtitle(chosen))
    for number, sample in enumerate(samples):
        sheet.draw_tile(number, sample, sample.label)
    write_target(path, sheet.png())


def _subtitle(chosen: ChosenSamples) -> str:
    text = f"{len(chosen.chosen):,} of {chosen.total} samples"
    if labels := [(name, label) for name, label in chosen.summary.labels.items() if chosen.overview.is_label(name)]:
        text += f", {pluralize(labels[0][1].distinct, 'label')} in {shorten_text(labels[0][0], 40)}"
    return f"{text}, {pluralize(len(chosen.overview.dataset.shards), 'shard')}"


class _ContactSheet:
    def __init__(self, columns: int, tiles: int) -> None:
        from PIL import Image, ImageDraw

        self._columns = columns
        self._tile_width = _EDGE_PIXELS + 2 * _PADDING
        self._tile_height = self._tile_width + 2 * _LINE_PIXELS + 4
        rows = -(-tiles // columns)
        self._top = _MARGIN + 58
        width = 2 * _MARGIN + columns * (self._tile_width + _GAP) - _GAP
        height = self._top + rows * (self._tile_height + _GAP) - (_GAP if rows else 0) + _MARGIN
        self._image = Image.new("RGB", (width, height), _COLOURS["paper"])
        self._draw = ImageDraw.Draw(self._image)
        self._fonts = {name: _load_fonts(size) for name, size in _FONT_SIZES.items()}

    def draw_title(self, name: str, subtitle: str) -> None:
        width = self._image.width - 2 * _MARGIN
        self._draw_line((_MARGIN, _MARGIN - 4), name, "title", "ink", width)
        self._draw_line((_MARGIN, _MARGIN + 27), subtitle, "text", "soft", width)

    def draw_tile(self, number: int, sample: ShownSample, label: str) -> None:
        left = _MARGIN + number % self._columns * (self._tile_width + _GAP)
        top = self._top + number // self._columns * (self._tile_height + _GAP)
        box = (left, top, left + self._tile_width - 1, top + self._tile_height - 1)
        colour, width = ("bad", 2) if sample.problems else ("line", 1)
        self._draw.rectangle(box, _COLOURS["card"], _COLOURS[colour], width)
        corner = (left + _PADDING, top + _PADDING)
        self._draw.rectangle((*corner, corner[0] + _EDGE_PIXELS - 1, corner[1] + _EDGE_PIXELS - 1), _COLOURS["empty"])
        if sample.images:
            self._draw_image(sample, corner)
        else:
            self._draw_excerpt(sample, corner)
        text_top = corner[1] + _EDGE_PIXELS + 5
        self._draw_line((corner[0], text_top), shorten_text(sample.chosen.key, 60), "text", "ink", _EDGE_PIXELS)
        text, colour = (sample.problems[0], "bad") if sample.problems else (label, "soft")
        self._draw_line((corner[0], text_top + _LINE_PIXELS), text, "small", colour, _EDGE_PIXELS)

    def _draw_image(self, sample: ShownSample, corner: tuple[int, int]) -> None:
        from PIL import Image

        thumbnail = sample.images[0]
        image: Image.Image = Image.open(BytesIO(thumbnail.data), formats=("WEBP",))
        left, top = (start + (_EDGE_PIXELS - size) // 2 for start, size in zip(corner, thumbnail.size, strict=True))
        self._image.paste(image, (left, top), image if image.mode == "RGBA" else None)

    def _draw_excerpt(self, sample: ShownSample, corner: tuple[int, int]) -> None:
        if sample.problems:
            middle = (corner[0] + 10, corner[1] + _EDGE_PIXELS // 2 - 8)
            self._draw_line(middle, "cannot be shown", "text", "bad", _EDGE_PIXELS - 20)
            return
        if sample.caption is None:
            return
        words, line, top = sample.caption.text.split(), "", corner[1] + 6
        for word in [*words, ""]:
            longer = f"{line} {word}".strip()
            if line and (
                not word or self._draw.textlength(longer, _font_for(self._fonts["small"], longer)) > _EDGE_PIXELS - 14
            ):
                self._draw_line((corner[0] + 7, top), line, "small", "soft", _EDGE_PIXELS - 14)
                line, top = word, top + _LINE_PIXELS
                if top > corner[1] + _EDGE_PIXELS - _LINE_PIXELS:
                    return
            else:
                line = longer

    def _draw_line(self, corner: tuple[int, int], text: str, kind: str, colour: str, max_width: int) -> None:
        font = _font_for(self._fonts[kind], text)
        if self._draw.textlength(text, font) > max_width:
            lengths = range(1, len(text) + 1)

            def width_of(length: int) -> float:
                return self._draw.textlength(_elide(text, length), font)

            text = _elide(text, bisect(lengths, float(max_width), key=width_of))
        self._draw.text(corner, text, _COLOURS[colour], font)

    def png(self) -> bytes:
        return encode_image(self._image, "PNG", optimize=False)


def _elide(text: str, length: int) -> str:
    tail = length * 2 // 5
    return f"{text[: length - tail]}…{text[len(text) - tail :]}"


def _load_fonts(size: int) -> list[Font]:
    from PIL import ImageFont

    fonts: list[Font] = [ImageFont.load_default(size)]
    for name in _FONT_FILES:
        with suppress(OSError):
            fonts.append(ImageFont.truetype(name, size))
    return fonts


def _font_for(fonts: Sequence[Font], text: str) -> Font:
    if text.isascii():
        return fonts[0]
    return next((font for font in fonts if all(_has_glyph(font, char) for char in set(text) if char != " ")), fonts[-1])


def _has_glyph(font: Font, char: str) -> bool:
    return bytes(font.getmask(char)) != bytes(font.getmask(_NO_GLYPH))
