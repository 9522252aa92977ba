"""Shard indexes as columns: content, lifetime and sharing."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool.dataset.shard_index import ShardIndex, part_offsets
from shardtool.read import index_store
from shardtool.read.catalog import open_catalog
from shardtool.read.index_store import IndexStore, read_shard_index
from shardtool.storage import shared_blocks
from tests.read.packed import COUNT, IN_SHARD, SHARDS, key_of, packed, sample_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardtool.read.catalog import Catalog

SAMPLES = st.lists(st.tuples(st.text(max_size=6), st.lists(st.integers(0, 2), max_size=3)), max_size=8)


def _recording(read: list[int]) -> Callable[[Catalog, int], ShardIndex]:
    """Return a function that reads an index and records its shard."""

    def read_one(catalog: Catalog, shard: int) -> ShardIndex:
        read.append(shard)
        return read_shard_index(catalog, shard)

    return read_one


def _rows(samples: list[tuple[str, list[int]]], far: int) -> ShardIndex:
    """Return an index of samples, given as key and field codes; the first sample has a large offset."""
    keys, codes = [key.encode() for key, _ in samples], [code for _, fields in samples for code in fields]
    counts = np.array([len(fields) for _, fields in samples], np.int64)
    return ShardIndex(
        keys=b"".join(keys),
        key_offsets=part_offsets([len(key) for key in keys]),
        starts=far + 1000 * np.arange(len(samples)),
        sizes=np.full(len(samples), 1000),
        first_rows=part_offsets(counts),
        names=("a", "ü", "c.d"),
        codes=np.array(codes, np.int64),
        offsets=far + np.repeat(1000 * np.arange(len(samples)), counts) + 7,
        lengths=np.arange(len(codes)),
        crcs=np.arange(len(codes), dtype=np.uint32) if far else None,
        kinds={"a": "int64"},
    )


@given(samples=SAMPLES, far=st.sampled_from([0, 2**31 - 100, 2**33]))
def test_an_index_survives_packing(samples: list[tuple[str, list[int]]], far: int) -> None:
    """An index equals its packed block, which is as small as its values allow."""
    rows = _rows(samples, far)
    made = rows.for_reading()
    parts = made.packed()
    block = bytearray(parts[-1][0] + len(parts[-1][1]))
    for at, data in parts:
        block[at : at + len(data)] = data
    for index in (made, ShardIndex.unpacked(memoryview(bytes(block)))):
        assert (index.names, index.kinds) == (("a", "ü", "c.d"), {"a": "int64"})
        assert index.keys_of(np.arange(len(samples))) == [key for key, _ in samples]
        assert index.all_keys() == [key.encode() for key, _ in samples]
        for name in ("starts", "sizes", "offsets", "lengths", "codes"):
            assert getattr(index, name).tolist() == getattr(rows, name).tolist()
        assert (None if index.crcs is None else index.crcs.tolist()) == (None if not far else rows.crcs.tolist())  # type: ignore[union-attr]
        assert np.diff(index.first_rows).tolist() == rows.counts.tolist()
        assert index.starts.dtype == (np.int64 if far and samples else np.int32)
        picked = np.arange(0, len(samples), 2)
        flat = [code for at in picked for code in samples[at][1]]
        assert index.field_counts(picked) == [flat.count(code) for code in range(3)]


@given(keys=st.lists(st.text("ab", max_size=4), max_size=12), wanted=st.text("ab", max_size=4))
def test_rows_of_keys(keys: list[str], wanted: str) -> None:
    """A key's row is the first one with this key; parts of keys do not match."""
    index = _rows([(key, []) for key in keys], 0).for_reading()
    assert index.find_row(wanted.encode()) == (keys.index(wanted) if wanted in keys else -1)


@pytest.fixture
def catalog(tmp_path: Path, ending: str) -> Catalog:
    """The catalog of six shards."""
    return open_catalog(packed(tmp_path / "set", f"out-{{000..}}.{ending}"))


def test_indexes_are_read_once(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar is read once for all stores of a catalog and for forked processes."""
    read: list[int] = []
    monkeypatch.setattr(index_store, "read_shard_index", _recording(read))
    first, second = IndexStore(catalog), IndexStore(catalog)
    child = os.fork()
    if not child:
        os._exit(0 if [len(first.index(at)) for at in range(3)] == [IN_SHARD] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    for store in (first, second):
        assert [len(store.index(at)) for at in range(SHARDS)] == [IN_SHARD] * (SHARDS - 1) + [COUNT % IN_SHARD]
    assert read == [3, 4, 5]


def test_without_shared_blocks(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store then keeps as many recent indexes as fit."""
    monkeypatch.setattr(shared_blocks, "_create_unnamed_file", lambda: None)
    alone = open_catalog(os.path.dirname(catalog.shards[0].path))
    monkeypatch.setattr(index_store, "_INDEX_CACHE_BYTES", 2 * IndexStore(alone).index(0).nbytes + 100)
    store, read = IndexStore(alone), list[int]()
    monkeypatch.setattr(index_store, "read_shard_index", _recording(read))
    for at in (1, 0, 2, 0, 1):
        assert store.index(at).keys_of(np.array([0])) == [key_of(at * IN_SHARD)]
    assert read == [1, 0, 2, 1]


def test_few_indexes_are_kept(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store keeps a limited number of indexes; dropped ones are read again unchanged."""
    monkeypatch.setattr(index_store, "_MAX_CACHED_INDEXES", 2)
    monkeypatch.setattr(index_store, "_INDEX_CACHE_BYTES", 2)
    store = IndexStore(catalog)
    for at in [*range(SHARDS), *range(SHARDS)]:
        assert store.index(at).keys_of(np.array([1])) == [key_of(at * IN_SHARD + 1)]
        assert len(store._kept) <= 2  # noqa: SLF001


def test_threads(catalog: Catalog) -> None:
    """Threads that read the same indexes get equal ones."""
    store, results = IndexStore(catalog), []

    def read() -> None:
        results.append([store.index(at).all_keys() for at in range(SHARDS)])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [results[0]] * 8
    assert [key.decode() for keys in results[0] for key in keys] == [key_of(number) for number in range(COUNT)]


def test_a_lock_held_at_the_fork(catalog: Catalog) -> None:
    """A forked process reads indexes although a thread of its parent held the lock."""
    store = IndexStore(catalog)
    with store._lock:  # noqa: SLF001
        child = os.fork()
        if not child:
            os._exit(0 if len(store.index(0)) == IN_SHARD else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples have the columns of all sidecars, None if theirs lacks one; fields take precedence."""
    packed(tmp_path / "one", count=5)
    packed(tmp_path / "two", first=5, count=5, join=pd.DataFrame({"key": [key_of(7)], "txt": ["of the table"]}))
    monkeypatch.setattr(index_store, "_INDEX_CACHE_BYTES", 1)
    dataset = shardtool.open([tmp_path / "one", tmp_path / "two"], metadata=True)
    columns = [{"number": at, "bi": ("cat", "dog", None)[at % 3]} for at in range(5)] + [
        {"number": None, "bi": None}
    ] * 5
    expected = [{"txt": None, **column, **sample_of(at)} for at, column in enumerate(columns)]
    assert dataset[[*range(10)]] == expected
    assert [*dataset.stream(shuffle=False, rank=0, world_size=1)] == expected
    assert dataset[2] == expected[2]
    assert dataset[2:4][1] == expected[3]
