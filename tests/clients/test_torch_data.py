"""Shards in PyTorch: `loader`, `MapDataset` and `StreamDataset`, with the stock DataLoader and torchdata's."""

from __future__ import annotations

import copy
import io
import json
import pickle
import shutil
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed
from PIL import Image
from torch.utils.data import DataLoader, DistributedSampler

import shardtool
from shardtool import CorruptShard, InvalidRequest, SampleFailed
from shardtool.execute import local_pool as pools
from shardtool.read.decode import Decode
from shardtool.torch import MapDataset, Prefetcher, StreamDataset, loader
from tests.clients.packed import PHOTOS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.clients.packed import Packed

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with torch 2.13
]
CORNER = 24


@pytest.fixture(scope="module")
def dataset(photos: Packed) -> Any:
    """The sample photographs as a dataset of 98 samples in ten shards."""
    return shardtool.open(photos.folder / "out.json")


def corner(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with a crop of its picture, so all pictures have the same size."""
    return {**sample, "jpg": sample["jpg"][:CORNER, :CORNER]}


def as_list(samples: list[Any]) -> list[Any]:
    """Return a batch as the list of its samples' keys."""
    return [sample["__key__"] for sample in samples]


def keys(batches: Iterable[Any]) -> list[list[str]]:
    """Return the keys of each batch."""
    return [batch["__key__"] for batch in batches]


def flat(batches: Iterable[Iterable[str]]) -> list[str]:
    """Return the keys of all batches, in order."""
    return [key for batch in batches for key in batch]


def _check_batch(batch: dict[str, Any], photos: Packed) -> None:
    """Check a batch against the source files of its samples."""
    for row, key in enumerate(batch["__key__"]):
        fields = photos.samples[key]
        pixels = np.asarray(Image.open(io.BytesIO(fields["jpg"])).convert("RGB"))[:CORNER, :CORNER]
        assert np.array_equal(batch["jpg"][row].numpy(), pixels)
        assert int(batch["cls"][row]) == int(fields["cls"])
        assert batch["json"][row] == json.loads(fields["json"])


def test_loader_reads_every_sample(dataset: Any, photos: Packed) -> None:
    """An epoch holds each sample once, decoded as its file is, in tensors; the next epoch has another order."""
    batches = loader(dataset, 16, decode=True, transform=corner, threads=3)
    first = list(batches)
    assert [len(batch["__key__"]) for batch in first] == [16] * 6 + [2]
    assert (len(batches), first[0]["jpg"].shape, first[0]["jpg"].dtype) == (7, (16, CORNER, CORNER, 3), torch.uint8)
    assert first[0]["cls"].dtype == torch.int64
    for batch in first:
        _check_batch(batch, photos)
    second = keys(batches)
    assert sorted(flat(keys(first))) == sorted(flat(second)) == sorted(photos.samples)
    assert flat(keys(first)) != flat(second)
    batches.set_epoch(0)
    assert keys(batches) == keys(first)


def test_loader_in_order(dataset: Any, photos: Packed) -> None:
    """Without shuffle the samples come in the dataset's order, and tuples become tuples of batches."""
    chained = dataset.decode().map(corner).tuple("jpg", "cls") if hasattr(dataset, "decode") else None
    batches = loader(dataset, 10, shuffle=False, drop_last=True)
    found = list(batches)
    assert flat(keys(found)) == list(photos.samples)[:90]
    assert found[3]["jpg"] == [photos.samples[key]["jpg"] for key in found[3]["__key__"]]
    assert len(batches) == 9
    if chained is not None:
        images, labels = next(iter(loader(chained, 10, shuffle=False)))
        assert images.shape == (10, CORNER, CORNER, 3)
        assert labels.tolist() == [int(photos.samples[key]["cls"]) for key in found[0]["__key__"]]


def test_a_stream_of_the_dataset(dataset: Any) -> None:
    """A stream that is given keeps its order and epoch, and a state that it loaded; it takes no options of a stream."""
    stream = dataset.stream(seed=7, epoch=2)
    whole = keys(loader(dataset.stream(seed=7, epoch=2), 8))
    next(iter(stream))
    assert keys(loader(stream, 8)) == _passes(StreamDataset(stream, 8), 0) == whole
    stream.load_state_dict({**stream.state_dict(), "position": 16})
    assert keys(loader(stream, 8)) == _passes(StreamDataset(stream, 8), 0) == whole[2:]
    assert _passes(StreamDataset(dataset.stream(seed=7, epoch=2), 8), 2) == whole
    with pytest.raises(InvalidRequest, match=r"^seed: given with a stream"):
        loader(stream, 8, seed=1)


def test_threads_are_the_cores_of_the_container(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads decode as this process may use cores, where a container has a quota of them, too."""
    monkeypatch.setattr(pools, "open", lambda *_, **__: io.StringIO("100000 100000\n"), raising=False)
    passed = iter(loader(dataset, 8))
    next(passed)
    assert sum(one.name.startswith("shardtool-decode") for one in threading.enumerate()) == 1


def test_own_collate(dataset: Any) -> None:
    """An own function gets the samples of a batch in order."""
    assert list(loader(dataset, 16, collate=as_list)) == keys(loader(dataset, 16))


def test_loader_continues_from_a_state(dataset: Any) -> None:
    """After an early stop, the epoch starts again; a loader that loads the state returns the following batches."""
    whole = keys(loader(dataset, 8, seed=5))
    batches = loader(dataset, 8, seed=5, depth=5)
    taken = []
    for batch in batches:
        taken.append(batch["__key__"])
        if len(taken) == 4:
            break
    state = json.loads(json.dumps(batches.state_dict()))
    names = [one.name for one in threading.enumerate() if one.name.startswith("shardtool-")]
    assert not [name for name in names if "callers" not in name]  # those stay, for stores
    assert keys(batches) == whole
    other = loader(dataset, 8, seed=99)
    other.load_state_dict(state)
    other.set_epoch(0)  # the epoch of the state: it goes on
    assert taken + keys(other) == whole
    assert other.state_dict()["epoch"] == 1
    other.load_state_dict(state)
    other.set_epoch(3)
    assert len(keys(other)) == 13


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_divide_the_same_steps(dataset: Any, world_size: int) -> None:
    """The n-th batches of all ranks hold what one rank's n-th batch of all their samples holds."""
    one = keys(loader(dataset, 8 * world_size // 2, parts=64, ends="drop", drop_last=True))
    ranks = [
        keys(loader(dataset, 4, parts=64, rank=rank, world_size=world_size, drop_last=True))
        for rank in range(world_size)
    ]
    steps = [sorted(flat(step)) for step in zip(*ranks, strict=True)]
    assert steps == [sorted(step) for step in one]


def test_state_in_another_number_of_ranks(dataset: Any) -> None:
    """Two ranks go on where one was, at the exact sample."""
    one = loader(dataset, 8)
    whole, passed = flat(keys(loader(dataset, 8))), iter(one)
    seen = flat(next(passed)["__key__"] for _ in range(3))
    rest = []
    for rank in range(2):
        other = loader(dataset, 4, rank=rank, world_size=2)
        other.load_state_dict(one.state_dict())
        rest += flat(keys(other))
    assert sorted(seen + rest) == sorted(whole)


def test_errors_name_the_sample(dataset: Any) -> None:
    """A decoder's error names the key, and options that make no sense are refused by name."""

    def failing(data: bytes) -> object:
        raise ValueError(f"{len(data)} bytes")

    with pytest.raises(SampleFailed, match=r"^sample \S+/\S+, field jpg: cannot be decoded: \d+ bytes"):
        list(loader(dataset, 8, decode={"jpg": failing}))
    with pytest.raises(InvalidRequest, match=r"^threads: 0"):
        loader(dataset, 8, threads=0)
    with pytest.raises(InvalidRequest, match=r"^depth: 0"):
        loader(dataset, 8, depth=0)
    with pytest.raises(InvalidRequest, match=r"^rank: 3 of 2"):
        loader(dataset, 8, rank=3, world_size=2)
    with pytest.raises(InvalidRequest, match=r"^batch_size: 0"):
        loader(dataset, 0)
    with pytest.raises(InvalidRequest, match=r"^the dataset: a list; expected a dataset"):
        loader([1, 2], 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"^labels: no label for sample"):
        list(loader(dataset, 8, labels={"x": 1}))
    with pytest.raises(InvalidRequest, match=r"^labels: a tuple; expected dicts"):
        list(loader(dataset.tuple("cls"), 8, labels={"x": 1}))
    with pytest.raises(InvalidRequest, match=r"^labels: a list; expected key to label"):
        loader(dataset, 8, labels=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"^decode: 'pil'; expected fields and their decoders"):
        MapDataset(dataset, decode="pil")  # type: ignore[arg-type]
    for wrong in ("out.json", dataset.stream()):
        with pytest.raises(
            InvalidRequest, match=r"^the dataset: a \w+; expected a dataset that shardtool.open returned$"
        ):
            MapDataset(wrong)


@pytest.mark.parametrize("kind", [loader, StreamDataset])
def test_invalid_epochs(dataset: Any, kind: Any) -> None:
    """An invalid epoch number is refused when it is set, and changes nothing."""
    samples = kind(dataset, 8)
    for epoch in ("1", -1, 1.0):
        with pytest.raises(InvalidRequest, match=r"^epoch: .*; expected a whole number, 0 or more"):
            samples.set_epoch(epoch)
    samples.set_epoch(np.int64(1))
    with pytest.raises(InvalidRequest, match=r"^batches: -1"):
        StreamDataset(dataset, 8).state_at(-1)


@pytest.mark.parametrize("kind", [loader, StreamDataset, lambda dataset, _, **options: MapDataset(dataset, **options)])
def test_the_representation_in_a_notebook(dataset: Any, kind: Any) -> None:
    """It contains the fields that are read, and not every label."""
    assert len(repr(kind(dataset, 8, labels={str(at): at for at in range(1000)}))) < 1000


def test_tensors_for_numbers(dataset: Any, photos: Packed) -> None:
    """A tensor of numbers or keys is as good as a list."""
    found = [*photos.samples]
    assert [one["__key__"] for one in dataset[torch.tensor([3, -1])]] == [found[3], found[-1]]
    assert dataset[torch.tensor(3)]["__key__"] == found[3]


def test_samples_that_are_left_out(dataset: Any, photos: Packed) -> None:
    """With `on_error="skip"`, uneven batches go without samples that cannot be decoded, and they are counted."""
    batches = loader(dataset, 10, decode=_ODD, shuffle=False, ends="uneven")
    kept = [key for key, fields in photos.samples.items() if int(fields["cls"]) % 2]
    assert flat(keys(batches)) == kept
    assert batches.skipped.samples == sum(batches.skipped.shards.values()) == 98 - len(kept) > 0


def odd(data: bytes) -> object:
    """Decode labels, but for even ones."""
    if int(data) % 2 == 0:
        raise ValueError("even")
    return int(data)


_ODD = Decode((("cls", odd), ("jpg", None)), on_error="skip")


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_steps_with_skipped_samples(dataset: Any, photos: Packed, workers: int) -> None:
    """Every rank makes `len` full steps, with the same samples for any ranks, workers and way of reading."""
    whole = keys(loader(dataset, 8, decode=_ODD, parts=64, ends="pad", drop_last=True))
    assert {int(photos.samples[key]["cls"]) % 2 for key in flat(whole)} == {1}
    options: dict[str, Any] = {"decode": _ODD, "parts": 64, "ends": "pad", "world_size": 2}
    by_loader = [loader(dataset, 4, rank=rank, drop_last=True, **options) for rank in range(2)]
    steps = [keys(one) for one in by_loader]
    assert [*map(len, steps)] == [*map(len, by_loader)] == [12, 12]
    assert [sorted(flat(step)) for step in zip(*steps, strict=True)] == [sorted(step) for step in whole]
    for rank in range(2):
        samples = StreamDataset(dataset, 4, rank=rank, **options)
        batches = DataLoader(samples, 4, num_workers=workers, collate_fn=as_list)
        found = list(batches)
        assert found[:12] == steps[rank]
        assert (len(found), len(flat(found))) == (len(batches), len(samples))


@pytest.mark.parametrize("blocks", ["", ".pack(100, 'jpg', dtype='uint8')"])
def test_a_program_ends_quietly(photos: Packed, blocks: str) -> None:
    """A program that exits with an open dataset and a half-read batch prints nothing more."""
    code = (
        "import sys, shardtool, shardtool.torch\n"
        f"batches = iter(shardtool.torch.loader(shardtool.open(sys.argv[1]){blocks}, 8))\n"
        "print(len(next(batches)['__key__']))\n"
    )
    words = [sys.executable, "-c", code, str(photos.folder / "out.json")]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("8\n", "")


def test_labels(dataset: Any, photos: Packed) -> None:
    """A table of labels by key becomes the field `label`."""
    labels = {key: number for number, key in enumerate(photos.samples)}
    for batch in loader(dataset, 16, labels=labels):
        assert batch["label"].tolist() == [labels[key] for key in batch["__key__"]]
    sample = MapDataset(dataset, labels=labels)[5]
    assert sample["label"] == labels[sample["__key__"]]


def _negative(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "cls": -1}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_by_numbers_and_as_a_stream(dataset: Any, workers: int) -> None:
    """A mix of datasets with different pipelines can be read by number, in worker processes, and by the loader."""
    mixed = shardtool.mix([dataset[:40].decode().fields("cls"), dataset[40:].fields("cls").map(_negative)])
    by_number = list(DataLoader(MapDataset(mixed), 7, num_workers=workers))
    as_stream = list(loader(mixed, 7, shuffle=False, ends="uneven"))
    for batches in (by_number, as_stream):
        assert sorted(flat(batch["__key__"] for batch in batches)) == sorted(str(one["__key__"]) for one in dataset)
        for batch in batches:
            assert ((batch["cls"] < 0) == (batch["__dataset__"] == 1)).all()
    assert [one["__key__"] for one in by_number] == [one["__key__"] for one in as_stream]


@pytest.mark.parametrize("workers", [0, 2])
def test_map_dataset(dataset: Any, photos: Packed, workers: int) -> None:
    """A stock DataLoader gets every sample by number, shuffled by its own sampler, in batches of tensors."""
    samples = MapDataset(dataset, decode=True, transform=corner)
    assert (len(samples), samples[3]["__key__"]) == (98, list(photos.samples)[3])
    batches = DataLoader(samples, batch_size=16, shuffle=True, num_workers=workers, collate_fn=partial(dict_of, "jpg"))
    found = list(batches)
    assert sorted(flat(keys(found))) == sorted(photos.samples) != flat(keys(found))
    for batch in found:
        _check_batch(batch, photos)


def dict_of(stacked: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch with one field as a tensor, and the others as lists."""
    batch = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {**batch, stacked: torch.from_numpy(np.stack(batch[stacked]))}


def test_map_dataset_reads_a_batch_at_once(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a DataLoader is one call of the reader."""
    calls: list[Any] = []
    samples, read = MapDataset(dataset), type(dataset).__getitem__

    def noted(self: Any, which: Any) -> Any:
        calls.append(which)
        return read(self, which)

    monkeypatch.setattr(type(dataset), "__getitem__", noted)
    list(DataLoader(samples, batch_size=25, collate_fn=as_list))
    assert calls == [[*range(start, min(start + 25, 98))] for start in (0, 25, 50, 75)]


def test_a_batch_that_is_damaged_as_a_whole(photos: Packed, tmp_path: Path) -> None:
    """A DataLoader by number skips damaged samples, but a batch of damaged samples only is an error."""
    shutil.copytree(photos.folder, tmp_path / "set")
    dataset = shardtool.open(tmp_path / "set" / "out.json", on_error="skip").fields("cls").decode()
    min((tmp_path / "set").glob("*.tar")).unlink()
    lost = int(dataset.reader.catalog.first_samples[1])
    rest = DataLoader(MapDataset(dataset[lost - 2 :]), 8)
    assert len(flat(keys(rest))) == 98 - lost
    with pytest.raises(SampleFailed, match=r"^a batch: all of its 2 samples were skipped"):
        next(iter(DataLoader(MapDataset(dataset), 2)))


def test_distributed_sampler(dataset: Any, photos: Packed) -> None:
    """DistributedSampler divides a MapDataset among ranks."""
    samples = MapDataset(dataset)
    found = []
    for rank in range(2):
        sampler = DistributedSampler(samples, num_replicas=2, rank=rank, shuffle=True)
        found += flat(DataLoader(samples, batch_size=7, sampler=sampler, collate_fn=as_list))
    assert sorted(found) == sorted(photos.samples)


def _passes(samples: StreamDataset, workers: int, **options: Any) -> list[list[str]]:
    return list(DataLoader(samples, samples.batch_size, num_workers=workers, collate_fn=as_list, **options))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_stream_dataset_in_workers(dataset: Any, workers: int) -> None:
    """Any number of workers gives the same batches as `loader`."""
    expected = keys(loader(dataset, 8, seed=2))
    samples = StreamDataset(dataset, 8, seed=2)
    assert _passes(samples, workers) == expected
    samples.set_epoch(0)
    assert _passes(samples, 0) == expected
    assert (len(samples), len(DataLoader(samples, 8))) == (98, 13)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_one_rule_of_epochs(dataset: Any, workers: int, persistent: bool) -> None:  # noqa: FBT001
    """Passes are the epochs one after the other; a look at some batches costs none; a state holds for one pass."""
    if persistent and not workers:
        pytest.skip("no workers")
    plain = loader(dataset, 2, seed=2, decode={"jpg": None})
    epochs = [keys(plain) for _ in range(4)]
    samples = StreamDataset(dataset, 2, seed=2, decode={"jpg": None})
    batches = DataLoader(samples, 2, num_workers=workers, persistent_workers=persistent, collate_fn=as_list)
    for epoch in range(2):
        for _ in range(2):
            assert next(iter(batches)) == next(iter(batches)) == epochs[epoch][0]
        if epoch:
            torch.manual_seed(0)  # the workers of each pass get the same seed
        assert list(batches) == epochs[epoch]
    torch.manual_seed(0)
    assert list(batches) == epochs[2]
    samples.load_state_dict(samples.state_at(9))
    assert next(iter(batches)) == epochs[2][9]
    assert list(batches) == epochs[2]
    samples.load_state_dict({**samples.state_at(0), "position": 20})
    samples.set_epoch(2)
    assert list(batches) == epochs[2][10:]
    assert list(batches) == epochs[3]


@pytest.mark.parametrize("kind", ["loader", "StreamDataset"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_is_over_after_len_batches(dataset: Any, kind: str, drop_last: bool) -> None:  # noqa: FBT001
    """An epoch is over after `len` batches, without a request for another one, as in Lightning's Trainer."""
    plain = loader(dataset, 8, drop_last=drop_last)
    epochs = [keys(plain) for _ in range(2)]
    batches = (
        loader(dataset, 8, drop_last=drop_last)
        if kind == "loader"
        else DataLoader(StreamDataset(dataset, 8), 8, drop_last=drop_last, collate_fn=dict_of_lists)
    )
    for epoch in epochs:
        assert [batch["__key__"] for _, batch in zip(range(len(batches)), batches, strict=False)] == epoch


def dict_of_lists(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch with its fields as lists."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def test_set_epoch_during_a_pass(dataset: Any) -> None:
    """A pass keeps its epoch; an epoch set meanwhile applies to the next pass, also with a prefetcher."""
    looked = Prefetcher(loader(dataset.decode().fields("cls"), 8), "cpu")
    next(iter(looked))
    assert looked.state_dict()["position"] == 8
    looked.set_epoch(0)
    assert looked.state_dict()["position"] == 8
    looked.set_epoch(5)
    assert (looked.state_dict()["epoch"], looked.state_dict()["position"]) == (5, 0)
    batches = loader(dataset, 8)
    passing = iter(batches)
    next(passing)
    batches.set_epoch(5)
    assert len([*passing]) == 12
    assert (batches.state_dict()["epoch"], batches.state_dict()["position"]) == (5, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_dataset_of_pytorch(dataset: Any, workers: int) -> None:
    """A DataLoader of a stream or a loader is refused in words that name what to give it."""
    for wrong in (dataset.stream(), loader(dataset, 8)):
        with pytest.raises(
            InvalidRequest, match=r"In a DataLoader, use StreamDataset\(dataset, batch_size\), or MapDat"
        ):
            next(iter(DataLoader(wrong, 32, num_workers=workers)))
    for name, remedy in (
        ("num_workers", "loader.* has threads="),
        ("sampler", "MapDataset"),
        ("collate_fn", "collate="),
    ):
        with pytest.raises(InvalidRequest, match=rf"^{name}: an option of PyTorch's DataLoader\. .*{remedy}"):
            loader(dataset, 8, **{name: None})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword"):
        loader(dataset, 8, no_such=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_equal_steps_with_a_filter(dataset: Any, world_size: int) -> None:
    """Every rank makes `len` steps, by loader and by workers, with the same samples as one rank.

    In an evaluation, all samples of the filter appear once, except for padding.
    """
    chain = dataset.decode({"jpg": None}).filter(wanted)
    expected = {sample["__key__"] for sample in chain}
    choices: tuple[dict[str, Any], ...] = (
        {"parts": 64, "ends": "pad"},
        {"shuffle": False, "ends": "pad" if world_size == 1 else None},
    )
    for options in choices:
        as_ranks = {**options, "ends": "pad"} if "shuffle" in options and world_size > 1 else options
        whole = [sample["__key__"] for sample in chain.stream(rank=0, world_size=1, **as_ranks)]
        real = []
        for rank in range(world_size):
            share: dict[str, Any] = {"rank": rank, "world_size": world_size, **options}
            batches = loader(chain, 4, **share)
            mine = [*batches]
            samples = StreamDataset(chain, 4, **share)
            assert _passes(samples, rank % 3) == keys(mine)
            assert (len(mine), len(flat(keys(mine)))) == (len(batches), len(samples))
            assert set(flat(keys(mine))) <= expected
            assert flat(keys(mine))[: len(whole) // world_size] == whole[rank::world_size][: len(whole) // world_size]
            for batch in mine if "shuffle" in options else ():
                real += [key for key, extra in zip(batch["__key__"], batch["__padding__"], strict=True) if not extra]
        assert sorted(real) == (sorted(expected) if "shuffle" in options else [])


def wanted(sample: dict[str, Any]) -> bool:
    """Return whether a sample is selected: two of three are."""
    return bool(sum(sample["__key__"].encode()) % 3)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "spawn"), (2, "fork")])
def test_what_workers_leave_out_is_counted(dataset: Any, workers: int, method: str | None) -> None:
    """The parent sees what all workers left out, in all passes, as a loader without workers counts it."""
    samples, expected = StreamDataset(dataset, 8, decode=_ODD), loader(dataset, 8, decode=_ODD)
    assert samples.skipped.samples == 0
    for epoch in range(2):
        samples.set_epoch(epoch)
        _passes(samples, workers, multiprocessing_context=method)
        list(expected)
        found = samples.skipped
        assert found.samples == expected.skipped.samples > 0
        assert (found.shards, found.reasons) == (expected.skipped.shards, expected.skipped.reasons)


@pytest.mark.parametrize("workers", [0, 2])
def test_another_batch_size_is_refused(dataset: Any, workers: int) -> None:
    """A DataLoader whose batch size differs from the StreamDataset's is refused at its start."""
    for size, given in ((8, 16), (16, 8)):
        with pytest.raises(
            InvalidRequest, match=rf"^batch_size: {size} in the StreamDataset, {given} in the DataLoader"
        ):
            next(iter(DataLoader(StreamDataset(dataset, size), given, num_workers=workers)))
    one = DataLoader(StreamDataset(dataset, 1), None, num_workers=workers)
    assert [sample["__key__"] for sample in one] == flat(keys(loader(dataset, 8)))
    single = DataLoader(StreamDataset(dataset, 8), None, num_workers=workers)
    with pytest.raises(InvalidRequest, match=r"^batch_size: 8 in the StreamDataset, 1 in the DataLoader"):
        next(iter(single))  # `state_at` would count each sample as a batch


@pytest.mark.parametrize("dispatch", [False, True])
def test_accelerate_divides_no_share(dataset: Any, photos: Packed, dispatch: bool) -> None:  # noqa: FBT001
    """A stream that is divided among ranks is refused where Accelerate divides it again; undivided, it gives all."""
    prepare = pytest.importorskip("accelerate.data_loader").prepare_data_loader

    def prepared(samples: StreamDataset, rank: int, workers: int) -> Any:
        given = DataLoader(samples, 7, num_workers=workers, collate_fn=as_list)
        return prepare(
            given, num_processes=2, process_index=rank, put_on_device=dispatch, dispatch_batches=dispatch,
            device=torch.device("cpu"),
        )  # fmt: skip

    for rank, workers in ((0, 0), (1, 1)):
        batches = prepared(StreamDataset(dataset, 7, rank=rank, world_size=2), rank, workers)
        with pytest.raises(InvalidRequest, match=r"^StreamDataset: already divided among 2 ranks; Accelerate's "):
            next(iter(batches))
    if not dispatch:
        whole = [
            batch for rank in range(2) for batch in prepared(StreamDataset(dataset, 7, rank=0, world_size=1), rank, 0)
        ]
        assert sorted(flat(whole)) == sorted(photos.samples)


_DAMAGE = CorruptShard("a.tar", "cut", offset=7, expected="more", remedy="Run it.")


def damaged(_: Any) -> Any:
    """Raise an error of ours."""
    raise _DAMAGE


@pytest.mark.parametrize("kind", [MapDataset, partial(StreamDataset, batch_size=8)])
def test_our_errors_leave_workers_unchanged(dataset: Any, kind: Any) -> None:
    """Our errors leave a worker with their class, all attributes and the worker's traceback."""
    with pytest.raises(CorruptShard) as caught:
        list(DataLoader(kind(dataset, transform=damaged), 8, num_workers=1))
    assert caught.value.to_json() == {**_DAMAGE.to_json(), "detail": caught.value.detail}
    assert (caught.value.offset, caught.value.problem) == (7, "cut")
    assert str(caught.value).startswith(f"{_DAMAGE}\nCaught CorruptShard in DataLoader worker process 0.\n")
    assert "in damaged" in caught.value.detail
    assert "shardtool-error" not in str(caught.value)


class OwnError(Exception):
    """An error of a user's that takes two arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


def own_error(_: Any) -> Any:
    """Raise an error of a user's."""
    raise OwnError(7, "odd")


@pytest.mark.parametrize("kind", [MapDataset, partial(StreamDataset, batch_size=8)])
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_errors_of_users_keep_their_class(dataset: Any, kind: Any, method: str) -> None:
    """Errors of users leave a worker with their class, text and traceback, for any constructor."""
    batches = DataLoader(kind(dataset, transform=own_error), 8, num_workers=1, multiprocessing_context=method)
    with pytest.raises(OwnError, match=r"^Caught OwnError in DataLoader worker process 0(.|\n)*in own_error") as caught:
        list(batches)
    assert str(caught.value).rstrip().endswith("OwnError: code 7")
    with pytest.raises(OwnError, match=r"^code 7"):
        list(kind(dataset, transform=own_error))


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_an_evaluation_by_one_rank_gives_each_sample_once(dataset: Any, workers: int) -> None:
    """Without a shuffle, a loader and any workers give what a plain loop gives, in both epochs: nothing comes twice."""
    chain = dataset.decode({"jpg": None}).filter(wanted)
    expected = sorted(sample["__key__"] for sample in chain)
    samples = StreamDataset(chain, 8, shuffle=False)
    for _ in range(2):
        assert sorted(flat(_passes(samples, workers))) == expected
    assert samples.skipped.samples == 2 * (len(dataset) - len(expected)) > 0
    assert flat(keys(loader(chain, 8, shuffle=False))) == [sample["__key__"] for sample in chain]


def test_epochs_reach_workers_that_persist(dataset: Any) -> None:
    """`set_epoch` in the main process changes the order in existing workers."""
    samples = StreamDataset(dataset, 8, decode={"jpg": None})
    batches = DataLoader(samples, 8, num_workers=2, persistent_workers=True, collate_fn=as_list)
    epochs = []
    for epoch in (0, 1, 5, 5):
        samples.set_epoch(epoch)
        epochs.append(list(batches))
    plain = loader(dataset, 8)
    assert epochs[:2] == [keys(plain), keys(plain)]
    plain.set_epoch(5)
    assert epochs[2] == epochs[3] == keys(plain)


def test_state_of_a_stream_dataset(dataset: Any) -> None:
    """`state_at` goes on after so many batches in another number of ranks and workers, and then with the next epoch."""
    samples = StreamDataset(dataset, 8, seed=4)
    samples.set_epoch(2)
    whole = _passes(samples, 2)
    state = json.loads(json.dumps(samples.state_at(5)))
    rest = []
    for rank in range(2):
        other = StreamDataset(dataset, 4, rank=rank, world_size=2)
        other.load_state_dict(state)
        other.set_epoch(2)
        rest += flat(_passes(other, 1 + rank))
        assert other.state_at(2)["position"] == (5 + 2) * 8
        other.set_epoch(3)
        assert other.state_at(0)["position"] == 0
    assert sorted(flat(whole[:5]) + rest) == sorted(flat(whole))
    assert samples.state_at(13) == samples.state_at(99) == {**state, "epoch": 3, "position": 0}
    with pytest.raises(InvalidRequest, match=r"^state_dict: this process has read no samples"):
        samples.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_state_after_a_smaller_batch_was_dropped(dataset: Any, workers: int) -> None:
    """After the last full batch of a DataLoader that drops a smaller one, the state is the start of the next epoch."""
    samples = StreamDataset(dataset, 10)
    batches = DataLoader(samples, 10, num_workers=workers, drop_last=True, collate_fn=as_list)
    assert len([*batches]) == 9
    state = samples.state_at(9)
    assert (state["epoch"], state["position"]) == (1, 0)
    assert samples.state_at(8)["position"] == 80
    again = StreamDataset(dataset, 16)  # other batches, from there on
    again.load_state_dict(samples.state_at(8))
    assert [len(one) for one in DataLoader(again, 16, collate_fn=as_list)] == [16, 2]
    assert again.state_at(1)["position"] == 96


@pytest.mark.parametrize("workers", [0, 2])
def test_no_state_of_uneven_batches_for_others(dataset: Any, workers: int) -> None:
    """A StatefulDataLoader's state of uneven batches is accepted only by a StatefulDataLoader with as many workers."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    chain = dataset.decode({"jpg": None}).filter(wanted)

    def made() -> Any:
        return stateful(StreamDataset(chain, 4, shuffle=False), 4, num_workers=workers, collate_fn=as_list)

    batches, again = made(), made()
    passing = iter(batches)
    seen = [next(passing) for _ in range(5)]
    state = batches.state_dict()
    with pytest.raises(InvalidRequest, match=r"^the state: \d+ samples? skipped and not replaced"):
        StreamDataset(chain, 4, shuffle=False).load_state_dict(state)
    again.load_state_dict(state)
    assert sorted(flat([*seen, *again])) == sorted(sample["__key__"] for sample in chain)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_rank_gives_each_kept_sample_once(dataset: Any, workers: int) -> None:
    """With a shuffle, too, a loader and any workers shorten the epoch of one rank by what a filter drops."""
    chain = dataset.decode({"jpg": None}).filter(wanted)
    expected = sorted(sample["__key__"] for sample in chain)
    samples = StreamDataset(chain, 8, seed=1)
    assert sorted(flat(_passes(samples, workers))) == expected
    with pytest.raises(InvalidRequest, match=r"^state_at: \d+ samples skipped and not replaced"):
        samples.state_at(1)
    batches, found = loader(chain, 8, seed=1), list[str]()
    for batch in batches:
        found += batch["__key__"]
        if len(found) > 20:
            break
    again = loader(chain, 8, seed=1)
    again.load_state_dict(batches.state_dict())
    assert sorted(found + flat(keys(again))) == expected


def test_several_ranks_refuse_many_dropped_samples(dataset: Any) -> None:
    """A loader, and workers, of several ranks stop with an error that names the choices."""
    chain = dataset.decode({"jpg": None}).filter(wanted)
    for batches in (
        loader(chain, 8, rank=1, world_size=2),
        DataLoader(StreamDataset(chain, 8, rank=1, world_size=2), 8, num_workers=2, collate_fn=as_list),
    ):
        with pytest.raises(InvalidRequest, match=r"stages drop more than 1 % .* of rank 1 of 2.*ends='pad'"):
            list(batches)


def test_no_state_of_uneven_batches(dataset: Any) -> None:
    """After a sample of uneven shares was skipped, no number of batches describes the position: there is no state."""
    samples = StreamDataset(dataset, 10, decode=_ODD, shuffle=False, ends="uneven")
    assert samples.state_at(1)["position"] == 10
    assert len(flat(DataLoader(samples, 10, collate_fn=as_list))) < len(dataset)
    with pytest.raises(InvalidRequest, match=r"state_at: .* skipped and not replaced"):
        samples.state_at(1)
    padded = StreamDataset(dataset, 10, decode=_ODD, shuffle=False, ends="pad")
    assert len(flat(DataLoader(padded, 10, collate_fn=as_list))) == len(dataset)
    assert padded.state_at(1)["position"] == 10


def test_targets(tmp_path: Path) -> None:
    """`targets` are the labels of the samples in their order, of a view, too; they go to no worker."""
    shardtool.create(PHOTOS, tmp_path / "out-{0..}.tar", label_from_folder=True, max_count=20)
    dataset = shardtool.open(tmp_path / "out.json")
    view = dataset.select([*range(90, 3, -7)])
    samples = MapDataset(view, decode=True)
    assert samples.targets == [sample["cls"] for sample in view.fields("cls").decode()]
    assert samples.targets[2] == samples[2]["cls"]
    assert samples.class_to_idx == {name: at for at, name in enumerate(dataset.classes["cls"])}
    assert "targets" in vars(samples)
    assert "targets" not in vars(pickle.loads(pickle.dumps(samples)))  # noqa: S301 - our own
    labels = {key: at for at, key in enumerate(dataset.keys)}
    assert MapDataset(view, labels=labels).targets == [labels[key] for key in view.keys]


def test_pixels_of_tensors(tmp_path: Path) -> None:
    """A writer takes tensors: pixels with their channels first or last, arrays, and single numbers."""
    pixels = torch.arange(90, dtype=torch.uint8).reshape(3, 6, 5)
    arrays = {"x.npy": torch.ones(2, requires_grad=True), "n": torch.tensor(3), "f": torch.tensor(0.25)}
    with shardtool.ShardWriter(tmp_path / "out-{0..}.tar") as writer:
        writer.write({"__key__": "a", "png": pixels, "last.png": pixels.permute(1, 2, 0), "webp": pixels[:1], **arrays})
        for bad, said in (
            (torch.zeros(3, 4, 5), "float32; expected uint8"),
            (torch.zeros(2).bfloat16(), "cannot be converted to an array"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                writer.write({"__key__": "b", "png": bad})
    found = shardtool.open(tmp_path / "out.json").decode()[0]
    assert np.array_equal(found["png"], pixels.permute(1, 2, 0).numpy())
    assert np.array_equal(found["png"], found["last.png"])
    assert (found["webp"].shape, found["x.npy"].tolist(), found["n"], found["f"]) == ((6, 5, 3), [1, 1], 3, 0.25)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_restarted_workers(dataset: Any, method: str) -> None:
    """Restarted workers receive the dataset with its functions, and the epoch."""
    samples = StreamDataset(dataset, 8, transform=as_it_is)
    samples.set_epoch(1)
    first, second = (_passes(samples, 1, multiprocessing_context=method) for _ in range(2))
    assert [first, second] == [keys(one) for one in [loader(dataset.stream(epoch=1), 8)] * 2]


def as_it_is(sample: Any) -> Any:
    """Return a sample."""
    return sample


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda samples: pickle.loads(pickle.dumps(samples))])  # noqa: S301
def test_epochs_of_copies(dataset: Any, copied: Any) -> None:
    """Workers of a copy tell the copy that an epoch ended, so its next epoch has another order."""
    samples = StreamDataset(dataset.fields("__key__"), 8, seed=1)
    expected = DataLoader(samples, 8, num_workers=2, collate_fn=as_list)
    batches = DataLoader(copied(samples), 8, num_workers=2, collate_fn=as_list)
    assert [[*batches] for _ in range(3)] == [[*expected] for _ in range(3)]


def test_functions_that_cannot_be_pickled(dataset: Any) -> None:
    """With spawn, a function that cannot be pickled is refused with one line of advice."""
    unnamed = lambda data: data  # noqa: E731 - what cannot be pickled
    mixed = shardtool.mix([dataset, dataset.map(unnamed)])
    streams = StreamDataset(dataset, 8, decode={"a": unnamed}), StreamDataset(mixed, 8)
    for samples in (MapDataset(dataset, transform=unnamed), *streams):
        batches = DataLoader(samples, 8, num_workers=1, multiprocessing_context="spawn")
        with pytest.raises(InvalidRequest, match=r"the (function of map|decoder of a): .*"):
            next(iter(batches))


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_torch_distributed(dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Rank and world size come from torch.distributed if it was started, else from the environment."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(StreamDataset(dataset, 8)) == 49
    if ranks == 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
        try:
            assert (len(StreamDataset(dataset, 8)), len(loader(dataset, 8))) == (98, 13)
            with pytest.raises(InvalidRequest, match=r"^world_size: 2 in the stream, but torch.distributed has 1"):
                loader(dataset.stream(), 8)
        finally:
            torch.distributed.destroy_process_group()


_IN_GROUPS = """
import json, sys, shardtool, torch.distributed
from shardtool.torch import StreamDataset, loader
torch.distributed.init_process_group("gloo")
dataset = shardtool.open(sys.argv[1])
batches = loader(dataset, 4, groups=2, drop_last=True)
stream = dataset.stream(groups=2)
ways = [batches, loader(stream, 4, drop_last=True), StreamDataset(dataset, 4, groups=2)]
keys = [[sample["__key__"] for sample in one] for one in ways]
print(json.dumps([torch.distributed.get_rank(), repr(stream), batches.state_dict(), keys[2], keys[:2]]), flush=True)
torch.distributed.barrier()
"""


def test_ranks_of_a_group_get_the_same_samples(photos: Packed, tmp_path: Path) -> None:
    """Of two groups of two ranks, which are real processes, each reads one half, both ranks of it the same samples."""
    (tmp_path / "program.py").write_text(_IN_GROUPS)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    words += [str(tmp_path / "program.py"), str(photos.folder / "out.json")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    found = [rest for _, *rest in sorted(map(json.loads, ran.stdout.splitlines()))]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert [found[rank][1] for rank in range(4)] == [found[0][1]] * 4
    for at, (name, _, samples, batches) in enumerate(found[::2]):
        assert f"group {at} of 2" in name
        assert (len(samples), len(batches[0])) == (49, 12)
        assert flat(batches[0]) == flat(batches[1]) == samples[:48]
    assert {*found[0][2]} | {*found[2][2]} == {*photos.samples}


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 2), (2, 0), (2, 3)])
def test_stateful_data_loader(dataset: Any, before: int, after: int) -> None:
    """A StatefulDataLoader's state goes on in it, and through `load_state_dict` in any number of workers."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def made(samples: StreamDataset, workers: int) -> Any:
        return stateful(samples, batch_size=8, num_workers=workers, collate_fn=as_list)

    whole = _passes(StreamDataset(dataset, 8), 0)
    batches = made(StreamDataset(dataset, 8), before)
    passed = iter(batches)
    seen = [next(passed) for _ in range(5)]
    state = batches.state_dict()
    del passed
    if before == after:
        other = made(StreamDataset(dataset, 8), after)
        other.load_state_dict(state)
        assert seen + list(other) == whole
    samples = StreamDataset(dataset, 8)
    samples.load_state_dict(state)
    assert seen + list(made(samples, after)) == whole
    plain = loader(dataset, 8)
    plain.load_state_dict(state)
    assert seen + keys(plain) == whole
