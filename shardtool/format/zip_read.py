"""Zip archives, read: from bytes to members and their payloads. What they claim is bounded by what is there.

Reads what image sets are handed around in: stored and deflated members, zip64, data descriptors. The central directory
says what there is; the CRC-32 that stands with the payload is compared with its bytes. Encrypted members, other
methods and archives in several parts are listed or refused, never guessed at. Nothing here opens a file: bytes come
from a function.

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
_ENCRYPTED_FLAG, _DESCRIPTOR_FLAG = 1, 8  # flags
_IN_ZIP64, _ZIP64_EXTRA_ID = 2**32 - 1, 1  # a number that stands in the extra field of this kind
_UNIX_SYSTEM = 3  # the system whose file modes a member has
_MAX_DEFLATE_RATIO = 1032  # what a byte of a deflate stream can unpack to
_BLOCK_BYTES = 2**18
_PACKED_SLACK_BYTES = (
    2**16
)  # bytes that a small member may be packed to; a large one to twice its own: no packer needs much of it
_DESCRIPTOR_BYTES = 12
_HEADER_READ_BYTES = 512  # bytes that a name and extra field rarely exceed


class ZipMember(NamedTuple):
    """A member of a zip.

    Attributes:
        name: As it is written.
        offset: Where its local header starts.
        size: Bytes of the payload.
        packed: Bytes that it takes in the file.
        method: How it is compressed: `STORED`, `DEFLATED`, or another, which is not read.
        encrypted: Whether it is.
        mode: Its Unix mode, type included; 0: unknown.
    """

    name: bytes
    offset: int
    size: int
    packed: int
    method: int
    encrypted: bool
    mode: int


class _Directory(NamedTuple):
    """Where the central directory is.

    Attributes:
        start: Where it starts in the file.
        end: Where it ends.
        before: Bytes before the archive, from which its own places do not count.
    """

    start: int
    end: int
    before: int


def iter_zip_members(read: Read, size: int, where: str) -> Iterator[ZipMember]:
    """Yield the members of a zip, in the order of its central directory; folders too, whose names end in a slash.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        size: Bytes of the file.
        where: The archive's name, for messages.

    Raises:
        CorruptShard: It is no whole zip.
    """
    directory = _find_directory(read, size, where)
    at = directory.start
    while at < directory.end:
        head = bytes(read(at, _CENTRAL_HEADER.size))
        if len(head) < _CENTRAL_HEADER.size or not head.startswith(_CENTRAL_MARK):
            raise CorruptShard(where, "no entry of a zip's directory", offset=at)
        found = _CENTRAL_HEADER.unpack(head)
        _, made, _, flags, method, _, _, _, packed, length, names, extras, comment, disk, _, outside, offset = found
        name = bytes(read(at + _CENTRAL_HEADER.size, names))
        extra = bytes(read(at + _CENTRAL_HEADER.size + names, extras))
        if _IN_ZIP64 in (length, packed, offset):
            length, packed, offset = _with_zip64(extra, (length, packed, offset), where, at)
        offset += directory.before
        if disk or offset + _LOCAL_HEADER.size + packed > directory.start or length > packed * _MAX_DEFLATE_RATIO:
            raise CorruptShard(where, "a member that claims more bytes than there are", offset=at)
        mode = outside >> 16 if made >> 8 == _UNIX_SYSTEM else 0
        yield ZipMember(name, offset, length, packed, method, bool(flags & _ENCRYPTED_FLAG), mode)
        at += _CENTRAL_HEADER.size + names + extras + comment


def zip_payload_start(read: Read, one: ZipMember, where: str) -> int:
    """Return where the payload of a member starts, whose own header must say of it what the directory says.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        one: The member.
        where: The archive's name, for messages.

    Raises:
        CorruptShard: It does not.
    """
    head = bytes(read(one.offset, _LOCAL_HEADER.size + len(one.name)))
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_LOCAL_MARK):
        raise CorruptShard(where, "no header of a member", offset=one.offset)
    _, _, flags, method, _, _, _, packed, size, names, extra = _LOCAL_HEADER.unpack_from(head)
    same = (method, names, head[_LOCAL_HEADER.size :]) == (one.method, len(one.name), one.name)
    known = flags & _DESCRIPTOR_FLAG or (packed in (one.packed, _IN_ZIP64) and size in (one.size, _IN_ZIP64))
    if not same or not known:
        expected = "the name, the method and the sizes that the zip's directory says"
        raise CorruptShard(where, "a member whose own header tells of another", offset=one.offset, expected=expected)
    start: int = one.offset + _LOCAL_HEADER.size + names + extra
    return start


def iter_zip_payload(read: Read, offset: int, size: int, where: str) -> Iterator[bytes]:
    """Yield the payload of a stored or deflated member block by block; it is right only where this comes to its end.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        offset: Where its local header starts.
        size: The bytes that it must have.
        where: The archive's name, for messages.

    Raises:
        CorruptShard: It is damaged.
    """
    head = bytes(read(offset, min(_BLOCK_BYTES, _LOCAL_HEADER.size + _HEADER_READ_BYTES + size)))
    if len(head) < _LOCAL_HEADER.size or not head.startswith(_LOCAL_MARK):
        raise CorruptShard(where, "no header of a member", offset=offset)
    _, _, flags, method, _, _, wanted, packed, _, names, extra = _LOCAL_HEADER.unpack_from(head)
    if method not in (STORED, DEFLATED) or flags & _ENCRYPTED_FLAG:
        raise CorruptShard(where, "a member that is encrypted, or compressed otherwise than listed", offset=offset)
    start = _LOCAL_HEADER.size + names + extra
    most = _PACKED_SLACK_BYTES + 2 * size if flags & _DESCRIPTOR_FLAG or packed == _IN_ZIP64 else packed
    source = _PackedBytes(read, head[start:], offset + max(start, len(head)), most)
    done = crc = 0
    for block in _inflate(source, size) if method == DEFLATED else _iter_stored(source, size):
        done += len(block)
        if done > size:
            raise CorruptShard(where, f"a member of more than {size:,} bytes", offset=offset)
        crc = zlib.crc32(block, crc)
        yield block
    if done < size:
        raise CorruptShard(where, f"a member of {done:,} bytes, not {size:,}", offset=offset)
    right = crc == wanted and packed in (source.used, _IN_ZIP64)
    if not right and not (flags & _DESCRIPTOR_FLAG and source.is_described(crc)):
        problem = "a member that does not have the checksum and size which stand with it"
        raise CorruptShard(where, problem, offset=offset)


class _PackedBytes:
    """The bytes of a member as they lie in the file, in sequence; `data` are those at hand, `most` how many it has."""

    def __init__(self, read: Read, data: bytes, at: int, most: int) -> None:
        self._read, self.data, self._at, self._start, self._most = read, data, at, at - len(data), most

    @property
    def used(self) -> int:
        """How many were taken."""
        return self._at - self._start - len(self.data)

    def more(self) -> bool:
        """Get bytes where none are at hand; return whether there are any that may be the member's."""
        if not self.data:
            self.data = bytes(self._read(self._at, _BLOCK_BYTES))
            self._at += len(self.data)
        return bool(self.data) and self.used <= self._most

    def is_described(self, crc: int) -> bool:
        """Tell whether the descriptor that follows, which may start with a mark, has a CRC-32 and the bytes taken."""
        found = self.data[:_DESCRIPTOR_BYTES] + bytes(self._read(self._at, _DESCRIPTOR_BYTES))
        said = struct.pack("<LL", crc, self.used & _IN_ZIP64)
        return said in (found[:8], found.removeprefix(_DESCRIPTOR_MARK)[:8])


