"""JSON in one piece: an array of rows, and COCO's annotations. Read as a stream, for such files have gigabytes.

What is in memory is one element of an array at a time, and what is made of them.
"""

from __future__ import annotations

import codecs
import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import are_names, is_text, recorded
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.table.columns import LONGEST_ROW, too_deep, too_long
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BLOCK = 2**20  # bytes at a time
_WHITE = re.compile(r"[ \t\r\n]*")
_WORD = 16  # characters that a number, a word or an escape at the end of what was read may lack
_GOES_ON = ("", ".", "e", "E")  # what may stand behind the start of a number
_DECODER = json.JSONDecoder()
ROWS_OR_COCO = "an array of objects, a row each, or COCO's images and annotations"


class JsonStream:
    """One JSON document, read piece by piece.

    Args:
        where: What the user called it.
        stream: Its bytes.

    Raises:
        InvalidRequest: In every method: it is no JSON, nested too deep, or has a value of more than `LONGEST_ROW`.
    """

    def __init__(self, where: str, stream: BinaryIO) -> None:
        self._where, self._stream = where, stream
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._start, self._before, self._ended = "", 0, 0, 0, False

    def peek(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            self._at = _WHITE.match(self._text, self._at).end()  # type: ignore[union-attr]
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
                raise too_deep(self._where) from None
            except json.JSONDecodeError as error:
                problem = self._problem(error.msg, error.pos)  # which counts in what was read until now
                is_cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _WORD
                if not is_cut or not self._fill():
                    raise problem from None
            except ValueError as error:  # a number of thousands of digits
                raise self._problem(str(error), self._at) from None
            else:
                is_cut = self._text[end : end + 1] in _GOES_ON and end + _WORD > len(self._text)
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
        if len(rest) > LONGEST_ROW:
            raise too_long(self._where)
        data = self._stream.read(max(_BLOCK, len(rest)))
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


def lines_of(where: str, rows: JsonStream) -> pa.Buffer:
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


# COCO: `images`, `annotations` that name them, and `categories` that annotations name.
#
# Source: https://cocodataset.org/#format-data. A row is an image, with a list for each thing that annotations say, one
# value an annotation, in their order. Classes are numbered from 0 in the order of the categories' ids.


ON = "file_name"  # the column that says which image a row is about
_COLUMNS = {"bbox": "boxes", "category_id": "labels", "area": "areas", "iscrowd": "iscrowd", "caption": "captions"}
_NEEDED = {"images": ("id", ON), "annotations": ("image_id",), "categories": ("id", "name")}
_SIDES = "width", "height"
_OF_IMAGES = ("id", ON, *_SIDES)
_CHUNK = 2**14  # annotations that are objects at a time
_SAID = {
    "bbox": pa.list_(pa.float64(), 4), "category_id": pa.int64(), "area": pa.float64(), "iscrowd": pa.int64(),
    "caption": pa.string(), "image_id": pa.string(),
}  # fmt: skip
_WHOLE = "a whole number below 2^63"
_EXPECTED = {
    "bbox": "four numbers", "category_id": _WHOLE, "area": "a number", "iscrowd": _WHOLE, "caption": "text",
    "image_id": "text",
}  # fmt: skip


def read_coco(where: str, document: JsonStream) -> tuple[pa.Table, dict[str, list[str]], tuple[str, ...]]:
    """Return the images of COCO's annotations as a table, the classes of its column `labels`, and notes.

    Raises:
        InvalidRequest: The document is something else, or names what it does not have.
    """
    images, said, categories = dict[str, list[Any]](), dict[str, pa.Array](), dict[Any, Any]()
    for name in document.members():
        if name not in _NEEDED or document.peek() != "[":
            document.skip()
            continue
        objects = _objects(where, document, name)
        if name == "images":
            rows = [[one.get(part) for part in _OF_IMAGES] for one in objects]
            images = {part: [row[at] for row in rows] for at, part in enumerate(_OF_IMAGES)}
        elif name == "annotations":
            said = _annotations(objects, where)
        else:
            named = [(one["id"], one["name"]) for one in objects]
            categories = dict(named)
            if len(categories) < len(named):
                raise InvalidRequest(where, "categories that share an id", expected="an id of its own for each")
    document.end()
    if not images or not said:
        raise InvalidRequest(where, "a JSON object", expected=ROWS_OR_COCO)
    ids = [*map(str, images["id"])]
    if len({*ids}) < len(ids):
        raise InvalidRequest(where, "images that share an id", expected="an id of its own for each")
    names, said["category_id"] = _labels(where, categories, said["category_id"])
    owner = arrow.numbers(pc.fill_null(pc.index_in(said["image_id"], value_set=arrow.texts(ids).cast(pa.string())), -1))
    order = np.argsort(owner, kind="stable")[int(np.count_nonzero(owner < 0)) :]
    ends = np.cumsum(np.bincount(owner[order], minlength=len(ids)))
    are_texts = any(isinstance(one, str) for one in images["id"])
    table = {ON: arrow.texts([*map(str, images[ON])]), "coco_id": pa.array(ids if are_texts else images["id"])}
    table |= {side: pa.array(images[side]) for side in _SIDES if any(images[side])}
    offsets, which = arrow.number_array(np.concatenate(([0], ends)).astype(np.int32)), arrow.number_array(order)
    for name, column in _COLUMNS.items():
        if said[name].null_count < len(said[name]):
            table[column] = pa.ListArray.from_arrays(offsets, said[name].take(which))
    lone = counted(len(owner) - len(order), "annotation")
    notes = (f"{lone} of images that are not in {where}, left out",) if len(order) < len(owner) else ()
    return pa.table(table), {"labels": names} if "labels" in table else {}, notes


def _objects(where: str, document: JsonStream, name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list of the document, which must have what makes them useful."""
    for number, one in enumerate(document.elements(), 1):
        needed = _NEEDED[name]
        if not isinstance(one, dict) or any(one.get(part) is None for part in needed):
            found = f"{name}, element {number:,}: '{printable(document.text()[:80])}'"
            raise InvalidRequest(where, found, expected=f"an object with {' and '.join(needed)}")
        for part in needed:
            if not _is_whole(one[part]) and not is_text(one[part]):
                raise _bad_value(where, name, number, (part, one[part]), f"{_WHOLE}, or text")
        for part in _SIDES if name == "images" else ():
            if one.get(part) is not None and not _is_whole(one[part]) and not isinstance(one[part], float):
                raise _bad_value(where, name, number, (part, one[part]), "a number")
        yield one


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63


def _bad_value(where: str, name: str, number: int, found: tuple[str, object], expected: str) -> InvalidRequest:
    shown = f"{name}, element {number:,}: {found[0]} is {printable(json.dumps(found[1])[:60])}"
    return InvalidRequest(where, shown, expected=expected)


def _annotations(objects: Iterator[dict[str, Any]], where: str) -> dict[str, pa.Array]:
    """Return what annotations say, a value each."""
    columns = {part: [pa.array([], kind)] for part, kind in _SAID.items()}
    while some := [{**one, "image_id": str(one["image_id"])} for one in islice(objects, _CHUNK)]:
        for part, chunks in columns.items():
            chunks.append(_values([one.get(part) for one in some], part, sum(map(len, chunks)) + 1, where))
    return {part: pa.concat_arrays(chunks) for part, chunks in columns.items()}


def _values(values: list[Any], part: str, first: int, where: str) -> pa.Array:
    """Return a part of annotations, the first of which has this number, as an array.

    Raises:
        InvalidRequest: One is something else.
    """
    expected = _EXPECTED[part]
    try:
        if expected != _WHOLE or not any(one % 1 for one in values if isinstance(one, float)):  # it would cut 2.5 to 2
            return pa.array(values, _SAID[part])
    except (TypeError, ValueError, OverflowError):
        pass
    if len(values) == 1:
        raise _bad_value(where, "annotations", first, (part, values[0]), expected)
    return pa.concat_arrays([_values([one], part, number, where) for number, one in enumerate(values, first)])


def _labels(where: str, categories: dict[Any, Any], given: pa.Array) -> tuple[list[str], pa.Array]:
    """Return the names of classes in the order of their categories' ids, and the class of each annotation.

    Raises:
        InvalidRequest: An annotation's category is not there, or ids or names are none.
    """
    if not all(isinstance(one, int) for one in categories):
        found = f"categories with the ids {listing([*map(repr, categories)])}"
        raise InvalidRequest(where, found, expected="whole numbers")
    known = sorted(categories)
    names = [categories[one] for one in known]
    if not are_names(names):
        found = next((f"called {name!r}" for name in names if names.count(name) > 1), "with names that are no text")
        raise InvalidRequest(where, f"categories {found}", expected="a name of its own for each")
    labels = pc.index_in(given, value_set=pa.array(known, pa.int64()))
    bad = arrow.places(pc.and_(pc.is_null(labels), pc.is_valid(given)))
    if len(bad):
        problem = f"annotation {int(bad[0]) + 1:,}: category {given[int(bad[0])]}"
        raise InvalidRequest(where, problem, expected=f"one of the {len(names):,} that {where} lists")
    return recorded(names), labels
