"""JPEGs decoded by libjpeg-turbo have the same pixels as with Pillow. Other JPEGs are decoded by Pillow."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from shardtool.read.decode import Decode
from shardtool.transform import jpeg
from shardtool.transform.image_decode import BadImage, decode_image, to_rgb


def _picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise // 2 + np.arange(width, dtype=np.uint8)[None, :, None]).convert(mode)


def _bytes(image: Image.Image, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def _oriented(orientation: int, order: str = "big") -> bytes:
    exif = Image.Exif()
    exif.endian = ">" if order == "big" else "<"
    exif[0x0112] = orientation
    return _bytes(_picture(40, 30), exif=exif.tobytes())


def _decoded(data: bytes) -> Any:
    return Decode()({"__key__": "a", "jpg": data})["jpg"]


def _of_pillow(data: bytes, **options: Any) -> np.ndarray[Any, Any]:
    return np.asarray(to_rgb(decode_image(data, **options)))


_SIZES = st.tuples(st.integers(1, 80), st.integers(1, 80))
_WRITTEN = st.fixed_dictionaries(
    {"progressive": st.booleans(), "restart_marker_rows": st.integers(0, 3), "quality": st.integers(1, 100)}
)


@example((3, 20), "4:4:4", {}, (1, 1))
@example((7, 7), None, {}, (1, 1))
@given(_SIZES, st.sampled_from(["4:4:4", "4:2:2", "4:2:0", None]), _WRITTEN, _SIZES | st.none())
def test_pixels_equal_pillow(
    size: tuple[int, int], sampling: str | None, written: dict[str, Any], min_size: tuple[int, int] | None
) -> None:
    """For any size, subsampling, scan order and fraction, the pixels equal Pillow's, in their own memory."""
    image = _picture(*size, "L" if sampling is None else "RGB")
    more = {} if sampling is None else {"subsampling": sampling}
    data = _bytes(image, **written, **more)
    decoded = jpeg.decode_jpeg_fast(data, min_size=min_size)
    if decoded is None:  # Pillow decodes fractions of tiny images
        assert min_size is not None
        assert min(size) < 8
        return
    assert np.array_equal(decoded, _of_pillow(data, min_size=min_size))
    assert (decoded.flags.writeable, decoded.flags.c_contiguous) == (True, True)


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "411", "Gray"])
def test_rare_subsampling_equals_pillow(sampling: str) -> None:
    """Subsamplings of video cameras (4:1:1) and turned photographs (4:4:0) equal Pillow's pixels."""
    for size in ((33, 65), (70, 31)):
        picture = np.asarray(_picture(*size, "L" if sampling == "Gray" else "RGB"))
        channels = picture[..., None] if sampling == "Gray" else picture
        colours = "Gray" if sampling == "Gray" else "rgb"
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(channels), 80, colours, sampling)
        for min_size in (None, (16, 15), (4, 3)):
            decoded = jpeg.decode_jpeg_fast(data, min_size=min_size)
            assert decoded is not None
            assert np.array_equal(decoded, _of_pillow(data, min_size=min_size))


@given(st.binary(max_size=40), st.integers(0, 2000), st.sampled_from([True, False]))
def test_damaged_jpegs_are_left_to_pillow(noise: bytes, at: int, cut: object) -> None:
    """Changed or truncated bytes give Pillow's result, or are left to Pillow."""
    whole = _bytes(_picture(64, 48), quality=60)
    data = whole[: at % len(whole)] + noise + (b"" if cut else whole[at % len(whole) + len(noise) :])
    decoded = jpeg.decode_jpeg_fast(data)
    if decoded is not None:
        assert np.array_equal(decoded, _of_pillow(data))


@pytest.mark.parametrize("progressive", [False, True])
def test_truncated_jpegs_are_refused(progressive: object) -> None:
    """A truncated JPEG is left to Pillow, which refuses it; bytes after the end are harmless."""
    data = _bytes(_picture(64, 48), progressive=progressive)
    for end in range(len(data) - 1, 0, -7):
        assert jpeg.decode_jpeg_fast(data[:end]) is None
        with pytest.raises(BadImage):
            decode_image(data[:end])
    for more in (b"\0" * 9, b"trailer", data):
        decoded = jpeg.decode_jpeg_fast(data + more)
        assert decoded is not None
        assert np.array_equal(decoded, _of_pillow(data))


