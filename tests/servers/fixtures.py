"""The test servers as fixtures. The `conftest.py` of a folder imports the fixtures that its tests use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.servers import stores
from tests.servers.faults import FaultyProxy, behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.processes import Server


@pytest.fixture(scope="session")
def http_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a web server of files that needs only Python."""
    with stores.http_files(tmp_path_factory.mktemp("http-files")) as server:
        yield server


@pytest.fixture(scope="session")
def nginx_ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Yield nginx with three URL prefixes for the same files: `plain`, `norange` (no range requests) and `gzip`."""
    with stores.nginx(tmp_path_factory.mktemp("nginx")) as servers:
        yield servers


@pytest.fixture(scope="session")
def nginx(nginx_ways: dict[str, Server]) -> Server:
    """Return nginx with ranges and without gzip."""
    return nginx_ways["plain"]


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield the S3 server moto."""
    with stores.moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield `rclone serve s3`, an S3 server whose objects are files in a folder."""
    with stores.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(moto: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield an emulator of Google Cloud Storage that works with obstore. It stores the objects in moto."""
    with stores.gcs(moto, tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield the Azure emulator azurite."""
    with stores.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Server], FaultyProxy]]:
    """Return a function that starts a proxy for a server, once per server, and removes all faults of the proxy."""
    with contextlib.ExitStack() as stack:
        started: dict[int, int] = {}

        def before(server: Server) -> FaultyProxy:
            if server.port not in started:
                port = stack.enter_context(stores.proxy(server, tmp_path_factory.mktemp("proxy")))
                started[server.port] = port
            proxy = FaultyProxy(behind(server, started[server.port]))
            proxy.set()
            return proxy

        yield before


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Server], Server]]:
    """Return a function that sets the environment variables of a server, also for child processes."""
    for name in ("SHARDTOOL_ENDPOINT", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def reach(server: Server) -> Server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        forget()
        return server

    def forget() -> None:
        from shardtool.storage.remote import http, store_access

        store_access._make_store.cache_clear()  # noqa: SLF001 - the endpoint changes only in tests
        http._make_pool.cache_clear()  # noqa: SLF001

    yield reach
    forget()
