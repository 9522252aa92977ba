r"""TFRecord shards: a `tf.train.Example` a sample, the bytes around a payload, and their exact size.

    shard   = { record }
    record  = length masked-crc-of-length data masked-crc-of-data
    data    = an Example whose features stand in the order of the bytes of their names:
              the key as `__key__`, and each field of the sample

A payload is a `bytes_list` of one value; what is a number is an `int64_list` or `float_list` of one. Lists that come
from other TFRecords are stored as they lay there.
No TensorFlow and no protobuf library: what stands before a payload follows from the names and sizes alone.

Source: tensorflow/core/lib/io/record_writer.h; tensorflow/core/example/{example,feature}.proto;
the protobuf encoding guide; docs/format.md, "TFRecord shards".
"""

from __future__ import annotations

import re
from struct import Struct, iter_unpack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.values import BLOCK, Kind, Number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Read = Callable[[int, int], bytes | memoryview]
    Hold = Callable[[int, int], object]
    Data: TypeAlias = "bytes | memoryview | DistantBytes"

# Base 128 varints: whole numbers of seven bits a byte, least first; all bytes but the last have the eighth bit.
#
# Signed numbers are their two's complement of 64 bits, so that negative ones take ten bytes.
#
# Source: Protocol Buffers, "Encoding"; Thrift's compact protocol writes its sizes alike.


_MOST_BYTES = 10
_U64 = 2**64
MORE = 128  # the bit of a byte that tells of another one
_LOW = 127
_ONE_BYTE = [bytes([number]) for number in range(MORE)]
_GOES_ON = bytes(range(MORE, 256))  # the bytes of a varint that are not its last


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


def read_varint(data: Data, at: int, end: int) -> tuple[int, int]:
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


# Records, written.


KEY_FEATURE = b"__key__"
FRAME_HEAD = 12  # the length, and its checksum
FRAME_TAIL = 4  # the data's checksum
DATA_LIMIT = 2**31 - 1  # what protobuf parses
RECORD_LIMIT = FRAME_HEAD + DATA_LIMIT + FRAME_TAIL

INT64_LIMIT = 2**63
_MASK_DELTA = 0xA282EAD8
_WORD = 0xFFFFFFFF
_put_head = Struct("<QI").pack_into
_put_tail = Struct("<I").pack_into
_length = Struct("<Q").pack
_float = Struct("<f").pack
_LIST_TAG = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}  # Feature: bytes_list, float_list, int64_list


def masked(crc: int) -> int:
    """Return a CRC-32C the way that TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _WORD


class FeatureHead:
    """The bytes before the payloads of one field.

    Args:
        name: The field's name.
        kind: What the payload is: bytes (or None), or numbers that are packed.
        whole: Whether a payload is all that the field's list holds, tags and lengths included.
    """

    __slots__ = ("_name", "_tag", "_value")

    def __init__(self, name: bytes, kind: Kind | None = None, *, whole: bool = False) -> None:
        self._name = b"\x0a%b%b\x12" % (encode_varint(len(name)), name)  # map entry: key, then the tag of the value
        self._tag, self._value = _LIST_TAG[kind or "bytes"], b"" if whole else b"\x0a"

    def __call__(self, size: int) -> bytes:
        """Return the bytes before a payload of `size` bytes. A hot path: 1 us a field."""
        value = self._value and self._value + encode_varint(size)
        size += len(value)
        list_length = encode_varint(size)
        size += 1 + len(list_length)
        feature_length = encode_varint(size)
        entry = encode_varint(size + len(feature_length) + len(self._name))
        return b"\x0a%b%b%b%b%b%b" % (entry, self._name, feature_length, self._tag, list_length, value)


_key_head = FeatureHead(KEY_FEATURE)


def key_feature(key: bytes) -> bytes:
    """Return the feature that holds the key."""
    return _key_head(len(key)) + key


def example_head(record_size: int) -> bytes:
    """Return the start of the data of a record of `record_size` bytes: the tag and length of its features."""
    size = record_size - FRAME_HEAD - FRAME_TAIL
    width = len(encode_varint(size))
    length = encode_varint(size - 1 - width)
    return b"\x0a" + (length if len(length) == width else encode_varint(size - width))


def put_frame_head(into: memoryview | bytearray, at: int, record_size: int) -> int:
    """Write the length of a record's data, and its checksum; return the place after them."""
    size = record_size - FRAME_HEAD - FRAME_TAIL
    _put_head(into, at, size, masked(crc32c(_length(size))))
    return at + FRAME_HEAD


