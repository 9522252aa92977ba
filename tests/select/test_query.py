from __future__ import annotations

import datetime as dt
import math
import operator
import subprocess
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.select.query import match_rows
from tests.helpers import ENVIRONMENT, REPO

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, Any]
UTC = dt.timezone.utc


def table(**columns: Any) -> Any:
    """Return a table of these columns; `None` is null."""
    return pa.table({name: one if isinstance(one, pa.Array) else pa.array(one) for name, one in columns.items()})


MADE = table(
    bi=["dog", "cat", None, "Dog.x"],
    width=pa.array([100, 300, None, 500], pa.int16()),
    part=[0.5, math.nan, None, 2.5],
    good=[True, False, None, True],
    day=[dt.date(2020, 1, 1), dt.date(2021, 5, 1), None, dt.date(2022, 1, 1)],
    seen=pa.array(["2020-01-01 12:30", "2021-05-01", None, "2022-01-01"]).cast(pa.timestamp("ns")),
    zoned=pa.array(
        [dt.datetime(2020, 1, 1, 12, 30, tzinfo=UTC), None, None, dt.datetime(2022, 1, 1, tzinfo=UTC)],
        pa.timestamp("us", "Asia/Tokyo"),
    ),
    price=[Decimal("1.10"), None, Decimal("2.10"), Decimal("-1.10")],
    kind=pa.array(["x", "y", None, "x"]).dictionary_encode(),
    size=pa.array([0, 2**64 - 1, None, 5], pa.uint64()),
    ratio=pa.array([0.1, 0.2, None, 0.3], pa.float32()),
    tags=[["a"], None, [], ["b"]],
    boxes=pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.float32(), 2)),
    days=[[dt.date(2020, 1, 1)], None, [], [None]],
    parts=[[{"x": 1}], None, [], [{"x": 2}]],
    none=pa.nulls(4),
    **{
        "a b": [1, 2, 3, 4],
        "class": [1, 2, 3, 4],
        "meta.w": [1, 2, 3, 4],
        "it's `&`"[:4]: [1, 2, 3, 4],
        "1": [1, 2, 3, 4],
    },
)

