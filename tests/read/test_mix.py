"""Several datasets read as one."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool.errors import CorruptShard, InvalidRequest
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two datasets: `big`, of 60 samples, and `few`, of 20."""
    folder = tmp_path_factory.mktemp("mix")
    for name, count in (("big", 60), ("few", 20)):
        write_tree(folder / name, {f"{name}{at:02}.txt": b"%d" % at for at in range(count)})
        options = shardtool.CreateOptions(max_count=9, workers=1)
        shardtool.create(folder / name, folder / f"{name}-{{000000..}}.tar", options)
    return folder


def _open(folder: Path) -> tuple[shardtool.Dataset, shardtool.Dataset]:
    return shardtool.open(folder / "big.json"), shardtool.open(folder / "few.json")


def test_killed_and_resumed(folder: Path) -> None:
    """A mix that is killed in mid-epoch goes on with other ranks: same samples, same order, each where it belongs."""
    mixed = shardtool.mix(_open(folder), weights=[3, 1], stop="all")
    expected = [sample["__key__"] for sample in mixed.stream(seed=4, buffer=30, parts=4, rank=0, world_size=1)]
    assert len(expected) == len(mixed) == 80
    assert len(set(expected)) == 80
    state = mixed.stream(seed=4, buffer=30, parts=4, rank=0, world_size=1).state_dict()
    found = []
    for world_size, steps in ((3, 5), (2, 11), (1, 1), (5, None)):
        again = shardtool.mix(_open(folder), weights=[0.75, 0.25], stop="all")
        ranks = [again.stream(rank=rank, world_size=world_size, ends="uneven") for rank in range(world_size)]
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)))
        readers = [iter(rank) for rank in ranks]
        for _ in range(steps or 80):
            found += [sample["__key__"] for sample in (next(reader, None) for reader in readers) if sample]
        state = ranks[-1].state_dict()
        assert state == ranks[0].state_dict()
    assert found == expected
    assert (state["epoch"], state["position"]) == (1, 0)


def test_mix_of_views_and_mixes(folder: Path) -> None:
    """Views are mixed as datasets are, and mixes, too; a state of one mix is not taken for that of another."""
    big, few = _open(folder)
    inner = shardtool.mix([big[:10], few], weights=[1, 1], stop="all")
    outer = shardtool.mix([inner, big[50:]], weights=[2, 1], stop="all")
    counts = Counter(str(sample["__key__"]) for sample in outer)
    first = {f"big{at:02}" for at in range(10)}
    assert set(counts) == first | {f"few{at:02}" for at in range(20)} | {f"big{at}" for at in range(50, 60)}
    assert {counts[f"few{at:02}"] for at in range(20)} == {1}
    with pytest.raises(InvalidRequest, match="of other samples"):
        outer.stream(rank=0, world_size=1).load_state_dict(inner.stream(rank=0, world_size=1).state_dict())


def test_mixes_travel(folder: Path) -> None:
    """A mix and its stream are read in another process as here: they are pickled without open files."""
    mixed = shardtool.mix(_open(folder), weights=[3, 1])
    expected = list(mixed.stream(seed=1, rank=0, world_size=1))
    assert list(pickle.loads(pickle.dumps(mixed)).stream(seed=1, rank=0, world_size=1)) == expected  # noqa: S301 - ours
    assert list(pickle.loads(pickle.dumps(mixed.stream(seed=1, rank=0, world_size=1)))) == expected  # noqa: S301 - ours


def test_damage_in_a_mix(folder: Path, tmp_path: Path) -> None:
    """A damaged shard of a mixed dataset is an error that names it, or skipped and counted, as that dataset says."""
    for path in folder.glob("few*"):
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "few-000001.tar").unlink()
    big = shardtool.open(folder / "big.json")
    strict = shardtool.mix([big, shardtool.open(tmp_path / "few.json")], weights=[3, 1])
    with pytest.raises(CorruptShard, match=r"few-000001\.tar"):
        list(strict)
    skipping = shardtool.mix([big, shardtool.open(tmp_path / "few.json", on_error="skip")], weights=[3, 1])
    stream = skipping.stream(rank=0, world_size=1)
    assert len(list(stream)) == len(skipping)
    assert len(list(skipping)) == len(skipping) - stream.skipped.samples
    assert list(stream.skipped.shards) == [str(tmp_path / "few-000001.tar")]


def test_stages_of_a_mix(folder: Path) -> None:
    """What is done to samples comes after the mix: it counts what it leaves out; before, it is refused."""
    data = shardtool.open(folder / "big.json")
    stream = (
        shardtool.mix([data, data], [1, 1]).stream(rank=0, world_size=1, ends="uneven").select("none", missing="skip")
    )
    assert list(stream) == []
    assert stream.skipped.samples > 0
    for wrong in ([data, "big.json"], data, [None]):
        with pytest.raises(InvalidRequest, match=r"dataset \d of the mix: a .*; expected what shardtool.open returned"):
            shardtool.mix(wrong, weights=[1, 1])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="weights: 3; expected one for each dataset"):
        shardtool.mix([data, data], weights=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="mix first"):
        shardtool.mix([data, data.decode()], [1, 1])
