"""Images: resize, encode, turn upright and probe, bytes in and bytes out; and JPEGs decoded fast, for readers.

`change` returns the very bytes that it was given wherever nothing is to be done. What it does otherwise:

- What an image is, its content says and not its name: `ImageNet/n02105855_2933.JPEG` is a PNG. Without `encode` the
  format of the content stays.
- Whatever is asked for, an EXIF orientation is obeyed: by its tag where the bytes stay as they are for want of a
  request, and otherwise in the pixels, without a tag. Of the metadata the ICC profile is kept, unless colours of
  another kind (CMYK, grey, RGB) are written than it describes; EXIF, XMP and comments are not.
- Values that may be labels or measurements are never blended, and never lose bits unless the request says so. Modes
  1, P, PA, I;16, I and F, and what comes out of a GIF, are resampled with NEAREST and keep their mode, in their own
  format and in PNG; so do the fields in `masks`, for labels that are plain grey or RGB. All else is resampled with
  LANCZOS, weighted by alpha. `encode` jpg or webp is what asks for a photograph: indices become colours and 16 bits
  become 8 (65535 becomes 255; of 12 bits, 4095 does) before they are blended, and alpha is laid on white for jpg. Where
  no rule is right, the image is refused (`image-depth`): 16-bit colours, which Pillow reads as 8 bits, unless jpg or
  webp is asked for; and floats, signed integers and those stored in more than 16 bits, whatever their values, where
  they would have to be scaled.
- Several frames or pages pass through or are refused (`animated-image`), never dropped. A JPEG's further pictures
  (MPO: previews, the other eye, a gain map) are no frames: viewers show the first, and so it is the image.
- What ends too early is refused (`truncated-image`), though its decoder be content. Not seen is a JPEG, a GIF or a fax
  (TIFF) whose compressed data say that they end where the rest of the rows is missing: their decoders fill it in.
- The same bytes come out on each call with the same build of Pillow and its codecs.

Pillow's decoders for other formats than these seven (that of EPS starts a program) are never tried. This module opens
no files and starts no processes, and it is for worker processes: while `change` runs, Python's warnings are off in the
whole process, and libtiff may write a line about a damaged TIFF to the process's stderr.

Source: the Pillow handbook, "Concepts" (modes, filters) and "Image file formats"; EXIF 2.32, tag 0x0112.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import struct
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from math import isfinite
from numbers import Rational
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from zlib import decompressobj

from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError
from PIL.Image import Resampling, Transpose

from shardtool.errors import InvalidRequest, printable
from shardtool.values import IMAGE_ENDINGS, ImageFormat, ResizeMode, show_size
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.skipped import SkipCode


Loss = Literal["grey bits", "colour bits", "pages"]  # what decoding to eight bits does not keep

# What Pillow refuses by itself: 0.7 GB for decoded RGB, which takes four bytes a pixel, in each worker. Its warning, at
# half of that, would stop images that are met in practice (a scanned A0 sheet at 300 dpi has 139 million pixels).
MAX_PIXELS = 2 * (1024**3 // 4 // 3)

# Pillow's readers: to import one registers its format, and one that is missing would make Pillow import all of them.
_READERS = ("Jpeg", "Png", "WebP", "Bmp", "Gif", "Tiff", "Ppm")
FORMATS = tuple(name.upper() for name in _READERS)
for _name in _READERS:
    import_module(f"PIL.{_name}ImagePlugin")
# What decoding may take in a reader: a scan of A0 at 300 dpi takes 0.97 GB (PNG, TIFF, JPEG), and 102 million pixels of
# a camera 1.02 GB as a progressive JPEG. As WebP it holds for 53 million pixels: libwebp keeps each four times.
MAX_BYTES = 2**30
_WEBP_BYTES = 20  # a pixel
_COEFFICIENT = 2  # bytes, a colour of a pixel, of a JPEG whose scans must be held
_KEPT_BITS = 8  # of each value
_KINDS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}
_ENDINGS = {"jpg": ("jpg", "jpeg", "jpe", "jfif"), "png": ("png",), "webp": ("webp",)}
_LONGEST = {"JPEG": 65_500, "WEBP": 16_383, "GIF": 65_535}  # pixels a side, of libjpeg, libwebp and the format

_LOSSY = ("JPEG", "WEBP")  # formats of photographs: eight bits, no palette
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # of a pixel in memory; else 4
_WIDE = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N", "F"})
_LABELS = _WIDE | {"1", "P", "PA"}
_GREY = frozenset({"1", "L", "LA", "La"}) | _WIDE
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_HELD = {  # the modes that Pillow both reads from a format and writes to it; LAB's signed bands cannot be blended
    "PNG": frozenset({"1", "L", "LA", "P", "I;16", "RGB", "RGBA"}),
    "BMP": frozenset({"1", "L", "P", "RGB", "RGBA"}),
    "GIF": frozenset({"1", "L", "P"}),
    "TIFF": frozenset({"1", "L", "LA", "P", "PA", "I", "I;16", "F", "RGB", "RGBA", "CMYK"}),
    "PPM": frozenset({"1", "L", "I", "F", "RGB"}),
}
_LOSSLESS_TIFF = frozenset({"raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate"})

_QUALITY = 90
_DEPTH = 0xFFFF
_ORIENTATION = 0x0112
_TURNS = {  # EXIF orientation: what shows the image upright
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
_LYING = 5  # orientations from here on swap width and height
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the type of its colours
_PIECE = 2**16  # bytes that are unpacked at a time
_PNG_TEXTS = (b"Raw profile type exif", b"XML:com.adobe.xmp")  # keywords of chunks that may hold the orientation

# A JPEG is decoded at 1/2, 1/4 or 1/8, and any image averaged first, to no less than this many times the target.
# Measured on eight photographs, 4 to 16 times smaller: 43 dB or nearer to LANCZOS on all of the pixels (50 dB is
# usual), where what JPEG 90 then loses by itself is at 29 to 38 dB; 4000 x 3000 to 512 takes a third of the time.
_DRAFT_GAP = 2.0
_REDUCING_GAP = 3.0

logging.getLogger("PIL").addHandler(logging.NullHandler())  # its remarks on damaged TIFFs belong on no terminal


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The changes that are asked for. With neither `resize` nor `encode` images are only probed.

    Attributes:
        resize: Width and height wanted, in pixels of the image as a viewer shows it.
        resize_mode: `shorter` scales until the image covers `resize` (256 x 256: the shorter side is 256), `longer`
            until it fits inside; both keep the aspect ratio, and `exact` does not. `crop` covers and cuts the centre
            out; `pad` fits and adds black, or what is transparent where the written mode has alpha; a palette that
            has neither gives its colour 0.
        only_larger: Never enlarge. An image within `resize` stays as it is, in all modes (`pad` adds nothing to it);
            a side that is shorter than wanted stays so.
        encode: The format to write. JPEGs that are CMYK are written anew for `jpg`, as RGB.
        quality: 1 to 100, of the JPEGs and lossy WebPs that are written; no reason to write one. PNG takes none.
        fields: The fields that are images; none for all whose last ending is an image's.
        masks: The fields that hold labels, whatever their mode says: resampled with NEAREST, and not encoded as jpg
            or webp.
        probe: Only return width, height and mode. Implied by all else.
        max_pixels: The most that an image may have, read or written. No more than Pillow's own limit.

    Raises:
        InvalidRequest: A side is out of range.
    """

    resize: tuple[int, int] | None = None
    resize_mode: ResizeMode = "shorter"
    only_larger: bool = False
    encode: ImageFormat | None = None
    quality: int | None = None
    fields: tuple[str, ...] = ()
    masks: tuple[str, ...] = ()
    probe: bool = False
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        longest = _LONGEST.get(_KINDS.get(self.encode or "", ""), self.max_pixels)
        for side in self.resize or ():
            if not 1 <= side <= longest:
                what = f" for {self.encode}" if longest < self.max_pixels else ""
                raise InvalidRequest(option("resize"), f"{side:,} pixels", expected=f"1 to {longest:,}{what}")

    def applies(self, field: str) -> bool:
        """Tell whether `field` is an image to be looked at."""
        if self.fields or field in self.masks:
            return field in self.fields or field in self.masks
        return _ending(field) in IMAGE_ENDINGS

    def encoding(self, field: str) -> ImageFormat | None:
        """Return the format in which `field` is written; None for that of its content."""
        return None if field in self.masks and self.encode != "png" else self.encode

    def output_field(self, field: str) -> str:
        """Return the field's name after encoding: `seg.png` becomes `seg.jpg`, `jpeg` stays `jpeg` for jpg.

        A field whose last ending is no image's keeps its name.
        """
        encode = self.encoding(field)
        ending = _ending(field)
        if encode is None or not self.applies(field) or ending not in IMAGE_ENDINGS or ending in _ENDINGS[encode]:
            return field
        return field[: len(field) - len(ending)] + encode