TAKEN: list[tuple[str, list[int]]] = [
    ("bi == 'dog' and width > 50", [0]),
    ('bi == "dog" or width >= 500', [0, 3]),
    ("bi=='dog'&width>50|part>2", [0, 3]),
    ("not (bi == 'dog') & width > 100", [1, 3]),
    ("~(width > 100) and bi == 'dog'", [0]),
    ("'dog' == bi", [0]),
    ("bi < 'b'", [3]),
    ("bi == bi", [0, 1, 3]),
    ("kind == 'x'", [0, 3]),
    ("bi != kind", [0, 1, 2, 3]),
    ("100 < width <= 500", [1, 3]),
    ("width\n> 100\n and\tbi == 'cat'", [1]),
    # numbers
    ("width * 1000 == 500000", [3]),
    ("-width < -100", [1, 3]),
    ("(width - 300).abs() >= 200", [0, 3]),
    ("width % 200 == 100", [0, 1, 3]),
    ("width // 200 == 1", [1]),
    ("width / 200 == 0.5", [0]),
    ("width ** 2 > 2 ** 16 + 0x10", [1, 3]),
    ("width > 10 ** 30", []),
    ("price == 1.1", [0]),
    ("price < 0", [3]),
    ("ratio == 0.1", [0]),
    ("size == 18446744073709551615", [1]),
    ("size > -1", [0, 1, 3]),
    ("width > part", [0, 3]),
    # booleans
    ("good", [0, 3]),
    ("not good", [1, 2]),
    ("good == True", [0, 3]),
    ("good == 0", [1]),
    ("good in [False]", [1]),
    ("(width > 200) == good", [3]),
    # nulls and NaN
    ("bi != 'dog'", [1, 2, 3]),
    ("not bi == 'dog'", [1, 2, 3]),
    ("width != 100", [1, 2, 3]),
    ("not width > 100", [0, 2]),
    ("part != 0.5", [1, 2, 3]),
    ("part > 0 or part <= 0", [0, 3]),
    ("part.isna()", [1, 2]),
    ("part.notnull()", [0, 3]),
    ("(part + width).isnull()", [1, 2]),
    ("bi.notna() and good.notna() and day.notna() and tags.notna()", [0, 3]),
    ("none == 'x'", []),
    ("none > 1", []),
    ("none != 1", [0, 1, 2, 3]),
    ("none.isna()", [0, 1, 2, 3]),
    ("none", []),
    ("none + 1 > 0 or none.str.len() > 0 or none.dt.year > 0 or none in ['a']", []),
    # lists
    ("bi in ['dog', 'cat']", [0, 1]),
    ("bi not in ('dog', 'cat')", [2, 3]),
    ("bi == ['dog', 'cat']", [0, 1]),
    ("bi != ['dog', 'cat']", [2, 3]),
    ("bi.isin(['dog'])", [0]),
    ("width in [100, 500.0, -7]", [0, 3]),
    ("width in []", []),
    ("width not in []", [0, 1, 2, 3]),
    ("day in ['2020-01-01']", [0]),
    # methods
    ("width.between(100, 300)", [0, 1]),
    ("width.between(100, 300, inclusive='neither')", []),
    ("width.between(100, 300, inclusive='left')", [0]),
    ("width.between(100, 300, inclusive='right')", [1]),
    ("day.between('2020-06-01', '2021-12-31')", [1]),
    ("bi.str.contains('o')", [0, 3]),
    ("not bi.str.contains('o')", [1, 2]),
    (r"bi.str.contains('g\.|^c')", [1, 3]),
    ("bi.str.contains('(o)g')", [0, 3]),
    ("bi.str.contains('g.x', regex=False)", [3]),
    ("bi.str.contains('d.g', regex=False)", []),
    ("bi.str.contains('DOG', case=False)", [0, 3]),
    ("bi.str.match('o|a')", []),
    ("bi.str.match('d|c')", [0, 1]),
    ("bi.str.startswith('d')", [0]),
    ("bi.str.startswith(('d', 'c'))", [0, 1]),
    ("bi.str.endswith(['g', 'x'])", [0, 3]),
    ("bi.str.lower().str.startswith('dog')", [0, 3]),
    ("bi.str.upper() == 'CAT'", [1]),
    ("bi.str.strip('dg') == 'o'", [0]),
    ("bi.str.strip().str.len() % 2 == 1", [0, 1, 3]),
    # lists, and the same methods of text
    ("tags.len() > 0", [0, 3]),
    ("tags.len() != 1", [1, 2]),
    ("tags.contains('b')", [3]),
    ("not tags.contains('b')", [0, 1, 2]),
    ("tags.isna()", [1]),
    ("boxes.contains(5) or boxes.contains(0.5)", [3]),
    ("boxes.contains(True)", [0]),
    ("days.contains('2020-01-01')", [0]),
    ("bi.len() == 5", [3]),
    ("bi.contains('g.')", [3]),
    ("kind.contains('x') and kind.len() == 1", [0, 3]),
    ("none.len() > 0 or none.contains('a') or none.contains(1) or none.contains(True)", []),
    ("parts.len() == 1", [0, 3]),
    # times
    ("day > '2020-06-01'", [1, 3]),
    ("'2021' <= day", [1, 3]),
    ("day != '2020-01-01'", [1, 2, 3]),
    ("day.dt.year == 2021 or day.dt.month == 1", [0, 1, 3]),
    ("seen == '2020-01-01 12:30'", [0]),
    ("seen > day", [0]),
    ("seen.dt.hour == 12 and seen.dt.minute == 30 and seen.dt.second == 0", [0]),
    ("zoned == '2020-01-01 21:30'", [0]),
    ("zoned == '2020-01-01T12:30:00Z'", [0]),
    ("zoned.dt.hour == 9", [3]),
    # names
    ("`a b` > 3", [3]),
    ("`class` > `meta.w` - 1 and `1` == 2", [1]),
    ("`it's` == 1 | bi == 'it\\'s & `x` @y #'", [0]),
]


