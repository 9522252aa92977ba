"""Download the file at one URL: follow redirects, retry, apply limits and check the content.

By default, the client does not connect to this machine, local networks or the metadata services of clouds. It checks
the address of each socket, so neither a redirect nor another DNS lookup can bypass the check.

This module lists the special-purpose IP ranges, because `ipaddress.is_global` differs between Python versions.
Sources: IANA's special-purpose address registries, RFC 5771 (multicast), RFC 4291 (global unicast), RFC 6052 (NAT64)
and RFC 3056 (6to4).
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
import resource
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import responses
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

import aiohttp
from yarl import URL

from shardtool.errors import OutputFailed, is_out_of_memory
from shardtool.fetch.limits import Download, DownloadLimits, PausableTimeout
from shardtool.fetch.options import ROBOTS_DIRECTIVES, FetchFailed, FetchOptions, redact_url
from shardtool.messages import option_text
from shardtool.skipped import SkipCode, http_skip_code
from shardtool.storage.remote.failures import BUSY_STATUSES, retry_after
from shardtool.storage.remote.notices import RequestRetry
from shardtool.units import format_size

_REFUSED_NETWORKS = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # "this network"
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and the metadata service of Alibaba's cloud
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform services, listed in no registry
        "169.254.0.0/16",  # link-local, and the metadata services of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, and the metadata service of Oracle's cloud
        "192.0.2.0/24",  # documentation, like 198.51.100.0 and 203.0.113.0
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # network benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved and broadcast
    )
]

_GLOBAL_UNICAST = IPv6Network("2000::/3")
_REFUSED_IPV6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
# IPv6 ranges whose addresses contain an IPv4 address, and the number of bits after the IPv4 address.
_EMBEDDED_IPV4 = ((IPv6Network("::ffff:0:0/96"), 0), (IPv6Network("64:ff9b::/96"), 0), (IPv6Network("2002::/16"), 80))

_LOW_32 = 2**32 - 1


def is_public(address: str) -> bool:
    """Return whether an IP address is public. An IPv4 address embedded in IPv6 is checked as IPv4."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        shift = next((shift for network, shift in _EMBEDDED_IPV4 if ip in network), None)
        if shift is None:
            return ip in _GLOBAL_UNICAST and not any(ip in network for network in _REFUSED_IPV6)
        ip = IPv4Address(int(ip) >> shift & _LOW_32)
    return not any(ip in network for network in _REFUSED_NETWORKS)


_GZIP_WBITS = 16 + zlib.MAX_WBITS
_DECOMPRESS_STEP_BYTES = 2**18
_NO_ENCODING = ("", "identity")
_IMAGE_SIGNATURES = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"\0\0\x01\0",
    b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a", b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51",
)  # fmt: skip

_IMAGE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1", b"hevc")


def is_image(data: bytes | bytearray) -> bool:
    """Return whether data starts with the signature of an image format."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WEBP"
    if data[4:8] == b"ftyp":
        return bytes(data[8:12]) in _IMAGE_BRANDS
    return data.startswith(_IMAGE_SIGNATURES)


def refusing_directive(headers: Iterable[str], user_agent: str) -> str:
    """Return the directive of an X-Robots-Tag header that forbids the use of a file, or "" if there is none.

    A header applies to all robots (`noai, noindex`) or to a named robot (`shardtool: noai`).
    """
    our_name = user_agent.partition("/")[0].partition(" ")[0].casefold()
    for header in headers:
        robot = ""
        for part in header.casefold().split(","):
            name, colon, rest = part.partition(":")
            robot, directive = (name.strip(), rest) if colon else (robot, part)
            if robot in ("", our_name, "*") and directive.strip() in ROBOTS_DIRECTIVES:
                return directive.strip()
    return ""


class BodyDecoder:
    """Decompresses a response body in steps of limited size. `coding` is the Content-Encoding header.

    Methods raise `FetchFailed` if the data is invalid.
    """

    def __init__(self, coding: str) -> None:
        self._coding = coding.strip().lower()
        if self._coding not in (*_NO_ENCODING, "gzip", "x-gzip", "deflate"):
            found = f"the body has Content-Encoding {self._coding[:40]!r}, which was not requested"
            raise FetchFailed("bad-response", found)
        self._decompressor = None if self._coding in _NO_ENCODING else zlib.decompressobj(_GZIP_WBITS)
        self._started = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Decompress `data`, the next bytes of the body."""
        if self._decompressor is None:
            yield data
            return
        if not self._started and self._coding == "deflate" and data:
            is_wrapped = data[0] & 15 == zlib.DEFLATED
            self._decompressor = zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)
        self._started = self._started or bool(data)
        try:
            while data:
                if self._decompressor.eof:
                    if self._coding == "deflate":
                        return
                    self._decompressor = zlib.decompressobj(_GZIP_WBITS)  # a gzip body may have several members
                yield self._decompressor.decompress(data, _DECOMPRESS_STEP_BYTES)
                data = self._decompressor.unconsumed_tail or self._decompressor.unused_data
        except zlib.error:
            raise FetchFailed("bad-response", f"a damaged {self._coding} body") from None

    def end(self) -> None:
        """Raise `FetchFailed` if the body ended too early."""
        if self._decompressor is not None and self._started and not self._decompressor.eof:
            raise FetchFailed("cut-short", f"a {self._coding} body that ends too early", is_temporary=True)


