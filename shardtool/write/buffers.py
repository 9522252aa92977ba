"""Reusable memory of a worker: one buffer for each use, allocated at first use.

Page faults for fresh buffers would cost as much as packing a shard of small files.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

BUFFER_SIZE = 512 * 1024  # read or written at a time, larger payloads are streamed: fits the second level cache; a


# larger one costs up to double
MAX_GAP_BYTES = 2**20  # bytes between payloads are read over, up to this: a disk would take as long to seek


_arena = memoryview(b"")  # as large as it had to be so far


@cache
def get_buffer(use: Literal["shard", "window", "gap"]) -> memoryview:
    """Return the memory for a use.

    Args:
        use: `shard`: a shard is put together in it; `window`: spans of files are read ahead into it; `gap`: it takes
            the bytes between payloads, which are not used.
    """
    return memoryview(bytearray(MAX_GAP_BYTES if use == "gap" else BUFFER_SIZE))


def get_arena(size: int) -> memoryview:
    """Return `size` bytes of memory for payloads that lie scattered; who asked before must be done with it."""
    global _arena  # noqa: PLW0603 - there must be one only: it is all of the share of memory
    if len(_arena) < size:
        _arena = memoryview(b"")  # before there is another
        _arena = memoryview(bytearray(size))
    return _arena[:size]
