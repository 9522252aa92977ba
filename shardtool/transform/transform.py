"""Describe transforms as objects that can be sent to workers."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.pandas_guard import allow_pandas
from shardtool.storage.files import read_small

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.fetch.options import FetchOptions
    from shardtool.transform.image import ImageOptions


PROBED_COLUMNS = {"width": "int32", "height": "int32", "mode": "string"}
ORIGINAL_COLUMNS = {"original_width": "int32", "original_height": "int32"}
EXIF_COLUMN = "exif"


class ReadCondition(NamedTuple):
    """The part of a query that workers evaluate after they read a sample."""

    query: str
    columns: tuple[str, ...]
    classes: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Transform(NamedTuple):
    """How to transform each sample.

    Attributes:
        function: The function to call with each sample, as `package.module:function`, or "".
        measured_columns: Names and types of columns to measure while reading samples.
    """

    images: ImageOptions | None = None
    function: str = ""
    fetch: FetchOptions | None = None
    measured_columns: tuple[tuple[str, str], ...] = ()
    where: ReadCondition | None = None

    def check_fields(self, existing_fields: tuple[str, ...]) -> None:
        """Raise `InvalidRequest` if a requested image field does not exist."""
        images = self.images
        for option_name, names in (("image", images.fields), ("mask", images.masks)) if images is not None else ():
            for name in names:
                if name not in existing_fields:
                    found, expected = f"no sample has a field {name!r}", f"one of {', '.join(existing_fields)}"
                    raise InvalidRequest(option_text(option_name), found, expected=expected)

    def identity(self) -> str:
        """Return a string that changes with the options, codec versions or the function's source."""
        parts = [repr(self.images), *([] if self.fetch is None else [self.fetch.identity()])]
        if self.images is not None:
            import PIL
            from PIL import features

            codecs = [f"{name} {features.version(name)}" for name in ("jpg", "libjpeg_turbo", "zlib", "webp")]
            parts += [PIL.__version__, *codecs]
        parts += [f"{name} found" for name, _ in self.measured_columns if name not in PROBED_COLUMNS]
        parts += [] if self.where is None else [f"where {self.where.query}"]
        if self.function:
            find_function(self.function)
            origin = getattr(sys.modules[self.function.partition(":")[0]], "__file__", None)
            parts.append(self.function)
            if origin and os.path.isfile(origin):
                parts.append(blake2b(read_small(origin), digest_size=16).hexdigest())
        return " ".join(parts)


def find_function(name: str) -> Callable[[dict[str, object]], Any]:
    """Import the user's function `package.module:function`. The current folder is searched, too."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute) or module.endswith(".py"):
        raise InvalidRequest(option_text("map"), repr(name), expected="package.module:function")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    allow_pandas()
    try:
        with redirect_stdout(sys.stderr):  # stdout is reserved for results
            target: object = import_module(module) if find_spec(module) else None
        for part in attribute.split(".") if target else ():
            target = getattr(target, part)
    except AttributeError:
        raise InvalidRequest(option_text("map"), f"no {attribute!r} in the module {module!r}") from None
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may raise anything
        raise InvalidRequest(option_text("map"), f"cannot import {module!r}: {type(error).__name__}: {error}") from None
    if target is None:
        remedy = "Start shardtool in a folder from which Python can import the module."
        raise InvalidRequest(option_text("map"), f"no module {module!r}", remedy=remedy)
    if not callable(target):
        problem = f"{name!r} is a {type(target).__name__}"
        raise InvalidRequest(option_text("map"), problem, expected="a function that accepts one sample")
    return target
