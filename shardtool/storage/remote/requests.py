"""Run requests in parallel threads; results are in the order of the items."""

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
    """Return threads for tasks that never wait for other threads."""
    return _thread_pool("shardtool-requests", os.getpid())


def caller_threads() -> ThreadPoolExecutor:
    """Return threads for tasks that may wait for requests, but not for each other."""
    return _thread_pool("shardtool-callers", os.getpid())


def map_requests(call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the result of `call` for each item, in order.

    `call` may wait for requests. After a failure, no other call is started or awaited.
    """
    failed: list[BaseException] = []

    def run(item: Item) -> Result:
        if failed:
            raise failed[0]
        try:
            return call(item)
        except BaseException as error:
            failed.append(error)
            raise

    return [
        retry.wait_interruptibly(future).result() for future in [caller_threads().submit(run, item) for item in items]
    ]


def imap_requests(
    call: Callable[[Item], Result], items: Iterable[Item], at_once: int = MAX_CONCURRENT_REQUESTS
) -> Generator[Result]:
    """Yield the result of `call` for each item, in order; at most `at_once` items are running or unread.

    An error is raised after running calls have stopped. The threads exist only during the iteration, so a later fork
    copies no lock that they hold.
    """
    from concurrent.futures import ThreadPoolExecutor

    stopped = threading.Event()

    def run(item: Item) -> Result:
        with retry.cancel_on(stopped):
            return call(item)

    with ThreadPoolExecutor(at_once, "shardtool-requests") as pool:
        try:
            yield from ordered_results(pool, run, items, at_once)
        finally:
            stopped.set()


def ordered_results(
    threads: ThreadPoolExecutor, call: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Yield results like `imap_requests`; run the calls in `threads`."""
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
