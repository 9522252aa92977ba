"""Resize, encode and probe images.

`change_image` returns its input if there is nothing to do. Otherwise:

- Images are turned upright. EXIF, XMP and comments are removed. The ICC profile is kept unless `colour_kind` changes.
- Values that may be labels or measurements are not blended. Modes 1, P, PA, I;16, I and F, GIFs, and fields in `masks`
  are resampled with NEAREST, and keep their mode if the format allows. Only `encode` to jpg or webp blends values.
- Other images are resampled with LANCZOS, weighted by alpha.
- `encode` to jpg or webp converts to 8 bits per colour. Palettes become colours, white becomes 255 for any bit depth,
  and jpg replaces transparency by white. Images without a defined white, such as floats, are refused (`image-depth`).
- Images with several frames or pages are refused (`animated-image`).
- The same build of Pillow and its codecs always returns the same bytes.

`change_image` is not thread-safe, because it changes Python's warning filters. libtiff may print to stderr.
"""

from __future__ import annotations

import logging
import warnings
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image
from PIL.Image import Resampling

from shardtool.dataclass import dataclass
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
# maximum pixels per side in libjpeg, libwebp and the GIF format
_MAX_SIDES = {"JPEG": 65_500, "WEBP": 16_383, "GIF": 65_535}
_LOSSY_FORMATS = ("JPEG", "WEBP")
_LABEL_MODES = WIDE_MODES | {"1", "P", "PA"}
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})

# Modes that Pillow reads and writes in each format, except LAB, whose signed bands cannot be blended.
_FORMAT_MODES = {
    "PNG": frozenset({"1", "L", "LA", "P", "I;16", "RGB", "RGBA"}),
    "BMP": frozenset({"1", "L", "P", "RGB", "RGBA"}),
    "GIF": frozenset({"1", "L", "P"}),
    "TIFF": frozenset({"1", "L", "LA", "P", "PA", "I", "I;16", "F", "RGB", "RGBA", "CMYK"}),
    "PPM": frozenset({"1", "L", "I", "F", "RGB"}),
}

_LOSSLESS_TIFF_CODECS = frozenset({"raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate"})
_DEFAULT_QUALITY = 90

# A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if the decoded image is still twice the target size. Compared with
# LANCZOS on all pixels, the PSNR of eight photographs is at least 43 dB. JPEG quality 90 loses more (29 to 38 dB).
_DRAFT_GAP = 2.0
# Before resampling, Pillow averages blocks of pixels. The averaged image is at least three times the target size.
_REDUCING_GAP = 3.0


logging.getLogger("PIL").addHandler(logging.NullHandler())  # do not print Pillow's warnings about damaged TIFFs


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The requested changes to images.

    Attributes:
        resize: Target width and height in pixels, in display orientation.
        resize_mode: `shorter` scales until the image covers `resize`. `longer` scales until the image fits inside.
            `exact` may change the aspect ratio. `crop` scales like `shorter`, then crops the centre. `pad` scales like
            `longer`, then adds borders. Borders are transparent if the written mode has alpha, otherwise black. If a
            palette lacks black, borders have the first colour of the palette.
        only_larger: Never enlarge. An image that fits in `resize` is not changed, even by `pad`. With `exact` or
            `crop`, a side that is shorter than its target keeps its length.
        encode: Output format. For `jpg`, CMYK JPEGs are re-encoded as RGB.
        fields: Image fields. If empty, fields with an image suffix are used.
        masks: Fields with label images. They are resampled with NEAREST, and never encoded as jpg or webp.
        max_pixels: Maximum pixels to read or write. Pillow's own limit also applies.
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
                expected = f"1 to {longest:,}{f' for {self.encode}' if longest < self.max_pixels else ''}"
                raise InvalidRequest(option_text("resize"), f"{side:,} pixels", expected=expected)

    def applies(self, field: str) -> bool:
        """Return whether `field` is an image to process."""
        if self.fields or field in self.masks:
            return field in self.fields or field in self.masks
        return _ending(field) in IMAGE_ENDINGS

    def encoding(self, field: str) -> ImageFormat | None:
        """Return the output format of `field`, or None to keep the format."""
        return None if field in self.masks and self.encode != "png" else self.encode

    def output_field(self, field: str) -> str:
        """Return the field name after encoding. For jpg, `seg.png` becomes `seg.jpg`, and `jpeg` stays `jpeg`."""
        encode, ending = self.encoding(field), _ending(field)
        if encode is None or not self.applies(field) or ending not in IMAGE_ENDINGS - {*_FORMAT_ENDINGS[encode]}:
            return field
        return field[: len(field) - len(ending)] + encode


