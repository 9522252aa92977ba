"""The contact sheet: thumbnails of samples in one PNG, each with its key and label below."""

from __future__ import annotations

from bisect import bisect
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

from shardtool.storage.target_file import write_target
from shardtool.units import pluralize
from shardtool.verbs.inspect.page.choose import ChosenSamples, choose_samples
from shardtool.verbs.inspect.page.masks import encode_image
from shardtool.verbs.inspect.page.samples import (
    SampleBudget,
    ShownSample,
    dataset_title,
    label_text,
    shorten_text,
    show_samples,
)
from shardtool.verbs.inspect.sample_files import check_report_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.ImageFont import FreeTypeFont, ImageFont

    from shardtool.dataset.stored import StoredDataset

    # The stratum, its random number, shard, place, and what it is.

    Font = FreeTypeFont | ImageFont


_EDGE_PIXELS = 160


_MARGIN, _GAP, _PADDING = 24, 14, 8


_LINE_PIXELS = 17


_FONT_SIZES = {"title": 22, "text": 13, "small": 12}


_COLOURS = {
    "paper": "#f7f7f5", "card": "#ffffff", "line": "#d5d8dc", "empty": "#eceef1", "ink": "#1c2026", "soft": "#565e6a",
    "bad": "#a8201a",
}  # fmt: skip


_MAX_SAMPLES, _TILES_PER_ROW = 100, 10


_FONT_FILES = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf")


_NO_GLYPH = "\U0010fffd"  # a private character: what a font draws for what it lacks


def write_contact_sheet(dataset: StoredDataset, path: str, *, seed: int = 0, overwrite: bool = False) -> None:
    """Write a picture of a dataset's samples, in the order of the dataset: a hundred, ten in a row.

    They are spread over labels, or over shards where there are none.

    Args:
        dataset: What to show.
        path: The PNG.
        seed: Decides which samples these are.
        overwrite: Replace a file that is there already.

    Raises:
        InvalidRequest: `path` is no name for a new file.
        OutputExists: There is a file already.
        OutputFailed: The file cannot be written.
    """
    check_report_path(dataset, path, overwrite=overwrite, ending=".png")
    gathered = choose_samples(dataset, _MAX_SAMPLES, seed)
    shown = list(show_samples(gathered, SampleBudget(_EDGE_PIXELS, None, 400, 1)))
    sheet = _ContactSheet(min(_TILES_PER_ROW, max(len(shown), 3)), len(shown))
    sheet.title(dataset_title(dataset), _subtitle(gathered))
    for number, one in enumerate(shown):
        sheet.tile(number, one, label_text(one))
    write_target(path, sheet.png())


def _subtitle(gathered: ChosenSamples) -> str:
    said = f"{len(gathered.chosen):,} of {gathered.total} samples"
    if labels := [*gathered.summary.labels.items()]:
        said += f", {pluralize(labels[0][1].distinct, 'label')} in {shorten_text(labels[0][0], 40)}"
    return f"{said}, {pluralize(len(gathered.overview.dataset.shards), 'shard')}"


