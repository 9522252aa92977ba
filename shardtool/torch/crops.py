"""Crops of images as decoders of a field: what lies outside of the crop is not decoded, as far as that can be had.

A decoder gives uint8 [size, size, 3] in RGB. Three things are saved:

- The rows below the crop of a baseline JPEG are never decoded: its header is given a smaller height.
- A JPEG whose crop is at least twice as large as what is wanted is decoded at 1/2, 1/4 or 1/8.
- The crop is taken out of the decoded image, and no array of the whole image is made.

Other images, and JPEGs that have to be turned upright, are decoded whole. What an image is and becomes, and which are
refused, is as for `Dataset.decode`; but what is damaged below the crop is not noticed.

Source: ITU T.81, B.1.1.3 and B.2.2 (markers, frame header).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from shardtool.errors import InvalidRequest
from shardtool.request.settings import check_least
from shardtool.transform.image import BadImage, as_rgb, pixels

if TYPE_CHECKING:
    from numpy.typing import NDArray

Box: TypeAlias = "tuple[int, int, int, int]"  # left, top, right, bottom, in pixels of the whole image

_ORIENTATION = 0x0112
_ROWS = 32  # the most that one row of blocks has, with any sampling of colours
_NEIGHBOURS = 2  # rows below the crop that its last row's colours are interpolated with
_BASELINE = (0xC0, 0xC1)
_ENDS = {0xDA, *range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # frames and the scan: no header comes after them
_TRIES = 10


class _Frame(NamedTuple):
    """A JPEG that needs no turn: where its height stands, and its size."""

    at: int
    width: int
    height: int


class _Crop:
    """A decoder that gives a square of an image."""

    size: int

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Return the crop of an image, uint8 [size, size, 3].

        Raises:
            ValueError: It is no image, or a damaged one.
        """
        frame, target = _frame(data), (self.size, self.size)
        try:
            if frame is None:
                image, scale = as_rgb(pixels(data)), 1
                box = self.box(*image.size)
            else:
                box = self.box(frame.width, frame.height)
                image, scale = _above(data, frame, box, self.size)
        except BadImage as error:
            raise ValueError(error.message) from error
        if scale == 1 and (box[2] - box[0], box[3] - box[1]) == target:
            return np.array(image.crop(box))
        left, top, right, bottom = (side / scale for side in box)
        inside = (left, top, min(right, image.width), min(bottom, image.height))
        return np.array(image.resize(target, Image.Resampling.BILINEAR, inside))

    def box(self, width: int, height: int) -> Box:
        """Return what is taken of an image of this size."""
        raise NotImplementedError


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Decodes the centre of an image, for validation: `decode={"jpg": CenterCrop(224, 256)}`.

    Attributes:
        size: Width and height of the crop.
        shorter: What the shorter side of the whole image is scaled to; None: an image that is large enough keeps its
            size, and a smaller one becomes `size`.
    """

    size: int
    shorter: int | None = None

    def __post_init__(self) -> None:
        check_least("size", self.size)
        if self.shorter is not None and self.shorter < self.size:
            raise InvalidRequest("shorter", repr(self.shorter), expected=f"{self.size} or more, as the crop")

    def box(self, width: int, height: int) -> Box:
        """Return the centred square."""
        short = min(width, height)
        side = min(short, self.size) if self.shorter is None else max(1, round(short * self.size / self.shorter))
        left, top = (width - side) // 2, (height - side) // 2
        return left, top, left + side, top + side


@dataclass(frozen=True)
class RandomResizedCrop(_Crop):
    """Decodes a random part of an image, and scales it: the usual augmentation of training on photographs.

    The part has a random share of the area and a random aspect ratio; where ten draws do not fit, it is the largest
    centred one that has an allowed ratio. It is drawn from Python's `random`.

    Attributes:
        size: Width and height of the result.
        scale: Least and greatest share of the area.
        ratio: Least and greatest width / height.
        flip: How likely the result is mirrored, left to right.

    Source: C. Szegedy et al., "Going Deeper with Convolutions", section 6; torchvision's `RandomResizedCrop`.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        check_least("size", self.size)
        for name, (least, most) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < least <= most or (name == "scale" and most > 1):
                raise InvalidRequest(name, f"{(least, most)}", expected="(least, greatest), above 0; shares up to 1")

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Return a random crop of an image, uint8 [size, size, 3].

        Raises:
            ValueError: It is no image, or a damaged one.
        """
        crop = super().__call__(data)
        return np.ascontiguousarray(crop[:, ::-1]) if random.random() < self.flip else crop  # noqa: S311

    def box(self, width: int, height: int) -> Box:
        """Return a random part."""
        draw = random.uniform
        for _ in range(_TRIES):
            area = width * height * draw(*self.scale)
            aspect = math.exp(draw(*map(math.log, self.ratio)))
            wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < wide <= width and 0 < high <= height:
                left, top = random.randint(0, width - wide), random.randint(0, height - high)  # noqa: S311
                return left, top, left + wide, top + high
        least, most = self.ratio
        wide, high = min(width, max(1, round(height * most))), min(height, max(1, round(width / least)))
        left, top = (width - wide) // 2, (height - high) // 2
        return left, top, left + wide, top + high


def _frame(data: bytes) -> _Frame | None:
    """Return where a baseline JPEG's size stands, if it needs no turn; None: it is another image, or not understood."""
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:  # noqa: PLR2004 - each marker begins with it
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _BASELINE:
            height, width = (int.from_bytes(data[place : place + 2], "big") for place in (at + 5, at + 7))
            return _Frame(at + 5, width, height) if width and height else None
        if marker in _ENDS or (data[at + 4 : at + 8] == b"Exif" and not _is_upright(data)):
            return None
        at += 2 + length
    return None


def _is_upright(data: bytes) -> bool:
    try:
        with Image.open(BytesIO(data), formats=["JPEG"]) as image:
            return bool(image.getexif().get(_ORIENTATION, 1) == 1)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - hostile bytes make Pillow raise nearly anything: they are decoded by the rules
        return False


def _above(data: bytes, frame: _Frame, box: Box, size: int) -> tuple[Image.Image, int]:
    """Return a JPEG down to the crop, decoded at 1, 1/2, 1/4 or 1/8 of its size, and which: the crop is large enough.

    Raises:
        BadImage: It is damaged.
    """
    rows = min(frame.height, -(-(box[3] + _NEIGHBOURS) // _ROWS) * _ROWS)
    if rows < frame.height:
        data = b"".join((data[: frame.at], rows.to_bytes(2, "big"), data[frame.at + 2 :]))
    wide, high = box[2] - box[0], box[3] - box[1]
    image = as_rgb(pixels(data, least=(-(-frame.width * size // wide), -(-rows * size // high))))
    return image, round(frame.width / image.width)
