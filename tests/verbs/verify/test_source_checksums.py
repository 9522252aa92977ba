"""Laws of computing checksums of source files."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from shardtool import create
from shardtool.fingerprint import crc32c
from shardtool.request.create_options import CreateOptions
from shardtool.source import checksums, read_tasks
from shardtool.source.checksums import checksum_payloads
from shardtool.source.read_tasks import FileReads
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from shardtool.source.read_tasks import SpanReads

READS = 4


def test_concurrent_checksums_match_their_files(tmp_path: Path) -> None:
    """Each file gets its own checksum however many are read concurrently; -1 if it cannot be read."""
    data = {f"{at:03}": b"%d" % at * 1000 * at for at in range(101)} | {"large": b"0123456" * 300_000}
    source = write_tree(tmp_path / "in", data)
    (source / "link").symlink_to("007")
    paths = [os.fsencode(source / name) for name in (*data, "link", "gone", "link")]
    sums = [crc32c(content) for content in data.values()]
    links = bytes(len(data)) + bytes([1, 0, 0])
    for reads in (1, READS, 200):
        assert checksum_payloads(FileReads(tuple(paths), links, reads)) == [*sums, crc32c(data["007"]), -1, -1]


def test_checksums_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, files are read one at a time."""

    def no_room(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    (tmp_path / "a").write_bytes(b"text")
    monkeypatch.setattr(threading.Thread, "start", no_room)
    assert checksum_payloads(FileReads((os.fsencode(tmp_path / "a"),), b"\0", READS)) == [crc32c(b"text")]


def test_verify_reads_slow_files_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify --source` reads slow files concurrently, and finds differences."""
    source = write_tree(tmp_path / "in", {f"{at:03}.txt": b"%d" % at * 2000 for at in range(100, 130)})
    create(str(source), str(tmp_path / "out-{000..}.tar"), CreateOptions(workers=0))
    options: list[FileReads | SpanReads] = []

    def noted(task: FileReads | SpanReads) -> list[int]:
        options.append(task)
        return checksum_payloads(task)

    monkeypatch.setattr(read_tasks, "measure_open_seconds", lambda _: 1.0)
    monkeypatch.setattr(checksums, "checksum_payloads", noted)
    (source / "107.txt").write_bytes(b"x" * 6000)
    ran = typed("verify", tmp_path / "out.json", "--source", source, "--workers", "0")
    assert (ran.code, ran.out.count("[source-differs]"), "107" in ran.out) == (3, 1, True)
    assert [task.reads for task in options if isinstance(task, FileReads)] == [16]
