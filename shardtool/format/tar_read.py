"""Read tar shards: from bytes to members, for any tar that the usual tools write. Opens no file.

Reads ustar, GNU (long names, base-256 sizes) and pax headers, one member after the other. Where GNU tar, bsdtar and
Python's `tarfile` disagree, the difference is noted and the majority is followed. Python's `tarfile` ends silently
at
a damaged header; here every block that is not a header raises `CorruptShard` with its offset, and so does an early
end.

Source: POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format"; docs/format.md, "Tar shards".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from zlib import adler32

from shardtool.errors import CorruptShard, printable
from shardtool.format.tar_write import TAR_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes | memoryview]
    Note = Callable[[int, str], None]


_ZERO = bytes(TAR_BLOCK_BYTES)


_new_tuple = tuple.__new__


_HALF = 256


_MAX_EXTENDED_BYTES = 2**20  # bytes of a pax header or a GNU long name: more is an attack, not a name


_FILE_TYPES = (b"0", b"\0", b"7")


_EMPTY_TYPES = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders


_EXTENDED_TYPES = (b"x", b"g", b"L", b"K", b"X")


_SPARSE_TYPE = b"S"  # of old GNU tar: its map may go on in blocks behind the header


_SPARSE_MORE_OFFSET, _SPARSE_NEXT_OFFSET = 482, 504  # where a header, and such a block, announce another one


_SPARSE_KEYWORDS = (b"GNU.sparse.", b"SCHILY.realsize")  # keywords


_KNOWN_TYPES = frozenset(b"0\x007123456xgLKXSVMND")


_SIZELESS_TYPES = (b"V", b"M", b"N", b"D")  # of GNU tar: volumes, lists of folders


_PER_MEMBER_KEYWORDS = (
    b"path",
    b"linkpath",
    b"size",
    b"hdrcharset",
)  # what a global header must not set for each member


_CHARSETS = (b"ISO-IR 10646 2000 UTF-8", b"BINARY")


_OCTAL_FIELD = re.compile(rb" *([0-7]*)[ \0]*")


_PAX_RECORD_START = re.compile(rb"([0-9]{1,19}) ([^=]+)=")  # of a record: its length, and its keyword


_MAX_SIZE_DIGITS = 19


_MAX_OCTAL_SIZE = 8**11 - 1  # of a size field


_MAX_SIZE = 2**62  # so that no place overflows what the system counts with


_BASE_256_MARK, _NEGATIVE_MARK = 0x80, 0xFF  # the first byte of a size in binary, and of one below zero


_BLANK_CHECKSUM = 8 * 0x20


_PLAIN_FILE_FIELDS = b"0" + bytes(100) + b"ustar\0" + b"00"  # type, link name, magic and version of a plain file


DAMAGED_TAR_ADVICE = "Get the shard again, or make it anew from its source."


def _ignore_note(_offset: int, _what: str) -> None:
    """Note nothing."""


class TarMember(NamedTuple):
    """A member of a tar.

    Attributes:
        name: As it is written, a leading `./` included.
        offset: Where its first header starts, a pax header or long name included.
        data: Where its payload starts.
        size: Bytes of the payload.
        is_file: Whether it is a plain file: no folder, link or device.
        end: Where the next header starts.
        kind: Its type, as the header has it.
        link: Where it leads, of a link.
    """

    name: bytes
    offset: int
    data: int
    size: int
    is_file: bool
    end: int
    kind: bytes = b"0"
    link: bytes = b""


def iter_members(read: Read, where: str, note: Note = _ignore_note, offset: int = 0) -> Iterator[TarMember]:
    """Yield the members of a tar, in order.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        where: The shard's name, for messages.
        note: Called with the place of a header that readers do not read alike, and why.
        offset: Where the first of them starts.

    Raises:
        CorruptShard: A block is no header, or the file ends too early.
    """
    while True:
        block = bytes(read(offset, TAR_BLOCK_BYTES))
        if len(block) < TAR_BLOCK_BYTES or block == _ZERO:
            check_trailer(read, offset, where)
            return
        size = _plain_file_size(block)
        if size >= 0:
            data = offset + TAR_BLOCK_BYTES
            end = data + (size + TAR_BLOCK_BYTES - 1 & -TAR_BLOCK_BYTES)
            name = block[: block.find(b"\0", 0, 100)] if not block[99] else block[:100]
            yield _new_tuple(
                TarMember, (name, offset, data, size, True, end, b"0", b"")
            )  # half the time of `Member(...)`
        else:
            member = _read_member(read, offset, where, note)
            yield member
            end = member.end
        offset = end


def is_tar_start(start: bytes) -> bool:
    """Tell whether the first 512 bytes of a file are a tar's header."""
    try:
        return len(start) >= TAR_BLOCK_BYTES and any(start) and _parse_size(start[:TAR_BLOCK_BYTES], 0, "") >= 0
    except CorruptShard:
        return False


