r"""Tar shards: the bytes around a payload, and their exact size.

    shard   = { record } trailer
    record  = [ pax ] header payload padding
    pax     = a header block of type x and its body, only where a name or a size needs it
    trailer = 1024 zero bytes

A header depends on the member's name and size alone: mode 0644, uid, gid and mtime 0, no user
names. So the size of a shard is known before a byte is read, and the same samples always give
the same bytes. Names are bytes; nothing here knows what they mean.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header";
docs/format.md, "Tar shards".
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import adler32

from shardtool.errors import CorruptShard, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes | memoryview]
    Note = Callable[[int, str], None]

BLOCK = 512
TRAILER = bytes(2 * BLOCK)
PADDING = [bytes(size) for size in range(BLOCK)]  # by its length
NAME_LIMIT = 100  # the ustar name field
PREFIX_LIMIT = 155  # the ustar prefix field
SIZE_LIMIT = 8**11 - 1  # what eleven octal digits can say: 8 GiB - 1

_TOP_BITS, _GOES_ON = 0xC0, 0x80  # of a byte that goes on with a letter, in UTF-8
_MODE_UID_GID = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"00000000000\0"
_MAGIC = b"ustar\x0000"
_AFTER_NAME = b"0" + bytes(100) + _MAGIC + bytes(80)  # type 0, link name, magic, no users, device numbers left empty
_TAIL = _AFTER_NAME + bytes(BLOCK - 156 - len(_AFTER_NAME))
_HEADER = Struct("100s24s12s12s8s356s")
_put_header, _pack_header = _HEADER.pack_into, _HEADER.pack
_FIXED_SUM = sum(_MODE_UID_GID) + sum(_MTIME) + sum(_TAIL) + 8 * 0x20
_PAX_NAME = b"././@PaxHeader"


def put_header(into: memoryview | bytearray, at: int, name: bytes, size: int) -> int:
    """Write the header blocks of a member at `at`: 512 bytes, or more where pax is needed.

    A hot path: 0.8 us per member. Adler-32's low half is one more than the sum of the bytes, which is
    what a header's checksum wants, for up to 256 of them.

    Args:
        into: Has room for `header_size` bytes.
        at: Where it starts in `into`.
        name: The member's name, without a NUL and not ending in a slash.
        size: Payload bytes.

    Returns:
        The place after the header.
    """
    if len(name) <= NAME_LIMIT and size <= SIZE_LIMIT:
        octal = b"%011o\0" % size
        total = b"%06o\0 " % (_FIXED_SUM - 1 + (adler32(name + octal) & 0xFFFF))
        _put_header(into, at, name, _MODE_UID_GID, octal, _MTIME, total, _TAIL)
        return at + BLOCK
    blocks = _long_header(name, size)
    into[at : at + len(blocks)] = blocks
    return at + len(blocks)


def header(name: bytes, size: int) -> bytes:
    """Return the header blocks of a member; see `put_header`."""
    if len(name) > NAME_LIMIT or size > SIZE_LIMIT:
        return _long_header(name, size)
    octal = b"%011o\0" % size
    total = b"%06o\0 " % (_FIXED_SUM - 1 + (adler32(name + octal) & 0xFFFF))
    return _pack_header(name, _MODE_UID_GID, octal, _MTIME, total, _TAIL)


def encode_sample(key: bytes, fields: list[tuple[bytes, bytes | memoryview]]) -> list[bytes | memoryview]:
    """Return the records of one sample, in parts."""
    parts: list[bytes | memoryview] = []
    for name, payload in fields:
        parts += (header(key + b"." + name, len(payload)), payload, PADDING[padding(len(payload))])
    return parts


def header_size(name_length: int, size: int, *, splits: bool) -> int:
    """Return how long the header of a member is.

    Args:
        name_length: Bytes of the name.
        size: Payload bytes.
        splits: Whether `split_prefix` can divide the name; asked only where it is over 100 bytes.
    """
    records = _pax_length(b"size", len(str(size))) if size > SIZE_LIMIT else 0
    if name_length > NAME_LIMIT and not splits:
        records += _pax_length(b"path", name_length)
    return BLOCK + (BLOCK + records + padding(records) if records else 0)


def padding(size: int) -> int:
    """Return how many zero bytes fill up the last block of a payload."""
    return -size & (BLOCK - 1)


def split_prefix(name: bytes) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) for the two ustar fields; None where no slash divides the name that way."""
    at = name.find(b"/", len(name) - NAME_LIMIT - 1)
    if at < 1 or at > PREFIX_LIMIT or at == len(name) - 1:
        return None
    return name[:at], name[at + 1 :]


