"""Laws of the values of a column as payloads of a field."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import InvalidRequest
from shardtool.names import BINARY_ENDINGS
from shardtool.shard_samples import decode_inline_payload
from shardtool.table.payloads import check_field_values, field_texts, field_type
from shardtool.table.rows import TableRows

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBERS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
}


def _check(column: pa.Array, field: str = "npy") -> None:
    check_field_values(field, "v", column, None, TableRows("t", {"v": column}, None).refuse)


def _error(column: pa.Array, field: str = "npy") -> str:
    with pytest.raises(InvalidRequest) as caught:
        _check(column, field)
    return str(caught.value)


def _list_types(number: pa.DataType, shape: list[int]) -> st.SearchStrategy[pa.DataType]:
    kinds: st.SearchStrategy[pa.DataType] = st.just(number)
    for length in reversed(shape):
        wrapped: list[Callable[[pa.DataType], pa.DataType]] = [
            pa.list_,
            pa.large_list,
            lambda kind, length=length: pa.list_(kind, length),  # type: ignore[misc]
        ]
        kinds = st.tuples(kinds, st.sampled_from(wrapped)).map(lambda pair: pair[1](pair[0]))
    return kinds


@given(st.data())
def test_lists_of_numbers_are_npy_files(data: st.DataObject) -> None:
    """A nested list becomes the file that `numpy.save` writes: sizes are exact, in any slice and order."""
    number = data.draw(st.sampled_from([*_NUMBERS]))
    shape = data.draw(st.lists(st.integers(0 if number != pa.bool_() else 1, 3), min_size=1, max_size=3))
    values: st.SearchStrategy[Any] = _NUMBERS[number]
    for length in reversed(shape):
        values = st.lists(values, min_size=length, max_size=length)
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
    rows[data.draw(st.integers(0, len(rows) - 1))] = data.draw(values)
    column = pa.array([None, *rows, None], data.draw(_list_types(number, shape))).slice(1, len(rows))
    _check(column, "a.NPY")
    assert field_type("a.NPY", column.type) is None
    texts = field_texts("a.NPY", column)
    assert len(texts) == len(rows)
    which = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)), np.int64)
    taken, first = texts.take(which), data.draw(st.integers(0, len(rows) - 1))
    assert texts.span(first, len(rows)) == b"".join(
        [item + b"\0" for item in texts.span(0, len(rows)).split(b"\0")[first:-1]]
    )
    for some, expected in ((texts, rows), (taken, [rows[at] for at in which.tolist()])):
        payloads = [decode_inline_payload(text) for text in some.span(0, len(some)).split(b"\0")[:-1]]
        assert [*map(len, payloads)] == some.lengths().tolist()
        for payload, row in zip(payloads, expected, strict=True):
            if row is None:  # nothing reads it
                continue
            stream = BytesIO()
            np.save(stream, np.array(row, number.to_pandas_dtype()).reshape(np.load(BytesIO(payload)).shape))
            if 0 not in shape:
                assert np.load(BytesIO(payload)).shape == (*shape,)
            assert payload == stream.getvalue()


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (
            [[1, 2], None, [3], [4]],
            pa.list_(pa.int8()),
            "a list of 1 although the first has 2, in rows 3, 4; expected lists",
        ),
        ([[[1], [2]], [[3], []]], pa.list_(pa.list_(pa.int8())), "a list of 0 although the first has 1, in row 2"),
        ([[1, 2], [3, None]], pa.list_(pa.float32()), "a null in a list in row 2; expected a number in every position"),
        ([[1, 2], [None, 3]], pa.list_(pa.int8(), 2), "a null in a list in row 2"),
        ([[[1]], [None]], pa.list_(pa.list_(pa.int8())), "a null in a list in row 2"),
        ([["a"]], pa.list_(pa.string()), "holds list<item: string>; expected lists of numbers of equal length. Use"),
        ([[{"a": 1}]], None, "holds list<item: struct<a: int64>>; expected lists of numbers"),
        (["[1, 2]"], None, "holds string; expected lists of numbers of equal length. Use another field: field={'txt'"),
        ([1.5], None, "holds double; expected lists of numbers"),
    ],
)
def test_other_values_are_not_arrays(values: list[Any], kind: pa.DataType | None, message: str) -> None:
    """Other lists, text and numbers are refused; the error names the column, field, rows and a suitable field."""
    error = _error(pa.array(values, kind))
    assert "column 'v' (field npy)" in error
    assert message in error
    assert "field={" in error


@pytest.mark.parametrize("ending", sorted(BINARY_ENDINGS))
def test_text_is_refused_for_binary_formats(ending: str) -> None:
    """Text, numbers and objects are refused for fields of binary formats, and accepted for text formats."""
    for column, other in ((pa.array(["a"]), "txt"), (pa.array([1]), "txt"), (pa.array([{"a": 1}]), "json")):
        error = _error(column, f"x.{ending.upper()}")
        assert f"column 'v' (field x.{ending.upper()}) holds {column.type}; expected " in error
        assert error.endswith(f"Use another field: field={{'{other}': 'v'}}.")
        _check(column, other)
        assert field_type(other, column.type) is not None


def test_encoded_payloads() -> None:
    """Text is its own payload; an encoded payload with invalid digits is an error."""
    assert decode_inline_payload("\xff é".encode()) == "\xff é".encode()
    assert decode_inline_payload(b"") == b""
    assert decode_inline_payload(b"\xff00ff") == b"\x00\xff"
    for wrong in (b"\xff0", b"\xffzz"):
        with pytest.raises(ValueError, match=r"digit|length"):
            decode_inline_payload(wrong)
