"""Decoding: the name of a field decides its type, and errors name sample and field."""

from __future__ import annotations

import gc
import io
import json
import pickle
import struct
import subprocess
import sys
import time
import wave
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy
from PIL import Image, ImageOps, ImageSequence

from shardtool.errors import InvalidRequest, SampleFailed
from shardtool.read.decode import Decode, check_decoders, read_npy
from tests.helpers import ENVIRONMENT
from tests.transform.test_image import LAID, chunk, deep, exif, file_of, four_corners, labels, photo, png

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardtool.read.decode import Decoder, ImageType

    Array = np.ndarray[Any, Any]

_JPG = file_of(photo((40, 30)), "JPEG")


def decoded(field: str, data: object, **options: Any) -> Any:
    """Return the decoded value of one field."""
    return Decode(**options)({"__key__": "cat/1", field: data})[field]


def failure(field: str, data: bytes, **options: Any) -> SampleFailed:
    """Return the error of a field that cannot be decoded."""
    with pytest.raises(SampleFailed) as raised:
        decoded(field, data, **options)
    return raised.value


def npy(array: Array, version: tuple[int, int] | None = None) -> bytes:
    """Return an array as a `.npy` file."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


def npy_of(header: str, payload: bytes = b"") -> bytes:
    """Return a `.npy` file with this header."""
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + payload


@pytest.mark.parametrize(
    "kind", ["jpg", "jpeg", "png", "webp", "bmp", "gif", "tiff", "ppm", "seg.png", "image/encoded"]
)
@pytest.mark.parametrize("images", ["numpy", "pil"])
def test_images(kind: str, images: ImageType) -> None:
    """An image becomes RGB as decoded by Pillow: writable uint8 [height, width, 3], or a Pillow image."""
    form = {"jpg": "JPEG", "tiff": "TIFF"}.get(kind, kind.upper() if kind.isalpha() else "PNG")
    data = file_of(photo((40, 30)), form)
    image = decoded(kind, data, images=images)
    expected = Image.open(io.BytesIO(data)).convert("RGB")
    if images == "pil":
        assert (image.mode, image.size, image.tobytes()) == ("RGB", (40, 30), expected.tobytes())
    else:
        assert (image.dtype, image.shape, image.flags.writeable) == (np.uint8, (30, 40, 3), True)
        assert np.array_equal(image, np.asarray(expected))


def test_image_formats_are_detected_from_content() -> None:
    """A PNG named jpg is decoded as PNG."""
    assert np.array_equal(decoded("jpg", file_of(four_corners(), "PNG")), np.asarray(four_corners()))


def _palette(transparency: object) -> bytes:
    image = four_corners().quantize(4)
    return file_of(image, "PNG", transparency=transparency)


def _with_alpha(mode: str) -> bytes:
    image = four_corners().convert(mode)
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    return file_of(image, "PNG")


_GREY = np.asarray(four_corners().convert("L"))
_COLOURS = {
    "grey": (file_of(four_corners().convert("L"), "PNG"), np.dstack([_GREY] * 3)),
    "palette": (_palette(None), np.asarray(four_corners())),
    "palette with a transparent index": (_palette(1), np.asarray(four_corners())),
    "palette with alpha": (_palette(b"\0\x80\xff\xff"), np.asarray(four_corners())),
    "alpha": (_with_alpha("RGB"), np.asarray(four_corners())),
    "grey with alpha": (_with_alpha("L"), np.dstack([_GREY] * 3)),
    "one bit": (
        file_of(four_corners().convert("1", dither=Image.Dither.NONE), "PNG"),
        np.dstack([np.where(_GREY > 127, 255, 0).astype(np.uint8)] * 3),
    ),
    "CMYK": (
        file_of(four_corners().convert("CMYK"), "TIFF"),
        np.asarray(four_corners().convert("CMYK").convert("RGB")),
    ),
    "16 bits of grey": (
        file_of(deep((16, 4)), "PNG"),
        np.dstack([((np.asarray(deep((16, 4))).astype(int) + 128) // 257).astype(np.uint8)] * 3),
    ),
    "16-bit colours": (
        png((2, 1), 16, 2, b"\0" + struct.pack(">6H", 0xFFFF, 0x80FF, 0, 0x1234, 0x7FFF, 1)),
        np.array([[[255, 128, 0], [0x12, 0x7F, 0]]], np.uint8),
    ),
}


@pytest.mark.parametrize("name", _COLOURS)
def test_colours(name: str) -> None:
    """Grey has three equal channels, a palette its colours, alpha is dropped, and 16 bits become 8."""
    data, expected = _COLOURS[name]
    assert np.array_equal(decoded("png", data), expected)
    assert np.array_equal(np.asarray(decoded("png", data, images="pil")), expected)


@pytest.mark.parametrize("orientation", LAID)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    """Images and masks are rotated by their EXIF orientation."""
    data = file_of(photo((40, 30)).transpose(LAID[orientation]), kind, exif=exif(orientation))
    image = Image.open(io.BytesIO(data))
    image.load()
    expected = np.asarray(image if kind == "TIFF" else ImageOps.exif_transpose(image))
    assert expected.shape == (30, 40, 3)
    assert np.array_equal(decoded("jpg", data), expected)
    assert np.array_equal(decoded("jpg", data, own=(("jpg", "mask"),)), expected)


def test_only_the_first_frame_is_decoded() -> None:
    """Of several frames, the first is decoded."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decoded("gif", data)[0, 0].tolist() == [255, 0, 0]


