"""Copies inside a store: the request, and the meaning of responses."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from shardtool.storage.remote import retry
from shardtool.storage.remote.store_copy import NotCopied, can_copy_inside, copy_in_store

if TYPE_CHECKING:
    from collections.abc import Iterator

_DONE = "<CopyObjectResult><ETag>x</ETag>{}</CopyObjectResult>"


class _Store(BaseHTTPRequestHandler):
    """An object of 100 bytes with an ETag, in a store that answers copy requests."""

    protocol_version = "HTTP/1.1"
    status, body, tag, pause_s = 200, "", '"one"', 0.0
    asked: dict[str, str]

    def do_GET(self) -> None:
        self._answer(206, b"x", {"Content-Range": "bytes 0-0/100", "ETag": '"one"'})

    def do_PUT(self) -> None:
        _Store.asked = {name.lower(): value for name, value in self.headers.items()}
        time.sleep(self.pause_s)
        same = self.headers["x-amz-copy-source-if-match"] == self.tag
        self._answer(self.status if same else 412, self.body.encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Store]]:
    """Yield a local S3 server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Store) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for name, value in (("SHARDTOOL_ENDPOINT", url), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")):
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("AWS_SKIP_SIGNATURE", raising=False)
        monkeypatch.setattr(retry, "DEFAULT_POLICY", retry.RetryPolicy(first_wait_s=0.01, max_total_s=0.05))
        yield _Store
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, _DONE.format("<ChecksumCRC32C>AAAAAg==</ChecksumCRC32C>"), 2),
        (200, _DONE.format("<ChecksumCRC32C>AAAAAg==-3</ChecksumCRC32C>"), None),  # of parts
        (200, _DONE.format("<ChecksumCRC32>AAAAAg==</ChecksumCRC32>"), None),
        (200, "", None),
        (200, "<Error><Code>InternalError</Code></Error>", ""),
        (503, "", "503"),
        (404, "", ""),
        (412, "", ""),
        (403, "<Error><Code>AccessDenied</Code></Error>", "403 AccessDenied"),
        (501, "<Error><Code>NotImplemented</Code></Error>", "501 NotImplemented"),
        (307, "", "307"),
    ],
)
def test_responses_to_a_copy_request(
    status: int, body: str, expected: int | str | None, store: type[_Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksum is the one in the response. A changed object fails one copy, a refusal fails all later ones."""
    monkeypatch.setattr(store, "status", status)
    monkeypatch.setattr(store, "body", body)
    if not isinstance(expected, str):
        assert copy_in_store("s3://b/a b#1", "s3://other/c", 100, 7) == expected
        return
    with pytest.raises(NotCopied) as caught:
        copy_in_store("s3://b/a b#1", "s3://other/c", 100, 7)
    assert expected in str(caught.value)
    assert bool(expected) == bool(str(caught.value))


def test_timeout_grows_with_the_object(store: type[_Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """A store can be silent for as long as copying the object takes; a longer silence stops further requests."""
    monkeypatch.setattr(store, "pause_s", 0.6)
    monkeypatch.setenv("SHARDTOOL_LEAST_SPEED", "1000/0.1")
    with pytest.raises(NotCopied, match="silent"):
        copy_in_store("s3://b/x", "s3://other/c", 100, 7)
    monkeypatch.setattr("shardtool.storage.remote.store_copy._MIN_COPY_BYTES_PER_S", 1)  # 100 seconds
    assert copy_in_store("s3://b/x", "s3://other/c", 100, 7) is None


def test_headers_of_a_copy_request(store: type[_Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has the encoded name and the version of the object, and all headers are signed."""
    copy_in_store("s3://b/a b#1", "s3://other/c", 100, 7)
    headers = store.asked
    assert (headers["x-amz-copy-source"], headers["x-amz-copy-source-if-match"]) == ("/b/a%20b%231", '"one"')
    assert (headers["x-amz-checksum-algorithm"], headers["content-length"]) == ("CRC32C", "0")
    signed = headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {name for name in headers if name.startswith("x-amz-")} <= {*signed}
    assert "x-amz-tagging-directive" not in headers
    monkeypatch.setenv("SHARDTOOL_STORE_OPTIONS", "tags=run=7")
    copy_in_store("s3://b/a b#1", "s3://other/c", 100, 7)
    assert (store.asked["x-amz-tagging"], store.asked["x-amz-tagging-directive"]) == ("run=7", "REPLACE")
    monkeypatch.setattr(store, "tag", '"two"')  # written anew in between
    with pytest.raises(NotCopied):
        copy_in_store("s3://b/a b#1", "s3://other/c", 100, 7)
    del store.asked
    with pytest.raises(NotCopied):
        copy_in_store("s3://b/a b#1", "s3://other/c", 101, 7)
    assert not hasattr(store, "asked")  # another size: nothing is copied


@pytest.mark.parametrize(
    ("source", "where", "expected"),
    [("s3://a/x", "s3://b/y", True), ("az://a/x", "az://b/y", True), ("gs://a/x", "gs://a/y", True),
     ("gs://a/x", "gs://b/y", False), ("s3://a/x", "gs://a/y", False), ("https://a/x", "https://a/y", False),
     ("/a/x", "s3://a/y", False), ("s3://a/x", "y", False), ("s3://a/x", "", False)],
)  # fmt: skip
def test_can_copy_inside(source: str, where: str, expected: bool) -> None:  # noqa: FBT001
    """A store can copy between its own addresses; Google's only within a bucket."""
    assert can_copy_inside(source, where) == expected
