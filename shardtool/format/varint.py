"""Base-128 varints: integers with seven bits per byte, least significant bits first.

A negative integer is stored in 64-bit two's complement and takes ten bytes.

Source: Protocol Buffers, "Encoding"; Thrift's compact protocol encodes sizes the same way.
"""

from __future__ import annotations

from typing import Protocol


class ByteSource(Protocol):
    """Bytes that can be indexed."""

    def __getitem__(self, index: int, /) -> int: ...


_MAX_VARINT_BYTES = 10
_UINT64_RANGE = 2**64
CONTINUATION_BIT = 128
_LOW_BITS = 127
_ONE_BYTE_VARINTS = [bytes([number]) for number in range(CONTINUATION_BIT)]
_CONTINUATION_BYTES = bytes(range(CONTINUATION_BIT, 256))


def encode_varint(number: int) -> bytes:
    """Return a number as a varint."""
    if 0 <= number < 1 << 7:
        return _ONE_BYTE_VARINTS[number]
    if 0 <= number < 1 << 14:
        return bytes((number & 127 | 128, number >> 7))
    number %= _UINT64_RANGE
    parts = bytearray()
    while number > _LOW_BITS:
        parts.append(number & _LOW_BITS | CONTINUATION_BIT)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def read_varint(data: ByteSource, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned number at index `at`, and the index after the varint.

    Raises:
        ValueError: The varint does not end before `end`, or is longer than ten bytes.
    """
    value = shift = 0
    while at < end and shift < 7 * _MAX_VARINT_BYTES:
        byte = data[at]
        at += 1
        value |= (byte & _LOW_BITS) << shift
        if byte < CONTINUATION_BIT:
            return value & (2**64 - 1), at
        shift += 7
    raise ValueError


def to_signed(number: int) -> int:
    """Convert an unsigned 64-bit number to the signed number with the same bits."""
    return number - _UINT64_RANGE if number >= _UINT64_RANGE // 2 else number


def count_varints(data: bytes | memoryview) -> int:
    """Return the number of varints in `data`. `data` must consist of varints only."""
    return len(bytes(data).translate(None, _CONTINUATION_BYTES))
