"""Decoders of crops return the pixels of a crop of the decoded image."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import shardtool
from shardtool import InvalidRequest, SampleFailed
from shardtool.torch import CenterCrop, MapDataset, RandomResizedCrop, StreamDataset, collate, loader
from shardtool.torch.crops import Box, _Crop
from shardtool.transform.jpeg import read_jpeg_header

if TYPE_CHECKING:
    from tests.clients.packed import Packed

pytestmark = pytest.mark.clients


@dataclass(frozen=True)
class Fixed(_Crop):
    """The crop of one place."""

    size: int
    where: Box
    place: str | None = None

    def __call__(self, data: bytes) -> Any:
        """Return the crop, of an image of `_picture`."""
        return self._with_position(*self._crop(data, self.box))

    def box(self, width: int, height: int) -> Box:
        """Return the place."""
        assert (width, height) == (150, 131)
        return self.where


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
    """A crop of another size is resized; for a JPEG that is decoded smaller, the result is nearly the same."""
    whole = Image.open(io.BytesIO(JPEGS[kind])).convert("RGB")
    for size, box in ((40, (11, 20, 65, 81)), (80, (0, 0, 60, 50)), (16, (3, 5, 140, 120))):
        found = Fixed(size, box)(JPEGS[kind])
        expected = np.asarray(whole.crop(box).resize((size, size), Image.Resampling.BILINEAR))
        away = np.abs(found.astype(int) - expected)
        assert away.mean() <= 6 if size == 16 else away.max() <= 1
        assert (found.dtype.name, found.flags.writeable, found.flags.c_contiguous) == ("uint8", True, True)


def test_small_crops() -> None:
    """A crop of a few pixels has the position of its box, even if the scaled size is rounded up."""
    for width, height, size in itertools.product((33, 57, 89, 97, 105), (41, 73), (3, 8, 12)):
        across = np.tile(np.linspace(0, 255, width).astype(np.uint8), (height, 1))
        crop = CenterCrop(size, size)
        left, top, right, bottom = crop.box(width, height)
        found = crop(_bytes(Image.fromarray(across), quality=98)).mean()
        assert abs(found - across[top:bottom, left:right].mean()) < 10


def test_less_is_decoded() -> None:
    """Only baseline JPEGs that need no turn are cut; a turned one comes out upright."""
    heads = {kind: read_jpeg_header(data) for kind, data in JPEGS.items()}
    assert {kind for kind, head in heads.items() if head and head.is_sequential} == {*JPEGS} - {"progressive", "PNG"}
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
        assert (read_jpeg_header(data) is None) == (turn == 6)
    assert all(read_jpeg_header(JPEGS["4:2:0"][:end]) is None for end in range(150))
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


class Replayed:
    """A generator that draws as torchvision does: from torch's."""

    def uniform(self, low: float, high: float) -> float:
        """Return a number."""
        return float(torch.empty(1).uniform_(low, high).item())

    def integers(self, high: int) -> int:
        """Return a whole number."""
        return int(torch.randint(0, high, size=(1,)).item())


def _of_torchvision(width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """Return what torchvision takes, in the order of its draws: `RandomResizedCrop.get_params`."""
    area, log_ratio = height * width, torch.log(torch.tensor(ratio))
    for _ in range(10):
        target_area = area * torch.empty(1).uniform_(scale[0], scale[1]).item()
        aspect_ratio = torch.exp(torch.empty(1).uniform_(log_ratio[0], log_ratio[1])).item()
        w, h = round(math.sqrt(target_area * aspect_ratio)), round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i = int(torch.randint(0, height - h + 1, size=(1,)).item())
            j = int(torch.randint(0, width - w + 1, size=(1,)).item())
            return j, i, j + w, i + h
    in_ratio = float(width) / float(height)
    w, h = width, height
    if in_ratio < min(ratio):
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        w = round(h * max(ratio))
    i, j = (height - h) // 2, (width - w) // 2
    return j, i, j + w, i + h


def test_random_crops_by_the_rules_of_torchvision() -> None:
    """With the same draws the parts are torchvision's: shares, ratios, ten tries, and the centre after these."""
    sizes = [(300, 200), (500, 375), (40, 900), (900, 40), (7, 5), (1, 1)]
    rules = [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 1.0), (0.5, 2.0)), ((1.0, 1.0), (1.0, 1.0))]
    for seed, ((width, height), (scale, ratio)) in enumerate(itertools.product(sizes, rules * 20)):
        torch.manual_seed(seed)
        expected = _of_torchvision(width, height, scale, ratio)
        torch.manual_seed(seed)
        rng: Any = Replayed()
        assert RandomResizedCrop(8, scale, ratio).box(width, height, rng) == expected


