"""Measuring the cost of opening files, and its effects."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import create
from shardtool.request.create_options import CreateOptions
from shardtool.request.observer import Observer
from shardtool.shard_samples import INLINE
from shardtool.source import read_tasks
from shardtool.source.read_tasks import measure_open_seconds, parallel_read_count
from shardtool.storage import files
from shardtool.storage.files import read_file
from tests.helpers import read_tree, write_tree
from tests.made import flat_entries

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.entries.sample_table import SampleTable
    from shardtool.storage.remote.objects import FileInfo

SLOW_S = 0.002
PICTURE = b"P6 2 2 255\n" + bytes(range(12))


def _entries(root: Path, files: int) -> SampleTable:
    """Return samples with a value and a file each."""
    return flat_entries(
        [b"%04d" % n for n in range(files)],
        [2] * files,
        ("cls", "txt"),
        root=os.fsencode(root) + b"/",
        code=[0, 1] * files,
        kind=[INLINE, 0] * files,
    )


@pytest.mark.parametrize("exists", [True, False])
def test_a_slow_open_is_measured(*, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement includes opening, also of deleted files, and excludes values in a table."""
    write_tree(tmp_path, {f"{n:04}.txt": b"text" for n in range(100 if exists else 0)})
    entries = _entries(tmp_path, 100)
    assert measure_open_seconds(entries) < SLOW_S

    def slow(*arguments: Any) -> tuple[int, FileInfo]:
        time.sleep(SLOW_S)
        return read_file(*arguments)

    monkeypatch.setattr(files, "read_file", slow)
    assert SLOW_S <= measure_open_seconds(entries) < 10 * SLOW_S


def test_nothing_is_measured_without_files(tmp_path: Path) -> None:
    """If no file is read, nothing is measured."""
    assert measure_open_seconds(flat_entries([], [], ("txt",))) == 0
    assert measure_open_seconds(flat_entries([b"a"], [1], ("cls",), root=os.fsencode(tmp_path), kind=[INLINE])) == 0


@pytest.mark.parametrize(
    ("open_seconds", "workers", "reads"),
    [(0.00002, 1, 1), (0.0004, 16, 1), (0.005, 1, 16), (0.005, 4, 16), (0.005, 16, 4), (0.005, 1000, 1)],
)
def test_slow_files_are_read_in_parallel(open_seconds: float, workers: int, reads: int) -> None:
    """Slow files are read in parallel, within a limit for all workers together."""
    assert parallel_read_count(open_seconds, workers) == reads


class _Log(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def _written(source: object, folder: Path, **options: Any) -> tuple[dict[str, bytes], bool]:
    """Return the files of a dataset, and whether files were read in parallel."""
    observer, parallel_note = _Log(), f"each worker reads {parallel_read_count(1, 1)} files at the same time"
    create(source, str(folder / "out-{000..}.tar"), CreateOptions(workers=0, **options), observer=observer)
    return read_tree(folder), any(parallel_note in line for line in observer.lines)


@pytest.mark.parametrize(
    ("options", "slow"),
    [
        ({}, True),
        ({"file": {"ppm": "path"}}, True),
        ({"resize": "1x1", "encode": "png", "on_error": "skip"}, True),
        ({"map": "tests.mapped:doubled"}, False),  # the function may fork, so there must be no threads
    ],
)
def test_parallel_reads_write_the_same_bytes(
    options: dict[str, Any], *, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with slow files writes the same bytes, and `--verbose` reports the parallel reads."""
    names = [f"{n:03}.ppm" for n in range(30)]
    source = write_tree(tmp_path / "in", {name: PICTURE[: 23 - n % 2] for n, name in enumerate(names)})
    if "file" in options:
        source = tmp_path / "list.csv"
        source.write_text("path\n" + "".join(f"in/{name}\n" for name in names))
    expected = _written(source, tmp_path / "a", **options)
    monkeypatch.setattr(read_tasks, "measure_open_seconds", lambda _: 1.0)
    assert _written(source, tmp_path / "b", **options) == (expected[0], slow)
    assert not expected[1]


def test_several_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of several folders are measured and read."""
    folders = [write_tree(tmp_path / name, {f"{n}.{name}": b"%d" % n for n in range(30)}) for name in ("txt", "json")]
    sources = [str(folder) for folder in folders]
    expected, opened = _written(sources, tmp_path / "a"), list[bytes]()

    def slow(path: bytes, *arguments: Any) -> tuple[int, FileInfo]:
        opened.append(path)
        time.sleep(SLOW_S)
        return read_file(path, *arguments)

    monkeypatch.setattr(files, "read_file", slow)
    assert _written(sources, tmp_path / "b") == (expected[0], True)
    assert all(os.path.exists(path) for path in opened)
    assert {os.path.dirname(path) for path in opened} == {os.fsencode(folder) for folder in folders}
