"""Encode the value of a field as bytes, in the same way as `create` encodes the values of a table."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache, partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from shardtool import names, values
from shardtool.format.tfrecord_write import INT64_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from PIL.Image import Image

    EncodedValue = tuple[bytes, values.ValueType | Literal[""]]


_PILLOW_FORMATS = {
    "jpg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF", "pbm": "PPM", "pgm": "PPM", "pnm": "PPM",
}  # fmt: skip


_JPEG_QUALITY = 90
_dump_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_PIXEL_DIMENSIONS, _CHANNEL_COUNTS = 3, (1, 3, 4)
_PIXEL_TYPES = (np.uint8, np.uint16, np.bool_)


class BadValue(Exception):
    """A value that cannot be stored in a field."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found, self.expected = found, expected


def encode_value(value: object, field: str) -> EncodedValue:
    """Return the bytes of a value, and its type, which is "" for bytes, arrays and images.

    Raises:
        BadValue: The field cannot store the value.
    """
    if value is None:
        raise BadValue("None", "a value, or no such field")
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        if type(value) is not bytes and (expected := _describe_expected(field)):
            raise BadValue(f"a value of the type {type(value).__name__}", expected)
        return encode(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), ""
    if isinstance(value, np.generic):
        return _encode_numpy_scalar(value)
    for kind, encode in _ENCODERS.items():
        if isinstance(value, kind):
            return encode(value)
    # recognise Pillow images by their methods, because importing Pillow is slow
    if hasattr(value, "save") and hasattr(value, "getexif"):
        return _encode_image(value, field)  # type: ignore[arg-type]
    if hasattr(value, "__array__"):
        return _encode_array(_to_array(value, field), field)
    expected = "bytes, text, a number, a JSON value, an array or tensor, or a Pillow image"
    raise BadValue(f"a value of the type {type(value).__name__}", expected)


def _get_ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


@lru_cache(4096)
def _describe_expected(field: str) -> str:
    ending = _get_ending(field)
    if ending in names.IMAGE_ENDINGS:
        return "the bytes of an image, an array of pixels, or a Pillow image"
    return "a NumPy array: numpy.asarray(value), or bytes" if ending == "npy" else ""


def _encode_json(value: object) -> bytes:
    try:
        try:
            text = _dump_json(value, default=_to_plain)
        except ValueError:
            text = _dump_json(_replace_nan(value))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"not representable as JSON: {error}", "a value that JSON can represent") from None


def _to_plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"a value of the type {type(value).__name__}")


def _replace_nan(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {name: _replace_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(item) for item in value]
    return value if isinstance(value, str | int | float | None) else _replace_nan(_to_plain(value))


def _encode_text(value: str) -> EncodedValue:
    if "\0" in value:
        raise BadValue("text that contains NUL", "text without NUL")
    try:
        return value.encode(), "text"
    except UnicodeEncodeError:
        raise BadValue("text with an unpaired surrogate", "valid Unicode") from None


def _encode_int(value: int) -> EncodedValue:
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise BadValue("a number outside int64", "a number from -2^63 to 2^63 - 1")
    return b"%d" % value, "int64"


def _encode_float(value: float) -> EncodedValue:
    if math.isnan(value):
        raise BadValue("NaN", "a number")
    return repr(value).encode(), "float"


def _encode_numpy_scalar(value: np.generic) -> EncodedValue:
    if isinstance(value, np.floating):
        return _encode_float(float(str(value)))  # str() avoids the extra digits of float(np.float32)
    plain = value.item()
    if type(plain) not in _ENCODERS:
        raise BadValue(f"a value of the type {value.dtype}", "a number, a boolean, or text")
    return _ENCODERS[type(plain)](plain)


def _to_array(value: Any, field: str) -> NDArray[np.generic]:
    try:
        is_torch = hasattr(value, "detach")
        array = np.asarray(value.detach().cpu() if is_torch else value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = f"a {type(value).__name__} that cannot be converted to an array: {error}"
        raise BadValue(found, "a NumPy number type") from None
    has_channels_first = array.ndim == _PIXEL_DIMENSIONS and array.shape[0] in _CHANNEL_COUNTS
    if is_torch and has_channels_first and _get_ending(field) in names.IMAGE_ENDINGS:
        return np.moveaxis(array, 0, -1)
    return array


def _encode_array(value: NDArray[np.generic], field: str) -> EncodedValue:
    ending = _get_ending(field)
    if ending in names.IMAGE_ENDINGS:
        return _encode_pixels(value, field)
    if ending != "npy":
        if not value.ndim:
            return _encode_numpy_scalar(cast("np.generic", value[()]))
        raise BadValue("an array", "a field whose name ends in npy, or bytes")
    if value.dtype.hasobject:
        raise BadValue("an array of Python objects", "an array of numbers or text")
    stream = BytesIO()
    np.lib.format.write_array(stream, value, allow_pickle=False)
    return stream.getvalue(), ""


def _encode_pixels(value: NDArray[np.generic], field: str) -> EncodedValue:
    from PIL import Image

    pixels = value[..., 0] if value.ndim == _PIXEL_DIMENSIONS and value.shape[2] == 1 else value
    has_image_shape = pixels.ndim == _PIXEL_DIMENSIONS - 1 or (pixels.ndim > 0 and pixels.shape[-1] in _CHANNEL_COUNTS)
    with suppress(TypeError):
        if pixels.size and pixels.dtype in _PIXEL_TYPES and has_image_shape:
            return _encode_image(Image.fromarray(pixels), field)
    expected = "uint8 [height, width] or [height, width, 3] (for a tensor, [3, height, width]), or bytes"
    raise BadValue(f"an array {[*value.shape]} of {value.dtype}", expected)


def _encode_image(value: Image, field: str) -> EncodedValue:
    ending = _get_ending(field)
    if ending not in names.IMAGE_ENDINGS:
        raise BadValue("an image", f"a field name with an image extension, such as {field}.png")
    pillow_format, stream = _PILLOW_FORMATS.get(ending, ending.upper()), BytesIO()
    if value.mode[0] in "IF" and not _can_store(pillow_format, value):
        found = f"an image of mode {value.mode}, which {pillow_format} cannot store without loss"
        raise BadValue(found, "a field name that ends in tiff or npy")
    save_options = {"quality": _JPEG_QUALITY} if pillow_format in ("JPEG", "WEBP") else {}
    try:
        value.save(stream, pillow_format, **save_options)
    except (OSError, ValueError, KeyError) as error:
        found = f"an image that cannot be written as {pillow_format}: {error}"
        raise BadValue(found, "a mode that this format supports") from None
    return stream.getvalue(), ""


def _can_store(pillow_format: str, image: Image) -> bool:
    if image.mode == "I" and pillow_format in ("PNG", "PPM"):
        low, high = cast("tuple[int, int]", image.getextrema())
        return low >= 0 and high < 2**16
    return pillow_format not in ("WEBP", "GIF")


_ENCODERS: dict[type, Callable[..., EncodedValue]] = {
    bytes: lambda value: (value, ""),
    str: _encode_text,
    bool: lambda value: (b"1" if value else b"0", "bool"),
    int: _encode_int,
    float: _encode_float,
    **dict.fromkeys((dict, list, tuple), lambda value: (_encode_json(value), "json")),
    **dict.fromkeys((datetime, date, time), lambda value: _encode_text(value.isoformat())),
    Decimal: lambda value: (str(value).encode(), "float"),
}
