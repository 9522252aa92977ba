"""Fetches the files of a shard, many at once, in a thread with an event loop, and gives them in their order.

Strategy: files are begun in the order in which they will be asked for, as far ahead as there is memory; those of a
host that has as many requests as it may are passed by those that come later. What is asked for next never waits for
others. Each failure is the result of its file.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from shardtool.fetch.client import Client
from shardtool.fetch.limits import Turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.fetch.options import FetchOptions

_AHEAD = 4  # times as many are begun as go on at once, where some wait for their hosts


class Fetcher:
    """Fetches files for one thread, one list of URLs after the other; connections stay open in between.

    Args:
        options: How.
    """

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Condition()
        self._found: dict[int, bytes | Exception] = {}
        self._next = 0
        self._urls: Sequence[str] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns(options, self._begin_later)
        self._client: Client | None = None
        self._lack: MemoryError | None = None
        self._loop.set_exception_handler(self._broken)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def held(self) -> int:
        """Bytes that were read, and not taken yet."""
        return asyncio.run_coroutine_threadsafe(self._held(), self._loop).result()

    @property
    def ended(self) -> bool:
        """Whether it was closed, and its thread has ended."""
        return not self._thread.is_alive()

    def begin(self, urls: Sequence[str]) -> None:
        """Fetch these from now on; what was begun before is given up."""
        asyncio.run_coroutine_threadsafe(self._begin(urls), self._loop).result()

    def take(self, number: int) -> bytes:
        """Return the file of the URL at that place among those that were begun; those before it are passed over.

        Raises:
            FetchFailed: There is none to be had.
        """
        with self._ready:
            if number > self._turns.head:
                self._loop.call_soon_threadsafe(self._pass_over, number)
            while number not in self._found:
                if self._lack is not None:
                    raise self._lack
                self._ready.wait()
            found = self._found.pop(number)
        size = len(found) if isinstance(found, bytes) else 0
        self._loop.call_soon_threadsafe(self._taken, number, size)
        if isinstance(found, Exception):
            raise found
        return found

    def end(self) -> None:
        """Give up what was begun."""
        asyncio.run_coroutine_threadsafe(self._begin(()), self._loop).result()

    def close(self) -> None:
        """Give up what was begun, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _broken(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Take what went wrong beside all files: of connections that end badly, no one need know."""
        error = context.get("exception")
        if isinstance(error, MemoryError):
            with self._ready:
                self._lack = error
                self._ready.notify()

    async def _held(self) -> int:
        return self._turns.held

    async def _close(self) -> None:
        await self._begin(())
        if self._client is not None:
            await self._client.close()
        await self._loop.shutdown_default_executor()

    async def _begin(self, urls: Sequence[str]) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is None:
            self._client = Client(self._options)
        with self._ready:
            self._found.clear()
        self._urls, self._next, self._turns = urls, 0, Turns(self._options, self._begin_later)
        self._begin_more()

    def _begin_more(self) -> None:
        """Begin as many files as there is room for."""
        turns = self._turns
        while self._next < len(self._urls) and (self._next <= turns.head or self._has_room()):
            task = self._loop.create_task(self._fetch(self._next, turns))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            self._next += 1

    def _begin_later(self) -> None:
        self._loop.call_soon(self._begin_more)

    def _has_room(self) -> bool:
        begun, most = len(self._tasks), self._options.connections
        return begun - self._turns.waiting < most and begun < _AHEAD * most and not self._turns.full

    async def _fetch(self, number: int, turns: Turns) -> None:
        """Fetch one file, and hand it out."""
        found: bytes | Exception
        try:
            if self._client is None:
                return
            found = await self._client.get(self._urls[number], number, turns)
        except Exception as error:  # noqa: BLE001 - raised where the file is taken
            found = error
        if number < turns.head:  # it was passed over
            turns.release(len(found) if isinstance(found, bytes) else 0)
            return
        with self._ready:
            self._found[number] = found
            self._ready.notify()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin_more()

    def _taken(self, number: int, size: int) -> None:
        self._turns.move_head(number + 1)
        self._turns.release(size)
        self._begin_more()

    def _pass_over(self, number: int) -> None:
        self._turns.move_head(number)
        with self._ready:
            lost = [self._found.pop(one) for one in [*self._found] if one < number]
        self._turns.release(sum(len(one) for one in lost if isinstance(one, bytes)))
        self._begin_more()
