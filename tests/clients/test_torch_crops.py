"""Decoders of crops: the pixels are those of a crop of the whole image."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import shardtool
from shardtool import InvalidRequest, SampleFailed
from shardtool.torch import CenterCrop, RandomResizedCrop, loader
from shardtool.torch.crops import Box, _Crop
from shardtool.transform.jpeg import read_head

if TYPE_CHECKING:
    from tests.clients.packed import Packed

pytestmark = pytest.mark.clients


@dataclass(frozen=True)
class Fixed(_Crop):
    """The crop of one place."""

    size: int
    place: Box

    def box(self, width: int, height: int) -> Box:
        """Return the place, of an image of `_picture`."""
        assert (width, height) == (150, 131)
        return self.place


def _picture(mode: str = "RGB") -> Image.Image:
    down, across = np.mgrid[0:131, 0:150]
    bands = [down * 2 % 256, across, (down * across) % 251]
    noise = np.random.default_rng(0).integers(0, 60, (131, 150, 3))
    return Image.fromarray((np.stack(bands, -1) * 0.75 + noise).astype(np.uint8)).convert(mode)


def _bytes(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


JPEGS = {
    "4:2:0": _bytes(_picture(), subsampling=2),
    "4:4:4": _bytes(_picture(), subsampling=0),
    "restarts": _bytes(_picture(), restart_marker_rows=1),
    "progressive": _bytes(_picture(), progressive=True),
    "grey": _bytes(_picture("L")),
    "CMYK": _bytes(_picture("CMYK")),
    "PNG": _bytes(_picture("P"), "PNG"),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_the_pixels_of_the_whole_image(kind: str) -> None:
    """A crop has the very pixels of the whole image, wherever it ends."""
    whole = np.asarray(Image.open(io.BytesIO(JPEGS[kind])).convert("RGB"))
    for top in [*range(0, 102, 7), 30, 31, 32, 33, 62, 63, 64, 101]:
        found = Fixed(30, (11, top, 41, top + 30))(JPEGS[kind])
        assert np.array_equal(found, whole[top : top + 30, 11:41])
        assert (found.dtype.name, found.flags.writeable) == ("uint8", True)


@pytest.mark.parametrize("kind", ["4:2:0", "restarts", "PNG"])
def test_resized(kind: str) -> None:
    """A crop that is not of the wanted size is resized; of a JPEG that is decoded smaller, nearly the same."""
    whole = Image.open(io.BytesIO(JPEGS[kind])).convert("RGB")
    for size, box in ((40, (11, 20, 65, 81)), (80, (0, 0, 60, 50)), (16, (3, 5, 140, 120))):
        found = Fixed(size, box)(JPEGS[kind])
        expected = np.asarray(whole.crop(box).resize((size, size), Image.Resampling.BILINEAR))
        away = np.abs(found.astype(int) - expected)
        assert away.mean() <= 6 if size == 16 else away.max() <= 1
        assert (found.dtype.name, found.flags.writeable, found.flags.c_contiguous) == ("uint8", True, True)


def test_less_is_decoded() -> None:
    """Only baseline JPEGs that need no turn are cut; a turned one comes out upright."""
    heads = {kind: read_head(data) for kind, data in JPEGS.items()}
    assert {kind for kind, head in heads.items() if head and head.baseline} == {*JPEGS} - {"progressive", "PNG"}
    exif = Image.Exif()
    for turn in (1, 6):
        exif[0x0112] = turn
        data = _bytes(_picture(), exif=exif.tobytes(), subsampling=0, quality=98)
        upright = _picture() if turn == 1 else _picture().transpose(Image.Transpose.ROTATE_270)
        width, height = upright.size
        found = CenterCrop(64)(data)
        left, top = (width - 64) // 2, (height - 64) // 2
        expected = np.asarray(upright.crop((left, top, left + 64, top + 64)))
        assert np.abs(found.astype(int) - expected).mean() < 8
        assert (read_head(data) is None) == (turn == 6)
    assert all(read_head(JPEGS["4:2:0"][:end]) is None for end in range(150))
    damaged = JPEGS["4:2:0"][:-400]
    assert CenterCrop(20)(damaged).shape == (20, 20, 3)  # the damage is below
    for data in (b"", b"no image", damaged[:900]):
        with pytest.raises(ValueError, match=r"\w"):
            Fixed(100, (0, 31, 100, 131))(data) if data else CenterCrop(10)(data)


def test_centre() -> None:
    """The centre, at the image's size or with its shorter side scaled; a small image is enlarged."""
    assert CenterCrop(100).box(200, 300) == (50, 100, 150, 200)
    assert CenterCrop(224, 256).box(512, 768) == (32, 160, 480, 608)
    assert CenterCrop(300).box(200, 400) == (0, 100, 200, 300)
    assert CenterCrop(200)(JPEGS["4:4:4"]).shape == (200, 200, 3)


def test_random_crops() -> None:
    """Random parts keep to the shares and ratios asked for, and are mirrored half of the time."""
    random.seed(3)
    crop = RandomResizedCrop(32, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    for left, top, right, bottom in (crop.box(300, 200) for _ in range(200)):
        assert 0 <= left < right <= 300
        assert 0 <= top < bottom <= 200
        assert 0.19 <= (right - left) * (bottom - top) / 60_000 <= 0.51
        assert 0.49 <= (right - left) / (bottom - top) <= 2.05
    assert RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)).box(300, 200) == (50, 0, 250, 200)
    assert RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)).box(1, 9) == (0, 4, 1, 5)
    whole = RandomResizedCrop(32, scale=(1, 1), ratio=(150 / 131, 150 / 131), flip=0)(JPEGS["4:4:4"])
    assert np.array_equal(RandomResizedCrop(32, (1, 1), (150 / 131, 150 / 131), 1)(JPEGS["4:4:4"]), whole[:, ::-1])


def test_in_a_loader(photos: Packed) -> None:
    """As a decoder of a field it gives batches of one size, and its errors name the sample."""
    dataset = shardtool.open(photos.folder / "out.json")
    for crop in (CenterCrop(48, 64), RandomResizedCrop(48)):
        shapes = {batch["jpg"].shape[1:] for batch in loader(dataset, 16, decode={"jpg": crop})}
        assert shapes == {(48, 48, 3)}
    with pytest.raises(SampleFailed, match=r"^sample \S+, field json: cannot be decoded: no JPEG, PNG"):
        list(loader(dataset, 16, decode={"json": CenterCrop(8)}))


def test_options_that_make_no_sense() -> None:
    """Each is refused by name."""
    with pytest.raises(InvalidRequest, match=r"^size: 0; expected a whole number, 1 or more"):
        CenterCrop(0)
    with pytest.raises(InvalidRequest, match=r"^shorter: 100; expected 224 or more"):
        CenterCrop(224, 100)
    with pytest.raises(InvalidRequest, match=r"^scale: \(0, 1\)"):
        RandomResizedCrop(224, scale=(0, 1))
    with pytest.raises(InvalidRequest, match=r"^ratio: \(2, 1\)"):
        RandomResizedCrop(224, ratio=(2, 1))
