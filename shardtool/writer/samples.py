"""A sample of a program, checked by the rules that `create` has for those of a source, becomes a record of a shard.

What a sample settles for those after it, such as which fields are numbers, is settled by `accept`, once it is sure that
it is written.
"""

from __future__ import annotations

import json
import math
import os
import re
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast

import numpy as np
import pyarrow as pa

from shardtool import values
from shardtool.dataset.shard_index import index_of
from shardtool.entries.sizes import NUMBERS, TRAILER_SIZE
from shardtool.errors import InvalidRequest, OutputFailed, listing, memory_for, printable
from shardtool.fingerprint import crc32c
from shardtool.format import tfrecord
from shardtool.format.tar import TRAILER
from shardtool.format.tfrecord import INT64_LIMIT
from shardtool.plan.plan import fingerprint
from shardtool.table.columns import BAD_FIELD
from shardtool.values import STORED_AS
from shardtool.wording import option
from shardtool.write.packer import Field, ShardRecords, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image
    from typing_extensions import Self

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.skipped import SkipCode
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile, StagedFile
    from shardtool.write.packer import Parts

    Row = Mapping[str, object]
    EncodedValue = tuple[bytes, values.ValueType | Literal[""]]
    FinishedShard = tuple[DurableFile, ShardIndex, values.ShardContent, bytes, str]


# A value of a sample becomes the payload of its field, as `create` writes that of a table's column.


_PILLOW = {"jpg": "JPEG", "jpe": "JPEG", "jfif": "JPEG", "tif": "TIFF"} | dict.fromkeys(("pbm", "pgm", "pnm"), "PPM")
_QUALITY = 90  # of JPEG and WebP, as `create` encodes them
_SEPARATORS = (",", ":")
_DIMENSIONS, _CHANNELS = 3, (1, 3, 4)  # of arrays of pixels, and how many values a pixel has
_PIXELS = (np.uint8, np.uint16, np.bool_)


class BadValue(Exception):
    """A value that no field can hold; its text says why, and what would do."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.found, self.expected = found, expected


def encode_value(value: object, field: str) -> EncodedValue:
    """Return a value as payload, and what it was, of which that is the text; empty of bytes, which no table carries.

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
        return bytes(value), ""
    if isinstance(value, np.generic):
        return _numpy_scalar(value)
    for kind, encode in _ENCODERS.items():
        if isinstance(value, kind):
            return encode(value)
    if hasattr(value, "save") and hasattr(value, "getexif"):  # without an import of Pillow, which may not be there
        return _image(value, field)  # type: ignore[arg-type]
    if hasattr(value, "__array__"):
        return _array(_of_tensor(value, field), field)
    expected = "bytes, text, a number, what JSON has a form for, an array or tensor, or an image of Pillow"
    raise BadValue(f"a value of the type {type(value).__name__}", expected)


def _ending(field: str) -> str:
    return field.rpartition(".")[2].lower()


@lru_cache(4096)
def _expected(field: str) -> str:
    """Return what a field takes that no text can be, by its ending; empty: it takes text, too."""
    ending = _ending(field)
    if ending in values.IMAGE_ENDINGS:
        return "the bytes of an image, an array of its pixels, or an image of Pillow"
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
        return value.encode(), "text"
    except UnicodeEncodeError:
        raise BadValue("half of a surrogate pair in the text", "text that is Unicode") from None


def _int(value: int) -> EncodedValue:
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise BadValue("a number over 2^63", "what fits into int64")
    return b"%d" % value, "int64"


def _float(value: float) -> EncodedValue:
    if math.isnan(value):
        raise BadValue("no value (NaN)", "a value in each sample")
    return repr(value).encode(), "float"


def _numpy_scalar(value: np.generic) -> EncodedValue:
    if isinstance(value, np.floating):
        return _float(float(str(value)))  # the shortest number that reads back as the same
    found = value.item()
    if type(found) not in _ENCODERS:
        raise BadValue(f"a value of the type {value.dtype}", "a number, a truth, or text")
    return _ENCODERS[type(found)](found)


