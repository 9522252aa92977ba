"""Index files of other tools are deleted before the shards that they describe change."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, OutputExists, ReshardOptions, VerifyOptions, create, export, reshard, verify
from tests.helpers import existing, flip, identity, read_tree, shards, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

FORMATS = {"tar": ("dali-webdataset", "energon", "huggingface"), "tfrecord": ("dali-tfrecord", "tfrecord")}
INFO = ".nv-meta/.info.json"


def _files(count: int = 12) -> dict[str, bytes]:
    return {f"{n:02}.{field}": field.encode() * (n * 400 + 1) for n in range(count) for field in ("bin", "txt")}


def _pack(source: Path, folder: Path, ending: str = "tar", **more_options: Any) -> Any:
    options = {"workers": 0, "max_count": 4, **more_options}
    return create(source, f"{folder}/x-{{000..}}.{ending}", CreateOptions(**options))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder of samples."""
    return write_tree(tmp_path / "source", _files())


def _indexes(folder: Path) -> set[str]:
    """Return the names of all index files of other tools."""
    ours = {"x.json", ".nv-meta/split.yaml", ".nv-meta/dataset.yaml", "README.md"}
    return {name for name in read_tree(folder) if not name.endswith((".tar", ".tfrecord", ".index"))} - ours


def _codes(folder: Path, **options: Any) -> set[str]:
    return set(verify(folder / "x.json", VerifyOptions(workers=0, **options)).counts)


def _check(folder: Path) -> None:
    """Check that the files equal those of a fresh export, and that `verify` accepts them."""
    assert _codes(folder) == set()
    for name in _indexes(folder):
        assert name == INFO or any(name.startswith(shard.stem) for shard in shards(folder)), name


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_overwrite_deletes_stale_indexes(source: Path, tmp_path: Path, ending: str) -> None:
    """`--overwrite` with other shards leaves no index of old shards, and notes the deleted files."""
    folder = tmp_path / "out"
    _pack(source, folder, ending, export=FORMATS[ending])
    before = _indexes(folder)
    result = _pack(source, folder, ending, shuffle=True, seed=3, max_count=5, overwrite=True)
    assert _indexes(folder) < before
    assert [note for note in result.notes if "indexes deleted" in note and f"{FORMATS[ending][0]!r}" in note]
    _check(folder)
    result = _pack(source, folder, ending, overwrite=True, export=FORMATS[ending])
    assert (_indexes(folder), [note for note in result.notes if "removed" in note]) == (before, [])
    _check(folder)


def test_indexes_of_removed_shards_are_deleted(source: Path, tmp_path: Path) -> None:
    """A run or a `reshard` that removes shards deletes their indexes."""
    folder = tmp_path / "out"
    _pack(source, folder, export=FORMATS["tar"])
    reshard(_pack(source, tmp_path / "other").dataset_file, f"{folder}/x-{{000..}}.tar",
            ReshardOptions(workers=0, max_count=12, overwrite=True))  # fmt: skip
    assert (len(shards(folder)), _indexes(folder)) == (1, set())
    _check(folder)


def test_resume_deletes_only_indexes_of_changed_shards(source: Path, tmp_path: Path) -> None:
    """`--resume` deletes the indexes of the shards that it rewrites, and no others."""
    folder = tmp_path / "out"
    _pack(source, folder, export=("dali-webdataset", "energon", "huggingface"))
    before = identity(folder)
    (source / "05.bin").write_bytes(b"longer than before " * 100)
    result = _pack(source, folder, resume=True)
    deleted = set(before) - set(os.listdir(folder))
    assert deleted == {"x-001.idx", "x-001.json", "x-001.tar.idx"}
    assert {name for name in set(before) - deleted if before[name] != identity(folder)[name]} == {
        "x-001.tar", "x-001.index", "x.json"
    }  # fmt: skip
    assert any("3 files of other tools' indexes deleted" in note for note in result.notes)
    _check(folder)
    export(folder / "x.json", FORMATS["tar"])
    assert {*before} == set(os.listdir(folder))
    _check(folder)


def test_valid_indexes_are_kept(source: Path, tmp_path: Path) -> None:
    """Shards rewritten with the same bytes keep their indexes, except those with payload hashes."""
    _pack(source, tmp_path / "out", export=("dali-webdataset", "energon"))
    before = _indexes(tmp_path / "out")
    result = _pack(source, tmp_path / "out", overwrite=True)
    assert _indexes(tmp_path / "out") == before
    assert not any("removed" in note for note in result.notes)
    _check(tmp_path / "out")


