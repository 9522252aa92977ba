"""Measure how long files of each host take, and estimate the remaining time of a shard."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.fetch.options import FetchOptions


AHEAD_FACTOR = 4  # times as many are begun as go on at once, where some wait for their hosts


_MAX_HOSTS = 100_000  # of which is known how long they took


class HostTimes:
    """What was seen of hosts, and how many files of each are left of a shard.

    Args:
        options: How many files are fetched at once, and how many of a host.
        now: Gives the time, in seconds.
    """

    def __init__(self, options: FetchOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._options, self._now = options, now
        self._ended: Counter[str] = Counter()  # files that are there, or failed
        self._seconds: defaultdict[str, float] = defaultdict(float)  # of their turns
        self._going: dict[int, float] = {}  # when turns began that go on
        self.start(())

    def start(self, hosts: Sequence[str]) -> None:
        """Count other files from now on: `hosts` are theirs, in the order in which they are asked for."""
        self._hosts, self._all, ahead = hosts, Counter(hosts), AHEAD_FACTOR * self._options.connections
        self._left = [Counter(hosts[at : at + ahead]) for at in range(0, len(hosts), ahead)]
        if len(self._ended) > _MAX_HOSTS:
            self._ended.clear()
            self._seconds.clear()

    def begin(self, number: int) -> None:
        """Note that a turn of a file begins, at its host or at one to which that leads."""
        self._going[number] = self._now()

    def end(self, number: int) -> None:
        """Note that the turn ends."""
        self._seconds[self._hosts[number]] += self._now() - self._going.pop(number)

    def done(self, number: int) -> None:
        """Note that a file is there, or failed."""
        host = self._hosts[number]
        self._ended[host] += 1
        self._left[number // (AHEAD_FACTOR * self._options.connections)][host] -= 1

    def left(self) -> tuple[float, str, int, int, float]:
        """Return in how many seconds all are there, and the host which decides that, as `FetchProgress` has it.

        Of files that are fetched side by side, it is the one with the most to do, or all of them by turns. Any thread
        may ask.
        """
        each, seconds = self._each(), defaultdict[str, float](float)
        for counts in self._left:
            busy = {host: count * each[host] for host, count in counts.items() if count}
            host = max(busy, key=busy.__getitem__, default="")
            by_turns = sum(busy.values()) / self._options.connections
            seconds[host] += max(busy.get(host, 0) / self._options.per_host, by_turns)
        host = max(seconds, key=seconds.__getitem__, default="")
        done = self._all[host] - self._files_left(host)
        return sum(seconds.values()), host, done, self._all[host], each.get(host, 0)

    def _each(self) -> dict[str, float]:
        """Return how many seconds a file of each host takes; the last ones take as many as have passed, at least."""
        going = defaultdict[str, list[float]](list)
        for number, began in [*self._going.items()]:  # which the event loop changes
            going[self._hosts[number]].append(self._now() - began)
        usual = sum(self._seconds.values()) / max(self._ended.total(), 1)
        each = {host: self._seconds[host] / (self._ended[host] or 1) or usual for host in self._all}
        for host, passed in going.items():
            if not self._ended[host] or self._files_left(host) <= len(passed):
                each[host] = max(each[host], *passed)
        return each

    def _files_left(self, host: str) -> int:
        return sum(counts[host] for counts in self._left)
