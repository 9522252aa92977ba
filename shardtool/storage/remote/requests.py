"""Send requests in parallel threads, and return the results in order."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from shardtool.storage.remote import retry

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor


Item = TypeVar("Item")


Result = TypeVar("Result")


MAX_CONCURRENT_REQUESTS = 32


@functools.lru_cache(maxsize=2)
def _thread_pool(name: str, _pid: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, name)


def request_threads() -> ThreadPoolExecutor:
    """Return the thread pool for tasks that never wait for other tasks."""
    return _thread_pool("shardtool-requests", os.getpid())


def caller_threads() -> ThreadPoolExecutor:
    """Return the thread pool for tasks that may wait for `request_threads`, but not for tasks in this pool."""
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

    The threads exit after the iteration. Otherwise, a later fork could copy a lock that one of them holds.
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
    """Yield `call(item)` for each item, in order, with at most `at_once` parallel calls in `threads`."""
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
