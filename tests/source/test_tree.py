from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardtool.source.folder import collect_objects, collect_samples
from shardtool.source.scan import make_scan_tasks, scan_items
from shardtool.source.scan_part import ScanPart, ScanRules
from shardtool.storage.remote.buckets import BucketEntry
from tests.helpers import write_tree

if TYPE_CHECKING:
    import pytest

_PARTS = st.text("ab.-/!é", min_size=1, max_size=4).map(lambda text: text.strip("/").replace("//", "/"))
_NAMES = st.lists(_PARTS.filter(lambda text: text.strip(".") and ".." not in text), min_size=1, max_size=3)
_RULES = [ScanRules(), ScanRules(dots="last", hidden=True), ScanRules(include=("*.a", "b/*"), exclude=("ab", "a/b"))]


def _is_plain(path: str) -> bool:
    return all(part not in ("", ".", "..") for part in path.split("/"))


def _system_files(parts: list[ScanPart]) -> Counter[bytes]:
    return sum((part.system_files for part in parts), Counter[bytes]())


@settings(max_examples=15, deadline=None)
@given(st.lists(_NAMES.map("/".join).filter(_is_plain), max_size=12, unique=True), st.sampled_from(_RULES))
@example(["a.b", "a/a.b", "a-a.b", "a!/a.b", "a.a/b.a", ".a/a.b", "Thumbs.db", "__MACOSX/a.b"], ScanRules())
def test_objects_equal_files(paths: list[str], rules: ScanRules) -> None:
    """Objects give the same samples and skipped rows as files of the same names, in the same order."""
    names: list[str] = []
    for path in sorted(paths):  # a path that is also a folder is not a file here
        if not any(path.startswith(f"{name}/") or name.startswith(f"{path}/") for name in names):
            names.append(path)
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), {name: name.encode() for name in names})
        root, top = os.fsencode(folder) + b"/", ScanPart()
        parts = [scan_items(task) for task in make_scan_tasks(root, rules, 4, top)]
        files, skipped = collect_samples(root, [top.join_keys(), *parts])
    listed = sorted(names, key=os.fsencode)
    parts_of_objects = [collect_objects((BucketEntry(name, len(os.fsencode(name)), 7, 5) for name in listed), rules)]
    objects, left_out = collect_samples(root, parts_of_objects)
    assert objects.keys.data == files.keys.data
    assert [objects.path(row) for row in range(len(objects.rows.size))] == [
        files.path(row) for row in range(len(files.rows.size))
    ]
    assert objects.rows.size.tolist() == files.rows.size.tolist()
    assert (set(objects.rows.mtime_ns.tolist()), set(objects.rows.changed_ns.tolist())) <= ({7}, {5})
    assert left_out == skipped
    assert _system_files(parts_of_objects) == _system_files([top, *parts])


def test_folder_markers_are_ignored() -> None:
    """Empty objects that represent folders are not files; other empty objects are."""
    names = {"a": 0, "a.x": 0, "a.x/b.jpg": 3, "a/b.jpg": 1, "c.jpg": 0, "d": 2, "d/e.jpg": 1}
    parts = [collect_objects((BucketEntry(name, size, 1, 1) for name, size in names.items()), ScanRules())]
    entries, skipped = collect_samples(b"s3://b/", parts)
    assert [entries.path(row).decode() for row in range(len(entries.rows.size))] == [
        "a.x/b.jpg",
        "a/b.jpg",
        "c.jpg",
        "d/e.jpg",
    ]
    assert [(row.path, row.code) for row in skipped] == [("d", "no-field")]


def test_samples_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any chunk size, the files of a sample stay together."""
    monkeypatch.setattr("shardtool.source.scan_part._SORT_CHUNK_FILES", 2)
    names = [f"{at}.{ending}" for at in range(5) for ending in ("a", "b", "c")]
    parts = [collect_objects((BucketEntry(name, 1, 1, 1) for name in names), ScanRules())]
    entries, _ = collect_samples(b"s3://b/", parts)

    assert entries.counts().tolist() == [3] * 5
