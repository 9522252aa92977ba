"""The Prefetcher: the loader's batches, in its order, on a device, and its own."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
import webdataset as wds

from shardtool import InvalidRequest
from shardtool.torch import Prefetcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients.packed import Packed

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset leaves the last shard open
]
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pair(NamedTuple):
    """A batch as a named tuple."""

    image: torch.Tensor
    label: torch.Tensor


def _images(number: int, shape: tuple[int, ...] = (4, 6, 5, 3)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def _plain(images: torch.Tensor) -> torch.Tensor:
    """Return what the Prefetcher must make of images [n, h, w, c], by another way."""
    values = (images.to(torch.float64) / 255 - torch.tensor(MEAN).double()) / torch.tensor(STD).double()
    return values.permute(0, 3, 1, 2)


class Reusing:
    """A loader that gives the same memory each time, and spoils it before it fills it for the next batch.

    Its images are drawn beforehand: it takes far less time for a batch than the kernels that are to run meanwhile.
    """

    def __init__(self, batches: int, *, pinned: bool = False, large: bool = False) -> None:
        shape = (64, 128, 128, 3) if large else (4, 6, 5, 3)
        self._buffer = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        self._made = [_images(number, shape) for number in range(batches)]

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, images in enumerate(self._made):
            self._buffer.copy_(images)
            yield {"jpg": self._buffer, "__key__": [f"{number}"]}
            self._buffer.fill_(255)


def _sums(batches: int) -> list[int]:
    """Return the sum of each of the large batches."""
    return [int(_images(number, (64, 128, 128, 3)).sum(dtype=torch.int64)) for number in range(batches)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_equals_plain_code(device: str, dtype: torch.dtype | None, layout: str, *, channels_last: bool) -> None:
    """Images become (value / 255 - mean) / std as [n, c, h, w], rounded once, in the requested memory format."""
    images = _images(1)
    given = images if layout == "nhwc" else images.permute(0, 3, 1, 2).contiguous()
    [found] = Prefetcher([given], device, MEAN, STD, channels_last=channels_last, dtype=dtype)
    form = torch.channels_last if channels_last else torch.contiguous_format
    assert (found.device.type, found.is_contiguous(memory_format=form)) == (device, True)
    expected = _plain(images).to(dtype or torch.float32)
    tolerance = torch.finfo(dtype).eps if dtype else 1e-6
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_any_shape_of_batch(device: str) -> None:
    """Tensors and arrays in dicts, lists, tuples and named tuples are moved; other values are unchanged."""
    batch = {
        "pair": Pair(_images(0), torch.arange(4)),
        "list": [np.arange(3), (torch.ones(2), "text", None, b"bytes")],
        "names": np.array(["a", "b"]),
        "__key__": ["k1", "k2"],
    }
    [found] = Prefetcher([batch], device)
    assert isinstance(found["pair"], Pair)
    torch.testing.assert_close(found["pair"].image.cpu(), _images(0))
    assert found["pair"].label.tolist() == [0, 1, 2, 3]
    assert found["list"][0].tolist() == [0, 1, 2]
    assert (found["list"][1][0].device.type, found["list"][1][1:]) == (device, ("text", None, b"bytes"))
    assert (found["names"].tolist(), found["__key__"], [*found]) == (["a", "b"], ["k1", "k2"], [*batch])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_loader_may_reuse_its_memory(device: str, depth: int) -> None:
    """Batches of a loader that spoils each one's memory for the next are whole, also when all are kept."""
    prefetcher = Prefetcher(Reusing(6), device, depth=depth)
    assert len(prefetcher) == 6
    for _ in range(2):
        found = list(prefetcher)
        assert [batch["__key__"] for batch in found] == [[f"{number}"] for number in range(6)]
        assert all(torch.equal(batch["jpg"].cpu(), _images(number)) for number, batch in enumerate(found))


