"""HTTP connections that fail when too little data arrives: urllib3 pools, one set for each process.

urllib3 and http.client read from a `PacedSocket`. It waits in short slices, in which the thread can be cancelled,
and
counts bytes per second of waiting, so silent and slow servers are treated alike. Connections are opened in a
separate
thread, because name lookups, TLS handshakes and proxies cannot be interrupted.

A forked child makes its own connections.
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

from shardtool.storage.remote import retry
from shardtool.storage.remote.network import (
    NETWORK_VARIABLES,
    extra_certificates,
    proxy_for,
    proxy_headers,
    tls_context,
)
from shardtool.storage.remote.store_access import not_installed_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    import urllib3
    from typing_extensions import Buffer
    from urllib3.connection import HTTPConnection


MAX_CONNECTIONS_PER_SERVER = 64  # that are kept for one server


_CONNECT_TIMEOUT_S, _SEND_TIMEOUT_S = 10, 60  # how long an answer takes is for `Line`


_MAX_HEADER_BYTES = 2**18  # bytes of the first lines of an answer, with all that a server says before (100 Continue)


class PacedSocket(io.RawIOBase):
    """A connected socket as a file; it is left open when this is closed.

    Args:
        sock: The socket.
        peer: Whose it is, for messages.
        first_s: Seconds in which something must come; None: any time, at the least speed.

    Attributes:
        most: Bytes that may still come; None: any number.
    """

    def __init__(self, sock: socket.socket, peer: str, first_wait_s: float | None = None) -> None:
        super().__init__()
        self._sock, self._peer, self._first_s = sock, peer, first_wait_s
        self._bytes, self._waited_s = 0, 0.0
        self._silent_s = 0.0  # of waiting since the last byte
        self.most: int | None = None

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, into: Buffer, /) -> int:
        """Fill `into` with what comes next; return how much there was.

        Raises:
            PassingFailure: Too little comes, or there is no end of headers.
            TimeoutError: Nothing came in the first seconds.
            OSError: The connection is lost.
        """
        got = self._moved(lambda: self._sock.recv_into(into))
        if self.most is not None:
            self.most -= got
            if self.most < 0:
                raise retry.TransientError(f"{self._peer} sends headers without an end", answered=True)
        return got

    def write(self, data: Buffer, /) -> int:
        """Send some of `data`; return how much.

        Raises:
            PassingFailure: Too little goes.
            OSError: The connection is lost.
        """
        return self._moved(lambda: self._sock.send(data))

    def _moved(self, move: Callable[[], int]) -> int:
        """Return how many bytes were moved, at the least speed."""
        if self._sock.gettimeout() != retry.SLICE_S:
            self._sock.settimeout(retry.SLICE_S)
        while True:
            retry.check_cancelled()
            begun, size = time.monotonic(), 0
            try:
                size = move()
            except TimeoutError:
                pass
            else:
                self._first_s = None
                return size
            finally:
                self._count(size, time.monotonic() - begun)

    def _count(self, size: int, waited_s: float) -> None:
        self._bytes += size
        self._waited_s += waited_s
        self._silent_s = 0.0 if size else self._silent_s + waited_s
        if self._first_s is not None and not self._bytes and self._waited_s >= self._first_s:
            raise TimeoutError
        if self._waited_s < retry.SLICE_S:  # so that no environment is asked for each piece
            return
        least, speed_window_s = retry.min_speed()
        if least and self._silent_s >= speed_window_s:
            when = "too slow" if self._bytes else "no answer in time"
            found = f"{when}: {self._peer} was silent for {self._silent_s:,.0f} s"
            raise retry.TransientError(found, stalled_s=self._silent_s)
        if self._waited_s >= speed_window_s:
            if self._bytes < least * self._waited_s:
                raise retry.TransientError(self._too_slow(least), stalled_s=self._waited_s)
            self._bytes, self._waited_s = 0, 0.0

    def _too_slow(self, least: float) -> str:
        seen = f"{self._peer} moved {self._bytes:,} bytes in {self._waited_s:,.0f} s"
        return f"too slow: {seen}, where {least:,.0f} a second are the least"


def peer_name(connection: HTTPConnection) -> str:
    """Return whose a connection is, for messages."""
    return f"{connection.host}:{connection.port}"


@functools.cache
def _pool_classes() -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return pools whose connections are made apart, and whose answers come through a `Line`; by scheme.

    They are made when the first is needed: what they extend takes 50 ms to import.
    """
    import http.client

    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection

    class Answer(http.client.HTTPResponse):
        """An answer whose bytes come through a `Line`."""

        def __init__(self, peer: str, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self._line, self._holds = PacedSocket(sock, peer), self.fp  # which keeps the socket open
            self._line.most = _MAX_HEADER_BYTES  # of what leads through a proxy, for ever: it has no more than a head
            self.fp = io.BufferedReader(self._line)

        def begin(self) -> None:
            """Read the first lines."""
            super().begin()
            self._line.most = None

        def _close_conn(self) -> None:
            super()._close_conn()  # type: ignore[misc]
            self._holds.close()

    class Connection(HTTPConnection):
        """One of HTTP."""

        def connect(self) -> None:
            """Connect."""
            self.response_class = partial(Answer, peer_name(self))  # type: ignore[assignment]
            retry.in_thread(super().connect)

    class SecureConnection(Connection, HTTPSConnection):
        """One of HTTPS."""

        def _tunnel(self) -> None:
            super()._tunnel()
            self.sock.settimeout(self.timeout)  # no slices for the handshake that follows: see above

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}


# What all threads of a process have in common is made by one of them: the certificates alone take 75 ms to load.
_POOL_LOCK = threading.Lock()


os.register_at_fork(before=_POOL_LOCK.acquire, after_in_parent=_POOL_LOCK.release, after_in_child=_POOL_LOCK.release)


@functools.lru_cache(maxsize=8)
def _make_pool(_pid: int, scheme: str, proxy: str | None, _environment: tuple[str | None, ...]) -> urllib3.PoolManager:
    import urllib3

    timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_SEND_TIMEOUT_S)
    is_plain = "https" not in (scheme, urlsplit(proxy or "").scheme)
    options: dict[str, Any] = {"maxsize": MAX_CONNECTIONS_PER_SERVER, "retries": False, "timeout": timeout}
    # Certificates that the environment names are looked at even where none are needed: they must be some.
    context = options["ssl_context"] = None if is_plain and not extra_certificates() else tls_context()
    if proxy is None:
        made = urllib3.PoolManager(**options)
    else:
        made = urllib3.ProxyManager(proxy, proxy_headers=proxy_headers(proxy), proxy_ssl_context=context, **options)
    made.pool_classes_by_scheme = _pool_classes()
    return made


def connections_for(url: str) -> urllib3.PoolManager:
    """Return this process's connections that lead to a server.

    Raises:
        InvalidRequest: urllib3 is not installed, or the environment names no proxy, or no certificates.
    """
    try:
        with _POOL_LOCK:
            return _make_pool(
                os.getpid(), urlsplit(url).scheme, proxy_for(url), tuple(map(os.environ.get, NETWORK_VARIABLES))
            )
    except ImportError:
        raise not_installed_error("urllib3") from None
