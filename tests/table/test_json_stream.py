from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, create
from shardtool.table.detect import is_table
from shardtool.table.json_stream import JsonStream
from shardtool.table.open import open_table
from tests.helpers import members

if TYPE_CHECKING:
    from pathlib import Path

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


class Trickle(io.BytesIO):
    """A stream that returns a few bytes at a time, like a pipe."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read(self, _size: int | None = -1, /) -> bytes:
        return super().read(self._step)


def _stream(data: bytes, step: int = 2**20) -> JsonStream:
    return JsonStream("t.json", Trickle(data, step))


@given(values=st.lists(_VALUES, max_size=5), step=st.integers(1, 40), indent=st.sampled_from([None, 2]))
def test_array_elements_do_not_depend_on_the_block_size(values: list[Any], step: int, indent: int | None) -> None:
    """Elements equal those of Python's own reader, for any block size, and are read once."""
    data = json.dumps(values, indent=indent, ensure_ascii=bool(indent)).encode()
    stream = _stream(data, step)
    assert [*stream.elements()] == values
    stream.end()
    stream = _stream(json.dumps({str(at): value for at, value in enumerate(values)}).encode(), step)
    assert [(name, stream.value()) for name in stream.members()] == [(str(at), one) for at, one in enumerate(values)]
    stream.end()


@given(data=st.binary(max_size=40) | st.text('[]{}",:\\u0e1- tn', max_size=30).map(str.encode), step=st.integers(1, 9))
def test_bytes_that_python_cannot_parse_are_refused(data: bytes, step: int) -> None:
    """Any bytes are read like Python's reader does, or raise InvalidRequest."""
    try:
        expected = [json.loads(data.decode("utf-8-sig"))]
    except ValueError:
        expected = []
    try:
        stream = _stream(data, step)
        result = [stream.value()]
        stream.end()
    except InvalidRequest:
        result = []
    assert json.dumps(result) == json.dumps(expected)


def test_a_json_array_equals_json_lines(tmp_path: Path) -> None:
    """A JSON array of objects is the same table as JSON lines, compressed or not, with any layout."""
    rows = [{"id": 7, "text": 'a "b"\n', "box": [1, 2.5]}, {"id": 8, "text": "é", "box": []}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for indent in (None, 2):
        (tmp_path / "t.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=False))
        assert is_table(tmp_path / "t.json")
        table, lines = open_table(tmp_path / "t.json", ()), open_table(tmp_path / "t.jsonl", ())
        assert table.schema == lines.schema
        assert table.read(table.schema.names, ()).to_pylist() == rows
    create(tmp_path / "t.json", f"{tmp_path}/o-{{0..}}.tar", CreateOptions(field={"txt": "text"}, meta="box"))
    assert members(tmp_path / "o-0.tar")[:2] == [("7.json", b'{"box":[1.0,2.5]}'), ("7.txt", b'a "b"\n')]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no rows"),
        ('[{"a": 1}, 3]', "row 2: '3'; expected an object for each row"),
        ('[{"a": 1} {"a": 2}]', "invalid JSON: '{' instead of , or ], at character 11; "),
        ('[{"a": 1}', "invalid JSON: it ends too early, at character 10"),
        ('[{"a": 1}] 2', "invalid JSON: more than one value, at character 12"),
        ('[{"a": nul}]', "invalid JSON: expecting value, at character 8"),
        ('[{"a": "\udcff"}]', "not valid UTF-8"),
        ('[{"a": ' + "[" * 40 + "]" * 40 + "}]", "lists or objects nested more than 32 levels deep"),
        ('[{"a": ' + "[" * 100_000, "lists or objects nested more than 32 levels deep"),
        ('[{"a": ' + "9" * 5000 + "}]", "invalid JSON: exceeds the limit"),
        ('[{"a": 1}, {"a": "x"}]', "column 'a' mixes types: number in 1 row, text in row 2"),
        ('{"a": [1, 2], "b": {}}', "a JSON object; expected an array of objects, one per row, or COCO"),
    ],
)
def test_invalid_json_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """The error for an invalid file gives the location."""
    (tmp_path / "t.json").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(InvalidRequest) as caught:
        open_table(tmp_path / "t.json", ())
    assert message in str(caught.value)
