from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from shardtool import Cache
from tests.helpers import flip, typed
from tests.verbs.cache.conftest import SHARD, write_shards
from tests.verbs.cache.helpers import copies, read_all

if TYPE_CHECKING:
    from pathlib import Path


def _names(folder: Path) -> list[Path]:
    return sorted((folder / "copied").iterdir(), key=lambda path: path.name[-10:])


def test_status_lists_shards_hit_rate_and_foreign_files(tmp_path: Path) -> None:
    """`cache status` lists the shards, their processes, the hit rate, and foreign files."""
    shards, folder = write_shards(tmp_path, 3), tmp_path / "cache"
    cache = Cache(folder, 2 * SHARD)
    read_all(cache, [*shards, shards[2]])
    (folder / "copied" / "mine.tar").write_text("x")
    with cache.open(shards[2]) as held:
        status = json.loads(typed("cache", "status", folder, "--json").out)
        shown = typed("cache", "status", folder).out
        path = os.path.relpath(held.path, folder)
        assert f"in use    {path} by process {os.getpid()}\n" in shown
    assert [(shard["path"], shard["held"]) for shard in status["shards"]] == [
        (os.path.relpath(_names(folder)[0], folder), False), (path, True)
    ]  # fmt: skip
    assert status["counts"] == {"hits": 2, "copies": 3, "passed": 0, "evicted": 1}
    assert status["hit_rate"] == 2 / 5
    assert status["readers"] == [os.getpid()]
    assert status["foreign"] == ["copied/mine.tar"]
    assert shown.startswith("2 shards, 23.6 kB; 1 in use\nhit rate  40.0%: 2 found, 3 copied; 1 evicted\n")
    assert shown.endswith("foreign   copied/mine.tar\n")


def test_verify_deletes_damaged_shards(tmp_path: Path) -> None:
    """`cache verify` deletes and names damaged shards, and exits with 3; shards in use remain."""
    shards, folder = write_shards(tmp_path, 3), tmp_path / "cache"
    cache = Cache(folder)
    read_all(cache, shards)
    assert typed("cache", "verify", folder).out == "0 of 3 shards removed, 0 B\n"
    first, second, _ = _names(folder)
    flip(first, 700)
    second.write_bytes(b"cut")
    held = cache.open(shards[0])
    ran = typed("cache", "verify", folder)
    assert ran.code == 3
    assert f"removed   copied/{second.name}: 3 bytes instead of 11,776\n" in ran.out
    assert f"in use    copied/{first.name}: CRC-32C " in ran.out
    assert first.exists()
    held.close()
    assert len(json.loads(typed("cache", "verify", folder, "--json").out)["removed"]) == 1
    assert copies(folder) == [shards[2].name]


def test_clear_deletes_unused_shards(tmp_path: Path) -> None:
    """`cache clear` deletes shards that no process uses, and no foreign file."""
    shards, folder = write_shards(tmp_path, 2), tmp_path / "cache"
    cache = Cache(folder)
    read_all(cache, shards)
    (folder / "copied" / "mine.tar").write_text("x")
    with cache.open(shards[1]):
        assert typed("cache", "clear", folder).out.startswith("1 of 2 shards removed, 11.8 kB\nin use    copied/")
        assert copies(folder) == ["mine.tar", shards[1].name]
    assert typed("cache", "clear", folder, "--quiet").out == ""
    assert copies(folder) == ["mine.tar"]


@pytest.mark.parametrize("action", ["status", "verify", "clear"])
def test_a_folder_that_is_not_a_cache_is_refused(tmp_path: Path, action: str) -> None:
    """A folder that is not a cache is refused and not changed."""
    (tmp_path / "a").write_text("x")
    ran = typed("cache", action, tmp_path)
    assert (ran.code, list(tmp_path.iterdir())) == (2, [tmp_path / "a"])
    assert ran.err.startswith(f"shardtool: {tmp_path}: not a cache; expected the folder of a cache.")
