"""Laws of folders that are written to."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from shardtool.dataset.find import find_dataset
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.source.source_checks import check_folder
from shardtool.storage.folders import open_folder
from shardtool.storage.remote_folder import RemoteFolder
from shardtool.storage.staging import Folder, local_folder

if TYPE_CHECKING:
    from pathlib import Path


def test_two_make_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that another process makes at the same moment is there, and a file of its name is refused."""
    mkdir = os.mkdir

    def after_another(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", after_another)
    Folder(str(tmp_path / "a" / "b")).ready()
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    for name in ("file", "file/below/it"):
        with pytest.raises(OutputExists, match="file: a file; expected a folder"):
            Folder(str(tmp_path / name)).ready()


def test_a_text_means_a_folder() -> None:
    """A path is a folder of the file system, an address a prefix of a store; both are values."""
    assert open_folder("a/b") == Folder("a/b")
    assert open_folder("") == Folder("")
    assert open_folder("s3://b/a #%20") == RemoteFolder("s3://b/a #%20")
    assert open_folder("gs://b").full_path("x y") == "gs://b/x y"


@pytest.mark.parametrize("address", ["https://h/a", "ftp://h/a", "s3://b/a//c", "s3://b/../c", "s3://", "az://"])
def test_an_address_that_nothing_is_written_to(address: str) -> None:
    """What cannot be written to is refused before anything is asked of it."""
    with pytest.raises(InvalidRequest):
        open_folder(address)


def test_what_goes_to_folders_only() -> None:
    """Where a file system is needed, an address is refused, and not taken for the name of a folder."""
    assert local_folder("a") == Folder("a")
    with pytest.raises(InvalidRequest, match="a local folder"):
        local_folder("s3://b/a")


@pytest.mark.parametrize("path", ["s3:/b/k", "s3:b/k", "S3:/b/k", "gs:/b/k"])
def test_a_torn_address_is_no_folder(path: str) -> None:
    """Nothing is written into a folder called `s3:`, and the address that was meant is named; `./s3:` is a folder."""
    meant = f"{path[:2].lower()}://b/k"
    with pytest.raises(InvalidRequest, match=re.escape(f"Did you mean {meant}?")):
        open_folder(path)
    for ask in (find_dataset, check_folder):
        with pytest.raises(InvalidRequest, match="Did you mean"):
            ask(f"{path}/x.json")
    assert open_folder(f"./{path}") == Folder(f"./{path}")
    assert open_folder("s3") == Folder("s3")
