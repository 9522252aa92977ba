"""Decoders that return a crop of an image, uint8 [size, size, 3] in RGB.

In a baseline JPEG, rows below the crop are not decoded, because the decoder gets a header with a reduced height. Damage
in these rows is not detected. If the crop is at least twice as large as `size`, a JPEG is decoded at 1/2, 1/4 or 1/8 of
its size. Other images and rotated JPEGs are decoded completely.

Source: ITU T.81, B.1.1.3 and B.2.2 (markers, frame header).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from shardtool.errors import InvalidRequest
from shardtool.read.decode import DecodedField, seeded_rng, warn_about_loss
from shardtool.request.option_checks import check_minimum
from shardtool.transform.image_decode import decode_image, to_rgb
from shardtool.transform.jpeg import JpegHeader, crop_jpeg_rows, decode_jpeg_fast, read_jpeg_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray


Box: TypeAlias = "tuple[int, int, int, int]"  # left, top, right and bottom in pixels of the whole image
_INTERPOLATION_ROWS = 2  # rows below the crop that affect the colours of its last row
_CROP_ATTEMPTS = 10


class _Crop:
    """A decoder that returns a square part of an image.

    Attributes:
        place: Name of a field to add, which contains the position of the crop, int64 [5]: left, top, width and height
            in pixels of the whole upright image, and 1 if the crop is mirrored, else 0.
    """

    size: int
    place: str | None

    def move(self, boxes: ArrayLike, place: ArrayLike) -> NDArray[np.float32]:
        """Convert boxes from pixels of the whole image to pixels of the crop, and clip them.

        A box outside the crop gets an area of 0. `boxes` are [n, 4] with left, top, right and bottom. `place` is the
        value of the field named `self.place`.
        """
        left, top, width, height, mirrored = np.asarray(place, np.float32)
        whole = np.asarray(boxes, np.float32).reshape(-1, 4)
        moved = (whole - [left, top, left, top]) * np.float32(self.size) / [width, height, width, height]
        if mirrored:
            moved[:, [0, 2]] = self.size - moved[:, [2, 0]]  # mirroring swaps left and right
        clipped: NDArray[np.float32] = moved.clip(0, self.size).astype(np.float32)
        return clipped

    def _with_position(self, square: NDArray[np.uint8], box: Box, *, mirrored: bool = False) -> Any:
        if self.place is None:
            return square
        left, top, right, bottom = box
        return DecodedField(square, {self.place: np.array([left, top, right - left, bottom - top, mirrored])})

    def _crop(self, data: bytes, box_in: Callable[[int, int], Box]) -> tuple[NDArray[np.uint8], Box]:
        head = read_jpeg_header(data)
        image: NDArray[np.uint8] | Image.Image
        if head is None:
            image, scale = to_rgb(decode_image(data, on_loss=partial(warn_about_loss, type(self).__name__))), 1
            box = box_in(*image.size)
        else:
            box = box_in(head.width, head.height)
            image, scale = _decode_rows_of_box(data, head, box, self.size)
        left, top = box[0] // scale, box[1] // scale
        part = _pixels_in_box(image, (left, top, -(-box[2] // scale), -(-box[3] // scale)))
        if scale == 1 and part.shape[:2] == (self.size, self.size):
            return part, box
        box_in_part = (box[0] / scale - left, box[1] / scale - top, box[2] / scale - left, box[3] / scale - top)
        return _resize(part, self.size, box_in_part), box


@dataclass(frozen=True)
class CenterCrop(_Crop):
    """Decodes the centre of an image, as in `decode={"jpg": CenterCrop(224, 256)}`.

    Attributes:
        shorter: Length of the shorter side after scaling. With None, only images smaller than `size` are scaled.
        place: Name of an additional field that contains the position of the crop.
    """

    size: int
    shorter: int | None = None
    place: str | None = None

    def __post_init__(self) -> None:
        check_minimum("size", self.size)
        if self.shorter is not None and self.shorter < self.size:
            raise InvalidRequest("shorter", repr(self.shorter), expected=f"at least the crop's size, {self.size}")

    def __call__(self, data: bytes) -> Any:
        """Return the crop, and its position if `place` is set."""
        return self._with_position(*self._crop(data, self.box))

    def box(self, width: int, height: int) -> Box:
        """Return the centred box in an image of this size."""
        short = min(width, height)
        side = min(short, self.size) if self.shorter is None else max(1, round(short * self.size / self.shorter))
        left, top = (width - side) // 2, (height - side) // 2
        return left, top, left + side, top + side


@dataclass(frozen=True)
class RandomResizedCrop(_Crop):
    """Decodes a random part of an image and resizes it.

    Area and aspect ratio are random, as in torchvision. If ten random boxes do not fit into the image, the crop is the
    largest centred part with an allowed ratio. Resizing is bilinear, with antialiasing. In a stream, all fields of a
    sample get the same crop. The crop depends only on the seed, the epoch and the position.

    Attributes:
        scale: Minimum and maximum area, as a share of the image.
        ratio: Minimum and maximum of width / height.
        flip: Probability of mirroring left to right.
        place: Name of an additional field that contains the position of the crop.

    Source: C. Szegedy et al., "Going Deeper with Convolutions", section 6; torchvision's `RandomResizedCrop`.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0
    place: str | None = None

    def __post_init__(self) -> None:
        check_minimum("size", self.size)
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high or (name == "scale" and high > 1):
                raise InvalidRequest(name, f"{(low, high)}", expected="(minimum, maximum), above 0; scale up to 1")
        if not 0 <= self.flip <= 1:
            raise InvalidRequest("flip", f"{self.flip}", expected="a probability, 0 to 1")

    def __call__(self, data: bytes, rng: np.random.Generator | None = None) -> Any:
        """Return a random crop, and its position if `place` is set."""
        rng = rng or seeded_rng()
        square, box = self._crop(data, partial(self.box, rng=rng))
        mirrored = self.flip > 0 and rng.random() < self.flip
        square = np.ascontiguousarray(square[:, ::-1]) if mirrored else square
        return self._with_position(square, box, mirrored=mirrored)

    def box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        """Return a random box in an image of this size."""
        for _ in range(_CROP_ATTEMPTS):
            area = width * height * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < wide <= width and 0 < high <= height:
                top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
                return left, top, left + wide, top + high
        narrowest, widest = self.ratio
        wide, high = min(width, max(1, round(height * widest))), min(height, max(1, round(width / narrowest)))
        left, top = (width - wide) // 2, (height - high) // 2
        return left, top, left + wide, top + high


