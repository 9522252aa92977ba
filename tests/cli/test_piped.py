from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
from typing import TYPE_CHECKING

import pytest

from tests.helpers import members, read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"cat/1.jpg": b"one", "cat/1.json": b"{}", "cat/2.jpg": b"two"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a tar, uncompressed and compressed; temporary files are written to its folder `tmp`."""
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
    """A tar from a command, or on standard input, is packed like a file; no temporary copy remains."""
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
    """A shard from a command, or on standard input, is read like a file."""
    verb, *output = words
    for source in ("pipe:cat s-000.tar", "-"):
        _stdin(monkeypatch, (place / "s-000.tar").read_bytes())
        ran = typed(verb, source, *output, *(["--overwrite"] if output else []), cwd=place)
        assert (ran.code, "2 samples in 1 shard" in ran.out) == (0, True), ran
    assert not output or members(place / "new" / "o-000.tar") == [*FILES.items()]
    assert not read_tree(place / "tmp")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("pipe:cat s-000.tar; exit 3", "the command failed with exit code 3"),
        ("pipe:exit 3", "the command failed with exit code 3"),
        ("pipe:true", "no data; expected a tar"),
        ("pipe:echo text", "neither a tar nor a zip"),
        ("pipe:cat s-{000..001}.tar", "a range ({000..001}) in a command"),
    ],
)
def test_a_failing_command(command: str, message: str, place: Path) -> None:
    """A command that fails, or prints no shard, is an invalid request; no file is written."""
    ran = typed("reshard", command, "new/o-{000..}.tar", cwd=place)
    assert (ran.code, message in ran.err) == (2, True), ran
    assert not (place / "new").exists()
    assert not read_tree(place / "tmp")


@pytest.mark.parametrize(
    "words", [["diff", "-", "-"], ["create", "-", "new/o-{000..}.tar", "--keys-from", "-"], ["verify", "-", "-"]]
)
def test_standard_input_is_read_once(words: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input cannot be two inputs."""
    _stdin(monkeypatch, (place / "s-000.tar").read_bytes())
    ran = typed(*words, cwd=place)
    assert (ran.code, "standard input is named twice" in ran.err) == (2, True), ran


def test_no_command_from_a_file(place: Path) -> None:
    """A command in a dataset file is not run."""
    (place / "evil.json").write_text('{"shardlist": [{"url": "pipe:touch ran"}]}')
    assert typed("reshard", "evil.json", "new/o-{000..}.tar", cwd=place).code != 0
    assert typed("index", "pipe:touch ran", cwd=place).code == 2
    assert not (place / "ran").exists()


@pytest.mark.parametrize("lists", ["absolute", "upward", "both"])
def test_typed_paths_lead_anywhere(lists: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths on standard input may leave the current folder: keys count from their common folder, or from `--root`."""
    names = ["cat/1.jpg", "cat/2.jpg", "dog-a/1.jpg"]
    write_tree(tmp_path, {**{f"photos/{name}": name.encode() for name in names}, "work/own/x.jpg": b"x"})
    real, upward = [f"{tmp_path}/photos/{name}" for name in names], [f"../photos/{name}" for name in names]
    paths = {"absolute": real, "upward": upward, "both": [real[0], *upward[1:], "own/x.jpg"]}[lists]
    keys = ["cat/1", "cat/2", "dog-a/1"]
    if lists == "both":
        keys = [*(f"photos/{key}" for key in keys), "work/own/x"]

    def run(*words: str) -> tuple[int, str]:
        _stdin(monkeypatch, "\n".join(paths).encode())
        ran = typed(*words, "--workers", "0", cwd=tmp_path / "work")
        return ran.code, ran.err

    code, output = run("create", "-", "out/o-{0..}.tar")
    assert (code, "paths are relative to" in output) == (0, True)
    assert [name for name, _ in members(tmp_path / "work/out/o-0.tar")] == [f"{key}.jpg" for key in keys]
    assert run("verify", "out", "--source", "-")[0] == 0
    assert str(tmp_path) not in (tmp_path / "work/out/o.json").read_text(encoding="ascii")
    assert run("create", "-", "named/o-{0..}.tar", "--root", str(tmp_path))[0] == (0 if lists == "absolute" else 2)
    if lists == "absolute":
        assert [name for name, _ in members(tmp_path / "work/named/o-0.tar")] == [f"photos/{name}" for name in names]


def test_folders_in_a_list_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`find FOLDER` also prints folders, which are not samples, for any name; a missing path is an error."""
    write_tree(tmp_path, {"photos/v1.0/a.jpg": b"a", "photos/b/c.png": b"c", "work/x": b""})
    (tmp_path / "photos" / "empty").mkdir()
    lists = ["", "/v1.0", "/v1.0/a.jpg", "/b", "/b/c.png", "/empty"]
    _stdin(monkeypatch, "".join(f"{tmp_path}/photos{path}\n" for path in lists).encode())
    assert typed("create", "-", "out/o-{0..}.tar", "--workers", "0", cwd=tmp_path / "work").code == 0
    assert members(tmp_path / "work/out/o-0.tar") == [("v1.0/a.jpg", b"a"), ("b/c.png", b"c")]
    _stdin(monkeypatch, f"{tmp_path}/photos/gone\n{tmp_path}/photos/b/c.png\n".encode())
    ran = typed("create", "-", "new/o-{0..}.tar", "--workers", "0", cwd=tmp_path / "work")
    assert (ran.code, "a name without an extension" in ran.err) == (2, True)


def test_paths_in_a_table_stay_below_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables may be untrusted: their paths may leave the root only with `--allow-outside`, piped or not."""
    write_tree(tmp_path, {"photos/1.jpg": b"x", "work/list.csv": b"path,label\n../photos/1.jpg,a\n"})
    _stdin(monkeypatch, (tmp_path / "work/list.csv").read_bytes())
    for source in ("-", "list.csv"):
        ran = typed("create", source, "out/o-{0..}.tar", cwd=tmp_path / "work")
        assert (ran.code, "a path that leaves the root" in ran.err) == (2, True)