def put_frame_tail(into: memoryview | bytearray, at: int, crc: int) -> int:
    """Write the checksum `crc` of a record's data; return the place after it."""
    _put_tail(into, at, masked(crc))
    return at + FRAME_TAIL


def encode_number(text: bytes, number: Number) -> bytes:
    """Return what stands for a number in its packed list.

    Raises:
        ValueError: It is none.
        OverflowError: It does not fit.
    """
    if number == "float":
        return _float(float(text))
    value = int(text)
    if not -INT64_LIMIT <= value < INT64_LIMIT:
        raise OverflowError
    return encode_varint(value)


def encode_sample(
    key: bytes, fields: list[tuple[bytes, bytes | memoryview]], numbers: Mapping[bytes, Number]
) -> list[bytes | memoryview]:
    """Return the record of one sample, in parts.

    Args:
        key: Its key.
        fields: (name, payload), in the order of the bytes of the names; numbers as `encode_number` returns them.
        numbers: What the payload of a field is, where it is a number.
    """
    features: list[tuple[bytes, list[bytes | memoryview]]] = [(KEY_FEATURE, [key_feature(key)])]
    features += [(name, [FeatureHead(name, numbers.get(name))(len(data)), data]) for name, data in fields]
    parts = [part for _, feature in sorted(features, key=lambda one: one[0]) for part in feature]
    data = b"\x0a" + encode_varint(sum(map(len, parts)))
    frame, tail = bytearray(FRAME_HEAD), bytearray(FRAME_TAIL)
    put_frame_head(frame, 0, FRAME_HEAD + len(data) + sum(map(len, parts)) + FRAME_TAIL)
    crc = crc32c(data)
    for part in parts:
        crc = crc32c(part, crc)
    put_frame_tail(tail, 0, crc)
    return [bytes(frame), data, *parts, bytes(tail)]


# Records, read: from bytes to records, and from an Example to its features. Any bytes give records or `CorruptShard`,
# with the place. Nothing here opens a file: bytes come from a function.


_ENTRY_KEY, _ENTRY_VALUE = 1, 2  # the fields of an entry of a map
REMEDY = "Get the shard again, or make it anew from its source."
_head = Struct("<QI").unpack
_tail = Struct("<I").unpack
_KINDS: Mapping[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}  # by the field of a Feature that a list is
_VARINT, _DELIMITED, _FIXED = 0, 2, {1: 8, 5: 4}  # wire types; the bytes of those of a fixed size
_FIRST, _SECOND = 0x0A, 0x12  # tags of the fields 1 and 2 of a message, with a length behind them
HELD_LIMIT = 2**26  # bytes of a record up to which it is held in memory as a whole
FEATURE_LIMIT = 2**16  # of an Example: 65,535 fields, the most that a sample has, and the key
_NAMES_LIMIT = 2**24  # bytes of the names of an Example's features: more is an attack, no names
_TOO_MUCH = f"more than {FEATURE_LIMIT:,} features, or {_NAMES_LIMIT:,} bytes of their names"
_FAR_BLOCK = 2**16


class Record(NamedTuple):
    """A framed record: `offset` of its length field, `data` of its data, `size` of the data, and its checksum."""

    offset: int
    data: int
    size: int
    crc: int

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.data + self.size + FRAME_TAIL


class Feature(NamedTuple):
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
    kind: Kind
    offset: int
    size: int
    values: int
    whole: bool = False


