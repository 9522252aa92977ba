"""The servers as fixtures; a conftest imports those that its folder may use."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from shardtool.storage.remote import connections, store_access
from tests.servers import stores
from tests.servers.faults import FaultyProxy, behind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.processes import Server


@pytest.fixture(scope="session")
def http_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give a web server of files that needs Python alone."""
    with stores.http_files(tmp_path_factory.mktemp("http-files")) as server:
        yield server


@pytest.fixture(scope="session")
def nginx_ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Give nginx, as `plain`, `norange` (all is answered whole) and `gzip`; the files are the same."""
    with stores.nginx(tmp_path_factory.mktemp("nginx")) as servers:
        yield servers


@pytest.fixture(scope="session")
def nginx(nginx_ways: dict[str, Server]) -> Server:
    """Give nginx, with ranges and without gzip."""
    return nginx_ways["plain"]


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give S3 as moto means it."""
    with stores.moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give S3 over a folder, as rclone serves it."""
    with stores.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(moto: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give Google's store as obstore speaks with it; behind it is the bucket of moto."""
    with stores.gcs(moto, tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Give Azure's blobs as azurite means them."""
    with stores.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Server], FaultyProxy]]:
    """Give a function that puts the proxy before a server, once for each; it does no harm and counts from nothing."""
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
    """Give a function by which this process, and those it starts, reach a server; what was used before is forgotten."""
    for name in ("SHARDTOOL_ENDPOINT", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    def reach(server: Server) -> Server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        forget()
        return server

    def forget() -> None:
        store_access._make_store.cache_clear()  # noqa: SLF001 - a user has one endpoint; the tests have many
        connections._make_pool.cache_clear()  # noqa: SLF001

    yield reach
    forget()
