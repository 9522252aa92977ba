from __future__ import annotations

import io
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from shardtool import VerifyOptions, verify
from shardtool.errors import CorruptShard
from shardtool.format import tar_read, tar_write

if TYPE_CHECKING:
    from pathlib import Path


def _header(name: bytes, size: int = 0, kind: bytes = b"0", fields: dict[int, bytes] | None = None) -> bytes:
    """Return a header with some fields replaced, by offset."""
    block = bytearray(tar_write.encode_header(name, size))
    block[156:157] = kind
    for offset, data in (fields or {}).items():
        block[offset : offset + len(data)] = data
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _member(name: bytes, data: bytes = b"", kind: bytes = b"0", fields: dict[int, bytes] | None = None) -> bytes:
    return _header(name, len(data), kind, fields) + data + bytes(tar_write.padding_size(len(data)))


def _record(keyword: bytes, value: bytes) -> bytes:
    content = b" %b=%b\n" % (keyword, value)
    return next(
        b"%d%b" % (n, content) for n in range(len(content), len(content) + 9) if len(b"%d%b" % (n, content)) == n
    )


def _pax(*records: tuple[bytes, bytes], kind: bytes = b"x", trailing: bytes = b"") -> bytes:
    return _member(b"././@PaxHeader", b"".join(_record(*record) for record in records) + trailing, kind)


def _long(name: bytes) -> bytes:
    return _member(b"././@LongLink", name, b"L")


_A, _LAST = _member(b"a.txt", b"one"), _member(b"z.txt", b"zz")
_ALIKE = {
    "plain": _A,
    "GNU's magic": _member(b"a.txt", b"one", fields={257: b"ustar  \0"}),
    "v7": _member(b"a.txt", b"one", fields={257: bytes(8)}),
    "prefix": _member(b"a.txt", b"one", fields={345: b"p"}),
    "base 256": _member(b"a.txt", b"one", fields={124: b"\x80" + (3).to_bytes(11, "big")}),
    "size after blanks": _member(b"a.txt", b"one", fields={124: b"          3 "}),
    "pax path": _pax((b"path", b"p.txt")) + _A,
    "pax size": _pax((b"size", b"3")) + _A,
    "pax size with zeros": _pax((b"size", b"0003")) + _A,
    "pax size with many zeros": _pax((b"size", b"0" * 30 + b"3")) + _A,
    "long name": _long(b"long.txt\0") + _A,
    "global comment": _pax((b"comment", b"x"), kind=b"g") + _A,
    "charset": _pax((b"hdrcharset", b"BINARY"), (b"path", b"p.txt")) + _A,
}
_NOT_ALIKE = {
    "global path": _pax((b"path", b"p.txt"), kind=b"g") + _A,
    "global size": _pax((b"size", b"600"), kind=b"g") + _A,
    "pax path, GNU name": _pax((b"path", b"p.txt")) + _long(b"g.txt\0") + _A,
    "GNU name, pax path": _long(b"g.txt\0") + _pax((b"path", b"p.txt")) + _A,
    "two GNU names": _long(b"g.txt\0") + _long(b"h.txt\0") + _A,
    "two pax headers": _pax((b"path", b"p.txt")) + _pax((b"mtime", b"1")) + _A,
    "path twice": _pax((b"path", b"p.txt"), (b"path", b"q.txt")) + _A,
    "empty path": _pax((b"path", b"")) + _A,
    "NUL in a path": _pax((b"path", b"p\0q.txt")) + _A,
    "another charset": _pax((b"hdrcharset", b"KOI8"), (b"path", b"p.txt")) + _A,
    "zeros after records": _pax((b"path", b"p.txt"), trailing=b"\0\0") + _A,
    "pax size is another": _pax((b"size", b"600")) + _A + bytes(512),
    "pax size, none in the header": _pax((b"size", b"3")) + _header(b"a.txt") + b"one" + bytes(509),
    "sparse": _pax((b"GNU.sparse.size", b"600")) + _A,
    "star's sparse": _pax((b"SCHILY.realsize", b"600")) + _A,
    "prefix without ustar": _member(b"a.txt", b"one", fields={257: bytes(8), 345: b"p"}),
    "unknown type": _member(b"a.txt", b"one", b"Z"),
    "link with bytes": _header(b"l", 512, b"2"),
    "folder with bytes": _header(b"d", 512, b"5"),
    "old folder with bytes": _member(b"d/", b"one", b"\0"),
    "volume with bytes": _member(b"v", b"one", b"V"),
}
_REFUSED = {
    "size 0o5": _member(b"a.txt", b"hello", fields={124: b"0o000000005\0"}),
    "size 1_0": _member(b"a.txt", b"hello678", fields={124: b"000000001_0\0"}),
    "size +3": _member(b"a.txt", b"one", fields={124: b"+0000000003\0"}),
    "size 8": _member(b"a.txt", b"one", fields={124: b"00000000008\0"}),
    "size with a blank": _member(b"a.txt", b"one", fields={124: b"0000000 003\0"}),
    "blank size": _member(b"a.txt", b"", fields={124: b" " * 12}),
    "pax size +3": _pax((b"size", b"+3")) + _A,
    "pax size 3.0": _pax((b"size", b"3.0")) + _A,
    "no pax size": _pax((b"size", b"")) + _A,
    "no pax keyword": _pax((b"", b"x")) + _A,
    "lone block of zeros": bytes(512) + _A,
}


