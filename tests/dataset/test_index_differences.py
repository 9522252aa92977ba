"""Differences between indexes of a shard."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool import CreateOptions, create
from shardtool.dataset.find import open_dataset
from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.dataset.shard_index import compare_indexes, scanned_index
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path


def test_differences_of_two_indexes(tmp_path: Path, ending: str) -> None:
    """A sidecar has the same index as a scan; differences between other indexes are reported by kind and value."""
    write_tree(
        tmp_path / "in", {f"{number}.{name}": b"x" * number for number in range(1, 6) for name in ("bin", "txt")}
    )
    create(tmp_path / "in", f"{tmp_path}/out-{{0..}}.{ending}", CreateOptions(workers=0))
    (shard,) = open_dataset(tmp_path / "out.json").shards
    index, scanned = shard.index(), scanned_index(scan_shard(ShardScanTask(shard.path, checksum=True)))
    assert [*compare_indexes(index, scanned)] == []
    assert index.plain_table() == scanned.plain_table()
    assert index.tally() == scanned.tally()
    assert shard.read_footer() == (5, index.facts)
    assert index.crcs is not None
    is_seventh = np.arange(10) == 6
    changed_indexes = [
        (replace(index, keys=bytes(index.keys).replace(b"4", b"z")), ("key", 3, -1)),
        (replace(index, starts=index.starts + (np.arange(5) == 2)), ("offset", 2, -1)),
        (replace(index, sizes=index.sizes + (np.arange(5) == 4)), ("size", 4, -1)),
        (replace(index, codes=np.where(is_seventh, 1 - index.codes, index.codes)), ("field", 3, 6)),
        (replace(index, offsets=index.offsets + is_seventh), ("offset", 3, 6)),
        (replace(index, lengths=index.lengths + is_seventh), ("length", 3, 6)),
        (replace(index, crcs=index.crcs ^ is_seventh.astype(np.uint32)), ("checksum", 3, 6)),
    ]
    for changed, (kind, sample, row) in changed_indexes:
        assert [
            (difference.what, difference.sample, difference.row) for difference in compare_indexes(changed, scanned)
        ] == [(kind, sample, row)]
    assert [*compare_indexes(replace(index, crcs=None), scanned)] == []  # unknown checksums are not compared
