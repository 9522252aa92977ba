"""Send HTTP requests, sign them if the store requires it, and follow redirects.

Each connection is opened in a separate thread, because name lookups, TLS handshakes and proxies cannot be interrupted.

obstore signs URLs but not headers, so this module signs the headers of S3 requests. It also signs Azure URLs, because
obstore signs the encoded name of a blob but Azure expects the plain name. These Azure signatures are valid for all
blobs of the container.

Source of the Azure signature: Microsoft, "Create a service SAS", version 2020-12-06 and later.
"""

from __future__ import annotations

import base64
import functools
import hmac
import io
import os
import re
import threading
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit

from shardtool.errors import AccessRefused, InvalidRequest, StoreFailed, redact_secrets
from shardtool.storage.remote import failures, network, retry, store_access
from shardtool.storage.remote.address import display_address, is_huggingface, is_web, parse_address
from shardtool.storage.remote.failures import obstore_errors
from shardtool.storage.remote.fsspec import huggingface_request
from shardtool.storage.remote.network import is_same_server, proxy_for, web_headers, without_user
from shardtool.storage.remote.store_access import not_installed_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    import urllib3
    from typing_extensions import Buffer
    from urllib3.connection import HTTPConnection


MAX_CONNECTIONS_PER_SERVER = 64
MAX_RESPONSE_BYTES = 65536
_CONNECT_TIMEOUT_S, _SEND_TIMEOUT_S = 10, 60  # for responses, `PacedSocket` requires a minimum speed instead
_MAX_HEADER_BYTES = 2**18


class PacedSocket(io.RawIOBase):
    """A raw file object for a socket, with a minimum speed.

    Methods raise `TransientError` if the server is too slow, and `OSError` if the connection is lost.

    Args:
        first_wait_s: Seconds to wait for the first byte, before methods raise `TimeoutError`.
    """

    def __init__(self, sock: socket.socket, peer: str, first_wait_s: float | None = None) -> None:
        super().__init__()
        self._sock, self._peer, self._first_wait_s = sock, peer, first_wait_s
        self._bytes, self._waited_s = 0, 0.0
        self._silent_s = 0.0
        self.max_bytes: int | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, into: Buffer, /) -> int:
        count = self._transfer(lambda: self._sock.recv_into(into))
        if self.max_bytes is not None:
            self.max_bytes -= count
            if self.max_bytes < 0:
                raise retry.TransientError(f"{self._peer} sends too many headers", has_response=True)
        return count

    def write(self, data: Buffer, /) -> int:
        return self._transfer(lambda: self._sock.send(data))

    def _transfer(self, move: Callable[[], int]) -> int:
        if self._sock.gettimeout() != retry.SLICE_S:
            self._sock.settimeout(retry.SLICE_S)
        while True:
            retry.check_cancelled()
            start_s, count = time.monotonic(), 0
            try:
                count = move()
            except TimeoutError:
                pass
            else:
                self._first_wait_s = None
                return count
            finally:
                self._check_speed(count, time.monotonic() - start_s)

    def _check_speed(self, count: int, waited_s: float) -> None:
        self._bytes += count
        self._waited_s += waited_s
        self._silent_s = 0.0 if count else self._silent_s + waited_s
        if self._first_wait_s is not None and not self._bytes and self._waited_s >= self._first_wait_s:
            raise TimeoutError
        # do not check the speed after each read, because reading the settings from the environment is slow
        if self._waited_s < retry.SLICE_S:
            return
        min_bytes_per_s, speed_window_s = retry.min_speed()
        if min_bytes_per_s and self._silent_s >= speed_window_s:
            problem = "too slow" if self._bytes else "no response in time"
            found = f"{problem}: {self._peer} was silent for {self._silent_s:,.0f} s"
            raise retry.TransientError(found, stalled_s=self._silent_s)
        if self._waited_s >= speed_window_s:
            if self._bytes < min_bytes_per_s * self._waited_s:
                raise retry.TransientError(self._too_slow_text(min_bytes_per_s), stalled_s=self._waited_s)
            self._bytes, self._waited_s = 0, 0.0

    def _too_slow_text(self, min_bytes_per_s: float) -> str:
        observed = f"{self._peer} transferred {self._bytes:,} bytes in {self._waited_s:,.0f} s"
        return f"too slow: {observed}; expected at least {min_bytes_per_s:,.0f} bytes per second"


