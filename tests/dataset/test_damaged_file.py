"""Truncated and empty dataset files: every verb reports them as damaged, none as missing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from shardtool import create
from tests.helpers import read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack a dataset, `ds`, of the folder `in`; return the folder that contains both."""
    folder = tmp_path_factory.mktemp("whole")
    write_tree(folder / "in", {f"{number}.bin": b"%d" % number for number in range(3)})
    create(folder / "in", f"{folder}/ds/x-{{00..}}.tar", workers=0, max_count=2)
    return folder


@pytest.fixture(params=[0, 1, 40, 300])
def damaged(request: pytest.FixtureRequest, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the dataset, truncate its dataset file, and return its folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "ds" / "x.json"
    file.write_bytes(file.read_bytes()[: request.param])
    return tmp_path / "ds"


@pytest.mark.parametrize("name", ["ds", "ds/x.json", "ds/x-{00..}.tar"])
@pytest.mark.parametrize(("verb", "words"), [("copy", ["to"]), ("remove", ["--where", "key == '1'"])])
def test_copy_and_remove_reject_a_damaged_dataset_file(name: str, verb: str, words: list[str], damaged: Path) -> None:
    """`copy` and `remove` name the damaged file and how to recreate it, and change nothing."""
    before = read_tree(damaged)
    process = typed(verb, name, *words)
    assert process.code == 4
    assert "ds/x.json: a damaged " in process.err
    assert "Run the original command with --resume, or `shardtool index` on the shards" in process.err
    assert read_tree(damaged) == before


def test_inspect_reports_a_damaged_dataset_file(damaged: Path) -> None:
    """`inspect` of the folder shows the shards, and reports the damaged dataset file."""
    process = typed("inspect", damaged)
    assert process.code == 0
    assert "unknown: the dataset file is damaged" in process.out
    assert "x.json: damaged" in " ".join(process.out.split())
    found = typed("verify", damaged).out
    assert "a damaged x.json" in found
    assert "To replace a damaged dataset file, rerun the original command with --resume." in found


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_the_original_command_replaces_a_damaged_dataset_file(option: str, damaged: Path) -> None:
    """The command that created the dataset recreates the file."""
    assert typed("create", "in", "ds/x-{00..}.tar", "--max-count", "2", option, "--quiet").code == 0
    assert typed("verify", damaged).code == 0


def test_index_overwrite_replaces_a_damaged_dataset_file(damaged: Path) -> None:
    """`index --overwrite`, which the messages recommend, replaces the damaged file, also for a single shard."""
    for name in ("x-01.tar", "x-01.index"):
        (damaged / name).unlink()
    create("in", "one/x-{00..}.tar", workers=0)
    (damaged.parent / "one" / "x.json").write_bytes((damaged / "x.json").read_bytes())
    assert typed("index", "one").code == 5
    assert typed("index", "one", "--overwrite", "--quiet").code == 0
    assert sorted(path.name for path in (damaged.parent / "one").iterdir()) == ["x-00.index", "x-00.tar", "x.json"]
    assert typed("verify", "one").code == 0


@pytest.mark.parametrize("option", ["--update", "--append"])
def test_update_and_append_reject_a_damaged_dataset_file(option: str, damaged: Path) -> None:
    """`--update` and `--append` need the dataset file, and report that it is damaged."""
    before = read_tree(damaged)
    process = typed("create", "in", "ds/x-{00..}.tar", option)
    assert (process.code, "ds/x.json: a damaged " in process.err) == (4, True), process.err
    assert read_tree(damaged) == before


def test_a_symbolic_link_is_never_replaced(damaged: Path) -> None:
    """A symbolic link with the dataset file's name is rejected, even if its target is empty."""
    (damaged / "x.json").unlink()
    (damaged.parent / "empty").write_bytes(b"")
    (damaged / "x.json").symlink_to("../empty")
    process = typed("create", "in", "ds/x-{00..}.tar", "--overwrite")
    assert (process.code, "symbolic link" in process.err) == (5, True), process.err
