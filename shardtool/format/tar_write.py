"""Encode tar shards: the bytes around each payload, and the exact number of these bytes.

    shard = { record } trailer
    record = [ pax ] header payload padding
    pax = a header block of type x and its body, only if the name or size does not fit in the header
    trailer = 1024 zero bytes

A header depends only on name and size: the mode is 0644, uid, gid and mtime are 0, and user names are empty. Shard
sizes are therefore known in advance, and the same samples produce the same bytes.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; docs/format.md, "Tar shards".
"""

from __future__ import annotations

from struct import Struct
from zlib import adler32

TAR_BLOCK_BYTES = 512
TRAILER = bytes(2 * TAR_BLOCK_BYTES)
PADDING = [bytes(size) for size in range(TAR_BLOCK_BYTES)]
USTAR_NAME_BYTES = 100
USTAR_PREFIX_BYTES = 155
MAX_USTAR_SIZE = 8**11 - 1
_UTF8_TOP_BITS, _UTF8_CONTINUATION = 0xC0, 0x80
_MODE_UID_GID = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"00000000000\0"
_MAGIC = b"ustar\x0000"
_AFTER_NAME = b"0" + bytes(100) + _MAGIC + bytes(80)
HEADER_TAIL = _AFTER_NAME + bytes(TAR_BLOCK_BYTES - 156 - len(_AFTER_NAME))
_HEADER_FIELDS = "100s24s12s12s8s356s"
_pack_header = Struct(_HEADER_FIELDS).pack
_put_headers = [Struct(f"{padding}x{_HEADER_FIELDS}").pack_into for padding in range(TAR_BLOCK_BYTES)]
_FIXED_SUM = sum(_MODE_UID_GID) + sum(_MTIME) + sum(HEADER_TAIL) + 8 * 0x20
_PAX_NAME = b"././@PaxHeader"


def put_header(into: memoryview | bytearray, at: int, name: bytes, size: int, padding: int = 0) -> int:
    """Write `padding` zero bytes and the header blocks of a member to `into`. Return the index after the header.

    `padding` must be below 512, and `name` must not contain NUL or end with a slash.
    """
    if len(name) <= USTAR_NAME_BYTES and size <= MAX_USTAR_SIZE:
        octal = b"%011o\0" % size
        total = b"%06o\0 " % (_FIXED_SUM - 1 + (adler32(name + octal) & 0xFFFF))
        _put_headers[padding](into, at, name, _MODE_UID_GID, octal, _MTIME, total, HEADER_TAIL)
        return at + padding + TAR_BLOCK_BYTES
    blocks = PADDING[padding] + _long_header(name, size)
    into[at : at + len(blocks)] = blocks
    return at + len(blocks)


def encode_header(name: bytes, size: int) -> bytes:
    """Return the header blocks of a member (see `put_header`)."""
    if len(name) > USTAR_NAME_BYTES or size > MAX_USTAR_SIZE:
        return _long_header(name, size)
    octal = b"%011o\0" % size
    total = b"%06o\0 " % (_FIXED_SUM - 1 + (adler32(name + octal) & 0xFFFF))
    return _pack_header(name, _MODE_UID_GID, octal, _MTIME, total, HEADER_TAIL)


def encode_tar_sample(key: bytes, fields: list[tuple[bytes, bytes | memoryview]]) -> list[bytes | memoryview]:
    """Return the bytes of one sample in a tar shard, as a list of parts."""
    parts: list[bytes | memoryview] = []
    for name, payload in fields:
        parts += (encode_header(key + b"." + name, len(payload)), payload, PADDING[padding_size(len(payload))])
    return parts


def header_size(name_length: int, size: int, *, splits: bool) -> int:
    """Return the size of a member's header blocks. Set `splits` if `split_prefix` can split the name."""
    records = _pax_length(b"size", len(str(size))) if size > MAX_USTAR_SIZE else 0
    if name_length > USTAR_NAME_BYTES and not splits:
        records += _pax_length(b"path", name_length)
    return TAR_BLOCK_BYTES + (TAR_BLOCK_BYTES + records + padding_size(records) if records else 0)


def padding_size(size: int) -> int:
    """Return the number of zero bytes after a payload."""
    return -size & (TAR_BLOCK_BYTES - 1)


def split_prefix(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a name at a slash into the ustar fields (prefix, name). Return None if no split fits."""
    slash = name.find(b"/", len(name) - USTAR_NAME_BYTES - 1)
    if slash < 1 or slash > USTAR_PREFIX_BYTES or slash == len(name) - 1:
        return None
    return name[:slash], name[slash + 1 :]


def _long_header(name: bytes, size: int) -> bytes:
    records = b""
    prefix, short = b"", name
    if len(name) > USTAR_NAME_BYTES:
        split = split_prefix(name)
        if split:
            prefix, short = split
        else:
            records += _pax_record(b"path", name)
            short = _cut_name(name, USTAR_NAME_BYTES)
    if size > MAX_USTAR_SIZE:
        records += _pax_record(b"size", b"%d" % size)
    block = _header_block(short, 0 if size > MAX_USTAR_SIZE else size, b"0", prefix)
    if not records:
        return block
    return _header_block(_PAX_NAME, len(records), b"x", b"") + records + bytes(padding_size(len(records))) + block


def _cut_name(name: bytes, length: int) -> bytes:
    # Strict readers reject names that end inside a UTF-8 character.
    while length and name[length] & _UTF8_TOP_BITS == _UTF8_CONTINUATION:
        length -= 1
    return name[:length]


def _header_block(name: bytes, size: int, kind: bytes, prefix: bytes) -> bytes:
    head = name.ljust(100, b"\0") + _MODE_UID_GID + b"%011o\0" % size + _MTIME
    tail = kind + bytes(100) + _MAGIC + bytes(80) + prefix.ljust(USTAR_PREFIX_BYTES, b"\0") + bytes(12)
    return head + b"%06o\0 " % (sum(head) + 8 * 0x20 + sum(tail)) + tail


def _pax_length(keyword: bytes, value_length: int) -> int:
    """Return the length of a pax record. The record starts with this length: `<length> <keyword>=<value>\\n`."""
    rest = len(keyword) + value_length + 3
    length = rest + len(str(rest))
    return length if rest + len(str(length)) == length else length + 1


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    return b"%d %b=%b\n" % (_pax_length(keyword, len(value)), keyword, value)
