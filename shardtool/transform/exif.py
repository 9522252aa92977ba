"""Read the EXIF metadata of an image as JSON."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from io import BytesIO
from math import isfinite
from numbers import Rational
from typing import Any

from PIL import ExifTags, Image

from shardtool.transform.image_decode import IMAGE_FORMATS, may_have_exif

# For each coordinate: the tags of its hemisphere and angle, the negative hemisphere, and the maximum in degrees.
_GPS_TAGS = {"latitude": (1, 2, "S", 90), "longitude": (3, 4, "W", 180)}

# TIFF tags to keep; other tags describe the pixel layout
_IMAGE_TAGS = (270, 271, 272, 274, 282, 283, 296, 305, 306, 315, 33432)
_MAX_TEXT_LENGTH, _MAX_VALUES = 1024, 16  # limits for each tag; they exclude maker notes and previews


def read_exif(data: bytes | memoryview) -> str | None:
    """Return the EXIF tags of an image as a JSON object, or None if there is no readable EXIF.

    `latitude` and `longitude` are in degrees. Long values, and values that are not text or numbers, are skipped.

    Source: EXIF 2.32 (tags), Pillow's `ExifTags` (names).
    """
    values: dict[str, object] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stream = BytesIO(data)
            image: Any = Image.open(stream, formats=IMAGE_FORMATS)
            tags = image.getexif() if may_have_exif(image, stream) else Image.Exif()
            values = {ExifTags.TAGS[tag]: _to_json_value(tags.get(tag)) for tag in _IMAGE_TAGS}
            camera_tags = tags.get_ifd(ExifTags.IFD.Exif).items()
            values |= {ExifTags.TAGS.get(tag, ""): _to_json_value(value) for tag, value in camera_tags}
            values |= _read_gps(tags.get_ifd(ExifTags.IFD.GPSInfo))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001, S110 - broken EXIF may raise anything
        pass
    values = {name: value for name, value in values.items() if name and value is not None}
    return json.dumps(values, sort_keys=True, ensure_ascii=False) if values else None


def _to_json_value(value: object) -> object:
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
    coordinates: dict[str, object] = {}
    for name, (hemisphere_tag, angle_tag, negative, limit) in _GPS_TAGS.items():
        match _to_json_value(tags.get(angle_tag)):
            case [int() | float() as degrees, int() | float() as minutes, int() | float() as seconds]:
                value = round(degrees + minutes / 60 + seconds / 3600, 6)
                if 0 <= value <= limit:
                    coordinates[name] = -value if tags.get(hemisphere_tag) == negative else value
    return coordinates
