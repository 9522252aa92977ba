from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
from typing import TYPE_CHECKING

import pytest

from tests.helpers import members, read_tree, typed

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"cat/1.jpg": b"one", "cat/1.json": b"{}", "cat/2.jpg": b"two"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with a tar, packed and not; temporary files go into `tmp` in it."""
    with tarfile.open(tmp_path / "s-000.tar", "w") as tar:
        for path, data in FILES.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (tmp_path / "s.tar.gz").write_bytes(gzip.compress((tmp_path / "s-000.tar").read_bytes()))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def _stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.mark.parametrize("file", ["s-000.tar", "s.tar.gz"])
def test_create(file: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tar from a command, or on standard input, is packed as the file that it is; no copy of it stays."""
    for source in (f"pipe:cat {file}", "-"):
        _stdin(monkeypatch, (place / file).read_bytes())
        assert typed("create", source, "new/o-{000..}.tar", "--overwrite", cwd=place).code == 0
        assert members(place / "new" / "o-000.tar") == [*FILES.items()]
    assert not read_tree(place / "tmp")
    _stdin(monkeypatch, b"s-000.tar\n")  # a list of paths stays one
    assert typed("create", "-", "list/o-{000..}.tar", cwd=place).code == 0
    assert [name for name, _ in members(place / "list" / "o-000.tar")] == ["s-000.tar"]


@pytest.mark.parametrize("words", [["verify"], ["inspect"], ["reshard", "new/o-{000..}.tar"]])
def test_shards(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard from a command, or on standard input, is read as a file is."""
    verb, *output = words
    for given in ("pipe:cat s-000.tar", "-"):
        _stdin(monkeypatch, (place / "s-000.tar").read_bytes())
        ran = typed(verb, given, *output, *(["--overwrite"] if output else []), cwd=place)
        assert (ran.code, "2 samples in 1 shard" in ran.out) == (0, True), ran
    assert not output or members(place / "new" / "o-000.tar") == [*FILES.items()]
    assert not read_tree(place / "tmp")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("pipe:cat s-000.tar; exit 3", "the command ends with the status 3"),
        ("pipe:true", "nothing; expected a tar"),
        ("pipe:echo text", "no tar, and no zip"),
        ("pipe:cat s-{000..001}.tar", "a range ({000..001}) in a command"),
    ],
)
def test_what_fails(command: str, found: str, place: Path) -> None:
    """A command that fails, or gives no shard, is a mistake of the user; nothing is written, and nothing stays."""
    ran = typed("reshard", command, "new/o-{000..}.tar", cwd=place)
    assert (ran.code, found in ran.err) == (2, True), ran
    assert not (place / "new").exists()
    assert not read_tree(place / "tmp")


def test_no_command_from_a_file(place: Path) -> None:
    """A dataset file that names a command runs none."""
    (place / "evil.json").write_text('{"shardlist": [{"url": "pipe:touch ran"}]}')
    assert typed("reshard", "evil.json", "new/o-{000..}.tar", cwd=place).code != 0
    assert typed("index", "pipe:touch ran", cwd=place).code == 2
    assert not (place / "ran").exists()
