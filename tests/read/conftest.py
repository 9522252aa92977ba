"""What the tests of the reader share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardtool.read import sample_reader

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="package")
def ways_of_reading() -> Iterator[None]:
    """Have samples of small datasets read in both ways: few of a shard one by one, others as columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_reader, "_MAX_SAMPLES_READ_SINGLY", 6)
        yield
