"""Buffers that a worker reuses for all its shards.

If each shard of small files had a new buffer, page faults would take as long as packing.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

# Larger payloads are copied in blocks, because a buffer larger than the L2 cache takes up to twice the time.
BUFFER_SIZE = 512 * 1024

MAX_GAP_BYTES = 2**20  # read smaller gaps between payloads too, because seeking takes as long

_arena = memoryview(b"")


@cache
def get_buffer(use: Literal["shard", "window", "gap"]) -> memoryview:
    """Return the buffer for `use`. Later calls with the same `use` return the same buffer."""
    return memoryview(bytearray(MAX_GAP_BYTES if use == "gap" else BUFFER_SIZE))


def get_arena(size: int) -> memoryview:
    """Return `size` bytes of memory for the payloads of a shuffle. The next call reuses this memory."""
    global _arena  # noqa: PLW0603 - one arena takes all memory granted to the worker
    if len(_arena) < size:
        _arena = memoryview(b"")
        _arena = memoryview(bytearray(size))
    return _arena[:size]
