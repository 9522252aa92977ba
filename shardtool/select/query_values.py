"""Convert the columns of a query to arrays, compare arrays, and calculate with arrays.

Numbers and booleans are NumPy arrays, because NumPy compares int64 with uint64 exactly. Text, times and lists are Arrow
arrays. `pyarrow.scalar` and `to_numpy` are not used, because they import pandas.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from shardtool.entries import arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]


QueryKind = Literal["a number", "text", "true or false", "a time", "a list", "lists", "empty", "of another type"]
_ARROW_KINDS: Sequence[tuple[QueryKind, Callable[[pa.DataType], bool], pa.DataType | None]] = (
    # kind, test for Arrow types, and cast type; the first successful test applies
    ("empty", types.is_null, None),
    ("true or false", types.is_boolean, None),
    ("a number", types.is_uint64, None),
    ("a number", types.is_integer, pa.int64()),  # as int8, 2 * 100 would overflow
    ("a number", types.is_floating, None),
    ("a number", types.is_decimal, pa.float64()),
    ("text", lambda kind: types.is_string(kind) or types.is_large_string(kind), pa.large_string()),
    ("a time", types.is_date, pa.timestamp("ms")),
    ("a time", types.is_timestamp, None),
    ("lists", lambda kind: types.is_list(kind) or types.is_large_list(kind), None),
)


_ARROW_COMPARISONS = {
    operator.eq: pc.equal, operator.ne: pc.not_equal, operator.lt: pc.less, operator.le: pc.less_equal,
    operator.gt: pc.greater, operator.ge: pc.greater_equal,
}  # fmt: skip


TIME_FIELDS = {
    "year": pc.year, "quarter": pc.quarter, "month": pc.month, "day": pc.day, "hour": pc.hour, "minute": pc.minute,
    "second": pc.second, "dayofweek": pc.day_of_week, "weekday": pc.day_of_week, "dayofyear": pc.day_of_year,
}  # fmt: skip


# operations whose results can exceed 64 bits
_CAN_OVERFLOW = (operator.add, operator.sub, operator.mul, operator.pow, operator.neg, abs)
_OVERFLOW_ERROR = "a whole number outside the range of 64 bits. Add 0.0 to calculate with floating-point numbers"


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TIME_TEXT = re.compile(  # not `now`, `12:30` or `EST`: their meaning depends on the day or the machine
    r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[ T]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?)?)?)?"
)


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_DEFAULT_PARTS = (1, 1, 1, 0, 0, 0)  # from year to second
_FIXED_OFFSET = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})")


class Numbers(NamedTuple):
    """The numbers or booleans of a column. If a row is null, its `valid` is false and its value is undefined."""

    values: NDArray[Any]
    valid: Bools

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Numbers:
        """Return the values of a numeric or boolean array."""
        valid = _to_numpy(array.is_valid()) if array.null_count else np.ones(len(array), np.bool_)
        return cls(_to_numpy(array) if types.is_boolean(array.type) else arrow.number_values(array), valid)

    def to_bools(self, *, missing: bool) -> Bools:
        """Return the values as booleans. Nulls become `missing`."""
        return np.where(self.valid, self.values, missing)


class Time(NamedTuple):
    """A time in a query, in nanoseconds since 1970. If `is_zoned`, it is in UTC, else it has no time zone."""

    nanoseconds: int
    is_zoned: bool


def _to_numpy(array: pa.Array) -> Bools:
    return arrow.number_values(pc.cast(array, pa.uint8())).astype(np.bool_)


def column_values(column: pa.Array | pa.ChunkedArray) -> tuple[QueryKind, Any]:
    """Return the kind of a column, and its values as `Numbers` or an Arrow array."""
    array = arrow.to_plain(column)
    array = arrow.to_one_chunk(array) if isinstance(array, pa.ChunkedArray) else array
    if types.is_fixed_size_list(array.type):
        array = pc.cast(array, pa.list_(array.type.value_type))
    for kind, is_type, cast_type in _ARROW_KINDS:
        if is_type(array.type):
            array = array if cast_type is None else pc.cast(array, cast_type)
            return kind, _signed(Numbers.from_arrow(array)) if kind in ("a number", "true or false") else array
    return "of another type", array


def _signed(numbers: Numbers) -> Numbers:
    # Use int64 if all values fit, because the difference of two uint64 numbers would wrap around below 0.
    values = numbers.values
    if values.dtype != np.uint64 or (values > np.iinfo(np.int64).max)[numbers.valid].any():
        return numbers
    return numbers._replace(values=values.view(np.int64))


def null_values(kind: QueryKind, count: int) -> Any:
    """Return `count` nulls of a kind."""
    if kind in ("a number", "true or false"):
        return Numbers(np.zeros(count, np.int64 if kind == "a number" else np.bool_), np.zeros(count, np.bool_))
    types_by_kind = {"text": pa.large_string(), "lists": pa.list_(pa.null())}
    return pa.nulls(count, types_by_kind.get(kind, pa.timestamp("us")))


def missing_rows(data: Numbers | pa.Array) -> Bools:
    """Return for each row whether its value is null or NaN."""
    if isinstance(data, Numbers):
        is_nan = data.values != data.values  # only NaN differs from itself
        return data._replace(values=is_nan).to_bools(missing=True)
    return _to_numpy(data.is_null())


def calculate(function: Callable[..., Any], *operands: Any) -> Any:
    """Apply a function to numeric columns and constants. If an operand is null, the result is null.

    Raises:
        OverflowError: An integer result is outside the range of its type (int64 or uint64).
    """
    values = [value.values if isinstance(value, Numbers) else value for value in operands]
    masks = [value.valid for value in operands if isinstance(value, Numbers)]
    result = function(*values)
    if not masks:
        return result
    valid = np.logical_and.reduce(masks)
    if function in _CAN_OVERFLOW and result.dtype.kind in "iu":
        # An overflow changes the integer by a multiple of 2^64, far more than the rounding error of `estimate`.
        estimate = function(*(np.asarray(value, np.float64) for value in values))
        if (np.abs(result - estimate) > 2.0**60)[valid].any():
            raise OverflowError(_OVERFLOW_ERROR)
    return Numbers(result, valid)


def calculate_pair(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Call `calculate`. First convert an integer constant to a float if the other operand's type cannot store it.

    Raises:
        OverflowError: See `calculate`, or a column with values above 2^63 - 1 would be combined with negative integers.
    """
    if function is not operator.truediv:  # a division always returns floats
        left, right = _to_unsigned(right, left), _to_unsigned(left, right)
    return calculate(function, _to_range_of(right, left), _to_range_of(left, right))