def peer_name(connection: HTTPConnection) -> str:
    """Return the host and port of a connection."""
    return f"{connection.host}:{connection.port}"


@functools.cache
def _pool_classes() -> dict[str, type[urllib3.HTTPConnectionPool]]:
    """Return a pool class for each scheme. They are created on first use, because the imports take 50 ms."""
    import http.client

    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection

    class Response(http.client.HTTPResponse):
        def __init__(self, peer: str, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
            super().__init__(sock, *args, **kwargs)
            self._paced, self._socket_file = PacedSocket(sock, peer), self.fp
            # Limit the size of the headers. `begin` removes the limit before the body is read.
            self._paced.max_bytes = _MAX_HEADER_BYTES
            self.fp = io.BufferedReader(self._paced)

        def begin(self) -> None:
            super().begin()
            self._paced.max_bytes = None

        def _close_conn(self) -> None:
            super()._close_conn()  # type: ignore[misc]
            self._socket_file.close()

    class Connection(HTTPConnection):
        def connect(self) -> None:
            self.response_class = partial(Response, peer_name(self))  # type: ignore[assignment]
            retry.in_thread(super().connect)

    class SecureConnection(Connection, HTTPSConnection):
        def _tunnel(self) -> None:
            super()._tunnel()
            self.sock.settimeout(self.timeout)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}


# Create each pool only once, because loading the certificates takes 75 ms.
_POOL_LOCK = threading.Lock()


os.register_at_fork(before=_POOL_LOCK.acquire, after_in_parent=_POOL_LOCK.release, after_in_child=_POOL_LOCK.release)


@functools.lru_cache(maxsize=8)
def _make_pool(_pid: int, scheme: str, proxy: str | None, _environment: tuple[str | None, ...]) -> urllib3.PoolManager:
    import urllib3

    timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_SEND_TIMEOUT_S)
    is_plain = "https" not in (scheme, urlsplit(proxy or "").scheme)
    options: dict[str, Any] = {"maxsize": MAX_CONNECTIONS_PER_SERVER, "retries": False, "timeout": timeout}
    # Load the user's certificate files even for plain HTTP, so an invalid file is reported early.
    context = options["ssl_context"] = None if is_plain and not network.extra_certificates() else network.tls_context()
    if proxy is None:
        pool = urllib3.PoolManager(**options)
    else:
        headers = network.proxy_headers(proxy)
        pool = urllib3.ProxyManager(proxy, proxy_headers=headers, proxy_ssl_context=context, **options)
    pool.pool_classes_by_scheme = _pool_classes()
    return pool


def connections_for(url: str) -> urllib3.PoolManager:
    """Return this process's connection pools for a URL."""
    try:
        with _POOL_LOCK:
            settings = tuple(map(os.environ.get, network.NETWORK_VARIABLES))
            return _make_pool(os.getpid(), urlsplit(url).scheme, network.proxy_for(url), settings)
    except ImportError:
        raise not_installed_error("urllib3") from None


_AWS_DEFAULT_PORTS = {"http": ":80", "https": ":443"}  # clients omit these ports from the header `Host`


def sign_headers(
    method: str, url: str, headers: Mapping[str, str], keys: Mapping[str, Any], region: str, now: datetime | None = None
) -> dict[str, str]:
    """Return the signed headers of a request to S3.

    To sign the body, too, pass its SHA-256 as the header `x-amz-content-sha256`. `keys` are obstore's credentials.

    Source: AWS, "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk".
    """
    parts, timestamp = urlsplit(url), f"{now or datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    signed = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", **headers, "x-amz-date": timestamp}
    if keys["token"]:
        signed["x-amz-security-token"] = keys["token"]
    host = parts.netloc.removesuffix(_AWS_DEFAULT_PORTS[parts.scheme])
    lines = {"host": host, **{name.lower(): " ".join(value.split()) for name, value in signed.items()}}
    names = ";".join(sorted(lines))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = sorted((quote(name, ""), quote(value, "")) for name, value in pairs)
    request = "\n".join([
        method, quote(unquote(parts.path)) or "/", "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{lines[name]}" for name in sorted(lines)), "", names, lines["x-amz-content-sha256"],
    ])  # fmt: skip
    scope = [timestamp[:8], region, "s3", "aws4_request"]
    secret = f"AWS4{keys['secret_access_key']}".encode()
    for part in scope:
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", timestamp, "/".join(scope), sha256(request.encode()).hexdigest()])
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = "/".join([keys["access_key_id"], *scope])
    signed["Authorization"] = f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}"
    return signed