class ImageFact(NamedTuple):
    """An image as it is written.

    Attributes:
        width: As a viewer shows it, which obeys an EXIF orientation.
        height: As `width`.
        mode: Pillow's name of what a pixel is: `RGB`, `L`, `P`, `I;16` ...
    """

    width: int
    height: int
    mode: str


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


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


def change(data: bytes | memoryview, field: str, options: ImageOptions) -> tuple[bytes | memoryview, ImageFact]:
    """Return the image in `data` as asked for, and what it is then.

    It is `data` itself where there is nothing to do: the size, the format and the orientation are those wanted, or
    only a probe is. To probe reads the header only; otherwise the pixels are decoded even if nothing is to be done.

    Args:
        data: The bytes of a JPEG, PNG, WebP, BMP, GIF, TIFF or PNM.
        field: The field's name, which `options` speaks of.
        options: What is asked for.

    Raises:
        BadImage: The image is damaged, cut off or too large, or what is asked for would lose part of it.
    """
    with warnings.catch_warnings(), blamed(data):
        warnings.simplefilter("ignore")  # what Pillow warns of is refused here, or harmless
        return _change(data, field, options)


def pixels(
    data: bytes, *, least: tuple[int, int] | None = None, exact: bool = False, max_bytes: int = MAX_BYTES,
    on_loss: Callable[[Loss], None] | None = None,
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
    with blamed(data):
        picture = _Picture(data, MAX_PIXELS, max_bytes)
        losses = _losses(picture) if on_loss else ()
        image, _ = _decode(picture, least[::-1] if least and picture.turn >= _LYING else least)
    if exact:
        image = _as_stored(image, picture)
    elif image.mode in _WIDE or not picture.white:
        image = _eight_bits(image, picture)
    for loss in losses:
        cast("Callable[[Loss], None]", on_loss)(loss)
    return image.transpose(_TURNS[picture.turn]) if picture.turn in _TURNS else image


def _losses(picture: _Picture) -> Sequence[Loss]:
    """Return what eight bits of the first frame or page lack, without reading further frames.

    Further pictures of a JPEG are previews and the like, and those of a GIF would have to be read.
    """
    losses: list[Loss] = []
    if picture.deep or picture.image.mode in _WIDE:
        losses.append("colour bits" if picture.deep else "grey bits")
    if picture.kind in ("TIFF", "PNG", "WEBP") and getattr(picture.image, "is_animated", False):
        losses.append("pages")
    return losses


def as_rgb(image: Image.Image) -> Image.Image:
    """Return pixels of eight bits in mode RGB: alpha is left out, and a palette becomes its colours."""
    if image.mode == "RGB":
        return image
    image.info.pop("transparency", None)  # Pillow would warn that it is lost
    return image.convert("RGB")


def _change(data: bytes | memoryview, field: str, options: ImageOptions) -> tuple[bytes | memoryview, ImageFact]:
    picture = _Picture(data, options.max_pixels)
    fact = ImageFact(*picture.size, picture.image.mode)
    encode = options.encoding(field)
    if not options.resize and not encode:
        return data, fact

    kind = _KINDS[encode] if encode else picture.kind
    frame = _frame(picture.size, options)
    as_wanted = kind == picture.kind and not (encode and fact.mode == "CMYK")
    if as_wanted and picture.upright and frame.scaled == frame.canvas == picture.size:
        _decode(picture, (1, 1))
        return data, fact

    _check_output(picture, frame.canvas, kind, options.max_pixels)
    by_values = kind not in _LOSSY and (fact.mode in _LABELS or picture.kind == "GIF")
    nearest = by_values or field in options.masks
    image, extent = _decode(picture, None if nearest else _draft_goal(picture, frame))
    if field in options.masks:
        image = _as_stored(image, picture)
    image = _as_photo(image, kind, picture) if kind in _LOSSY else _as_held(image, kind, nearest=nearest)
    image = _resample(image, picture, frame, extent, Resampling.NEAREST if nearest else Resampling.LANCZOS)
    if picture.turn in _TURNS:
        image = image.transpose(_TURNS[picture.turn])
    if image.size != frame.canvas:
        image = _place(image, frame.canvas)
    if kind == "WEBP" and image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("RGB")  # libwebp writes no alpha that does nothing
    return _encode(image, picture, kind, options.quality), ImageFact(*image.size, image.mode)


class _Picture:
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
        image: Any = Image.open(self.stream, formats=FORMATS)
        self.image: Image.Image = image
        self.kind = "JPEG" if image.format == "MPO" else image.format
        width, height = image.size
        if self.kind == "TIFF":  # newer Pillows open it at the size that it will have when turned, older ones do not
            width, height = image.tag_v2[TiffImagePlugin.IMAGEWIDTH], image.tag_v2[TiffImagePlugin.IMAGELENGTH]
        if width * height > max_pixels:
            raise BadImage("image-too-large", f"{width:,} x {height:,} pixels, more than {max_pixels:,} in all")
        self.deep, self.white = _is_deep(image), _white(image)
        if self.kind == "PNG":  # which may be decoded for its EXIF
            self.check_memory()
        profile = image.info.get("icc_profile")
        self.profile = profile if isinstance(profile, bytes) else None
        orientation = _orientation(image, self.stream)
        self.size = (height, width) if orientation >= _LYING else (width, height)
        self.turn, self.upright = 1 if self.kind == "TIFF" else orientation, orientation == 1
        self.colours = _colours(image.mode)

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
        kind, held, (width, height) = self.kind, _BYTES.get(image.mode, 4), image.size
        most = held + (5 if image.mode != "RGB" else 4 if turned else 3)  # on the way to RGB; turned; as an array
        most = _WEBP_BYTES if kind == "WEBP" else max(3 * held, most) if kind in ("PPM", "BMP") else most
        size = width * height * most
        if kind == "TIFF":
            tags = image.tag_v2
            wide, high = tags.get(TiffImagePlugin.TILEWIDTH, width), tags.get(TiffImagePlugin.TILELENGTH, 0)
            rows = high or min(tags.get(TiffImagePlugin.ROWSPERSTRIP, height), height)
            bits = sum(tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))
            size = max(size, width * height * held + wide * rows * max(4, bits // 8))
        elif kind == "JPEG":
            wide, high = full or image.size
            progressive = width * height * held + wide * high * _COEFFICIENT * len(image.getbands())
            # It is one if it has several scans, of a preview too.
            if progressive > self._max_bytes and self.stream.getvalue().count(b"\xff\xda") > 1:
                size = max(size, progressive)
        if size > self._max_bytes:
            found = f"{width:,} x {height:,} pixels of this {kind} may take {show_size(size)} to decode"
            raise BadImage("image-too-large", f"{found}, over {show_size(self._max_bytes)}")


def _orientation(image: Any, stream: BytesIO) -> int:
    """Return the EXIF orientation, 1 to 8: 1 where there is none, or none that can be read, as viewers have it."""
    if not _may_have_exif(image, stream):
        return 1
    try:
        tags = image.tag_v2 if image.format == "TIFF" else image.getexif()
        value = tags.get(_ORIENTATION)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - broken EXIF is common, raises nearly anything, and hides no pixel
        return 1
    return value if isinstance(value, int) and value in _TURNS else 1


def _may_have_exif(image: Any, stream: BytesIO) -> bool:
    """Tell whether an image may have EXIF; a PNG is decoded where that stands after the pixels."""
    if image.format != "PNG":
        return True
    data = stream.getvalue()
    if not any(name == b"eXIf" or data.startswith(_PNG_TEXTS, start) for name, start in _png_chunks(data)):
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


def _is_deep(image: Any) -> bool:
    """Tell whether Pillow keeps only the upper eight bits of each value, as it does of 16-bit colours."""
    if image.mode in _WIDE or not image.tile:
        return False
    if image.format == "TIFF":
        bits = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))
        return bool(max(bits if isinstance(bits, tuple) else (bits,)) > _KEPT_BITS)
    arguments = image.tile[0][3]  # the raw mode, or with more; of a PPM the raw mode and the largest value
    if isinstance(arguments, tuple):
        return image.format == "PPM" and isinstance(arguments[1], int) and arguments[1] >= 2**_KEPT_BITS
    return ";16" in arguments


