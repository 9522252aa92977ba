"""Parse tar shards that common tools write.

If GNU tar, bsdtar and `tarfile` read a header differently, this module follows the majority and reports the difference.
`tarfile` silently stops at a damaged header. This module raises `CorruptShard` at damage or an early end of the file.

After damage, `next_header` searches for a block with a valid header checksum. If the size in the damaged header
points to a valid header, an earlier header counts only if the members from there lead exactly to the valid header.
This excludes headers in a payload that is itself a tar.

Source: POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format"; docs/format.md, "Tar shards".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from zlib import adler32

from shardtool.errors import CorruptShard, printable
from shardtool.format.tar_write import HEADER_TAIL, TAR_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes | memoryview]  # `read(offset, length)` returns fewer bytes only at the file's end
    Note = Callable[[int, str], None]


_ZERO = bytes(TAR_BLOCK_BYTES)
_new_tuple = tuple.__new__
_HALF_BLOCK_BYTES = 256
_MAX_EXTENDED_BYTES = 2**20  # longer extended headers may be an attack
_FILE_TYPES = (b"0", b"\0", b"7")
_EMPTY_TYPES = (b"1", b"2", b"3", b"4", b"5", b"6")
_EXTENDED_TYPES = (b"x", b"g", b"L", b"K", b"X")
_SPARSE_TYPE = b"S"  # the map of a sparse file may continue in blocks after the header
_SPARSE_HEADER_CONTINUES_OFFSET, _SPARSE_MAP_CONTINUES_OFFSET = 482, 504
_SPARSE_KEYWORDS = (b"GNU.sparse.", b"SCHILY.realsize")
_KNOWN_TYPES = frozenset(b"0\x007123456xgLKXSVMND")
_SIZELESS_TYPES = (b"V", b"M", b"N", b"D")
_PER_MEMBER_KEYWORDS = (b"path", b"linkpath", b"size", b"hdrcharset")  # reported if they are in a global header
_CHARSETS = (b"ISO-IR 10646 2000 UTF-8", b"BINARY")
_OCTAL_FIELD = re.compile(rb" *([0-7]*)[ \0]*")
_PAX_RECORD_START = re.compile(rb"([0-9]{1,19}) ([^=]+)=")
_MAX_SIZE_DIGITS = 19
_MAX_OCTAL_SIZE = 8**11 - 1
_MAX_SIZE = 2**62
_BASE_256_MARK, _NEGATIVE_MARK = 0x80, 0xFF
_BLANK_CHECKSUM = 8 * 0x20
_PLAIN_FILE_FIELDS = b"0" + bytes(100) + b"ustar\0" + b"00"
_HEADER_TAIL_SUM = sum(HEADER_TAIL) + _BLANK_CHECKSUM - 1


def tar_error(where: str, offset: int, found: str, expected: str = "") -> CorruptShard:
    """Return the error for a damaged tar."""
    remedy = "Fetch the shard again, or recreate it from its source."
    return CorruptShard(where, found, offset=offset, expected=expected, remedy=remedy)


def _ignore_note(_offset: int, _what: str) -> None:
    """Ignore a note."""


class TarMember(NamedTuple):
    """A member of a tar.

    Attributes:
        name: The stored name, including a leading `./`.
        offset: Offset of the member's first header: an extended header, if the member has one.
        data: Offset of the payload.
        end: Offset of the next member.
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
    """Yield the members of a tar, starting with the header at `offset`.

    If tar readers interpret a header differently, call `note` with its offset and the reason.

    Raises:
        CorruptShard: A block is not a header, or the file ends too early.
    """
    while True:
        block = bytes(read(offset, TAR_BLOCK_BYTES))
        if len(block) < TAR_BLOCK_BYTES or block == _ZERO:
            _check_trailer(read, offset, where)
            return
        size = _plain_file_size(block)
        if size >= 0:
            data = offset + TAR_BLOCK_BYTES
            end = data + (size + TAR_BLOCK_BYTES - 1 & -TAR_BLOCK_BYTES)
            name = block[: block.find(b"\0", 0, 100)] if not block[99] else block[:100].partition(b"\0")[0]
            yield _new_tuple(TarMember, (name, offset, data, size, True, end, b"0", b""))
        else:
            member = _read_member(read, offset, where, note)
            yield member
            end = member.end
        offset = end


def is_tar_start(start: bytes) -> bool:
    """Return whether the first 512 bytes of a file, `start`, are a tar header."""
    try:
        return len(start) >= TAR_BLOCK_BYTES and any(start) and _parse_size(start[:TAR_BLOCK_BYTES], 0, "") >= 0
    except CorruptShard:
        return False


