"""Download the files of a shard concurrently and return them in order.

Downloads start in the order of the files. `DownloadLimits` limits the memory for files that the caller has not taken.
While a host has its maximum number of requests, files of other hosts are downloaded first.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence

from shardtool.fetch.client import DownloadClient
from shardtool.fetch.limits import DownloadLimits, HostTimes
from shardtool.fetch.options import FetchOptions, url_host
from shardtool.storage.remote.notices import FetchProgress, RequestRetry, emit
from shardtool.storage.remote.retry import SLICE_S

_PROGRESS_INTERVAL_S = 1.0
_MAX_PROGRESS_SHARE = 0.05
_MAX_LISTED_RETRIES = 10


class HttpFetcher:
    """Downloads one list of URLs at a time. Not thread-safe."""

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Condition()
        self._results: dict[int, bytes | Exception] = {}
        self._next_number = 0
        self._urls: Sequence[str] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._times = HostTimes(options)
        self._limits = DownloadLimits(options, self._schedule_start, self._times)
        self._retries: list[RequestRetry] = []
        self._samples, self._started, self._waited_s, self._next_report = 0, 0.0, 0.0, 0.0
        self._on_wait: Callable[[], object] = int
        self._client: DownloadClient | None = None
        self._memory_error: MemoryError | None = None
        self._loop.set_exception_handler(self._handle_loop_error)
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardtool-fetch", daemon=True)
        self._thread.start()

    def start(self, urls: Sequence[str], samples: int = 0, on_wait: Callable[[], object] = int) -> None:
        """Cancel the downloads of the previous URLs, and start to download `urls`.

        Args:
            samples: Number of samples in the shard, for progress reports.
            on_wait: Function that `take` calls repeatedly while it waits.
        """
        if self._urls:
            self._report_progress(len(self._urls))
        asyncio.run_coroutine_threadsafe(self._replace_urls(urls), self._loop).result()
        self._samples, self._on_wait, self._started, self._waited_s = samples, on_wait, time.monotonic(), 0.0
        self._next_report = self._started + _PROGRESS_INTERVAL_S

    def take(self, number: int) -> bytes:
        """Wait for the download of the URL at index `number`, and return the file. Drop files with smaller indexes."""
        if number > self._limits.head:
            self._loop.call_soon_threadsafe(self._skip_until, number)
        while (result := self._take_if_done(number)) is None:
            pass
        size = len(result) if isinstance(result, bytes) else 0
        self._loop.call_soon_threadsafe(self._release_taken, number, size)
        if isinstance(result, Exception):
            raise result
        return result

    def _take_if_done(self, number: int) -> bytes | Exception | None:
        # Return None if the file is still incomplete after a short wait.
        started = time.monotonic()
        if started > self._next_report:
            self._report_progress(number)
        with self._ready:
            if number in self._results:
                return self._results.pop(number)
            if self._memory_error is not None:
                raise self._memory_error
            self._ready.wait(SLICE_S)
        self._on_wait()
        self._waited_s += time.monotonic() - started
        return None

    def _report_progress(self, taken: int) -> None:
        now, files, remaining = time.monotonic(), len(self._urls), self._times.estimate()
        elapsed_s = now - self._started
        if elapsed_s > 2 * self._waited_s:
            remaining = max(remaining, ((elapsed_s - self._waited_s) * (files - taken) / max(taken, 1), "", 0, 0, 0.0))
        with self._ready:
            retries, self._retries = self._retries, []
        for retry in retries:
            emit(retry)
        emit(FetchProgress(os.getpid(), self._samples, taken / files, elapsed_s, *remaining))
        self._next_report = time.monotonic() + _PROGRESS_INTERVAL_S + (time.monotonic() - now) / _MAX_PROGRESS_SHARE

    def _note_retry(self, retry: RequestRetry) -> None:
        with self._ready:
            if len(self._retries) == _MAX_LISTED_RETRIES:
                last = self._retries.pop()
                retry = retry._replace(wait_s=last.wait_s + retry.wait_s, requests=last.requests + 1)
            self._retries.append(retry)

    def close(self) -> None:
        """Cancel all downloads, and stop the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _handle_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, MemoryError):
            with self._ready:
                self._memory_error = error
                self._ready.notify()

    async def _close(self) -> None:
        await self._replace_urls(())
        if self._client is not None:
            await self._client.close()
        await self._loop.shutdown_default_executor()

    async def _replace_urls(self, urls: Sequence[str]) -> None:
        # Clear the URLs first, so no download starts while tasks are cancelled.
        self._urls, tasks = (), [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is None:
            self._client = DownloadClient(self._options, self._note_retry)
        with self._ready:
            self._results.clear()
        self._times.start([url_host(url) for url in urls])
        self._urls, self._next_number = urls, 0
        self._limits = DownloadLimits(self._options, self._schedule_start, self._times)
        self._start_more()

    def _schedule_start(self) -> None:
        self._loop.call_soon(self._start_more)

    def _start_more(self) -> None:
        limits = self._limits
        while self._next_number < len(self._urls) and (
            self._next_number <= limits.head or limits.has_room(len(self._tasks))
        ):
            task = self._loop.create_task(self._fetch(self._next_number, limits))
            self._tasks.add(task)
            task.add_done_callback(self._task_done)
            self._next_number += 1

    async def _fetch(self, number: int, limits: DownloadLimits) -> None:
        result: bytes | Exception
        try:
            if self._client is None:
                return
            result = await self._client.get(self._urls[number], number, limits)
        except Exception as error:  # noqa: BLE001 - `take` raises it
            result = error
        self._times.file_finished(number)
        if number < limits.head:
            limits.release(len(result) if isinstance(result, bytes) else 0)
            return
        with self._ready:
            self._results[number] = result
            self._ready.notify()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start_more()

    def _release_taken(self, number: int, size: int) -> None:
        self._limits.move_head(number + 1)
        self._limits.release(size)
        self._start_more()

    def _skip_until(self, number: int) -> None:
        self._limits.move_head(number)
        with self._ready:
            skipped = [self._results.pop(index) for index in [*self._results] if index < number]
        self._limits.release(sum(len(result) for result in skipped if isinstance(result, bytes)))
        self._start_more()
