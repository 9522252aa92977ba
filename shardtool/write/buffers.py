"""The memory that a worker reads into and writes from: one of each a process, made when it is first asked for.

Page faults for fresh buffers would cost as much as a shard of small files.
"""

from __future__ import annotations

from functools import cache

BUFFER_SIZE = 512 * 1024  # read or written at a time, larger payloads are streamed: fits the second level cache; a
# larger one costs up to double
GAP = 2**20  # bytes between payloads are read over, up to this: a disk would take as long to seek

_arena = memoryview(b"")  # as large as it had to be so far


@cache
def packing_buffer() -> memoryview:
    """Return the buffer in which a shard is put together."""
    return memoryview(bytearray(BUFFER_SIZE))


@cache
def reading_window() -> memoryview:
    """Return the buffer that spans of files are read ahead into."""
    return memoryview(bytearray(BUFFER_SIZE))


@cache
def gap_buffer() -> memoryview:
    """Return what takes the bytes between payloads, which are not used."""
    return memoryview(bytearray(GAP))


def arena(size: int) -> memoryview:
    """Return `size` bytes of memory for payloads that lie scattered; who asked before must be done with it."""
    global _arena  # noqa: PLW0603 - there must be one only: it is all of the share of memory
    if len(_arena) < size:
        _arena = memoryview(b"")  # before there is another
        _arena = memoryview(bytearray(size))
    return _arena[:size]
