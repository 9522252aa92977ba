"""Thumbnails of images. An image is limited by its pixels before it is decoded, a thumbnail by its bytes."""

from __future__ import annotations

import base64
from typing import NamedTuple

from shardtool.transform.image import ImageOptions, change_image
from shardtool.verbs.inspect.page.masks import (
    FRAME_PROBLEMS,
    MASK_FORMATS,
    MASK_MODES,
    MAX_PIXELS,
    mask_thumbnail,
    small_picture,
)

IMAGE_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF8", "GIF"), (b"RIFF", "WebP"),
    (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"BM", "BMP"), (b"P", "PNM"),
)  # fmt: skip


MAGIC_SIGNATURES = 5  # of KINDS are known by their content alone, whatever the field is called


EXPECTED_IMAGES = frozenset((*FRAME_PROBLEMS, "image-too-large"))


_MIN_EDGE_PIXELS = 40


_MAX_ATTEMPTS = 6


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


def make_thumbnail(data: bytes, name: str, edge: int, most: int | None = None, *, beside: bool = False) -> Thumbnail:
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
    _, fact = change_image(data, name, ImageOptions(probe=True, max_pixels=MAX_PIXELS))
    kind = next((kind for magic, kind in IMAGE_SIGNATURES if data.startswith(magic)), "image")
    may_be_mask = kind in MASK_FORMATS and fact.mode in MASK_MODES
    for _ in range(_MAX_ATTEMPTS):
        mask = mask_thumbnail(data, name, edge, beside=beside) if may_be_mask else None
        may_be_mask = mask is not None
        small, size, colours = mask or (*small_picture(data, name, edge), ())
        if most is None or len(small) <= most or edge <= _MIN_EDGE_PIXELS:
            break
        edge = max(_MIN_EDGE_PIXELS, int(edge * min(0.85, (most / len(small)) ** 0.5)))
    return Thumbnail(small, size, (fact.width, fact.height), fact.mode, kind, name, colours)
