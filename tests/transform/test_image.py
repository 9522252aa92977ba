"""`change_image` returns the changed image, or the same bytes if nothing has to change."""

from __future__ import annotations

import functools
import pickle
import struct
import subprocess
import sys
import warnings
import zlib
from contextlib import nullcontext, suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms
from PIL.Image import Transpose

from shardtool import CreateOptions
from shardtool.errors import InvalidRequest
from shardtool.transform.image import ImageInfo, ImageOptions, change_image
from shardtool.transform.image_decode import BadImage
from shardtool.transform.image_decode import decode_image as decoded_pixels
from tests.helpers import ENVIRONMENT, PHOTOS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.values import ResizeMode

    Size = tuple[int, int]
    Array = np.ndarray[Any, Any]

RED, GREEN, BLUE, GREY = (250, 10, 10), (10, 250, 10), (10, 10, 250), (200, 200, 200)
ORIENTATION = 0x0112
LAID = {  # EXIF orientation: how an upright image is stored
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_270,
}
EVERYTHING = [
    ImageOptions(probe=True),
    ImageOptions(resize=(20, 20)),
    ImageOptions(resize=(30, 17), resize_mode="crop", encode="jpg"),
    ImageOptions(resize=(64, 64), resize_mode="pad", encode="png"),
    ImageOptions(resize=(32, 24), resize_mode="exact"),
    ImageOptions(resize=(9, 9), resize_mode="longer", masks=("img",)),
    ImageOptions(encode="webp"),
]


def file_of(image: Image.Image, kind: str, **details: Any) -> bytes:
    """Return an image as a file. A GIF has its own palette."""
    details = {"optimize": False, **details} if kind == "GIF" else details
    stream = BytesIO()
    image.save(stream, kind, **details)
    return stream.getvalue()


def opened(data: bytes | memoryview) -> Image.Image:
    """Return the decoded image."""
    image = Image.open(BytesIO(data))
    image.load()
    return image


def pixels(data: bytes | memoryview) -> Array:
    """Return the decoded values."""
    return np.asarray(opened(data))


def four_corners(size: Size = (48, 32)) -> Image.Image:
    """Return an image of four quarters: red and green above, blue and grey below."""
    image = Image.new("RGB", (2, 2))
    for at, colour in {(0, 0): RED, (1, 0): GREEN, (0, 1): BLUE, (1, 1): GREY}.items():
        image.putpixel(at, colour)
    return image.resize(size, Image.Resampling.NEAREST)


@functools.cache
def photo(size: Size = (64, 48)) -> Image.Image:
    """Return a photograph at this size."""
    return opened((PHOTOS / "cat" / "cat-0001.jpg").read_bytes()).resize(size, Image.Resampling.LANCZOS)


def deep(size: Size) -> Image.Image:
    """Return an image of 16-bit grey, from black to white."""
    values = np.linspace(0, 65535, size[0] * size[1]).round().astype("<u2")
    return Image.frombytes("I;16", size, values.tobytes())


def labels(size: Size = (40, 30)) -> Array:
    """Return a mask of the labels 0, 3, 17 and 255 in blocks of uneven sizes."""
    mask = np.zeros(size[::-1], "uint8")
    mask[5:17, 3:20], mask[13:25, 15:33], mask[26:, 30:] = 3, 17, 255
    return mask


def png(size: Size, depth: int, colours: int, rows: bytes, *, before: bytes = b"", after: bytes = b"") -> bytes:
    """Return a PNG made by hand, with chunks before and after the pixels."""
    header = struct.pack(">IIBBBBB", *size, depth, colours, 0, 0, 0)
    values = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + values + after + chunk(b"IEND", b"")


def chunk(name: bytes, payload: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))


def exif(orientation: int) -> Image.Exif:
    """Return EXIF with an orientation and another tag."""
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    tags[0x010F] = "maker"
    return tags


@functools.cache
def profile() -> bytes:
    """Return an ICC profile, of sRGB."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@functools.cache
def files() -> dict[str, bytes]:
    """Return a file of each kind and mode that is read."""
    rgb = photo((32, 24))
    sixteen = deep((32, 24))
    images = {f"jpg-{mode}": file_of(rgb.convert(mode), "JPEG", exif=exif(6)) for mode in ("RGB", "L", "CMYK")}
    images["jpg-progressive"] = file_of(rgb, "JPEG", progressive=True, icc_profile=profile())
    images |= {
        f"png-{mode}": file_of(rgb.convert(mode), "PNG", exif=exif(8)) for mode in ("RGB", "L", "RGBA", "P", "1")
    }
    images |= {"png-LA": file_of(rgb.convert("LA"), "PNG"), "png-I;16": file_of(sixteen, "PNG")}
    images |= {"webp": file_of(rgb, "WEBP", exif=exif(3)), "webp-lossless": file_of(rgb, "WEBP", lossless=True)}
    images |= {f"bmp-{mode}": file_of(rgb.convert(mode), "BMP") for mode in ("RGB", "L", "P", "1")}
    images["gif"] = file_of(rgb, "GIF")
    for mode in ("RGB", "L", "CMYK", "P", "1", "I", "F"):
        images[f"tiff-{mode}"] = file_of(rgb.convert(mode), "TIFF", exif=exif(5))
    images |= {"tiff-I;16": file_of(sixteen, "TIFF"), "tiff-lzw": file_of(rgb, "TIFF", compression="tiff_lzw")}
    images |= {f"ppm-{mode}": file_of(rgb.convert(mode), "PPM") for mode in ("RGB", "L", "1")}
    return images


# Requests


@pytest.mark.parametrize("field", ["jpg", "JPG", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm", "pgm"])
def test_images_by_ending(field: str) -> None:
    """A field is an image if its suffix is an image suffix, in any case. If fields are named, only these are images."""
    assert ImageOptions().applies(field)
    assert ImageOptions().applies(f"seg.{field}")
    assert not ImageOptions().applies(f"{field}.txt")
    assert not ImageOptions(fields=("other",)).applies(field)
    assert ImageOptions(fields=("other",)).applies("other")
    assert ImageOptions(fields=("other",), masks=(field,)).applies(field)


@pytest.mark.parametrize("field", ["txt", "json", "cls", "", "jpg.gz", "npy", "eps", "pdf", "png2"])
def test_other_fields(field: str) -> None:
    """Fields without an image suffix are unchanged and keep their names."""
    assert not ImageOptions(encode="jpg").applies(field)
    assert ImageOptions(encode="jpg").output_field(field) == field


@pytest.mark.parametrize(
    ("field", "encode", "output"),
    [
        ("png", "jpg", "jpg"),
        ("seg.png", "jpg", "seg.jpg"),
        ("a.b.TIFF", "webp", "a.b.webp"),
        ("PNG", "jpg", "jpg"),
        ("jpeg", "jpg", "jpeg"),
        ("JPG", "jpg", "JPG"),
        ("jpeg", "png", "png"),
        ("webp", "webp", "webp"),
        ("png", None, "png"),
        ("picture", "jpg", "picture"),
        ("txt", "jpg", "txt"),
    ],
)
def test_name_after_encoding(field: str, encode: Literal["jpg", "png", "webp"] | None, output: str) -> None:
    """A field's last extension follows the format, unless it already names the format or none."""
    options = ImageOptions(encode=encode, fields=() if field == "txt" else (field,))
    assert options.output_field(field) == output


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"resize": "0x5"}, "resize"),
        ({"resize": "5x-1"}, "resize"),
        ({"resize": "65501x5", "encode": "jpg"}, "resize"),
        ({"resize": "5x16384", "encode": "webp"}, "resize"),
        ({"resize": "5x200000000"}, "resize"),
        ({"resize": "5x5", "resize_mode": "round"}, "resize_mode"),
        ({"encode": "jpg", "quality": 0}, "quality"),
        ({"encode": "jpg", "quality": 101}, "quality"),
        ({"encode": "png", "quality": 90}, "quality"),
        ({"quality": 90}, "quality"),
        ({"encode": "gif"}, "encode"),
        ({"only_larger": True}, "only_larger"),
        ({"only_larger": True, "encode": "jpg"}, "only_larger"),
        ({"quality": 90, "probe": True}, "quality"),
    ],
)
def test_senseless_requests(options: dict[str, Any], where: str) -> None:
    """Values out of range, and options that conflict, are refused by the name of the option."""
    with pytest.raises(InvalidRequest) as caught:
        CreateOptions(**options).make_transform()
    assert caught.value.where == where