_ErrorTypes = tuple[type[Exception], ...]

# Error types, a skip code, a message, and whether the failure is temporary. Use the first row that matches.
_ERROR_MEANINGS: tuple[tuple[_ErrorTypes, SkipCode, str, bool], ...] = (
    ((aiohttp.InvalidURL,), "bad-url", "the host is neither a name nor an address", False),
    ((aiohttp.ClientConnectorDNSError,), "no-host", "the host name does not resolve", False),
    ((aiohttp.ClientSSLError,), "bad-certificate", "invalid certificate or TLS", False),
    ((aiohttp.ClientPayloadError,), "cut-short", "the body ended too early", True),
    ((OSError, aiohttp.ServerConnectionError), "no-connection", "cannot connect, or the connection was closed early",
     True),
)  # fmt: skip


class _RefusedAddress(OSError):
    def __init__(self) -> None:
        super().__init__("refused: not an address of the public internet")


def _download_error(error: Exception, timeout_s: float) -> FetchFailed:
    # Raise errors that this machine causes. Convert errors that the server causes.
    if is_out_of_memory(error):
        raise error
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        remedy = f"Raise the limit (ulimit -n), or use fewer {option_text('connections')}."
        raise OutputFailed("the web", "too many open files", remedy=remedy)
    if isinstance(error, asyncio.TimeoutError):
        return FetchFailed("timeout", f"no data for {timeout_s:g} s")
    if isinstance(error, OSError) and str(_RefusedAddress()) in f"{error} {getattr(error, 'os_error', '')}":
        return FetchFailed("refused-address", "not a public address: this machine, a local network, or reserved")
    for kinds, code, message, is_temporary in _ERROR_MEANINGS:
        if isinstance(error, kinds):
            return FetchFailed(code, message, is_temporary=is_temporary or number == socket.EAI_AGAIN)
    return FetchFailed("bad-response", "not a valid HTTP response, or its headers are too long")


_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_OK = 200
_MAX_REDIRECTS = 5
_PIECE_BYTES = 2**16
_DNS_THREADS = 32
_DNS_CACHE_S = 300
_KEEP_ALIVE_S = 2.0  # most connections are used once, because most hosts have only one file
_MAX_OPEN_FILES = 2**16
_FIRST_WAIT_S, _MAX_WAIT_S = 0.5, 30.0
_QUOTED_URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")