def _long_header(name: bytes, size: int) -> bytes:
    records = b""
    prefix, short = b"", name
    if len(name) > NAME_LIMIT:
        split = split_prefix(name)
        if split:
            prefix, short = split
        else:
            records += _pax_record(b"path", name)
            short = _cut(name, NAME_LIMIT)
    if size > SIZE_LIMIT:
        records += _pax_record(b"size", b"%d" % size)
    block = _block(short, 0 if size > SIZE_LIMIT else size, b"0", prefix)
    if not records:
        return block
    return _block(_PAX_NAME, len(records), b"x", b"") + records + bytes(padding(len(records))) + block


def _cut(name: bytes, length: int) -> bytes:
    """Return the start of a name, cut between letters: a half one makes strict readers refuse the whole shard."""
    while length and name[length] & _TOP_BITS == _GOES_ON:
        length -= 1
    return name[:length]


def _block(name: bytes, size: int, kind: bytes, prefix: bytes) -> bytes:
    """Return one header block whose every field is free."""
    head = name.ljust(100, b"\0") + _MODE_UID_GID + b"%011o\0" % size + _MTIME
    tail = kind + bytes(100) + _MAGIC + bytes(80) + prefix.ljust(PREFIX_LIMIT, b"\0") + bytes(12)
    return head + b"%06o\0 " % (sum(head) + 8 * 0x20 + sum(tail)) + tail


def _pax_length(keyword: bytes, value_length: int) -> int:
    """Return the length of a pax record, which counts its own digits: `<length> <keyword>=<value>\\n`."""
    rest = len(keyword) + value_length + 3
    length = rest + len(str(rest))
    return length if rest + len(str(length)) == length else length + 1


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    return b"%d %b=%b\n" % (_pax_length(keyword, len(value)), keyword, value)


# Tar shards, read: from bytes to members, for any tar that the usual tools write.
#
# Reads ustar, GNU (long names, base-256 sizes) and pax headers, one member after the other. What the usual readers (GNU
# tar, bsdtar, Python's `tarfile`) do not read alike is noted, and read as most of them do. Python's
# `tarfile` ends quietly at a damaged header; here every block that is no header, and every end that comes
# too early, is a `CorruptShard` with its place. Nothing here opens a file: bytes come from a function.
#
# Source: POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format"; docs/format.md, "Tar shards".


_ZERO = bytes(BLOCK)
_made = tuple.__new__
_HALF = 256
_LONG_LIMIT = 2**20  # bytes of a pax header or a GNU long name: more is an attack, not a name
_FILES = (b"0", b"\0", b"7")
_WITHOUT_PAYLOAD = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders
_EXTENDED = (b"x", b"g", b"L", b"K", b"X")
_SPARSE = b"S"  # of old GNU tar: its map may go on in blocks behind the header
_MORE_OF_MAP, _MORE_OF_MAP_STILL = 482, 504  # where a header, and such a block, announce another one
_OF_SPARSE = (b"GNU.sparse.", b"SCHILY.realsize")  # keywords
_KNOWN = frozenset(b"0\x007123456xgLKXSVMND")
_WITHOUT_SIZE = (b"V", b"M", b"N", b"D")  # of GNU tar: volumes, lists of folders
_FIELDS_OF_ALL = (b"path", b"linkpath", b"size", b"hdrcharset")  # what a global header must not set for each member
_CHARSETS = (b"ISO-IR 10646 2000 UTF-8", b"BINARY")
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_PAX_START = re.compile(rb"([0-9]{1,19}) ([^=]+)=")  # of a record: its length, and its keyword
_SIZE_DIGITS = 19
_OCTAL_LIMIT = 8**11 - 1  # of a size field
_SIZE_LIMIT = 2**62  # so that no place overflows what the system counts with
_BASE_256, _NEGATIVE = 0x80, 0xFF  # the first byte of a size in binary, and of one below zero
_BLANKS = 8 * 0x20
_USUAL = b"0" + bytes(100) + b"ustar\0" + b"00"  # type, link name, magic and version of a plain file
REMEDY = "Get the shard again, or make it anew from its source."


def _ignore(_offset: int, _what: str) -> None:
    """Note nothing."""


class Member(NamedTuple):
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


