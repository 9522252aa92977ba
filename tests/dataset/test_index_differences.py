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
    write_tree(tmp_path / "in", {f"{at}.{name}": b"x" * at for at in range(1, 6) for name in ("bin", "txt")})
    create(tmp_path / "in", f"{tmp_path}/out-{{0..}}.{ending}", CreateOptions(workers=0))
    (shard,) = open_dataset(tmp_path / "out.json").shards
    said, walked = shard.index(), scanned_index(scan_shard(ShardScanTask(shard.path, checksum=True)))
    assert [*compare_indexes(said, walked)] == []
    assert said.plain_table() == walked.plain_table()
    assert said.tally() == walked.tally()
    assert shard.head() == (5, said.facts)
    assert said.crcs is not None
    one = np.arange(10) == 6
    others = [
        (replace(said, keys=bytes(said.keys).replace(b"4", b"z")), ("key", 3, -1)),
        (replace(said, starts=said.starts + (np.arange(5) == 2)), ("offset", 2, -1)),
        (replace(said, sizes=said.sizes + (np.arange(5) == 4)), ("size", 4, -1)),
        (replace(said, codes=np.where(one, 1 - said.codes, said.codes)), ("field", 3, 6)),
        (replace(said, offsets=said.offsets + one), ("offset", 3, 6)),
        (replace(said, lengths=said.lengths + one), ("length", 3, 6)),
        (replace(said, crcs=said.crcs ^ one.astype(np.uint32)), ("checksum", 3, 6)),
    ]
    for other, (what, sample, row) in others:
        assert [(found.what, found.sample, found.row) for found in compare_indexes(other, walked)] == [
            (what, sample, row)
        ]
    assert [*compare_indexes(replace(said, crcs=None), walked)] == []  # unknown checksums are no others
