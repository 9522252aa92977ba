"""Send requests in parallel threads, and return the results in order. Download an object in advance in a thread."""

from __future__ import annotations

import functools
import io
import os
import queue
import threading
from collections import deque
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from shardtool.storage.remote import retry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

    from typing_extensions import Buffer


Item = TypeVar("Item")


Result = TypeVar("Result")


MAX_CONCURRENT_REQUESTS = 32
_CLOSE_TIMEOUT_S = 1.0
_MAX_QUEUED_PIECES = 16


@functools.lru_cache(maxsize=2)
def _thread_pool(name: str, _pid: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, name)


def request_threads() -> ThreadPoolExecutor:
    """Return the thread pool for tasks that never wait for other tasks."""
    return _thread_pool("shardtool-requests", os.getpid())


def caller_threads() -> ThreadPoolExecutor:
    """Return the thread pool for tasks that wait for tasks in `request_threads`. They never wait for each other."""
    return _thread_pool("shardtool-callers", os.getpid())


def map_requests(call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return `call(item)` for each item, in order. After a failure, start no further call."""
    failed: list[BaseException] = []

    def run(item: Item) -> Result:
        if failed:
            raise failed[0]
        try:
            return call(item)
        except BaseException as error:
            failed.append(error)
            raise

    futures = [caller_threads().submit(run, item) for item in items]
    return [retry.wait_interruptibly(future).result() for future in futures]


def imap_requests(
    call: Callable[[Item], Result], items: Iterable[Item], at_once: int = MAX_CONCURRENT_REQUESTS
) -> Generator[Result]:
    """Yield `call(item)` for each item, in order, with at most `at_once` parallel calls.

    The threads exit after the iteration, because a later fork could copy a lock that a running thread holds.
    """
    from concurrent.futures import ThreadPoolExecutor

    from shardtool.threads import stop_threads

    stopped, pool = threading.Event(), ThreadPoolExecutor(at_once, "shardtool-requests")

    def run(item: Item) -> Result:
        with retry.cancel_on(stopped):
            return call(item)

    try:
        yield from ordered_results(pool, run, items, at_once)
    finally:
        stopped.set()
        stop_threads(pool, ())


def ordered_results(
    threads: ThreadPoolExecutor, call: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Do the same as `imap_requests`, but use the existing `threads`."""
    remaining = iter(items)
    futures: deque[Future[Result]] = deque(threads.submit(call, item) for item in islice(remaining, at_once))
    try:
        while futures:
            result = retry.wait_interruptibly(futures.popleft()).result()
            futures.extend(threads.submit(call, item) for item in islice(remaining, 1))
            yield result
    finally:
        for future in futures:
            future.cancel()


class ReadAheadStream(io.RawIOBase):
    """A stream of an object's bytes. A thread downloads the bytes in advance with one request."""

    def __init__(self, read_pieces: Callable[[], Iterable[bytes]]) -> None:
        super().__init__()
        self._read_pieces, self._piece = read_pieces, memoryview(b"")
        self._queue: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()
        self._free_slots = threading.Semaphore(_MAX_QUEUED_PIECES)
        self._stopped = self._ended = False
        self._thread: threading.Thread | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, into: Buffer, /) -> int:
        view, size = memoryview(into).cast("B"), 0
        while size < len(view) and (self._piece or self._receive_piece()):
            chunk = self._piece[: len(view) - size]
            view[size : size + len(chunk)] = chunk
            self._piece = self._piece[len(chunk) :]
            size += len(chunk)
        return size

    def close(self) -> None:
        self._stopped = True
        self._free_slots.release()  # wake the thread, because it may be waiting for a slot
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        super().close()

    def _receive_piece(self) -> bool:
        """Wait for the next piece from the thread. Return False at the end of the object."""
        if self._ended:
            return False
        if self._thread is None:  # a daemon thread does not prevent the process from exiting
            self._thread = threading.Thread(target=self._fetch, name="shardtool-ahead", daemon=True)
            self._thread.start()
        piece: bytes | BaseException | None = None
        while piece is None:
            with suppress(queue.Empty):
                piece = self._queue.get(timeout=retry.SLICE_S)
        self._free_slots.release()
        self._ended = not isinstance(piece, bytes) or not piece
        if isinstance(piece, BaseException):
            raise piece
        self._piece = memoryview(piece)
        return bool(piece)

    def _fetch(self) -> None:
        try:
            for piece in self._read_pieces():
                self._free_slots.acquire()
                if self._stopped:
                    return
                self._queue.put(piece)
            self._queue.put(b"")
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that reads
            self._queue.put(error)