@pytest.mark.parametrize(("query", "rows"), TAKEN)
def test_queries(query: str, rows: list[int]) -> None:
    """Each form of a query selects these rows: null is unequal to everything, and `not` inverts."""
    result = match_rows(MADE, query)
    assert result.dtype == np.int64
    assert result.tolist() == rows


@pytest.mark.parametrize(("query", "rows"), TAKEN)
def test_rows_are_evaluated_alone(query: str, rows: list[int]) -> None:
    """Whether a row matches does not depend on other rows."""
    assert [at for at in range(4) if len(match_rows(MADE.slice(at, 1), query))] == rows
    assert match_rows(MADE.slice(0, 0), query).tolist() == []


class Meant(NamedTuple):
    """A part of a query, and its value for a row of Python values."""

    text: str
    of: Callable[[Row], Any]


NAMES = {
    "n": st.integers(-3, 3),
    "m": st.integers(-3, 3),
    "f": st.sampled_from([-1.5, 0.0, 0.5, 2.0]),
    "s": st.text("ab'&", max_size=3),
    "b": st.booleans(),
    "u": st.integers(0, 3),
    "v": st.integers(0, 3),
    "t": st.datetimes(dt.datetime(2019, 12, 31), dt.datetime(2020, 1, 2)),  # noqa: DTZ001 - times without a zone
    "d": st.dates(dt.date(2019, 12, 31), dt.date(2020, 1, 2)),
    "ints": st.lists(st.none() | st.integers(-3, 3), max_size=3),
    "words": st.lists(st.none() | st.text("ab'&", max_size=2), max_size=3),
    "pair": st.lists(st.sampled_from([-1.5, 0.0, math.nan]), min_size=2, max_size=2),
}
TYPES = {
    "n": pa.int64(), "m": pa.int8(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_(), "u": pa.uint64(),
    "v": pa.uint8(), "t": pa.timestamp("us"), "d": pa.date32(), "ints": pa.list_(pa.int16()),
    "words": pa.large_list(pa.string()), "pair": pa.list_(pa.float32(), 2),
}  # fmt: skip
COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
DIVISION = {"/": operator.truediv, "//": operator.floordiv, "%": operator.mod}


def rows_of(*, nulls: bool) -> st.SearchStrategy[list[Row]]:
    """Return rows, with or without nulls."""
    maybe = {name: st.none() | values if nulls else values for name, values in NAMES.items()}
    return st.lists(st.fixed_dictionaries(maybe), max_size=12)


def compared(left: Meant, sign: str, right: Meant) -> Meant:
    """Return a comparison, with the rules for nulls."""

    def holds(row: Row) -> bool:
        one, two = left.of(row), right.of(row)
        return sign == "!=" if one is None or two is None else bool(COMPARE[sign](one, two))

    return Meant(f"{left.text} {sign} {right.text}", holds)


def computed(left: Meant, sign: str, right: Meant) -> Meant:
    """Return arithmetic; null in, null out."""

    def value(row: Row) -> Any:
        one, two = left.of(row), right.of(row)
        return None if one is None or two is None else {**ARITHMETIC, **DIVISION}[sign](one, two)

    return Meant(f"({left.text} {sign} {right.text})", value)


def method(owner: Meant, call: str, of: Callable[[Any], Any], null: Any = None) -> Meant:
    """Return a call of a method of a value, or `null` for null."""
    return Meant(f"{owner.text}.{call}", lambda row: null if owner.of(row) is None else of(owner.of(row)))


def is_null(value: Any) -> bool:
    """Check whether a value is null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def listed(left: Meant, items: list[Any], word: str) -> Meant:
    """Return `left in items`, or `not in`."""
    return Meant(f"{left.text} {word} {items!r}", lambda row: (left.of(row) in items) == (word == "in"))


def both(one: Meant, two: Meant) -> Meant:
    """Return `one and two`."""
    return Meant(f"({one.text} and {two.text})", lambda row: one.of(row) and two.of(row))


def either(one: Meant, two: Meant) -> Meant:
    """Return `one | two`, without parentheses around the operands."""
    return Meant(f"({one.text} | {two.text})", lambda row: one.of(row) or two.of(row))


def column(name: str) -> Meant:
    """Return the column of a name."""
    return Meant(name, lambda row: row[name])


SIGNS = st.sampled_from([*COMPARE])
WORDS = st.sampled_from(["in", "not in"])
NUMBER_COLUMNS = st.sampled_from(["n", "m", "f"]).map(column)
NUMBERS = st.recursive(
    NUMBER_COLUMNS, lambda inner: st.builds(computed, inner, st.sampled_from([*ARITHMETIC]), inner), max_leaves=3
)
CONSTANTS = (st.integers(-3, 3) | st.sampled_from([0.5, -1.5])).map(lambda value: Meant(repr(value), lambda _: value))
TEXTS = NAMES["s"].map(lambda value: Meant(repr(value), lambda _: value))
LEAVES = st.one_of(
    st.builds(compared, NUMBERS, SIGNS, CONSTANTS | NUMBERS),
    st.builds(compared, CONSTANTS, SIGNS, NUMBERS),
    st.builds(compared, st.just(column("s")), SIGNS, TEXTS),
    st.builds(listed, st.just(column("s")), st.lists(NAMES["s"], min_size=1, max_size=3), WORDS),
    st.builds(listed, NUMBER_COLUMNS, st.lists(st.integers(-3, 3), min_size=1, max_size=3), WORDS),
    st.just(Meant("b", lambda row: row["b"] is True)),
)
DIVISORS = st.sampled_from([-3, 2, 0.5]).map(lambda value: Meant(repr(value), lambda _: value))
COLUMNS = st.sampled_from([*TYPES]).map(column)
LISTS = st.sampled_from(["ints", "words", "pair"]).map(column)
TIMES = st.sampled_from(["2019-12-31 23:59", "2020-01-01", "2020-01-01 12:00:00.000001", "2020"])


def time_of(text: str) -> Meant:
    """Return a constant time in quotes."""
    full = text + "-01-01"[len(text) - 4 :] if len(text) < 10 else text
    return Meant(repr(text), lambda _: dt.datetime.fromisoformat(full))


def midnight(value: Any) -> Any:
    """Return a date as a time."""
    return value if value is None or isinstance(value, dt.datetime) else dt.datetime.combine(value, dt.time())


TIME_COLUMNS = st.sampled_from(["t", "d"]).map(lambda name: Meant(name, lambda row: midnight(row[name])))
ALL_NUMBERS = st.sampled_from(["n", "u", "v"]).map(column)  # pandas wraps around where unsigned columns become negative
WHOLE = st.one_of(
    st.recursive(
        ALL_NUMBERS, lambda inner: st.builds(computed, inner, st.sampled_from([*ARITHMETIC]), inner), max_leaves=3
    ),
    st.builds(lambda owner: Meant(f"(-{owner.text})", computed(Meant("0", lambda _: 0), "-", owner).of), ALL_NUMBERS),
    st.builds(computed, st.sampled_from(["n", "m", "f", "u"]).map(column), st.sampled_from([*DIVISION]), DIVISORS),
    st.builds(lambda owner: method(owner, "abs()", abs), NUMBER_COLUMNS),
    st.builds(lambda owner: method(owner, "len()", len), LISTS | st.just(column("s"))),
    st.builds(lambda owner: method(owner, "dt.day", lambda value: value.day), TIME_COLUMNS),
    st.builds(lambda owner: method(owner, "dt.dayofweek", lambda value: value.weekday()), TIME_COLUMNS),
)
MORE_LEAVES = st.one_of(
    LEAVES,
    st.builds(compared, WHOLE, SIGNS, CONSTANTS | WHOLE),
    st.builds(compared, TIME_COLUMNS, SIGNS, TIMES.map(time_of) | TIME_COLUMNS),
    st.builds(lambda owner: Meant(f"{owner.text}.isna()", lambda row: is_null(owner.of(row))), COLUMNS | NUMBERS),
    st.builds(
        lambda number: method(column("ints"), f"contains({number})", lambda value: number in value, null=False),
        st.integers(-4, 3) | st.just(0.5),
    ),
    st.builds(
        lambda number: method(column("pair"), f"contains({number})", lambda value: number in value, null=False),
        st.sampled_from([0, -1.5]),
    ),
    st.builds(
        lambda owner, text: method(column(owner), f"contains({text!r})", lambda value: text in value, null=False),
        st.sampled_from(["words", "s"]),
        st.text("ab'&", max_size=2),
    ),
    st.builds(
        lambda name, text: method(
            column("s"), f"str.{name}({text!r})", lambda value: getattr(value, name)(text), null=False
        ),
        st.sampled_from(["startswith", "endswith"]),
        NAMES["s"],
    ),
    st.builds(
        lambda low, high: method(
            column("n"), f"between({low}, {high})", lambda value: low <= value <= high, null=False
        ),
        st.integers(-3, 3),
        st.integers(-3, 3),
    ),
)


def joined(leaves: st.SearchStrategy[Meant]) -> st.SearchStrategy[Meant]:
    """Return queries of some conditions."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda one: Meant(f"not ({one.text})", lambda row: not one.of(row)), inner),
            st.builds(both, inner, inner),
            st.builds(either, inner, inner),
        ),
        max_leaves=5,
    )


