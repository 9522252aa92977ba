"""Run copies in several threads, with a limit on bytes per second."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from shardtool.request.option_values import parse_rate
from shardtool.storage.remote.retry import RequestCancelled, cancel_on
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.request.dataset_options import CopyOptions
    from shardtool.request.observer import Observer


_INITIAL_THREADS, _MAX_THREADS = 4, 16


Task = TypeVar("Task")


Result = TypeVar("Result")


_POLL_S = 0.2  # between two looks at how many bytes there are


_MEASURE_S, _MIN_GAIN = 1.0, 1.2


_MAX_SILENT_S = 10  # between two blocks of a thread: S3 gives a connection up on which nothing came for 20 s


class ByteMeter:
    """The bytes that threads have dealt with, and the word that they are to stop.

    Args:
        limit: How many they may deal with in a second, together; None: as many as they can.

    Attributes:
        stopped: Set when the run has ended: threads end at their next block, and requests wherever they are.
    """

    def __init__(self, limit: int | None) -> None:
        self._lock, self._bytes, self.stopped = threading.Lock(), 0, threading.Event()
        self._limit, self._free_at = limit, 0.0  # when what was dealt with so far fits the limit

    def took(self, size: int) -> None:
        """Count bytes, and wait until there were no more than the limit allows.

        Raises:
            Stopped: The run has ended.
        """
        wait_s = 0.0
        with self._lock:
            self._bytes += size
            if self._limit is not None:
                now = time.monotonic()
                self._free_at = max(self._free_at, now) + size / self._limit
                wait_s = self._free_at - now
        if self.stopped.wait(wait_s):
            raise RequestCancelled

    def taken(self) -> int:
        """Return the bytes since the last call."""
        with self._lock:
            size, self._bytes = self._bytes, 0
        return size


class ThreadCount:
    """How many tasks run at once: as many as asked for, or as many as gain something.

    Strategy: begin with four. When as many tasks have ended as run at once, and a second has passed, twice as many run
    if that has brought a fifth more bytes a second than before; else half as many, and that number stays.

    Args:
        asked: How many were asked for; None: the number is looked for.

    Attributes:
        at_once: How many may run now.
    """

    def __init__(self, asked: int | None) -> None:
        self.at_once, self._looks = asked or _INITIAL_THREADS, asked is None
        self._before, self._began = 0.0, time.monotonic()
        self._moved = self._ended = 0

    def note(self, size: int, ended: int, now: float) -> None:
        """Take in that bytes were moved, and tasks ended, by a time of `time.monotonic`."""
        self._moved += size + ended  # a task that moves nothing counts, too
        self._ended += ended
        passed_s = now - self._began
        if not self._looks or self._ended < self.at_once or passed_s < _MEASURE_S:
            return
        gained = self._moved / passed_s > _MIN_GAIN * self._before
        self._looks = gained and self.at_once < _MAX_THREADS
        self.at_once = min(2 * self.at_once, _MAX_THREADS) if gained else self.at_once // 2
        self._before, self._began, self._moved, self._ended = self._moved / passed_s, now, 0, 0


def _threads_for_limit(limit: int | None) -> int | None:
    """Return how many threads get a block in time under a limit of bytes a second; None: as many as gain something."""
    fed = _MAX_THREADS if limit is None else limit * _MAX_SILENT_S // BLOCK_BYTES
    return None if fed >= _MAX_THREADS else min(max(fed, 1), _INITIAL_THREADS)


def run_in_threads(
    work: Callable[[Task, ByteMeter], Result], tasks: Iterable[Task], options: CopyOptions, observer: Observer
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with what came of it, as it is done; tasks are drawn as threads become free.

    Whatever ends the loop, no thread runs on after it.

    Args:
        work: What is done; it calls `Meter.took` for each block.
        tasks: What with.
        options: How many at a time, and how many bytes a second.
        observer: Gets progress, in this thread.
    """
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    limit = None if options.limit is None else parse_rate("limit", options.limit)
    pace, left, meter = ThreadCount(options.workers or _threads_for_limit(limit)), iter(tasks), ByteMeter(limit)

    def carry_out(task: Task) -> Result:
        with cancel_on(meter.stopped):
            return work(task, meter)

    with ThreadPoolExecutor(options.workers or _MAX_THREADS, "shardtool-copy") as pool:
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                while len(running) < pace.at_once and (task := next(left, None)) is not None:
                    running[pool.submit(carry_out, task)] = task
                if not running:
                    return
                done, _ = wait(running, _POLL_S, FIRST_COMPLETED)
                size = meter.taken()
                observer.advance(0, size, 0)
                pace.note(size, len(done), time.monotonic())
                for one in [one for one in running if one in done]:
                    yield running.pop(one), one.result()
        finally:
            meter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