def _decode_rows_of_box(
    data: bytes, head: JpegHeader, box: Box, size: int
) -> tuple[NDArray[np.uint8] | Image.Image, int]:
    rows = -(-(box[3] + _INTERPOLATION_ROWS) // head.block_rows) * head.block_rows
    if head.is_sequential and rows < head.height:
        data, head = crop_jpeg_rows(data, head, rows)
    wide, high = box[2] - box[0], box[3] - box[1]
    min_size = -(-head.width * size // wide), -(-head.height * size // high)
    image = decode_jpeg_fast(data, head, min_size=min_size)
    decoded = to_rgb(decode_image(data, min_size=min_size)) if image is None else image
    size_of_scale = {scale: (-(-head.width // scale), -(-head.height // scale)) for scale in (1, 2, 4, 8)}
    decoded_size = decoded.size if isinstance(decoded, Image.Image) else decoded.shape[1::-1]
    return decoded, next(scale for scale, scaled_size in size_of_scale.items() if scaled_size == decoded_size)


def _pixels_in_box(image: NDArray[np.uint8] | Image.Image, box: Box) -> NDArray[np.uint8]:
    left, top, right, bottom = box
    return np.array(image.crop(box) if isinstance(image, Image.Image) else image[top:bottom, left:right])


def _resize(part: NDArray[np.uint8], size: int, box: tuple[float, float, float, float]) -> NDArray[np.uint8]:
    if box != (0, 0, part.shape[1], part.shape[0]):
        return np.array(Image.fromarray(part).resize((size, size), Image.Resampling.BILINEAR, box))
    # with channels last, `interpolate` takes a fifth of the time that Pillow takes
    whole = torch.from_numpy(part).unsqueeze(0).permute(0, 3, 1, 2)
    scaled = interpolate(whole, (size, size), mode="bilinear", antialias=True)
    pixels: NDArray[np.uint8] = scaled[0].permute(1, 2, 0).numpy()
    return np.ascontiguousarray(pixels)
