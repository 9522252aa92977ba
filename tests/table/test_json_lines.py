from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool import InvalidRequest
from shardtool.table.columns import MAX_COLUMNS, MAX_NESTING
from shardtool.table.json_lines import check_json_lines, read_json_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = st.text(max_size=12) | st.sampled_from(['"', "\\", '\\"', ":", "a" * 200, "[", "}"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["[[[", '\\"', '{"a":1}', "}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def _check(text: str | bytes) -> str:
    """Return the error for lines; empty if they are accepted."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    try:
        check_json_lines("t.jsonl", lambda: io.BytesIO(data))
    except InvalidRequest as error:
        return str(error)
    return ""


def _read(text: str) -> str:
    """Return the error for a table of lines; empty if it is read."""
    try:
        read_json_lines("t.jsonl", lambda: io.BytesIO(text.encode("utf-8", "surrogatepass")))
    except InvalidRequest as error:
        return str(error)
    return ""


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=6), st.sampled_from(["\n", "\r\n", " \n\n\t"]))
@example([{"a": '\\" [[', "b": [[1], [2]]}, {"[": "]", "{": {}}], "\n")
@example([{}], "\n")
def test_lines_with_one_object_are_accepted(rows: list[dict[str, object]], newline: str) -> None:
    """Any object is accepted: brackets inside text and white space around it are ignored."""
    for separators in ((",", ":"), (", ", " : ")):
        assert _check(newline.join(json.dumps(row, separators=separators) for row in rows)) == ""


@given(st.lists(VALUES, min_size=1, max_size=5), st.integers(0, 6))
def test_the_first_invalid_line_is_reported(rows: list[object], spaces: int) -> None:
    """Exactly the lines with one object are accepted; the error names the first other row and its type."""
    text = "\n".join(" " * spaces + json.dumps(row) for row in rows)
    bad = next((at for at, row in enumerate(rows, 1) if not isinstance(row, dict)), None)
    assert _read(text).startswith(f"t.jsonl: row {bad}: a JSON ") if bad else _check(text) == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("null", "a json null"),
        ('{"a":1} null', "extra data"),
        ('{"a":1}{"b":2}', "extra data"),
        ('{"a":1}}', "extra data"),
        ('{"a":"x}', "unterminated"),
        ('{"a":{}', "expecting"),
        ("\x01", "expecting value"),
        ('{"a":"\\"}', "unterminated"),
        ('[{"a":1}]', "a json list"),
        ('{"a":\n1}', "expecting value"),
        ('{"a":{}\n{"b":1}}', "expecting"),
    ],
)
def test_lines_without_exactly_one_object_are_refused(line: str, message: str) -> None:
    """A line that is not a single object is refused before pyarrow sees it, in any position."""
    for before in (0, 1, 40_000):
        result = _read('{"a":1}\n' * before + line)
        assert result.startswith(f"t.jsonl: row {before + 1:,}: ")
        assert message in result.lower()


@pytest.mark.parametrize("pair", ["[]", '{"a":}'])
def test_deep_nesting_is_refused(pair: str) -> None:
    """Values nested deeper than the limit are refused by row; values up to the limit are read."""
    opening, closing = pair[:-1], pair[-1]
    for depth in (MAX_NESTING, 100, 1000, 20_000, 200_000):
        line = '{"d":' + opening * depth + "1" + closing * depth + "}"
        assert f"row 2: lists or objects nested more than {MAX_NESTING} levels deep" in _check('{"d":1}\n' + line)
    depth = MAX_NESTING - 1
    line = '{"d":' + opening * depth + "1" + closing * depth + "}"
    assert read_json_lines("t", lambda: io.BytesIO(line.encode())).num_rows == 1


@pytest.mark.slow
def test_sparse_names_are_limited() -> None:
    """Names missing in most rows are refused unless they are in proportion to the file size."""
    wide = {f"k{at}": at for at in range(MAX_COLUMNS)}
    assert _check(json.dumps(wide)) == ""
    assert f"more than {MAX_COLUMNS:,} columns" in _check(json.dumps(wide | {"one": 1}))
    sparse: list[Mapping[str, object]] = [{f"k{at % 3000}": at} for at in range(60_000)]
    assert "3,000 different names in objects of the first " in _check("\n".join(map(json.dumps, sparse)))
    inner = [{"d": [{f"k{at % 3000}": 1}]} for at in range(60_000)]
    assert "3,001 different names in objects of the first " in _check("\n".join(map(json.dumps, inner)))
    messages = [{"text": json.dumps({f"k{at}": 1, f"\\l{at}": "a : b"})} for at in range(60_000)]
    assert _check("\n".join(map(json.dumps, messages))) == ""  # names in texts are none
