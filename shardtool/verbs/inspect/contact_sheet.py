"""The contact sheet: thumbnails of samples in one PNG, each with its key and its label below."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.values import counted
from shardtool.verbs.inspect.table import check_report, write_target
from shardtool.verbs.inspect.thumbnails import Budget, dataset_name, gather, label_text, shorten, show_samples

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont
    from collections.abc import Sequence

    from shardtool.dataset.find import StoredDataset
    from shardtool.verbs.inspect.thumbnails import ChosenSamples, ShownSample

_EDGE = 160
_MARGIN, _GAP, _PAD = 24, 14, 8
_LINE = 17
_SIZES = {"title": 22, "text": 13, "small": 12}
_COLOURS = {
    "paper": "#f7f7f5", "card": "#ffffff", "line": "#d5d8dc", "empty": "#eceef1", "ink": "#1c2026", "soft": "#565e6a",
    "bad": "#a8201a",
}  # fmt: skip
_MOST_SAMPLES = 2000
_MOST_COLUMNS = 50
_FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf")
_NO_GLYPH = "\U0010fffd"  # a private character: what a font draws for what it lacks


def write_contact_sheet(
    dataset: StoredDataset, path: str, *, samples: int = 100, columns: int = 10, seed: int = 0, overwrite: bool = False
) -> None:
    """Write a picture of a dataset's samples, in the order of the dataset.

    Args:
        dataset: What to show.
        path: The PNG.
        samples: How many samples are shown, 1 to 2,000; spread over labels, or over shards where there are none.
        columns: Thumbnails in a row, 1 to 50.
        seed: Decides which samples these are.
        overwrite: Replace a file that is there already.

    Raises:
        InvalidRequest: A number is out of range, or `path` is no name for a new local file.
        OutputExists: There is a file already.
        OutputFailed: The file cannot be written.
    """
    for name, value, most in (("samples", samples, _MOST_SAMPLES), ("columns", columns, _MOST_COLUMNS)):
        if not 1 <= value <= most:
            raise InvalidRequest(name, f"{value:,}", expected=f"1 to {most:,}")
    check_report(dataset, path, overwrite=overwrite, ending=".png")
    gathered = gather(dataset, samples, seed)
    shown = list(show_samples(gathered, Budget(_EDGE, None, 400, 1)))
    sheet = _Sheet(min(columns, max(len(shown), 3)), len(shown))
    sheet.title(dataset_name(dataset), _said(gathered))
    for number, one in enumerate(shown):
        sheet.tile(number, one, label_text(one))
    write_target(path, sheet.png())


def _said(gathered: ChosenSamples) -> str:
    said = f"{len(gathered.chosen):,} of {gathered.total} samples"
    if labels := [*gathered.summary.labels.items()]:
        said += f", {counted(labels[0][1].distinct, 'label')} in {shorten(labels[0][0], 40)}"
    return f"{said}, {counted(len(gathered.overview.dataset.shards), 'shard')}"


class _Sheet:
    """The picture being drawn."""

    def __init__(self, columns: int, tiles: int) -> None:
        from PIL import Image, ImageDraw

        self._columns = columns
        self._wide, self._tall = _EDGE + 2 * _PAD, _EDGE + 2 * _PAD + 2 * _LINE + 4
        rows = -(-tiles // columns)
        self._top = _MARGIN + 58
        width = 2 * _MARGIN + columns * (self._wide + _GAP) - _GAP
        height = self._top + rows * (self._tall + _GAP) - (_GAP if rows else 0) + _MARGIN
        self._image = Image.new("RGB", (width, height), _COLOURS["paper"])
        self._draw = ImageDraw.Draw(self._image)
        self._fonts = {name: _fonts(size) for name, size in _SIZES.items()}

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
        place = (left + _PAD, top + _PAD)
        self._draw.rectangle((*place, place[0] + _EDGE - 1, place[1] + _EDGE - 1), _COLOURS["empty"])
        if one.images:
            self._picture(one, place)
        else:
            self._words(one, place)
        below = place[1] + _EDGE + 5
        self._text((place[0], below), shorten(one.chosen.values["__key__"], 60), "text", "ink", _EDGE)
        second = one.problems[0] if one.problems else label
        self._text((place[0], below + _LINE), second, "small", "bad" if one.problems else "soft", _EDGE)

    def _picture(self, one: ShownSample, place: tuple[int, int]) -> None:
        from PIL import Image

        small = one.images[0]
        picture: Image.Image = Image.open(BytesIO(small.data), formats=("WEBP",))
        at = (place[0] + (_EDGE - small.size[0]) // 2, place[1] + (_EDGE - small.size[1]) // 2)
        self._image.paste(picture, at, picture if picture.mode == "RGBA" else None)

    def _words(self, one: ShownSample, place: tuple[int, int]) -> None:
        """Draw the start of a sample's text where it has no picture."""
        if one.problems:
            self._text((place[0] + 10, place[1] + _EDGE // 2 - 8), "cannot be shown", "text", "bad", _EDGE - 20)
            return
        if one.best is None:
            return
        words, line, down = one.best.text.split(), "", place[1] + 6
        for word in [*words, ""]:
            longer = f"{line} {word}".strip()
            if line and (not word or self._width(longer, "small") > _EDGE - 14):
                self._text((place[0] + 7, down), line, "small", "soft", _EDGE - 14)
                line, down = word, down + _LINE
                if down > place[1] + _EDGE - _LINE:
                    return
            else:
                line = longer

    def _width(self, text: str, kind: str) -> float:
        return float(self._draw.textlength(text, _font(self._fonts[kind], text)))

    def _text(self, place: tuple[int, int], text: str, kind: str, colour: str, most: int) -> None:
        """Draw a line of text, the middle left out where it is too long: names tell apart by their ends."""
        font = _font(self._fonts[kind], text)
        if self._draw.textlength(text, font) > most:
            low, high = 0, len(text)
            while low < high:
                middle = (low + high + 1) // 2
                fits = self._draw.textlength(_cut(text, middle), font) <= most
                low, high = (middle, high) if fits else (low, middle - 1)
            text = _cut(text, low)
        self._draw.text(place, text, _COLOURS[colour], font)

    def png(self) -> bytes:
        """Return the picture."""
        out = BytesIO()
        self._image.save(out, "PNG", optimize=False)
        return out.getvalue()


def _cut(text: str, kept: int) -> str:
    """Return `kept` letters of `text`, most of them from its start."""
    tail = kept * 2 // 5
    return f"{text[: kept - tail]}…{text[len(text) - tail :]}"


def _fonts(size: int) -> list[Font]:
    """Return Pillow's own font, and those of the system that know more letters."""
    from PIL import ImageFont

    found: list[Font] = [ImageFont.load_default(size)]
    for name in _FONTS:
        try:
            found.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    return found


def _font(fonts: Sequence[Font], text: str) -> Font:
    """Return the first font that has all letters of `text`; the last one where none has."""
    if text.isascii():
        return fonts[0]
    return next((font for font in fonts if all(_has(font, char) for char in set(text) if char != " ")), fonts[-1])


def _has(font: Font, char: str) -> bool:
    return bytes(font.getmask(char)) != bytes(font.getmask(_NO_GLYPH))
