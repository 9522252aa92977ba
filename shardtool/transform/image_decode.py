"""Decode images with Pillow, within limits of pixels and memory.

- The content determines the format, not the name: `ImageNet/n02105855_2933.JPEG` is a PNG.
- Only the decoders of seven formats are used. Others (EPS starts a program) are never tried.
- The first picture of a multi-picture JPEG (MPO) is the image; previews and gain maps are ignored.
- An image that ends too early is refused (`truncated-image`), even if its decoder accepts it. This is not detected
  for a JPEG, GIF or fax (TIFF) whose compressed data end regularly before the last row.

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


DecodingLoss = Literal["grey bits", "colour bits", "pages"]  # what decoding to eight bits does not keep


# What Pillow refuses by itself: 0.7 GB for decoded RGB, which takes four bytes a pixel, in each worker. Its warning, at
# half of that, would stop images that are met in practice (a scanned A0 sheet at 300 dpi has 139 million pixels).
MAX_PIXELS = 2 * (1024**3 // 4 // 3)


# Pillow's readers: to import one registers its format, and one that is missing would make Pillow import all of them.
PILLOW_READERS = ("Jpeg", "Png", "WebP", "Bmp", "Gif", "Tiff", "Ppm")


IMAGE_FORMATS = tuple(name.upper() for name in PILLOW_READERS)


# What decoding may take in a reader: a scan of A0 at 300 dpi takes 0.97 GB (PNG, TIFF, JPEG), and 102 million pixels of
# a camera 1.02 GB as a progressive JPEG. As WebP it holds for 53 million pixels: libwebp keeps each four times.
MAX_DECODE_BYTES = 2**30


_WEBP_BYTES_PER_PIXEL = 20  # a pixel


_COEFFICIENT_BYTES = 2  # bytes, a colour of a pixel, of a JPEG whose scans must be held


_PILLOW_BITS = 8  # of each value


_BYTES_PER_PIXEL = {
    "1": 1,
    "L": 1,
    "P": 1,
    "I;16": 2,
    "I;16B": 2,
    "I;16L": 2,
    "I;16N": 2,
}  # of a pixel in memory; else 4


WIDE_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N", "F"})


GREY_MODES = frozenset({"1", "L", "LA", "La"}) | WIDE_MODES


_MAX_16_BIT = 0xFFFF


ORIENTATION_TAG = 0x0112


TRANSPOSES = {  # EXIF orientation: what shows the image upright
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}


FIRST_SIDEWAYS = 5  # orientations from here on swap width and height


_ADAM7_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of its colours


_PIECE_BYTES = 2**16  # bytes that are unpacked at a time


_PNG_EXIF_KEYWORDS = (
    b"Raw profile type exif",
    b"XML:com.adobe.xmp",
)  # keywords of chunks that may hold the orientation


class BadImage(ValueError):
    """An image that cannot be read, or not be changed as asked.

    Attributes:
        code: Why, for programs.
        message: What is wrong, for people.
    """

    def __init__(self, code: SkipCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = printable(message)

    def __str__(self) -> str:
        return self.message


def decode_image(
    data: bytes, *, least: tuple[int, int] | None = None, exact: bool = False, max_bytes: int = MAX_DECODE_BYTES,
    on_loss: Callable[[DecodingLoss], None] | None = None,
) -> Image.Image:  # fmt: skip
    """Return the decoded pixels of an image, or of its first frame, in the mode of its content, as a viewer turns it.

    Of 16 bits of grey the upper 8 are returned, unless they are wanted exactly. Safe in threads: Python's warnings stay
    as they are, and Pillow may give one.

    Args:
        data: The bytes of a JPEG, PNG, WebP, BMP, GIF, TIFF or PNM.
        least: Width and height that are enough: a JPEG comes at 1/8, 1/4 or 1/2 of its size where both of its sides
            are no shorter then.
        exact: Return the values that are stored, and refuse an image of which Pillow does not keep them.
        max_bytes: What decoding may take, with turning the image and making it RGB.
        on_loss: Called if the image has more bits or pages than are returned.

    Raises:
        BadImage: The image is damaged, cut off or too large, or no rule says what its values are.
    """
    with image_errors(data):
        picture = OpenedImage(data, MAX_PIXELS, max_bytes)
        losses = _decoding_losses(picture) if on_loss else ()
        image, _ = decode_pixels(picture, least[::-1] if least and picture.turn >= FIRST_SIDEWAYS else least)
    if exact:
        image = to_stored_values(image, picture)
    elif image.mode in WIDE_MODES or not picture.white:
        image = to_eight_bits(image, picture)
    for loss in losses:
        cast("Callable[[DecodingLoss], None]", on_loss)(loss)
    return image.transpose(TRANSPOSES[picture.turn]) if picture.turn in TRANSPOSES else image


def _decoding_losses(picture: OpenedImage) -> Sequence[DecodingLoss]:
    """Return what eight bits of the first frame or page lack, without reading further frames.

    Further pictures of a JPEG are previews and the like, and those of a GIF would have to be read.
    """
    losses: list[DecodingLoss] = []
    if picture.deep or picture.image.mode in WIDE_MODES:
        losses.append("colour bits" if picture.deep else "grey bits")
    if picture.kind in ("TIFF", "PNG", "WEBP") and getattr(picture.image, "is_animated", False):
        losses.append("pages")
    return losses


def to_rgb(image: Image.Image) -> Image.Image:
    """Return pixels of eight bits in mode RGB: alpha is left out, and a palette becomes its colours."""
    if image.mode == "RGB":
        return image
    image.info.pop("transparency", None)  # Pillow would warn that it is lost
    return image.convert("RGB")


class OpenedImage:
    """An opened image: its header is read, its pixels are not.

    Args:
        data: The bytes.
        max_pixels: The most that it may have.
        max_bytes: What decoding may take; None: what the bound of pixels allows.

    Attributes:
        image: Pillow's, not decoded yet (but a PNG whose EXIF may stand after the pixels).
        stream: The bytes.
        kind: The format of the content.
        size: As a viewer shows it.
        turn: The EXIF orientation that the decoded pixels still lack; Pillow obeys that of a TIFF by itself.
        upright: Nothing has to be turned, by whomever.
        deep: Pillow keeps only the upper eight bits of each value.
        white: The largest value that can be stored, which is white where it has 16 bits at most; 0: no value is.
        profile: The ICC profile.
        colours: The kind of colours that the profile describes.

    Raises:
        BadImage: It is empty or too large.
    """

    def __init__(self, data: bytes | memoryview, max_pixels: int, max_bytes: int | None = None) -> None:
        if not data:
            raise BadImage("bad-image", "empty, no image")
        self.stream, self._max_bytes = BytesIO(data), max_bytes
        image: Any = Image.open(self.stream, formats=IMAGE_FORMATS)
        self.image: Image.Image = image
        self.kind = "JPEG" if image.format == "MPO" else image.format
        width, height = image.size
        if self.kind == "TIFF":  # newer Pillows open it at the size that it will have when turned, older ones do not
            width, height = image.tag_v2[TiffImagePlugin.IMAGEWIDTH], image.tag_v2[TiffImagePlugin.IMAGELENGTH]
        if width * height > max_pixels:
            raise BadImage("image-too-large", f"{width:,} x {height:,} pixels, more than {max_pixels:,} in all")
        self.deep, self.white = _has_deep_colours(image), _white_value(image)
        if self.kind == "PNG":  # which may be decoded for its EXIF
            self.check_memory()
        profile = image.info.get("icc_profile")
        self.profile = profile if isinstance(profile, bytes) else None
        orientation = _read_orientation(image, self.stream)
        self.size = (height, width) if orientation >= FIRST_SIDEWAYS else (width, height)
        self.turn, self.upright = 1 if self.kind == "TIFF" else orientation, orientation == 1
        self.colours = colour_kind(image.mode)

    def check_memory(self, full: tuple[int, int] | None = None, *, turned: bool = False) -> None:
        """See that the pixels, and what is made of them on the way, take no more than they may.

        Args:
            full: Width and height in the file, where another size is decoded.
            turned: Whether the image will be turned afterwards.

        Raises:
            BadImage: They take more.
        """
        if self._max_bytes is None:
            return
        image: Any = self.image
        kind, held, (width, height) = self.kind, _BYTES_PER_PIXEL.get(image.mode, 4), image.size
        most = held + (5 if image.mode != "RGB" else 4 if turned else 3)  # on the way to RGB; turned; as an array
        most = _WEBP_BYTES_PER_PIXEL if kind == "WEBP" else max(3 * held, most) if kind in ("PPM", "BMP") else most
        size = width * height * most
        if kind == "TIFF":
            tags = image.tag_v2
            wide, high = tags.get(TiffImagePlugin.TILEWIDTH, width), tags.get(TiffImagePlugin.TILELENGTH, 0)
            rows = high or min(tags.get(TiffImagePlugin.ROWSPERSTRIP, height), height)
            bits = sum(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
            size = max(size, width * height * held + wide * rows * max(4, bits // 8))
        elif kind == "JPEG":
            wide, high = full or image.size
            progressive = width * height * held + wide * high * _COEFFICIENT_BYTES * len(image.getbands())
            # It is one if it has several scans, of a preview too.
            if progressive > self._max_bytes and self.stream.getvalue().count(b"\xff\xda") > 1:
                size = max(size, progressive)
        if size > self._max_bytes:
            found = f"{width:,} x {height:,} pixels of this {kind} may take {format_size(size)} to decode"
            raise BadImage("image-too-large", f"{found}, over {format_size(self._max_bytes)}")


def _read_orientation(image: Any, stream: BytesIO) -> int:
    """Return the EXIF orientation, 1 to 8: 1 where there is none, or none that can be read, as viewers have it."""
    if not may_have_exif(image, stream):
        return 1
    try:
        tags = image.tag_v2 if image.format == "TIFF" else image.getexif()
        value = tags.get(ORIENTATION_TAG)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - broken EXIF is common, raises nearly anything, and hides no pixel
        return 1
    return value if isinstance(value, int) and value in TRANSPOSES else 1


def may_have_exif(image: Any, stream: BytesIO) -> bool:
    """Tell whether an image may have EXIF; a PNG is decoded where that stands after the pixels."""
    if image.format != "PNG":
        return True
    data = stream.getvalue()
    if not any(name == b"eXIf" or data.startswith(_PNG_EXIF_KEYWORDS, start) for name, start in _png_chunks(data)):
        return False
    if "exif" not in image.info:
        image.load()
    return True


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the name of each chunk of a PNG that is there to its end, and where its payload starts."""
    offset = 8
    while (end := offset + 12 + int.from_bytes(data[offset : offset + 4], "big")) <= len(data):
        yield data[offset + 4 : offset + 8], offset + 8
        offset = end


