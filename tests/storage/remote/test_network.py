"""Proxies and trusted certificates: the same rules for both HTTP libraries and all requests."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import AccessRefused, InvalidRequest, ShardError, StoreFailed
from shardtool.storage.files import list_folder, read_small
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

# Reads, listings and writes of both libraries.
_REQUESTS: dict[str, Callable[[str], object]] = {
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
    """Return a bucket of a read-only store, its web address, and the server that counts requests."""
    proxy, at = proxies(http_files), http_files.new_prefix()
    (http_files.local(at) / "x.txt").write_bytes(b"read")
    name = at.rpartition("/")[2]
    return f"s3://{name}", f"{proxy.server.url}/{name}", proxy


@pytest.fixture(scope="module")
def between() -> Iterator[Between]:
    """Yield a forwarding proxy."""
    with forwarding() as between:
        yield between


@pytest.fixture(scope="module")
def secure(http_files: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Between, Path]]:
    """Yield a store and web server with TLS, and the certificate of its unknown authority."""
    folder = tmp_path_factory.mktemp("tls")
    with tls(http_files.port, folder) as between:
        yield between, folder / "authority.pem"


@pytest.mark.parametrize("kind", _REQUESTS)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_every_request_goes_through_the_proxy(
    kind: str, name: str, bucket: tuple[str, str, FaultyProxy], between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads, listings and writes use the proxy of the environment, with its user."""
    store, web, proxy = bucket
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.server.url)
    monkeypatch.setenv(name, f"http://me:p%40ss@127.0.0.1:{between.port}")
    for at in (store, web) if kind == "read" else (store,):
        between.asked.clear()
        proxy.set()
        with suppress(ShardError):  # the server is read-only
            _REQUESTS[kind](at)
        assert len(between.asked) == len(proxy.log().asked) == 1
        assert between.asked[0][1] == "Basic bWU6cEBzcw=="
        monkeypatch.setenv("NO_PROXY", "10.0.0.0/8, 127.0.0.0/8")
        with suppress(ShardError):
            _REQUESTS[kind](at)
        assert (len(between.asked), len(proxy.log().asked)) == (1, 2)
        monkeypatch.delenv("NO_PROXY")


@pytest.mark.slow
@pytest.mark.parametrize("kind", _REQUESTS)
@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "folder"])
def test_certificates_apply_to_all_requests(
    kind: str, name: str, bucket: tuple[str, str, FaultyProxy], secure: tuple[Between, Path], between: Between,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """An authority named in the environment is trusted by every request; otherwise the first request fails."""
    store, web, _ = bucket
    server, authority = secure
    between.asked.clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.port}")
    web = web.replace("http://", "https://").replace(f":{web.split(':')[2].split('/')[0]}", f":{server.port}")
    for at in (store, web) if kind == "read" else (store,):
        server.asked.clear()
        with pytest.raises(StoreFailed, match=f"the certificate of 127.0.0.1:{server.port} is not trusted") as caught:
            _REQUESTS[kind](at)
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
                    assert _REQUESTS[kind](at) == b"read"
                else:
                    with pytest.raises(ShardError, match=r"405|no such bucket"):
                        _REQUESTS[kind](at)
            assert {*between.asked} == {(f"CONNECT 127.0.0.1:{server.port}", "")}


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [("HTTP_PROXY", "socks5://127.0.0.1:9", "socks5://"), ("AWS_CA_BUNDLE", "/nowhere.pem", "no such file"),
     ("AWS_CA_BUNDLE", __file__, "no certificates")],
)  # fmt: skip
def test_invalid_settings_are_refused(
    name: str, value: str, found: str, bucket: tuple[str, str, FaultyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that does not speak HTTP, or a file without certificates, is an error before any request."""
    _, web, proxy = bucket
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=found) as caught:
        read_small(f"{web}/x.txt")
    assert name in caught.value.where
    assert not proxy.log().asked


@pytest.mark.slow
def test_unreachable_proxy_is_named(bucket: tuple[str, str, FaultyProxy], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names an unreachable proxy, without its password."""
    _, web, _ = bucket
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    with pytest.raises(StoreFailed, match=r"the proxy 127\.0\.0\.1:9") as caught:
        read_small(f"{web}/x.txt")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [403, 407])
@pytest.mark.parametrize("kind", ["read", "upload"])
def test_refusing_proxy_is_named(
    kind: str, status: int, bucket: tuple[str, str, FaultyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that refuses a request is named immediately, with advice."""
    with socket.create_server(("127.0.0.1", 0)) as gate:
        where = f"127.0.0.1:{gate.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:9")
        monkeypatch.setenv("HTTPS_PROXY", where)
        Thread(target=_refuse_one, args=(gate, status), daemon=True).start()
        with pytest.raises(AccessRefused, match=f"the proxy {where}: status {status}") as caught:
            _REQUESTS[kind](bucket[0])
    assert "HTTPS_PROXY" in caught.value.remedy


def _refuse_one(gate: socket.socket, status: int) -> None:
    connection, _ = gate.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["read", "upload"])
def test_slow_tls_handshake_behind_a_proxy(
    kind: str, bucket: tuple[str, str, FaultyProxy], secure: tuple[Between, Path], between: Between,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A TLS handshake through a proxy can take longer than one wait slice."""
    store, _, _ = bucket
    server, authority = secure
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.port}")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{between.port}")
    monkeypatch.setattr(server, "pause_s", 3 * SLICE_S)
    if kind == "read":
        assert _REQUESTS[kind](store) == b"read"
    else:
        with pytest.raises(ShardError, match=r"405|no such bucket"):
            _REQUESTS[kind](store)
