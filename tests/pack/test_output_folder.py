"""An output that is a folder: shards are named after the source."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from shardtool import InvalidRequest, create, reshard
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_TREE = {f"cat/{number}.txt": b"x" * number for number in range(1, 9)}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with the source `imgs`, a table and an archive of the same files."""
    write_tree(tmp_path / "imgs", _TREE)
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(f"imgs/{name}" for name in _TREE))
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "imgs")
    (tmp_path / "existing").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("./imgs", "out/", "out/imgs-000000.tar"),
        ("imgs/", "existing", "existing/imgs-000000.tar"),
        ("list.csv", "out/", "out/list-000000.tar"),
        ("photos.zip", "out/", "out/photos-000000.tar"),
        (pd.DataFrame({"path": ["imgs/cat/1.txt"]}), "out/", "out/data-000000.tar"),
    ],
)
@pytest.mark.usefixtures("work")
def test_shards_in_a_folder_have_the_name_of_the_source(source: object, output: str, expected: str, work: Path) -> None:
    """The shards are in the folder, which is created, under the name of the folder, table or archive."""
    create(source, output, workers=0)
    assert (work / expected).is_file()


def test_a_note_names_the_shards(work: Path) -> None:
    """The command line prints the pattern; `--dry-run` does, too, and writes nothing."""
    note = "note: shards are named out/imgs-{000000..}.tar\n"
    assert note in typed("create", "imgs", "out/", "--dry-run").err
    assert not (work / "out").exists()
    assert note in typed("create", "imgs", "out/").err
    again = typed("create", "imgs", "out/")
    assert (again.code, "already exist" in again.err) == (5, True)


def test_each_split_has_its_name(work: Path) -> None:
    """With splits, the split name follows the name of the source."""
    create("imgs", "out/", split="train=0.5,val=0.5", workers=0)
    assert sorted(path.name for path in (work / "out").glob("*.json")) == ["imgs-train.json", "imgs-val.json"]


def test_a_reshard_keeps_the_name_of_the_dataset(work: Path) -> None:
    """`reshard` uses the dataset's name, and never writes over its source."""
    create("imgs", "out/", workers=0)
    for source in ("out/imgs.json", "out", "out/imgs-{000000..000000}.tar"):
        shutil.rmtree(work / "other", ignore_errors=True)
        reshard(source, "other/", workers=0)
        assert (work / "other/imgs-000000.tar").read_bytes() == (work / "out/imgs-000000.tar").read_bytes()
    ran = typed("reshard", "out/imgs.json", "out")
    assert (ran.code, "a shard of the source" in ran.err) == (5, True)


@pytest.mark.usefixtures("work")
def test_a_name_without_an_extension_is_no_folder() -> None:
    """A folder that does not exist must end in a slash; the message says so."""
    with pytest.raises(InvalidRequest, match=r"out: no file extension; expected .* or out/, a folder"):
        create("imgs", "out")
