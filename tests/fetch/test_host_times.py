"""Laws of the time that is left of a fetch: each host has its own pace, and so do those who wait for it."""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing, redirect_stderr
from heapq import heappop, heappush
from io import StringIO
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.cli import terminal as terminal_module
from shardtool.cli.terminal import Terminal
from shardtool.fetch import fetcher
from shardtool.fetch.limits import HostTimes
from shardtool.fetch.options import FetchOptions, url_host
from shardtool.storage.remote.notices import FetchProgress, RequestRetry, emit, set_listener
from tests.fetch.conftest import fetching

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fetch.server import WebServer

SECONDS = {"slow": 1.0, "fast": 0.1}


class _Fetches:
    """Simulates an `HttpFetcher` that downloads files of several hosts, with its own clock."""

    def __init__(self, hosts: Sequence[str], options: FetchOptions, seed: int) -> None:
        self.hosts, self.options, self.now, self._draw = hosts, options, 0.0, np.random.default_rng(seed)
        self.times = HostTimes(options, lambda: self.now)
        self.times.start(hosts)

    def run(self, until: float) -> float:
        """Download until all files are complete, or until the given time. Return the time."""
        waiting: dict[str, deque[int]] = {host: deque() for host in SECONDS}
        active: list[tuple[float, int]] = []
        busy = dict.fromkeys(SECONDS, 0)
        started, connections = 0, self.options.connections
        for ended in range(len(self.hosts)):
            while started < len(self.hosts) and len(active) < connections and started - ended < 4 * connections:
                waiting[self.hosts[started]].append(started)
                started += 1
                self._begin(waiting, active, busy)
            ends, number = heappop(active)
            self.now = min(ends, until)
            if ends > until:
                break
            busy[self.hosts[number]] -= 1
            self.times.request_finished(number)
            self.times.file_finished(number)
            self._begin(waiting, active, busy)
        return self.now

    def _begin(self, waiting: dict[str, deque[int]], active: list[tuple[float, int]], busy: dict[str, int]) -> None:
        for host, numbers in waiting.items():
            while numbers and busy[host] < self.options.per_host and len(active) < self.options.connections:
                number = numbers.popleft()
                busy[host] += 1
                self.times.request_started(number)
                heappush(active, (self.now + SECONDS[host] * self._draw.uniform(0.5, 1.5), number))


@given(
    st.sampled_from(("mixed", "slow first", "fast first")), st.integers(150, 400), st.sampled_from((1, 4, 16)),
    st.integers(0, 9),
)  # fmt: skip
def test_one_slow_host(order: str, half: int, per_host: int, seed: int) -> None:
    """With one host ten times slower, a third of the run gives a good estimate, wherever its files are."""
    hosts = ["slow"] * half + ["fast"] * half
    if order == "mixed":
        np.random.default_rng(seed).shuffle(hosts)
    elif order == "fast first":
        hosts.reverse()
    options = FetchOptions(per_host=per_host)
    took = _Fetches(hosts, options, seed).run(inf)
    again = _Fetches(hosts, options, seed)
    again.run(took / 3)
    remaining_s, host, done, files, seconds_per_file = again.times.estimate()
    assert 1 / 1.5 < remaining_s / (took * 2 / 3) < 1.5
    assert (host, files) == ("slow", half)
    assert 0 < done < half
    assert 0.5 < seconds_per_file < 1.5


@given(st.lists(st.sampled_from(("slow", "fast")), min_size=500, max_size=500), st.sampled_from((16, 64)))
def test_estimate_with_more_files_than_started(hosts: list[str], connections: int) -> None:
    """The estimate also holds if files of one host wait for those of the other."""
    options = FetchOptions(per_host=8, connections=connections)
    took = _Fetches(hosts, options, 0).run(inf)
    again = _Fetches(hosts, options, 0)
    again.run(took / 3)
    assert 1 / 1.5 < again.times.estimate()[0] / (took * 2 / 3) < 1.5


def test_estimate_for_a_silent_host() -> None:
    """A silent host takes at least as long as it has already; files that never started do not count."""
    now = [0.0]
    times = HostTimes(FetchOptions(per_host=2), lambda: now[0])
    assert times.estimate() == (0, "", 0, 0, 0)
    times.start(["a", "b", "a", "a"])
    times.request_started(1)
    times.request_started(0)
    now[0] = 8
    times.request_finished(1)
    times.file_finished(1)
    assert times.estimate() == (8 * 3 / 2, "a", 0, 3, 8)


