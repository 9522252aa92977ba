"""Encode TFRecord shards, with one `tf.train.Example` per sample.

    shard = { record }
    record = length masked-crc-of-length data masked-crc-of-data
    data = an Example whose features are sorted by the bytes of their names:
              the key as `__key__`, and each field of the sample

A payload is a bytes_list with one value, and a number is an int64_list or float_list with one value. Lists with several
values or no values come from TFRecords of other tools, and are copied unchanged.

Source: tensorflow/core/lib/io/record_writer.h; tensorflow/core/example/{example,feature}.proto; the protobuf encoding
guide; docs/format.md, "TFRecord shards".
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from shardtool.fingerprint import crc32c
from shardtool.format.varint import encode_varint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.values import FeatureType, NumberType


KEY_FEATURE = b"__key__"
FRAME_HEAD_BYTES = 12
FRAME_TAIL_BYTES = 4
MAX_DATA_BYTES = 2**31 - 1  # the limit of protobuf
MAX_RECORD_BYTES = FRAME_HEAD_BYTES + MAX_DATA_BYTES + FRAME_TAIL_BYTES
INT64_LIMIT = 2**63
_MASK_DELTA = 0xA282EAD8
_UINT32_MASK = 0xFFFFFFFF
_put_head = Struct("<QI").pack_into
_put_tail = Struct("<I").pack_into
_pack_length = Struct("<Q").pack
_pack_float = Struct("<f").pack
_LIST_TAG = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}


def mask_crc(crc: int) -> int:
    """Mask a CRC-32C as TFRecord requires: rotate it by 15 bits and add a constant."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _UINT32_MASK


class FeatureHead:
    """Computes the bytes before each payload of one field.

    `kind` is the type of the feature, or None for bytes. If `is_list`, payloads are whole lists with tags and lengths.
    """

    __slots__ = ("_name", "_tag", "_value")

    def __init__(self, name: bytes, kind: FeatureType | None = None, *, is_list: bool = False) -> None:
        self._name = b"\x0a%b%b\x12" % (encode_varint(len(name)), name)
        self._tag = _LIST_TAG[kind or "bytes"]
        self._value = b"" if is_list else b"\x0a"

    def __call__(self, size: int) -> bytes:
        """Return the bytes before a payload of `size` bytes."""
        value = self._value and self._value + encode_varint(size)
        size += len(value)
        list_length = encode_varint(size)
        size += 1 + len(list_length)
        feature_length = encode_varint(size)
        entry = encode_varint(size + len(feature_length) + len(self._name))
        return b"\x0a%b%b%b%b%b%b" % (entry, self._name, feature_length, self._tag, list_length, value)


_key_head = FeatureHead(KEY_FEATURE)


def key_feature(key: bytes) -> bytes:
    """Return the feature that stores the key."""
    return _key_head(len(key)) + key


def example_head(record_size: int) -> bytes:
    """Return the first bytes of a record's data: the tag and length of the message with all features."""
    size = record_size - FRAME_HEAD_BYTES - FRAME_TAIL_BYTES
    width = len(encode_varint(size))
    length = encode_varint(size - 1 - width)
    return b"\x0a" + (length if len(length) == width else encode_varint(size - width))


def put_frame_head(into: memoryview | bytearray, at: int, record_size: int) -> int:
    """Write a record's length and the checksum of the length to `into`. Return the index after the checksum."""
    size = record_size - FRAME_HEAD_BYTES - FRAME_TAIL_BYTES
    _put_head(into, at, size, mask_crc(crc32c(_pack_length(size))))
    return at + FRAME_HEAD_BYTES


def put_frame_tail(into: memoryview | bytearray, at: int, crc: int) -> int:
    """Write the masked checksum of a record's data to `into`. Return the index after the checksum."""
    _put_tail(into, at, mask_crc(crc))
    return at + FRAME_TAIL_BYTES


def encode_number(text: bytes, number: NumberType) -> bytes:
    """Parse a number, and encode it for a packed list.

    Raises:
        ValueError: The text is not a number.
        OverflowError: The number does not fit into the type `number`.
    """
    if number == "float":
        return _pack_float(float(text))
    value = int(text)
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise OverflowError
    return encode_varint(value)


def encode_tfrecord_sample(
    key: bytes, fields: list[tuple[bytes, bytes | memoryview]], numbers: Mapping[bytes, NumberType]
) -> list[bytes | memoryview]:
    """Return the record of one sample, as a list of parts.

    `fields` must be sorted by the bytes of the names. Payloads of fields in `numbers` must be results of
    `encode_number`.
    """
    features: list[tuple[bytes, list[bytes | memoryview]]] = [(KEY_FEATURE, [key_feature(key)])]
    features += [(name, [FeatureHead(name, numbers.get(name))(len(data)), data]) for name, data in fields]
    parts = [part for _, feature in sorted(features, key=lambda item: item[0]) for part in feature]
    data = b"\x0a" + encode_varint(sum(map(len, parts)))
    frame, tail = bytearray(FRAME_HEAD_BYTES), bytearray(FRAME_TAIL_BYTES)
    put_frame_head(frame, 0, FRAME_HEAD_BYTES + len(data) + sum(map(len, parts)) + FRAME_TAIL_BYTES)
    crc = crc32c(data)
    for part in parts:
        crc = crc32c(part, crc)
    put_frame_tail(tail, 0, crc)
    return [bytes(frame), data, *parts, bytes(tail)]