def as_table(rows: list[Row]) -> Any:
    """Return rows as a table."""
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()})


@given(rows_of(nulls=True), joined(MORE_LEAVES), st.integers(0, 12))
def test_queries_equal_python_conditions(rows: list[Row], query: Meant, cut: int) -> None:
    """A query selects the rows that the same condition selects in plain Python, where null is unequal to everything.

    Whether the table has several chunks makes no difference.
    """
    expected = [at for at, row in enumerate(rows) if query.of(row)]
    assert match_rows(as_table(rows), query.text).tolist() == expected
    chunks = pa.concat_tables([as_table(rows).slice(0, cut), as_table(rows).slice(cut)])
    assert match_rows(chunks, query.text).tolist() == expected


@given(rows_of(nulls=False), joined(LEAVES))
def test_queries_equal_pandas(rows: list[Row], query: Meant) -> None:
    """Without nulls, a query selects the same rows as `DataFrame.query`."""
    frame = as_table(rows).to_pandas()
    assert match_rows(as_table(rows), query.text).tolist() == frame.query(query.text, engine="python").index.tolist()


def test_blocks_change_nothing() -> None:
    """Tables of several blocks and chunks give the rows that NumPy selects, in order."""
    width = np.random.default_rng(1).integers(0, 1000, 150_000)
    words = np.array(["dog", "cat", "eel"])[width % 3]
    parts = [
        pa.table({"bi": words[at : at + 40_000], "width": width[at : at + 40_000]}) for at in range(0, 150_000, 40_000)
    ]
    rows = match_rows(pa.concat_tables(parts), "bi in ['dog', 'eel'] and width % 7 > 2")
    assert rows.tolist() == np.flatnonzero((words != "cat") & (width % 7 > 2)).tolist()


