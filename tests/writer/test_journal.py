"""The journal of a writer may be damaged or changed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import shardtool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "change",
    [
        {"digest": 5}, {"digest": "zz"}, {"digest": "f" * 64}, {"skipped": None}, {"skipped": [["a"]]}, {"size": "1"},
        {"rounded": {"a": "b"}}, {"columns": 1}, {"other": 1},
    ],
)  # fmt: skip
def test_an_invalid_journal_line_is_ignored(change: dict[str, object], tmp_path: Path) -> None:
    """A line that is invalid or does not match its shard is ignored, and the shard is written again."""
    pattern, journal = f"{tmp_path}/out-{{0..}}.tar", tmp_path / ".out.journal"
    writer = shardtool.ShardWriter(pattern, max_count=2)
    for number in range(5):
        writer.write({"__key__": f"{number}", "txt": "x"})
    lines = journal.read_text().splitlines()
    with suppress(KeyboardInterrupt), writer:
        raise KeyboardInterrupt
    journal.write_text("\n".join([lines[0], json.dumps({**json.loads(lines[1]), **change}), *lines[2:], ""]))
    with shardtool.ShardWriter(pattern, max_count=2, resume=True) as again:
        for number in range(again.samples, 5):
            again.write({"__key__": f"{number}", "txt": "x"})
    assert shardtool.verify(tmp_path / "out.json").sound
