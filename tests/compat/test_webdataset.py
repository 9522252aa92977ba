"""The writer with webdataset's arguments; tests/clients compares it with webdataset's own writer."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shardtool import InvalidRequest, OutputExists, verify
from shardtool.compat.webdataset import ShardWriter
from tests.helpers import read_tree

if TYPE_CHECKING:
    from pathlib import Path


def _pattern(folder: Path) -> str:
    return str(folder / "out-%03d.tar")


def test_start_shard_and_post(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shards start at the requested number, `post` receives each one once it exists, and names are printed."""
    posted: list[tuple[str, bool]] = []
    with ShardWriter(
        _pattern(tmp_path), 2.0, post=lambda path: posted.append((path, tarfile.is_tarfile(path))), start_shard=4
    ) as sink:
        for n in range(5):
            sink.write({"__key__": f"{n}", "cls": n, "npy": np.arange(n), "_meta": "left out", "txt": "ü"})
        assert (sink.total, sink.shard, sink.count) == (5, 7, 1)
    names = [str(tmp_path / f"out-{n:03}.tar") for n in (4, 5, 6)]
    assert posted == [(name, True) for name in names]
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == names
    with tarfile.open(names[0]) as tar:
        assert tar.getnames() == ["0.cls", "0.npy", "0.txt", "1.cls", "1.npy", "1.txt"]
    assert verify(sink.dataset_file).samples == 5


def test_existing_shards_are_kept(tmp_path: Path) -> None:
    """A second run is refused unless it overwrites the shards; then `post` receives the shards at the end."""
    for overwrite in (False, True):
        read: list[bytes] = []

        def post(path: str, read: list[bytes] = read) -> None:
            read.append(_read(path))

        with ShardWriter(_pattern(tmp_path), maxcount=1, verbose=0, post=post, overwrite=overwrite) as sink:
            for n in range(2):
                sink.write({"__key__": f"{n}", "txt": f"{overwrite}"})
        assert [str(overwrite).encode() in data for data in read] == [True, True]
    with pytest.raises(OutputExists):
        ShardWriter(_pattern(tmp_path))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opener": open}, "opener"), ({"compress": True}, "no compression"),
        ({"mtime": 5}, "0, so that equal samples"),
        ({"user": "me"}, "no user"), ({"mode": 0o600}, "0644"),
        ({"format": "GNU_FORMAT"}, "ustar"), ({"other": 1}, "other"),
        ({"encoder": 3}, "encoder"), ({"maxcount": 0}, "maxcount: 0; expected a number of at least 1"),
        ({"maxsize": float("nan")}, "maxsize: nan"), ({"maxcount": "5"}, "maxcount: '5'"),
    ],
)  # fmt: skip
def test_unsupported_arguments_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """An argument that shardtool's shards do not support is refused, with the reason."""
    with pytest.raises(InvalidRequest, match=message):
        ShardWriter(_pattern(tmp_path), **options)
    assert read_tree(tmp_path) == {}


def test_values_without_an_encoder_are_refused(tmp_path: Path) -> None:
    """A value without an encoder for its extension is refused, and no file is written."""
    with pytest.raises(InvalidRequest, match="no encoder for the extension"):
        _write_one(tmp_path, {"__key__": "a", "xyz": 3})
    with pytest.raises(InvalidRequest, match="0 to 1"):
        _write_one(tmp_path, {"__key__": "a", "png": np.full((2, 2), 3.0)})
    assert read_tree(tmp_path) == {}


def _write_one(folder: Path, sample: dict[str, object]) -> None:
    with ShardWriter(_pattern(folder), verbose=0) as sink:
        sink.write(sample)