def _of_tensor(value: Any, field: str) -> NDArray[np.generic]:
    """Return the array that a tensor, or what else knows how to become one, holds; pixels with their channels last."""
    try:
        is_torch = hasattr(value, "detach")  # without an import of PyTorch
        found = np.asarray(value.detach().cpu() if is_torch else value)
    except (TypeError, ValueError, RuntimeError) as error:  # of values that NumPy has not, such as bfloat16
        raise BadValue(f"a {type(value).__name__} that becomes no array: {error}", "numbers that NumPy has") from None
    by_channel = found.ndim == _DIMENSIONS and found.shape[0] in _CHANNELS
    return np.moveaxis(found, 0, -1) if is_torch and by_channel and _ending(field) in values.IMAGE_ENDINGS else found


def _array(value: NDArray[np.generic], field: str) -> EncodedValue:
    ending = _ending(field)
    if ending in values.IMAGE_ENDINGS:
        return _pixels(value, field)
    if ending != "npy":
        if not value.ndim:
            return _numpy_scalar(cast("np.generic", value[()]))
        raise BadValue("an array", "a field that ends in npy, or bytes")
    if value.dtype.hasobject:
        raise BadValue("an array of Python objects", "an array of numbers or text")
    stream = BytesIO()
    np.lib.format.write_array(stream, value, allow_pickle=False)
    return stream.getvalue(), ""


def _pixels(value: NDArray[np.generic], field: str) -> EncodedValue:
    """Return an array of pixels as an image."""
    from PIL import Image

    plain = value[..., 0] if value.ndim == _DIMENSIONS and value.shape[2] == 1 else value
    try:
        if plain.size and plain.dtype in _PIXELS and (plain.ndim == _DIMENSIONS - 1 or plain.shape[-1] in _CHANNELS):
            return _image(Image.fromarray(plain), field)
    except TypeError:
        pass
    expected = "uint8 [height, width], or [height, width, 3] (of a tensor, [3, height, width]); or bytes"
    raise BadValue(f"an array {[*value.shape]} of {value.dtype}", expected)


def _image(value: Image, field: str) -> EncodedValue:
    ending = _ending(field)
    if ending not in values.IMAGE_ENDINGS:
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
    return stream.getvalue(), ""


def _holds(kind: str, image: Image) -> bool:
    """Tell whether a format holds all values of an image of wide ones; Pillow clips them to 8 or 16 bits where not."""
    if image.mode == "I" and kind in ("PNG", "PPM"):
        low, high = cast("tuple[int, int]", image.getextrema())
        return low >= 0 and high < 2**16
    return kind not in ("WEBP", "GIF")


_ENCODERS: dict[type, Callable[..., EncodedValue]] = {
    bytes: lambda value: (value, ""),
    str: _text,
    bool: lambda value: (b"1" if value else b"0", "bool"),
    int: _int,
    float: _float,
    **dict.fromkeys((dict, list, tuple), lambda value: (encode_json(value), "json")),
    **dict.fromkeys((datetime, date, time), lambda value: _text(value.isoformat())),
    Decimal: lambda value: (str(value).encode(), "float"),
}


KEY = "__key__"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_\-]+(?:/[A-Za-z0-9_\-]+)*", re.ASCII)  # nothing more is to be looked at
_BAD_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
_MARK_SIZE = 12  # bytes: of 10^9 keys, two share one by chance once in 10^11 runs


class SampleRefused(Exception):
    """A sample that cannot be written: what is raised, and what `out.skipped` says of it."""

    def __init__(self, error: InvalidRequest, code: SkipCode) -> None:
        super().__init__(error)
        self.error, self.code = error, code


