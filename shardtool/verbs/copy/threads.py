"""Run copy tasks in threads, and limit the total rate of all threads."""

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
_POLL_S = 0.2
_MEASURE_S, _MIN_GAIN = 1.0, 1.2
_MAX_SILENT_S = 10  # maximum time between two blocks that a thread copies; S3 closes connections that are idle for 20 s


class ByteMeter:
    """Count the bytes that all threads copy, limit the total rate, and stop the threads.

    Args:
        limit: Maximum total rate in bytes per second, or None for no limit.
        report: Called with the size of each copied block.

    Attributes:
        stopped: Event that cancels pending requests, and stops each thread before its next block.
    """

    def __init__(self, limit: int | None, report: Callable[[int], object] = lambda _: None) -> None:
        self._lock, self._bytes, self.stopped = threading.Lock(), 0, threading.Event()
        self._report = report
        # Until the time `_free_at`, more bytes would exceed the limit.
        self._limit, self._free_at = limit, 0.0

    def add(self, size: int) -> None:
        """Count copied bytes, and wait while the rate is above the limit.

        Raises:
            RequestCancelled: `stopped` is set.
        """
        wait_s = 0.0
        self._report(size)
        with self._lock:
            self._bytes += size
            if self._limit is not None:
                now = time.monotonic()
                self._free_at = max(self._free_at, now) + size / self._limit
                wait_s = self._free_at - now
        if self.stopped.wait(wait_s):
            raise RequestCancelled

    def take_count(self) -> int:
        """Return the number of bytes copied since the last call."""
        with self._lock:
            size, self._bytes = self._bytes, 0
        return size


class ThreadCount:
    """The number of concurrent tasks: the `requested` number, or a number adapted to the throughput.

    The adapted number starts at four and doubles, up to 16, while each doubling raises the throughput by more than a
    fifth. A doubling that gains less is undone, and the number then stays constant.
    """

    def __init__(self, requested: int | None) -> None:
        self.limit = requested or _INITIAL_THREADS
        self._is_adapting = requested is None
        self._last_rate, self._started = 0.0, time.monotonic()
        self._progress = self._finished = 0

    def note(self, size: int, finished: int, now: float) -> None:
        """Record copied bytes and finished tasks, and adapt `limit`."""
        self._progress += size + finished  # count tasks, too, because a task may copy no bytes
        self._finished += finished
        elapsed_s = now - self._started
        if not self._is_adapting or self._finished < self.limit or elapsed_s < _MEASURE_S:
            return
        is_faster = self._progress / elapsed_s > _MIN_GAIN * self._last_rate
        self._is_adapting = is_faster and self.limit < _MAX_THREADS
        self.limit = min(2 * self.limit, _MAX_THREADS) if is_faster else self.limit // 2
        self._last_rate, self._started, self._progress, self._finished = self._progress / elapsed_s, now, 0, 0


def _threads_for_limit(limit: int | None) -> int | None:
    # Each thread must be able to copy a block every `_MAX_SILENT_S` seconds.
    threads = _MAX_THREADS if limit is None else limit * _MAX_SILENT_S // BLOCK_BYTES
    return None if threads >= _MAX_THREADS else min(max(threads, 1), _INITIAL_THREADS)


def run_in_threads(
    work: Callable[[Task, ByteMeter], Result], tasks: Iterable[Task], options: CopyOptions, observer: Observer
) -> Iterator[tuple[Task, Result]]:
    """Run tasks in threads, or in this thread if `options.workers` is 0. Yield each task with its result.

    When the iteration ends, even with an error, all threads have stopped.
    """
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    limit = None if options.limit is None else parse_rate("limit", options.limit)
    if options.workers == 0:
        meter = ByteMeter(limit, lambda size: observer.advance(0, size, 0))
        yield from ((task, work(task, meter)) for task in tasks)
        return
    pace, remaining, meter = ThreadCount(options.workers or _threads_for_limit(limit)), iter(tasks), ByteMeter(limit)

    def run_task(task: Task) -> Result:
        with cancel_on(meter.stopped):
            return work(task, meter)

    with ThreadPoolExecutor(options.workers or _MAX_THREADS, "shardtool-copy") as pool:
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                while len(running) < pace.limit and (task := next(remaining, None)) is not None:
                    running[pool.submit(run_task, task)] = task
                if not running:
                    return
                done, _ = wait(running, _POLL_S, FIRST_COMPLETED)
                size = meter.take_count()
                observer.advance(0, size, 0)
                pace.note(size, len(done), time.monotonic())
                for future in [future for future in running if future in done]:
                    yield running.pop(future), future.result()
        finally:
            meter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
