"""Jobs done in a thread before their results are wanted."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

Job = TypeVar("Job")
Result = TypeVar("Result")


def read_ahead(
    jobs: Iterable[Job], read: Callable[[Job], Result], ahead: int = 1, threads: int = 1
) -> Generator[tuple[Job, Result]]:
    """Yield each job and what `read` makes of it in a thread, in order; close it, and the threads have ended.

    An error of `read` is raised where its result would be, behind all earlier ones.

    Args:
        jobs: What to read; asked for in the caller's thread, and not further ahead than is read.
        read: Reads a job.
        ahead: How many results are made before they are wanted.
        threads: How many call `read`.
    """
    with closing(_begun(jobs, read, ahead, ("shardtool-read", threads))) as begun:
        for job, result in begun:
            yield job, result.result()


def expected(jobs: Iterable[Job], expect: Callable[[Job], object], ahead: int) -> Generator[Job]:
    """Yield jobs, and call `expect` with each, in a thread, so many jobs before; close it, and the thread has ended.

    Nothing waits for `expect`, and an error of it is left to who reads the job.
    """
    with closing(_begun(jobs, expect, ahead, ("shardtool-copy", 1))) as begun:
        for job, _ in begun:
            yield job


def _begun(
    jobs: Iterable[Job], function: Callable[[Job], Result], ahead: int, named: tuple[str, int]
) -> Generator[tuple[Job, Future[Result]]]:
    """Yield each job, and what a thread of a name makes of it, of so many, when so many more jobs have been given."""
    name, threads = named
    thread = ThreadPoolExecutor(threads, name)
    ending = sys.is_finalizing  # the end of the program has waited for the thread, and taken modules away
    waiting: deque[tuple[Job, Future[Result]]] = deque()
    try:
        for job in jobs:
            waiting.append((job, thread.submit(function, job)))
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        if not ending():
            thread.shutdown(wait=True, cancel_futures=True)