class Layout(NamedTuple):
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
        kinds: What each of these is, as `encode_value` says.
        inline: Whether the plan of a table would carry a value of it.
        dotted: Whether its key goes on behind a dot.
    """

    key: bytes
    mark: bytes
    fields: list[Field]
    parts: Parts
    size: int
    layout: Layout
    kinds: tuple[str, ...]
    inline: bool
    dotted: bool


class SampleEncoder:
    """Encodes the samples of a run, and knows what those so far have settled.

    Args:
        shard_format: `tar` or `tfrecord`.
        dots: The dot at which keys end in a tar; None: what the names ask for.

    Attributes:
        kinds: Each field so far, and what its values are; empty: bytes, or of several types.
        inline: Whether any value so far is one that the plan of a table carries.
        dotted_field: A field so far with a dot in its name; empty: there is none.
        dotted_key: Whether a key so far goes on behind a dot.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None) -> None:
        self._format, self._tar, self._dots = shard_format, shard_format == "tar", dots
        self.kinds: dict[str, str] = {}
        self.inline = self.dotted_key = False
        self.dotted_field = ""
        self._marks: set[bytes] = set()
        self._layouts: dict[tuple[str, ...], Layout] = {}
        self._settled: set[tuple[Layout, tuple[str, ...]]] = set()

    @property
    def numbers(self) -> dict[str, values.Number]:
        """The fields that are numbers."""
        return values.numbers_among(self.kinds)

    @property
    def types(self) -> dict[str, values.ValueType]:
        """What the values of fields are, of those that are of one type."""
        return {name: cast("values.ValueType", kind) for name, kind in self.kinds.items() if kind}

    @property
    def stored_numbers(self) -> dict[bytes, values.Number]:
        """The fields that the format stores as numbers."""
        stored = self.numbers if NUMBERS[self._format] else {}
        return {values.to_bytes(name): kind for name, kind in stored.items()}

    def encode(self, sample: Mapping[str, object]) -> Sample:
        """Return a sample as its record.

        Raises:
            Refused: It cannot be written.
        """
        if type(sample) is not dict and not isinstance(sample, Mapping):
            found = f"a value of the type {type(sample).__name__}"
            raise _refused("a sample", found, expected="a dict of its key and its fields")
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
        fields, kinds, inline = self._fields(key, sample, layout)
        numbers = {raw: STORED_AS[one] for (_, raw), one in zip(layout.names, kinds, strict=True) if one in STORED_AS}
        parts = encode_record(self._format, key, fields, numbers)
        return Sample(key, mark, fields, parts, sum(map(len, parts)), layout, kinds, inline, dotted)

    def accept(self, sample: Sample) -> None:
        """Settle what a sample does that will be written."""
        self._marks.add(sample.mark)
        self.dotted_key = self.dotted_key or sample.dotted
        settled = sample.layout, sample.kinds
        if settled not in self._settled:
            self._settled.add(settled)
            self.dotted_field = self.dotted_field or sample.layout.dotted
            for (name, _), kind in zip(sample.layout.names, sample.kinds, strict=True):
                self.kinds[name] = kind
        self.inline = self.inline or sample.inline

    def take_keys(self, keys: list[bytes]) -> None:
        """Count keys as those of samples that are written."""
        self._marks.update(blake2b(key, digest_size=_MARK_SIZE).digest() for key in keys)
        self.dotted_key = self.dotted_key or any(map(values.ends_early, keys))

    def restore(self, kinds: Mapping[str, str], *, inline: bool) -> None:
        """Settle what samples that were written before did."""
        self.kinds, self.inline = dict(kinds), inline
        self.dotted_field = next((name for name in kinds if "." in name), "")

    def _lay_out(self, names: tuple[str, ...]) -> Layout:
        """Return the layout of samples with these names, if they can be those of fields."""
        if KEY not in names:
            raise _refused("a sample", "no key", "no-field", expected=f"its key as {KEY!r}")
        for name in names:
            if name == KEY:
                continue
            problem = "" if not isinstance(name, str) else values.field_problem(name.encode("utf-8", "surrogatepass"))
            if not isinstance(name, str) or BAD_FIELD.search(name) or problem:
                found = f"no name for a field{f': {problem}' if problem else ''}"
                expected = "an ending, such as jpg, cls or seg.png"
                raise _refused(f"field {name!r}", found, "unsafe-name", expected=expected)
        fields = sorted([(name, name.encode()) for name in names if name != KEY], key=lambda one: one[1])
        if not fields:
            raise _refused("a sample", "no field", "no-field", expected="one at least, beside its key")
        if self._tar and len({name.lower() for name, _ in fields}) < len(fields):
            found = f"fields that differ in case only: {listing([name for name, _ in fields])}"
            raise _refused("a sample", found, "field-clash", expected="one field of a name in a sample, in any case")
        if len({*self.kinds, *names}) > values.FIELD_LIMIT:
            found = f"more than {values.FIELD_LIMIT:,} different fields"
            raise _refused("a sample", found, expected="a few")
        return Layout(tuple(fields), next((name for name, _ in fields if "." in name), ""))

    def _key(self, given: object, layout: Layout) -> tuple[bytes, bool]:
        """Return a key's bytes, and whether it goes on behind a dot."""
        if isinstance(given, int) and not isinstance(given, bool):
            given = str(given)
        if not isinstance(given, str):
            found = f"a key of the type {type(given).__name__}"
            raise _refused("a sample", found, "unsafe-name", expected="text, or a whole number")
        if _PLAIN_KEY.fullmatch(given) and len(given) <= values.NAME_LIMIT:
            return given.encode(), False
        key = given.encode("utf-8", "surrogatepass")
        if (problem := values.name_problem(key)) or _BAD_PART.search(given):
            found = f"no sound name{f': {problem}' if problem else ''}"
            size = f"1 to {values.NAME_LIMIT:,} bytes"
            expected = f"text of {size}, without control characters and parts such as '', '.' or '..'"
            raise _refused(f"key {given[:80]!r}", found, "unsafe-name", expected=expected)
        dotted = self._tar and values.ends_early(key)
        if dotted or (layout.dotted and self._tar):
            self._check_dots(printable(key), layout, dotted=dotted)
        return key, dotted

    def _check_dots(self, key: str, layout: Layout, *, dotted: bool) -> None:
        """Refuse names in a tar that neither the first dot divides, in all samples so far, nor the last."""
        fields = layout.dotted or self.dotted_field
        if dotted and self._dots == "first":
            found, expected = "a dot in the last part of the key", "keys that end at the first dot"
            remedy = f"Choose {option('dots', 'last')}."
            raise _refused(f"key {key!r}", found, "unsafe-name", expected=expected, remedy=remedy)
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
        """Return the fields of a sample, what values of them are, and whether any goes into the plan of a table."""
        fields, found, any_inline, kinds = [], [], False, self.kinds
        for name, raw in layout.names:
            value = sample[name]
            if type(value) is bytes:
                data, kind, inline = value, "", False
            else:
                try:
                    data, kind = encode_value(value, name)
                except BadValue as bad:
                    raise _refused(_place(key, name), bad.found, expected=bad.expected) from None
                inline = bool(kind)
                any_inline = any_inline or inline
            known = kinds.get(name, kind)
            if kind != known:
                data, kind = self._as_before(key, name, data, (kind, known))
            stored = data
            if kind in STORED_AS and not self._tar:
                stored = self._stored_number(key, name, data, STORED_AS[kind])
            fields.append(Field(raw, len(data), stored, data if inline else b""))
            found.append(kind)
        return fields, tuple(found), any_inline

    def _as_before(self, key: bytes, name: str, data: bytes, kinds: tuple[str, str]) -> tuple[bytes, str]:
        """Return a value as one of the kind that its field had so far, where that loses nothing; and what both are."""
        number, known = (STORED_AS.get(kind) for kind in kinds)
        if number == known:
            return data, number or ""
        if (number, known) == ("int64", "float"):
            return repr(float(int(data))).encode(), "float"
        shown = {None: "no number", "int64": "a whole number", "float": "a float"}
        remedy = "Write floats from the first sample on." if (number, known) == ("float", "int64") else ""
        found, expected = f"{shown[number]}: {printable(data[:40])}", f"{shown[known]}, as in the samples before"
        raise _refused(_place(key, name), found, expected=expected, remedy=remedy)

    def _stored_number(self, key: bytes, name: str, text: bytes, number: values.Number) -> bytes:
        try:
            return tfrecord.encode_number(text, number)
        except (ValueError, OverflowError):
            expected = f"a number that TFRecord's {number} can hold"
            raise _refused(_place(key, name), printable(text), expected=expected) from None


