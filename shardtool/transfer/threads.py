"""Several shards at once, each in a thread: they wait for disks and servers, and all that counts bytes frees Python."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from shardtool.storage.remote.retry import Stopped, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.request.observer import Observer

Task = TypeVar("Task")
Result = TypeVar("Result")
_TICK_S = 0.2  # between two looks at how many bytes there are


class Meter:
    """The bytes that threads have dealt with, and the word that they are to stop.

    Attributes:
        stopped: Set when the run has ended: threads end at their next block, and requests wherever they are.
    """

    def __init__(self) -> None:
        self._lock, self._bytes, self.stopped = threading.Lock(), 0, threading.Event()

    def took(self, size: int) -> None:
        """Count bytes.

        Raises:
            Stopped: The run has ended.
        """
        with self._lock:
            self._bytes += size
        if self.stopped.is_set():
            raise Stopped

    def taken(self) -> int:
        """Return the bytes since the last call."""
        with self._lock:
            size, self._bytes = self._bytes, 0
        return size


def side_by_side(
    work: Callable[[Task, Meter], Result], tasks: Iterable[Task], threads: int, observer: Observer
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with what came of it, as it is done; tasks are drawn as threads become free.

    Whatever ends the loop, no thread runs on after it.

    Args:
        work: What is done; it calls `Meter.took` for each block.
        tasks: What with.
        threads: How many at a time.
        observer: Gets progress, in this thread.
    """
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    meter, left = Meter(), iter(tasks)

    def carry_out(task: Task) -> Result:
        with until(meter.stopped):
            return work(task, meter)

    with ThreadPoolExecutor(threads, "shardtool-copy") as pool:
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                while len(running) < 2 * threads and (task := next(left, None)) is not None:
                    running[pool.submit(carry_out, task)] = task
                if not running:
                    return
                done, _ = wait(running, _TICK_S, FIRST_COMPLETED)
                observer.advance(0, meter.taken(), 0)
                for one in [one for one in running if one in done]:
                    yield running.pop(one), one.result()
        finally:
            meter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