def _check_trailer(read: Read, offset: int, where: str) -> None:
    tail = bytes(read(offset, 2 * TAR_BLOCK_BYTES))
    expected = "the end of the tar, two blocks of 512 zero bytes"
    if len(tail) < 2 * TAR_BLOCK_BYTES:
        raise tar_error(where, offset, f"{len(tail):,} bytes", expected)
    if any(tail):
        raise tar_error(where, offset + TAR_BLOCK_BYTES, "a block that is not zero", expected)
    offset += 2 * TAR_BLOCK_BYTES
    while rest := bytes(read(offset, 2**16)):
        if rest.count(0) != len(rest):
            raise tar_error(where, offset, "data after the end of the tar", "zero bytes")
        offset += len(rest)


def _plain_file_size(block: bytes) -> int:
    """Return the size in the header of a regular file with a short name, or -1 for other headers."""
    # The low half of Adler-32 is a fast sum of bytes, plus one. It cannot overflow for 148 bytes, or for 512 bytes
    # if over half of them are zero.
    size_text, checksum, tail = block[124:136], block[148:156], block[156:]
    if tail == HEADER_TAIL:
        total = (adler32(block[:148]) & 0xFFFF) + _HEADER_TAIL_SUM
    elif tail.startswith(_PLAIN_FILE_FIELDS) and not block[345] and block.count(0) > _HALF_BLOCK_BYTES:
        total = (adler32(block) & 0xFFFF) - (adler32(checksum) & 0xFFFF) + _BLANK_CHECKSUM
    else:
        return -1
    if size_text[11] or not size_text[:11].isdigit() or checksum != b"%06o\0 " % total:
        return -1  # `int` alone would also accept signs, blanks and `0o`
    try:
        return int(size_text[:11], 8)
    except ValueError:
        return -1


class _ExtendedHeaders:
    def __init__(self, where: str, note: Note) -> None:
        self.where, self.note = where, note
        self.pax: dict[bytes, bytes] = {}
        self.gnu: dict[bytes, bytes] = {}

    def add_gnu_name(self, offset: int, kind: bytes, body: bytes) -> None:
        text = body.partition(b"\0")[0]
        if body.rstrip(b"\0") != text:
            self.note(offset, "a long name that contains NUL")
        self._add(offset, self.gnu, kind, text)

    def add_pax(self, offset: int, records: list[tuple[bytes, bytes]]) -> None:
        if self.pax:
            self.note(offset, "a second pax header for one member; some readers ignore the first one")
        for keyword, value in records:
            if keyword in (b"path", b"linkpath") and (not value or b"\0" in value):
                self.note(offset, f"a pax header with {'a NUL in' if value else 'an empty'} {keyword.decode()}")
            if keyword == b"hdrcharset" and value not in _CHARSETS:
                self.note(offset, f"a pax header in an unsupported character set: {printable(value[:40])}")
            self._add(offset, self.pax, keyword, value)

    def _add(self, offset: int, headers: dict[bytes, bytes], keyword: bytes, value: bytes) -> None:
        if headers.setdefault(keyword, value) != value:
            self.note(offset, f"{_keyword_label(keyword)} appears twice with different values")
            headers[keyword] = value

    def resolve(self, offset: int, keyword: bytes, kind: bytes, short: bytes) -> bytes:
        pax_name, gnu_name = self.pax.get(keyword) or None, self.gnu.get(kind)
        if pax_name is not None and gnu_name is not None and pax_name != gnu_name:
            self.note(offset, f"{_keyword_label(keyword)} has different values in a pax header and a GNU header")
        return pax_name if pax_name is not None else gnu_name if gnu_name is not None else short


def _keyword_label(keyword: bytes) -> str:
    return {b"L": "path", b"K": "linkpath"}.get(keyword, printable(keyword[:40]))


def _read_member(read: Read, start: int, where: str, note: Note) -> TarMember:
    headers, offset = _ExtendedHeaders(where, note), start
    while True:
        block = bytes(read(offset, TAR_BLOCK_BYTES))
        if len(block) < TAR_BLOCK_BYTES:
            raise tar_error(where, offset, "the file ends", "a header")
        size, kind = _parse_size(block, offset, where), block[156:157]
        if kind not in _EXTENDED_TYPES:
            break
        body = _extended_body(read, offset, size, where)
        if kind in (b"L", b"K"):
            headers.add_gnu_name(offset, kind, body)
        elif kind == b"g":
            _note_global(_parse_pax(body, offset, where), offset, note)
        else:
            if body[-1:] == b"\0":
                note(offset, "a pax header with zeros after its records; some readers ignore the whole header")
            headers.add_pax(offset, _parse_pax(body, offset, where))
        offset += TAR_BLOCK_BYTES + size + (-size & (TAR_BLOCK_BYTES - 1))
    return _parse_member(read, block, offset, start, headers)


