"""Varints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.format.varint import count_varints, encode_varint, read_varint, to_signed
from tests import tfrecords


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16_383, "ff7f"), (16_384, "808001"),
     (2**31 - 1, "ffffffff07"), (2**63 - 1, "ffffffffffffffff7f"), (-1, "ffffffffffffffffff01"),
     (-(2**63), "80808080808080808001")],
)  # fmt: skip
def test_encoded_varints(number: int, encoded: str) -> None:
    """A varint has seven bits per byte, the lowest first; a negative number takes ten bytes."""
    assert encode_varint(number).hex() == encoded


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_varint_is_minimal(number: int) -> None:
    """Any number is read back from the minimum number of bytes."""
    assert tfrecords.read_varint(encode_varint(number), 0) == (number % 2**64, len(encode_varint(number)))
    assert encode_varint(number) == tfrecords.varint(number)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.binary(max_size=3))
def test_varints_round_trip(numbers: list[int], before: bytes) -> None:
    """Consecutive varints are read back with their sign, and counted."""
    data = before + b"".join(map(encode_varint, numbers))
    offset, decoded = len(before), []
    while offset < len(data):
        number, offset = read_varint(data, offset, len(data))
        decoded.append(to_signed(number))
    assert decoded == numbers
    assert count_varints(data[len(before) :]) == len(numbers)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 10 + b"\x01", b"\x80" * 20])
def test_invalid_varints_are_rejected(data: bytes) -> None:
    """Data that ends too early, or continues for more than ten bytes, is rejected."""
    with pytest.raises(ValueError, match=r"^$"):
        read_varint(data, 0, len(data))