def _has_deep_colours(image: Any) -> bool:
    """Tell whether Pillow keeps only the upper eight bits of each value, as it does of 16-bit colours."""
    if image.mode in WIDE_MODES or not image.tile:
        return False
    if image.format == "TIFF":
        bits = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))
        return bool(max(bits if isinstance(bits, tuple) else (bits,)) > _PILLOW_BITS)
    arguments = image.tile[0][3]  # the raw mode, or with more; of a PPM the raw mode and the largest value
    if isinstance(arguments, tuple):
        return image.format == "PPM" and isinstance(arguments[1], int) and arguments[1] >= 2**_PILLOW_BITS
    return ";16" in arguments


def _white_value(image: Any) -> int:
    """Return the largest value that can be stored, which is white; 0 where none is, or where 0 is white."""
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
    return "grey" if mode in GREY_MODES else mode if mode in ("CMYK", "LAB") else "RGB"


def decode_pixels(picture: OpenedImage, goal: tuple[int, int] | None) -> tuple[Image.Image, tuple[float, float]]:
    """Return the decoded image and the extent of its content, in pixels.

    A JPEG may come at a fraction of its size, not less than `goal`; its content then may end within its last pixels.
    """
    image: Any = picture.image
    whole, extent = image.size, None
    if goal and picture.kind == "JPEG":
        drafted = image.draft(None, goal)
        extent = drafted[1][2:] if drafted else None
    picture.check_memory(whole, turned=not picture.upright)
    strips = [tile[1] for tile in image.tile]
    image.load()
    if lacking := _missing_part(picture, strips):
        raise BadImage("truncated-image", f"the image ends too early: {lacking}")
    if picture.kind == "TIFF":
        image = image.copy()  # without the tags, which would be written again
    return image, extent or image.size


