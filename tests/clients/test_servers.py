"""The servers behave like the stores they stand for, as far as our tests rely on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

obstore = pytest.importorskip("obstore")

pytestmark = pytest.mark.clients
NAME = "a b#ü?%.tar"


def _store(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    return pytest.importorskip("obstore.store").from_url(server.new_prefix(), **options)


@pytest.mark.parametrize("name", ["moto", "rclone", "azurite", "gcs"])
def test_objects(
    name: str, request: pytest.FixtureRequest, proxies: Callable[[Server], FaultyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that was put, by itself or in parts, is listed, measured and read, also through the proxy."""
    proxy = proxies(request.getfixturevalue(name))
    store = _store(proxy.server, monkeypatch)
    obstore.put(store, NAME, b"0123456789")
    with obstore.open_writer(store, "parts", buffer_size=5 * 2**20) as file:
        file.write(bytes(11 * 2**20))
    found = {one["path"]: one["size"] for page in obstore.list(store) for one in page}
    assert found == {NAME: 10, "parts": 11 * 2**20}
    assert bytes(obstore.get(store, NAME).bytes()) == b"0123456789"
    proxy.set(Fault("status", status=403, times=None))
    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        obstore.head(store, NAME)


@pytest.mark.parametrize("name", ["moto", "azurite", "gcs"])
def test_conditions(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that create an object, and of two that replace one version, the second is refused."""
    store = _store(request.getfixturevalue(name), monkeypatch)
    first = obstore.put(store, "lock", b"1", mode="create")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "lock", b"2", mode="create")
    version = {what: value for what, value in first.items() if value}
    obstore.put(store, "lock", b"3", mode=version)
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, "lock", b"4", mode=version)
    assert bytes(obstore.get(store, "lock").bytes()) == b"3"
