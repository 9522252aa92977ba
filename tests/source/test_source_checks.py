"""Errors for sources that are neither folders nor manifests: they name what was found, and what to use instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, InvalidRequest, create
from tests.helpers import read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

OUTPUT = "new/o-{0..}.tar"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a folder of samples, two shards of it, and other files."""
    files = {"imgs/a.jpg": b"1", "imgs/b.jpg": b"2", "notes.json": b'{"a": [1]}', "notes.docx": b"x"}
    files |= {"labels.xlsx": b"PK", "files.txt": b"imgs/a.jpg\n"}
    write_tree(tmp_path, files)
    create(tmp_path / "imgs", f"{tmp_path}/s-{{0..1}}.tar", CreateOptions(workers=0))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "problem", "remedy"),
    [
        ("s-0.tar", "a shard", "`shardtool reshard`"),
        ("s.json", "a dataset file", "`shardtool reshard`"),
        ("s-*.tar", "a glob of shards", "`shardtool reshard`"),
        ("s-{0..1}.tar", "a shard pattern", "`shardtool reshard`"),
        ("https://example.org/data", "on the web, where no folder can be listed", "or a folder of a store: s3://"),
        ("s3://bucket/out-000.tar", "a shard", "`shardtool reshard`"),
        ("s3://bucket/photos.zip", "an archive on another machine", "'pipe:COMMAND'"),
        ("imgs/*.jpg", "a glob", "Pack the folder, imgs, with --include '*.jpg'."),
        ("*.docx", "a glob", "Pack the folder, ., with --include '*.docx'."),
        ("im*", "a glob", "Pack the parent folder, with --include or --exclude."),
        ("imgs/a.jpg", "not a table file", "Pack its folder, imgs, with --include a.jpg."),
        ("notes.docx", "not a table file", "Pack its folder, ., with --include notes.docx."),
        ("labels.xlsx", "not a table file", "Save it as CSV or Parquet."),
        ("files.txt", "not a table file", "standard input: `shardtool create - OUTPUT < files.txt`."),
        ("notes.json", "not a table file", "A JSON table is a list of objects"),
        ("nowhere", "no such file or folder", ""),
        ("no*where", "no such file or folder", ""),
        ("no-{0..1}.tar", "no such file or folder", ""),
        ("/dev/null", "not a folder", ""),
    ],
)
def test_invalid_sources_are_refused(source: str, problem: str, remedy: str, folder: Path) -> None:
    """The message starts with the path as typed, and suggests how to use the existing files."""
    before = read_tree(folder)
    ran = typed("create", source, OUTPUT, cwd=folder)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"shardtool: {source}: {problem}; expected a folder of samples")
    assert remedy in ran.err
    assert read_tree(folder) == before


def test_several_shards_are_recognised(folder: Path) -> None:
    """Shards listed one by one, as by a shell's glob, are recognised, and get the same advice."""
    create(folder / "imgs", f"{folder}/t-{{0..1}}.tar", CreateOptions(workers=0))
    ran = typed("create", "s-0.tar", "t-1.tar", OUTPUT, cwd=folder)
    assert (ran.code, "Pack the samples of shards with `shardtool reshard`." in ran.err) == (2, True)
    for sidecar in folder.glob("*.index"):
        sidecar.unlink()
    ran = typed("create", "s-0.tar", "t-1.tar", OUTPUT, cwd=folder)
    assert (ran.code, ran.err.startswith("shardtool: s-0.tar: one of 2 shards; ")) == (2, True)
    assert "Pack the samples of shards with `shardtool reshard`" in ran.err


def test_suggested_sources_work(folder: Path) -> None:
    """The suggested source is accepted."""
    for words in (["create", "imgs", OUTPUT, "--include", "*.jpg"], ["reshard", "s-*.tar", "new/r-{0..}.tar"]):
        assert typed(*words, "--workers", "0", "--quiet", cwd=folder).code == 0


def test_the_library_suggests_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python callers get suggestions with fields and functions, not with options."""
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidRequest, match=r"Pack the folder, imgs, with include=\('\*\.jpg',\)"):
        create("imgs/*.jpg", OUTPUT)
    with pytest.raises(InvalidRequest, match=r"Pack the samples of shards with `reshard`"):
        create("s.json", OUTPUT)


def _packed(folder: Path, *words: str) -> tuple[int, str]:
    ran = typed("create", *words, "new/o-{0..}.tar", "--dry-run", "--workers", "0", cwd=folder)
    return ran.code, ran.err


@pytest.mark.parametrize("kept", ["s.json", "s-1.index", "s-0.index"])
def test_shards_of_a_dataset_are_not_packed_as_files(kept: str, folder: Path) -> None:
    """Shards with a dataset file or a sidecar are refused in any folder, unless `--include` names them."""
    for name in {"s.json", "s-0.index", "s-1.index"} - {kept}:
        (folder / name).unlink()
    (folder / "below").mkdir()
    for path in folder.glob("s*"):
        path.rename(folder / "below" / path.name)
    code, message = _packed(folder, ".")
    assert (
        code,
        "a shard of a dataset; expected a folder of samples" in message,
        "`shardtool reshard`" in message,
    ) == (2, True, True)
    assert _packed(folder, ".", "--exclude", "below")[0] == 0
    code, message = _packed(folder, ".", "--include", "*")
    assert (code, "2 files that are shards, such as below/s-0.tar, packed like other files" in message) == (0, True)
    assert _packed(folder, "imgs", ".")[0] == 2


def test_other_shards_are_packed_with_a_note(folder: Path) -> None:
    """Shards among other files are packed as files, with a note; a folder of only shards is refused."""
    for name in ("s.json", "s-0.index", "s-1.index"):
        (folder / name).unlink()
    code, message = _packed(folder, ".", "--exclude", "imgs")
    assert (
        code,
        "2 files that are shards, such as s-0.tar, packed like other files. Pack the samples of shards with `shardtool"
        in message,
    ) == (0, True)
    assert "shards, such as" not in _packed(folder, "imgs")[1]
    (folder / "alone").mkdir()
    for path in folder.glob("s-*.tar"):
        path.rename(folder / "alone" / path.name)
    code, message = _packed(folder, "alone")
    assert (code, "a shard, like all files in this folder" in message, "`shardtool reshard`" in message) == (
        2,
        True,
        True,
    )
    assert _packed(folder, "alone", "--include", "*")[0] == 0


@pytest.mark.parametrize("verb", ["verify", "inspect", "index", "reshard"])
def test_verbs_for_datasets_suggest_create(verb: str, folder: Path) -> None:
    """Verbs that read shards suggest how to create them from other files, and which URLs are supported."""
    more = ["new/r-{0..}.tar"] if verb == "reshard" else []
    assert (
        "imgs: a folder without shards; expected files that end in .tar"
        in (ran := typed(verb, "imgs", *more, cwd=folder)).err
    )
    assert (ran.code, "Use `shardtool create` to pack other files." in ran.err) == (2, True)
    ran = typed(verb, "s4://bucket/x.json", *more, cwd=folder)
    assert (ran.code, "the scheme s4://; expected a path, or s3://" in ran.err) == (2, True)