class DownloadClient:
    """Downloads files within the limits of `options`. Create, use and close a client in one event loop."""

    def __init__(self, options: FetchOptions, on_retry: Callable[[RequestRetry], object]) -> None:
        self._options, self._on_retry = options, on_retry
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_DNS_THREADS))
        _raise_file_limit()
        connector = aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=_DNS_CACHE_S, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=self._make_socket
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=options.timeout_s, sock_read=options.timeout_s)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": options.user_agent, "Accept-Encoding": "identity", "Accept": "*/*"},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, url: str, number: int, limits: DownloadLimits) -> bytes:
        """Download a file within `limits`. `number` is the index of `url` in the list of URLs."""
        try:
            with PausableTimeout(self._options.max_time_s) as clock:
                return await self._download_with_retries(_parse_url(url), Download(number, clock), limits)
        except asyncio.TimeoutError:
            raise FetchFailed("timeout", f"not complete within {self._options.max_time_s:g} s") from None

    async def _download_with_retries(self, url: URL, download: Download, limits: DownloadLimits) -> bytes:
        wait, remaining = _FIRST_WAIT_S, self._options.retries
        while True:
            try:
                return await self._follow_redirects(url, download, limits)
            except FetchFailed as failure:
                delay = max(wait * random.uniform(0.5, 1), failure.wait_s)  # noqa: S311 - not a secret
                if not (failure.is_temporary and remaining) or delay > min(download.clock.left, _MAX_WAIT_S):
                    raise
                attempts = self._options.retries - remaining + 1
                self._on_retry(RequestRetry(redact_url(str(url)), failure.message, attempts, round(delay, 3)))
            await asyncio.sleep(delay)
            wait, remaining = 2 * wait, remaining - 1

    async def _follow_redirects(self, url: URL, download: Download, limits: DownloadLimits) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            async with limits.request(download, str(url.host)):
                try:
                    response = await self._request(url, download, limits)
                except (OSError, aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
                    raise _download_error(error, self._options.timeout_s) from None
            if isinstance(response, bytes):
                return response
            url = response
        raise FetchFailed("bad-redirect", f"more than {_MAX_REDIRECTS} redirects")

    async def _request(self, url: URL, download: Download, limits: DownloadLimits) -> URL | bytes:
        async with self._session.get(url, allow_redirects=False) as response:
            if (status := response.status) == _OK:
                return await self._read_body(response, download, limits)
            # Read short bodies, so the connection can be reused.
            if (response.content_length or _PIECE_BYTES) < _PIECE_BYTES:
                with suppress(aiohttp.ClientError, asyncio.TimeoutError):
                    await response.read()
            if status in _REDIRECT_STATUSES:
                return _redirect_target(url, response.headers.get("Location", ""))
            message = f"the server returned {status} {responses.get(status, '')}".rstrip()
            wait_s = retry_after(response.headers.get("Retry-After", "")) or 0
            raise FetchFailed(http_skip_code(status), message, is_temporary=status in BUSY_STATUSES, wait_s=wait_s)

    async def _read_body(self, response: aiohttp.ClientResponse, download: Download, limits: DownloadLimits) -> bytes:
        options = self._options
        length = response.content_length or 0
        body = bytearray()
        if (coding := response.headers.get("Transfer-Encoding", "chunked").strip().lower()) != "chunked":
            raise FetchFailed(
                "bad-response", f"the body has Transfer-Encoding {coding[:40]!r}, which was not requested"
            )
        directive = refusing_directive(response.headers.getall("X-Robots-Tag", ()), options.user_agent)
        if options.robots and directive:
            raise FetchFailed("robots-header", f"the server's X-Robots-Tag is {directive}")
        if length > options.max_bytes:
            raise FetchFailed("too-large", f"{format_size(length)}, more than {format_size(options.max_bytes)}")
        try:
            await self._read_chunks(response, download, limits, body)
        except BaseException:
            limits.release(len(body))
            raise
        return bytes(body)

    async def _read_chunks(
        self, response: aiohttp.ClientResponse, download: Download, limits: DownloadLimits, body: bytearray
    ) -> None:
        decoder = BodyDecoder(response.headers.get("Content-Encoding", ""))
        received, max_bytes = 0, self._options.max_bytes
        async for data in response.content.iter_any():
            received += len(data)
            for chunk in decoder.pieces(data):
                if len(body) + len(chunk) > max_bytes or received > max_bytes:
                    raise FetchFailed("too-large", f"more than {format_size(max_bytes)}")
                await limits.hold(download, len(chunk))
                body += chunk
        decoder.end()
        if self._options.images and not is_image(body):
            found = f"not a known image format; the server's Content-Type is {response.content_type[:60]!r}"
            raise FetchFailed("not-an-image", found)

    def _make_socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = info
        if not self._options.allow_private and not is_public(address[0]):
            raise _RefusedAddress
        return socket.socket(family, kind, protocol)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _parse_url(text: str) -> URL:
    text = text.strip()
    try:
        url = URL(text, encoded=_QUOTED_URL.fullmatch(text) is not None)
        is_valid = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
    except (ValueError, UnicodeError):
        is_valid = False
    if not is_valid:
        raise FetchFailed("bad-url", "not an http or https URL with a host" if text else "the URL is empty")
    # refuse a plain number as the host, because resolvers read it as an IP address
    if str(url.raw_host).isdigit():
        raise FetchFailed("bad-url", "the host is neither a name nor an address")
    try:
        str(url.raw_host).encode("idna")
    except UnicodeError:
        raise FetchFailed("bad-url", "a host name with an empty label, or one over 63 letters") from None
    return url


def _redirect_target(url: URL, location: str) -> URL:
    if not location:
        raise FetchFailed("bad-redirect", "a redirect without a Location header")
    try:
        return _parse_url(str(url.join(URL(location, encoded=_QUOTED_URL.fullmatch(location) is not None))))
    except (FetchFailed, ValueError, UnicodeError):
        raise FetchFailed("bad-redirect", "a redirect to something other than an http or https URL") from None
