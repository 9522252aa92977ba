"""Upload a large object with one signed PUT of a known length.

The object appears when the request completes; an interrupted upload leaves nothing behind. Data is sent as it is
produced and is not buffered, so a failed upload starts from scratch. Nothing is shared with other requests, so an
upload works in a forked child process (docs/decisions/017-remote-stores.md).
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
from shardtool.storage.remote.address import (
    display_address,
    parse_address,
)
from shardtool.storage.remote.connections import PacedSocket, connections_for, peer_name
from shardtool.storage.remote.http import etag_md5
from shardtool.storage.remote.signing import sign_put
from shardtool.storage.remote.store_options import object_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from urllib3.connection import HTTPConnection


Made = TypeVar("Made")


MAX_PUT_BYTES = 5 * 10**9  # bytes of one PUT: S3 takes 5 GiB, Azure 5000 MiB


_HTTPS_PORT = 443


_CONTINUE_TIMEOUT_S = 1  # that a server has to refuse before the body is sent; some do not know what they are asked


MAX_ANSWER_BYTES = 65536


_MAX_REFUSAL_BYTES = 2**18  # bytes of an answer before the body


_STATUS_LINE = re.compile(rb"^HTTP/1\.[01] (\d{3})\b")


class TruncatedUpload(Exception):
    """Fewer bytes came than were announced: the size has to be found out before."""


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def upload(address: str, size: int, fill: Callable[[Upload], Made]) -> Made:
    """Write an object of a known size, and return what `fill`, which makes its bytes, has returned.

    Args:
        address: Where.
        size: Its bytes, `LARGEST` at most.
        fill: Gets the upload, and writes to it; again from the start where the connection was lost.

    Raises:
        Shorter: `fill` wrote less; nothing is there.
        OutputFailed: There is no such bucket.
        AccessRefused: We may not.
        StoreFailed: It failed time and again.
    """
    attempts = retry.RetryState(display_address(address))
    while True:
        begun = False
        try:
            with Upload(address, size) as one:
                begun = True
                made = fill(one)
                one.finish()
                return made
        except retry.TransientError as error:
            if begun:
                attempts.later(error.stalled_s)
            attempts.failed(error)


class Upload(AbstractContextManager["Upload"]):
    """An object being written, to be used in a `with` block; one that is left before `finish` is never there."""

    def __init__(self, address: str, size: int) -> None:
        self._address, self._size, self._left = address, size, size
        self._md5, self._crc = hashlib.md5(usedforsecurity=False), 0
        told = {"Content-Type": "application/octet-stream", **object_headers(address)}
        if parse_address(address).scheme == "az":
            told["x-ms-blob-type"] = "BlockBlob"
        self._url, self._headers = sign_put(address, told)
        self._connection, target, headers = _new_connection(self._url)
        try:
            self._begin(target, headers)
        except BaseException:
            self._connection.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it.

        Raises:
            PassingFailure: The connection is lost.
            AccessRefused: The store does not take it.
            StoreFailed: It fails.
        """
        size = len(data)
        if size > self._left:
            raise Bug(display_address(self._address), f"more than the {self._size:,} bytes that were planned")
        self._md5.update(data)
        self._crc = crc32c(data, self._crc)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._line.write(rest) :]
        except OSError:
            raise self._stopped() from None
        self._left -= size

    def finish(self) -> None:
        """Wait for the answer, and see that the store has what was sent.

        Raises:
            Shorter: Bytes are missing.
            PassingFailure: The connection is lost, or the store has other bytes.
            AccessRefused: The store does not take it.
            StoreFailed: It fails.
        """
        if self._left:
            raise TruncatedUpload
        answer = self._answered()
        _check_answer(self._address, answer)
        self._compare(answer.headers)

    def _begin(self, target: str, headers: Mapping[str, str]) -> None:
        """Send the headers, and give the server time to refuse.

        Raises:
            PassingFailure: There is no connection.
            AccessRefused: The store does not let us.
            StoreFailed: It takes no object here.
        """
        connection = self._connection
        try:
            with failures.urllib3_errors(self._address, self._url):
                connection.connect()
            connection.putrequest("PUT", target)
            size = {"User-Agent": "shardtool", "Content-Length": str(self._size), "Expect": "100-continue"}
            for name, value in {**headers, **self._headers, **size}.items():
                connection.putheader(name, value)
            connection.endheaders()
        except OSError:
            raise retry.TransientError("the connection was lost") from None
        self._line, peer = PacedSocket(connection.sock, peer_name(connection)), peer_name(connection)
        if (answer := _early_refusal(PacedSocket(connection.sock, peer, _CONTINUE_TIMEOUT_S))) is not None:
            _check_answer(self._address, answer)
            raise retry.TransientError("the store answered before it had the object")

    def _answered(self) -> _Answer:
        """Return what the server answers to the whole."""
        from http.client import HTTPConnection, HTTPException  # here, for it takes 10 ms: most outputs are folders

        from urllib3 import HTTPHeaderDict

        try:
            answer = HTTPConnection.getresponse(self._connection)
            body = answer.read(MAX_ANSWER_BYTES)
        except (OSError, ValueError, HTTPException):
            raise retry.TransientError("no answer, once all was sent") from None
        return _Answer(answer.status, HTTPHeaderDict(answer.headers.items()), body)

    def _stopped(self) -> Exception:
        """Return why a server takes no more: its answer where there is one."""
        try:
            answer = self._answered()
            _check_answer(self._address, answer)
        except retry.TransientError:
            return retry.TransientError("the connection was lost")
        except (ShardError, OSError) as error:
            return error
        return retry.TransientError("the store answered before it had the object")

    def _compare(self, headers: Mapping[str, str]) -> None:
        """See that the store has what was sent: by its checksum, or where that is another kind, by reading it."""
        if etag_md5(headers) == self._md5.hexdigest():
            return
        with suppress(OSError):  # it is not there, or another already
            if files.read_crc(self._address) == (self._size, self._crc):
                return
        raise retry.TransientError("the store has other bytes than were sent")


