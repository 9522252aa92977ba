"""Recognise index files of other tools."""

from __future__ import annotations

import pickle
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardtool import ShardWriter
from shardtool.dataset.find import find_dataset
from shardtool.dataset.shard_index import ShardIndex
from shardtool.dataset.sidecar_schema import ShardFacts
from shardtool.interop.exports import EXPORTS, PROBE_BYTES, describe_index_difference, detect_export, index_name
from shardtool.interop.indexed_shard import IndexedShard, ShardHashes, ShardHashTask, hash_shard

if TYPE_CHECKING:
    from pathlib import Path


def _index(name: str, offset: int) -> ShardIndex:
    starts = np.array([offset, offset + 1024])
    ends, facts = np.arange(3), ShardFacts(name, 4096, None, "")
    return ShardIndex(
        b"ab", ends, starts, np.array([1024, 1024]), ends, ("jpg",), np.zeros(2, int), starts + 512, np.array([9, 9]),
        None, facts=facts,
    )  # fmt: skip


@pytest.mark.parametrize("export", [name for name, export_format in EXPORTS.items() if export_format.suffix])
def test_the_index_of_each_export_is_recognised(export: str) -> None:
    """The index of an export is recognised by its first bytes, and differs from one with other offsets."""
    export_format = EXPORTS[export]
    name = f"x-0.{export_format.shard_format}"
    shard = IndexedShard(_index(name, 0), ShardHashes(0, "0" * 40, "0" * 64, bytes(64)))
    data = export_format.shard_index.encode(shard)
    detected = detect_export(index_name(shard.name, export_format), data[:PROBE_BYTES], len(data))
    assert EXPORTS[detected].shard_index is export_format.shard_index
    assert describe_index_difference(export, data, shard) == ""
    assert describe_index_difference(export, data, replace(shard, index=_index(name, 1024)))


def test_hashes_of_a_million_payloads_are_compact(tmp_path: Path) -> None:
    """A worker returns 32 bytes per payload hash, and little more."""
    with ShardWriter(tmp_path / "x-{0..}.tar") as writer:
        for number in range(1000):
            writer.write({"__key__": f"{number}", "txt": f"{number}"})
    [shard] = find_dataset(tmp_path).shards
    index, path = shard.index(), tmp_path / "x-0.tar"
    hashes = hash_shard(ShardHashTask.of(str(path), path.stat().st_size, index), lambda _samples, _size: None)
    assert [hashes.payload(number) for number in range(1000)] == [
        sha256(b"%d" % number).hexdigest() for number in range(1000)
    ]
    assert len(pickle.dumps(hashes)) < 33_000
