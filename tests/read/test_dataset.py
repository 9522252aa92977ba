"""Samples by number and key, in lists and as views."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, UnknownKey
from shardtool.request.split_options import SplitOptions, parse_shares
from shardtool.select.splits import assign_splits
from tests.read.packed import COUNT, SHARDS, key_of, packed, sample_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool import Dataset

SAMPLES = [sample_of(number) for number in range(COUNT)]
KEYS = [key_of(number) for number in range(COUNT)]
PLACES = st.integers(-COUNT, COUNT - 1)
SLICES = st.builds(
    slice, *[st.none() | st.integers(-COUNT - 3, COUNT + 3)] * 2, st.sampled_from([None, 1, 2, 5, -1, -3])
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, ending: str) -> Dataset:
    """A dataset of 23 samples in 6 shards."""
    return shardtool.open(packed(tmp_path_factory.mktemp("read") / ending, f"out-{{000..}}.{ending}"))


def test_numbers(dataset: Dataset) -> None:
    """Each sample is found by its number, from the start or the end; other numbers are an IndexError."""
    assert len(dataset) == COUNT
    assert [dataset[at] for at in range(COUNT)] == SAMPLES
    assert [dataset[at - COUNT] for at in range(COUNT)] == SAMPLES
    assert [*dataset] == SAMPLES
    for bad in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError, match=f"sample {bad} of {COUNT}"):
            dataset[bad]


def test_keys(dataset: Dataset) -> None:
    """Each sample is found by its key, alone and in lists; an error names unknown keys."""
    assert [dataset[key] for key in KEYS] == SAMPLES
    assert dataset[KEYS[::-2]] == SAMPLES[::-2] == dataset[tuple(KEYS[::-2])] == dataset[np.array(KEYS[::-2])]
    assert "a/001" in dataset
    assert "a/1" not in dataset
    assert 1 not in dataset
    with pytest.raises(UnknownKey, match=r"'a/1': no sample has this key; expected keys such as"):
        dataset["a/1"]
    with pytest.raises(KeyError, match="'a/1', 'c/000': 2 keys do not exist"):
        dataset[["a/000", "a/1", "c/000"]]


@given(positions=st.lists(PLACES), cut=SLICES)
def test_lists_and_slices(dataset: Dataset, positions: list[int], cut: slice) -> None:
    """A list returns its samples in order; a slice is a view with the samples of the same list slice."""
    assert dataset[positions] == [SAMPLES[at] for at in positions] == dataset[np.array(positions, np.int32)]
    assert [*dataset[cut]] == SAMPLES[cut]
    assert [*dataset[cut].keys] == KEYS[cut] == dataset.keys[cut]


@given(cuts=st.lists(SLICES, min_size=2, max_size=3), mask=st.lists(st.booleans(), min_size=COUNT, max_size=COUNT))
def test_views_of_views(dataset: Dataset, cuts: list[slice], mask: list[bool]) -> None:
    """A view of a view equals a list of a list; a mask selects the samples where it is true."""
    view = dataset.select(np.array(mask))
    expected = [sample for sample, kept in zip(SAMPLES, mask, strict=True) if kept]
    assert dataset[np.array(mask)] == expected
    for cut in cuts:
        view, expected = view[cut], expected[cut]
    assert view[range(len(view))] == expected
    assert len(view) == len(expected)
    assert [view[str(sample["__key__"])] for sample in expected] == expected
    shuffled = [] if not expected else [*view.stream(rank=0, world_size=1)]
    assert sorted(shuffled, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("index", [1.5, None, [1.5], [None], [[1]], [[1], [1, 2]], ["a/000", 1], b"a/000"])
def test_invalid_indexes(dataset: Dataset, index: Any) -> None:
    """Anything but numbers, keys, slices, lists and masks is rejected."""
    with pytest.raises(InvalidRequest, match=r"invalid index .*; expected a number, a key, a slice"):
        dataset[index]


def test_pandas_columns_are_indexes(dataset: Dataset) -> None:
    """A pandas column works like a list of its numbers, keys or booleans."""
    columns: list[tuple[Any, list[object]]] = [
        (pd.Series([2, 1]), [SAMPLES[2], SAMPLES[1]]),
        (pd.Index(KEYS[3:5]), [*SAMPLES[3:5]]),
        (pd.Series([at == 4 for at in range(COUNT)]), [SAMPLES[4]]),
    ]
    for column, expected in columns:
        assert dataset[column] == expected
        assert [*dataset.select(column)] == expected


def test_file_names_and_numbers_as_keys(dataset: Dataset) -> None:
    """An error suggests the key for a file name, and says that keys are text."""
    with pytest.raises(UnknownKey, match=r"^'a/001.tar.gz': .* Use 'a/001': a key has no extension\.$"):
        dataset["a/001.tar.gz"]
    for unknown in ("a/x.txt", "a.b/001", ".txt", "", "half of a pair: \ud800"):
        assert unknown not in dataset
        with pytest.raises(UnknownKey, match=r"such as those in `\.keys`$"):
            dataset[unknown]
    with pytest.raises(InvalidRequest, match=r"^select: 'a/001'; expected a list .*\['a/001'\].* fields\(...\)"):
        dataset.select("a/001")
    with pytest.raises(InvalidRequest, match=r"^select: 5; expected a list .*\[5\]"):
        dataset.select(5)  # type: ignore[arg-type]


def test_repr(dataset: Dataset) -> None:
    """The repr shows the contents and stages."""
    assert repr(dataset).endswith(": 23 samples in 6 shards, fields bin, txt>")
    chained = dataset[:9].decode().tuple("bin", "txt").batch(4)
    assert repr(chained).endswith(": 9 of 23 samples in 6 shards, fields bin, txt; decode; tuple; batch>")
    stream = chained.stream(seed=3, rank=1, world_size=2)
    assert repr(stream) == "<Stream: 4 samples, shuffle=True, seed=3, epoch=0, rank 1 of 2; decode; tuple; batch>"
    mixed = shardtool.mix([dataset, dataset[:4]], [1, 1], stop=8).fields("bin")
    assert repr(mixed) == "<Mixture: 8 samples an epoch; fields>"


def test_masks_of_another_length(dataset: Dataset) -> None:
    """A mask needs one value per sample."""
    with pytest.raises(IndexError, match="a mask of length 2 for 23 samples"):
        dataset[[True, False]]


def test_keys_of_a_view(dataset: Dataset) -> None:
    """A view contains only its own keys."""
    view = dataset[3:5]
    assert (KEYS[3] in view, KEYS[2] in view) == (True, False)
    assert view[KEYS[3]] == SAMPLES[3]
    with pytest.raises(UnknownKey, match="no sample has this key in this view"):
        view[KEYS[2]]


def test_where(dataset: Dataset) -> None:
    """A query selects samples by metadata, key, size and number of fields; in views, their order is kept."""
    assert [*dataset.where("bi == 'dog' and number > 5").keys] == [key_of(at) for at in range(7, COUNT, 3)]
    assert [*dataset.where("fields == 1").keys] == KEYS[5::6]
    assert [*dataset[::-1].where("key.str.startswith('b/')").where("size < 4500").keys] == KEYS[14:9:-1]
    assert len(dataset.where("bi == 'cow'")) == 0
    assert [*dataset.where("bi == 'cow'")] == []
    with pytest.raises(InvalidRequest, match="kind: no such column; expected one of number, bi, key"):
        dataset.where("kind == 1")
    with pytest.raises(InvalidRequest, match="where: 5; expected a query"):
        dataset.where(5)  # type: ignore[arg-type]


def test_select_by_keys(dataset: Dataset) -> None:
    """A view by keys keeps the order of the keys; an unknown split names the known ones."""
    keys = [KEYS[at] for at in (9, 2, 22, 3)]
    assert [*dataset.select(iter(keys)).keys] == keys
    assert [*dataset.select(keys)] == dataset[keys]
    with pytest.raises(UnknownKey, match="'x/1', 'x/2', 'x/3', 'x/4', 'x/5' and 2 more: 7 keys do not exist"):
        dataset.select([*keys, *(f"x/{at}" for at in range(1, 8))])
    with pytest.raises(InvalidRequest, match=r"partition: no split 'train'; expected one of out\. To choose"):
        dataset.partition("train")


@given(count=st.integers(0, COUNT + 3), cut=SLICES)
def test_first_samples(dataset: Dataset, count: int, cut: slice) -> None:
    """`take` returns a view and `head` a list of the first samples, or of all if there are fewer."""
    view = dataset[cut]
    assert [*view.take(count)] == view.head(count) == SAMPLES[cut][:count]


def test_first_samples_need_a_number(dataset: Dataset) -> None:
    """`take` and `head` reject negative numbers and lists."""
    for method in (dataset.take, dataset.head):
        for wrong in (-1, [0, 1], "jpg"):
            with pytest.raises(InvalidRequest, match=r"^n: .*; expected a whole number, 0 or more"):
                method(wrong)  # type: ignore[arg-type]


@given(seed=st.integers(0, 99), share=st.integers(1, 99))
def test_splits_by_shares(dataset: Dataset, seed: int, share: int) -> None:
    """Splits partition a dataset or view in its order, by the same hash as `create --split`."""
    shares = {"train": share / 100, "val": 1 - share / 100}
    divided = shardtool.open([*map(str, dataset.reader.catalog.name.split(", "))], splits=shares, seed=seed)
    options = SplitOptions(parse_shares(f"train={share}%,val={100 - share}%"), seed=seed)
    number = assign_splits(PackedStrings.of(map(str.encode, KEYS)), options).number
    for split, name in enumerate(shares):
        there = [key for key, key_split in zip(KEYS, number, strict=True) if key_split == split]
        assert [*divided.partition(name).keys] == there
        assert [*divided[::-2].partition(name).keys] == [key for key in KEYS[::-2] if key in there]
    assert divided.splits == {name: int((number == at).sum()) for at, name in enumerate(shares)}
    assert pickle.loads(pickle.dumps(divided)).splits == divided.splits  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"a": 0.5}, "the sum 0.5"), ({"a/b": 1}, "invalid split names"), (5, "expected shares such as"),
        ({}, "expected shares"), ("a=0.5;b=0.5", "expected shares"), ({"a": None}, "a=None"), (["a"], "split:"),
    ],
)  # fmt: skip
def test_invalid_splits(dataset: Dataset, splits: Any, message: str) -> None:
    """Invalid shares and unknown splits are rejected before anything is read."""
    with pytest.raises(InvalidRequest, match=message):
        shardtool.open(dataset.reader.catalog.name, splits=splits)
    with pytest.raises(InvalidRequest, match="no split 'test'; expected one of train, val"):
        shardtool.open(dataset.reader.catalog.name, splits="train=90,val=10").partition("test")


def test_columns(dataset: Dataset, tmp_path: Path) -> None:
    """A sidecar column is a list in the order of the samples or the view; an error names the existing columns."""
    assert dataset.column("number") == [*range(COUNT)]
    assert dataset.select([20, 1, 2, 1]).column("bi") == [None, "dog", None, "dog"]
    assert dataset[:0].column("bi") == []
    assert dataset.columns == ["number", "bi"]
    frame = dataset.select([20, 1, 2]).to_pandas()
    assert [*frame.columns] == ["__key__", "number", "bi"]
    assert [*frame["__key__"]] == [KEYS[20], KEYS[1], KEYS[2]]
    assert [*dataset.select(dataset.to_pandas()["number"] > 20).keys] == KEYS[21:]
    with pytest.raises(
        InvalidRequest, match=r"column 'cls': no sidecar has this column; .* number, bi.*columns_from='cls'"
    ):
        dataset.column("cls")
    with shardtool.ShardWriter(tmp_path / "o-{0..}.tar") as writer:
        writer.write({"__key__": "a", "txt": "a"})
    with pytest.raises(InvalidRequest, match="no sidecar has this column; they have no metadata columns"):
        shardtool.open(tmp_path / "o.json").column("cls")


def test_table(dataset: Dataset) -> None:
    """All sidecars are one table with shard names; a view's table has its rows, in its order."""
    table = dataset.table().to_table(columns=["__key__", "__shard__", "number", "bi"]).to_pylist()
    assert [row["__key__"] for row in table] == KEYS
    assert [row["number"] for row in table] == [*range(COUNT)]
    assert len({row["__shard__"] for row in table}) == SHARDS
    numbers = [20, 1, 2, 19, 1]
    rows = dataset.select(numbers).table().to_table(columns=["__key__", "__shard__", "number", "bi"]).to_pylist()
    assert rows == [table[at] for at in numbers]
    assert dataset.schema.names == dataset.table().schema.names
    assert dataset.table().count_rows() == COUNT


