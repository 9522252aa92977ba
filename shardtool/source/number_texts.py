"""Convert between numbers in TFRecord shards and strings in tar shards.

A number is stored as a string, or a string as a number, only if the conversion back gives the same value.
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.dataset.shard_file import CompressedFile, ShardFile, open_shard
from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord_read import decode_numbers
from shardtool.format.tfrecord_write import INT64_LIMIT, encode_number

if TYPE_CHECKING:
    from shardtool.shard_samples import SpanFile
    from shardtool.values import NumberType


_FLOAT_BYTES = 4
_MAX_TEXT_BYTES = 40
_MIN_NORMAL_FLOAT = 2.0**-126
_FLOAT_DIGITS = (6, 7, 8, 9)  # normal floats keep 6


class NumberField(NamedTuple):
    """The values of one field in one shard.

    Attributes:
        number: The type of the numbers. In a tar shard, the type that the strings may represent.
        is_tfrecord: Whether the shard stores numbers rather than strings.
        offsets: int64, in the shard.
        lengths: int64, in bytes.
        crcs: int64, the expected CRC-32C, or -1 if unknown.
    """

    field: str
    number: NumberType
    is_tfrecord: bool
    offsets: bytes
    lengths: bytes
    crcs: bytes


class NumberTask(NamedTuple):
    """The fields to read from a shard. With `salvage`, damaged numbers are recorded, not raised as errors."""

    file: SpanFile
    fields: tuple[NumberField, ...]
    salvage: bool = False


@dataclass(slots=True)
class NumberTexts:
    """The strings of one field in one shard.

    Attributes:
        data: The strings in order, each followed by NUL. Empty if `changed` is above 0.
        changed: The number of strings that would change if stored as numbers.
        rounded: How many of them parse as numbers, such as 0.123456789 or 007.
        first_changed: The index of the first `changed` string, or -1.
        damaged: The indexes of damaged values, whose strings are empty.
    """

    data: bytes = b""
    changed: int = 0
    rounded: int = 0
    first_changed: int = -1
    damaged: list[int] = field(default_factory=list)


def read_number_texts(task: NumberTask) -> list[NumberTexts]:
    """Return, for each field in `task`, the values as strings."""
    columns = [[array("q", data) for data in (field.offsets, field.lengths, field.crcs)] for field in task.fields]
    values_in_order = sorted(  # by offset, because compressed shards can only be read in sequence
        (offset, length, crc, column, index)
        for column, (offsets, lengths, crcs) in enumerate(columns)
        for index, (offset, length, crc) in enumerate(zip(offsets, lengths, crcs, strict=True))
    )
    texts: list[list[bytes]] = [[b""] * len(offsets) for offsets, _, _ in columns]
    results = [NumberTexts() for _ in task.fields]
    with open_shard(path := os.fsdecode(task.file.path)) as shard:
        if isinstance(shard, ShardFile) and (shard.size, shard.mtime_ns) != (task.file.size, task.file.mtime_ns):
            raise CorruptShard(path, "changed while it was read", remedy="Run the command again.")
        for offset, length, crc, column, index in values_in_order:
            field = task.fields[column]
            try:
                text = _read_text(shard, offset, length, crc, field)
            except CorruptShard:
                if not task.salvage:
                    raise
                results[column].damaged.append(index)
                continue
            texts[column][index] = text
            if not field.is_tfrecord and not _round_trips(text, field.number):
                result = results[column]
                result.changed += 1
                with suppress(ValueError):
                    float(text)  # fails if the text is not a number
                    result.rounded += 1
                result.first_changed = index if result.first_changed < 0 else result.first_changed
    for result, values in zip(results, texts, strict=True):
        result.data = b"" if result.changed else b"".join([value + b"\0" for value in values])
    return results


def _read_text(shard: ShardFile | CompressedFile, offset: int, length: int, crc: int, field: NumberField) -> bytes:
    # a longer string is not a number, and b"" counts as changed
    data = _read_verified(shard, offset, length, crc, field) if length <= _MAX_TEXT_BYTES else b""
    number_text = float_text if field.number == "float" else int_text
    text = number_text(data) if field.is_tfrecord else data
    if text is None or (field.is_tfrecord and length > _MAX_TEXT_BYTES):
        raise CorruptShard(f"{shard.path}, at {offset:,}", f"field {field.field!r} is not a valid {field.number}")
    return text


def int_text(data: bytes) -> bytes | None:
    """Return the int64 in the varint `data` as a string, or None if `data` is not one varint."""
    try:
        # Int64List
        numbers = decode_numbers(b"\x0a%b%b" % (bytes([len(data)]), data), "int64")
    except ValueError:
        return None
    return b"%d" % numbers[0] if len(numbers) == 1 else None


def float_text(data: bytes) -> bytes | None:
    """Return the shortest string for the 32-bit float `data`, or None if `data` has the wrong length."""
    if len(data) != _FLOAT_BYTES:
        return None
    (value,) = struct.unpack("<f", data)
    if not value or not math.isfinite(value):
        return b"%a" % value
    for digits in _FLOAT_DIGITS if abs(value) >= _MIN_NORMAL_FLOAT else range(1, 10):
        text = f"{value:.{digits - 1}e}"
        # Below a power of two (low bytes 0), floats are twice as close. If `text` parses as the float below, try the
        # next decimal away from zero.
        if data[:2] == b"\0\0" and struct.pack("<f", float(text)) != data:
            mantissa, exponent = text.replace(".", "").split("e")
            text = f"{int(mantissa) + (1 if value > 0 else -1)}e{int(exponent) - digits + 1}"
        if struct.pack("<f", float(text)) == data:
            break
    return b"%a" % float(text)


def _read_verified(shard: ShardFile | CompressedFile, offset: int, length: int, crc: int, field: NumberField) -> bytes:
    data = bytes(shard.read(offset, length))
    if len(data) < length or (crc >= 0 and crc32c(data) != crc):
        found = f"field {field.field!r} has the CRC-32C {crc32c(data):08x}"
        expected = f"{crc:08x}" if crc >= 0 else f"{length:,} bytes"
        remedy = "The value was not copied. Run `shardtool verify` on the dataset to find more damage."
        raise CorruptShard(f"{shard.path}, at {offset:,}", found, expected=expected, remedy=remedy)
    return data


def _round_trips(text: bytes, number: NumberType) -> bool:
    try:
        if number == "int64":
            return b"%d" % int(text) == text and -INT64_LIMIT <= int(text) < INT64_LIMIT
        return float_text(encode_number(text, number)) == text
    except (ValueError, OverflowError):
        return False
