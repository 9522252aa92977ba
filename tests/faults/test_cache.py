"""A full or read-only disk under a cache never disturbs a reader."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from shardtool import Cache, OutputFailed
from tests.verbs.cache.conftest import SHARD, NoteRecorder, write_shards
from tests.verbs.cache.helpers import copies, read_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_full_disk(place: Path, disk: Callable[[str], Path]) -> None:
    """On a disk smaller than the cache's limit, shards are evicted; on a disk full of other files, none is copied."""
    shards, mounted, noting = write_shards(place), disk(f"size={16 * 4096}"), NoteRecorder()
    cache = Cache(mounted / "cache", "1GB", observer=noting)
    assert read_all(cache, [*shards, *shards]) == [True] * 12
    assert 2 <= len(copies(mounted / "cache")) <= 4
    assert noting.notes == []
    with suppress(OSError):
        (mounted / "other").write_bytes(bytes(16 * 4096))
    full = Cache(mounted / "cache", "1GB", observer=noting)
    held = [full.open(shard) for shard in shards]
    assert [one.lock is not None for one in held].count(True) == len(copies(mounted / "cache"))
    assert len(noting.notes) == 1
    assert read_all(full, shards)


def test_disk_fills_while_copying(place: Path, disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk becomes full during a copy, shards are read from their original location."""
    shards, mounted, noting = write_shards(place), disk(f"size={16 * 4096}"), NoteRecorder()
    cache = Cache(mounted / "cache", "1GB", observer=noting)
    (mounted / "other").write_bytes(bytes(12 * 4096))
    monkeypatch.setattr("shardtool.storage.staging.Folder.free_bytes", lambda _folder: 10**9)
    assert read_all(cache, shards) == [False] * 6
    assert [path.name for path in (mounted / "cache" / "copied").iterdir()] == []
    assert [one.split(": ")[1:] for one in noting.notes] == [
        ["cannot write", "no space left on device; uncached shards are read from their original location"]
    ]
    with pytest.raises(OutputFailed, match="no space left"), cache.writer(max_size=SHARD) as writer:
        writer.write({"__key__": "1", "bin": bytes(9000)})
    (mounted / "other").unlink()
    assert os.listdir(mounted / "cache" / "written") == []
    assert read_all(Cache(mounted / "cache", "1GB"), shards[:3]) == [True] * 3


def test_disk_full_of_other_files(place: Path, disk: Callable[[str], Path]) -> None:
    """If no shard is in use, but other files fill the disk, a writer fails instead of waiting for readers."""
    shards, mounted, noting = write_shards(place), disk(f"size={16 * 4096}"), NoteRecorder()
    cache = Cache(mounted / "cache", "1GB", observer=noting)
    (mounted / "other").write_bytes(bytes(12 * 4096))
    with pytest.raises(OutputFailed, match="no space left"), cache.writer(max_size="1MB") as writer:
        writer.write({"__key__": "1", "bin": bytes(9000)})
    assert read_all(cache, shards) == [False] * 6
    assert [note.rpartition(": ")[2] for note in noting.notes] == [
        "no space left on device; uncached shards are read from their original location"
    ]


def test_read_only_disk(place: Path, disk: Callable[[str], Path]) -> None:
    """On a read-only disk, cached shards are read, the others from their original location, with a note."""
    shards, mounted, noting = write_shards(place), disk("size=8m"), NoteRecorder()
    read_all(Cache(mounted / "cache"), shards[:2])
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    assert read_all(Cache(mounted / "cache", observer=noting), shards) == [True] * 2 + [False] * 4
    assert read_all(Cache(mounted / "other", observer=noting), shards) == [False] * 6
    assert all("read-only file system" in note for note in noting.notes)
    assert len(noting.notes) == 2
