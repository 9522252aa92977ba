"""Requests over HTTP, signed where a store wants that: urllib3, with a pool of connections for each process.

Connections belong to the process that made them, so that a forked child makes its own. No message of urllib3 is shown
or chained: it holds the address that was asked for, and that may be signed (decision 017).
"""

from __future__ import annotations

import base64
import errno
import functools
import hashlib
import io
import os
import re
import threading
import time
from collections import deque
from contextlib import closing, contextmanager
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

from shardtool.errors import InvalidRequest, StoreFailed, without_secrets
from shardtool.storage.remote import retry
from shardtool.storage.remote.address import (
    DECIDING,
    EXTRAS,
    MEANT,
    certificates,
    is_hub,
    is_other,
    is_same_server,
    is_web,
    of_proxy,
    parse_address,
    proxy_of,
    shown,
    tls,
    web_headers,
    without_user,
)
from shardtool.storage.remote.stores import BucketEntry, not_installed, signed, version_number

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    import urllib3
    from typing_extensions import Buffer
    from urllib3.connection import HTTPConnection

PIECE = 2**20
MOST_CONNECTIONS = 64  # that are kept for one server
_CONNECT_S, _SEND_S = 10, 60  # how long an answer takes is for `Line`
_GIVEN = (200, 201, 204, 206, 416)
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_REASON = 4096  # bytes of an answer that is not wanted that are looked at, or read to keep a connection
_DIGITS = 18  # of a length: no file has more bytes
_USER_AGENT = "shardtool"
_MD5 = re.compile(r"[0-9a-f]{32}")


# What goes over a connection, never waited for without a bound: too little in too much time is a failure.
#
# Strategy: all that urllib3 and http.client take comes through the file that an answer makes of its socket. Ours waits
# in slices, in which a thread can be told to stop, and counts what comes in the time that is spent waiting: a server
# that is silent and one that drips are the same. What a reader does in between does not count. Connections are made
# apart, for names, handshakes and proxies know no slices.


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
                raise retry.PassingFailure(f"{self._peer} sends headers without an end", answered=True)
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
            retry.check_wanted()
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
        least, over_s = retry.least_speed()
        if least and self._silent_s >= over_s:
            when = "too slow" if self._bytes else "no answer in time"
            found = f"{when}: {self._peer} was silent for {self._silent_s:,.0f} s"
            raise retry.PassingFailure(found, stalled_s=self._silent_s)
        if self._waited_s >= over_s:
            if self._bytes < least * self._waited_s:
                raise retry.PassingFailure(self._too_slow(least), stalled_s=self._waited_s)
            self._bytes, self._waited_s = 0, 0.0

    def _too_slow(self, least: float) -> str:
        seen = f"{self._peer} moved {self._bytes:,} bytes in {self._waited_s:,.0f} s"
        return f"too slow: {seen}, where {least:,.0f} a second are the least"


def peer_of(connection: HTTPConnection) -> str:
    """Return whose a connection is, for messages."""
    return f"{connection.host}:{connection.port}"


@functools.cache
def _pools() -> dict[str, type[urllib3.HTTPConnectionPool]]:
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
            self.response_class = partial(Answer, peer_of(self))  # type: ignore[assignment]
            retry.apart(super().connect)

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
_MAKING = threading.Lock()
os.register_at_fork(before=_MAKING.acquire, after_in_parent=_MAKING.release, after_in_child=_MAKING.release)


@functools.lru_cache(maxsize=8)
def _pool_of(_pid: int, scheme: str, proxy: str | None, _environment: tuple[str | None, ...]) -> urllib3.PoolManager:
    import urllib3

    timeout = urllib3.Timeout(connect=_CONNECT_S, read=_SEND_S)
    is_plain = "https" not in (scheme, urlsplit(proxy or "").scheme)
    options: dict[str, Any] = {"maxsize": MOST_CONNECTIONS, "retries": False, "timeout": timeout}
    # Certificates that the environment names are looked at even where none are needed: they must be some.
    context = options["ssl_context"] = None if is_plain and not certificates() else tls()
    if proxy is None:
        made = urllib3.PoolManager(**options)
    else:
        made = urllib3.ProxyManager(proxy, proxy_headers=of_proxy(proxy), proxy_ssl_context=context, **options)
    made.pool_classes_by_scheme = _pools()
    return made


