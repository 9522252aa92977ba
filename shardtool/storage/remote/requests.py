"""Run many requests at once, in threads; results keep the order of the items.

Each process has its own
threads: a fork copies none.
"""

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
    """Return the threads of this process that make requests, and wait for nothing else."""
    return _thread_pool("shardtool-requests", os.getpid())


def caller_threads() -> ThreadPoolExecutor:
    """Return the threads of this process that may wait for requests, but not for each other."""
    return _thread_pool("shardtool-callers", os.getpid())


def map_requests(ask: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
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

    return [
        retry.wait_interruptibly(found).result() for found in [caller_threads().submit(one, item) for item in items]
    ]


def imap_requests(
    ask: Callable[[Item], Result], items: Iterable[Item], at_once: int = MAX_CONCURRENT_REQUESTS
) -> Generator[Result]:
    """Yield what `ask` returns for each item, in order; no more than `at_once` run, or wait to be taken.

    Where one fails, at most the `at_once` behind it were begun, and all have ended when its error is
    raised. The threads live as long as this is iterated, so that a fork in between finds none of them half alive.
    """
    from concurrent.futures import ThreadPoolExecutor

    ended = threading.Event()

    def one(item: Item) -> Result:
        with retry.cancel_on(ended):
            return ask(item)

    with ThreadPoolExecutor(at_once, "shardtool-requests") as pool:
        try:
            yield from ordered_results(pool, one, items, at_once)
        finally:
            ended.set()


def ordered_results(
    threads: ThreadPoolExecutor, ask: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Yield what threads get for each item, in order; so many are asked for, or wait to be taken."""
    left = iter(items)
    asked: deque[Future[Result]] = deque(threads.submit(ask, item) for item in islice(left, at_once))
    try:
        while asked:
            result = retry.wait_interruptibly(asked.popleft()).result()
            asked.extend(threads.submit(ask, item) for item in islice(left, 1))
            yield result
    finally:
        for one in asked:
            one.cancel()
