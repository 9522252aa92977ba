from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.format import tfrecord_read, tfrecord_write
from shardtool.format.varint import encode_varint
from tests import tfrecords

if TYPE_CHECKING:
    from shardtool.values import NumberType

NUMBERS: dict[bytes, NumberType] = {b"cls": "int64", b"score": "float"}


def record(key: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return a record as our writer makes it."""
    return b"".join(map(bytes, tfrecord_write.encode_tfrecord_sample(key, [*fields], NUMBERS)))


def walked(data: bytes) -> list[tfrecord_read.TFRecord]:
    """Return the records in bytes."""
    return list(tfrecord_read.iter_records(lambda offset, length: data[offset : offset + length], "x.tfrecord"))


def checked(data: bytes) -> None:
    """See that all records in bytes are what their checksums say."""
    for one in walked(data):
        tfrecord_read.check_record_crc(one, crc32c(data[one.data : one.data + one.size]), "x")


def features(data: bytes) -> dict[str, tuple[str, bytes, int]]:
    """Return what lies in an Example: kind, bytes, and how many values."""
    return {
        one.name.decode(): (one.kind, data[one.offset : one.offset + one.size], one.values)
        for one in tfrecord_read.parse_features(data, 0, "x")
    }


def _data() -> bytes:
    return b"".join(
        record(b"k%d" % at, [(b"cls", tfrecord_write.encode_number(b"%d" % (at - 2), "int64")), (b"jpg", b"x" * 100 * at),
                             (b"score", tfrecord_write.encode_number(b"0.5", "float"))])
        for at in range(5)
    )  # fmt: skip


def test_what_is_written_is_walked() -> None:
    """Records and their features come back with their places, kinds and bytes."""
    data = _data()
    found = walked(data)
    assert [(one.offset, data[one.data : one.data + one.size]) for one in found] == tfrecords.records(data)
    for at, one in enumerate(found):
        payload = data[one.data : one.data + one.size]
        tfrecord_read.check_record_crc(one, crc32c(payload), "x")
        told = {feature.name: feature for feature in tfrecord_read.parse_features(payload, one.data, "x")}
        assert sorted(told) == [b"__key__", b"cls", b"jpg", b"score"]
        jpg = told[b"jpg"]
        assert data[jpg.offset : jpg.offset + jpg.size] == b"x" * 100 * at
        packed = data[told[b"cls"].offset :][: told[b"cls"].size]
        assert tfrecord_read.decode_numbers(b"\x0a" + encode_varint(len(packed)) + packed, "int64") == [at - 2]


@given(st.dictionaries(st.text(max_size=20), st.binary(max_size=300), max_size=6))
def test_independent_reading(fields: dict[str, bytes]) -> None:
    """The features are those that a reader without any code of ours finds, at the same places."""
    names = {f"f{name}": data for name, data in fields.items()}
    data = record(b"key", sorted((name.encode(), payload) for name, payload in names.items()))
    [(start, example)] = tfrecords.records(data)
    assert start == 0
    wanted = {(one.name, one.start, one.stop - one.start) for one in tfrecords.parse_example(example)}
    found = tfrecord_read.parse_features(example, 0, "x")
    assert {(one.name.decode(), one.offset, one.size) for one in found} == wanted


def test_lists_of_other_writers() -> None:
    """Several values, numbers one by one, fields in another order and unknown ones: all are read."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2]) + encode_varint(len(data)) + data

    several = field(1, field(1, b"many") + field(2, field(1, field(1, b"a") + field(1, b"bc"))))
    loose = field(1, field(1, b"loose") + field(2, field(3, b"\x08\x05\x08\x06")))  # int64s, not packed
    turned = field(1, field(2, field(1, field(1, b"v"))) + field(1, b"turned"))
    empty = field(1, field(1, b"none") + field(2, b""))
    unknown = field(1, field(1, b"more") + field(2, field(1, field(1, b"w"))) + field(7, b"?"))
    found = features(field(1, several + loose + turned + empty + unknown) + field(9, b"?"))
    assert {name: (kind, values) for name, (kind, _, values) in found.items()} == {
        "many": ("bytes", 2), "loose": ("int64", 2), "turned": ("bytes", 1), "none": ("bytes", 0), "more": ("bytes", 1),
    }  # fmt: skip
    assert (found["turned"][1], found["more"][1]) == (b"v", b"w")
    told = tfrecord_read.parse_features(field(1, several + loose + turned + empty + unknown), 0, "x")
    assert {one.name for one in told if one.whole} == {b"many", b"loose", b"none"}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), st.binary(max_size=12))
def test_a_single_number(values: list[int], junk: bytes) -> None:
    """Only what is just one whole number is told as one; any bytes give a number or none."""
    packed = b"".join(map(tfrecords.varint, values))
    assert tfrecord_read.decode_single_int(packed) == (values[0] if len(values) == 1 else None)
    found = tfrecord_read.decode_single_int(junk)
    if found is not None:
        assert tfrecord_read.decode_numbers(tfrecords.part(junk), "int64") == [found]


def test_cut_at_every_byte() -> None:
    """A file that ends within a record is damage; at the end of one it is a shorter file."""
    data = _data()
    ends = [0, *(one.end for one in walked(data))]
    for length in range(len(data)):
        if length in ends:
            assert len(walked(data[:length])) == ends.index(length)
            continue
        with pytest.raises(CorruptShard):
            walked(data[:length])


def test_any_flipped_bit_shows() -> None:
    """A flipped bit anywhere in a record is damage: its length's checksum or its data's tells."""
    data = bytearray(_data())
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        with pytest.raises(CorruptShard):
            checked(bytes(data))
        data[at] ^= 1 << at % 8


def test_a_large_record_is_not_held() -> None:
    """What is read of a record that is too large to hold is the same, by pieces."""
    data = record(b"key", [(b"cls", tfrecord_write.encode_number(b"7", "int64")), (b"jpg", b"x" * 5000)])
    [one] = walked(data)
    far = tfrecord_read.LazyBytes(lambda offset, length: data[offset : offset + length], one)
    near = data[one.data : one.data + one.size]
    assert tfrecord_read.parse_features(far, one.data, "x") == tfrecord_read.parse_features(near, one.data, "x")


def test_a_record_of_two_gigabytes_is_refused() -> None:
    """More than protobuf can parse is no Example, and is not read."""
    head = bytearray(12)
    tfrecord_write.put_frame_head(head, 0, 2**31 + 16)
    with pytest.raises(CorruptShard, match="2 GiB"):
        walked(bytes(head))


@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    """Any bytes are records or damage, and any data is features or damage: nothing else is raised."""
    with contextlib.suppress(CorruptShard):
        walked(data)
    with contextlib.suppress(CorruptShard):
        walked(tfrecords.frame(data))
    with contextlib.suppress(CorruptShard):
        for one in tfrecord_read.parse_features(data, 0, "x"):
            assert 0 <= one.offset <= one.offset + one.size <= len(data)
    for kind in ("int64", "float"):
        with contextlib.suppress(ValueError):
            tfrecord_read.decode_numbers(data, kind)


@given(st.data())
def test_a_damaged_example(data: st.DataObject) -> None:
    """Nor is anything else raised by an Example of which some bytes are others, and no place leaves it."""
    [(_, example)] = tfrecords.records(record(b"key", [(b"cls", b"\x07"), (b"jpg", b"xyz" * 10)]))
    damaged = bytearray(example)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptShard):
        for one in tfrecord_read.parse_features(bytes(damaged), 0, "x"):
            assert 0 <= one.offset <= one.offset + one.size <= len(damaged)
