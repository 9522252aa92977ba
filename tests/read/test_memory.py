"""Memory of the reader, measured in /proc: streams, and workers."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shardtool import ShardWriter
from tests.helpers import ENVIRONMENT, PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

_BUFFER, _MORE = 2**25, 50_000_000  # the default shuffle buffer, and the memory allowed in addition

_STREAM = """
import re, sys
import shardtool

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024

dataset = shardtool.open(sys.argv[1])
for _ in dataset[:9].stream(rank=0, world_size=1):
    pass
before = peak()
for shuffle in (False, True, "full"):
    assert sum(1 for _ in dataset.stream(shuffle=shuffle, rank=0, world_size=1)) == len(dataset)
print(peak() - before)
"""

_SHARE = """
import os, re, sys
from dataclasses import replace
import numpy as np
from shardtool.read import index_store
from shardtool.dataset.shard_index import ShardIndex
from shardtool.storage.shared_blocks import SharedBlocks
from tests.read.catalogs import made_catalog

SHARDS, COUNT, WORKERS = 4, 250_000, 4
ones = np.ones(COUNT, np.int64)

def made(catalog, shard):
    keys = (1_000_000 + np.arange(shard * COUNT, (shard + 1) * COUNT)).astype("S7").tobytes()
    starts = 1024 * np.arange(COUNT)
    ends = np.arange(COUNT + 1)
    index = ShardIndex(keys, 7 * ends, starts, 1024 * ones, ends, ("jpg",), 0 * ones, starts + 512, 500 * ones, None)
    return index.for_reading()

def pss(pids):
    texts = [open(f"/proc/{pid}/smaps_rollup").read() for pid in pids]
    return sum(int(re.search(r"^Pss:\\s*(\\d+)", text, re.M)[1]) * 1024 for text in texts)

index_store.read_shard_index = made
index_store._INDEX_CACHE_BYTES = 2**40  # release no pages
store = index_store.IndexStore(replace(made_catalog([COUNT] * SHARDS), shared=SharedBlocks()))

def worker(begin, done):
    os.read(begin, 1)
    for shard in range(SHARDS):
        index = store.index(shard)
        assert index.keys_of(np.array([9])) == [str(shard * COUNT + 1_000_009)]
        assert int(index.offsets[-1]) == 1024 * COUNT - 512
        assert sum(int(column.max()) for column in (index.starts, index.sizes, index.first_rows, index.lengths))
    os.write(done, b"x")
    os.read(begin, 1)

workers = []
for _ in range(WORKERS):
    (begin, start), (end, done) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        worker(begin, done)
        os._exit(0)
    workers.append((pid, start, end))
pids = [os.getpid(), *(pid for pid, _, _ in workers)]
before = pss(pids)
for _, start, end in workers:
    os.write(start, b"x")
    os.read(end, 1)
after = pss(pids)
for pid, start, _ in workers:
    os.write(start, b"x")
    os.waitpid(pid, 0)
print(after - before, SHARDS * made(None, 0).nbytes)
"""


def _run(code: str, *words: object) -> list[int]:
    """Return the numbers that a program printed."""
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
def test_a_stream_holds_its_buffer(tmp_path: Path) -> None:
    """A stream of small samples needs at most 50 MB in addition to its buffer, in any order."""
    with ShardWriter(tmp_path / "out-{000..}.tar") as writer:
        for number in range(25_000):
            writer.write({"__key__": f"{number:05}", "bin": bytes(4000)})
    (growth,) = _run(_STREAM, tmp_path)
    assert growth < _BUFFER + _MORE


def test_workers_share_an_index() -> None:
    """Four forked workers on a million samples need the memory of one index."""
    growth, size = _run(_SHARE)
    assert growth < 2 * size
