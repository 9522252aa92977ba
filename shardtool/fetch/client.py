"""Download one file: redirects, retries and limits. Runs in the event loop of an `HttpFetcher`.

The IP address is checked when the socket is created: for every address that a name resolves to, and for each
redirect, so that a second lookup cannot return another address. A body is decompressed no further than its size is
counted.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import responses
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from shardtool.errors import OutputFailed, is_out_of_memory
from shardtool.fetch.content import BodyDecoder, is_image, refusing_directive
from shardtool.fetch.limits import Download, DownloadLimits, PausableTimeout
from shardtool.fetch.options import FetchFailed, FetchOptions
from shardtool.fetch.public_addresses import is_public
from shardtool.fetch.urls import redact_url
from shardtool.messages import option_text
from shardtool.skipped import SkipCode, http_skip_code
from shardtool.storage.remote.failures import BUSY_STATUSES, retry_after
from shardtool.storage.remote.notices import RequestRetry
from shardtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable


_ErrorTypes = tuple[type[Exception], ...]


_ERROR_MEANINGS: tuple[tuple[_ErrorTypes, SkipCode, str, bool], ...] = (  # the first that fits; whether it may pass
    ((aiohttp.InvalidURL,), "bad-url", "a host that is no name and no address", False),
    ((aiohttp.ClientConnectorDNSError,), "no-host", "no address is known for the host", False),
    ((aiohttp.ClientSSLError,), "bad-certificate", "its certificate, or its TLS, is refused", False),
    ((aiohttp.ClientPayloadError,), "cut-short", "the body ended too early", True),
    ((OSError, aiohttp.ServerConnectionError), "no-connection", "no connection, or one that ended early", True),
)


class RefusedAddress(OSError):
    """An address that is not to be asked."""

    def __init__(self) -> None:
        super().__init__("refused: not an address of the public internet")


def download_error(error: Exception, timeout_s: float) -> FetchFailed:
    """Return the failure that an error of a request means; a lack of memory or of files is raised.

    Args:
        error: An OSError, a ClientError, a ValueError, or a time that was exceeded.
        timeout_s: The limit of time.

    Raises:
        OutputFailed: This process has too many files open.
    """
    if is_out_of_memory(error):
        raise error
    number = getattr(error, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):  # of the machine, and no fault of a server
        remedy = f"Raise the limit (ulimit -n), or use fewer {option_text('connections')}."
        raise OutputFailed("the web", "too many open files", remedy=remedy)
    if isinstance(error, asyncio.TimeoutError):
        return FetchFailed("timeout", f"nothing was heard for {timeout_s:g} s")
    if isinstance(error, OSError) and str(RefusedAddress()) in f"{error} {getattr(error, 'os_error', '')}":
        return FetchFailed("refused-address", "an address of this machine, a local network or no network")
    for kinds, code, message, is_temporary in _ERROR_MEANINGS:
        if isinstance(error, kinds):
            return FetchFailed(code, message, is_temporary=is_temporary or number == socket.EAI_AGAIN)
    return FetchFailed("bad-response", "an answer that is no HTTP, or has far too long headers")


_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})


_OK = 200


_MAX_REDIRECTS = 5


_PIECE_BYTES = 2**16


_DNS_THREADS = 32  # that wait for answers of the name service


_DNS_CACHE_S = 300  # for which an answer holds


_KEEP_ALIVE_S = 2.0  # for which a connection waits for the next file of its host: of thousands of hosts, most have none


_MAX_OPEN_FILES = 2**16


_FIRST_WAIT_S, _MAX_WAIT_S = 0.5, 30.0


_QUOTED_URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")


class DownloadClient:
    """Fetches files within the limits of `options`; made and closed in the event loop that it is used in.

    Args:
        options: They.
        again: Gets each request that is made again.
    """

    def __init__(self, options: FetchOptions, again: Callable[[RequestRetry], object]) -> None:
        self._options, self._again = options, again
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_DNS_THREADS))
        _raise_file_limit()
        connector = aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=_DNS_CACHE_S, keepalive_timeout=_KEEP_ALIVE_S, socket_factory=self._socket
        )
        times = aiohttp.ClientTimeout(total=None, sock_connect=options.timeout_s, sock_read=options.timeout_s)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=times,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": options.user_agent, "Accept-Encoding": "identity", "Accept": "*/*"},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, url: str, number: int, turns: DownloadLimits) -> bytes:
        """Return a file, whose bytes `turns` holds from then on.

        Args:
            url: Where it is.
            number: Its place among those that are asked for.
            turns: What it waits for.

        Raises:
            FetchFailed: There is none to be had.
        """
        try:
            with PausableTimeout(self._options.max_time_s) as clock:
                return await self._tries(_parse_url(url), Download(number, clock), turns)
        except asyncio.TimeoutError:
            raise FetchFailed("timeout", f"not there within {self._options.max_time_s:g} s") from None

    async def _tries(self, url: URL, fetch: Download, turns: DownloadLimits) -> bytes:
        wait, left = _FIRST_WAIT_S, self._options.retries
        while True:
            try:
                return await self._follow(url, fetch, turns)
            except FetchFailed as failed:
                delay = max(wait * random.uniform(0.5, 1), failed.wait_s)  # noqa: S311 - so that tries do not meet
                if not (failed.is_temporary and left) or delay > min(fetch.clock.left, _MAX_WAIT_S):
                    raise
                attempts = self._options.retries - left + 1
                self._again(RequestRetry(redact_url(str(url)), failed.message, attempts, round(delay, 3)))
            await asyncio.sleep(delay)
            wait, left = 2 * wait, left - 1

    async def _follow(self, url: URL, fetch: Download, turns: DownloadLimits) -> bytes:
        """Return what a URL leads to, maybe by redirects."""
        for _ in range(_MAX_REDIRECTS + 1):
            async with turns.turn(fetch, str(url.host)):
                try:
                    found = await self._ask(url, fetch, turns)
                except (OSError, aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
                    raise download_error(error, self._options.timeout_s) from None
            if isinstance(found, bytes):
                return found
            url = found
        raise FetchFailed("bad-redirect", f"more than {_MAX_REDIRECTS} redirects")

    async def _ask(self, url: URL, fetch: Download, turns: DownloadLimits) -> URL | bytes:
        """Return what one request gives: a file, or where else to look."""
        async with self._session.get(url, allow_redirects=False) as response:
            if (status := response.status) == _OK:
                return await self._body(response, fetch, turns)
            if (response.content_length or _PIECE_BYTES) < _PIECE_BYTES:
                with suppress(aiohttp.ClientError, asyncio.TimeoutError):  # so that the connection can be used again
                    await response.read()
            if status in _REDIRECT_STATUSES:
                return _redirect_target(url, response.headers.get("Location", ""))
            message = f"the server answered {status} {responses.get(status, '')}".rstrip()
            wait_s = retry_after(response.headers.get("Retry-After", "")) or 0
            raise FetchFailed(http_skip_code(status), message, is_temporary=status in BUSY_STATUSES, wait_s=wait_s)

    async def _body(self, response: aiohttp.ClientResponse, fetch: Download, turns: DownloadLimits) -> bytes:
        """Return the file that a response holds."""
        options, length, taken = self._options, response.content_length or 0, bytearray()
        if options.robots and (
            word := refusing_directive(response.headers.getall("X-Robots-Tag", ()), options.user_agent)
        ):
            raise FetchFailed("robots-header", f"the server's X-Robots-Tag says {word}")
        if length > options.max_bytes:
            raise FetchFailed("too-large", f"{format_size(length)}, over {format_size(options.max_bytes)}")
        try:
            await self._read(response, fetch, turns, taken)
        except BaseException:
            turns.release(len(taken))
            raise
        return bytes(taken)

    async def _read(
        self, response: aiohttp.ClientResponse, fetch: Download, turns: DownloadLimits, taken: bytearray
    ) -> None:
        """Append to `taken` what a response sends, as unpacked, and check it."""
        unpacker, sent, most = BodyDecoder(response.headers.get("Content-Encoding", "")), 0, self._options.max_bytes
        async for data in response.content.iter_any():
            sent += len(data)
            for piece in unpacker.pieces(data):
                if len(taken) + len(piece) > most or sent > most:
                    raise FetchFailed("too-large", f"more than {format_size(most)}")
                await turns.hold(fetch, len(piece))
                taken += piece
        unpacker.end()
        if self._options.images and not is_image(taken):
            called = response.content_type[:60]
            raise FetchFailed("not-an-image", f"the bytes of no known image; the server calls it {called!r}")

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Return a socket for an address that is about to be connected to.

        Raises:
            RefusedAddress: It is none of the public internet, and these are not allowed.
        """
        family, kind, protocol, _, address = info
        if not self._options.allow_private and not is_public(address[0]):
            raise RefusedAddress
        return socket.socket(family, kind, protocol)


def _raise_file_limit() -> None:
    """Let this process open as many files as it may be allowed to: idle connections count, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _parse_url(text: str) -> URL:
    """Return a URL that can be asked.

    Raises:
        FetchFailed: It is none.
    """
    text = text.strip()
    try:
        url = URL(text, encoded=_QUOTED_URL.fullmatch(text) is not None)
        right = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
    except (ValueError, UnicodeError):
        right = False
    if not right:
        raise FetchFailed("bad-url", "no http or https URL with a host" if text else "no URL")
    try:
        str(url.raw_host).encode("idna")  # as the name service will be asked
    except UnicodeError:
        raise FetchFailed("bad-url", "a host with a part between dots that is empty, or over 63 letters") from None
    return url


def _redirect_target(url: URL, location: str) -> URL:
    """Return where a redirect leads.

    Raises:
        FetchFailed: To nothing that can be asked.
    """
    try:
        return _parse_url(str(url.join(URL(location, encoded=_QUOTED_URL.fullmatch(location) is not None))))
    except (FetchFailed, ValueError, UnicodeError):
        raise FetchFailed("bad-redirect", "a redirect to what is no http or https URL") from None