class _ContactSheet:
    """The picture being drawn."""

    def __init__(self, columns: int, tiles: int) -> None:
        from PIL import Image, ImageDraw

        self._columns = columns
        self._wide, self._tall = _EDGE_PIXELS + 2 * _PADDING, _EDGE_PIXELS + 2 * _PADDING + 2 * _LINE_PIXELS + 4
        rows = -(-tiles // columns)
        self._top = _MARGIN + 58
        width = 2 * _MARGIN + columns * (self._wide + _GAP) - _GAP
        height = self._top + rows * (self._tall + _GAP) - (_GAP if rows else 0) + _MARGIN
        self._image = Image.new("RGB", (width, height), _COLOURS["paper"])
        self._draw = ImageDraw.Draw(self._image)
        self._fonts = {name: _load_fonts(size) for name, size in _FONT_SIZES.items()}

    def title(self, name: str, said: str) -> None:
        """Draw what stands above the tiles."""
        width = self._image.width - 2 * _MARGIN
        self._text((_MARGIN, _MARGIN - 4), name, "title", "ink", width)
        self._text((_MARGIN, _MARGIN + 27), said, "text", "soft", width)

    def tile(self, number: int, one: ShownSample, label: str) -> None:
        """Draw a sample."""
        left = _MARGIN + number % self._columns * (self._wide + _GAP)
        top = self._top + number // self._columns * (self._tall + _GAP)
        edge = _COLOURS["bad" if one.problems else "line"]
        self._draw.rectangle(
            (left, top, left + self._wide - 1, top + self._tall - 1), _COLOURS["card"], edge, 2 if one.problems else 1
        )
        place = (left + _PADDING, top + _PADDING)
        self._draw.rectangle((*place, place[0] + _EDGE_PIXELS - 1, place[1] + _EDGE_PIXELS - 1), _COLOURS["empty"])
        if one.images:
            self._picture(one, place)
        else:
            self._words(one, place)
        below = place[1] + _EDGE_PIXELS + 5
        self._text((place[0], below), shorten_text(one.chosen.key, 60), "text", "ink", _EDGE_PIXELS)
        second = one.problems[0] if one.problems else label
        self._text((place[0], below + _LINE_PIXELS), second, "small", "bad" if one.problems else "soft", _EDGE_PIXELS)

    def _picture(self, one: ShownSample, place: tuple[int, int]) -> None:
        from PIL import Image

        small = one.images[0]
        picture: Image.Image = Image.open(BytesIO(small.data), formats=("WEBP",))
        at = (place[0] + (_EDGE_PIXELS - small.size[0]) // 2, place[1] + (_EDGE_PIXELS - small.size[1]) // 2)
        self._image.paste(picture, at, picture if picture.mode == "RGBA" else None)

    def _words(self, one: ShownSample, place: tuple[int, int]) -> None:
        """Draw the start of a sample's text where it has no picture."""
        if one.problems:
            self._text(
                (place[0] + 10, place[1] + _EDGE_PIXELS // 2 - 8), "cannot be shown", "text", "bad", _EDGE_PIXELS - 20
            )
            return
        if one.best is None:
            return
        words, line, down = one.best.text.split(), "", place[1] + 6
        for word in [*words, ""]:
            longer = f"{line} {word}".strip()
            if line and (
                not word or self._draw.textlength(longer, _font_for(self._fonts["small"], longer)) > _EDGE_PIXELS - 14
            ):
                self._text((place[0] + 7, down), line, "small", "soft", _EDGE_PIXELS - 14)
                line, down = word, down + _LINE_PIXELS
                if down > place[1] + _EDGE_PIXELS - _LINE_PIXELS:
                    return
            else:
                line = longer

    def _text(self, place: tuple[int, int], text: str, kind: str, colour: str, most: int) -> None:
        """Draw a line of text, the middle left out where it is too long: names tell apart by their ends."""
        font = _font_for(self._fonts[kind], text)
        if self._draw.textlength(text, font) > most:
            places = range(1, len(text) + 1)
            fits = bisect(places, float(most), key=lambda kept: self._draw.textlength(_elide(text, kept), font))
            text = _elide(text, fits)
        self._draw.text(place, text, _COLOURS[colour], font)

    def png(self) -> bytes:
        """Return the picture."""
        return encode_image(self._image, "PNG", optimize=False)


def _elide(text: str, kept: int) -> str:
    """Return `kept` letters of `text`, most of them from its start."""
    tail = kept * 2 // 5
    return f"{text[: kept - tail]}…{text[len(text) - tail :]}"


def _load_fonts(size: int) -> list[Font]:
    """Return Pillow's own font, and those of the system that know more letters."""
    from PIL import ImageFont

    found: list[Font] = [ImageFont.load_default(size)]
    for name in _FONT_FILES:
        with suppress(OSError):
            found.append(ImageFont.truetype(name, size))
    return found


def _font_for(fonts: Sequence[Font], text: str) -> Font:
    """Return the first font that has all letters of `text`; the last one where none has."""
    if text.isascii():
        return fonts[0]
    return next((font for font in fonts if all(_has_glyph(font, char) for char in set(text) if char != " ")), fonts[-1])


def _has_glyph(font: Font, char: str) -> bool:
    return bytes(font.getmask(char)) != bytes(font.getmask(_NO_GLYPH))
