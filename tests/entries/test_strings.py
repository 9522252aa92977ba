"""Laws of columns of names."""

import numpy as np
import pytest

from shardtool.entries import strings
from shardtool.entries.strings import PackedStrings


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_strings_come_in_chunks(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks contain each string once, in order, with the position of the first; no chunk is too large."""
    monkeypatch.setattr("shardtool.values.CHUNK_ROWS", 3)
    texts = [b"n%d" % number for number in range(count)]
    names = PackedStrings.of(texts)
    chunks = [(first, list(chunk)) for first, chunk in names.chunks()]
    assert [name for _, chunk in chunks for name in chunk] == texts
    assert all(chunk == texts[first : first + 3] for first, chunk in chunks)
    assert names.take(np.arange(count)).data == names.data


def test_gathering_with_arrow_is_equivalent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large columns are gathered in another way with the same result: any order, repeats, empty strings."""
    names = PackedStrings.of([b"n" * (number % 7) for number in range(50)])
    positions = np.array([3, 49, 0, 7, 7, 14, 48, 1])
    expected = [names.gather(positions), names.gather(positions[:0]), names.take(positions[::-1]).data]
    monkeypatch.setattr(strings, "_MIN_ARROW_STRINGS", 1)
    monkeypatch.setattr(strings, "_MAX_SLICED_STRINGS", -1)
    assert [names.gather(positions), names.gather(positions[:0]), names.take(positions[::-1]).data] == expected
