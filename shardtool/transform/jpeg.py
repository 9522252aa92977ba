"""Decode JPEGs with libjpeg-turbo (simplejpeg): the same pixels as Pillow in three quarters of the time.

It is used for upright JPEGs of eight bits in grey or three colours. Otherwise, or without simplejpeg,
`decode_jpeg_fast` returns None, and Pillow decodes the image.

- Memory is checked by the header before it is allocated; a JPEG near the limit is left to Pillow.
- A JPEG that causes a warning of libjpeg is left to Pillow, which knows what to refuse. One warning is expected:
  data
  behind the rows that `crop_jpeg_rows` keeps. Then the file must end with the end marker.

Source: ITU T.81, B.1.1.3 and B.2.2 (markers, frame header), B.2.4.2 (sampling factors); TIFF 6.0, section 2 (tags).
"""

from __future__ import annotations

import functools
import re
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from shardtool.transform.image_decode import MAX_DECODE_BYTES, MAX_PIXELS, ORIENTATION_TAG

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


_BASELINE_MARKERS, _PROGRESSIVE_MARKER = (0xC0, 0xC1), 0xC2


_SKIPPED_MARKERS = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # tables, comments: each has a length, for every reader


_APP1_MARKER = 0xE1


_BITS, _CHANNELS = 8, (1, 3)


_BLOCK_PIXELS = 8  # pixels a side


_END_MARKER = b"\xff\xd9"


_EXTRA_DATA_WARNING = (
    "extraneous bytes before marker 0xd"  # of an end or a restart; a fault that ends decoding has its own words
)


_MAX_BYTES_PER_PIXEL = 9  # bytes that one may take: three colours, and their coefficients where all scans are held


_MARGIN_PIXELS = 32  # pixels that blocks may reach beyond each side


_SCALE_FRACTIONS = (8, 4, 2)


_ORIENTATION_PATTERN = re.compile(
    rb"\x01\x12\x00|\x12\x01.\x00|tiff:Orientation", re.DOTALL
)  # of either byte order, and of XMP


_UPRIGHT_TAGS = (b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x01", b"\x12\x01\x03\x00\x01\x00\x00\x00\x01\x00")


class JpegHeader(NamedTuple):
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


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Return what the header of an upright JPEG says; None: it is another image, or not understood."""
    if data[:2] != b"\xff\xd8":
        return None
    at, noted = 2, b""
    while at + 10 <= len(data) and data[at] == 0xFF:  # noqa: PLR2004 - each marker begins with it
        marker, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _BASELINE_MARKERS or marker == _PROGRESSIVE_MARKER:
            height, width = (int.from_bytes(data[place : place + 2], "big") for place in (at + 5, at + 7))
            if not width or not height or not _is_upright(noted, data):
                return None
            rows = _BLOCK_PIXELS * max((factors & 15 for factors in data[at + 11 : end : 3]), default=1)
            plain = data[at + 4] == _BITS and data[at + 9] in _CHANNELS
            return JpegHeader(at + 5, width, height, rows, marker != _PROGRESSIVE_MARKER, plain)
        if marker not in _SKIPPED_MARKERS:
            return None
        if marker == _APP1_MARKER:
            noted += data[at + 4 : end]
        at = end
    return None


def crop_jpeg_rows(data: bytes, head: JpegHeader, rows: int) -> tuple[bytes, JpegHeader]:
    """Return a baseline JPEG of the first rows alone, by another height in its header, and its head."""
    lower = b"".join((data[: head.at], rows.to_bytes(2, "big"), data[head.at + 2 :]))
    return lower, head._replace(height=rows, whole=False)


def decode_jpeg_fast(
    data: bytes,
    head: JpegHeader | None = None,
    *,
    least: tuple[int, int] | None = None,
    max_bytes: int = MAX_DECODE_BYTES,
) -> NDArray[np.uint8] | None:
    """Return the pixels of a JPEG in RGB, uint8 [height, width, 3], writable; None: they are Pillow's to decode.

    Args:
        data: The bytes of any image.
        head: What its header says; None: it is read.
        least: Width and height that are enough: as for `pixels`.
        max_bytes: As for `pixels`.
    """
    import numpy as np

    decode = jpeg_decoder()
    head = head or (read_jpeg_header(data) if decode else None)
    if decode is None or head is None or not head.plain:
        return None
    width, height = head.width, head.height
    taken = (width + _MARGIN_PIXELS) * (height + _MARGIN_PIXELS) * _MAX_BYTES_PER_PIXEL
    if taken > max_bytes or width * height > MAX_PIXELS:
        return None
    if least and (scale := min(width // least[0], height // least[1])) > 1 and min(width, height) >= _BLOCK_PIXELS:
        fraction = next(one for one in _SCALE_FRACTIONS if scale >= one)
        width, height = -(-width // fraction), -(-height // fraction)
    found = np.empty((height, width, 3), np.uint8)
    try:
        decode(data, buffer=found, min_height=height, min_width=width)
    except ValueError as error:
        if head.whole or _EXTRA_DATA_WARNING not in str(error) or data[-2:] != _END_MARKER:
            return None
    return found


@functools.cache
def jpeg_decoder() -> Callable[..., Any] | None:
    """Return what decodes a JPEG; None: it is not installed, or too old."""
    import inspect

    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    return decode_jpeg if "buffer" in inspect.signature(decode_jpeg).parameters else None


def _is_upright(noted: bytes, data: bytes) -> bool:
    """Tell whether EXIF and XMP leave an image as it lies: by a look for the tag, and else by Pillow."""
    if len(_ORIENTATION_PATTERN.findall(noted)) == sum(map(noted.count, _UPRIGHT_TAGS)):
        return True
    try:
        with Image.open(BytesIO(data), formats=["JPEG"]) as image:
            return bool(image.getexif().get(ORIENTATION_TAG, 1) == 1)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - hostile bytes make Pillow raise nearly anything: they are decoded by the rules
        return False
