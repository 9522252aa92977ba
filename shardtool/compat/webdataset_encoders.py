"""Encode values by the extensions of their fields, as webdataset's writer does.

Source: webdataset 1.0.2, `webdataset/writer.py`, `make_handlers` and `encode_based_on_extension1`.
"""

from __future__ import annotations

import gzip
import json
import pickle
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Handlers = Mapping[str, Callable[[Any], bytes]]
    Encoder = Callable[[dict[str, Any]], Mapping[str, Any]]


_GZIP_SUFFIX = ".gz"
_FLOAT_SLACK = 0.001  # tolerance around 0 to 1 in float images


def make_encoder(encoder: object) -> Encoder:
    """Return the function that encodes samples.

    `encoder` is True (encode by extension), False or None (encode nothing), a dict of functions by extension, or a
    function.

    Raises:
        InvalidRequest: The encoder is none of these.
    """
    if encoder is None or encoder is False:
        return lambda sample: sample
    if callable(encoder):
        return encoder
    if encoder is True or isinstance(encoder, dict):
        handlers = default_handlers() if encoder is True else encoder
        return lambda sample: {name: encode_by_ending(value, name, handlers) for name, value in sample.items()}
    raise InvalidRequest(
        "encoder", repr(encoder), expected="True, False, a function, or a dict of functions by extension"
    )


def encode_by_ending(value: Any, field: str, handlers: Handlers) -> Any:
    """Return a value as bytes. Fields whose names start with an underscore are unchanged."""
    if field.startswith("_"):
        return value
    name = field.removesuffix(_GZIP_SUFFIX)
    ending = name.rpartition(".")[2].lower()
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        handler = handlers.get(ending)
        if handler is None:
            found = f"a value of the type {type(value).__name__}, with no encoder for the extension {ending!r}"
            raise InvalidRequest(f"field {field!r}", found, expected="bytes, text, or an encoder for it")
        value = handler(value)
    return gzip.compress(value, mtime=0) if name != field else value


def default_handlers() -> dict[str, Callable[[Any], bytes]]:
    """Return webdataset's functions by extension, without those that need additional packages."""
    handlers: tuple[tuple[str, Callable[[Any], bytes]], ...] = (
        ("cls cls2 class count index inx id", lambda value: str(value).encode("ascii")),
        ("txt text transcript html htm", lambda value: value.encode()),
        ("pyd pickle", pickle.dumps),
        ("pth", lambda value: _capture_bytes(lambda file: import_module("torch").save(value, file))),
        ("npy", lambda value: _capture_bytes(lambda file: np.lib.format.write_array(file, value))),
        ("npz", lambda value: _capture_bytes(lambda file: np.savez_compressed(file, **value))),
        ("json jsn", lambda value: json.dumps(value).encode()),
        ("mp msgpack msg", lambda value: bytes(import_module("msgpack").packb(value))),
        ("cbor", lambda value: bytes(import_module("cbor").dumps(value))),
        ("jpg jpeg img image", lambda value: _encode_image(value, "JPEG", quality=100)),
        ("png", lambda value: _encode_image(value, "PNG")),
        ("pbm pgm ppm", lambda value: _encode_image(value, "PPM")),
        ("tiff tif", lambda value: _encode_image(value, "TIFF", quality=100)),
    )
    return {ending: handler for endings, handler in handlers for ending in endings.split()}


def _capture_bytes(write: Callable[[BytesIO], object]) -> bytes:
    stream = BytesIO()
    write(stream)
    return stream.getvalue()


def _encode_image(value: Any, kind: str, **details: int) -> bytes:
    if isinstance(value, np.ndarray):
        from PIL import Image

        if value.dtype in (np.dtype("f"), np.dtype("d")):
            if value.min() <= -_FLOAT_SLACK or value.max() >= 1 + _FLOAT_SLACK:
                found = f"values from {value.min()} to {value.max()}"
                raise InvalidRequest("an image", found, expected="values from 0 to 1 in an array of floats")
            value = (np.clip(value, 0.0, 1.0) * 255.0).astype("uint8")
        value = Image.fromarray(value)
    return _capture_bytes(lambda file: value.save(file, kind, **details))
