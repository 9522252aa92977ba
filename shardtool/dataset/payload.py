"""What a payload is, by the name of its field and by its bytes: for people who look at a dataset. Nothing is executed.

The number of a class, a text, JSON, the size of an image: read from a payload's bytes, which may be anything.
"""

from __future__ import annotations

import json
import re

from shardtool.format.tfrecord import count_varints, encode_varint, numbers_of
from shardtool.values import IMAGE_ENDINGS

IMAGE_LIMIT = 2**26  # bytes of an image that is looked at
MOST_LEVELS = 100  # of lists and objects in each other: Python ends at a thousand calls, and no reader goes on so far
TEXT_LIMIT = 2**20  # bytes of text and JSON that are read
_ENDINGS = {
    "image": IMAGE_ENDINGS,
    "json": ("json", "jsn", "jsonl", "geojson"),
    "text": ("txt", "text", "caption", "csv", "tsv", "xml", "html", "yaml", "yml", "srt", "vtt", "md", "transcript"),
    "number": ("cls", "cls2", "index", "id", "label", "label_id", "class", "target", "inx", "score"),
    "array": ("npy", "npz", "ten", "tb", "safetensors"),
    "pickle": ("pkl", "pickle", "pyd", "pth", "pt"),
    "audio": ("wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"),
    "video": ("mp4", "webm", "mkv", "avi", "mov", "h264"),
}
_CONTENTS = {ending: content for content, endings in _ENDINGS.items() for ending in endings}
_OF_TENSORFLOW = re.compile(r"image(/(encoded|raw|image_raw))?|image_raw|img|jpeg_bytes")
_LABEL = re.compile(
    r"(.*[._/-])?(cls\d*|class(es)?|class_?(name|id)|labels?|label_?(name|id)|category|target|species|bi)"
)
_LONGEST_NUMBER = 40  # characters


def content_of(field: str, kind: str = "bytes") -> str:
    """Return what a field holds, by its name: `image`, `json`, `text`, `number`, `array`, `audio`, ... or `bytes`."""
    if kind != "bytes":
        return "number"
    ending = field.rpartition(".")[2].lower()
    if _OF_TENSORFLOW.fullmatch(ending):
        return "image"
    return _CONTENTS.get(ending, "bytes")


def is_told_by_name(field: str) -> bool:
    """Tell whether the name of a field says what it holds: text, JSON, an image; a number may be of any type."""
    return content_of(field) not in ("number", "bytes")


def is_label(name: str) -> bool:
    """Tell whether a field or column is called as labels are."""
    return bool(_LABEL.fullmatch(name.lower()))


def value_of(data: bytes, kind: str = "bytes") -> int | float | str | list[int] | list[float] | None:
    """Return the number, numbers or text that a short payload stands for; None where it is neither.

    Args:
        data: The payload, of a TFRecord's numbers as they are stored.
        kind: `bytes`, or what a TFRecord stores: `int64` or `float`.
    """
    if kind != "bytes":
        try:
            numbers = numbers_in(data, kind)
        except ValueError:
            return None
        return numbers[0] if len(numbers) == 1 else numbers
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    stripped = text.strip()
    if len(stripped) <= _LONGEST_NUMBER:
        for number in (int, float):
            try:
                return number(stripped) if stripped.isascii() and "_" not in stripped else text
            except ValueError:
                continue
    return text


def numbers_in(data: bytes, kind: str, count: int | None = None) -> list[int] | list[float]:
    """Return the numbers of a TFRecord's feature as an index has it: packed, or a list written one by one.

    Args:
        data: The bytes that the index speaks of.
        kind: `int64` or `float`.
        count: How many there are; None: not known, and then they are taken as packed where that can be.

    Raises:
        ValueError: There are none of that kind.
    """
    if kind == "float":
        packed = len(data) % 4 == 0 and count in (None, len(data) // 4)
    else:
        packed = data[-1:] < b"\x80" and count in (None, count_varints(data))
    if not packed:
        return numbers_of(data, kind)
    return numbers_of(b"\x0a" + encode_varint(len(data)) + data, kind)  # as a list of one packed part


def label_of(data: bytes, kind: str, classes: list[str] | None) -> tuple[str, int | float | None]:
    """Return what a label is called, and its number where it is one."""
    value = value_of(data, kind)
    if isinstance(value, int) and classes is not None and 0 <= value < len(classes):
        return str(classes[value]), value
    if value is None:
        return f"{len(data)} bytes: {data[:16].hex()}", None
    return str(value).strip(), value if isinstance(value, (int, float)) else None


def image_fact(data: bytes) -> tuple[int, int, str] | str:
    """Return width, height and mode of an image, from its header; or what is wrong with it."""
    from shardtool.transform.image import BadImage, ImageOptions, change

    try:
        fact = change(data, "", ImageOptions(probe=True))[1]
    except BadImage as error:
        return error.message
    return fact.width, fact.height, fact.mode


def seconds_of(start: bytes, length: int) -> float | None:
    """Return how long audio is, by the header of a WAV or FLAC; None where that does not say.

    Args:
        start: The first few thousand bytes.
        length: Bytes of it in all: no claim goes beyond one bit a second.

    Source: RFC 2361 (WAV) and RFC 9639 (FLAC).
    """
    found = 0.0
    if start[:4] == b"RIFF":
        found = _wav_seconds(start, length)
    elif start[:4] == b"fLaC":
        facts = int.from_bytes(start[18:26], "big")  # 20 bits: samples a second; the last 36: how many
        found = (facts & (2**36 - 1)) / ((facts >> 44) or 1)
    return found if 0 < found <= 8 * length else None


def _wav_seconds(start: bytes, length: int) -> float:
    at, rate = 12, 0
    while at + 8 <= len(start):
        size = int.from_bytes(start[at + 4 : at + 8], "little")
        if start[at : at + 4] == b"data":
            return min(size, length - at - 8) / rate if rate else 0.0
        if start[at : at + 4] == b"fmt ":
            rate = int.from_bytes(start[at + 16 : at + 20], "little")  # bytes a second
        at += 8 + size + size % 2
    return 0.0


def json_of(data: bytes) -> object | None:
    """Return what JSON says, or None where it is none.

    Raises:
        RecursionError: It is nested deeper than can be shown.
    """
    try:
        found: object = json.loads(data)
    except ValueError:
        return None
    level: list[object] = [found]
    for _ in range(MOST_LEVELS + 1):
        nested = [one for one in level if isinstance(one, dict | list)]
        level = [part for one in nested for part in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return found
    raise RecursionError
