"""What webdataset makes of the bytes of a field, and what we make of the same bytes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import webdataset as wds
from PIL import Image, ImageOps
from webdataset.autodecode import Decoder, ImageHandler

from shardtool import open as open_dataset
from shardtool.read.decode import Decode

if TYPE_CHECKING:
    from tests.clients.packed import Packed

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset leaves the last shard open
]


def _image(kind: str, mode: str = "RGB", **details: Any) -> bytes:
    gradient = Image.linear_gradient("L").resize((40, 30))
    image = Image.merge("RGB", [gradient, gradient.rotate(180), Image.new("L", (40, 30), 77)])
    if mode in ("LA", "RGBA"):
        image.putalpha(gradient)
    stream = io.BytesIO()
    image.convert(mode).save(stream, kind, **details)
    return stream.getvalue()


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


_ALIKE: dict[str, bytes] = {
    "jpg": _image("JPEG"),
    "grey.jpg": _image("JPEG", "L"),
    "cmyk.jpeg": _image("JPEG", "CMYK"),
    "png": _image("PNG"),
    "palette.png": _image("PNG", "P"),
    "alpha.png": _image("PNG", "RGBA"),
    "greyalpha.png": _image("PNG", "LA"),
    "bit.png": _image("PNG", "1"),
    "webp": _image("WEBP"),
    "gif": _image("GIF"),
    "bmp": _image("BMP"),
    "tiff": _image("TIFF"),
    "ppm": _image("PPM"),
    "txt": "größe\n".encode(),
    "en.text": b"\xef\xbb\xbfx",
    "transcript": b"",
    "cls": b" 12\n",
    "cls2": b"-3",
    "index": b"0",
    "inx": b"4",
    "id": b"123456789012345678901",
    "json": b'{"a": [1, 2.5, null, NaN]}',
    "jsn": b"[]",
    "npy": _npy(np.asfortranarray(np.arange(12, dtype=">f4").reshape(3, 4))),
    "wav": b"RIFF....",
    "flac": b"fLaC",
    "unknown": b"\0\1",
    "label": b"dog",
}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Image.Image):
        return bool(one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize(("spec", "images"), [("rgb8", "numpy"), ("pil", "pil")])
def test_the_same_values(spec: str, images: Any) -> None:
    """Of the common fields, webdataset's decoders and ours make the same values of the same bytes."""
    theirs = Decoder([ImageHandler(spec)])({"__key__": "a", **_ALIKE})
    ours = Decode(images=images)({"__key__": "a", **_ALIKE})
    assert [name for name in _ALIKE if not _same(ours[name], theirs[name])] == []


def test_where_we_differ() -> None:
    """We turn images upright, make 8 bits of 16 by their value, and know more endings; pickles and npz stay bytes."""
    tags = Image.Exif()
    tags[0x0112] = 6
    lying = _image("JPEG", exif=tags)
    deep = Image.frombytes("I;16", (2, 1), b"\0\x80\xff\xff")
    stream = io.BytesIO()
    deep.save(stream, "PNG")
    sample = {"__key__": "a", "jpg": lying, "png": stream.getvalue(), "caption": b"a cat"}
    theirs: dict[str, Any] = Decoder([ImageHandler("rgb8")])(sample)
    ours: dict[str, Any] = Decode()(sample)
    assert theirs["jpg"].shape == (30, 40, 3)
    assert np.array_equal(ours["jpg"], np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(lying)))))
    assert ours["png"][0, :, 0].tolist() == [128, 255]
    assert theirs["png"][0, :, 0].tolist() != [128, 255]
    assert (theirs["caption"], ours["caption"]) == (b"a cat", "a cat")
    packed = io.BytesIO()
    np.savez(packed, a=np.arange(3))
    assert [*Decoder([])({"npz": packed.getvalue()})["npz"]] == ["a"]
    assert Decode()({"npz": packed.getvalue()})["npz"] == packed.getvalue()


def test_a_whole_dataset(photos: Packed) -> None:
    """Of a dataset of photographs, webdataset's pipeline and our stages give the same pixels, JSON and numbers."""
    theirs = wds.WebDataset(photos.urls, shardshuffle=False).decode("rgb8")
    decode = Decode()
    ours = [decode(sample) for sample in open_dataset(photos.folder / "out.json")]
    for one, other in zip(ours, theirs, strict=True):
        assert one["__key__"] == other["__key__"]
        for field in ("jpg", "json", "cls"):
            assert _same(one[field], other[field])
