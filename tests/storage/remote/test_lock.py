"""Laws of a lock's arithmetic: how old it is, and whether its holder lives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.storage.remote import lock
from shardtool.storage.remote.lock import LockHolder, object_age_s, parse_holder

_DATE = "Sun, 22 Nov 2026 15:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "age"),
    [
        ({"Date": _DATE, "Last-Modified": "Sun, 22 Nov 2026 14:54:59 GMT"}, 301),
        ({"Date": _DATE, "Last-Modified": "Sun, 22 Nov 2026 15:00:01 GMT"}, -1),
        ({"Date": _DATE}, None),
        ({"Last-Modified": _DATE}, None),
        ({"Date": _DATE, "Last-Modified": "yesterday"}, None),
    ],
)
def test_age(headers: dict[str, str], age: float | None) -> None:
    """An object is as old as the store's own clock says; where it says nothing, its age is not known."""
    assert object_age_s(headers) == age


def test_holder() -> None:
    """A holder is read as it was written, whatever the renewal, and no two renewals have the same bytes."""
    me = LockHolder.me()
    assert parse_holder(me.encode()) == parse_holder(me.encode(7)) == me
    assert me.encode(1) != me.encode(2)
    assert me.token != LockHolder.me().token


@given(st.binary(max_size=200))
def test_any_lock(data: bytes) -> None:
    """Whatever lies where a lock should be is somebody's, who is not known to be dead."""
    assert not parse_holder(data).has_exited()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which process is which")
def test_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder is dead when its process is gone, or another has its number; on another machine nobody knows."""
    me = LockHolder.me()
    assert me.has_exited()  # nobody of this process holds it
    monkeypatch.setattr(lock, "_own_tokens", {me.token})
    assert not me.has_exited()
    assert me._replace(born="1").has_exited()
    assert not me._replace(born="1", machine="another").has_exited()
    assert not me._replace(born="1", machine="").has_exited()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert me._replace(pid=ended.pid).has_exited()
    assert me.pid == os.getpid()