def _white(image: Any) -> int:
    """Return the largest value that can be stored, which is white; 0 where none is, or where 0 is white."""
    arguments = image.tile[0][3] if image.tile else ""
    if image.format == "TIFF":
        bits = image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,))[0]
        unsigned = image.tag_v2.get(TiffImagePlugin.SAMPLEFORMAT, (1,))[0] == 1
        inverted = image.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0 and bits > _KEPT_BITS
        return 2**bits - 1 if unsigned and not inverted else 0
    if image.format == "PPM" and isinstance(arguments, tuple):
        return 0 if image.mode == "F" else arguments[1]
    if image.mode == "F":
        return 0
    return {"L;2": 3, "L;4": 15}.get(arguments, _DEPTH if image.mode in _WIDE else 255)


def _colours(mode: str) -> str:
    return "grey" if mode in _GREY else mode if mode in ("CMYK", "LAB") else "RGB"


class _Frame(NamedTuple):
    """The place of the pixels: the centred part `kept` is resampled to `scaled`, which is centred on `canvas`.

    All of it is in the orientation that a viewer shows.
    """

    kept: tuple[float, float]
    scaled: tuple[int, int]
    canvas: tuple[int, int]


def _frame(size: tuple[int, int], options: ImageOptions) -> _Frame:
    width, height = size
    wide, high = options.resize or size
    if (width, height) == (wide, high) or (options.only_larger and width <= wide and height <= high):
        return _Frame(size, size, size)
    if options.resize_mode == "exact":
        target = (min(width, wide), min(height, high)) if options.only_larger else (wide, high)
        return _Frame(size, target, target)

    scaled = _scale(size, (wide, high), cover=options.resize_mode in ("shorter", "crop"))
    if options.only_larger and (scaled[0] > width or scaled[1] > height):
        scaled = size
    if options.resize_mode == "pad":
        return _Frame(size, scaled, (wide, high))
    if options.resize_mode == "crop":
        canvas = (min(wide, scaled[0]), min(high, scaled[1]))
        if scaled == size:
            return _Frame(size, size, canvas)
        # Only what is kept is resampled: a strip of 1 x 60,000 that must cover a square would be a bomb.
        kept = (width, high * width / wide) if wide * height >= high * width else (wide * height / high, height)
        return _Frame(kept, canvas, canvas)
    return _Frame(size, scaled, scaled)