def test_whole_numbers_stay_exact_with_nulls() -> None:
    """A null does not turn a column into floats, and integers of any width do not overflow."""
    large = table(n=[2**53 + 1, None, 2**53], tiny=pa.array([100, -100, None], pa.int8()))
    assert match_rows(large, "n == 9007199254740993").tolist() == [0]
    assert match_rows(large, "n % 2 == 1").tolist() == [0]
    assert match_rows(large, "tiny * 100 == 10000").tolist() == [0]
    assert match_rows(large, "tiny + tiny + tiny == -300").tolist() == [1]


EDGES = [0, 1, 2**53 + 1, 2**62, 2**63 - 1]


@given(
    st.lists(st.none() | st.sampled_from([*EDGES, 2**63, 2**64 - 1]), min_size=1, max_size=3),
    st.lists(st.none() | st.sampled_from([*EDGES, -1, -3, -(2**63)]), min_size=3, max_size=3),
    st.sampled_from(["u {} 3", "u {} -3", "7 {} u", "u {} n", "n {} u", "n {} -5", "u {} u", "n {} n"]),
    st.sampled_from([*ARITHMETIC, "%"]),
)
def test_arithmetic_never_wraps_around(us: list[int | None], ns: list[int | None], form: str, sign: str) -> None:
    """Arithmetic with 64-bit integers, signed or unsigned, equals Python's. If a result does not fit, the query fails.

    If a column has values above 2^63 - 1, the query also fails if another operand is negative.
    """
    rows = [dict(zip("un", pair, strict=True)) for pair in zip(us, ns, strict=False)]
    text = form.format(sign)
    rows = [row for row in rows if sign != "%" or row.get(text[-1], 1) != 0]
    values = [None if None in (row[name] for name in "un" if name in form) else eval(text, {}, row) for row in rows]  # noqa: S307
    numbers = pa.table(
        {"u": pa.array([row["u"] for row in rows], pa.uint64()), "n": pa.array([row["n"] for row in rows], pa.int64())}
    )
    known = [value for value in values if value is not None]
    for value in known:
        try:
            matched = match_rows(numbers, f"{text} == {value}").tolist()
        except InvalidRequest:
            large = any((row["u"] or 0) >= 2**63 for row in rows) and "u" in form
            assert large or not all(-(2**63) <= one < 2**63 for one in known)
        else:
            assert matched == [at for at, one in enumerate(values) if one == value]


