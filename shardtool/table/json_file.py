"""JSON in one piece: an array of rows, and COCO's annotations. Read as a stream, for such files have gigabytes.

What is in memory is one element of an array at a time, and what is made of them.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.arrow import number_array
from shardtool.entries.classes import are_names
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.table.columns import LONGEST_ROW, too_deep, too_long
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

_BLOCK = 2**20  # bytes at a time
_WHITE = re.compile(r"[ \t\r\n]*")
_WORD = 16  # characters that a number, a word or an escape at the end of what was read may lack
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
                if end < len(self._text) or not self._fill():  # a number may go on
                    self._start, self._at = self._at, end
                    return found

    def text(self) -> str:
        """Return what the last value was written as."""
        return self._text[self._start : self._at]

    def elements(self) -> Iterator[Any]:
        """Yield the values of the array that comes next."""
        self._take("[")
        if self.peek() == "]":
            self._take("]")
            return
        while True:
            yield self.value()
            if self._take(",]") == "]":
                return

    def members(self) -> Iterator[str]:
        """Yield the names in the object that comes next; before each next one, its value must be read."""
        self._take("{")
        if self.peek() == "}":
            self._take("}")
            return
        while True:
            self.peek()
            at = self._at
            if not isinstance(name := self.value(), str):
                raise self._problem("no name", at)
            self._take(":")
            yield name
            if self._take(",}") == "}":
                return

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
_NEEDED = {"images": ("id", ON), "annotations": ("image_id",), "categories": ("id", "name")}
_SIDES = 4


class _Annotations:
    """What annotations say, a value each; NaN and -1 stand for nothing.

    Attributes:
        image: Which image each is of.
    """

    def __init__(self, where: str) -> None:
        self._where, self._named = where, set[str]()
        self.image, self._category = array("q"), array("q")
        self._boxes, self._areas, self._crowds = array("d"), array("d"), array("d")
        self._captions: list[str | None] = []

    def add(self, one: dict[str, Any], image: int) -> None:
        """Note an annotation.

        Raises:
            InvalidRequest: It is none.
        """
        self._named.update(one)
        box = one.get("bbox")
        self._captions.append(one.get("caption"))
        self.image.append(image)
        try:
            self._category.append(one.get("category_id", -1))
            self._boxes.extend([np.nan] * _SIDES if box is None else box)
            self._areas.append(one.get("area", np.nan))
            self._crowds.append(one.get("iscrowd", np.nan))
            right = isinstance(self._captions[-1], str | None) and len(self._boxes) == _SIDES * len(self.image)
        except (TypeError, OverflowError):
            right = False
        if not right:
            shown = printable(json.dumps({name: one[name] for name in one if name != "segmentation"})[:200])
            expected = "bbox of four numbers, category_id, area and iscrowd of one, caption of text"
            raise InvalidRequest(self._where, f"annotation {len(self.image):,}: {shown}", expected=expected)

    def columns(self, categories: dict[int, str]) -> tuple[list[str], dict[str, pa.Array]]:
        """Return the names of classes, and a column for each thing that any annotation says.

        Raises:
            InvalidRequest: A category that is not there, or several of one name.
        """
        names, labels = self._labels(categories)
        boxes, starts = np.array(self._boxes, np.float64), np.arange(len(self.image) + 1, dtype=np.int32) * _SIDES
        unknown = arrow.truths(np.isnan(boxes[::_SIDES]))
        areas, crowds = (pa.array(np.array(one), from_pandas=True) for one in (self._areas, self._crowds))
        columns = {
            "bbox": ("boxes", pa.ListArray.from_arrays(number_array(starts), number_array(boxes), mask=unknown)),
            "category_id": ("labels", labels),
            "area": ("areas", areas),
            "iscrowd": ("iscrowd", crowds.cast(pa.int64())),
            "caption": ("captions", arrow.texts(self._captions)),
        }
        return names, {column: values for name, (column, values) in columns.items() if name in self._named}

    def _labels(self, categories: dict[int, str]) -> tuple[list[str], pa.Array]:
        try:
            ordered = sorted(categories)
            known = np.array(ordered, np.int64)
        except (TypeError, ValueError, OverflowError):
            found = f"categories with the ids {listing([*map(repr, categories)])}"
            raise InvalidRequest(self._where, found, expected="whole numbers") from None
        names, given = [categories[one] for one in ordered], np.array(self._category, np.int64)
        if not are_names(names):
            found = next(
                (f"called {name!r}" for name in names if names.count(name) > 1), "with names that are no UTF-8"
            )
            raise InvalidRequest(self._where, f"categories {found}", expected="a name of its own for each")
        labels = np.searchsorted(known, given)
        right = np.append(known, -1)[labels] == given
        if (bad := np.flatnonzero(~right & (given >= 0))).size:
            problem = f"annotation {int(bad[0]) + 1:,}: category {int(given[bad[0]])}"
            expected = f"one of the {len(names):,} that {self._where} lists"
            raise InvalidRequest(self._where, problem, expected=expected)
        return names, pa.array(labels, pa.int64(), mask=~right | (given < 0))


def read_coco(where: str, document: JsonStream) -> tuple[pa.Table, dict[str, list[str]], tuple[str, ...]]:
    """Return the images of COCO's annotations as a table, the classes of its column `labels`, and notes.

    Raises:
        InvalidRequest: The document is something else, or names what it does not have.
    """
    places, said, seen = dict[object, int](), _Annotations(where), set[str]()
    images: dict[str, list[Any]] = {name: [] for name in ("id", ON, "width", "height")}
    categories = dict[int, str]()
    for name in document.members():
        seen.add(name)
        if name not in _NEEDED or document.peek() != "[":
            document.skip()
            continue
        for number, one in enumerate(document.elements(), 1):
            if not isinstance(one, dict) or not all(isinstance(one.get(part), int | str) for part in _NEEDED[name]):
                found = f"{name}, element {number:,}: '{printable(document.text()[:80])}'"
                raise InvalidRequest(where, found, expected=f"an object with {' and '.join(_NEEDED[name])}")
            if name == "annotations":
                said.add(one, places.setdefault(one["image_id"], len(places)))
            elif name == "categories":
                categories[one["id"]] = str(one["name"])
            else:
                for part, values in images.items():
                    values.append(one.get(part))
    document.end()
    if not {"images", "annotations"} <= seen:
        found = f"a JSON object with {listing([*map(repr, sorted(seen))]) or 'nothing'}"
        raise InvalidRequest(where, found, expected=ROWS_OR_COCO)
    ids = {one: at for at, one in enumerate(images["id"])}
    if len(ids) < len(images["id"]):
        raise InvalidRequest(where, "images that share an id", expected="an id of its own for each")
    owner = np.array([ids.get(one, -1) for one in places], np.int64)[np.array(said.image, np.int64)]
    order = np.argsort(owner, kind="stable")[int(np.count_nonzero(owner < 0)) :]
    ends = np.cumsum(np.bincount(owner[order], minlength=len(ids)))
    names, columns = said.columns(categories)
    table = {ON: arrow.texts([*map(str, images[ON])]), "coco_id": pa.array(images["id"])}
    table |= {side: pa.array(images[side]) for side in ("width", "height") if any(images[side])}
    offsets, which = number_array(np.concatenate(([0], ends)).astype(np.int32)), number_array(order)
    table |= {name: pa.ListArray.from_arrays(offsets, values.take(which)) for name, values in columns.items()}
    lone = counted(len(owner) - len(order), "annotation")
    notes = (f"{lone} of images that are not in {where}, left out",) if len(order) < len(owner) else ()
    return pa.table(table), {"labels": names} if "labels" in table else {}, notes