def _place(key: bytes, field: str) -> str:
    return f"{printable(key)}, field {field!r}"


def _refused(where: str, found: str, code: SkipCode = "bad-value", *, expected: str, remedy: str = "") -> SampleRefused:
    return SampleRefused(InvalidRequest(where, found, expected=expected, remedy=remedy), code)


# The shard that a writer is filling: a staged file, and what went into it.


_SENT_AT_ONCE = 2**25  # bytes: the disk is sent these while more are encoded


class OpenShard:
    """A shard being written.

    Args:
        folder: Where it goes.
        name: What it will be called.
        shard_format: `tar` or `tfrecord`.

    Attributes:
        file: The staged file, its size and checksum.
        rows: The metadata of each sample.
    """

    def __init__(self, folder: OutputFolder, name: str, shard_format: str) -> None:
        self.name, self._format = name, shard_format
        self.file = _SummedFile(folder.stage(name))
        self._records = ShardRecords(self.file.write)
        self.rows: list[Mapping[str, object]] = []

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        """Bytes of the records so far."""
        return self._records.size

    def add(self, sample: Sample, row: Mapping[str, object]) -> None:
        """Append a sample.

        Raises:
            OutputFailed: The file system refuses.
        """
        self._records.add(sample.key, sample.parts, sample.size, sample.fields)
        self.rows.append(row)

    def finish(self, encoder: SampleEncoder, columns: Columns) -> FinishedShard:
        """Make the file whole and durable, and where a folder hides files not visible yet.

        Args:
            encoder: Knows the fields of the dataset so far.
            columns: The metadata of the dataset so far.

        Returns:
            The file; its index; what it holds, its fields numbered in the order of the bytes of their names; uint32 for
            each field, the CRC-32C of its bytes in the shard; the fingerprint that a plan of `create` has for it.

        Raises:
            InvalidRequest: Its metadata cannot stand together.
            OutputFailed: The file system refuses.
        """
        table = columns.table(self.rows)
        self._records.flush()
        if TRAILER_SIZE[self._format]:
            self.file.write(TRAILER)
        staged = self.file.finish()
        content = _in_order(self._records.content(encoder.stored_numbers, texts=encoder.inline))
        plan = fingerprint(self._format, values.ShardSamples(content, b"", b"", b"", b"", b"", values.ShardSpans()))
        crcs = self._records.crcs.tobytes()
        return staged, index_of(self._format, content, table, crcs), content, crcs, plan

    def abandon(self) -> None:
        """Remove what was written."""
        self.file.abandon()