class ImageInfo(NamedTuple):
    """The size (in display orientation) and Pillow mode of an output image."""

    width: int
    height: int
    mode: str


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


def change_image(data: bytes | memoryview, field: str, options: ImageOptions) -> tuple[bytes | memoryview, ImageInfo]:
    """Return the changed image and its `ImageInfo`.

    With `resize` or `encode`, always decode pixels, to detect damage.
    """
    with warnings.catch_warnings(), image_errors(data):
        warnings.simplefilter("ignore")  # Pillow raises an error for real damage
        return _change_image(data, field, options)


def _change_image(data: bytes | memoryview, field: str, options: ImageOptions) -> tuple[bytes | memoryview, ImageInfo]:
    picture = OpenedImage(data, options.max_pixels)
    info = ImageInfo(*picture.size, picture.image.mode)
    encode = options.encoding(field)
    if not options.resize and not encode:
        return data, info

    kind = _PILLOW_FORMATS[encode] if encode else picture.kind
    placement = _place_pixels(picture.size, options)
    is_kept_format = kind == picture.kind and not (encode and info.mode == "CMYK")
    if is_kept_format and picture.upright and placement.scaled == placement.canvas == picture.size:
        decode_pixels(picture, (1, 1))
        return data, info

    _check_output(picture, placement.canvas, kind, options.max_pixels)
    is_labels = kind not in _LOSSY_FORMATS and (info.mode in _LABEL_MODES or picture.kind == "GIF")
    nearest = is_labels or field in options.masks
    image, extent = decode_pixels(picture, None if nearest else _draft_goal(picture, placement))
    if field in options.masks:
        image = to_stored_values(image, picture)
    is_photo = kind in _LOSSY_FORMATS
    image = _to_photo_mode(image, kind, picture) if is_photo else _to_format_mode(image, kind, nearest=nearest)
    image = _resample(image, picture, placement, extent, Resampling.NEAREST if nearest else Resampling.LANCZOS)
    if picture.orientation in TRANSPOSES:
        image = image.transpose(TRANSPOSES[picture.orientation])
    if image.size != placement.canvas:
        image = _centre(image, placement.canvas)
    if kind == "WEBP" and image.mode == "RGBA" and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("RGB")  # report the stored mode, because libwebp drops an opaque alpha channel
    return _encode_image(image, picture, kind, options.quality), ImageInfo(*image.size, image.mode)


class _Placement(NamedTuple):
    kept: tuple[float, float]  # size of the area to keep, at the centre of the source
    scaled: tuple[int, int]  # size of this area after resampling
    canvas: tuple[int, int]  # size of the output, with this area at its centre


def _place_pixels(size: tuple[int, int], options: ImageOptions) -> _Placement:
    width, height = size
    target = target_width, target_height = options.resize or size
    smaller = min(width, target_width), min(height, target_height)
    if size == target or (options.only_larger and smaller == size):
        return _Placement(size, size, size)
    if options.resize_mode == "exact":
        target = smaller if options.only_larger else target
        return _Placement(size, target, target)

    scaled = _scaled_size(size, target, cover=options.resize_mode in ("shorter", "crop"))
    if options.only_larger and (scaled[0] > width or scaled[1] > height):
        scaled = size
    if options.resize_mode == "pad":
        return _Placement(size, scaled, target)
    if options.resize_mode == "crop":
        canvas = min(target_width, scaled[0]), min(target_height, scaled[1])
        if scaled == size:
            return _Placement(size, size, canvas)
        # Crop before scaling, because scaling a whole image of 1 x 60,000 pixels would need too much memory.
        kept: tuple[float, float] = (width, target_height * width / target_width)
        if target_width * height < target_height * width:
            kept = (target_width * height / target_height, height)
        return _Placement(kept, canvas, canvas)
    return _Placement(size, scaled, scaled)


