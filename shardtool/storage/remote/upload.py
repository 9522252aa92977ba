"""A large object is written by one signed PUT whose length is known before: visible when it ends, and whole or not.

Bytes are pushed into the connection as they are made, so that nothing is held, and a process that is killed leaves
nothing: an answer comes only after all bytes. What is made here takes part in no other request, and works in a forked
child (decision 017). What failed is made again from its start, for bytes that were pushed are gone.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from shardtool.errors import Bug, ShardError, StoreFailed
from shardtool.fingerprint import crc32c
from shardtool.storage.remote.address import parse_address, shown
from shardtool.storage.remote.blob import Blob
from shardtool.storage.remote.client import connections_to, drop, google_hashes, send, stored_md5
from shardtool.storage.remote.failures import WRONG_PLACE, answering, refusal, writing
from shardtool.storage.remote.objects import signed
from shardtool.storage.remote.retry import Attempts, PassingFailure, retried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self
    from urllib3.connection import HTTPConnection

    from shardtool.storage.remote.line import Line

Made = TypeVar("Made")

LARGEST = 5 * 10**9  # bytes of one PUT: S3 takes 5 GiB, Azure 5000 MiB
_TLS_PORT = 443
_GO_ON_S = 1  # that a server has to refuse before the body is sent; some do not know what they are asked
_LINE = 65536
_MOST_REFUSED = 2**18  # bytes of an answer before the body
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class Shorter(Exception):
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
    attempts = Attempts(shown(address))
    while True:
        begun = False
        try:
            with Upload(address, size) as one:
                begun = True
                made = fill(one)
                one.finish()
                return made
        except PassingFailure as error:
            if begun:
                attempts.later()
            attempts.failed(error)


class Upload:
    """An object being written, to be used in a `with` block; one that is left before `finish` is never there."""

    def __init__(self, address: str, size: int) -> None:
        self._address, self._size, self._left = address, size, size
        self._md5, self._crc = hashlib.md5(usedforsecurity=False), 0
        self._url = signed(address, "PUT")
        self._connection, target, headers = _connection(self._url)
        try:
            self._begin(target, headers)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it.

        Raises:
            Passing: The connection is lost.
            AccessRefused: The store does not take it.
            StoreFailed: It fails.
        """
        size = len(data)
        if size > self._left:
            raise Bug(shown(self._address), f"more than the {self._size:,} bytes that were planned")
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
            Passing: The connection is lost, or the store has other bytes.
            AccessRefused: The store does not take it.
            StoreFailed: It fails.
        """
        if self._left:
            raise Shorter
        answer = self._answered()
        _check(self._address, answer)
        self._compare(answer.headers)

    def _begin(self, target: str, headers: Mapping[str, str]) -> None:
        """Send the headers, and give the server time to refuse.

        Raises:
            Passing: There is no connection.
            AccessRefused: The store does not let us.
            StoreFailed: It takes no object here.
        """
        from shardtool.storage.remote.line import Line, peer_of

        connection = self._connection
        try:
            with answering(self._address, self._url):
                connection.connect()
            connection.putrequest("PUT", target)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("User-Agent", "shardtool")
            connection.putheader("Content-Length", str(self._size))
            connection.putheader("Content-Type", "application/octet-stream")
            if parse_address(self._address).scheme == "az":
                connection.putheader("x-ms-blob-type", "BlockBlob")
            connection.putheader("Expect", "100-continue")
            connection.endheaders()
        except OSError:
            raise PassingFailure("the connection was lost") from None
        self._line, peer = Line(connection.sock, peer_of(connection)), peer_of(connection)
        if (answer := _refusal(Line(connection.sock, peer, _GO_ON_S))) is not None:
            _check(self._address, answer)
            raise PassingFailure("the store answered before it had the object")

    def _answered(self) -> _Answer:
        """Return what the server answers to the whole."""
        from urllib3 import HTTPHeaderDict

        try:
            answer = http.client.HTTPConnection.getresponse(self._connection)
            body = answer.read(_LINE)
        except (OSError, ValueError, http.client.HTTPException):
            raise PassingFailure("no answer, once all was sent") from None
        return _Answer(answer.status, HTTPHeaderDict(answer.headers.items()), body)

    def _stopped(self) -> Exception:
        """Return why a server takes no more: its answer where there is one."""
        try:
            answer = self._answered()
            _check(self._address, answer)
        except PassingFailure:
            return PassingFailure("the connection was lost")
        except (ShardError, OSError) as error:
            return error
        return PassingFailure("the store answered before it had the object")

    def _compare(self, headers: Mapping[str, str]) -> None:
        """See that the store has what was sent: by its checksum, or where that is another kind, by reading it."""
        if stored_md5(headers) == self._md5.hexdigest():
            return
        size = crc = 0
        with suppress(OSError):  # it is not there, or another already
            for piece in Blob(self._address).pieces():
                size, crc = size + len(piece), crc32c(piece, crc)
        if (size, crc) != (self._size, self._crc):
            raise PassingFailure("the store has other bytes than were sent")


def stored_crc(address: str) -> int | None:
    """Return the CRC-32C of an object that its store says, without reading it; None: it says none. Google's store does.

    Raises:
        FileNotFoundError: There is no such object.
        StoreFailed: The store fails, or does not let us.
    """
    if parse_address(address).scheme != "gs":
        return None
    answer = retried(shown(address), lambda: send("GET", address, {"Range": "bytes=0-0"}))
    drop(answer)
    given = google_hashes(answer.headers).get("crc32c", "")
    try:
        return int.from_bytes(base64.b64decode(given, validate=True), "big") if given else None
    except ValueError:
        return None


def _connection(url: str) -> tuple[HTTPConnection, str, Mapping[str, str]]:
    """Return a connection that leads to the server of a signed address, not made yet; what to ask for, and headers."""
    pool: Any = connections_to(url).connection_from_url(url)
    connection: HTTPConnection = pool._new_conn()  # noqa: SLF001 - one of its own, by the rule for all requests
    server, proxy = urlsplit(url), pool.proxy
    if proxy is not None and server.scheme == "http":
        return connection, url, pool.proxy_headers
    if proxy is not None:
        connection.set_tunnel(server.hostname or "", server.port or _TLS_PORT, pool.proxy_headers, proxy.scheme)
    return connection, f"{server.path}?{server.query}" if server.query else server.path, {}


def _refusal(line: Line) -> _Answer | None:
    """Return a server's answer where it refuses before the body; None: it wants it, or says nothing for a while.

    http.client takes `100 Continue` for nothing, and goes on to wait for the answer.
    """
    from urllib3 import HTTPHeaderDict

    line.most = _MOST_REFUSED
    try:
        first = line.readline(_LINE)
    except TimeoutError:
        return None
    except OSError:
        raise PassingFailure("the connection was lost") from None
    try:
        headers = HTTPHeaderDict(http.client.parse_headers(line).items())
        body = line.read(max(0, min(_LINE, int(headers.get("Content-Length", "0"))))) or b""
    except (OSError, ValueError, http.client.HTTPException):
        raise PassingFailure("the connection was lost") from None
    if not (found := _STATUS.match(first)):
        raise PassingFailure("the connection was lost")
    return None if int(found[1]) == HTTPStatus.CONTINUE else _Answer(int(found[1]), headers, body)


def _check(address: str, answer: _Answer) -> None:
    if answer.status in (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT):
        raise StoreFailed(shown(address), "redirected", remedy=WRONG_PLACE)
    if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT):
        with writing(address):
            raise refusal(address, "PUT", answer, answer.body)