USERS = {
    "x-000.json": b'{"caption": "mine"}',
    "x-000.idx": b"\x00\x00\x08\x01mine",
    "x-001.tfindex": b"my notes",
    "x-notes.json": b'{"filesize": 1, "files": {}}',
    "other.idx": b"v1.2 1\njpg 512 1 a.jpg\n",
    "y-000.tar.idx": b"\0" * 8 + (1024).to_bytes(8, "little"),
}


def test_other_files_are_kept(source: Path, tmp_path: Path) -> None:
    """A file with the name but not the format of an index, or of no shard of the dataset, is never changed."""
    folder = write_tree(tmp_path / "out", USERS)
    _pack(source, folder)
    for if_exists in ("resume-overwrite", "overwrite"):
        _pack(source, folder, shuffle=True, **existing(if_exists))
        assert {name: (folder / name).read_bytes() for name in USERS} == USERS
    report = verify(folder / "x.json", VerifyOptions(workers=0))
    assert report.sound
    assert [text for text in report.unchecked if "x-000.idx" in text]


def test_a_symbolic_link_is_not_an_index(source: Path, tmp_path: Path) -> None:
    """The target of a link with the name of an index is neither deleted nor read."""
    _pack(source, tmp_path / "out", export=("dali-webdataset",))
    (tmp_path / "out" / "x-000.idx").rename(tmp_path / "mine.idx")
    (tmp_path / "out" / "x-000.idx").symlink_to(tmp_path / "mine.idx")
    _pack(source, tmp_path / "out", shuffle=True, overwrite=True)
    assert (tmp_path / "mine.idx").is_file()
    assert (tmp_path / "out" / "x-000.idx").is_symlink()


def test_leftover_indexes_are_refused(source: Path, tmp_path: Path) -> None:
    """Indexes of earlier shards are an error before anything is written; `--overwrite` deletes them."""
    folder = tmp_path / "out"
    _pack(source, folder, export=("dali-webdataset",))
    for name in set(os.listdir(folder)) - _indexes(folder):
        (folder / name).unlink()
    before = read_tree(folder)
    with pytest.raises(
        OutputExists, match=r"3 files with .* earlier shards: x-000\.idx.*for example with overwrite=True, or"
    ):
        _pack(source, folder, shuffle=True)
    assert read_tree(folder) == before
    _pack(source, folder, shuffle=True, overwrite=True)
    assert _indexes(folder) == set()


_watching: list[Callable[[str, str], None]] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _watching and event in ("os.rename", "os.remove"):
        _watching[-1](event, os.path.basename(str(args[1 if event == "os.rename" else 0])))


sys.addaudithook(_audit)


@pytest.mark.parametrize("if_exists", ["resume", "overwrite"])
def test_an_index_is_deleted_before_its_shard_changes(if_exists: str, source: Path, tmp_path: Path) -> None:
    """A run killed at any instant leaves no index next to a shard that it does not describe."""
    folder = tmp_path / "out"
    _pack(source, folder, export=FORMATS["tar"])
    (source / "00.bin").write_bytes(b"another size" * 999)
    (source / "11.txt").unlink()
    done: list[tuple[str, str]] = []
    _watching.append(lambda event, name: done.append((event, name)))
    try:
        _pack(source, folder, shuffle=if_exists == "overwrite", **existing(if_exists))
    finally:
        _watching.pop()
    changed = [name for event, name in done if event == "os.rename" and name.endswith(".tar")]
    assert "x-000.tar" in changed
    for shard in changed:
        for suffix in (".idx", ".tar.idx", ".json"):
            removed = done.index(("os.remove", shard.replace(".tar", suffix)))
            assert removed < done.index(("os.rename", shard))


