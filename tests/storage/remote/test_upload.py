"""Responses of a store to an upload."""

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
def test_etag_md5(headers: dict[str, str], md5: str | None) -> None:
    """The MD5 is found in the headers of each store; similar values are not mistaken for one."""
    assert etag_md5(headers) == md5


class _AcceptingServer(BaseHTTPRequestHandler):
    """Accept all uploads, except below `/none/`."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_accepted = not self.path.startswith("/none/")
        self.send_response(200 if is_accepted else 404)
        self.send_header("ETag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def accepting_server() -> Iterator[str]:
    """Yield the URL of a server that accepts objects."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _AcceptingServer) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_missing_bucket_and_missing_source(accepting_server: str) -> None:
    """A missing bucket is named; a missing source file is not reported as a missing bucket."""

    def fill(to: Sink) -> str:
        to.write(b"abc")
        return "made"

    def vanished(_: Sink) -> str:
        raise FileNotFoundError(2, "no such file", "the source")

    assert RemoteFolder(f"{accepting_server}/there").write("x", fill, 3, 0) == ("made", DurableFile("x", ""))
    assert RemoteFolder(f"{accepting_server}/there").write("x", fill, None, 0) == ("made", DurableFile("x", ""))
    with pytest.raises(OutputFailed, match="no such bucket"):
        RemoteFolder(f"{accepting_server}/none").write("x", fill, 3, 0)
    for size in (3, None):
        with pytest.raises(FileNotFoundError, match="the source"):
            RemoteFolder(f"{accepting_server}/there").write("x", vanished, size, 0)
