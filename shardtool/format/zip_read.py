"""Parse zip archives.

Stored and deflated members, zip64 and data descriptors are supported. Encrypted members and members with another
compression method are listed but not read. Split archives are refused. Members outside the central directory are
ignored.

Source: PKWARE, APPNOTE.TXT 6.3.10.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes | memoryview]

STORED, DEFLATED = 0, 8
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_CENTRAL_HEADER = struct.Struct("<4s6H3L5H2L")
_END_RECORD = struct.Struct("<4s4H2LH")
_ZIP64_END_RECORD = struct.Struct("<4sQ2H2L4Q")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")
_LOCAL_MARK, _CENTRAL_MARK, _DESCRIPTOR_MARK = b"PK\3\4", b"PK\1\2", b"PK\7\10"
_END_MARK, _ZIP64_END_MARK, _ZIP64_LOCATOR_MARK = b"PK\5\6", b"PK\6\6", b"PK\6\7"
_MAX_COMMENT_BYTES = 2**16 - 1
_ENCRYPTED_FLAG, _DESCRIPTOR_FLAG = 1, 8
_IN_ZIP64 = 2**32 - 1  # this value means that the zip64 extra field contains the number
_ZIP64_EXTRA_ID = 1
_UNIX_SYSTEM = 3
_MAX_DEFLATE_RATIO = 1032
_BLOCK_BYTES = 2**18
_PACKED_SLACK_BYTES = 2**16  # if the compressed size is unknown, read at most this plus twice the decompressed size
_DESCRIPTOR_BYTES = 12
_HEADER_READ_BYTES = 512


class ZipMember(NamedTuple):
    """A member of a zip.

    Attributes:
        offset: Offset of the member's local header.
        packed: Compressed size in bytes.
        mode: Unix mode with the file type, or 0 if unknown.
    """

    name: bytes
    offset: int
    size: int
    packed: int
    method: int
    encrypted: bool
    mode: int


class _Directory(NamedTuple):
    start: int
    end: int
    before: int


def iter_zip_members(read: Read, size: int, where: str) -> Iterator[ZipMember]:
    """Yield the members of a zip in the order of the central directory. Names of folders end in a slash."""
    directory = _find_directory(read, size, where)
    position = directory.start
    while position < directory.end:
        head = bytes(read(position, _CENTRAL_HEADER.size))
        if len(head) < _CENTRAL_HEADER.size or not head.startswith(_CENTRAL_MARK):
            raise CorruptShard(where, "not an entry of a zip directory", offset=position)
        entry = _CENTRAL_HEADER.unpack(head)
        _, creator, _, flags, method, _, _, _, packed, length, names, extras, comment, disk, _, attrs, offset = entry
        name = bytes(read(position + _CENTRAL_HEADER.size, names))
        extra = bytes(read(position + _CENTRAL_HEADER.size + names, extras))
        if _IN_ZIP64 in (length, packed, offset):
            length, packed, offset = _with_zip64(extra, (length, packed, offset), where, position)
        offset += directory.before
        if disk or offset + _LOCAL_HEADER.size + packed > directory.start or length > packed * _MAX_DEFLATE_RATIO:
            raise CorruptShard(where, "a member that claims more bytes than the file has", offset=position)
        mode = attrs >> 16 if creator >> 8 == _UNIX_SYSTEM else 0
        yield ZipMember(name, offset, length, packed, method, bool(flags & _ENCRYPTED_FLAG), mode)
        position += _CENTRAL_HEADER.size + names + extras + comment


def zip_payload_start(read: Read, member: ZipMember, where: str) -> int:
    """Return the offset of a member's payload."""
    head = bytes(read(member.offset, _LOCAL_HEADER.size + len(member.name)))
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_LOCAL_MARK):
        raise CorruptShard(where, "not a member header", offset=member.offset)
    _, _, flags, method, _, _, _, packed, size, names, extra = _LOCAL_HEADER.unpack_from(head)
    is_same = (method, names, head[_LOCAL_HEADER.size :]) == (member.method, len(member.name), member.name)
    has_sizes = flags & _DESCRIPTOR_FLAG or (packed in (member.packed, _IN_ZIP64) and size in (member.size, _IN_ZIP64))
    if not is_same or not has_sizes:
        expected = "the name, method and sizes in the zip directory"
        raise CorruptShard(
            where, "a member header that contradicts the zip directory", offset=member.offset, expected=expected
        )
    start: int = member.offset + _LOCAL_HEADER.size + names + extra
    return start


