from __future__ import annotations

import os
import re
import subprocess
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.format.tar_write import (
    TAR_BLOCK_BYTES,
    TRAILER,
    encode_header,
    header_size,
    padding_size,
    put_header,
    split_prefix,
)

if TYPE_CHECKING:
    from pathlib import Path

_GIB = 2**30
_LONG = b"d" * 155 + b"/" + b"n" * 100
# Name, payload bytes, header blocks.
TABLE: list[tuple[bytes, int, int]] = [
    (b"a.jpg", 0, 1),
    (b"a.jpg", 1, 1),
    (b"cat/0001.seg.png", 511, 1),
    (b"a.jpg", 8 * _GIB - 1, 1),
    (b"a.jpg", 8 * _GIB, 3),
    (b"a.jpg", 10**15, 3),
    ("größe/日本 語.jpg".encode(), 7, 1),
    (b"not-utf8/\xff\xfe.jpg", 7, 1),
    (b"new\nline.jpg", 7, 1),
    (b"n" * 100, 7, 1),
    (b"d/" + b"n" * 98, 7, 1),
    (b"n" * 101, 7, 3),
    (b"d/" + b"n" * 99, 7, 1),
    (b"d/" + b"n" * 100, 7, 1),
    (b"d/" + b"n" * 101, 7, 3),
    (b"n" * 101 + b"/d", 7, 1),
    (b"d/" * 60 + b"n", 7, 1),
    (_LONG, 7, 1),
    (b"d" + _LONG, 7, 3),
    (b"d/" * 200 + b"n.jpg", 7, 3),
    (b"n" * 255, 7, 3),
    (b"n" * 256, 7, 3),
    (b"n" * 490, 7, 3),
    (b"n" * 600, 7, 4),
    (b"n" * 1100, 7, 5),
    ("日".encode() * 80, 7, 3),
    (b"pax-\xff" * 30, 7, 3),
    (b"d/" + b"n" * 99, 9 * _GIB, 3),
    (b"n" * 101, 9 * _GIB, 3),
]
ROWS = pytest.mark.parametrize(("name", "size", "blocks"), TABLE, ids=[f"{len(n)}-{s}" for n, s, _ in TABLE])


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


@ROWS
def test_tarfile_reads_a_header(name: bytes, size: int, blocks: int) -> None:
    """Python's tarfile reads name and size of every header, and nothing that could differ between machines."""
    raw = encode_header(name, size)
    with tarfile.open(fileobj=BytesIO(raw), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        member = tar.next()
    assert member is not None
    assert (member.name, member.size, member.isreg()) == (_text(name), size, True)
    assert (member.mode, member.uid, member.gid, member.mtime) == (0o644, 0, 0, 0)
    assert (member.uname, member.gname, member.linkname) == ("", "", "")
    assert member.offset_data == len(raw) == blocks * TAR_BLOCK_BYTES


@pytest.mark.parametrize(("name", "size", "blocks"), [row for row in TABLE if row[1] <= 9 * _GIB])  # sparse files
def test_gnu_tar_lists_a_header(name: bytes, size: int, blocks: int, tmp_path: Path) -> None:
    """GNU tar lists name, size, mode, owner and time of a member of any size without a warning."""
    shard = tmp_path / "one.tar"
    with shard.open("wb") as file:
        file.write(encode_header(name, size))
        file.seek(blocks * TAR_BLOCK_BYTES + size + padding_size(size))
        file.write(TRAILER)
    command = ["tar", "--quoting-style=literal", "--numeric-owner", "-tvf", str(shard)]
    process = subprocess.run(command, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"}, capture_output=True, check=True)
    assert process.stderr == b""
    listed = re.fullmatch(rb"(\S+) (\S+) +(\d+) 1970-01-01 00:00 (.*)\n", process.stdout, re.DOTALL)
    assert listed is not None
    assert listed.groups() == (b"-rw-r--r--", b"0/0", b"%d" % size, name)


@ROWS
def test_header_size_is_exact(name: bytes, size: int, blocks: int) -> None:
    """`header_size` returns the exact bytes of a header from name length, size, and whether the name splits."""
    splits = len(name) > 100 and split_prefix(name) is not None
    assert header_size(len(name), size, splits=splits) == len(encode_header(name, size)) == blocks * TAR_BLOCK_BYTES


@ROWS
def test_headers_are_posix(name: bytes, size: int, blocks: int) -> None:
    """Every header block has the ustar magic and the POSIX checksum; pax is used only when needed."""
    raw = encode_header(name, size)
    heads = [raw[:TAR_BLOCK_BYTES]] if blocks == 1 else [raw[:TAR_BLOCK_BYTES], raw[-TAR_BLOCK_BYTES:]]
    assert [head[156:157] for head in heads] == ([b"0"] if blocks == 1 else [b"x", b"0"])
    for head in heads:
        assert head[257:265] == b"ustar\x0000"
        assert int(head[148:154], 8) == sum(head[:148]) + 8 * 0x20 + sum(head[156:])
        assert head[154:156] == b"\0 "


def _names() -> st.SearchStrategy[bytes]:
    part = st.builds(
        lambda text, times: text.replace(b"\0", b"_").replace(b"/", b"_") * times,
        st.binary(min_size=1, max_size=4),
        st.integers(1, 70),
    )
    return st.lists(part, min_size=1, max_size=6).map(b"/".join)


@given(_names(), st.integers(0, 2**36), st.integers(0, 2000))
def test_any_header_round_trips(name: bytes, size: int, offset: int) -> None:
    """Any name and size are read back; `put_header` writes the same bytes, and no others."""
    raw = encode_header(name, size)
    with tarfile.open(fileobj=BytesIO(raw), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        member = tar.next()
    assert member is not None
    assert (member.name.encode("utf-8", "surrogateescape"), member.size) == (name, size)
    splits = len(name) > 100 and split_prefix(name) is not None
    assert len(raw) == header_size(len(name), size, splits=splits)
    into = bytearray(b"\xaa" * (offset + len(raw) + 100))
    assert put_header(memoryview(into), offset, name, size) == offset + len(raw)
    assert bytes(into) == b"\xaa" * offset + raw + b"\xaa" * 100


@given(_names())
def test_a_split_name_joins_again(name: bytes) -> None:
    """Prefix and name fit their fields, and are the name when joined by a slash."""
    split = split_prefix(name.rjust(101, b"x"))
    if split is not None:
        assert b"/".join(split) == name.rjust(101, b"x")
        assert 0 < len(split[0]) <= 155
        assert 0 < len(split[1]) <= 100


@given(st.integers(0, 2**50))
def test_padding(size: int) -> None:
    """Padding fills up to a multiple of the block size, and is shorter than a block."""
    assert (size + padding_size(size)) % TAR_BLOCK_BYTES == 0
    assert 0 <= padding_size(size) < TAR_BLOCK_BYTES


@given(st.lists(st.tuples(_names(), st.binary(max_size=1500)), max_size=5))
def test_a_shard_is_headers_payloads_and_a_trailer(samples: list[tuple[bytes, bytes]]) -> None:
    """Headers, payloads, padding and two zero blocks are a tar file that reads back."""
    raw = (
        b"".join(encode_header(name, len(data)) + data + bytes(padding_size(len(data))) for name, data in samples)
        + TRAILER
    )
    assert bytes(1024) == TRAILER
    with tarfile.open(fileobj=BytesIO(raw), mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        found = [(member.name, file.read()) for member in tar if (file := tar.extractfile(member))]
    assert found == [(_text(name), data) for name, data in samples]