class _SummedFile:
    """A staged file, its size and checksum so far. It leads to no shard: what one holds is freed with it.

    Strategy: the disk is sent what was written, some at a time, by a thread beside the one that writes, so that little
    is left to be waited for at the end of the file. What goes wrong there is raised there: the disk says it once.
    """

    def __init__(self, staged: StagedFile) -> None:
        self._staged = staged
        self.size = self.crc = 0
        self._sent = 0
        self._sending: Thread | None = None
        self._failed: list[OutputFailed] = []

    def write(self, data: bytes | memoryview) -> None:
        self._staged.write(data)
        self.crc = crc32c(data, self.crc)
        self.size += len(data)
        if self.size - self._sent > _SENT_AT_ONCE and (self._sending is None or not self._sending.is_alive()):
            self._sent = self.size
            self._sending = Thread(target=_send, args=(self._staged, self._failed), daemon=True)
            self._sending.start()

    def finish(self) -> DurableFile:
        self._wait()
        if self._failed:
            raise self._failed[0]
        return self._staged.finish()

    def abandon(self) -> None:
        self._wait()
        self._staged.abandon()

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.join()


def _send(staged: StagedFile, failed: list[OutputFailed]) -> None:
    try:
        staged.sync()
    except OutputFailed as error:
        failed.append(error)


