from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
from io import BytesIO
from typing import TYPE_CHECKING
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.dataset.shard_file import ChecksummedFile, CompressedFile, ShardFile, detect_kind
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.fingerprint import crc32c
from tests.tfrecords import frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 5000)), max_size=20))
def test_reading_at_any_offset(tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]]) -> None:
    """A shard's bytes are correct in any order of reading, and the checksum is that of the whole file."""
    path = tmp_path_factory.getbasetemp() / "any.tar"
    data = bytes(range(256)) * 30
    if not path.exists():
        path.write_bytes(data)
    with ShardFile(str(path)) as plain, ChecksummedFile(str(path)) as summed:
        for offset, length in ranges:
            expected = data[offset : offset + length]
            assert bytes(plain.read(offset, length)) == expected
            assert bytes(summed.read(offset, length)) == expected
        assert summed.crc() == crc32c(data)


def test_the_checksum_of_a_large_file(tmp_path: Path) -> None:
    """The checksum is correct for files larger than the window, for any earlier reads."""
    data = os.urandom(5 * 2**20 + 77)
    (tmp_path / "x.tar").write_bytes(data)
    for ranges in ([], [(0, 512), (10, 2**21), (4 * 2**20, 3), (5, 5), (5 * 2**20, 500)], [(6 * 2**20, 10)]):
        with ChecksummedFile(str(tmp_path / "x.tar")) as file:
            for offset, length in ranges:
                assert bytes(file.read(offset, length)) == data[offset : offset + length]
            assert file.crc() == crc32c(data)


def _zstd(data: bytes) -> bytes:
    packed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return packed


def _xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": _xz, ".zst": _zstd,
}  # fmt: skip
PACKINGS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


def _packed(folder: Path, data: bytes, ending: str) -> str:
    path = folder / f"x.tar{ending}"
    path.write_bytes(PACKERS[ending](data))
    return str(path)


@pytest.mark.parametrize("ending", PACKERS)
def test_concatenated_compressed_streams(ending: str, tmp_path: Path) -> None:
    """Concatenated streams of parallel compressors are read completely; other bytes between them are damage."""
    path, pack = tmp_path / f"X.TAR{ending.upper()}", PACKERS[ending]
    path.write_bytes(pack(b"a" * 70_000) + pack(b"b" * 500))
    with CompressedFile(str(path)) as file:
        assert bytes(file.read(69_990, 20)) == b"a" * 10 + b"b" * 10
        assert len(file.read(70_000, 10_000)) == 500
    path.write_bytes(pack(b"a" * 70_000) + b"more")
    with CompressedFile(str(path)) as file, pytest.raises(CorruptShard, match="decompressed"):
        file.read(0, 80_000)


def test_an_xz_file_that_claims_much_memory(tmp_path: Path) -> None:
    """A small file that claims a dictionary of 4 GiB is rejected before memory is allocated."""
    raw = bytearray(lzma.compress(b"x" * 1000, check=lzma.CHECK_NONE))
    assert raw[14:16] == b"\x21\x01"  # LZMA2, and one byte with the size of the dictionary
    raw[16] = 40
    raw[20:24] = crc32(raw[12:20]).to_bytes(4, "little")
    path = tmp_path / "x.tar.xz"
    path.write_bytes(raw)
    with CompressedFile(str(path)) as file, pytest.raises(CorruptShard, match="emory"):
        file.read(0, 10)


@pytest.mark.slow
@pytest.mark.parametrize("ending", PACKERS)
def test_a_compressed_shard_is_read_sequentially(ending: str, tmp_path: Path) -> None:
    """A compressed shard is read sequentially up to its end, and cannot be read before the window."""
    data = os.urandom(3 * 2**20)
    with CompressedFile(_packed(tmp_path, data, ending)) as file:
        assert bytes(file.read(0, 512)) == data[:512]
        assert bytes(file.read(100, 2**21)) == data[100 : 100 + 2**21]
        assert bytes(file.read(len(data) - 5, 10)) == data[-5:]
        assert bytes(file.read(len(data) + 5, 10)) == b""
        with pytest.raises(CorruptShard, match="read sequentially"):
            file.read(0, 1)


@pytest.mark.parametrize("ending", PACKERS)
def test_a_damaged_compressed_stream(ending: str, tmp_path: Path) -> None:
    """A truncated or damaged stream is damage or ends early; no other error occurs."""
    path = _packed(tmp_path, os.urandom(5000), ending)
    with open(path, "rb") as source:
        raw = source.read()
    for damaged in [raw[:length] for length in range(0, len(raw), 97)] + [
        b"x" + raw[1:],
        raw[:60] + b"\xff" * 40 + raw[100:],
    ]:
        with open(path, "wb") as file:
            file.write(damaged)
        try:
            with CompressedFile(path) as packed:
                assert len(packed.read(0, 10_000)) <= 5000
        except CorruptShard:
            pass


def _tar() -> bytes:
    raw = BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    return raw.getvalue()


CONTENTS = {
    "blob of a tar": (_tar(), "tar", ""),
    "blob of TFRecords": (frame(b"x"), "tfrecord", ""),
    **{f"blob, packed as {ending[1:]}": (pack(_tar()), "tar", PACKINGS[ending]) for ending, pack in PACKERS.items()},
    "blob of TFRecords, packed": (gzip.compress(frame(b"x"), mtime=0), "tfrecord", "gzip"),
    "train-00000-of-00002": (frame(b"x"), "tfrecord", ""),
    "train-00000-of-00003": (_tar(), "tar", ""),
    "train-00000-of-00004": (b"", "tfrecord", ""),
    "train-00000-of-00005": (b"damaged", "tfrecord", ""),
    "lie.tfrecord": (_tar(), "tfrecord", ""),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_the_first_bytes_determine_the_format(name: str, tmp_path: Path) -> None:
    """If the name does not show the format, the first bytes do, also of compressed files; otherwise the name does."""
    data, shard_format, compression = CONTENTS[name]
    path = tmp_path / name
    path.write_bytes(data)
    assert detect_kind(str(path)) == (shard_format, compression)


@pytest.mark.parametrize("data", [b"", b"hello", bytes(1024), gzip.compress(b"hello", mtime=0), b"BZh9junk"])
def test_other_files_are_not_shards(data: bytes, tmp_path: Path) -> None:
    """A file that is not a shard by name or content is rejected, and so is a missing file."""
    (tmp_path / "blob").write_bytes(data)
    for name in ("blob", "none", "a.zip"):
        with pytest.raises(InvalidRequest, match="neither a tar nor a TFRecord"):
            detect_kind(str(tmp_path / name))
