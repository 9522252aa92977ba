"""Read TFRecord shards: from bytes to records, and from an Example to its features.

Any bytes return records or raise `CorruptShard` with the offset. Opens no file: bytes come from a function.
`next_record` finds the next record behind damage, by the checksum of its length.
"""

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


_ENTRY_KEY, _ENTRY_VALUE = 1, 2  # the fields of an entry of a map


DAMAGED_TFRECORD_ADVICE = "Get the shard again, or make it anew from its source."


_unpack_head = Struct("<QI").unpack


_unpack_tail = Struct("<I").unpack


_LIST_KINDS: Mapping[int, FeatureType] = {
    1: "bytes",
    2: "float",
    3: "int64",
}  # by the field of a Feature that a list is


_WIRE_VARINT, _WIRE_DELIMITED, _WIRE_FIXED_BYTES = 0, 2, {1: 8, 5: 4}  # wire types; the bytes of those of a fixed size


_FIELD_1_TAG, _FIELD_2_TAG = 0x0A, 0x12  # tags of the fields 1 and 2 of a message, with a length behind them


MAX_HELD_RECORD_BYTES = 2**26  # bytes of a record up to which it is held in memory as a whole


MAX_FEATURES = 2**16  # of an Example: 65,535 fields, the most that a sample has, and the key


_MAX_NAMES_BYTES = 2**24  # bytes of the names of an Example's features: more is an attack, no names


_TOO_MANY_FEATURES = f"more than {MAX_FEATURES:,} features, or {_MAX_NAMES_BYTES:,} bytes of their names"


_DISTANT_BLOCK_BYTES = 2**16


class TFRecord(NamedTuple):
    """A framed record: `offset` of its length field, `data` of its data, `size` of the data, and its checksum."""

    offset: int
    data: int
    size: int
    crc: int

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.data + self.size + FRAME_TAIL_BYTES


class ExampleFeature(NamedTuple):
    """A feature of an Example.

    Attributes:
        name: Its name.
        kind: `bytes`, `float` or `int64`.
        offset: Where its value starts: the bytes of a single value, or else what its list holds.
        size: Bytes from there.
        values: How many there are.
        whole: Whether these bytes are all that the list holds, tags and lengths included; else they are one part of
            it: one value, or numbers packed as one.
    """

    name: bytes
    kind: FeatureType
    offset: int
    size: int
    values: int
    whole: bool = False


def iter_records(read: Read, where: str, hold: Hold | None = None, offset: int = 0) -> Iterator[TFRecord]:
    """Yield the records of a TFRecord file, in order, without reading their data; `check_record_crc` is for these.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        where: The shard's name, for messages.
        hold: Keeps the bytes at (offset, length) at hand until the next are asked for, where `read` gives them in
            sequence only; for records that are too large to be held in memory.
        offset: Where the first of them starts.

    Raises:
        CorruptShard: The length's checksum differs, or the file ends too early.
    """
    while head := bytes(read(offset, FRAME_HEAD_BYTES)):
        if len(head) < FRAME_HEAD_BYTES:
            found = f"{len(head)} bytes"
            raise CorruptShard(
                where, found, offset=offset, expected="a record of 16 bytes or more", remedy=DAMAGED_TFRECORD_ADVICE
            )
        size, stored = _unpack_head(head)
        if stored != mask_crc(crc32c(head[:8])):
            found = f"a record's length of {size:,}, whose checksum is {stored:08x}"
            raise CorruptShard(
                where,
                found,
                offset=offset,
                expected=f"{mask_crc(crc32c(head[:8])):08x}",
                remedy=DAMAGED_TFRECORD_ADVICE,
            )
        if size > MAX_DATA_BYTES:
            raise CorruptShard(where, f"a record of {size:,} bytes", offset=offset, expected="less than 2 GiB")
        data = offset + FRAME_HEAD_BYTES
        if size <= MAX_HELD_RECORD_BYTES:  # all at once, so that what can only be read in sequence has it at hand
            tail = bytes(read(offset, FRAME_HEAD_BYTES + size + FRAME_TAIL_BYTES)[FRAME_HEAD_BYTES + size :])
        else:
            if hold is not None:
                hold(data, size + FRAME_TAIL_BYTES)
            tail = bytes(read(data + size, FRAME_TAIL_BYTES))
        if len(tail) < FRAME_TAIL_BYTES:
            what = f"a record of {size:,} bytes, and the file ends before"
            raise CorruptShard(where, what, offset=offset, remedy=DAMAGED_TFRECORD_ADVICE)
        yield TFRecord(offset, data, size, _unpack_tail(tail)[0])
        offset = data + size + FRAME_TAIL_BYTES