@needs_gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_no_batch_is_read_before_it_has_arrived(*, pinned: bool) -> None:
    """While long kernels run before and after each hand-out, every batch is whole on the device."""
    loader, sums = Reusing(12, pinned=pinned, large=True), []
    for batch in Prefetcher(loader, "cuda"):
        torch.cuda._sleep(20_000_000)  # noqa: SLF001 - a kernel of known length
        sums.append(batch["jpg"].sum(dtype=torch.int64))
    assert [int(one) for one in sums] == _sums(12)


@needs_gpu
def test_a_kernel_waits_for_its_batch() -> None:
    """A kernel that reads a batch before its copy has finished sees the complete batch."""
    batches = Prefetcher(Reusing(12, pinned=True, large=True), "cuda", depth=1)
    assert [int(one) for one in [batch["jpg"].sum(dtype=torch.int64) for batch in batches]] == _sums(12)


@needs_gpu
def test_memory_of_a_batch_in_use_is_not_given_again() -> None:
    """A batch that the model's stream still has to read keeps its memory, though nothing refers to it any more."""
    sums = []
    for batch in Prefetcher(Reusing(20, pinned=True, large=True), "cuda", MEAN, STD):
        torch.cuda._sleep(10_000_000)  # noqa: SLF001 - the sum runs long after the batch was let go
        sums.append(batch["jpg"].double().sum())
        del batch
    expected = [_plain(_images(number, (64, 128, 128, 3))).sum() for number in range(20)]
    torch.testing.assert_close(torch.stack(sums).cpu(), torch.stack(expected), rtol=1e-4, atol=1.0)


@needs_gpu
def test_batches_that_are_on_the_device_already() -> None:
    """A batch that the user's stream is still making is waited for, and is the Prefetcher's own."""
    made = torch.zeros(1 << 20, device="cuda")

    def batches() -> Iterator[torch.Tensor]:
        for number in range(5):
            torch.cuda._sleep(10_000_000)  # noqa: SLF001 - a kernel of known length
            made.fill_(number)
            yield made

    assert [int(batch[-1]) for batch in Prefetcher(batches(), "cuda", depth=3)] == [0, 1, 2, 3, 4]


def test_only_images_change() -> None:
    """Masks of one channel, labels and float images are unchanged if the mean has three values."""
    batch = {"jpg": _images(0), "mask": _images(1, (4, 1, 6, 5)), "cls": torch.arange(4), "x": torch.ones(4, 3, 6, 5)}
    [found] = Prefetcher([batch], "cpu", MEAN, STD)
    assert found["jpg"].dtype == torch.float32
    assert all(torch.equal(found[name], batch[name]) for name in ("mask", "cls", "x"))
    [grey] = Prefetcher([batch["mask"]], "cpu", 0.5, 0.5)
    torch.testing.assert_close(grey, batch["mask"] / 255 * 2 - 1)
    [half] = Prefetcher([batch["jpg"]], "cpu", dtype=torch.float16)
    torch.testing.assert_close(half, (batch["jpg"].permute(0, 3, 1, 2) / 255).half())
    [same] = Prefetcher([batch["jpg"]], "cpu")
    assert torch.equal(same, batch["jpg"])


def test_arrays_of_webdataset(photos: Packed) -> None:
    """What webdataset decodes and batches as arrays arrives as tensors, equal to what plain code makes of them."""

    def corner(image: np.ndarray) -> np.ndarray:
        return image[:32, :32]

    pipeline = wds.WebDataset(photos.urls, shardshuffle=False).decode("rgb8").to_tuple("jpg", "cls")
    pipeline = pipeline.map_tuple(corner, int).batched(8)
    plain = list(pipeline)
    found = list(Prefetcher(pipeline, "cpu", MEAN, STD))
    assert len(found) == len(plain) > 1
    for (images, labels), (raw, numbers) in zip(found, plain, strict=True):
        torch.testing.assert_close(images, _plain(torch.from_numpy(raw)).float(), rtol=1e-6, atol=2e-6)
        assert labels.tolist() == list(numbers)