def walk(read: Read, where: str, hold: Hold | None = None, offset: int = 0) -> Iterator[Record]:
    """Yield the records of a TFRecord file, in order, without reading their data; `check_crc` is for these.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        where: The shard's name, for messages.
        hold: Keeps the bytes at (offset, length) at hand until the next are asked for, where `read` gives them in
            sequence only; for records that are too large to be held in memory.
        offset: Where the first of them starts.

    Raises:
        CorruptShard: The length's checksum differs, or the file ends too early.
    """
    while head := bytes(read(offset, FRAME_HEAD)):
        if len(head) < FRAME_HEAD:
            found = f"{len(head)} bytes"
            raise CorruptShard(where, found, offset=offset, expected="a record of 16 bytes or more", remedy=REMEDY)
        size, stored = _head(head)
        if stored != masked(crc32c(head[:8])):
            found = f"a record's length of {size:,}, whose checksum is {stored:08x}"
            raise CorruptShard(where, found, offset=offset, expected=f"{masked(crc32c(head[:8])):08x}", remedy=REMEDY)
        if size > DATA_LIMIT:
            raise CorruptShard(where, f"a record of {size:,} bytes", offset=offset, expected="less than 2 GiB")
        data = offset + FRAME_HEAD
        if size <= HELD_LIMIT:  # all at once, so that what can only be read in sequence has it at hand
            tail = bytes(read(offset, FRAME_HEAD + size + FRAME_TAIL)[FRAME_HEAD + size :])
        else:
            if hold is not None:
                hold(data, size + FRAME_TAIL)
            tail = bytes(read(data + size, FRAME_TAIL))
        if len(tail) < FRAME_TAIL:
            what = f"a record of {size:,} bytes, and the file ends before"
            raise CorruptShard(where, what, offset=offset, remedy=REMEDY)
        yield Record(offset, data, size, _tail(tail)[0])
        offset = data + size + FRAME_TAIL


def is_start(start: bytes) -> bool:
    """Tell whether the first bytes of a file are the head of a record: its length, and the right checksum of that."""
    return len(start) >= FRAME_HEAD and _head(start[:FRAME_HEAD])[1] == masked(crc32c(start[:8]))


def check_crc(record: Record, crc: int, where: str) -> None:
    """Check a record's data, whose CRC-32C is `crc`.

    Raises:
        CorruptShard: It has not.
    """
    found = masked(crc)
    if found != record.crc:
        what = f"a record's data with the checksum {found:08x}"
        raise CorruptShard(where, what, offset=record.offset, expected=f"{record.crc:08x}", remedy=REMEDY)


class DistantBytes:
    """The data of a record that is too large to hold, as something that can be indexed and sliced."""

    def __init__(self, read: Read, record: Record) -> None:
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
            self._block = bytes(self._read(self._start + at, max(0, min(_FAR_BLOCK, self._size - at))))
        return self._block[at - self._first]


def features(data: Data, start: int, where: str) -> list[Feature]:
    """Return the features of an Example. A hot path: 3 us a feature that is written as usual.

    Args:
        data: Its bytes.
        start: Where they lie in the shard: offsets count from the shard's start.
        where: The shard's name, for messages.

    Raises:
        CorruptShard: It is no Example, or one of more features than a sample has, whose list would take a hundred
            times the memory of its bytes.
    """
    found: list[Feature] = []
    count = names = 0
    try:
        for number, first, end in _parts(data, 0, len(data)):
            at = first
            while number == 1 and at < end:
                at = _usual_feature(data, at, end, start, found) or _any_feature(data, at, end, start, found)
                if len(found) > count:
                    count += 1
                    names += len(found[-1].name)
                    if count > FEATURE_LIMIT or names > _NAMES_LIMIT:
                        raise CorruptShard(where, f"a tf.train.Example of {_TOO_MUCH}", offset=start, remedy=REMEDY)
    except (IndexError, ValueError):
        raise CorruptShard(where, "no tf.train.Example", offset=start, remedy=REMEDY) from None
    return found


def _usual_feature(data: Data, at: int, end: int, start: int, found: list[Feature]) -> int:
    """Note a feature that is written as usual: a name and one bytes value. Return its end; 0 where it is another."""
    if data[at] != _FIRST:
        return 0
    size, at = read_varint(data, at + 1, end)
    last = at + size
    if not size or last > end or data[at] != _FIRST:
        return 0
    size, name = read_varint(data, at + 1, last)
    value = at = name + size
    for tag in (_SECOND, _FIRST, _FIRST):  # the entry's value, a Feature; its bytes_list; the list's value
        if at >= last or data[at] != tag:
            return 0
        size, at = read_varint(data, at + 1, last)
        if at + size != last:
            return 0
    found.append(Feature(_name(data, name, value), "bytes", start + at, size, 1))
    return last


def _any_feature(data: Data, at: int, end: int, start: int, found: list[Feature]) -> int:
    """Note a feature, however it is written; return its end."""
    number, first, last = next(_parts(data, at, end))
    if number == 1:
        found.append(_feature(data, first, last, start))
    return last


