"""An output replaces only regular files, and a report only a report of its kind, in every verb."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardtool import OutputExists, ShardWriter
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable

HTML, SHEET, TABLE, CSV = (("inspect", "ds", option) for option in ("--html", "--contact-sheet", "--table", "--table"))
CREATE = ("create", "src", "new/out-{000..}.tar", "--max-count", "2", "--on-error", "skip", "--overwrite")
RESHARD = ("reshard", "ds", "new/out-{000..}.tar", "--max-count", "2", "--overwrite")
COPY = ("copy", "ds/out.json", "new", "--overwrite")
OUTPUTS = [
    *((f"new/{name}", CREATE) for name in ("out-000.tar", "out-001.index", "out.json", "out.skipped", ".out.lock")),
    *((f"new/{name}", CREATE) for name in ("out-007.tar", ".out-000.tar.part")),
    *((f"new/{name}", RESHARD) for name in ("out-000.tar", "out-001.index", "out.json")),
    *((f"new/{name}", COPY) for name in ("out-000.tar", "out-001.index", "out.json")),
    ("new/x.html", (*HTML, "new/x.html", "--overwrite")),
    ("new/x.png", (*SHEET, "new/x.png", "--overwrite")),
    ("new/x.parquet", (*TABLE, "new/x.parquet", "--overwrite")),
    ("new/x.csv", (*CSV, "new/x.csv", "--overwrite")),
    ("new/x.plan", ("create", "src", "o-{000..}.tar", "--plan-only", "new/x.plan", "--overwrite")),
    ("new/a.txt", ("inspect", "ds", "--sample", "0", "--extract", "new", "--overwrite")),
    ("ds/out-000.idx", ("index", "ds", "--export", "dali-webdataset", "--overwrite")),
    ("ds/out-000.tar.idx", ("index", "ds", "--export", "energon", "--overwrite")),
    ("ds/out-000.index", ("index", "ds", "--overwrite")),
    ("ds/out-000.index", ("verify", "ds", "--repair")),
    ("ds/out.json", ("index", "ds", "--overwrite")),
]
REPORTS = [(name, words) for name, words in OUTPUTS if name.startswith("new/x.")]


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # /dev/null's numbers, in a folder of ours


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _link_to_fifo(path: Path) -> None:
    os.mkfifo("fifo")
    path.symlink_to(Path("fifo").absolute())


KINDS: dict[str, Callable[[Path], None]] = {
    "device": _device,
    "fifo": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link": _link_to_fifo,
}


@pytest.fixture(autouse=True)
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a source and a dataset in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_tree(Path("src"), {f"{name}.txt": name.encode() for name in "abcde"})
    assert typed("create", "src", "ds/out-{000..}.tar", "--max-count", "2").code == 0
    Path("new").mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "words"), OUTPUTS, ids=lambda one: one if isinstance(one, str) else one[0])
def test_only_files_are_replaced(name: str, words: tuple[str, ...], kind: str) -> None:
    """A device, FIFO, socket, folder or link to one in place of an output is not touched: exit code 5."""
    if kind == "device" and os.geteuid():
        pytest.skip("only root makes devices")
    path = Path(name)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    before = os.lstat(path)
    ran = typed(*words)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert ran.code == 5
    assert path.name in ran.err


@pytest.mark.parametrize(("name", "words"), REPORTS, ids=lambda one: one if isinstance(one, str) else one[0])
def test_a_report_replaces_only_its_kind(name: str, words: tuple[str, ...]) -> None:
    """`--overwrite` replaces a report of the same option or an empty file, but no other file and no link."""
    path, mine = Path(name), Path("mine")
    for content in (b"", path.read_bytes() if typed(*words).code == 0 else b"no report"):
        path.write_bytes(content)
        assert typed(*words).code == 0
    mine.write_bytes(path.read_bytes())
    path.write_bytes(b"all that I wrote this year")
    refused = typed(*words)
    assert (refused.code, path.read_bytes()) == (5, b"all that I wrote this year"), refused
    path.unlink()
    path.symlink_to(mine.absolute())
    assert typed(*words).code == 5
    assert path.is_symlink()


@pytest.mark.parametrize("name", ["out-000.tar", ".out.journal", ".out.lock"])
def test_shard_writer_replaces_only_files(name: str) -> None:
    """`ShardWriter` follows the same rule for all its files."""
    os.mkfifo(f"new/{name}")
    with pytest.raises(OutputExists), ShardWriter("new/out-{000..}.tar", overwrite=True) as writer:
        writer.write({"__key__": "a", "txt": b"x"})
    assert stat.S_ISFIFO(os.lstat(f"new/{name}").st_mode)
