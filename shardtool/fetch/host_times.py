"""Measure download times per host, and estimate the remaining time of a shard."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.fetch.options import FetchOptions


AHEAD_FACTOR = 4  # started downloads per connection, because some wait for their hosts
_MAX_HOSTS = 100_000  # with measured times


class HostTimes:
    """Measured times of hosts, and the number of remaining files per host of a shard."""

    def __init__(self, options: FetchOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._options, self._now = options, now
        self._finished: Counter[str] = Counter()  # finished or failed files
        self._seconds: defaultdict[str, float] = defaultdict(float)  # total request time
        self._active: dict[int, float] = {}  # start times of active requests
        self.start(())

    def start(self, hosts: Sequence[str]) -> None:
        """Start to count other files: `hosts` are theirs, in the order in which the files are needed."""
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
        """Note that a file is complete, or failed."""
        host = self._hosts[number]
        self._finished[host] += 1
        self._remaining[number // (AHEAD_FACTOR * self._options.connections)][host] -= 1

    def estimate(self) -> tuple[float, str, int, int, float]:
        """Return the estimated seconds until all files are complete, and the slowest host, as in `FetchProgress`.

        Concurrent downloads take the slowest host's time, or the total time divided by the connections if longer.
        Thread-safe.
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
        """Return the average time per file of each host; for its last files, at least the time already spent."""
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
