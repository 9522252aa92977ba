"""Sizes are counted in bounded memory, to within a per cent of the truth."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardtool.inspection.page.figures import Sizes
from shardtool.inspection.page.labels import varint

_SIZES = st.lists(st.integers(0, 2**50), min_size=1, max_size=50)


@given(_SIZES, st.integers(1, 60))
def test_sizes_are_what_was_added(sizes: list[int], cut: int) -> None:
    """Count, total, ends and median are those of all that was added, in however many parts."""
    found = Sizes()
    found.add(np.array(sizes[:cut], np.uint64))
    found.add(np.array(sizes[cut:], np.uint64))
    assert (found.count, found.smallest, found.largest) == (len(sizes), min(sizes), max(sizes))
    assert found.total == sum(sizes)
    middle = sorted(sizes)[(len(sizes) - 1) // 2]
    assert abs(found.median - middle) <= middle * 0.011 + 1


@given(_SIZES, st.integers(1, 40))
def test_columns_hold_all(sizes: list[int], most: int) -> None:
    """The columns of a histogram hold every size but zero, in order, and are no more than asked for."""
    found = Sizes()
    found.add(np.array(sizes, np.uint64))
    columns = found.columns(most)
    assert sum(count for *_, count in columns) == sum(size > 0 for size in sizes)
    assert len(columns) <= most
    assert all(low < up for low, up, _ in columns)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varint_is_read(value: int) -> None:
    """A packed whole number reads back, and no start of it does."""
    left, data = value % 2**64, bytearray()
    while left >= 0x80:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    data.append(left)
    assert varint(bytes(data)) == value
    assert all(varint(bytes(data[:cut])) is None for cut in range(len(data)))
