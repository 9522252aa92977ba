"""Laws of columns of names."""

import numpy as np
import pytest

from shardtool.entries import strings
from shardtool.entries.strings import PackedStrings


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_strings_come_in_chunks(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks contain each string once, in order, with the position of the first; no chunk is too large."""
    monkeypatch.setattr("shardtool.values.CHUNK_ROWS", 3)
    texts = [b"n%d" % at for at in range(count)]
    names = PackedStrings.of(texts)
    found = [(first, list(some)) for first, some in names.chunks()]
    assert [name for _, some in found for name in some] == texts
    assert all(some == texts[first : first + 3] for first, some in found)
    assert names.take(np.arange(count)).data == names.data


def test_gathering_with_arrow_is_equivalent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large columns are gathered in another way with the same result: any order, repeats, empty strings."""
    names = PackedStrings.of([b"n" * (at % 7) for at in range(50)])
    which = np.array([3, 49, 0, 7, 7, 14, 48, 1])
    expected = [names.gather(which), names.gather(which[:0]), names.take(which[::-1]).data]
    monkeypatch.setattr(strings, "_MIN_ARROW_STRINGS", 1)
    monkeypatch.setattr(strings, "_MAX_SLICED_STRINGS", -1)
    assert [names.gather(which), names.gather(which[:0]), names.take(which[::-1]).data] == expected