def check_trailer(read: Read, offset: int, where: str) -> None:
    """Check that a tar ends at `offset` with two blocks of zeros, and that only zeros follow.

    Raises:
        CorruptShard: It does not.
    """
    tail = bytes(read(offset, 2 * TAR_BLOCK_BYTES))
    if len(tail) < 2 * TAR_BLOCK_BYTES or tail.count(0) != 2 * TAR_BLOCK_BYTES:
        found, at = (
            (f"{len(tail):,} bytes", offset)
            if len(tail) < 2 * TAR_BLOCK_BYTES
            else ("no zeros", offset + TAR_BLOCK_BYTES)
        )
        raise CorruptShard(
            where, found, offset=at, expected="two blocks of 512 zeros, the end of a tar", remedy=DAMAGED_TAR_ADVICE
        )
    offset += 2 * TAR_BLOCK_BYTES
    while rest := bytes(read(offset, 2**16)):
        if rest.count(0) != len(rest):
            raise CorruptShard(
                where, "bytes after the end of the tar", offset=offset, expected="zeros", remedy=DAMAGED_TAR_ADVICE
            )
        offset += len(rest)


def _plain_file_size(block: bytes) -> int:
    """Return the size in the usual header: a plain file, its name in one field; -1: it is another, or damaged.

    A hot path: 1 us. Adler-32's low half is one more than the sum of bytes modulo 65,521, and that of a block of
    which half is zero is below.
    """
    size_text = block[124:135]
    if (
        block[156:265] != _PLAIN_FILE_FIELDS
        or block[345]
        or block[135]
        or block.count(0) <= _HALF
        or not size_text.isdigit()
    ):
        return -1  # `int` takes signs, blanks and `0o`, too
    try:
        size = int(size_text, 8)
    except ValueError:
        return -1
    total = (adler32(block) & 0xFFFF) - (adler32(block[148:156]) & 0xFFFF) + _BLANK_CHECKSUM
    return size if block[148:156] == b"%06o\0 " % total else -1


class _ExtendedHeaders:
    """The extended headers before a member.

    A name that stands in two of them is read as the usual readers do: that of a pax header goes before a GNU long name.
    """

    def __init__(self, where: str, note: Note) -> None:
        self.where, self.note = where, note
        self.pax: dict[bytes, bytes] = {}
        self.gnu: dict[bytes, bytes] = {}

    def add_gnu_name(self, offset: int, kind: bytes, body: bytes) -> None:
        """Take in a GNU long name, or the long target of a link."""
        text = body.partition(b"\0")[0]
        if body.rstrip(b"\0") != text:
            self.note(offset, "a long name with a NUL in it")
        self._add(offset, self.gnu, kind, text)

    def add_pax(self, offset: int, records: list[tuple[bytes, bytes]]) -> None:
        """Take in a pax header."""
        if self.pax:
            self.note(offset, "a second pax header of one member, for which some readers drop the first")
        for keyword, value in records:
            if keyword in (b"path", b"linkpath") and (not value or b"\0" in value):
                self.note(offset, f"a pax header with {'a NUL in' if value else 'an empty'} {keyword.decode()}")
            if keyword == b"hdrcharset" and value not in _CHARSETS:
                self.note(offset, f"a pax header in another character set: {printable(value[:40])}")
            self._add(offset, self.pax, keyword, value)

    def _add(self, offset: int, known: dict[bytes, bytes], keyword: bytes, value: bytes) -> None:
        if known.setdefault(keyword, value) != value:
            self.note(offset, f"{_keyword_label(keyword)} given twice, with different values")
            known[keyword] = value

    def name(self, offset: int, keyword: bytes, kind: bytes, short: bytes) -> bytes:
        """Return the name in an extended header, or else the one in the header itself."""
        one, other = self.pax.get(keyword) or None, self.gnu.get(kind)
        if one is not None and other is not None and one != other:
            self.note(
                offset, f"{_keyword_label(keyword)} given by a pax header and by a GNU one, with different values"
            )
        return one if one is not None else other if other is not None else short


