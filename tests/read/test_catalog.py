"""The catalog: its size depends on the number of shards, not of samples."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardtool.dataset.dataset_file import parse_dataset
from shardtool.read.catalog import open_catalog
from shardtool.read.index_store import IndexStore
from tests.helpers import ENVIRONMENT, PATIENCE_S
from tests.read.packed import COUNT, SHARDS, key_of, packed

if TYPE_CHECKING:
    from pathlib import Path

_OPEN = """
import pickle, sys
import shardtool
from shardtool.read.dataset import open

dataset = open(sys.argv[1])
assert len(dataset) == 100_000_000
assert len(dataset[10**7 : 10**7 + 10]) == 10
with __builtins__.open("/proc/self/status") as file:
    (peak,) = [int(line.split()[1]) for line in file if line.startswith("VmHWM")]
print(peak / 1024, len(pickle.dumps(dataset)))
"""


def _large(folder: Path) -> Path:
    """Write the dataset file of 10,000 shards, of which only the first exists."""
    packed(folder, "out-{000000..}.tar", count=4)
    path = folder / "out.json"
    file = parse_dataset(path.read_bytes(), "out.json")
    entries = [
        replace(
            file.shards[0], name=f"out-{at:06}.tar", sidecar=f"out-{at:06}.index", samples=10_000, size=10**8,
            first_key=f"k/{at:06}0000", last_key=f"k/{at:06}9999",
        )
        for at in range(10_000)
    ]  # fmt: skip
    large = folder.parent / "large"
    large.mkdir()
    (large / "out.json").write_bytes(replace(file, shards=tuple(entries)).encode())
    return large / "out.json"


@pytest.mark.slow
def test_a_hundred_million_samples(tmp_path: Path) -> None:
    """10,000 shards of 10,000 samples open without their sidecars, within 200 MB, and pickle to 250 bytes per shard."""
    large = _large(tmp_path / "set")
    catalog = open_catalog(large)
    assert (len(catalog), len(catalog.shards)) == (100_000_000, 10_000)
    command = [sys.executable, "-c", _OPEN, str(large)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    megabytes, pickled = map(float, done.stdout.split())
    assert megabytes < 200
    assert pickled < 250 * 10_000


def test_locates_samples(tmp_path: Path) -> None:
    """Each number has its shard and row, and grouping by shard loses no sample."""
    catalog = open_catalog(packed(tmp_path / "set"))
    shards, rows = catalog.locate(np.arange(COUNT))
    assert [*zip(shards.tolist(), rows.tolist(), strict=True)] == [divmod(at, 4) for at in range(COUNT)]
    numbers = np.array([22, 0, 5, 0, 4])
    for shard, rows, which in catalog.group_by_shard(numbers):
        assert (4 * shard + rows).tolist() == numbers[which].tolist()
    assert sorted(at for *_, which in catalog.group_by_shard(numbers) for at in which.tolist()) == [*range(5)]
    assert [*catalog.group_by_shard(numbers[:0])] == []


def test_the_order_hash_depends_on_the_order(tmp_path: Path) -> None:
    """Another order or sharding changes the hash; a copy does not."""
    made = [
        open_catalog(packed(tmp_path / name, **asked))
        for name, asked in (("one", {}), ("two", {}), ("three", {"shuffle": True}), ("four", {"max_count": 5}))
    ]
    assert len({one.fingerprint for one in made}) == 1
    assert made[0].order_hash == made[1].order_hash
    assert len({one.order_hash for one in made}) == 3
    assert pickle.loads(pickle.dumps(made[0])).order_hash == made[0].order_hash  # noqa: S301
    assert [len(one.shards) for one in made[0].datasets] == [SHARDS]


def test_parts_share_their_indexes(tmp_path: Path) -> None:
    """An index read through the combined catalog is available to each part, and vice versa."""
    for name, first in (("one", 0), ("two", 10)):
        packed(tmp_path / name, first=first, count=9)
    both = open_catalog([tmp_path / "one", tmp_path / "two"])
    assert [len(part) for part in both.parts] == [9, 9]
    assert IndexStore(both).index(4).keys_of(np.array([1])) == [key_of(15)]
    assert both.parts[1].shared.read(1) is not None
    assert IndexStore(both.parts[0]).index(2).keys_of(np.array([0])) == [key_of(8)]
    again = pickle.loads(pickle.dumps(both))  # noqa: S301
    there = [dataset.shared.read(place) is not None for dataset, place in map(again.dataset, range(6))]
    assert there == [False, False, True, False, True, False]
    assert IndexStore(both).numbers([key_of(15), "no", key_of(2)]).tolist() == [14, -1, 2]
    assert again.shared.read(6) is not None
    assert both.parts[0].order_hash == open_catalog(tmp_path / "one").order_hash
    both.shared.release_pages()
