"""Limits shared by the downloads of one worker: concurrent requests, requests per host, and bytes in memory.

A download waits in the queue of its host, or for memory. The head is the next file that the caller takes. The download
of the head never waits and may exceed a limit, because all other downloads may wait for the head. All code runs in one
event loop. Download times per host are used to estimate the remaining time of a shard.
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


AHEAD_FACTOR = 4  # started downloads per connection, because some wait for their hosts
_MAX_HOSTS = 100_000  # maximum hosts with measured times


class HostTimes:
    """Measured times and numbers of remaining files, for each host of a shard."""

    def __init__(self, options: FetchOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._options, self._now = options, now
        self._finished: Counter[str] = Counter()  # number of finished or failed files, by host
        self._seconds: defaultdict[str, float] = defaultdict(float)  # total request time, by host
        self._active: dict[int, float] = {}  # start time of each active request, by file number
        self.start(())

    def start(self, hosts: Sequence[str]) -> None:
        """Start to count new files. `hosts` are the hosts of the files, in download order."""
        self._hosts, self._file_counts, ahead = hosts, Counter(hosts), AHEAD_FACTOR * self._options.connections
        self._remaining = [Counter(hosts[index : index + ahead]) for index in range(0, len(hosts), ahead)]
        if len(self._finished) > _MAX_HOSTS:
            self._finished.clear()
            self._seconds.clear()

    def request_started(self, number: int) -> None:
        """Note the start of a request for a file."""
        self._active[number] = self._now()

    def request_ended(self, number: int) -> None:
        """Note the end of the request."""
        self._seconds[self._hosts[number]] += self._now() - self._active.pop(number)

    def file_done(self, number: int) -> None:
        """Note that a file is complete or failed."""
        host = self._hosts[number]
        self._finished[host] += 1
        self._remaining[number // (AHEAD_FACTOR * self._options.connections)][host] -= 1

    def estimate(self) -> tuple[float, str, int, int, float]:
        """Return the estimated seconds until all files are complete, and the slowest host, as in `FetchProgress`.

        The estimate is the slowest host's time or, if longer, the total time divided by the connections. This method is
        thread-safe.
        """
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
        # Active requests also show how slow a host is.
        active_times = defaultdict[str, list[float]](list)
        for number, started in [*self._active.items()]:  # a copy: the event loop changes the dict
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
    """A download in progress; `number` is its index among the requested files."""

    number: int
    clock: PausableTimeout


class _WaitingDownload(NamedTuple):
    queue: deque[int]
    size: int
    take: Callable[[], None]
    woken: asyncio.Future[None]


class DownloadLimits:
    """The limits of the downloads of one shard. `on_wait` is called when a download starts to wait.

    Attributes:
        head: Number of the next file that the caller takes.
    """

    def __init__(self, options: FetchOptions, on_wait: Callable[[], object], times: HostTimes) -> None:
        self._options, self._on_wait, self._times = options, on_wait, times
        self.head = self.held = self._active = 0
        self._active_per_host: Counter[str] = Counter()
        self._waiting: dict[int, _WaitingDownload] = {}
        self._memory_queue: deque[int] = deque()
        self._host_queues: dict[str, deque[int]] = {}

    def has_room(self, started: int) -> bool:
        """Return whether one more download may start."""
        connections, active = self._options.connections, started - len(self._waiting)
        return active < connections and started < AHEAD_FACTOR * connections and self.held < self._options.memory

    @asynccontextmanager
    async def request(self, download: Download, host: str) -> AsyncIterator[None]:
        """Count the download as a concurrent request, in total and per host; wait until the limits allow it."""

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
            self._times.request_ended(download.number)
            self._end_request(host)

    async def hold(self, download: Download, size: int) -> None:
        """Count `size` more bytes as held; wait until memory allows it."""

        def take() -> None:
            self.held += size

        if download.number <= self.head or self.held + size <= self._options.memory:
            take()
        else:
            await self._wait(download, self._memory_queue, size, take)

    def release(self, size: int) -> None:
        """Count `size` bytes as no longer held."""
        self.held -= size
        queue = self._memory_queue
        while queue and self.held + self._waiting[queue[0]].size <= self._options.memory:
            self._wake(queue[0])

    def move_head(self, number: int) -> None:
        """Move the head. Downloads up to the new head stop waiting."""
        for index in range(self.head, number + 1):
            self._wake(index)
        self.head = number

    def _is_free(self, host: str) -> bool:
        return self._active < self._options.connections and self._active_per_host[host] < self._options.per_host

    def _end_request(self, host: str) -> None:
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
    """Raises `asyncio.TimeoutError` in its `with` block after some seconds, not counting pauses."""

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
        """Start or continue to count time."""
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