# Sizes

SIZES: list[tuple[ResizeMode, bool, Size, Size, Size]] = [
    ("shorter", False, (500, 375), (256, 256), (341, 256)),
    ("shorter", False, (375, 500), (256, 256), (256, 341)),
    ("shorter", False, (100, 50), (256, 256), (512, 256)),
    ("shorter", False, (300, 500), (256, 256), (256, 427)),
    ("shorter", False, (300, 300), (256, 256), (256, 256)),
    ("shorter", False, (500, 375), (100, 200), (267, 200)),
    ("shorter", True, (500, 375), (256, 256), (341, 256)),
    ("shorter", True, (100, 50), (256, 256), (100, 50)),
    ("shorter", True, (500, 100), (256, 256), (500, 100)),
    ("shorter", False, (1, 900), (2, 2), (2, 1800)),
    ("longer", False, (500, 375), (256, 256), (256, 192)),
    ("longer", False, (375, 500), (256, 256), (192, 256)),
    ("longer", False, (100, 50), (256, 256), (256, 128)),
    ("longer", False, (500, 380), (256, 256), (256, 195)),
    ("longer", True, (100, 50), (256, 256), (100, 50)),
    ("longer", True, (500, 100), (256, 256), (256, 51)),
    ("longer", False, (1, 5000), (16, 16), (1, 16)),
    ("longer", False, (5000, 1), (16, 16), (16, 1)),
    ("exact", False, (500, 375), (64, 48), (64, 48)),
    ("exact", False, (30, 20), (64, 48), (64, 48)),
    ("exact", True, (30, 20), (64, 48), (30, 20)),
    ("exact", True, (500, 20), (64, 48), (64, 20)),
    ("exact", False, (1, 5000), (7, 7), (7, 7)),
    ("crop", False, (500, 375), (64, 64), (64, 64)),
    ("crop", False, (30, 20), (64, 48), (64, 48)),
    ("crop", True, (30, 20), (64, 48), (30, 20)),
    ("crop", True, (500, 20), (64, 48), (64, 20)),
    ("crop", True, (500, 375), (64, 48), (64, 48)),
    ("crop", False, (1, 5000), (64, 64), (64, 64)),
    ("crop", False, (5000, 1), (1, 64), (1, 64)),
    ("pad", False, (500, 375), (64, 64), (64, 64)),
    ("pad", False, (30, 20), (64, 64), (64, 64)),
    ("pad", True, (30, 20), (64, 64), (30, 20)),
    ("pad", True, (500, 20), (64, 64), (64, 64)),
    ("pad", False, (1, 5000), (64, 64), (64, 64)),
]


@pytest.mark.parametrize(("mode", "only_larger", "size", "resize", "expected"), SIZES)
def test_sizes(mode: ResizeMode, only_larger: bool, size: Size, resize: Size, expected: Size) -> None:  # noqa: FBT001 - a column
    """Each mode creates an image of this size, and the returned info has this size."""
    options = ImageOptions(resize=resize, resize_mode=mode, only_larger=only_larger)
    for image in (Image.new("L", size, 77), Image.new("1", size)):
        data, fact = change_image(file_of(image, "PNG"), "png", options)
        assert (fact.width, fact.height) == opened(data).size == expected


sides = st.integers(1, 300) | st.sampled_from([1, 2, 5000])


@given(
    size=st.tuples(sides, sides),
    resize=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    mode=st.sampled_from(["shorter", "longer", "exact", "crop", "pad"]),
    only_larger=st.booleans(),
)
def test_every_size(size: Size, resize: Size, mode: ResizeMode, only_larger: bool) -> None:  # noqa: FBT001 - a column
    """No side is 0, each mode keeps its promise, `only_larger` never enlarges, and a second change does nothing."""
    options = ImageOptions(resize=resize, resize_mode=mode, only_larger=only_larger)
    data, fact = change_image(file_of(Image.new("1", size), "PNG"), "png", options)
    new_size = (fact.width, fact.height)
    assert new_size == opened(data).size
    assert min(new_size) >= 1
    if only_larger:
        assert mode == "pad" or all(new <= old for new, old in zip(new_size, size, strict=True))
        assert new_size == size or max(a / b for a, b in zip(size, resize, strict=True)) > 1
        return
    if mode in ("exact", "crop", "pad"):
        assert new_size == resize
        return
    covers = all(new >= want for new, want in zip(new_size, resize, strict=True))
    fits = all(new <= want for new, want in zip(new_size, resize, strict=True))
    assert covers if mode == "shorter" else fits
    assert any(new == want for new, want in zip(new_size, resize, strict=True))
    scale = max(new / old for new, old in zip(new_size, size, strict=True))
    scales = [new / old for new, old in zip(resize, size, strict=True)]
    exact = (max if mode == "shorter" else min)(scales)
    assert all(abs(new - max(1, old * exact)) <= 0.5 + 1e-6 for new, old in zip(new_size, size, strict=True)), scale


def test_rectangle_again() -> None:
    """A resized image passes unchanged through the same request."""
    for mode in ("shorter", "longer", "exact", "crop", "pad"):
        options = ImageOptions(resize=(50, 50), resize_mode=mode)
        once, fact = change_image(file_of(photo(), "PNG"), "png", options)
        again, same = change_image(once, "png", options)
        assert again is once
        assert same == fact


