from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, create
from shardtool.dataset.find import PackedFile, ShardFile, SummedFile, find_dataset, open_shard, shard_format
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.fingerprint import crc32c
from shardtool.storage.reading import read_small
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def dataset(small: Path, tmp_path: Path) -> Path:
    """Give a folder with four shards."""
    create(small, f"{tmp_path}/out/out-{{000..}}.tar", CreateOptions(max_count=3, workers=1))
    return tmp_path / "out"


def test_ways_to_name_a_dataset(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset file, a pattern, a glob, the folder and a list of shards all mean the same shards, in order."""
    names = [f"{dataset}/out-{number:03}.tar" for number in range(4)]
    ways: list[str | list[str]] = [
        f"{dataset}/out.json", f"{dataset}/out-{{000..003}}.tar", f"{dataset}/out-<000..003>.tar",
        f"{dataset}/out-{{000..}}.tar", f"{dataset}/out-%03d.tar", f"{dataset}/*.tar", str(dataset), f"{dataset}/",
        names,
    ]  # fmt: skip
    for given_ in ways:
        found = find_dataset(given_)
        assert [os.path.normpath(shard) for shard in found.shards] == names, given_
        assert os.path.normpath(found.dataset_file or "") == f"{dataset}/out.json", given_
    monkeypatch.chdir(dataset)
    assert find_dataset("out.json").shards == tuple(f"out-{number:03}.tar" for number in range(4))


def test_numbers_sort_as_numbers(tmp_path: Path) -> None:
    """`s-10.tar` comes after `s-9.tar`."""
    write_tree(tmp_path, {f"s-{number}.tar": b"" for number in (10, 9, 100)})
    assert [os.path.basename(one) for one in find_dataset(tmp_path).shards] == ["s-9.tar", "s-10.tar", "s-100.tar"]


@pytest.mark.parametrize("name", ["nothing.tar", "nothing", "no-{0..3}.tar", "no-*.tar", "out.json", "pipe:cat x",
                                  "https://example.org/x.tar", "{a,b}.tar", "x\0.tar"])  # fmt: skip
def test_what_is_not_there(name: str, tmp_path: Path) -> None:
    """A name of nothing is the user's mistake, whatever it looks like; nothing is run or fetched."""
    with pytest.raises((InvalidRequest, ValueError)) as caught:
        find_dataset(name if "://" in name or ":" in name else f"{tmp_path}/{name}")
    assert isinstance(caught.value, InvalidRequest) or "\0" in name


@pytest.mark.parametrize("url", ["/etc/passwd", "../x.tar", "a/../../x.tar", "pipe:cat /etc/passwd", "http://host/x.tar",
                                 "x\0.tar", ""])  # fmt: skip
def test_a_dataset_file_leads_nowhere_else(url: str, tmp_path: Path) -> None:
    """A dataset file, of ours or of wids, that names what is no file beside it is refused."""
    document = {"shardlist": [{"url": url, "nsamples": 1}]}
    (tmp_path / "out.json").write_text(json.dumps(document), encoding="ascii")
    with pytest.raises(CorruptShard):
        find_dataset(tmp_path / "out.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", "nothing", "[" * 100_000, '{"shardlist": 5}', '{"shardlist": [5]}',
                                  '{"shardlist": [{"url": 1e999}]}', "9" * 5000])  # fmt: skip
def test_a_file_that_is_no_dataset_file(text: str, tmp_path: Path) -> None:
    """What is none is said to be none, however deep."""
    (tmp_path / "out.json").write_text(text, encoding="ascii")
    with pytest.raises((CorruptShard, InvalidRequest)):
        find_dataset(tmp_path / "out.json")


def test_special_files(tmp_path: Path) -> None:
    """A FIFO, a folder or a link is no shard, compressed or not, and nothing waits for one."""
    os.mkfifo(tmp_path / "a.tar")
    os.mkfifo(tmp_path / "a.tar.gz")
    (tmp_path / "b.tar").mkdir()
    (tmp_path / "c.tar").symlink_to("/etc/hostname")
    (tmp_path / "c.tar.gz").symlink_to("/etc/hostname")
    for name in ("a.tar", "a.tar.gz", "b.tar", "c.tar", "c.tar.gz", "none.tar", "none.tar.zst"):
        with pytest.raises(CorruptShard):
            open_shard(str(tmp_path / name))
    with pytest.raises(OSError, match="plain"):
        read_small(str(tmp_path / "a.tar"))


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
