"""Laws of columns of names."""

import numpy as np
import pytest

from shardtool import names as module
from shardtool.names import Names


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_names_come_in_chunks(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks hold each name once, in order, with the place of the first of them; and no more than a chunk may."""
    monkeypatch.setattr(module, "_CHUNK", 3)
    texts = [b"n%d" % at for at in range(count)]
    names = Names.of(texts)
    found = [(first, list(some)) for first, some in names.chunks()]
    assert [name for _, some in found for name in some] == texts
    assert all(some == texts[first : first + 3] for first, some in found)
    assert names.take(np.arange(count)).data == names.data