def test_crop_is_the_centre() -> None:
    """A crop shows the centre of the image, whether the image is scaled or not."""
    image = Image.new("RGB", (90, 30), RED)
    image.paste(GREEN, (30, 0, 60, 30))
    for resize in ((30, 30), (10, 10), (60, 60)):
        data, _ = change_image(file_of(image, "PNG"), "png", ImageOptions(resize=resize, resize_mode="crop"))
        inner = pixels(data)[:, resize[0] // 4 : -resize[0] // 4]
        assert abs(inner.astype(int) - GREEN).max() <= 3


def test_crop_without_scaling_moves_no_pixel() -> None:
    """A crop at the image's own scale contains unchanged pixels."""
    image = photo((65, 48))
    data, _ = change_image(file_of(image, "PNG"), "png", ImageOptions(resize=(40, 48), resize_mode="crop"))
    assert np.array_equal(pixels(data), np.asarray(image)[:, 12:52])


@pytest.mark.parametrize(
    ("mode", "encode", "border"),
    [
        ("RGB", None, (0, 0, 0)),
        ("L", None, 0),
        ("1", None, False),
        ("RGBA", None, (0, 0, 0, 0)),
        ("LA", None, (0, 0)),
        ("RGBA", "jpg", (0, 0, 0)),
        ("RGBA", "webp", (0, 0, 0, 0)),
        ("RGB", "webp", (0, 0, 0)),
    ],
)
def test_pad(mode: str, encode: Literal["jpg", "webp"] | None, border: tuple[int, ...] | int) -> None:
    """Padding is black, or transparent if the written mode has alpha; the image is in the centre."""
    white = Image.new(mode, (40, 20), "white")
    options = ImageOptions(resize=(40, 40), resize_mode="pad", encode=encode)
    padded = pixels(change_image(file_of(white, "PNG"), "png", options)[0]).astype(int)
    assert abs(padded[:8] - border).max() <= 2
    assert abs(padded[32:] - border).max() <= 2
    assert (padded[12:28] >= (1 if mode == "1" else 253)).all()


def test_pad_of_other_modes() -> None:
    """A palette is padded with its transparent colour or black; CMYK with black ink."""
    image = Image.frombytes("P", (8, 4), bytes([2]) * 32)
    image.putpalette([9, 9, 9, 0, 0, 0, 200, 0, 0, 7, 7, 7])
    options = ImageOptions(resize=(8, 8), resize_mode="pad")
    for details, border in ({}, 1), ({"transparency": 3}, 3), ({"transparency": b"\xff\xff\xff\x00"}, 3):
        padded = pixels(change_image(file_of(image, "PNG", **details), "png", options)[0])
        assert padded[:, 0].tolist() == [border, border, 2, 2, 2, 2, border, border]
    image.putpalette([9, 9, 9, 8, 8, 8, 200, 0, 0])
    odd = pixels(change_image(file_of(Image.new("L", (8, 5), 99), "PNG"), "png", options)[0])
    assert odd[:, 0].tolist() == [0, 99, 99, 99, 99, 99, 0, 0]
    assert pixels(change_image(file_of(image, "PNG"), "png", options)[0])[0, 0] == 0
    ink = Image.new("CMYK", (8, 4), (1, 2, 3, 4))
    padded = pixels(change_image(file_of(ink, "TIFF"), "tiff", options)[0])
    assert padded[0, 0].tolist() == [0, 0, 0, 255]
    assert padded[4, 4].tolist() == [1, 2, 3, 4]


# Nothing to do


@pytest.mark.parametrize("name", files())
def test_probe(name: str) -> None:
    """A probe returns the same bytes, with the displayed size and the mode."""
    data = files()[name]
    for options in (ImageOptions(), ImageOptions(probe=True)):
        same, fact = change_image(data, "img", options)
        assert same is data
        with Image.open(BytesIO(data)) as image:
            lying = image.getexif().get(ORIENTATION, 1) >= 5
            assert fact.mode == image.mode
        assert (fact.width, fact.height) == ((24, 32) if lying else (32, 24))


@pytest.mark.parametrize("name", ["jpg-progressive", "png-L", "png-P", "webp-lossless", "bmp-RGB", "gif", "tiff-lzw"])
def test_pass_through(name: str) -> None:
    """An upright image of the requested size and format is returned byte for byte, for any quality."""
    data = file_of(opened(files()[name]), "PNG") if name.startswith("png") else files()[name]
    for mode in ("shorter", "exact", "crop", "pad"):
        resize = (24, 24) if mode == "shorter" else (32, 24)
        assert change_image(data, "img", ImageOptions(resize=resize, resize_mode=mode, quality=30))[0] is data
        larger = ImageOptions(resize=(99, 99), resize_mode=mode, only_larger=True)
        assert change_image(data, "img", larger)[0] is data


@pytest.mark.parametrize(("encode", "kind"), [("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP")])
def test_pass_through_of_a_format(encode: Literal["jpg", "png", "webp"], kind: str) -> None:
    """Content of the requested format passes through, for any file name."""
    data = memoryview(file_of(photo(), kind, exif=exif(1)))
    for field in ("jpg", "png", "bin"):
        same, fact = change_image(data, field, ImageOptions(encode=encode))
        assert same is data
        assert fact == ImageInfo(64, 48, "RGB")
    source = file_of(photo(), "PNG" if encode == "jpg" else "JPEG")
    assert opened(change_image(source, encode, ImageOptions(encode=encode))[0]).format == kind


def test_format_stays() -> None:
    """Without `encode`, the format and mode of the content are kept."""
    for name, data in files().items():
        if name == "jpg-CMYK":
            continue
        before = opened(data)
        new, fact = change_image(data, "img", ImageOptions(resize=(11, 13), resize_mode="exact"))
        after = opened(new)
        assert (after.format, after.mode, after.size) == (before.format, before.mode, (11, 13)), name
        assert fact == ImageInfo(11, 13, after.mode)


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(kind: str, orientation: int) -> None:
    """Written images are upright, without a tag; probed images keep their bytes, and report the displayed size."""
    upright = four_corners()
    stored = upright.transpose(LAID[orientation]) if orientation in LAID else upright
    data = file_of(stored, kind, exif=exif(orientation), **({"quality": 95} if kind != "TIFF" else {}))
    same, fact = change_image(data, "img", ImageOptions())
    assert same is data
    assert fact == ImageInfo(48, 32, "RGB")

    requests = [
        ImageOptions(resize=(24, 16)),
        ImageOptions(resize=(48, 32), resize_mode="exact"),
        ImageOptions(resize=(24, 30), resize_mode="crop"),
        ImageOptions(resize=(47, 31), resize_mode="crop", only_larger=True),
        ImageOptions(encode="png"),
        ImageOptions(encode="jpg", quality=95),
    ]
    for options in requests:
        new, fact = change_image(data, "img", options)
        image = opened(new)
        assert (fact.width, fact.height) == image.size == (options.resize or (48, 32))
        assert orientation == 1 or (new is not data and ORIENTATION not in image.getexif())
        across, down = image.width // 4, image.height // 4
        for colour, at in ((RED, (1, 1)), (GREEN, (3, 1)), (BLUE, (1, 3)), (GREY, (3, 3))):
            pixel = image.getpixel((at[0] * across, at[1] * down))
            assert max(abs(a - b) for a, b in zip(pixel, colour, strict=True)) < 40  # type: ignore[arg-type]


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("mode", ["shorter", "exact", "crop", "pad"])
def test_turning_and_resizing_commute(orientation: int, mode: ResizeMode) -> None:
    """A rotated stored image results in the same pixels as the upright image."""
    upright = photo((63, 47))
    data = file_of(upright.transpose(LAID[orientation]), "PNG", exif=exif(orientation))
    for resize in ((20, 30), (63, 32), (80, 80)):
        options = ImageOptions(resize=resize, resize_mode=mode)
        expected = pixels(change_image(file_of(upright, "PNG"), "png", options)[0]).astype(int)
        resized = pixels(change_image(data, "png", options)[0]).astype(int)
        assert abs(resized - expected).max() <= 4  # rounding, where columns come before rows


def test_late_exif_of_a_png() -> None:
    """EXIF after a PNG's pixels has the same effect as before them, also for a probe."""
    rows = b"\0" + bytes([10, 250])
    tag = chunk(b"eXIf", exif(6).tobytes()[6:])
    for data in (png((2, 1), 8, 0, rows, before=tag), png((2, 1), 8, 0, rows, after=tag)):
        assert change_image(data, "png", ImageOptions())[1] == ImageInfo(1, 2, "L")
        new, fact = change_image(data, "png", ImageOptions(resize=(1, 2), resize_mode="exact"))
        assert fact == ImageInfo(1, 2, "L")
        assert pixels(new).tolist() == [[10], [250]]


@pytest.mark.parametrize("tags", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense", b"\0" * 30])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_broken_exif(kind: str, tags: bytes) -> None:
    """EXIF that cannot be read is ignored."""
    data = file_of(photo(), kind, exif=tags)
    assert change_image(data, "img", ImageOptions(resize=(24, 24)))[1] == ImageInfo(32, 24, "RGB")


def test_broken_pixels_before_late_exif() -> None:
    """Broken pixels before EXIF are an error, and are not ignored like unreadable EXIF."""
    data = png((2, 1), 8, 0, b"\0\1\2", after=chunk(b"eXIf", exif(6).tobytes()[6:]))
    at = data.index(b"IDAT") + 6
    with pytest.raises(BadImage):
        change_image(data[:at] + b"\xff\xff" + data[at + 2 :], "png", ImageOptions(probe=True))


# Colours

MODES: list[tuple[str, str, dict[str, str]]] = [
    # kind and mode of the source, and the mode of each encoding; a WebP has no alpha without effect
    ("PNG", "RGB", {"jpg": "RGB", "png": "RGB", "webp": "RGB"}),
    ("PNG", "L", {"jpg": "L", "png": "L", "webp": "RGB"}),
    ("PNG", "1", {"jpg": "L", "png": "1", "webp": "RGB"}),
    ("PNG", "P", {"jpg": "RGB", "png": "P", "webp": "RGB"}),
    ("PNG", "LA", {"jpg": "L", "png": "LA", "webp": "RGB"}),
    ("PNG", "RGBA", {"jpg": "RGB", "png": "RGBA", "webp": "RGB"}),
    ("PNG", "I;16", {"jpg": "L", "png": "I;16", "webp": "RGB"}),
    ("JPEG", "CMYK", {"jpg": "RGB", "png": "RGB", "webp": "RGB"}),
    ("JPEG", "L", {"jpg": "L", "png": "L", "webp": "RGB"}),
    ("GIF", "P", {"jpg": "RGB", "png": "P", "webp": "RGB"}),
    ("BMP", "P", {"jpg": "RGB", "png": "P", "webp": "RGB"}),
    ("TIFF", "CMYK", {"jpg": "RGB", "png": "RGB", "webp": "RGB"}),
    ("TIFF", "PA", {"jpg": "RGB", "png": "RGBA", "webp": "RGB"}),
    ("TIFF", "LAB", {"jpg": "RGB", "png": "RGB", "webp": "RGB"}),
    ("TIFF", "I;16B", {"jpg": "L", "png": "I;16", "webp": "RGB"}),
    ("TIFF", "I", {"png": "I;16"}),
    ("PPM", "I", {"jpg": "L", "png": "I;16", "webp": "RGB"}),
]


def in_mode(mode: str) -> Image.Image:
    """Return an image in a mode with one colour; grey images have half of the range (of 16 bits)."""
    if mode in ("I", "I;16", "I;16B"):
        values = np.full((24, 32), 128 * 257, {"I": "<i4", "I;16": "<u2", "I;16B": ">u2"}[mode])
        return Image.frombytes(mode, (32, 24), values.tobytes())
    if mode == "PA":
        image = Image.new("PA", (32, 24), (0, 255))
        image.putpalette([200, 100, 50])
        return image
    if mode == "P":
        image = Image.new("P", (32, 24), 1)
        image.putpalette([0, 0, 0, 200, 100, 50])
        return image
    if mode in ("L", "LA"):
        return Image.new(mode, (32, 24), 128 if mode == "L" else (128, 255))
    return Image.new("1", (32, 24), 1) if mode == "1" else Image.new("RGB", (32, 24), (200, 100, 50)).convert(mode)


@pytest.mark.parametrize(("kind", "mode", "encoded"), MODES, ids=lambda value: value if isinstance(value, str) else "")
def test_modes(kind: str, mode: str, encoded: dict[Literal["jpg", "png", "webp"], str]) -> None:
    """Each mode becomes a mode that the format supports and shows the same colour, resized or not."""
    data = file_of(in_mode(mode), kind, **({"quality": 100} if kind == "JPEG" else {}))
    for encode, expected in encoded.items():
        for resize in (None, (16, 12)):
            options = ImageOptions(resize=resize, encode=encode, quality=None if encode == "png" else 98)
            new, fact = change_image(data, "img", options)
            after = opened(new)
            assert after.mode == fact.mode == expected
            if expected == "I;16":
                assert (np.asarray(after) == 128 * 257).all()
                continue
            shown = np.asarray(after.convert("RGB")).astype(int)
            grey = mode in ("L", "LA", "I", "I;16", "I;16B")
            colour = (255, 255, 255) if mode == "1" else (128, 128, 128) if grey else (200, 100, 50)
            assert abs(shown - colour).max() <= (12 if mode in ("LAB", "CMYK") else 5)


def test_sixteen_bits_to_eight() -> None:
    """16-bit grey is divided by 257 and rounded: 65535 becomes 255, and no value is clipped."""
    values = [0, 128, 129, 255, 257, 30000, 65278, 65279, 65535]
    image = Image.frombytes("I;16", (9, 1), np.array(values, "<u2").tobytes()).resize((72, 8), Image.Resampling.NEAREST)
    keyed = file_of(image, "PNG", transparency=65535)  # a colour key is of 16 bits, too, and means nothing in a photo
    for data in (file_of(image, "PNG"), file_of(image, "TIFF"), keyed):
        new, fact = change_image(data, "img", ImageOptions(encode="jpg", quality=100))
        assert fact == ImageInfo(72, 8, "L")
        assert pixels(new)[4, 4::8].tolist() == [0, 0, 1, 1, 1, 117, 254, 254, 255]
        assert change_image(data, "img", ImageOptions(encode="webp"))[1] == ImageInfo(72, 8, "RGB")


@pytest.mark.parametrize(
    ("mode", "values", "encode"),
    [
        ("I", [0, 255], "jpg"),
        ("I", [-1, 5], "jpg"),
        ("I", [0, 65536], "webp"),
        ("I", [0, 65536], "png"),
        ("F", [0.0, 0.5], "jpg"),
    ],
)
def test_values_without_a_conversion(mode: str, values: list[float], encode: Literal["jpg", "png", "webp"]) -> None:
    """Integers of more than 16 bits, and floats, are refused or unchanged; their range is never guessed."""
    array = np.array([values], "int32" if mode == "I" else "float32")
    data = file_of(Image.frombytes(mode, (2, 1), array.tobytes()), "TIFF")
    with pytest.raises(BadImage) as caught:
        change_image(data, "tiff", ImageOptions(encode=encode))
    assert caught.value.code == "image-depth"
    resized = change_image(data, "tiff", ImageOptions(resize=(4, 1), resize_mode="exact"))[0]
    assert pixels(resized).tolist() == [[values[0], values[0], values[1], values[1]]]


DEEP = {  # one colour, (255, 0, 1) of 255
    "png-rgb": png((16, 1), 16, 2, b"\0" + struct.pack(">3H", 65535, 0, 257) * 16),
    "png-rgba": png((16, 1), 16, 6, b"\0" + struct.pack(">4H", 65535, 0, 257, 65535) * 16),
    "ppm": b"P6 16 1 65535\n" + struct.pack(">3H", 65535, 0, 257) * 16,
    "ppm-plain": b"P3 16 1 1023\n" + b"1023 0 4 " * 16,
}


@pytest.mark.parametrize("name", DEEP)
def test_sixteen_bit_colours(name: str) -> None:
    """16-bit colours, which Pillow silently reduces to 8 bits, pass through or are refused, except for a photograph."""
    data = DEEP[name]
    assert change_image(data, "img", ImageOptions())[0] is data
    assert change_image(data, "img", ImageOptions(resize=(16, 1), resize_mode="exact"))[0] is data
    for options in (ImageOptions(resize=(5, 5)), *([] if "png" in name else [ImageOptions(encode="png")])):
        with pytest.raises(BadImage, match="16 bits per colour") as caught:
            change_image(data, "img", options)
        assert caught.value.code == "image-depth"
    new, _ = change_image(data, "img", ImageOptions(encode="jpg", quality=100))
    assert abs(pixels(new).astype(int) - (255, 0, 1)).max() <= 2


def test_alpha_is_laid_on_white() -> None:
    """For jpg, transparent pixels become white, whether alpha, a palette or one transparent colour defines them."""
    clear = Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    half = Image.new("LA", (16, 16), (0, 128))
    keyed = Image.new("RGB", (16, 16), (1, 2, 3))
    listed = Image.new("P", (16, 16), 1)
    listed.putpalette([0, 0, 0, 250, 0, 0])
    cases = [
        (file_of(clear, "PNG"), (255, 255, 255)),
        (file_of(clear, "WEBP", lossless=True, exact=True), (255, 255, 255)),
        (file_of(half, "PNG"), (127, 127, 127)),
        (file_of(keyed, "PNG", transparency=(1, 2, 3)), (255, 255, 255)),
        (file_of(keyed, "PNG", transparency=(1, 2, 4)), (1, 2, 3)),
        (file_of(listed, "PNG", transparency=1), (255, 255, 255)),
        (file_of(listed, "PNG", transparency=b"\x00\x80"), (252, 127, 127)),
        (file_of(listed, "GIF", transparency=1), (255, 255, 255)),
        (file_of(Image.new("L", (16, 16), 9), "PNG", transparency=9), (255, 255, 255)),
        (file_of(Image.new("1", (16, 16), 0), "PNG", transparency=0), (255, 255, 255)),
    ]
    for data, colour in cases:
        for resize in (None, (8, 8)):
            new, _ = change_image(data, "png", ImageOptions(resize=resize, encode="jpg", quality=98))
            assert abs(np.asarray(opened(new).convert("RGB")).astype(int) - colour).max() <= 4


def test_transparent_pixels_do_not_blend() -> None:
    """Resampling is weighted by alpha, and a transparent colour becomes alpha first, so there are no fringes."""
    image = Image.new("RGBA", (40, 40), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 23, 40))
    keyed = Image.new("RGB", (40, 40), (255, 0, 0))
    keyed.paste((0, 0, 255), (0, 0, 23, 40))
    for data in (file_of(image, "PNG"), file_of(keyed, "PNG", transparency=(255, 0, 0))):
        new, fact = change_image(data, "png", ImageOptions(resize=(10, 10)))
        assert fact.mode == "RGBA"
        values = pixels(new)
        assert (values[..., 0][values[..., 3] > 20] < 20).all()
        assert set(values[:, 0, 3]) == {255}
        assert set(values[:, 9, 3]) == {0}


# Labels


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "BMP"])
@pytest.mark.parametrize("resize", [(13, 7), (80, 80), (40, 29)])
@pytest.mark.parametrize("mode", ["shorter", "exact", "crop", "pad"])
def test_palette_masks(kind: str, resize: Size, mode: ResizeMode) -> None:
    """The indices of a palette are never blended or renumbered, in their own format and as PNG."""
    mask = Image.frombytes("P", labels().shape[::-1], labels().tobytes())
    mask.putpalette([(i * 7 + 40) % 256 for i in range(768)])
    for encode in (None, "png"):
        new, fact = change_image(
            file_of(mask, kind), "img", ImageOptions(resize=resize, resize_mode=mode, encode=encode)
        )
        assert fact.mode == "P"
        assert set(np.unique(pixels(new))) <= {0, 3, 17, 255}
        assert opened(new).getpalette()[51:54] == mask.getpalette()[51:54]  # type: ignore[index]


