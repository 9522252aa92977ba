"""A web server for tests. The first part of a request's path selects a method of `_Handler`, such as `/ok/NAME`."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections import Counter
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator

BOMB = 50_000_000
JPEG = b"\xff\xd8\xff\xe0 a picture "


_DIGITS = b"9" * 5000
_HOSTILE = {  # (first bytes, bytes that are repeated, seconds between the repetitions)
    "continue": (b"100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
    "headers": (b"200 OK\r\nX-A: ", b"x", 0.02),
    "many-headers": (b"200 OK\r\n", b"X-A: " + b"x" * 1000 + b"\r\n", 0.001),
    "redirect": (b"302 Found\r\nLocation: /ok/b\r\n\r\n", bytes(10_000), 0),
    "missing": (b"404 Not Found\r\n\r\n", bytes(10_000), 0),
    "slow-missing": (b"404 Not Found\r\nContent-Length: 1000\r\n\r\n", b"x", 0.02),
    "length": (b"200 OK\r\nContent-Length: " + _DIGITS + b"\r\n\r\n", b"", 0),
    "negative": (b"200 OK\r\nContent-Length: -5\r\n\r\n", b"", 0),
    "chunk": (b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nab\r\n", b"", 0),
    "coded": (b"200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", b"", 0),
    "long-chunk": (b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _DIGITS + b"\r\nab\r\n", b"", 0),
    "chunk-name": (b"200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1", 0.02),
}


def body(name: str) -> bytes:
    """Return the content of the file `name`: 1 to 4,000 bytes that start like a JPEG and differ for each name."""
    return (JPEG + name.encode()) * (1 + zlib.crc32(name.encode()) % 100)


class WebServer(ThreadingHTTPServer):
    """A server on 127.0.0.1.

    Attributes:
        requests: The number of requests for each path.
        max_concurrent: The maximum number of concurrent requests for each host name.
        last_headers: The headers of the last request.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: Counter[str] = Counter()
        self.max_concurrent: Counter[str] = Counter()
        self.active: Counter[str] = Counter()
        self.last_headers: dict[str, str] = {}
        self.lock = threading.Lock()
        self.stalled = threading.Event()  # when set, stalled responses continue

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """Return the URL of a path."""
        return f"http://{host}:{self.server_address[1]}/{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing if a client closes its connection early."""


@contextmanager
def web_server() -> Iterator[WebServer]:
    """Yield a running server."""
    with WebServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.stalled.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: WebServer

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Call the method that is named by the first part of the path."""
        server, host = self.server, self.headers.get("Host", "").partition(":")[0]
        kind, _, name = unquote(self.path.partition("?")[0]).lstrip("/").partition("/")
        with server.lock:
            server.requests[self.path] += 1
            server.active[host] += 1
            server.max_concurrent[host] = max(server.max_concurrent[host], server.active[host])
            server.last_headers = dict(self.headers)
        try:
            with suppress(ConnectionError):
                getattr(self, f"_{kind}", self._status)(name)
        finally:
            with server.lock:
                server.active[host] -= 1

    def _send(self, data: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(data)))
        for header, value in headers.items():
            self.send_header(header.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def _ok(self, name: str) -> None:
        self._send(body(name), Content_Type="image/jpeg")

    def _later(self, name: str) -> None:
        time.sleep(0.02)
        self._ok(name)

    def _status(self, name: str) -> None:
        status = int(name) if name.isdecimal() else 404
        self._send(b"" if status == HTTPStatus.NO_CONTENT else b"no", status)

    def _text(self, _name: str) -> None:
        self._send(b"<html>no picture</html>", Content_Type="text/html")

    def _sized(self, name: str) -> None:
        self._send(bytes(int(name)))

    def _endless(self, _name: str) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while not self.server.stalled.is_set():
            self.wfile.write(bytes(10_000))

    def _stall(self, _name: str) -> None:
        self.server.stalled.wait(20)
        self.close_connection = True

    def _drip(self, _name: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(b"x")
            if self.server.stalled.wait(0.02):
                break

    def _cut(self, name: str) -> None:
        """Send half of a file, and close the connection. For `cut/once/...`, only the first request gets half."""
        whole = body(name)
        if name.startswith("once/") and self.server.requests[self.path] > 1:
            self._send(whole)
            return
        self._send(whole[: len(whole) // 2], Content_Length=str(len(whole)))
        self.close_connection = True

    def _drop(self, _name: str) -> None:
        self.close_connection = True

    def _garbage(self, _name: str) -> None:
        self.wfile.write(b"what is this\r\n\r\n")
        self.close_connection = True

    def _hostile(self, name: str) -> None:
        """Send the first bytes of `_HOSTILE[name]`, and repeat the other bytes endlessly."""
        first, again, wait_s = _HOSTILE[name]
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 " + first)
        while again and not self.server.stalled.wait(wait_s):
            self.wfile.write(again)

    def _busy(self, name: str) -> None:
        """For `busy/N/...`, return the status 503 to the first N requests."""
        if self.server.requests[self.path] <= int(name.partition("/")[0]):
            self._send(b"", 503, Retry_After="0")
        else:
            self._ok(name)

    def _later_than(self, name: str) -> None:
        self._send(b"", 429, Retry_After=name)

    def _gzip(self, name: str) -> None:
        self._send(gzip.compress(body(name)), Content_Encoding="gzip")

    def _deflate(self, name: str) -> None:
        self._send(zlib.compress(body(name)), Content_Encoding="deflate")

    def _bomb(self, _name: str) -> None:
        self._send(gzip.compress(bytes(BOMB), 1), Content_Encoding="gzip")

    def _broken(self, name: str) -> None:
        data = bytearray(gzip.compress(body(name)))
        data[12] ^= 0xFF
        self._send(bytes(data), Content_Encoding="gzip")

    def _half(self, name: str) -> None:
        data = gzip.compress(body(name))
        self._send(data[: len(data) - 9], Content_Encoding="gzip")

    def _brotli(self, _name: str) -> None:
        self._send(b"x", Content_Encoding="br")

    def _robots(self, name: str) -> None:
        self._send(body(name), X_Robots_Tag=name)

    def _to(self, name: str) -> None:
        self._send(b"", 302, Location=name)

    def _loop(self, name: str) -> None:
        self._send(b"", 301, Location=f"/loop/{int(name) + 1}")
