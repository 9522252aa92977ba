"""Age and holder of a lock."""

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
def test_object_age(headers: dict[str, str], age: float | None) -> None:
    """The age is computed from the store's clock; without it, the age is unknown."""
    assert object_age_s(headers) == age


def test_holder_round_trip() -> None:
    """A holder can be parsed from any renewal, and every renewal has different bytes."""
    me = LockHolder.for_this_process()
    assert parse_holder(me.encode()) == parse_holder(me.encode(7)) == me
    assert me.encode(1) != me.encode(2)
    assert me.token != LockHolder.for_this_process().token


@given(st.binary(max_size=200))
def test_any_content_is_a_lock(data: bytes) -> None:
    """A lock with any content has a holder that is assumed to be alive."""
    assert not parse_holder(data).has_exited()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which process is which")
def test_has_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder has exited if its process is gone or its process id was reused; on another machine this is unknown."""
    me = LockHolder.for_this_process()
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
