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
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from shardtool.errors import InvalidRequest
from shardtool.request.settings import check_least
from shardtool.transform.image import BadImage, as_rgb, pixels
from shardtool.transform.jpeg import JpegHead, cut, decoded, read_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

Box: TypeAlias = "tuple[int, int, int, int]"  # left, top, right, bottom, in pixels of the whole image

_NEIGHBOURS = 2  # rows below the crop that its last row's colours are interpolated with
_TRIES = 10


class _Crop:
    """A decoder that gives a square of an image."""

    size: int

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Return the crop of an image, uint8 [size, size, 3].

        Raises:
            ValueError: It is no image, or a damaged one.
        """
        head = read_head(data)
        image: NDArray[np.uint8] | Image.Image
        try:
            if head is None:
                image, scale = as_rgb(pixels(data)), 1
                box = self.box(*image.size)
            else:
                box = self.box(head.width, head.height)
                image, scale = _above(data, head, box, self.size)
        except BadImage as error:
            raise ValueError(error.message) from error
        left, top = box[0] // scale, box[1] // scale
        part = _part(image, (left, top, -(-box[2] // scale), -(-box[3] // scale)))
        if scale == 1 and part.shape[:2] == (self.size, self.size):
            return part
        inside = (box[0] / scale - left, box[1] / scale - top, box[2] / scale - left, box[3] / scale - top)
        return _resized(part, self.size, inside)

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


def _above(data: bytes, head: JpegHead, box: Box, size: int) -> tuple[NDArray[np.uint8] | Image.Image, int]:
    """Return a JPEG down to the crop, decoded at 1, 1/2, 1/4 or 1/8 of its size, and which: the crop is large enough.

    Raises:
        BadImage: It is damaged.
    """
    rows = -(-(box[3] + _NEIGHBOURS) // head.rows) * head.rows
    if head.baseline and rows < head.height:
        data, head = cut(data, head, rows)
    wide, high = box[2] - box[0], box[3] - box[1]
    least = -(-head.width * size // wide), -(-head.height * size // high)
    image = decoded(data, head, least=least)
    found = as_rgb(pixels(data, least=least)) if image is None else image
    return found, round(head.width / (found.width if isinstance(found, Image.Image) else found.shape[1]))


def _part(image: NDArray[np.uint8] | Image.Image, box: Box) -> NDArray[np.uint8]:
    """Return the pixels in a box, in memory of their own."""
    left, top, right, bottom = box
    return np.array(image.crop(box) if isinstance(image, Image.Image) else image[top:bottom, left:right])


def _resized(part: NDArray[np.uint8], size: int, box: tuple[float, float, float, float]) -> NDArray[np.uint8]:
    """Return what is in a box as uint8 [size, size, 3]: bilinear, and averaged where it becomes smaller."""
    if box != (0, 0, part.shape[1], part.shape[0]):
        return np.array(Image.fromarray(part).resize((size, size), Image.Resampling.BILINEAR, box))
    whole = torch.from_numpy(part).unsqueeze(0).permute(0, 3, 1, 2)  # channels last, as the result: a fifth of Pillow's
    scaled = interpolate(whole, (size, size), mode="bilinear", antialias=True)
    found: NDArray[np.uint8] = scaled[0].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(found)
