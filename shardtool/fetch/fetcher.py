"""Fetches the files of a shard, many at once, in a thread with an event loop, and gives them in their order.

Strategy: files are begun in the order in which they will be asked for, as far ahead as there is memory; those of a
host that has as many requests as it may are passed by those that come later. What is asked for next never waits for
others. Each failure is the result of its file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import resource
import socket
import threading
import time
import zlib
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from http.client import responses
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
from yarl import URL

from shardtool.errors import OutputFailed, is_out_of_memory
from shardtool.fetch import DIRECTIVES, FetchFailed, FetchOptions, FetchProgress, host_of, shown_url
from shardtool.skipped import SkipCode, http_code
from shardtool.storage.remote.retry import BUSY, SLICE_S, RequestAgain, retry_after, tell
from shardtool.values import show_size
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self


# The limits that fetches of one worker share: how many at once, how many of a host, how many bytes are held.
#
# Who must wait does so in a queue: of its host, or for memory. Only the head, the first file that was asked for and not
# taken yet, never waits: all others may wait for it to be taken, so a limit can be exceeded by that one. All of it runs
# in one event loop.


_AHEAD = 4  # times as many are begun as go on at once, where some wait for their hosts
_MOST_HOSTS = 100_000  # of which is known how long they took


class _Fetch(NamedTuple):
    """A file that is being fetched: its place among those that are asked for, and how long it may take."""

    number: int
    clock: Clock


class _WaitingFetch(NamedTuple):
    """A fetch that waits: in which queue, for how many bytes, what takes what it waits for, and what wakes it."""

    queue: deque[int]
    size: int
    take: Callable[[], None]
    woken: asyncio.Future[None]


class Turns:
    """The limits of the fetches of one shard.

    Args:
        options: What they are.
        waits: Called when a fetch begins to wait.
        times: Gets how long each turn takes.

    Attributes:
        head: The number of the first file that was not taken yet.
        held: Bytes that were read, and not taken yet.
    """

    def __init__(self, options: FetchOptions, waits: Callable[[], object], times: HostTimes) -> None:
        self._options, self._waits, self._times = options, waits, times
        self.head = self.held = self._active = 0
        self._of_host: Counter[str] = Counter()
        self._waiting: dict[int, _WaitingFetch] = {}
        self._for_memory: deque[int] = deque()
        self._for_turns: dict[str, deque[int]] = {}

    def has_room(self, begun: int) -> bool:
        """Tell whether one more may begin beside those that have begun."""
        most, going_on = self._options.connections, begun - len(self._waiting)
        return going_on < most and begun < _AHEAD * most and self.held < self._options.memory

    @asynccontextmanager
    async def turn(self, fetch: _Fetch, host: str) -> AsyncIterator[None]:
        """Be one of the requests that go on at once, in all and to a host."""

        def take() -> None:
            self._active += 1
            self._of_host[host] += 1

        if fetch.number <= self.head or self._has_turn(host):
            take()
        else:
            await self._wait(fetch, self._for_turns.setdefault(host, deque()), 0, take)
        self._times.begin(fetch.number)
        try:
            yield
        finally:
            self._times.end(fetch.number)
            self._give_back(host)

    async def hold(self, fetch: _Fetch, size: int) -> None:
        """Hold `size` more bytes, once there is room for them."""

        def take() -> None:
            self.held += size

        if fetch.number <= self.head or self.held + size <= self._options.memory:
            take()
        else:
            await self._wait(fetch, self._for_memory, size, take)

    def release(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.held -= size
        queue = self._for_memory
        while queue and self.held + self._waiting[queue[0]].size <= self._options.memory:
            self._wake(queue[0])

    def move_head(self, number: int) -> None:
        """Take another file for the head; who waits for it, or for one before, waits no longer."""
        for one in range(self.head, number + 1):
            self._wake(one)
        self.head = number

    def _has_turn(self, host: str) -> bool:
        return self._active < self._options.connections and self._of_host[host] < self._options.per_host

    def _give_back(self, host: str) -> None:
        """End a turn, and let another fetch of the host have it or, where all turns were taken, one of another host."""
        all_taken = self._active >= self._options.connections
        self._active -= 1
        self._of_host[host] -= 1
        for one in [host, *(self._for_turns if all_taken else ())]:
            if self._for_turns.get(one) and self._has_turn(one):
                self._wake(self._for_turns[one][0])
        if not self._of_host[host]:
            del self._of_host[host]
        if not self._for_turns.get(host):
            self._for_turns.pop(host, None)

    async def _wait(self, fetch: _Fetch, queue: deque[int], size: int, take: Callable[[], None]) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._waiting[fetch.number] = _WaitingFetch(queue, size, take, woken)
        queue.append(fetch.number)
        self._waits()
        fetch.clock.stop()
        await woken
        fetch.clock.start()

    def _wake(self, number: int) -> None:
        if (waiting := self._waiting.pop(number, None)) is not None:
            waiting.queue.remove(number)
            waiting.take()
            if not waiting.woken.done():
                waiting.woken.set_result(None)


# How long files of each host take, and so how long the rest of a shard will.


class HostTimes:
    """What was seen of hosts, and how many files of each are left of a shard.

    Args:
        options: How many files are fetched at once, and how many of a host.
        now: Gives the time, in seconds.
    """

    def __init__(self, options: FetchOptions, now: Callable[[], float] = time.monotonic) -> None:
        self._options, self._now = options, now
        self._ended: Counter[str] = Counter()  # files that are there, or failed
        self._seconds: defaultdict[str, float] = defaultdict(float)  # of their turns
        self._going: dict[int, float] = {}  # when turns began that go on
        self.start(())

    def start(self, hosts: Sequence[str]) -> None:
        """Count other files from now on: `hosts` are theirs, in the order in which they are asked for."""
        self._hosts, self._all, ahead = hosts, Counter(hosts), _AHEAD * self._options.connections
        self._left = [Counter(hosts[at : at + ahead]) for at in range(0, len(hosts), ahead)]
        if len(self._ended) > _MOST_HOSTS:
            self._ended.clear()
            self._seconds.clear()

    def begin(self, number: int) -> None:
        """Note that a turn of a file begins, at its host or at one to which that leads."""
        self._going[number] = self._now()

    def end(self, number: int) -> None:
        """Note that the turn ends."""
        self._seconds[self._hosts[number]] += self._now() - self._going.pop(number)

    def done(self, number: int) -> None:
        """Note that a file is there, or failed."""
        host = self._hosts[number]
        self._ended[host] += 1
        self._left[number // (_AHEAD * self._options.connections)][host] -= 1

    def left(self) -> tuple[float, str, int, int, float]:
        """Return in how many seconds all are there, and the host which decides that, as `FetchProgress` has it.

        Of files that are fetched side by side, it is the one with the most to do, or all of them by turns. Any thread
        may ask.
        """
        each, seconds = self._each(), defaultdict[str, float](float)
        for counts in self._left:
            busy = {host: count * each[host] for host, count in counts.items() if count}
            host = max(busy, key=busy.__getitem__, default="")
            by_turns = sum(busy.values()) / self._options.connections
            seconds[host] += max(busy.get(host, 0) / self._options.per_host, by_turns)
        host = max(seconds, key=seconds.__getitem__, default="")
        done = self._all[host] - self._files_left(host)
        return sum(seconds.values()), host, done, self._all[host], each.get(host, 0)

    def _each(self) -> dict[str, float]:
        """Return how many seconds a file of each host takes; the last ones take as many as have passed, at least."""
        going = defaultdict[str, list[float]](list)
        for number, began in [*self._going.items()]:  # which the event loop changes
            going[self._hosts[number]].append(self._now() - began)
        usual = sum(self._seconds.values()) / max(self._ended.total(), 1)
        each = {host: self._seconds[host] / (self._ended[host] or 1) or usual for host in self._all}
        for host, passed in going.items():
            if not self._ended[host] or self._files_left(host) <= len(passed):
                each[host] = max(each[host], *passed)
        return each

    def _files_left(self, host: str) -> int:
        return sum(counts[host] for counts in self._left)


# A limit of time for a part of a task, which stands still while the task waits for others.


class Clock:
    """Ends its `with` block after some seconds, not counting those between `stop` and `start`.

    Args:
        seconds: How many.

    Raises:
        asyncio.TimeoutError: The block was ended.
    """

    def __init__(self, seconds: float) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._left, self._end = seconds, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._left if self._timer is None else self._end - self._loop.time()

    def start(self) -> None:
        """Let time run."""
        self._end = self._loop.time() + self._left
        self._timer = self._loop.call_at(self._end, self._expire)

    def stop(self) -> None:
        """Let time stand still."""
        if self._timer is not None:
            self._left = self.left
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.stop()
        if self._expired and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from None


# One file from the web: redirects, tries and limits. Runs in the event loop of a `Fetcher`.
#
# Strategy: an address is checked when the socket to it is made, behind all that a name may resolve to and for each
# redirect, so that no second look at a name can give another. Of a body, no more is unpacked than is counted.


# What an error of the HTTP library means for a file.


_Kinds = tuple[type[Exception], ...]
_MEANINGS: tuple[tuple[_Kinds, SkipCode, str, bool], ...] = (  # the first that fits; whether it may pass
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


def failure_of(error: Exception, timeout_s: float) -> FetchFailed:
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
        remedy = f"Raise the limit (ulimit -n), or use fewer {option('connections')}."
        raise OutputFailed("the web", "too many open files", remedy=remedy)
    if isinstance(error, asyncio.TimeoutError):
        return FetchFailed("timeout", f"nothing was heard for {timeout_s:g} s")
    if isinstance(error, OSError) and str(RefusedAddress()) in f"{error} {getattr(error, 'os_error', '')}":
        return FetchFailed("refused-address", "an address of this machine, a local network or no network")
    for kinds, code, message, may_pass in _MEANINGS:
        if isinstance(error, kinds):
            return FetchFailed(code, message, may_pass=may_pass or number == socket.EAI_AGAIN)
    return FetchFailed("bad-response", "an answer that is no HTTP, or has far too long headers")


# What a response says of its content: its coding, what robots may do with it, whether it is an image.


_GZIP = 16 + zlib.MAX_WBITS
_STEP = 2**18  # bytes that are unpacked at a time
_PLAIN = ("", "identity")
_HEADS = (
    b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"\0\0\x01\0",
    b"\0\0\0\x0cJXL \r\n\x87\n", b"\xff\x0a", b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51",
)  # fmt: skip
_BOXES = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1", b"hevc")


def is_image(data: bytes | bytearray) -> bool:
    """Tell whether a file begins as an image does: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIF, JPEG XL, JPEG 2000."""
    if data[:4] == b"RIFF":
        return data[8:12] == b"WEBP"
    if data[4:8] == b"ftyp":
        return bytes(data[8:12]) in _BOXES
    return data.startswith(_HEADS)


def refused_by(headers: Iterable[str], user_agent: str) -> str:
    """Return the directive of X-Robots-Tag headers that keeps a file from being used by us; empty: there is none.

    A header is for all, `noai, noindex`, or for the robot that it names: `shardtool: noai`.
    """
    own = user_agent.partition("/")[0].partition(" ")[0].casefold()
    for header in headers:
        robot = ""
        for part in header.casefold().split(","):
            name, colon, rest = part.partition(":")
            robot, directive = (name.strip(), rest) if colon else (robot, part)
            if robot in ("", own, "*") and directive.strip() in DIRECTIVES:
                return directive.strip()
    return ""


class Unpacker:
    """Undoes the coding of a body, never more of it at a time than a step.

    Args:
        coding: What Content-Encoding says.

    Raises:
        FetchFailed: It is none that is known.
    """

    def __init__(self, coding: str) -> None:
        self._coding = coding.strip().lower()
        if self._coding not in (*_PLAIN, "gzip", "x-gzip", "deflate"):
            raise FetchFailed("bad-response", f"a body in the coding {self._coding[:40]!r}, which was not asked for")
        self._unpack = None if self._coding in _PLAIN else zlib.decompressobj(_GZIP)
        self._begun = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes of a body stand for.

        Raises:
            FetchFailed: They are damaged.
        """
        if self._unpack is None:
            yield data
            return
        if not self._begun and self._coding == "deflate" and data:
            is_wrapped = data[0] & 15 == zlib.DEFLATED
            self._unpack = zlib.decompressobj(zlib.MAX_WBITS if is_wrapped else -zlib.MAX_WBITS)
        self._begun = self._begun or bool(data)
        try:
            while data and not self._unpack.eof:
                yield self._unpack.decompress(data, _STEP)
                data = self._unpack.unconsumed_tail
        except zlib.error:
            raise FetchFailed("bad-response", f"a damaged body, coded with {self._coding}") from None

    def end(self) -> None:
        """Check that the body is at its end.

        Raises:
            FetchFailed: It is not.
        """
        if self._unpack is not None and self._begun and not self._unpack.eof:
            raise FetchFailed("cut-short", f"a body that ends too early, coded with {self._coding}", may_pass=True)


