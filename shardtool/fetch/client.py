"""One file from the web: redirects, tries and limits. Runs in the event loop of a `Fetcher`.

Strategy: an address is checked when the socket to it is made, behind all that a name may resolve to and for each
redirect, so that no second look at a name can give another. Of a body, no more is unpacked than is counted.
"""

from __future__ import annotations

import asyncio
import random
import re
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

from shardtool.fetch.addresses import is_public
from shardtool.fetch.client_errors import RefusedAddress, failure_of, failure_of_status
from shardtool.fetch.clock import Clock
from shardtool.fetch.contents import Unpacker, is_image, refused_by
from shardtool.fetch.failure import FetchFailed
from shardtool.values import show_size

if TYPE_CHECKING:
    from shardtool.fetch.options import FetchOptions
    from shardtool.fetch.turns import Turns

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_OK = 200
_MOST_REDIRECTS = 5
_PIECE = 2**16
_NAME_THREADS = 32  # that wait for answers of the name service
_NAMES_S = 300  # for which an answer holds
_IDLE_S = 2.0  # for which a connection waits for the next file of its host: of thousands of hosts, most have none
_MOST_FILES = 2**16
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_QUOTED = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")


class Client:
    """Fetches files within the limits of `options`; made and closed in the event loop that it is used in."""

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_NAME_THREADS))
        _allow_files()
        connector = aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=_NAMES_S, keepalive_timeout=_IDLE_S, socket_factory=self._socket
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

    async def get(self, url: str, number: int, turns: Turns) -> bytes:
        """Return a file, whose bytes `turns` holds from then on.

        Args:
            url: Where it is.
            number: Its place among those that are asked for.
            turns: What it waits for.

        Raises:
            FetchFailed: There is none to be had.
        """
        try:
            with Clock(self._options.max_time_s) as clock:
                return await self._tries(_Fetch(_parsed(url), number, turns, clock))
        except asyncio.TimeoutError:
            raise FetchFailed("timeout", f"not there within {self._options.max_time_s:g} s") from None

    async def _tries(self, fetch: _Fetch) -> bytes:
        wait = _FIRST_WAIT_S
        for left in reversed(range(self._options.retries + 1)):
            try:
                return await self._follow(fetch)
            except FetchFailed as failed:
                delay = max(wait * random.uniform(0.5, 1), failed.wait_s)  # noqa: S311 - so that tries do not meet
                if not (failed.may_pass and left) or delay > min(fetch.clock.left, _LONGEST_WAIT_S):
                    raise
            await asyncio.sleep(delay)
            wait *= 2
        raise FetchFailed("timeout", "not tried")

    async def _follow(self, fetch: _Fetch) -> bytes:
        """Return what a URL leads to, maybe by redirects."""
        found: URL | bytes = fetch.url
        for _ in range(_MOST_REDIRECTS + 1):
            if isinstance(found, bytes):
                return found
            fetch.clock.stop()
            async with fetch.turns.turn(fetch.number, str(found.host)):
                fetch.clock.start()
                try:
                    found = await self._ask(found, fetch)
                except (OSError, aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
                    raise failure_of(error, self._options.timeout_s) from None
        if isinstance(found, bytes):
            return found
        raise FetchFailed("bad-redirect", f"more than {_MOST_REDIRECTS} redirects")

    async def _ask(self, url: URL, fetch: _Fetch) -> URL | bytes:
        """Return what one request gives: a file, or where else to look."""
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status == _OK:
                return await self._body(response, fetch)
            if (response.content_length or _PIECE) < _PIECE:
                with suppress(aiohttp.ClientError, asyncio.TimeoutError):  # so that the connection can be used again
                    await response.read()
            if response.status in _REDIRECTS:
                return _redirected(url, response.headers.get("Location", ""))
            raise failure_of_status(response.status, response.headers.get("Retry-After", ""))

    async def _body(self, response: aiohttp.ClientResponse, fetch: _Fetch) -> bytes:
        """Return the file that a response holds."""
        options, length, taken = self._options, response.content_length or 0, bytearray()
        if options.robots and (word := refused_by(response.headers.getall("X-Robots-Tag", ()), options.user_agent)):
            raise FetchFailed("robots-header", f"the server's X-Robots-Tag says {word}")
        if length > options.max_bytes:
            raise FetchFailed("too-large", f"{show_size(length)}, over {show_size(options.max_bytes)}")
        try:
            await self._read(response, fetch, taken)
        except BaseException:
            fetch.turns.release(len(taken))
            raise
        return bytes(taken)

    async def _read(self, response: aiohttp.ClientResponse, fetch: _Fetch, taken: bytearray) -> None:
        """Append to `taken` what a response sends, as unpacked, and check it."""
        unpacker, sent, most = Unpacker(response.headers.get("Content-Encoding", "")), 0, self._options.max_bytes
        async for data in response.content.iter_any():
            sent += len(data)
            for piece in unpacker.pieces(data):
                if len(taken) + len(piece) > most or sent > most:
                    raise FetchFailed("too-large", f"more than {show_size(most)}")
                await self._hold(len(piece), fetch)
                taken += piece
        unpacker.end()
        if self._options.images and not is_image(taken):
            called = response.content_type[:60]
            raise FetchFailed("not-an-image", f"the bytes of no known image; the server calls it {called!r}")

    async def _hold(self, size: int, fetch: _Fetch) -> None:
        if not fetch.turns.hold_now(fetch.number, size):
            fetch.clock.stop()
            await fetch.turns.hold(fetch.number, size)
            fetch.clock.start()

    def _socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Return a socket for an address that is about to be connected to.

        Raises:
            RefusedAddress: It is none of the public internet, and these are not allowed.
        """
        family, kind, protocol, _, address = info
        if not self._options.allow_private and not is_public(address[0]):
            raise RefusedAddress
        return socket.socket(family, kind, protocol)


class _Fetch:
    """A file that is being fetched: see `Client.get`."""

    __slots__ = ("clock", "number", "turns", "url")

    def __init__(self, url: URL, number: int, turns: Turns, clock: Clock) -> None:
        self.url, self.number, self.turns, self.clock = url, number, turns, clock


def _allow_files() -> None:
    """Let this process open as many files as it may be allowed to: idle connections count, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _parsed(text: str) -> URL:
    """Return a URL that can be asked.

    Raises:
        FetchFailed: It is none.
    """
    text = text.strip()
    try:
        url = URL(text, encoded=_QUOTED.fullmatch(text) is not None)
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


def _redirected(url: URL, location: str) -> URL:
    """Return where a redirect leads.

    Raises:
        FetchFailed: To nothing that can be asked.
    """
    try:
        return _parsed(str(url.join(URL(location, encoded=_QUOTED.fullmatch(location) is not None))))
    except (FetchFailed, ValueError, UnicodeError):
        raise FetchFailed("bad-redirect", "a redirect to what is no http or https URL") from None
