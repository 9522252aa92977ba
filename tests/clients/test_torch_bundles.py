"""Packed documents and batches by size in PyTorch: the loader, and datasets for its DataLoader."""

from __future__ import annotations

import io
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import shardtool
from shardtool.errors import InvalidRequest
from shardtool.torch import StreamDataset, loader
from tests.helpers import write_tree

pytestmark = pytest.mark.clients
TOKENS = 64


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> shardtool.Dataset:
    """Documents of 1 to 60 tokens."""
    folder, files = tmp_path_factory.mktemp("bundles"), {}
    for at in range(120):
        np.save(stream := io.BytesIO(), np.full(1 + at * 7 % 60, at + 1, np.uint16))
        files[f"{at:03}.npy"] = stream.getvalue()
    write_tree(folder / "in", files)
    shardtool.create(folder / "in", folder / "out-{000000..}.tar", max_count=40, workers=1)
    return shardtool.open(folder / "out.json")


def _documents(blocks: list[Any]) -> list[int]:
    """Return the numbers of the documents in blocks, in their order."""
    tokens = torch.cat([block.long().reshape(-1) for block in blocks])
    found: list[int] = torch.unique_consecutive(tokens[tokens > 0]).tolist()
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_blocks_by_a_loader_and_by_workers(dataset: shardtool.Dataset, workers: int) -> None:
    """The loader and a DataLoader give the same blocks, as tensors; each document is in one of them."""
    packed = dataset.pack(TOKENS).tuple("tokens", "positions", "segments")
    ours = [block for block, *_ in loader(packed, 4, seed=1, threads=2)]
    theirs = [block for block, *_ in DataLoader(StreamDataset(packed, 4, seed=1), 4, num_workers=workers)]
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert (ours[0].shape, ours[0].dtype) == ((4, TOKENS), torch.uint16)
    assert sorted(_documents(ours)) == [*range(1, 121)]


def test_a_loader_of_two_ranks_goes_on_with_three(dataset: shardtool.Dataset) -> None:
    """Blocks that are left of an epoch come once, in their order, to other ranks."""
    packed = dataset.pack(TOKENS, by="concat").tuple("tokens")
    whole = [block for (block,) in loader(packed, 1, seed=1, rank=0, world_size=1)]
    two = [loader(packed, 1, seed=1, rank=rank, world_size=2, ends="uneven") for rank in range(2)]
    readers = [iter(one) for one in two]
    seen = [next(reader)[0] for _ in range(5) for reader in readers]
    three = [loader(packed, 1, rank=rank, world_size=3, ends="uneven") for rank in range(3)]
    for one in three:
        one.load_state_dict(two[0].state_dict())
    rest = [[*one] for one in three]
    seen += [one[0] for at in range(len(rest[0])) for one in chain(*(some[at : at + 1] for some in rest))]
    assert all(torch.equal(one, other) for one, other in zip(seen, whole, strict=True))


def test_batches_by_length(dataset: shardtool.Dataset) -> None:
    """A batch by length is one step, in our loader and in a DataLoader without batching."""
    batches = dataset.decode().batch(by="length", tokens=300)
    ours = [*loader(batches, 1, seed=1)]
    theirs = [*DataLoader(StreamDataset(batches, 1, seed=1), None, num_workers=2)]
    assert len(ours) == len(theirs) == len(loader(batches, 1, seed=1))
    assert [one["__key__"] for one in ours] == [one["__key__"] for one in theirs]
    assert all(isinstance(value, torch.Tensor) for one in ours for value in one["npy"])
    assert all(max(map(len, one["npy"])) * len(one["npy"]) <= 300 for one in ours)
    with pytest.raises(InvalidRequest, match="batch_size: 8 for batches by size; expected 1"):
        loader(batches, 8)
