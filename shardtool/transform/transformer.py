"""Apply a transform to samples, in workers."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from shardtool.errors import Interrupted
from shardtool.messages import cli_option
from shardtool.names import MAX_FIELDS, field_problem, name_problem, to_text
from shardtool.transform.transform import EXIF_COLUMN, ORIGINAL_COLUMNS, PROBED_COLUMNS, Transform, find_function

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode
    from shardtool.transform.image import ImageInfo, ImageOptions

    Payload = bytes | memoryview


KEY_ITEM = "__key__"
_MAX_TRACE_LINES = 12
_INVALID_KEY_PARTS = {"", ".", ".."}  # a key must not contain these between slashes


class BadSample(Exception):
    """A sample that a transform cannot process."""

    def __init__(self, code: SkipCode, message: str, detail: str = "", field: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.detail, self.field = code, message, detail, field


class TransformedSample(NamedTuple):
    """A transformed sample. `fields` are pairs of name and payload, sorted by the bytes of the names."""

    key: bytes
    fields: list[tuple[bytes, Payload]]


def _map_error(problem: str, detail: str = "") -> BadSample:
    return BadSample("map-failed", f"the function of {cli_option('map')} {problem}", detail)


class Transformer:
    """Applies a transform in a worker."""

    def __init__(self, transform: Transform) -> None:
        self._images, self._measured_columns = transform.images, [name for name, _ in transform.measured_columns]
        self._function = find_function(transform.function) if transform.function else None

    def change_fields(
        self, fields: Mapping[str, Payload], checksum_field: str
    ) -> tuple[Mapping[str, Payload], tuple[object, ...]]:
        """Change the images of a sample. Return its fields and the values of `Transform.measured_columns`.

        For columns of checksums, the payload of `checksum_field` is hashed.
        """
        values: dict[str, object] = dict.fromkeys(self._measured_columns)
        for name in values.keys() - {*PROBED_COLUMNS, *ORIGINAL_COLUMNS, EXIF_COLUMN}:
            values[name] = hashlib.new(name, fields[checksum_field], usedforsecurity=False).hexdigest()
        if self._images is not None:
            if EXIF_COLUMN in values:
                from shardtool.transform.exif import read_exif

                values[EXIF_COLUMN] = next(
                    (read_exif(data) for name, data in fields.items() if self._images.applies(name)), None
                )
            if not values.keys().isdisjoint(ORIGINAL_COLUMNS):
                _, image = _change_images(replace(self._images, resize=None, encode=None), fields)
                values |= dict(zip(ORIGINAL_COLUMNS, image or (), strict=False))
            fields, image = _change_images(self._images, fields)
            values |= image._asdict() if image is not None and self._images.probe else {}
        return fields, tuple(values.values())

    def call_function(self, key: bytes, fields: Mapping[str, Payload]) -> list[TransformedSample]:
        """Call the user's function, and return its results as samples. Raise `BadSample` for errors and bad results."""
        if self._function is None:
            return [TransformedSample(key, _sort_fields(fields))]
        sample: dict[str, object] = {KEY_ITEM: to_text(key), **{name: bytes(data) for name, data in fields.items()}}
        try:
            returned = self._function(sample)
            is_several = isinstance(returned, Iterable) and not isinstance(returned, (dict, str, bytes))
            results = list(returned) if is_several else [] if returned is None else [returned]
        except (MemoryError, KeyboardInterrupt, Interrupted):
            raise  # do not skip the sample, because the result must not depend on the machine
        except BaseException as error:  # noqa: BLE001 - the user's function may raise anything
            user_frames = error.__traceback__.tb_next if error.__traceback__ else None  # skip the frame of this module
            trace = "".join(traceback.format_exception(type(error), error, user_frames)).splitlines()
            detail = "\n".join(trace[-_MAX_TRACE_LINES:])
            raise _map_error(f"raised {type(error).__name__}: {error}", detail) from None
        name = to_text(key)
        names = [f"{name}-{index}" if is_several else name for index in range(len(results))]
        return [_parse_returned(result, name, default) for result, default in zip(results, names, strict=True)]


get_transformer = cache(Transformer)  # importing the user's function may be slow


def _change_images(options: ImageOptions, fields: Mapping[str, Payload]) -> tuple[dict[str, Payload], ImageInfo | None]:
    from shardtool.transform.image import change_image
    from shardtool.transform.image_decode import BadImage

    changed: dict[str, Payload] = {}
    first = None
    for name, data in fields.items():
        new, field = data, name
        if options.applies(name):
            try:
                new, info = change_image(data, name, options)
            except BadImage as error:
                raise BadSample(error.code, str(error), field=name) from None
            first = first or info
            field = options.output_field(name)
        if field in changed:
            raise BadSample("field-clash", f"two fields would be named {field!r}", field=name)
        changed[field] = new
    return changed, first


def _parse_returned(sample: object, key: str, default_key: str) -> TransformedSample:
    if not isinstance(sample, dict):
        raise _map_error(f"returned a {type(sample).__name__}, not a dict")
    returned_key = sample.get(KEY_ITEM, key)
    new_key = default_key if returned_key == key else returned_key
    if not _is_text(new_key) or not _INVALID_KEY_PARTS.isdisjoint(new_key.split("/")):
        raise _map_error(f"returned the key {new_key!r:.80}")
    if problem := name_problem(new_key.encode()):
        raise _map_error(f"returned the key {new_key!r:.80}: {problem}")
    fields: dict[str, Payload] = {}
    for name, value in sample.items():
        if name == KEY_ITEM:
            continue
        if not _is_text(name) or not name or "/" in name:
            raise _map_error(f"returned a field named {name!r:.80}")
        if problem := field_problem(name.encode()):
            raise _map_error(f"returned a field named {name!r:.80}: {problem}")
        fields[name] = _encode_payload(name, value)
    if not fields:
        raise _map_error("returned a sample without fields; return None to drop the sample")
    if len(fields) > MAX_FIELDS:
        raise _map_error(f"returned a sample of {len(fields):,} fields")
    return TransformedSample(new_key.encode(), _sort_fields(fields))


def _is_text(value: object) -> TypeGuard[str]:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_payload(name: str, value: object) -> Payload:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a NumPy scalar
    if isinstance(value, bool):
        value = int(value)
    try:
        if isinstance(value, (int, float, str)):
            return str(value).encode()
    except ValueError:  # a string that UTF-8 cannot encode, or an integer of thousands of digits
        shown = f"{value!r:.40}" if isinstance(value, str) else "a number of thousands of digits"
        raise _map_error(f"returned {name!r}: {shown}") from None
    raise _map_error(f"returned a {type(value).__name__} as {name!r}, not bytes")


def _sort_fields(fields: Mapping[str, Payload]) -> list[tuple[bytes, Payload]]:
    return sorted(((name.encode(), data) for name, data in fields.items()), key=lambda field: field[0])