def _pages(data: bytes) -> list[Array]:
    return [np.array(page) for page in ImageSequence.Iterator(Image.open(io.BytesIO(data)))]


@pytest.mark.parametrize("images", ["numpy", "pil"])
@pytest.mark.parametrize("what", ["grey", "colour", "pages"])
def test_a_loss_is_reported_once_per_field(what: str, images: ImageType, caplog: pytest.LogCaptureFixture) -> None:
    """Reducing to 8 bits or one page warns once per field, and names a lossless decoder."""
    pages = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data, loss, remedy = {
        "grey": (file_of(deep((8, 8)), "PNG"), "grey values of more than 8 bits", "'mask'}) returns the stored values"),
        "colour": (png((8, 8), 16, 2, (b"\0" + bytes(48)) * 8), "colours of more than 8 bits", "cv2.IMREAD_UNCHANGED"),
        "pages": (file_of(pages[0], "TIFF", save_all=True, append_images=pages[1:]), "only the first", "ImageSequence"),
    }[what]
    for field in (f"{what}-{images}-a.png", f"{what}-{images}-b.png"):
        caplog.clear()
        for _ in range(2):
            decoded(field, data, images=images)
        (record,) = caplog.records
        assert record.getMessage().startswith(f"field {field}: ")
        assert loss in record.getMessage()
        assert remedy in record.getMessage()
        assert f"decode({{{field!r}: " in record.getMessage()


