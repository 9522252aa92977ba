from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import wids

from tests.clients.packed import Fields, Packed, payloads_of, shardtool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.clients


@contextmanager
def _open(packed: Packed, cache: Path) -> Iterator[Any]:
    dataset = wids.ShardListDataset(str(packed.folder / "out.json"), cache_dir=str(cache), transformations=[])
    yield dataset
    dataset.close()


def _sample(dataset: Any, place: int) -> tuple[str, Fields]:
    """Return a sample as we name things: wids has a dot before its fields, and hands out open files."""
    sample = dataset[place]
    return sample["__key__"], {name[1:]: value.read() for name, value in sample.items() if name.startswith(".")}


@pytest.mark.parametrize("made", ["photos", "names", "one_shard"])
def test_opens_the_dataset_file(made: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`ShardListDataset("out.json")` has the source's samples in order, with their exact bytes."""
    packed: Packed = request.getfixturevalue(made)
    with _open(packed, tmp_path) as dataset:
        assert len(dataset) == len(packed.samples)
        assert [_sample(dataset, place) for place in range(len(dataset))] == list(packed.samples.items())


def test_reads_at_random(photos: Packed, tmp_path: Path) -> None:
    """Samples are found by number in any order: the last first."""
    with _open(photos, tmp_path) as dataset:
        read = [_sample(dataset, place) for place in reversed(range(len(dataset)))]
    assert read == list(reversed(photos.samples.items()))


def test_reads_portable_names(portable: Packed, tmp_path: Path) -> None:
    """With `--portable`, wids returns every sample of the source once and complete, for any names."""
    with _open(portable, tmp_path) as dataset:
        read = [_sample(dataset, place) for place in range(len(dataset))]
    assert len({key for key, _ in read}) == len(portable.samples)
    assert payloads_of(fields for _, fields in read) == payloads_of(portable.samples.values())


def test_the_totals_are_the_files(photos: Packed) -> None:
    """The counts and sizes that wids adds up equal those on disk."""
    listed = json.loads((photos.folder / "out.json").read_bytes())["shardlist"]
    assert [(one["url"], one["filesize"]) for one in listed] == [
        (shard.name, shard.stat().st_size) for shard in photos.shards
    ]
    assert sum(one["nsamples"] for one in listed) == len(photos.samples)


def test_finds_shards_below(photos: Packed, tmp_path: Path) -> None:
    """A dataset file in a folder above its shards leads wids to them."""
    (tmp_path / "all" / "deep").mkdir(parents=True)
    for shard in photos.shards:
        shutil.copy(shard, tmp_path / "all" / "deep" / shard.name)
    shardtool("index", "deep", "--output", ".", "--quiet", cwd=tmp_path / "all")
    opened = wids.ShardListDataset(
        str(tmp_path / "all" / "out.json"), cache_dir=str(tmp_path / "cache"), transformations=[]
    )
    assert [_sample(opened, place) for place in range(len(opened))] == list(photos.samples.items())
    opened.close()
