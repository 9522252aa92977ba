"""Upload a large object with one signed PUT request of known length.

A failed upload starts from scratch, because the data is not kept. A forked child can upload, because uploads share
nothing with other requests.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import AbstractContextManager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from shardtool.errors import Bug, ShardError, StoreFailed
from shardtool.fingerprint import crc32c
from shardtool.storage import files
from shardtool.storage.remote import failures, retry
from shardtool.storage.remote.address import display_address, parse_address
from shardtool.storage.remote.http import (
    MAX_RESPONSE_BYTES,
    PacedSocket,
    connections_for,
    etag_md5,
    peer_name,
    sign_put,
)
from shardtool.storage.remote.store_options import object_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from urllib3.connection import HTTPConnection


Result = TypeVar("Result")


MAX_PUT_BYTES = 5 * 10**9
_HTTPS_PORT = 443
_CONTINUE_TIMEOUT_S = 1  # do not wait longer, because some servers do not reply to `Expect: 100-continue`
_MAX_REFUSAL_BYTES = 2**18
_STATUS_LINE = re.compile(rb"^HTTP/1\.[01] (\d{3})\b")


class TruncatedUpload(Exception):
    """Fewer bytes were written than the announced size of the object."""


class _Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def upload(address: str, size: int, fill: Callable[[Upload], Result]) -> Result:
    """Let `fill` write an object of at most `MAX_PUT_BYTES`, and return the result of `fill`.

    After a temporary failure, `fill` is called again.

    Raises:
        TruncatedUpload: `fill` wrote fewer than `size` bytes. The object was not created.
    """
    attempts = retry.RetryState(address)
    while True:
        is_connected = False
        try:
            with Upload(address, size) as request:
                is_connected = True
                result = fill(request)
                request.finish()
                return result
        except retry.TransientError as error:
            if is_connected:
                attempts.count_waits_only(error.stalled_s)
            attempts.wait_or_give_up(error)


class Upload(AbstractContextManager["Upload"]):
    """An object that is being written, as a context manager. The object is visible only after `finish`.

    Methods raise `TransientError` after a temporary failure, and another error if the store refuses the object.
    """

    def __init__(self, address: str, size: int) -> None:
        self._address, self._size, self._remaining = address, size, size
        self._md5, self._crc = hashlib.md5(usedforsecurity=False), 0
        object_options = {"Content-Type": "application/octet-stream", **object_headers(address)}
        if parse_address(address).scheme == "az":
            object_options["x-ms-blob-type"] = "BlockBlob"
        self._url, self._headers = sign_put(address, object_options)
        self._connection, target, headers = _new_connection(self._url)
        try:
            self._send_headers(target, headers)
        except BaseException:
            self._connection.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def write(self, data: memoryview | bytes) -> None:
        """Append all of `data`."""
        size = len(data)
        if size > self._remaining:
            raise Bug(display_address(self._address), f"more than the {self._size:,} bytes that were planned")
        self._md5.update(data)
        self._crc = crc32c(data, self._crc)
        unsent = memoryview(data)
        try:
            while unsent:
                unsent = unsent[self._socket.write(unsent) :]
        except OSError:
            raise self._failure_reason() from None
        self._remaining -= size

    def finish(self) -> None:
        """Wait for the response and verify the checksum of the object.

        Raises:
            TruncatedUpload: Fewer than `size` bytes were written.
            TransientError: The object differs from the bytes sent.
        """
        if self._remaining:
            raise TruncatedUpload
        response = self._read_response()
        _check_response(self._address, response)
        self._compare(response.headers)

    def _send_headers(self, target: str, headers: Mapping[str, str]) -> None:
        connection = self._connection
        try:
            with failures.urllib3_errors(self._address, self._url):
                connection.connect()
            connection.putrequest("PUT", target)
            framing = {"User-Agent": "shardtool", "Content-Length": str(self._size), "Expect": "100-continue"}
            for name, value in {**headers, **self._headers, **framing}.items():
                connection.putheader(name, value)
            connection.endheaders()
        except OSError:
            raise retry.TransientError("the connection was lost") from None
        peer = peer_name(connection)
        self._socket = PacedSocket(connection.sock, peer)
        if (response := _early_refusal(PacedSocket(connection.sock, peer, _CONTINUE_TIMEOUT_S))) is not None:
            _check_response(self._address, response)
            raise retry.TransientError("the store responded before it had the whole object")

    def _read_response(self) -> _Response:
        from http.client import HTTPConnection, HTTPException

        from urllib3 import HTTPHeaderDict

        try:
            response = HTTPConnection.getresponse(self._connection)
            body = response.read(MAX_RESPONSE_BYTES)
        except (OSError, ValueError, HTTPException):
            raise retry.TransientError("no response after all data was sent") from None
        return _Response(response.status, HTTPHeaderDict(response.headers.items()), body)

    def _failure_reason(self) -> Exception:
        try:
            response = self._read_response()
            _check_response(self._address, response)
        except retry.TransientError:
            return retry.TransientError("the connection was lost")
        except (ShardError, OSError) as error:
            return error
        return retry.TransientError("the store responded before it had the whole object")

    def _compare(self, headers: Mapping[str, str]) -> None:
        if etag_md5(headers) == self._md5.hexdigest():
            return
        with suppress(OSError):  # raise the error below if the object is missing or was replaced
            if files.read_crc(self._address) == (self._size, self._crc):
                return
        raise retry.TransientError("the store's copy differs from the data sent")


def _new_connection(url: str) -> tuple[HTTPConnection, str, Mapping[str, str]]:
    """Return a connection, its request target, and its proxy headers."""
    pool: Any = connections_for(url).connection_from_url(url)
    connection: HTTPConnection = pool._new_conn()  # noqa: SLF001 - uses the pool's settings
    server, proxy = urlsplit(url), pool.proxy
    if proxy is not None and server.scheme == "http":
        return connection, url, pool.proxy_headers
    if proxy is not None:
        connection.set_tunnel(server.hostname or "", server.port or _HTTPS_PORT, pool.proxy_headers, proxy.scheme)
    return connection, f"{server.path}?{server.query}" if server.query else server.path, {}


def _early_refusal(socket: PacedSocket) -> _Response | None:
    """Return the response if it arrives before the request body was sent. Otherwise return None.

    This function parses the response itself, because http.client would skip `100 Continue` and wait for the final
    response.
    """
    from http.client import HTTPException, parse_headers

    from urllib3 import HTTPHeaderDict

    socket.max_bytes = _MAX_REFUSAL_BYTES
    try:
        [status] = map(int, _STATUS_LINE.findall(socket.readline(MAX_RESPONSE_BYTES)))
        headers = HTTPHeaderDict(parse_headers(socket).items())
        body = socket.read(max(0, min(MAX_RESPONSE_BYTES, int(headers.get("Content-Length", "0"))))) or b""
    except TimeoutError:
        return None
    except (OSError, ValueError, HTTPException):
        raise retry.TransientError("the connection was lost") from None
    return None if status == HTTPStatus.CONTINUE else _Response(status, headers, body)


def _check_response(address: str, response: _Response) -> None:
    if response.status in (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT):
        raise StoreFailed(display_address(address), "redirected", remedy=failures.WRONG_REGION_ADVICE)
    if response.status not in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT):
        with failures.write_errors(address):
            raise failures.status_error(address, "PUT", *response)