def test_the_suggested_decoders_are_lossless(caplog: pytest.LogCaptureFixture) -> None:
    """They return all bits and pages without a warning; lossless images give no warning."""
    pages = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    tiff = file_of(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    pages = decoded("own.tif", tiff, own=(("tif", _pages),))
    assert [page[0, 0].tolist() for page in pages] == [[255, 0, 0], [0, 0, 255]]
    grey = decoded("own.png", file_of(deep((8, 8)), "PNG"), own=(("png", "mask"),))
    assert (grey.dtype, grey.tolist()) == (np.uint16, np.asarray(deep((8, 8))).tolist())
    for form in ("PNG", "TIFF", "WEBP", "GIF", "JPEG"):
        decoded("plain.png", file_of(photo((8, 8)), form))
    assert not caplog.records


_MASKS = {
    "indices of a palette": (file_of(four_corners().quantize(4), "PNG"), np.asarray(four_corners().quantize(4))),
    "grey": (file_of(Image.fromarray(labels()), "PNG"), labels()),
    "one bit": (
        file_of(Image.fromarray(labels()).convert("1", dither=Image.Dither.NONE), "PNG"),
        (labels() > 127).astype(np.uint8),
    ),
    "16 bits": (file_of(deep((8, 8)), "PNG"), np.asarray(deep((8, 8)))),
    "32 bits": (file_of(Image.fromarray(labels().astype(np.int32) * 1000), "TIFF"), labels().astype(np.int32) * 1000),
    "floats": (
        file_of(Image.fromarray(labels().astype(np.float32) / 7), "TIFF"),
        labels().astype(np.float32) / np.float32(7),
    ),
    "alpha": (_with_alpha("RGB"), np.asarray(Image.open(io.BytesIO(_with_alpha("RGB"))))),
}


@pytest.mark.parametrize("name", _MASKS)
def test_masks(name: str) -> None:
    """The decoder `mask` returns the stored values in their dtype, in writable memory."""
    data, expected = _MASKS[name]
    mask = decoded("seg.png", data, own=(("seg.png", "mask"),))
    assert mask.dtype == expected.dtype
    assert np.array_equal(mask, expected)
    assert mask.flags.writeable


def test_unsupported_depths_are_rejected() -> None:
    """Float and more than 16-bit images, and 16-bit colour masks, are rejected rather than truncated."""
    for name, what in (("floats", "floats"), ("32 bits", "more than 16 bits")):
        assert what in failure("tif", _MASKS[name][0]).found
    assert "16 bits" in failure("png", _COLOURS["16-bit colours"][0], own=(("png", "mask"),)).found


def test_reduce() -> None:
    """A JPEG is decoded at the smallest scale at which both sides are long enough; others keep their size."""
    image = photo((403, 301))
    jpg, turned = file_of(image, "JPEG"), file_of(image.transpose(LAID[6]), "JPEG", exif=exif(6))
    for min_size in ((1, 1), (50, 37), (51, 37), (100, 75), (101, 75), (100, 76), (201, 150), (202, 1), (1000, 1)):
        scale = next(
            (divisor for divisor in (8, 4, 2) if 403 // divisor >= min_size[0] and 301 // divisor >= min_size[1]), 1
        )
        expected = (-(-301 // scale), -(-403 // scale), 3)
        assert decoded("jpg", jpg, reduce=min_size).shape == decoded("jpg", turned, reduce=min_size).shape == expected
    assert decoded("png", file_of(image, "PNG"), reduce=(1, 1)).shape == (301, 403, 3)


def test_reduce_resembles_resizing() -> None:
    """A JPEG decoded at half size resembles one resized afterwards."""
    data = file_of(photo((320, 240)), "JPEG", quality=95)
    half = np.asarray(decoded("jpg", data, images="pil").reduce(2)).astype(float)
    assert abs(decoded("jpg", data, reduce=(160, 120)) - half).mean() < 3


def test_too_many_pixels() -> None:
    """An image that claims more pixels than Pillow accepts is rejected before decoding."""
    claims = png((30_000, 30_000), 8, 2, b"")
    for images in ("numpy", "pil"):
        assert "too many pixels to decode" in failure("png", claims, images=images).found


_MEMORY = """
import io, sys
from PIL import Image
from shardtool.read.decode import Decode

def memory(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))

data, images, own = open(sys.argv[1], "rb").read(), sys.argv[2], {}
if images == "mask":
    images, own = "numpy", {"png": "mask"}
kind = Image.open(io.BytesIO(data)).format
small = io.BytesIO()
Image.new("L", (8, 8)).save(small, kind)
sample = {"__key__": "k", "png": small.getvalue()}
Decode(tuple(own.items()), images)(sample)
before = memory("VmRSS")
Decode(tuple(own.items()), images, max_bytes="2GB")({"__key__": "k", "png": data})
print(memory("VmHWM") - before)
"""
_TURNED = exif(6)
_LARGE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "png": ("RGB", "PNG", {"compress_level": 1}), "png-turned": ("RGB", "PNG", {"exif": _TURNED, "compress_level": 1}),
    "png-alpha": ("RGBA", "PNG", {"compress_level": 1}), "png-palette": ("P", "PNG", {"compress_level": 1}),
    "png-16": ("I;16", "PNG", {"compress_level": 1}), "jpg": ("RGB", "JPEG", {}), "bmp": ("RGB", "BMP", {}),
    "jpg-turned": ("RGB", "JPEG", {"exif": _TURNED}), "jpg-cmyk": ("CMYK", "JPEG", {"progressive": True}),
    "jpg-progressive": ("RGB", "JPEG", {"progressive": True, "subsampling": 0}), "gif": ("P", "GIF", {}),
    "webp": ("RGB", "WEBP", {}), "webp-lossless": ("RGBA", "WEBP", {"lossless": True}), "ppm": ("RGB", "PPM", {}),
    "tiff": ("RGB", "TIFF", {}), "tiff-strip": ("RGB", "TIFF", {"compression": "tiff_lzw", "strip_size": 2**30}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "images"),
    [
        *((name, "numpy") for name in _LARGE),
        *((name, "pil") for name in ("png-turned", "png-alpha", "png-16", "jpg-cmyk", "webp")),
        *((name, "mask") for name in ("png", "png-16", "tiff-strip")),
    ],
)
def test_memory_is_bounded(name: str, images: str, tmp_path: Path) -> None:
    """Decoding needs at most `max_bytes`: an image is rejected if the limit is below its measured peak."""
    mode, kind, details = _LARGE[name]
    data = file_of(Image.new(mode, (3000, 2000)), kind, **details)
    (tmp_path / "image").write_bytes(data)
    command = [sys.executable, "-c", _MEMORY, str(tmp_path / "image"), images]
    took = int(subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout)
    max_bytes = int(took * 0.9) - 2**20  # memory that the allocator keeps
    options = {"own": (("png", "mask"),)} if images == "mask" else {"images": images}
    assert "may take" in failure("png", data, max_bytes=max_bytes, **options).found


def test_large_claims_are_rejected_before_allocation() -> None:
    """A few bytes that claim a large image are rejected from their header."""
    claims = png((9000, 9000), 8, 2, b"")
    assert "9,000 x 9,000 pixels of this PNG may take 567 MB" in failure("png", claims, max_bytes="500MB").found
    with pytest.raises(InvalidRequest, match="invalid size"):
        Decode(max_bytes="much")


_VALUES: dict[str, tuple[bytes, object]] = {
    "cls": (b"7", 7),
    "cls2": (b" -12\n", -12),
    "index": (b"0", 0),
    "inx": (b"3", 3),
    "id": (b"12345678901234567890", 12345678901234567890),
    "multi.CLS": (b"1", 1),
    "json": ('{"a": [1, 2.5, null, "ü"]}'.encode(), {"a": [1, 2.5, None, "ü"]}),
    "jsonl": (b'{"a": 1}\n\n[2]\n', [{"a": 1}, [2]]),
    "txt": ("größe\n".encode(), "größe\n"),
    "caption": (b"a cat", "a cat"),
    "en.txt": (b"", ""),
}
_BYTES = (
    "flac", "wav", "mp3", "mp4", "pkl", "pickle", "pyd", "pth", "pt", "npz", "bin", "label", "score", "seg", "jpg.gz",
)  # fmt: skip


@pytest.mark.parametrize("field", _VALUES)
def test_the_last_extension_decides(field: str) -> None:
    """The last extension of a field decides its type, in any case."""
    data, expected = _VALUES[field]
    value = decoded(field, data)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("field", _BYTES)
def test_fields_without_a_decoder_stay_bytes(field: str) -> None:
    """Whatever they contain; a pickle is never loaded."""
    data = pickle.dumps(_JPG)
    assert decoded(field, data) is data


def test_other_values_are_unchanged() -> None:
    """TFRecord numbers, metadata, the key, and the caller's dict are unchanged."""
    sample = {"__key__": "a.jpg", "cls": 3, "id": [1, 2], "json": None, "txt": "text", "inx": b"4"}
    given = dict(sample)
    assert Decode()(given) == {**sample, "inx": 4}
    assert given == sample


@pytest.mark.parametrize("version", [None, (1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=">i2").reshape(3, 4), np.asfortranarray(np.arange(12.0).reshape(3, 4)), np.array(2.5),
        np.zeros((3, 0, 2), np.float32), np.array([b"ab", b"c"]), np.array(["ü"]), np.array([True]),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), np.array(["2020-01-01"], "M8[s]"),
    ],
    ids=lambda array: str(array.dtype),
)  # fmt: skip
def test_npy(array: Array, version: tuple[int, int] | None) -> None:
    """An array equals `numpy.load`, in its own writable memory."""
    result = decoded("npy", npy(array, version))
    expected = np.load(io.BytesIO(npy(array, version)))
    assert (result.dtype, result.shape, result.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    assert result.flags.writeable
    assert result.flags.f_contiguous == expected.flags.f_contiguous


def test_npy_version_3() -> None:
    """Structured arrays with non-ASCII field names are read."""
    array = np.array([(1, 2)], [("größe", "i4"), ("ü", "u1")])
    assert decoded("npy", npy(array, (3, 0))).dtype == array.dtype


@given(of_numpy.arrays(of_numpy.scalar_dtypes(), of_numpy.array_shapes(min_dims=0, min_side=0)))
def test_any_npy(array: Array) -> None:
    """Any array of plain values makes a round trip."""
    result = decoded("npy", npy(array))
    assert (result.dtype, result.shape, result.tobytes()) == (array.dtype, array.shape, array.tobytes())


_BAD_ARRAYS = {
    "empty": (b"", "magic"),
    "objects": (npy_of("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", pickle.dumps([1])), "unpickled"),
    "truncated": (npy(np.arange(9))[:-1], "truncated"),
    "claims a terabyte": (npy_of(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**37},)}}"), "truncated"),
    "claims more than there is": (npy_of(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**70},)}}"), ""),
    "less than nothing": (npy_of("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", bytes(8)), "shape"),
    "much of nothing": (npy_of("{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,)}"), "truncated"),
    "nested": (npy_of(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({'-' * 9000}1,)}}"), ""),
    "nested otherwise": (npy_of(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({'~' * 5000}1,)}}"), ""),
    "header ends in a tuple": (npy_of("{'descr': '<f8', 'fortran_order': False, 'shape': ("), "header"),
    "no dict": (npy_of("__import__('os').abort()"), ""),
}


