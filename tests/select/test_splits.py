from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest
from shardtool.request.create_options import CreateOptions
from shardtool.request.split_options import SplitOptions, format_shares, parse_shares
from shardtool.select.splits import SplitAssignment, assign_splits
from tests.helpers import ENVIRONMENT, REPO

THREE = parse_shares("train=0.8,val=0.1,test=0.1")
HALVES = parse_shares("a=50,b=50")

KEYS = st.lists(st.binary(min_size=1, max_size=8).filter(lambda key: b"\0" not in key), unique=True, max_size=60)
SEEDS = st.integers(-5, 2**70)


@st.composite
def shares(draw: st.DrawFn) -> tuple[tuple[str, Decimal], ...]:
    """Return the shares of one to five splits, with sum 1."""
    weights = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    parts = [Decimal(weight * 10**8 // sum(weights)).scaleb(-8) for weight in weights]
    parts[0] += 1 - sum(parts)
    return tuple((f"split-{at}", part) for at, part in enumerate(parts))


def made_keys(count: int) -> PackedStrings:
    """Return keys as in a manifest."""
    return PackedStrings.of(b"imgs/%06d" % at for at in range(count))


def column(values: list[Any], kind: Any = None) -> Any:
    """Return values as a column of two chunks."""
    middle = len(values) // 3
    kind = kind or pa.array(values).type
    return pa.chunked_array([pa.array(values[:middle], kind), pa.array(values[middle:], kind)])


def by_key(keys: list[bytes], splits: SplitAssignment) -> dict[bytes, str]:
    """Return the split of each key, by name."""
    return {key: splits.names[number] for key, number in zip(keys, splits.number.tolist(), strict=True)}


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("train=0.8,val=0.1,test=0.1", [("train", "0.8"), ("val", "0.1"), ("test", "0.1")]),
        ("train=80%,val=10 %,test=10%", [("train", "0.80"), ("val", "0.10"), ("test", "0.10")]),
        ("train=80,val=10,test=10", [("train", "0.80"), ("val", "0.10"), ("test", "0.10")]),
        (" train = .9 , val=0.1 ", [("train", "0.9"), ("val", "0.1")]),
        ("all=1", [("all", "1")]),
        ("all=100", [("all", "1")]),
        ("a=33.4,b=33.3,c=33.3", [("a", "0.334"), ("b", "0.333"), ("c", "0.333")]),
        ("0=0.5,x_Y-9=0.5", [("0", "0.5"), ("x_Y-9", "0.5")]),
        ("a=0.00000001,b=0.99999999", [("a", "0.00000001"), ("b", "0.99999999")]),
    ],
)
def test_shares(text: str, means: list[tuple[str, str]]) -> None:
    """Shares that add up to 1 or 100 are parsed exactly, and keep their order."""
    assert parse_shares(text) == tuple((name, Decimal(share)) for name, share in means)


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ({"a": 0.8, "b": 0.2}, "a=0.8,b=0.2"),
        ({"a": 80, "b": 20}, "a=80,b=20"),
        ({"a": "80%", "b": "20%"}, "a=80%,b=20%"),
        ({"a": 1.0}, "a=1"),
        ({"a": 0.9, "b": 1 - 0.9}, "a=0.9,b=0.1"),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, "a=0.33333333,b=0.33333333,c=0.33333334"),
        ({"a": Fraction(1, 6), "b": Fraction(5, 6)}, "a=0.16666667,b=0.83333333"),
        ({"a": np.float32(0.9), "b": np.float32(0.1)}, "a=0.89999998,b=0.10000002"),
    ],
)
def test_shares_of_numbers(shares: Any, text: str) -> None:
    """Python numbers are rounded to shares whose sum is 1."""
    assert format_shares(shares) == text
    parse_shares(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "''"),
        (",", "''"),
        ("train", "'train'"),
        ("train=", "'train='"),
        ("=1", "'=1'"),
        ("train=0.8,", "''"),
        ("train=much,val=0.2", "'train=much'"),
        ("train=1e0", "'train=1e0'"),
        ("train=-1,val=2", "'train=-1'"),
        ("train=nan", "'train=nan'"),
        ("train=\uff11", "'train=\uff11'"),
        ("train=0,val=1", "the share 0 of train"),
        ("train=0.8,val=0.1", "the sum 0.9"),
        ("train=8,val=1,test=1", "the sum 10"),
        ("train=80,val=10,test=11", "the sum 101"),
        ("train=80%,val=20", "some shares with % and some without"),
        ("train=0.8%,val=0.2%", "the sum 0.01"),
        ("train=0.5,train=0.5", "train twice"),
        ("train=0.5,Train=0.5", "train and Train"),
        ("a/b=0.5,..=0.5", "'a/b', '..'"),
        ("a b=1", "'a b'"),
        ("ä=1", "'ä'"),
        (f"{'x' * 65}=1", "xxx"),
        ("a=0.000000001,b=0.999999999", "0.000000001".replace("0.000000001", "1E-9")),
    ],
)
def test_invalid_shares_are_refused(text: str, found: str) -> None:
    """Shares that are not positive, do not add up, or have invalid or repeated names are refused."""
    with pytest.raises(InvalidRequest) as caught:
        parse_shares(text)
    assert caught.value.where == "split"
    assert found in caught.value.found


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"stratify": "x"}, "stratify"),
        ({"group_by": "x"}, "group_by"),
        ({"split": {"a": float("nan")}}, "split"),
        ({"split": "a=0.5,a=0.5"}, "split"),
        ({"split": "a=1", "split_column": "x"}, "split_column"),
        ({"split": "a=1", "split_column": "x", "group_by": "y"}, "split_column"),
        ({"split": "a=1", "split_column": "x", "stratify": "y"}, "split_column"),
        ({"split": "a=1", "stratify": "x", "group_by": "y"}, "group_by"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, Any], where: str) -> None:
    """Conflicting options are refused, and the message names them."""
    with pytest.raises(InvalidRequest) as caught:
        CreateOptions(**options).make_split_options()
    assert caught.value.where == where


