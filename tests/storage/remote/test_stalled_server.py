"""A server that sends some bytes of every response and then stalls."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import ClassVar

import pytest

from shardtool.errors import StoreFailed
from shardtool.storage.remote.http import PIECE_BYTES
from shardtool.storage.remote.objects import RemoteObject


class _Stalling(BaseHTTPRequestHandler):
    """Send half of the requested bytes, then nothing."""

    protocol_version = "HTTP/1.1"
    size = 64 * PIECE_BYTES
    requests: ClassVar[list[str]] = []
    ended = Event()

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self.requests.append(self.headers["Range"])
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{self.size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(bytes(max(1, (last - first) // 2)))
        if last > first:
            self.ended.wait(30)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_server_that_always_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress before each stall does not renew the budget."""
    monkeypatch.setenv("SHARDTOOL_LEAST_SPEED", "1000/0.4")
    monkeypatch.setenv("SHARDTOOL_RETRY_FOR", "1")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Stalling) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with pytest.raises(StoreFailed, match=r"too slow: 127\.0\.0\.1:\d+ was silent"):
            for _ in RemoteObject(f"http://127.0.0.1:{server.server_port}/x").pieces():
                pass
        _Stalling.ended.set()
        server.shutdown()
    assert len(_Stalling.requests) <= 5  # the first asks for the size