def _scale(size: tuple[int, int], target: tuple[int, int], *, cover: bool) -> tuple[int, int]:
    """Return the size that covers `target`, or fits inside, at the same aspect ratio: rounded, and no side is 0."""
    (width, height), (wide, high) = size, target
    if (wide * height >= high * width) == cover:
        return wide, max(1, (2 * height * wide + width) // (2 * width))
    return max(1, (2 * width * high + height) // (2 * height)), high


def _check_output(picture: _Picture, canvas: tuple[int, int], kind: str, max_pixels: int) -> None:
    width, height = canvas
    if width * height > max_pixels or max(canvas) > _LONGEST.get(kind, max_pixels):
        raise BadImage("image-too-large", f"would become {width:,} x {height:,} pixels: too many for {kind}, or at all")
    if picture.kind != "JPEG" and getattr(picture.image, "is_animated", False):
        raise BadImage("animated-image", f"several frames or pages ({picture.kind}), of which a change would keep one")
    if picture.deep and kind not in _LOSSY:
        found = "16 bits a colour, of which Pillow reads 8"
        raise BadImage("image-depth", f"{found}; encode it as jpg or webp if 8 will do, or leave the field out")


def _draft_goal(picture: _Picture, frame: _Frame) -> tuple[int, int] | None:
    """Return the least size that a JPEG may be decoded at."""
    goal = [
        int(_DRAFT_GAP * side * scaled / kept)
        for side, scaled, kept in zip(picture.size, frame.scaled, frame.kept, strict=True)
    ]
    return (goal[0], goal[1]) if picture.turn < _LYING else (goal[1], goal[0])


def _decode(picture: _Picture, goal: tuple[int, int] | None) -> tuple[Image.Image, tuple[float, float]]:
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
    if lacking := _lacking(picture, strips):
        raise BadImage("truncated-image", f"the image ends too early: {lacking}")
    if picture.kind == "TIFF":
        image = image.copy()  # without the tags, which would be written again
    return image, extent or image.size


def _lacking(picture: _Picture, strips: Sequence[tuple[int, int, int, int]]) -> str:
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
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    sizes = [(-(-(width - x) // right), -(-(height - y) // down)) for x, y, right, down in passes]
    bits = depth * _PNG_CHANNELS[colours]
    left: int = sum(high * (1 + (wide * bits + 7) // 8) for wide, high in sizes if wide > 0 and high > 0)
    unpacker = decompressobj()
    for start in [at for name, at in _png_chunks(data) if name == b"IDAT"]:
        end = start + int.from_bytes(data[start - 8 : start - 4], "big")
        for first in range(start, end, _PIECE):
            piece = data[first : min(end, first + _PIECE)]
            while piece and left > 0 and not unpacker.eof:
                left -= len(unpacker.decompress(piece, _PIECE))
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


def _as_photo(image: Image.Image, kind: str, picture: _Picture) -> Image.Image:
    """Return the image in a mode of JPEG (L, RGB) or WebP (RGB, RGBA)."""
    grey = image.mode in _GREY
    if image.mode in _WIDE or not picture.white:
        image = _eight_bits(image, picture)
    alpha = image.mode in _ALPHA or "transparency" in image.info
    if alpha and kind == "JPEG":
        image = image.convert("LA" if grey else "RGBA")
        white = Image.new("L" if grey else "RGB", image.size, "white")
        white.paste(image, mask=image)
        return white
    mode = ("RGBA" if alpha else "RGB") if kind == "WEBP" else "L" if grey else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _as_held(image: Image.Image, kind: str, *, nearest: bool) -> Image.Image:
    """Return the image in a mode that `kind` holds, the same one if possible."""
    if image.mode in _WIDE - _HELD[kind]:
        return _sixteen_bits(image).convert("I;16")
    if not nearest and "transparency" in image.info and image.mode in ("L", "RGB"):
        image = image.convert("LA" if image.mode == "L" else "RGBA")  # one colour that is transparent must not blend
    if image.mode in _HELD[kind]:
        return image
    if image.mode == "La":
        return image.convert("LA")
    return image.convert("RGBA" if image.mode in _ALPHA else "RGB")


def _sixteen_bits(image: Image.Image) -> Image.Image:
    """Return the image as mode I, all of it in 16 bits."""
    if image.mode == "F":
        raise BadImage("image-depth", "floating-point values, which no rule turns into those of this format")
    image = image.convert("I")
    low, high = image.getextrema()
    if low < 0 or high > _DEPTH:  # type: ignore[operator]
        raise BadImage("image-depth", f"values from {low:,} to {high:,}, more than 16 bits hold")
    return image


def _eight_bits(image: Image.Image, picture: _Picture) -> Image.Image:
    """Return grey in eight bits, what is white in it as 255.

    Raises:
        BadImage: Nothing says what is white: values are floats, signed, or more than 16 bits wide.
    """
    if not 0 < picture.white <= _DEPTH:
        what = "floats" if image.mode == "F" else "integers that are signed, of more than 16 bits, or with 0 as white"
        raise BadImage("image-depth", f"{what}, which no rule turns into colours")
    white = _DEPTH if picture.kind == "PPM" else picture.white  # Pillow has scaled that
    grey = _sixteen_bits(image).point(_eight_bit_table(white), "L")
    grey.info.pop("transparency", None)  # a value of 16 bits
    return grey


@functools.cache
def _eight_bit_table(white: int) -> Sequence[int]:
    """Return the eight bits of each value, rounded; Pillow's own conversion clips at 255."""
    return [min(255, (2 * 255 * value + white) // (2 * white)) for value in range(_DEPTH + 1)]


def _as_stored(image: Image.Image, picture: _Picture) -> Image.Image:
    """Return an image with the values that its file has, where Pillow has made others of them.

    Raises:
        BadImage: They cannot be had.
    """
    if picture.deep:
        raise BadImage("image-depth", "16 bits a colour, of which Pillow reads 8")
    white = picture.white
    if image.mode == "L" and not white:
        raise BadImage("image-depth", "signed values of 8 bits, which Pillow reads as unsigned ones")
    if image.mode == "I" and white > _DEPTH and image.getextrema()[0] < 0:  # type: ignore[operator]
        raise BadImage("image-depth", "values of 32 bits beyond 2,147,483,647, which Pillow reads as negative ones")
    if image.mode == "L" and white < 255:  # noqa: PLR2004 - what Pillow makes of the largest
        return image.point([(2 * white * value + 255) // 510 for value in range(256)])
    if image.mode == "I" and picture.kind == "PPM" and white < _DEPTH:
        return image.point(lambda value: value * (white / _DEPTH) + 0.5)
    return image


def _resample(
    image: Image.Image, picture: _Picture, frame: _Frame, extent: tuple[float, float], resampling: Resampling
) -> Image.Image:
    """Return the image, still in its stored orientation, with what is kept at the size that it is scaled to."""
    size, kept, scaled = picture.size, frame.kept, frame.scaled
    if picture.turn >= _LYING:
        size, kept, scaled = size[::-1], kept[::-1], scaled[::-1]
    if size == scaled == image.size:
        return image
    across, down = (extent[axis] * kept[axis] / size[axis] for axis in (0, 1))
    left, top = (extent[0] - across) / 2, (extent[1] - down) / 2
    box = (left, top, min(left + across, image.width), min(top + down, image.height))
    return image.resize(scaled, resampling, box, _REDUCING_GAP)


def _place(image: Image.Image, canvas: tuple[int, int]) -> Image.Image:
    """Return the centre of the image, or the image in the centre, at the size of `canvas`."""
    left, top = (int((image.size[axis] - canvas[axis]) / 2) for axis in (0, 1))
    placed = image.crop((left, top, left + canvas[0], top + canvas[1]))  # beyond the image it is 0
    fill = _padding(image)
    if fill and (left < 0 or top < 0):
        placed.paste(fill, (0, 0, *canvas))
        placed.paste(image, (-left, -top))
    return placed


def _padding(image: Image.Image) -> int | tuple[int, ...]:
    """Return what is transparent, or else black, in the image's mode; 0 if its palette has neither."""
    if image.mode == "CMYK":
        return (0, 0, 0, 255)
    if image.mode != "P":
        return 0
    transparency = image.info.get("transparency")
    if isinstance(transparency, int):
        return transparency
    if isinstance(transparency, bytes) and 0 in transparency:
        return transparency.index(0)
    palette = image.getpalette() or []
    colours = list(zip(*[iter(palette)] * 3, strict=True))
    return colours.index((0, 0, 0)) if (0, 0, 0) in colours else 0


def _encode(image: Image.Image, picture: _Picture, kind: str, quality: int | None) -> bytes:
    """Return the image as a file of `kind`, with its ICC profile and without other metadata."""
    details: dict[str, object] = {}
    if kind == "WEBP" and picture.kind == "WEBP" and _is_lossless_webp(picture.stream.getvalue()):
        details["lossless"] = True
    elif kind in _LOSSY:
        details["quality"] = quality or _QUALITY
    elif kind == "GIF":
        details["optimize"] = False  # it would number the colours anew
    elif kind == "TIFF":
        compression = picture.image.info.get("compression")
        details["compression"] = compression if compression in _LOSSLESS_TIFF else "tiff_adobe_deflate"
    elif kind == "PNG" and image.mode == "P":
        _fill_palette(image)

    profile = picture.profile if _colours(image.mode) == picture.colours else None
    image.info = {name: value for name, value in image.info.items() if name == "transparency"}
    stream = BytesIO()
    image.save(stream, kind, icc_profile=profile, **details)
    return stream.getvalue()


def _fill_palette(image: Image.Image) -> None:
    """Give each index that is used a colour: Pillow's PNG writer cuts indices to the bits that the palette needs."""
    palette = image.getpalette() or []
    if image.getextrema()[1] >= len(palette) // 3:  # type: ignore[operator]
        image.putpalette(palette + [0] * (3 * 256 - len(palette)))


def _is_lossless_webp(data: bytes) -> bool:
    """Tell whether the first bitstream in a WebP's chunks is a lossless one."""
    offset = 12
    while offset + 8 <= len(data):
        name, size = data[offset : offset + 4], int.from_bytes(data[offset + 4 : offset + 8], "little")
        if name in (b"VP8L", b"VP8 "):
            return name == b"VP8L"
        offset += 8 + size + size % 2
    return False


@contextmanager
def blamed(data: bytes | memoryview) -> Iterator[None]:
    """Say of what Pillow raises in the block that the image is at fault.

    Raises:
        BadImage: It is.
    """
    try:
        yield
    except (BadImage, MemoryError):  # the pixels are bounded, so it is the machine that has too little
        raise
    except Exception as error:  # hostile bytes make Pillow raise nearly anything
        raise _blame(error, data) from error


def _blame(error: Exception, data: bytes | memoryview) -> BadImage:
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


_GPS = {"latitude": (1, 2, "S", 90), "longitude": (3, 4, "W", 180)}  # hemisphere, degrees, which is minus, the most
_OF_IMAGE = (270, 271, 272, 274, 282, 283, 296, 305, 306, 315, 33432)  # others of a TIFF say where pixels lie
_LONGEST_TEXT, _MOST_VALUES = 1024, 16  # of a tag: makers' notes and previews have more


def exif(data: bytes | memoryview) -> str | None:
    """Return the EXIF of an image as a JSON object, by the names of tags; None where it has none that can be read.

    `latitude` and `longitude` are in degrees. What is no number or text, or is long, is left out.

    Source: EXIF 2.32; Pillow's `ExifTags` for the names.
    """
    found: dict[str, object] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stream = BytesIO(data)
            image: Any = Image.open(stream, formats=FORMATS)
            tags = image.getexif() if _may_have_exif(image, stream) else Image.Exif()
            found = {ExifTags.TAGS[tag]: _plain(tags.get(tag)) for tag in _OF_IMAGE}
            of_camera = tags.get_ifd(ExifTags.IFD.Exif).items()
            found |= {ExifTags.TAGS.get(tag, ""): _plain(value) for tag, value in of_camera}
            found |= _position(tags.get_ifd(ExifTags.IFD.GPSInfo))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001, S110 - broken EXIF is common, raises nearly anything, and hides no pixel
        pass
    found = {name: value for name, value in found.items() if name and value is not None}
    return json.dumps(found, sort_keys=True, ensure_ascii=False) if found else None


def _plain(value: object) -> object:
    """Return a tag's value as JSON has it; None where that has no such value."""
    if isinstance(value, str):
        text = value.strip("\0 ")
        return text if 0 < len(text) <= _LONGEST_TEXT else None
    if isinstance(value, tuple) and len(value) <= _MOST_VALUES:
        values = [*map(_plain, value)]
        return None if None in values else values
    if isinstance(value, int | float | Rational) and isfinite(number := float(value)):
        return int(number) if number.is_integer() else number
    return None


def _position(tags: Mapping[int, Any]) -> dict[str, object]:
    """Return where an image was taken, in degrees, as far as tags of GPS say that."""
    found: dict[str, object] = {}
    for name, (side, angle, minus, most) in _GPS.items():
        match _plain(tags.get(angle)):
            case [int() | float() as degrees, int() | float() as minutes, int() | float() as seconds]:
                value = round(degrees + minutes / 60 + seconds / 3600, 6)
                if 0 <= value <= most:
                    found[name] = -value if tags.get(side) == minus else value
    return found


# JPEGs decoded by libjpeg-turbo itself: the pixels that Pillow gives, in three quarters of its time.
#
# The package simplejpeg calls it. What it is for is plain: eight bits, grey or three colours, upright. `decoded_jpeg`
# returns None for all else, and where there is no simplejpeg: the rules above, and Pillow, are for that.
#
# - What decoding may take is known from the header before any memory is given; a JPEG near its bound is Pillow's, too.
# - What libjpeg warns of is decoded anew by Pillow, which knows what to refuse: a file that ends too early, where
#   libjpeg fills in what is missing. One warning is meant to be: that more comes behind the rows that `cut_jpeg`
#   leaves. Then the file must end with the mark of its end, so that its data do not end before.
#
# Source: ITU T.81, B.1.1.3 and B.2.2 (markers, frame header), B.2.4.2 (sampling factors); TIFF 6.0, section 2 (tags).


_BASELINE, _PROGRESSIVE = (0xC0, 0xC1), 0xC2
_SEGMENTS = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # tables, comments: each has a length, for every reader
_APP1 = 0xE1
_BITS, _CHANNELS = 8, (1, 3)
_BLOCK = 8  # pixels a side
_END = b"\xff\xd9"
_REST = "extraneous bytes before marker 0xd"  # of an end or a restart; a fault that ends decoding has its own words
_PIXEL = 9  # bytes that one may take: three colours, and their coefficients where all scans are held
_MARGIN = 32  # pixels that blocks may reach beyond each side
_FRACTIONS = (8, 4, 2)

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


def read_jpeg_head(data: bytes) -> JpegHead | None:
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
            plain = data[at + 4] == _BITS and data[at + 9] in _CHANNELS
            return JpegHead(at + 5, width, height, rows, marker != _PROGRESSIVE, plain)
        if marker not in _SEGMENTS:
            return None
        if marker == _APP1:
            noted += data[at + 4 : end]
        at = end
    return None


def cut_jpeg(data: bytes, head: JpegHead, rows: int) -> tuple[bytes, JpegHead]:
    """Return a baseline JPEG of the first rows alone, by another height in its header, and its head."""
    lower = b"".join((data[: head.at], rows.to_bytes(2, "big"), data[head.at + 2 :]))
    return lower, head._replace(height=rows, whole=False)


def decoded_jpeg(
    data: bytes, head: JpegHead | None = None, *, least: tuple[int, int] | None = None, max_bytes: int = MAX_BYTES
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
    head = head or (read_jpeg_head(data) if decode else None)
    if decode is None or head is None or not head.plain:
        return None
    width, height = head.width, head.height
    taken = (width + _MARGIN) * (height + _MARGIN) * _PIXEL
    if taken > max_bytes or width * height > MAX_PIXELS:
        return None
    if least and (scale := min(width // least[0], height // least[1])) > 1 and min(width, height) >= _BLOCK:
        fraction = next(one for one in _FRACTIONS if scale >= one)
        width, height = -(-width // fraction), -(-height // fraction)
    found = np.empty((height, width, 3), np.uint8)
    try:
        decode(data, buffer=found, min_height=height, min_width=width)
    except ValueError as error:
        if head.whole or _REST not in str(error) or data[-2:] != _END:
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
    if len(_TAG.findall(noted)) == sum(map(noted.count, _UPRIGHT)):
        return True
    try:
        with Image.open(BytesIO(data), formats=["JPEG"]) as image:
            return bool(image.getexif().get(_ORIENTATION, 1) == 1)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - hostile bytes make Pillow raise nearly anything: they are decoded by the rules
        return False
