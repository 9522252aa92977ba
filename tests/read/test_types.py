"""The types of samples: mypy checks each `assert_type`, and the test compares them with the values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import shardtool
from shardtool.read.mix import MixedDataset
from shardtool.read.options import RawSample
from shardtool.read.streamable import BundledDataset, Streamable
from tests.read.packed import packed

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import assert_type
else:

    def assert_type(value: Any, _: object) -> Any:
        """Return the value."""
        return value


def _size(sample: dict[str, Any]) -> int:
    return len(sample["bin"])


def test_types_of_samples(tmp_path: Path) -> None:
    """`decode`, `map` and `tuple` change the type of the samples, of datasets, mixes and streams."""
    dataset = assert_type(shardtool.open(packed(tmp_path / "set")), shardtool.Dataset[RawSample])
    assert type(assert_type(dataset[0], RawSample)) is dict
    assert type(assert_type(dataset[0]["__key__"], str)) is str
    assert type(assert_type(dataset["a/000"]["bin"], bytes)) is bytes
    assert type(assert_type(dataset[[0, 1]], list[RawSample])) is list
    view = assert_type(dataset[:5], shardtool.Dataset[RawSample])
    assert_type(view.where("number > 1").select([0]).take(3), shardtool.Dataset[RawSample])
    decoded = assert_type(view.decode(on_error="skip"), shardtool.Dataset[dict[str, Any]])
    pairs = assert_type(decoded.fields("bin", "txt").tuple("bin", "txt"), shardtool.Dataset[tuple[Any, ...]])
    assert type(assert_type(pairs.head(2)[0], tuple[Any, ...])) is tuple
    sizes = assert_type(decoded.map(_size), shardtool.Dataset[int])
    assert type(assert_type(sizes[-1], int)) is int
    stream = assert_type(sizes.stream(), shardtool.Stream[int])
    assert [type(assert_type(size, int)) for size in stream] == [int] * 5
    tuples = assert_type(dataset.stream().decode().tuple("bin"), shardtool.Stream[tuple[Any, ...]])
    assert type(assert_type(next(iter(tuples)), tuple[Any, ...])) is tuple
    mixed = assert_type(shardtool.mix([sizes, sizes]), MixedDataset[int])
    assert type(assert_type(mixed[0], int)) is int
    assert_type(mixed.map(str).stream(), shardtool.Stream[str])
    bundles = assert_type(dataset.pack(64, "bin", dtype="uint8"), BundledDataset[dict[str, Any]])
    assert_type(bundles.tuple("tokens"), Streamable[tuple[Any, ...]])
    with_metadata = shardtool.open(tmp_path / "set", metadata=True)
    assert type(assert_type(with_metadata, shardtool.Dataset[dict[str, Any]])[0]["number"]) is int
