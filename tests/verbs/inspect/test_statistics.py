"""Statistics of sizes and values are correct in bounded memory, however the values are divided."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.verbs.inspect.summary import SizeTally, ValueCounts


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=50), st.integers(1, 60))
def test_sizes_add_up(values: list[int], cut: int) -> None:
    """A spread does not depend on how the numbers were divided."""
    sizes = SizeTally()
    for at in range(0, len(values), cut):
        sizes.add(np.array(values[at : at + cut], np.uint64))
    spread = sizes.spread()
    assert (spread.count, spread.total) == (len(values), sum(values))
    assert (spread.smallest, spread.median, spread.largest) == (
        min(values), sorted(values)[len(values) // 2], max(values)
    )  # fmt: skip


@given(st.integers(0, 2**40), st.integers(0, 2**32 - 1))
@example(0, 0)
def test_the_median_of_many_numbers_is_within_two_permille(largest: int, seed: int) -> None:
    """With more numbers than are kept, the median is within 0.2 per cent, and a histogram counts all of them."""
    values = np.random.default_rng(seed).integers(0, largest + 1, 2**17 + 10, dtype=np.uint64)
    sizes = SizeTally()
    for part in np.array_split(values, 3):
        sizes.add(part)
    true = int(np.sort(values)[len(values) // 2])
    assert abs(sizes.spread().median - true) <= true * 0.002
    assert sum(count for *_, count in sizes.histogram(40)) == np.count_nonzero(values)


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=50), st.integers(1, 40))
def test_a_histogram_counts_all_sizes(sizes: list[int], max_columns: int) -> None:
    """A histogram counts every size but zero, in order, in at most the requested number of columns."""
    tally = SizeTally()
    tally.add(np.array(sizes, np.uint64))
    columns = tally.histogram(max_columns)
    assert sum(count for *_, count in columns) == sum(size > 0 for size in sizes)
    assert len(columns) <= max_columns
    assert all(low < up for low, up, _ in columns)
    assert all(column[1] == following[0] for column, following in pairwise(columns))


def test_too_many_or_too_long_values_are_not_labels() -> None:
    """Counting stops at too many values, and at long texts."""
    few, many, prose = ValueCounts[str](max_values=3), ValueCounts[int](max_values=3), ValueCounts[str]()
    few.add([("a", 2), ("b", 1)])
    few.add([("a", 1)])
    many.add((at, 1) for at in range(4))
    prose.add([("word " * 100, 1)])
    assert (few.most_frequent(), many.values, prose.values) == ([("a", 3), ("b", 1)], None, None)