def test_flips() -> None:
    """Crops are mirrored with the requested probability."""
    whole = RandomResizedCrop(32, (1, 1), (150 / 131, 150 / 131))(JPEGS["4:4:4"])
    mirrored = RandomResizedCrop(32, (1, 1), (150 / 131, 150 / 131), 1)(JPEGS["4:4:4"])
    assert np.array_equal(mirrored, whole[:, ::-1])
    assert mirrored.flags.c_contiguous
    crop = RandomResizedCrop(32, (1, 1), (150 / 131, 150 / 131), 0.5)
    some = [crop(JPEGS["4:4:4"], np.random.default_rng(seed)) for seed in range(40)]
    assert 8 < sum(np.array_equal(one, mirrored) for one in some) < 32


def test_a_crop_of_its_own_for_each_position(photos: Packed) -> None:
    """The crops of an epoch are the same for all threads, workers, ranks and resumes; another epoch has others."""
    dataset = shardtool.open(photos.folder / "out.json")
    chain = dataset.decode({"jpg": RandomResizedCrop(16, place="crop")}).fields("jpg", "crop")

    def taken(batches: Any) -> dict[str, tuple[int, ...]]:
        return {
            key: tuple(place.tolist())
            for batch in batches
            for key, place in zip(batch["__key__"], batch["crop"], strict=True)
        }

    first = taken(loader(chain, 8, threads=1))
    assert len(set(first.values())) > len(first) // 2
    assert taken(loader(chain, 5, threads=4)) == first
    assert taken([{**one, "__key__": [one["__key__"]], "crop": one["crop"][None]} for one in chain.stream()]) == first
    for workers in (0, 2):
        assert taken(DataLoader(StreamDataset(chain, 8), 8, num_workers=workers)) == first
    ranks = [taken(loader(chain, 4, rank=rank, world_size=2, ends="uneven", parts=4, buffer=8)) for rank in range(2)]
    one = taken(loader(chain, 4, ends="uneven", parts=4, buffer=8))
    assert {**ranks[0], **ranks[1]} == one
    begun = loader(chain, 8)
    stopped = next(iter(begun))
    resumed = loader(chain, 8)
    resumed.load_state_dict(begun.state_dict())
    assert taken(resumed) == {key: place for key, place in first.items() if key not in stopped["__key__"]}
    resumed.set_epoch(1)
    assert taken(resumed) != first


def test_fields_of_a_sample_are_cropped_alike(photos: Packed) -> None:
    """All images of a sample are cropped to the same box, and bounding boxes move with the crop."""
    decode = {"jpg": RandomResizedCrop(16, place="crop"), "seg.jpg": RandomResizedCrop(16, place="other")}
    chain = shardtool.open(photos.folder / "out.json").map(_twice).decode(decode)
    samples = list(chain.stream())
    assert len({tuple(sample["crop"]) for sample in samples}) > 1
    for sample in samples:
        assert np.array_equal(sample["jpg"], sample["seg.jpg"])
        assert sample["crop"].tolist() == sample["other"].tolist()


