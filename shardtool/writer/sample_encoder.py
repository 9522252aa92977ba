"""Check and encode a sample as a record, by the same rules as `create`.

A written sample restricts later samples. For example, a field whose first value is text cannot contain numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from hashlib import blake2b
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from shardtool import names, values
from shardtool.entries.record_sizes import STORES_NUMBERS
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.format import tfrecord_write
from shardtool.format.tfrecord_write import INT64_LIMIT
from shardtool.messages import option_text
from shardtool.table.columns import BAD_FIELD
from shardtool.values import STORED_TYPES
from shardtool.write.shard_records import EncodedField, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from PIL.Image import Image

    from shardtool.skipped import SkipCode
    from shardtool.write.shard_records import Parts

    EncodedValue = tuple[bytes, values.ValueType | Literal[""]]


_PILLOW_FORMATS = {
    "jpg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF", "pbm": "PPM", "pgm": "PPM", "pnm": "PPM",
}  # fmt: skip


_JPEG_QUALITY = 90
_dump_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_COLOUR_DIMENSIONS, _CHANNEL_COUNTS = 3, (1, 3, 4)
_PIXEL_TYPES = (np.uint8, np.uint16, np.bool_)


class BadValue(Exception):
    """A value that cannot be stored in a field."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found, self.expected = found, expected


def encode_value(value: object, field: str) -> EncodedValue:
    """Return the bytes of a value, and its type ("" for bytes, arrays and images).

    Raises:
        BadValue: The field cannot store the value.
    """
    if value is None:
        raise BadValue("None", "a value (omit the field if the sample has none)")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), ""
    encode = _ENCODERS.get(type(value))
    if encode is None:  # a subclass
        encode = next((_ENCODERS[kind] for kind in type(value).__mro__ if kind in _ENCODERS), None)
    if encode is not None:
        if expected := _required_content(field):
            raise BadValue(f"a value of the type {type(value).__name__}", expected)
        return encode(value)
    # importing Pillow to recognise its images would be slow
    if hasattr(value, "save") and hasattr(value, "getexif"):
        return _encode_image(value, field)  # type: ignore[arg-type]
    if hasattr(value, "__array__"):
        return _encode_array(_to_array(value, field), field)
    expected = "bytes, text, a number, a JSON value, an array or tensor, or a Pillow image"
    raise BadValue(f"a value of the type {type(value).__name__}", expected)


def _get_ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


@lru_cache(4096)
def _required_content(field: str) -> str:
    ending = _get_ending(field)
    if ending in names.IMAGE_ENDINGS:
        return "the bytes of an image, an array of pixels, or a Pillow image"
    return "a NumPy array: numpy.asarray(value), or bytes" if ending == "npy" else ""


def _encode_json(value: object) -> bytes:
    try:
        try:
            text = _dump_json(value, default=_to_plain)
        except ValueError:
            text = _dump_json(_replace_nan(value))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(f"not representable as JSON: {error}", "a value that JSON can represent") from None


def _to_plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return _to_python(value)
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"a value of the type {type(value).__name__}")


