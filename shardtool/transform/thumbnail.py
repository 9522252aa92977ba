"""Create thumbnails of images and masks, as WebP."""

from __future__ import annotations

import base64
import re
import warnings
from colorsys import hsv_to_rgb
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from shardtool.transform.image import ImageOptions, change_image
from shardtool.transform.image_decode import BadImage, image_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image as Picture


# reason codes of valid images that `change_image` refuses; their thumbnails show the first frame
FIRST_FRAME_CODES = ("animated-image", "image-depth")
MAX_PIXELS = 100_000_000
WEBP_QUALITY = 75


def encode_thumbnail(data: bytes, name: str, edge: int) -> tuple[bytes, tuple[int, int]]:
    """Return a WebP thumbnail of at most `edge` x `edge` pixels, and its size."""
    resize = ImageOptions(resize=(edge, edge), resize_mode="longer", only_larger=True, max_pixels=MAX_PIXELS)
    options = replace(resize, encode="webp", quality=WEBP_QUALITY, fields=(name,))
    try:
        small, info = change_image(data, name, options)
    except BadImage as error:
        if error.code not in FIRST_FRAME_CODES:
            raise
        return _encode_first_frame(data, edge)
    return bytes(small), (info.width, info.height)


def _encode_first_frame(data: bytes, edge: int) -> tuple[bytes, tuple[int, int]]:
    from PIL import Image

    with warnings.catch_warnings(), image_errors(data):
        warnings.simplefilter("ignore")
        image: Image.Image = Image.open(BytesIO(data), formats=("PNG", "WEBP", "GIF", "TIFF", "PPM"))
        image.load()
        if image.mode[0] in ("F", "I"):  # scale the values, because Pillow's conversion would clip them
            image = image.convert("F")
            low, high = cast("tuple[float, float]", image.getextrema())
            scale = 255 / ((high - low) or 1)
            image = image.point(lambda value: cast("float", value) * scale - low * scale).convert("L")
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        image.thumbnail((edge, edge))
        return encode_image(image, "WEBP", quality=WEBP_QUALITY), image.size


def encode_image(image: Picture, form: str, **options: object) -> bytes:
    """Encode an image in a Pillow format, such as `PNG`."""
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


MASK_FORMATS = ("PNG", "TIFF", "BMP", "PNM", "GIF")
_PILLOW_MASK_FORMATS = ("PNG", "TIFF", "BMP", "PPM", "GIF")
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
_MAX_MASK_CLASSES = 64  # an image with more distinct values is a photograph
_MAX_DARK_VALUE = 64  # a grey image whose values (except 0 and 255) are below this limit is a mask
_VOID, _VOID_COLOUR = 255, (190, 190, 190)  # value (by convention) and colour of pixels without a class
_MIN_COLOUR_DIFFERENCE = 40  # a palette colour whose channels differ by this much is not grey
_MASK_NAME = re.compile(r"mask|seg|annot|label|trimap|panoptic|instance|parsing|(^|[._/-])gt([._/-]|$)", re.IGNORECASE)
_MASK_COLOURS = (
    (230, 25, 75), (60, 180, 75), (67, 99, 216), (255, 225, 25), (245, 130, 49), (145, 30, 180), (66, 212, 244),
    (240, 50, 230), (191, 239, 69), (250, 190, 212), (70, 153, 144), (220, 190, 255), (154, 99, 36), (255, 250, 200),
    (128, 0, 0), (170, 255, 195), (128, 128, 0), (255, 216, 177), (0, 0, 160),
)  # fmt: skip
_GOLDEN_RATIO = 0.618034  # spreads the hues of successive values


def is_mask_name(field: str) -> bool:
    """Return whether a field is named like a mask, such as `seg.png` or `labelIds.png`."""
    return bool(_MASK_NAME.search(field.rpartition(".")[0] or field))


def mask_thumbnail(
    data: bytes, name: str, edge: int, *, has_photo: bool
) -> tuple[bytes, tuple[int, int], tuple[tuple[int, str], ...]] | None:
    """Return a coloured WebP of a mask, its size and its colours, or None if the image is not a mask."""
    from PIL import Image

    options = ImageOptions((edge, edge), "longer", only_larger=True, masks=(name,), max_pixels=MAX_PIXELS)
    try:
        resized, _ = change_image(data, name, options)
        with image_errors(data):
            image = Image.open(BytesIO(resized), formats=_PILLOW_MASK_FORMATS)
            image.load()
    except BadImage:
        return None
    values, indexes = np.unique(np.asarray(image), return_inverse=True)
    colours = _mask_colours(image, [int(value) for value in values[: _MAX_MASK_CLASSES + 1]])
    if not colours or not (has_photo or is_mask_name(name) or _is_dark(image.mode, [*colours])):
        return None
    table = np.array([(*colour, 255 if value else 0) for value, colour in colours.items()], np.uint8)
    coloured = Image.fromarray(table[indexes.reshape(image.height, image.width)])
    legend = tuple((value, "#{:02x}{:02x}{:02x}".format(*colour)) for value, colour in colours.items())
    return encode_image(coloured, "WEBP", lossless=True), image.size, legend


