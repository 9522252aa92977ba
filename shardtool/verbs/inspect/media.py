"""What a page shows of images, audio and video: thumbnails, masks in colours, and what a browser plays.

Whatever the bytes are, this is bounded: an image by its pixels before they are decoded, a thumbnail by its bytes, and
what plays by what a page may hold of it.
"""

from __future__ import annotations

import base64
import re
import warnings
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from shardtool.dataset.payload import content_of
from shardtool.transform.image import BadImage, ImageOptions, blamed, change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image as Picture


KINDS = (
    (b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF8", "GIF"), (b"RIFF", "WebP"),
    (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"BM", "BMP"), (b"P", "PNM"),
)  # fmt: skip
SNIFFED = 5  # of KINDS are known by their content alone, whatever the field is called
_OF_FRAMES = ("animated-image", "image-depth")  # sound, but `change` refuses them: a first frame is shown
SHOULD_SHOW = frozenset((*_OF_FRAMES, "image-too-large"))
_MOST_PIXELS = 100_000_000
_QUALITY = 75
_EDGE_LEAST = 40
_TRIES = 6


class Thumbnail(NamedTuple):
    """An image made small.

    Attributes:
        data: WebP.
        size: Width and height of `data`.
        full: Width and height of the image.
        mode: Pillow's name of what a pixel of the image is.
        kind: The image's format.
        field: Where it comes from.
        colours: Of a mask, the values of its pixels and how they are coloured, as `#rrggbb`; else empty.
    """

    data: bytes
    size: tuple[int, int]
    full: tuple[int, int]
    mode: str
    kind: str
    field: str
    colours: tuple[tuple[int, str], ...] = ()

    @property
    def url(self) -> str:
        """The picture as a URL that holds it."""
        return "data:image/webp;base64," + base64.b64encode(self.data).decode()


def thumbnail(data: bytes, name: str, edge: int, most: int | None = None, *, beside: bool = False) -> Thumbnail:
    """Return an image made small, upright; a mask in colours.

    Args:
        data: The image.
        name: The field's name.
        edge: Pixels that no side of it exceeds.
        most: Bytes that it may take, as far as a thumbnail of a few pixels allows; None for any.
        beside: Whether the sample has a photograph, too: then an image of few values is a mask of it.

    Raises:
        BadImage: It is damaged, or is none.
    """
    _, fact = change(data, name, ImageOptions(probe=True, max_pixels=_MOST_PIXELS))
    kind = next((kind for magic, kind in KINDS if data.startswith(magic)), "image")
    may_be_mask = kind in _OF_MASKS and fact.mode in _MASK_MODES
    for _ in range(_TRIES):
        mask = _mask(data, name, edge, beside=beside) if may_be_mask else None
        may_be_mask = mask is not None
        small, size, colours = mask or (*_small(data, name, edge), ())
        if most is None or len(small) <= most or edge <= _EDGE_LEAST:
            break
        edge = max(_EDGE_LEAST, int(edge * min(0.85, (most / len(small)) ** 0.5)))
    return Thumbnail(small, size, (fact.width, fact.height), fact.mode, kind, name, colours)


def _small(data: bytes, name: str, edge: int) -> tuple[bytes, tuple[int, int]]:
    smaller = ImageOptions(resize=(edge, edge), resize_mode="longer", only_larger=True, max_pixels=_MOST_PIXELS)
    options = replace(smaller, encode="webp", quality=_QUALITY, fields=(name,))
    try:
        small, fact = change(data, name, options)
    except BadImage as error:
        if error.code not in _OF_FRAMES:
            raise
        return _first_frame(data, edge)
    return bytes(small), (fact.width, fact.height)


def _first_frame(data: bytes, edge: int) -> tuple[bytes, tuple[int, int]]:
    """Return the first picture of an animation or of a deep image, as well as eight bits can show it.

    Raises:
        BadImage: It is damaged.
    """
    from PIL import Image

    with warnings.catch_warnings(), blamed(data):
        warnings.simplefilter("ignore")
        image: Image.Image = Image.open(BytesIO(data), formats=("PNG", "WEBP", "GIF", "TIFF", "PPM"))
        image.load()
        if image.mode[0] in ("F", "I"):  # Pillow's own conversion clips them
            image = image.convert("F")
            low, high = cast("tuple[float, float]", image.getextrema())
            scale = 255 / ((high - low) or 1)
            image = image.point(lambda value: cast("float", value) * scale - low * scale).convert("L")
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        image.thumbnail((edge, edge))
        out = BytesIO()
        image.save(out, "WEBP", quality=_QUALITY)
        return out.getvalue(), image.size


# Masks: images whose pixels are the numbers of classes. As grey they are all but black.


_OF_MASKS = ("PNG", "TIFF", "BMP", "PNM", "GIF")  # lossless
_OF_MASKS_IN_PILLOW = ("PNG", "TIFF", "BMP", "PPM", "GIF")
_MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
_MOST_CLASSES = 64  # in one mask: a photograph has more values
_SMALL = 64  # a picture in which all grey is darker is none
_VOID, _VOID_COLOUR = 255, (190, 190, 190)  # by convention what belongs to no class
_GREY = 40  # between the channels of a colour
_CALLED_MASK = re.compile(
    r"mask|seg|annot|label|trimap|panoptic|instance|parsing|(^|[._/-])gt([._/-]|$)", re.IGNORECASE
)
_COLOURS = (
    (230, 25, 75), (60, 180, 75), (67, 99, 216), (255, 225, 25), (245, 130, 49), (145, 30, 180), (66, 212, 244),
    (240, 50, 230), (191, 239, 69), (250, 190, 212), (70, 153, 144), (220, 190, 255), (154, 99, 36), (255, 250, 200),
    (128, 0, 0), (170, 255, 195), (128, 128, 0), (255, 216, 177), (0, 0, 160),
)  # fmt: skip


def is_called_mask(field: str) -> bool:
    """Tell whether a field is called as masks are: `mask.png`, `seg.png`, `labelIds.png`."""
    return bool(_CALLED_MASK.search(field.rpartition(".")[0] or field))


def _mask(
    data: bytes, name: str, edge: int, *, beside: bool
) -> tuple[bytes, tuple[int, int], tuple[tuple[int, str], ...]] | None:
    """Return a mask in colours, 0 transparent, its size, and the colours of its values; None where it is none."""
    from PIL import Image

    options = ImageOptions((edge, edge), "longer", only_larger=True, masks=(name,), max_pixels=_MOST_PIXELS)
    try:
        small, _ = change(data, name, options)
        with blamed(data):
            image = Image.open(BytesIO(small), formats=_OF_MASKS_IN_PILLOW)
            image.load()
    except BadImage:
        return None
    values, places = np.unique(np.asarray(image), return_inverse=True)
    colours = _colours_of(image, [int(value) for value in values[: _MOST_CLASSES + 1]])
    if not colours or not (beside or is_called_mask(name) or _is_dark(image.mode, [*colours])):
        return None
    table = np.array([(*colour, 255 if value else 0) for value, colour in colours.items()], np.uint8)
    out = BytesIO()
    Image.fromarray(table[places.reshape(image.height, image.width)]).save(out, "WEBP", lossless=True)
    named = tuple((value, "#{:02x}{:02x}{:02x}".format(*colour)) for value, colour in colours.items())
    return out.getvalue(), image.size, named


def _is_dark(mode: str, values: Sequence[int]) -> bool:
    """Tell whether nothing would be seen of grey values."""
    classes = [value for value in values if value not in (0, _VOID)]
    return mode not in ("1", "P") and bool(classes) and max(classes) < _SMALL


def _colours_of(image: Picture, values: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Return the colours of a mask's values: those of its palette, if that has any; none of too many values."""
    if len(values) > _MOST_CLASSES:
        return {}
    palette = (image.getpalette() or []) if image.mode == "P" else []
    own = {value: cast("tuple[int, int, int]", (*palette[3 * value : 3 * value + 3], 0, 0, 0)[:3]) for value in values}
    if any(max(colour) - min(colour) > _GREY for colour in own.values()):
        return own
    found = {value: _COLOURS[(value - 1) % len(_COLOURS)] for value in values}
    return found | ({_VOID: _VOID_COLOUR} if _VOID in found and {*values} - {0, _VOID} else {})


# Audio and video, in the page itself. What a file claims to be is not asked: its first bytes decide what a browser is
# told, and no such type can run anything.


_FRAME = 4  # bytes: where audio of 8 or 16 bits may be cut
_PIECE = 64_000  # bytes of audio at least, where not all of it fits
_MOST_PLAYED = 1_500_000  # bytes of one field
_AUDIO = (
    (b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"), (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"), (b"\xff", "audio/mpeg"),
)  # fmt: skip
_KNOWN_AUDIO = 3  # by their content alone, whatever the field is called


class Player(NamedTuple):
    """Audio or video.

    Attributes:
        field: Where it comes from.
        type: Its MIME type.
        length: Bytes of the field.
        seconds: How long it is; None where its header does not say.
        data: What is played: all of it, the start, or nothing.
    """

    field: str
    type: str
    length: int
    seconds: float | None
    data: bytes

    @property
    def element(self) -> str:
        """The HTML element that plays it: `audio` or `video`."""
        return self.type.partition("/")[0]

    @property
    def url(self) -> str:
        """It as a URL that holds it."""
        return f"data:{self.type};base64," + base64.b64encode(self.data).decode()

    @property
    def said(self) -> str:
        """What it is, for people."""
        long = "" if self.seconds is None else f", {self.seconds:,.1f} s"
        cut = f", the first {len(self.data) / max(self.length, 1):.0%}" if self.data else ", not in this page"
        return f"{self.element}{long}{cut if len(self.data) < self.length else ''}"


def played_as(name: str, start: bytes) -> str:
    """Return the MIME type of audio and video that browsers play, by its first bytes; empty: it is neither."""
    content = content_of(name)
    if start[:4] == b"RIFF" and start[8:12] == b"WAVE":
        return "audio/wav"
    if start[:4] == b"\x1a\x45\xdf\xa3" and b"webm" in start[:80]:
        return "audio/webm" if content == "audio" else "video/webm"
    if start[4:8] == b"ftyp" and content in ("audio", "video"):
        return f"{content}/mp4"
    known = _AUDIO if content == "audio" else _AUDIO[:_KNOWN_AUDIO]
    return next((kind for magic, kind in known if start.startswith(magic)), "")


class MediaRoom:
    """The bytes of audio and video that a page may hold, shared out so that what plays comes from all over."""

    def __init__(self, total: int, samples: int) -> None:
        self._left = float(min(_PIECE, total))
        self._each = (total - self._left) / max(samples, 1)

    def next(self) -> None:
        """Go on to the next sample, which brings its part."""
        self._left += self._each

    def take(self, kind: str, length: int) -> int:
        """Return how many bytes of a field there is room for: all, as many as make sense to hear, or none."""
        room = min(int(self._left), _MOST_PLAYED)
        cut = room // _FRAME * _FRAME
        start = cut if cut >= _PIECE and not kind.endswith("/mp4") else 0
        taken = length if length <= room else start
        self._left -= taken
        return taken


def cut_to(data: bytes) -> bytes:
    """Return the start of audio such that it plays to its end: of a WAV, with a header that says how much there is."""
    at = data.find(b"data", 12, len(data) - 4) if data[:4] == b"RIFF" else -1
    return data if at < 0 else data[: at + 4] + (len(data) - at - 8).to_bytes(4, "little") + data[at + 8 :]