def test_attributes(dataset: Dataset) -> None:
    """A dataset and a view report fields and their counts, name and fingerprint."""
    assert dataset.field_counts == {"bin": COUNT, "txt": COUNT - 3}
    assert dataset[:6].field_counts == {"bin": 6, "txt": 5}
    assert dataset.splits == {"out": COUNT}
    assert dataset.fingerprint.startswith("b2:")
    prints = [
        view.fingerprint for view in (dataset, dataset[:], dataset[1:], dataset[1:][1:], dataset[2:], dataset[::-1])
    ]
    assert prints[3] == prints[4]
    assert len({*prints}) == len(prints) - 1
    assert "23 samples in 6 shards, fields bin, txt>" in repr(dataset)
    assert "2 of 23 samples" in repr(dataset[:2])


def test_pickle(dataset: Dataset) -> None:
    """A used dataset pickles to a few bytes per shard, without open files, and returns the same samples."""
    assert dataset[[*range(COUNT)]] == SAMPLES
    data = pickle.dumps(dataset)
    assert len(data) < 1500 + 150 * SHARDS
    assert pickle.loads(data)[KEYS] == SAMPLES  # noqa: S301
    view = pickle.loads(pickle.dumps(dataset[::-1]))  # noqa: S301
    assert [*view] == SAMPLES[::-1]
