from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest
from shardtool.request.split_options import SplitOptions, parse_shares
from shardtool.select.query import match_rows
from shardtool.select.sample_table import make_sample_table, sort_order, table_column
from shardtool.select.splits import assign_splits
from tests.helpers import ENVIRONMENT, REPO
from tests.source.spans import Payload, Sample, entries_of, sample_lists

if TYPE_CHECKING:
    from collections.abc import Callable


ZONE = dt.timezone(dt.timedelta(hours=9))
SOME_TEXT = st.text("ab\0é\uffff\U00010000", max_size=3)
SORTED: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "small": (pa.int8(), st.integers(-3, 3)),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, 1.0, math.nan])),
    "single": (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, math.nan])),
    "half": (pa.float16(), st.sampled_from([0.0, -0.0, 1.5, math.inf, -math.inf, math.nan])),
    "bool": (pa.bool_(), st.booleans()),
    "decimal": (pa.decimal128(9, 2), st.integers(-300, 300).map(lambda cents: Decimal(cents) / 100)),
    "text": (pa.string(), SOME_TEXT),
    "large": (pa.large_string(), SOME_TEXT),
    "coded": (pa.dictionary(pa.int32(), pa.string()), SOME_TEXT),
    "coded numbers": (pa.dictionary(pa.int8(), pa.float64()), st.sampled_from([-1.5, 2.0, math.nan])),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "instant": (pa.timestamp("us"), st.datetimes()),
    "zoned": (pa.timestamp("us", "Asia/Tokyo"), st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(ZONE))),  # noqa: DTZ001
    "span": (pa.duration("us"), st.timedeltas(dt.timedelta(-99), dt.timedelta(99))),
    "nothing": (pa.null(), st.none()),
}


def _model(values: list[Any], *, descending: bool) -> list[int]:
    """Return the order of Python's stable sort: text in byte order, missing values last."""

    def is_missing(value: Any) -> bool:
        return value is None or value != value  # noqa: PLR0124 - NaN

    def rank(at: int) -> Any:
        return values[at].encode() if isinstance(values[at], str) else values[at]

    there = [at for at, value in enumerate(values) if not is_missing(value)]
    return sorted(there, key=rank, reverse=descending) + [at for at, value in enumerate(values) if is_missing(value)]


@pytest.mark.parametrize("name", SORTED)
@given(data=st.data())
def test_order_equals_pythons_stable_sort(name: str, data: st.DataObject) -> None:
    """Values are sorted as by Python's stable sort in both directions, nulls and NaN last, for any chunks."""
    kind, values = SORTED[name]
    rows = data.draw(
        st.lists(st.none() | values | st.sampled_from(data.draw(st.lists(values, min_size=1))), max_size=20)
    )
    cut = data.draw(st.integers(0, len(rows)))
    descending = data.draw(st.booleans())
    typed = np.float16 if name == "half" else lambda value: value
    parts = [[None if value is None else typed(value) for value in part] for part in (rows[:cut], rows[cut:])]
    column = pa.chunked_array([pa.array(part, kind) for part in parts])
    result = sort_order(column, name, descending=descending)
    assert result.dtype == np.int64
    assert result.tolist() == _model(rows, descending=descending)


def test_order_is_stable_in_large_columns() -> None:
    """Ties keep their order in columns of many chunks and few values, which are sorted by counting."""
    values = np.random.default_rng(5).integers(0, 7, 100_000)
    for column in (values, values.astype(np.int8), values.astype(np.float64), values.astype(str)):
        parts = pa.chunked_array([pa.array(column[at : at + 9_000]) for at in range(0, len(column), 9_000)])
        for item in (parts, parts.slice(5), pa.chunked_array([parts.combine_chunks()])):
            offset = len(values) - len(item)
            up, down = sort_order(item, "n"), sort_order(item, "n", descending=True)
            assert up.tolist() == np.argsort(values[offset:], kind="stable").tolist()
            assert down.tolist() == np.argsort(-values[offset:], kind="stable").tolist()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1], [2]]), pa.array([{"a": 1}]), pa.array([b"x"]), pa.array([b"x"], pa.binary(1)),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.array([b"x"]).dictionary_encode(),
        pa.array([], pa.list_(pa.string())), pa.array([None], pa.month_day_nano_interval()),
    ],
    ids=lambda values: str(values.type),
)  # fmt: skip
def test_types_without_order_are_refused(values: Any) -> None:
    """Lists, structs, maps, bytes and intervals are refused, naming the column and its type."""
    with pytest.raises(InvalidRequest) as caught:
        sort_order(pa.chunked_array([values]), "tags")
    assert caught.value.where == "sort_by"
    assert str(caught.value.found) == f"column 'tags' holds {values.type}"


SHARDS = ("a-0.tar", "a-1.tar", "b\udcff.tar")


@given(sample_lists(keys=st.text("ab/é-", min_size=1, max_size=3)))
def test_the_table_has_sample_properties(samples: list[Sample]) -> None:
    """In addition to metadata, each row has the sample's key, shard, size and number of fields."""
    entries = entries_of(samples)
    table = make_sample_table(entries, SHARDS)
    table.validate(full=True)
    shown = ("a-0.tar", "a-1.tar", "b\\xff.tar")
    assert table.to_pylist() == [
        {
            "number": sample.number, "key": sample.key, "shard": shown[sample.file], "size": sample.size,
            "fields": len(sample.fields),
        }
        for sample in samples
    ]  # fmt: skip
    bare = make_sample_table(replace(entries, metadata=None), SHARDS)
    assert bare.column_names == ["key", "shard", "size", "fields"]
    assert bare.to_pylist() == table.select(bare.column_names).to_pylist()


