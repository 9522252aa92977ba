"""A sample of a program, checked by the rules that `create` has for those of a source, becomes its record.

What a sample settles for those after it, such as which fields are numbers, is settled by `accept`, once it is sure that
it is written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from shardtool.errors import InvalidRequest, listing, printable
from shardtool.format import tfrecord
from shardtool.format.sizes import NUMBERS
from shardtool.format.tar import BLOCK, PADDING, header
from shardtool.format.tfrecord import INT64_LIMIT
from shardtool.table.columns import BAD_FIELD
from shardtool.values import IMAGE_ENDINGS, NAME_LIMIT, Dots, ends_early, field_problem, name_problem, to_bytes
from shardtool.wording import option
from shardtool.write.packer import Field

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from PIL.Image import Image

    from shardtool.skipped import SkipCode
    from shardtool.values import Number
    from shardtool.write.packer import Parts


# A value of a sample becomes the payload of its field, as `create` writes that of a table's column.


_PILLOW = {"jpg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF"} | dict.fromkeys(("pbm", "pgm", "pnm"), "PPM")
_QUALITY = 90  # of JPEG and WebP, as `create` encodes them
_SEPARATORS = (",", ":")


class BadValue(Exception):
    """A value that no field can hold; its text says why, and what would do."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found, self.expected = found, expected


class EncodedValue(NamedTuple):
    """A value as payload.

    Attributes:
        data: The payload.
        number: What it stands for where it is a number: `int64` or `float`; empty otherwise.
        inline: Whether the plan of a table carries it: all but bytes.
    """

    data: bytes
    number: str
    inline: bool


def encode_value(value: object, field: str) -> EncodedValue:
    """Return a value as payload.

    Args:
        value: Bytes, text, a number, a truth, a time, what JSON has a form for, an array, or an image of Pillow.
        field: Its field, whose ending says what an image becomes.

    Raises:
        BadValue: It can be none.
    """
    if value is None:
        raise BadValue("no value (None)", "a value, or no such field")
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        if type(value) is not bytes and (expected := _expected(field)):
            raise BadValue(f"a value of the type {type(value).__name__}", expected)
        return encode(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return EncodedValue(bytes(value), "", inline=False)
    if isinstance(value, np.ndarray):
        return _array(value, field)
    if isinstance(value, np.generic):
        return _numpy_scalar(value)
    for kind, encode in _ENCODERS.items():
        if isinstance(value, kind):
            return encode(value)
    if hasattr(value, "save") and hasattr(value, "getexif"):  # without an import of Pillow, which may not be there
        return _image(value, field)  # type: ignore[arg-type]
    expected = "bytes, text, a number, what JSON has a form for, a NumPy array, or an image of Pillow"
    raise BadValue(f"a value of the type {type(value).__name__}", expected)


@lru_cache(4096)
def _expected(field: str) -> str:
    """Return what a field takes that no text can be, by its ending; empty: it takes text, too."""
    ending = field.rpartition(".")[2].lower()
    if ending in IMAGE_ENDINGS:
        return "the bytes of an image, or an image of Pillow"
    return "a NumPy array: numpy.asarray(value), or bytes" if ending == "npy" else ""


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


def _text(value: str) -> EncodedValue:
    if "\0" in value:
        raise BadValue("a NUL in the text", "text without")
    try:
        return EncodedValue(value.encode(), "", inline=True)
    except UnicodeEncodeError:
        raise BadValue("half of a surrogate pair in the text", "text that is Unicode") from None


def _int(value: int) -> EncodedValue:
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise BadValue("a number over 2^63", "what fits into int64")
    return EncodedValue(b"%d" % value, "int64", inline=True)


def _float(value: float) -> EncodedValue:
    if math.isnan(value):
        raise BadValue("no value (NaN)", "a value in each sample")
    return EncodedValue(repr(value).encode(), "float", inline=True)


def _numpy_scalar(value: np.generic) -> EncodedValue:
    if isinstance(value, np.floating):
        return _float(float(str(value)))  # the shortest number that reads back as the same
    found = value.item()
    if type(found) not in _ENCODERS:
        raise BadValue(f"a value of the type {value.dtype}", "a number, a truth, or text")
    return _ENCODERS[type(found)](found)


def _array(value: NDArray[np.generic], field: str) -> EncodedValue:
    ending = field.rpartition(".")[2].lower()
    if ending != "npy":
        what = "an image: PIL.Image.fromarray(array)" if ending in IMAGE_ENDINGS else "a field that ends in npy"
        raise BadValue("a NumPy array", f"{what}, or bytes")
    if value.dtype.hasobject:
        raise BadValue("an array of Python objects", "an array of numbers or text")
    stream = BytesIO()
    np.lib.format.write_array(stream, value, allow_pickle=False)
    return EncodedValue(stream.getvalue(), "", inline=False)


def _image(value: Image, field: str) -> EncodedValue:
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
    return EncodedValue(stream.getvalue(), "", inline=False)


def _holds(kind: str, image: Image) -> bool:
    """Tell whether a format holds all values of an image of wide ones; Pillow clips them to 8 or 16 bits where not."""
    if image.mode == "I" and kind in ("PNG", "PPM"):
        low, high = cast("tuple[int, int]", image.getextrema())
        return low >= 0 and high < 2**16
    return kind not in ("WEBP", "GIF")


_ENCODERS: dict[type, Callable[..., EncodedValue]] = {
    bytes: lambda value: EncodedValue(value, "", inline=False),
    str: _text,
    bool: lambda value: EncodedValue(b"1" if value else b"0", "int64", inline=True),
    int: _int,
    float: _float,
    **dict.fromkeys((dict, list, tuple), lambda value: EncodedValue(encode_json(value), "", inline=True)),
    **dict.fromkeys((datetime, date, time), lambda value: _text(value.isoformat())),
    Decimal: lambda value: EncodedValue(str(value).encode(), "float", inline=True),
}


KEY = "__key__"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_\-]+(?:/[A-Za-z0-9_\-]+)*", re.ASCII)  # nothing more is to be looked at
_BAD_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
_MOST_FIELDS = 2**16 - 1  # that a field's number has room for
_MARK_SIZE = 12  # bytes: of 10^9 keys, two share one by chance once in 10^11 runs


