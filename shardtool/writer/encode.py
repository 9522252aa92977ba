"""A value of a sample becomes the payload of its field, as `create` writes that of a table's column."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from shardtool.format.tfrecord import INT64_LIMIT
from shardtool.values import IMAGE_ENDINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from PIL.Image import Image

_PILLOW = {"jpg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF"} | dict.fromkeys(("pbm", "pgm", "pnm"), "PPM")
_QUALITY = 90  # of JPEG and WebP, as `create` encodes them
_SEPARATORS = (",", ":")


class BadValue(Exception):
    """A value that no field can hold; its text says why, and what would do."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found, self.expected = found, expected


class Encoded(NamedTuple):
    """A value as payload.

    Attributes:
        data: The payload.
        number: What it stands for where it is a number: `int64` or `float`; empty otherwise.
        inline: Whether the plan of a table carries it: all but bytes.
    """

    data: bytes
    number: str
    inline: bool


def encode_value(value: object, field: str) -> Encoded:
    """Return a value as payload.

    Args:
        value: Bytes, text, a number, a truth, a time, what JSON has a form for, an array, or an image of Pillow.
        field: Its field, whose ending says what an image becomes.

    Raises:
        BadValue: It can be none.
    """
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        if type(value) is not bytes and value is not None and (expected := _expected(field)):
            raise BadValue(f"a value of the type {type(value).__name__}", expected)
        return encode(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return Encoded(bytes(value), "", inline=False)
    if isinstance(value, np.ndarray):
        return _array(value, field)
    if isinstance(value, np.generic):
        return _numpy_scalar(value)
    for kind in (bool, int, float, str, dict, list, tuple, datetime, date, time, Decimal):
        if isinstance(value, kind):
            return _ENCODERS[kind](value)
    if hasattr(value, "save") and hasattr(value, "getexif"):  # without an import of Pillow, which may not be there
        return _image(value, field)  # type: ignore[arg-type]
    raise BadValue(
        f"a value of the type {type(value).__name__}",
        "bytes, text, a number, what JSON has a form for, a NumPy array, or an image of Pillow",
    )


@lru_cache(4096)
def _expected(field: str) -> str:
    """Return what a field takes that no text can be, by its ending; empty: it takes text, too."""
    ending = field.rpartition(".")[2].lower()
    if ending in IMAGE_ENDINGS:
        return "the bytes of an image, or an image of Pillow"
    return "a NumPy array: numpy.asarray(value), or bytes" if ending == "npy" else ""


def as_float(text: bytes) -> bytes:
    """Return the text of a whole number as that of a float."""
    return repr(float(int(text))).encode()


def encode_json(value: object) -> bytes:
    """Return the JSON of a value, as `create` writes that of a table's row.

    Raises:
        BadValue: JSON has no form for it.
    """
    try:
        try:
            text = json.dumps(value, ensure_ascii=False, separators=_SEPARATORS, allow_nan=False, default=_plain)
        except ValueError:
            text = json.dumps(_finite(value), ensure_ascii=False, separators=_SEPARATORS, allow_nan=False)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"no JSON: {error}", "what JSON has a form for") from None


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"a value of the type {type(value).__name__}")


def _finite(value: object) -> object:
    """Return a value with null in place of NaN; an infinite number stays, and is refused."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value if isinstance(value, str | int | float | None) else _finite(_plain(value))


def _text(value: str) -> Encoded:
    if "\0" in value:
        raise BadValue("a NUL in the text", "text without")
    try:
        return Encoded(value.encode(), "", inline=True)
    except UnicodeEncodeError:
        raise BadValue("half of a surrogate pair in the text", "text that is Unicode") from None


def _int(value: int) -> Encoded:
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise BadValue("a number over 2^63", "what fits into int64")
    return Encoded(b"%d" % value, "int64", inline=True)


def _float(value: float) -> Encoded:
    if math.isnan(value):
        raise BadValue("no value (NaN)", "a value in each sample")
    return Encoded(repr(value).encode(), "float", inline=True)


def _numpy_scalar(value: np.generic) -> Encoded:
    if isinstance(value, np.floating):
        return _float(float(str(value)))  # the shortest number that reads back as the same
    found = value.item()
    if type(found) not in _ENCODERS:
        raise BadValue(f"a value of the type {value.dtype}", "a number, a truth, or text")
    return _ENCODERS[type(found)](found)


def _array(value: NDArray[np.generic], field: str) -> Encoded:
    ending = field.rpartition(".")[2].lower()
    if ending != "npy":
        what = "an image: PIL.Image.fromarray(array)" if ending in IMAGE_ENDINGS else "a field that ends in npy"
        raise BadValue("a NumPy array", f"{what}, or bytes")
    if value.dtype.hasobject:
        raise BadValue("an array of Python objects", "an array of numbers or text")
    stream = BytesIO()
    np.lib.format.write_array(stream, value, allow_pickle=False)
    return Encoded(stream.getvalue(), "", inline=False)


def _image(value: Image, field: str) -> Encoded:
    ending = field.rpartition(".")[2].lower()
    if ending not in IMAGE_ENDINGS:
        raise BadValue("an image", f"a field whose ending names its format, such as {field}.png")
    kind, stream = _PILLOW.get(ending, ending.upper()), BytesIO()
    if value.mode[0] in "IF" and not _holds(kind, value):
        found = f"an image of mode {value.mode}, of which {kind} would lose values"
        raise BadValue(found, "a field that ends in tiff or npy")
    details = {"quality": _QUALITY} if kind in ("JPEG", "WEBP") else {}
    try:
        value.save(stream, kind, **details)
    except (OSError, ValueError, KeyError) as error:
        raise BadValue(f"an image that cannot be written as {kind}: {error}", "one of a mode that it holds") from None
    return Encoded(stream.getvalue(), "", inline=False)


def _holds(kind: str, image: Image) -> bool:
    """Tell whether a format holds all values of an image of wide ones; Pillow clips them to 8 or 16 bits where not."""
    if image.mode == "I" and kind in ("PNG", "PPM"):
        low, high = cast("tuple[int, int]", image.getextrema())
        return low >= 0 and high < 2**16
    return kind not in ("WEBP", "GIF")


def _null(_value: object) -> Encoded:
    raise BadValue("no value (None)", "a value, or no such field")


def _decimal(value: Decimal) -> Encoded:
    return Encoded(str(value).encode(), "float", inline=True)


_ENCODERS: dict[type, Callable[..., Encoded]] = {
    bytes: lambda value: Encoded(value, "", inline=False),
    str: _text,
    bool: lambda value: Encoded(b"1" if value else b"0", "int64", inline=True),
    int: _int,
    float: _float,
    dict: lambda value: Encoded(encode_json(value), "", inline=True),
    list: lambda value: Encoded(encode_json(value), "", inline=True),
    tuple: lambda value: Encoded(encode_json(value), "", inline=True),
    datetime: lambda value: _text(value.isoformat()),
    date: lambda value: _text(value.isoformat()),
    time: lambda value: _text(value.isoformat()),
    Decimal: _decimal,
    type(None): _null,
}