def _keyword_label(keyword: bytes) -> str:
    return {b"L": "path", b"K": "linkpath"}.get(keyword, printable(keyword[:40]))


def _read_member(read: Read, start: int, where: str, note: Note) -> TarMember:
    """Return the member whose headers start at `start`: extended ones, then its own."""
    found, offset = _ExtendedHeaders(where, note), start
    while True:
        block = bytes(read(offset, TAR_BLOCK_BYTES))
        if len(block) < TAR_BLOCK_BYTES:
            raise CorruptShard(where, "the file ends", offset=offset, expected="a header", remedy=DAMAGED_TAR_ADVICE)
        size, kind = _parse_size(block, offset, where), block[156:157]
        if kind not in _EXTENDED_TYPES:
            break
        body = _extended_body(read, offset, size, where)
        if kind in (b"L", b"K"):
            found.add_gnu_name(offset, kind, body)
        elif kind == b"g":
            _note_global(_parse_pax(body, offset, where), offset, note)
        else:
            if body[-1:] == b"\0":
                note(offset, "a pax header with zeros after its records, for which some readers drop all of it")
            found.add_pax(offset, _parse_pax(body, offset, where))
        offset += TAR_BLOCK_BYTES + size + (-size & (TAR_BLOCK_BYTES - 1))
    return _parse_member(read, block, offset, start, found)


def _parse_member(read: Read, block: bytes, offset: int, start: int, found: _ExtendedHeaders) -> TarMember:
    """Return the member whose own header lies at `offset`."""
    where = found.where
    size, kind = _parse_size(block, offset, where), block[156:157]
    _note_header(block, size, offset, found.note)
    sparse = kind == _SPARSE_TYPE or any(keyword.startswith(_SPARSE_KEYWORDS) for keyword in found.pax)
    if sparse:  # the payload is a map, and parts
        found.note(offset, "a sparse file, which some readers fill with zeros and others take as it lies")
    name = found.pax.get(b"GNU.sparse.name", found.name(start, b"path", b"L", _parse_name(block)))
    link = found.name(start, b"linkpath", b"K", block[157:257].partition(b"\0")[0])
    if b"size" in found.pax:
        long_size = _parse_decimal(found.pax[b"size"], start, where)
        if size != long_size and (size or long_size <= _MAX_OCTAL_SIZE):
            found.note(start, f"a pax header with the size {long_size:,}, before a header with {size:,}")
        size = long_size
    if kind in _EMPTY_TYPES:
        if size:
            found.note(offset, f"{size:,} bytes of a link, device or folder, which some readers skip and others read")
        size = 0
    if size and (kind in _SIZELESS_TYPES or (kind == b"\0" and name.endswith(b"/"))):
        found.note(offset, f"{size:,} bytes of a member that is no file, which some readers skip and others read")
    if not name:
        found.note(start, "a member without a name")
    data = offset + TAR_BLOCK_BYTES
    if kind == _SPARSE_TYPE and block[_SPARSE_MORE_OFFSET]:
        data = _sparse_map_end(read, data, where)
    is_file = kind in _FILE_TYPES and not sparse and not name.endswith(b"/")
    return TarMember(name, start, data, size, is_file, data + size + (-size & (TAR_BLOCK_BYTES - 1)), kind, link)


def _note_global(records: list[tuple[bytes, bytes]], offset: int, note: Note) -> None:
    """Note what a global header says of the members: some readers believe it, and others do not."""
    for keyword, _ in records:
        if keyword in _PER_MEMBER_KEYWORDS or keyword.startswith(_SPARSE_KEYWORDS):
            note(offset, f"a global pax header with the {printable(keyword[:40])} of all that follows")


