"""Values of a sample as bytes, by the endings of their fields: what webdataset's writer makes of them.

Source: webdataset 1.0.2, `webdataset/writer.py`, `make_handlers` and `encode_based_on_extension1`.
"""

from __future__ import annotations

import gzip
import json
import pickle
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Handlers = Mapping[str, Callable[[Any], bytes]]
    Encoder = Callable[[dict[str, Any]], Mapping[str, Any]]

_PACKED = ".gz"
_FLOAT_SLACK = 0.001  # how far a float image may be out of 0 to 1


def make_encoder(asked: object) -> Encoder:
    """Return what encodes samples.

    Args:
        asked: True: by the endings; False or None: not at all; a dict of functions by ending; or a function.

    Raises:
        InvalidRequest: It is none of these.
    """
    if asked is None or asked is False:
        return lambda sample: sample
    if callable(asked):
        return asked
    if asked is True or isinstance(asked, dict):
        handlers = default_handlers() if asked is True else asked
        return lambda sample: {name: encode_by_ending(value, name, handlers) for name, value in sample.items()}
    expected = "True, False, a function, or a dict of functions by ending"
    raise InvalidRequest("encoder", repr(asked), expected=expected)


def encode_by_ending(value: Any, field: str, handlers: Handlers) -> Any:
    """Return a value as bytes; those of fields that start with an underscore stay.

    Raises:
        InvalidRequest: Nothing encodes what such a field holds.
    """
    if field.startswith("_"):
        return value
    name = field.removesuffix(_PACKED)
    ending = name.rpartition(".")[2].lower()
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        handler = handlers.get(ending)
        if handler is None:
            found = f"a value of the type {type(value).__name__}, and nothing encodes the ending {ending!r}"
            raise InvalidRequest(f"field {field!r}", found, expected="bytes, text, or an encoder that does")
        value = handler(value)
    return gzip.compress(value, mtime=0) if name != field else value


def default_handlers() -> dict[str, Callable[[Any], bytes]]:
    """Return webdataset's functions by ending, but for those of formats that want a package of their own."""
    found: dict[str, Callable[[Any], bytes]] = {}
    for endings, handler in (
        ("cls cls2 class count index inx id", lambda value: str(value).encode("ascii")),
        ("txt text transcript html htm", lambda value: value.encode()),
        ("pyd pickle", pickle.dumps),
        ("pth", _torch),
        ("npy", _npy),
        ("npz", _npz),
        ("json jsn", lambda value: json.dumps(value).encode()),
        ("mp msgpack msg", _msgpack),
        ("cbor", _cbor),
        ("jpg jpeg img image", lambda value: _image(value, "JPEG")),
        ("png", lambda value: _image(value, "PNG")),
        ("pbm pgm ppm", lambda value: _image(value, "PPM")),
        ("tiff tif", lambda value: _image(value, "TIFF")),
    ):
        found |= dict.fromkeys(endings.split(), handler)
    return found


def _torch(value: object) -> bytes:
    save = _imported("torch").save
    stream = BytesIO()
    save(value, stream)
    return stream.getvalue()


def _msgpack(value: object) -> bytes:
    return bytes(_imported("msgpack").packb(value))


def _cbor(value: object) -> bytes:
    return bytes(_imported("cbor").dumps(value))


def _imported(name: str) -> Any:
    """Return a module that only some fields want."""
    from importlib import import_module

    return import_module(name)


def _npy(value: Any) -> bytes:
    stream = BytesIO()
    np.lib.format.write_array(stream, value)
    return stream.getvalue()


def _npz(value: dict[str, Any]) -> bytes:
    stream = BytesIO()
    np.savez_compressed(stream, **value)
    return stream.getvalue()


def _image(value: Any, kind: str) -> bytes:
    """Return an image of Pillow, or an array of bytes or of floats from 0 to 1, as a file."""
    if isinstance(value, np.ndarray):
        from PIL import Image

        if value.dtype in (np.dtype("f"), np.dtype("d")):
            if value.min() <= -_FLOAT_SLACK or value.max() >= 1 + _FLOAT_SLACK:
                found = f"values from {value.min()} to {value.max()}"
                raise InvalidRequest("an image", found, expected="0 to 1 in an array of floats")
            value = (np.clip(value, 0.0, 1.0) * 255.0).astype("uint8")
        value = Image.fromarray(value)
    details = {"quality": 100} if kind in ("JPEG", "TIFF") else {}
    stream = BytesIO()
    value.save(stream, kind, **details)
    return stream.getvalue()
