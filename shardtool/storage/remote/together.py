"""Many requests at once: each thread waits for one server's answer, and results come in the order of what was asked.

Of the ranges of an object, neighbours are one request, and what is large is several.
The threads that a process keeps are its own: one that was forked makes others, for a fork copies none.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from shardtool.storage.remote.retry import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from shardtool.storage.remote.blob import Blob

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 32
GAP = 2**16  # bytes that are read for nothing, rather than in a request of their own
_MOST = 2**22  # bytes of one request
_AHEAD = 16  # requests of one caller that run, or whose answers wait to be taken


@functools.lru_cache(maxsize=2)
def _threads(name: str, _pid: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(AT_ONCE, name)


def requests() -> ThreadPoolExecutor:
    """Return the threads of this process that make requests, and wait for nothing else."""
    return _threads("shardtool-requests", os.getpid())


def callers() -> ThreadPoolExecutor:
    """Return the threads of this process that may wait for requests, but not for each other."""
    return _threads("shardtool-callers", os.getpid())


def called(ask: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what `ask`, which may wait for requests, returns for each item, in order; `AT_ONCE` run.

    Once one has failed, no other is begun. Those that run then, one a thread, end by themselves, and nothing waits for
    them: a request of theirs may still reach the server after the error was raised.
    """
    failed: list[BaseException] = []

    def one(item: Item) -> Result:
        if failed:
            raise failed[0]
        try:
            return ask(item)
        except BaseException as error:
            failed.append(error)
            raise

    return list(callers().map(one, items))


def together(ask: Callable[[Item], Result], items: Iterable[Item], at_once: int = AT_ONCE) -> Iterator[Result]:
    """Yield what `ask` returns for each item, in order; no more than `at_once` run, or wait to be taken.

    Where one fails, at most the `at_once` behind it were begun, and all have ended when its error is
    raised. The threads live as long as this is iterated, so that a fork in between finds none of them half alive.
    """
    from concurrent.futures import ThreadPoolExecutor

    left, ended = iter(items), threading.Event()

    def one(item: Item) -> Result:
        with until(ended):
            return ask(item)

    with ThreadPoolExecutor(at_once, "shardtool-requests") as threads:
        asked: deque[Future[Result]] = deque(threads.submit(one, item) for item in islice(left, at_once))
        try:
            while asked:
                result = asked.popleft().result()
                asked.extend(threads.submit(one, item) for item in islice(left, 1))
                yield result
        finally:
            ended.set()
            for each in asked:
                each.cancel()


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