def _iter_stored(source: _PackedBytes, size: int) -> Iterator[bytes]:
    while size and source.more():
        block, source.data = source.data[:size], source.data[size:]
        size -= len(block)
        yield block


def _inflate(source: _PackedBytes, size: int) -> Iterator[bytes]:
    """Yield what a deflate stream holds: no more than a byte beyond `size`, and nothing where it is damaged."""
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
    marks = [
        found.start() for found in re.finditer(re.escape(_END_MARK), tail[: max(0, len(tail) - _END_RECORD.size + 4)])
    ]
    ends = [at for at in marks if at + _END_RECORD.size + _END_RECORD.unpack_from(tail, at)[-1] == len(tail)] or marks
    if not ends:
        raise CorruptShard(where, "no zip, or one that is cut: it has no end", expected="the end of a zip's directory")
    if len(ends) > 1:
        several = "several ends, of which one may lie in the comment of another"
        raise CorruptShard(where, several, expected="a comment that ends with the file")
    at = ends[0]
    _, disk, first_disk, _, _, length, offset, _ = _END_RECORD.unpack_from(tail, at)
    end = start + at
    if disk or first_disk:
        raise CorruptShard(where, "a part of a zip that lies in several files", remedy="Join them: `zip -s 0`.")
    locator = bytes(read(max(0, end - _ZIP64_LOCATOR.size), _ZIP64_LOCATOR.size))
    if locator.startswith(_ZIP64_LOCATOR_MARK) and len(locator) == _ZIP64_LOCATOR.size:
        end -= _ZIP64_LOCATOR.size + _ZIP64_END_RECORD.size
        found = bytes(read(max(0, end), _ZIP64_END_RECORD.size))
        if end < 0 or len(found) < _ZIP64_END_RECORD.size or not found.startswith(_ZIP64_END_MARK):
            raise CorruptShard(where, "no end of a large zip's directory", offset=max(0, end))
        length, offset = _ZIP64_END_RECORD.unpack(found)[-2:]
    if length > end or offset > end - length:
        raise CorruptShard(where, "a directory that claims more bytes than there are", offset=end)
    return _Directory(end - length, end, end - length - offset)


def _with_zip64(extra: bytes, numbers: tuple[int, ...], where: str, at: int) -> tuple[int, ...]:
    """Return the numbers of a directory's entry, those that are too large for it from its extra field."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, place)
        body = extra[place + 4 : place + 4 + length]
        if kind == _ZIP64_EXTRA_ID and len(body) >= 8 * numbers.count(_IN_ZIP64):
            large = iter(struct.unpack_from(f"<{len(body) // 8}Q", body))
            return tuple(next(large) if number == _IN_ZIP64 else number for number in numbers)
        place += 4 + length
    raise CorruptShard(where, "a large member without its size", offset=at)
