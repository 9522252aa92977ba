"""The limits that fetches of one worker share: how many at once, how many of a host, how many bytes are held.

Who must wait does so in a queue. Only the head, the first file that was asked for and not taken yet, never waits: all
others may wait for it to be taken, so a limit can be exceeded by that one. All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shardtool.fetch.options import FetchOptions


class _Waiting(NamedTuple):
    """A fetch that waits: which, what takes what it needs if there is room, and what wakes it."""

    number: int
    take: Callable[[bool], bool]
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
        self._queue: list[_Waiting] = []

    @property
    def waiting(self) -> int:
        """How many fetches wait."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether as many bytes are held as may be."""
        return self.held >= self._options.memory

    @asynccontextmanager
    async def turn(self, number: int, host: str) -> AsyncIterator[None]:
        """Be one of the requests that go on at once, in all and to a host."""

        def take(at_any_rate: bool) -> bool:  # noqa: FBT001
            room = self._active < self._options.connections and self._of_host[host] < self._options.per_host
            if room or at_any_rate:
                self._active += 1
                self._of_host[host] += 1
            return room or at_any_rate

        await self._wait(number, take)
        try:
            yield
        finally:
            self._active -= 1
            self._of_host[host] -= 1
            if not self._of_host[host]:
                del self._of_host[host]
            self.changed()

    def hold_now(self, number: int, size: int) -> bool:
        """Hold `size` more bytes if nothing must be waited for; return whether that is so."""
        if number > self.head and self.held + size > self._options.memory:
            return False
        self.held += size
        return True

    async def hold(self, number: int, size: int) -> None:
        """Hold `size` more bytes, once there is room for them."""

        def take(at_any_rate: bool) -> bool:  # noqa: FBT001
            return self.hold_now(self.head if at_any_rate else self.head + 1, size)

        await self._wait(number, take)

    def release(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.held -= size
        self.changed()

    def changed(self) -> None:
        """Let go on who has room by now."""
        for one in [*self._queue]:
            if not one.woken.done() and one.take(one.number <= self.head):
                one.woken.set_result(None)

    async def _wait(self, number: int, take: Callable[[bool], bool]) -> None:
        if take(number <= self.head):
            return
        one = _Waiting(number, take, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        self._waits()
        try:
            await one.woken
        finally:
            self._queue.remove(one)
