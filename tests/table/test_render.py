from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.entries import arrow
from shardtool.table import render
from shardtool.table.render import has_text_form, render_column, render_rows, render_values

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text('"\\\n\x00\x1f\x7f é\u2028', max_size=8)
_INT = st.integers(-(2**63), 2**63 - 1)
_FLOAT = st.floats(allow_nan=False, allow_infinity=False)
_ROW = pa.schema(
    [
        ("text", pa.string()),
        ('na"me\n', pa.large_string()),
        ("int", pa.int64()),
        ("float", pa.float64()),
        ("truth", pa.bool_()),
        ("list", pa.list_(pa.string())),
        ("nested", pa.struct([("a", pa.list_(pa.struct([("b", pa.float64())]))), ('c"', pa.bool_())])),
        ("nothing", pa.null()),
    ]
)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


_NESTED = st.fixed_dictionaries(
    {
        "a": _maybe(st.lists(_maybe(st.fixed_dictionaries({"b": _maybe(_FLOAT)})), max_size=3)),
        'c"': _maybe(st.booleans()),
    }
)
_VALUES = (
    _TEXT, _TEXT, _INT, _FLOAT, st.booleans(), st.lists(_maybe(_TEXT), max_size=3), _NESTED, st.none(),
)  # fmt: skip
_ROWS = st.lists(
    st.fixed_dictionaries({one.name: _maybe(values) for one, values in zip(_ROW, _VALUES, strict=True)}),
    min_size=1,
    max_size=8,
)


def _dumps(row: object) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _parts(data: bytes) -> list[str]:
    """Return the texts without the NUL after each."""
    *parts, rest = data.decode().split("\0")
    assert rest == ""
    return parts


def _rows(table: Any) -> list[str]:
    column = render_column(table, render_rows)
    return _parts(column.span(0, len(column)))


def _values(array: Any) -> list[str]:
    column = render_column(pa.table({"a": array}), render_values)
    return _parts(column.span(0, len(column)))


@given(_ROWS, st.integers(0, 3))
@example([dict.fromkeys(_ROW.names)], 0)
def test_rows_equal_python_json(rows: list[dict[str, Any]], skipped: int) -> None:
    """The text of a row equals `json.dumps`, at any position in its table."""
    table = pa.Table.from_pylist(rows, _ROW).slice(skipped)
    assert _rows(table) == [_dumps(row) for row in table.to_pylist()]


@given(st.lists(_FLOAT, min_size=1))
@example([1e-4, 9.9e-5, 1e10, 1e15, 1e16, 5e-324, -0.0, 0.1, 100.0, 1.7976931348623157e308])
def test_floats_equal_python_repr(values: list[float]) -> None:
    """Floats are written like `repr`: integral values keep `.0`."""
    assert _values(pa.array(values)) == [repr(value) for value in values]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_float32_text_is_shortest(values: list[float]) -> None:
    """A float32 has the fewest digits that read back as itself."""
    array = np.array(values, np.float32)
    result = _values(pa.array(array))
    assert [np.float32(text) for text in result] == array.tolist()
    assert all(_digits(text) <= _digits(repr(float(value))) for text, value in zip(result, array, strict=True))


def _digits(text: str) -> int:
    return len(Decimal(text).normalize().as_tuple().digits)


def test_nan_is_null() -> None:
    """NaN is null, in lists too."""
    table = pa.table({"a": [math.nan, 1.0], "b": [[math.nan], [2.0]]})
    assert _rows(table) == ['{"a":null,"b":[null]}', '{"a":1.0,"b":[2.0]}']