def connections_to(url: str) -> urllib3.PoolManager:
    """Return this process's connections that lead to a server.

    Raises:
        InvalidRequest: urllib3 is not installed, or the environment names no proxy, or no certificates.
    """
    try:
        with _MAKING:
            return _pool_of(os.getpid(), urlsplit(url).scheme, proxy_of(url), tuple(map(os.environ.get, DECIDING)))
    except ImportError:
        raise not_installed("urllib3") from None


class HubLink(NamedTuple):
    """Where the Hub has led to: a signed address, the ETag that the Hub says it has, and the one that it has there."""

    target: str
    linked: str
    tag: str


def get(
    address: str, headers: Mapping[str, str] | None = None, links: list[HubLink] | None = None
) -> urllib3.BaseHTTPResponse:
    """Ask for an object once, and follow redirects; the body of the answer is not read yet.

    Args:
        address: Of the object.
        headers: More of them.
        links: Gets where the Hub has led to, and that is asked while it is the same: the Hub allows few requests.

    Returns:
        The answer, of the status 200, 201, 204, 206, or 416 for a range behind the end. Read it to its end, which
        gives its connection back, `drop` it, or `close` it.

    Raises:
        PassingFailure: What may pass: ask again.
        FileNotFoundError: There is no such object.
        FileExistsError: The condition in the headers does not hold.
        AccessRefused: We may not.
        StoreFailed: Anything else.
    """
    before = next(iter(links or ()), None)
    if before is not None:
        target, known = before.target, dict[str, str]()
    elif is_hub(address):
        target, known = _in_hub(address)
    else:
        target = signed(address, "GET")
        known = web_headers(target) if is_web(address) else {}
    answer, link = _followed(address, target, headers or {}, known)
    is_given = answer.status in _GIVEN
    if before is not None and links is not None:
        if not is_given or link.tag != before.tag:
            drop(answer)
            links.clear()
            return get(address, headers, links)
        link = before
    if is_given and link.linked and is_hub(address):
        answer.headers["ETag"] = link.linked
        if links is not None and link.tag:
            links[:] = [link]
    if is_given:
        return answer
    raise retry.refusal(address, "GET", answer.status, answer.headers, _start_of(answer))


def _followed(
    address: str, target: str, headers: Mapping[str, str], known: Mapping[str, str]
) -> tuple[urllib3.BaseHTTPResponse, HubLink]:
    """Return the answer at the end of all redirects, and where that is; what servers `known` to us get goes no further.

    Raises:
        PassingFailure: There is none.
        StoreFailed: There is none, or there are too many redirects, or one that leads to no place of the web.
    """
    linked = ""
    for _ in range(_MOST_REDIRECTS + 1):
        answer = _asked_once(address, target, {**headers, **known})
        linked = linked or answer.headers.get("X-Linked-Etag", "")  # of the Hub: the SHA-256, where a CDN has its own
        if answer.status not in _REDIRECTS or "Location" not in answer.headers:
            return answer, HubLink(target, linked, answer.headers.get("ETag", ""))
        drop(answer)
        there = _redirected(address, target, answer.headers["Location"])
        if not is_same_server(target, there):
            known = {}
        target = there
    raise StoreFailed(shown(address), f"more than {_MOST_REDIRECTS} redirects")


def _asked_once(address: str, target: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
    """Return the answer of a server, whatever it is."""
    with retry.answering(address, target):
        return connections_to(target).request(
            "GET", without_user(target), preload_content=False, decode_content=False, redirect=False, retries=False,
            headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers},
        )  # fmt: skip


class FirstAnswer(NamedTuple):
    """What the first answer of a server shows of the way there, whatever it answers.

    Attributes:
        server: Its address, without a path.
        proxy: That of the proxy that leads there; empty: none does.
        headers: Of the answer.
        trusted_until: When its certificate ends, as it says that; None: what goes there is not encrypted.
        code: The store's own word for what is wrong; empty: it has none.
        refused: What the answer means, where it is none of an object that is there.
    """

    server: str
    proxy: str
    headers: Mapping[str, str]
    trusted_until: str | None
    code: str
    refused: Exception | None