def test_the_column_that_is_read() -> None:
    """The options report which column they need, and for which option."""
    assert SplitOptions(THREE).option_and_column is None
    assert SplitOptions(THREE, stratify="x").option_and_column == ("stratify", "x")
    assert SplitOptions(THREE, group_by="x").option_and_column == ("group_by", "x")
    assert SplitOptions(column="x").option_and_column == ("split_column", "x")


@given(KEYS, shares(), SEEDS, st.data())
def test_a_sample_keeps_its_split(
    keys: list[bytes], parts: tuple[tuple[str, Decimal], ...], seed: int, data: st.DataObject
) -> None:
    """The split of a sample depends only on its key, the seed and the shares, not on other samples or the order."""
    options = SplitOptions(parts, seed=seed)
    whole = by_key(keys, assign_splits(PackedStrings.of(keys), options))
    some = data.draw(st.permutations(keys))[: len(keys) // 2]
    assert by_key(some, assign_splits(PackedStrings.of(some), options)) == {key: whole[key] for key in some}


def test_splits_are_the_same_everywhere() -> None:
    """A seed splits these keys in the same way on every machine and in every version."""
    keys = made_keys(40)
    splits = assign_splits(keys, SplitOptions(HALVES, seed=7))
    assert "".join(map(str, splits.number.tolist())) == "0100010010110010001010101101001101000110"
    same = assign_splits(
        made_keys(40), SplitOptions(HALVES, group_by="g", seed=7), column([keys[at] for at in range(40)])
    )
    assert same.number.tolist() == splits.number.tolist()


@given(KEYS, SEEDS)
def test_few_samples_move_when_shares_change(keys: list[bytes], seed: int) -> None:
    """If the last bound of a split moves, the split gets samples only from its neighbour, and loses none."""
    small = by_key(
        keys, assign_splits(PackedStrings.of(keys), SplitOptions(parse_shares("a=0.5,b=0.3,c=0.2"), seed=seed))
    )
    large = by_key(
        keys, assign_splits(PackedStrings.of(keys), SplitOptions(parse_shares("a=0.7,b=0.1,c=0.2"), seed=seed))
    )
    assert {(small[key], large[key]) for key in keys} <= {("a", "a"), ("b", "a"), ("b", "b"), ("c", "c")}


def test_the_hash_is_uniform() -> None:
    """Of 100,000 keys, each split has its share by a chi-square bound, for several seeds."""
    keys, expected = made_keys(100_000), np.array([80_000, 10_000, 10_000])
    for seed in range(5):
        counts = np.bincount(assign_splits(keys, SplitOptions(THREE, seed=seed)).number, minlength=3)
        assert ((counts - expected) ** 2 / expected).sum() < 18.4  # 2 degrees of freedom: 1 in 10,000


def test_seeds_are_independent() -> None:
    """The splits of two seeds, or of neighbouring keys, are independent by chi-square of the joint counts."""
    keys = made_keys(100_000)
    one, two = (assign_splits(keys, SplitOptions(parse_shares("a=50,b=30,c=20"), seed=seed)).number for seed in (1, 2))
    part = np.array([0.5, 0.3, 0.2])
    for left, right in ((one, two), (one[1:], one[:-1])):
        joint = np.bincount(left * 3 + right, minlength=9).reshape(3, 3)
        expected = np.outer(part, part) * len(left)
        assert ((joint - expected) ** 2 / expected).sum() < 31.8  # 8 degrees of freedom: 1 in 10,000


@given(st.lists(st.integers(0, 12), max_size=60), shares(), SEEDS)
def test_groups_stay_whole(groups: list[int], parts: tuple[tuple[str, Decimal], ...], seed: int) -> None:
    """All samples of a group are in one split, which does not depend on other groups."""
    options = SplitOptions(parts, group_by="patient", seed=seed)
    splits = assign_splits(made_keys(len(groups)), options, column(groups, pa.int64()))
    result = dict(zip(groups, splits.number.tolist(), strict=True))
    assert [result[group] for group in groups] == splits.number.tolist()
    for group, split in result.items():
        assert assign_splits(PackedStrings.of([b"another"]), options, column([group])).number.tolist() == [split]


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.binary(1),
        pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64()),
    ],
)  # fmt: skip
def test_groups_do_not_depend_on_types(kind: Any) -> None:
    """The group 7 is in the same split as an integer, a float, text, bytes or a category."""
    numbers, options = list(range(10)), SplitOptions(HALVES, group_by="g")
    text = "dictionary<values=string" in str(kind) or kind in (pa.string(), pa.large_string())
    values: list[Any] = [str(item) if text else b"%d" % item if "binary" in str(kind) else item for item in numbers]
    expected = assign_splits(made_keys(10), options, column(numbers)).number
    assert sorted(set(expected.tolist())) == [0, 1]
    assert assign_splits(made_keys(10), options, column(values, kind)).number.tolist() == expected.tolist()


