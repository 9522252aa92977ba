"""Send HTTP requests, signed if the store requires it, and follow redirects."""

from __future__ import annotations

import base64
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from shardtool.errors import StoreFailed, redact_secrets
from shardtool.storage.remote import failures, retry
from shardtool.storage.remote.address import display_address, is_huggingface, is_web
from shardtool.storage.remote.connections import connections_for
from shardtool.storage.remote.fsspec import huggingface_request
from shardtool.storage.remote.network import is_same_server, proxy_for, web_headers, without_user
from shardtool.storage.remote.signing import sign_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import urllib3


PIECE_BYTES = 2**20
_SUCCESS_STATUSES = (200, 201, 204, 206, 416)
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_MAX_REASON_BYTES = 4096  # bytes to read from an error or unused response
_MAX_LENGTH_DIGITS = 18  # digits of a Content-Length: no file is larger
_USER_AGENT = "shardtool"
_MD5 = re.compile(r"[0-9a-f]{32}")


class HuggingFaceLink(NamedTuple):
    """A redirect of the Hub: the signed URL, and the ETags of the Hub and of the content server."""

    target: str
    linked: str
    tag: str


def request_object(
    address: str, headers: Mapping[str, str] | None = None, links: list[HuggingFaceLink] | None = None
) -> urllib3.BaseHTTPResponse:
    """Send one GET request for an object and follow redirects; the body is not read.

    `links` caches one redirect of the Hub, because the Hub limits the request rate.

    Returns:
        A response with status 200, 201, 204, 206, or 416 (a range after the end). Read the response completely, `close`
            it, or call
        `discard_response`.

    Raises:
        TransientError: The request can be retried.
        FileNotFoundError: The object does not exist.
        FileExistsError: A condition in the headers does not hold.
    """
    cached_link = next(iter(links or ()), None)
    if cached_link is not None:
        target, own_headers = cached_link.target, dict[str, str]()
    elif is_huggingface(address):
        target, own_headers = huggingface_request(address)
    else:
        target = sign_url(address, "GET")
        own_headers = web_headers(target) if is_web(address) else {}
    response, link = _follow_redirects(address, target, headers or {}, own_headers)
    is_success = response.status in _SUCCESS_STATUSES
    if cached_link is not None and links is not None:
        if not is_success or link.tag != cached_link.tag:
            discard_response(response)
            links.clear()
            return request_object(address, headers, links)
        link = cached_link
    if is_success and link.linked and is_huggingface(address):
        response.headers["ETag"] = link.linked
        if links is not None and link.tag:
            links[:] = [link]
    if is_success:
        return response
    raise failures.status_error(address, "GET", response.status, response.headers, _read_reason(response))


def _follow_redirects(
    address: str, target: str, headers: Mapping[str, str], own_headers: Mapping[str, str]
) -> tuple[urllib3.BaseHTTPResponse, HuggingFaceLink]:
    """Return the response and its URL; send `own_headers` to the first server only."""
    linked = ""
    for _ in range(_MAX_REDIRECTS + 1):
        response = _send_request(address, target, {**headers, **own_headers})
        # the Hub's ETag is the SHA-256 of the file, a CDN's ETag is not
        linked = linked or response.headers.get("X-Linked-Etag", "")
        if response.status not in _REDIRECT_STATUSES or "Location" not in response.headers:
            return response, HuggingFaceLink(target, linked, response.headers.get("ETag", ""))
        discard_response(response)
        next_target = _redirect_target(address, target, response.headers["Location"])
        if not is_same_server(target, next_target):
            own_headers = {}
        target = next_target
    raise StoreFailed(display_address(address), f"more than {_MAX_REDIRECTS} redirects")


def _send_request(address: str, target: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
    with failures.urllib3_errors(address, target):
        return connections_for(target).request(
            "GET", without_user(target), preload_content=False, decode_content=False, redirect=False, retries=False,
            headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers},
        )  # fmt: skip


class FirstResponse(NamedTuple):
    """Facts about a server from its first response.

    `proxy` (a URL) and `code` (the store's error code) may be empty. `certificate_expiry` is None for plain HTTP.
    `refused` is the error; None if the object exists.
    """

    server: str
    proxy: str
    headers: Mapping[str, str]
    certificate_expiry: str | None
    code: str
    refused: Exception | None