def first_answer(address: str) -> FirstAnswer:
    """Ask for an object, or what is none, and look at how it is answered.

    Raises:
        PassingFailure: There is no answer.
        AccessRefused: There are no keys.
        StoreFailed: The certificate is not trusted, or it is no server of HTTP.
        InvalidRequest: Keys or the proxy that the environment names are none.
    """
    url = signed(address, "GET")
    at, proxy = urlsplit(without_user(url)), without_user(proxy_of(url) or "")
    answer = _asked_once(address, url, {"Range": "bytes=0-0", **(web_headers(url) if is_web(address) else {})})
    socket: Any = getattr(answer.connection, "sock", None)
    until = socket.getpeercert()["notAfter"] if at.scheme == "https" else None
    good = answer.status < HTTPStatus.BAD_REQUEST and (is_web(address) or answer.status not in _REDIRECTS)
    body = b"" if good else _start_of(answer)
    refused = None if good else retry.refusal(address, "GET", answer.status, answer.headers, body)
    answer.close()
    if isinstance(refused, retry.PassingFailure):
        raise refused
    return FirstAnswer(f"{at.scheme}://{at.netloc}", proxy, answer.headers, until, retry.code_in(body), refused)


def stored_md5(headers: Mapping[str, str]) -> str | None:
    """Return the MD5 of an object that a store gives in an answer; None: none that can be trusted to be one."""
    for given in (headers.get("Content-MD5", ""), google_hashes(headers).get("md5", "")):
        if given:
            try:
                return base64.b64decode(given, validate=True).hex()
            except ValueError:
                return None
    tag = headers.get("ETag", "").strip('"')
    return tag if _MD5.fullmatch(tag) else None


def object_md5(address: str, headers: Mapping[str, str]) -> str | None:
    """Return the MD5 of a whole object of a store, as its answer says it; None: it says none.

    The ETag of S3 is none where the object is encrypted by keys of others, and in directory buckets.
    """
    other = headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    other |= "x-amz-server-side-encryption-customer-algorithm" in headers
    other |= headers.get("x-amz-storage-class", "") == "EXPRESS_ONEZONE"
    return None if other or is_web(address) or is_hub(address) else stored_md5(headers)


def google_hashes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what Google's store says of an object's bytes: kind to checksum, in base64."""
    return dict(part.strip().partition("=")[::2] for part in headers.get("x-goog-hash", "").split(","))


def _start_of(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Return the first bytes of an answer that is not wanted, and close it."""
    try:
        with retry.answering(""):
            return answer.read(_REASON)
    except (retry.PassingFailure, StoreFailed):
        return b""
    finally:
        answer.close()


def body_of(answer: urllib3.BaseHTTPResponse, address: str, length: int, most: int = PIECE) -> Iterator[bytes]:
    """Yield the body of an answer, which must have `length` bytes, `most` at a time; then it is closed.

    Raises:
        PassingFailure: It ends early.
    """
    got = 0
    try:
        while got < length:
            with retry.answering(address):
                piece = answer.read(min(most, length - got))
            if not piece:
                raise retry.PassingFailure(f"the answer ends {length - got:,} bytes early", answered=True)
            got += len(piece)
            yield piece
    finally:
        answer.close()  # of one that was read to its end, the connection is given back already


def drop(answer: urllib3.BaseHTTPResponse) -> None:
    """Be done with an answer that is not wanted: a short one is read, so that its connection can be used again."""
    if (length_of(answer) or _REASON) < _REASON:
        _start_of(answer)
    answer.close()


def length_of(answer: urllib3.BaseHTTPResponse) -> int | None:
    """Return how long an answer says that it is; None: it does not say, or no number that a file has."""
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) <= _DIGITS else None


def _redirected(address: str, now: str, location: str) -> str:
    """Return where a redirect leads: never from https to http, and from a store nowhere, for requests are signed."""
    try:
        there = urljoin(now, location)
        urlsplit(there).port  # noqa: B018 - which says whether it is one
    except ValueError:
        raise StoreFailed(shown(address), "redirected to what is no address", expected="an address") from None
    found = f"redirected to {without_secrets(there)[:200]}"
    if not is_web(there) or (now.startswith("https:") and not there.startswith("https:")):
        raise StoreFailed(shown(address), found, expected="an address of https")
    if not (is_web(address) or is_hub(address)):
        raise StoreFailed(shown(address), found, remedy=retry.WRONG_PLACE)
    return there


# One object, read at any place: what comes back is what was asked for, of one version of it, or an error.
#
# Every range is a request of its own; the answer must say that it is just that range, and be of the version that the
# first answer had. What is cut is asked for again from there on. An object has no position, so that threads may read it
# at once.


_WHOLE = 2**24  # bytes that are read as one: a join of pieces would copy them
_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-(-?[0-9]{1,18})|\*)/([0-9]{1,18})")  # of an empty blob azurite says 0--1/0


