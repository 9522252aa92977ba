"""Parse the records of TFRecord shards, and the features of a `tf.train.Example`."""

from __future__ import annotations

import re
from struct import Struct, iter_unpack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord_write import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, MAX_DATA_BYTES, mask_crc
from shardtool.format.varint import count_varints, read_varint, to_signed
from shardtool.values import BLOCK_BYTES, FeatureType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Read = Callable[[int, int], bytes | memoryview]
    Hold = Callable[[int, int], object]
    Data: TypeAlias = "bytes | memoryview | LazyBytes"


_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_unpack_head = Struct("<QI").unpack
_unpack_tail = Struct("<I").unpack
_LIST_KINDS: Mapping[int, FeatureType] = {1: "bytes", 2: "float", 3: "int64"}
_WIRE_VARINT, _WIRE_DELIMITED, _WIRE_FIXED_BYTES = 0, 2, {1: 8, 5: 4}
_FIELD_1_TAG, _FIELD_2_TAG = 0x0A, 0x12
MAX_HELD_RECORD_BYTES = 2**26
MAX_FEATURES = 2**16
_MAX_NAMES_BYTES = 2**24  # more bytes of names may be an attack
_TOO_MANY_FEATURES = f"more than {MAX_FEATURES:,} features, or {_MAX_NAMES_BYTES:,} bytes of feature names"
_DISTANT_BLOCK_BYTES = 2**16


def tfrecord_error(where: str, offset: int, found: str, expected: str = "") -> CorruptShard:
    """Return the error for a damaged TFRecord file."""
    remedy = "Fetch the shard again, or recreate it from its source."
    return CorruptShard(where, found, offset=offset, expected=expected, remedy=remedy)


class TFRecord(NamedTuple):
    """The location of a record: its `offset`, and the offset, size and masked checksum of its data."""

    offset: int
    data: int
    size: int
    crc: int

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.data + self.size + FRAME_TAIL_BYTES


class ExampleFeature(NamedTuple):
    """A feature of an Example, and the location of its value in the shard.

    Attributes:
        is_list: Whether `offset` and `size` locate a whole list with tags and lengths. Otherwise, they locate a single
            value or packed numbers.
    """

    name: bytes
    kind: FeatureType
    offset: int
    size: int
    values: int
    is_list: bool = False


def iter_records(read: Read, where: str, hold: Hold | None = None, offset: int = 0) -> Iterator[TFRecord]:
    """Yield the records of a shard without checking the data (see `check_record_crc`).

    Pass `hold` if `read` can only read forward. `hold(offset, size)` must keep the bytes of a large record, so that
    `read` can return them again until the next call of `hold`.

    Raises:
        CorruptShard: A length does not match its checksum, or the file ends too early.
    """
    while head := bytes(read(offset, FRAME_HEAD_BYTES)):
        if len(head) < FRAME_HEAD_BYTES:
            found = f"{len(head)} bytes"
            raise tfrecord_error(where, offset, found, "a record of at least 16 bytes")
        size, stored = _unpack_head(head)
        if stored != mask_crc(crc32c(head[:8])):
            found = f"a record length of {size:,} with checksum {stored:08x}"
            raise tfrecord_error(where, offset, found, f"{mask_crc(crc32c(head[:8])):08x}")
        if size > MAX_DATA_BYTES:
            raise CorruptShard(where, f"a record of {size:,} bytes", offset=offset, expected="less than 2 GiB")
        data = offset + FRAME_HEAD_BYTES
        if size <= MAX_HELD_RECORD_BYTES:
            tail = bytes(read(offset, FRAME_HEAD_BYTES + size + FRAME_TAIL_BYTES)[FRAME_HEAD_BYTES + size :])
        else:
            if hold is not None:
                hold(data, size + FRAME_TAIL_BYTES)
            tail = bytes(read(data + size, FRAME_TAIL_BYTES))
        if len(tail) < FRAME_TAIL_BYTES:
            found = f"the file ends inside a record of {size:,} bytes"
            raise tfrecord_error(where, offset, found)
        yield TFRecord(offset, data, size, _unpack_tail(tail)[0])
        offset = data + size + FRAME_TAIL_BYTES


