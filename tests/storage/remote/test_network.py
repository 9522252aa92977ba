"""Proxies, and whose certificates are trusted: one rule for both libraries of HTTP, whatever is asked of a server."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import AccessRefused, InvalidRequest, ShardError, StoreFailed
from shardtool.storage.files import read_small
from shardtool.storage.lookup import list_folder
from shardtool.storage.remote import network
from shardtool.storage.remote.buckets import put_object
from shardtool.storage.remote.retry import SLICE_S
from shardtool.storage.remote.upload import upload
from tests.servers.between import Between, forwarding, tls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

# What is read, listed, and written by a request of either library.
_ASKS: dict[str, Callable[[str], object]] = {
    "read": lambda at: read_small(f"{at}/x.txt"),
    "list": list_folder,
    "put": lambda at: put_object(f"{at}/y.txt", b"y"),
    "upload": lambda at: upload(f"{at}/z.txt", 1, lambda file: file.write(b"z")),
}


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in network.NETWORK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SHARDTOOL_ENDPOINT")
    monkeypatch.setenv("SHARDTOOL_RETRY_FOR", "1")


@pytest.fixture
def bucket(http_files: Server, proxies: Callable[[Server], FaultyProxy]) -> tuple[str, str, FaultyProxy]:
    """Give a bucket of a store that takes nothing, the same of the web, and the server that counts."""
    proxy, at = proxies(http_files), http_files.new_prefix()
    (http_files.local(at) / "x.txt").write_bytes(b"read")
    name = at.rpartition("/")[2]
    return f"s3://{name}", f"{proxy.server.url}/{name}", proxy


@pytest.fixture(scope="module")
def between() -> Iterator[Between]:
    """Give a proxy that forwards."""
    with forwarding() as between:
        yield between


@pytest.fixture(scope="module")
def secure(http_files: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Between, Path]]:
    """Give a store and web server that speaks TLS, and the certificate of the authority that nobody knows."""
    folder = tmp_path_factory.mktemp("tls")
    with tls(http_files.port, folder) as between:
        yield between, folder / "authority.pem"


@pytest.mark.parametrize("kind", _ASKS)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_every_request_goes_through_the_proxy(
    kind: str, name: str, bucket: tuple[str, str, FaultyProxy], between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read, listed and written goes through the proxy that the environment names, with its user."""
    store, web, proxy = bucket
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
    monkeypatch.setenv(name, f"http://me:p%40ss@127.0.0.1:{between.port}")
    for at in (store, web) if kind == "read" else (store,):
        between.asked.clear()
        proxy.set()
        with suppress(ShardError):  # the server takes nothing
            _ASKS[kind](at)
        assert len(between.asked) == len(proxy.log().asked) == 1
        assert between.asked[0][1] == "Basic bWU6cEBzcw=="
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8, 127.0.0.0/8")
        with suppress(ShardError):
            _ASKS[kind](at)
        assert (len(between.asked), len(proxy.log().asked)) == (1, 2)
        monkeypatch.delenv("NO_PROXY")


@pytest.mark.slow
@pytest.mark.parametrize("kind", _ASKS)
@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "folder"])
def test_a_certificate_is_trusted_by_all_or_none(
    kind: str, name: str, bucket: tuple[str, str, FaultyProxy], secure: tuple[Between, Path], between: Between,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An authority that the environment names is trusted for every request; else the first is the last, and says so."""
    store, web, _ = bucket
    server, authority = secure
    between.asked.clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.port}")
    web = web.replace("http://", "https://").replace(f":{web.split(':')[2].split('/')[0]}", f":{server.port}")
    for at in (store, web) if kind == "read" else (store,):
        server.asked.clear()
        with pytest.raises(StoreFailed, match=f"the certificate of 127.0.0.1:{server.port} is not trusted") as caught:
            _ASKS[kind](at)
        assert len(server.asked) == 1
        assert "AWS_CA_BUNDLE" in caught.value.remedy
        with monkeypatch.context() as patched:
            if name == "folder":
                patched.setenv("REQUESTS_CA_BUNDLE", str(authority.parent))
            else:
                patched.setenv(name, str(authority))
            for proxied in (False, True):
                if proxied:
                    patched.setenv("HTTPS_PROXY", f"127.0.0.1:{between.port}")
                if kind == "read":
                    assert _ASKS[kind](at) == b"read"
                else:
                    with pytest.raises(ShardError, match=r"405|no such bucket"):
                        _ASKS[kind](at)
            assert {*between.asked} == {(f"CONNECT 127.0.0.1:{server.port}", "")}


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [("HTTP_PROXY", "socks5://127.0.0.1:9", "socks5://"), ("AWS_CA_BUNDLE", "/nowhere.pem", "no such file"),
     ("AWS_CA_BUNDLE", __file__, "no certificates")],
)  # fmt: skip
def test_settings_that_lead_nowhere(
    name: str, value: str, found: str, bucket: tuple[str, str, FaultyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that speaks no HTTP, and a file without certificates, are named before anything is asked."""
    _, web, proxy = bucket
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=found) as caught:
        read_small(f"{web}/x.txt")
    assert name in caught.value.where
    assert not proxy.log().asked


@pytest.mark.slow
def test_a_proxy_that_is_gone(bucket: tuple[str, str, FaultyProxy], monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that cannot be reached is named, and not its password."""
    _, web, _ = bucket
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    with pytest.raises(StoreFailed, match=r"the proxy 127\.0\.0\.1:9") as caught:
        read_small(f"{web}/x.txt")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [403, 407])
@pytest.mark.parametrize("kind", ["read", "upload"])
def test_a_proxy_that_refuses(
    kind: str, status: int, bucket: tuple[str, str, FaultyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that lets nobody through to a server is named at once, with the cure, whatever is asked."""
    with socket.create_server(("127.0.0.1", 0)) as gate:
        where = f"127.0.0.1:{gate.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:9")
        monkeypatch.setenv("HTTPS_PROXY", where)
        Thread(target=_refuse_one, args=(gate, status), daemon=True).start()
        with pytest.raises(AccessRefused, match=f"the proxy {where}: it answers {status}") as caught:
            _ASKS[kind](bucket[0])
    assert "HTTPS_PROXY" in caught.value.remedy


def _refuse_one(gate: socket.socket, status: int) -> None:
    connection, _ = gate.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["read", "upload"])
def test_a_handshake_behind_a_proxy_has_its_time(
    kind: str, bucket: tuple[str, str, FaultyProxy], secure: tuple[Between, Path], between: Between,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A server that is far behind a proxy may take longer for TLS than one wait of a thread that can be stopped."""
    store, _, _ = bucket
    server, authority = secure
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.port}")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{between.port}")
    monkeypatch.setattr(server, "pause_s", 3 * SLICE_S)
    if kind == "read":
        assert _ASKS[kind](store) == b"read"
    else:
        with pytest.raises(ShardError, match=r"405|no such bucket"):
            _ASKS[kind](store)