def _parse_member(read: Read, block: bytes, offset: int, start: int, headers: _ExtendedHeaders) -> TarMember:
    where = headers.where
    size, kind = _parse_size(block, offset, where), block[156:157]
    _note_header(block, size, offset, headers.note)
    is_sparse = kind == _SPARSE_TYPE or any(keyword.startswith(_SPARSE_KEYWORDS) for keyword in headers.pax)
    if is_sparse:  # the payload contains only the parts of the file that are not zero
        headers.note(offset, "a sparse file; some readers expand it and others read its stored bytes")
    name = headers.pax.get(b"GNU.sparse.name", headers.resolve(start, b"path", b"L", _parse_name(block)))
    link = headers.resolve(start, b"linkpath", b"K", block[157:257].partition(b"\0")[0])
    if b"size" in headers.pax:
        long_size = _parse_decimal(headers.pax[b"size"], start, where)
        if size != long_size and (size or long_size <= _MAX_OCTAL_SIZE):
            headers.note(start, f"a pax header with size {long_size:,} before a header with size {size:,}")
        size = long_size
    if kind in _EMPTY_TYPES:
        if size:
            headers.note(
                offset, f"{size:,} bytes in a link, device or folder; some readers skip them and others do not"
            )
        size = 0
    if size and (kind in _SIZELESS_TYPES or (kind == b"\0" and name.endswith(b"/"))):
        headers.note(offset, f"{size:,} bytes in a member that is not a file; some readers skip them and others do not")
    if not name:
        headers.note(start, "a member without a name")
    data = offset + TAR_BLOCK_BYTES
    if kind == _SPARSE_TYPE and block[_SPARSE_HEADER_CONTINUES_OFFSET]:
        data = _sparse_map_end(read, data, where)
    is_file = kind in _FILE_TYPES and not is_sparse and not name.endswith(b"/")
    return TarMember(name, start, data, size, is_file, data + size + (-size & (TAR_BLOCK_BYTES - 1)), kind, link)


def _note_global(records: list[tuple[bytes, bytes]], offset: int, note: Note) -> None:
    for keyword, _ in records:
        if keyword in _PER_MEMBER_KEYWORDS or keyword.startswith(_SPARSE_KEYWORDS):
            note(
                offset,
                f"a global pax header that sets {printable(keyword[:40])} for all members; some readers ignore it",
            )


def _note_header(block: bytes, size: int, offset: int, note: Note) -> None:
    if block[156] not in _KNOWN_TYPES:
        note(offset, f"a member of unknown type {printable(block[156:157])!r}, {size:,} bytes")
    if block[345] and block[257:263] != b"ustar\0":
        note(offset, "data in the prefix field of a header that is not ustar")


def _sparse_map_end(read: Read, offset: int, where: str) -> int:
    while True:
        block = read(offset, TAR_BLOCK_BYTES)
        if len(block) < TAR_BLOCK_BYTES:
            raise tar_error(where, offset, "the file ends", "the map of a sparse file")
        offset += TAR_BLOCK_BYTES
        if not block[_SPARSE_MAP_CONTINUES_OFFSET]:
            return offset


def _extended_body(read: Read, offset: int, size: int, where: str) -> bytes:
    if size > _MAX_EXTENDED_BYTES:
        raise tar_error(where, offset, f"an extended header of {size:,} bytes")
    body = bytes(read(offset + TAR_BLOCK_BYTES, size))
    if len(body) < size:
        raise tar_error(where, offset + TAR_BLOCK_BYTES, "the file ends in an extended header")
    return body


def _parse_size(block: bytes, offset: int, where: str) -> int:
    match = _OCTAL_FIELD.fullmatch(block, 148, 156)
    if match is None or not match[1]:
        raise tar_error(where, offset, "not a tar header")
    stored = int(match[1], 8)
    total = (adler32(block[:_HALF_BLOCK_BYTES]) & 0xFFFF) + (adler32(block[_HALF_BLOCK_BYTES:]) & 0xFFFF) - 2
    total += _BLANK_CHECKSUM - sum(block[148:156])
    if stored != total and stored != _signed_sum(block):
        found = f"a header with checksum {stored:o}"
        raise tar_error(where, offset, found, f"{total:o}")
    field = block[124:136]
    if field[0] & _BASE_256_MARK:
        size = int.from_bytes(field, "big") & ~(_BASE_256_MARK << 88)
        if field[0] == _NEGATIVE_MARK:
            size = -1
    else:
        octal = _OCTAL_FIELD.fullmatch(field)
        is_blank = octal is not None and not octal[1] and b" " in field
        size = int(octal[1] or b"0", 8) if octal is not None and not is_blank else -1
    if not 0 <= size < _MAX_SIZE:
        raise tar_error(where, offset, f"a header with size {printable(field)}")
    return size