def test_times_do_not_depend_on_unit_and_zone() -> None:
    """A group of times does not change with the unit or the time zone."""
    times = [dt.datetime(2020, 1, day, 12, 30, day, tzinfo=dt.timezone.utc) for day in range(1, 20)]
    kinds = [pa.timestamp(unit, zone) for unit in ("s", "us", "ns") for zone in ("UTC", "Europe/Berlin")]
    options = SplitOptions(HALVES, group_by="g")
    result = {tuple(assign_splits(made_keys(19), options, column(times, kind)).number.tolist()) for kind in kinds}
    assert len(result) == 1


LABELS = st.lists(st.integers(0, 7), max_size=80)


@given(LABELS, shares(), SEEDS)
def test_labels_have_exact_shares(labels: list[int], parts: tuple[tuple[str, Decimal], ...], seed: int) -> None:
    """Each label has its exact share in each split, rounded, and totals are off by less than two samples."""
    splits = assign_splits(
        made_keys(len(labels)), SplitOptions(parts, stratify="x", seed=seed), column(labels, pa.int64())
    )
    counts = Counter(zip(labels, splits.number.tolist(), strict=True))
    for label, size in Counter(labels).items():
        for split, (_, share) in enumerate(parts):
            assert abs(counts[label, split] - size * share) < 1
    for split, (_, share) in enumerate(parts):
        assert abs(len(splits.samples(split)) - len(labels) * share) < 2


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([10], [[8, 1, 1]]),
        ([1], [[1, 0, 0]]),
        ([5], [[4, 1, 0]]),
        ([7], [[5, 1, 1]]),
        ([1, 1, 1, 1, 10], [[1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [8, 1, 1]]),
        ([10, 5, 5], [[8, 1, 1], [4, 1, 0], [4, 0, 1]]),
    ],
)
def test_remainders_go_to_the_largest(sizes: list[int], counts: list[list[int]]) -> None:
    """Remaining samples of a label go to the largest remainders, and many tiny labels do not all go to one split."""
    labels = [f"{label:02}" for label, size in enumerate(sizes) for _ in range(size)]
    splits = assign_splits(made_keys(len(labels)), SplitOptions(THREE, stratify="x"), column(labels))
    result = Counter(zip(labels, splits.number.tolist(), strict=True))
    assert [[result[f"{label:02}", split] for split in range(3)] for label in range(len(sizes))] == counts