def test_energons_info_file_is_deleted_or_updated(source: Path, tmp_path: Path) -> None:
    """`.info.json` is deleted if a sample count changes or a shard is new; an append updates the file."""
    folder = tmp_path / "out"
    _pack(source, folder, export=("energon",))
    _pack(source, folder, shuffle=True, overwrite=True)
    assert _indexes(folder) == {INFO}  # as many samples in each shard as before
    export(folder / "x.json", "energon")
    more = write_tree(tmp_path / "more", {"new.bin": b"1", "new.txt": b"2"})
    _pack(more, folder, append=True)
    assert INFO in _indexes(folder)
    report = verify(folder / "x.json", VerifyOptions(workers=0))
    assert report.sound
    assert not any("energon" in text for text in report.unchecked)
    _pack(source, folder, max_count=6, overwrite=True)
    assert _indexes(folder) == set()


def test_energons_info_file_without_a_new_shard_is_deleted(tmp_path: Path) -> None:
    """If a resumed run adds a shard, a list without that shard is deleted."""
    folder, tree = tmp_path / "out", write_tree(tmp_path / "tree", {"a.txt": b"1", "b.txt": b"2"})
    for more in ({}, {"c.txt": b"3"}):
        more_options = CreateOptions(max_count=2, workers=0, resume=True, export=() if more else ("energon",))
        create(write_tree(tree, more), f"{folder}/x-{{000..}}.tar", more_options)
    assert len([*folder.glob("*.tar")]) == 2
    assert not (folder / INFO).exists()


def _stale(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir() if path.name.startswith("x-000"))
    for name in names:
        if not name.endswith((".tar", ".tfrecord", ".index")):
            (folder / name).write_bytes((folder / name.replace("x-000", "x-001")).read_bytes())


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_verify_finds_a_stale_index(source: Path, tmp_path: Path, ending: str) -> None:
    """`verify` reports an index of another shard in every format, and accepts a valid one."""
    folder = tmp_path / "out"
    _pack(source, folder, ending, export=FORMATS[ending])
    assert _codes(folder) == set()
    _stale(folder)
    report = verify(folder / "x.json", VerifyOptions(workers=2))
    assert {finding.code for finding in report.findings} == {"export-stale"}
    suffixes = {"tar": {".idx", ".tar.idx", ".json"}, "tfrecord": {".idx", ".tfindex"}}[ending]
    assert {finding.file for finding in report.findings} == {f"x-000{suffix}" for suffix in suffixes}
    assert all("export(..., overwrite=True)" in finding.remedy for finding in report.findings)


@pytest.mark.parametrize("suffix", [".idx", ".tar.idx", ".json"])
def test_verify_finds_a_damaged_index(source: Path, tmp_path: Path, suffix: str) -> None:
    """`verify` reports a truncated or changed index whose start identifies its format."""
    folder = tmp_path / "out"
    _pack(source, folder, export=FORMATS["tar"])
    path = folder / f"x-001{suffix}"
    right = path.read_bytes()
    for cut in (True, False):
        if cut:
            os.truncate(path, len(right) - 8)
        else:
            flip(path, -12)
        assert _codes(folder) == {"export-stale"}
        path.write_bytes(right)


def test_verify_accepts_indexes_of_other_programs(source: Path, tmp_path: Path) -> None:
    """`verify` accepts DALI's version without names, and the JSON that webshart reads."""
    folder = tmp_path / "out"
    _pack(source, folder, export=("dali-webdataset", "huggingface"))
    path = folder / "x-000.idx"
    head, *lines = path.read_bytes().splitlines()
    short = [b" ".join(word for n, word in enumerate(line.split()) if n % 4 < 3) for line in lines]
    path.write_bytes(b"\n".join([head.replace(b"v1.2", b"v1.1"), *short]))
    document = json.loads((folder / "x-000.json").read_bytes())
    files = {
        name: {"offset": file["offset"], "length": file["size"], "width": 7} for name, file in document["files"].items()
    }
    (folder / "x-000.json").write_bytes(json.dumps({"files": files, "filesize": document["filesize"]}).encode())
    assert _codes(folder) == set()


@pytest.mark.parametrize(
    "data", [b"v1.2 9\n", b"v1.2 4\nbin\n", b'{"files": 7}', b'{"files": ' + b"[" * 100_000, b"7 7\n" * 9]
)
def test_verify_of_a_hostile_index(data: bytes, source: Path, tmp_path: Path) -> None:
    """Any content after a valid start is a finding, and never another error."""
    folder = tmp_path / "out"
    _pack(source, folder)
    for name in ("x-000.idx", "x-000.json"):
        (folder / name).write_bytes(data)
    assert _codes(folder) == {"export-stale"}