def iter_zip_payload(read: Read, offset: int, size: int, where: str) -> Iterator[bytes]:
    """Yield the decompressed payload of the member at `offset` in blocks, `size` bytes in total.

    Raises:
        CorruptShard: The member is damaged. The checksum is verified after the last block.
    """
    head = bytes(read(offset, min(_BLOCK_BYTES, _LOCAL_HEADER.size + _HEADER_READ_BYTES + size)))
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_LOCAL_MARK):
        raise CorruptShard(where, "not a member header", offset=offset)
    _, _, flags, method, _, _, expected_crc, packed, _, names, extra = _LOCAL_HEADER.unpack_from(head)
    if method not in (STORED, DEFLATED) or flags & _ENCRYPTED_FLAG:
        raise CorruptShard(
            where,
            "a member that is encrypted, or whose compression method differs from the zip directory",
            offset=offset,
        )
    start = _LOCAL_HEADER.size + names + extra
    limit = _PACKED_SLACK_BYTES + 2 * size if flags & _DESCRIPTOR_FLAG or packed == _IN_ZIP64 else packed
    source = _PackedBytes(read, head[start:], offset + max(start, len(head)), limit)
    length = crc = 0
    for block in _inflate(source, size) if method == DEFLATED else _iter_stored(source, size):
        length += len(block)
        if length > size:
            raise CorruptShard(where, f"a member of more than {size:,} bytes", offset=offset)
        crc = zlib.crc32(block, crc)
        yield block
    if length < size:
        raise CorruptShard(where, f"a member of {length:,} bytes", offset=offset, expected=f"{size:,} bytes")
    is_valid = crc == expected_crc and packed in (source.used, _IN_ZIP64)
    if not is_valid and not (flags & _DESCRIPTOR_FLAG and source.is_described(crc)):
        problem = "a member whose payload does not match its checksum and size"
        raise CorruptShard(where, problem, offset=offset)


class _PackedBytes:
    def __init__(self, read: Read, data: bytes, offset: int, limit: int) -> None:
        self._read, self.data, self._offset, self._start, self._limit = read, data, offset, offset - len(data), limit

    @property
    def used(self) -> int:
        return self._offset - self._start - len(self.data)

    def more(self) -> bool:
        if not self.data:
            self.data = bytes(self._read(self._offset, _BLOCK_BYTES))
            self._offset += len(self.data)
        return bool(self.data) and self.used <= self._limit

    def is_described(self, crc: int) -> bool:
        following = self.data[:_DESCRIPTOR_BYTES] + bytes(self._read(self._offset, _DESCRIPTOR_BYTES))
        descriptor = struct.pack("<LL", crc, self.used & _IN_ZIP64)
        return descriptor in (following[:8], following.removeprefix(_DESCRIPTOR_MARK)[:8])


def _iter_stored(source: _PackedBytes, size: int) -> Iterator[bytes]:
    while size and source.more():
        block, source.data = source.data[:size], source.data[size:]
        size -= len(block)
        yield block


def _inflate(source: _PackedBytes, size: int) -> Iterator[bytes]:
    unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    while not unpack.eof and size >= 0 and source.more():
        try:
            block = unpack.decompress(source.data, min(_BLOCK_BYTES, size + 1))
        except zlib.error:
            return
        source.data = unpack.unused_data or unpack.unconsumed_tail
        size -= len(block)
        yield block


def _find_directory(read: Read, size: int, where: str) -> _Directory:
    start = max(0, size - _END_RECORD.size - _MAX_COMMENT_BYTES)
    tail = bytes(read(start, size - start))
    positions = [
        match.start() for match in re.finditer(re.escape(_END_MARK), tail[: max(0, len(tail) - _END_RECORD.size + 4)])
    ]
    end_positions = [
        position
        for position in positions
        if position + _END_RECORD.size + _END_RECORD.unpack_from(tail, position)[-1] == len(tail)
    ] or positions
    if not end_positions:
        raise CorruptShard(where, "not a zip, or a truncated one", expected="the end record of a zip directory")
    if len(end_positions) > 1:
        problem = "several end records; one may be in the comment of another"
        raise CorruptShard(where, problem, expected="one end record")
    position = end_positions[0]
    _, disk, first_disk, _, _, length, offset, _ = _END_RECORD.unpack_from(tail, position)
    end = start + position
    if disk or first_disk:
        raise CorruptShard(where, "one part of a split zip", remedy="Join the parts with `zip -s 0`.")
    locator = bytes(read(max(0, end - _ZIP64_LOCATOR.size), _ZIP64_LOCATOR.size))
    if locator.startswith(_ZIP64_LOCATOR_MARK) and len(locator) == _ZIP64_LOCATOR.size:
        end -= _ZIP64_LOCATOR.size + _ZIP64_END_RECORD.size
        match = bytes(read(max(0, end), _ZIP64_END_RECORD.size))
        if end < 0 or len(match) < _ZIP64_END_RECORD.size or not match.startswith(_ZIP64_END_MARK):
            raise CorruptShard(where, "no zip64 end record", offset=max(0, end))
        length, offset = _ZIP64_END_RECORD.unpack(match)[-2:]
    if length > end or offset > end - length:
        raise CorruptShard(where, "a directory that claims more bytes than the file has", offset=end)
    return _Directory(end - length, end, end - length - offset)


def _with_zip64(extra: bytes, numbers: tuple[int, ...], where: str, offset: int) -> tuple[int, ...]:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        body = extra[position + 4 : position + 4 + length]
        if kind == _ZIP64_EXTRA_ID and len(body) >= 8 * numbers.count(_IN_ZIP64):
            large = iter(struct.unpack_from(f"<{len(body) // 8}Q", body))
            return tuple(next(large) if number == _IN_ZIP64 else number for number in numbers)
        position += 4 + length
    raise CorruptShard(where, "a zip64 member without its sizes", offset=offset)
