"""Fixtures of the reader's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardtool.read import sample_reader

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="package")
def both_ways_of_reading() -> Iterator[None]:
    """Lower the number of samples that are read one by one, so that small datasets are also read in groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_reader, "_MAX_SAMPLES_READ_SINGLY", 6)
        yield
