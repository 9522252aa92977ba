"""Retries of requests."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import InvalidRequest, StoreFailed
from shardtool.execute.local_pool import LocalPool
from shardtool.storage.remote import retry
from shardtool.storage.remote.retry import RetryPolicy, TransientError, with_retries

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def _no_answer_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_servers_that_responded", set())


def _silent() -> None:
    threading.Event().wait(0.03)
    raise TransientError("the response timed out")


def test_a_silent_server_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answered is given up much earlier than one that did."""
    monkeypatch.setattr(retry, "DEFAULT_POLICY", RetryPolicy(first_wait_s=0, first_response_s=0.01, max_total_s=0.3))
    with pytest.raises(StoreFailed, match=r"the response timed out\. Check"):
        with_retries("s3://b/k", _silent)
    with_retries("s3://b/k", lambda: None)
    with pytest.raises(StoreFailed, match="the response timed out"):
        with_retries("s3://b/k", _silent)


def test_each_server_is_judged_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answered is given up after a few attempts, although another server has answered."""
    monkeypatch.setattr(retry, "DEFAULT_POLICY", RetryPolicy(tries=3, first_wait_s=0, max_total_s=0.3))
    for address in ("https://h/k", "s3://a/k", "s3://source=http%3A%2F%2Fold@b/k"):
        with_retries(address, lambda: None)
    with pytest.raises(StoreFailed, match=r"^s3://b/k: .*\(3 attempts in .*\. Check the address"):
        with_retries("s3://b/k", _silent)
    with pytest.raises(StoreFailed, match=r"^s3://b/k: .*\. Try again"):
        with_retries("s3://source=http%3A%2F%2Fold@b/k", _silent)


def test_a_worker_retries_a_server_that_its_parent_has_reached() -> None:
    """A worker process retries the first request to a server within the whole budget, not only a few times."""
    with LocalPool(1, "fork") as pool:
        assert [*pool.map(_retry_often, [12, 12])] == [(0, 12), (1, 12)]


def _retry_often(failures: int) -> int:
    remaining = iter(range(failures))

    def fail_first() -> int:
        if next(remaining, None) is not None:
            raise TransientError("the server refused the connection")
        return failures

    with retry.with_policy(RetryPolicy(first_wait_s=0)):
        return with_retries("s3://b/k", fail_first)


def test_notice_while_waiting(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A first request without a response is reported once; after any response, waiting is not reported."""
    monkeypatch.setattr(retry, "DEFAULT_POLICY", RetryPolicy(tries=2, first_wait_s=0, max_total_s=0.1, notice_s=0.01))
    with caplog.at_level(logging.WARNING, "shardtool"), pytest.raises(StoreFailed):
        with_retries("s3://b/k", _silent)
    assert [record.getMessage() for record in caplog.records] == ["s3://b/k: no response for 0 seconds; still waiting"]
    caplog.clear()
    with_retries("s3://b/k", lambda: None)
    with caplog.at_level(logging.WARNING, "shardtool"), pytest.raises(StoreFailed):
        with_retries("s3://b/k", _silent)
    assert not caplog.records


def test_busy_server_is_retried_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server is retried any number of times within the budget, and no longer."""
    monkeypatch.setattr(retry, "DEFAULT_POLICY", RetryPolicy(first_wait_s=0))
    failures = iter(range(30))

    def ask() -> str:
        if next(failures, None) is not None:
            raise TransientError("the server returned 503", has_response=True)
        return "done"

    assert with_retries("s3://b/k", ask) == "done"
    monkeypatch.setenv(retry.RETRY_FOR, "0.2")
    with pytest.raises(StoreFailed, match=r"503 \([0-9]+ attempts in [0-9]+ s\)"):
        with_retries("s3://b/k", lambda: _busy(3600))
    monkeypatch.setenv(retry.RETRY_FOR, "soon")
    with pytest.raises(InvalidRequest, match="seconds, such as 300"):
        with_retries("s3://b/k", _silent)


def _busy(wait_s: float) -> str:
    raise TransientError("the server returned 503", wait_s, has_response=True)


def test_waits_can_be_cancelled() -> None:
    """A thread that waits between attempts or in a library stops when it is cancelled."""
    for wait in (lambda: retry.pause(60), lambda: retry.in_thread(lambda: threading.Event().wait(60))):
        stop, ended = threading.Event(), threading.Event()

        def run(
            wait: Callable[[], object] = wait, stop: threading.Event = stop, ended: threading.Event = ended
        ) -> None:
            with retry.cancel_on(stop), pytest.raises(retry.RequestCancelled):
                wait()
            ended.set()

        threading.Thread(target=run, daemon=True).start()
        stop.set()
        assert ended.wait(30)


def test_stalls_count_across_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that repeatedly sends a little and stalls is given up once the stalls exceed the budget."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(retry, "pause", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(retry, "DEFAULT_POLICY", RetryPolicy(first_wait_s=0))
    monkeypatch.setenv(retry.RETRY_FOR, "45")

    def stalls(flowing_s: float, tries: int) -> None:
        attempts = retry.RetryState("s3://b/k")
        for _ in range(tries):
            attempts.record_progress()
            now[0] += flowing_s
            attempts.record_progress()
            now[0] += 10
            attempts.wait_or_give_up(TransientError("too slow"))

    begun = now[0]
    with pytest.raises(StoreFailed, match="too slow"):
        stalls(1, 100)
    assert now[0] - begun < 60
    stalls(10, 100)  # as much time with data as without


def test_stalls_of_an_upload_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that an upload stalled count against the budget; seconds with progress do not."""
    monkeypatch.setattr(retry, "DEFAULT_POLICY", RetryPolicy(first_wait_s=0))
    with_retries("s3://b/k", lambda: None)
    attempts = retry.RetryState("s3://b/k")

    def fail(stalled_s: float) -> None:
        attempts.count_waits_only(stalled_s)
        attempts.wait_or_give_up(TransientError("too slow"))

    for _ in range(4):
        fail(61)
    fail(0)
    with pytest.raises(StoreFailed, match=r"too slow \(6 attempts in 305 s\)"):
        fail(61)
