"""Output folders."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from shardtool.dataset.find import find_dataset
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.source.source_checks import check_folder
from shardtool.storage.files import is_folder
from shardtool.storage.folders import open_folder
from shardtool.storage.remote_folder import RemoteFolder
from shardtool.storage.staging import Folder, local_folder
from tests.servers.bucket import Bucket, served

if TYPE_CHECKING:
    from pathlib import Path


def test_two_processes_create_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that another process creates at the same moment is used; a file of that name is refused."""
    mkdir = os.mkdir

    def after_another(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", after_another)
    Folder(str(tmp_path / "a" / "b")).create()
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    for name in ("file", "file/below/it"):
        with pytest.raises(OutputExists, match="file: a file; expected a folder"):
            Folder(str(tmp_path / name)).create()


def test_open_folder_accepts_paths_and_addresses() -> None:
    """A path is a local folder, an address is a prefix of a store; both are values."""
    assert open_folder("a/b") == Folder("a/b")
    assert open_folder("") == Folder("")
    assert open_folder("s3://b/a #%20") == RemoteFolder("s3://b/a #%20")
    assert open_folder("gs://b").full_path("x y") == "gs://b/x y"


@pytest.mark.parametrize("address", ["https://h/a", "ftp://h/a", "s3://b/a//c", "s3://b/../c", "s3://", "az://"])
def test_read_only_addresses_are_refused(address: str) -> None:
    """An address that cannot be written to is refused before any request."""
    with pytest.raises(InvalidRequest):
        open_folder(address)


def test_local_folder_refuses_an_address() -> None:
    """Where a local folder is needed, an address is refused and not used as a folder name."""
    assert local_folder("a") == Folder("a")
    with pytest.raises(InvalidRequest, match="a local folder"):
        local_folder("s3://b/a")


@pytest.mark.parametrize("path", ["s3:/b/k", "s3:b/k", "S3:/b/k", "gs:/b/k"])
def test_a_mistyped_address_is_refused(path: str) -> None:
    """`s3:/b/k` is refused with a hint at the intended address, without secrets; `./s3:` is a folder."""
    meant = f"{path[:2].lower()}://b/k"
    with pytest.raises(InvalidRequest, match=re.escape(f"Did you mean {meant}?")):
        open_folder(path)
    for ask in (find_dataset, check_folder):
        with pytest.raises(InvalidRequest, match="Did you mean"):
            ask(f"{path}/x.json")
    with pytest.raises(InvalidRequest) as caught:
        open_folder("https:/user:secret@h/x?token=secret")
    assert "https:/h/x" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert open_folder(f"./{path}") == Folder(f"./{path}")
    assert open_folder("s3") == Folder("s3")


def test_one_request_tells_whether_a_prefix_is_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find out whether a prefix has objects, the first page of its listing suffices, however many objects it has."""
    bucket = Bucket()
    bucket.objects = {f"many/{number:04}": b"x" for number in range(3500)} | {"empty/": b"", "manya": b"x"}
    with served(bucket):
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        assert [is_folder(f"s3://b/{name}") for name in ("many", "many/", "empty", "man", "manya")] == [
            True, True, False, False, False,
        ]  # fmt: skip
    assert bucket.listings == 5