@pytest.mark.parametrize(
    "query", ["n + 1 > 0", "-n > 0", "n.abs() > 0", "n ** 2 > 0", "-u > 0", "u - 3 > 0", "u + n > 0"]
)
def test_results_outside_64_bits_fail(query: str) -> None:
    """A query whose result does not fit in 64 bits fails, unless it calculates with floating-point numbers."""
    large = table(n=[2**63 - 1, -(2**63)], u=pa.array([0, 2**64 - 1], pa.uint64()))
    with pytest.raises(InvalidRequest, match="outside the range of 64 bits"):
        match_rows(large, query)
    assert match_rows(large, "u % 10 == 5 and u > n and u / -1 < 0 and u + 0.0 - 3 > 0").tolist() == [1]


def test_text_that_is_not_utf8_is_unequal() -> None:
    """Text that is not valid UTF-8 is accepted, and equals no text of a query."""
    raw = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xffa"))
    assert match_rows(table(raw=raw), "raw == 'a'").tolist() == [1]
    assert match_rows(table(raw=raw), "raw != 'a'").tolist() == [0]


HOSTILE = [
    "__import__('os').system('echo x')", "bi.__class__", "bi.__class__.__mro__[1]", "bi.str.__init__.__globals__",
    "(bi == 'dog').__class__", "@bi == 'dog'", "@pd.io", "pd.io", "bi.pd", "np.load('x')", "lambda: 1",
    "(lambda: bi)()", "(x := bi) == 'dog'", "bi[0] == 'dog'", "bi.str[0] == 'd'", "[1][0] == width", "{}",
    "{1} == width", "{'a': 1}", "[x for x in bi]", "(x for x in bi)", "f'{bi}' == 'dog'", "b'dog' == bi", "bi == ...",
    "width > 1j", "await bi", "yield", "(yield bi)", "bi if good else bi", "*bi", "width.mean() > 1",
    "width > width.mean()", "bi.str.cat()", "bi.apply('len') > 1", "bi.pipe(1)", "bi.map('x')", "bi.eval('1')",
    "bi.query('1')", "bi.to_csv('x')", "len(bi) > 1", "sin(width) > 1", "bi.str", "bi.str.contains", "width.abs",
    "day.dt", "day.dt.date == 1", "day.dt.tz", "bi.dt.year.abs", "bi.str.contains(bi)",
    "bi.str.contains('a', flags=2)", "bi.str.contains('a', **{})", "bi.str.contains(*['a'])",
    "bi.str.contains('a', na=True)", "bi.isin(width)", "bi.isin([bi])", "bi.isin([['dog']])", "bi.isna(1)",
    "width @ width > 1", "width << 2 > 1", "width ^ 1 > 1", "index > 1", "True", "1 == 1",
    "1 < 2 < width or 'a' == 'a'", "width > None", "bi is None", "9 ** 9 ** 9 > width", "width > 2 ** -(10 ** 9)",
    "'a' * 10 ** 9 == bi", "bi * 10 ** 9 == 'x'", "'%s' % bi == 'x'", "bi == 'dog'; import os", "import os",
    "bi = 'dog'", "del bi", "width > 1 # ", "bi == '''dog'''`", "(" * 500 + "good" + ")" * 500,
    "-" * 100_000 + "width > 1", "not " * 20_000 + "good", "+".join(["width"] * 20_000) + " > 1",
    "width > " + "9" * 5000, "width > 0x" + "f" * 4000, "bi == 0x" + "f" * 4000,
    "((((2 ** 64) ** 64) ** 64) ** 64) ** 64 > width",
    "\0", "width > 1 \0", "", " \n", "`", "`nothing`", "\ud800 > 1", "width > 1 &&",
    "| width > 1",
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE, ids=lambda query: query[:30].encode("unicode_escape").decode())
def test_hostile_queries_are_refused(query: str) -> None:
    """Anything outside the language is refused in one short line that names the option."""
    with pytest.raises(InvalidRequest) as caught:
        match_rows(MADE, query)
    assert caught.value.where == "where"
    assert len(str(caught.value)) < 900
    assert "\n" not in str(caught.value)