def walk(read: Read, where: str, note: Note = _ignore, offset: int = 0) -> Iterator[Member]:
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
        block = bytes(read(offset, BLOCK))
        if len(block) < BLOCK or block == _ZERO:
            check_end(read, offset, where)
            return
        size = _usual_size(block)
        if size >= 0:
            data = offset + BLOCK
            end = data + (size + BLOCK - 1 & -BLOCK)
            name = block[: block.find(b"\0", 0, 100)] if not block[99] else block[:100]
            yield _made(Member, (name, offset, data, size, True, end, b"0", b""))  # half the time of `Member(...)`
        else:
            member = _any_member(read, offset, where, note)
            yield member
            end = member.end
        offset = end


def is_start(start: bytes) -> bool:
    """Tell whether the first 512 bytes of a file are a tar's header."""
    try:
        return len(start) >= BLOCK and any(start) and _checked_size(start[:BLOCK], 0, "") >= 0
    except CorruptShard:
        return False


def check_end(read: Read, offset: int, where: str) -> None:
    """Check that a tar ends at `offset` with two blocks of zeros, and that only zeros follow.

    Raises:
        CorruptShard: It does not.
    """
    tail = bytes(read(offset, 2 * BLOCK))
    if len(tail) < 2 * BLOCK or tail.count(0) != 2 * BLOCK:
        found, at = (f"{len(tail):,} bytes", offset) if len(tail) < 2 * BLOCK else ("no zeros", offset + BLOCK)
        raise CorruptShard(where, found, offset=at, expected="two blocks of 512 zeros, the end of a tar", remedy=REMEDY)
    offset += 2 * BLOCK
    while rest := bytes(read(offset, 2**16)):
        if rest.count(0) != len(rest):
            raise CorruptShard(where, "bytes after the end of the tar", offset=offset, expected="zeros", remedy=REMEDY)
        offset += len(rest)


def _usual_size(block: bytes) -> int:
    """Return the size in the usual header: a plain file, its name in one field; -1: it is another, or damaged.

    A hot path: 1 us. Adler-32's low half is one more than the sum of bytes modulo 65,521, and that of a block of
    which half is zero is below.
    """
    size_text = block[124:135]
    if block[156:265] != _USUAL or block[345] or block[135] or block.count(0) <= _HALF or not size_text.isdigit():
        return -1  # `int` takes signs, blanks and `0o`, too
    try:
        size = int(size_text, 8)
    except ValueError:
        return -1
    total = (adler32(block) & 0xFFFF) - (adler32(block[148:156]) & 0xFFFF) + _BLANKS
    return size if block[148:156] == b"%06o\0 " % total else -1


class _Extended:
    """The extended headers before a member.

    A name that stands in two of them is read as the usual readers do: that of a pax header goes before a GNU long name.
    """

    def __init__(self, where: str, note: Note) -> None:
        self.where, self.note = where, note
        self.pax: dict[bytes, bytes] = {}
        self.gnu: dict[bytes, bytes] = {}

    def add_gnu(self, offset: int, kind: bytes, body: bytes) -> None:
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
            self.note(offset, f"{_name_in_note(keyword)} given twice, with different values")
            known[keyword] = value

    def name(self, offset: int, keyword: bytes, kind: bytes, short: bytes) -> bytes:
        """Return the name in an extended header, or else the one in the header itself."""
        one, other = self.pax.get(keyword) or None, self.gnu.get(kind)
        if one is not None and other is not None and one != other:
            self.note(offset, f"{_name_in_note(keyword)} given by a pax header and by a GNU one, with different values")
        return one if one is not None else other if other is not None else short


def _name_in_note(keyword: bytes) -> str:
    return {b"L": "path", b"K": "linkpath"}.get(keyword, printable(keyword[:40]))


def _any_member(read: Read, start: int, where: str, note: Note) -> Member:
    """Return the member whose headers start at `start`: extended ones, then its own."""
    found, offset = _Extended(where, note), start
    while True:
        block = bytes(read(offset, BLOCK))
        if len(block) < BLOCK:
            raise CorruptShard(where, "the file ends", offset=offset, expected="a header", remedy=REMEDY)
        size, kind = _checked_size(block, offset, where), block[156:157]
        if kind not in _EXTENDED:
            break
        body = _body(read, offset, size, where)
        if kind in (b"L", b"K"):
            found.add_gnu(offset, kind, body)
        elif kind == b"g":
            _note_global(_pax(body, offset, where), offset, note)
        else:
            if body[-1:] == b"\0":
                note(offset, "a pax header with zeros after its records, for which some readers drop all of it")
            found.add_pax(offset, _pax(body, offset, where))
        offset += BLOCK + size + (-size & (BLOCK - 1))
    return _member(read, block, offset, start, found)