def test_grey_masks_in_a_gif() -> None:
    """A GIF contains indices, even if its palette is a grey ramp, which Pillow opens as mode L."""
    data = file_of(Image.fromarray(labels()), "GIF")
    for encode in (None, "png"):
        new, fact = change_image(data, "gif", ImageOptions(resize=(17, 17), encode=encode))
        assert fact.mode == "L"
        assert set(np.unique(pixels(new))) <= {0, 3, 17, 255}


def test_mask_with_a_short_palette() -> None:
    """Indices above the end of the palette are kept. Pillow's writer alone would truncate them to fewer bits."""
    rows = b"\0" + bytes([0, 1, 2, 5, 20, 200])
    data = png((6, 1), 8, 3, rows, before=chunk(b"PLTE", bytes([0, 0, 0, 255, 0, 0, 0, 255, 0])))
    new, _ = change_image(data, "png", ImageOptions(resize=(12, 1), resize_mode="exact"))
    assert pixels(new)[0, ::2].tolist() == [0, 1, 2, 5, 20, 200]


def test_wide_and_bilevel_masks() -> None:
    """16-bit values and bits are resampled to existing values, through orientation, crop and pad."""
    wide = labels().astype("<u2") * 256 + 7
    for image, kind in (
        (Image.frombytes("I;16", (40, 30), wide.tobytes()), "PNG"),
        (Image.frombytes("I;16", (40, 30), wide.tobytes()), "TIFF"),
        (Image.frombytes("I", (40, 30), (wide.astype("<i4") * 1000).tobytes()), "TIFF"),
        (Image.frombytes("F", (40, 30), wide.astype("<f4").tobytes()), "TIFF"),
        (Image.fromarray(labels() > 3), "PNG"),
    ):
        data = file_of(image, kind, exif=exif(6))
        for mode in ("shorter", "crop", "pad"):
            new, fact = change_image(data, "img", ImageOptions(resize=(17, 23), resize_mode=mode))
            assert fact.mode == image.mode
            assert set(np.unique(pixels(new))) <= {0, *np.unique(np.asarray(image))}


