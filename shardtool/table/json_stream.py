"""Read a large JSON document with only one array element in memory at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from shardtool.errors import InvalidRequest, printable
from shardtool.table.columns import MAX_ROW_BYTES, nesting_error, row_size_error

_BLOCK_BYTES = 2**20
_WHITE_SPACE = re.compile(r"[ \t\r\n]*")
_MAX_TOKEN_CHARS = 16  # a token this close to the end of the buffer may be cut off
_NUMBER_CONTINUES = ("", ".", "e", "E")
_DECODER = json.JSONDecoder()
ROWS_OR_COCO = "an array of objects, one per row, or COCO annotations"


class JsonStream:
    """A JSON document that is read step by step. Every method may raise `InvalidRequest`."""

    def __init__(self, location: str, stream: BinaryIO) -> None:
        self._location, self._stream = location, stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._position, self._value_start = "", 0, 0
        self._chars_before, self._has_ended = 0, False

    def peek(self) -> str:
        """Skip white space, and return the next character without consuming it. At the end, return ""."""
        while True:
            self._position = _WHITE_SPACE.match(self._text, self._position).end()  # type: ignore[union-attr]
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read_more():
                return ""

    def value(self) -> Any:
        """Read and return the next value."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
            except RecursionError:
                raise nesting_error(self._location) from None
            except json.JSONDecodeError as error:
                # The position of the error refers to the current text, so create the error before reading more.
                problem = self._problem(error.msg, error.pos)
                is_cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _MAX_TOKEN_CHARS
                if not is_cut or not self._read_more():
                    raise problem from None
            except ValueError as error:
                raise self._problem(str(error), self._position) from None
            else:
                is_cut = self._text[end : end + 1] in _NUMBER_CONTINUES and end + _MAX_TOKEN_CHARS > len(self._text)
                if not is_cut or not self._read_more():
                    self._value_start, self._position = self._position, end
                    return value

    def text(self) -> str:
        """Return the JSON text of the value that was read last."""
        return self._text[self._value_start : self._position]

    def elements(self) -> Iterator[Any]:
        """Read the next array, and yield each element."""
        return self._iter_items("[", "]", self.value)

    def members(self) -> Iterator[str]:
        """Read the next object, and yield each name. The caller must read the value after each name."""
        return self._iter_items("{", "}", self._read_name)

    def _iter_items(self, start: str, end: str, read_item: Callable[[], Any]) -> Iterator[Any]:
        self._expect(start)
        if self.peek() == end:
            self._expect(end)
            return
        while True:
            yield read_item()
            if self._expect("," + end) == end:
                return

    def _read_name(self) -> str:
        self.peek()
        position = self._position
        if not isinstance(name := self.value(), str):
            raise self._problem("not a name", position)
        self._expect(":")
        return name

    def skip(self) -> None:
        """Skip the next value."""
        if self.peek() != "[":
            self.value()
            return
        for _ in self.elements():
            pass

    def end(self) -> None:
        """Raise an error if another value follows."""
        if self.peek():
            raise self._problem("more than one value", self._position)

    def _expect(self, marks: str) -> str:
        char = self.peek()
        if not char or char not in marks:
            found = f"'{char}' instead of {' or '.join(marks)}" if char else "it ends too early"
            raise self._problem(found, self._position)
        self._position += 1
        return char

    def _read_more(self) -> bool:
        if self._has_ended:
            return False
        rest = self._text[self._position :]
        if len(rest) > MAX_ROW_BYTES:
            raise row_size_error(self._location)
        data = self._stream.read(max(_BLOCK_BYTES, len(rest)))
        self._has_ended = not data
        self._chars_before += self._position
        try:
            self._text, self._position = rest + self._decode(data, not data), 0
        except UnicodeDecodeError:
            raise InvalidRequest(self._location, "not valid UTF-8", expected="JSON in UTF-8") from None
        return not self._has_ended

    def _problem(self, found: str, position: int) -> InvalidRequest:
        shown = printable(self._text[position : position + 40])
        problem = f"invalid JSON: {found[:1].lower()}{found[1:80]}, at character {self._chars_before + position + 1:,}"
        remedy = f"The text there: '{shown}'." if shown else ""
        return InvalidRequest(self._location, problem, expected=ROWS_OR_COCO, remedy=remedy)


def to_json_lines(location: str, rows: JsonStream) -> pa.Buffer:
    """Convert an array of objects to LZ4-compressed JSON lines."""
    sink, number = pa.BufferOutputStream(), 0
    with pa.CompressedOutputStream(sink, "lz4") as lines:
        for number, row in enumerate(rows.elements(), 1):
            if not isinstance(row, dict):
                found = f"row {number:,}: '{printable(rows.text()[:60])}'"
                raise InvalidRequest(location, found, expected="an object for each row")
            lines.write(rows.text().replace("\n", " ").replace("\r", " ").encode() + b"\n")
    rows.end()
    if not number:
        raise InvalidRequest(location, "no rows", expected="an object for each row")
    return sink.getvalue()
