"""Keys: a lazy sequence, and the lookup of samples by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool import CreateOptions, create
from shardtool.read import index_store
from shardtool.read.catalog import open_catalog
from shardtool.read.index_store import IndexStore, hash_keys, read_shard_index
from shardtool.storage import shared_blocks
from tests.read.packed import COUNT, IN_SHARD, SHARDS, key_of, packed

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [key_of(number) for number in range(COUNT)]


class _Counted(IndexStore):
    """Records the shards whose sidecars are read."""

    def __init__(self, given: str) -> None:
        super().__init__(open_catalog(given))
        self.read: list[int] = []

    def index(self, shard: int):  # type: ignore[no-untyped-def]  # noqa: ANN202
        """Return an index."""
        self.read.append(shard)
        return super().index(shard)


@given(keys=st.lists(st.binary(max_size=40) | st.binary(min_size=250, max_size=300), max_size=10))
def test_hashes(keys: list[bytes]) -> None:
    """A hash depends only on the key; keys that differ in one byte, or in trailing zeros, have other hashes."""
    hashes = hash_keys(keys).tolist()
    assert hashes == [int(hash_keys([key])[0]) for key in keys]
    assert len({*hashes}) == len({*keys})
    others = [key + b"\0" for key in keys] + [bytes([key[0] ^ 1]) + key[1:] for key in keys if key]
    assert not {*hashes} & {*hash_keys([*{*others} - {*keys}]).tolist()}


def test_only_the_matching_shard_is_searched(tmp_path: Path) -> None:
    """With ascending keys, a lookup reads one sidecar; a missing key reads all, once."""
    store = _Counted(packed(tmp_path / "set"))
    assert store.numbers([KEYS[9]]).tolist() == [9]
    assert store.read == [9 // IN_SHARD]
    assert store.numbers(KEYS[4:8]).tolist() == [4, 5, 6, 7]
    assert store.read[1:] == [1]
    assert store.numbers(["b/010x", "", "z"]).tolist() == [-1, -1, -1]
    assert {*store.read} == {*range(SHARDS)}
    del store.read[:]
    assert store.numbers(["b/010x", "", "z"]).tolist() == [-1, -1, -1]
    assert store.read == []


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("is_shared", [True, False])
def test_every_key_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, is_shared: bool) -> None:  # noqa: FBT001
    """In any order, alone and together, with shared and private indexes."""
    pattern = packed(tmp_path / "set", shuffle=shuffle)
    if not is_shared:
        monkeypatch.setattr(shared_blocks, "_create_unnamed_file", lambda: None)
    monkeypatch.setattr(index_store, "_MAX_HASHES_IN_MEMORY", 7)
    monkeypatch.setattr(index_store, "_MAX_KEYS_SEARCHED_SINGLY", 1)
    store = IndexStore(open_catalog(pattern))
    keys = [key for at in range(SHARDS) for key in map(bytes.decode, store.index(at).all_keys())]
    assert (keys == KEYS) == (not shuffle)
    assert store.numbers([*keys, "no", *keys[::-1]]).tolist() == [*range(COUNT), -1, *range(COUNT)[::-1]]
    assert [store.numbers([key]).tolist() for key in keys] == [[at] for at in range(COUNT)]


def test_wrong_key_ranges(tmp_path: Path) -> None:
    """A key outside the range in the dataset file is found nevertheless."""
    table = pd.DataFrame({"key": ["a", "z", "c", "d", "e", "b"], "text": list("azcdeb")})
    options = CreateOptions(field=("txt=text",), max_count=3, workers=0)
    create(table, f"{tmp_path}/out-{{0..}}.tar", options)
    dataset = shardtool.open(f"{tmp_path}/out.json")
    assert [*dataset.keys] == ["a", "z", "c", "d", "e", "b"]
    assert [dataset[key]["txt"] for key in "azcdeb"] == [b"a", b"z", b"c", b"d", b"e", b"b"]


def test_equal_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys with equal hashes are distinguished by their bytes."""
    monkeypatch.setattr(index_store, "hash_keys", lambda keys: np.zeros(len(keys), np.uint64))
    monkeypatch.setattr(IndexStore, "_search_ranges", lambda *_: None)
    store = IndexStore(open_catalog(packed(tmp_path / "set")))
    assert store.numbers([*KEYS, "no"]).tolist() == [*range(COUNT), -1]


def test_a_key_of_several_samples(tmp_path: Path) -> None:
    """If several datasets have the same key, the first sample is found."""
    for name in ("one", "two"):
        packed(tmp_path / name, count=6)
    dataset = shardtool.open([tmp_path / "one", tmp_path / "two"])
    assert dataset.select([key_of(3), key_of(0)])[:].fingerprint == dataset.select([3, 0]).fingerprint


def test_the_sequence_of_keys(tmp_path: Path) -> None:
    """A shard is read when one of its keys is requested."""
    dataset = shardtool.open(packed(tmp_path / "set"))
    keys = dataset.keys
    assert (len(keys), keys[0], keys[-1], keys[5:9], [*keys]) == (COUNT, KEYS[0], KEYS[-1], KEYS[5:9], KEYS)
    assert [*reversed(keys)] == KEYS[::-1]
    assert keys.index(KEYS[5]) == 5
    assert repr(keys) == "<23 keys: 'a/000', 'a/001', 'a/002' and 20 more>"
    for bad in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError, match=f"key {bad} of {COUNT}"):
            keys[bad]
    assert read_shard_index(open_catalog(f"{tmp_path}/set"), 0).all_keys() == [key.encode() for key in KEYS[:IN_SHARD]]