def is_record_start(start: bytes) -> bool:
    """Tell whether the first bytes of a file are the head of a record: its length, and the right checksum of that."""
    return len(start) >= FRAME_HEAD_BYTES and _unpack_head(start[:FRAME_HEAD_BYTES])[1] == mask_crc(crc32c(start[:8]))


def check_record_crc(record: TFRecord, crc: int, where: str) -> None:
    """Check a record's data, whose CRC-32C is `crc`.

    Raises:
        CorruptShard: It has not.
    """
    found = mask_crc(crc)
    if found != record.crc:
        what = f"a record's data with the checksum {found:08x}"
        raise CorruptShard(
            where, what, offset=record.offset, expected=f"{record.crc:08x}", remedy=DAMAGED_TFRECORD_ADVICE
        )


class LazyBytes:
    """The data of a record that is too large to hold, as something that can be indexed and sliced."""

    def __init__(self, read: Read, record: TFRecord) -> None:
        self._read, self._start, self._size = read, record.data, record.size
        self._first, self._block = 0, b""  # what was read last for single bytes

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            first, last, _ = at.indices(self._size)
            return self._read(self._start + first, max(0, last - first))
        if not 0 <= at - self._first < len(self._block):
            self._first = at
            self._block = bytes(self._read(self._start + at, max(0, min(_DISTANT_BLOCK_BYTES, self._size - at))))
        return self._block[at - self._first]


def parse_features(data: Data, start: int, where: str) -> list[ExampleFeature]:
    """Return the features of an Example. A hot path: 3 us a feature that is written as usual.

    Args:
        data: Its bytes.
        start: Where they lie in the shard: offsets count from the shard's start.
        where: The shard's name, for messages.

    Raises:
        CorruptShard: It is no Example, or one of more features than a sample has, whose list would take a hundred
            times the memory of its bytes.
    """
    found: list[ExampleFeature] = []
    count = names = 0
    try:
        for number, first, end in _message_parts(data, 0, len(data)):
            at = first
            while number == 1 and at < end:
                at = _parse_plain_feature(data, at, end, start, found) or _parse_any_feature(
                    data, at, end, start, found
                )
                if len(found) > count:
                    count += 1
                    names += len(found[-1].name)
                    if count > MAX_FEATURES or names > _MAX_NAMES_BYTES:
                        raise CorruptShard(
                            where,
                            f"a tf.train.Example of {_TOO_MANY_FEATURES}",
                            offset=start,
                            remedy=DAMAGED_TFRECORD_ADVICE,
                        )
    except (IndexError, ValueError):
        raise CorruptShard(where, "no tf.train.Example", offset=start, remedy=DAMAGED_TFRECORD_ADVICE) from None
    return found


def _parse_plain_feature(data: Data, at: int, end: int, start: int, found: list[ExampleFeature]) -> int:
    """Note a feature that is written as usual: a name and one bytes value. Return its end; 0 where it is another."""
    if data[at] != _FIELD_1_TAG:
        return 0
    size, at = read_varint(data, at + 1, end)
    last = at + size
    if not size or last > end or data[at] != _FIELD_1_TAG:
        return 0
    size, name = read_varint(data, at + 1, last)
    value = at = name + size
    for tag in (
        _FIELD_2_TAG,
        _FIELD_1_TAG,
        _FIELD_1_TAG,
    ):  # the entry's value, a Feature; its bytes_list; the list's value
        if at >= last or data[at] != tag:
            return 0
        size, at = read_varint(data, at + 1, last)
        if at + size != last:
            return 0
    found.append(ExampleFeature(_parse_name(data, name, value), "bytes", start + at, size, 1))
    return last


def _parse_any_feature(data: Data, at: int, end: int, start: int, found: list[ExampleFeature]) -> int:
    """Note a feature, however it is written; return its end."""
    number, first, last = next(_message_parts(data, at, end))
    if number == 1:
        found.append(_parse_feature(data, first, last, start))
    return last


def decode_numbers(data: bytes | memoryview, kind: str) -> list[int] | list[float]:
    """Return the numbers of a feature's list, packed or one by one.

    Raises:
        ValueError: There are none of that kind.
    """
    try:
        if kind == "float":
            spans = [*_value_spans(data)]
            if any((last - first) % 4 for first, last in spans):
                raise ValueError
            return [number for first, last in spans for (number,) in iter_unpack("<f", data[first:last])]
        found = []
        for first, last in _value_spans(data):
            at = first
            while at < last:
                value, at = read_varint(data, at, last)
                found.append(to_signed(value))
    except IndexError:
        raise ValueError from None
    return found


