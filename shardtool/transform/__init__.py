"""What is done to a sample on its way into a shard: files of URLs are fetched, images changed, a function is called.

What is found in its files on the way, such as the size of an image, may decide whether it goes there.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from shardtool.errors import InvalidRequest
from shardtool.frames import allow_pandas
from shardtool.storage.places import read_small
from shardtool.values import FIELD_LIMIT, field_problem, name_problem, to_text
from shardtool.wording import option, typed_option

if TYPE_CHECKING:
    from shardtool.fetch import FetchOptions
    from shardtool.skipped import SkipCode
    from shardtool.transform.image import ImageFact, ImageOptions

    Payload = bytes | memoryview

KEY = "__key__"
PROBED = {"width": "int32", "height": "int32", "mode": "string"}  # the columns of `probe`, and their Arrow types
ORIGINAL = {"original_width": "int32", "original_height": "int32"}  # the same before a change
EXIF = "exif"  # the column of `exif`
_TRACE_LINES = 12
_NO_PARTS = {"", ".", ".."}  # of a key, between its slashes


class BadSample(Exception):
    """A sample that a transform cannot take.

    Attributes:
        code: Why, for programs.
        message: For people.
        detail: A traceback.
        field: The field that is at fault; empty: no single one.
    """

    def __init__(self, code: SkipCode, message: str, detail: str = "", field: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.detail, self.field = code, message, detail, field


class Condition(NamedTuple):
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
    where: Condition | None = None

    def check_fields(self, known: tuple[str, ...]) -> None:
        """Check that the fields to be changed exist: a typing error would change none.

        Raises:
            InvalidRequest: There are not.
        """
        images = self.images
        for asked, names in (("images", images.fields), ("masks", images.masks)) if images is not None else ():
            if missing := [name for name in names if name not in known]:
                expected = f"one of {', '.join(known)}"
                raise InvalidRequest(option(asked), f"no sample has a field {missing[0]!r}", expected=expected)

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
        parts += [f"{name} found" for name, _ in self.found if name not in PROBED]
        parts += [] if self.where is None else [f"where {self.where.query}"]
        if self.function:
            find_function(self.function)
            origin = getattr(sys.modules[self.function.partition(":")[0]], "__file__", None)
            parts.append(self.function)
            if origin and os.path.isfile(origin):
                parts.append(blake2b(read_small(origin), digest_size=16).hexdigest())
        return " ".join(parts)


class ChangedSample(NamedTuple):
    """A sample that comes out of a transform.

    Attributes:
        key: Its name.
        fields: (name, payload), in the order of the bytes of the names.
    """

    key: bytes
    fields: list[tuple[bytes, Payload]]


def _function() -> str:
    return f"the function of {typed_option('map')}"


def find_function(name: str) -> Callable[[dict[str, object]], Any]:
    """Return the function that `package.module:function` names; modules may lie in the current folder.

    Raises:
        InvalidRequest: There is none.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise InvalidRequest(option("map"), repr(name), expected="package.module:function")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    allow_pandas()
    try:
        with redirect_stdout(sys.stderr):  # what a module prints is no result of ours
            found: object = import_module(module) if find_spec(module) else None
        for part in attribute.split(".") if found else ():
            found = getattr(found, part)
    except AttributeError:
        raise InvalidRequest(option("map"), f"no {attribute!r} in the module {module!r}") from None
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module may raise anything
        raise InvalidRequest(option("map"), f"cannot import {module!r}: {type(error).__name__}: {error}") from None
    if found is None:
        raise InvalidRequest(option("map"), f"no module {module!r}", remedy="Run where Python can import it.")
    if not callable(found):
        wrong = f"{name!r} is a {type(found).__name__}"
        raise InvalidRequest(option("map"), wrong, expected="a function of one sample")
    return found


