"""Several datasets as one: shares are exact, each goes through its own epochs, and all of it is a function."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardtool
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.reading.mix import Mix
from shardtool.reading.order import OrderOptions, View
from tests.helpers import write_tree
from tests.reading.catalogs import made_catalog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardtool.reading.mix import Stop

lengths_of_datasets = st.lists(st.integers(1, 40), min_size=1, max_size=5)
options_of_orders = st.builds(
    OrderOptions, shuffle=st.sampled_from([True, False, "full"]), seed=st.integers(0, 99), epoch=st.integers(0, 3)
)


def _mix(lengths: Sequence[int], weights: Sequence[float], stop: Stop = "first") -> Mix:
    return Mix.of([View(made_catalog([one])) for one in lengths], weights, stop)


def _numbers(mix: Mix, options: OrderOptions) -> list[int]:
    return list(map(int, mix.order(options).numbers(np.arange(mix.length))))


@settings(max_examples=30, deadline=None)
@given(lengths_of_datasets, options_of_orders, st.data())
def test_each_dataset_goes_through_its_epochs(lengths: list[int], options: OrderOptions, data: st.DataObject) -> None:
    """Over several epochs of a mix, each dataset has every sample once before any twice, and so on."""
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(lengths), max_size=len(lengths)))
    stop: Stop = data.draw(st.one_of(st.sampled_from(["first", "all"]), st.integers(1, 100)))
    mix = _mix(lengths, weights, stop)
    seen = [at for epoch in range(3) for at in _numbers(mix, replace(options, epoch=epoch))]
    first = 0
    for length in lengths:
        own = [at - first for at in seen if first <= at < first + length]
        for start in range(0, len(own), length):
            of_epoch = own[start : start + length]
            assert len(set(of_epoch)) == len(of_epoch)
            assert options.shuffle or of_epoch == list(range(len(of_epoch)))
        first += length
    assert set(seen) <= set(range(first))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), options_of_orders, st.integers(0, 10**9))
def test_shares_are_exact(weights: list[int], options: OrderOptions, start: int) -> None:
    """Any piece of the order has each dataset's share, up to parts of two blocks of 64 at its ends."""
    mix = _mix([10**6] * len(weights), weights, 2 * 10**9)
    which, _ = mix.order(options).turns(np.arange(start, start + 3000))
    found = np.bincount(which, minlength=len(weights))
    off = abs(found - 3000 * np.array(weights) / sum(weights)).max()
    assert off <= 2 * len(weights) + 64


@settings(max_examples=15, deadline=None)
@given(lengths_of_datasets, options_of_orders)
def test_positions_in_any_company(lengths: list[int], options: OrderOptions) -> None:
    """A position has the same sample whichever positions it is asked with, and in whichever order."""
    mix = _mix(lengths, range(1, len(lengths) + 1), 100)
    whole = np.array(_numbers(mix, options))
    asked = np.random.default_rng(len(lengths)).integers(0, 100, 40)
    assert mix.order(options).numbers(asked).tolist() == whole[asked].tolist()
    assert mix.order(options).numbers(asked[:0]).tolist() == []


@pytest.mark.parametrize(
    ("lengths", "weights", "first", "all_seen"),
    [
        ((30, 10), (3, 1), 39, 40),
        ((300, 10), (3, 1), 39, 400),
        ((5,), (2,), 5, 5),
        ((10, 10, 10), (1, 1, 1), 28, 30),
        ((100, 1), (99, 1), 51, 101),
    ],
)
def test_ends(lengths: tuple[int, ...], weights: tuple[int, ...], first: int, all_seen: int) -> None:
    """An epoch ends with the last sample of the first dataset that is exhausted, or of the last one, or after n."""
    counts = {}
    for stop, length in (("first", first), ("all", all_seen), (17, 17)):
        mix = _mix(lengths, weights, stop)  # type: ignore[arg-type]
        assert mix.length == length
        seen = Counter(mix.order(OrderOptions()).turns(np.arange(mix.length))[0].tolist())
        counts[stop] = [seen[at] - of for at, of in enumerate(lengths)]
    assert max(counts["first"]) == 0 == min(counts["all"])