@pytest.mark.parametrize("name", _BAD_ARRAYS)
def test_bad_npy(name: str) -> None:
    """Invalid arrays and Python objects are rejected before allocation, and nothing is executed."""
    data, expected = _BAD_ARRAYS[name]
    assert expected in failure("npy", data).found


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("cls", b""), ("cls", b"dog"), ("id", b"1.5"), ("json", b"{"), ("json", b"[" * 100_000), ("json", b"\xff"),
        ("txt", b"\xff\xfe"), ("jpg", b""), ("jpg", b"no image"), ("jpg", _JPG[:-600]), ("png", b"\x89PNG\r\n\x1a\n"),
    ],
)  # fmt: skip
def test_an_error_names_the_field(field: str, data: bytes) -> None:
    """The error is one line with sample and field; it pickles, and keeps its cause."""
    error = failure(field, data)
    assert error.where == f"sample cat/1, field {field}"
    assert "\n" not in str(error)
    assert len(str(error)) < 500
    assert error.__cause__ is not None
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own


@given(st.sampled_from(["jpg", "png", "gif", "tif", "npy", "json", "cls", "txt"]), st.data())
def test_any_bytes(field: str, data: st.DataObject) -> None:
    """Any bytes become a value or `SampleFailed`, nothing else."""
    whole = {"npy": npy(np.arange(6.0)), "json": b'{"a": [1]}', "cls": b"12", "txt": b"abc"}.get(field)
    start = (
        whole if whole is not None else file_of(four_corners((6, 4)), {"jpg": "JPEG", "tif": "TIFF"}.get(field, field))
    )
    at = data.draw(st.integers(0, len(start)))
    changed = start[:at] + data.draw(st.binary(max_size=8)) + start[at + data.draw(st.integers(0, 8)) :]
    with suppress(SampleFailed):
        decoded(field, changed)