def numbers_of(data: bytes | memoryview, kind: str) -> list[int] | list[float]:
    """Return the numbers of a feature's list, packed or one by one.

    Raises:
        ValueError: There are none of that kind.
    """
    try:
        if kind == "float":
            spans = [*_values(data)]
            if any((last - first) % 4 for first, last in spans):
                raise ValueError
            return [number for first, last in spans for (number,) in iter_unpack("<f", data[first:last])]
        found = []
        for first, last in _values(data):
            at = first
            while at < last:
                value, at = read_varint(data, at, last)
                found.append(signed(value))
    except IndexError:
        raise ValueError from None
    return found


def bytes_of(data: bytes) -> list[bytes]:
    """Return the values of a `bytes_list`, by all that it holds.

    Raises:
        ValueError: It is no list.
        IndexError: It ends too early.
    """
    return [data[first:last] for first, last in _values(data)]


def single_int(data: bytes | memoryview) -> int | None:
    """Return the number in a packed part of an `int64_list`; None where it is not a single one.

    One of more than ten bytes counts as none: what is short is cheap to keep.
    """
    try:
        number, end = read_varint(data, 0, len(data))
    except ValueError:
        return None
    return signed(number) if end == len(data) else None


def _values(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield where the parts of a list's values lie."""
    return ((first, last) for tag, first, last in _parts(data, 0, len(data)) if tag == 1)


def _feature(data: Data, first: int, last: int, start: int) -> Feature:
    """Return the feature in a map entry at `first` to `last`."""
    name, value = b"", (last, last)
    for tag, at, end in _parts(data, first, last):
        if tag == _ENTRY_KEY:
            name = _name(data, at, end)
        elif tag == _ENTRY_VALUE:
            value = (at, end)
    number, count, (first, last) = 1, 0, (value[1], value[1])
    for tag, at, end in _parts(data, *value):
        number, (count, (first, last)) = tag, _list(data, at, end)
    if number not in _KINDS:
        raise ValueError
    kind, whole = _KINDS[number], count != 1
    if kind == "float" and not whole:
        count = (last - first) // 4
    elif kind == "int64" and not whole:
        pieces = range(first, last, BLOCK)  # a list of numbers may take 2 GiB
        count = sum(count_varints(data[at : min(at + BLOCK, last)]) for at in pieces)
    return Feature(name, kind, start + first, last - first, count, whole)


def _name(data: Data, first: int, last: int) -> bytes:
    if last - first > _NAMES_LIMIT:
        raise ValueError
    return bytes(data[first:last])


def _list(data: Data, first: int, last: int) -> tuple[int, tuple[int, int]]:
    """Return how many parts a list has, and where it lies: its only part, or else all that it holds."""
    count, only = 0, (first, last)
    for number, at, end in _parts(data, first, last):
        if number == 1:
            count += 1
            only = (at, end)
    return count, only if count == 1 else (first, last)


def _parts(data: Data, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (field number, start, end) of each part of a protobuf message that lies at `at` to `end`."""
    while at < end:
        tag, at = read_varint(data, at, end)
        wire, first = tag & 7, at
        if wire == _DELIMITED:
            size, first = read_varint(data, at, end)
            at = first + size
        elif wire == _VARINT:
            _, at = read_varint(data, at, end)
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise ValueError
        if at > end:
            raise ValueError
        yield tag >> 3, first, at


# Where a damaged file can be read again: the next record behind the damage, whose length has the right checksum.


_SHORT_LENGTH = re.compile(rb"(?s)(?=(?!\0{4}).{4}\0{4})")  # of a record below 4 GiB, and not empty


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
        end = offset + FRAME_HEAD + length + FRAME_TAIL
        fits = first > offset and length <= DATA_LIMIT and end <= size
        if fits and (end == size or _is_record(bytes(read(end, FRAME_HEAD)), end, size)):
            return end
    at = first
    while window := bytes(read(at, BLOCK + FRAME_HEAD)):
        for match in _SHORT_LENGTH.finditer(window, 0, BLOCK):
            if _is_record(window[match.start() : match.start() + FRAME_HEAD], at + match.start(), size):
                return at + match.start()
        at += BLOCK
    return None


def _is_record(head: bytes, offset: int, size: int) -> bool:
    """Tell whether bytes at a place are the head of a record that ends in the file."""
    length = int.from_bytes(head[:8], "little")
    ends = size < 0 or offset + FRAME_HEAD + length + FRAME_TAIL <= size
    return is_start(head) and length <= DATA_LIMIT and ends
