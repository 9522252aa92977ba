"""JPEGs decoded by libjpeg-turbo itself: the pixels that Pillow gives, in three quarters of its time.

The package simplejpeg calls it. What it is for is plain: eight bits, grey or three colours, upright. `decoded` returns
None for all else, and where there is no simplejpeg: the rules of `transform.image`, and Pillow, are for that.

- What decoding may take is known from the header before any memory is given; a JPEG near its bound is Pillow's, too.
- What libjpeg warns of is decoded anew by Pillow, which knows what to refuse: a file that ends too early, where libjpeg
  fills in what is missing. One warning is meant to be: that more comes behind the rows that `cut` leaves. Then the file
  must end with the mark of its end, so that its data do not end before.

Source: ITU T.81, B.1.1.3 and B.2.2 (markers, frame header), B.2.4.2 (sampling factors); TIFF 6.0, section 2 (tags).
"""

from __future__ import annotations

import functools
import inspect
import re
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from shardtool.transform.image import MAX_BYTES, MAX_PIXELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_BASELINE, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_SEGMENTS = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # tables, comments: each has a length, for every reader
_APP1 = 0xE1
_BITS, _COLOURS = 8, (1, 3)
_BLOCK = 8  # pixels a side
_END = b"\xff\xd9"
_REST = "extraneous bytes before marker 0xd"  # of an end or a restart; a fault that ends decoding has its own words
_PIXEL = 9  # bytes that one may take: three colours, and their coefficients where all scans are held
_MARGIN = 32  # pixels that blocks may reach beyond each side
_FRACTIONS = (8, 4, 2)

_ORIENTATION = 0x0112
_TAG = re.compile(rb"\x01\x12\x00|\x12\x01.\x00|tiff:Orientation", re.DOTALL)  # of either byte order, and of XMP
_UPRIGHT = (b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x01", b"\x12\x01\x03\x00\x01\x00\x00\x00\x01\x00")


class JpegHead(NamedTuple):
    """What the header of a JPEG says that needs no turn.

    Attributes:
        at: Where its height stands, in two bytes.
        width: In pixels.
        height: In pixels.
        rows: Pixels that a row of blocks has, with its sampling of colours.
        baseline: It is decoded row by row, so that a smaller height decodes less.
        plain: Eight bits, in one or three colours.
        whole: All of its rows are decoded.
    """

    at: int
    width: int
    height: int
    rows: int
    baseline: bool
    plain: bool
    whole: bool = True


def read_head(data: bytes) -> JpegHead | None:
    """Return what the header of an upright JPEG says; None: it is another image, or not understood."""
    if data[:2] != b"\xff\xd8":
        return None
    at, noted = 2, b""
    while at + 10 <= len(data) and data[at] == 0xFF:  # noqa: PLR2004 - each marker begins with it
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _BASELINE or marker == _PROGRESSIVE:
            height, width = (int.from_bytes(data[place : place + 2], "big") for place in (at + 5, at + 7))
            if not width or not height or not _is_upright(noted, data):
                return None
            rows = _BLOCK * max((factors & 15 for factors in data[at + 11 : end : 3]), default=1)
            plain = data[at + 4] == _BITS and data[at + 9] in _COLOURS
            return JpegHead(at + 5, width, height, rows, marker != _PROGRESSIVE, plain)
        if marker not in _SEGMENTS:
            return None
        if marker == _APP1:
            noted += data[at + 4 : end]
        at = end
    return None


def cut(data: bytes, head: JpegHead, rows: int) -> tuple[bytes, JpegHead]:
    """Return a baseline JPEG of the first rows alone, by another height in its header, and its head."""
    lower = b"".join((data[: head.at], rows.to_bytes(2, "big"), data[head.at + 2 :]))
    return lower, head._replace(height=rows, whole=False)


def decoded(
    data: bytes, head: JpegHead | None = None, *, least: tuple[int, int] | None = None, max_bytes: int = MAX_BYTES
) -> NDArray[np.uint8] | None:
    """Return the pixels of a JPEG in RGB, uint8 [height, width, 3], writable; None: they are Pillow's to decode.

    Args:
        data: The bytes of any image.
        head: What its header says; None: it is read.
        least: Width and height that are enough: as for `transform.image.pixels`.
        max_bytes: As for `transform.image.pixels`.
    """
    decode = decoder()
    head = head or (read_head(data) if decode else None)
    if decode is None or head is None or not head.plain:
        return None
    width, height = head.width, head.height
    taken = (width + _MARGIN) * (height + _MARGIN) * _PIXEL
    if taken > max_bytes or width * height > MAX_PIXELS:
        return None
    if least and (scale := min(width // least[0], height // least[1])) > 1 and min(width, height) >= _BLOCK:
        fraction = next(one for one in _FRACTIONS if scale >= one)
        width, height = -(-width // fraction), -(-height // fraction)
    pixels = np.empty((height, width, 3), np.uint8)
    try:
        decode(data, buffer=pixels, min_height=height, min_width=width)
    except ValueError as error:
        if head.whole or _REST not in str(error) or data[-2:] != _END:
            return None
    return pixels


@functools.cache
def decoder() -> Callable[..., Any] | None:
    """Return what decodes a JPEG; None: it is not installed, or too old."""
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    return decode_jpeg if "buffer" in inspect.signature(decode_jpeg).parameters else None


def _is_upright(noted: bytes, data: bytes) -> bool:
    """Tell whether EXIF and XMP leave an image as it lies: by a look for the tag, and else by Pillow."""
    if len(_TAG.findall(noted)) == sum(map(noted.count, _UPRIGHT)):
        return True
    try:
        with Image.open(BytesIO(data), formats=["JPEG"]) as image:
            return bool(image.getexif().get(_ORIENTATION, 1) == 1)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - hostile bytes make Pillow raise nearly anything: they are decoded by the rules
        return False