def decode_bytes_list(data: bytes) -> list[bytes]:
    """Return the values of a `bytes_list`, by all that it holds.

    Raises:
        ValueError: It is no list.
        IndexError: It ends too early.
    """
    return [data[first:last] for first, last in _value_spans(data)]


def decode_single_int(data: bytes | memoryview) -> int | None:
    """Return the number in a packed part of an `int64_list`; None where it is not a single one.

    One of more than ten bytes counts as none: what is short is cheap to keep.
    """
    try:
        number, end = read_varint(data, 0, len(data))
    except ValueError:
        return None
    return to_signed(number) if end == len(data) else None


def _value_spans(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a list's values lie."""
    return ((first, last) for tag, first, last in _message_parts(data, 0, len(data)) if tag == 1)


def _parse_feature(data: Data, first: int, last: int, start: int) -> ExampleFeature:
    """Return the feature in a map entry at `first` to `last`."""
    name, value = b"", (last, last)
    for tag, at, end in _message_parts(data, first, last):
        if tag == _ENTRY_KEY:
            name = _parse_name(data, at, end)
        elif tag == _ENTRY_VALUE:
            value = (at, end)
    number, count, (first, last) = 1, 0, (value[1], value[1])
    for tag, at, end in _message_parts(data, *value):
        number, (count, (first, last)) = tag, _parse_list(data, at, end)
    if number not in _LIST_KINDS:
        raise ValueError
    kind, whole = _LIST_KINDS[number], count != 1
    if kind == "float" and not whole:
        count = (last - first) // 4
    elif kind == "int64" and not whole:
        pieces = range(first, last, BLOCK_BYTES)  # a list of numbers may take 2 GiB
        count = sum(count_varints(data[at : min(at + BLOCK_BYTES, last)]) for at in pieces)
    return ExampleFeature(name, kind, start + first, last - first, count, whole)


def _parse_name(data: Data, first: int, last: int) -> bytes:
    if last - first > _MAX_NAMES_BYTES:
        raise ValueError
    return bytes(data[first:last])


def _parse_list(data: Data, first: int, last: int) -> tuple[int, tuple[int, int]]:
    """Return how many parts a list has, and where it lies: its only part, or else all that it holds."""
    count, only = 0, (first, last)
    for number, at, end in _message_parts(data, first, last):
        if number == 1:
            count += 1
            only = (at, end)
    return count, only if count == 1 else (first, last)


def _message_parts(data: Data, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (field number, start, end) of each part of a protobuf message that lies at `at` to `end`."""
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


_PLAUSIBLE_LENGTH = re.compile(rb"(?s)(?=(?!\0{4}).{4}\0{4})")  # of a record below 4 GiB, and not empty


def next_record(read: Read, offset: int, first: int, size: int) -> int | None:
    """Return where a TFRecord goes on behind the damaged head of a record; None: nowhere.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        offset: Where that head starts.
        first: The first place where it may go on; before the head, if what stands there is damaged, too.
        size: Bytes of the file; -1: unknown, and it is read in sequence only.
    """
    if size >= 0:
        length = int.from_bytes(bytes(read(offset, 8)), "little")
        end = offset + FRAME_HEAD_BYTES + length + FRAME_TAIL_BYTES
        fits = first > offset and length <= MAX_DATA_BYTES and end <= size
        if fits and (end == size or _is_record_head(bytes(read(end, FRAME_HEAD_BYTES)), end, size)):
            return end
    at = first
    while window := bytes(read(at, BLOCK_BYTES + FRAME_HEAD_BYTES)):
        for match in _PLAUSIBLE_LENGTH.finditer(window, 0, BLOCK_BYTES):
            if _is_record_head(window[match.start() : match.start() + FRAME_HEAD_BYTES], at + match.start(), size):
                return at + match.start()
        at += BLOCK_BYTES
    return None


def _is_record_head(head: bytes, offset: int, size: int) -> bool:
    """Tell whether bytes at a place are the head of a record that ends in the file."""
    length = int.from_bytes(head[:8], "little")
    ends = size < 0 or offset + FRAME_HEAD_BYTES + length + FRAME_TAIL_BYTES <= size
    return is_record_start(head) and length <= MAX_DATA_BYTES and ends
