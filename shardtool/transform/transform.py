"""Describe a transform: plain values that travel to workers.

Values found while reading a sample, such as the size of an image, may decide whether it is packed.
"""

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


PROBED_COLUMNS = {
    "width": "int32",
    "height": "int32",
    "mode": "string",
}  # the columns of `probe`, and their Arrow types


ORIGINAL_COLUMNS = {"original_width": "int32", "original_height": "int32"}  # the same before a change


EXIF_COLUMN = "exif"  # the column of `exif`


class ReadCondition(NamedTuple):
    """What of a query shows only when samples are read.

    Attributes:
        query: The rest of it, in the language of `select/query.py`.
        columns: The columns that it names.
        classes: The names of the classes whose numbers such a column holds.
    """

    query: str
    columns: tuple[str, ...]
    classes: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Transform(NamedTuple):
    """The changes to each sample. A plain value that travels to workers.

    Attributes:
        images: What to do to images; None: nothing.
        function: `package.module:function`, called with each sample; empty: none.
        fetch: How the files of URLs are fetched; None: there are none.
        found: The columns of metadata that are found as samples are read, and their Arrow types.
        where: What samples must be to be taken, as far as that shows only then.
    """

    images: ImageOptions | None = None
    function: str = ""
    fetch: FetchOptions | None = None
    found: tuple[tuple[str, str], ...] = ()
    where: ReadCondition | None = None

    def check_fields(self, known: tuple[str, ...]) -> None:
        """Check that the fields to be changed exist: a typing error would change none.

        Raises:
            InvalidRequest: There are not.
        """
        images = self.images
        for asked, names in (("images", images.fields), ("masks", images.masks)) if images is not None else ():
            if missing := [name for name in names if name not in known]:
                expected = f"one of {', '.join(known)}"
                raise InvalidRequest(option_text(asked), f"no sample has a field {missing[0]!r}", expected=expected)

    def identity(self) -> str:
        """Return what distinguishes this transform: options, Pillow's version, the function's source.

        Raises:
            InvalidRequest: There is no such function.
        """
        parts = [repr(self.images), *([] if self.fetch is None else [self.fetch.identity()])]
        if self.images is not None:
            import PIL
            from PIL import features

            codecs = [f"{name} {features.version(name)}" for name in ("jpg", "libjpeg_turbo", "zlib", "webp")]
            parts += [PIL.__version__, *codecs]
        parts += [f"{name} found" for name, _ in self.found if name not in PROBED_COLUMNS]
        parts += [] if self.where is None else [f"where {self.where.query}"]
        if self.function:
            find_function(self.function)
            origin = getattr(sys.modules[self.function.partition(":")[0]], "__file__", None)
            parts.append(self.function)
            if origin and os.path.isfile(origin):
                parts.append(blake2b(read_small(origin), digest_size=16).hexdigest())
        return " ".join(parts)


def find_function(name: str) -> Callable[[dict[str, object]], Any]:
    """Return the function that `package.module:function` names; modules may lie in the current folder.

    Raises:
        InvalidRequest: There is none.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InvalidRequest(option_text("map"), repr(name), expected="package.module:function")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    allow_pandas()
    try:
        with redirect_stdout(sys.stderr):  # what a module prints is no result of ours
            found: object = import_module(module) if find_spec(module) else None
        for part in attribute.split(".") if found else ():
            found = getattr(found, part)
    except AttributeError:
        raise InvalidRequest(option_text("map"), f"no {attribute!r} in the module {module!r}") from None
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may raise anything
        raise InvalidRequest(option_text("map"), f"cannot import {module!r}: {type(error).__name__}: {error}") from None
    if found is None:
        raise InvalidRequest(option_text("map"), f"no module {module!r}", remedy="Run where Python can import it.")
    if not callable(found):
        wrong = f"{name!r} is a {type(found).__name__}"
        raise InvalidRequest(option_text("map"), wrong, expected="a function of one sample")
    return found
