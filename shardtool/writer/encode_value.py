"""Encode the value of a field as a payload, as `create` encodes the values of a table."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
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


_PILLOW_FORMATS = {"jpg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF"} | dict.fromkeys(
    ("pbm", "pgm", "pnm"), "PPM"
)


_JPEG_QUALITY = 90  # of JPEG and WebP, as `create` encodes them


_JSON_SEPARATORS = (",", ":")


_PIXEL_DIMENSIONS, _CHANNEL_COUNTS = 3, (1, 3, 4)  # of arrays of pixels, and how many values a pixel has


_PIXEL_TYPES = (np.uint8, np.uint16, np.bool_)


class BadValue(Exception):
    """A value that no field can hold; its text says why, and what would do."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found, self.expected = found, expected


def encode_value(value: object, field: str) -> EncodedValue:
    """Return a value as payload, and what it was, of which that is the text; empty of bytes, which no table carries.

    Args:
        value: Bytes, text, a number, a truth, a time, what JSON has a form for, an array, or an image of Pillow.
        field: Its field, whose ending says what an image becomes.

    Raises:
        BadValue: It can be none.
    """
    if value is None:
        raise BadValue("no value (None)", "a value, or no such field")
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
    if hasattr(value, "save") and hasattr(value, "getexif"):  # without an import of Pillow, which may not be there
        return _encode_image(value, field)  # type: ignore[arg-type]
    if hasattr(value, "__array__"):
        return _encode_array(_to_array(value, field), field)
    expected = "bytes, text, a number, what JSON has a form for, an array or tensor, or an image of Pillow"
    raise BadValue(f"a value of the type {type(value).__name__}", expected)


def _get_ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


@lru_cache(4096)
def _describe_expected(field: str) -> str:
    """Return what a field takes that no text can be, by its ending; empty: it takes text, too."""
    ending = _get_ending(field)
    if ending in names.IMAGE_ENDINGS:
        return "the bytes of an image, an array of its pixels, or an image of Pillow"
    return "a NumPy array: numpy.asarray(value), or bytes" if ending == "npy" else ""


def encode_json(value: object) -> bytes:
    """Return the JSON of a value, as `create` writes that of a table's row.

    Raises:
        BadValue: JSON has no form for it.
    """
    try:
        try:
            text = json.dumps(
                value, ensure_ascii=False, separators=_JSON_SEPARATORS, allow_nan=False, default=_to_plain
            )
        except ValueError:
            text = json.dumps(_replace_nan(value), ensure_ascii=False, separators=_JSON_SEPARATORS, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"no JSON: {error}", "what JSON has a form for") from None


def _to_plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"a value of the type {type(value).__name__}")