_DAY = dt.datetime(2024, 1, 2, 3, 4, 5)  # noqa: DTZ001 - a time without a zone is one of the cases


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([dt.date(2024, 1, 2)]), '"2024-01-02"'),
        (pa.array([_DAY], pa.timestamp("s")), '"2024-01-02T03:04:05"'),
        (pa.array([_DAY], pa.timestamp("ns")), '"2024-01-02T03:04:05"'),
        (pa.array([1_500], pa.timestamp("ms")), '"1970-01-01T00:00:01.500"'),
        (pa.array([0], pa.timestamp("ms", "Europe/Berlin")), '"1970-01-01T00:00:00Z"'),
        (pa.array([dt.time(1, 2, 3)]), '"01:02:03"'),
        (pa.array([dt.time(1, 2, 3, 40)]), '"01:02:03.000040"'),
        (pa.array([-1_500], pa.duration("ms")), '"-PT1.500S"'),
        (pa.array([86_400], pa.duration("s")), '"PT86400S"'),
        (pa.array([Decimal("12.50")]), "12.50"),
        (pa.array(["x"]).dictionary_encode(), '"x"'),
        (pa.array([1.5], pa.float32()).cast(pa.float16()), "1.5"),
        (pa.array([2**64 - 1], pa.uint64()), str(2**64 - 1)),
        (pa.array([[1.5, 2.0]], pa.list_(pa.float64(), 2)), "[1.5,2.0]"),
        (pa.array([[("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int64())), '{"k":1,"l":null}'),
        (pa.array([{}], pa.struct([])), "{}"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_types_without_a_json_form(array: Any, expected: str) -> None:
    """Dates, times and durations are ISO 8601 text in every unit; decimals are numbers with all digits."""
    null = pa.nulls(1, array.type)
    table = pa.table({"a": pa.chunked_array([array, null])}).combine_chunks()
    assert _rows(table) == [f'{{"a":{expected}}}', '{"a":null}']
    json.loads(_rows(table)[0])


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["x", None], pa.string_view()), pa.large_string()),
        (pa.array([b"x", None], pa.binary_view()), pa.large_binary()),
        (pa.array(["x", None]).dictionary_encode(), pa.string()),
        (pa.array([["x"], None], pa.list_(pa.string_view())), pa.list_(pa.large_string())),
        (pa.array([{"a": "x"}], pa.struct([("a", pa.string_view())])), pa.struct([("a", pa.large_string())])),
        (pa.array([1.5], pa.float32()).cast(pa.float16()), pa.float32()),
        (pa.array([[1], None]), pa.list_(pa.int64())),
        (pc.run_end_encode(pa.array(["x", "x", "y"])), pa.string()),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_special_types_become_plain(array: Any, kind: Any) -> None:
    """Types specific to Polars and pandas become plain types with the same values, in one chunk or several."""
    assert arrow.to_plain(array).type == kind
    assert arrow.to_plain(array).to_pylist() == array.to_pylist()
    several = arrow.to_plain(pa.chunked_array([array, array]))
    assert several.type == kind
    assert arrow.to_one_chunk(several).to_pylist() == 2 * array.to_pylist()


def test_single_values_have_no_quotes() -> None:
    """A payload value has no quotes, a boolean is 0 or 1, and a list is JSON."""
    assert _values(pa.array(['a "b"\n', ""])) == ['a "b"\n', ""]
    assert _values(pa.array([True, False])) == ["1", "0"]
    assert _values(pa.array([-5, 7], pa.int8())) == ["-5", "7"]
    assert _values(pa.array([dt.date(2024, 1, 2)])) == ["2024-01-02"]
    assert _values(pa.array([["a"], []])) == ['["a"]', "[]"]


@given(st.lists(_TEXT.filter(lambda text: "\0" not in text), max_size=20), st.data(), st.integers(1, 5))
def test_texts_do_not_depend_on_the_step(values: list[str], data: st.DataObject, chunk: int) -> None:
    """Spans, gathered and selected texts are equal, for any chunk size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "_CHUNK_ROWS", chunk)
        column = render_column(pa.table({"a": pa.array(values, pa.string())}), render_values)
        assert len(column) == len(values)
        assert column.lengths().tolist() == [len(value.encode()) for value in values]
        assert _parts(column.span(0, len(values))) == values
        which = np.array(data.draw(st.lists(st.integers(0, len(values) - 1)) if values else st.just([])), np.int64)
        expected = [values[at] for at in which.tolist()]
        assert _parts(column.gather(which)) == expected
        taken = column.take(which)
        assert len(taken) == len(expected)
        assert taken.lengths().tolist() == [len(value.encode()) for value in expected]
        again = np.arange(len(expected))[::2]
        assert _parts(taken.take(again).span(0, len(again))) == expected[::2]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.string(), True),
        (pa.null(), True),
        (pa.list_(pa.struct([("a", pa.date32())])), True),
        (pa.map_(pa.string(), pa.int8()), True),
        (pa.binary(), False),
        (pa.list_(pa.binary()), False),
        (pa.month_day_nano_interval(), False),
        (pa.list_view(pa.int8()), False),
    ],
    ids=str,
)
def test_types_with_a_text_form(kind: Any, *, expected: bool) -> None:
    """Bytes and intervals have no text form, in lists either."""
    assert has_text_form(kind) is expected