def _in_order(content: values.ShardContent) -> values.ShardContent:
    """Return the same content, its fields numbered in the order of the bytes of their names."""
    fields = tuple(sorted(content.fields))
    place = {name: at for at, name in enumerate(fields)}
    codes = np.array([place[name] for name in content.fields], np.uint16)
    numbers = {place[content.fields[code]]: kind for code, kind in content.numbers.items()}
    again = codes[np.frombuffer(content.codes, np.uint16)].tobytes()
    return replace(content, fields=fields, codes=again, numbers=numbers)


# Metadata of samples as columns, whose types grow with what is written: as those of a table of all of them would.


_FAMILIES: dict[type, str] = {
    bool: "truths", int: "numbers", float: "numbers", str: "text", list: "lists", tuple: "lists", dict: "objects",
    datetime: "timestamps", date: "dates", time: "times", timedelta: "durations", Decimal: "decimals",
}  # fmt: skip
_ARROW = (
    ("truths", pa.types.is_boolean), ("numbers", pa.types.is_integer), ("numbers", pa.types.is_floating),
    ("text", pa.types.is_string), ("text", pa.types.is_large_string), ("lists", pa.types.is_list),
    ("objects", pa.types.is_struct), ("timestamps", pa.types.is_timestamp), ("dates", pa.types.is_date),
    ("times", pa.types.is_time), ("durations", pa.types.is_duration), ("decimals", pa.types.is_decimal),
)  # fmt: skip
_TYPED = (list, tuple, dict, datetime)  # a value of them may not go with another of its family
_EXACT = 2**53  # whole numbers up to which a float can hold each
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: UTF-8 holds only both


