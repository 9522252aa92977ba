"""Read and write TFRecord shards without code of the package.

The records must be instances of `tf.train.Example`. Anything unexpected raises an AssertionError.
Source: tensorflow/core/lib/io/record_writer.h, tensorflow/core/example/{example,feature}.proto, the protobuf
encoding guide.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BYTES, FLOAT, INT64 = 1, 2, 3  # field numbers of the message tensorflow.Feature
_VARINT, _DELIMITED, _FIXED32 = 0, 2, 5  # wire types of protobuf


@dataclass(frozen=True)
class Feature:
    """A feature with a single value.

    Attributes:
        kind: BYTES, FLOAT or INT64.
        start: Offset of the encoded value in the Example.
        stop: Offset of its end.
    """

    name: str
    kind: int
    value: bytes | float | int
    start: int
    stop: int

    @property
    def text(self) -> bytes:
        """The value as the payload of a tar field: bytes are unchanged, and numbers are written as text."""
        return self.value if isinstance(self.value, bytes) else str(self.value).encode()


def masked(data: bytes) -> bytes:
    """Return the masked CRC-32C of `data`, 4 bytes."""
    crc = crc32c.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def frame(data: bytes) -> bytes:
    """Return a TFRecord with `data`: length, checksum of the length, `data`, checksum of `data`."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def records(raw: bytes) -> list[tuple[int, bytes]]:
    """Return (offset, data) of every record of a shard, and check all checksums."""
    found, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        data = raw[at + 12 : at + 12 + length]
        assert raw[at : at + length + 16] == frame(data)
        found.append((at, data))
        at += length + 16
    return found


def varint(number: int) -> bytes:
    """Encode a number as a varint. A negative number is encoded as its 64-bit two's complement."""
    number %= 2**64
    high, low = divmod(number, 128)
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at offset `at`, and the offset after it. The varint must have the minimal length."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            assert byte or shift == 7
            return number, at


def example(features: Iterable[tuple[bytes, int, bytes]]) -> bytes:
    """Encode a `tf.train.Example`.

    Args:
        features: For each feature, the name, BYTES, FLOAT or INT64, and the only value: the bytes, or an encoded number
            (varint or little-endian float).
    """
    entries = b""
    for name, kind, payload in features:
        values = _delimited(1, payload)
        entries += _delimited(1, _delimited(1, name) + _delimited(2, _delimited(kind, values)))
    return _delimited(1, entries)


def _delimited(number: int, body: bytes) -> bytes:
    return varint(number << 3 | _DELIMITED) + varint(len(body)) + body


def parse_example(data: bytes) -> list[Feature]:
    """Return the features of an Example, in stored order. Each feature must have exactly one value."""
    ((number, first, last),) = _message(data, 0, len(data))
    assert number == 1
    features = []
    for entry in _message(data, first, last):
        assert entry[0] == 1
        name, feature = _message(data, *entry[1:])
        assert (name[0], feature[0]) == (1, 2)
        ((kind, *values),) = _message(data, *feature[1:])
        ((number, start, stop),) = _message(data, *values)
        assert number == 1
        features.append(Feature(data[name[1] : name[2]].decode(), kind, _value(kind, data[start:stop]), start, stop))
    return features


@dataclass(frozen=True)
class Values:
    """A feature with any number of values.

    Attributes:
        kind: BYTES, FLOAT or INT64.
        start: Offset of the payload in the Example. If the encoded list has one part, the payload is that part.
            Otherwise, it is the whole list. See "Lists" in docs/format.md.
        stop: Offset of the end of the payload.
    """

    kind: int
    values: list[bytes | float | int]
    start: int
    stop: int


@lru_cache(maxsize=16)  # property tests parse the same long lists several times
def parse_lists(data: bytes) -> dict[str, Values]:
    """Return the features of an Example by name. Numbers can be packed or not."""
    found = {}
    for _, *example in _parts(data, 0, len(data)):
        for _, *entry in _parts(data, *example):
            (_, *name), (_, *feature) = _parts(data, *entry)
            ((kind, *inside),) = _parts(data, *feature)
            parts = [part for _, *part in _parts(data, *inside)]
            values = [value for part in parts for value in _values(kind, data[slice(*part)])]
            place = parts[0] if len(parts) == 1 else inside
            found[data[slice(*name)].decode()] = Values(kind, values, *place)
    return found


def _values(kind: int, part: bytes) -> list[bytes | float | int]:
    if kind == BYTES:
        return [part]
    if kind == FLOAT:
        return [*struct.unpack(f"<{len(part) // 4}f", part)]
    values: list[bytes | float | int] = []
    at = 0
    while at < len(part):
        number, at = read_varint(part, at)
        values.append(number - 2**64 if number >= 2**63 else number)
    return values


def feature(name: bytes, kind: int, inside: bytes) -> bytes:
    """Encode a feature of an Example. `inside` is the encoded list, from `part`."""
    return _delimited(1, _delimited(1, name) + _delimited(2, _delimited(kind, inside)))


def part(payload: bytes) -> bytes:
    """Encode a part of a list. `payload` is a bytes value, or packed numbers."""
    return _delimited(1, payload)


def _parts(data: bytes, at: int, end: int) -> Sequence[tuple[int, int, int]]:
    """Return (field number, start, end) of every field of a message. Fields can have any wire type."""
    found = []
    while at < end:
        tag, at = read_varint(data, at)
        first = at
        if tag & 7 == _VARINT:
            last = read_varint(data, at)[1]
        elif tag & 7 == _FIXED32:
            last = at + 4
        else:
            assert tag & 7 == _DELIMITED
            length, first = read_varint(data, at)
            last = first + length
        found.append((tag >> 3, first, last))
        at = last
    assert at == end
    return found


def _value(kind: int, payload: bytes) -> bytes | float | int:
    if kind == BYTES:
        return payload
    if kind == FLOAT:
        (number,) = struct.unpack("<f", payload)
        return float(number)
    assert kind == INT64
    whole, end = read_varint(payload, 0)
    assert end == len(payload)
    return whole - 2**64 if whole >= 2**63 else whole


def _message(data: bytes, at: int, end: int) -> Sequence[tuple[int, int, int]]:
    """Return (field number, start, end) of every field of a message. All fields must be length-delimited."""
    found = []
    while at < end:
        tag, at = read_varint(data, at)
        assert tag & 7 == _DELIMITED
        length, at = read_varint(data, at)
        found.append((tag >> 3, at, at + length))
        at += length
    assert at == end
    return found