@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_see_each_dataset(shuffle: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """Each rank has each dataset's share, also where a pattern of the weights would meet the number of ranks."""
    which, _ = _mix([10**6, 10**6], [3, 1], 40_000).order(OrderOptions(shuffle)).turns(np.arange(40_000))
    shares = [which[rank::4].mean() for rank in range(4)]
    assert min(shares) > 0.22
    assert max(shares) < 0.28


def test_block_is_shuffled() -> None:
    """Datasets come in no fixed pattern, and each of a block's places has each dataset by its share."""
    mix = _mix([10**6, 10**6], [3, 1], 64_000)
    which, _ = mix.order(OrderOptions()).turns(np.arange(64_000))
    blocks = which.reshape(-1, 64)
    assert (blocks.sum(axis=1) == 16).all()
    assert abs(blocks.sum(axis=0) - 250).max() < 6 * np.sqrt(250 * 0.75)
    again, _ = mix.order(OrderOptions(epoch=1)).turns(np.arange(64_000))
    assert (again != which).mean() > 0.3


def test_alike_datasets_are_shuffled_apart() -> None:
    """Two datasets of the same size do not come in the same order, so that their samples form no pairs."""
    numbers = np.array(_numbers(_mix([5000, 5000], [1, 1], "all"), OrderOptions("full")))
    one, other = numbers[numbers < 5000], numbers[numbers >= 5000] - 5000
    count = min(len(one), len(other))
    assert (one[:count] == other[:count]).sum() < 10


def test_orders_are_the_same_everywhere() -> None:
    """The order is this, with every NumPy, on every machine: a state of today goes on tomorrow."""
    mix = _mix([4, 3], [2, 1], 12)
    assert _numbers(mix, OrderOptions(seed=1, epoch=1, parts=2, window=2)) == [6, 1, 5, 3, 0, 2, 1, 4, 2, 0, 6, 3]
    assert _numbers(mix, OrderOptions(shuffle=False)) == [0, 1, 4, 5, 6, 2, 3, 0, 1, 2, 4, 3]


def test_weights_are_any_numbers() -> None:
    """Weights count by their ratio: whole or not, small or large, and however unequal."""
    alike: list[Sequence[float]] = [
        [3, 1],
        [0.75, 0.25],
        [0.3, 0.1],
        [3e9, 1e9],
        [np.int64(3), np.int64(1)],
    ]
    for weights in alike:
        assert _mix([5, 5], weights).weights == (3, 1)
    assert _mix([5, 5], [1e-9, 1]).weights == (1, 2**19)
    ratio = Fraction(*_mix([5, 5], [np.pi, np.e]).weights)
    assert abs(float(ratio) - np.pi / np.e) < 1e-5


@pytest.mark.parametrize(
    ("lengths", "weights", "stop", "found"),
    [
        ([5, 5], [1], "first", "weights: 1 for 2 datasets"),
        ([], [], "first", "weights: 0 for 0 datasets"),
        ([5, 5], [1, 0], "first", "weights: 0; expected numbers above 0"),
        ([5, 5], [1, -0.5], "first", "weights: -0.5"),
        ([5, 5], [1, float("nan")], "first", "weights: nan"),
        ([5, 5], [1, float("inf")], "first", "weights: inf"),
        ([5, 5], [1, "2"], "first", "weights: '2'"),
        ([5, 5], [1, True], "first", "weights: True"),
        ([5, 5], [1, 1], "last", "stop: 'last'; expected 'first', 'all', or a number of samples"),
        ([5, 5], [1, 1], 0, "stop: 0"),
        ([5, 5], [1, 1], True, "stop: True"),
        ([5, 5], [1, 1], 2.0, "stop: 2.0"),
        ([10**9, 10**9], [1, 2**18], "all", "weights: an epoch would have more than 2.40 samples"),
        ([5, 0], [1, 1], "first", "dataset 1 of the mix: no samples"),
    ],
)
def test_mixes_that_cannot_be(lengths: list[int], weights: list[float], stop: Stop, found: str) -> None:
    """A mix that makes no sense is refused, and the message says why."""
    with pytest.raises(InvalidRequest, match=found):
        _mix(lengths, weights, stop)


def test_fingerprints_of_mixes() -> None:
    """A mix has the fingerprint of its samples, weights and length: each of them makes another one."""
    mixes = [_mix([5, 6], [1, 2]), _mix([5, 6], [2, 1]), _mix([5, 6], [1, 2], "all"), _mix([5], [1])]
    other = Mix.of([View(made_catalog([5], "other")), View(made_catalog([6]))], [1, 2], "first")
    part = Mix.of([View(made_catalog([5])), View(made_catalog([7]), np.arange(6))], [1, 2], "first")
    assert len({one.fingerprint for one in (*mixes, other, part)}) == 6
    assert _mix([5, 6], [0.5, 1.0]).fingerprint == mixes[0].fingerprint


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
    assert len(list(stream)) == len(skipping) - stream.skipped.samples
    assert list(stream.skipped.shards) == [str(tmp_path / "few-000001.tar")]


def test_stages_of_a_mix(folder: Path) -> None:
    """What is done to samples comes after the mix: it counts what it leaves out; before, it is refused."""
    data = shardtool.open(folder / "big.json")
    stream = shardtool.mix([data, data], [1, 1]).stream(rank=0, world_size=1).select("none", missing="skip")
    assert list(stream) == []
    assert stream.skipped.samples > 0
    for wrong in ([data, "big.json"], data, [None]):
        with pytest.raises(InvalidRequest, match=r"dataset \d of the mix: a .*; expected what shardtool.open returned"):
            shardtool.mix(wrong, weights=[1, 1])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="weights: 3; expected one for each dataset"):
        shardtool.mix([data, data], weights=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="mix first"):
        shardtool.mix([data, data.decode()], [1, 1])
