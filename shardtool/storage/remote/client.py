"""Requests over HTTP, signed where a store wants that: urllib3, with a pool of connections for each process.

Connections belong to the process that made them, so that a forked child makes its own. No message of urllib3 is shown
or chained: it holds the address that was asked for, and that may be signed (decision 017).
"""

from __future__ import annotations

import base64
import functools
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from shardtool.errors import StoreFailed, without_secrets
from shardtool.storage.remote.address import is_web, shown
from shardtool.storage.remote.failures import WRONG_PLACE, answering, refusal
from shardtool.storage.remote.network import (
    DECIDING,
    is_same_server,
    of_proxy,
    proxy_of,
    tls,
    web_headers,
    without_user,
)
from shardtool.storage.remote.objects import signed
from shardtool.storage.remote.retry import PassingFailure
from shardtool.storage.remote.stores import not_installed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import urllib3

PIECE = 2**20
MOST_CONNECTIONS = 64  # that are kept for one server
_CONNECT_S, _SEND_S = 10, 60  # how long an answer takes is for `line`
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_REASON = 4096  # bytes of an answer that is not wanted that are looked at, or read to keep a connection
_DIGITS = 18  # of a length: no file has more bytes
_USER_AGENT = "shardtool"
_MD5 = re.compile(r"[0-9a-f]{32}")


@functools.lru_cache(maxsize=8)
def _pool_of(_pid: int, proxy: str | None, _environment: tuple[str | None, ...]) -> urllib3.PoolManager:
    import urllib3

    from shardtool.storage.remote.line import POOLS

    timeout, context = urllib3.Timeout(connect=_CONNECT_S, read=_SEND_S), tls()
    options: dict[str, Any] = {"maxsize": MOST_CONNECTIONS, "retries": False, "timeout": timeout}
    if context is not None:
        options["ssl_context"] = context
    if proxy is None:
        made = urllib3.PoolManager(**options)
    else:
        made = urllib3.ProxyManager(proxy, proxy_headers=of_proxy(proxy), proxy_ssl_context=context, **options)
    made.pool_classes_by_scheme = POOLS
    return made


def connections_to(url: str) -> urllib3.PoolManager:
    """Return this process's connections that lead to a server.

    Raises:
        InvalidRequest: urllib3 is not installed, or the environment names no proxy, or no certificates.
    """
    try:
        return _pool_of(os.getpid(), proxy_of(url), tuple(map(os.environ.get, DECIDING)))
    except ImportError:
        raise not_installed("urllib3") from None


def send(
    method: str, address: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> urllib3.BaseHTTPResponse:
    """Make one request, and follow redirects; the body of the answer is not read yet.

    Args:
        method: Of HTTP.
        address: Of the object.
        headers: More of them.
        body: What to send.

    Returns:
        The answer, of the status 200, 201, 204, 206, or 416 for a range behind the end. Read it to its end, which
        gives its connection back, `drop` it, or `close` it.

    Raises:
        Passing: What may pass: ask again.
        FileNotFoundError: There is no such object.
        FileExistsError: The condition in the headers does not hold.
        AccessRefused: We may not.
        StoreFailed: Anything else.
    """
    all_headers = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **(headers or {})}
    target = signed(address, method)
    connections, known = connections_to(target), web_headers(target) if is_web(address) else {}
    for _ in range(_MOST_REDIRECTS + 1):
        with answering(address, target):
            answer = connections.request(
                method, without_user(target), headers={**all_headers, **known}, body=body, preload_content=False,
                decode_content=False, redirect=False, retries=False,
            )  # fmt: skip
        if answer.status not in _REDIRECTS or "Location" not in answer.headers:
            break
        drop(answer)
        there = _redirected(address, target, answer.headers["Location"])
        if not is_same_server(target, there):
            known = {}
        target, connections = there, connections_to(there)
    else:
        raise StoreFailed(shown(address), f"more than {_MOST_REDIRECTS} redirects")
    if answer.status in (200, 201, 204, 206, 416):
        return answer
    body = _start_of(answer)
    raise refusal(address, method, answer, body)


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
    return None if other or is_web(address) else stored_md5(headers)


def google_hashes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what Google's store says of an object's bytes: kind to checksum, in base64."""
    return dict(part.strip().partition("=")[::2] for part in headers.get("x-goog-hash", "").split(","))


def _start_of(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Return the first bytes of an answer that is not wanted, and close it."""
    try:
        with answering(""):
            return answer.read(_REASON)
    except (PassingFailure, StoreFailed):
        return b""
    finally:
        answer.close()


def body_of(answer: urllib3.BaseHTTPResponse, address: str, length: int, most: int = PIECE) -> Iterator[bytes]:
    """Yield the body of an answer, which must have `length` bytes, `most` at a time; then it is closed.

    Raises:
        Passing: It ends early.
    """
    got = 0
    try:
        while got < length:
            with answering(address):
                piece = answer.read(min(most, length - got))
            if not piece:
                raise PassingFailure(f"the answer ends {length - got:,} bytes early", answered=True)
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
    if not is_web(address):
        raise StoreFailed(shown(address), found, remedy=WRONG_PLACE)
    return there
