"""Reusable memory of a worker. Page faults of fresh buffers would cost as much as packing a shard of small files."""

from __future__ import annotations

from functools import cache
from typing import Literal

# Larger payloads are streamed. Buffers beyond the L2 cache take up to twice the time.
BUFFER_SIZE = 512 * 1024

MAX_GAP_BYTES = 2**20  # up to this size, a gap is read and ignored, because seeking takes as long

_arena = memoryview(b"")


@cache
def get_buffer(use: Literal["shard", "window", "gap"]) -> memoryview:
    """Return the buffer for a use."""
    return memoryview(bytearray(MAX_GAP_BYTES if use == "gap" else BUFFER_SIZE))


def get_arena(size: int) -> memoryview:
    """Return `size` bytes of memory for scattered payloads. The results of earlier calls become invalid."""
    global _arena  # noqa: PLW0603 - one arena takes all memory granted to the worker
    if len(_arena) < size:
        _arena = memoryview(b"")  # free the old memory first
        _arena = memoryview(bytearray(size))
    return _arena[:size]
