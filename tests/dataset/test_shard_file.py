from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.dataset.shard_file import PackedFile, ShardFile, SummedFile, shard_format
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.fingerprint import crc32c

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 5000)), max_size=20))
def test_reading_at_any_place(tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]]) -> None:
    """A shard's bytes are its bytes, in whatever order they are read, and the sum is that of the whole file."""
    path = tmp_path_factory.getbasetemp() / "any.tar"
    data = bytes(range(256)) * 30
    if not path.exists():
        path.write_bytes(data)
    with ShardFile(str(path)) as plain, SummedFile(str(path)) as summed:
        for offset, length in places:
            wanted = data[offset : offset + length]
            assert bytes(plain.read(offset, length)) == wanted
            assert bytes(summed.read(offset, length)) == wanted
        assert summed.crc() == crc32c(data)


def test_the_sum_of_a_large_file(tmp_path: Path) -> None:
    """So it is for files larger than the window, whatever was read on the way."""
    data = os.urandom(5 * 2**20 + 77)
    (tmp_path / "x.tar").write_bytes(data)
    for places in ([], [(0, 512), (10, 2**21), (4 * 2**20, 3), (5, 5), (5 * 2**20, 500)], [(6 * 2**20, 10)]):
        with SummedFile(str(tmp_path / "x.tar")) as file:
            for offset, length in places:
                assert bytes(file.read(offset, length)) == data[offset : offset + length]
            assert file.crc() == crc32c(data)


def _packed(folder: Path, data: bytes, ending: str) -> str:
    path = folder / f"x.tar{ending}"
    path.write_bytes(gzip.compress(data) if ending == ".gz" else pa.compress(data, codec="zstd", asbytes=True))
    return str(path)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_shards(ending: str, tmp_path: Path) -> None:
    """A compressed shard is read in sequence; back beyond the window it is not; its end is its end."""
    data = os.urandom(3 * 2**20)
    with PackedFile(_packed(tmp_path, data, ending)) as file:
        assert bytes(file.read(0, 512)) == data[:512]
        assert bytes(file.read(100, 2**21)) == data[100 : 100 + 2**21]
        assert bytes(file.read(len(data) - 5, 10)) == data[-5:]
        assert bytes(file.read(len(data) + 5, 10)) == b""
        with pytest.raises(CorruptShard, match="sequence"):
            file.read(0, 1)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_damaged_compression(ending: str, tmp_path: Path) -> None:
    """A cut or damaged stream is damage, or ends early; no other error comes of it."""
    path = _packed(tmp_path, os.urandom(5000), ending)
    with open(path, "rb") as whole:
        raw = whole.read()
    for damaged in [raw[:at] for at in range(0, len(raw), 97)] + [b"x" + raw[1:], raw[:60] + b"\xff" * 40 + raw[100:]]:
        with open(path, "wb") as file:
            file.write(damaged)
        try:
            with PackedFile(path) as packed:
                assert len(packed.read(0, 10_000)) <= 5000
        except CorruptShard:
            pass


def test_formats_by_name() -> None:
    """The ending tells the format, TensorFlow's `-00000-of-00010` included."""
    for name in ("a.tar", "a.tar.gz", "a.tgz", "a.tar.zst"):
        assert shard_format(name) == "tar"
    for name in ("a.tfrecord", "a.tfrecords", "train.tfrecord-00000-of-00010"):
        assert shard_format(name) == "tfrecord"
    with pytest.raises(InvalidRequest):
        shard_format("a.zip")
