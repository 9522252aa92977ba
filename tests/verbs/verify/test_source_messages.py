"""Laws of messages about an invalid source: they name the problem and fit the verb."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source `imgs`, its dataset, and files that are not its source."""
    folder = tmp_path_factory.mktemp("packed")
    write_tree(folder, {"imgs/a.txt": b"a", "imgs/b.txt": b"b", "coco.json": b"{}", "notes.docx": b"x"})
    assert typed("create", "imgs", "o/o-{0..}.tar", "--workers", "0", cwd=folder).code == 0
    assert typed("create", "imgs", "other/x-{0..}.tar", "--workers", "0", cwd=folder).code == 0
    return folder


@pytest.fixture
def place(packed: Path, tmp_path: Path) -> Path:
    """Copy that folder, because some tests change it."""
    return shutil.copytree(packed, tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize(
    "source", ["o", "o/o.json", "other", "other/x-0.tar", "nowhere", "nowhere.json", "coco.json", "notes.docx"]
)
def test_an_invalid_source_is_refused_with_advice(source: str, place: Path) -> None:
    """A dataset, a file and a missing name are refused with advice that fits `verify`."""
    ran = typed("verify", "o", "--source", source, "--workers", "0", cwd=place)
    assert (ran.code, ran.out) == (2, "")
    assert "Pass the source of the dataset to --source. The dataset file records: create imgs." in ran.err
    assert "reshard" not in ran.err
    assert "--include" not in ran.err


def test_the_source_may_contain_the_dataset(place: Path) -> None:
    """The source is compared even if the dataset, also of one shard, is inside."""
    assert typed("create", "imgs", "imgs/in-{0..}.tar", "--workers", "0", cwd=place).code == 0
    assert typed("verify", "imgs/in.json", "--source", "imgs", "--workers", "0", cwd=place).code == 0


@pytest.mark.parametrize("damage", [slice(0, 700), slice(0, -1)])
def test_a_damaged_dataset_file_is_reported_as_damaged(damage: slice, place: Path) -> None:
    """A truncated dataset file is reported as damaged, with its fix; JSON files of other tools are not."""
    file = place / "o/o.json"
    file.write_bytes(file.read_bytes()[damage])
    for words in (["verify", "o/o.json"], ["copy", "o/o.json", "c"], ["reshard", "o/o.json", "r/r-{0..}.tar"]):
        ran = typed(*words, "--workers", "0", cwd=place)
        assert ran.code in (3, 4)
        assert "not a dataset file" not in ran.out + ran.err
    assert "coco.json: not a dataset file" in typed("verify", "coco.json", cwd=place).err


@pytest.mark.parametrize("dataset", ["o", "o/o.json", "o/*.json", "o/*.tar", "o/o-{0..}.tar"])
def test_reshard_onto_its_source_is_refused(dataset: str, place: Path) -> None:
    """Shards are not replaced by their own reshard, however they are named, and no message advises it."""
    for words, code in (([], 5), (["--overwrite"], 2), (["--resume"], 2)):
        ran = typed("reshard", dataset, "o/o-{0..}.tar", "--workers", "0", *words, cwd=place)
        assert (ran.code, "a shard of the source" in ran.err, "or --overwrite" in ran.err) == (code, True, False)


def test_reshard_onto_another_dataset_names_overwrite(place: Path) -> None:
    """The dataset of another run may be replaced, and the message says how."""
    ran = typed("reshard", "o", "other/x-{0..}.tar", "--workers", "0", cwd=place)
    assert (ran.code, "or replace them with --overwrite." in ran.err) == (5, True)


def test_copy_without_a_destination_is_refused(place: Path) -> None:
    """With one argument, the error names the missing destination."""
    ran = typed("copy", "o/o.json", cwd=place)
    assert (ran.code, "DEST: not given" in ran.err, "Missing argument" in ran.err) == (2, True, False)


def test_fields_that_differ_only_in_case_name_both_files(place: Path) -> None:
    """The error names both files, and an option of the verb that removes one of the fields."""
    write_tree(place / "twins", {"c/a.jpg": b"1", "c/a.JPG": b"2"})
    assert typed("create", "twins", "t/t-{0..}.tfrecord", "--workers", "0", cwd=place).code == 0
    for words in (("create", "twins", "u/t-{0..}.tar"), ("reshard", "t", "v/t-{0..}.tar")):
        ran = typed(*words, "--workers", "0", cwd=place)
        assert (ran.code, "fields that differ only in case: c/a, of c/a.JPG and c/a.jpg" in ran.err) == (2, True)
        assert "Rename or exclude one of each with --fields." in ran.err
        assert typed(*words, "--workers", "0", "--fields", "-JPG", cwd=place).code == 0
