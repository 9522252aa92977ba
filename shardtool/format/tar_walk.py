r"""Tar shards, read: from bytes to members, for any tar that the usual tools write.

Reads ustar, GNU (long names, base-256 sizes) and pax headers, one member after the other. Python's
`tarfile` ends quietly at a damaged header; here every block that is no header, and every end that comes
too early, is a `CorruptShard` with its place. Nothing here opens a file: bytes come from a function.

Source: POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format"; docs/format.md, "Tar shards".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import adler32

from shardtool.errors import CorruptShard, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes | memoryview]

BLOCK = 512
_ZERO = bytes(BLOCK)
_HALF = 256
_LONG_LIMIT = 2**20  # bytes of a pax header or a GNU long name: more is an attack, not a name
_FILES = (b"0", b"\0", b"7")
_WITHOUT_PAYLOAD = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders
_EXTENDED = (b"x", b"g", b"L", b"K", b"X")
_SPARSE = b"S"  # of old GNU tar: its map may go on in blocks behind the header
_MORE_OF_MAP, _MORE_OF_MAP_STILL = 482, 504  # where a header, and such a block, tell of another one
_SIZE_DIGITS = 19
_SIZE_LIMIT = 2**62  # so that no place overflows what the system counts with
_BASE_256 = 0x80
_BLANKS = 8 * 0x20
_USUAL = b"0" + bytes(100) + b"ustar\0" + b"00"  # type, link name, magic and version of a plain file
REMEDY = "Get the shard again, or make it anew from its source."


class Member(NamedTuple):
    """A member of a tar.

    Attributes:
        name: As it is written, a leading `./` included.
        offset: Where its first header starts, a pax header or long name included.
        data: Where its payload starts.
        size: Bytes of the payload.
        is_file: Whether it is a plain file: no folder, link or device.
        end: Where the next header starts.
    """

    name: bytes
    offset: int
    data: int
    size: int
    is_file: bool
    end: int


def walk(read: Read, where: str) -> Iterator[Member]:
    """Yield the members of a tar, in order.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        where: The shard's name, for messages.

    Raises:
        CorruptShard: A block is no header, or the file ends too early.
    """
    offset = 0
    while True:
        block = bytes(read(offset, BLOCK))
        if len(block) < BLOCK or block == _ZERO:
            check_end(read, offset, where)
            return
        size = _usual_size(block)
        if size >= 0:
            data = offset + BLOCK
            end = data + (size + BLOCK - 1 & -BLOCK)
            name = block[: block.find(b"\0", 0, 100)] if not block[99] else block[:100]
            yield Member(name, offset, data, size, True, end)  # noqa: FBT003 - a plain file
        else:
            member = _any_member(read, offset, where)
            yield member
            end = member.end
        offset = end


def check_end(read: Read, offset: int, where: str) -> None:
    """See that a tar ends at `offset` with two blocks of zeros, and that only zeros follow.

    Raises:
        CorruptShard: It does not.
    """
    tail = bytes(read(offset, 2 * BLOCK))
    if len(tail) < 2 * BLOCK or tail.count(0) != 2 * BLOCK:
        found = f"at {offset:,}: {len(tail):,} bytes" if len(tail) < 2 * BLOCK else f"at {offset + BLOCK:,}: no zeros"
        raise CorruptShard(where, found, expected="two blocks of 512 zeros, the end of a tar", remedy=REMEDY)
    offset += 2 * BLOCK
    while rest := bytes(read(offset, 2**16)):
        if rest.count(0) != len(rest):
            raise CorruptShard(where, f"at {offset:,}: bytes after the end of the tar", expected="zeros", remedy=REMEDY)
        offset += len(rest)


def _usual_size(block: bytes) -> int:
    """Return the size that the usual header tells: a plain file, its name in one field; -1: it is another, or damaged.

    A hot path: 1 us. Adler-32's low half is one more than the sum of bytes modulo 65,521, and that of a block of
    which half is zero is below.
    """
    if block[156:265] != _USUAL or block[345] or block[135] or block[154:156] != b"\0 " or block.count(0) <= _HALF:
        return -1
    try:
        told, size = int(block[148:154], 8), int(block[124:135], 8)
    except ValueError:
        return -1
    total = (adler32(block) & 0xFFFF) - (adler32(block[148:156]) & 0xFFFF) + _BLANKS
    return size if told == total else -1


def _any_member(read: Read, start: int, where: str) -> Member:
    """Return the member whose headers start at `start`: extended ones, then its own."""
    long_name, long_size, offset, sparse = None, None, start, False
    while True:
        block = bytes(read(offset, BLOCK))
        if len(block) < BLOCK:
            raise CorruptShard(where, f"at {offset:,}: the file ends", expected="a header", remedy=REMEDY)
        size, kind = _checked_size(block, offset, where), block[156:157]
        if kind not in _EXTENDED:
            break
        body = _body(read, offset, size, where)
        if kind == b"L":
            long_name = body.rstrip(b"\0")
        elif kind in (b"x", b"X"):
            records = _pax(body, offset, where)
            sparse = any(keyword.startswith(b"GNU.sparse.") for keyword in records)  # the payload is a map, and parts
            long_name = records.get(b"GNU.sparse.name", records.get(b"path", long_name))
            if b"size" in records:
                long_size = _decimal(records[b"size"], offset, where)
        offset += BLOCK + size + (-size & (BLOCK - 1))
    name = long_name if long_name is not None else _name(block)
    if kind in _WITHOUT_PAYLOAD:
        size = 0
    elif long_size is not None:
        size = long_size
    data = offset + BLOCK
    if kind == _SPARSE and block[_MORE_OF_MAP]:
        data = _end_of_map(read, data, where)
    is_file = kind in _FILES and not sparse and not name.endswith(b"/")
    return Member(name, start, data, size, is_file, data + size + (-size & (BLOCK - 1)))


def _end_of_map(read: Read, offset: int, where: str) -> int:
    """Return where the blocks end that go on with the map of a sparse file."""
    while True:
        block = read(offset, BLOCK)
        if len(block) < BLOCK:
            raise CorruptShard(where, f"at {offset:,}: the file ends", expected="a sparse file's map", remedy=REMEDY)
        offset += BLOCK
        if not block[_MORE_OF_MAP_STILL]:
            return offset


def _body(read: Read, offset: int, size: int, where: str) -> bytes:
    """Return the body of the extended header at `offset`."""
    if size > _LONG_LIMIT:
        raise CorruptShard(where, f"at {offset:,}: an extended header of {size:,} bytes", remedy=REMEDY)
    body = bytes(read(offset + BLOCK, size))
    if len(body) < size:
        raise CorruptShard(where, f"at {offset + BLOCK:,}: the file ends in an extended header", remedy=REMEDY)
    return body


def _checked_size(block: bytes, offset: int, where: str) -> int:
    """Return the size that a header tells, after its checksum was seen to be right."""
    try:
        told = int(block[148:156].strip(b"\0 "), 8)
    except ValueError:
        raise CorruptShard(where, f"at {offset:,}: no tar header", remedy=REMEDY) from None
    # Adler-32's low half is one more than the sum of up to 256 bytes.
    total = (adler32(block[:_HALF]) & 0xFFFF) + (adler32(block[_HALF:]) & 0xFFFF) - 2
    total += _BLANKS - sum(block[148:156])
    if told != total and told != _signed_sum(block):
        raise CorruptShard(
            where, f"at {offset:,}: a header with the checksum {told:o}", expected=f"{total:o}", remedy=REMEDY
        )
    field = block[124:136]
    if field[0] & _BASE_256:
        size = int.from_bytes(field, "big") & ~(_BASE_256 << 88)
        if field[0] == 0xFF:  # noqa: PLR2004 - a negative number
            size = -1
    else:
        try:
            size = int(field.strip(b"\0 ") or b"0", 8)
        except ValueError:
            size = -1
    if not 0 <= size < _SIZE_LIMIT:
        raise CorruptShard(where, f"at {offset:,}: a header with the size {printable(field)}", remedy=REMEDY)
    return size


def _signed_sum(block: bytes) -> int:
    """Return the checksum as some old programs took it, of signed bytes."""
    return sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:]) + _BLANKS  # noqa: PLR2004


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(body: bytes, offset: int, where: str) -> dict[bytes, bytes]:
    records, at = {}, 0
    while at < len(body):
        blank = body.find(b" ", at, at + 20)
        length = int(body[at:blank]) if blank > at and body[at:blank].isdigit() else 0
        record = body[blank + 1 : at + length - 1]
        keyword, equals, value = record.partition(b"=")
        if not length or at + length > len(body) or not equals or body[at + length - 1 : at + length] != b"\n":
            if not body[at:].strip(b"\0"):
                break
            raise CorruptShard(where, f"at {offset:,}: a pax header that is none", remedy=REMEDY)
        records[keyword] = value
        at += length
    return records


def _decimal(text: bytes, offset: int, where: str) -> int:
    if not text.isdigit() or len(text) > _SIZE_DIGITS or int(text) >= _SIZE_LIMIT:
        raise CorruptShard(where, f"at {offset:,}: a pax header with the size {printable(text)}", remedy=REMEDY)
    return int(text)
