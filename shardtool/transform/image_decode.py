"""Decode images with Pillow, within limits of pixels and memory.

- The content determines the format, not the file name: n02105855_2933.JPEG in ImageNet is a PNG.
- Only seven formats are tried. For EPS, for example, Pillow would run Ghostscript.
- Only the first picture of a multi-picture JPEG (MPO) is used, because the other pictures are previews and gain maps.
- A truncated image is refused (`truncated-image`), even if its decoder accepts it. Exception: in a JPEG, GIF or fax
  (TIFF), rows may be missing if the compressed data end correctly.

Source: the Pillow handbook, "Concepts" (modes, filters) and "Image file formats"; EXIF 2.32, tag 0x0112.
"""

from __future__ import annotations

import functools
import re
import struct
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, cast
from zlib import decompressobj

from PIL import Image, TiffImagePlugin, UnidentifiedImageError
from PIL.Image import Transpose

from shardtool.errors import printable
from shardtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.skipped import SkipCode


DecodingLoss = Literal["grey bits", "colour bits", "pages"]

# Pillow refuses images above this limit (0.7 GB as RGB), and warns above half of it. Refusing above half would exclude
# an A0 scan at 300 dpi (139 million pixels).
MAX_PIXELS = 2 * (1024**3 // 4 // 3)

# Importing a reader registers its format. If a format is missing, Pillow imports all readers.
PILLOW_READERS = ("Jpeg", "Png", "WebP", "Bmp", "Gif", "Tiff", "Ppm")
IMAGE_FORMATS = tuple(name.upper() for name in PILLOW_READERS)

# An A0 scan at 300 dpi needs 0.97 GB. WebP images may have only 53 million pixels, because libwebp keeps four copies.
MAX_DECODE_BYTES = 2**30
_WEBP_BYTES_PER_PIXEL = 20
_COEFFICIENT_BYTES = 2  # per colour and pixel while a progressive JPEG is decoded
_PILLOW_BITS = 8  # bits per value in most Pillow modes

# bytes per pixel in Pillow modes; other modes take 4
_BYTES_PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
WIDE_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N", "F"})
GREY_MODES = frozenset({"1", "L", "LA", "La"}) | WIDE_MODES
_MAX_16_BIT = 0xFFFF
ORIENTATION_TAG = 0x0112

TRANSPOSES = {  # for each EXIF orientation, the change that turns the image upright
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}

FIRST_SIDEWAYS = 5  # EXIF orientations from 5 on swap width and height
_ADAM7_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_PIECE_BYTES = 2**16

_PNG_EXIF_KEYWORDS = (b"Raw profile type exif", b"XML:com.adobe.xmp")


class BadImage(ValueError):
    """An image that cannot be read, or cannot be changed as requested. `code` is the reason code."""

    def __init__(self, code: SkipCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = printable(message)

    def __str__(self) -> str:
        return self.message


def decode_image(
    data: bytes, *, min_size: tuple[int, int] | None = None, exact: bool = False, max_bytes: int = MAX_DECODE_BYTES,
    on_loss: Callable[[DecodingLoss], None] | None = None,
) -> Image.Image:  # fmt: skip
    """Return the first frame of an image, in its own mode and in display orientation.

    If `exact` is false, 16-bit grey is rounded to 8 bits. This function is thread-safe.

    Args:
        min_size: Width and height. A JPEG is decoded at 1/8, 1/4 or 1/2 of its size if the result is at least this
            large.
        exact: Whether to return the values stored in the file. If Pillow does not preserve them, raise `BadImage`.
        max_bytes: Memory limit for decoding, rotation and conversion to RGB.
        on_loss: Function to call if the result has fewer bits than the image, or lacks pages of a TIFF, PNG or WebP.
    """
    with image_errors(data):
        picture = OpenedImage(data, MAX_PIXELS, max_bytes)
        losses = _decoding_losses(picture) if on_loss else ()
        is_turned = picture.orientation >= FIRST_SIDEWAYS
        image, _ = decode_pixels(picture, min_size[::-1] if min_size and is_turned else min_size)
    if exact:
        image = to_stored_values(image, picture)
    elif image.mode in WIDE_MODES or not picture.white_value:
        image = to_eight_bits(image, picture)
    for loss in losses:
        cast("Callable[[DecodingLoss], None]", on_loss)(loss)
    return image.transpose(TRANSPOSES[picture.orientation]) if picture.orientation in TRANSPOSES else image


def _decoding_losses(picture: OpenedImage) -> Sequence[DecodingLoss]:
    losses: list[DecodingLoss] = []
    if picture.has_deep_colours or picture.image.mode in WIDE_MODES:
        losses.append("colour bits" if picture.has_deep_colours else "grey bits")
    if picture.kind in ("TIFF", "PNG", "WEBP") and getattr(picture.image, "is_animated", False):
        losses.append("pages")
    return losses


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert 8-bit pixels to mode RGB. Drop alpha, and replace palette indices by colours."""
    if image.mode == "RGB":
        return image
    image.info.pop("transparency", None)  # otherwise Pillow would warn that transparency is lost
    return image.convert("RGB")


class OpenedImage:
    """An image whose pixels are not decoded yet.

    Attributes:
        image: Pillow's image. A PNG whose EXIF may follow the pixels is already decoded.
        orientation: EXIF orientation to apply after decoding. It is 1 for a TIFF, because Pillow turns its pixels.
        has_deep_colours: Whether Pillow keeps only the upper eight bits of each value.
        white_value: The value of white (the largest possible value), or 0 if undefined.
    """

    def __init__(self, data: bytes | memoryview, max_pixels: int, max_bytes: int | None = None) -> None:
        if not data:
            raise BadImage("bad-image", "the file is empty")
        self.stream, self._max_bytes = BytesIO(data), max_bytes
        image: Any = Image.open(self.stream, formats=IMAGE_FORMATS)
        self.image: Image.Image = image
        self.kind = "JPEG" if image.format == "MPO" else image.format
        width, height = image.size
        if self.kind == "TIFF":  # Pillow reports the size before or after rotation, depending on its version
            width, height = image.tag_v2[TiffImagePlugin.IMAGEWIDTH], image.tag_v2[TiffImagePlugin.IMAGELENGTH]
        if width * height > max_pixels:
            raise BadImage("image-too-large", f"{width:,} x {height:,} pixels, more than {max_pixels:,}")
        self.has_deep_colours, self.white_value = _has_deep_colours(image), _white_value(image)
        if self.kind == "PNG":  # check now, because reading the EXIF of a PNG may decode its pixels
            self.check_memory()
        profile = image.info.get("icc_profile")
        self.profile = profile if isinstance(profile, bytes) else None
        orientation = _read_orientation(image, self.stream)
        self.size = (height, width) if orientation >= FIRST_SIDEWAYS else (width, height)
        self.orientation = 1 if self.kind == "TIFF" else orientation
        self.upright = orientation == 1
        self.colours = colour_kind(image.mode)

    def check_memory(self, full: tuple[int, int] | None = None, *, turned: bool = False) -> None:
        """Raise `BadImage` if decoding and conversion would need too much memory.

        `full` is the width and height in the file, if the image is decoded at a reduced size.
        """
        if self._max_bytes is None:
            return
        image: Any = self.image
        kind, pixel_bytes, (width, height) = self.kind, _BYTES_PER_PIXEL.get(image.mode, 4), image.size
        # extra bytes per pixel for converting to RGB, rotating, or converting to an array
        copy_bytes = 5 if image.mode != "RGB" else 4 if turned else 3
        peak_bytes = _WEBP_BYTES_PER_PIXEL if kind == "WEBP" else pixel_bytes + copy_bytes
        if kind in ("PPM", "BMP"):
            peak_bytes = max(3 * pixel_bytes, peak_bytes)
        size = width * height * peak_bytes
        if kind == "TIFF":
            tags = image.tag_v2
            tile_width = tags.get(TiffImagePlugin.TILEWIDTH, width)
            strip_rows = min(tags.get(TiffImagePlugin.ROWSPERSTRIP, height), height)
            rows = tags.get(TiffImagePlugin.TILELENGTH, 0) or strip_rows
            bits = sum(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
            size = max(size, width * height * pixel_bytes + tile_width * rows * max(4, bits // 8))
        elif kind == "JPEG":
            full_width, full_height = full or image.size
            coefficients = full_width * full_height * _COEFFICIENT_BYTES * len(image.getbands())
            progressive = width * height * pixel_bytes + coefficients
            # A JPEG with several scans is probably progressive. The count includes the scans of an embedded preview.
            if progressive > self._max_bytes and self.stream.getvalue().count(b"\xff\xda") > 1:
                size = max(size, progressive)
        if size > self._max_bytes:
            found = f"decoding {width:,} x {height:,} pixels of this {kind} may take {format_size(size)}"
            raise BadImage("image-too-large", f"{found}, more than {format_size(self._max_bytes)}")


def _read_orientation(image: Any, stream: BytesIO) -> int:
    if not may_have_exif(image, stream):
        return 1
    try:
        tags = image.tag_v2 if image.format == "TIFF" else image.getexif()
        value = tags.get(ORIENTATION_TAG)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - broken EXIF raises nearly anything
        return 1
    return value if isinstance(value, int) and value in TRANSPOSES else 1


def may_have_exif(image: Any, stream: BytesIO) -> bool:
    """Return whether an image may have EXIF. Decode a PNG whose EXIF may follow the pixels."""
    if image.format != "PNG":
        return True
    data = stream.getvalue()
    if not any(name == b"eXIf" or data.startswith(_PNG_EXIF_KEYWORDS, start) for name, start in _png_chunks(data)):
        return False
    if "exif" not in image.info:
        image.load()
    return True


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    offset = 8
    while (end := offset + 12 + int.from_bytes(data[offset : offset + 4], "big")) <= len(data):
        yield data[offset + 4 : offset + 8], offset + 8
        offset = end


def _has_deep_colours(image: Any) -> bool:
    if image.mode in WIDE_MODES or not image.tile:
        return False
    if image.format == "TIFF":
        bits = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))
        return bool(max(bits if isinstance(bits, tuple) else (bits,)) > _PILLOW_BITS)
    arguments = image.tile[0][3]  # the raw mode, or for PPM a tuple of the raw mode and the largest value
    if isinstance(arguments, tuple):
        return image.format == "PPM" and isinstance(arguments[1], int) and arguments[1] >= 2**_PILLOW_BITS
    return ";16" in arguments


def _white_value(image: Any) -> int:
    arguments = image.tile[0][3] if image.tile else ""
    if image.format == "TIFF":
        bits = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))[0]
        unsigned = image.tag_v2.get(TiffImagePlugin.SAMPLEFORMAT, (1,))[0] == 1
        inverted = image.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0 and bits > _PILLOW_BITS
        return 2**bits - 1 if unsigned and not inverted else 0
    if image.format == "PPM" and isinstance(arguments, tuple):
        return 0 if image.mode == "F" else arguments[1]
    if image.mode == "F":
        return 0
    return {"L;2": 3, "L;4": 15}.get(arguments, _MAX_16_BIT if image.mode in WIDE_MODES else 255)


def colour_kind(mode: str) -> str:
    """Return `grey`, `CMYK`, `LAB` or `RGB` for a Pillow mode."""
    return "grey" if mode in GREY_MODES else mode if mode in ("CMYK", "LAB") else "RGB"


def decode_pixels(picture: OpenedImage, goal: tuple[int, int] | None) -> tuple[Image.Image, tuple[float, float]]:
    """Return the decoded image, and the width and height of its content in pixels.

    A JPEG may be decoded at a reduced size of at least `goal`. The content may then cover only a part of the last row
    and column.
    """
    image: Any = picture.image
    full_size, extent = image.size, None
    if goal and picture.kind == "JPEG":
        drafted = image.draft(None, goal)
        extent = drafted[1][2:] if drafted else None
    picture.check_memory(full_size, turned=not picture.upright)
    strips = [tile[1] for tile in image.tile]
    image.load()
    if missing_part := _missing_part(picture, strips):
        raise BadImage("truncated-image", f"the image ends too early: {missing_part}")
    if picture.kind == "TIFF":
        image = image.copy()  # drop the TIFF tags, because Pillow would write them again
    return image, extent or image.size


def _missing_part(picture: OpenedImage, strips: Sequence[tuple[int, int, int, int]]) -> str:
    data, image = picture.stream.getvalue(), picture.image
    if picture.kind == "PNG":
        if all(name != b"IEND" for name, _ in _png_chunks(data)):
            return "a PNG without its last chunk"
        last = image.crop((0, image.height - 1, *image.size)).tobytes()
        if last.count(0) == len(last) or image.info.get("interlace"):  # rows may be missing: Pillow sets them to 0
            return "" if _png_has_rows(data) else "a PNG with fewer rows than its header declares"
    if picture.kind == "GIF" and not _gif_has_end(data):
        return "a GIF of several frames without an end mark"
    if picture.kind == "TIFF" and strips:
        area = sum((right - left) * (bottom - top) for left, top, right, bottom in strips)
        return "a TIFF with missing strips" if area < image.width * image.height else ""
    return ""


def _png_has_rows(data: bytes) -> bool:
    """Return whether a PNG's pixel data decompress to the size that its header declares.

    Source: PNG (third edition), "Interlacing and pass extraction", "Filtering".
    """
    width, height, depth, colours, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    passes = _ADAM7_PASSES if interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - x) // right), -(-(height - y) // down)) for x, y, right, down in passes]
    bits = depth * _PNG_CHANNELS[colours]
    remaining: int = sum(high * (1 + (wide * bits + 7) // 8) for wide, high in sizes if wide > 0 and high > 0)
    unpacker = decompressobj()
    for start in [offset for name, offset in _png_chunks(data) if name == b"IDAT"]:
        end = start + int.from_bytes(data[start - 8 : start - 4], "big")
        for first in range(start, end, _PIECE_BYTES):
            piece = data[first : min(end, first + _PIECE_BYTES)]
            while piece and remaining > 0 and not unpacker.eof:
                remaining -= len(unpacker.decompress(piece, _PIECE_BYTES))
                piece = unpacker.unconsumed_tail
    return remaining <= 0


def _gif_has_end(data: bytes) -> bool:
    """Return whether a GIF is complete. A GIF with a single frame needs no trailer.

    Source: GIF89a, sections 18 to 27.
    """

    def table_bytes(offset: int) -> int:
        flags = int.from_bytes(data[offset : offset + 1], "big")
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    offset, frames, block_type = 13 + table_bytes(10), 0, b""
    while offset < len(data) and data[offset] != ord(";"):
        block_type, offset = data[offset : offset + 1], offset + 1
        if block_type == b",":
            frames, offset = frames + 1, offset + 10 + table_bytes(offset + 8)
        elif block_type == b"!":
            offset += 1
        else:
            continue
        while offset < len(data) and data[offset]:
            offset += data[offset] + 1
        offset += 1
    return offset < len(data) or (frames, block_type) == (1, b",")


def to_sixteen_bits(image: Image.Image) -> Image.Image:
    """Convert to mode I. Raise `BadImage` if a value is not a 16-bit integer."""
    if image.mode == "F":
        raise BadImage("image-depth", "floating-point values, which this format cannot store")
    image = image.convert("I")
    low, high = image.getextrema()
    if low < 0 or high > _MAX_16_BIT:  # type: ignore[operator]
        raise BadImage("image-depth", f"values from {low:,} to {high:,}, outside the range of 16 bits")
    return image


def to_eight_bits(image: Image.Image, picture: OpenedImage) -> Image.Image:
    """Convert a grey image to eight bits. Raise `BadImage` if no value means white."""
    if not 0 < picture.white_value <= _MAX_16_BIT:
        integers = "integers that are signed, have more than 16 bits, or use 0 as white"
        values = "floats" if image.mode == "F" else integers
        raise BadImage("image-depth", f"{values}: no defined conversion to 8-bit colours")
    white = _MAX_16_BIT if picture.kind == "PPM" else picture.white_value  # Pillow scales PPM to 16 bits
    grey = to_sixteen_bits(image).point(_eight_bit_table(white), "L")
    grey.info.pop("transparency", None)  # the transparency refers to a 16-bit value
    return grey


@functools.cache
def _eight_bit_table(white: int) -> Sequence[int]:
    """Return a table that rounds 16-bit values to 8 bits. Pillow's own conversion would clip the values at 255."""
    return [min(255, (2 * 255 * value + white) // (2 * white)) for value in range(_MAX_16_BIT + 1)]


def to_stored_values(image: Image.Image, picture: OpenedImage) -> Image.Image:
    """Undo Pillow's scaling, and return the values stored in the file."""
    if picture.has_deep_colours:
        raise BadImage("image-depth", "16 bits per colour, but Pillow reads only 8")
    white = picture.white_value
    if image.mode == "L" and not white:
        raise BadImage("image-depth", "signed 8-bit values, which Pillow reads as unsigned")
    if image.mode == "I" and white > _MAX_16_BIT and image.getextrema()[0] < 0:  # type: ignore[operator]
        raise BadImage("image-depth", "32-bit values above 2,147,483,647, which Pillow reads as negative")
    if image.mode == "L" and white < 255:  # noqa: PLR2004 - Pillow scales the largest value to 255
        return image.point([(2 * white * value + 255) // 510 for value in range(256)])
    if image.mode == "I" and picture.kind == "PPM" and white < _MAX_16_BIT:
        return image.point(lambda value: value * (white / _MAX_16_BIT) + 0.5)
    return image


@contextmanager
def image_errors(data: bytes | memoryview) -> Iterator[None]:
    """Convert Pillow's exceptions to `BadImage`."""
    try:
        yield
    except (BadImage, MemoryError):
        raise  # the image is within the pixel limit, so a MemoryError is not a fault of the image
    except Exception as error:  # hostile bytes can make Pillow raise any exception
        raise _image_error(error, data) from error


def _image_error(error: Exception, data: bytes | memoryview) -> BadImage:
    if isinstance(error, Image.DecompressionBombError):
        return BadImage("image-too-large", f"too many pixels to decode: {error}")
    if isinstance(error, UnidentifiedImageError):  # replace the message, because it contains a memory address
        return BadImage("bad-image", "not a JPEG, PNG, WebP, BMP, GIF, TIFF or PNM, or the header is damaged")
    text = str(error) or type(error).__name__
    riff = bytes(data[:4]) == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 > len(data)
    if riff or re.search(r"truncated|not enough|unexpected end|end of file|\bEOF\b", text, re.IGNORECASE):
        return BadImage("truncated-image", f"the image ends too early: {text}")
    return BadImage("bad-image", f"the image is damaged: {text}")