_SAS_VERSION = "2022-11-02"
_CLOCK_SLACK = timedelta(minutes=15)  # this machine's clock may be this far ahead of Azure's
SIGNATURE_LIFETIME = timedelta(hours=1)
_SAS_PERMISSIONS = {"GET": "r", "PUT": "cwt"}  # r: read; c, w: create and write; t: write tags


def azure_signed_url(container: str, key: str, method: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the signed URL of a blob, or None if the account name or a credential (key or SAS token) is missing."""
    account = store_access.first_variable(environment, store_access.AZURE_ACCOUNT_VARIABLES)
    token = store_access.first_variable(environment, store_access.AZURE_TOKEN_VARIABLES)
    secret = store_access.first_variable(environment, store_access.AZURE_KEY_VARIABLES)
    if not account or not (token or secret):
        return None
    base = store_access.azure_server(environment)
    query = token.lstrip("?") if token else _make_sas(account, secret, container, _SAS_PERMISSIONS[method], base)
    return f"{base}/{quote(container)}/{quote(key)}?{query}"


def _make_sas(account: str, secret: str, container: str, permissions: str, base: str) -> str:
    try:
        raw = base64.b64decode(secret, validate=True)
    except ValueError:
        expected = "an account key in Base64"
        raise InvalidRequest(store_access.AZURE_KEY_VARIABLES[0], "not an account key", expected=expected) from None
    now = datetime.now(timezone.utc)
    start, end = (f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (now - _CLOCK_SLACK, now + SIGNATURE_LIFETIME))
    protocols = "https" if urlsplit(base).scheme == "https" else "https,http"
    resource = f"/blob/{account}/{container}"
    text = "\n".join([permissions, start, end, resource, "", "", protocols, _SAS_VERSION, "c", *[""] * 7])
    signature = base64.b64encode(hmac.digest(raw, text.encode(), "sha256")).decode()
    return urlencode({
        "sp": permissions, "st": start, "se": end, "spr": protocols, "sv": _SAS_VERSION, "sr": "c", "sig": signature,
    })  # fmt: skip


# This lock is held during a fork. If obstore computed an RSA signature for Google at that time, the child would abort.
_SIGN_LOCK = threading.Lock()


os.register_at_fork(before=_SIGN_LOCK.acquire, after_in_parent=_SIGN_LOCK.release, after_in_child=_SIGN_LOCK.release)


def sign_url(address: str, method: str) -> str:
    """Return the URL to send a request to. A store's URL is signed and therefore secret."""
    if is_web(address):
        return address
    parts, environment = parse_address(address), store_access.environment_for(address)
    if (
        parts.scheme == "az"
        and not store_access.is_anonymous("az", environment)
        and (url := azure_signed_url(parts.host, parts.key, method, environment))
    ):
        return url
    store, unsigned_url = store_access.store_for(address)
    if unsigned_url is not None:
        return f"{unsigned_url}/{quote(parts.key)}"
    import obstore

    # quote the key for Google, because obstore would cut it at the first `#`
    key = quote(parts.key) if parts.scheme == "gs" else parts.key
    with _SIGN_LOCK, obstore_errors(address):
        return str(obstore.sign(store, cast("Any", method), key, SIGNATURE_LIFETIME))


def sign_put(address: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the URL and headers for writing an object. Headers that start with `x-amz-` are signed."""
    url = sign_url(address, "PUT")
    query = dict(parse_qsl(urlsplit(url).query))
    if "X-Amz-Credential" not in query or not any(name.startswith("x-amz-") for name in headers):
        return url, dict(headers)
    url = url.partition("?")[0]
    if payer := query.get("x-amz-request-payer"):
        headers = {**headers, "x-amz-request-payer": payer}
    region = query["X-Amz-Credential"].split("/")[2]
    with _SIGN_LOCK, obstore_errors(address):
        provider = store_access.store_for(address)[0].credential_provider
        keys = provider() if provider else store_access.key_pair(store_access.environment_for(address))
    if not (keys["access_key_id"] and keys["secret_access_key"]):
        found = "credentials from a metadata service cannot sign headers"
        expected = "boto3, which provides them"
        raise AccessRefused(display_address(address), found, expected=expected, remedy="pip install boto3")
    return url, sign_headers("PUT", url, headers, keys, region)


PIECE_BYTES = 2**20
_SUCCESS_STATUSES = (200, 201, 204, 206, 416)
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_MAX_REASON_BYTES = 4096
_MAX_LENGTH_DIGITS = 18
_USER_AGENT = "shardtool"
_MD5 = re.compile(r"[0-9a-f]{32}")


class HuggingFaceLink(NamedTuple):
    """A redirect from the Hugging Face Hub, with the ETags of the Hub and of the content server."""

    target: str
    hub_etag: str
    etag: str


def request_object(
    address: str, headers: Mapping[str, str] | None = None, links: list[HuggingFaceLink] | None = None
) -> urllib3.BaseHTTPResponse:
    """Send a GET request for an object and follow redirects, without reading the body.

    `links` caches one redirect from the Hugging Face Hub, because the Hub limits the request rate.

    Returns:
        A response with status 200, 201, 204, 206, or 416 (the range starts after the end). The caller must read the
        whole response, close it, or call `discard_response`.

    Raises:
        TransientError: The request can be retried.
        FileNotFoundError: The object does not exist.
        FileExistsError: A condition in `headers`, such as `If-Match`, is not met.
    """
    cached_link = next(iter(links or ()), None)
    if cached_link is not None:
        target, server_headers = cached_link.target, dict[str, str]()
    elif is_huggingface(address):
        target, server_headers = huggingface_request(address)
    else:
        target = sign_url(address, "GET")
        server_headers = web_headers(target) if is_web(address) else {}
    response, link = _follow_redirects(address, target, headers or {}, server_headers)
    is_success = response.status in _SUCCESS_STATUSES
    if cached_link is not None and links is not None:
        if not is_success or link.etag != cached_link.etag:
            discard_response(response)
            links.clear()
            return request_object(address, headers, links)
        link = cached_link
    if is_success and link.hub_etag and is_huggingface(address):
        response.headers["ETag"] = link.hub_etag
        if links is not None and link.etag:
            links[:] = [link]
    if is_success:
        return response
    raise failures.status_error(address, "GET", response.status, response.headers, _read_reason(response))


def _follow_redirects(
    address: str, target: str, headers: Mapping[str, str], server_headers: Mapping[str, str]
) -> tuple[urllib3.BaseHTTPResponse, HuggingFaceLink]:
    hub_etag = ""
    for _ in range(_MAX_REDIRECTS + 1):
        response = _send_request(address, target, {**headers, **server_headers})
        # the Hub's ETag is the SHA-256 of the file, but the ETag of a content server is not
        hub_etag = hub_etag or response.headers.get("X-Linked-Etag", "")
        if response.status not in _REDIRECT_STATUSES or "Location" not in response.headers:
            return response, HuggingFaceLink(target, hub_etag, response.headers.get("ETag", ""))
        discard_response(response)
        next_target = _redirect_target(address, target, response.headers["Location"])
        if not is_same_server(target, next_target):
            server_headers = {}
        target = next_target
    raise StoreFailed(display_address(address), f"more than {_MAX_REDIRECTS} redirects")


def _send_request(address: str, target: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
    with failures.urllib3_errors(address, target):
        return connections_for(target).request(
            "GET", without_user(target), preload_content=False, decode_content=False, redirect=False, retries=False,
            headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers},
        )  # fmt: skip


class FirstResponse(NamedTuple):
    """The response of a server, before any redirect.

    Attributes:
        error: The error that reading the object would raise, or None.
    """

    server: str
    proxy: str
    headers: Mapping[str, str]
    certificate_expiry: str | None
    code: str
    error: Exception | None


def first_response(address: str) -> FirstResponse:
    """Request an object that may be missing, and describe the response.

    Raises:
        TransientError: There is no response, or the server is busy.
    """
    url = sign_url(address, "GET")
    server, proxy = urlsplit(without_user(url)), without_user(proxy_for(url) or "")
    response = _send_request(address, url, {"Range": "bytes=0-0", **(web_headers(url) if is_web(address) else {})})
    socket: Any = getattr(response.connection, "sock", None)
    expiry = socket.getpeercert()["notAfter"] if server.scheme == "https" else None
    is_refused_redirect = response.status in _REDIRECT_STATUSES and not is_web(address)
    is_success = response.status < HTTPStatus.BAD_REQUEST and not is_refused_redirect
    body = b"" if is_success else _read_reason(response)
    error = None if is_success else failures.status_error(address, "GET", response.status, response.headers, body)
    response.close()
    if isinstance(error, retry.TransientError):
        raise error
    origin, code = f"{server.scheme}://{server.netloc}", failures.error_code(body)
    return FirstResponse(origin, proxy, response.headers, expiry, code, error)


def etag_md5(headers: Mapping[str, str]) -> str | None:
    """Return the MD5 of an object from response headers, or None."""
    for encoded in (headers.get("Content-MD5", ""), google_hashes(headers).get("md5", "")):
        if encoded:
            try:
                return base64.b64decode(encoded, validate=True).hex()
            except ValueError:
                return None
    tag = headers.get("ETag", "").strip('"')
    return tag if _MD5.fullmatch(tag) else None


def object_md5(address: str, headers: Mapping[str, str]) -> str | None:
    """Return the MD5 of a whole object from a store's response headers, or None.

    S3's ETag is not an MD5 if the object is encrypted with KMS or customer keys, or is in a directory bucket.
    """
    is_not_md5 = headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    is_not_md5 |= "x-amz-server-side-encryption-customer-algorithm" in headers
    is_not_md5 |= headers.get("x-amz-storage-class", "") == "EXPRESS_ONEZONE"
    return None if is_not_md5 or is_web(address) or is_huggingface(address) else etag_md5(headers)


def google_hashes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums in Google's response headers, as a dict from algorithm to base64 value."""
    pairs = (part.strip().partition("=") for part in headers.get("x-goog-hash", "").split(","))
    return {algorithm: value for algorithm, _, value in pairs}


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
    """Yield the body in pieces of at most `max_bytes`, and close the response at the end.

    Raises:
        TransientError: The body is shorter than `length`.
    """
    received = 0
    try:
        while received < length:
            with failures.urllib3_errors(address):
                piece = response.read(min(max_bytes, length - received))
            if not piece:
                raise retry.TransientError(f"the response ended {length - received:,} bytes early", has_response=True)
            received += len(piece)
            yield piece
    finally:
        response.close()


def discard_response(response: urllib3.BaseHTTPResponse) -> None:
    """Close a response. A short body is read first, so the connection can be reused."""
    if (content_length(response) or _MAX_REASON_BYTES) < _MAX_REASON_BYTES:
        _read_reason(response)
    response.close()


def content_length(response: urllib3.BaseHTTPResponse) -> int | None:
    """Return the Content-Length, or None if it is missing or invalid."""
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS else None


def _redirect_target(address: str, current: str, location: str) -> str:
    try:
        target = urljoin(current, location)
        urlsplit(target).port  # noqa: B018 - fails if the port is invalid
    except ValueError:
        raise StoreFailed(display_address(address), "redirected to an invalid URL", expected="a URL") from None
    found = f"redirected to {redact_secrets(target)[:200]}"
    if not is_web(target) or (current.startswith("https:") and not target.startswith("https:")):
        raise StoreFailed(display_address(address), found, expected="an https URL")
    if not (is_web(address) or is_huggingface(address)):
        raise StoreFailed(display_address(address), found, remedy=failures.WRONG_REGION_ADVICE)
    return target
