"""What goes over a connection, never waited for without a bound: too little in too much time is a failure.

Strategy: all that urllib3 and http.client take comes through the file that an answer makes of its socket. Ours waits in
slices, in which a thread can be told to stop, and counts what comes in the time that is spent waiting: a server that is
silent and one that drips are the same. What a reader does in between does not count. Connections are made apart, for
names, handshakes and proxies know no slices.
"""

from __future__ import annotations

import http.client
import io
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from shardtool.storage.remote.retry import SLICE_S, PassingFailure, apart, check_wanted, least_speed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from typing_extensions import Buffer

_MOST_HEAD = 2**18  # bytes of the first lines of an answer, with all that a server says before (100 Continue)


class Line(io.RawIOBase):
    """A connected socket as a file; it is left open when this is closed.

    Args:
        sock: The socket.
        peer: Whose it is, for messages.
        first_s: Seconds in which something must come; None: any time, at the least speed.

    Attributes:
        most: Bytes that may still come; None: any number.
    """

    def __init__(self, sock: socket.socket, peer: str, first_s: float | None = None) -> None:
        super().__init__()
        self._sock, self._peer, self._first_s = sock, peer, first_s
        self._bytes, self._waited_s = 0, 0.0
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
                raise PassingFailure(f"{self._peer} sends headers without an end", answered=True)
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
        if self._sock.gettimeout() != SLICE_S:
            self._sock.settimeout(SLICE_S)
        while True:
            check_wanted()
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
        if self._first_s is not None and not self._bytes and self._waited_s >= self._first_s:
            raise TimeoutError
        if self._waited_s < SLICE_S:  # so that no environment is asked for each piece
            return
        least, over_s = least_speed()
        if self._waited_s >= over_s:
            if self._bytes < least * self._waited_s:
                raise PassingFailure(self._too_slow(least))
            self._bytes, self._waited_s = 0, 0.0

    def _too_slow(self, least: float) -> str:
        if not self._bytes:
            return f"no answer in time: {self._peer} was silent for {self._waited_s:,.0f} s"
        seen = f"{self._peer} moved {self._bytes:,} bytes in {self._waited_s:,.0f} s"
        return f"too slow: {seen}, where {least:,.0f} a second are the least"


class _Answer(http.client.HTTPResponse):
    """An answer whose bytes come through a `Line`."""

    def __init__(self, peer: str, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self._line, self._holds = Line(sock, peer), self.fp  # which keeps the socket open
        self._line.most = _MOST_HEAD  # of what leads through a proxy, for ever: it has no more than a head
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
        _connect(self, super().connect)


class SecureConnection(HTTPSConnection):
    """One of HTTPS."""

    def connect(self) -> None:
        """Connect."""
        _connect(self, super().connect)

    def _tunnel(self) -> None:
        super()._tunnel()
        self.sock.settimeout(self.timeout)  # no slices for the handshake that follows: see above


def _connect(connection: HTTPConnection, connect: Callable[[], None]) -> None:
    connection.response_class = partial(_Answer, peer_of(connection))  # type: ignore[assignment]
    apart(connect)


def peer_of(connection: HTTPConnection) -> str:
    """Return whose a connection is, for messages."""
    return f"{connection.host}:{connection.port}"


class _Pool(HTTPConnectionPool):
    ConnectionCls = Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = SecureConnection


POOLS = {"http": _Pool, "https": _SecurePool}
