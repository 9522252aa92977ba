"""The order of an epoch: a permutation, the same everywhere, and a good shuffle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.read.epoch_samples import CatalogSamples, MixedSamples, choose_parts, window_size
from shardtool.read.order import OrderOptions, Shuffle, epoch_order
from tests.read.catalogs import made_catalog

counts_of_shards = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)
options_of_orders = st.builds(
    OrderOptions,
    shuffle=st.sampled_from([True, False, "full"]),
    seed=st.integers(-3, 2**70),
    epoch=st.integers(0, 5),
    parts=st.integers(1, 70),
    window=st.integers(1, 50),
)
options_of_orders = st.builds(  # including orders for several ranks
    lambda options, ranks: replace(options, parts=options.parts * max(1, ranks), ranks=ranks),
    options_of_orders,
    st.integers(0, 5),
)
HUNDRED = np.full(100, 1000)  # a hundred shards of 1,000 samples


def _whole(counts: list[int] | np.ndarray[tuple[int], np.dtype[np.int64]], options: OrderOptions) -> list[int]:
    order = epoch_order(np.asarray(counts, np.int64), options)
    return list(map(int, order.numbers(np.arange(order.length))))


@settings(max_examples=50, deadline=None)
@given(counts_of_shards, options_of_orders)
def test_each_sample_once(counts: list[int], options: OrderOptions) -> None:
    """An epoch has each sample exactly once, for any shards, parts and window."""
    assert sorted(_whole(counts, options)) == list(range(sum(counts)))


@settings(max_examples=50, deadline=None)
@given(counts_of_shards, options_of_orders)
def test_a_position_is_independent_of_others(counts: list[int], options: OrderOptions) -> None:
    """Its sample does not depend on which positions are requested together."""
    order = epoch_order(np.array(counts, np.int64), options)
    positions = np.random.default_rng(len(counts)).integers(0, order.length, 30)
    whole = np.array(_whole(counts, options))
    assert order.numbers(positions).tolist() == whole[positions].tolist()
    assert order.numbers(positions[:0]).tolist() == []


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_seeds_and_epochs_differ(shuffle: Shuffle) -> None:
    """The orders of different seeds and epochs are unrelated."""
    orders = [_whole([50] * 20, OrderOptions(shuffle, seed, epoch)) for seed in (0, 1, -1) for epoch in (0, 1)]
    same = [sum(one == other for one, other in zip(orders[0], another, strict=True)) for another in orders[1:]]
    assert max(same) < 20  # of 1,000 positions; about 1 by chance


def test_orders_never_change() -> None:
    """With any NumPy, machine and version, so that saved states stay valid."""
    assert _whole([5, 0, 7], OrderOptions(seed=1, epoch=2, parts=2, window=3)) == [7, 1, 6, 0, 5, 11, 8, 4, 10, 2, 9, 3]
    assert _whole([5, 0, 7], OrderOptions("full", seed=1, epoch=2)) == [5, 3, 7, 1, 0, 11, 6, 8, 4, 9, 2, 10]
    assert _whole([2, 1], OrderOptions(shuffle=False)) == [0, 1, 2]
    of_two = OrderOptions(seed=1, epoch=2, parts=4, window=2, ranks=2)
    assert _whole([5, 0, 7], of_two) == [6, 0, 5, 11, 7, 2, 8, 1, 10, 3, 9, 4]
    assert _whole([5, 0, 7], replace(of_two, ranks=4)) == _whole([5, 0, 7], replace(of_two, shuffle="full"))
    large = [_whole([137, 500] * 20, OrderOptions(shuffle, seed=-5, parts=8, window=100)) for shuffle in (True, "full")]
    large.append(_whole([137, 500] * 20, OrderOptions(seed=-5, parts=24, window=100, ranks=3)))
    assert [blake2b(np.array(order, "<i8").tobytes(), digest_size=8).hexdigest() for order in large] == [
        "f74183ca6a3d562b",
        "98d974251b22847b",
        "141095306f565a4a",
    ]


def test_a_full_shuffle_is_uniform() -> None:
    """Samples move as far as in a random permutation, and so do neighbours."""
    count = 100_000
    order = np.array(_whole(HUNDRED, OrderOptions("full")))
    assert abs(np.abs(order - np.arange(count)).mean() / count - 1 / 3) < 0.005
    assert abs(np.abs(np.diff(order)).mean() / count - 1 / 3) < 0.005
    pairs = np.bincount(order[:-1] * 10 // count * 10 + order[1:] * 10 // count, minlength=100)
    assert abs(pairs - 1000).max() < 6 * np.sqrt(1000)


def test_a_shuffle_mixes_shards() -> None:
    """64 consecutive samples come from almost as many shards."""
    shards = np.array(_whole(HUNDRED, OrderOptions(window=512))) // 1000
    rows = shards[: len(shards) // 64 * 64].reshape(-1, 64)
    different = np.mean([len(np.unique(row)) for row in rows])
    assert different > 55


def test_a_shuffle_reads_contiguous_samples() -> None:
    """The samples of a round are in a few contiguous ranges."""
    options = OrderOptions(window=100)
    order = epoch_order(HUNDRED, options)
    numbers = np.sort(order.numbers(np.arange(3 * options.round_size, 4 * options.round_size)))
    assert (np.diff(numbers) > 1).sum() <= 2 * options.parts


def test_a_rank_reads_whole_parts() -> None:
    """If the ranks divide the parts, no shard is read by more ranks than it has parts."""
    order = epoch_order(HUNDRED, OrderOptions(parts=64, window=16))
    readers = [set((order.numbers(np.arange(rank, order.length, 8)) // 1000).tolist()) for rank in range(8)]
    assert sum(map(len, readers)) <= 100 + 64


@pytest.mark.parametrize("ranks", [1, 8, 64])
@pytest.mark.parametrize(("each", "size"), [(500, 14_000), (100, 1000), (100, 14_000)])
def test_samples_of_a_rank_are_mixed(each: int, size: int, ranks: int) -> None:
    """With 200 classes, one per shard, 256 consecutive samples of a rank have at least 64 classes; reads stay large.

    A buffer of 5,000 samples has at most 71, 20 and 3 of these (benchmarks/shuffle.py).
    """
    view = CatalogSamples(made_catalog([each] * 200))
    parts, window, ranks = choose_parts(view, size, ranks, None, None, copies=False)
    options = OrderOptions(parts=parts, window=window, ranks=ranks)
    order = view.order(options)
    positions = np.arange(ranks // 2, order.length, ranks)[: 4 * 256]
    classes = order.numbers(positions) // each
    few = len(np.unique(classes[:64]))
    assert _classes_in_a_row(classes) >= 64
    assert few >= 40
    numbers_of_rank = np.sort(order.numbers(np.arange(ranks // 2, min(options.round_size, order.length), ranks)))
    pieces = 1 + np.count_nonzero(np.diff(numbers_of_rank) > 1)
    assert pieces <= 2 * options.parts // ranks  # a window may span two shards
    assert len(numbers_of_rank) * size <= 2**26


def _classes_in_a_row(classes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """Return the mean number of classes in 256 consecutive samples."""
    rows = classes[: len(classes) // 256 * 256].reshape(-1, 256)
    return float(np.mean([len(np.unique(row)) for row in rows]))


@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_samples_of_a_rank_are_mixed_in_a_mix(ranks: int) -> None:
    """A rank has samples of many classes of each dataset, also of a small one."""
    views = [CatalogSamples(made_catalog([500] * 200)), CatalogSamples(made_catalog([20] * 10))]
    mix = MixedSamples.from_weights(views, [1, 1], "all")
    parts, window, of = choose_parts(mix, 14_000, ranks, None, None, copies=False)
    numbers = mix.order(OrderOptions(parts=parts, window=window, ranks=of)).numbers(np.arange(mix.length))
    large, small = numbers < 100_000, numbers >= 100_000
    assert _classes_in_a_row((numbers[ranks // 2 :: ranks] // 500)[large[ranks // 2 :: ranks]]) >= 64
    of_small = numbers[small][:200]
    assert sorted(of_small.tolist()) == [*range(100_000, 100_200)]
    assert (np.diff(of_small) == 1).sum() < 20


def test_default_parts() -> None:
    """128 parts per rank, fewer if shards are copied; or as given."""
    view = CatalogSamples(made_catalog([500] * 200))
    mix = MixedSamples.from_weights([view, CatalogSamples(made_catalog([7] * 14))], [1, 1], "first")
    cut = partial(choose_parts, buffer=None, parts=None, copies=False)
    assert cut(view, 14_000, 8) == (1024, 32, 8)
    assert cut(view, 14_000, 8, copies=True) == (200, 32, 8)
    assert cut(view, 14_000, 1, copies=True)[0] == 64
    assert cut(view, 14_000, 64, copies=True)[0] == 192
    assert cut(view, 14_000, 1000, copies=True) == (1000, 32, 1000)
    assert cut(mix, 14_000, 8) == (1024, 32, 8)
    assert cut(view, 14_000, 8, buffer=10_240)[1] == 10
    assert cut(view, 14_000, 8, parts=64) == (64, 32, 0) == cut(mix, 14_000, 8, copies=True)
    for wrong in ({"parts": 0}, {"buffer": 0}, {"parts": 1.5}):
        with pytest.raises(InvalidRequest, match="a whole number, 1 or more"):
            cut(view, 14_000, 8, **wrong)


def test_very_many_samples() -> None:
    """An order of very many samples needs no memory per sample, and repeats none."""
    counts = np.full(10_000, 100_000)
    for shuffle in (True, "full"):
        order = epoch_order(counts, OrderOptions(shuffle))
        numbers = order.numbers(np.arange(order.length - 10_000, order.length))
        assert len(np.unique(numbers)) == 10_000
        assert 0 <= numbers.min() <= numbers.max() < order.length == 10**9


@settings(max_examples=30, deadline=None)
@given(counts_of_shards, options_of_orders, st.data())
def test_chosen_samples(counts: list[int], options: OrderOptions, data: st.DataObject) -> None:
    """An epoch has each chosen sample once, in the chosen order if not shuffled."""
    chosen = data.draw(st.lists(st.integers(0, sum(counts) - 1), unique=True, min_size=1))
    view = CatalogSamples(made_catalog(counts), np.array(chosen))
    order = view.order(options)
    numbers = order.numbers(np.arange(order.length)).tolist()
    assert sorted(numbers) == sorted(chosen)
    assert options.shuffle or numbers == chosen
    assert view.length == order.length == len(chosen)
    again = CatalogSamples(view.catalog, np.sort(chosen)).order(options)
    assert not options.shuffle or again.numbers(np.arange(again.length)).tolist() == numbers


def test_fingerprints_of_views() -> None:
    """Each choice of samples has its own fingerprint."""
    catalog = made_catalog([3, 4])
    chosen = [None, np.array([0, 1]), np.array([0, 2]), np.array([1, 0])]
    prints = [CatalogSamples(catalog, numbers).fingerprint for numbers in chosen]
    assert prints[0] == catalog.order_hash
    assert len(set(prints)) == 4
    assert CatalogSamples(catalog, np.array([0, 1])).fingerprint == prints[1]
    assert CatalogSamples(made_catalog([3, 4], "other"), chosen[1]).fingerprint != prints[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("shuffle", "half"), ("shuffle", 1), ("seed", 1.5), ("seed", None), ("epoch", -1), ("parts", 0), ("window", True)],
)
def test_options_out_of_range(name: str, value: object) -> None:
    """The error names the option."""
    with pytest.raises(InvalidRequest) as caught:
        replace(OrderOptions(), **{name: value})  # type: ignore[arg-type]
    assert caught.value.where == name
    assert repr(value) in caught.value.found


def test_window_of_a_buffer() -> None:
    """The buffer is divided among the parts; by default it holds about 32 MB, and at most 1,024 samples of a part."""
    assert window_size(1001, 6400, 64) == 100
    assert window_size(1001, 10, 64) == 1
    assert window_size(1001, None, 64) == 512
    assert [window_size(size, None, 64) for size in (10**5, 14_000, 12_000, 10**6)] == [4, 32, 32, 1]
    assert window_size(1, None, 64) == 1024
    for buffer, parts, name in ((0, 64, "buffer"), (None, 0, "parts"), (1.5, 4, "buffer")):
        with pytest.raises(InvalidRequest, match=f"{name}: .* 1 or more"):
            window_size(1001, buffer, parts)  # type: ignore[arg-type]
