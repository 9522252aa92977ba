"""Detect the content type of untrusted payloads, and decode them for display."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from shardtool.format.tfrecord_read import decode_numbers
from shardtool.format.varint import count_varints, encode_varint
from shardtool.names import IMAGE_ENDINGS

MAX_INSPECTED_IMAGE_BYTES = 2**26
MAX_JSON_NESTING = 100  # below Python's recursion limit of 1000
MAX_TEXT_BYTES = 2**20
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
_CONTENT_BY_ENDING = {ending: content for content, endings in _ENDINGS.items() for ending in endings}
_TENSORFLOW_IMAGE = re.compile(r"image(/(encoded|raw|image_raw))?|image_raw|img|jpeg_bytes")
_LABEL_NAME = re.compile(
    r"(.*[._/-])?(cls\d*|class(es)?|class_?(name|id)|labels?|label_?(name|id)|category|target|species|bi)"
)
_MAX_NUMBER_LENGTH = 40


def content_type(field: str, kind: str = "bytes") -> str:
    """Return the content type that a field's name and TFRecord type suggest, such as `image`."""
    if kind != "bytes":
        return "number"
    ending = field.rpartition(".")[2].lower()
    if _TENSORFLOW_IMAGE.fullmatch(ending):
        return "image"
    return _CONTENT_BY_ENDING.get(ending, "bytes")


def is_named_type(field: str) -> bool:
    """Return whether a field name alone shows the content type, as `jpg` does."""
    return content_type(field) not in ("number", "bytes")


def is_label_name(name: str) -> bool:
    """Return whether a field or column name suggests labels."""
    return bool(_LABEL_NAME.fullmatch(name.lower()))


def parse_value(data: bytes, kind: str = "bytes") -> int | float | str | list[int] | list[float] | None:
    """Parse a short payload of the TFRecord type `kind` as numbers or text. Return None for binary data."""
    if kind != "bytes":
        try:
            numbers = feature_numbers(data, kind)
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
    if len(stripped) <= _MAX_NUMBER_LENGTH and stripped.isascii() and "_" not in stripped:
        for number_type in (int, float):
            with suppress(ValueError):
                return number_type(stripped)
    return text


