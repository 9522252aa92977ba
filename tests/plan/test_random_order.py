"""Random orders, computed as a whole or one position at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shardtool.plan.random_order import derive_state, permute_positions, random_at, random_numbers

KEY = np.uint64(derive_state("a test", 1))


@pytest.mark.parametrize("size", [*range(1, 70), 127, 128, 129, 255, 256, 257, 300])
def test_positions_are_permuted(size: int) -> None:
    """For any size, positions map to different positions."""
    assert sorted(permute_positions(np.arange(size), size, KEY).tolist()) == list(range(size))


@pytest.mark.parametrize("size", [10**9, 2**40 + 1])
def test_many_positions_are_permuted(size: int) -> None:
    """100,000 of very many positions map to different positions, which are spread evenly."""
    positions = np.concatenate((np.arange(50_000), np.arange(size - 50_000, size)))
    permuted = permute_positions(positions, size, KEY)
    assert len(np.unique(permuted)) == len(positions)
    assert 0 <= permuted.min() <= permuted.max() < size
    tenths = np.bincount(permuted * 10 // size, minlength=10)
    assert abs(tenths - 10_000).max() < 500  # five standard deviations


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_orders_are_equally_frequent(size: int) -> None:
    """For small sizes, all orders are equally frequent: chi-squared is within six standard deviations."""
    draws = 20_000
    keys = random_numbers(derive_state("keys", size), draws)
    orders = np.stack([permute_positions(np.full(draws, position), size, keys) for position in range(size)], 1)
    counts = np.array(list(Counter(map(tuple, orders.tolist())).values()))
    possible = int(np.prod(np.arange(1, size + 1)))
    assert len(counts) == possible
    chi_squared = ((counts - draws / possible) ** 2).sum() / (draws / possible)
    assert abs(chi_squared - (possible - 1)) < 6 * np.sqrt(2 * possible)


def test_keys_choose_the_permutation() -> None:
    """Each position is moved by the permutation of its key, independently of the other keys."""
    keys = random_numbers(3, 200)
    positions = np.arange(200) % 100
    permuted = permute_positions(positions, 100, keys)
    assert permuted.tolist() == [
        int(permute_positions(positions[[index]], 100, keys[index])[0]) for index in range(200)
    ]


def test_numbers_are_the_same_everywhere() -> None:
    """The numbers are fixed for every NumPy and machine."""
    assert random_numbers(1234567, 2).tolist() == [6457827717110365317, 3203168211198807973]  # of SplitMix64's authors
    assert random_at(1234567, np.array([1], np.uint64)).tolist() == [3203168211198807973]
    assert permute_positions(np.arange(10), 10, KEY).tolist() == [1, 2, 7, 0, 5, 8, 6, 3, 4, 9]
    assert permute_positions(np.arange(8), 20, KEY).tolist() == [0, 8, 19, 15, 6, 5, 18, 4]
