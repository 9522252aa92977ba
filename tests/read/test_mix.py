"""Several datasets read as one."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool.errors import CorruptShard, InvalidRequest, SampleFailed
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.read.mix import MixedDataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two datasets: `big` with 60 samples, and `few` with 20."""
    folder = tmp_path_factory.mktemp("mix")
    for name, count in (("big", 60), ("few", 20)):
        write_tree(folder / name, {f"{name}{at:02}.txt": b"%d" % at for at in range(count)})
        options = shardtool.CreateOptions(max_count=9, workers=0)
        shardtool.create(folder / name, folder / f"{name}-{{000000..}}.tar", options)
    return folder


def _open(folder: Path) -> tuple[shardtool.Dataset, shardtool.Dataset]:
    return shardtool.open(folder / "big.json"), shardtool.open(folder / "few.json")


def test_resumes_with_other_ranks(folder: Path) -> None:
    """A mix interrupted within an epoch continues with other ranks, in the same order."""
    mixed = shardtool.mix(_open(folder), weights=[3, 1], stop="all")
    expected = [sample["__key__"] for sample in mixed.stream(seed=4, buffer=30, parts=4, rank=0, world_size=1)]
    assert len(expected) == len(mixed) == 80
    assert len(set(expected)) == 80
    state = mixed.stream(seed=4, buffer=30, parts=4, rank=0, world_size=1).state_dict()
    keys = []
    for world_size, steps in ((3, 5), (2, 11), (1, 1), (5, None)):
        again = shardtool.mix(_open(folder), weights=[0.75, 0.25], stop="all")
        ranks = [again.stream(rank=rank, world_size=world_size, ends="uneven") for rank in range(world_size)]
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)))
        readers = [iter(rank) for rank in ranks]
        for _ in range(steps or 80):
            keys += [sample["__key__"] for sample in (next(reader, None) for reader in readers) if sample]
        state = ranks[-1].state_dict()
        assert state == ranks[0].state_dict()
    assert keys == expected
    assert (state["epoch"], state["position"]) == (1, 0)


def test_views_and_mixes_can_be_mixed(folder: Path) -> None:
    """A state of one mix is rejected by another."""
    big, few = _open(folder)
    inner = shardtool.mix([big[:10], few], weights=[1, 1], stop="all")
    outer = shardtool.mix([inner, big[50:]], weights=[2, 1], stop="all")
    counts = Counter(str(sample["__key__"]) for sample in outer)
    first = {f"big{at:02}" for at in range(10)}
    assert set(counts) == first | {f"few{at:02}" for at in range(20)} | {f"big{at}" for at in range(50, 60)}
    assert {counts[f"few{at:02}"] for at in range(20)} == {1}
    with pytest.raises(InvalidRequest, match="belongs to other samples"):
        outer.stream(rank=0, world_size=1).load_state_dict(inner.stream(rank=0, world_size=1).state_dict())


def test_pickle(folder: Path) -> None:
    """A mix and its stream are pickled without open files, and read the same samples."""
    mixed = shardtool.mix(_open(folder), weights=[3, 1])
    expected = list(mixed.stream(seed=1, rank=0, world_size=1))
    assert list(pickle.loads(pickle.dumps(mixed)).stream(seed=1, rank=0, world_size=1)) == expected  # noqa: S301 - ours
    stream = mixed.stream(seed=1, rank=0, world_size=1)
    assert list(pickle.loads(pickle.dumps(stream))) == expected  # noqa: S301 - ours
    first = next(iter(stream))
    assert list(pickle.loads(pickle.dumps(stream))) == expected  # noqa: S301 - ours
    assert first == expected[0]


def test_damage_in_a_mix(folder: Path, tmp_path: Path) -> None:
    """A damaged shard is an error, or skipped and counted, as its dataset's `on_error` says."""
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
    """Stages after the mix count what they skip; batches before it are rejected."""
    data = shardtool.open(folder / "big.json")
    stream = (
        shardtool.mix([data, data], [1, 1]).stream(rank=0, world_size=1, ends="uneven").fields("none", missing="skip")
    )
    assert list(stream) == []
    assert stream.skipped.samples > 0
    assert len(shardtool.mix(dataset for dataset in (data, data))) == 120
    for wrong in ([data, "big.json"], data, [None], None):
        with pytest.raises(
            InvalidRequest, match=r"dataset \d of the mix: a .*; expected a dataset from shardtool.open"
        ):
            shardtool.mix(wrong, weights=[1, 1])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="weights: 3; expected a list with one number per dataset"):
        shardtool.mix([data, data], weights=3)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidRequest, match="dataset 1 of the mix: batches; expected single samples: mix first, then batch"
    ):
        shardtool.mix([data, data.fields("txt").batch(2)], [1, 1])