def _scaled_size(size: tuple[int, int], target: tuple[int, int], *, cover: bool) -> tuple[int, int]:
    (width, height), (target_width, target_height) = size, target
    if (target_width * height >= target_height * width) == cover:
        return target_width, max(1, (2 * height * target_width + width) // (2 * width))
    return max(1, (2 * width * target_height + height) // (2 * height)), target_height


def _check_output(picture: OpenedImage, canvas: tuple[int, int], kind: str, max_pixels: int) -> None:
    width, height = canvas
    if width * height > max_pixels or max(canvas) > _MAX_SIDES.get(kind, max_pixels):
        found = f"would become {width:,} x {height:,} pixels, more than {kind} or the pixel limit allows"
        raise BadImage("image-too-large", found)
    if picture.kind != "JPEG" and getattr(picture.image, "is_animated", False):
        raise BadImage("animated-image", f"several frames or pages ({picture.kind}); a change would keep only one")
    if picture.has_deep_colours and kind not in _LOSSY_FORMATS:
        found = "16 bits per colour, but Pillow reads only 8"
        raise BadImage("image-depth", f"{found}; encode it as jpg or webp if 8 bits are enough, or exclude the field")


def _draft_goal(picture: OpenedImage, placement: _Placement) -> tuple[int, int] | None:
    goal = [
        int(_DRAFT_GAP * side * scaled / kept)
        for side, scaled, kept in zip(picture.size, placement.scaled, placement.kept, strict=True)
    ]
    return (goal[0], goal[1]) if picture.orientation < FIRST_SIDEWAYS else (goal[1], goal[0])


def _to_photo_mode(image: Image.Image, kind: str, picture: OpenedImage) -> Image.Image:
    grey = image.mode in GREY_MODES
    if image.mode in WIDE_MODES or not picture.white_value:
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
    if image.mode in WIDE_MODES - _FORMAT_MODES[kind]:
        return to_sixteen_bits(image).convert("I;16")
    if not nearest and "transparency" in image.info and image.mode in ("L", "RGB"):
        # Without an alpha channel, resampling would blend the transparent colour.
        image = image.convert("LA" if image.mode == "L" else "RGBA")
    if image.mode in _FORMAT_MODES[kind]:
        return image
    if image.mode == "La":
        return image.convert("LA")
    return image.convert("RGBA" if image.mode in _ALPHA_MODES else "RGB")


def _resample(
    image: Image.Image, picture: OpenedImage, placement: _Placement, extent: tuple[float, float], resampling: Resampling
) -> Image.Image:
    size, kept, scaled = picture.size, placement.kept, placement.scaled
    if picture.orientation >= FIRST_SIDEWAYS:
        size, kept, scaled = size[::-1], kept[::-1], scaled[::-1]
    if size == scaled == image.size:
        return image
    kept_width, kept_height = (extent[axis] * kept[axis] / size[axis] for axis in (0, 1))
    left, top = (extent[0] - kept_width) / 2, (extent[1] - kept_height) / 2
    box = (left, top, min(left + kept_width, image.width), min(top + kept_height, image.height))
    return image.resize(scaled, resampling, box, _REDUCING_GAP)


def _centre(image: Image.Image, canvas: tuple[int, int]) -> Image.Image:
    left, top = (int((image.size[axis] - canvas[axis]) / 2) for axis in (0, 1))
    # `crop` fills the area outside the image with 0.
    placed = image.crop((left, top, left + canvas[0], top + canvas[1]))
    fill = _padding_colour(image)
    if fill and (left < 0 or top < 0):
        placed.paste(fill, (0, 0, *canvas))
        placed.paste(image, (-left, -top))
    return placed


def _padding_colour(image: Image.Image) -> int | tuple[int, ...]:
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
    parameters: dict[str, object] = {}
    if kind == "WEBP" and picture.kind == "WEBP" and _is_lossless_webp(picture.stream.getvalue()):
        parameters["lossless"] = True
    elif kind in _LOSSY_FORMATS:
        parameters["quality"] = quality or _DEFAULT_QUALITY
    elif kind == "GIF":
        parameters["optimize"] = False  # optimization would renumber the colours
    elif kind == "TIFF":
        compression = picture.image.info.get("compression")
        parameters["compression"] = compression if compression in _LOSSLESS_TIFF_CODECS else "tiff_adobe_deflate"
    elif kind == "PNG" and image.mode == "P":
        _fill_palette(image)

    profile = picture.profile if colour_kind(image.mode) == picture.colours else None
    image.info = {name: value for name, value in image.info.items() if name == "transparency"}
    stream = BytesIO()
    image.save(stream, kind, icc_profile=profile, **parameters)
    return stream.getvalue()


def _fill_palette(image: Image.Image) -> None:
    """Extend a palette that lacks colours for some pixel values, because Pillow would use too few bits."""
    palette = image.getpalette() or []
    if image.getextrema()[1] >= len(palette) // 3:  # type: ignore[operator]
        image.putpalette(palette + [0] * (3 * 256 - len(palette)))


def _is_lossless_webp(data: bytes) -> bool:
    offset = 12
    while offset + 8 <= len(data):
        name, size = data[offset : offset + 4], int.from_bytes(data[offset + 4 : offset + 8], "little")
        if name in (b"VP8L", b"VP8 "):
            return name == b"VP8L"
        offset += 8 + size + size % 2
    return False
