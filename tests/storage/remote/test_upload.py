"""Laws of what a store says of an object that it has taken."""

from __future__ import annotations

import base64
import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import OutputFailed
from shardtool.storage.remote.http import etag_md5
from shardtool.storage.remote_folder import RemoteFolder
from shardtool.storage.staging import DurableFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.staging import Sink

_MD5 = hashlib.md5(b"abc", usedforsecurity=False)
_HEX, _BASE64 = _MD5.hexdigest(), base64.b64encode(_MD5.digest()).decode()


@pytest.mark.parametrize(
    ("headers", "md5"),
    [
        ({"ETag": f'"{_HEX}"'}, _HEX),
        ({"ETag": _HEX}, _HEX),
        ({"ETag": f'"{_HEX}-3"'}, None),
        ({"ETag": '"0x8DE29D1C7B3A2F0"', "Content-MD5": _BASE64}, _HEX),
        ({"ETag": '"0x8DE29D1C7B3A2F0"'}, None),
        ({"ETag": '"CKih16GjycICEAE="', "x-goog-hash": f"crc32c=4waSgw==,md5={_BASE64}"}, _HEX),
        ({"ETag": '"CKih16GjycICEAE="', "x-goog-hash": f"crc32c=4waSgw==, md5={_BASE64}"}, _HEX),
        ({"x-goog-hash": "crc32c=4waSgw=="}, None),
        ({"Content-MD5": "?"}, None),
        ({}, None),
    ],
)
def test_md5(headers: dict[str, str], md5: str | None) -> None:
    """The MD5 is found in the header of each store, and nothing that only looks alike is taken for it."""
    assert etag_md5(headers) == md5


class _Taker(BaseHTTPRequestHandler):
    """Takes what is put, but for what is put below `/none/`."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        there = not self.path.startswith("/none/")
        self.send_response(200 if there else 404)
        self.send_header("ETag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def taker() -> Iterator[str]:
    """Give the address of a server that takes objects."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taker) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_is_missing(taker: str) -> None:
    """A bucket that is not there is named; a source that is not there is not taken for a bucket."""

    def fill(to: Sink) -> str:
        to.write(b"abc")
        return "made"

    def vanished(_: Sink) -> str:
        raise FileNotFoundError(2, "no such file", "the source")

    assert RemoteFolder(f"{taker}/there").write("x", fill, 3, 0) == ("made", DurableFile("x", ""))
    assert RemoteFolder(f"{taker}/there").write("x", fill, None, 0) == ("made", DurableFile("x", ""))
    with pytest.raises(OutputFailed, match="no such bucket"):
        RemoteFolder(f"{taker}/none").write("x", fill, 3, 0)
    for size in (3, None):
        with pytest.raises(FileNotFoundError, match="the source"):
            RemoteFolder(f"{taker}/there").write("x", vanished, size, 0)