def _replace_nan(value: object) -> object:
    """Return a value with null in place of NaN; an infinite number stays, and is refused."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {name: _replace_nan(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(one) for one in value]
    return value if isinstance(value, str | int | float | None) else _replace_nan(_to_plain(value))


def _encode_text(value: str) -> EncodedValue:
    if "\0" in value:
        raise BadValue("a NUL in the text", "text without")
    try:
        return value.encode(), "text"
    except UnicodeEncodeError:
        raise BadValue("half of a surrogate pair in the text", "text that is Unicode") from None


def _encode_int(value: int) -> EncodedValue:
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise BadValue("a number over 2^63", "what fits into int64")
    return b"%d" % value, "int64"


def _encode_float(value: float) -> EncodedValue:
    if math.isnan(value):
        raise BadValue("no value (NaN)", "a value in each sample")
    return repr(value).encode(), "float"


def _encode_numpy_scalar(value: np.generic) -> EncodedValue:
    if isinstance(value, np.floating):
        return _encode_float(float(str(value)))  # the shortest number that reads back as the same
    found = value.item()
    if type(found) not in _ENCODERS:
        raise BadValue(f"a value of the type {value.dtype}", "a number, a truth, or text")
    return _ENCODERS[type(found)](found)


def _to_array(value: Any, field: str) -> NDArray[np.generic]:
    """Return the array that a tensor, or what else knows how to become one, holds; pixels with their channels last."""
    try:
        is_torch = hasattr(value, "detach")  # without an import of PyTorch
        found = np.asarray(value.detach().cpu() if is_torch else value)
    except (TypeError, ValueError, RuntimeError) as error:  # of values that NumPy has not, such as bfloat16
        raise BadValue(f"a {type(value).__name__} that becomes no array: {error}", "numbers that NumPy has") from None
    by_channel = found.ndim == _PIXEL_DIMENSIONS and found.shape[0] in _CHANNEL_COUNTS
    return np.moveaxis(found, 0, -1) if is_torch and by_channel and _get_ending(field) in names.IMAGE_ENDINGS else found


def _encode_array(value: NDArray[np.generic], field: str) -> EncodedValue:
    ending = _get_ending(field)
    if ending in names.IMAGE_ENDINGS:
        return _encode_pixels(value, field)
    if ending != "npy":
        if not value.ndim:
            return _encode_numpy_scalar(cast("np.generic", value[()]))
        raise BadValue("an array", "a field that ends in npy, or bytes")
    if value.dtype.hasobject:
        raise BadValue("an array of Python objects", "an array of numbers or text")
    stream = BytesIO()
    np.lib.format.write_array(stream, value, allow_pickle=False)
    return stream.getvalue(), ""


def _encode_pixels(value: NDArray[np.generic], field: str) -> EncodedValue:
    """Return an array of pixels as an image."""
    from PIL import Image

    plain = value[..., 0] if value.ndim == _PIXEL_DIMENSIONS and value.shape[2] == 1 else value
    try:
        if (
            plain.size
            and plain.dtype in _PIXEL_TYPES
            and (plain.ndim == _PIXEL_DIMENSIONS - 1 or plain.shape[-1] in _CHANNEL_COUNTS)
        ):
            return _encode_image(Image.fromarray(plain), field)
    except TypeError:
        pass
    expected = "uint8 [height, width], or [height, width, 3] (of a tensor, [3, height, width]); or bytes"
    raise BadValue(f"an array {[*value.shape]} of {value.dtype}", expected)


def _encode_image(value: Image, field: str) -> EncodedValue:
    ending = _get_ending(field)
    if ending not in names.IMAGE_ENDINGS:
        raise BadValue("an image", f"a field whose ending names its format, such as {field}.png")
    kind, stream = _PILLOW_FORMATS.get(ending, ending.upper()), BytesIO()
    if value.mode[0] in "IF" and not _can_hold(kind, value):
        found = f"an image of mode {value.mode}, of which {kind} would lose values"
        raise BadValue(found, "a field that ends in tiff or npy")
    details = {"quality": _JPEG_QUALITY} if kind in ("JPEG", "WEBP") else {}
    try:
        value.save(stream, kind, **details)
    except (OSError, ValueError, KeyError) as error:
        raise BadValue(f"an image that cannot be written as {kind}: {error}", "one of a mode that it holds") from None
    return stream.getvalue(), ""


def _can_hold(kind: str, image: Image) -> bool:
    """Tell whether a format holds all values of an image of wide ones; Pillow clips them to 8 or 16 bits where not."""
    if image.mode == "I" and kind in ("PNG", "PPM"):
        low, high = cast("tuple[int, int]", image.getextrema())
        return low >= 0 and high < 2**16
    return kind not in ("WEBP", "GIF")


_ENCODERS: dict[type, Callable[..., EncodedValue]] = {
    bytes: lambda value: (value, ""),
    str: _encode_text,
    bool: lambda value: (b"1" if value else b"0", "bool"),
    int: _encode_int,
    float: _encode_float,
    **dict.fromkeys((dict, list, tuple), lambda value: (encode_json(value), "json")),
    **dict.fromkeys((datetime, date, time), lambda value: _encode_text(value.isoformat())),
    Decimal: lambda value: (str(value).encode(), "float"),
}