def test_named_masks() -> None:
    """A field in `masks` is never blended or encoded as jpg or webp, even if it is plain grey or RGB."""
    grey = file_of(Image.fromarray(labels()), "PNG")
    colours = file_of(Image.fromarray(np.stack([labels()] * 3, -1)), "PNG")
    options = ImageOptions(resize=(17, 17), encode="jpg", masks=("seg.png",))
    assert options.output_field("seg.png") == "seg.png"
    assert options.output_field("png") == "jpg"
    for data in (grey, colours):
        new, fact = change_image(data, "seg.png", options)
        assert opened(new).format == "PNG"
        assert fact.mode == opened(data).mode
        assert set(np.unique(pixels(new))) <= {0, 3, 17, 255}
        assert len(np.unique(pixels(change_image(data, "png", options)[0]))) > 4
    to_png = ImageOptions(encode="png", masks=("seg.bmp",))
    assert to_png.output_field("seg.bmp") == "seg.png"


def test_lossless_stays_lossless() -> None:
    """A lossless WebP stays lossless, and a TIFF is never written with a lossy codec."""
    mask = Image.fromarray(np.stack([labels()] * 3, -1))
    options = ImageOptions(resize=(20, 20), masks=("img",))
    for data in (
        file_of(mask, "WEBP", lossless=True),
        file_of(mask, "WEBP", lossless=True, icc_profile=profile()),
        file_of(mask, "TIFF", compression="tiff_lzw"),
        file_of(mask, "TIFF", compression="jpeg", quality=100),
    ):
        before = np.unique(pixels(data))
        assert set(np.unique(pixels(change_image(data, "img", options)[0]))) <= set(before)