def test_ten_thousand_tiny_labels_keep_the_totals() -> None:
    """Labels of one to three samples leave every split within two samples of its share."""
    sizes = np.random.default_rng(5).integers(1, 4, 10_000)
    labels = np.repeat(np.arange(10_000), sizes).tolist()
    splits = assign_splits(made_keys(len(labels)), SplitOptions(THREE, stratify="x"), column(labels))
    for split, (_, share) in enumerate(THREE):
        assert abs(len(splits.samples(split)) - len(labels) * share) < 2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_labels_do_not_depend_on_the_order(labels: list[int], random: Any) -> None:
    """With labels, too, the order of the input changes no sample's split."""
    keys = [b"%03d" % at for at in range(len(labels))]
    options = SplitOptions(THREE, stratify="x", seed=3)
    order = random.sample(range(len(labels)), len(labels))
    straight = by_key(keys, assign_splits(PackedStrings.of(keys), options, column(labels)))
    mixed_keys, mixed = [keys[at] for at in order], column([labels[at] for at in order])
    assert by_key(mixed_keys, assign_splits(PackedStrings.of(mixed_keys), options, mixed)) == straight


@given(LABELS, shares(), st.sampled_from(["shares", "stratify", "group_by", "column"]))
def test_splits_are_a_partition(labels: list[int], parts: tuple[tuple[str, Decimal], ...], how: str) -> None:
    """Each sample is in exactly one split, in order, with any option."""
    options = SplitOptions(**{"shares": parts if how != "column" else (), how: parts if how == "shares" else "x"})  # type: ignore[arg-type]
    splits = assign_splits(made_keys(len(labels)), options, column(labels, pa.int64()))
    samples = [splits.samples(split).tolist() for split in range(len(splits.names))]
    assert all(sample == sorted(sample) for sample in samples)
    assert sorted(at for sample in samples for at in sample) == list(range(len(labels)))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["val", "train", "val", "Test"], ("Test", "train", "val")),
        ([2, 10, 2, -1], ("-1", "10", "2")),
        ([True, False, True, True], ("false", "true")),
        ([0.0, 1.0, 1.0, 0.0], ("0", "1")),
        ([dt.date(2020, 1, 2), dt.date(2019, 1, 2)], ("2019-01-02", "2020-01-02")),
        (pa.array(["b", "a", "b", "b"]).dictionary_encode(), ("a", "b")),
    ],
)
def test_a_column_names_the_split(values: Any, names: tuple[str, ...]) -> None:
    """The split names are the column's values as text in byte order, and each sample is in the split of its value."""
    rows = pa.chunked_array([values]) if isinstance(values, pa.Array) else column(values)
    splits = assign_splits(made_keys(len(rows)), SplitOptions(column="part"), rows)
    assert splits.names == names
    messages = [splits.names[number].lower() for number in splits.number.tolist()]
    assert messages == [str(item).lower().removesuffix(".0") for item in rows.to_pylist()]
    assert splits.notes == ()


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["train", "../val"], "'../val'"),
        (["train", ""], "''"),
        (["train", "val "], "'val '"),
        (["train", "Train"], "Train and train"),
        ([0.5, 1.5], "'0.5', '1.5'"),
        ([b"\xff", b"a"], r"'\udcff'"),
        ([[1], [2]], "list<"),
        ([{"a": 1}], "struct<"),
        ([*map(str, range(1001))], "more than 1,000 different values of part, such as 0, 1, 2"),
    ],
)
def test_invalid_split_names_in_a_column_are_refused(values: list[Any], found: str) -> None:
    """Values that cannot be part of a file name, or too many different values, are refused."""
    with pytest.raises(InvalidRequest) as caught:
        assign_splits(made_keys(len(values)), SplitOptions(column="part"), column(values))
    assert caught.value.where == "split_column"
    assert found in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"shares": THREE, "stratify": "x y"}, {"shares": THREE, "group_by": "x"}, {"column": "x"}]
)
@pytest.mark.parametrize(
    "missing", [[None, 1.5], [float("nan"), 1.0], [None, "a"], [None, True], [None, b"a"], [None, dt.date(2020, 1, 1)]]
)
def test_samples_without_a_value_are_refused(options: dict[str, Any], missing: list[Any]) -> None:
    """Nulls and NaN are refused with their number, the first five keys, and how to exclude them."""
    values = [missing[1], *[missing[0]] * 6, missing[1]]
    with pytest.raises(InvalidRequest) as caught:
        assign_splits(made_keys(8), SplitOptions(**options), column(values))
    assert caught.value.found.startswith("6 samples without a value of x")
    assert caught.value.found.endswith(": " + ", ".join(f"imgs/{at:06}" for at in range(1, 6)) + " and 1 more")
    assert ("`x y`.notna()" if "stratify" in options else "x.notna()") in caught.value.remedy