class Blob:
    """An object in a store or behind HTTP, as it was when this was made.

    Args:
        address: Where it is.
        size: Bytes that it must have: nothing is asked for then before the first read; None: not known.

    Attributes:
        address: Where it is.
        size: Its bytes.
        version: Its ETag; empty where the server gives none, or nothing was asked for yet.
        ranges: Whether the server gives parts of it, as far as that is known.
        md5: Of all of it, as the store said last; None: it says none, or nothing was read yet.

    Raises:
        FileNotFoundError: There is no such object.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """

    md5: str | None = None

    def __init__(self, address: str, size: int | None = None) -> None:
        self.address, self._where, self._links = address, shown(address), list[HubLink]()
        self._seen = dict[str, str]()  # the first answer's ETag: who sets it first, of several threads, wins
        if size is None:
            self.size, self._seen["version"], self.ranges = retry.retried(self._where, self._look)
        else:
            self.size, self.ranges = size, True

    @property
    def version(self) -> str:
        """Its ETag; empty where the server gives none, or nothing was asked for yet."""
        return self._seen.get("version", "")

    def fact(self) -> ObjectFact:
        """Return what is known of it."""
        return ObjectFact(self.size, version_number(self.version))

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the object.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again, or knows no ranges.
        """
        pieces = list(self._pieces(offset, min(self.size, offset + length), _WHOLE))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, some MB at a time at most, by one request where nothing fails.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again, or knows no ranges.
        """
        return self._pieces(0, self.size, PIECE)

    def _pieces(self, offset: int, end: int, most: int) -> Iterator[bytes]:
        """Yield the bytes of a range, `most` at a time."""
        attempts = retry.Attempts(self._where)
        while offset < end:
            try:
                for piece in body_of(self._opened(offset, end), self.address, end - offset, most):
                    offset += len(piece)
                    yield piece
                    attempts.progress()  # now, so that the caller's own work is not counted as a stall
            except retry.PassingFailure as error:
                self._links.clear()
                attempts.failed(error)

    def checked_pieces(self) -> Iterator[bytes]:
        """Yield all bytes as `pieces` does; at the end they are compared with what the store says of them.

        Raises:
            OSError: It is another one by now, it is gone, or has other bytes than the store says.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again, or knows no ranges.
        """
        md5 = hashlib.md5(usedforsecurity=False)
        for piece in self.pieces():
            md5.update(piece)
            yield piece
        if self.md5 is not None:
            _compare(self.address, self.md5, md5)

    def _look(self) -> tuple[int, str, bool]:
        """Return the size, the version, and whether ranges can be had: by its first byte, for HEAD may be forbidden."""
        answer = get(self.address, {"Range": "bytes=0-0"}, self._links)
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            drop(answer)
            answer = get(self.address)  # an empty object, where not all servers say so
        drop(answer)
        version = answer.headers.get("ETag", "")
        if "Content-Range" in answer.headers:
            if where := _RANGE.fullmatch(answer.headers["Content-Range"]):
                return int(where[3]), version, True
            raise StoreFailed(self._where, "an answer that does not say which range it is")
        _check_plain(answer, self._where)
        return _known_length(answer, self._where), version, False

    def _opened(self, offset: int, end: int) -> urllib3.BaseHTTPResponse:
        """Return the answer to a request for a range, checked; its body is not read yet."""
        whole = offset == 0 and end == self.size
        if not self.ranges and not whole:
            raise self._whole_only()
        headers = {"Range": f"bytes={offset}-{end - 1}"} if self.ranges else {}
        is_asked_for = not is_hub(self.address)  # where the Hub leads to, the ETag is another one
        if is_asked_for and self.version and not self.version.startswith("W/"):
            headers["If-Match"] = self.version
        try:
            answer = get(self.address, headers, self._links)
        except FileExistsError:
            raise OSError(errno.ESTALE, "changed while it was read", self._where) from None
        try:
            self._check(answer, offset, end)
        except BaseException:
            answer.close()
            raise
        return answer

    def _check(self, answer: urllib3.BaseHTTPResponse, offset: int, end: int) -> None:
        _check_plain(answer, self._where)
        said = answer.headers.get("Content-Range", "")  # with 206; rclone's server says 200
        if answer.status == HTTPStatus.OK and not said:
            if offset or end < self.size:
                raise self._whole_only()
            self.ranges, found = False, None
            size = _known_length(answer, self._where)
        else:
            found = _RANGE.fullmatch(said)
            size = int(found[3]) if found else self.size
        tag = answer.headers.get("ETag", "")
        if size != self.size and "version" not in self._seen:
            raise OSError(errno.ESTALE, f"{size:,} bytes, where {self.size:,} were expected", self._where)
        if size != self.size or self._seen.setdefault("version", tag) != tag:
            raise OSError(errno.ESTALE, "changed while it was read", self._where)
        self.md5 = object_md5(self.address, answer.headers)
        asked = f"bytes {offset}-{end - 1}/{self.size}"
        if self.ranges and said != asked:
            raise StoreFailed(self._where, f"the status {answer.status}, {said[:60] or 'no range'}", expected=asked)
        if (length := answer.headers.get("Content-Length", str(end - offset))) != str(end - offset):
            what = f"an answer of {length[:20]} bytes, where {end - offset:,} were asked for"
            raise StoreFailed(self._where, what)

    def _whole_only(self) -> StoreFailed:
        return StoreFailed(
            self._where, "the server gives whole files only", expected="ranges (HTTP Range requests)",
            remedy="Copy the files first: `shardtool copy`.",
        )  # fmt: skip


