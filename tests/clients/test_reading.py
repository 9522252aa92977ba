"""Our reader returns the same samples as webdataset, wids and TensorFlow's parser on the same shards."""

from __future__ import annotations

import gc
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pytest
import webdataset as wds
import wids

import shardtool

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.clients.packed import Packed

pytestmark = pytest.mark.clients


def _hashes(samples: Iterable[dict[str, Any]]) -> list[str]:
    """Return a hash of each sample: its key, and the names and bytes of its fields."""
    found = []
    for sample in samples:
        fields = sorted((name, value) for name, value in sample.items() if name != "__key__")
        text = repr((sample["__key__"], [(name, bytes(value)) for name, value in fields]))
        found.append(blake2b(text.encode()).hexdigest())
    return found


def _webdataset(packed: Packed) -> list[dict[str, Any]]:
    samples = list(wds.WebDataset(packed.urls, shardshuffle=False))
    gc.collect()  # it leaves its last file to be closed so
    return [{name: one[name] for name in one if name == "__key__" or not name.startswith("__")} for one in samples]


def _plain(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample of wids, which has a dot before its fields and hands out open files, as we name things."""
    fields = {name[1:]: value.read() for name, value in sample.items() if name.startswith(".")}
    return {"__key__": sample["__key__"], **fields}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of webdataset
@pytest.mark.parametrize("made", ["photos", "names", "one_shard"])
def test_an_epoch_equals_that_of_webdataset(made: str, request: pytest.FixtureRequest) -> None:
    """In the dataset's order, each sample is webdataset's to the byte; shuffled, all of them come, each once."""
    packed: Packed = request.getfixturevalue(made)
    data = shardtool.open(packed.folder / "out.json")
    expected = _hashes(_webdataset(packed))
    assert _hashes(data.stream(shuffle=False, rank=0, world_size=1)) == expected
    assert _hashes(data) == expected
    assert sorted(_hashes(data.stream(rank=0, world_size=1))) == sorted(expected)


def test_samples_by_number_equal_those_of_wids(photos: Packed, tmp_path: Path) -> None:
    """Each number refers to the same sample as in wids; all ranks together return each sample once."""
    theirs = wids.ShardListDataset(str(photos.folder / "out.json"), cache_dir=str(tmp_path), transformations=[])
    numbers = [*range(len(theirs) - 1, -1, -3), 0, 0]
    expected = _hashes(_plain(theirs[number]) for number in numbers)
    theirs.close()
    data = shardtool.open(photos.folder / "out.json")
    assert _hashes(data[numbers]) == _hashes(data[number] for number in numbers) == expected
    ranks = [data.stream(rank=rank, world_size=3, ends="uneven") for rank in range(3)]
    assert sorted(_hashes(sample for rank in ranks for sample in rank)) == sorted(_hashes(data))
