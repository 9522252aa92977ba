"""Files that change while they are packed, and get their old modification time back."""

from __future__ import annotations

import os
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, create
from shardtool.errors import SampleFailed
from shardtool.storage import files
from shardtool.write import tar_packer
from shardtool.write.task import BUFFER_SIZE
from tests.stored import contents, sound

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD_NS = 10**18
SIZES = {"small": 9000, "large": 3 * BUFFER_SIZE}


def _rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"n" * path.stat().st_size)
    os.utime(path, ns=(OLD_NS, OLD_NS))


def _link(path: Path) -> None:
    folder = path.parents[1] / "links"
    folder.mkdir(exist_ok=True)
    (folder / str(time.monotonic_ns())).hardlink_to(path)


def _change_during_reads(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None], times: int) -> None:
    """Call `change` in the first `times` reads, after half of the requested bytes."""
    remaining, readv, preadv = [times], os.readv, os.preadv

    def read(real_read: Callable[..., int], fd: int, views: list[memoryview], *offset: int) -> int:
        if not remaining[0] or len(views[0]) < SIZES["small"]:  # small reads only measure how long opening takes
            return real_read(fd, views, *offset)
        remaining[0] -= 1
        size = real_read(fd, [views[0][: len(views[0]) // 2]], *offset)
        time.sleep(0.02)  # the file system updates its clock in steps
        change()
        return size

    for module in (files, tar_packer):
        monkeypatch.setattr(module, "_readv", lambda fd, views: read(readv, fd, views))
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: read(preadv, fd, views, offset))


@pytest.fixture(name="source", params=SIZES)
def _source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a folder with one file."""
    path = tmp_path / "in/x.bin"
    path.parent.mkdir()
    path.write_bytes(b"o" * SIZES[request.param])
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


def _pack(source: Path, ending: str, options: CreateOptions) -> bytes:
    """Pack a source with one sample and one field; return the field."""
    folder = source.parent / "out"
    create(source, f"{folder}/x-{{000..}}.{ending}", options)
    [sample] = contents(sound(folder / "x.json")).values()
    return sample["bin"]


ONE = CreateOptions(workers=0)


@pytest.mark.parametrize("change", [_rewrite, _link])
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_a_file_that_changes_is_read_again(
    ending: str, change: Callable[[Path], None], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard contains one version of a file, even if the modification time hides a change."""
    _change_during_reads(monkeypatch, lambda: change(source), times=1)
    expected = (b"n" if change is _rewrite else b"o") * source.stat().st_size
    assert _pack(source.parent, ending, ONE) == expected


def test_a_file_behind_a_link_is_read_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file behind a symbolic link is also read again, although the listing cannot record when it changed."""
    links = tmp_path / "other"
    links.mkdir()
    (links / "x.bin").symlink_to(source)
    _change_during_reads(monkeypatch, lambda: _rewrite(source), times=1)
    assert _pack(links, "tar", CreateOptions(workers=0, symlinks="follow")) == b"n" * source.stat().st_size


def test_a_file_that_changes_during_every_read_fails(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that never stops changing fails after a few reads, with its path."""
    _change_during_reads(monkeypatch, lambda: _rewrite(source), times=100)
    with pytest.raises(SampleFailed, match=r"in/x\.bin: changed while it was packed"):
        _pack(source.parent, "tar", ONE)


def test_an_archive_that_changes_is_read_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of a tar are packed from one version of the tar."""
    archive = tmp_path / "in.tar"
    for text in (b"n", b"o"):
        source.write_bytes(text * source.stat().st_size)
        with tarfile.open(tmp_path / f"{text.decode()}.tar", "w") as tar:
            tar.add(source, "x.bin")
    archive.write_bytes((tmp_path / "o.tar").read_bytes())
    os.utime(archive, ns=(OLD_NS, OLD_NS))

    def change() -> None:
        with archive.open("r+b") as file:
            file.write((tmp_path / "n.tar").read_bytes())
        os.utime(archive, ns=(OLD_NS, OLD_NS))

    pack = files.LocalFile.read_into
    changes = [change]

    def read_into(file: files.LocalFile, into: memoryview, offset: int) -> int:
        half = len(into) // 2
        size = pack(file, into[:half], offset)
        if changes:
            time.sleep(0.02)
            changes.pop()()
        return size + pack(file, into[half:], offset + half)

    monkeypatch.setattr(files.LocalFile, "read_into", read_into)
    assert _pack(archive, "tar", ONE) == b"n" * source.stat().st_size
    assert not changes
