"""Base 128 varints: whole numbers of seven bits a byte, least first; all bytes but the last have the eighth bit.

Signed numbers are their two's complement of 64 bits, so that negative ones take ten bytes.

Source: Protocol Buffers, "Encoding"; Thrift's compact protocol writes its sizes alike.
"""

from __future__ import annotations

from typing import Protocol

_MOST_BYTES = 10
_U64 = 2**64
MORE = 128  # the bit of a byte that tells of another one
_LOW = 127
_ONE_BYTE = [bytes([number]) for number in range(MORE)]
_GOES_ON = bytes(range(MORE, 256))  # the bytes of a varint that are not its last


class Bytes(Protocol):
    """Data that can be indexed."""

    def __getitem__(self, at: int, /) -> int:
        """Return a byte."""


def encode_varint(number: int) -> bytes:
    """Return a number as a varint. A hot path: the first lines are short cuts."""
    if 0 <= number < 1 << 7:
        return _ONE_BYTE[number]
    if 0 <= number < 1 << 14:
        return bytes((number & 127 | 128, number >> 7))
    number %= _U64
    parts = bytearray()
    while number > _LOW:
        parts.append(number & _LOW | MORE)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at `at`, without a sign, and the place after it.

    Raises:
        ValueError: It does not end before `end`, or within ten bytes.
    """
    value = shift = 0
    while at < end and shift < 7 * _MOST_BYTES:
        byte = data[at]
        at += 1
        value |= (byte & _LOW) << shift
        if byte < MORE:
            return value & (2**64 - 1), at
        shift += 7
    raise ValueError


def signed(number: int) -> int:
    """Return the signed number that an unsigned one of 64 bits stands for."""
    return number - _U64 if number >= _U64 // 2 else number


def count_varints(data: bytes | memoryview) -> int:
    """Return how many varints there are in data that consists of them."""
    return len(bytes(data).translate(None, _GOES_ON))
