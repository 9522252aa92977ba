"""The order of a mix: exact proportions, own epochs per dataset, and a pure function."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.read.epoch_samples import CatalogSamples, MixedSamples
from shardtool.read.order import OrderOptions
from tests.read.catalogs import made_catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.read.epoch_samples import Stop

lengths_of_datasets = st.lists(st.integers(1, 40), min_size=1, max_size=5)
options_of_orders = st.builds(
    OrderOptions, shuffle=st.sampled_from([True, False, "full"]), seed=st.integers(0, 99), epoch=st.integers(0, 3)
)


def _mix(lengths: Sequence[int], weights: Sequence[float], stop: Stop = "first") -> MixedSamples:
    return MixedSamples.from_weights([CatalogSamples(made_catalog([length])) for length in lengths], weights, stop)


def _numbers(mix: MixedSamples, options: OrderOptions) -> list[int]:
    return list(map(int, mix.order(options).numbers(np.arange(mix.length))))


@settings(max_examples=30, deadline=None)
@given(lengths_of_datasets, options_of_orders, st.data())
def test_each_dataset_runs_through_its_epochs(lengths: list[int], options: OrderOptions, data: st.DataObject) -> None:
    """Across epochs of a mix, no sample is repeated before its dataset is exhausted."""
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(lengths), max_size=len(lengths)))
    stop: Stop = data.draw(st.one_of(st.sampled_from(["first", "all"]), st.integers(1, 100)))
    mix = _mix(lengths, weights, stop)
    seen = [at for epoch in range(3) for at in _numbers(mix, replace(options, epoch=epoch))]
    first = 0
    for length in lengths:
        numbers_of_dataset = [at - first for at in seen if first <= at < first + length]
        for start in range(0, len(numbers_of_dataset), length):
            of_epoch = numbers_of_dataset[start : start + length]
            assert len(set(of_epoch)) == len(of_epoch)
            assert options.shuffle or of_epoch == list(range(len(of_epoch)))
        first += length
    assert set(seen) <= set(range(first))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), options_of_orders, st.integers(0, 10**9))
def test_proportions_are_exact(weights: list[int], options: OrderOptions, start: int) -> None:
    """Any range of the order has exact proportions, up to parts of two blocks of 64 at its ends."""
    mix = _mix([10**6] * len(weights), weights, 2 * 10**9)
    which, _ = mix.datasets_at(options, np.arange(start, start + 3000))
    counts = np.bincount(which, minlength=len(weights))
    off = abs(counts - 3000 * np.array(weights) / sum(weights)).max()
    assert off <= 2 * len(weights) + 64


@settings(max_examples=15, deadline=None)
@given(lengths_of_datasets, options_of_orders)
def test_a_position_is_independent_of_others(lengths: list[int], options: OrderOptions) -> None:
    """Its sample does not depend on which positions are requested together."""
    mix = _mix(lengths, range(1, len(lengths) + 1), 100)
    whole = np.array(_numbers(mix, options))
    positions = np.random.default_rng(len(lengths)).integers(0, 100, 40)
    assert mix.order(options).numbers(positions).tolist() == whole[positions].tolist()
    assert mix.order(options).numbers(positions[:0]).tolist() == []


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
def test_ends_of_an_epoch(lengths: tuple[int, ...], weights: tuple[int, ...], first: int, all_seen: int) -> None:
    """An epoch ends when the first or the last dataset is exhausted, or after n samples."""
    counts = {}
    for stop, length in (("first", first), ("all", all_seen), (17, 17)):
        mix = _mix(lengths, weights, stop)  # type: ignore[arg-type]
        assert mix.length == length
        seen = Counter(mix.datasets_at(OrderOptions(), np.arange(mix.length))[0].tolist())
        counts[stop] = [seen[at] - of for at, of in enumerate(lengths)]
    assert max(counts["first"]) == 0 == min(counts["all"])


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_rank_gets_each_dataset(shuffle: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """Also if a pattern of the weights matches the number of ranks."""
    which, _ = _mix([10**6, 10**6], [3, 1], 40_000).datasets_at(OrderOptions(shuffle), np.arange(40_000))
    shares = [which[rank::4].mean() for rank in range(4)]
    assert min(shares) > 0.22
    assert max(shares) < 0.28


def test_blocks_are_shuffled() -> None:
    """Datasets have no fixed pattern; each position of a block has each dataset in proportion."""
    mix = _mix([10**6, 10**6], [3, 1], 64_000)
    which, _ = mix.datasets_at(OrderOptions(), np.arange(64_000))
    blocks = which.reshape(-1, 64)
    assert (blocks.sum(axis=1) == 16).all()
    assert abs(blocks.sum(axis=0) - 250).max() < 6 * np.sqrt(250 * 0.75)
    again, _ = mix.datasets_at(OrderOptions(epoch=1), np.arange(64_000))
    assert (again != which).mean() > 0.3


def test_equal_datasets_are_shuffled_differently() -> None:
    """Two datasets of the same size do not come in the same order."""
    numbers = np.array(_numbers(_mix([5000, 5000], [1, 1], "all"), OrderOptions("full")))
    first, second = numbers[numbers < 5000], numbers[numbers >= 5000] - 5000
    count = min(len(first), len(second))
    assert (first[:count] == second[:count]).sum() < 10


def test_orders_never_change() -> None:
    """With any NumPy, machine and version, so that saved states stay valid."""
    mix = _mix([4, 3], [2, 1], 12)
    assert _numbers(mix, OrderOptions(seed=1, epoch=1, parts=2, window=2)) == [6, 1, 5, 3, 0, 2, 1, 4, 2, 0, 6, 3]
    assert _numbers(mix, OrderOptions(shuffle=False)) == [0, 1, 4, 5, 6, 2, 3, 0, 1, 2, 4, 3]


def test_weights_are_any_numbers() -> None:
    """Only the ratio of weights counts."""
    alike: list[Sequence[float]] = [[3, 1], [0.75, 0.25], [0.3, 0.1], [3e9, 1e9], [np.int64(3), np.int64(1)]]
    for weights in alike:
        assert _mix([5, 5], weights).weights == (3, 1)
    assert _mix([5, 5], [1e-9, 1]).weights == (1, 2**19)
    ratio = Fraction(*_mix([5, 5], [np.pi, np.e]).weights)
    assert abs(float(ratio) - np.pi / np.e) < 1e-5


@pytest.mark.parametrize(
    ("lengths", "weights", "stop", "message"),
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
def test_invalid_mixes(lengths: list[int], weights: list[float], stop: Stop, message: str) -> None:
    """An error says why."""
    with pytest.raises(InvalidRequest, match=message):
        _mix(lengths, weights, stop)


def test_fingerprints_of_mixes() -> None:
    """Samples, weights and length each change the fingerprint."""
    mixes = [_mix([5, 6], [1, 2]), _mix([5, 6], [2, 1]), _mix([5, 6], [1, 2], "all"), _mix([5], [1])]
    other = MixedSamples.from_weights(
        [CatalogSamples(made_catalog([5], "other")), CatalogSamples(made_catalog([6]))], [1, 2], "first"
    )
    part = MixedSamples.from_weights(
        [CatalogSamples(made_catalog([5])), CatalogSamples(made_catalog([7]), np.arange(6))], [1, 2], "first"
    )
    assert len({mixed.fingerprint for mixed in (*mixes, other, part)}) == 6
    assert _mix([5, 6], [0.5, 1.0]).fingerprint == mixes[0].fingerprint
