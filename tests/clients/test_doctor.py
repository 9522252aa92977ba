"""`doctor` reports what stores allow, and deletes its test objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool.storage.remote import buckets
from tests.clients.remote import check_no_secret, tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.processes import Server

pytestmark = pytest.mark.clients


@pytest.fixture(params=["moto", "gcs", "azurite"])
def store(request: pytest.FixtureRequest, use: Callable[[Server], Server]) -> Server:
    """Give each store that keeps conditions."""
    return use(request.getfixturevalue(request.param))


def test_all_is_well(store: Server) -> None:
    """For a store that allows everything, each line says so, and the kind of credentials is named without secrets."""
    at = store.new_prefix()
    found = shardtool.doctor(at)
    assert {one.name: one.found for one in found.checks if one.state != "ok"} == {}
    assert [*buckets.list_objects(at)] == []
    check_no_secret(repr(found), store)
    code, said = tool("doctor", at, server=store)
    assert code == 0, said
    assert "no problems" in said


def test_no_such_bucket(store: Server) -> None:
    """A bucket that is not there is named, and nothing else is tried."""
    found = shardtool.doctor(f"{store.bucket}-nowhere/x")
    wrong = {one.name: one for one in found.checks if one.state == "wrong"}
    assert list(wrong) == ["bucket"], wrong
    assert "no such bucket" in wrong["bucket"].found
    assert "Create the bucket" in wrong["bucket"].cure


def test_no_conditions(rclone: Server, use: Callable[[Server], Server]) -> None:
    """A store that ignores conditional writes is reported: two runs could write at the same time."""
    at = use(rclone).new_prefix()
    found = {one.name: one for one in shardtool.doctor(at).checks}
    assert [name for name, one in found.items() if one.state == "wrong"] == ["conditions"]
    assert "SHARDTOOL_UNLOCKED" in found["conditions"].cure
    assert [*buckets.list_objects(at)] == []


def test_wrong_keys(rclone: Server, use: Callable[[Server], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown keys and wrong secrets are reported as such, and not as missing permissions."""
    use(rclone)
    for name, value in (("AWS_ACCESS_KEY_ID", "AKIAWRONG"), ("AWS_SECRET_ACCESS_KEY", "another")):
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            found = shardtool.doctor(rclone.new_prefix())
        wrong = {one.name: one for one in found.checks if one.state == "wrong"}
        assert list(wrong) == ["credentials"], found
        assert wrong["credentials"].cure.startswith("Use ")