def _read_tar(data: bytes) -> tuple[list[tuple[bytes, int]], list[str]]:
    notes: list[str] = []
    members = tar_read.iter_members(
        lambda offset, size: data[offset : offset + size], "x.tar", lambda _, problem: notes.append(problem)
    )
    return [(member.name, member.size) for member in members if member.is_file], notes


@pytest.mark.parametrize("name", _ALIKE)
def test_headers_that_readers_agree_on(name: str, tmp_path: Path) -> None:
    """Such headers cause no note, and are read as by Python's tarfile and GNU tar."""
    data = _ALIKE[name] + _LAST + tar_write.TRAILER
    members, notes = _read_tar(data)
    assert notes == []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert members == [(member.name.encode(), member.size) for member in tar if member.isreg()]
    (tmp_path / "x.tar").write_bytes(data)
    listed = subprocess.run(["tar", "tf", "x.tar"], cwd=tmp_path, capture_output=True, check=True).stdout
    assert listed.splitlines() == [member for member, _ in members]


@pytest.mark.parametrize("name", _NOT_ALIKE)
def test_headers_that_readers_disagree_on(name: str, tmp_path: Path) -> None:
    """Each such header causes one finding, and the members after it are found."""
    (tmp_path / "x.tar").write_bytes(_NOT_ALIKE[name] + _LAST + tar_write.TRAILER)
    report = verify(tmp_path / "x.tar", VerifyOptions(workers=0))
    assert set(report.counts) - {"key-unsafe"} == {"readers-differ"}
    assert _read_tar(_NOT_ALIKE[name] + _LAST + tar_write.TRAILER)[0][-1] == (b"z.txt", 2)


@pytest.mark.parametrize("name", _REFUSED)
def test_headers_that_some_readers_reject(name: str) -> None:
    """A header that GNU tar or bsdtar rejects is damage."""
    with pytest.raises(CorruptShard):
        _read_tar(_REFUSED[name] + _LAST + tar_write.TRAILER)


def test_a_pax_path_takes_precedence_over_a_long_name() -> None:
    """A pax path takes precedence, as in GNU tar, bsdtar and tarfile."""
    data = _pax((b"path", b"p.txt")) + _long(b"g.txt\0") + _A + tar_write.TRAILER
    assert _read_tar(data)[0] == [(b"p.txt", 3)]


def _unsafe(path: Path, *members: tuple[bytes, bytes, bytes]) -> list[str]:
    """Return the findings for a tar of a sample and members: name, type and link target."""
    blocks = b"".join(_header(name, 0, kind, {157: link}) for name, kind, link in members)
    path.write_bytes(_A + blocks + tar_write.TRAILER)
    return [finding.code for finding in verify(path, VerifyOptions(workers=0)).findings]


@pytest.mark.parametrize(
    "members",
    [
        [(b"../../etc/cron", b"0", b"")], [(b"/root/rc", b"0", b"")], [(b"\x1b]0;x\x07", b"0", b"")],
        [(b"n\xff", b"0", b"")], [(b"d/..", b"5", b"")], [(b"l", b"2", b"/etc")], [(b"l", b"2", b"../x")],
        [(b"d/l", b"2", b"../../x")], [(b"d/l", b"2", b"e/../../x")], [(b"h", b"1", b"/etc/shadow")],
        [(b"h", b"1", b"../x")], [(b"l", b"2", b"\x1b[0m")], [(b"dev", b"3", b"")], [(b"fifo", b"6", b"")],
        [(b"d", b"2", b"e"), (b"d/x.txt", b"0", b"")], [(b"d", b"2", b"e"), (b"d/noext", b"0", b"")],
    ],
)  # fmt: skip
def test_unsafe_members_are_findings(members: list[tuple[bytes, bytes, bytes]], tmp_path: Path) -> None:
    """A member that leads out of the folder, or is a device, is a finding, and so is a member that it hides."""
    assert _unsafe(tmp_path / "x.tar", *members) == ["member-unsafe"]


@pytest.mark.parametrize(
    "member", [(b"README", b"0", b""), (b"d/", b"5", b""), (b"l", b"2", b"a.txt"), (b"d/l", b"2", b"../a.txt"),
               (b"h", b"1", b"a.txt"), (b"./", b"5", b"")],
)  # fmt: skip
def test_safe_members_are_no_findings(member: tuple[bytes, bytes, bytes], tmp_path: Path) -> None:
    """Regular files, folders, and links inside the tar are not findings."""
    assert _unsafe(tmp_path / "x.tar", member) == []