def _new_connection(url: str) -> tuple[HTTPConnection, str, Mapping[str, str]]:
    """Return a connection that leads to the server of a signed address, not made yet; what to ask for, and headers."""
    pool: Any = connections_for(url).connection_from_url(url)
    connection: HTTPConnection = pool._new_conn()  # noqa: SLF001 - one of its own, by the rule for all requests
    server, proxy = urlsplit(url), pool.proxy
    if proxy is not None and server.scheme == "http":
        return connection, url, pool.proxy_headers
    if proxy is not None:
        connection.set_tunnel(server.hostname or "", server.port or _HTTPS_PORT, pool.proxy_headers, proxy.scheme)
    return connection, f"{server.path}?{server.query}" if server.query else server.path, {}


def _early_refusal(line: PacedSocket) -> _Answer | None:
    """Return a server's answer where it refuses before the body; None: it wants it, or says nothing for a while.

    http.client takes `100 Continue` for nothing, and goes on to wait for the answer.
    """
    from http.client import HTTPException, parse_headers

    from urllib3 import HTTPHeaderDict

    line.most = _MAX_REFUSAL_BYTES
    try:
        [status] = map(int, _STATUS_LINE.findall(line.readline(MAX_ANSWER_BYTES)))
        headers = HTTPHeaderDict(parse_headers(line).items())
        body = line.read(max(0, min(MAX_ANSWER_BYTES, int(headers.get("Content-Length", "0"))))) or b""
    except TimeoutError:  # before the first byte: later, `Line` says what is too slow
        return None
    except (OSError, ValueError, HTTPException):
        raise retry.TransientError("the connection was lost") from None
    return None if status == HTTPStatus.CONTINUE else _Answer(status, headers, body)


def _check_answer(address: str, answer: _Answer) -> None:
    if answer.status in (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT):
        raise StoreFailed(display_address(address), "redirected", remedy=failures.WRONG_REGION_ADVICE)
    if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT):
        with failures.write_conflicts(address):
            raise failures.status_error(address, "PUT", *answer)