# Which addresses are public: others are those of this machine, of local networks and of clouds' own services.
#
# The tables are ours, for `ipaddress.is_global` means other addresses in other versions of Python. What the registries
# call special is refused whole, the few anycast addresses in it that can be reached too: no file lies there.
#
# Source: IANA's special-purpose address registries for IPv4 and IPv6 (RFC 6890, RFC 8190; with 3fff::/20 of RFC 9637),
# RFC 5771 (multicast), RFC 4291 (2000::/3 is all of IPv6 that is global unicast), RFC 6052 (NAT64), RFC 3056 (6to4).


_REFUSED = [
    IPv4Network(one)
    for one in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by the customers of a provider; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # in no registry: Azure's services for its machines
        "169.254.0.0/16",  # of a link; the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # of protocols; Oracle's metadata
        "192.0.2.0/24",  # documentation, as are 198.51.100.0 and 203.0.113.0
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # tests of networks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
_UNICAST = IPv6Network("2000::/3")
_REFUSED_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))  # protocols, documentation
_HOLDING = (  # of IPv6, and by how many bits the IPv4 address that packets go to in the end is shifted
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
_LOW_32 = 2**32 - 1


def is_public(address: str) -> bool:
    """Tell whether an IP address is of the public internet; an IPv6 address that stands for an IPv4 one is that."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        shift = next((shift for network, shift in _HOLDING if found in network), None)
        if shift is None:
            return found in _UNICAST and not any(found in network for network in _REFUSED_6)
        found = IPv4Address(int(found) >> shift & _LOW_32)
    return not any(found in network for network in _REFUSED)


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
    """Fetches files within the limits of `options`; made and closed in the event loop that it is used in.

    Args:
        options: They.
        again: Gets each request that is made again.
    """

    def __init__(self, options: FetchOptions, again: Callable[[RequestAgain], object]) -> None:
        self._options, self._again = options, again
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
                return await self._tries(_parsed(url), _Fetch(number, clock), turns)
        except asyncio.TimeoutError:
            raise FetchFailed("timeout", f"not there within {self._options.max_time_s:g} s") from None

    async def _tries(self, url: URL, fetch: _Fetch, turns: Turns) -> bytes:
        wait, left = _FIRST_WAIT_S, self._options.retries
        while True:
            try:
                return await self._follow(url, fetch, turns)
            except FetchFailed as failed:
                delay = max(wait * random.uniform(0.5, 1), failed.wait_s)  # noqa: S311 - so that tries do not meet
                if not (failed.may_pass and left) or delay > min(fetch.clock.left, _LONGEST_WAIT_S):
                    raise
                attempts = self._options.retries - left + 1
                self._again(RequestAgain(shown_url(str(url)), failed.message, attempts, round(delay, 3)))
            await asyncio.sleep(delay)
            wait, left = 2 * wait, left - 1

    async def _follow(self, url: URL, fetch: _Fetch, turns: Turns) -> bytes:
        """Return what a URL leads to, maybe by redirects."""
        for _ in range(_MOST_REDIRECTS + 1):
            async with turns.turn(fetch, str(url.host)):
                try:
                    found = await self._ask(url, fetch, turns)
                except (OSError, aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
                    raise failure_of(error, self._options.timeout_s) from None
            if isinstance(found, bytes):
                return found
            url = found
        raise FetchFailed("bad-redirect", f"more than {_MOST_REDIRECTS} redirects")

    async def _ask(self, url: URL, fetch: _Fetch, turns: Turns) -> URL | bytes:
        """Return what one request gives: a file, or where else to look."""
        async with self._session.get(url, allow_redirects=False) as response:
            if (status := response.status) == _OK:
                return await self._body(response, fetch, turns)
            if (response.content_length or _PIECE) < _PIECE:
                with suppress(aiohttp.ClientError, asyncio.TimeoutError):  # so that the connection can be used again
                    await response.read()
            if status in _REDIRECTS:
                return _redirected(url, response.headers.get("Location", ""))
            message = f"the server answered {status} {responses.get(status, '')}".rstrip()
            wait_s = retry_after(response.headers.get("Retry-After", "")) or 0
            raise FetchFailed(http_code(status), message, may_pass=status in BUSY, wait_s=wait_s)

    async def _body(self, response: aiohttp.ClientResponse, fetch: _Fetch, turns: Turns) -> bytes:
        """Return the file that a response holds."""
        options, length, taken = self._options, response.content_length or 0, bytearray()
        if options.robots and (word := refused_by(response.headers.getall("X-Robots-Tag", ()), options.user_agent)):
            raise FetchFailed("robots-header", f"the server's X-Robots-Tag says {word}")
        if length > options.max_bytes:
            raise FetchFailed("too-large", f"{show_size(length)}, over {show_size(options.max_bytes)}")
        try:
            await self._read(response, fetch, turns, taken)
        except BaseException:
            turns.release(len(taken))
            raise
        return bytes(taken)

    async def _read(self, response: aiohttp.ClientResponse, fetch: _Fetch, turns: Turns, taken: bytearray) -> None:
        """Append to `taken` what a response sends, as unpacked, and check it."""
        unpacker, sent, most = Unpacker(response.headers.get("Content-Encoding", "")), 0, self._options.max_bytes
        async for data in response.content.iter_any():
            sent += len(data)
            for piece in unpacker.pieces(data):
                if len(taken) + len(piece) > most or sent > most:
                    raise FetchFailed("too-large", f"more than {show_size(most)}")
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


# The thread, and what it gives.


_TELL_S = 1.0  # between two times that a worker tells how far it is; more where that takes long
_TELL_SHARE = 0.05  # of the time, at most
_MOST_AGAIN = 10  # requests made again that are told one by one each time


class Fetcher:
    """Fetches files for one thread, one list of URLs after the other; connections stay open in between.

    Args:
        options: How.
    """

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Condition()
        self._found: dict[int, bytes | Exception] = {}
        self._next = 0
        self._urls: Sequence[str] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._times = HostTimes(options)
        self._turns = Turns(options, self._begin_soon, self._times)
        self._again: list[RequestAgain] = []
        self._samples, self._began, self._waited_s, self._tell_at = 0, 0.0, 0.0, 0.0
        self._waits: Callable[[], object] = int
        self._client: Client | None = None
        self._lack: MemoryError | None = None
        self._loop.set_exception_handler(self._broken)
        self._thread = threading.Thread(target=self._loop.run_forever, name="shardtool-fetch", daemon=True)
        self._thread.start()

    def begin(self, urls: Sequence[str], samples: int = 0, waits: Callable[[], object] = int) -> None:
        """Fetch other files from now on; what was begun before is given up.

        Args:
            urls: Of these.
            samples: Of so many samples.
            waits: Called now and then while a file is waited for.
        """
        if self._urls:
            self._tell(len(self._urls))
        asyncio.run_coroutine_threadsafe(self._begin(urls), self._loop).result()
        self._samples, self._waits, self._began, self._waited_s = samples, waits, time.monotonic(), 0.0
        self._tell_at = self._began + _TELL_S

    def take(self, number: int) -> bytes:
        """Return the file of the URL at that place among those that were begun; those before it are passed over.

        Raises:
            FetchFailed: There is none to be had.
        """
        if number > self._turns.head:
            self._loop.call_soon_threadsafe(self._pass_over, number)
        while (found := self._taken_if_there(number)) is None:
            pass
        size = len(found) if isinstance(found, bytes) else 0
        self._loop.call_soon_threadsafe(self._taken, number, size)
        if isinstance(found, Exception):
            raise found
        return found

    def _taken_if_there(self, number: int) -> bytes | Exception | None:
        """Return a file, or why there is none; None: it is not there yet, after a moment's wait."""
        began = time.monotonic()
        if began > self._tell_at:
            self._tell(number)
        with self._ready:
            if number in self._found:
                return self._found.pop(number)
            if self._lack is not None:
                raise self._lack
            self._ready.wait(SLICE_S)
        self._waits()
        self._waited_s += time.monotonic() - began
        return None

    def _tell(self, taken: int) -> None:
        """Tell the parent how far this is: so many files are packed."""
        now, files, left = time.monotonic(), len(self._urls), self._times.left()
        took_s = now - self._began
        if took_s > 2 * self._waited_s:  # it is packing that takes the time
            left = max(left, ((took_s - self._waited_s) * (files - taken) / max(taken, 1), "", 0, 0, 0.0))
        with self._ready:
            again, self._again = self._again, []
        for one in again:
            tell(one)
        tell(FetchProgress(os.getpid(), self._samples, taken / files, took_s, *left))
        self._tell_at = time.monotonic() + _TELL_S + (time.monotonic() - now) / _TELL_SHARE

    def _note_again(self, again: RequestAgain) -> None:
        """Keep a request that is made again, to be told; beyond some, the last one speaks for those before it."""
        with self._ready:
            if len(self._again) == _MOST_AGAIN:
                last = self._again.pop()
                again = again._replace(wait_s=last.wait_s + again.wait_s, requests=last.requests + 1)
            self._again.append(again)

    def close(self) -> None:
        """Give up what was begun, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _broken(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Take what went wrong beside all files: of connections that end badly, no one need know."""
        error = context.get("exception")
        if isinstance(error, MemoryError):
            with self._ready:
                self._lack = error
                self._ready.notify()

    async def _close(self) -> None:
        await self._begin(())
        if self._client is not None:
            await self._client.close()
        await self._loop.shutdown_default_executor()

    async def _begin(self, urls: Sequence[str]) -> None:
        self._urls, tasks = (), [*self._tasks]  # so that no other begins as these end
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is None:
            self._client = Client(self._options, self._note_again)
        with self._ready:
            self._found.clear()
        self._times.start([host_of(url) for url in urls])
        self._urls, self._next, self._turns = urls, 0, Turns(self._options, self._begin_soon, self._times)
        self._begin_more()

    def _begin_soon(self) -> None:
        self._loop.call_soon(self._begin_more)

    def _begin_more(self) -> None:
        """Begin as many files as there is room for."""
        turns = self._turns
        while self._next < len(self._urls) and (self._next <= turns.head or turns.has_room(len(self._tasks))):
            task = self._loop.create_task(self._fetch(self._next, turns))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            self._next += 1

    async def _fetch(self, number: int, turns: Turns) -> None:
        """Fetch one file, and hand it out."""
        found: bytes | Exception
        try:
            if self._client is None:
                return
            found = await self._client.get(self._urls[number], number, turns)
        except Exception as error:  # noqa: BLE001 - raised where the file is taken
            found = error
        self._times.done(number)
        if number < turns.head:  # it was passed over
            turns.release(len(found) if isinstance(found, bytes) else 0)
            return
        with self._ready:
            self._found[number] = found
            self._ready.notify()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin_more()

    def _taken(self, number: int, size: int) -> None:
        self._turns.move_head(number + 1)
        self._turns.release(size)
        self._begin_more()

    def _pass_over(self, number: int) -> None:
        self._turns.move_head(number)
        with self._ready:
            lost = [self._found.pop(one) for one in [*self._found] if one < number]
        self._turns.release(sum(len(one) for one in lost if isinstance(one, bytes)))
        self._begin_more()