def is_record_start(start: bytes) -> bool:
    """Return whether a file starts with a record's length and the valid checksum of this length."""
    return len(start) >= FRAME_HEAD_BYTES and _unpack_head(start[:FRAME_HEAD_BYTES])[1] == mask_crc(crc32c(start[:8]))


def check_record_crc(record: TFRecord, crc: int, where: str) -> None:
    """Raise `CorruptShard` unless `crc`, the CRC-32C of a record's data, matches the checksum in the record."""
    masked = mask_crc(crc)
    if masked != record.crc:
        found = f"record data with checksum {masked:08x}"
        raise tfrecord_error(where, record.offset, found, f"{record.crc:08x}")


class LazyBytes:
    """The data of a large record. Indexing and slicing read only the necessary bytes."""

    def __init__(self, read: Read, record: TFRecord) -> None:
        self._read, self._start, self._size = read, record.data, record.size
        self._first, self._block = 0, b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            first, last, _ = index.indices(self._size)
            return self._read(self._start + first, max(0, last - first))
        if not 0 <= index - self._first < len(self._block):
            self._first = index
            self._block = bytes(self._read(self._start + index, max(0, min(_DISTANT_BLOCK_BYTES, self._size - index))))
        return self._block[index - self._first]


def parse_features(data: Data, start: int, where: str) -> list[ExampleFeature]:
    """Return the features of an Example. `start` is the offset of the Example in the shard.

    Raises:
        CorruptShard: `data` is not an Example, or has too many features or too long feature names.
    """
    features: list[ExampleFeature] = []
    count = name_bytes = 0
    try:
        for number, first, end in _message_parts(data, 0, len(data)):
            at = first
            while number == 1 and at < end:
                at = _parse_single_bytes_feature(data, at, end, start, features) or _parse_any_feature(
                    data, at, end, start, features
                )
                if len(features) > count:
                    count += 1
                    name_bytes += len(features[-1].name)
                    if count > MAX_FEATURES or name_bytes > _MAX_NAMES_BYTES:
                        raise tfrecord_error(where, start, f"a tf.train.Example of {_TOO_MANY_FEATURES}")
    except (IndexError, ValueError):
        raise tfrecord_error(where, start, "not a tf.train.Example") from None
    return features


def _parse_single_bytes_feature(data: Data, at: int, end: int, start: int, features: list[ExampleFeature]) -> int:
    if data[at] != _FIELD_1_TAG:
        return 0
    size, at = read_varint(data, at + 1, end)
    entry_end = at + size
    if not size or entry_end > end or data[at] != _FIELD_1_TAG:
        return 0
    size, name = read_varint(data, at + 1, entry_end)
    value = at = name + size
    for tag in (_FIELD_2_TAG, _FIELD_1_TAG, _FIELD_1_TAG):
        if at >= entry_end or data[at] != tag:
            return 0
        size, at = read_varint(data, at + 1, entry_end)
        if at + size != entry_end:
            return 0
    features.append(ExampleFeature(_parse_name(data, name, value), "bytes", start + at, size, 1))
    return entry_end


def _parse_any_feature(data: Data, at: int, end: int, start: int, features: list[ExampleFeature]) -> int:
    number, first, last = next(_message_parts(data, at, end))
    if number == 1:
        features.append(_parse_feature(data, first, last, start))
    return last


def decode_numbers(data: bytes | memoryview, kind: str) -> list[int] | list[float]:
    """Return the numbers in an encoded int64_list or float_list, packed or not. Raise `ValueError` for other `data`."""
    try:
        if kind == "float":
            spans = [*_value_spans(data)]
            if any((last - first) % 4 for first, last in spans):
                raise ValueError
            return [number for first, last in spans for (number,) in iter_unpack("<f", data[first:last])]
        numbers = []
        for first, last in _value_spans(data):
            index = first
            while index < last:
                value, index = read_varint(data, index, last)
                numbers.append(to_signed(value))
    except IndexError:
        raise ValueError from None
    return numbers


def decode_bytes_list(data: bytes) -> list[bytes]:
    """Return the values of an encoded bytes_list."""
    return [data[first:last] for first, last in _value_spans(data)]


