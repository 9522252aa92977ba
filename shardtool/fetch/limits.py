"""The limits that fetches of one worker share: how many at once, how many of a host, how many bytes are held.

Who must wait does so in a queue: of its host, or for memory. Only the head, the first file that was asked for and not
taken yet, never waits: all others may wait for it to be taken, so a limit can be exceeded by that one. All of it runs
in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from typing_extensions import Self

    from shardtool.fetch.options import FetchOptions


class _WaitingFetch(NamedTuple):
    """A fetch that waits: in which queue, for how many bytes, what takes what it waits for, and what wakes it."""

    queue: deque[int]
    size: int
    take: Callable[[], None]
    woken: asyncio.Future[None]


class Turns:
    """The limits of the fetches of one shard.

    Args:
        options: What they are.
        waits: Called when a fetch begins to wait.

    Attributes:
        head: The number of the first file that was not taken yet.
        held: Bytes that were read, and not taken yet.
    """

    def __init__(self, options: FetchOptions, waits: Callable[[], object]) -> None:
        self._options, self._waits = options, waits
        self.head = self.held = self._active = 0
        self._of_host: Counter[str] = Counter()
        self._waiting: dict[int, _WaitingFetch] = {}
        self._for_memory: deque[int] = deque()
        self._for_turns: dict[str, deque[int]] = {}

    @property
    def waiting(self) -> int:
        """How many fetches wait."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether as many bytes are held as may be."""
        return self.held >= self._options.memory

    @asynccontextmanager
    async def turn(self, number: int, host: str) -> AsyncIterator[None]:
        """Be one of the requests that go on at once, in all and to a host."""

        def take() -> None:
            self._active += 1
            self._of_host[host] += 1

        if number <= self.head or self._has_turn(host):
            take()
        else:
            await self._wait(number, self._for_turns.setdefault(host, deque()), 0, take)
        try:
            yield
        finally:
            self._give_back(host)

    def hold_now(self, number: int, size: int) -> bool:
        """Hold `size` more bytes if nothing must be waited for; return whether that is so."""
        if number > self.head and self.held + size > self._options.memory:
            return False
        self.held += size
        return True

    async def hold(self, number: int, size: int) -> None:
        """Hold `size` more bytes, once there is room for them."""

        def take() -> None:
            self.held += size

        if not self.hold_now(number, size):
            await self._wait(number, self._for_memory, size, take)

    def release(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.held -= size
        queue = self._for_memory
        while queue and self.held + self._waiting[queue[0]].size <= self._options.memory:
            self._wake(queue[0])

    def move_head(self, number: int) -> None:
        """Take another file for the head; who waits for it, or for one before, waits no longer."""
        for one in range(self.head, number + 1):
            self._wake(one)
        self.head = number

    def _has_turn(self, host: str) -> bool:
        return self._active < self._options.connections and self._of_host[host] < self._options.per_host

    def _give_back(self, host: str) -> None:
        """End a turn, and let another fetch of the host have it or, where all turns were taken, one of another host."""
        all_taken = self._active >= self._options.connections
        self._active -= 1
        self._of_host[host] -= 1
        for one in [host, *(self._for_turns if all_taken else ())]:
            if self._for_turns.get(one) and self._has_turn(one):
                self._wake(self._for_turns[one][0])
        if not self._of_host[host]:
            del self._of_host[host]
        if not self._for_turns.get(host):
            self._for_turns.pop(host, None)

    async def _wait(self, number: int, queue: deque[int], size: int, take: Callable[[], None]) -> None:
        waiting = self._waiting[number] = _WaitingFetch(queue, size, take, asyncio.get_running_loop().create_future())
        queue.append(number)
        self._waits()
        await waiting.woken

    def _wake(self, number: int) -> None:
        if (waiting := self._waiting.pop(number, None)) is not None:
            waiting.queue.remove(number)
            waiting.take()
            if not waiting.woken.done():
                waiting.woken.set_result(None)


# A limit of time for a part of a task, which stands still while the task waits for others.


class Clock:
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
