"""Datasets to copy, and an observer that records notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool.dataset.find import open_dataset
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.dataset.stored import StoredShard

SHARD = 11_776  # bytes of each shard: seven samples (a header, 1,000 bytes, padding) and the trailer of a tar


class NoteRecorder(shardtool.Observer):
    """Records notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredShard, ...]:
    """Return six shards of equal size with different bytes."""
    return write_shards(tmp_path_factory.mktemp("slow"))


def write_shards(folder: Path, count: int = 6, salt: str = "") -> tuple[StoredShard, ...]:
    """Write shards of equal size with different bytes."""
    files = {f"{at:03d}.bin": f"{salt}{at:04d}".encode() * 250 for at in range(count * 7)}
    write_tree(folder / "src", files)
    shardtool.create(folder / "src", folder / "out-{000000..}.tar", shardtool.CreateOptions(max_count=7))
    return open_dataset(folder / "out.json").shards


@pytest.fixture
def noting() -> NoteRecorder:
    """Return an observer that records notes."""
    return NoteRecorder()