def decode_single_int(data: bytes | memoryview) -> int | None:
    """Return the number in a packed int64_list of one number, or None for other lists."""
    try:
        number, end = read_varint(data, 0, len(data))
    except ValueError:
        return None
    return to_signed(number) if end == len(data) else None


def _value_spans(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    return ((first, last) for tag, first, last in _message_parts(data, 0, len(data)) if tag == 1)


def _parse_feature(data: Data, first: int, last: int, start: int) -> ExampleFeature:
    name, value = b"", (last, last)
    for tag, start_at, end in _message_parts(data, first, last):
        if tag == _ENTRY_KEY:
            name = _parse_name(data, start_at, end)
        elif tag == _ENTRY_VALUE:
            value = (start_at, end)
    list_field, count, (first, last) = 1, 0, (value[1], value[1])
    for tag, start_at, end in _message_parts(data, *value):
        list_field, (count, (first, last)) = tag, _parse_list(data, start_at, end)
    if list_field not in _LIST_KINDS:
        raise ValueError
    kind, is_list = _LIST_KINDS[list_field], count != 1
    if kind == "float" and not is_list:
        count = (last - first) // 4
    elif kind == "int64" and not is_list:
        pieces = range(first, last, BLOCK_BYTES)  # a whole list can take 2 GiB
        count = sum(count_varints(data[start_at : min(start_at + BLOCK_BYTES, last)]) for start_at in pieces)
    return ExampleFeature(name, kind, start + first, last - first, count, is_list)


def _parse_name(data: Data, first: int, last: int) -> bytes:
    if last - first > _MAX_NAMES_BYTES:
        raise ValueError
    return bytes(data[first:last])


def _parse_list(data: Data, first: int, last: int) -> tuple[int, tuple[int, int]]:
    count, span = 0, (first, last)
    for number, at, end in _message_parts(data, first, last):
        if number == 1:
            count += 1
            span = (at, end)
    return count, span if count == 1 else (first, last)


def _message_parts(data: Data, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    while at < end:
        tag, at = read_varint(data, at, end)
        wire, first = tag & 7, at
        if wire == _WIRE_DELIMITED:
            size, first = read_varint(data, at, end)
            at = first + size
        elif wire == _WIRE_VARINT:
            _, at = read_varint(data, at, end)
        elif wire in _WIRE_FIXED_BYTES:
            at += _WIRE_FIXED_BYTES[wire]
        else:
            raise ValueError
        if at > end:
            raise ValueError
        yield tag >> 3, first, at


_PLAUSIBLE_LENGTH = re.compile(rb"(?s)(?=(?!\0{4}).{4}\0{4})")


def next_record(read: Read, offset: int, first: int, size: int) -> int | None:
    """Return the offset of the first undamaged record after damage at `offset`, or None.

    Records are recognised by the checksum of their length. The search starts at `first`. If the previous record may be
    damaged, `first` is before `offset`. `size` is the shard's size, or -1 if the shard is compressed.
    """
    if size >= 0:
        length = int.from_bytes(bytes(read(offset, 8)), "little")
        end = offset + FRAME_HEAD_BYTES + length + FRAME_TAIL_BYTES
        fits = first > offset and length <= MAX_DATA_BYTES and end <= size
        if fits and (end == size or _is_record_head(bytes(read(end, FRAME_HEAD_BYTES)), end, size)):
            return end
    position = first
    while window := bytes(read(position, BLOCK_BYTES + FRAME_HEAD_BYTES)):
        for match in _PLAUSIBLE_LENGTH.finditer(window, 0, BLOCK_BYTES):
            if _is_record_head(
                window[match.start() : match.start() + FRAME_HEAD_BYTES], position + match.start(), size
            ):
                return position + match.start()
        position += BLOCK_BYTES
    return None


def _is_record_head(head: bytes, offset: int, size: int) -> bool:
    length = int.from_bytes(head[:8], "little")
    ends = size < 0 or offset + FRAME_HEAD_BYTES + length + FRAME_TAIL_BYTES <= size
    return is_record_start(head) and length <= MAX_DATA_BYTES and ends