@pytest.mark.parametrize("device", DEVICES)
def test_errors_of_the_loader_come_in_their_turn(device: str) -> None:
    """What the loader gave before it failed is handed out first; then its own exception comes."""

    def batches() -> Iterator[torch.Tensor]:
        yield torch.tensor(1)
        yield torch.tensor(2)
        raise LookupError("shard 3")

    passed = iter(Prefetcher(batches(), device, depth=4))
    assert [int(next(passed)), int(next(passed))] == [1, 2]
    with pytest.raises(LookupError, match="shard 3"):
        next(passed)
    assert next(passed, None) is None


@pytest.mark.parametrize("device", DEVICES)
def test_no_reference_to_old_batches(device: str) -> None:
    """A batch without references is freed before the next is requested, with its loader batch."""
    given: list[weakref.ref[torch.Tensor]] = []

    def batches() -> Iterator[torch.Tensor]:
        for number in range(4):
            batch = torch.full((8,), number)
            given.append(weakref.ref(batch))
            yield batch
            del batch

    for batch in Prefetcher(batches(), device, depth=1):
        mine = weakref.ref(batch)
        del batch
        gc.collect()
        assert mine() is None
        assert [one() for one in given[:-1]] == [None] * (len(given) - 1)


def test_early_stop_closes_the_loader() -> None:
    """Who stops early ends the loader's own iteration, too."""
    ended = []

    def batches() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            ended.append(True)

    passed = iter(Prefetcher(batches(), "cpu"))
    assert next(passed) == 0
    del passed
    gc.collect()
    assert ended == [True]


class Counting:
    """A loader whose state is the number of batches that it gave."""

    def __init__(self) -> None:
        self.given, self.epoch = 0, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.given < 10:
            self.given += 1
            yield torch.tensor(self.given)
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("device", DEVICES)
def test_state_is_of_what_was_handed_out(device: str) -> None:
    """A state does not count batches that were only read ahead, and another run goes on after it."""
    prefetcher = Prefetcher(Counting(), device, depth=4)
    passed = iter(prefetcher)
    assert [int(next(passed)) for _ in range(3)] == [1, 2, 3]
    state = prefetcher.state_dict()
    assert state == {"given": 3}
    other = Prefetcher(Counting(), device, depth=4)
    other.load_state_dict(state)
    other.set_epoch(7)
    assert other.loader.epoch == 7  # type: ignore[attr-defined]
    assert [int(batch) for batch in other] == [4, 5, 6, 7, 8, 9, 10]
    assert other.state_dict() == {"given": 0}


def _failing(match: str, **options: Any) -> None:
    batch = options.pop("batch", _images(0))
    with pytest.raises(InvalidRequest, match=match):
        list(Prefetcher([batch], **{"device": "cpu", **options}))


def test_options_that_make_no_sense() -> None:
    """Each is refused in one line that names it."""
    _failing("^depth: 0; expected a whole number, 1 or more", depth=0)
    _failing("^dtype: torch.int32", dtype=torch.int32)
    _failing("^dtype: 'half'; expected a floating-point dtype", dtype="half")
    _failing("^mean: 'x'; expected one number", mean="x")
    with pytest.raises(InvalidRequest, match=r"^loader: a int; expected an iterable"):
        Prefetcher(5, "cpu")  # type: ignore[arg-type]
    _failing("^std: a value that is not positive", std=0)
    _failing("^std: 2 values; expected 3", mean=MEAN, std=(1, 2))
    _failing("^mean: .*nan", mean=float("nan"))
    _failing("^device: 'nowhere'", device="nowhere")
    _failing("^device: 'cuda:99', but torch can use", device="cuda:99")
    _failing("^a batch: has no images to normalise", batch=torch.ones(4, 3, 8, 8), mean=MEAN)
    _failing(r"^a batch of images \[2, 3, 8, 3\]: the second and the last", batch=_images(0, (2, 3, 8, 3)), mean=MEAN)
