"""Apply a transform to samples, in a worker."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from shardtool.messages import cli_option
from shardtool.names import MAX_FIELDS, field_problem, name_problem, to_text
from shardtool.transform.transform import EXIF_COLUMN, ORIGINAL_COLUMNS, PROBED_COLUMNS, Transform, find_function

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode
    from shardtool.transform.image import ImageInfo, ImageOptions

    Payload = bytes | memoryview


KEY_ITEM = "__key__"


_MAX_TRACE_LINES = 12


_INVALID_KEY_PARTS = {"", ".", ".."}  # of a key, between its slashes


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


class TransformedSample(NamedTuple):
    """A sample that comes out of a transform.

    Attributes:
        key: Its name.
        fields: (name, payload), in the order of the bytes of the names.
    """

    key: bytes
    fields: list[tuple[bytes, Payload]]


def _function_option() -> str:
    return f"the function of {cli_option('map')}"


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
        for name in found.keys() - {*PROBED_COLUMNS, *ORIGINAL_COLUMNS, EXIF_COLUMN}:
            found[name] = hashlib.new(name, fields[held], usedforsecurity=False).hexdigest()
        if self._images is not None:
            if EXIF_COLUMN in found:
                from shardtool.transform.exif import read_exif

                found[EXIF_COLUMN] = next(
                    (read_exif(data) for name, data in fields.items() if self._images.applies(name)), None
                )
            if not found.keys().isdisjoint(ORIGINAL_COLUMNS):
                _, image = _change_images(replace(self._images, resize=None, encode=None), fields)
                found |= dict(zip(ORIGINAL_COLUMNS, image or (), strict=False))
            fields, image = _change_images(self._images, fields)
            found |= image._asdict() if image is not None and self._images.probe else {}
        return fields, tuple(found.values())

    def finish(self, key: bytes, fields: Mapping[str, Payload]) -> list[TransformedSample]:
        """Return what becomes of a sample that was looked at: one, several, or none.

        Raises:
            BadSample: It cannot be taken.
        """
        if self._function is None:
            return [TransformedSample(key, _sort_fields(fields))]
        sample: dict[str, object] = {KEY_ITEM: to_text(key), **{name: bytes(data) for name, data in fields.items()}}
        try:
            made = self._function(sample)
            several = isinstance(made, Iterable) and not isinstance(made, (dict, str, bytes))
            found = list(made) if several else [] if made is None else [made]
        except MemoryError:  # of the machine: whether a sample is left out must not depend on it
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function may raise anything
            theirs = error.__traceback__.tb_next if error.__traceback__ else None  # the first frame is ours
            trace = "".join(traceback.format_exception(type(error), error, theirs)).splitlines()[-_MAX_TRACE_LINES:]
            message = f"{_function_option()} raised {type(error).__name__}: {error}"
            raise BadSample("map-failed", message, "\n".join(trace)) from None
        name = to_text(key)
        return [_parse_returned(one, name, f"{name}-{at}" if several else name) for at, one in enumerate(found)]


get_transformer = cache(Transformer)  # of this process: importing the user's function may take long


def _change_images(options: ImageOptions, fields: Mapping[str, Payload]) -> tuple[dict[str, Payload], ImageInfo | None]:
    from shardtool.transform.image import change_image
    from shardtool.transform.image_decode import BadImage

    changed: dict[str, Payload] = {}
    first = None
    for name, data in fields.items():
        new, field = data, name
        if options.applies(name):
            try:
                new, fact = change_image(data, name, options)
            except BadImage as error:
                raise BadSample(error.code, str(error), field=name) from None
            first, field = first or fact, options.output_field(name)
        if field in changed:
            raise BadSample("field-clash", f"two fields become {field!r}", field=name)
        changed[field] = new
    return changed, first


def _parse_returned(sample: object, key: str, default_key: str) -> TransformedSample:
    """Return a sample that the user's function made of the sample `key`.

    Raises:
        BadSample: It is none.
    """
    if not isinstance(sample, dict):
        raise BadSample("map-failed", f"{_function_option()} returned a {type(sample).__name__}, no dict")
    given = sample.get(KEY_ITEM, key)
    new = default_key if given == key else given
    if not _is_text(new) or not _INVALID_KEY_PARTS.isdisjoint(new.split("/")):
        raise BadSample("map-failed", f"{_function_option()} returned the key {new!r:.80}")
    if wrong := name_problem(new.encode()):
        raise BadSample("map-failed", f"{_function_option()} returned the key {new!r:.80}: {wrong}")
    fields: dict[str, Payload] = {}
    for name, value in sample.items():
        if name == KEY_ITEM:
            continue
        if not _is_text(name) or not name or "/" in name:
            raise BadSample("map-failed", f"{_function_option()} returned a field called {name!r:.80}")
        if wrong := field_problem(name.encode()):
            raise BadSample("map-failed", f"{_function_option()} returned a field called {name!r:.80}: {wrong}")
        fields[name] = _encode_payload(name, value)
    if not fields:
        raise BadSample("map-failed", f"{_function_option()} returned a sample without fields; None drops it")
    if len(fields) > MAX_FIELDS:
        raise BadSample("map-failed", f"{_function_option()} returned a sample of {len(fields):,} fields")
    return TransformedSample(new.encode(), _sort_fields(fields))


def _is_text(value: object) -> TypeGuard[str]:
    """Tell whether a value is text that can name something: UTF-8, without a NUL."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_payload(name: str, value: object) -> Payload:
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
        raise BadSample("map-failed", f"{_function_option()} returned {name!r}: {said}") from None
    raise BadSample("map-failed", f"{_function_option()} returned a {type(value).__name__} as {name!r}, no bytes")


def _sort_fields(fields: Mapping[str, Payload]) -> list[tuple[bytes, Payload]]:
    return sorted(((name.encode(), data) for name, data in fields.items()), key=lambda field: field[0])