def _note_header(block: bytes, size: int, offset: int, note: Note) -> None:
    """Note what a header has that readers take for different things."""
    if block[156] not in _KNOWN_TYPES:
        note(offset, f"a member of the unknown type {printable(block[156:157])!r}, {size:,} bytes")
    if block[345] and block[257:263] != b"ustar\0":
        note(offset, "something where only a ustar header has a part of the name")


def _sparse_map_end(read: Read, offset: int, where: str) -> int:
    """Return where the blocks end that go on with the map of a sparse file."""
    while True:
        block = read(offset, TAR_BLOCK_BYTES)
        if len(block) < TAR_BLOCK_BYTES:
            raise CorruptShard(
                where, "the file ends", offset=offset, expected="a sparse file's map", remedy=DAMAGED_TAR_ADVICE
            )
        offset += TAR_BLOCK_BYTES
        if not block[_SPARSE_NEXT_OFFSET]:
            return offset


def _extended_body(read: Read, offset: int, size: int, where: str) -> bytes:
    """Return the body of the extended header at `offset`."""
    if size > _MAX_EXTENDED_BYTES:
        raise CorruptShard(where, f"an extended header of {size:,} bytes", offset=offset, remedy=DAMAGED_TAR_ADVICE)
    body = bytes(read(offset + TAR_BLOCK_BYTES, size))
    if len(body) < size:
        raise CorruptShard(
            where, "the file ends in an extended header", offset=offset + TAR_BLOCK_BYTES, remedy=DAMAGED_TAR_ADVICE
        )
    return body


def _parse_size(block: bytes, offset: int, where: str) -> int:
    """Return the size in a header whose checksum is right."""
    match = _OCTAL_FIELD.fullmatch(block, 148, 156)
    if match is None or not match[1]:
        raise CorruptShard(where, "no tar header", offset=offset, remedy=DAMAGED_TAR_ADVICE)
    stored = int(match[1], 8)
    # Adler-32's low half is one more than the sum of up to 256 bytes.
    total = (adler32(block[:_HALF]) & 0xFFFF) + (adler32(block[_HALF:]) & 0xFFFF) - 2
    total += _BLANK_CHECKSUM - sum(block[148:156])
    if stored != total and stored != _signed_sum(block):
        found = f"a header with the checksum {stored:o}"
        raise CorruptShard(where, found, offset=offset, expected=f"{total:o}", remedy=DAMAGED_TAR_ADVICE)
    field = block[124:136]
    if field[0] & _BASE_256_MARK:
        size = int.from_bytes(field, "big") & ~(_BASE_256_MARK << 88)
        if field[0] == _NEGATIVE_MARK:
            size = -1
    else:
        octal = _OCTAL_FIELD.fullmatch(field)
        blank = octal is not None and not octal[1] and b" " in field  # which GNU tar refuses
        size = int(octal[1] or b"0", 8) if octal is not None and not blank else -1
    if not 0 <= size < _MAX_SIZE:
        raise CorruptShard(
            where, f"a header with the size {printable(field)}", offset=offset, remedy=DAMAGED_TAR_ADVICE
        )
    return size


def _signed_sum(block: bytes) -> int:
    """Return the checksum as some old programs took it, of signed bytes."""
    return sum(memoryview(block[:148] + block[156:]).cast("b")) + _BLANK_CHECKSUM


def _parse_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _parse_pax(body: bytes, offset: int, where: str) -> list[tuple[bytes, bytes]]:
    records, at = [], 0
    while at < len(body):
        found = _PAX_RECORD_START.match(body, at)
        end = at + int(found[1]) if found else 0
        if found is None or not found.end() < end <= len(body) or body[end - 1 : end] != b"\n":
            if not body[at:].strip(b"\0"):
                break
            raise CorruptShard(where, "a pax header that is none", offset=offset, remedy=DAMAGED_TAR_ADVICE)
        records.append((found[2], body[found.end() : end - 1]))
        at = end
    return records


def _parse_decimal(text: bytes, offset: int, where: str) -> int:
    digits = text.lstrip(b"0") or text[-1:]
    if not text.isdigit() or len(digits) > _MAX_SIZE_DIGITS or int(digits) >= _MAX_SIZE:
        raise CorruptShard(
            where, f"a pax header with the size {printable(text[:40])}", offset=offset, remedy=DAMAGED_TAR_ADVICE
        )
    return int(digits)
