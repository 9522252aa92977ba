"""Resize, encode and probe images: bytes in, bytes out.

`change_image` returns the same bytes object if there is nothing to do. Otherwise:

- Without `encode`, the format of the content is kept.
- The EXIF orientation is always obeyed: bytes that are kept keep their tag; otherwise the pixels are turned and the
  tag is removed. The ICC profile is kept unless the kind of colours (CMYK, grey, RGB) changes. EXIF, XMP and
  comments
  are removed.
- Values that may be labels or measurements are never blended and never lose bits unless requested. Modes 1, P, PA,
  I;16, I and F, and GIFs, are resampled with NEAREST and keep their mode in their own format and in PNG; so are the
  fields in `masks`. Others are resampled with LANCZOS, weighted by alpha. `encode` jpg or webp requests a
  photograph:
  palettes become colours, 16 bits become 8 (65535 becomes 255; for 12 bits, 4095 does), and jpg puts alpha on
  white.
  Images for which no rule is right are refused (`image-depth`).
- Several frames or pages pass unchanged or are refused (`animated-image`), never dropped.
- The same build of Pillow and its codecs always returns the same bytes.

Opens no files and starts no processes. For worker processes only: Python's warnings are off during `change_image`,
and libtiff may print a line about a damaged TIFF to stderr.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image
from PIL.Image import Resampling

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.names import IMAGE_ENDINGS
from shardtool.transform.image_decode import (
    FIRST_SIDEWAYS,
    GREY_MODES,
    MAX_PIXELS,
    PILLOW_READERS,
    TRANSPOSES,
    WIDE_MODES,
    BadImage,
    OpenedImage,
    colour_kind,
    decode_pixels,
    image_errors,
    to_eight_bits,
    to_sixteen_bits,
    to_stored_values,
)

if TYPE_CHECKING:
    from shardtool.values import ImageFormat, ResizeMode


for _name in PILLOW_READERS:
    import_module(f"PIL.{_name}ImagePlugin")


_PILLOW_FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}


_FORMAT_ENDINGS = {"jpg": ("jpg", "jpeg", "jpe", "jfif"), "png": ("png",), "webp": ("webp",)}


_MAX_SIDES = {"JPEG": 65_500, "WEBP": 16_383, "GIF": 65_535}  # pixels a side, of libjpeg, libwebp and the format


_LOSSY_FORMATS = ("JPEG", "WEBP")  # formats of photographs: eight bits, no palette


_LABEL_MODES = WIDE_MODES | {"1", "P", "PA"}


_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})


_FORMAT_MODES = {  # the modes that Pillow both reads from a format and writes to it; LAB's signed bands cannot be blended
    "PNG": frozenset({"1", "L", "LA", "P", "I;16", "RGB", "RGBA"}),
    "BMP": frozenset({"1", "L", "P", "RGB", "RGBA"}),
    "GIF": frozenset({"1", "L", "P"}),
    "TIFF": frozenset({"1", "L", "LA", "P", "PA", "I", "I;16", "F", "RGB", "RGBA", "CMYK"}),
    "PPM": frozenset({"1", "L", "I", "F", "RGB"}),
}


_LOSSLESS_TIFF_CODECS = frozenset({"raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate"})


_DEFAULT_QUALITY = 90


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
        longest = _MAX_SIDES.get(_PILLOW_FORMATS.get(self.encode or "", ""), self.max_pixels)
        for side in self.resize or ():
            if not 1 <= side <= longest:
                what = f" for {self.encode}" if longest < self.max_pixels else ""
                raise InvalidRequest(option_text("resize"), f"{side:,} pixels", expected=f"1 to {longest:,}{what}")

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
        if (
            encode is None
            or not self.applies(field)
            or ending not in IMAGE_ENDINGS
            or ending in _FORMAT_ENDINGS[encode]
        ):
            return field
        return field[: len(field) - len(ending)] + encode


class ImageInfo(NamedTuple):
    """An image as it is written.

    Attributes:
        width: As a viewer shows it, which obeys an EXIF orientation.
        height: As `width`.
        mode: Pillow's name of what a pixel is: `RGB`, `L`, `P`, `I;16` ...
    """

    width: int
    height: int
    mode: str


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


def change_image(data: bytes | memoryview, field: str, options: ImageOptions) -> tuple[bytes | memoryview, ImageInfo]:
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
    with warnings.catch_warnings(), image_errors(data):
        warnings.simplefilter("ignore")  # what Pillow warns of is refused here, or harmless
        return _change_image(data, field, options)


def _change_image(data: bytes | memoryview, field: str, options: ImageOptions) -> tuple[bytes | memoryview, ImageInfo]:
    picture = OpenedImage(data, options.max_pixels)
    fact = ImageInfo(*picture.size, picture.image.mode)
    encode = options.encoding(field)
    if not options.resize and not encode:
        return data, fact

    kind = _PILLOW_FORMATS[encode] if encode else picture.kind
    frame = _place_pixels(picture.size, options)
    as_wanted = kind == picture.kind and not (encode and fact.mode == "CMYK")
    if as_wanted and picture.upright and frame.scaled == frame.canvas == picture.size:
        decode_pixels(picture, (1, 1))
        return data, fact

    _check_output(picture, frame.canvas, kind, options.max_pixels)
    by_values = kind not in _LOSSY_FORMATS and (fact.mode in _LABEL_MODES or picture.kind == "GIF")
    nearest = by_values or field in options.masks
    image, extent = decode_pixels(picture, None if nearest else _draft_goal(picture, frame))
    if field in options.masks:
        image = to_stored_values(image, picture)
    image = (
        _to_photo_mode(image, kind, picture)
        if kind in _LOSSY_FORMATS
        else _to_format_mode(image, kind, nearest=nearest)
    )
    image = _resample(image, picture, frame, extent, Resampling.NEAREST if nearest else Resampling.LANCZOS)
    if picture.turn in TRANSPOSES:
        image = image.transpose(TRANSPOSES[picture.turn])
    if image.size != frame.canvas:
        image = _centre(image, frame.canvas)
    if kind == "WEBP" and image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("RGB")  # libwebp writes no alpha that does nothing
    return _encode_image(image, picture, kind, options.quality), ImageInfo(*image.size, image.mode)


class _Placement(NamedTuple):
    """The place of the pixels: the centred part `kept` is resampled to `scaled`, which is centred on `canvas`.

    All of it is in the orientation that a viewer shows.
    """

    kept: tuple[float, float]
    scaled: tuple[int, int]
    canvas: tuple[int, int]


def _place_pixels(size: tuple[int, int], options: ImageOptions) -> _Placement:
    width, height = size
    wide, high = options.resize or size
    if (width, height) == (wide, high) or (options.only_larger and width <= wide and height <= high):
        return _Placement(size, size, size)
    if options.resize_mode == "exact":
        target = (min(width, wide), min(height, high)) if options.only_larger else (wide, high)
        return _Placement(size, target, target)

    scaled = _scaled_size(size, (wide, high), cover=options.resize_mode in ("shorter", "crop"))
    if options.only_larger and (scaled[0] > width or scaled[1] > height):
        scaled = size
    if options.resize_mode == "pad":
        return _Placement(size, scaled, (wide, high))
    if options.resize_mode == "crop":
        canvas = (min(wide, scaled[0]), min(high, scaled[1]))
        if scaled == size:
            return _Placement(size, size, canvas)
        # Only what is kept is resampled: a strip of 1 x 60,000 that must cover a square would be a bomb.
        kept = (width, high * width / wide) if wide * height >= high * width else (wide * height / high, height)
        return _Placement(kept, canvas, canvas)
    return _Placement(size, scaled, scaled)


def _scaled_size(size: tuple[int, int], target: tuple[int, int], *, cover: bool) -> tuple[int, int]:
    """Return the size that covers `target`, or fits inside, at the same aspect ratio: rounded, and no side is 0."""
    (width, height), (wide, high) = size, target
    if (wide * height >= high * width) == cover:
        return wide, max(1, (2 * height * wide + width) // (2 * width))
    return max(1, (2 * width * high + height) // (2 * height)), high


def _check_output(picture: OpenedImage, canvas: tuple[int, int], kind: str, max_pixels: int) -> None:
    width, height = canvas
    if width * height > max_pixels or max(canvas) > _MAX_SIDES.get(kind, max_pixels):
        raise BadImage("image-too-large", f"would become {width:,} x {height:,} pixels: too many for {kind}, or at all")
    if picture.kind != "JPEG" and getattr(picture.image, "is_animated", False):
        raise BadImage("animated-image", f"several frames or pages ({picture.kind}), of which a change would keep one")
    if picture.deep and kind not in _LOSSY_FORMATS:
        found = "16 bits a colour, of which Pillow reads 8"
        raise BadImage("image-depth", f"{found}; encode it as jpg or webp if 8 will do, or leave the field out")


def _draft_goal(picture: OpenedImage, frame: _Placement) -> tuple[int, int] | None:
    """Return the least size that a JPEG may be decoded at."""
    goal = [
        int(_DRAFT_GAP * side * scaled / kept)
        for side, scaled, kept in zip(picture.size, frame.scaled, frame.kept, strict=True)
    ]
    return (goal[0], goal[1]) if picture.turn < FIRST_SIDEWAYS else (goal[1], goal[0])


def _to_photo_mode(image: Image.Image, kind: str, picture: OpenedImage) -> Image.Image:
    """Return the image in a mode of JPEG (L, RGB) or WebP (RGB, RGBA)."""
    grey = image.mode in GREY_MODES
    if image.mode in WIDE_MODES or not picture.white:
        image = to_eight_bits(image, picture)
    alpha = image.mode in _ALPHA_MODES or "transparency" in image.info
    if alpha and kind == "JPEG":
        image = image.convert("LA" if grey else "RGBA")
        white = Image.new("L" if grey else "RGB", image.size, "white")
        white.paste(image, mask=image)
        return white
    mode = ("RGBA" if alpha else "RGB") if kind == "WEBP" else "L" if grey else "RGB"
    return image if image.mode == mode else image.convert(mode)


def _to_format_mode(image: Image.Image, kind: str, *, nearest: bool) -> Image.Image:
    """Return the image in a mode that `kind` holds, the same one if possible."""
    if image.mode in WIDE_MODES - _FORMAT_MODES[kind]:
        return to_sixteen_bits(image).convert("I;16")
    if not nearest and "transparency" in image.info and image.mode in ("L", "RGB"):
        image = image.convert("LA" if image.mode == "L" else "RGBA")  # one colour that is transparent must not blend
    if image.mode in _FORMAT_MODES[kind]:
        return image
    if image.mode == "La":
        return image.convert("LA")
    return image.convert("RGBA" if image.mode in _ALPHA_MODES else "RGB")


def _resample(
    image: Image.Image, picture: OpenedImage, frame: _Placement, extent: tuple[float, float], resampling: Resampling
) -> Image.Image:
    """Return the image, still in its stored orientation, with what is kept at the size that it is scaled to."""
    size, kept, scaled = picture.size, frame.kept, frame.scaled
    if picture.turn >= FIRST_SIDEWAYS:
        size, kept, scaled = size[::-1], kept[::-1], scaled[::-1]
    if size == scaled == image.size:
        return image
    across, down = (extent[axis] * kept[axis] / size[axis] for axis in (0, 1))
    left, top = (extent[0] - across) / 2, (extent[1] - down) / 2
    box = (left, top, min(left + across, image.width), min(top + down, image.height))
    return image.resize(scaled, resampling, box, _REDUCING_GAP)


def _centre(image: Image.Image, canvas: tuple[int, int]) -> Image.Image:
    """Return the centre of the image, or the image in the centre, at the size of `canvas`."""
    left, top = (int((image.size[axis] - canvas[axis]) / 2) for axis in (0, 1))
    placed = image.crop((left, top, left + canvas[0], top + canvas[1]))  # beyond the image it is 0
    fill = _padding_colour(image)
    if fill and (left < 0 or top < 0):
        placed.paste(fill, (0, 0, *canvas))
        placed.paste(image, (-left, -top))
    return placed


def _padding_colour(image: Image.Image) -> int | tuple[int, ...]:
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


def _encode_image(image: Image.Image, picture: OpenedImage, kind: str, quality: int | None) -> bytes:
    """Return the image as a file of `kind`, with its ICC profile and without other metadata."""
    details: dict[str, object] = {}
    if kind == "WEBP" and picture.kind == "WEBP" and _is_lossless_webp(picture.stream.getvalue()):
        details["lossless"] = True
    elif kind in _LOSSY_FORMATS:
        details["quality"] = quality or _DEFAULT_QUALITY
    elif kind == "GIF":
        details["optimize"] = False  # it would number the colours anew
    elif kind == "TIFF":
        compression = picture.image.info.get("compression")
        details["compression"] = compression if compression in _LOSSLESS_TIFF_CODECS else "tiff_adobe_deflate"
    elif kind == "PNG" and image.mode == "P":
        _fill_palette(image)

    profile = picture.profile if colour_kind(image.mode) == picture.colours else None
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