class Transformer:
    """A transform at work, in a worker."""

    def __init__(self, transform: Transform) -> None:
        self._images, self._found = transform.images, [name for name, _ in transform.found]
        self._function = find_function(transform.function) if transform.function else None

    def look(self, fields: Mapping[str, Payload], held: str) -> tuple[Mapping[str, Payload], tuple[object, ...]]:
        """Return a sample's fields, their images changed, and what was found: a value for each column.

        Args:
            fields: What the source gives.
            held: The field that checksums are of.

        Raises:
            BadSample: It cannot be taken.
        """
        found: dict[str, object] = dict.fromkeys(self._found)
        for name in found.keys() - {*PROBED, *ORIGINAL, EXIF}:
            found[name] = hashlib.new(name, fields[held], usedforsecurity=False).hexdigest()
        if self._images is not None:
            if EXIF in found:
                from shardtool.transform.image import exif

                found[EXIF] = next((exif(data) for name, data in fields.items() if self._images.applies(name)), None)
            if not found.keys().isdisjoint(ORIGINAL):
                _, image = _change_images(replace(self._images, resize=None, encode=None), fields)
                found |= dict(zip(ORIGINAL, image or (), strict=False))
            fields, image = _change_images(self._images, fields)
            found |= image._asdict() if image is not None and self._images.probe else {}
        return fields, tuple(found.values())

    def finish(self, key: bytes, fields: Mapping[str, Payload]) -> list[ChangedSample]:
        """Return what becomes of a sample that was looked at: one, several, or none.

        Raises:
            BadSample: It cannot be taken.
        """
        if self._function is None:
            return [ChangedSample(key, _in_order(fields))]
        sample: dict[str, object] = {KEY: to_text(key), **{name: bytes(data) for name, data in fields.items()}}
        try:
            made = self._function(sample)
            several = isinstance(made, Iterable) and not isinstance(made, (dict, str, bytes))
            found = list(made) if several else [] if made is None else [made]
        except MemoryError:  # of the machine: whether a sample is left out must not depend on it
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function may raise anything
            theirs = error.__traceback__.tb_next if error.__traceback__ else None  # the first frame is ours
            trace = "".join(traceback.format_exception(type(error), error, theirs)).splitlines()[-_TRACE_LINES:]
            message = f"{_function()} raised {type(error).__name__}: {error}"
            raise BadSample("map-failed", message, "\n".join(trace)) from None
        name = to_text(key)
        return [_returned(one, name, f"{name}-{at}" if several else name) for at, one in enumerate(found)]


transformer = cache(Transformer)  # of this process: importing the user's function may take long


def _change_images(options: ImageOptions, fields: Mapping[str, Payload]) -> tuple[dict[str, Payload], ImageFact | None]:
    from shardtool.transform.image import BadImage, change

    changed: dict[str, Payload] = {}
    first = None
    for name, data in fields.items():
        new, field = data, name
        if options.applies(name):
            try:
                new, fact = change(data, name, options)
            except BadImage as error:
                raise BadSample(error.code, str(error), field=name) from None
            first, field = first or fact, options.output_field(name)
        if field in changed:
            raise BadSample("field-clash", f"two fields become {field!r}", field=name)
        changed[field] = new
    return changed, first


def _returned(sample: object, key: str, default_key: str) -> ChangedSample:
    """Return a sample that the user's function made of the sample `key`.

    Raises:
        BadSample: It is none.
    """
    if not isinstance(sample, dict):
        raise BadSample("map-failed", f"{_function()} returned a {type(sample).__name__}, no dict")
    given = sample.get(KEY, key)
    new = default_key if given == key else given
    if not _is_text(new) or not _NO_PARTS.isdisjoint(new.split("/")):
        raise BadSample("map-failed", f"{_function()} returned the key {new!r:.80}")
    if wrong := name_problem(new.encode()):
        raise BadSample("map-failed", f"{_function()} returned the key {new!r:.80}: {wrong}")
    fields: dict[str, Payload] = {}
    for name, value in sample.items():
        if name == KEY:
            continue
        if not _is_text(name) or not name or "/" in name:
            raise BadSample("map-failed", f"{_function()} returned a field called {name!r:.80}")
        if wrong := field_problem(name.encode()):
            raise BadSample("map-failed", f"{_function()} returned a field called {name!r:.80}: {wrong}")
        fields[name] = _payload(name, value)
    if not fields:
        raise BadSample("map-failed", f"{_function()} returned a sample without fields; None drops it")
    if len(fields) > FIELD_LIMIT:
        raise BadSample("map-failed", f"{_function()} returned a sample of {len(fields):,} fields")
    return ChangedSample(new.encode(), _in_order(fields))


def _is_text(value: object) -> TypeGuard[str]:
    """Tell whether a value is text that can name something: UTF-8, without a NUL."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _payload(name: str, value: object) -> Payload:
    """Return the bytes of a value: text as UTF-8, numbers as text, as a tar shard has them.

    What the function may change later is copied.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a NumPy number
    if isinstance(value, bool):
        value = int(value)
    try:
        if isinstance(value, (int, float, str)):
            return str(value).encode()
    except ValueError:  # no UTF-8, or thousands of digits
        said = f"{value!r:.40}" if isinstance(value, str) else "a number of thousands of digits"
        raise BadSample("map-failed", f"{_function()} returned {name!r}: {said}") from None
    raise BadSample("map-failed", f"{_function()} returned a {type(value).__name__} as {name!r}, no bytes")


def _in_order(fields: Mapping[str, Payload]) -> list[tuple[bytes, Payload]]:
    return sorted(((name.encode(), data) for name, data in fields.items()), key=lambda field: field[0])
