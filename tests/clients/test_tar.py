from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.packed import Packed

pytestmark = pytest.mark.clients
UTF8 = os.environ | {"LC_ALL": "C.UTF-8"}


def _is_gnu(program: str) -> bool:
    path = shutil.which(program)
    return bool(path) and b"GNU tar" in subprocess.run([program, "--version"], capture_output=True, check=True).stdout


GNU_TAR = next((program for program in ("gtar", "tar") if _is_gnu(program)), "")
BSD_TAR = shutil.which("bsdtar") or ""
PROGRAMS = [
    pytest.param(GNU_TAR, id="gnu", marks=pytest.mark.skipif(not GNU_TAR, reason="GNU tar is not installed")),
    pytest.param(BSD_TAR, id="bsd", marks=pytest.mark.skipif(not BSD_TAR, reason="bsdtar is not installed")),
]


@pytest.fixture(params=["photos", "names", "long_names"])
def packed(request: pytest.FixtureRequest) -> Packed:
    """Yield each dataset."""
    found: Packed = request.getfixturevalue(request.param)
    return found


def _files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_tar_programs_extract_the_source(packed: Packed, program: str, tmp_path: Path) -> None:
    """A tar program extracts all shards into the source's files, byte for byte, and complains of nothing."""
    for shard in packed.shards:
        done = subprocess.run([program, "-xf", str(shard)], cwd=tmp_path, env=UTF8, capture_output=True, check=True)
        assert (done.stdout, done.stderr) == (b"", b"")
    assert _files_below(tmp_path) == dict(packed.members)


@pytest.mark.skipif(not GNU_TAR, reason="GNU tar is not installed")
def test_gnu_tar_lists_every_member_in_order(packed: Packed) -> None:
    """`tar -t` prints every name, in the order of the bytes of key and field, and complains of nothing."""
    listed = b""
    for shard in packed.shards:
        command = [GNU_TAR, "--quoting-style=literal", "-tf", str(shard)]
        done = subprocess.run(command, env=UTF8, capture_output=True, check=True)
        assert done.stderr == b""
        listed += done.stdout
    assert listed.decode().splitlines() == [name for name, _ in packed.members]


@pytest.mark.skipif(not GNU_TAR, reason="GNU tar is not installed")
def test_gnu_tar_finds_no_difference_from_the_source(names: Packed) -> None:
    """`tar --compare` finds nothing but what the shards leave out of the source on purpose: owners, modes and times."""
    meta = (b": Mod time differs", b": Uid differs", b": Gid differs", b": Mode differs")
    for shard in names.shards:
        command = [GNU_TAR, "--quoting-style=literal", "-df", str(shard)]
        done = subprocess.run(command, cwd=names.source, env=UTF8, capture_output=True, check=False)
        assert done.stderr == b""
        assert [line for line in done.stdout.splitlines() if not line.endswith(meta)] == []


def test_tarfile_reads_the_source(packed: Packed) -> None:
    """Python's tarfile reads every member in order with the source's bytes, and nothing that depends on the machine."""
    read = []
    for shard in packed.shards:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                payload = tar.extractfile(member)
                assert payload is not None
                read.append((member.name, payload.read()))
                assert (member.isreg(), member.mode, member.mtime) == (True, 0o644, 0)
                assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
    assert read == packed.members


def test_tarfile_streams_the_source(packed: Packed) -> None:
    """Read as a stream, which cannot seek back, a shard gives the same members."""
    read = []
    for shard in packed.shards:
        with shard.open("rb") as raw, tarfile.open(fileobj=raw, mode="r|") as tar:
            for member in tar:
                payload = tar.extractfile(member)
                assert payload is not None
                read.append((member.name, payload.read()))
    assert read == packed.members


def test_tarfile_extracts_the_source(packed: Packed, tmp_path: Path) -> None:
    """`extractall` with the strict filter `data` refuses nothing and gives the source's files."""
    for shard in packed.shards:
        with tarfile.open(shard) as tar:
            tar.extractall(tmp_path, filter="data")
    assert _files_below(tmp_path) == dict(packed.members)


def test_short_names_need_no_extension(photos: Packed, names: Packed) -> None:
    """Names of up to 100 bytes are plain ustar: a header block a member, no pax, and two zero blocks at the end."""
    for shard in [*photos.shards, *names.shards]:
        with tarfile.open(shard) as tar:
            ends = [member.offset_data + -(-member.size // 512) * 512 for member in tar]
            assert [member.offset for member in tar] == [0, *ends[:-1]]
            assert [member.offset_data - member.offset for member in tar] == [512] * len(ends)
        assert shard.read_bytes()[ends[-1] :] == bytes(1024)
