"""Read the EXIF metadata of an image as JSON."""

from __future__ import annotations

import json
import warnings
from io import BytesIO
from math import isfinite
from numbers import Rational
from typing import TYPE_CHECKING, Any

from PIL import ExifTags, Image

from shardtool.transform.image_decode import IMAGE_FORMATS, may_have_exif

if TYPE_CHECKING:
    from collections.abc import Mapping


_GPS_TAGS = {
    "latitude": (1, 2, "S", 90),
    "longitude": (3, 4, "W", 180),
}  # hemisphere, degrees, which is minus, the most


_IMAGE_TAGS = (270, 271, 272, 274, 282, 283, 296, 305, 306, 315, 33432)  # others of a TIFF say where pixels lie


_MAX_TEXT_LENGTH, _MAX_VALUES = 1024, 16  # of a tag: makers' notes and previews have more


def read_exif(data: bytes | memoryview) -> str | None:
    """Return the EXIF of an image as a JSON object, by the names of tags; None where it has none that can be read.

    `latitude` and `longitude` are in degrees. What is no number or text, or is long, is left out.

    Source: EXIF 2.32; Pillow's `ExifTags` for the names.
    """
    found: dict[str, object] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stream = BytesIO(data)
            image: Any = Image.open(stream, formats=IMAGE_FORMATS)
            tags = image.getexif() if may_have_exif(image, stream) else Image.Exif()
            found = {ExifTags.TAGS[tag]: _to_json_value(tags.get(tag)) for tag in _IMAGE_TAGS}
            of_camera = tags.get_ifd(ExifTags.IFD.Exif).items()
            found |= {ExifTags.TAGS.get(tag, ""): _to_json_value(value) for tag, value in of_camera}
            found |= _read_gps(tags.get_ifd(ExifTags.IFD.GPSInfo))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001, S110 - broken EXIF is common, raises nearly anything, and hides no pixel
        pass
    found = {name: value for name, value in found.items() if name and value is not None}
    return json.dumps(found, sort_keys=True, ensure_ascii=False) if found else None


def _to_json_value(value: object) -> object:
    """Return a tag's value as JSON has it; None where that has no such value."""
    if isinstance(value, str):
        text = value.strip("\0 ")
        return text if 0 < len(text) <= _MAX_TEXT_LENGTH else None
    if isinstance(value, tuple) and len(value) <= _MAX_VALUES:
        values = [*map(_to_json_value, value)]
        return None if None in values else values
    if isinstance(value, int | float | Rational) and isfinite(number := float(value)):
        return int(number) if number.is_integer() else number
    return None


def _read_gps(tags: Mapping[int, Any]) -> dict[str, object]:
    """Return where an image was taken, in degrees, as far as tags of GPS say that."""
    found: dict[str, object] = {}
    for name, (side, angle, minus, most) in _GPS_TAGS.items():
        match _to_json_value(tags.get(angle)):
            case [int() | float() as degrees, int() | float() as minutes, int() | float() as seconds]:
                value = round(degrees + minutes / 60 + seconds / 3600, 6)
                if 0 <= value <= most:
                    found[name] = -value if tags.get(side) == minus else value
    return found
