"""COCO annotations as a table with a row per image.

The file has `images`, `annotations` and `categories`. Each property of annotations becomes a list column, one value
per annotation, in their order. Classes are numbered from 0 in the order of the category ids.

Source: https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import are_class_names, is_unicode_text, recorded_names
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.table.json_stream import ROWS_OR_COCO, JsonStream
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator


IMAGE_COLUMN = "file_name"  # the column that says which image a row is about


_COLUMN_NAMES = {"bbox": "boxes", "category_id": "labels", "area": "areas", "iscrowd": "iscrowd", "caption": "captions"}


_REQUIRED_NAMES = {"images": ("id", IMAGE_COLUMN), "annotations": ("image_id",), "categories": ("id", "name")}


_SIDE_NAMES = "width", "height"


_IMAGE_PROPERTIES = ("id", IMAGE_COLUMN, *_SIDE_NAMES)


_CHUNK_ANNOTATIONS = 2**14  # annotations that are objects at a time


_ARROW_TYPES = {
    "bbox": pa.list_(pa.float64(), 4), "category_id": pa.int64(), "area": pa.float64(), "iscrowd": pa.int64(),
    "caption": pa.string(), "image_id": pa.string(),
}  # fmt: skip


_WHOLE_NUMBER = "a whole number below 2^63"


_EXPECTED_VALUES = {
    "bbox": "four numbers", "category_id": _WHOLE_NUMBER, "area": "a number", "iscrowd": _WHOLE_NUMBER, "caption": "text",
    "image_id": "text",
}  # fmt: skip


def read_coco(where: str, document: JsonStream) -> tuple[pa.Table, dict[str, list[str]], tuple[str, ...]]:
    """Return the images of COCO's annotations as a table, the classes of its column `labels`, and notes.

    Raises:
        InvalidRequest: The document is something else, or names what it does not have.
    """
    images, said, categories = dict[str, list[Any]](), dict[str, pa.Array](), dict[Any, Any]()
    for name in document.members():
        if name not in _REQUIRED_NAMES or document.peek() != "[":
            document.skip()
            continue
        objects = _read_objects(where, document, name)
        if name == "images":
            rows = [[one.get(part) for part in _IMAGE_PROPERTIES] for one in objects]
            images = {part: [row[at] for row in rows] for at, part in enumerate(_IMAGE_PROPERTIES)}
        elif name == "annotations":
            said = _read_annotations(objects, where)
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
    names, said["category_id"] = _number_labels(where, categories, said["category_id"])
    owner = arrow.number_values(
        pc.fill_null(pc.index_in(said["image_id"], value_set=arrow.text_array(ids).cast(pa.string())), -1)
    )
    order = np.argsort(owner, kind="stable")[int(np.count_nonzero(owner < 0)) :]
    ends = np.cumsum(np.bincount(owner[order], minlength=len(ids)))
    are_texts = any(isinstance(one, str) for one in images["id"])
    table = {
        IMAGE_COLUMN: arrow.text_array([*map(str, images[IMAGE_COLUMN])]),
        "coco_id": pa.array(ids if are_texts else images["id"]),
    }
    table |= {side: pa.array(images[side]) for side in _SIDE_NAMES if any(images[side])}
    offsets, which = arrow.number_array(np.concatenate(([0], ends)).astype(np.int32)), arrow.number_array(order)
    for name, column in _COLUMN_NAMES.items():
        if said[name].null_count < len(said[name]):
            table[column] = pa.ListArray.from_arrays(offsets, said[name].take(which))
    lone = pluralize(len(owner) - len(order), "annotation")
    notes = (f"{lone} of images that are not in {where}, left out",) if len(order) < len(owner) else ()
    return pa.table(table), {"labels": names} if "labels" in table else {}, notes


def _read_objects(where: str, document: JsonStream, name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list of the document, which must have what makes them useful."""
    for number, one in enumerate(document.elements(), 1):
        needed = _REQUIRED_NAMES[name]
        if not isinstance(one, dict) or any(one.get(part) is None for part in needed):
            found = f"{name}, element {number:,}: '{printable(document.text()[:80])}'"
            raise InvalidRequest(where, found, expected=f"an object with {' and '.join(needed)}")
        for part in needed:
            if not _is_int64(one[part]) and not is_unicode_text(one[part]):
                raise _value_error(where, name, number, (part, one[part]), f"{_WHOLE_NUMBER}, or text")
        for part in _SIDE_NAMES if name == "images" else ():
            if one.get(part) is not None and not _is_int64(one[part]) and not isinstance(one[part], float):
                raise _value_error(where, name, number, (part, one[part]), "a number")
        yield one


def _is_int64(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63


def _value_error(where: str, name: str, number: int, found: tuple[str, object], expected: str) -> InvalidRequest:
    shown = f"{name}, element {number:,}: {found[0]} is {printable(json.dumps(found[1])[:60])}"
    return InvalidRequest(where, shown, expected=expected)


def _read_annotations(objects: Iterator[dict[str, Any]], where: str) -> dict[str, pa.Array]:
    """Return what annotations say, a value each."""
    columns = {part: [pa.array([], kind)] for part, kind in _ARROW_TYPES.items()}
    while some := [{**one, "image_id": str(one["image_id"])} for one in islice(objects, _CHUNK_ANNOTATIONS)]:
        for part, chunks in columns.items():
            chunks.append(_to_array([one.get(part) for one in some], part, sum(map(len, chunks)) + 1, where))
    return {part: pa.concat_arrays(chunks) for part, chunks in columns.items()}


def _to_array(values: list[Any], part: str, first: int, where: str) -> pa.Array:
    """Return a part of annotations, the first of which has this number, as an array.

    Raises:
        InvalidRequest: One is something else.
    """
    expected = _EXPECTED_VALUES[part]
    try:
        if expected != _WHOLE_NUMBER or not any(
            one % 1 for one in values if isinstance(one, float)
        ):  # it would cut 2.5 to 2
            return pa.array(values, _ARROW_TYPES[part])
    except (TypeError, ValueError, OverflowError):
        pass
    if len(values) == 1:
        raise _value_error(where, "annotations", first, (part, values[0]), expected)
    return pa.concat_arrays([_to_array([one], part, number, where) for number, one in enumerate(values, first)])


def _number_labels(where: str, categories: dict[Any, Any], given: pa.Array) -> tuple[list[str], pa.Array]:
    """Return the names of classes in the order of their categories' ids, and the class of each annotation.

    Raises:
        InvalidRequest: An annotation's category is not there, or ids or names are none.
    """
    if not all(isinstance(one, int) for one in categories):
        found = f"categories with the ids {format_list([*map(repr, categories)])}"
        raise InvalidRequest(where, found, expected="whole numbers")
    known = sorted(categories)
    names = [categories[one] for one in known]
    if not are_class_names(names):
        found = next((f"called {name!r}" for name in names if names.count(name) > 1), "with names that are no text")
        raise InvalidRequest(where, f"categories {found}", expected="a name of its own for each")
    labels = pc.index_in(given, value_set=pa.array(known, pa.int64()))
    bad = arrow.true_positions(pc.and_(pc.is_null(labels), pc.is_valid(given)))
    if len(bad):
        problem = f"annotation {int(bad[0]) + 1:,}: category {given[int(bad[0])]}"
        raise InvalidRequest(where, problem, expected=f"one of the {len(names):,} that {where} lists")
    return recorded_names(names), labels