class ObjectFact(NamedTuple):
    """What a server says of an object, under the names by which `os.stat_result` has it of a file.

    What lists a source notes which version of each object it saw; who reads it compares, so that nothing that was
    changed meanwhile is taken for it.

    Attributes:
        st_size: Bytes.
        st_mtime_ns: Its version, as a number: see `version_number`.
        st_ctime_ns: Always 0: a version shows every change.
    """

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int = 0


def read_whole(address: str, wanted: Callable[[int], object]) -> tuple[bytes, ObjectFact]:
    """Return an object, by one request where nothing fails, and what the server says of it.

    Args:
        address: Where it is.
        wanted: Gets its size, and raises what is wrong with that; where it returns False, nothing is read.

    Raises:
        FileNotFoundError: There is no such object.
        OSError: It has other bytes than the store says.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """

    def of_blob(blob: Blob) -> tuple[bytes, ObjectFact]:
        return b"" if wanted(blob.size) is False else blob.read(0, blob.size), blob.fact()

    def once() -> tuple[bytes, ObjectFact]:
        with closing(get(address)) as answer:
            length = length_of(answer)
            if length is None or "Content-Encoding" in answer.headers:
                return of_blob(Blob(address))  # which says what is wrong
            fact = ObjectFact(length, version_number(answer.headers.get("ETag", "")))
            if wanted(length) is False:
                return b"", fact
            data = b"".join(body_of(answer, address, length, length))
        if (md5 := object_md5(address, answer.headers)) is not None:
            _compare(address, md5, hashlib.md5(data, usedforsecurity=False))
        return data, fact

    return of_blob(OtherBlob(address)) if is_other(address) else retry.retried(shown(address), once)


def read_end(address: str, limit: int) -> bytes:
    """Return the last bytes of an object, by one request where nothing fails.

    Raises:
        FileNotFoundError: There is no such object.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """

    def of_blob(blob: Blob) -> bytes:
        return blob.read(max(0, blob.size - limit) if blob.ranges else 0, blob.size)[-limit:]

    def once() -> bytes:
        with closing(get(address, {"Range": f"bytes=-{limit}"})) as answer:
            found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            _check_plain(answer, shown(address))
            if found is None or found[1] is None:
                return of_blob(Blob(address))
            start, end, size = map(int, found.groups())
            if end != size - 1 or start != max(0, size - limit):
                raise StoreFailed(shown(address), f"the range {found[0]}", expected=f"the last {limit:,} bytes")
            return b"".join(body_of(answer, address, end + 1 - start))

    return of_blob(OtherBlob(address)) if is_other(address) else retry.retried(shown(address), once)


def _known_length(answer: urllib3.BaseHTTPResponse, where: str) -> int:
    if (length := length_of(answer)) is None:
        raise StoreFailed(where, "the server does not say how large it is")
    return length