def _missing_part(picture: OpenedImage, strips: Sequence[tuple[int, int, int, int]]) -> str:
    """Return which part of a file is not there, where Pillow goes on without it; empty: all is.

    Args:
        picture: A decoded image.
        strips: The places of what was decoded.
    """
    data, image = picture.stream.getvalue(), picture.image
    if picture.kind == "PNG":
        if all(name != b"IEND" for name, _ in _png_chunks(data)):
            return "a PNG without its last chunk"
        last = image.crop((0, image.height - 1, *image.size)).tobytes()
        if last.count(0) == len(last) or image.info.get("interlace"):  # what no row was written to is 0
            return "" if _png_has_rows(data) else "a PNG of fewer rows than it says"
    if picture.kind == "GIF" and not _gif_has_end(data):
        return "a GIF of several frames without its end"
    if picture.kind == "TIFF" and strips:
        area = sum((right - left) * (bottom - top) for left, top, right, bottom in strips)
        return "a TIFF of fewer strips than it needs" if area < image.width * image.height else ""
    return ""


def _png_has_rows(data: bytes) -> bool:
    """Tell whether the pixels of a PNG unpack to as many bytes as its header says.

    Source: PNG (third edition), "Interlacing and pass extraction", "Filtering".
    """
    width, height, depth, colours, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    passes = _ADAM7_PASSES if interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - x) // right), -(-(height - y) // down)) for x, y, right, down in passes]
    bits = depth * _PNG_CHANNELS[colours]
    left: int = sum(high * (1 + (wide * bits + 7) // 8) for wide, high in sizes if wide > 0 and high > 0)
    unpacker = decompressobj()
    for start in [at for name, at in _png_chunks(data) if name == b"IDAT"]:
        end = start + int.from_bytes(data[start - 8 : start - 4], "big")
        for first in range(start, end, _PIECE_BYTES):
            piece = data[first : min(end, first + _PIECE_BYTES)]
            while piece and left > 0 and not unpacker.eof:
                left -= len(unpacker.decompress(piece, _PIECE_BYTES))
                piece = unpacker.unconsumed_tail
    return left <= 0


def _gif_has_end(data: bytes) -> bool:
    """Tell whether the blocks of a GIF go on to its end mark, which may be missing right behind the first frame.

    Source: GIF89a, sections 18 to 27.
    """

    def table(at: int) -> int:
        flags = int.from_bytes(data[at : at + 1], "big")
        return 3 << (flags & 7) + 1 if flags & 0x80 else 0

    at, frames, start = 13 + table(10), 0, b""
    while at < len(data) and data[at] != ord(";"):
        start, at = data[at : at + 1], at + 1
        if start == b",":
            frames, at = frames + 1, at + 10 + table(at + 8)
        elif start == b"!":
            at += 1
        else:
            continue
        while at < len(data) and data[at]:
            at += data[at] + 1
        at += 1
    return at < len(data) or (frames, start) == (1, b",")


def to_sixteen_bits(image: Image.Image) -> Image.Image:
    """Return the image as mode I, all of it in 16 bits."""
    if image.mode == "F":
        raise BadImage("image-depth", "floating-point values, which no rule turns into those of this format")
    image = image.convert("I")
    low, high = image.getextrema()
    if low < 0 or high > _MAX_16_BIT:  # type: ignore[operator]
        raise BadImage("image-depth", f"values from {low:,} to {high:,}, more than 16 bits hold")
    return image


def to_eight_bits(image: Image.Image, picture: OpenedImage) -> Image.Image:
    """Return grey in eight bits, what is white in it as 255.

    Raises:
        BadImage: Nothing says what is white: values are floats, signed, or more than 16 bits wide.
    """
    if not 0 < picture.white <= _MAX_16_BIT:
        what = "floats" if image.mode == "F" else "integers that are signed, of more than 16 bits, or with 0 as white"
        raise BadImage("image-depth", f"{what}, which no rule turns into colours")
    white = _MAX_16_BIT if picture.kind == "PPM" else picture.white  # Pillow has scaled that
    grey = to_sixteen_bits(image).point(_eight_bit_table(white), "L")
    grey.info.pop("transparency", None)  # a value of 16 bits
    return grey


@functools.cache
def _eight_bit_table(white: int) -> Sequence[int]:
    """Return the eight bits of each value, rounded; Pillow's own conversion clips at 255."""
    return [min(255, (2 * 255 * value + white) // (2 * white)) for value in range(_MAX_16_BIT + 1)]


def to_stored_values(image: Image.Image, picture: OpenedImage) -> Image.Image:
    """Return an image with the values that its file has, where Pillow has made others of them.

    Raises:
        BadImage: They cannot be had.
    """
    if picture.deep:
        raise BadImage("image-depth", "16 bits a colour, of which Pillow reads 8")
    white = picture.white
    if image.mode == "L" and not white:
        raise BadImage("image-depth", "signed values of 8 bits, which Pillow reads as unsigned ones")
    if image.mode == "I" and white > _MAX_16_BIT and image.getextrema()[0] < 0:  # type: ignore[operator]
        raise BadImage("image-depth", "values of 32 bits beyond 2,147,483,647, which Pillow reads as negative ones")
    if image.mode == "L" and white < 255:  # noqa: PLR2004 - what Pillow makes of the largest
        return image.point([(2 * white * value + 255) // 510 for value in range(256)])
    if image.mode == "I" and picture.kind == "PPM" and white < _MAX_16_BIT:
        return image.point(lambda value: value * (white / _MAX_16_BIT) + 0.5)
    return image


@contextmanager
def image_errors(data: bytes | memoryview) -> Iterator[None]:
    """Say of what Pillow raises in the block that the image is at fault.

    Raises:
        BadImage: It is.
    """
    try:
        yield
    except (BadImage, MemoryError):  # the pixels are bounded, so it is the machine that has too little
        raise
    except Exception as error:  # hostile bytes make Pillow raise nearly anything
        raise _image_error(error, data) from error


def _image_error(error: Exception, data: bytes | memoryview) -> BadImage:
    """Return Pillow's error as one of ours."""
    if isinstance(error, Image.DecompressionBombError):
        return BadImage("image-too-large", f"more pixels than can be decoded: {error}")
    if isinstance(error, UnidentifiedImageError):  # its own words have an address in memory, another on each run
        return BadImage("bad-image", "no JPEG, PNG, WebP, BMP, GIF, TIFF or PNM, or its header is damaged")
    text = str(error) or type(error).__name__
    riff = bytes(data[:4]) == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 > len(data)
    if riff or re.search(r"truncated|not enough|unexpected end|end of file|\bEOF\b", text, re.IGNORECASE):
        return BadImage("truncated-image", f"the image ends too early: {text}")
    return BadImage("bad-image", f"the image is damaged: {text}")