def first_response(address: str) -> FirstResponse:
    """Request an object, which may not exist, and describe the response.

    Raises:
        TransientError: There is no response.
    """
    url = sign_url(address, "GET")
    server, proxy = urlsplit(without_user(url)), without_user(proxy_for(url) or "")
    response = _send_request(address, url, {"Range": "bytes=0-0", **(web_headers(url) if is_web(address) else {})})
    socket: Any = getattr(response.connection, "sock", None)
    expiry = socket.getpeercert()["notAfter"] if server.scheme == "https" else None
    is_success = response.status < HTTPStatus.BAD_REQUEST and (
        is_web(address) or response.status not in _REDIRECT_STATUSES
    )
    body = b"" if is_success else _read_reason(response)
    refused = None if is_success else failures.status_error(address, "GET", response.status, response.headers, body)
    response.close()
    if isinstance(refused, retry.TransientError):
        raise refused
    return FirstResponse(
        f"{server.scheme}://{server.netloc}", proxy, response.headers, expiry, failures.error_code(body), refused
    )


def etag_md5(headers: Mapping[str, str]) -> str | None:
    """Return the MD5 in response headers, or None."""
    for encoded in (headers.get("Content-MD5", ""), google_hashes(headers).get("md5", "")):
        if encoded:
            try:
                return base64.b64decode(encoded, validate=True).hex()
            except ValueError:
                return None
    tag = headers.get("ETag", "").strip('"')
    return tag if _MD5.fullmatch(tag) else None


def object_md5(address: str, headers: Mapping[str, str]) -> str | None:
    """Return the MD5 of a whole object from a store's response, or None.

    With KMS or customer keys, and in directory buckets, S3's ETag is not an MD5.
    """
    is_not_md5 = headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    is_not_md5 |= "x-amz-server-side-encryption-customer-algorithm" in headers
    is_not_md5 |= headers.get("x-amz-storage-class", "") == "EXPRESS_ONEZONE"
    return None if is_not_md5 or is_web(address) or is_huggingface(address) else etag_md5(headers)


def google_hashes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return Google's checksums: algorithm to base64 value."""
    return dict(part.strip().partition("=")[::2] for part in headers.get("x-goog-hash", "").split(","))


def _read_reason(response: urllib3.BaseHTTPResponse) -> bytes:
    try:
        with failures.urllib3_errors(""):
            return response.read(_MAX_REASON_BYTES)
    except (retry.TransientError, StoreFailed):
        return b""
    finally:
        response.close()


def iter_body(
    response: urllib3.BaseHTTPResponse, address: str, length: int, max_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Yield the body in pieces of at most `max_bytes`; then close the response.

    Raises:
        TransientError: The body is shorter than `length`.
    """
    received = 0
    try:
        while received < length:
            with failures.urllib3_errors(address):
                piece = response.read(min(max_bytes, length - received))
            if not piece:
                raise retry.TransientError(f"the response ended {length - received:,} bytes early", answered=True)
            received += len(piece)
            yield piece
    finally:
        response.close()  # after a complete response, the connection is already back in the pool


def discard_response(response: urllib3.BaseHTTPResponse) -> None:
    """Close a response; read a short body to keep the connection usable."""
    if (content_length(response) or _MAX_REASON_BYTES) < _MAX_REASON_BYTES:
        _read_reason(response)
    response.close()


def content_length(response: urllib3.BaseHTTPResponse) -> int | None:
    """Return the Content-Length, or None if missing or invalid."""
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS else None


def _redirect_target(address: str, current: str, location: str) -> str:
    try:
        target = urljoin(current, location)
        urlsplit(target).port  # noqa: B018 - raises if it is invalid
    except ValueError:
        raise StoreFailed(display_address(address), "redirected to an invalid URL", expected="a URL") from None
    found = f"redirected to {redact_secrets(target)[:200]}"
    if not is_web(target) or (current.startswith("https:") and not target.startswith("https:")):
        raise StoreFailed(display_address(address), found, expected="an https URL")
    if not (is_web(address) or is_huggingface(address)):
        raise StoreFailed(display_address(address), found, remedy=failures.WRONG_REGION_ADVICE)
    return target
