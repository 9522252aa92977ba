"""Make thumbnails of images. Pixels are limited before decoding, and a thumbnail's bytes after encoding."""

from __future__ import annotations

import base64
from typing import NamedTuple

from shardtool.transform.image import ImageOptions, change_image
from shardtool.verbs.inspect.page.masks import (
    FRAME_PROBLEMS,
    MASK_FORMATS,
    MASK_MODES,
    MAX_PIXELS,
    encode_thumbnail,
    mask_thumbnail,
)

IMAGE_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF8", "GIF"), (b"RIFF", "WebP"),
    (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"BM", "BMP"), (b"P", "PNM"),
)  # fmt: skip


MAGIC_SIGNATURES = 5  # the first entries, which are recognised whatever the field name

EXPECTED_IMAGES = frozenset((*FRAME_PROBLEMS, "image-too-large"))  # valid images that cannot be shown

_MIN_EDGE_PIXELS = 40

_MAX_ATTEMPTS = 6


class Thumbnail(NamedTuple):
    """A thumbnail of an image.

    Attributes:
        full: Width and height of the image.
        colours: For a mask, its values and their colours as `#rrggbb`; empty otherwise.
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
        """The thumbnail as a data URL."""
        return "data:image/webp;base64," + base64.b64encode(self.data).decode()


def make_thumbnail(
    data: bytes, name: str, edge: int, max_bytes: int | None = None, *, has_photo: bool = False
) -> Thumbnail:
    """Return an upright thumbnail of an image; a mask in colours.

    Args:
        data: The image file.
        name: Name of the field.
        edge: Maximum width and height in pixels.
        max_bytes: Maximum bytes, except for a thumbnail of the smallest size; None: no limit.
        has_photo: Whether the sample also has a photograph, so that an image of few values is taken as a mask.

    Raises:
        BadImage: The file is damaged, or is not an image.
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
