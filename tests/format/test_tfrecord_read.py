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


def encode_record(key: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return a record from our writer."""
    return b"".join(map(bytes, tfrecord_write.encode_tfrecord_sample(key, [*fields], NUMBERS)))


def records(data: bytes) -> list[tfrecord_read.TFRecord]:
    """Return the records in the bytes of a shard."""
    return list(tfrecord_read.iter_records(lambda offset, length: data[offset : offset + length], "x.tfrecord"))


def check_records(data: bytes) -> None:
    """Check the data of all records against their checksums."""
    for record in records(data):
        tfrecord_read.check_record_crc(record, crc32c(data[record.data : record.data + record.size]), "x")


def features(data: bytes) -> dict[str, tuple[str, bytes, int]]:
    """Return the features of an Example: type, bytes, and number of values."""
    return {
        feature.name.decode(): (feature.kind, data[feature.offset : feature.offset + feature.size], feature.values)
        for feature in tfrecord_read.parse_features(data, 0, "x")
    }


def _data() -> bytes:
    return b"".join(
        encode_record(
            b"k%d" % number,
            [
                (b"cls", tfrecord_write.encode_number(b"%d" % (number - 2), "int64")),
                (b"jpg", b"x" * 100 * number),
                (b"score", tfrecord_write.encode_number(b"0.5", "float")),
            ],
        )
        for number in range(5)
    )


def test_records_round_trip() -> None:
    """Records and their features are read back with their offsets, types and bytes."""
    data = _data()
    read_records = records(data)
    assert [
        (record.offset, data[record.data : record.data + record.size]) for record in read_records
    ] == tfrecords.records(data)
    for number, record in enumerate(read_records):
        payload = data[record.data : record.data + record.size]
        tfrecord_read.check_record_crc(record, crc32c(payload), "x")
        features_by_name = {
            feature.name: feature for feature in tfrecord_read.parse_features(payload, record.data, "x")
        }
        assert sorted(features_by_name) == [b"__key__", b"cls", b"jpg", b"score"]
        jpg = features_by_name[b"jpg"]
        assert data[jpg.offset : jpg.offset + jpg.size] == b"x" * 100 * number
        packed = data[features_by_name[b"cls"].offset :][: features_by_name[b"cls"].size]
        assert tfrecord_read.decode_numbers(b"\x0a" + encode_varint(len(packed)) + packed, "int64") == [number - 2]


@given(st.dictionaries(st.text(max_size=20), st.binary(max_size=300), max_size=6))
def test_features_match_an_independent_reader(fields: dict[str, bytes]) -> None:
    """An independent reader finds the same features at the same offsets."""
    names = {f"f{name}": data for name, data in fields.items()}
    data = encode_record(b"key", sorted((name.encode(), payload) for name, payload in names.items()))
    [(start, example)] = tfrecords.records(data)
    assert start == 0
    expected = {
        (feature.name, feature.start, feature.stop - feature.start) for feature in tfrecords.parse_example(example)
    }
    parsed = tfrecord_read.parse_features(example, 0, "x")
    assert {(feature.name.decode(), feature.offset, feature.size) for feature in parsed} == expected


def test_lists_of_other_writers() -> None:
    """Several values, unpacked numbers, other field orders and unknown fields are read."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2]) + encode_varint(len(data)) + data

    many = field(1, field(1, b"many") + field(2, field(1, field(1, b"a") + field(1, b"bc"))))
    loose = field(1, field(1, b"loose") + field(2, field(3, b"\x08\x05\x08\x06")))  # int64s, not packed
    reversed_entry = field(1, field(2, field(1, field(1, b"v"))) + field(1, b"turned"))
    empty = field(1, field(1, b"none") + field(2, b""))
    unknown = field(1, field(1, b"more") + field(2, field(1, field(1, b"w"))) + field(7, b"?"))
    parsed = features(field(1, many + loose + reversed_entry + empty + unknown) + field(9, b"?"))
    assert {name: (kind, values) for name, (kind, _, values) in parsed.items()} == {
        "many": ("bytes", 2), "loose": ("int64", 2), "turned": ("bytes", 1), "none": ("bytes", 0), "more": ("bytes", 1),
    }  # fmt: skip
    assert (parsed["turned"][1], parsed["more"][1]) == (b"v", b"w")
    parsed_features = tfrecord_read.parse_features(field(1, many + loose + reversed_entry + empty + unknown), 0, "x")
    assert {feature.name for feature in parsed_features if feature.is_list} == {b"many", b"loose", b"none"}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), st.binary(max_size=12))
