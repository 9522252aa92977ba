"""Find the boxes and polygons of an image in COCO or YOLO annotations, or in lists of boxes with labels.

Source: https://cocodataset.org/#format-data, https://docs.ultralytics.com/datasets/detect/ (boxes) and
https://docs.ultralytics.com/datasets/segment/ (polygons).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from shardtool.errors import printable
from shardtool.transform.thumbnail import value_colour

_BOX_NAMES = ("boxes", "bboxes", "bbox", "box", "bounding_boxes", "xyxy")
_LABEL_NAMES = (
    "labels", "label", "category", "categories", "category_id", "class", "classes", "class_id", "name", "cls",
)  # fmt: skip
_LIST_NAMES = ("annotations", "objects", "instances", "detections", "shapes")
_CORNERS = ("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"), ("left", "top", "right", "bottom")
_SIDES = ("x", "y", "width", "height"), ("x", "y", "w", "h")
_BOX_NUMBERS = 4
_YOLO_NUMBERS = (_BOX_NUMBERS, _BOX_NUMBERS + 1)  # a confidence value may follow
_MIN_POLYGON_NUMBERS = 6
_TOLERANCE = 1.02  # annotations often exceed the image by a pixel or a rounding error
_MAX_COLOURED_CLASS = 2**20
_MIN_LIGHT = 1400  # a colour is light if the weighted sum of its channels (at most 2,550) is larger
_MAX_LABEL_CHARS = 60
_MAX_POINTS = 100
_DRAWN_SIDE = 1000

_Point = tuple[float, float]


class Outline(NamedTuple):
    """A box or polygon to draw over an image. All coordinates are in pixels of a drawing of size `drawing_size`.

    `path` is an SVG path. `x` and `y` are the upper left corner of its bounding box.
    """

    path: str
    x: int
    y: int
    label: str
    colour: str
    is_light: bool


def drawing_size(image: tuple[int, int]) -> tuple[int, int]:
    """Return the size of the SVG drawing that shows the outlines over an image of this size."""
    scale = _DRAWN_SIDE / max(image)
    return max(1, round(image[0] * scale)), max(1, round(image[1] * scale))


def find_outlines(
    values: Mapping[str, object], image: tuple[int, int], classes: Mapping[str, Sequence[str]], max_outlines: int
) -> list[Outline]:
    """Return the outlines in the first value that contains boxes or polygons.

    Args:
        values: Parsed JSON fields, text fields and metadata columns by name.
    """
    for shapes in _candidates(values, image):
        if shapes:
            names = next((classes[name] for name in classes if _stem(name) in (*_LABEL_NAMES, "txt")), ())
            return [_draw(points, label, names, image) for points, label in shapes[:max_outlines]]
    return []


def _candidates(values: Mapping[str, object], image: tuple[int, int]) -> Iterator[list[tuple[list[_Point], object]]]:
    yield _shapes_of({_stem(name): value for name, value in values.items()}, image)
    for value in values.values():
        if isinstance(value, str):
            yield _yolo_shapes(value)
        elif isinstance(value, dict):
            yield _shapes_of(value, image)
            for name in _LIST_NAMES:
                yield _shapes_of(value.get(name), image)
        elif isinstance(value, list):
            yield _shapes_of(value, image)


def _stem(name: str) -> str:
    return name.removesuffix(".json").rpartition(".")[2].lower()


def _shapes_of(value: object, image: tuple[int, int]) -> list[tuple[list[_Point], object]]:
    if isinstance(value, list):
        objects = [item for item in value if isinstance(item, dict)]
        boxes: list[object] = [_box_of(item) for item in objects]
        labels: list[object] = [next((item[name] for name in _LABEL_NAMES if name in item), "") for item in objects]
        is_corners = any(name in item for item in objects for corners in _CORNERS for name in corners)
    elif isinstance(value, dict):
        name = next((name for name in _BOX_NAMES if isinstance(value.get(name), list)), "")
        boxes = value[name] if name else []
        is_corners = name == "xyxy"
        label: object = next((value[label] for label in _LABEL_NAMES if label in value), [])
        labels = label if isinstance(label, list) else [label]
        if _numbers(boxes):  # ignore a single box without a label, because it may be a crop
            boxes = [boxes] if labels else []
    else:
        return []
    pairs = [
        (numbers, label) for box, label in zip_longest(boxes[:1000], labels[: len(boxes)]) if (numbers := _numbers(box))
    ]
    rectangles = _rectangles([numbers for numbers, _ in pairs], image, is_corners=is_corners)
    return [
        ([(left, top), (right, top), (right, bottom), (left, bottom)], label)
        # `rectangles` is empty if most boxes do not fit into the image
        for (left, top, right, bottom), (_, label) in zip(rectangles, pairs, strict=False)
    ]


def _box_of(item: Mapping[str, object]) -> object:
    listed = next((item[name] for name in _BOX_NAMES if name in item), None)
    if isinstance(listed, dict):
        item, listed = listed, None
    named = (names for names in (*_CORNERS, *_SIDES) if all(name in item for name in names))
    return listed if listed is not None else [item[name] for name in next(named, ())]


def _numbers(value: object) -> list[float]:
    if not isinstance(value, list) or len(value) != _BOX_NUMBERS:
        return []
    # false for NaN, too
    if not all(isinstance(number, (int, float)) and abs(number) < 2**40 for number in value):
        return []
    return [float(number) for number in value]


def _rectangles(
    boxes: Sequence[Sequence[float]], image: tuple[int, int], *, is_corners: bool
) -> list[tuple[float, float, float, float]]:
    """Return left, top, right and bottom of each box, or an empty list if most boxes do not fit into the image.

    Results are fractions of width and height. The numbers in `boxes` are pixels if any is greater than 1, or else
    fractions. Boxes are [left, top, width, height], as in COCO, or [left, top, right, bottom], whichever makes more
    boxes fit. `is_corners` selects [left, top, right, bottom].
    """
    if boxes and max(map(max, boxes)) <= 1:
        image = 1, 1
    corners = [(left, top, right, bottom) for left, top, right, bottom in boxes]
    sums = [(left, top, left + wide, top + high) for left, top, wide, high in boxes]
    fitting_corners, fitting_sums = (_count_fitting(rectangles, image) for rectangles in (corners, sums))
    if not is_corners and fitting_sums >= fitting_corners:
        corners, fitting_corners = sums, fitting_sums
    return [
        (left / image[0], top / image[1], right / image[0], bottom / image[1])
        for left, top, right, bottom in (corners if 2 * fitting_corners >= len(corners) else ())
    ]


def _count_fitting(rectangles: Sequence[tuple[float, float, float, float]], image: tuple[int, int]) -> int:
    width, height = (side * _TOLERANCE for side in image)
    return sum(
        left <= right <= width and top <= bottom <= height and left + width >= image[0] and top + height >= image[1]
        for left, top, right, bottom in rectangles
    )


def _yolo_shapes(text: str) -> list[tuple[list[_Point], object]]:
    shapes: list[tuple[list[_Point], object]] = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        try:
            number, values = int(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            return []
        if not all(1 - _TOLERANCE <= value <= _TOLERANCE for value in values):
            return []
        if len(values) in _YOLO_NUMBERS:
            x, y, wide, high = values[:_BOX_NUMBERS]
            left, top, right, bottom = x - wide / 2, y - high / 2, x + wide / 2, y + high / 2
            shapes.append(([(left, top), (right, top), (right, bottom), (left, bottom)], number))
        elif len(values) >= _MIN_POLYGON_NUMBERS and len(values) % 2 == 0:
            shapes.append(([*zip(values[::2], values[1::2], strict=True)], number))
        else:
            return []
    return shapes


def is_yolo_start(text: str) -> bool:
    """Return whether the first line of a text is a YOLO label."""
    return bool(_yolo_shapes(text.lstrip().partition("\n")[0]))


def _draw(points: Sequence[_Point], label: object, names: Sequence[str], image: tuple[int, int]) -> Outline:
    width, height = drawing_size(image)
    number = label if isinstance(label, int) and not isinstance(label, bool) else -1
    text = str(label) if isinstance(label, (str, int, float)) else ""
    text = printable(names[number] if 0 <= number < len(names) else text[:_MAX_LABEL_CHARS])
    points = points[:: -(-len(points) // _MAX_POINTS)]
    pixels = [(round(min(max(x, 0), 1) * width), round(min(max(y, 0), 1) * height)) for x, y in points]
    path = "M" + "L".join(f"{x} {y}" for x, y in pixels) + "Z"
    number = sum(text.encode()) if number < 0 else number
    red, green, blue = value_colour(number % _MAX_COLOURED_CLASS + 1)
    is_light = 3 * red + 6 * green + blue > _MIN_LIGHT
    left, top = min(x for x, _ in pixels), min(y for _, y in pixels)
    return Outline(path, left, top, text, f"#{red:02x}{green:02x}{blue:02x}", is_light)
