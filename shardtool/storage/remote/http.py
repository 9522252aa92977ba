"""Send HTTP requests, signed if the store requires it, and follow redirects.

Messages of urllib3 are not shown or chained, because they contain the requested URL, which may be signed
(docs/decisions/017-remote-stores.md).
"""

from __future__ import annotations

import base64
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from shardtool.errors import StoreFailed, redact_secrets
from shardtool.storage.remote import failures, retry
from shardtool.storage.remote.address import (
    display_address,
    is_huggingface,
    is_web,
)
from shardtool.storage.remote.connections import connections_for
from shardtool.storage.remote.fsspec import huggingface_request
from shardtool.storage.remote.network import (
    is_same_server,
    proxy_for,
    web_headers,
    without_user,
)
from shardtool.storage.remote.signing import sign_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import urllib3


PIECE_BYTES = 2**20


_SUCCESS_STATUSES = (200, 201, 204, 206, 416)


_REDIRECT_STATUSES = (301, 302, 303, 307, 308)


_MAX_REDIRECTS = 5


_MAX_REASON_BYTES = 4096  # bytes of an answer that is not wanted that are looked at, or read to keep a connection


_MAX_LENGTH_DIGITS = 18  # of a length: no file has more bytes


_USER_AGENT = "shardtool"


_MD5 = re.compile(r"[0-9a-f]{32}")


class HuggingFaceLink(NamedTuple):
    """Where the Hub has led to: a signed address, the ETag that the Hub says it has, and the one that it has there."""

    target: str
    linked: str
    tag: str


def request_object(
    address: str, headers: Mapping[str, str] | None = None, links: list[HuggingFaceLink] | None = None
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
    elif is_huggingface(address):
        target, known = huggingface_request(address)
    else:
        target = sign_url(address, "GET")
        known = web_headers(target) if is_web(address) else {}
    answer, link = _follow_redirects(address, target, headers or {}, known)
    is_given = answer.status in _SUCCESS_STATUSES
    if before is not None and links is not None:
        if not is_given or link.tag != before.tag:
            discard_response(answer)
            links.clear()
            return request_object(address, headers, links)
        link = before
    if is_given and link.linked and is_huggingface(address):
        answer.headers["ETag"] = link.linked
        if links is not None and link.tag:
            links[:] = [link]
    if is_given:
        return answer
    raise failures.status_error(address, "GET", answer.status, answer.headers, _read_reason(answer))


def _follow_redirects(
    address: str, target: str, headers: Mapping[str, str], known: Mapping[str, str]
) -> tuple[urllib3.BaseHTTPResponse, HuggingFaceLink]:
    """Return the answer at the end of all redirects, and where that is; what servers `known` to us get goes no further.

    Raises:
        PassingFailure: There is none.
        StoreFailed: There is none, or there are too many redirects, or one that leads to no place of the web.
    """
    linked = ""
    for _ in range(_MAX_REDIRECTS + 1):
        answer = _send_request(address, target, {**headers, **known})
        linked = linked or answer.headers.get("X-Linked-Etag", "")  # of the Hub: the SHA-256, where a CDN has its own
        if answer.status not in _REDIRECT_STATUSES or "Location" not in answer.headers:
            return answer, HuggingFaceLink(target, linked, answer.headers.get("ETag", ""))
        discard_response(answer)
        there = _redirect_target(address, target, answer.headers["Location"])
        if not is_same_server(target, there):
            known = {}
        target = there
    raise StoreFailed(display_address(address), f"more than {_MAX_REDIRECTS} redirects")


def _send_request(address: str, target: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
    """Return the answer of a server, whatever it is."""
    with failures.urllib3_errors(address, target):
        return connections_for(target).request(
            "GET", without_user(target), preload_content=False, decode_content=False, redirect=False, retries=False,
            headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers},
        )  # fmt: skip


class FirstResponse(NamedTuple):
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
    certificate_expiry: str | None
    code: str
    refused: Exception | None


def first_response(address: str) -> FirstResponse:
    """Ask for an object, or what is none, and look at how it is answered.

    Raises:
        PassingFailure: There is no answer.
        AccessRefused: There are no keys.
        StoreFailed: The certificate is not trusted, or it is no server of HTTP.
        InvalidRequest: Keys or the proxy that the environment names are none.
    """
    url = sign_url(address, "GET")
    at, proxy = urlsplit(without_user(url)), without_user(proxy_for(url) or "")
    answer = _send_request(address, url, {"Range": "bytes=0-0", **(web_headers(url) if is_web(address) else {})})
    socket: Any = getattr(answer.connection, "sock", None)
    until = socket.getpeercert()["notAfter"] if at.scheme == "https" else None
    good = answer.status < HTTPStatus.BAD_REQUEST and (is_web(address) or answer.status not in _REDIRECT_STATUSES)
    body = b"" if good else _read_reason(answer)
    refused = None if good else failures.status_error(address, "GET", answer.status, answer.headers, body)
    answer.close()
    if isinstance(refused, retry.TransientError):
        raise refused
    return FirstResponse(f"{at.scheme}://{at.netloc}", proxy, answer.headers, until, failures.error_code(body), refused)


def etag_md5(headers: Mapping[str, str]) -> str | None:
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
    return None if other or is_web(address) or is_huggingface(address) else etag_md5(headers)


def google_hashes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what Google's store says of an object's bytes: kind to checksum, in base64."""
    return dict(part.strip().partition("=")[::2] for part in headers.get("x-goog-hash", "").split(","))


def _read_reason(answer: urllib3.BaseHTTPResponse) -> bytes:
    """Return the first bytes of an answer that is not wanted, and close it."""
    try:
        with failures.urllib3_errors(""):
            return answer.read(_MAX_REASON_BYTES)
    except (retry.TransientError, StoreFailed):
        return b""
    finally:
        answer.close()


def iter_body(answer: urllib3.BaseHTTPResponse, address: str, length: int, most: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield the body of an answer, which must have `length` bytes, `most` at a time; then it is closed.

    Raises:
        PassingFailure: It ends early.
    """
    got = 0
    try:
        while got < length:
            with failures.urllib3_errors(address):
                piece = answer.read(min(most, length - got))
            if not piece:
                raise retry.TransientError(f"the answer ends {length - got:,} bytes early", answered=True)
            got += len(piece)
            yield piece
    finally:
        answer.close()  # of one that was read to its end, the connection is given back already


def discard_response(answer: urllib3.BaseHTTPResponse) -> None:
    """Be done with an answer that is not wanted: a short one is read, so that its connection can be used again."""
    if (content_length(answer) or _MAX_REASON_BYTES) < _MAX_REASON_BYTES:
        _read_reason(answer)
    answer.close()


def content_length(answer: urllib3.BaseHTTPResponse) -> int | None:
    """Return how long an answer says that it is; None: it does not say, or no number that a file has."""
    length = answer.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS else None


def _redirect_target(address: str, now: str, location: str) -> str:
    """Return where a redirect leads: never from https to http, and from a store nowhere, for requests are signed."""
    try:
        there = urljoin(now, location)
        urlsplit(there).port  # noqa: B018 - which says whether it is one
    except ValueError:
        raise StoreFailed(display_address(address), "redirected to what is no address", expected="an address") from None
    found = f"redirected to {redact_secrets(there)[:200]}"
    if not is_web(there) or (now.startswith("https:") and not there.startswith("https:")):
        raise StoreFailed(display_address(address), found, expected="an address of https")
    if not (is_web(address) or is_huggingface(address)):
        raise StoreFailed(display_address(address), found, remedy=failures.WRONG_REGION_ADVICE)
    return there
