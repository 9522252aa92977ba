"""Limit the downloads of one worker: concurrent requests, requests per host, and bytes in memory.

A download that would exceed a limit waits in the queue of its host, or in the queue for memory. The head is the file
that the caller takes next. The download of the head never waits, because the caller frees memory by taking the file.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from shardtool.fetch.options import FetchOptions


AHEAD_FACTOR = 4  # start more downloads than connections, because downloads from a slow host wait in a queue
_MAX_HOSTS = 100_000


class HostTimes:
    """Measures the download time of each host, to estimate the remaining time of a shard."""

    def __init__(self, options: FetchOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._options, self._now = options, now
        self._finished: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._active: dict[int, float] = {}
        self.start(())

    def start(self, hosts: Sequence[str]) -> None:
        """Start measuring a shard. `hosts` has the host of each file in download order."""
        self._hosts, self._file_counts, ahead = hosts, Counter(hosts), AHEAD_FACTOR * self._options.connections
        self._remaining = [Counter(hosts[index : index + ahead]) for index in range(0, len(hosts), ahead)]
        if len(self._finished) > _MAX_HOSTS:
            self._finished.clear()
            self._seconds.clear()

    def request_started(self, number: int) -> None:
        """Record that the request for a file starts."""
        self._active[number] = self._now()

    def request_finished(self, number: int) -> None:
        """Record that the request for a file finishes."""
        self._seconds[self._hosts[number]] += self._now() - self._active.pop(number)

    def file_finished(self, number: int) -> None:
        """Record that a file is complete or has failed."""
        host = self._hosts[number]
        self._finished[host] += 1
        self._remaining[number // (AHEAD_FACTOR * self._options.connections)][host] -= 1

    def estimate(self) -> tuple[float, str, int, int, float]:
        """Return `FetchProgress.remaining_s` and the attributes after it. Thread-safe."""
        seconds_per_file, seconds = self._seconds_per_file(), defaultdict[str, float](float)
        for counts in self._remaining:
            busy = {host: count * seconds_per_file[host] for host, count in counts.items() if count}
            host = max(busy, key=busy.__getitem__, default="")
            shared_time = sum(busy.values()) / self._options.connections
            seconds[host] += max(busy.get(host, 0) / self._options.per_host, shared_time)
        host = max(seconds, key=seconds.__getitem__, default="")
        done = self._file_counts[host] - self._files_remaining(host)
        return sum(seconds.values()), host, done, self._file_counts[host], seconds_per_file.get(host, 0)

    def _seconds_per_file(self) -> dict[str, float]:
        # Include requests in progress, because a slow host may not have completed any file yet.
        active_times = defaultdict[str, list[float]](list)
        # Copy the dict, because the event loop changes it.
        for number, started in [*self._active.items()]:
            active_times[self._hosts[number]].append(self._now() - started)
        overall_average = sum(self._seconds.values()) / max(self._finished.total(), 1)
        averages = {
            host: self._seconds[host] / (self._finished[host] or 1) or overall_average for host in self._file_counts
        }
        for host, passed in active_times.items():
            if not self._finished[host] or self._files_remaining(host) <= len(passed):
                averages[host] = max(averages[host], *passed)
        return averages

    def _files_remaining(self, host: str) -> int:
        return sum(counts[host] for counts in self._remaining)


class Download(NamedTuple):
    """A download in progress. `number` is the index of its URL."""

    number: int
    clock: PausableTimeout


class _WaitingDownload(NamedTuple):
    queue: deque[int]
    size: int
    take: Callable[[], None]
    woken: asyncio.Future[None]


class DownloadLimits:
    """Limits the downloads of one shard."""

    def __init__(self, options: FetchOptions, on_wait: Callable[[], object], times: HostTimes) -> None:
        self._options, self._on_wait, self._times = options, on_wait, times
        self.head = self.held = self._active = 0
        self._active_per_host: Counter[str] = Counter()
        self._waiting: dict[int, _WaitingDownload] = {}
        self._memory_queue: deque[int] = deque()
        self._host_queues: dict[str, deque[int]] = {}

    def has_room(self, started: int) -> bool:
        """Return whether another download may start when `started` downloads are in progress."""
        connections, active = self._options.connections, started - len(self._waiting)
        return active < connections and started < AHEAD_FACTOR * connections and self.held < self._options.memory

    @asynccontextmanager
    async def request(self, download: Download, host: str) -> AsyncIterator[None]:
        """Wait until the limits allow a request to a host, and count the request until the `with` block ends."""

        def take() -> None:
            self._active += 1
            self._active_per_host[host] += 1

        if download.number <= self.head or self._is_free(host):
            take()
        else:
            await self._wait(download, self._host_queues.setdefault(host, deque()), 0, take)
        self._times.request_started(download.number)
        try:
            yield
        finally:
            self._times.request_finished(download.number)
            self._finish_request(host)

    async def hold(self, download: Download, size: int) -> None:
        """Wait until `size` more bytes fit in memory, and count these bytes."""

        def take() -> None:
            self.held += size

        if download.number <= self.head or self.held + size <= self._options.memory:
            take()
        else:
            await self._wait(download, self._memory_queue, size, take)

    def release(self, size: int) -> None:
        """Count `size` bytes as freed."""
        self.held -= size
        queue = self._memory_queue
        while queue and self.held + self._waiting[queue[0]].size <= self._options.memory:
            self._wake(queue[0])

    def move_head(self, number: int) -> None:
        """Set `head` to `number`. Downloads up to `number` stop waiting."""
        for index in range(self.head, number + 1):
            self._wake(index)
        self.head = number

    def _is_free(self, host: str) -> bool:
        return self._active < self._options.connections and self._active_per_host[host] < self._options.per_host

    def _finish_request(self, host: str) -> None:
        was_full = self._active >= self._options.connections
        self._active -= 1
        self._active_per_host[host] -= 1
        for waiting_host in [host, *(self._host_queues if was_full else ())]:
            if self._host_queues.get(waiting_host) and self._is_free(waiting_host):
                self._wake(self._host_queues[waiting_host][0])
        if not self._active_per_host[host]:
            del self._active_per_host[host]
        if not self._host_queues.get(host):
            self._host_queues.pop(host, None)

    async def _wait(self, download: Download, queue: deque[int], size: int, take: Callable[[], None]) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._waiting[download.number] = _WaitingDownload(queue, size, take, woken)
        queue.append(download.number)
        self._on_wait()
        download.clock.stop()
        await woken
        download.clock.start()

    def _wake(self, number: int) -> None:
        if (waiting := self._waiting.pop(number, None)) is not None:
            waiting.queue.remove(number)
            waiting.take()
            if not waiting.woken.done():
                waiting.woken.set_result(None)


class PausableTimeout:
    """Ends its `with` block with `asyncio.TimeoutError` after `seconds`. Time from `stop` to `start` is not counted."""

    def __init__(self, seconds: float) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._remaining, self._end = seconds, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self._remaining if self._timer is None else self._end - self._loop.time()

    def start(self) -> None:
        """Start or resume counting time."""
        self._end = self._loop.time() + self._remaining
        self._timer = self._loop.call_at(self._end, self._expire)

    def stop(self) -> None:
        """Stop counting time."""
        if self._timer is not None:
            self._remaining = self.left
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.stop()
        if self._expired and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from None
