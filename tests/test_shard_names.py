"""Shard names of shardtool and other tools."""

from __future__ import annotations

import pytest

from shardtool.errors import InvalidRequest
from shardtool.pack.run import parse_output_pattern
from shardtool.pattern import (
    ShardName,
    is_shard_name,
    parse_numbered_name,
    parse_pattern,
    parse_shard_name,
    sidecar_name,
)

TOLD = {
    "a.tar": ShardName("tar"), "A.TAR": ShardName("tar"), "a.b.Tar": ShardName("tar"),
    "a.tar.gz": ShardName("tar", "gzip"), "a.tgz": ShardName("tar", "gzip"), "a.TAR.GZ": ShardName("tar", "gzip"),
    "a.tar.bz2": ShardName("tar", "bz2"), "a.tbz2": ShardName("tar", "bz2"), "a.tbz": ShardName("tar", "bz2"),
    "a.tar.xz": ShardName("tar", "xz"), "a.txz": ShardName("tar", "xz"),
    "a.tar.zst": ShardName("tar", "zstd"), "a.tzst": ShardName("tar", "zstd"),
    "a.tfrecord": ShardName("tfrecord"), "a.tfrecords": ShardName("tfrecord"),
    "a.tfrecord.gz": ShardName("tfrecord", "gzip"),
    "x.tfrecord-00000-of-00010": ShardName("tfrecord"), "x.tfrecord-00000-of-00010.gz": ShardName("tfrecord", "gzip"),
    "x.tar-0-of-2": ShardName("tar"),
}  # fmt: skip
UNTOLD = ["a", ".tar", "tar", "a.zip", "a.tar.index", "a.tar.part", "a.gz", "3fa1c0", "a.tfrecord-1", "train-0-of-2"]


def test_formats_are_recognised_by_name() -> None:
    """Extensions in any case, compressed or not, and TensorFlow's numbers give the format."""
    assert {name: parse_shard_name(name) for name in TOLD} == TOLD
    assert [name for name in UNTOLD if parse_shard_name(name) is not None] == []
    assert [name for name in TOLD if not is_shard_name(name)] == []
    assert [name for name in UNTOLD if is_shard_name(name)] == ["train-0-of-2"]


def test_counts_in_tensorflow_names() -> None:
    """TensorFlow's names contain number and count; names with a suffix after the count are not TensorFlow's."""
    assert parse_numbered_name("d/train-00003-of-01024") == ("d/train-", 3, 5, 1024)
    assert [
        name for name in ("train-3-of-", "x-of-10", "train-1-of-2.index", "1-2-of3") if parse_numbered_name(name)
    ] == []
    assert sidecar_name("x.tfrecord-00000-of-00010") == "x.tfrecord-00000-of-00010.index"


@pytest.mark.parametrize(
    ("names", "base"),
    [
        ("train-{00000..01023}-of-01024", "train"), ("train@1024", "train"), ("train-%05d-of-01024", "train"),
        ("x.tfrecord-{00000..01023}-of-01024", "x"), ("x.tfrecord@1024", "x"),
        ([f"train-{at:05}-of-01024" for at in range(1024)], "train"),
    ],
)  # fmt: skip
def test_notations_of_tensorflow_names(names: str | list[str], base: str) -> None:
    """All notations give the same names and dataset name."""
    pattern = parse_pattern(names)
    stem = "x.tfrecord" if base == "x" else base
    assert [pattern.shard(at) for at in (0, 1023)] == [f"{stem}-00000-of-01024", f"{stem}-01023-of-01024"]
    assert pattern.dataset_file == f"{base}.json"
    assert parse_pattern(pattern.text).shard(7) == pattern.shard(7)
    for name in (pattern.shard(5), sidecar_name(pattern.shard(5)), f"{base}.json"):
        assert pattern.owns(name), name
    for name in (f"{stem}-00005-of-01025", f"{stem}-5-of-01024", f"{stem}-00005-of-01024.gz", f"{stem}-00005"):
        assert not pattern.owns(name), name


def test_a_single_numbered_shard_is_a_range_of_one() -> None:
    """`-00000-of-00001` is a range of one shard."""
    pattern = parse_pattern("test-00000-of-00001")
    assert (pattern.base, pattern.shard(0), pattern.count) == ("test", "test-00000-of-00001", 1)
    assert parse_pattern(["a-0-of-2", "b-0-of-1"]).names == ("a-0-of-2", "b-0-of-1")


@pytest.mark.parametrize("name", ["out-{0..}.TAR", "out-{0..}.tar.gz", "x.tfrecord-{0..9}-of-10", "x@10", "out.txz"])
def test_read_only_names_are_refused_as_output(name: str) -> None:
    """Names that can only be read are refused as output."""
    parse_pattern(name)
    with pytest.raises(InvalidRequest, match=r"can be read but not written; expected .*\.tfrecord"):
        parse_output_pattern([name])