def _twice(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"], "jpg": sample["jpg"], "seg.jpg": sample["jpg"]}


def test_boxes_move_with_the_crop() -> None:
    """A mark in an image is inside its moved box, mirrored or not; a box outside the crop has no area."""
    image = np.zeros((120, 160, 3), np.uint8)
    image[30:60, 50:90] = 255
    data = _bytes(Image.fromarray(image), "PNG")
    rng = np.random.default_rng(5)
    for flip in (0, 1):
        crop = RandomResizedCrop(64, scale=(0.5, 1), flip=flip, place="crop")
        for _ in range(20):
            found = crop(data, rng)
            place = found.extra_fields["crop"]
            assert place[4] == flip
            left, top, right, bottom = crop.move([[50, 30, 90, 60]], place)[0]
            down, across = np.nonzero(found.value[..., 0] > 127)
            assert np.allclose(
                [across.min(), down.min(), across.max() + 1, down.max() + 1], [left, top, right, bottom], atol=1
            )
    centre = CenterCrop(50, place="at")(data)
    assert centre.extra_fields["at"].tolist() == [55, 35, 50, 50, 0]
    moved = CenterCrop(50).move([[50, 30, 90, 60], [0, 0, 10, 10]], centre.extra_fields["at"])
    assert (moved.tolist(), moved.dtype.name) == ([[0, 0, 35, 25], [0, 0, 0, 0]], "float32")
    assert CenterCrop(50).move([], centre.extra_fields["at"]).shape == (0, 4)


def test_in_a_loader(photos: Packed) -> None:
    """As a decoder of a field it gives batches of one size, and its errors name the sample."""
    dataset = shardtool.open(photos.folder / "out.json")
    for crop in (CenterCrop(48, 64), RandomResizedCrop(48)):
        shapes = {batch["jpg"].shape[1:] for batch in loader(dataset, 16, decode={"jpg": crop})}
        assert shapes == {(48, 48, 3)}
    with pytest.raises(SampleFailed, match=r"^sample \S+, field json: cannot be decoded: not a JPEG, PNG"):
        list(loader(dataset, 16, decode={"json": CenterCrop(8)}))


def _with_boxes(sample: dict[str, Any]) -> dict[str, Any]:
    number = int(sample["__key__"][-1]) % 3
    image = Image.new("RGB", (20 + number, 30))
    return {"__key__": sample["__key__"], "image": image, "boxes": np.zeros((number, 4), np.float32), "n": number}


def test_detection(photos: Packed) -> None:
    """Images and boxes of several sizes are lists of tensors in every batch, in a loader and in a DataLoader alike."""
    chain = shardtool.open(photos.folder / "out.json").map(_with_boxes)
    joined = partial(collate, lists=("image", "boxes"))
    ours = list(loader(chain, 4, lists=("image", "boxes"), shuffle=False))
    theirs = list(DataLoader(StreamDataset(chain, 4, shuffle=False), 4, num_workers=2, collate_fn=joined))
    again = list(DataLoader(MapDataset(chain), 4, collate_fn=joined))
    assert len(ours) == len(theirs) == len(again)
    for batches in zip(ours, theirs, again, strict=True):
        for batch in batches:
            numbers = batch["n"].tolist()
            assert batch["__key__"] == batches[0]["__key__"]
            for field in ("image", "boxes"):
                assert type(batch[field]) is list
                assert {type(one) for one in batch[field]} == {torch.Tensor}
            assert [one.shape for one in batch["image"]] == [(30, 20 + number, 3) for number in numbers]
            assert [one.shape for one in batch["boxes"]] == [(number, 4) for number in numbers]
    with pytest.raises(InvalidRequest, match=r"^lists: 'box'; expected fields of the samples"):
        list(loader(chain, 4, lists=("box",)))


def test_options_that_make_no_sense() -> None:
    """Each is refused by name."""
    with pytest.raises(InvalidRequest, match=r"^size: 0; expected a whole number, 1 or more"):
        CenterCrop(0)
    with pytest.raises(InvalidRequest, match=r"^shorter: 100; expected at least the crop's size, 224"):
        CenterCrop(224, 100)
    with pytest.raises(InvalidRequest, match=r"^scale: \(0, 1\)"):
        RandomResizedCrop(224, scale=(0, 1))
    with pytest.raises(InvalidRequest, match=r"^flip: 2; expected a probability, 0 to 1"):
        RandomResizedCrop(224, flip=2)
    with pytest.raises(InvalidRequest, match=r"^ratio: \(2, 1\)"):
        RandomResizedCrop(224, ratio=(2, 1))
