"""Inspect the folder of a cache, and run programs that use one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import ENVIRONMENT, PATIENCE_S, REPO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool import Cache
    from shardtool.dataset.stored import StoredShard

# The start of a program that patches its functions to kill itself.
KILLING = """
import os, signal

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def after(function):
    def both(*given):
        function(*given)
        killed()
    return both
"""


def copies(folder: str | Path) -> list[str]:
    """Return the original shard names of all copies in a cache, and the names of other files in the same folder."""
    return sorted(path.name.split("-", 3)[-1] for path in (Path(folder) / "copied").iterdir())


def read_all(cache: Cache, shards: Sequence[StoredShard]) -> list[bool]:
    """Read shards through a cache, and check their bytes. For each shard, return whether a copy was read."""
    is_copy = []
    for shard in shards:
        with cache.open(shard) as leased:
            assert Path(leased.path).read_bytes() == Path(shard.path).read_bytes()
            is_copy.append(leased.lock is not None)
    return is_copy


def python(code: str, *words: str | Path) -> str:
    """Run Python code with arguments in a new process, and return its stdout."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.fail(done.stderr)
    return done.stdout
