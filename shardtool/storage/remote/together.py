"""Many requests at once: each thread waits for one server's answer, and results come in the order of what was asked.

The threads that a process keeps are its own: one that was forked makes others, for a fork copies none.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 32


@functools.lru_cache(maxsize=1)
def _requests(_pid: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(AT_ONCE, "shardtool-requests")


@functools.lru_cache(maxsize=1)
def _callers(_pid: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(AT_ONCE, "shardtool-callers")


def requests() -> ThreadPoolExecutor:
    """Return the threads of this process that make requests, and wait for nothing else."""
    return _requests(os.getpid())


def callers() -> ThreadPoolExecutor:
    """Return the threads of this process that may wait for requests, but not for each other."""
    return _callers(os.getpid())


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

    left = iter(items)
    with ThreadPoolExecutor(at_once, "shardtool-requests") as threads:
        asked: deque[Future[Result]] = deque(threads.submit(ask, item) for item in islice(left, at_once))
        try:
            while asked:
                result = asked.popleft().result()
                asked.extend(threads.submit(ask, item) for item in islice(left, 1))
                yield result
        finally:
            for one in asked:
                one.cancel()
