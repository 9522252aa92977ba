"""Where a damaged shard can be read again: the next tar header, or the next record of a TFRecord, behind the damage.

What is found was checked as any header is: of a tar the checksum, of a record that of its length. Bytes of a payload
that look just like one, as in a tar in a tar, are taken for one only where nothing says how long the damaged part is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard
from shardtool.format import tar_read, tfrecord_read
from shardtool.format.tfrecord import DATA_LIMIT, FRAME_HEAD, FRAME_TAIL

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[int, int], bytes | memoryview]

_WINDOW = 2**20
_BLOCK = tar_read.BLOCK
_OCTAL = re.compile(rb"[ 0]*[0-7]{1,7}[ \0]{1,2}")  # the checksum of a header, as tools write it
_MAGIC = b"ustar"
_MAGIC_AT = 257
_LENGTH = re.compile(rb"(?s)(?=(?!\0{4}).{4}\0{4})")  # of a record below 4 GiB, and not empty


def next_header(read: Read, offset: int, first: int, size: int) -> int | None:
    """Return where a tar goes on behind a block that is no header; None: nowhere.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        offset: Where the block starts.
        first: The first place where it may go on.
        size: Bytes of the file; -1: unknown, and it is read in sequence only.
    """
    stated = _stated_end(bytes(read(offset, _BLOCK)), offset) if size >= 0 else None
    if stated is not None and not (stated < size and _goes_on(bytes(read(stated, _BLOCK)))):
        stated = None
    found = _search_header(read, offset, first, stated)
    return found if stated is None or (found is not None and _leads_to(read, found, stated)) else stated


def _search_header(read: Read, offset: int, first: int, end: int | None) -> int | None:
    at = first
    while (end is None or at < end) and (window := bytes(read(at, _WINDOW + _BLOCK))):
        for found in _starts(window, (offset - at) % _BLOCK):
            if found < _WINDOW and tar_read.is_start(window[found : found + _BLOCK]):
                return at + found
        at += _WINDOW
    return None


def _goes_on(block: bytes) -> bool:
    """Tell whether a block is one with which a tar goes on, or ends."""
    return tar_read.is_start(block) or not any(block)


def _leads_to(read: Read, offset: int, end: int) -> bool:
    """Tell whether one member after the other leads from a place to another: those of a tar in a tar end before."""
    try:
        for member in tar_read.walk(read, "", offset=offset):
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
    return offset + _BLOCK + size + (-size & (_BLOCK - 1))


def _starts(window: bytes, first: int) -> list[int]:
    """Return where headers may start: where the magic says so, and in blocks that have what may be a checksum."""
    found = {match.start() - _MAGIC_AT for match in re.finditer(_MAGIC, window) if match.start() >= _MAGIC_AT}
    for at in range(first, len(window) - _BLOCK + 1, _BLOCK):
        if _OCTAL.fullmatch(window, at + 148, at + 156):
            found.add(at)
    return sorted(found)


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
        if first > offset and length <= DATA_LIMIT and end <= size and (end == size or _is_record(read, end, size)):
            return end
    at = first
    while window := bytes(read(at, _WINDOW + FRAME_HEAD)):
        for match in _LENGTH.finditer(window, 0, _WINDOW):
            head = window[match.start() : match.start() + FRAME_HEAD]
            if tfrecord_read.is_start(head) and _fits(head, at + match.start(), size):
                return at + match.start()
        at += _WINDOW
    return None


def _is_record(read: Read, offset: int, size: int) -> bool:
    head = bytes(read(offset, FRAME_HEAD))
    return tfrecord_read.is_start(head) and _fits(head, offset, size)


def _fits(head: bytes, offset: int, size: int) -> bool:
    length = int.from_bytes(head[:8], "little")
    return length <= DATA_LIMIT and (size < 0 or offset + FRAME_HEAD + length + FRAME_TAIL <= size)


def tar_name(block: bytes) -> bytes:
    """Return the name that a damaged header still seems to give."""
    return block[:100].partition(b"\0")[0]


def may_lack_its_name(name: bytes) -> bool:
    """Tell whether a member may have had an extended header with its real name, which was lost before it."""
    return len(name) >= 99 or b"?" in name  # noqa: PLR2004 - the field has 100 bytes, and tools put ? for other letters