def _signed_sum(block: bytes) -> int:
    return sum(memoryview(block[:148] + block[156:]).cast("b")) + _BLANK_CHECKSUM


def _parse_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _parse_pax(body: bytes, offset: int, where: str) -> list[tuple[bytes, bytes]]:
    records, at = [], 0
    while at < len(body):
        match = _PAX_RECORD_START.match(body, at)
        end = at + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(body) or body[end - 1 : end] != b"\n":
            if not body[at:].strip(b"\0"):
                break
            raise tar_error(where, offset, "an invalid pax header")
        records.append((match[2], body[match.end() : end - 1]))
        at = end
    return records


def _parse_decimal(text: bytes, offset: int, where: str) -> int:
    digits = text.lstrip(b"0") or text[-1:]
    if not text.isdigit() or len(digits) > _MAX_SIZE_DIGITS or int(digits) >= _MAX_SIZE:
        raise tar_error(where, offset, f"a pax header with size {printable(text[:40])}")
    return int(digits)


_WINDOW_BYTES = 2**20
_CHECKSUM_FIELD = re.compile(rb"[ 0]*[0-7]{1,7}[ \0]{1,2}")
_USTAR, _USTAR_OFFSET = b"ustar", 257


def next_header(read: Read, offset: int, first: int, size: int) -> int | None:
    """Return the offset of the first valid header or trailer after a damaged header at `offset`, or None.

    The search starts at the offset `first`. `size` is the size of the tar, or -1 if the tar is compressed and therefore
    must be read in order.
    """
    stated_end = _stated_end(bytes(read(offset, TAR_BLOCK_BYTES)), offset) if size >= 0 else None
    if stated_end is not None:
        block = bytes(read(stated_end, TAR_BLOCK_BYTES)) if stated_end < size else b""
        if not block or (any(block) and not is_tar_start(block)):
            stated_end = None
    found = _search_header(read, offset, first, stated_end)
    return found if stated_end is None or (found is not None and _leads_to(read, found, stated_end)) else stated_end


def _search_header(read: Read, offset: int, first: int, end: int | None) -> int | None:
    position = first
    while (end is None or position < end) and (window := bytes(read(position, _WINDOW_BYTES + TAR_BLOCK_BYTES))):
        for candidate in _candidate_offsets(window, (offset - position) % TAR_BLOCK_BYTES):
            if candidate < _WINDOW_BYTES and is_tar_start(window[candidate : candidate + TAR_BLOCK_BYTES]):
                return position + candidate
        position += _WINDOW_BYTES
    return None


def _leads_to(read: Read, offset: int, end: int) -> bool:
    try:
        for member in iter_members(read, "", offset=offset):
            if member.end >= end:
                return member.end == end
    except CorruptShard:
        pass
    return offset == end


def _stated_end(block: bytes, offset: int) -> int | None:
    text = block[124:136].strip(b" \0")
    if block[156:157] not in (b"0", b"\0") or not text.isdigit() or b"8" in text or b"9" in text:
        return None
    size = int(text, 8)
    return offset + TAR_BLOCK_BYTES + size + (-size & (TAR_BLOCK_BYTES - 1))


def _candidate_offsets(window: bytes, first: int) -> list[int]:
    offsets = {match.start() - _USTAR_OFFSET for match in re.finditer(_USTAR, window) if match.start() >= _USTAR_OFFSET}
    for offset in range(first, len(window) - TAR_BLOCK_BYTES + 1, TAR_BLOCK_BYTES):
        if _CHECKSUM_FIELD.fullmatch(window, offset + 148, offset + 156):
            offsets.add(offset)
    return sorted(offsets)


def damaged_name(block: bytes) -> bytes:
    """Return the name field of a header block, even a damaged one."""
    return block[:100].partition(b"\0")[0]


def may_be_truncated(name: bytes) -> bool:
    """Return whether `name` may be a shortened name whose extended header is lost."""
    return len(name) >= 99 or b"?" in name  # noqa: PLR2004 - the field has 100 bytes; some tools write ? for non-ASCII
