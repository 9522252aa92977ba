"""Notes that count skipped files and samples."""

from __future__ import annotations

import pytest

from shardtool.errors import SampleFailed
from shardtool.skipped import Skipped
from shardtool.source.base import check_skipped, skipped_notes


@pytest.mark.parametrize(("number", "text"), [(1, "1 part of shards"), (2, "2 parts of shards")])
def test_damage_is_counted_in_plain_words(number: int, text: str) -> None:
    """Skipped damage is counted, with its shard and, if known, its key."""
    skipped = [Skipped(key, "x.tar", "damaged", "at 0") for key in "kl"[:number]]
    assert skipped_notes(skipped) == [f"{text} skipped (damaged): {', '.join(['x.tar (k)', 'x.tar (l)'][:number])}"]


def test_an_unreadable_folder_is_named() -> None:
    """The path of the source folder itself is empty, so the error describes the folder."""
    with pytest.raises(SampleFailed, match=r"in: 1 file cannot be packed: the folder itself \(permission denied\)"):
        check_skipped("in", (Skipped("", "", "unreadable", "permission denied"),), "raise", "exclude them")