# Metadata


def test_icc_profile() -> None:
    """The ICC profile is kept if the format supports one, unless colours of another kind are written."""
    rgb = profile()
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        data = file_of(photo(), kind, icc_profile=rgb)
        for encode in (None, "jpg", "png", "webp"):
            new, _ = change_image(data, "img", ImageOptions(resize=(20, 20), encode=encode))
            assert opened(new).info.get("icc_profile") == rgb
    indexed = file_of(photo().quantize(8), "PNG", icc_profile=rgb)
    assert opened(change_image(indexed, "png", ImageOptions(encode="jpg"))[0]).info["icc_profile"] == rgb
    ink = file_of(photo().convert("CMYK"), "JPEG", icc_profile=b"a profile of inks")
    assert "icc_profile" not in opened(change_image(ink, "jpg", ImageOptions(encode="jpg"))[0]).info
    grey = file_of(photo().convert("L"), "JPEG", icc_profile=b"a profile of greys")
    assert "icc_profile" in opened(change_image(grey, "jpg", ImageOptions(resize=(20, 20)))[0]).info
    assert "icc_profile" not in opened(change_image(grey, "jpg", ImageOptions(encode="webp"))[0]).info


def test_other_metadata_is_removed() -> None:
    """EXIF, XMP and comments are removed from output images."""
    secret = b"taken at home"
    for data in (
        file_of(photo(), "JPEG", comment=secret, exif=exif(1), xmp=b"<x>" + secret + b"</x>"),
        file_of(photo(), "WEBP", exif=exif(1), xmp=b"<x>" + secret + b"</x>"),
        file_of(photo(), "TIFF", description=secret.decode(), exif=exif(1)),
        file_of(photo(), "GIF", comment=secret),
    ):
        for encode in (None, "jpg", "png", "webp"):
            new = bytes(change_image(data, "img", ImageOptions(resize=(20, 20), encode=encode))[0])
            assert secret not in new
            assert b"maker" not in new
    tags = {700: b"<x>" + secret + b"</x>", ORIENTATION: 3}
    turned = file_of(photo(), "TIFF", tiffinfo=tags)
    assert secret in turned
    assert secret not in bytes(change_image(turned, "img", ImageOptions(resize=(64, 48), resize_mode="exact"))[0])


# Refused images


@pytest.mark.parametrize(
    "data",
    [
        png((20_000, 20_000), 1, 0, b""),
        png((11_000, 11_000), 8, 2, b""),
        b"P5 50000 50000 255\n",
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 30_000, 30_000, 1, 24, 0, 0, 0, 0, 0, 0),
    ],
    ids=["png", "below-pillows-limit", "pgm", "bmp"],
)
def test_oversized_images_are_refused_by_the_header(data: bytes) -> None:
    """Images above the pixel limit are refused after reading only the header, without warnings."""
    for options in (ImageOptions(probe=True, max_pixels=100_000_000), ImageOptions(resize=(5, 5), max_pixels=10**6)):
        with pytest.raises(BadImage, match="pixels") as caught:
            change_image(data, "img", options)
        assert caught.value.code == "image-too-large"


def test_the_pixel_limit_is_exact() -> None:
    """An image at the limit is accepted, one more row is not."""
    data = file_of(photo(), "PNG")
    assert change_image(data, "png", ImageOptions(max_pixels=64 * 48))[0] is data
    with pytest.raises(BadImage):
        change_image(data, "png", ImageOptions(max_pixels=64 * 47))


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((1, 60_000), ImageOptions(resize=(256, 256))),
        ((2, 300), ImageOptions(resize=(256, 256), encode="webp")),
        ((1, 70_000), ImageOptions(encode="jpg")),
    ],
)
def test_oversized_results_are_refused(size: Size, options: ImageOptions) -> None:
    """A result over the limit, or too large for its format, is refused before it is created."""
    with pytest.raises(BadImage, match="would become") as caught:
        change_image(file_of(Image.new("L", size), "PNG"), "png", options)
    assert caught.value.code == "image-too-large"


CUT = {"gif": 3}  # final bytes without pixels: a GIF's empty block and trailer


