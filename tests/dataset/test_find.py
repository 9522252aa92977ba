from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, create
from shardtool.dataset.find import find_dataset
from shardtool.dataset.shard_file import open_shard
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.storage.files import read_small
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dataset(small: Path, tmp_path: Path) -> Path:
    """Return a folder with four shards."""
    create(small, f"{tmp_path}/out/out-{{000..}}.tar", CreateOptions(max_count=3, workers=0))
    return tmp_path / "out"


def test_every_way_to_name_a_dataset(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset file, a pattern, a glob, the folder and a list of shards name the same shards, in order."""
    names = [f"{dataset}/out-{number:03}.tar" for number in range(4)]
    arguments: list[str | list[str]] = [
        f"{dataset}/out.json", f"{dataset}/out-{{000..003}}.tar", f"{dataset}/out-<000..003>.tar",
        f"{dataset}/out-{{000..}}.tar", f"{dataset}/out-%03d.tar", f"{dataset}/*.tar", str(dataset), f"{dataset}/",
        names,
    ]  # fmt: skip
    for argument in arguments:
        stored = find_dataset(argument)
        assert [os.path.normpath(shard) for shard in stored.paths] == names, argument
        assert os.path.normpath(stored.dataset_file or "") == f"{dataset}/out.json", argument
    monkeypatch.chdir(dataset)
    assert find_dataset("out.json").paths == tuple(f"out-{number:03}.tar" for number in range(4))


def test_messages_name_a_single_shard(dataset: Path) -> None:
    """Without a dataset file, messages name the only shard, or else the folder."""
    (dataset / "out.json").unlink()
    assert find_dataset(f"{dataset}/out-001.tar").where == f"{dataset}/out-001.tar"
    assert find_dataset(f"{dataset}/out-{{000..001}}.tar").where == str(dataset)


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    """`s-10.tar` comes after `s-9.tar`."""
    write_tree(tmp_path, {f"s-{number}.tar": b"" for number in (10, 9, 100)})
    assert [os.path.basename(path) for path in find_dataset(tmp_path).paths] == ["s-9.tar", "s-10.tar", "s-100.tar"]


@pytest.mark.parametrize("name", ["nothing.tar", "nothing", "no-{0..3}.tar", "no-*.tar", "out.json", "pipe:cat x",
                                  "httsp://h/x.tar", "http://", "{a,b}.tar", "x\0.tar"])  # fmt: skip
def test_a_missing_name_is_a_usage_error(name: str, tmp_path: Path) -> None:
    """A name without files is a usage error, in any form; it is never executed or fetched."""
    with pytest.raises((InvalidRequest, ValueError)) as caught:
        find_dataset(name if "://" in name or ":" in name else f"{tmp_path}/{name}")
    assert isinstance(caught.value, InvalidRequest) or "\0" in name


@pytest.mark.parametrize("url", ["/etc/passwd", "../x.tar", "a/../../x.tar", "pipe:cat /etc/passwd", "http://host/x.tar",
                                 "x\0.tar", ""])  # fmt: skip
def test_names_outside_the_folder_are_rejected(url: str, tmp_path: Path) -> None:
    """A dataset file or wids index with names outside its folder is rejected."""
    document = {"shardlist": [{"url": url, "nsamples": 1}]}
    (tmp_path / "out.json").write_text(json.dumps(document), encoding="ascii")
    with pytest.raises(CorruptShard):
        find_dataset(tmp_path / "out.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", "nothing", "[" * 100_000, '{"shardlist": 5}', '{"shardlist": [5]}',
                                  '{"shardlist": [{"url": 1e999}]}', "9" * 5000])  # fmt: skip
def test_other_json_is_not_a_dataset_file(text: str, tmp_path: Path) -> None:
    """Other JSON is reported as not a dataset file, however deeply nested."""
    (tmp_path / "out.json").write_text(text, encoding="ascii")
    with pytest.raises((CorruptShard, InvalidRequest)):
        find_dataset(tmp_path / "out.json")


def test_special_files_are_rejected_without_waiting(tmp_path: Path) -> None:
    """A FIFO, a folder, a link to a device and a broken link are not shards, compressed or not, and nothing blocks."""
    os.mkfifo(tmp_path / "a.tar")
    os.mkfifo(tmp_path / "a.tar.gz")
    (tmp_path / "b.tar").mkdir()
    (tmp_path / "c.tar").symlink_to("/dev/zero")
    (tmp_path / "c.tar.gz").symlink_to("nothing")
    for name in ("a.tar", "a.tar.gz", "b.tar", "c.tar", "c.tar.gz", "none.tar", "none.tar.zst"):
        with pytest.raises(CorruptShard):
            open_shard(str(tmp_path / name))
    with pytest.raises(OSError, match="regular"):
        read_small(str(tmp_path / "a.tar"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("none.tar", "no such file"),
        ("none-%03d.tar", "no shards match this pattern"),
        ("none-{0..3}.tar", "no shards match this pattern"),
        ("none", "no such file or folder"),
    ],
)
def test_a_missing_file_is_not_called_a_pattern(name: str, problem: str, tmp_path: Path) -> None:
    """The message for a missing file mentions a pattern only if the user gave one."""
    with pytest.raises(InvalidRequest) as caught:
        find_dataset(tmp_path / name)
    assert caught.value.found == problem
