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
def place(tmp_path: Path) -> Path:
    """Return a folder with a folder of samples, two shards of it, and other files."""
    files = {"imgs/a.jpg": b"1", "imgs/b.jpg": b"2", "notes.json": b'{"a": [1]}', "notes.docx": b"x"}
    files |= {"labels.xlsx": b"PK", "files.txt": b"imgs/a.jpg\n"}
    write_tree(tmp_path, files)
    create(tmp_path / "imgs", f"{tmp_path}/s-{{0..1}}.tar", CreateOptions(workers=0))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "found", "remedy"),
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
def test_invalid_sources_are_refused(source: str, found: str, remedy: str, place: Path) -> None:
    """The message starts with the path as typed, and suggests what to do with what is there."""
    before = read_tree(place)
    ran = typed("create", source, OUTPUT, cwd=place)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"shardtool: {source}: {found}; expected a folder of samples")
    assert remedy in ran.err
    assert read_tree(place) == before


def test_several_shards_are_recognised(place: Path) -> None:
    """Shards listed one by one, as by a shell's glob, are recognised, and get the same advice."""
    create(place / "imgs", f"{place}/t-{{0..1}}.tar", CreateOptions(workers=0))
    ran = typed("create", "s-0.tar", "t-1.tar", OUTPUT, cwd=place)
    assert (ran.code, "Pack the samples of shards with `shardtool reshard`." in ran.err) == (2, True)
    for sidecar in place.glob("*.index"):
        sidecar.unlink()
    ran = typed("create", "s-0.tar", "t-1.tar", OUTPUT, cwd=place)
    assert (ran.code, ran.err.startswith("shardtool: s-0.tar: one of 2 shards; ")) == (2, True)
    assert "Pack the samples of shards with `shardtool reshard`" in ran.err


def test_suggested_sources_work(place: Path) -> None:
    """The suggested source is accepted."""
    for words in (["create", "imgs", OUTPUT, "--include", "*.jpg"], ["reshard", "s-*.tar", "new/r-{0..}.tar"]):
        assert typed(*words, "--workers", "0", "--quiet", cwd=place).code == 0


def test_the_library_suggests_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python callers get suggestions with fields and functions, not with options."""
    monkeypatch.chdir(place)
    with pytest.raises(InvalidRequest, match=r"Pack the folder, imgs, with include=\('\*\.jpg',\)"):
        create("imgs/*.jpg", OUTPUT)
    with pytest.raises(InvalidRequest, match=r"Pack the samples of shards with `reshard`"):
        create("s.json", OUTPUT)


def _packed(place: Path, *words: str) -> tuple[int, str]:
    ran = typed("create", *words, "new/o-{0..}.tar", "--dry-run", "--workers", "0", cwd=place)
    return ran.code, ran.err


@pytest.mark.parametrize("kept", ["s.json", "s-1.index", "s-0.index"])
def test_shards_of_a_dataset_are_not_packed_as_files(kept: str, place: Path) -> None:
    """Shards with a dataset file or a sidecar are refused in any folder, unless `--include` names them."""
    for name in {"s.json", "s-0.index", "s-1.index"} - {kept}:
        (place / name).unlink()
    (place / "below").mkdir()
    for one in place.glob("s*"):
        one.rename(place / "below" / one.name)
    code, said = _packed(place, ".")
    assert (code, "a shard of a dataset; expected a folder of samples" in said, "`shardtool reshard`" in said) == (
        2,
        True,
        True,
    )
    assert _packed(place, ".", "--exclude", "below")[0] == 0
    code, said = _packed(place, ".", "--include", "*")
    assert (code, "2 files that are shards, such as below/s-0.tar, packed like other files" in said) == (0, True)
    assert _packed(place, "imgs", ".")[0] == 2


def test_other_shards_are_packed_with_a_note(place: Path) -> None:
    """Shards among other files are packed as files, with a note; a folder of only shards is refused."""
    for name in ("s.json", "s-0.index", "s-1.index"):
        (place / name).unlink()
    code, said = _packed(place, ".", "--exclude", "imgs")
    assert (
        code,
        "2 files that are shards, such as s-0.tar, packed like other files. Pack the samples of shards with `shardtool"
        in said,
    ) == (0, True)
    assert "shards, such as" not in _packed(place, "imgs")[1]
    (place / "alone").mkdir()
    for one in place.glob("s-*.tar"):
        one.rename(place / "alone" / one.name)
    code, said = _packed(place, "alone")
    assert (code, "a shard, like all files in this folder" in said, "`shardtool reshard`" in said) == (2, True, True)
    assert _packed(place, "alone", "--include", "*")[0] == 0


@pytest.mark.parametrize("verb", ["verify", "inspect", "index", "reshard"])
def test_verbs_for_datasets_suggest_create(verb: str, place: Path) -> None:
    """Verbs that read shards suggest how to create them from other files, and which URLs are supported."""
    more = ["new/r-{0..}.tar"] if verb == "reshard" else []
    assert (
        "imgs: a folder without shards; expected files that end in .tar"
        in (ran := typed(verb, "imgs", *more, cwd=place)).err
    )
    assert (ran.code, "Use `shardtool create` to pack other files." in ran.err) == (2, True)
    ran = typed(verb, "s4://bucket/x.json", *more, cwd=place)
    assert (ran.code, "the scheme s4://; expected a path, or s3://" in ran.err) == (2, True)