def _to_unsigned(column: Any, value: Any) -> Any:
    # NumPy would convert a uint64 and an int64 column to float64 and lose digits.
    if not isinstance(column, Numbers) or column.values.dtype != np.uint64:
        return value
    is_signed = isinstance(value, Numbers) and value.values.dtype == np.int64
    if (value.values < 0)[value.valid].any() if is_signed else isinstance(value, int) and value < 0:
        raise OverflowError(_OVERFLOW_ERROR)
    return value._replace(values=value.values.view(np.uint64)) if is_signed else value


def _to_range_of(column: Any, value: Any) -> Any:
    if not (isinstance(column, Numbers) and column.values.dtype.kind in "iu" and isinstance(value, int)):
        return value
    limits = np.iinfo(column.values.dtype)
    return value if limits.min <= value <= limits.max else float(value)


def compare(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Bools:
    """Compare two operands of the same kind. At least one must be a column. Null is unequal to everything."""
    columns = [value for value in (left, right) if isinstance(value, pa.Array)]
    if not columns:
        result: Numbers = calculate(function, left, right)
    elif types.is_timestamp(columns[0].type):
        result = _compare_times(function, left, right)
    else:
        texts = [arrow.text_scalar(value) if isinstance(value, str) else value for value in (left, right)]
        result = Numbers.from_arrow(_ARROW_COMPARISONS[function](*texts))
    return result.to_bools(missing=function is operator.ne)


def _compare_times(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Numbers:
    if isinstance(left, Time) or (isinstance(right, pa.Array) and _tick(left) < _tick(right)):
        # The code below needs the coarser column on the left.
        return _compare_times(lambda first, second: function(second, first), right, left)
    times = Numbers.from_arrow(left.view(pa.int64()))
    # A conversion to the finer unit could overflow.
    whole: Any
    rest: Any
    if isinstance(right, Time):
        whole, rest = divmod(right.nanoseconds, _tick(left))
    else:
        others = Numbers.from_arrow(right.view(pa.int64()))
        times = times._replace(valid=times.valid & others.valid)
        whole, rest = np.divmod(others.values, _tick(left) // _tick(right))
    order = (times.values > whole).astype(np.int8) - (times.values < whole)
    return times._replace(values=function(np.where((order == 0) & (rest > 0), -1, order), 0))


def _tick(times: pa.Array) -> int:
    return _NANOSECONDS[times.type.unit]


def is_zoned(time: Time | pa.Array) -> bool:
    """Return whether a time, or a column of times, has a time zone."""
    return time.is_zoned if isinstance(time, Time) else time.type.tz is not None


def is_in(data: Numbers | pa.Array, items: list[Any]) -> Bools:
    """Return for each row whether its value is in `items`."""
    if not isinstance(data, Numbers):
        return _to_numpy(pc.is_in(data, value_set=arrow.text_array(items)))
    values = data.values.view(np.uint8) if data.values.dtype == np.bool_ else data.values
    if values.dtype.kind in "iu":
        limits = np.iinfo(values.dtype)
        items = [int(item) for item in items if item // 1 == item and limits.min <= item <= limits.max]
    return np.isin(values, np.array(items, values.dtype)) & data.valid


def parse_time(text: str, zone: str | None) -> Time | None:
    """Parse a time. Return None if `text` is not a time.

    If the text contains no UTC offset, the time is in the time zone `zone`.
    """
    if not (match := _TIME_TEXT.fullmatch(text)):
        return None
    *parts, fraction, offset = match.groups()
    year, month, day, hour, minute, second = (int(part or low) for part, low in zip(parts, _DEFAULT_PARTS, strict=True))
    try:
        time = dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.timezone.utc)
    except ValueError:
        return None
    seconds = (time - _EPOCH) // dt.timedelta(seconds=1)
    if offset is not None:
        seconds -= _offset_seconds(offset) or 0
    elif zone is not None:
        seconds = _to_utc(seconds, zone)
    return Time(seconds * 10**9 + int((fraction or "").ljust(9, "0")), offset is not None or zone is not None)


def _to_utc(seconds: int, zone: str) -> int:
    if (offset := _offset_seconds(zone)) is not None:
        return seconds - offset
    local = arrow.number_array(np.array([seconds])).view(pa.timestamp("s"))
    return int(arrow.number_values(pc.assume_timezone(local, zone).view(pa.int64()))[0])


def _offset_seconds(zone: str) -> int | None:
    if not (match := _FIXED_OFFSET.fullmatch(zone)):
        return 0 if zone == "Z" else None
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    return -seconds if match[1] == "-" else seconds


def time_field(name: str, times: pa.Array) -> Numbers:
    """Return a part of each time, such as the year, in the time zone of the column. `name` is in `TIME_FIELDS`."""
    offset = _offset_seconds(times.type.tz or "")
    if offset is not None:  # pyarrow 21 supports named zones, but not offsets such as +02:00
        unit = times.type.unit
        shift = arrow.number_array(np.array([offset * 10**9 // _tick(times)])).view(pa.duration(unit))[0]
        times = pc.add(times.view(pa.timestamp(unit)), shift)
    return Numbers.from_arrow(TIME_FIELDS[name](times))


def value_lengths(column: pa.Array) -> Numbers:
    """Return the number of characters of each text, or the number of elements of each list."""
    is_text = types.is_large_string(column.type)
    return Numbers.from_arrow(pc.utf8_length(column) if is_text else pc.list_value_length(column))


def rows_with_element(lists: pa.Array, matches: Bools) -> Bools:
    """Return for each list whether any of its elements matches. `matches` has one boolean per element of all lists."""
    lengths, valid = value_lengths(lists)
    counts = np.where(valid, lengths, 0)
    rows = np.zeros(len(lists), np.bool_)
    rows[np.repeat(np.arange(len(lists)), counts)[matches]] = True
    return rows