def _replace_nan(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {name: _replace_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(item) for item in value]
    return value if isinstance(value, str | int | float | None) else _replace_nan(_to_plain(value))


def _encode_text(value: str) -> EncodedValue:
    if "\0" in value:
        raise BadValue("text that contains NUL", "text without NUL")
    try:
        return value.encode(), "text"
    except UnicodeEncodeError:
        raise BadValue("text with an unpaired surrogate", "valid Unicode") from None


def _encode_int(value: int) -> EncodedValue:
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise BadValue("a number outside int64", "a number from -2^63 to 2^63 - 1")
    return b"%d" % value, "int64"


def _encode_float(value: float | Decimal) -> EncodedValue:
    if value.is_nan() if isinstance(value, Decimal) else math.isnan(value):
        raise BadValue("NaN", "a number")
    # subclasses may override repr
    return (str(value) if isinstance(value, Decimal) else float.__repr__(value)).encode(), "float"


def _encode_time(value: date | time) -> EncodedValue:
    if value != value:  # noqa: PLR0124 - pandas.NaT
        raise BadValue("NaT", "a date or time")
    return _encode_text(value.isoformat())


def _to_python(value: np.generic) -> object:
    plain = value.item()
    if value.dtype.kind == "M" and type(plain) is int:  # nanoseconds, which `datetime` cannot store
        return str(value).removesuffix(".000000000")
    # every timedelta is refused
    return timedelta() if value.dtype.kind == "m" else plain


def _encode_numpy_scalar(value: np.generic) -> EncodedValue:
    if isinstance(value, np.floating):
        return _encode_float(float(str(value)))  # float(np.float32(0.1)) is 0.10000000149011612
    plain = _to_python(value)
    if isinstance(plain, bytes):
        return plain, ""
    if type(plain) not in _ENCODERS:
        raise BadValue(f"a value of the type {value.dtype}", "a number, a boolean, or text")
    return _ENCODERS[type(plain)](plain)


def _to_array(value: Any, field: str) -> NDArray[np.generic]:
    try:
        is_torch = hasattr(value, "detach")
        array = np.asarray(value.detach().cpu() if is_torch else value)
    except (TypeError, ValueError, RuntimeError) as error:
        found = f"a {type(value).__name__} that cannot be converted to an array: {error}"
        raise BadValue(found, "a NumPy number type") from None
    has_channels_first = array.ndim == _COLOUR_DIMENSIONS and array.shape[0] in _CHANNEL_COUNTS
    if is_torch and has_channels_first and _get_ending(field) in names.IMAGE_ENDINGS:
        return np.moveaxis(array, 0, -1)
    return array


def _encode_array(value: NDArray[np.generic], field: str) -> EncodedValue:
    ending = _get_ending(field)
    if ending in names.IMAGE_ENDINGS:
        return _encode_pixels(value, field)
    if ending != "npy":
        if not value.ndim:
            return _encode_numpy_scalar(cast("np.generic", value[()]))
        raise BadValue("an array", "a field whose name ends in npy, or bytes")
    if value.dtype.hasobject:
        raise BadValue("an array of Python objects", "an array of numbers or text")
    stream = BytesIO()
    np.lib.format.write_array(stream, value, allow_pickle=False)
    return stream.getvalue(), ""


def _encode_pixels(value: NDArray[np.generic], field: str) -> EncodedValue:
    from PIL import Image

    pixels = value[..., 0] if value.ndim == _COLOUR_DIMENSIONS and value.shape[2] == 1 else value
    has_image_shape = pixels.ndim == _COLOUR_DIMENSIONS - 1 or (pixels.ndim > 0 and pixels.shape[-1] in _CHANNEL_COUNTS)
    with suppress(TypeError):
        if pixels.size and pixels.dtype in _PIXEL_TYPES and has_image_shape:
            return _encode_image(Image.fromarray(pixels), field)
    expected = "uint8 [height, width] or [height, width, 3] (for a tensor, [3, height, width]), or bytes"
    raise BadValue(f"an array {[*value.shape]} of {value.dtype}", expected)


def _encode_image(value: Image, field: str) -> EncodedValue:
    ending = _get_ending(field)
    if ending not in names.IMAGE_ENDINGS:
        raise BadValue("an image", f"a field name with an image extension, such as {field}.png")
    pillow_format, stream = _PILLOW_FORMATS.get(ending, ending.upper()), BytesIO()
    if value.mode[0] in "IF" and not _can_store(pillow_format, value):
        found = f"an image of mode {value.mode}, which {pillow_format} cannot store without loss"
        raise BadValue(found, "a field name that ends in tiff or npy")
    if value.mode == "I" and pillow_format == "PNG":
        value = value.convert("I;16")
    save_options = {"quality": _JPEG_QUALITY} if pillow_format in ("JPEG", "WEBP") else {}
    try:
        value.save(stream, pillow_format, **save_options)
    except (OSError, ValueError, KeyError) as error:
        found = f"an image that cannot be written as {pillow_format}: {error}"
        raise BadValue(found, "a mode that this format supports") from None
    return stream.getvalue(), ""


def _can_store(pillow_format: str, image: Image) -> bool:
    if image.mode == "I" and pillow_format in ("PNG", "PPM"):
        low, high = cast("tuple[int, int]", image.getextrema())
        return low >= 0 and high < 2**16
    return pillow_format not in ("WEBP", "GIF")  # `save` converts to 8 bits


_ENCODERS: dict[type, Callable[..., EncodedValue]] = {
    np.generic: _encode_numpy_scalar,
    str: _encode_text,
    bool: lambda value: (b"1" if value else b"0", "bool"),
    int: _encode_int,
    float: _encode_float,
    **dict.fromkeys((dict, list, tuple), lambda value: (_encode_json(value), "json")),
    **dict.fromkeys((datetime, date, time), _encode_time),
    Decimal: _encode_float,
}


SAMPLE_KEY = "__key__"
_SIMPLE_KEY = re.compile(r"[A-Za-z0-9_\-]+(?:/[A-Za-z0-9_\-]+)*", re.ASCII)
_BAD_KEY_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
_KEY_HASH_BYTES = 12  # a collision is expected in one of 10^11 runs with 10^9 keys each


class SampleRefused(Exception):
    """A sample cannot be written because of `error`. If the sample is skipped, `code` is the reason code."""

    def __init__(self, error: InvalidRequest, code: SkipCode = "bad-value") -> None:
        super().__init__(error)
        self.error, self.code = error, code


class FieldLayout(NamedTuple):
    """The encoded field names of a sample.

    Attributes:
        names: Pairs of field name and encoded name, sorted by encoded name.
        dotted_field: A field whose name contains a dot, or "".
    """

    names: tuple[tuple[str, bytes], ...]
    dotted_field: str


class EncodedSample(NamedTuple):
    """An encoded sample.

    Attributes:
        kinds: The type of each field, from `encode_value`.
        has_inline: Whether any value is text, a number, a boolean or JSON.
        has_dotted_key: For tar, whether the key's last component contains a dot, except at its start.
    """

    key: bytes
    key_hash: bytes
    fields: list[EncodedField]
    parts: Parts
    size: int
    layout: FieldLayout
    kinds: tuple[str, ...]
    has_inline: bool
    has_dotted_key: bool


class SampleEncoder:
    """Encodes samples, and checks that each one fits the fields and types of earlier samples.

    Attributes:
        kinds: The type of each field, or "" if the field contains bytes or values of several types.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None) -> None:
        self._format, self._is_tar, self._dots = shard_format, shard_format == "tar", dots
        self.kinds: dict[str, str] = {}
        self.has_inline = self.has_dotted_key = False
        self.dotted_field = ""
        self._key_hashes: set[bytes] = set()
        self._layouts: dict[tuple[str, ...], FieldLayout] = {}
        self._accepted_layouts: set[tuple[FieldLayout, tuple[str, ...]]] = set()

    @property
    def numbers(self) -> dict[str, values.NumberType]:
        """The number types of numeric fields."""
        return values.number_fields(self.kinds)

    @property
    def types(self) -> dict[str, values.ValueType]:
        """The non-empty types in `kinds`."""
        return {name: cast("values.ValueType", kind) for name, kind in self.kinds.items() if kind}

    @property
    def stored_numbers(self) -> dict[bytes, values.NumberType]:
        """The number types of fields that the shard format stores as numbers."""
        stored = self.numbers if STORES_NUMBERS[self._format] else {}
        return {names.to_bytes(name): kind for name, kind in stored.items()}

    def encode(self, sample: Mapping[str, object]) -> EncodedSample:
        """Check and encode a sample. Raise `SampleRefused` if the sample cannot be written."""
        if type(sample) is not dict and not isinstance(sample, Mapping):
            found = f"a value of the type {type(sample).__name__}"
            raise make_refusal("a sample", found, expected="a dict with a key and fields")
        field_names = tuple(sample)
        layout = self._layouts.get(field_names)
        if layout is None:
            layout = self._layouts[field_names] = self._make_layout(field_names)
        raw_key = sample[SAMPLE_KEY]
        key, has_dot = self._encode_key(raw_key, layout)
        key_hash = blake2b(key, digest_size=_KEY_HASH_BYTES).digest()
        if key_hash in self._key_hashes:
            found, remedy = "a duplicate key", "Give each sample a unique key."
            raise SampleRefused(InvalidRequest(f"key {printable(key)!r}", found, remedy=remedy), "duplicate")
        fields, kinds, has_inline = self._encode_fields(key, sample, layout)
        numbers = {
            raw: STORED_TYPES[kind] for (_, raw), kind in zip(layout.names, kinds, strict=True) if kind in STORED_TYPES
        }
        parts = encode_record(self._format, key, fields, numbers)
        return EncodedSample(key, key_hash, fields, parts, sum(map(len, parts)), layout, kinds, has_inline, has_dot)

    def accept(self, sample: EncodedSample) -> None:
        """Remember how `sample` restricts later samples."""
        self._key_hashes.add(sample.key_hash)
        self.has_dotted_key = self.has_dotted_key or sample.has_dotted_key
        layout_and_kinds = sample.layout, sample.kinds
        if layout_and_kinds not in self._accepted_layouts:
            self._accepted_layouts.add(layout_and_kinds)
            self.dotted_field = self.dotted_field or sample.layout.dotted_field
            for (name, _), kind in zip(sample.layout.names, sample.kinds, strict=True):
                self.kinds[name] = kind
        self.has_inline = self.has_inline or sample.has_inline

    def add_existing_keys(self, keys: list[bytes]) -> None:
        """Remember the keys of existing samples, to refuse later samples with the same keys."""
        self._key_hashes.update(blake2b(key, digest_size=_KEY_HASH_BYTES).digest() for key in keys)
        self.has_dotted_key = self.has_dotted_key or any(map(names.has_early_dot, keys))

    def restore(self, kinds: Mapping[str, str], *, has_inline: bool) -> None:
        """Restore the restrictions that existing samples impose on field names and types."""
        self.kinds, self.has_inline = dict(kinds), has_inline
        self.dotted_field = next((name for name in kinds if "." in name), "")

    def _make_layout(self, field_names: tuple[str, ...]) -> FieldLayout:
        if SAMPLE_KEY not in field_names:
            raise make_refusal("a sample", "no key", "no-field", expected=f"a key named {SAMPLE_KEY!r}")
        for name in field_names:
            if name == SAMPLE_KEY:
                continue
            problem = "" if not isinstance(name, str) else names.field_problem(name.encode("utf-8", "surrogatepass"))
            if not isinstance(name, str) or BAD_FIELD.search(name) or problem:
                found = f"not a valid field name{f': {problem}' if problem else ''}"
                expected = "a file extension such as jpg, cls or seg.png"
                raise make_refusal(f"field {name!r}", found, "unsafe-name", expected=expected)
        encoded_names = [(name, name.encode()) for name in field_names if name != SAMPLE_KEY]
        fields = sorted(encoded_names, key=lambda field: field[1])
        if not fields:
            raise make_refusal("a sample", "no field", "no-field", expected="at least one field in addition to the key")
        lower = Counter(name.lower() for name, _ in fields)
        if self._is_tar and len(lower) < len(fields):
            clashing = [name for name, _ in fields if lower[name.lower()] > 1]
            found = f"fields that differ only in case: {format_list(clashing)}"
            expected = "field names that differ in more than case"
            raise make_refusal("a sample", found, "field-clash", expected=expected)
        if len({*self.kinds, *field_names}) > names.MAX_FIELDS:
            found = f"more than {names.MAX_FIELDS:,} different fields"
            raise make_refusal("a sample", found, expected="fewer fields")
        return FieldLayout(tuple(fields), next((name for name, _ in fields if "." in name), ""))

    def _encode_key(self, raw_key: object, layout: FieldLayout) -> tuple[bytes, bool]:
        if isinstance(raw_key, int | np.integer) and not isinstance(raw_key, bool):
            raw_key = str(raw_key)
        if not isinstance(raw_key, str):
            found = f"a key of the type {type(raw_key).__name__}"
            raise make_refusal("a sample", found, "unsafe-name", expected="text or an integer")
        if not layout.dotted_field and _SIMPLE_KEY.fullmatch(raw_key) and len(raw_key) <= names.MAX_NAME_BYTES:
            return raw_key.encode(), False
        key = raw_key.encode("utf-8", "surrogatepass")
        if (problem := names.name_problem(key)) or _BAD_KEY_PART.search(raw_key):
            found = f"not a valid name{f': {problem}' if problem else ''}"
            size = f"1 to {names.MAX_NAME_BYTES:,} bytes"
            expected = f"text of {size} without control characters or parts such as '', '.' and '..'"
            raise make_refusal(f"key {raw_key[:80]!r}", found, "unsafe-name", expected=expected)
        has_dot = self._is_tar and names.has_early_dot(key)
        if has_dot or (layout.dotted_field and self._is_tar):
            self._check_dots(printable(key), layout, has_dot=has_dot)
        return key, has_dot

    def _check_dots(self, key: str, layout: FieldLayout, *, has_dot: bool) -> None:
        dotted_field = layout.dotted_field or self.dotted_field
        if has_dot and self._dots == "first":
            found, expected = "a dot in the last part of the key", "no dot, because keys end at the first dot"
            remedy = f"Use {option_text('dots', 'last')}."
            raise make_refusal(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)
        has_dot = has_dot or self.has_dotted_key
        # `last` splits `a.seg.png` into `a.seg` and `png`
        if dotted_field and (has_dot or self._dots == "last"):
            found, remedy = f"fields with dots ({dotted_field!r})", "Rename the fields."
            if self._dots != "last":
                found = f"keys with dots in their last part, and {found}"
                remedy = "Rename the fields, or use keys without dots."
            elif not has_dot:
                remedy = f"Rename the fields, or use {option_text('dots', 'first')}."
            expected = "names that can all be split at the first dot, or all at the last"
            raise make_refusal(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)

    def _encode_fields(
        self, key: bytes, sample: Mapping[str, object], layout: FieldLayout
    ) -> tuple[list[EncodedField], tuple[str, ...], bool]:
        fields, found_kinds, has_inline, kinds = [], [], False, self.kinds
        for name, encoded_name in layout.names:
            value = sample[name]
            if type(value) is bytes:
                data, kind, is_inline = value, "", False
            else:
                try:
                    data, kind = encode_value(value, name)
                except BadValue as bad:
                    raise make_refusal(_describe_field(key, name), bad.found, expected=bad.expected) from None
                is_inline = bool(kind)
                has_inline = has_inline or is_inline
            known_kind = kinds.get(name, kind)
            if kind != known_kind:
                data, kind = self._convert_to_known_kind(key, name, data, (kind, known_kind))
            stored = data
            if kind in STORED_TYPES and not self._is_tar:
                stored = self._encode_number(key, name, data, STORED_TYPES[kind])
            fields.append(EncodedField(encoded_name, len(data), stored, data if is_inline else b""))
            found_kinds.append(kind)
        return fields, tuple(found_kinds), has_inline

    def _convert_to_known_kind(self, key: bytes, name: str, data: bytes, kinds: tuple[str, str]) -> tuple[bytes, str]:
        number, known = (STORED_TYPES.get(kind) for kind in kinds)
        if number == known:
            return data, number or ""
        if (number, known) == ("int64", "float"):
            return repr(float(int(data))).encode(), "float"
        names_by_kind = {None: "not a number", "int64": "an integer", "float": "a float"}
        remedy = "Write floats in all samples." if (number, known) == ("float", "int64") else ""
        found = f"{names_by_kind[number]}: {printable(data[:40])}"
        expected = f"{names_by_kind[known]}, as in earlier samples"
        raise make_refusal(_describe_field(key, name), found, expected=expected, remedy=remedy)

    def _encode_number(self, key: bytes, name: str, text: bytes, number: values.NumberType) -> bytes:
        try:
            return tfrecord_write.encode_number(text, number)
        except (ValueError, OverflowError):
            expected = f"a number that fits in the TFRecord type {number}"
            raise make_refusal(_describe_field(key, name), printable(text), expected=expected) from None


def _describe_field(key: bytes, field: str) -> str:
    return f"{printable(key)}, field {field!r}"


def make_refusal(
    where: str, found: str, code: SkipCode = "bad-value", *, expected: str, remedy: str = ""
) -> SampleRefused:
    """Return a `SampleRefused` with an `InvalidRequest`."""
    return SampleRefused(InvalidRequest(where, found, expected=expected, remedy=remedy), code)
