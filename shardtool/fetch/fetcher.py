"""Download the files of a shard concurrently, in a thread with an event loop, and return them in order.

Files are started in the order in which they are needed, as far ahead as memory allows. Files of a host that is at
its
limit are overtaken by later ones. The next file in order never waits for others. A failure is the result of its
file.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

from shardtool.fetch.client import DownloadClient
from shardtool.fetch.host_times import HostTimes
from shardtool.fetch.limits import DownloadLimits
from shardtool.fetch.options import FetchOptions, FetchProgress
from shardtool.fetch.urls import url_host
from shardtool.storage.remote.notices import RequestRetry, emit
from shardtool.storage.remote.retry import SLICE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_PROGRESS_INTERVAL_S = 1.0  # between two times that a worker tells how far it is; more where that takes long


_MAX_PROGRESS_SHARE = 0.05  # of the time, at most


_MAX_LISTED_RETRIES = 10  # requests made again that are told one by one each time


class HttpFetcher:
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
        self._times = HostTimes(options)
        self._turns = DownloadLimits(options, self._schedule_start, self._times)
        self._again: list[RequestRetry] = []
        self._samples, self._began, self._waited_s, self._tell_at = 0, 0.0, 0.0, 0.0
        self._waits: Callable[[], object] = int
        self._client: DownloadClient | None = None
        self._lack: MemoryError | None = None
        self._loop.set_exception_handler(self._broken)
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardtool-fetch", daemon=True)
        self._thread.start()

    def begin(self, urls: Sequence[str], samples: int = 0, waits: Callable[[], object] = int) -> None:
        """Fetch other files from now on; what was begun before is given up.

        Args:
            urls: Of these.
            samples: Of so many samples.
            waits: Called now and then while a file is waited for.
        """
        if self._urls:
            self._tell(len(self._urls))
        asyncio.run_coroutine_threadsafe(self._begin(urls), self._loop).result()
        self._samples, self._waits, self._began, self._waited_s = samples, waits, time.monotonic(), 0.0
        self._tell_at = self._began + _PROGRESS_INTERVAL_S

    def take(self, number: int) -> bytes:
        """Return the file of the URL at that place among those that were begun; those before it are passed over.

        Raises:
            FetchFailed: There is none to be had.
        """
        if number > self._turns.head:
            self._loop.call_soon_threadsafe(self._skip_until, number)
        while (found := self._take_if_done(number)) is None:
            pass
        size = len(found) if isinstance(found, bytes) else 0
        self._loop.call_soon_threadsafe(self._taken, number, size)
        if isinstance(found, Exception):
            raise found
        return found

    def _take_if_done(self, number: int) -> bytes | Exception | None:
        """Return a file, or why there is none; None: it is not there yet, after a moment's wait."""
        began = time.monotonic()
        if began > self._tell_at:
            self._tell(number)
        with self._ready:
            if number in self._found:
                return self._found.pop(number)
            if self._lack is not None:
                raise self._lack
            self._ready.wait(SLICE_S)
        self._waits()
        self._waited_s += time.monotonic() - began
        return None

    def _tell(self, taken: int) -> None:
        """Tell the parent how far this is: so many files are packed."""
        now, files, left = time.monotonic(), len(self._urls), self._times.left()
        elapsed_s = now - self._began
        if elapsed_s > 2 * self._waited_s:  # it is packing that takes the time
            left = max(left, ((elapsed_s - self._waited_s) * (files - taken) / max(taken, 1), "", 0, 0, 0.0))
        with self._ready:
            again, self._again = self._again, []
        for one in again:
            emit(one)
        emit(FetchProgress(os.getpid(), self._samples, taken / files, elapsed_s, *left))
        self._tell_at = time.monotonic() + _PROGRESS_INTERVAL_S + (time.monotonic() - now) / _MAX_PROGRESS_SHARE

    def _note_retry(self, again: RequestRetry) -> None:
        """Keep a request that is made again, to be told; beyond some, the last one speaks for those before it."""
        with self._ready:
            if len(self._again) == _MAX_LISTED_RETRIES:
                last = self._again.pop()
                again = again._replace(wait_s=last.wait_s + again.wait_s, requests=last.requests + 1)
            self._again.append(again)

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

    async def _close(self) -> None:
        await self._begin(())
        if self._client is not None:
            await self._client.close()
        await self._loop.shutdown_default_executor()

    async def _begin(self, urls: Sequence[str]) -> None:
        self._urls, tasks = (), [*self._tasks]  # so that no other begins as these end
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is None:
            self._client = DownloadClient(self._options, self._note_retry)
        with self._ready:
            self._found.clear()
        self._times.start([url_host(url) for url in urls])
        self._urls, self._next, self._turns = urls, 0, DownloadLimits(self._options, self._schedule_start, self._times)
        self._start_more()

    def _schedule_start(self) -> None:
        self._loop.call_soon(self._start_more)

    def _start_more(self) -> None:
        """Begin as many files as there is room for."""
        turns = self._turns
        while self._next < len(self._urls) and (self._next <= turns.head or turns.has_room(len(self._tasks))):
            task = self._loop.create_task(self._fetch(self._next, turns))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            self._next += 1

    async def _fetch(self, number: int, turns: DownloadLimits) -> None:
        """Fetch one file, and hand it out."""
        found: bytes | Exception
        try:
            if self._client is None:
                return
            found = await self._client.get(self._urls[number], number, turns)
        except Exception as error:  # noqa: BLE001 - raised where the file is taken
            found = error
        self._times.done(number)
        if number < turns.head:  # it was passed over
            turns.release(len(found) if isinstance(found, bytes) else 0)
            return
        with self._ready:
            self._found[number] = found
            self._ready.notify()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start_more()

    def _taken(self, number: int, size: int) -> None:
        self._turns.move_head(number + 1)
        self._turns.release(size)
        self._start_more()

    def _skip_until(self, number: int) -> None:
        self._turns.move_head(number)
        with self._ready:
            lost = [self._found.pop(one) for one in [*self._found] if one < number]
        self._turns.release(sum(len(one) for one in lost if isinstance(one, bytes)))
        self._start_more()
