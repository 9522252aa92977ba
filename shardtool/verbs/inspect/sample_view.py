"""Show a sample: decode each field as far as a reader needs."""

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
from shardtool.verbs.inspect.payload_headers import describe_payload

if TYPE_CHECKING:
    from shardtool.dataset.sidecar_schema import FieldRow
    from shardtool.verbs.inspect.overview import StoredSample


_MAX_HEAD_BYTES = 64


class FieldView(NamedTuple):
    """A decoded field.

    Attributes:
        value: The text, the number or numbers, or the parsed JSON; None for images and bytes.
        label: The class name of a class number.
        details: Lines about an array or a video.
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
    details: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the field as data: bytes as base64, missing values as null."""
        document = {name: json_value(getattr(self, name)) for name in ("content", "offset", "length", "value", "label")}
        image = None if self.image is None else dict(zip(("width", "height", "mode"), self.image, strict=True))
        return {
            **document,
            "image": image,
            "head": json_value(self.head) or None,
            "problem": self.problem or None,
            "details": [*self.details],
        }


class SampleView(NamedTuple):
    """A sample and its decoded fields."""

    sample: StoredSample
    fields: tuple[FieldView, ...]

    def to_json(self) -> dict[str, object]:
        """Return the sample as `--json` prints it (docs/json.md)."""
        sample, fields = self.sample, {field.name: field.to_json() for field in self.fields}
        document = {
            "key": sample.key,
            "number": sample.number,
            "shard": to_output_name(sample.shard.path),
            "offset": sample.offset,
        }
        return {**document, "size": sample.size, "fields": fields, "metadata": json_value(sample.metadata)}


def view_sample(sample: StoredSample, *, text_limit: int = MAX_TEXT_BYTES) -> SampleView:
    """Decode a sample for display; texts are cut after `text_limit` bytes."""
    with open_shard(sample.shard.path) as file:
        rows = sorted(range(len(sample.fields)), key=lambda row: sample.fields[row]["offset"])
        views = {row: _view_field(sample, sample.fields[row], file, text_limit) for row in rows}
    return SampleView(sample, tuple(views[row] for row in range(len(sample.fields))))


def _view_field(sample: StoredSample, field: FieldRow, file: ShardFile | CompressedFile, text_limit: int) -> FieldView:
    name, offset, length = field["name"], field["offset"], field["length"]
    kind = sample.kinds.get(name, "bytes")
    content = content_type(name, kind)
    limit = MAX_INSPECTED_IMAGE_BYTES if content in ("image", "array", "video") else text_limit
    max_bytes = length if length <= limit else _MAX_HEAD_BYTES if content == "image" else limit
    try:
        data = b"".join(iter_payload(file, offset, length, sample.shard.path, most=max_bytes))
    except CorruptShard as error:
        return FieldView(name, "bytes", offset, length, problem=error.found)
    problem = ""
    if len(data) == length and field["crc32c"] is not None and crc32c(data) != field["crc32c"]:
        problem = "checksum differs from the index; run `shardtool verify`"
    content, value, image, decode_problem = _recognize(data, content, kind, whole=len(data) == length)
    head = data[:_MAX_HEAD_BYTES] if value is None and image is None else b""
    details = describe_payload(name, data) if kind == "bytes" else ()
    label = None
    if name in sample.classes and length <= _MAX_HEAD_BYTES and len(data) == length:
        label, number = label_name(data, kind, sample.classes[name])
        content, value, label = ("number", number, label) if isinstance(number, int) else (content, value, None)
    return FieldView(name, content, offset, length, value, image, head, problem or decode_problem, label, details)


def _recognize(
    data: bytes, content: str, kind: str, *, whole: bool
) -> tuple[str, object, tuple[int, int, str] | None, str]:
    """Return the detected content, its value, the image size and mode, and a problem."""
    if kind != "bytes":
        value = parse_value(data, kind)
        return ("bytes", None, None, f"not a valid {kind}") if value is None else ("number", value, None, "")
    if content == "image" and whole:
        info = image_info(data)
        return ("bytes", None, None, info) if isinstance(info, str) else ("image", None, info, "")
    if content in ("audio", "video", "pickle", "array", "image"):
        return "bytes", None, None, ""
    problem = "not valid JSON" if content == "json" and whole else ""
    if content == "json" and whole:
        try:
            document = parse_json(data)
        except RecursionError:
            document, problem = None, f"JSON nested more than {MAX_JSON_NESTING} levels deep, shown as text"
        if document is not None or data.strip() == b"null":
            return "json", document, None, ""
    text = decode_text(data, whole=whole)
    if (
        content == "number"
        and isinstance(number := parse_value(data[:_MAX_HEAD_BYTES]), (int, float))
        and len(data) <= _MAX_HEAD_BYTES
    ):
        return "number", number, None, ""
    return ("bytes", None, None, problem) if text is None else ("text", text, None, problem)


def decode_text(data: bytes, *, whole: bool) -> str | None:
    """Decode UTF-8; None if the bytes are not text. If `whole` is false, an incomplete last character is dropped."""
    try:
        text = getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def json_value(value: object) -> object:
    """Convert a value to JSON types: bytes to base64, times and non-finite numbers to text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return str(value)
