from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import CorruptShard
from shardtool.format import tar_read, tar_write

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "a.txt": b"one",
    "empty.bin": b"",
    "block.bin": bytes(512),
    "d/b.txt": b"x" * 513,
    "d/" + "n" * 92 + ".long": b"long",
    "d/" * 60 + "leaf.jpg": b"deep",
    "ü ñ/ß.txt": b"letters",
    "p/" + "q" * 240 + ".pax.png": b"over the name field and the prefix",
}


def members(data: bytes) -> list[tar_read.TarMember]:
    """Return the members in a tar's bytes."""
    return list(tar_read.iter_members(lambda offset, length: data[offset : offset + length], "x.tar"))


def contents(data: bytes) -> dict[str, bytes]:
    """Return the regular files in a tar's bytes, without `./`."""
    return {
        member.name.decode().removeprefix("./"): data[member.data : member.data + member.size]
        for member in members(data) if member.is_file
    }  # fmt: skip


def test_members_round_trip() -> None:
    """Members are read back with their names, in order, without gaps, up to the trailer."""
    data, expected = b"", []
    for number, size in enumerate([0, 1, 511, 512, 513, 70_000]):
        for name in (b"%d.jpg" % number, b"k" * 130 + b"/%d.jpg" % number, b"n" * 200 + b"%d.cls" % number):
            start = len(data)
            data += tar_write.encode_header(name, size)
            expected.append((name, start, len(data), size))
            data += bytes([number]) * size + bytes(tar_write.padding_size(size))
    data += tar_write.TRAILER
    read_members = members(data)
    assert [(member.name, member.offset, member.data, member.size) for member in read_members] == expected
    assert all(member.is_file for member in read_members)
    assert [member.end for member in read_members] == [
        *(member.offset for member in read_members[1:]),
        len(data) - len(tar_write.TRAILER),
    ]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_python_tarfile(kind: int) -> None:
    """Members that Python's tarfile writes are read the same way, in each of its formats."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=kind) as out:
        for name, payload in FILES.items():
            if kind == tarfile.USTAR_FORMAT and len(name.encode()) > 230:
                continue
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(payload), 1_700_000_000 + 0.5 * (kind == tarfile.PAX_FORMAT)
            out.addfile(info, io.BytesIO(payload))
        for name, member_type in (("folder", tarfile.DIRTYPE), ("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE),
                           ("fifo", tarfile.FIFOTYPE), ("device", tarfile.CHRTYPE)):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = member_type, "a.txt"
            out.addfile(info)
        info = tarfile.TarInfo("last.txt")
        info.size = 4
        out.addfile(info, io.BytesIO(b"last"))
    data = sink.getvalue()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(member.name, member.offset, member.offset_data, member.size, member.isreg()) for member in tar]
    assert [(member.name.decode().rstrip("/"), *member[1:5]) for member in members(data)] == expected
    assert contents(data)["last.txt"] == b"last"


@pytest.mark.parametrize("format_name", ["v7", "oldgnu", "gnu", "ustar", "pax"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_gnu_tar(format_name: str, prefix: str, tmp_path: Path) -> None:
    """Members that GNU tar writes are read, with folders, links and `./`."""
    files = dict(FILES)
    if format_name in ("v7", "ustar"):
        files = {name: data for name, data in files.items() if len(name.encode()) < 95}
    for name, payload in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(payload)
    (tmp_path / "in" / "link").symlink_to("a.txt")
    os.link(tmp_path / "in" / "a.txt", tmp_path / "in" / "zz-hard")
    paths = ["."] if prefix else sorted(os.listdir(tmp_path / "in"))
    subprocess.run(["tar", "cf", "../x.tar", f"--format={format_name}", *paths], cwd=tmp_path / "in", check=True)
    data = (tmp_path / "x.tar").read_bytes()
    files_read = contents(data)
    with tarfile.open(tmp_path / "x.tar") as tar:
        expected = [member.name.removeprefix("./") for member in tar if member.isreg()]
        offsets = [(member.offset, member.offset_data) for member in tar]
    assert sorted(files_read) == sorted(expected)
    assert [member[1:3] for member in members(data)] == offsets
    assert all(files_read[name] == payload for name, payload in files.items() if name in files_read)


@pytest.mark.parametrize("options", [["--format=gnu"], ["--format=pax", "--sparse-version=1.0"],
                                     ["--format=pax", "--sparse-version=0.1"], ["--format=oldgnu"]])  # fmt: skip
def test_sparse_files(options: list[str], tmp_path: Path) -> None:
    """A sparse file is not a regular member; the members after it are found."""
    with (tmp_path / "holes.bin").open("wb") as file:
        for number in range(40):  # more than the map in a header holds
            file.seek(number * 2**18)
            file.write(b"data %d" % number)
        file.truncate(50 * 2**18)
    (tmp_path / "next.txt").write_bytes(b"next")
    subprocess.run(["tar", "cSf", "x.tar", *options, "holes.bin", "next.txt"], cwd=tmp_path, check=True)
    data = (tmp_path / "x.tar").read_bytes()
    assert [(member.name, member.is_file) for member in members(data)] == [(b"holes.bin", False), (b"next.txt", True)]
    assert contents(data) == {"next.txt": b"next"}


@pytest.mark.skipif(shutil.which("bsdtar") is None, reason="bsdtar is not installed")
@pytest.mark.parametrize("format_name", ["ustar", "pax", "gnutar", "v7"])
def test_bsdtar(format_name: str, tmp_path: Path) -> None:
    """Members that bsdtar writes are read."""
    (tmp_path / "in" / "d").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_bytes(b"one")
    (tmp_path / "in" / "d" / "b.txt").write_bytes(b"x" * 513)
    subprocess.run(["bsdtar", "--format", format_name, "-cf", "../x.tar", "."], cwd=tmp_path / "in", check=True)
    assert contents((tmp_path / "x.tar").read_bytes()) == {"a.txt": b"one", "d/b.txt": b"x" * 513}


def _base_256(size: int) -> bytes:
    """Return a header with a base-256 size."""
    block = bytearray(tar_write.encode_header(b"huge.bin", 0))
    block[124:136] = b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_sizes_in_base_256() -> None:
    """GNU's encoding of sizes of 8 GiB and more is read."""
    assert contents(_base_256(3) + b"abc" + bytes(509) + tar_write.TRAILER) == {"huge.bin": b"abc"}
    data = _base_256(2**40)
    members = tar_read.iter_members(lambda offset, length: data[offset : offset + length], "x.tar")
    assert next(members).size == 2**40