def test_nulls_inside_a_category_are_refused() -> None:
    """A category that is null has no value; nor has a column of only nulls."""
    category = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["x", None]))
    for values in (category, pa.nulls(2)):
        with pytest.raises(InvalidRequest, match="without a value of g"):
            assign_splits(made_keys(2), SplitOptions(THREE, group_by="g"), pa.chunked_array([values]))


def test_text_that_is_not_utf8_is_a_value() -> None:
    """A label that is not valid UTF-8 is accepted, and printed safely."""
    raw = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xffa"))
    splits = assign_splits(made_keys(2), SplitOptions(THREE, stratify="x"), pa.chunked_array([raw]))
    assert r"\xff (1 sample, none in val, test)" in " ".join(splits.notes)


@pytest.mark.parametrize(
    ("options", "values", "notes"),
    [
        ({"shares": parse_shares("all=1")}, ["a"] * 5, []),
        ({"shares": HALVES, "stratify": "x"}, ["dog"] * 4, []),
        ({"shares": THREE, "stratify": "x"}, ["dog"] * 30, []),
        (
            {"shares": THREE, "stratify": "x"}, ["cat"] * 2 + ["dog"] * 30 + ["eel"],
            [
                ("2 labels of x too small for every split: "
                 "cat (2 samples, none in val, test), eel (1 sample, none in val, test)"),
            ],
        ),
        (
            {"shares": THREE, "stratify": "x"}, ["cat"],
            [
                "2 splits without samples: val, test",
                "1 label of x too small for every split: cat (1 sample, none in val, test)",
            ],
        ),
        (
            {"shares": HALVES, "group_by": "x"}, ["cat"] * 4,
            ["1 split without samples: b", "a has 4 of 4 samples instead of 50 % (each group stays in one split)"],
        ),
    ],
)  # fmt: skip
def test_notes(options: dict[str, Any], values: list[str], notes: list[str]) -> None:
    """Notes name empty splits, labels that are missing from a split, and shares that deviate much."""
    assert list(assign_splits(made_keys(len(values)), SplitOptions(**options), column(values)).notes) == notes


def test_deviating_shares_are_noted() -> None:
    """A note reports shares that deviate because there are few keys; with many keys there is none."""
    [note] = assign_splits(made_keys(4), SplitOptions(HALVES)).notes
    assert note == (
        "a has 1 of 4 samples instead of 50 %, b has 3 of 4 samples instead of 50 % "
        "(samples are split by hash; use stratify for exact shares)"
    )
    assert assign_splits(made_keys(20_000), SplitOptions(HALVES)).notes == ()


_MANY = """
import resource, sys, time
import numpy as np
from shardtool.entries.strings import PackedStrings
from shardtool.request.split_options import SplitOptions, parse_shares
from shardtool.select.splits import assign_splits
count = 1_000_000
keys = PackedStrings.parse(b"".join(b"imgs/%09d\\0" % at for at in range(count)))
before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
splits = assign_splits(keys, SplitOptions(parse_shares("train=0.9,test=0.1")))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(splits.number.dtype, grown * 1024 < 30 * count, time.process_time() - begun < 10)
print(*{"pandas", "pyarrow"} & {*sys.modules})
"""


@pytest.mark.slow
def test_splitting_takes_little_memory() -> None:
    """A million keys take well under 100 bytes each and a few seconds, and import neither pyarrow nor pandas."""
    done = subprocess.run(
        [sys.executable, "-c", _MANY], cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("int16 True True\n\n", "", 0)
