"""Find the next header of a tar behind damage, by its checksum.

Payload bytes that look like a header, as in a tar inside a tar, are taken for one only if nothing tells how long
the
damaged part is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard
from shardtool.format.tar_read import is_tar_start, iter_members
from shardtool.format.tar_write import TAR_BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    Read = Callable[[int, int], bytes | memoryview]


_WINDOW_BYTES = 2**20


_CHECKSUM_FIELD = re.compile(rb"[ 0]*[0-7]{1,7}[ \0]{1,2}")  # of a header, as tools write it


_USTAR, _USTAR_OFFSET = b"ustar", 257


def next_header(read: Read, offset: int, first: int, size: int) -> int | None:
    """Return where a tar goes on behind a block that is no header; None: nowhere.

    Args:
        read: Gives the bytes at (offset, length): fewer only at the end of the file.
        offset: Where the block starts.
        first: The first place where it may go on.
        size: Bytes of the file; -1: unknown, and it is read in sequence only.
    """
    stated = _stated_end(bytes(read(offset, TAR_BLOCK_BYTES)), offset) if size >= 0 else None
    if stated is not None:
        block = bytes(read(stated, TAR_BLOCK_BYTES)) if stated < size else b"none"
        stated = stated if is_tar_start(block) or not any(block) else None  # with which a tar goes on, or ends
    found = _search_header(read, offset, first, stated)
    return found if stated is None or (found is not None and _leads_to(read, found, stated)) else stated


def _search_header(read: Read, offset: int, first: int, end: int | None) -> int | None:
    at = first
    while (end is None or at < end) and (window := bytes(read(at, _WINDOW_BYTES + TAR_BLOCK_BYTES))):
        for found in _candidate_offsets(window, (offset - at) % TAR_BLOCK_BYTES):
            if found < _WINDOW_BYTES and is_tar_start(window[found : found + TAR_BLOCK_BYTES]):
                return at + found
        at += _WINDOW_BYTES
    return None


def _leads_to(read: Read, offset: int, end: int) -> bool:
    """Tell whether one member after the other leads from a place to another: those of a tar in a tar end before."""
    try:
        for member in iter_members(read, "", offset=offset):
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
    return offset + TAR_BLOCK_BYTES + size + (-size & (TAR_BLOCK_BYTES - 1))


def _candidate_offsets(window: bytes, first: int) -> list[int]:
    """Return where headers may start: where the magic says so, and in blocks that have what may be a checksum."""
    found = {match.start() - _USTAR_OFFSET for match in re.finditer(_USTAR, window) if match.start() >= _USTAR_OFFSET}
    for at in range(first, len(window) - TAR_BLOCK_BYTES + 1, TAR_BLOCK_BYTES):
        if _CHECKSUM_FIELD.fullmatch(window, at + 148, at + 156):
            found.add(at)
    return sorted(found)


def damaged_name(block: bytes) -> bytes:
    """Return the name that a damaged header still seems to give."""
    return block[:100].partition(b"\0")[0]


def may_lack_name(name: bytes) -> bool:
    """Tell whether a member may have had an extended header with its real name, which was lost before it."""
    return len(name) >= 99 or b"?" in name  # noqa: PLR2004 - the field has 100 bytes, and tools put ? for other letters