def _member(read: Read, block: bytes, offset: int, start: int, found: _Extended) -> Member:
    """Return the member whose own header lies at `offset`."""
    where = found.where
    size, kind = _checked_size(block, offset, where), block[156:157]
    _note_header(block, size, offset, found.note)
    sparse = kind == _SPARSE or any(keyword.startswith(_OF_SPARSE) for keyword in found.pax)
    if sparse:  # the payload is a map, and parts
        found.note(offset, "a sparse file, which some readers fill with zeros and others take as it lies")
    name = found.pax.get(b"GNU.sparse.name", found.name(start, b"path", b"L", _name(block)))
    link = found.name(start, b"linkpath", b"K", block[157:257].partition(b"\0")[0])
    if b"size" in found.pax:
        long_size = _decimal(found.pax[b"size"], start, where)
        if size != long_size and (size or long_size <= _OCTAL_LIMIT):
            found.note(start, f"a pax header with the size {long_size:,}, before a header with {size:,}")
        size = long_size
    if kind in _WITHOUT_PAYLOAD:
        if size:
            found.note(offset, f"{size:,} bytes of a link, device or folder, which some readers skip and others read")
        size = 0
    if size and (kind in _WITHOUT_SIZE or (kind == b"\0" and name.endswith(b"/"))):
        found.note(offset, f"{size:,} bytes of a member that is no file, which some readers skip and others read")
    if not name:
        found.note(start, "a member without a name")
    data = offset + BLOCK
    if kind == _SPARSE and block[_MORE_OF_MAP]:
        data = _end_of_map(read, data, where)
    is_file = kind in _FILES and not sparse and not name.endswith(b"/")
    return Member(name, start, data, size, is_file, data + size + (-size & (BLOCK - 1)), kind, link)


def _note_global(records: list[tuple[bytes, bytes]], offset: int, note: Note) -> None:
    """Note what a global header says of the members: some readers believe it, and others do not."""
    for keyword, _ in records:
        if keyword in _FIELDS_OF_ALL or keyword.startswith(_OF_SPARSE):
            note(offset, f"a global pax header with the {printable(keyword[:40])} of all that follows")


def _note_header(block: bytes, size: int, offset: int, note: Note) -> None:
    """Note what a header has that readers take for different things."""
    if block[156] not in _KNOWN:
        note(offset, f"a member of the unknown type {printable(block[156:157])!r}, {size:,} bytes")
    if block[345] and block[257:263] != b"ustar\0":
        note(offset, "something where only a ustar header has a part of the name")


def _end_of_map(read: Read, offset: int, where: str) -> int:
    """Return where the blocks end that go on with the map of a sparse file."""
    while True:
        block = read(offset, BLOCK)
        if len(block) < BLOCK:
            raise CorruptShard(where, "the file ends", offset=offset, expected="a sparse file's map", remedy=REMEDY)
        offset += BLOCK
        if not block[_MORE_OF_MAP_STILL]:
            return offset


def _body(read: Read, offset: int, size: int, where: str) -> bytes:
    """Return the body of the extended header at `offset`."""
    if size > _LONG_LIMIT:
        raise CorruptShard(where, f"an extended header of {size:,} bytes", offset=offset, remedy=REMEDY)
    body = bytes(read(offset + BLOCK, size))
    if len(body) < size:
        raise CorruptShard(where, "the file ends in an extended header", offset=offset + BLOCK, remedy=REMEDY)
    return body


def _checked_size(block: bytes, offset: int, where: str) -> int:
    """Return the size in a header whose checksum is right."""
    match = _OCTAL.fullmatch(block, 148, 156)
    if match is None or not match[1]:
        raise CorruptShard(where, "no tar header", offset=offset, remedy=REMEDY)
    stored = int(match[1], 8)
    # Adler-32's low half is one more than the sum of up to 256 bytes.
    total = (adler32(block[:_HALF]) & 0xFFFF) + (adler32(block[_HALF:]) & 0xFFFF) - 2
    total += _BLANKS - sum(block[148:156])
    if stored != total and stored != _signed_sum(block):
        found = f"a header with the checksum {stored:o}"
        raise CorruptShard(where, found, offset=offset, expected=f"{total:o}", remedy=REMEDY)
    field = block[124:136]
    if field[0] & _BASE_256:
        size = int.from_bytes(field, "big") & ~(_BASE_256 << 88)
        if field[0] == _NEGATIVE:
            size = -1
    else:
        octal = _OCTAL.fullmatch(field)
        blank = octal is not None and not octal[1] and b" " in field  # which GNU tar refuses
        size = int(octal[1] or b"0", 8) if octal is not None and not blank else -1
    if not 0 <= size < _SIZE_LIMIT:
        raise CorruptShard(where, f"a header with the size {printable(field)}", offset=offset, remedy=REMEDY)
    return size


