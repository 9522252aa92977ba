"""What is taken for an index of another tool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardtool.dataset.shard_index import ShardFact, ShardIndex
from shardtool.interop.indexes import EXPORTS, HEAD_SIZE, Digests, IndexedShard, difference, form_of, index_name


def _index(name: str, offset: int) -> ShardIndex:
    starts = np.array([offset, offset + 1024])
    ends, fact = np.arange(3), ShardFact(name, 4096, None, "")
    return ShardIndex(
        b"ab", ends, starts, np.array([1024, 1024]), ends, ("jpg",), np.zeros(2, int), starts + 512, np.array([9, 9]),
        None, fact=fact,
    )  # fmt: skip


@pytest.mark.parametrize("export", [name for name, one in EXPORTS.items() if one.encode is not None])
def test_the_index_of_each_export_is_known_again(export: str) -> None:
    """What an export makes of a shard has the form of its index, and differs from that of other offsets."""
    made = EXPORTS[export]
    name = f"x-0.{made.shard_format}"
    shard = IndexedShard(_index(name, 0), Digests(0, "0" * 40, "0" * 64, ["0" * 64] * 2))
    assert made.encode is not None
    data = made.encode(shard)
    form = form_of(index_name(shard.name, made), data[:HEAD_SIZE], len(data))
    assert EXPORTS[form].encode is made.encode
    assert difference(export, data, shard) == ""
    assert difference(export, data, replace(shard, index=_index(name, 1024)))
