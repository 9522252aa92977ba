"""A sample for people: each field decoded as far as people read it. Damage is shown with the field that has it."""

from __future__ import annotations

import base64
import math
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.payload import (
    MAX_INSPECTED_IMAGE_BYTES,
    MAX_JSON_NESTING,
    MAX_TEXT_BYTES,
    content_type,
    image_info,
    label_name,
    parse_json,
    parse_value,
)
from shardtool.dataset.shard_file import CompressedFile, ShardFile, iter_payload, open_shard
from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.names import to_output_name

if TYPE_CHECKING:
    from shardtool.dataset.sidecar_schema import FieldRow
    from shardtool.verbs.inspect.overview import StoredSample


_MAX_HEAD_BYTES = 64  # bytes of a payload that is neither text nor an image


class FieldView(NamedTuple):
    """A field, for people.

    Attributes:
        name: Its name.
        content: What it turned out to be: `image`, `json`, `text`, `number` or `bytes`.
        offset: Where its payload starts in the shard.
        length: Bytes of the payload.
        value: The text, number or numbers, or what the JSON says; None for images and bytes.
        image: Width, height and mode.
        head: The first 64 bytes, of what is no text.
        problem: What is wrong with it; empty where nothing is.
        label: What the number of a class is called.
    """

    name: str
    content: str
    offset: int
    length: int
    value: object = None
    image: tuple[int, int, str] | None = None
    head: bytes = b""
    problem: str = ""
    label: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the field as data: bytes as base64, what is not there as null."""
        found = {name: json_value(getattr(self, name)) for name in ("content", "offset", "length", "value", "label")}
        image = None if self.image is None else dict(zip(("width", "height", "mode"), self.image, strict=True))
        return {**found, "image": image, "head": json_value(self.head) or None, "problem": self.problem or None}


class SampleView(NamedTuple):
    """A sample, and its fields, for people."""

    sample: StoredSample
    fields: tuple[FieldView, ...]

    def to_json(self) -> dict[str, object]:
        """Return the sample as data, the way `--json` prints it (docs/json.md)."""
        one, fields = self.sample, {field.name: field.to_json() for field in self.fields}
        found = {"key": one.key, "number": one.number, "shard": to_output_name(one.shard.path), "offset": one.offset}
        return {**found, "size": one.size, "fields": fields, "metadata": json_value(one.metadata)}


def view_sample(sample: StoredSample, *, text_limit: int = MAX_TEXT_BYTES) -> SampleView:
    """Return a sample for people to look at.

    Args:
        sample: The sample.
        text_limit: Bytes of text that are read; of what is longer, only the start.

    Raises:
        CorruptShard: The shard cannot be opened.
    """
    with open_shard(sample.shard.path) as file:
        in_order = sorted(range(len(sample.fields)), key=lambda at: sample.fields[at]["offset"])
        found = {at: _view_field(sample, sample.fields[at], file, text_limit) for at in in_order}
    return SampleView(sample, tuple(found[at] for at in range(len(sample.fields))))


def _view_field(sample: StoredSample, one: FieldRow, file: ShardFile | CompressedFile, text_limit: int) -> FieldView:
    name, offset, length = one["name"], one["offset"], one["length"]
    kind = sample.kinds.get(name, "bytes")
    content = content_type(name, kind)
    limit = MAX_INSPECTED_IMAGE_BYTES if content == "image" else text_limit
    wanted = length if length <= limit else _MAX_HEAD_BYTES if content == "image" else limit
    try:
        data = b"".join(iter_payload(file, offset, length, sample.shard.path, most=wanted))
    except CorruptShard as error:
        return FieldView(name, "bytes", offset, length, problem=error.found)
    problem = ""
    if len(data) == length and one["crc32c"] is not None and crc32c(data) != one["crc32c"]:
        problem = "another checksum than its index says; run `shardtool verify`"
    content, value, image, worse = _recognize(data, content, kind, whole=len(data) == length)
    head = data[:_MAX_HEAD_BYTES] if value is None and image is None else b""
    label = None
    if name in sample.classes and length <= _MAX_HEAD_BYTES and len(data) == length:
        label, number = label_name(data, kind, sample.classes[name])
        content, value, label = ("number", number, label) if isinstance(number, int) else (content, value, None)
    return FieldView(name, content, offset, length, value, image, head, problem or worse, label)


def _recognize(
    data: bytes, content: str, kind: str, *, whole: bool
) -> tuple[str, object, tuple[int, int, str] | None, str]:
    """Return what a payload turned out to be, its value, what image it is, and what is wrong with it."""
    if kind != "bytes":
        value = parse_value(data, kind)
        return ("bytes", None, None, f"no {kind}") if value is None else ("number", value, None, "")
    if content == "image" and whole:
        fact = image_info(data)
        return ("bytes", None, None, fact) if isinstance(fact, str) else ("image", None, fact, "")
    if content in ("audio", "video", "pickle", "array", "image"):
        return "bytes", None, None, ""
    wrong = "no JSON" if content == "json" and whole else ""
    if content == "json" and whole:
        try:
            found = parse_json(data)
        except RecursionError:
            found, wrong = None, f"JSON more than {MAX_JSON_NESTING} deep, shown as text"
        if found is not None or data.strip() == b"null":
            return "json", found, None, ""
    text = decode_text(data, whole=whole)
    if (
        content == "number"
        and isinstance(number := parse_value(data[:_MAX_HEAD_BYTES]), (int, float))
        and len(data) <= _MAX_HEAD_BYTES
    ):
        return "number", number, None, ""
    return ("bytes", None, None, wrong) if text is None else ("text", text, None, wrong)


def decode_text(data: bytes, *, whole: bool) -> str | None:
    """Return bytes as text; None where they are none. Where they are not `whole`, the last character may be cut off."""
    try:
        text = getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def json_value(value: object) -> object:
    """Return a value as JSON has it: bytes as base64, times as text, numbers that are none (NaN) as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(one) for one in value]
    return str(value)