def test_a_single_number(values: list[int], junk: bytes) -> None:
    """Only exactly one integer is returned as a single number; any bytes give a number or None."""
    packed = b"".join(map(tfrecords.varint, values))
    assert tfrecord_read.decode_single_int(packed) == (values[0] if len(values) == 1 else None)
    number = tfrecord_read.decode_single_int(junk)
    if number is not None:
        assert tfrecord_read.decode_numbers(tfrecords.part(junk), "int64") == [number]


def test_truncation_inside_a_record_is_damage() -> None:
    """A file that ends inside a record is damage; one that ends between records is a shorter file."""
    data = _data()
    ends = [0, *(record.end for record in records(data))]
    for length in range(len(data)):
        if length in ends:
            assert len(records(data[:length])) == ends.index(length)
            continue
        with pytest.raises(CorruptShard):
            records(data[:length])


def test_any_flipped_bit_is_damage() -> None:
    """A flipped bit anywhere in a record is damage, by one of its two checksums."""
    data = bytearray(_data())
    for offset in range(len(data)):
        data[offset] ^= 1 << offset % 8
        with pytest.raises(CorruptShard):
            check_records(bytes(data))
        data[offset] ^= 1 << offset % 8


def test_a_large_record_is_not_held() -> None:
    """A record too large for memory is read in pieces, with the same result."""
    data = encode_record(b"key", [(b"cls", tfrecord_write.encode_number(b"7", "int64")), (b"jpg", b"x" * 5000)])
    [record] = records(data)
    lazy_data = tfrecord_read.LazyBytes(lambda offset, length: data[offset : offset + length], record)
    data_in_memory = data[record.data : record.data + record.size]
    assert tfrecord_read.parse_features(lazy_data, record.data, "x") == tfrecord_read.parse_features(
        data_in_memory, record.data, "x"
    )


def test_a_record_of_two_gigabytes_is_rejected() -> None:
    """A record larger than protobuf's limit is rejected without reading it."""
    head = bytearray(12)
    tfrecord_write.put_frame_head(head, 0, 2**31 + 16)
    with pytest.raises(CorruptShard, match="2 GiB"):
        records(bytes(head))


@given(st.binary(max_size=400))
def test_any_bytes_give_records_or_damage(data: bytes) -> None:
    """Any bytes are records or damage, and any data is features or damage; no other error is raised."""
    with contextlib.suppress(CorruptShard):
        records(data)
    with contextlib.suppress(CorruptShard):
        records(tfrecords.frame(data))
    with contextlib.suppress(CorruptShard):
        for feature in tfrecord_read.parse_features(data, 0, "x"):
            assert 0 <= feature.offset <= feature.offset + feature.size <= len(data)
    for kind in ("int64", "float"):
        with contextlib.suppress(ValueError):
            tfrecord_read.decode_numbers(data, kind)


@given(st.data())
def test_a_damaged_example(data: st.DataObject) -> None:
    """A changed Example raises no other error, and no offset is outside it."""
    [(_, example)] = tfrecords.records(encode_record(b"key", [(b"cls", b"\x07"), (b"jpg", b"xyz" * 10)]))
    damaged = bytearray(example)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptShard):
        for feature in tfrecord_read.parse_features(bytes(damaged), 0, "x"):
            assert 0 <= feature.offset <= feature.offset + feature.size <= len(damaged)