def feature_numbers(data: bytes, kind: str, count: int | None = None) -> list[int] | list[float]:
    """Return the numbers in a TFRecord feature whose `kind` is `int64` or `float`.

    `data` contains only packed numbers, or a whole encoded list (see `decode_numbers`). `count` is the expected number
    of values. Without `count`, assume packed numbers whenever possible.

    Raises:
        ValueError: `data` is not a valid list of numbers.
    """
    if kind == "float":
        packed = len(data) % 4 == 0 and count in (None, len(data) // 4)
    else:
        packed = data[-1:] < b"\x80" and count in (None, count_varints(data))
    if not packed:
        return decode_numbers(data, kind)
    return decode_numbers(b"\x0a" + encode_varint(len(data)) + data, kind)


def label_name(data: bytes, kind: str, classes: list[str] | None) -> tuple[str, int | float | None]:
    """Return the text to display for a label, such as a class name, and the label's number or None."""
    value = parse_value(data, kind)
    if isinstance(value, int) and classes is not None and 0 <= value < len(classes):
        return str(classes[value]), value
    if value is None:
        return f"{len(data)} bytes: {data[:16].hex()}", None
    return str(value).strip(), value if isinstance(value, (int, float)) else None


def image_info(data: bytes) -> tuple[int, int, str] | str:
    """Return the width, height and mode in the header of an image, or the problem as text."""
    try:
        from shardtool.transform.image import ImageOptions, change_image
        from shardtool.transform.image_decode import BadImage
    except ModuleNotFoundError:
        return "Pillow is not installed. Run `pip install pillow`."
    try:
        properties = change_image(data, "", ImageOptions(probe=True))[1]
    except BadImage as error:
        return error.message
    return properties.width, properties.height, properties.mode


def duration_s(data: bytes, length: int) -> float | None:
    """Return the duration in seconds from the headers of a WAV, FLAC, MP3, Ogg or MP4 file, or None if unknown.

    `data` is the start of a file of `length` bytes. A few thousand bytes are enough, except for Ogg and some MP4 files.

    Source: RFC 2361 (WAV), RFC 9639 (FLAC), ISO/IEC 11172-3 and 13818-3 (MP3) with LAME's first frame, RFC 3533, RFC
    7845 and Xiph's Vorbis I (Ogg), ISO/IEC 14496-12 (MP4).
    """
    seconds = 0.0
    if data[:4] == b"RIFF":
        seconds = _wav_seconds(data, length)
    elif data[:4] == b"fLaC":
        # the first 20 bits are the sample rate, the last 36 the number of samples
        stream_info = int.from_bytes(data[18:26], "big")
        seconds = (stream_info & (2**36 - 1)) / ((stream_info >> 44) or 1)
    elif data[:4] == b"OggS":
        seconds = _ogg_seconds(data) if len(data) == length else 0.0
    elif data[4:8] == b"ftyp":
        seconds = _mp4_seconds(data)
    elif data[:3] == b"ID3" or data[:1] == b"\xff":
        seconds = _mp3_seconds(data, length)
    return seconds if 0 < seconds <= 8 * length else None


def _wav_seconds(start: bytes, length: int) -> float:
    at, rate = 12, 0
    while at + 8 <= len(start):
        size = int.from_bytes(start[at + 4 : at + 8], "little")
        if start[at : at + 4] == b"data":
            return min(size, length - at - 8) / rate if rate else 0.0
        if start[at : at + 4] == b"fmt ":
            rate = int.from_bytes(start[at + 16 : at + 20], "little")
        at += 8 + size + size % 2
    return 0.0


def _ogg_seconds(data: bytes) -> float:
    at = data.find(b"\x01vorbis")
    rate = int.from_bytes(data[at + 12 : at + 16], "little") if at >= 0 else 0
    if b"OpusHead" in data[:64]:
        rate = 48_000
    last = data.rfind(b"OggS")
    return int.from_bytes(data[last + 6 : last + 14], "little") / rate if rate else 0.0


def _mp4_seconds(data: bytes) -> float:
    at = 0
    while at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind == b"mvhd":
            time_bytes = 4 if data[at + 8 : at + 9] == b"\0" else 8
            timing = data[at + 12 + 2 * time_bytes :]
            return int.from_bytes(timing[4 : 4 + time_bytes], "big") / (int.from_bytes(timing[:4], "big") or 1)
        size = int.from_bytes(data[at + 8 : at + 16], "big") if size == 1 else size
        at += 8 if kind == b"moov" else max(size, 8)
    return 0.0


_MPEG_1_KILOBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG_2_KILOBITS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_SAMPLE_RATES = (44_100, 48_000, 32_000)  # Hz, for MPEG-1; MPEG-2 has half of these rates, MPEG-2.5 a quarter


def _mp3_seconds(data: bytes, length: int) -> float:
    size = 0
    if data[:3] == b"ID3":
        for byte in data[6:10]:
            size = size << 7 | byte & 127
        size += 10
    head = int.from_bytes(data[size : size + 4], "big")
    version, rate_index, bit_rate_index = head >> 19 & 3, head >> 10 & 3, head >> 12 & 15
    halvings = {3: 0, 2: 1, 0: 2}.get(version)
    is_layer_3 = head >> 21 == 2**11 - 1 and head >> 17 & 3 == 1
    is_valid = 0 < bit_rate_index <= len(_MPEG_1_KILOBITS) and rate_index < len(_SAMPLE_RATES)
    if not is_layer_3 or halvings is None or not is_valid:
        return 0.0
    # after "Xing" or "Info", the first frame may contain the frame count
    frames_tag = max(data.find(mark, size, size + 48) for mark in (b"Xing", b"Info"))
    if frames_tag >= 0 and data[frames_tag + 7] & 1:
        frames = int.from_bytes(data[frames_tag + 8 : frames_tag + 12], "big")
        return frames * (576 if halvings else 1152) / (_SAMPLE_RATES[rate_index] >> halvings)
    kilobits = _MPEG_2_KILOBITS if halvings else _MPEG_1_KILOBITS
    return (length - size) / (125 * kilobits[bit_rate_index - 1])


def parse_json(data: bytes) -> object | None:
    """Parse JSON. Return None if `data` is not JSON. Raise `RecursionError` if the JSON is nested too deeply."""
    try:
        document: object = json.loads(data)
    except ValueError:
        return None
    level: list[object] = [document]
    for _ in range(MAX_JSON_NESTING + 1):
        containers = [value for value in level if isinstance(value, dict | list)]
        level = [part for value in containers for part in (value.values() if isinstance(value, dict) else value)]
        if not level:
            return document
    raise RecursionError
