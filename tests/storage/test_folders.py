"""Laws of folders that are written to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import OutputFailed
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from pathlib import Path


def test_two_make_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that another process makes at the same moment is there, and a file of its name is refused."""
    mkdir = os.mkdir

    def after_another(path: str) -> None:
        mkdir(path)
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", after_another)
    Folder(str(tmp_path / "a" / "b")).ready()
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputFailed, match="cannot write"):
        Folder(str(tmp_path / "file")).ready()