@pytest.mark.parametrize("order", ["big", "little"])
def test_rotated_jpegs_are_left_to_pillow(order: str) -> None:
    """Only upright JPEGs are decoded; `Decode` returns display orientation."""
    for orientation in range(10):
        data = _oriented(orientation, order)
        upright = orientation not in range(2, 9)
        assert (
            (jpeg.read_jpeg_header(data) is not None) == (jpeg.decode_jpeg_fast(data) is not None) == (orientation == 1)
        )
        shown = _decoded(data)
        assert np.array_equal(shown, _of_pillow(data))
        assert (shown.shape == (30, 40, 3)) == (upright or orientation < 5)
    noted = _bytes(_picture(40, 30), xmp=b'<x:xmpmeta tiff:Orientation="6"/>')
    assert jpeg.decode_jpeg_fast(noted) is None
    assert _decoded(noted).shape == (40, 30, 3)


def test_unusual_jpegs_are_left_to_pillow() -> None:
    """Four colours, twelve bits, arithmetic coding, other frames and other formats are left to Pillow."""
    plain = _bytes(_picture(40, 30))
    head = jpeg.read_jpeg_header(plain)
    assert head is not None
    kind = head.height_offset - 4  # of the frame: ff c0, its length, its bits, its height
    assert jpeg.decode_jpeg_fast(_bytes(_picture(40, 30, "CMYK"))) is None
    assert jpeg.decode_jpeg_fast(plain[: head.height_offset - 1] + b"\x0c" + plain[head.height_offset :]) is None
    for marker in (0xC3, 0xC5, 0xC9, 0xCA, 0xCB, 0xFF, 0xD0, 0x01):
        assert jpeg.decode_jpeg_fast(plain[:kind] + bytes([marker]) + plain[kind + 1 :]) is None
    stream = io.BytesIO()
    _picture(4, 4).save(stream, "PNG")
    for data in (b"", b"\xff\xd8", plain[:20], stream.getvalue()):
        assert jpeg.decode_jpeg_fast(data) is None


def test_memory_is_limited_by_the_header() -> None:
    """A JPEG that may exceed the memory limit is left to Pillow."""
    data = _bytes(_picture(64, 48))
    assert jpeg.decode_jpeg_fast(data, max_bytes=2**20) is not None
    assert jpeg.decode_jpeg_fast(data, max_bytes=2**14) is None
    head = jpeg.read_jpeg_header(data)
    assert head is not None
    huge = data[: head.height_offset] + b"\xff\xff\xff\xff" + data[head.height_offset + 4 :]
    assert jpeg.decode_jpeg_fast(huge) is None
    with pytest.raises(BadImage, match="pixels"):
        decode_image(huge)


def test_reduced_height_decodes_less() -> None:
    """The first rows equal those of the whole image, except next to the cut."""
    for sampling in ("4:4:4", "4:2:0"):
        data = _bytes(_picture(50, 90), subsampling=sampling)
        head = jpeg.read_jpeg_header(data)
        assert head is not None
        assert head.block_rows == (8 if sampling == "4:4:4" else 16)
        decoded = jpeg.decode_jpeg_fast(*jpeg.crop_jpeg_rows(data, head, 48))
        assert decoded is not None
        assert np.array_equal(decoded[:46], _of_pillow(data)[:46])
        whole, less = jpeg.crop_jpeg_rows(data, head, 48)
        assert jpeg.decode_jpeg_fast(whole[:-20], less) is None  # the missing bytes may belong to these rows


def test_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without simplejpeg, Pillow decodes the same arrays."""
    data = _bytes(_picture(64, 48))
    expected = _decoded(data)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert jpeg.jpeg_decoder.__wrapped__() is None
    monkeypatch.setattr(jpeg, "jpeg_decoder", lambda: None)
    assert jpeg.decode_jpeg_fast(data) is None
    assert np.array_equal(_decoded(data), expected)