_SOUND = np.random.default_rng(1).integers(-(2**15), 2**15, (3000, 2), dtype=np.int16)


def _wav(samples: Array = _SOUND, rate: int = 16_000) -> bytes:
    """Return int16 [frames, channels] as a WAV."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((samples.shape[1], 2, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return stream.getvalue()


def _encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, _SOUND, 16_000, format=kind)
    return stream.getvalue()


_AUDIO: Any = {"own": (("wav", "audio"),)}


def test_audio() -> None:
    """WAV and FLAC return the written samples [channels, frames], mono too, and the rate."""
    for data in (_wav(), _encoded("FLAC")):
        samples, rate = decoded("wav", data, **_AUDIO)
        assert rate == 16_000
        assert (samples.shape, samples.dtype, samples.flags.c_contiguous) == ((2, 3000), np.float32, True)
        assert np.array_equal(samples * 2**15, _SOUND.T)
    assert decoded("wav", _wav(_SOUND[:1, :1])).startswith(b"RIFF")
    assert decoded("wav", _wav(_SOUND[:1, :1]), **_AUDIO).samples.shape == (1, 1)
    assert decoded("wav", _wav(_SOUND[:0]), **_AUDIO).samples.shape == (2, 0)
    assert decoded("wav", _encoded("OGG"), **_AUDIO).samples.shape == (2, 3000)


def test_invalid_or_large_audio() -> None:
    """Truncated, damaged or too large audio is rejected; a WAV from a pipe is read."""
    data, flac = _wav(), bytearray(_encoded("FLAC"))
    for cut in range(0, len(data), 997):
        assert "ends too early" in str(failure("wav", data[:cut], **_AUDIO)) or cut < 8
    assert "3,000 frames; at most 2,999 frames fit" in str(failure("wav", data, **_AUDIO, max_bytes=2 * 4 * 2 * 2999))
    piped = data[:4] + b"\xff" * 4 + data[8:40] + b"\xff" * 4 + data[44:]
    assert np.array_equal(decoded("wav", piped, **_AUDIO).samples * 2**15, _SOUND.T)
    facts = int.from_bytes(flac[18:26], "big") >> 36 << 36
    for frames, message in ((2**36 - 1, "68,719,476,735 frames"), (0, "audio of unknown length")):
        flac[18:26] = (facts | frames).to_bytes(8, "big")
        assert message in str(failure("wav", bytes(flac), **_AUDIO))


@given(st.sampled_from(["WAV", "FLAC", "OGG"]), st.data())
@settings(max_examples=50)
def test_any_bytes_of_audio(kind: str, data: st.DataObject) -> None:
    """Any bytes become audio within the limit, or `SampleFailed`, nothing else."""
    start = _encoded(kind)
    at = data.draw(st.integers(0, 200))
    changed = start[:at] + data.draw(st.binary(max_size=8)) + start[at + data.draw(st.integers(0, 8)) :]
    with suppress(SampleFailed):
        assert decoded("wav", changed, **_AUDIO, max_bytes="1MB").samples.nbytes <= 500_000


def test_audio_without_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without soundfile, `decode` fails before a sample is read; other decoders do not need it."""
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InvalidRequest, match=r"soundfile cannot be imported.*pip install 'shardtool\[audio\]'"):
        Decode(**_AUDIO)
    assert decoded("wav", b"RIFF") == b"RIFF"


