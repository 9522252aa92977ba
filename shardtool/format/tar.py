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

from struct import Struct
from zlib import adler32

BLOCK = 512
TRAILER = bytes(2 * BLOCK)
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
        parts += (header(key + b"." + name, len(payload)), payload, bytes(padding(len(payload))))
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
