"""Read COCO annotations as a table with one row per image.

Properties of the annotations, such as `bbox`, become columns of lists. Each list has one value per annotation of
the image, in file order.

Source: https://cocodataset.org/#format-data
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import are_class_names, is_unicode_text, recorded_names
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.table.json_stream import ROWS_OR_COCO, JsonStream
from shardtool.table.rows import collect_lists
from shardtool.units import pluralize

IMAGE_COLUMN = "file_name"
_COLUMN_NAMES = {"bbox": "boxes", "category_id": "labels", "area": "areas", "iscrowd": "iscrowd", "caption": "captions"}
_REQUIRED_NAMES = {"images": ("id", IMAGE_COLUMN), "annotations": ("image_id",), "categories": ("id", "name")}
_SIDE_NAMES = "width", "height"
_IMAGE_PROPERTIES = ("id", IMAGE_COLUMN, *_SIDE_NAMES)
_CHUNK_ANNOTATIONS = 2**14

_ARROW_TYPES = {
    "bbox": pa.list_(pa.float64(), 4), "category_id": pa.int64(), "area": pa.float64(), "iscrowd": pa.int64(),
    "caption": pa.string(), "image_id": pa.string(),
}  # fmt: skip

_WHOLE_NUMBER = "a whole number below 2^63"

_EXPECTED_VALUES = {
    "bbox": "four numbers", "category_id": _WHOLE_NUMBER, "area": "a number", "iscrowd": _WHOLE_NUMBER,
    "caption": "text", "image_id": "text",
}  # fmt: skip


def read_coco(location: str, document: JsonStream) -> tuple[pa.Table, dict[str, list[str]], tuple[str, ...]]:
    """Return the images as a table, the class names of the column `labels`, and notes."""
    images, annotations, categories = dict[str, list[Any]](), dict[str, pa.Array](), dict[Any, Any]()
    for name in document.members():
        if name not in _REQUIRED_NAMES or document.peek() != "[":
            document.skip()
            continue
        objects = _read_objects(location, document, name)
        if name == "images":
            rows = [[item.get(part) for part in _IMAGE_PROPERTIES] for item in objects]
            images = {part: [row[index] for row in rows] for index, part in enumerate(_IMAGE_PROPERTIES)}
        elif name == "annotations":
            annotations = _read_annotations(objects, location)
        else:
            id_names = [(item["id"], item["name"]) for item in objects]
            categories = dict(id_names)
            if len(categories) < len(id_names):
                found = "several categories with the same id"
                raise InvalidRequest(location, found, expected="a unique id for each category")
    document.end()
    if not images or not annotations:
        raise InvalidRequest(location, "a JSON object", expected=ROWS_OR_COCO)
    ids = [*map(str, images["id"])]
    if len({*ids}) < len(ids):
        raise InvalidRequest(location, "several images with the same id", expected="a unique id for each image")
    names, annotations["category_id"] = _number_labels(location, categories, annotations["category_id"])
    id_values = arrow.text_array(ids).cast(pa.string())
    image_index = arrow.number_values(pc.fill_null(pc.index_in(annotations["image_id"], value_set=id_values), -1))
    are_texts = any(isinstance(item, str) for item in images["id"])
    table = {
        IMAGE_COLUMN: arrow.text_array([*map(str, images[IMAGE_COLUMN])]),
        "coco_id": pa.array(ids if are_texts else images["id"]),
    }
    table |= {side: pa.array(images[side]) for side in _SIDE_NAMES if any(images[side])}
    columns = {column: annotations[name] for name, column in _COLUMN_NAMES.items()}
    columns = {column: values for column, values in columns.items() if values.null_count < len(values)}
    table |= collect_lists(columns, image_index, len(ids))
    orphans = int(np.count_nonzero(image_index < 0))
    skipped = f"{pluralize(orphans, 'annotation')} skipped: {location} does not list the image"
    notes = (skipped,) if orphans else ()
    return pa.table(table), {"labels": names} if "labels" in table else {}, notes


def _read_objects(location: str, document: JsonStream, name: str) -> Iterator[dict[str, Any]]:
    for index, item in enumerate(document.elements(), 1):
        required_names = _REQUIRED_NAMES[name]
        if not isinstance(item, dict) or any(item.get(property_name) is None for property_name in required_names):
            found = f"{name}, element {index:,}: '{printable(document.text()[:80])}'"
            raise InvalidRequest(location, found, expected=f"an object with {' and '.join(required_names)}")
        for property_name in required_names:
            if not _is_int64(item[property_name]) and not is_unicode_text(item[property_name]):
                expected = f"{_WHOLE_NUMBER}, or text"
                raise _value_error(location, name, index, (property_name, item[property_name]), expected)
        for property_name in _SIDE_NAMES if name == "images" else ():
            value = item.get(property_name)
            if value is not None and not _is_int64(value) and not isinstance(value, float):
                raise _value_error(location, name, index, (property_name, value), "a number")
        yield item


def _is_int64(value: object) -> bool:
    return type(value) is int and abs(value) < 2**63


def _value_error(
    location: str, name: str, index: int, property_value: tuple[str, object], expected: str
) -> InvalidRequest:
    shown = f"{name}, element {index:,}: {property_value[0]} is {printable(json.dumps(property_value[1])[:60])}"
    return InvalidRequest(location, shown, expected=expected)


def _read_annotations(objects: Iterator[dict[str, Any]], location: str) -> dict[str, pa.Array]:
    columns = {property_name: [pa.array([], kind)] for property_name, kind in _ARROW_TYPES.items()}
    while annotations := [
        {**annotation, "image_id": str(annotation["image_id"])} for annotation in islice(objects, _CHUNK_ANNOTATIONS)
    ]:
        for property_name, chunks in columns.items():
            values, first = [annotation.get(property_name) for annotation in annotations], sum(map(len, chunks)) + 1
            chunks.append(_to_array(values, property_name, first, location))
    return {property_name: pa.concat_arrays(chunks) for property_name, chunks in columns.items()}


def _to_array(values: list[Any], property_name: str, first: int, location: str) -> pa.Array:
    expected = _EXPECTED_VALUES[property_name]
    try:
        has_fractions = any(value % 1 for value in values if isinstance(value, float))
        if expected != _WHOLE_NUMBER or not has_fractions:  # do not let pyarrow truncate 2.5 to 2
            return pa.array(values, _ARROW_TYPES[property_name])
    except (TypeError, ValueError, OverflowError):
        pass
    if len(values) == 1:
        raise _value_error(location, "annotations", first, (property_name, values[0]), expected)
    numbered = enumerate(values, first)
    return pa.concat_arrays([_to_array([value], property_name, number, location) for number, value in numbered])


def _number_labels(location: str, categories: dict[Any, Any], category_ids: pa.Array) -> tuple[list[str], pa.Array]:
    if not all(isinstance(category_id, int) for category_id in categories):
        found = f"categories with ids {format_list([*map(repr, categories)])}"
        raise InvalidRequest(location, found, expected="whole numbers")
    sorted_ids = sorted(categories)
    names = [categories[category_id] for category_id in sorted_ids]
    if not are_class_names(names):
        found = next((f"several named {name!r}" for name in names if names.count(name) > 1), "a name that is not text")
        raise InvalidRequest(location, f"categories: {found}", expected="a unique name for each")
    labels = pc.index_in(category_ids, value_set=pa.array(sorted_ids, pa.int64()))
    bad = arrow.true_positions(pc.and_(pc.is_null(labels), pc.is_valid(category_ids)))
    if len(bad):
        problem = f"annotation {int(bad[0]) + 1:,}: category {category_ids[int(bad[0])]}"
        raise InvalidRequest(location, problem, expected=f"one of the {len(names):,} categories in {location}")
    return recorded_names(names), labels