def test_extensions_with_a_dot() -> None:
    """Extensions may start with a dot."""
    assert check_decoders({".jpg": None, "seg.png": "mask"}) == (("jpg", None), ("seg.png", "mask"))


def _length(data: bytes) -> int:
    return len(data)


@pytest.mark.parametrize(
    ("own", "field", "expected"),
    [
        ({"jpg": _length}, "jpg", 3),
        ({"jpg": _length}, "left.jpg", 3),
        ({"jpg": None, "left.jpg": _length}, "left.jpg", 3),
        ({"jpg": None, "left.jpg": _length}, "right.jpg", b"123"),
        ({"cls": None}, "cls", b"123"),
        ({"label": "int"}, "label", 123),
        ({"score": "float"}, "score", 123.0),
        ({"bin": "bool"}, "cls", 123),
        ({"cls": "text"}, "cls", "123"),
        ({"image/class/text": "text"}, "image/class/text", "123"),
        ({"bin": "json"}, "bin", 123),
        ({"png": _length}, "cls", 123),
    ],
)
def test_custom_decoders(own: dict[str, Decoder], field: str, expected: object) -> None:
    """The longest extension with a custom decoder applies; other fields are decoded as usual."""
    assert decoded(field, b"123", own=tuple(own.items())) == expected


