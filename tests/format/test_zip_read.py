"""Zip archives: what Python's `zipfile` writes is read back, and any bytes give members or `CorruptShard`."""

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
    """A file that cannot seek, so that checksums follow the payloads."""

    def seekable(self) -> bool:
        """Return False."""
        return False

    def seek(self, *_: object) -> int:
        """Raise an error."""
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
    """Return the names and contents of members."""
    read, files = _reader(data), {}
    for member in zip_read.iter_zip_members(read, len(data), "z"):
        payload = b"".join(zip_read.iter_zip_payload(read, member.offset, member.size, "z"))
        assert len(payload) == member.size
        files[member.name.decode("latin-1")] = payload
    return files


@pytest.mark.parametrize("before", [b"", b"#!/bin/sh\n"])
@pytest.mark.parametrize("file", [io.BytesIO, _Pipe])
@pytest.mark.parametrize("method", _METHODS)
def test_archives_of_zipfile_round_trip(method: str, file: type[io.BytesIO], before: bytes) -> None:
    """Every payload is read back, with checksums before or after it, and with bytes before the archive."""
    assert _files(before + _zip(method, file())) == _FILES


def test_zip64_numbers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that do not fit their fields are read from the zip64 fields."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    data = _zip("stored")
    assert b"PK\6\6" in data
    assert _files(data) == _FILES


def test_a_flipped_payload_is_damage() -> None:
    """Any flipped bit of a payload is detected, stored or deflated."""
    for method in _METHODS:
        data = bytearray(_zip(method))
        data[data.index(b"b.bin") + 20] ^= 4
        with pytest.raises(CorruptShard):
            _files(bytes(data))


@given(st.data(), st.sampled_from([*_METHODS]))
@settings(max_examples=15)
def test_any_change_gives_members_or_damage(data: st.DataObject, method: str) -> None:
    """Whatever is flipped or truncated, the result is members of at most their claimed size, or `CorruptShard`."""
    archive = bytearray(_zip(method))
    tail = max(0, len(archive) - 300)  # the directory: most of the rest is payload
    for _ in range(data.draw(st.integers(1, 4))):
        archive[data.draw(st.integers(tail, len(archive) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptShard):
        _files(bytes(archive[: data.draw(st.integers(tail, len(archive)))]))


@given(st.binary(max_size=200))
@settings(max_examples=15)
def test_other_bytes_are_not_a_zip(data: bytes) -> None:
    """Bytes that are not a zip are `CorruptShard`, or at most an empty zip; no payload is read."""
    for start in (b"", b"PK\3\4", b"PK\1\2", b"PK\5\6" + data[:18]):
        with suppress(CorruptShard):
            assert _files(start + data) == {}
        with pytest.raises(CorruptShard):
            b"".join(zip_read.iter_zip_payload(_reader(start + data), 0, 10, "z"))


def test_truncation_is_damage() -> None:
    """A truncated zip is never read as one with fewer members."""
    data = _zip("deflated")
    for end in range(len(data)):
        with pytest.raises(CorruptShard):
            _files(data[:end])


def test_ambiguous_end_records_are_rejected() -> None:
    """An end record inside a comment is ignored; two end records that fit the file are rejected as ambiguous."""
    archive = _zip("stored")
    assert _files(archive[:-2] + b"\x1a\0" + b"PK\5\6" + bytes(18) + b"tail") == _FILES
    assert _files(archive + b"more") == _FILES
    with pytest.raises(CorruptShard, match="several end records"):
        _files(archive[:-2] + b"\x16\0" + b"PK\5\6" + bytes(18))


def test_reads_are_bounded_by_the_member() -> None:
    """Only about the member's compressed bytes are read, even if the stream continues."""
    for flags, packed in ((0, 2), (8, 0)):
        head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, flags, 8, 0, 0, 0, packed, 0, 1, 0) + b"a"
        data = head + b"\0\0\0\xff\xff" * 1_000_000 + b"\3\0"
        read_sizes: list[int] = []

        def read(offset: int, length: int, data: bytes = data, read_sizes: list[int] = read_sizes) -> bytes:
            read_sizes.append(len(block := data[offset : offset + length]))
            return block

        with pytest.raises(CorruptShard):
            list(zip_read.iter_zip_payload(read, 0, 0, "z"))
        assert sum(read_sizes) < 10**6
