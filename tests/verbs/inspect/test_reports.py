"""Pages, contact sheets and tables from Python, and what only the command line offered before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool import InvalidRequest, OutputExists
from tests.helpers import read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Return the dataset file of three samples, two of which have the same content."""
    source = write_tree(tmp_path / "in", {"a/0.txt": b"x", "a/1.txt": b"y", "b/2.txt": b"x"})
    return tmp_path / shardtool.create(source, tmp_path / "out-{0..}.tar", workers=0).dataset_file


@pytest.mark.parametrize("name", ["html", "table", "contact_sheet"])
def test_functions_write_what_the_command_line_writes(name: str, dataset: Path, tmp_path: Path) -> None:
    """The functions write the same files as `inspect`, and replace files only with `overwrite`."""
    function = getattr(shardtool, f"inspect_{name}")
    ending = {"html": "html", "table": "parquet", "contact_sheet": "png"}[name]
    result = function(dataset, tmp_path / f"one.{ending}")
    assert result == (3 if name == "table" else None)
    assert typed("inspect", dataset, f"--{name.replace('_', '-')}", tmp_path / f"two.{ending}").code == 0
    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()
    with pytest.raises(OutputExists):
        function(dataset, tmp_path / f"one.{ending}")
    function(dataset, tmp_path / f"one.{ending}", overwrite=True)


def test_a_contact_sheet_shows_one_dataset(dataset: Path, tmp_path: Path) -> None:
    """Several datasets are refused, with the function for several."""
    shardtool.create(tmp_path / "in", tmp_path / "more-{0..}.tar", workers=0)
    with pytest.raises(InvalidRequest, match="2 datasets; expected one dataset, or `inspect_html` for several"):
        shardtool.inspect_contact_sheet([dataset, tmp_path / "more.json"], tmp_path / "sheet.png")


def test_a_refused_report_or_sample_writes_nothing(dataset: Path, tmp_path: Path) -> None:
    """Both reports and all samples are checked before the first file is written."""
    page = tmp_path / "page.html"
    page.write_bytes(b"mine")
    before = read_tree(tmp_path)
    assert typed("inspect", dataset, "--html", page, "--contact-sheet", tmp_path / "sheet.png").code == 5
    ran = typed("inspect", dataset, "--show", "a/0", "--show", "unknown", "--extract", tmp_path / "files")
    assert (ran.code, ran.out) == (2, "")
    assert read_tree(tmp_path) == before
    write_tree(tmp_path / "files", {"b/2.txt": b"mine"})
    for words in (("--show", "a/0", "--show", "b/2"), ("--head", "9"), ("--where", "key > ''")):
        ran = typed("inspect", dataset, *words, "--extract", tmp_path / "files")
        assert (ran.code, ran.out, "b/2.txt: already exists." in ran.err) == (5, "", True), ran
        assert "or use --overwrite." in ran.err
    assert read_tree(tmp_path / "files") == {"b/2.txt": b"mine"}


def test_duplicates_and_repair(dataset: Path) -> None:
    """`find_duplicates` returns groups; `repair` repairs what `verify` reports."""
    (group,) = shardtool.find_duplicates(dataset).groups
    assert {sample.key for sample in group} == {"a/0", "b/2"}
    (dataset.parent / "out-0.index").unlink()
    assert not shardtool.verify(dataset, workers=0).sound
    assert shardtool.repair(dataset, workers=0).sound
    assert shardtool.verify(dataset, workers=0).sound
