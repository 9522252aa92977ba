"""Read a large JSON document as a stream: one array element is in memory at a time."""

from __future__ import annotations

import codecs
import json
import re
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from shardtool.errors import InvalidRequest, printable
from shardtool.table.limits import MAX_ROW_BYTES, nesting_error, row_size_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_BLOCK_BYTES = 2**20  # bytes at a time


_WHITE_SPACE = re.compile(r"[ \t\r\n]*")


_MAX_TOKEN_CHARS = 16  # characters that a number, a word or an escape at the end of what was read may lack


_NUMBER_CONTINUES = ("", ".", "e", "E")  # what may stand behind the start of a number


_DECODER = json.JSONDecoder()


ROWS_OR_COCO = "an array of objects, a row each, or COCO's images and annotations"


class JsonStream:
    """One JSON document, read piece by piece.

    Args:
        where: What the user called it.
        stream: Its bytes.

    Raises:
        InvalidRequest: In every method: it is no JSON, nested too deep, or has a value of more than `MAX_ROW_BYTES`.
    """

    def __init__(self, where: str, stream: BinaryIO) -> None:
        self._where, self._stream = where, stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._start, self._before, self._ended = "", 0, 0, 0, False

    def peek(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            self._at = _WHITE_SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def value(self) -> Any:
        """Return the next value, whole."""
        self.peek()
        while True:
            try:
                found, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise nesting_error(self._where) from None
            except json.JSONDecodeError as error:
                problem = self._problem(error.msg, error.pos)  # which counts in what was read until now
                is_cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _MAX_TOKEN_CHARS
                if not is_cut or not self._fill():
                    raise problem from None
            except ValueError as error:  # a number of thousands of digits
                raise self._problem(str(error), self._at) from None
            else:
                is_cut = self._text[end : end + 1] in _NUMBER_CONTINUES and end + _MAX_TOKEN_CHARS > len(self._text)
                if not is_cut or not self._fill():
                    self._start, self._at = self._at, end
                    return found

    def text(self) -> str:
        """Return what the last value was written as."""
        return self._text[self._start : self._at]

    def elements(self) -> Iterator[Any]:
        """Yield the values of the array that comes next."""
        return self._parts("[", "]", self.value)

    def members(self) -> Iterator[str]:
        """Yield the names in the object that comes next; before each next one, its value must be read."""
        return self._parts("{", "}", self._name)

    def _parts(self, start: str, end: str, part: Callable[[], Any]) -> Iterator[Any]:
        self._take(start)
        if self.peek() == end:
            self._take(end)
            return
        while True:
            yield part()
            if self._take("," + end) == end:
                return

    def _name(self) -> str:
        self.peek()
        at = self._at
        if not isinstance(name := self.value(), str):
            raise self._problem("no name", at)
        self._take(":")
        return name

    def skip(self) -> None:
        """Pass over the next value: of an array, one element at a time."""
        if self.peek() != "[":
            self.value()
            return
        for _ in self.elements():
            pass

    def end(self) -> None:
        """Refuse anything that comes behind the last value."""
        if self.peek():
            raise self._problem("more than one value", self._at)

    def _take(self, marks: str) -> str:
        found = self.peek()
        if not found or found not in marks:
            raise self._problem(f"no {' or '.join(marks)}" if found else "it ends too early", self._at)
        self._at += 1
        return found

    def _fill(self) -> bool:
        """Read on; tell whether there was more."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        if len(rest) > MAX_ROW_BYTES:
            raise row_size_error(self._where)
        data = self._stream.read(max(_BLOCK_BYTES, len(rest)))
        self._ended, self._before = not data, self._before + self._at
        try:
            self._text, self._at = rest + self._decode(data, not data), 0
        except UnicodeDecodeError:
            raise InvalidRequest(self._where, "text that is no UTF-8", expected="JSON in UTF-8") from None
        return not self._ended

    def _problem(self, found: str, at: int) -> InvalidRequest:
        shown = printable(self._text[at : at + 40])
        problem = f"no JSON: {found[:1].lower()}{found[1:80]}, at character {self._before + at + 1:,}"
        return InvalidRequest(
            self._where, problem, expected=ROWS_OR_COCO, remedy=f"There stands '{shown}'." * bool(shown)
        )


def to_json_lines(where: str, rows: JsonStream) -> pa.Buffer:
    """Return an array of objects as JSON lines, packed by LZ4: they are read several times.

    Raises:
        InvalidRequest: It is none, or empty.
    """
    sink, number = pa.BufferOutputStream(), 0
    with pa.CompressedOutputStream(sink, "lz4") as lines:
        for number, row in enumerate(rows.elements(), 1):
            if not isinstance(row, dict):
                found = f"row {number:,}: '{printable(rows.text()[:60])}'"
                raise InvalidRequest(where, found, expected="an object for each row")
            lines.write(rows.text().replace("\n", " ").replace("\r", " ").encode() + b"\n")
    rows.end()
    if not number:
        raise InvalidRequest(where, "no rows", expected="an object for each row")
    return sink.getvalue()