def _is_dark(mode: str, values: Sequence[int]) -> bool:
    classes = [value for value in values if value not in (0, _VOID)]
    return mode not in ("1", "P") and bool(classes) and max(classes) < _MAX_DARK_VALUE


def _mask_colours(image: Picture, values: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    if len(values) > _MAX_MASK_CLASSES:
        return {}
    palette = (image.getpalette() or []) if image.mode == "P" else []
    palette_colours = {
        value: cast("tuple[int, int, int]", (*palette[3 * value : 3 * value + 3], 0, 0, 0)[:3]) for value in values
    }
    is_coloured = any(max(colour) - min(colour) > _MIN_COLOUR_DIFFERENCE for colour in palette_colours.values())
    if is_coloured and len({*palette_colours.values()}) == len(values):
        return palette_colours
    colours = {_VOID: _VOID_COLOUR} if _VOID in values and {*values} - {0, _VOID} else {}
    for value in values:
        number = value
        while (colour := value_colour(number)) in colours.values():
            number += len(_MASK_COLOURS)
        colours.setdefault(value, colour)
    return {value: colours[value] for value in values}


def value_colour(value: int) -> tuple[int, int, int]:
    """Return the colour of a mask value. 0 gets the last fixed colour."""
    if 0 <= value <= len(_MASK_COLOURS):
        return _MASK_COLOURS[value - 1]
    saturation, brightness = (0.9, 0.7, 0.5)[value % 3], (0.95, 0.75, 0.55)[value // 3 % 3]
    red, green, blue = hsv_to_rgb(value * _GOLDEN_RATIO % 1, saturation, brightness)
    return round(255 * red), round(255 * green), round(255 * blue)


IMAGE_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF8", "GIF"), (b"RIFF", "WebP"),
    (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"BM", "BMP"), (b"P", "PNM"),
)  # fmt: skip


DISTINCTIVE_SIGNATURE_COUNT = 5  # the first five signatures identify an image in a field with any name
HARMLESS_IMAGE_CODES = frozenset((*FIRST_FRAME_CODES, "image-too-large"))  # reported as notes: the image is valid
_MIN_EDGE_PIXELS = 40
_MAX_ATTEMPTS = 6


class Thumbnail(NamedTuple):
    """A thumbnail of an image.

    Attributes:
        full_size: Width and height of the original image.
        colours: Pairs of a mask value and its colour (`#rrggbb`).
    """

    data: bytes
    size: tuple[int, int]
    full_size: tuple[int, int]
    mode: str
    kind: str
    field: str
    colours: tuple[tuple[int, str], ...] = ()

    @property
    def url(self) -> str:
        """The thumbnail as a data URL."""
        return "data:image/webp;base64," + base64.b64encode(self.data).decode()


def make_thumbnail(
    data: bytes, name: str, edge: int, max_bytes: int | None = None, *, has_photo: bool = False
) -> Thumbnail:
    """Return an upright thumbnail of an image. A mask is coloured.

    Args:
        max_bytes: Maximum size in bytes, or None. If necessary, `edge` is reduced.
        has_photo: Whether the sample also has a photograph. If so, an image with few values is a mask.
    """
    _, info = change_image(data, name, ImageOptions(probe=True, max_pixels=MAX_PIXELS))
    kind = next((kind for magic, kind in IMAGE_SIGNATURES if data.startswith(magic)), "image")
    may_be_mask = kind in MASK_FORMATS and info.mode in MASK_MODES
    for _ in range(_MAX_ATTEMPTS):
        mask = mask_thumbnail(data, name, edge, has_photo=has_photo) if may_be_mask else None
        may_be_mask = mask is not None
        thumbnail, size, colours = mask or (*encode_thumbnail(data, name, edge), ())
        if max_bytes is None or len(thumbnail) <= max_bytes or edge <= _MIN_EDGE_PIXELS:
            break
        edge = max(_MIN_EDGE_PIXELS, int(edge * min(0.85, (max_bytes / len(thumbnail)) ** 0.5)))
    return Thumbnail(thumbnail, size, (info.width, info.height), info.mode, kind, name, colours)
