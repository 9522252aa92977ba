"""Laws of requests that are made again."""

from __future__ import annotations

import logging
import threading

import pytest

from shardtool.errors import StoreFailed
from shardtool.storage.remote import retry
from shardtool.storage.remote.retry import Passing, Policy, retried


@pytest.fixture(autouse=True)
def _unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_answered", threading.Event())


def _silent() -> None:
    threading.Event().wait(0.03)
    raise Passing("no answer in time")


def test_a_silent_server_is_given_up_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answered is given up long before one that did."""
    monkeypatch.setattr(retry, "POLICY", Policy(first_s=0, silent_s=0.01, whole_s=0.1))
    with pytest.raises(StoreFailed, match=r"no answer in time\. Try"):
        retried("s3://b/k", _silent)
    retried("s3://b/k", lambda: None)
    with pytest.raises(StoreFailed, match=r"no answer in time, [3-5] times in"):
        retried("s3://b/k", _silent)


def test_waiting_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A first request without an answer says so once while it waits, and not after one was answered."""
    monkeypatch.setattr(retry, "POLICY", Policy(tries=2, first_s=0, whole_s=0.1, notice_s=0.01))
    with caplog.at_level(logging.WARNING, "shardtool"), pytest.raises(StoreFailed):
        retried("s3://b/k", _silent)
    assert [one.getMessage() for one in caplog.records] == ["s3://b/k: no answer for 0 seconds; still asking"]
    caplog.clear()
    retried("s3://b/k", lambda: None)
    with caplog.at_level(logging.WARNING, "shardtool"), pytest.raises(StoreFailed):
        retried("s3://b/k", _silent)
    assert not caplog.records