_NOTHING_RUNS = """
import os, sys
from shardtool.select.query import match_rows
from shardtool.errors import InvalidRequest
from tests.select.test_query import HOSTILE, MADE, TAKEN
for query, _ in TAKEN:
    match_rows(MADE, query)  # imports what is needed
watched = {"exec", "import", "open", "os.system", "os.posix_spawn", "subprocess.Popen", "os.listdir", "os.scandir"}
sys.addaudithook(lambda event, _: event in watched and (print(event), os._exit(1)))
refused = 0
for query in [*HOSTILE, *(query for query, _ in TAKEN)]:
    try:
        match_rows(MADE, query)
    except InvalidRequest:
        refused += 1
print(refused == len(HOSTILE))
"""


@pytest.mark.slow
def test_queries_run_no_code() -> None:
    """No query executes code, imports, opens a file or starts a program."""
    done = subprocess.run(
        [sys.executable, "-c", _NOTHING_RUNS], cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


@given(st.text(st.sampled_from("bi width'\"`&|@.()[]=<>!~+-*/%0123,:\\\n é"), max_size=30))
@example("`a b`>3")
@example("width>1e999")
def test_any_text_selects_rows_or_is_refused(query: str) -> None:
    """Any text selects rows or raises InvalidRequest."""
    try:
        rows = match_rows(MADE, query).tolist()
    except InvalidRequest as error:
        assert error.found  # noqa: PT017 - either is right
    else:
        assert set(rows) <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("Width > 3", "Width: no such column; expected one of bi, width, part, good"),
        ("wdith > 3", "Did you mean width?"),
        ("bi == dog", "dog: no such column"),
        ("bi == dog", "Put text in quotes: 'dog'"),
        ("`a  b` > 1", "`a  b`: no such column"),
        ("`a  b` > 1", "Did you mean a b?"),
        ("meta.w > 2", "Write `meta.w` in backticks"),
        ("width > 'a'", "width is a number and 'a' is text"),
        ("bi >= 3", "bi is text and 3 is a number"),
        ("bi in ['dog', 3]", "bi is text and 3 is a number"),
        ("bi == good", "bi is text and good is true or false"),
        ("width in 'dog'", "'dog': is text; expected a list"),
        ("day > 5", "day is a time and 5 is a number"),
        ("day > 'now'", "'now': not a time; expected such as '2026-01-31'"),
        ("day > '12:30'", "'12:30': not a time"),
        ("day > '2020-01-01 12:30 EST'", "not a time"),
        ("day > '2020-13-01'", "'2020-13-01': not a time"),
        ("day > '2020-01-01T00:00Z'", "only one of the two times has a time zone"),
        ("zoned > day", "only one of the two times has a time zone"),
        ("tags == 'a'", "tags holds list<"),
        ("tags == 'a'", "Lists have .len() and .contains()"),
        ("'a' in tags", "tags: holds list<"),
        ("'a' in tags", "Write tags.contains('a')"),
        ("tags.str.contains('a')", "expected text. Lists have .len() and .contains()"),
        ("tags.contains(1)", "different types: tags contains text and 1 is a number"),
        ("tags.contains(['a'])", "['a']: is a list; expected a value such as 'cat' or 3"),
        ("tags.contains(bi)", "bi: is text; expected a value such as 'cat' or 3"),
        ("tags.contains()", "wrong arguments; expected 1 argument"),
        ("parts.contains(1)", "different types: parts holds struct<"),
        ("width.len() > 1", "width: is a number; expected text or lists"),
        ("day.contains('2020')", "day: is a time; expected text or lists"),
        ("bi.contains(1)", "bi is text and 1 is a number"),
        ("width", "width: is a number; expected a condition, such as width > 256"),
        ("width and good", "width: is a number; expected a condition, such as width > 256"),
        ("not bi", "bi: is text; expected a condition"),
        ("bi + 1 > 2", "bi: is text; expected a number"),
        ("width.str.len() > 1", "width: is a number; expected text"),
        ("bi.dt.year > 1", "bi: is text; expected a time"),
        ("bi.abs() > 1", "bi: is text; expected a number"),
        ("bi.str.contains(bi)", "bi: is text; expected text in quotes"),
        ("bi == None", "Write column.isna() or column.notna()"),
        ("@limit > 1", "@ would read a Python variable"),
        ("json.ok", "json.ok: not supported in queries; expected columns. For values of a JSON field, add columns"),
        ("bi.startswith('d')", "bi.startswith('d'): not supported in queries. Write bi.str.startswith('d')."),
        ("width.mean() > 1", "width.mean(): not supported in queries; expected columns, numbers, 'text'"),
        ("width.between(1)", "wrong arguments; expected 2 arguments, and inclusive="),
        ("width.between(1, 2, inclusive='all')", "expected one of both, neither, left, right"),
        ("bi.str.strip('a', 'b') == 'c'", "expected at most 1 argument"),
        ("bi.str.contains('(')", "bi.str.contains('(') cannot be evaluated: "),
        ("bi.str.contains('(?=o)')", "cannot be evaluated: "),
        ("width == = 1", "invalid syntax: width == <HERE> = 1"),
        ("`a b` > 1 and and good", "invalid syntax: `a b` > 1 and <HERE> and good"),
        ("width ==", "invalid syntax: width == <HERE>"),
        ("bi == 'dog", "unterminated string literal (detected at line 1): bi == <HERE> 'dog"),
        ("class == 1", "names with blanks or keywords such as class in `backticks`"),
        ("bi = 'dog'", "Equality is =="),
    ],
)
def test_messages(query: str, found: str) -> None:
    """An error shows the part of the query, what was found, and what to write instead."""
    with pytest.raises(InvalidRequest) as caught:
        match_rows(MADE, query)
    assert caught.value.where == "where"
    assert found in str(caught.value)


def test_repeated_columns_are_refused() -> None:
    """A query that names a column that exists twice is refused."""
    twice = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], names=["a", "a", "b"])
    assert match_rows(twice, "b > 5").tolist() == [1]
    with pytest.raises(InvalidRequest, match="2 columns of this name"):
        match_rows(twice, "a > 1")