@pytest.mark.parametrize(
    "name", ["jpg-RGB", "jpg-progressive", "png-RGB", "png-P", "webp", "bmp-RGB", "gif", "ppm-RGB", "tiff-lzw"]
)
def test_truncated_files_are_errors(name: str) -> None:
    """A file truncated anywhere is an error, even if it would pass unchanged."""
    data = files()[name]
    stored = ImageOptions(resize=opened(data).size, resize_mode="exact", only_larger=True)
    for options in (ImageOptions(resize=(10, 10)), stored):
        assert change_image(data, "img", options)
        end = len(data) - CUT.get(name, 0)
        for cut in {*range(0, end, max(1, end // 60)), *range(max(0, end - 20), end)}:
            with pytest.raises(BadImage) as caught:
                change_image(data[:cut], "img", options)
            assert caught.value.code in ("truncated-image", "bad-image")
    with pytest.raises(BadImage, match=r"too early|damaged") as caught:
        change_image(data[: len(data) // 2], "img", ImageOptions(encode="webp", resize=(5, 5)))
    assert caught.value.code == "truncated-image" or name.startswith("tiff")


def test_truncated_frames() -> None:
    """A GIF with several frames is truncated at any cut, except at the end of its first frame."""
    data = file_of(photo((16, 12)), "GIF", save_all=True, append_images=[photo((16, 12)).rotate(90)])
    accepted = []
    for cut in range(1, len(data)):
        with suppress(BadImage):
            accepted.append((cut, decoded_pixels(data[:cut]).size))
    assert len(accepted) <= 2
    assert decoded_pixels(data).size == (16, 12)


def _blocks(form: str) -> tuple[bytes, int]:
    """Return the header of a PNG with 64 x 64 pixels, and the number of bytes of its rows."""
    depth, colours, bits, interlaced = {"rgb": (8, 2, 24, 0), "bit": (1, 0, 1, 0), "woven": (8, 0, 8, 1)}[form]
    sides = ((8, 8), (8, 8), (16, 8), (16, 16), (32, 16), (32, 32), (64, 32)) if interlaced else ((64, 64),)
    rows = b"".join((b"\0" + bytes((wide * bits + 7) // 8)) * high for wide, high in sides)
    return struct.pack(">IIBBBBB", 64, 64, depth, colours, 0, 0, interlaced), len(rows)


@pytest.mark.parametrize("form", ["rgb", "bit", "woven"])
@given(st.data())
def test_png_with_missing_rows(form: str, data: st.DataObject) -> None:
    """A PNG whose well-formed data end before its last row is refused; a complete one is not."""
    header, size = _blocks(form)
    row_bytes = data.draw(st.one_of(st.integers(0, size), st.sampled_from([size, size - 1])))
    cuts = sorted(data.draw(st.lists(st.integers(0, 40), max_size=3)))
    packed = zlib.compress(bytes(row_bytes))
    pieces = [packed[first:last] for first, last in zip([0, *cuts], [*cuts, len(packed)], strict=True)]
    chunks = b"".join(chunk(b"IDAT", piece) for piece in pieces)
    image = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunks + chunk(b"IEND", b"")
    with nullcontext() if row_bytes == size else pytest.raises(BadImage, match="too early"):
        decoded_pixels(image)
    with nullcontext() if row_bytes == size else pytest.raises(BadImage, match="too early"):
        change_image(image, "png", ImageOptions(resize=(8, 8)))


def test_tiff_with_missing_strips() -> None:
    """A TIFF that lists fewer strips than its rows need is refused."""
    whole = file_of(photo((64, 400)), "TIFF", tiffinfo={278: 100}, strip_size=64 * 3 * 100)
    assert decoded_pixels(whole).size == (64, 400)
    for tag in (273, 279):  # offsets and sizes: two instead of four
        at = whole.index(struct.pack("<HHI", tag, 4, 4))
        whole = whole[: at + 4] + struct.pack("<I", 2) + whole[at + 8 :]
    with pytest.raises(BadImage):
        decoded_pixels(whole)


def _grey_tiff(bits: int, form: int, white: int, rows: bytes) -> bytes:
    """Return a TIFF of a row of eight grey values: form 1 unsigned, 2 signed; the tag sets white to 0 or 1."""
    tags = [(256, 8), (257, 1), (258, bits), (259, 1), (262, white), (273, 8), (278, 1), (279, len(rows)), (339, form)]
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    start = 8 + len(rows) + len(rows) % 2
    return (b"II*\0" + struct.pack("<I", start) + rows).ljust(start, b"\0") + directory + bytes(4)


_TWELVE = b"".join(
    bytes(((a >> 4), (a & 15) << 4 | b >> 8, b & 255)) for a, b in [(0, 1), (257, 2048), (4094, 4095), (16, 7)]
)
DEPTHS = {  # to the values that are stored, and their eight bits; None: refused by name
    "png-2": (png((4, 1), 2, 0, b"\0\x1b"), [0, 1, 2, 3], [0, 85, 170, 255]),
    "png-4": (png((4, 1), 4, 0, b"\0\x01\x7f"), [0, 1, 7, 15], [0, 17, 119, 255]),
    "pgm-100": (b"P5 3 1 100\n\0\x32\x64", [0, 50, 100], [0, 128, 255]),
    "pgm-1000": (b"P5 3 1 1000\n" + struct.pack(">3H", 0, 501, 1000), [0, 501, 1000], [0, 128, 255]),
    "pgm-plain": (b"P2 3 1 1000\n0 501 1000\n", [0, 501, 1000], [0, 128, 255]),
    "tiff-12": (_grey_tiff(12, 1, 1, _TWELVE), [0, 1, 257, 2048, 4094, 4095, 16, 7], [0, 0, 16, 128, 255, 255, 1, 0]),
    "tiff-16": (_grey_tiff(16, 1, 1, struct.pack("<8H", *range(0, 65536, 9362))), [*range(0, 65536, 9362)],
        [0, 36, 73, 109, 146, 182, 219, 255]),
    "tiff-16-signed": (_grey_tiff(16, 2, 1, struct.pack("<8h", *range(-4, 4))), [*range(-4, 4)], None),
    "tiff-16-positive": (_grey_tiff(16, 2, 1, struct.pack("<8h", *range(8))), [*range(8)], None),
    "tiff-16-inverted": (_grey_tiff(16, 1, 0, struct.pack("<8H", *range(8))), [*range(8)], None),
    "tiff-8-signed": (_grey_tiff(8, 2, 1, bytes(range(120, 136))[:8]), None, None),
    "tiff-32": (_grey_tiff(32, 1, 1, struct.pack("<8I", *range(8))), [*range(8)], None),
    "tiff-32-large": (_grey_tiff(32, 1, 1, struct.pack("<8I", *range(7), 2**31)), None, None),
    "tiff-32-signed": (_grey_tiff(32, 2, 1, struct.pack("<8i", *range(8))), [*range(8)], None),
}  # fmt: skip


@pytest.mark.parametrize("name", DEPTHS)
def test_values_of_any_depth(name: str) -> None:
    """Decoded values are the stored values, or are scaled so that white is 255, or the image is refused by name."""
    data, stored, shown = DEPTHS[name]
    for exact, expected in ((True, stored), (False, shown)):
        if expected is None:
            with pytest.raises(BadImage) as caught:
                decoded_pixels(data, exact=exact)
            assert caught.value.code == "image-depth"
        else:
            assert np.asarray(decoded_pixels(data, exact=exact))[0].tolist() == expected
    if shown is None:
        with pytest.raises(BadImage) as caught:
            change_image(data, "tiff", ImageOptions(encode="jpg"))
        assert caught.value.code == "image-depth"
    else:
        assert np.asarray(opened(change_image(data, "img", ImageOptions(encode="jpg", quality=100))[0])).max() >= 250
    if stored is not None:
        options = ImageOptions(resize=(len(stored) * 2, 1), resize_mode="exact", masks=("m",))
        resized = change_image(data, "m", options)[0]
        assert np.asarray(decoded_pixels(bytes(resized), exact=True))[0, ::2].tolist() == stored


def test_frames() -> None:
    """An image with several frames or pages passes through unchanged, or is refused."""
    frames: Sequence[Image.Image] = [photo(), photo().transpose(Transpose.ROTATE_180)]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        data = file_of(frames[0], kind, save_all=True, append_images=frames[1:])
        for options in (ImageOptions(probe=True), ImageOptions(resize=(64, 48), resize_mode="exact")):
            assert change_image(data, "img", options)[0] is data
        for options in (ImageOptions(resize=(20, 20)), ImageOptions(encode="jpg")):
            with pytest.raises(BadImage, match="several frames or pages") as caught:
                change_image(data, "img", options)
            assert caught.value.code == "animated-image"


def test_multi_picture_jpeg() -> None:
    """The first picture of a multi-picture JPEG (MPO) is the image, as in image viewers."""
    data = file_of(photo(), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    assert opened(data).format == "MPO"
    assert change_image(data, "jpg", ImageOptions(encode="jpg"))[0] is data
    new, fact = change_image(data, "jpg", ImageOptions(resize=(24, 24)))
    assert (opened(new).format, fact) == ("JPEG", ImageInfo(32, 24, "RGB"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 40,
        b"no image",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\xff\xd8\xff",
        b"%PDF-1.4\n",
    ],
)
def test_other_formats_are_refused(data: bytes) -> None:
    """Other formats are refused, with the same message each time."""
    messages = []
    for _ in range(2):
        with pytest.raises(BadImage) as caught:
            change_image(data, "jpg", ImageOptions())
        assert caught.value.code == "bad-image"
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "0x" not in messages[0]


def test_other_decoders_are_not_imported() -> None:
    """Decoders of other formats, pyarrow, pandas and NumPy are not imported."""
    script = (
        "import sys; from io import BytesIO; from PIL import Image\n"
        "from shardtool.transform.image_decode import BadImage\n"
        "from shardtool.transform.image import ImageOptions, change_image\n"
        "stream = BytesIO(); Image.new('RGB', (9, 9)).save(stream, 'PNG')\n"
        "for encode in 'jpg', 'png', 'webp':\n"
        "    change_image(stream.getvalue(), 'png', ImageOptions((5, 5), encode=encode))\n"
        "try: change_image(b'%!PS', 'eps', ImageOptions())\n"
        "except BadImage: pass\n"
        "print(*sorted(Image.OPEN)); print({'pyarrow', 'pandas', 'numpy'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    decoders, heavy = done.stdout.splitlines()
    assert not {"EPS", "PDF", "FPX", "WMF", "ICO", "PSD"} & set(decoders.split())
    assert heavy == "set()"


def test_error_crosses_processes() -> None:
    """A `BadImage` can be pickled, and contains no control characters."""
    error = pickle.loads(pickle.dumps(BadImage("bad-image", "red \x1b[31m")))  # noqa: S301 - our own
    assert (error.code, error.message, str(error)) == ("bad-image", r"red \x1b[31m", r"red \x1b[31m")


def test_pillow_logs_are_not_printed() -> None:
    """Pillow's log messages about damaged files are not printed."""
    data = bytearray(file_of(photo(), "TIFF"))
    at = data.index(struct.pack("<HHI", 277, 3, 1))  # SamplesPerPixel
    data[at + 8 : at + 10] = b"\xff\xff"
    script = (
        "import sys\n"
        "from shardtool.transform.image_decode import BadImage\n"
        "from shardtool.transform.image import ImageOptions, change_image\n"
        "try: change_image(sys.stdin.buffer.read(), 'tiff', ImageOptions((5, 5)))\n"
        "except BadImage as error: print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, input=data, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"bad-image\n", b"")


def test_warning_filters_are_restored() -> None:
    """Warning filters are restored afterwards."""
    before = list(warnings.filters)
    change_image(file_of(photo(), "PNG"), "png", ImageOptions(encode="jpg"))
    assert list(warnings.filters) == before


@given(
    data=st.binary(max_size=200),
    head=st.sampled_from([b"", b"\xff\xd8\xff", b"RIFF", b"BM", b"GIF89a", b"II*\0", b"P6 "]),
)
def test_any_bytes_give_an_image_or_an_error(data: bytes, head: bytes) -> None:
    """Any bytes result in an image or in `BadImage`."""
    for options in EVERYTHING:
        _either(head + data, options)


@given(
    name=st.sampled_from(sorted(files())),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6),
    header=st.booleans(),
    end=st.floats(0, 1) | st.just(1.0),
    options=st.sampled_from(EVERYTHING),
)
def test_damaged_images_give_an_image_or_an_error(
    name: str,
    flips: list[tuple[float, int]],
    header: bool,  # noqa: FBT001 - a column
    end: float,
    options: ImageOptions,
) -> None:
    """A damaged image, especially a damaged header, results in an image or in `BadImage`."""
    data = bytearray(files()[name])
    reach = min(len(data), 120) if header else len(data)
    for at, value in flips:
        data[int(at * reach)] ^= value
    _either(bytes(data[: int(end * len(data))]), options)


def _either(data: bytes, options: ImageOptions) -> None:
    """Check that the result is consistent or `BadImage`. pytest turns warnings into errors."""
    try:
        new, fact = change_image(data, "img", options)
    except BadImage as error:
        bad: BadImage | None = error
    else:
        bad = None
    if bad is not None:
        assert bad.code in ("bad-image", "truncated-image", "image-too-large", "animated-image", "image-depth")
    elif new is not data:
        image = opened(new)
        assert (*image.size, image.mode) == (fact.width, fact.height, fact.mode)


# Same bytes, same picture


@pytest.mark.parametrize("options", EVERYTHING[1:])
def test_output_is_deterministic(options: ImageOptions) -> None:
    """The same request results in the same bytes, from `bytes` and from a `memoryview`."""
    for data in files().values():
        try:
            once = change_image(data, "img", options)
        except BadImage:
            continue
        again = change_image(memoryview(bytearray(data)), "img", options)
        assert bytes(once[0]) == bytes(again[0])
        assert once[1] == again[1]


@pytest.mark.parametrize("size", [(40, 40), (64, 64), (100, 100), (250, 250)])
def test_resized_images_match_lanczos(size: Size) -> None:
    """Results differ from LANCZOS on all pixels by less than is visible, even if a JPEG is reduced a lot."""
    for path in sorted(PHOTOS.glob("*/*-0003.jpg")):
        with Image.open(path) as image:
            data = file_of(image.resize((800, 600)), "JPEG", quality=95)
        expected = opened(data).resize(size, Image.Resampling.LANCZOS)
        options = ImageOptions(resize=size, resize_mode="exact", encode="png")
        difference = pixels(change_image(data, "jpg", options)[0]).astype(float) - np.asarray(expected)
        assert 10 * np.log10(255**2 / max(1e-9, (difference**2).mean())) > 40, path


@pytest.mark.parametrize("side", [17, 25, 33, 41])
def test_edges_of_reduced_jpegs(side: int) -> None:
    """A JPEG that is decoded at a fraction does not shift, even if its size is not a multiple of the fraction."""
    ramp = Image.fromarray(np.tile(np.linspace(0, 250, side).astype("uint8"), (side, 1)))
    data = file_of(ramp, "JPEG", quality=100)
    left, right = pixels(change_image(data, "jpg", ImageOptions(resize=(2, 2), encode="png"))[0])[0].astype(int)
    assert abs(left + right - 250) <= 4


def test_quality() -> None:
    """A lower quality results in a smaller file. The default is 90."""
    data = file_of(photo((200, 150)), "PNG")
    for encode in ("jpg", "webp"):
        sizes = [
            len(change_image(data, "png", ImageOptions(encode=encode, quality=quality))[0]) for quality in (10, 50, 90)
        ]
        assert sizes == sorted(set(sizes))
        default = change_image(data, "png", ImageOptions(encode=encode))[0]
        assert default == change_image(data, "png", ImageOptions(encode=encode, quality=90))[0]