class Columns:
    """The columns of metadata of a run.

    Attributes:
        schema: Each column so far and its type; of nulls alone, `null`.
    """

    def __init__(self) -> None:
        self.schema = pa.schema([])
        self._families: dict[str, str] = {}
        self._types: dict[str, pa.DataType] = {}
        self._forms: dict[str, str] = {}  # of numbers: floats, or whole numbers that no float can hold
        self._found: dict[str, pa.DataType] = {}  # of the row that was checked last

    def check(self, row: Row, where: str) -> dict[str, object]:
        """Return the values of a sample, if they go with those before.

        Raises:
            SampleRefused: They do not.
        """
        if not isinstance(row, Mapping):
            raise _refused(where, f"metadata of the type {type(row).__name__}", expected="a dict of columns")
        found, self._found = dict[str, object](), {}
        for name, value in row.items():
            plain = value.item() if isinstance(value, np.generic) else value
            if not isinstance(name, str) or not name.strip() or name.startswith("__"):
                expected = "a name that does not start with two underscores, which are the sidecar's own"
                raise _refused(where, f"metadata called {name!r}", expected=expected)
            if _HALF.search(name) or (type(plain) is str and _HALF.search(plain)):
                problem = f"metadata {name!r}: half of a surrogate pair"
                raise _refused(where, problem, expected="text that UTF-8 can hold")
            found[name] = plain
            if plain is None:
                continue
            family = _FAMILIES.get(type(plain), "")
            known = self._families.get(name, family)
            if not family or family != known or (type(plain) is int and not -INT64_LIMIT <= plain < INT64_LIMIT):
                shown = f"a value of the type {type(value).__name__}" if family != "numbers" else f"the number {plain}"
                before = f"{known}, as in the samples before" if known and family != known else ""
                expected = before or "what a column can hold"
                raise _refused(where, f"metadata {name!r}: {shown}", expected=expected)
            if isinstance(plain, _TYPED):
                self._found[name] = self._joined(name, plain, where)
            elif (form := _form(plain)) and self._forms.get(name, form) != form:
                problem = f"metadata {name!r}: {plain}, in a column of {self._forms[name]}"
                raise _refused(where, problem, expected="floats, or whole numbers over 2^53, but not both")
        return found

    def _joined(self, name: str, value: object, where: str) -> pa.DataType:
        """Return the type of a column that has a value, too."""
        try:
            found = pa.array([value]).type  # made, since text deep in it may be none that UTF-8 holds
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise _refused(where, f"metadata {name!r}: {error}", expected="what a column can hold") from None
        known = self._types.get(name, found)
        if known == found or (isinstance(value, datetime) and bool(known.tz) == bool(found.tz)):
            return known  # of several time zones, a column has the first
        try:
            return _unified(pa.schema([(name, known)]), pa.schema([(name, found)]))[0].type
        except pa.ArrowTypeError:
            expected = f"{known}, as in the samples before"
            raise _refused(where, f"metadata {name!r}: {found}", expected=expected) from None

    def accept(self, row: Row) -> None:
        """Settle what the columns of a sample hold that will be written."""
        for name, value in row.items():
            if name not in self._families and value is not None:
                self._families[name] = _FAMILIES[type(value)]
            if form := _form(value):
                self._forms[name] = form
        self._types.update(self._found)

    def state(self) -> dict[str, object]:
        """Return what a journal keeps of the columns: their types, which Parquet does not keep all, and their forms."""
        return {"schema": b64encode(self.schema.serialize()).decode(), "forms": dict(self._forms)}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Take what an earlier writer knew of the columns: what goes with them is settled. Tell whether it is read."""
        try:
            self.schema = pa.ipc.read_schema(pa.py_buffer(b64decode(state["schema"], validate=True)))
            self._forms = {str(name): str(form) for name, form in state["forms"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, OSError):
            return False
        self._types = dict(zip(self.schema.names, self.schema.types, strict=True))
        for name, kind in self._types.items():
            self._families |= [(name, family) for family, fits in _ARROW if fits(kind)]
        return True

    def table(self, rows: Sequence[Row]) -> pa.Table | None:
        """Return the rows of a shard, a column for each name so far; None where there are none.

        Raises:
            InvalidRequest: Values of a column cannot stand together.
        """
        known = dict.fromkeys(chain(self.schema.names, *rows))
        if not known:
            return None
        table = pa.table({name: self._array(name, [row.get(name) for row in rows]) for name in known})
        self.schema = _unified(self.schema, table.schema)
        return table.select(self.schema.names).cast(self.schema)

    def _array(self, name: str, rows: list[object]) -> pa.Array:
        known = self._types.get(name)
        try:
            return pa.array(rows, known if known is not None and pa.types.is_timestamp(known) else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidRequest(f"metadata {name!r}", f"values that no column can hold: {error}") from None


def _form(value: object) -> str:
    """Return what a column of numbers that has a value cannot have besides; empty: it can have all."""
    if type(value) is float:
        return "floats"
    return "whole numbers over 2^53" if type(value) is int and not -_EXACT <= value <= _EXACT else ""


def _unified(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    return pa.unify_schemas([first, second], promote_options="permissive")


# What a writer is: samples come one by one, and fill a shard after the other.


_OPEN, _BUSY, _CLOSED = "open", "busy", "closed"
_NO_METADATA: dict[str, object] = {}


class SampleWriter(AbstractContextManager["SampleWriter"]):
    """Takes samples one by one, in one thread of the process that made it, and fills shards with them.

    To be used in a `with` block: one that is left with an exception is abandoned, and closed otherwise.

    Args:
        shard_format: `tar` or `tfrecord`.
        dots: The dot at which keys end in a tar; None: what the names ask for.
        room: Bytes of a shard's records at most.
        most: Samples in a shard at most.
    """

    def __init__(self, shard_format: str, dots: values.Dots | None, room: int, most: int) -> None:
        self._encoder, self._columns = SampleEncoder(shard_format, dots), Columns()
        self._room, self._most = room, most
        self._shard: OpenShard | None = None
        self._last_key: str | None = None
        self._pid, self._state = os.getpid(), _OPEN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and os.getpid() == self._pid:
            self.close()
        else:
            self.abandon()

    def write(self, sample: Mapping[str, object], metadata: Mapping[str, object] | None = None) -> None:
        """Write a sample.

        Args:
            sample: Its key as `__key__`, and its fields. A value is bytes, or becomes what `create` makes of a table's:
                numbers and text are text (numbers in TFRecord), dicts and lists JSON, arrays npy, and images of Pillow
                what the field's ending says.
            metadata: Further columns of its row in the sidecar.

        Raises:
            InvalidRequest: It cannot be written, and is not to be skipped: the writer goes on without it.
            OutputFailed: The file system refuses; the writer is closed.
            OutOfMemory: There is no memory for it; the writer is closed.
        """
        if self._state != _OPEN or os.getpid() != self._pid:
            self._refuse_use()
        try:
            encoded = self._encoder.encode(sample)
            row = self._columns.check(metadata, printable(encoded.key)) if metadata else _NO_METADATA
        except SampleRefused as refused:
            self._refuse(sample, refused)
            return
        except Exception:
            with memory_for("a sample"):
                raise
        self._state = _BUSY  # until then, nothing of it is written
        try:
            if self._takes(encoded):
                self._add(encoded, row)
        except SampleRefused as refused:
            self._state = _OPEN
            raise refused.error from None
        except Exception:
            self.abandon()
            with memory_for("a sample"):
                raise
        self._state = _OPEN

    def close(self) -> None:
        """Publish what is written. A writer that is closed already stays so.

        Raises:
            InvalidRequest: It cannot be published as it is.
            SampleFailed: All samples were left out.
            OutputFailed: The file system refuses.
        """
        if self._state == _CLOSED:
            return
        if self._state != _OPEN or os.getpid() != self._pid:
            self._refuse_use()
        try:
            self._finish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the writer without what is not published yet."""
        if self._state != _CLOSED and os.getpid() == self._pid:
            self._state = _CLOSED
            try:
                if self._shard is not None:
                    self._shard.abandon()
            finally:
                self._release()

    def _add(self, sample: Sample, row: Mapping[str, object]) -> None:
        """Write a sample that is sound, into a new shard where the one before has no room for it."""
        shard = self._shard
        if shard is not None and (shard.size + sample.size > self._room or len(shard) >= self._most):
            self._publish(shard)
            shard = None
        if shard is None:
            shard = self._shard = self._next_shard(sample)
        self._encoder.accept(sample)
        if row:
            self._columns.accept(row)
        shard.add(sample, row)
        self._last_key = values.to_text(sample.key)

    def _refuse_use(self) -> NoReturn:
        """Say why nothing can be written with a writer."""
        kind = type(self).__name__
        if os.getpid() != self._pid:
            found = "this process is a fork of the one that made the writer"
            raise InvalidRequest(kind, found, remedy=f"Make one here, with {option('part')}.")
        found = "the writer is closed" if self._state == _CLOSED else "an earlier write was interrupted"
        self.abandon()
        raise InvalidRequest(kind, found, expected="writes inside of its with block")

    def _refuse(self, _sample: Mapping[str, object], refused: SampleRefused) -> None:
        """Raise what is wrong with a sample, or note that it is left out."""
        raise refused.error from None

    @abstractmethod
    def _takes(self, sample: Sample) -> bool:
        """Return whether a sample gets into a shard; False: it is left out.

        Raises:
            SampleRefused: It cannot, and is not to be left out.
        """

    @abstractmethod
    def _next_shard(self, sample: Sample) -> OpenShard:
        """Start a shard, whose first sample that is."""

    @abstractmethod
    def _publish(self, shard: OpenShard) -> None:
        """Publish a shard, which is then the writer's no more."""

    @abstractmethod
    def _finish(self) -> None:
        """Publish what is written."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what the writer holds, once it is closed."""
