"""Convert between the numbers of TFRecord shards and the texts that tar shards store for them.

A number and a text are equivalent only if each converts to the other without changing a byte. Workers run this and
import neither NumPy nor pyarrow.
"""

from __future__ import annotations

import math
import os
import struct
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.shard_file import CompressedFile, ShardFile, open_shard
from shardtool.errors import (
    CorruptShard,
)
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord_read import decode_numbers
from shardtool.format.tfrecord_write import INT64_LIMIT, encode_number

if TYPE_CHECKING:
    from shardtool.shard_samples import SpanFile
    from shardtool.values import NumberType


_FLOAT_BYTES = 4


_MAX_TEXT_BYTES = 40  # bytes of a text that may stand for a number, or of a stored one


_MIN_NORMAL_FLOAT = 2.0**-126


_FLOAT_DIGITS = (6, 7, 8, 9)  # that a float of 32 bits may need; a subnormal one fewer


class NumberField(NamedTuple):
    """The values of one field in one shard.

    Attributes:
        field: Its name.
        number: What they are, or may stand for.
        stored: Whether they lie there as a TFRecord stores them; else they are texts.
        offsets: int64 per value.
        lengths: int64 per value.
        crcs: int64 per value, -1: unknown.
    """

    field: str
    number: NumberType
    stored: bool
    offsets: bytes
    lengths: bytes
    crcs: bytes


class NumberTask(NamedTuple):
    """A shard to read numbers from; `salvage`: a damaged one is noted, and no error."""

    file: SpanFile
    wanted: tuple[NumberField, ...]
    salvage: bool = False


@dataclass(slots=True)
class NumberTexts:
    """The texts of one field in one shard.

    Attributes:
        data: In order, a NUL after each; of no use where some are `bad`.
        bad: How many are none that a TFRecord would give back.
        rounded: How many of these are numbers all the same.
        first_bad: The place of the first among the field's values.
        damaged: The places of those that are damaged, whose text is empty.
    """

    data: bytes = b""
    bad: int = 0
    rounded: int = 0
    first_bad: int = -1
    damaged: list[int] = field(default_factory=list)


def read_number_texts(task: NumberTask) -> list[NumberTexts]:
    """Return the texts of each of the fields wanted.

    Raises:
        CorruptShard: The shard is another one than was listed, or a value has not its checksum, or is no number.
    """
    columns = [[array("q", data) for data in (one.offsets, one.lengths, one.crcs)] for one in task.wanted]
    places = sorted(  # in the order of the file: a compressed one is read in sequence only
        (offset, length, crc, number, at)
        for number, (offsets, lengths, crcs) in enumerate(columns)
        for at, (offset, length, crc) in enumerate(zip(offsets, lengths, crcs, strict=True))
    )
    texts: list[list[bytes]] = [[b""] * len(column[0]) for column in columns]
    found = [NumberTexts() for _ in task.wanted]
    with open_shard(path := os.fsdecode(task.file.path)) as shard:
        if isinstance(shard, ShardFile) and (shard.size, shard.mtime_ns) != (task.file.size, task.file.mtime_ns):
            raise CorruptShard(path, "changed while it was read", remedy="Run the command again.")
        for offset, length, crc, number, at in places:
            one = task.wanted[number]
            try:
                text = _read_text(shard, offset, length, crc, one)
            except CorruptShard:
                if not task.salvage:
                    raise
                found[number].damaged.append(at)
                continue
            texts[number][at] = text
            if not one.stored and not _round_trips(text, one.number):
                result = found[number]
                result.bad += 1
                result.rounded += _is_number(text)
                result.first_bad = at if result.first_bad < 0 else result.first_bad
    for result, values in zip(found, texts, strict=True):
        result.data = b"" if result.bad else b"".join([value + b"\0" for value in values])
    return found


def _read_text(shard: ShardFile | CompressedFile, offset: int, length: int, crc: int, one: NumberField) -> bytes:
    """Return the text of one value."""
    data = _read_verified(shard, offset, length, crc, one) if length <= _MAX_TEXT_BYTES else b""
    text = data if not one.stored else float_text(data) if one.number == "float" else int_text(data)
    if text is None or (one.stored and length > _MAX_TEXT_BYTES):
        raise CorruptShard(f"{shard.path}, at {offset:,}", f"field {one.field!r} is no {one.number}")
    return text


def int_text(data: bytes) -> bytes | None:
    """Return the text of a whole number as a TFRecord stores it; None where `data` is not just one."""
    try:
        numbers = decode_numbers(b"\x0a%b%b" % (bytes([len(data)]), data), "int64")  # as a list of one packed part
    except ValueError:
        return None
    return b"%d" % numbers[0] if len(numbers) == 1 else None


def float_text(data: bytes) -> bytes | None:
    """Return the shortest text that gives the same 32-bit float back, as Python writes floats; None: not just one."""
    if len(data) != _FLOAT_BYTES:
        return None
    (value,) = struct.unpack("<f", data)
    if not value or not math.isfinite(value):
        return b"%a" % value
    for digits in _FLOAT_DIGITS if abs(value) >= _MIN_NORMAL_FLOAT else range(1, 10):
        text = f"{value:.{digits - 1}e}"
        if data[:2] == b"\0\0" and struct.pack("<f", float(text)) != data:  # of a power of two, most of what rounds to
            mantissa, exponent = text.replace(".", "").split("e")  # it lies further from zero
            text = f"{int(mantissa) + (1 if value > 0 else -1)}e{int(exponent) - digits + 1}"
        if struct.pack("<f", float(text)) == data:
            break
    return b"%a" % float(text)


def _read_verified(shard: ShardFile | CompressedFile, offset: int, length: int, crc: int, wanted: NumberField) -> bytes:
    data = bytes(shard.read(offset, length))
    if len(data) < length or (crc >= 0 and crc32c(data) != crc):
        found = f"field {wanted.field!r} has the CRC-32C {crc32c(data):08x}"
        expected = f"{crc:08x}" if crc >= 0 else f"{length:,} bytes"
        remedy = "Nothing of it was copied. `shardtool verify` shows what else is wrong with that dataset."
        raise CorruptShard(f"{shard.path}, at {offset:,}", found, expected=expected, remedy=remedy)
    return data


def _round_trips(text: bytes, number: NumberType) -> bool:
    """Tell whether a text is what a TFRecord that stores its number gives back."""
    try:
        if number == "int64":
            return b"%d" % int(text) == text and -INT64_LIMIT <= int(text) < INT64_LIMIT
        return float_text(encode_number(text, number)) == text
    except (ValueError, OverflowError):
        return False


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