def _shout(sample: dict[str, object]) -> dict[str, object]:
    return {**sample, "txt": f"{sample['txt']}!"}


def test_each_dataset_has_its_own_stages(folder: Path) -> None:
    """They run before those of the mix: by number, as a stream, and in nested mixes."""
    big, few = _open(folder)
    inner = shardtool.mix([big.decode().map(_shout), few.fields("none", missing="none")]).map(lambda sample: (*sample,))
    outer = shardtool.mix([few.decode().tuple("txt", "__dataset__"), inner, big], choose=[20, 80, 60]).map(type)
    for samples in (outer, outer.stream(rank=0, world_size=1), outer[range(160)], [outer[at] for at in range(160)]):
        assert Counter(samples) == {tuple: 100, dict: 60}
    both = shardtool.mix([big.decode().map(_shout), few.decode()])
    for sample in both:
        key = str(sample["__key__"])
        assert sample["txt"] == str(int(key[3:])) + "!" * key.startswith("big")
        assert sample["__dataset__"] == key.startswith("few")
    assert pickle.loads(pickle.dumps(both))[5] == both[5]  # noqa: S301 - ours


def test_skipping_per_dataset(folder: Path) -> None:
    """Samples skipped by one dataset's stages stay skipped; errors of another stay errors."""
    big, few = _open(folder)
    skipping = shardtool.mix([big.fields("none", missing="skip"), few])
    stream = skipping.stream(rank=0, world_size=1)
    keys = [str(sample["__key__"]) for sample in stream]
    assert (len(keys), {key[:3] for key in keys}) == (20, {"few"})
    assert stream.skipped.samples == 60
    with pytest.raises(SampleFailed, match="no field none"):
        list(shardtool.mix([big.fields("none"), few.fields("none", missing="skip")]))


def test_samples_per_dataset(folder: Path) -> None:
    """By default each sample comes once; `choose` and `repeat` set numbers, and later epochs have the rest."""
    big, few = _open(folder)

    def epochs(mixed: MixedDataset, count: int) -> list[Counter[str]]:
        streams = (mixed.stream(rank=0, world_size=1, epoch=epoch) for epoch in range(count))
        return [Counter(str(sample["__key__"]) for sample in stream) for stream in streams]

    (once,) = epochs(shardtool.mix([big, few]), 1)
    assert (len(once), set(once.values())) == (80, {1})
    chosen = epochs(shardtool.mix([big, few], choose=[15, 7]), 4)
    assert [sum(one.values()) for one in chosen] == [22] * 4
    assert {key for one in chosen for key in one if key[:3] == "big"} == {f"big{at:02}" for at in range(60)}
    halves = epochs(shardtool.mix([big, few], repeat=[0.5, 2]), 2)
    assert [sum(one[f"few{at:02}"] for at in range(20)) for one in halves] == [40, 40]
    assert not {key for key in halves[0] if key[:3] == "big"} & {*halves[1]}
    assert len(shardtool.mix([big, few], stop="first")) <= 80 == len(shardtool.mix([big, few], stop="all"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choose": [1, 2], "stop": "all"}, "choose: given with stop; expected only one of: weights"),
        ({"weights": [1, 2], "repeat": [1, 2]}, "weights: given with repeat"),
        ({"choose": [1, 2.5]}, r"choose: \[1, 2.5\]; expected whole numbers"),
        ({"choose": [1]}, "choose: 1 for 2 datasets"),
        ({"repeat": [1, 0]}, "repeat: 0; expected numbers above 0"),
        ({"repeat": 2}, "repeat: 2; expected a list with one number per dataset"),
        ({"stop": 0}, "stop: 0"),
    ],
)
def test_invalid_weights(folder: Path, options: dict[str, object], message: str) -> None:
    """Only one kind of weights is allowed, with one number above 0 per dataset."""
    with pytest.raises(InvalidRequest, match=message):
        shardtool.mix(_open(folder), **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="the mix: 0 for 0 datasets"):
        shardtool.mix([])


def test_indexes_of_a_mix(folder: Path) -> None:
    """A mix is indexed by positions of an unshuffled epoch."""
    mixed = shardtool.mix(_open(folder))
    keys = [sample["__key__"] for sample in mixed]
    assert [mixed[at]["__key__"] for at in (0, 3, -1)] == [keys[at] for at in (0, 3, -1)]
    assert [sample["__key__"] for sample in mixed[[79, 0, -2]]] == [keys[at] for at in (79, 0, -2)]
    assert mixed[[]] == []
    for wrong in (80, -81, [3, 80]):
        with pytest.raises(IndexError, match="of 80"):
            mixed[wrong]
    for other in ("big00", slice(0, 3), 1.0, [[1]], None):
        with pytest.raises(InvalidRequest, match=r"the mix: invalid index .*; expected one or several numbers"):
            mixed[other]  # type: ignore[index]