class SampleRefused(Exception):
    """A sample that cannot be written: what is raised, and what `out.skipped` says of it."""

    def __init__(self, error: InvalidRequest, code: SkipCode) -> None:
        super().__init__(error)
        self.error, self.code = error, code


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of samples that have the same ones.

    Attributes:
        names: The fields, in the order of the bytes of their names, and these bytes.
        dotted: A field with a dot in its name; empty: there is none.
    """

    names: tuple[tuple[str, bytes], ...]
    dotted: str


class Sample(NamedTuple):
    """A sample, encoded.

    Attributes:
        key: Its key.
        mark: The hash of its key.
        fields: What its fields hold.
        parts: Its record.
        size: Bytes of its record.
        layout: Its fields.
        numbers: What each of these stands for, where it is a number; empty otherwise.
        inline: Whether the plan of a table would carry a value of it.
        dotted: Whether its key goes on behind a dot.
    """

    key: bytes
    mark: bytes
    fields: list[Field]
    parts: Parts
    size: int
    layout: Layout
    numbers: tuple[str, ...]
    inline: bool
    dotted: bool


class SampleEncoder:
    """Encodes the samples of a run, and knows what those so far have settled.

    Args:
        shard_format: `tar` or `tfrecord`.
        dots: The dot at which keys end in a tar; None: what the names ask for.

    Attributes:
        kinds: Each field so far, and what it stands for where it is a number; empty otherwise.
        inline: Whether any value so far is one that the plan of a table carries.
        dotted_field: A field so far with a dot in its name; empty: there is none.
        dotted_key: Whether a key so far goes on behind a dot.
    """

    def __init__(self, shard_format: str, dots: Dots | None) -> None:
        self._tar, self._dots = shard_format == "tar", dots
        self.kinds: dict[str, str] = {}
        self.inline = self.dotted_key = False
        self.dotted_field = ""
        self._marks: set[bytes] = set()
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._settled: set[tuple[Layout, tuple[str, ...]]] = set()

    @property
    def numbers(self) -> dict[str, Number]:
        """The fields that are numbers."""
        return {name: cast("Number", kind) for name, kind in self.kinds.items() if kind}

    @property
    def stored_numbers(self) -> dict[bytes, Number]:
        """The fields that the format stores as numbers."""
        stored = self.numbers if NUMBERS["tar" if self._tar else "tfrecord"] else {}
        return {to_bytes(name): kind for name, kind in stored.items()}

    def encode(self, sample: Mapping[str, object]) -> Sample:
        """Return a sample as its record.

        Raises:
            Refused: It cannot be written.
        """
        if type(sample) is not dict and not isinstance(sample, Mapping):
            found = f"a value of the type {type(sample).__name__}"
            raise _refused("a sample", found, "bad-value", expected="a dict of its key and its fields")
        names = tuple(sample)
        layout = self._layouts.get(names)
        if layout is None:
            layout = self._layouts[names] = self._lay_out(names)
        given = sample[KEY]
        key, dotted = self._key(given, layout)
        mark = blake2b(key, digest_size=_MARK_SIZE).digest()
        if mark in self._marks:
            found, remedy = "a key that an earlier sample of this dataset has", "Give each sample a key of its own."
            raise SampleRefused(InvalidRequest(f"key {printable(key)!r}", found, remedy=remedy), "duplicate")
        fields, numbers, inline = self._fields(key, sample, layout)
        parts, size = self._tar_record(key, fields) if self._tar else self._record(key, fields, layout, numbers)
        return Sample(key, mark, fields, parts, size, layout, numbers, inline, dotted)

    def accept(self, sample: Sample) -> None:
        """Settle what a sample does that will be written."""
        self._marks.add(sample.mark)
        self.dotted_key = self.dotted_key or sample.dotted
        settled = sample.layout, sample.numbers
        if settled not in self._settled:
            self._settled.add(settled)
            self.inline = self.inline or sample.inline
            self.dotted_field = self.dotted_field or sample.layout.dotted
            for (name, _), number in zip(sample.layout.names, sample.numbers, strict=True):
                self.kinds.setdefault(name, number)
        elif sample.inline:
            self.inline = True

    def take_keys(self, keys: list[bytes]) -> None:
        """Count keys as those of samples that are written."""
        self._marks.update(blake2b(key, digest_size=_MARK_SIZE).digest() for key in keys)
        self.dotted_key = self.dotted_key or any(map(ends_early, keys))

    def restore(self, kinds: Mapping[str, str], *, inline: bool) -> None:
        """Settle what samples that were written before did."""
        self.kinds, self.inline = dict(kinds), inline
        self.dotted_field = next((name for name in kinds if "." in name), "")

    def _lay_out(self, names: tuple[str, ...]) -> Layout:
        """Return the layout of samples with these names, if they can be those of fields."""
        where = "a sample"
        if KEY not in names:
            raise _refused(where, "no key", "", expected=f"its key as {KEY!r}")
        for name in names:
            if name == KEY:
                continue
            problem = "" if not isinstance(name, str) else field_problem(name.encode("utf-8", "surrogatepass"))
            if not isinstance(name, str) or BAD_FIELD.search(name) or problem:
                found = f"no name for a field{f': {problem}' if problem else ''}"
                raise _refused(
                    f"field {name!r}", found, "unsafe-name", expected="an ending, such as jpg, cls or seg.png"
                )
        fields = sorted([(name, name.encode()) for name in names if name != KEY], key=lambda one: one[1])
        if not fields:
            raise _refused(where, "no field", "no-field", expected="one at least, beside its key")
        if self._tar and len({name.lower() for name, _ in fields}) < len(fields):
            found = f"fields that differ in case only: {listing([name for name, _ in fields])}"
            raise _refused(where, found, "field-clash", expected="one field of a name in a sample, in any case")
        if len({*self.kinds, *names}) > _MOST_FIELDS:
            raise _refused(where, f"more than {_MOST_FIELDS:,} different fields", "bad-value", expected="a few")
        return Layout(tuple(fields), next((name for name, _ in fields if "." in name), ""))

    def _key(self, given: object, layout: Layout) -> tuple[bytes, bool]:
        """Return a key's bytes, and whether it goes on behind a dot."""
        if isinstance(given, int) and not isinstance(given, bool):
            given = str(given)
        if not isinstance(given, str):
            found = f"a key of the type {type(given).__name__}"
            raise _refused("a sample", found, "unsafe-name", expected="text, or a whole number")
        if _PLAIN_KEY.fullmatch(given) and len(given) <= NAME_LIMIT:
            return given.encode(), False
        key = given.encode("utf-8", "surrogatepass")
        if (problem := name_problem(key)) or _BAD_PART.search(given):
            found = f"no sound name{f': {problem}' if problem else ''}"
            expected = (
                f"text of 1 to {NAME_LIMIT:,} bytes, without control characters and parts such as '', '.' or '..'"
            )
            raise _refused(f"key {given[:80]!r}", found, "unsafe-name", expected=expected)
        dotted = self._tar and ends_early(key)
        if dotted or (layout.dotted and self._tar):
            self._check_dots(printable(key), layout, dotted=dotted)
        return key, dotted

    def _check_dots(self, key: str, layout: Layout, *, dotted: bool) -> None:
        """Refuse names in a tar that neither the first dot divides, in all samples so far, nor the last."""
        fields = layout.dotted or self.dotted_field
        if dotted and self._dots == "first":
            found, expected = "a dot in the last part of the key", "keys that end at the first dot"
            raise _refused(
                f"key {key!r}", found, "unsafe-name", expected=expected, remedy=f"Choose {option('dots', 'last')}."
            )
        if fields and (dotted or self.dotted_key or self._dots == "last"):
            found = f"fields with dots ({fields!r})"
            if self._dots != "last":
                found = f"keys with dots in their last part, and {found}"
            expected = "names that the first dot divides, or the last"
            remedy = "Give the fields other names, or make keys without dots."
            raise _refused(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)

    def _fields(
        self, key: bytes, sample: Mapping[str, object], layout: Layout
    ) -> tuple[list[Field], tuple[str, ...], bool]:
        """Return the fields of a sample, which of them are numbers, and whether any goes into the plan of a table."""
        fields, numbers, any_inline, kinds = [], [], False, self.kinds
        for name, raw in layout.names:
            value = sample[name]
            if type(value) is bytes:
                data, number, inline = value, "", False
            else:
                try:
                    data, number, inline = encode_value(value, name)
                except BadValue as bad:
                    raise _refused(_place(key, name), bad.found, "bad-value", expected=bad.expected) from None
                any_inline = any_inline or inline
            known = kinds.get(name, number)
            if number != known:
                data = self._as_before(key, name, data, (number, known))
                number = known
            stored = data
            if number and not self._tar:
                stored = self._stored_number(key, name, data, cast("Number", number))
            fields.append(Field(raw, len(data), stored, data if inline else b""))
            numbers.append(number)
        return fields, tuple(numbers), any_inline

    def _as_before(self, key: bytes, name: str, data: bytes, numbers: tuple[str, str]) -> bytes:
        """Return a value as one of the kind that its field had so far, where that loses nothing."""
        number, known = numbers
        if (number, known) == ("int64", "float"):
            return repr(float(int(data))).encode()
        shown = {"": "no number", "int64": "a whole number", "float": "a float"}
        remedy = "Write floats from the first sample on." if (number, known) == ("float", "int64") else ""
        expected = f"{shown[known]}, as in the samples before"
        raise _refused(
            _place(key, name), f"{shown[number]}: {printable(data[:40])}", "bad-value", expected=expected, remedy=remedy
        )

    def _stored_number(self, key: bytes, name: str, text: bytes, number: Number) -> bytes:
        try:
            return tfrecord.encode_number(text, number)
        except (ValueError, OverflowError):
            expected = f"a number that TFRecord's {number} can hold"
            raise _refused(_place(key, name), printable(text), "bad-value", expected=expected) from None

    def _tar_record(self, key: bytes, fields: list[Field]) -> tuple[Parts, int]:
        parts: Parts = []
        size = 0
        for name, length, data, _ in fields:
            head, padding = header(key + b"." + name, length), PADDING[-length & (BLOCK - 1)]
            parts += (head, data, padding)
            size += len(head) + length + len(padding)
        return parts, size

    def _record(self, key: bytes, fields: list[Field], layout: Layout, numbers: tuple[str, ...]) -> tuple[Parts, int]:
        kinds = {raw: cast("Number", number) for (_, raw), number in zip(layout.names, numbers, strict=True) if number}
        parts = tfrecord.encode_sample(key, [(name, stored) for name, _, stored, _ in fields], kinds)
        return parts, sum(map(len, parts))


def _place(key: bytes, field: str) -> str:
    return f"{printable(key)}, field {field!r}"


def _refused(where: str, found: str, code: str, *, expected: str, remedy: str = "") -> SampleRefused:
    error = InvalidRequest(where, found, expected=expected, remedy=remedy)
    return SampleRefused(error, cast("SkipCode", code or "no-field"))
