"""Write shardtool datasets with the arguments of webdataset's `ShardWriter`.

Differences from webdataset: `maxsize` limits the file size, not the payload size. Existing output needs
`overwrite=True` or `resume=True`. Keys must be unique. After an exception in the `with` block, no dataset file is
published. Tar headers have the same values as in other shardtool datasets.

Source: webdataset 1.0.2, `webdataset/writer.py` (encoders: `make_handlers`, `encode_based_on_extension1`).
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sys
from importlib import import_module
from io import BytesIO
from math import inf
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.pattern import parse_pattern
from shardtool.publish.append_target import remaining_names
from shardtool.writer.writer import ShardWriter as Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Handlers = Mapping[str, Callable[[Any], bytes]]
    Encoder = Callable[[dict[str, Any]], Mapping[str, Any]]

_KEY = "__key__"
_GZIP_SUFFIX = ".gz"
_FLOAT_SLACK = 0.001  # as in webdataset, float pixels may be this far below 0 or above 1
_FIXED_ARGUMENTS: dict[str, tuple[tuple[object, ...], str]] = {  # accepted values, and the error's `expected` text
    "compress": ((None, False), "no compression, so that samples can be read by offset"),
    "mtime": ((None, 0), "0, so that equal samples give equal bytes"),
    "user": (("bigdata", ""), "no user name in headers"),
    "group": (("bigdata", ""), "no group name in headers"),
    "mode": ((0o444, 0o644), "mode 0644 in headers"),
    "format": ((None, "USTAR_FORMAT", 0), "ustar, with pax headers for long names"),
}


class ShardWriter(Writer):
    """Writes samples into tar shards. See the module for differences from webdataset.

    For `encoder` and `keep_meta`, see webdataset's `TarWriter`; for `overwrite` and `resume`, `shardtool.ShardWriter`.

    Args:
        pattern: Shard names, such as `out-%06d.tar`.
        maxsize: Maximum bytes of a shard. A larger sample gets its own shard.
        post: Function called with the path of each published shard. The function may move the shard.
        fixed: Other arguments of webdataset's `TarWriter`. Only webdataset's defaults and the values that
            shardtool writes to tar headers are accepted.

    Raises:
        InvalidRequest: An argument is not supported.
        OutputExists: The output exists.
        OutputFailed: The output cannot be written.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - webdataset's arguments, in its order
        self,
        pattern: str,
        maxcount: float = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], object] | None = None,
        *,
        encoder: object = True,
        keep_meta: bool = False,
        overwrite: bool = False,
        resume: bool = False,
        **fixed: object,
    ) -> None:
        if opener is not None:
            expected = "None; shards are files in a folder, which `post` can move"
            raise InvalidRequest("opener", repr(opener), expected=expected)
        for name, value in fixed.items():
            if name not in _FIXED_ARGUMENTS:
                choices = ", ".join(("encoder", "keep_meta", *_FIXED_ARGUMENTS, "overwrite", "resume"))
                raise InvalidRequest("ShardWriter", f"no argument {name!r}", expected=f"one of {choices}")
            if value not in _FIXED_ARGUMENTS[name][0]:
                raise InvalidRequest(name, repr(value), expected=_FIXED_ARGUMENTS[name][1])
        names = remaining_names(parse_pattern(pattern), start_shard)
        if names.format != "tar":
            raise InvalidRequest(pattern, f"{names.format} shards", expected="names that end in .tar")
        self._encode, self._keep_meta = make_encoder(encoder), keep_meta
        self._post_is_deferred = overwrite  # only `close` publishes the shards
        self._names, self._post, self.verbose = names, post, verbose
        super().__init__(
            os.path.join(names.folder, names.text),
            max_count=_parse_bound("maxcount", maxcount),
            max_size=_parse_bound("maxsize", maxsize),
            oversize="alone",
            overwrite=overwrite,
            resume=resume,
        )
        self.start_shard, self._reported_shards = start_shard, len(self.shards)
        self.count = self.size = 0
        self._print_name(self.total)

    @property
    def total(self) -> int:
        """Number of samples written."""
        return self.samples

    @property
    def shard(self) -> int:
        """Number of the shard after `fname`, as in webdataset."""
        return self.start_shard + self._reported_shards + 1

    @property
    def fname(self) -> str:
        """Path of the current shard."""
        return os.path.join(self._names.folder, self._names.shard(self._reported_shards))

    def write(self, obj: Mapping[str, Any], metadata: Mapping[str, object] | None = None) -> None:
        """Write a sample and its metadata. `obj` contains `__key__` and the fields.

        Raises:
            InvalidRequest: The sample cannot be written.
            OutputFailed: The file system reports an error.
        """
        encoded = self._encode(dict(obj))
        fields: dict[str, object] = {}
        for name, value in encoded.items():
            if name == _KEY or (name.startswith("_") and not self._keep_meta):
                continue
            data = value.encode() if isinstance(value, str) and name.startswith("_") else value
            if not isinstance(data, bytes | bytearray | memoryview):
                found = f"a value of the type {type(value).__name__} after encoding"
                raise InvalidRequest(f"field {name!r}", found, expected="bytes")
            fields[name] = data
        key = {_KEY: encoded[_KEY]} if _KEY in encoded else {}
        samples_before = self.total
        super().write({**key, **fields}, metadata)
        self._call_post(samples_before)
        self.count += 1
        self.size += sum(len(value) for value in fields.values() if isinstance(value, bytes | bytearray | memoryview))

    def close(self) -> None:
        """Publish the last shard and the dataset file.

        Raises:
            InvalidRequest: No sample was written.
            OutputFailed: The file system reports an error.
        """
        super().close()
        self._post_is_deferred = False
        self._call_post()

    finish = close

    def _call_post(self, samples_before: int | None = None) -> None:
        if self._post_is_deferred:
            return
        for _ in self.shards[self._reported_shards :]:
            path = self.fname
            self._reported_shards += 1
            if self._post is not None:
                self._post(path)
            if samples_before is not None:  # another shard starts
                self._print_name(samples_before)
                self.count = self.size = 0

    def _print_name(self, samples: int) -> None:
        if self.verbose:
            sys.stdout.write(f"# writing {self.fname} {self.count} {self.size / 1e9:.1f} GB {samples}\n")


def _parse_bound(name: str, value: float) -> int | None:
    if value == inf:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not value >= 1:
        raise InvalidRequest(name, f"{value!r}", expected="a number of at least 1")
    return int(value)


def make_encoder(encoder: object) -> Encoder:
    """Return a function that encodes samples.

    `encoder` is True (encode fields by extension), False or None (do not encode), a dict of functions by extension, or
    a function of a sample.

    Raises:
        InvalidRequest: `encoder` has another type.
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
    """Encode a value with the handler for the extension of `field`. If `field` starts with `_`, return `value`."""
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
    """Return webdataset's encoding function for each extension."""
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