QUERIES: list[tuple[str, Callable[[Sample], bool]]] = [
    ("key == 'a'", lambda sample: sample.key == "a"),
    ("key.str.startswith('b') and size > 20", lambda sample: sample.key.startswith("b") and sample.size > 20),
    ("shard == 'a-1.tar'", lambda sample: sample.file == 1),
    ("shard in ['a-0.tar', 'a-1.tar'] and fields >= 2", lambda sample: sample.file < 2 and len(sample.fields) >= 2),
    ("not shard.str.endswith('.tar')", lambda _: False),
    ("size == 0 or fields == 0", lambda sample: sample.size == 0),
    ("number % 2 == 1 and fields != 1", lambda sample: sample.number % 2 == 1 and len(sample.fields) != 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("query", "means"), QUERIES)
@given(samples=sample_lists(keys=st.text("ab", min_size=1, max_size=2)))
def test_queries_see_the_table(samples: list[Sample], query: str, means: Callable[[Sample], bool]) -> None:
    """`--where` selects the samples that match, by any column of the table."""
    entries = entries_of(samples)
    table = make_sample_table(entries, SHARDS)
    assert match_rows(table, query).tolist() == [at for at, sample in enumerate(samples) if means(sample)]


def test_the_table_can_be_sorted_and_split() -> None:
    """Samples can be sorted and split by any column of the table."""
    samples = [Sample(key, {"jpg": Payload(size, 0, 0)}, file, 0) for key, size, file in
               (("b", 3, 1), ("a", 2, 0), ("é", 9, 1), ("C", 1, 0))]  # fmt: skip
    entries = entries_of(samples)
    table = make_sample_table(entries, SHARDS)
    order = {name: sort_order(table_column(table, name, "--sort-by"), name).tolist() for name in table.column_names}
    assert order == {
        "number": [0, 1, 2, 3], "key": [3, 1, 0, 2], "shard": [1, 3, 0, 2], "size": [3, 1, 0, 2],
        "fields": [0, 1, 2, 3],
    }  # fmt: skip
    shares = parse_shares("x=0.5,y=0.5")
    grouped = assign_splits(
        entries.keys, SplitOptions(shares, group_by="shard"), table_column(table, "shard", "--group-by")
    )
    assert grouped.number[0] == grouped.number[2]
    assert grouped.number[1] == grouped.number[3]


def test_keys_in_a_slice_of_a_buffer() -> None:
    """Keys in a slice of a longer buffer are returned without the rest of the buffer."""
    keys = PackedStrings.of([b"a", b"bc", b"def", b"g"])
    entries = entries_of([Sample("x", {}, 0, 0), Sample("y", {}, 0, 0)])
    entries = replace(entries, keys=PackedStrings(keys.data, keys.starts[1:4]))
    assert make_sample_table(entries, SHARDS).column("key").to_pylist() == ["bc", "def"]


def test_metadata_takes_precedence() -> None:
    """A metadata column takes precedence over a sample property of the same name."""
    entries = entries_of([Sample("a", {"jpg": Payload(5, 0, 0)}, 0, 7)])
    entries = replace(entries, metadata=pa.table({"size": ["large"], "shard": [None], "key": [1.5]}))
    assert make_sample_table(entries, SHARDS).to_pylist() == [{"size": "large", "shard": None, "key": 1.5, "fields": 1}]


def test_unknown_columns_are_refused() -> None:
    """An unknown or repeated column is refused, with the existing columns and a suggestion."""
    entries = entries_of([Sample("a", {}, 0, 7)])
    table = make_sample_table(entries, SHARDS)
    assert table_column(table, "number", "sort_by").to_pylist() == [7]
    with pytest.raises(InvalidRequest) as caught:
        table_column(table, "Sise", "group_by")
    message = "group_by: no column 'Sise'; expected one of number, key, shard, size, fields. Did you mean 'size'?"
    assert str(caught.value) == message
    with pytest.raises(InvalidRequest, match="2 columns 'number'"):
        table_column(table.append_column("number", table.column(0)), "number", "sort_by")


_WITHOUT_PANDAS = """
import sys
import numpy as np
from shardtool.entries.strings import PackedStrings
from shardtool.select.duplicate_keys import resolve_duplicate_keys
from shardtool.select.select_fields import select_fields
from shardtool.select.sample_table import table_column, sort_order, make_sample_table
from shardtool.select.splits import sample_by_key
from tests.made import flat_entries
entries = flat_entries([b"a", b"b"], [1, 1], ("x",), size=[5, 6], offset=[0, 5])
entries, _ = select_fields(entries, rename=(("y", "x"),))
entries, _, _ = resolve_duplicate_keys(entries, "rename", (), PackedStrings.of([b"a"]))
table = make_sample_table(entries, ("s",))
for name in table.column_names:
    sort_order(table_column(table, name, "--sort-by"), name)
sample_by_key(entries.keys, 0.5)
print("pandas" in sys.modules, entries.keys.data)
"""


def test_pandas_is_not_imported() -> None:
    """Sorting and sampling do not import pandas, which takes a quarter of a second."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PANDAS], cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False b'a-2\\x00b\\x00'\n", "")