def _signed_sum(block: bytes) -> int:
    """Return the checksum as some old programs took it, of signed bytes."""
    return sum(memoryview(block[:148] + block[156:]).cast("b")) + _BLANKS


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(body: bytes, offset: int, where: str) -> list[tuple[bytes, bytes]]:
    records, at = [], 0
    while at < len(body):
        found = _PAX_START.match(body, at)
        end = at + int(found[1]) if found else 0
        if found is None or not found.end() < end <= len(body) or body[end - 1 : end] != b"\n":
            if not body[at:].strip(b"\0"):
                break
            raise CorruptShard(where, "a pax header that is none", offset=offset, remedy=REMEDY)
        records.append((found[2], body[found.end() : end - 1]))
        at = end
    return records


def _decimal(text: bytes, offset: int, where: str) -> int:
    digits = text.lstrip(b"0") or text[-1:]
    if not text.isdigit() or len(digits) > _SIZE_DIGITS or int(digits) >= _SIZE_LIMIT:
        raise CorruptShard(where, f"a pax header with the size {printable(text[:40])}", offset=offset, remedy=REMEDY)
    return int(digits)


# Where a damaged tar can be read again: the next header behind the damage. What is found was checked as any header is,
# by its checksum. Bytes of a payload that look just like one, as in a tar in a tar, are taken for one only where
# nothing says how long the damaged part is.


_WINDOW = 2**20
_CHECKSUM = re.compile(rb"[ 0]*[0-7]{1,7}[ \0]{1,2}")  # of a header, as tools write it
_USTAR, _USTAR_AT = b"ustar", 257


def next_header(read: Read, offset: int, first: int, size: int) -> int | None:
    """Return where a tar goes on behind a block that is no header; None: nowhere.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        offset: Where the block starts.
        first: The first place where it may go on.
        size: Bytes of the file; -1: unknown, and it is read in sequence only.
    """
    stated = _stated_end(bytes(read(offset, BLOCK)), offset) if size >= 0 else None
    if stated is not None:
        block = bytes(read(stated, BLOCK)) if stated < size else b"none"
        stated = stated if is_start(block) or not any(block) else None  # with which a tar goes on, or ends
    found = _search_header(read, offset, first, stated)
    return found if stated is None or (found is not None and _leads_to(read, found, stated)) else stated


def _search_header(read: Read, offset: int, first: int, end: int | None) -> int | None:
    at = first
    while (end is None or at < end) and (window := bytes(read(at, _WINDOW + BLOCK))):
        for found in _starts(window, (offset - at) % BLOCK):
            if found < _WINDOW and is_start(window[found : found + BLOCK]):
                return at + found
        at += _WINDOW
    return None


def _leads_to(read: Read, offset: int, end: int) -> bool:
    """Tell whether one member after the other leads from a place to another: those of a tar in a tar end before."""
    try:
        for member in walk(read, "", offset=offset):
            if member.end >= end:
                return member.end == end
    except CorruptShard:
        pass
    return offset == end


def _stated_end(block: bytes, offset: int) -> int | None:
    """Return where the member of a plain file ends, as its damaged header says; None: it says nothing of use."""
    text = block[124:136].strip(b" \0")
    if block[156:157] not in (b"0", b"\0") or not text.isdigit() or b"8" in text or b"9" in text:
        return None
    size = int(text, 8)
    return offset + BLOCK + size + (-size & (BLOCK - 1))


def _starts(window: bytes, first: int) -> list[int]:
    """Return where headers may start: where the magic says so, and in blocks that have what may be a checksum."""
    found = {match.start() - _USTAR_AT for match in re.finditer(_USTAR, window) if match.start() >= _USTAR_AT}
    for at in range(first, len(window) - BLOCK + 1, BLOCK):
        if _CHECKSUM.fullmatch(window, at + 148, at + 156):
            found.add(at)
    return sorted(found)


def seeming_name(block: bytes) -> bytes:
    """Return the name that a damaged header still seems to give."""
    return block[:100].partition(b"\0")[0]


def may_lack_its_name(name: bytes) -> bool:
    """Tell whether a member may have had an extended header with its real name, which was lost before it."""
    return len(name) >= 99 or b"?" in name  # noqa: PLR2004 - the field has 100 bytes, and tools put ? for other letters
