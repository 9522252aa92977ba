"""Find the next header of a tar after damage, by its checksum.

A header inside a payload (nested tar) is accepted only if the damaged header has no valid size.
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
_CHECKSUM_FIELD = re.compile(rb"[ 0]*[0-7]{1,7}[ \0]{1,2}")  # tools differ in how they pad the checksum
_USTAR, _USTAR_OFFSET = b"ustar", 257


def next_header(read: Read, offset: int, first: int, size: int) -> int | None:
    """Return the offset of the next header after a damaged header at `offset`, or None.

    `first` is the first offset to examine. `size` is the size of the tar; -1 if the size is unknown and `read` is
    sequential.
    """
    stated = _stated_end(bytes(read(offset, TAR_BLOCK_BYTES)), offset) if size >= 0 else None
    if stated is not None:
        block = bytes(read(stated, TAR_BLOCK_BYTES)) if stated < size else b"none"
        stated = stated if is_tar_start(block) or not any(block) else None
    searched = _search_header(read, offset, first, stated)
    return searched if stated is None or (searched is not None and _leads_to(read, searched, stated)) else stated


def _search_header(read: Read, offset: int, first: int, end: int | None) -> int | None:
    position = first
    while (end is None or position < end) and (window := bytes(read(position, _WINDOW_BYTES + TAR_BLOCK_BYTES))):
        for candidate in _candidate_offsets(window, (offset - position) % TAR_BLOCK_BYTES):
            if candidate < _WINDOW_BYTES and is_tar_start(window[candidate : candidate + TAR_BLOCK_BYTES]):
                return position + candidate
        position += _WINDOW_BYTES
    return None


def _leads_to(read: Read, offset: int, end: int) -> bool:
    """Return whether the members from `offset` on end exactly at `end`; members of a nested tar end earlier."""
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
    """Return the name field of a damaged header."""
    return block[:100].partition(b"\0")[0]


def may_lack_name(name: bytes) -> bool:
    """Return whether an extended header with the full name may have been lost before this member."""
    return len(name) >= 99 or b"?" in name  # noqa: PLR2004 - the field has 100 bytes; tools write ? for non-ASCII