def test_image_type_per_field() -> None:
    """Different image fields can have different decoders."""
    decode = Decode((("thumb.jpg", "pil"), ("photo", "numpy")), reduce=(20, 15))
    sample = decode({"__key__": "a", "thumb.jpg": _JPG, "photo": _JPG, "jpg": _JPG})
    assert isinstance(sample["thumb.jpg"], Image.Image)
    assert np.array_equal(np.asarray(sample["photo"]), np.asarray(sample["jpg"]))
    assert sample["thumb.jpg"].size == (20, 15)


def _fails(error: Exception) -> Callable[[bytes], object]:
    def decoder(_: bytes) -> object:
        raise error

    return decoder


def test_errors_of_custom_decoders() -> None:
    """The error names sample, field and cause."""
    error = failure("jpg", b"", own=(("jpg", _fails(KeyError("x"))),))
    assert (error.where, error.found) == ("sample cat/1, field jpg", "cannot be decoded: KeyError: 'x'")
    assert isinstance(error.__cause__, KeyError)


def test_out_of_memory_is_not_damage() -> None:
    """A MemoryError passes unchanged, so the sample is not skipped."""
    with pytest.raises(MemoryError):
        decoded("jpg", b"", own=(("jpg", _fails(MemoryError())),), on_error="skip")


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"images": "torch"}, "images"),
        ({"on_error": "ignore"}, "on_error"),
        ({"reduce": (0, 10)}, "reduce"),
        ({"reduce": (10,)}, "reduce"),
        ({"own": (("jpg", "rgb8"),)}, "decode({'jpg': ...})"),
        ({"own": (("jpg", 3),)}, "decode({'jpg': ...})"),
    ],
)
def test_bad_requests(options: dict[str, Any], where: str) -> None:
    """Invalid decoders are rejected before a sample is read."""
    with pytest.raises(InvalidRequest) as raised:
        Decode(**options)
    assert raised.value.where == where


def test_pickle() -> None:
    """A used decoder can be pickled."""
    decode = Decode((("bin", _length),), reduce=(8, 8))
    sample = {"__key__": "a", "jpg": _JPG, "cls": b"1", "bin": b"12", "npy": npy(np.arange(3))}
    once = decode(sample)
    again = pickle.loads(pickle.dumps(decode))(sample)  # noqa: S301 - our own
    assert json.dumps([*map(str, again.values())]) == json.dumps([*map(str, once.values())])


def test_pillow_is_imported_for_images_only() -> None:
    """Decoding other fields does not import Pillow."""
    code = (
        "import sys; from shardtool.read.decode import *; Decode()({'cls': b'1', 'json': b'1'});"
        "assert 'PIL' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_truncated_png() -> None:
    """A PNG without its last chunk is rejected, although Pillow would show it."""
    whole = png((2, 2), 8, 0, b"\0\1\2\0\3\4")
    assert decoded("png", whole)[1, 1].tolist() == [4, 4, 4]
    assert "too early" in failure("png", whole[: -len(chunk(b"IEND", b""))]).found


def test_arrays_in_threads() -> None:
    """Threads that decode arrays at the same time do not disturb Python's parser, which reads the headers."""
    file, limits = io.BytesIO(), gc.get_threshold()
    np.save(file, np.arange(3))

    def switch(*_: object) -> None:
        time.sleep(0)  # another thread runs while this one parses

    gc.callbacks.append(switch)
    gc.set_threshold(5)
    try:
        with ThreadPoolExecutor(4) as pool:
            arrays = [*pool.map(read_npy, [file.getvalue()] * 160)]
    finally:
        gc.callbacks.remove(switch)
        gc.set_threshold(*limits)
    assert [array.tolist() for array in arrays] == [[0, 1, 2]] * 160