def test_estimate_for_a_hanging_file() -> None:
    """The last files of a host take at least as long as they have already."""
    now = [0.0]
    times = HostTimes(FetchOptions(per_host=2), lambda: now[0])
    times.start(["a"] * 4)
    for number in (0, 1):
        times.request_started(number)
        now[0] += 1
        times.request_finished(number)
        times.file_finished(number)
    times.request_started(2)
    now[0] += 9
    assert times.estimate() == (1, "a", 2, 4, 1)
    times.request_started(3)
    times.request_finished(3)
    times.file_finished(3)
    assert times.estimate() == (9 / 2, "a", 3, 4, 9)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://me:secret@Host.org:80/a?b=http://x/", "host.org"), (" https://[2001:db8::1]:8080/a", "2001:db8::1"),
        ("http:\\\\host\\a", "host"), ("http://host", "host"), ("http:///a", ""), ("a/b", ""), ("", ""),
        ("https://bucket.s3.org/a?X-Amz-Signature=b@c", "bucket.s3.org"),
    ],
)  # fmt: skip
def test_only_the_host_is_shown(url: str, host: str) -> None:
    """Progress shows only the host of a URL: no user, password or query."""
    assert url_host(url) == host


def test_estimates_of_workers_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that have not started take as long as those that have; two workers share them."""
    monkeypatch.setattr(terminal_module, "PERIOD_S", 1000)
    with redirect_stderr(StringIO()), closing(Terminal(quiet=False, verbose=False, progress="plain")) as terminal:
        terminal.start(600, 0, 6)
        fetched = terminal._fetch_estimate  # noqa: SLF001 - the estimate of progress lines
        assert fetched is not None
        assert fetched.remaining_text() == ""
        emit(FetchProgress(1, 100, 0.5, 30, 30, "slow.org", 10, 50, 1.5))
        emit(FetchProgress(2, 100, 0.5, 30, 20, "slow.org", 15, 50, 1.5))
        terminal.advance(100, 0, 0)
        assert fetched.remaining_text() == ", 140 s left, waiting for slow.org: 25 of 100, 1.5 s each"
        emit(FetchProgress(1, 100, 1, 60, 0, "", 0, 0, 0))
        emit(FetchProgress(2, 100, 0.9, 40, 10, "", 0, 0, 0))
        terminal.advance(480, 0, 4)
        assert fetched.remaining_text().endswith(" s left")


def test_packing_may_be_the_bottleneck(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If files arrive before they are needed, no host is reported as slow."""
    monkeypatch.setattr(fetcher, "_PROGRESS_INTERVAL_S", 0.0)
    events: list[object] = []
    set_listener(events.append)
    with fetching() as client:
        began = time.monotonic()
        client.start([web.url(f"ok/{number}") for number in range(20)], 20)
        for number in range(20):
            client.take(number)
            time.sleep((time.monotonic() - began) / 10)  # longer than any wait before
        client.start(())
    set_listener(None)
    *_, late, _ = (event for event in events if isinstance(event, FetchProgress))
    assert (late.host, late.share < 1, late.remaining_s > 0) == ("", True, True)


def test_progress_and_retries_are_reported(web: WebServer) -> None:
    """A worker reports its progress to the end, and each retry, without secrets."""
    events: list[object] = []
    set_listener(events.append)
    urls = [web.url(f"busy/1/{number}?X-Amz-Signature=secret").replace("//", "//me:secret@") for number in range(30)]
    with fetching(retries=2, connections=64) as fetcher:
        waits: list[int] = []
        fetcher.start(urls, 30, lambda: waits.append(1))
        for number in range(30):
            fetcher.take(number)
        fetcher.start(())
    set_listener(None)
    assert waits
    retries = [event for event in events if isinstance(event, RequestRetry)]
    assert sum(event.requests for event in retries) == 30
    assert {event.attempts for event in retries} == {1}
    assert all(event.where.endswith("?X-Amz-Signature=REDACTED") and "503" in event.found for event in retries)
    *_, last = events
    assert isinstance(last, FetchProgress)
    assert (last.samples, last.share, last.remaining_s, "secret" in str(events)) == (30, 1, 0, False)
