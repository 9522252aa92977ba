"""Create HTTP connections that fail if a server is slower than the minimum speed.

urllib3 and http.client read from a `PacedSocket`. Each connection is opened in a separate thread, because name lookups,
TLS handshakes and proxies cannot be interrupted.
"""

from __future__ import annotations

import functools
import io
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shardtool.storage.remote import network, retry
from shardtool.storage.remote.store_access import not_installed_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    import urllib3
    from typing_extensions import Buffer
    from urllib3.connection import HTTPConnection


MAX_CONNECTIONS_PER_SERVER = 64
MAX_RESPONSE_BYTES = 65536
_CONNECT_TIMEOUT_S, _SEND_TIMEOUT_S = 10, 60  # `PacedSocket` limits the time of responses
_MAX_HEADER_BYTES = 2**18


class PacedSocket(io.RawIOBase):
    """A raw file object for a socket. It enforces a minimum speed.

    Methods raise `TransientError` if the server is too slow, and `OSError` if the connection is lost.

    Args:
        first_wait_s: Maximum seconds to wait for the first byte.
    """

    def __init__(self, sock: socket.socket, peer: str, first_wait_s: float | None = None) -> None:
        super().__init__()
        self._sock, self._peer, self._first_wait_s = sock, peer, first_wait_s
        self._bytes, self._waited_s = 0, 0.0
        self._silent_s = 0.0
        self.max_bytes: int | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, into: Buffer, /) -> int:
        count = self._transfer(lambda: self._sock.recv_into(into))
        if self.max_bytes is not None:
            self.max_bytes -= count
            if self.max_bytes < 0:
                raise retry.TransientError(f"{self._peer} sends headers without an end", answered=True)
        return count

    def write(self, data: Buffer, /) -> int:
        return self._transfer(lambda: self._sock.send(data))

    def _transfer(self, move: Callable[[], int]) -> int:
        if self._sock.gettimeout() != retry.SLICE_S:
            self._sock.settimeout(retry.SLICE_S)
        while True:
            retry.check_cancelled()
            start_s, count = time.monotonic(), 0
            try:
                count = move()
            except TimeoutError:
                pass
            else:
                self._first_wait_s = None
                return count
            finally:
                self._count(count, time.monotonic() - start_s)

    def _count(self, count: int, waited_s: float) -> None:
        self._bytes += count
        self._waited_s += waited_s
        self._silent_s = 0.0 if count else self._silent_s + waited_s
        if self._first_wait_s is not None and not self._bytes and self._waited_s >= self._first_wait_s:
            raise TimeoutError
        # do not check the speed after each read, because reading the settings from the environment is slow
        if self._waited_s < retry.SLICE_S:
            return
        min_bytes_per_s, speed_window_s = retry.min_speed()
        if min_bytes_per_s and self._silent_s >= speed_window_s:
            problem = "too slow" if self._bytes else "no response in time"
            found = f"{problem}: {self._peer} was silent for {self._silent_s:,.0f} s"
            raise retry.TransientError(found, stalled_s=self._silent_s)
        if self._waited_s >= speed_window_s:
            if self._bytes < min_bytes_per_s * self._waited_s:
                raise retry.TransientError(self._too_slow(min_bytes_per_s), stalled_s=self._waited_s)
            self._bytes, self._waited_s = 0, 0.0

    def _too_slow(self, min_bytes_per_s: float) -> str:
        observed = f"{self._peer} transferred {self._bytes:,} bytes in {self._waited_s:,.0f} s"
        return f"too slow: {observed}; expected at least {min_bytes_per_s:,.0f} bytes per second"


def peer_name(connection: HTTPConnection) -> str:
    """Return the host and port of a connection."""
    return f"{connection.host}:{connection.port}"


@functools.cache
def _pool_classes() -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return pool classes by scheme, created on first use because the imports take 50 ms."""
    import http.client

    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection

    class Response(http.client.HTTPResponse):
        def __init__(self, peer: str, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self._paced, self._socket_file = PacedSocket(sock, peer), self.fp
            self._paced.max_bytes = _MAX_HEADER_BYTES  # limit a proxy's response to CONNECT, which has only headers
            self.fp = io.BufferedReader(self._paced)

        def begin(self) -> None:
            super().begin()
            self._paced.max_bytes = None

        def _close_conn(self) -> None:
            super()._close_conn()  # type: ignore[misc]
            self._socket_file.close()

    class Connection(HTTPConnection):
        def connect(self) -> None:
            self.response_class = partial(Response, peer_name(self))  # type: ignore[assignment]
            retry.in_thread(super().connect)

    class SecureConnection(Connection, HTTPSConnection):
        def _tunnel(self) -> None:
            super()._tunnel()
            self.sock.settimeout(self.timeout)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}


# The lock ensures that only one thread creates a pool, because loading the certificates takes 75 ms.
_POOL_LOCK = threading.Lock()


os.register_at_fork(before=_POOL_LOCK.acquire, after_in_parent=_POOL_LOCK.release, after_in_child=_POOL_LOCK.release)


@functools.lru_cache(maxsize=8)
def _make_pool(_pid: int, scheme: str, proxy: str | None, _environment: tuple[str | None, ...]) -> urllib3.PoolManager:
    import urllib3

    timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_SEND_TIMEOUT_S)
    is_plain = "https" not in (scheme, urlsplit(proxy or "").scheme)
    options: dict[str, Any] = {"maxsize": MAX_CONNECTIONS_PER_SERVER, "retries": False, "timeout": timeout}
    # Load certificates from the environment even for plain HTTP, to report a wrong file early.
    context = options["ssl_context"] = None if is_plain and not network.extra_certificates() else network.tls_context()
    if proxy is None:
        pool = urllib3.PoolManager(**options)
    else:
        headers = network.proxy_headers(proxy)
        pool = urllib3.ProxyManager(proxy, proxy_headers=headers, proxy_ssl_context=context, **options)
    pool.pool_classes_by_scheme = _pool_classes()
    return pool


def connections_for(url: str) -> urllib3.PoolManager:
    """Return this process's connection pools for a URL."""
    try:
        with _POOL_LOCK:
            settings = tuple(map(os.environ.get, network.NETWORK_VARIABLES))
            return _make_pool(os.getpid(), urlsplit(url).scheme, network.proxy_for(url), settings)
    except ImportError:
        raise not_installed_error("urllib3") from None
