"""Promises of the documents that no single module keeps."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, create

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ["CreateOptions", "create", "dry_run", "InvalidRequest"]


def members(shard: Path) -> dict[str, bytes]:
    """Return a shard's payloads by name."""
    with tarfile.open(shard) as tar:
        return {one.name: file.read() for one in tar if (file := tar.extractfile(one))}


@pytest.mark.parametrize("first", _NAMES)
def test_public_names_mean_the_same_in_any_order_of_import(first: str) -> None:
    """Whichever public name is imported first, `shardtool.create` is the function."""
    code = f"from shardtool import {first}; from shardtool import create; assert callable(create)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_sidecar_says_what_its_shard_is(tmp_path: Path) -> None:
    """A sidecar's key-value metadata holds version, name, size, checksum and plan of its shard."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_bytes(b"x")
    create(tmp_path / "in", f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=1))
    found = pq.read_metadata(tmp_path / "out-0.index").metadata or {}
    names = {b"shardtool." + name for name in (b"format_version", b"shard", b"size", b"crc32c", b"plan")}
    assert names <= set(found)
    assert found[b"shardtool.size"] == b"%d" % (tmp_path / "out-0.tar").stat().st_size


def _make_later(shard: Path) -> None:
    """Give a shard the time that it would have if its source had been old when the run began."""
    later = shard.stat().st_mtime_ns + 3600 * 10**9
    os.utime(shard, ns=(later, later))


def test_resume_notices_another_source_behind_the_same_path(tmp_path: Path) -> None:
    """Where a link above the source leads to another tree, `--resume` packs that tree, even if sizes are the same."""
    for version in ("v1", "v2"):
        (tmp_path / version / "data").mkdir(parents=True)
        (tmp_path / version / "data" / "0.txt").write_text(version)
    link, output = tmp_path / "current", f"{tmp_path}/out-{{0..}}.tar"
    link.symlink_to("v1")
    create(link / "data", output, CreateOptions(workers=1))
    _make_later(tmp_path / "out-0.tar")
    link.unlink()
    link.symlink_to("v2")
    create(link / "data", output, CreateOptions(workers=1, if_exists="resume"))
    assert members(tmp_path / "out-0.tar") == {"0.txt": b"v2"}


def test_resume_notices_another_folder_behind_the_same_link(tmp_path: Path) -> None:
    """Where a link in the source leads through a folder that was replaced, `--resume` packs what it leads to now."""
    source, store = tmp_path / "in", tmp_path / "in" / "store"
    for version in ("current", "v2"):
        (store / version).mkdir(parents=True)
        (store / version / "0.txt").write_text(f"{version:7}")
    (source / "x").mkdir()
    (source / "x" / "0.txt").symlink_to("../store/current/0.txt")
    output = f"{tmp_path}/out-{{0..}}.tar"
    create(source, output, CreateOptions(workers=1, include=("x/*",)))
    _make_later(tmp_path / "out-0.tar")
    (store / "current").rename(store / "old")
    (store / "v2").rename(store / "current")
    create(source, output, CreateOptions(workers=1, include=("x/*",), if_exists="resume"))
    assert members(tmp_path / "out-0.tar") == {"x/0.txt": b"v2     "}


def test_a_sample_is_left_out_whole(tmp_path: Path) -> None:
    """Under `--on-error skip`, a sample with a field that cannot be packed is left out with all its fields."""
    source = tmp_path / "in"
    source.mkdir()
    for name in ("1.json", "2.jpg", "2.json"):
        (source / name).write_text("{}")
    (source / "1.jpg").symlink_to("nothing")
    result = create(source, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=1, on_error="skip"))
    assert set(members(tmp_path / "out-0.tar")) == {"2.jpg", "2.json"}
    assert result.samples == 1
