"""The `README.md` of `--export huggingface`: it lists exactly the shards, and never replaces another file."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, ExportOptions, InvalidRequest, VerifyOptions, create, export, verify
from shardtool.interop.huggingface import describe_misreading, is_own_readme
from tests.helpers import shards, write_tree

if TYPE_CHECKING:
    from pathlib import Path


def _pack(folder: Path, name: str = "x-{000..}.tar", **changed_options: Any) -> Any:
    source = write_tree(folder.parent / "source", {f"{number:02}.txt": b"%d" % number for number in range(12)})
    options = {"workers": 0, "max_count": 4, **changed_options}
    return create(source, f"{folder}/{name}", CreateOptions(**options))


def _files_by_split(folder: Path) -> dict[str, list[str]]:
    """Return for each split the files that a README lists, in order."""
    lines = (folder / "README.md").read_text(encoding="utf-8").split("---\n")[1].splitlines()
    assert lines[:3] == ["configs:", "- config_name: default", "  data_files:"]
    paths_by_split: dict[str, list[str]] = {}
    for line in lines[3:]:
        if line.startswith("  - split: "):
            split = line.removeprefix("  - split: ")
            paths_by_split[split] = []
        elif not line.endswith("path:"):
            pattern = json.loads(line.partition('"')[1] + line.partition('"')[2])
            paths_by_split[split] += sorted(path.name for path in folder.iterdir() if fnmatchcase(path.name, pattern))
    return paths_by_split


@pytest.mark.parametrize("name", ["x-{000..}.tar", "x[1]-{000..}.tar", "é ü'-{8..}.tar", "a-{0..}-b.tar"])
def test_the_readme_lists_exactly_the_shards(name: str, tmp_path: Path) -> None:
    """The README lists all shards and no other file, for any names and neighbours."""
    write_tree(tmp_path / "out", {"x-old.tar": b"", "x-99.tar": b"", "x1-000.tar": b""})
    before = {path.name for path in shards(tmp_path / "out")}
    _pack(tmp_path / "out", name, export=("huggingface",))
    assert set(_files_by_split(tmp_path / "out")["train"]) == {path.name for path in shards(tmp_path / "out")} - before


def test_splits_share_one_readme(tmp_path: Path) -> None:
    """The splits of one run share one README, whatever is exported first; invalid split names are changed."""
    folder = tmp_path / "out"
    result = _pack(folder, "{split}-{000..}.tar", split="train=0.5,held-out=0.5", export=("huggingface",))
    assert any("does not accept split 'held-out'" in note for note in result.notes)
    prefixes = {"train": "train-", "held_out": "held-out-"}
    names_by_split = _files_by_split(folder)
    assert {split: [*{name[: -len("000.tar")] for name in names}] for split, names in names_by_split.items()} == {
        split: [prefix] for split, prefix in prefixes.items()
    }
    readme = (folder / "README.md").read_bytes()
    for dataset_file in ("held-out.json", "train.json"):
        export(folder / dataset_file, "huggingface", ExportOptions(workers=0))
        assert (folder / "README.md").read_bytes() == readme
    with pytest.raises(InvalidRequest, match="both be named a_b"):
        _pack(tmp_path / "two", "{split}-{000..}.tar", split="a-b=0.5,a_b=0.5", export=("huggingface",))
    assert not list((tmp_path / "two").glob("*"))


@pytest.mark.parametrize("text", ["# Mine\n", "", "signed and changed", "link"])
def test_a_users_readme_is_kept(text: str, tmp_path: Path) -> None:
    """A README of the user, or one that was edited, is never replaced; a note says so."""
    folder = tmp_path / "out"
    _pack(folder, export=("huggingface",))
    path = folder / "README.md"
    if text == "link":
        path.rename(tmp_path / "elsewhere.md")
        path.symlink_to(tmp_path / "elsewhere.md")
    elif text == "signed and changed":
        path.write_bytes(path.read_bytes().replace(b"configs", b"license: mit\nconfigs"))
    else:
        path.write_text(text)
    before = path.read_bytes()
    result = export(folder / "x.json", "huggingface", ExportOptions(overwrite=True, workers=0))
    assert any("README.md was not written by shardtool and is kept" in note for note in result.notes)
    _pack(folder, shuffle=True, max_count=6, overwrite=True, export=("huggingface",))
    assert path.read_bytes() == before
    assert path.is_symlink() == (text == "link")


def test_the_readme_of_another_dataset_is_kept(tmp_path: Path) -> None:
    """Our README for another dataset in the folder is kept; a note says so."""
    folder = tmp_path / "out"
    _pack(folder, export=("huggingface",))
    before = (folder / "README.md").read_bytes()
    result = _pack(folder, "other-{000..}.tar", export=("huggingface",))
    assert any("names other shards (x-000.tar" in note for note in result.notes)
    assert (folder / "README.md").read_bytes() == before


def test_a_stale_readme_is_deleted(tmp_path: Path) -> None:
    """If shards change that the README does not match by a pattern, it is deleted; `verify` finds a stale README."""
    folder = tmp_path / "out"
    _pack(folder, "x-{000..}.tar", export=("huggingface",))
    _pack(folder, "x-{000..}.tar", max_count=2, overwrite=True)
    assert len(_files_by_split(folder)["train"]) == len(shards(folder)) == 6
    folder, readme = tmp_path / "list", b""
    source = write_tree(tmp_path / "source", {})
    for names in (["p.tar", "q.tar"], ["p.tar", "q.tar", "r.tar"]):
        export_too = ("huggingface",) if len(names) == 2 else ()
        options = CreateOptions(workers=0, export=export_too, overwrite=True)
        create(source, [f"{folder}/{name}" for name in names], options)
        assert (folder / "README.md").exists() == bool(export_too)
        readme = (folder / "README.md").read_bytes() if export_too else readme
    (folder / "README.md").write_bytes(readme)
    (file,) = (path for path in folder.glob("*.json") if b"wids_version" in path.read_bytes())
    report = verify(file, VerifyOptions(workers=0))
    assert [(finding.code, finding.file, finding.found) for finding in report.findings] == [
        ("export-stale", "README.md", "r.tar is not listed")
    ]


@given(st.binary(max_size=200))
def test_only_unchanged_readmes_are_ours(data: bytes) -> None:
    """Only a README that is unchanged to the byte counts as ours."""
    assert not is_own_readme(data)
    assert not is_own_readme(data + b"<!-- shardtool crc32c:00000000: x -->\n") or not data


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["x-0.tar", "x-1.tar", "x-0.index", "x-1.index", "x.json"], ""),
        (["x-0.tar", "x-0.index", "x.json"], "reads x.json"),
        (["x-0.tar", "x-1.tar", "x.json", "x-0.tar.idx"], "reads x-0.tar.idx as a tar"),
        (["x-0.tar", "x-1.tar", "x.json", "x-0.json", "x-1.json"], "reads x"),
        (["train-0.tar", "train-1.tar", "train.json", "val-0.tar", "val.json"], "reads val.json"),
        (["train-0.tar", "train-1.tar", "train.json", "held-out-0.tar"], "derives splits from names"),
        (["train.index", "notes.txt"], ""),
        ([], ""),
        (["train-0.tar", "train-1.tar", "train.json", "notes.json", "b.json", "c.json"], ""),
    ],
)
def test_describe_misreading(names: list[str], problem: str) -> None:
    """`load_dataset` reads the most common extension of a split's files as data; JSON wins a tie."""
    assert describe_misreading(names).startswith(problem)
    assert bool(describe_misreading(names)) == bool(problem)
