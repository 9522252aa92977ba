"""Limits shared by the downloads of one worker: concurrent requests, requests per host, and bytes in memory.

A download waits in the queue of its host, or for memory. The head, the first file that was requested and not yet
taken, never waits: all others may wait for it, so it may exceed a limit. All of this runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from shardtool.fetch.host_times import AHEAD_FACTOR, HostTimes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from typing_extensions import Self

    from shardtool.fetch.options import FetchOptions


class Download(NamedTuple):
    """A file that is being fetched: its place among those that are asked for, and how long it may take."""

    number: int
    clock: PausableTimeout


class _WaitingDownload(NamedTuple):
    """A fetch that waits: in which queue, for how many bytes, what takes what it waits for, and what wakes it."""

    queue: deque[int]
    size: int
    take: Callable[[], None]
    woken: asyncio.Future[None]


class DownloadLimits:
    """The limits of the fetches of one shard.

    Args:
        options: What they are.
        waits: Called when a fetch begins to wait.
        times: Gets how long each turn takes.

    Attributes:
        head: The number of the first file that was not taken yet.
        held: Bytes that were read, and not taken yet.
    """

    def __init__(self, options: FetchOptions, waits: Callable[[], object], times: HostTimes) -> None:
        self._options, self._waits, self._times = options, waits, times
        self.head = self.held = self._active = 0
        self._active_per_host: Counter[str] = Counter()
        self._waiting: dict[int, _WaitingDownload] = {}
        self._memory_queue: deque[int] = deque()
        self._turn_queues: dict[str, deque[int]] = {}

    def has_room(self, begun: int) -> bool:
        """Tell whether one more may begin beside those that have begun."""
        most, going_on = self._options.connections, begun - len(self._waiting)
        return going_on < most and begun < AHEAD_FACTOR * most and self.held < self._options.memory

    @asynccontextmanager
    async def turn(self, fetch: Download, host: str) -> AsyncIterator[None]:
        """Be one of the requests that go on at once, in all and to a host."""

        def take() -> None:
            self._active += 1
            self._active_per_host[host] += 1

        if fetch.number <= self.head or self._has_turn(host):
            take()
        else:
            await self._wait(fetch, self._turn_queues.setdefault(host, deque()), 0, take)
        self._times.begin(fetch.number)
        try:
            yield
        finally:
            self._times.end(fetch.number)
            self._give_back(host)

    async def hold(self, fetch: Download, size: int) -> None:
        """Hold `size` more bytes, once there is room for them."""

        def take() -> None:
            self.held += size

        if fetch.number <= self.head or self.held + size <= self._options.memory:
            take()
        else:
            await self._wait(fetch, self._memory_queue, size, take)

    def release(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.held -= size
        queue = self._memory_queue
        while queue and self.held + self._waiting[queue[0]].size <= self._options.memory:
            self._wake(queue[0])

    def move_head(self, number: int) -> None:
        """Take another file for the head; who waits for it, or for one before, waits no longer."""
        for one in range(self.head, number + 1):
            self._wake(one)
        self.head = number

    def _has_turn(self, host: str) -> bool:
        return self._active < self._options.connections and self._active_per_host[host] < self._options.per_host

    def _give_back(self, host: str) -> None:
        """End a turn, and let another fetch of the host have it or, where all turns were taken, one of another host."""
        all_taken = self._active >= self._options.connections
        self._active -= 1
        self._active_per_host[host] -= 1
        for one in [host, *(self._turn_queues if all_taken else ())]:
            if self._turn_queues.get(one) and self._has_turn(one):
                self._wake(self._turn_queues[one][0])
        if not self._active_per_host[host]:
            del self._active_per_host[host]
        if not self._turn_queues.get(host):
            self._turn_queues.pop(host, None)

    async def _wait(self, fetch: Download, queue: deque[int], size: int, take: Callable[[], None]) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._waiting[fetch.number] = _WaitingDownload(queue, size, take, woken)
        queue.append(fetch.number)
        self._waits()
        fetch.clock.stop()
        await woken
        fetch.clock.start()

    def _wake(self, number: int) -> None:
        if (waiting := self._waiting.pop(number, None)) is not None:
            waiting.queue.remove(number)
            waiting.take()
            if not waiting.woken.done():
                waiting.woken.set_result(None)


class PausableTimeout:
    """Ends its `with` block after some seconds, not counting those between `stop` and `start`.

    Args:
        seconds: How many.

    Raises:
        asyncio.TimeoutError: The block was ended.
    """

    def __init__(self, seconds: float) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._left, self._end = seconds, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._left if self._timer is None else self._end - self._loop.time()

    def start(self) -> None:
        """Let time run."""
        self._end = self._loop.time() + self._left
        self._timer = self._loop.call_at(self._end, self._expire)

    def stop(self) -> None:
        """Let time stand still."""
        if self._timer is not None:
            self._left = self.left
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
