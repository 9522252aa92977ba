"""Ranges of an object, several requests at once: neighbours are one request, and what is large is several."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from shardtool.storage.remote.together import requests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from shardtool.storage.remote.blob import Blob

GAP = 2**16  # bytes that are read for nothing, rather than in a request of their own
_MOST = 2**22  # bytes of one request
_AHEAD = 16  # requests of one caller that run, or whose answers wait to be taken


def read_places(blob: Blob, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes at some places, fewer only at the end of the object; places in its order cost the least.

    Raises:
        OSError: It is another one by now, or it is gone.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again, or knows no ranges.
    """
    spans = _spans(offsets, lengths)
    cut = [
        (at, min(end, at + _MOST))
        for start, end, _ in spans
        for at in (range(start, end, _MOST) if end > start else (start,))
    ]
    parts = _read(blob, cut)
    place = 0
    for start, end, count in spans:
        pieces = [next(parts) for _ in range(start, max(end, start + 1), _MOST)]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        for at in range(place, place + count):
            first = offsets[at] - start
            yield data if not first and lengths[at] == len(data) else data[first : first + lengths[at]]
        place += count


def _spans(offsets: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return what is read as one: where it starts and ends, and how many places lie in it."""
    spans: list[tuple[int, int, int]] = []
    for offset, length in zip(offsets, lengths, strict=True):
        if spans:
            start, end, count = spans[-1]
            if start <= offset <= end + GAP and max(end, offset + length) - start <= _MOST:
                spans[-1] = start, max(end, offset + length), count + 1
                continue
        spans.append((offset, offset + length, 1))
    return spans


def _read(blob: Blob, cut: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of each range, in order."""
    if len(cut) == 1:
        ((start, end),) = cut
        yield blob.read(start, end - start)
        return
    threads, left = requests(), iter(cut)
    asked: deque[Future[bytes]] = deque()
    try:
        while True:
            asked.extend(threads.submit(blob.read, at, end - at) for at, end in islice(left, _AHEAD - len(asked)))
            if not asked:
                return
            yield asked.popleft().result()
    finally:
        for one in asked:
            one.cancel()