def _check_plain(answer: urllib3.BaseHTTPResponse, where: str) -> None:
    if (packed := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise StoreFailed(where, f"the server packs it on the way ({packed})", expected="the file as it is")


def _compare(address: str, md5: str, read: Any) -> None:
    """See that what was read is what the store once took.

    Raises:
        OSError: It is not.
    """
    if read.hexdigest() != md5:
        found = f"bytes with the MD5 {read.hexdigest()}, where the store says {md5}"
        raise OSError(errno.EBADMSG, found, shown(address))


def stored_crc(address: str) -> int | None:
    """Return the CRC-32C of an object that its store says, without reading it; None: it says none. Google's store does.

    Raises:
        FileNotFoundError: There is no such object.
        StoreFailed: The store fails, or does not let us.
    """
    if parse_address(address).scheme != "gs":
        return None
    answer = retry.retried(shown(address), lambda: get(address, {"Range": "bytes=0-0"}))
    drop(answer)
    given = google_hashes(answer.headers).get("crc32c", "")
    try:
        return int.from_bytes(base64.b64decode(given, validate=True), "big") if given else None
    except ValueError:
        return None


# Many requests at once: each thread waits for one server's answer, and results come in the order of what was asked.
#
# Of the ranges of an object, neighbours are one request, and what is large is several.
# The threads that a process keeps are its own: one that was forked makes others, for a fork copies none.


Item = TypeVar("Item")
Result = TypeVar("Result")

AT_ONCE = 32
GAP = 2**16  # bytes that are read for nothing, rather than in a request of their own
_MOST = 2**22  # bytes of one request
_AHEAD = 16  # requests of one caller that run, or whose answers wait to be taken


@functools.lru_cache(maxsize=2)
def _threads(name: str, _pid: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(AT_ONCE, name)


def requests() -> ThreadPoolExecutor:
    """Return the threads of this process that make requests, and wait for nothing else."""
    return _threads("shardtool-requests", os.getpid())


def callers() -> ThreadPoolExecutor:
    """Return the threads of this process that may wait for requests, but not for each other."""
    return _threads("shardtool-callers", os.getpid())


def called(ask: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return what `ask`, which may wait for requests, returns for each item, in order; `AT_ONCE` run.

    Once one has failed, no other is begun. Those that run then, one a thread, end by themselves, and nothing waits for
    them: a request of theirs may still reach the server after the error was raised.
    """
    failed: list[BaseException] = []

    def one(item: Item) -> Result:
        if failed:
            raise failed[0]
        try:
            return ask(item)
        except BaseException as error:
            failed.append(error)
            raise

    return [retry.waited(found).result() for found in [callers().submit(one, item) for item in items]]


def together(ask: Callable[[Item], Result], items: Iterable[Item], at_once: int = AT_ONCE) -> Generator[Result]:
    """Yield what `ask` returns for each item, in order; no more than `at_once` run, or wait to be taken.

    Where one fails, at most the `at_once` behind it were begun, and all have ended when its error is
    raised. The threads live as long as this is iterated, so that a fork in between finds none of them half alive.
    """
    from concurrent.futures import ThreadPoolExecutor

    ended = threading.Event()

    def one(item: Item) -> Result:
        with retry.until(ended):
            return ask(item)

    with ThreadPoolExecutor(at_once, "shardtool-requests") as pool:
        try:
            yield from _in_order(pool, one, items, at_once)
        finally:
            ended.set()


def _in_order(
    threads: ThreadPoolExecutor, ask: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Yield what threads get for each item, in order; so many are asked for, or wait to be taken."""
    left = iter(items)
    asked: deque[Future[Result]] = deque(threads.submit(ask, item) for item in islice(left, at_once))
    try:
        while asked:
            result = retry.waited(asked.popleft()).result()
            asked.extend(threads.submit(ask, item) for item in islice(left, 1))
            yield result
    finally:
        for one in asked:
            one.cancel()


def read_places(blob: Blob, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes at some places, fewer only at the end of the object; places in its order cost the least.

    Raises:
        OSError: It is another one by now, or it is gone.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again, or knows no ranges.
    """
    spans = _spans(offsets, lengths)
    cut = [
        (at, min(end, at + _MOST))
        for start, end, _ in spans
        for at in (range(start, end, _MOST) if end > start else (start,))
    ]

    def read(part: tuple[int, int]) -> bytes:
        return blob.read(part[0], part[1] - part[0])

    parts = _in_order(requests(), read, cut, _AHEAD) if len(cut) > 1 else map(read, cut)
    place = 0
    for start, end, count in spans:
        pieces = [next(parts) for _ in range(start, max(end, start + 1), _MOST)]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        for at in range(place, place + count):
            first = offsets[at] - start
            yield data if not first and lengths[at] == len(data) else data[first : first + lengths[at]]
        place += count


def _spans(offsets: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return what is read as one: where it starts and ends, and how many places lie in it."""
    spans: list[tuple[int, int, int]] = []
    for offset, length in zip(offsets, lengths, strict=True):
        if spans:
            start, end, count = spans[-1]
            if start <= offset <= end + GAP and max(end, offset + length) - start <= _MOST:
                spans[-1] = start, max(end, offset + length), count + 1
                continue
        spans.append((offset, offset + length, 1))
    return spans


# Addresses of other schemes, such as `hf://` and `sftp://`: read through fsspec, where that is installed.
#
# They are found, listed and read as objects of stores are; nothing is written to them. What fsspec says of versions
# differs from one of its file systems to the next, and between a listing and a file: so only sizes and checksums show
# that one changed.
#
# Datasets of Hugging Face are listed so, and their files read as those of the web are: its own file system reads 5 MB
# ahead of each range, asks for listings to know sizes, and does not see that a file becomes another one.


_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
# What clients of HTTP, and Python, call it where no answer came: httpx, requests, aiohttp.
_UNREACHED = {"ConnectionError", "TimeoutError", "TransportError", "Timeout", "ClientConnectionError"}
_A_CALL = 4 * PIECE  # bytes asked for at a time: each of them is a call


class OtherBlob(Blob):
    """A file of a scheme that fsspec knows, as it was when this was made.

    Args:
        address: Where it is.

    Raises:
        FileNotFoundError: There is no such file.
        AccessRefused: We may not read it.
        StoreFailed: fsspec fails.
    """

    def __init__(self, address: str) -> None:
        address = parse_address(address).text()  # its scheme in small letters: fsspec knows no others
        self.address, self._where, self.ranges = address, shown(address), True
        found = _asked(address, lambda files: files.info(address))
        if found["type"] != "file" or found["size"] is None:
            raise FileNotFoundError(2, "no such file", self._where)
        self.size, self._seen = int(found["size"]), dict[str, str]()

    def _pieces(self, offset: int, end: int, most: int) -> Iterator[bytes]:
        """Yield the bytes of a range, `most` at a time."""
        while offset < end:
            wanted = min(max(most, _A_CALL), end - offset)
            span = {"start": offset, "end": offset + wanted}
            piece = bytes(_asked(self.address, partial(_cat, self.address, span)))
            if len(piece) != wanted:
                raise StoreFailed(self._where, f"{len(piece):,} bytes at {offset:,}", expected=f"{wanted:,}")
            yield piece
            offset += wanted


def open_blob(address: str, size: int | None = None) -> Blob:
    """Return an object at an address, to be read at any place.

    Args:
        address: Where it is.
        size: Bytes that it must have, where that is known: nothing is asked for then before the first read.

    Raises:
        OSError: It is not there.
        ShardError: It cannot be read.
    """
    return OtherBlob(address) if is_other(address) else Blob(address, size)


def list_other(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield what lies directly in a folder, or with `below` all at any depth; as `stores.listed` does.

    Raises:
        AccessRefused: We may not list it.
        InvalidRequest: It names no repository.
        StoreFailed: It fails, or there is no such repository, or revision of it.
    """
    address = parse_address(address).text()
    if is_hub(address):
        _hub_parts(address)

    def ask(files: Any) -> tuple[str, Any]:
        root = str(files._strip_protocol(address)).strip("/")  # noqa: SLF001 - fsspec's own way to say what it lists
        detail = {"detail": True, **({"refresh": True} if is_hub(address) else {})}
        return root, files.find(address, **detail).values() if below else files.ls(address, **detail)

    try:
        root, found = _asked(address, ask)
    except FileNotFoundError:
        return
    key = parse_address(address).key.rstrip("/")
    for one in sorted(found, key=lambda one: str(one["name"])):
        name = str(one["name"]).strip("/")[len(root) :].strip("/")
        size = -1 if one["type"] == "directory" else int(one["size"] or 0)
        if name:
            yield BucketEntry(f"{key}/{name}" if key else name, size, _version(address, one), 0)


def _version(address: str, listed: Mapping[str, Any]) -> int:
    """Return the version of a file in a listing: of a repository, the ETag of its answers; else 0."""
    if not is_hub(address) or listed["type"] != "file":
        return 0
    return version_number(str(listed["lfs"].sha256 if listed.get("lfs") else listed.get("blob_id", "")))


_IN_HUB = re.compile(r"([^/@]+/[^/@]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)


def _hub_parts(address: str) -> re.Match[str]:
    if not (found := _IN_HUB.fullmatch(parse_address(address).key)):
        raise InvalidRequest(shown(address), "no repository", expected="hf://datasets/ORG/NAME, and what is in it")
    return found


def _in_hub(address: str) -> tuple[str, dict[str, str]]:
    """Return the address of the web of a file in a dataset's repository, and the headers that say who we are.

    Source: the grammar of `hf://` in huggingface_hub's `HfFileSystem`.

    Raises:
        InvalidRequest: It names no repository.
        StoreFailed: huggingface_hub is not installed, or told to stay offline.
    """
    found = _hub_parts(address)
    with _failures(address):
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.errors import OfflineModeIsEnabled
        from huggingface_hub.utils import get_token_to_send

        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled
        files, revision = _files(address), unquote(found[2] or "main")
        url = hf_hub_url(found[1], found[3] or "", repo_type="dataset", revision=revision, endpoint=files.endpoint)
        token = get_token_to_send(files.token)
    return url, {"Authorization": f"Bearer {token}"} if token else {}


def _asked(address: str, ask: Callable[[Any], Result]) -> Result:
    """Return what a call of fsspec's object returns; it is made again where that may help."""

    def once() -> Result:
        with _failures(address):
            return ask(_files(address))

    return retry.retried(shown(address), once)


def _cat(address: str, span: Mapping[str, int], files: Any) -> Any:
    return files.cat_file(address, **span)


def _files(address: str) -> Any:
    at = parse_address(address)
    return _file_system(at.scheme, at.host, os.getpid())


@functools.lru_cache(maxsize=16)
def _file_system(scheme: str, host: str, _pid: int) -> Any:
    """Return fsspec's object, made anew in each process: those that ask asynchronously do not survive a fork."""
    from fsspec.core import url_to_fs

    return url_to_fs(f"{scheme}://{host}/", skip_instance_cache=True)[0]


@contextmanager
def _failures(address: str) -> Iterator[None]:
    """Turn what fsspec and its many file systems say, which may hold secrets, into our errors."""
    where = shown(address)
    try:
        yield
    except MemoryError:
        raise
    except FileNotFoundError as error:
        raise _absent(address, error) from None
    except PermissionError:
        raise retry.closed(address) from None
    except ImportError:
        from fsspec.registry import known_implementations

        scheme = parse_address(address).scheme
        wanted = f"{known_implementations.get(scheme, {}).get('err', 'See what fsspec wants for it')}."
        remedy = EXTRAS.get(scheme, wanted)
        if scheme in MEANT:
            remedy = f"Write {MEANT[scheme]}:// instead, which needs no other library."
        raise StoreFailed(where, f"what reads {scheme}:// is not installed", remedy=remedy) from None
    except Exception as error:  # noqa: BLE001 - each of fsspec's file systems has errors of its own
        status = _status_of(error)
        if status in _REFUSED:
            raise retry.closed(address) from None
        if status in retry.BUSY:
            raise retry.busy(status, _answer_of(error).headers) from None
        kinds = [kind.__name__ for kind in type(error).__mro__]
        is_offline = "OfflineModeIsEnabled" in kinds
        if _UNREACHED.intersection(kinds) and not is_offline:
            raise retry.PassingFailure("the server cannot be reached") from None
        remedy = "Unset HF_HUB_OFFLINE." if is_offline else ""
        raise StoreFailed(where, f"fsspec fails ({kinds[0]})", remedy=remedy) from None


def _absent(address: str, error: FileNotFoundError) -> Exception:
    """Return what is meant by what is not there: Hugging Face says that of what is private, too."""
    _file_system.cache_clear()  # it remembers that, and a token may be given, or the repository made, meanwhile
    if _status_of(error) in _REFUSED:
        return retry.closed(address)
    if found := retry.MISSING.get(getattr(_answer_of(error), "headers", {}).get("X-Error-Code", "")):
        return StoreFailed(shown(address), found, remedy="Check its name.")
    return FileNotFoundError(2, "no such file", shown(address))


def _answer_of(error: BaseException) -> Any:
    """Return the answer of a server that an error, or what caused it, is about; None: it is about none."""
    answers = (getattr(one, "response", None) for one in (error, error.__cause__))
    return next((one for one in answers if one is not None), None)


def _status_of(error: BaseException) -> int | None:
    return getattr(_answer_of(error), "status_code", None)
