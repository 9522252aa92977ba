"""Laws of reading zips: what Python's `zipfile` writes comes back, and any bytes give members or `CorruptShard`."""

from __future__ import annotations

import io
import struct
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import CorruptShard
from shardtool.format import zip_read

if TYPE_CHECKING:
    from collections.abc import Callable

_METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}
_FILES = {"a/1.jpg": b"x" * 700_000, "a/1.txt": b"", "b.bin": bytes(range(256)) * 9}


class _Pipe(io.BytesIO):
    """A file that cannot be read again, so that checksums stand behind payloads."""

    def seekable(self) -> bool:
        """It cannot."""
        return False

    def seek(self, *_: object) -> int:
        """Refuse."""
        raise OSError


def _zip(method: str, file: io.BytesIO | None = None) -> bytes:
    file = file or io.BytesIO()
    with zipfile.ZipFile(file, "w", _METHODS[method]) as archive:
        for name, data in _FILES.items():
            archive.writestr(name, data)
    return file.getvalue()


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: data[offset : offset + length] if offset >= 0 else b""


def _files(data: bytes) -> dict[str, bytes]:
    """Return what members say they are called, and hold."""
    read, found = _reader(data), {}
    for one in zip_read.iter_zip_members(read, len(data), "z"):
        payload = b"".join(zip_read.iter_zip_payload(read, one.offset, one.size, "z"))
        assert len(payload) == one.size
        found[one.name.decode("latin-1")] = payload
    return found


@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\n"])
@pytest.mark.parametrize("file", [io.BytesIO, _Pipe])
@pytest.mark.parametrize("method", _METHODS)
def test_what_zipfile_writes_comes_back(method: str, file: type[io.BytesIO], before: bytes) -> None:
    """Every payload comes back, with checksums before or behind it, and whatever stands before the archive."""
    assert _files(before + _zip(method, file())) == _FILES


def test_large_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that do not fit their places are read where zip64 puts them."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    data = _zip("stored")
    assert b"PK\6\6" in data
    assert _files(data) == _FILES


def test_a_flipped_payload_is_found() -> None:
    """No bit of a payload can differ unseen, stored or deflated."""
    for method in _METHODS:
        data = bytearray(_zip(method))
        data[data.index(b"b.bin") + 20] ^= 4
        with pytest.raises(CorruptShard):
            _files(bytes(data))


@given(st.data(), st.sampled_from([*_METHODS]))
@settings(max_examples=15)
def test_any_bytes(data: st.DataObject, method: str) -> None:
    """Whatever is flipped or cut, there are members or `CorruptShard`, and no more bytes than were claimed."""
    whole = bytearray(_zip(method))
    tail = max(0, len(whole) - 300)  # the directory: most of the rest is payload
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(tail, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptShard):
        _files(bytes(whole[: data.draw(st.integers(tail, len(whole)))]))


@given(st.binary(max_size=200))
@settings(max_examples=15)
def test_bytes_of_no_zip(data: bytes) -> None:
    """Bytes that are no zip are `CorruptShard`, or at most the end of an empty one; no payload is read of them."""
    for start in (b"", b"PK\3\4", b"PK\1\2", b"PK\5\6" + data[:18]):
        with suppress(CorruptShard):
            assert _files(start + data) == {}
        with pytest.raises(CorruptShard):
            b"".join(zip_read.iter_zip_payload(_reader(start + data), 0, 10, "z"))


def test_every_cut_is_found() -> None:
    """A zip that ends too early is never taken for one with fewer members."""
    data = _zip("deflated")
    for end in range(len(data)):
        with pytest.raises(CorruptShard):
            _files(data[:end])


def test_an_end_is_where_its_comment_ends_with_the_file() -> None:
    """A mark in a comment is no end; two ends that fit the file are refused, for readers would choose differently."""
    whole = _zip("stored")
    assert _files(whole[:-2] + b"\x1a\0" + b"PK\5\6" + bytes(18) + b"tail") == _FILES
    assert _files(whole + b"more") == _FILES
    with pytest.raises(CorruptShard, match="several end records"):
        _files(whole[:-2] + b"\x16\0" + b"PK\5\6" + bytes(18))


def test_no_more_is_read_than_a_member_may_have() -> None:
    """Whatever a stream of no bytes goes on with, about its packed bytes are read, or what its size can need."""
    for flags, packed in ((0, 2), (8, 0)):
        head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, 8, 0, 0, 0, packed, 0, 1, 0) + b"a"
        data = head + b"\0\0\0\xff\xff" * 1_000_000 + b"\3\0"
        got: list[int] = []

        def read(offset: int, length: int, data: bytes = data, got: list[int] = got) -> bytes:
            got.append(len(found := data[offset : offset + length]))
            return found

        with pytest.raises(CorruptShard):
            list(zip_read.iter_zip_payload(read, 0, 0, "z"))
        assert sum(got) < 10**6