@pytest.mark.parametrize("size", [2**62, 2**70, 2**87 - 1])
def test_impossible_sizes_are_damage(size: int) -> None:
    """A size that no file can have is damage."""
    with pytest.raises(CorruptShard):
        members(_base_256(size))


def test_impossible_pax_sizes_are_damage() -> None:
    """A pax size that no file can have is damage, with any number of digits."""
    for digits in (19, 20, 5000):
        record = b" size=" + b"9" * digits + b"\n"
        body = next(b"%d%b" % (n, record) for n in range(20, 6000) if len(b"%d%b" % (n, record)) == n)
        block = bytearray(tar_write.encode_header(b"x", len(body)))
        block[156] = ord("x")
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        with pytest.raises(CorruptShard):
            members(
                bytes(block) + body + bytes(-len(body) % 512) + tar_write.encode_header(b"a.b", 0) + tar_write.TRAILER
            )


def _small() -> bytes:
    data = tar_write.encode_header(b"a.txt", 3) + b"one" + bytes(509)
    return data + tar_write.encode_header(b"n" * 150 + b".jpg", 600) + b"x" * 600 + bytes(424) + tar_write.TRAILER


def test_truncation_at_every_byte_is_damage() -> None:
    """A tar truncated at any byte is damage; zeros after its end are not."""
    data = _small()
    expected = members(data)
    for length in range(len(data)):
        with pytest.raises(CorruptShard):
            members(data[:length])
    assert members(data + bytes(10_240)) == expected
    for trailing in (b"x", bytes(700) + b"x", bytes(70_000) + b"x"):
        with pytest.raises(CorruptShard):
            members(data + trailing)


def test_any_flipped_bit_of_a_header_is_damage() -> None:
    """A flipped bit in a header is damage, unless it changes only blanks and zeros of the checksum field."""
    data = bytearray(_small())
    expected = members(bytes(data))
    for block in (0, 1024, 2048):  # a plain header, a pax header, and the header after it
        for offset in range(block, block + 512):
            data[offset] ^= 1 << offset % 8
            try:
                assert members(bytes(data)) == expected
                assert 148 <= offset - block < 156, offset
            except CorruptShard:
                pass
            data[offset] ^= 1 << offset % 8


@given(st.binary(max_size=3000))
def test_any_bytes_give_members_or_damage(data: bytes) -> None:
    """Any bytes are consecutive members or damage; no other error is raised."""
    try:
        read_members = members(data)
    except CorruptShard:
        return
    assert [member.offset for member in read_members] == [0, *(member.end for member in read_members)][
        : len(read_members)
    ]


@pytest.mark.parametrize("end", [b"\0", b"z"])
def test_names_end_at_the_first_nul(end: bytes) -> None:
    """Bytes after the first NUL of a name field are not part of the name, as in GNU tar and `tarfile`."""
    header = bytearray(tar_write.encode_header(b"a.b", 0))
    header[50:52], header[99:100] = b"xy", end
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data = bytes(header) + tar_write.TRAILER
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["a.b"]
    assert [member.name for member in members(data)] == [b"a.b"]


@given(st.binary(min_size=512, max_size=512), st.binary(max_size=2000), st.sampled_from(b"0xgLKSVDM57\0"))
def test_any_header_with_a_valid_checksum(block: bytes, payload: bytes, kind: int) -> None:
    """Any header with a valid checksum is a member or damage; no other error is raised."""
    header = bytearray(block)
    header[156] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    for size in (b"%011o\0" % len(payload), bytes(header[124:136])):
        header[124:136] = size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        with contextlib.suppress(CorruptShard):
            members(
                bytes(header)
                + payload
                + bytes(-len(payload) % 512)
                + tar_write.encode_header(b"a.b", 0)
                + tar_write.TRAILER
            )
