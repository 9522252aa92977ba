"""Laws of fetching: each URL gives its file or the reason why not, in order, within all limits."""

from __future__ import annotations

import errno
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool.errors import OutputFailed
from shardtool.fetch.options import FetchFailed, FetchOptions
from tests.faults.helpers import settles
from tests.fetch.conftest import fetching, held
from tests.fetch.server import BOMB, body, web_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.fetch.fetcher import HttpFetcher
    from tests.fetch.server import WebServer


def _all(fetcher: HttpFetcher, urls: Sequence[str]) -> list[bytes | str]:
    """Return the file of each URL, or the code of its failure."""
    fetcher.start(urls)
    files: list[bytes | str] = []
    for number in range(len(urls)):
        try:
            files.append(fetcher.take(number))
        except FetchFailed as failed:
            files.append(failed.code)
    return files


def _one(url: str, **options: Any) -> bytes | str:
    with fetching(**options) as fetcher:
        return _all(fetcher, [url])[0]


def test_files_come_in_order(web: WebServer) -> None:
    """Files are returned in the requested order, whichever arrives first; connections are reused."""
    names = [f"{'later' if number % 3 else 'ok'}/{number}" for number in range(60)]
    with fetching(connections=8) as fetcher:
        for _ in range(2):
            files = _all(fetcher, [web.url(name) for name in names])
            assert files == [body(name.partition("/")[2]) for name in names]
    assert set(web.requests.values()) == {2}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("status/404", "http-404"), ("status/403", "http-403"), ("status/500", "http-500"), ("status/204", "http-204"),
        ("cut/a", "cut-short"), ("drop/a", "no-connection"), ("garbage/a", "bad-response"),
        ("broken/a", "bad-response"),
        ("half/a", "cut-short"), ("brotli/a", "bad-response"), ("hostile/coded", "bad-response"),
        ("loop/0", "bad-redirect"), ("to/", "bad-redirect"),
        ("to/ftp:%2F%2F127.0.0.1%2Fa", "bad-redirect"), ("to/http:%2F%2F", "bad-redirect"),
        (f"to/http:%2F%2F{'a' * 64}.localhost%2F", "bad-redirect"), ("to/http:%2F%2F[::1%2F", "bad-redirect"),
        ("to/file:%2F%2F%2Fetc%2Fpasswd", "bad-redirect"), ("robots/noai", "robots-header"),
        ("robots/shardtool: noindex", "robots-header"), ("robots/other: noai", b""), ("robots/all", b""),
        ("gzip/a", b""), ("deflate/a", b""), ("to/%2Fok%2Fa", b""), ("ok/a b%20ü", b""), ("ok/%C3%BC", b""),
    ],
)  # fmt: skip
def test_responses_become_files_or_reason_codes(web: WebServer, path: str, code: str | bytes) -> None:
    """Each response is a file, or a failure with a reason code."""
    result = _one(web.url(path))
    assert result == code if isinstance(code, str) else isinstance(result, bytes) and result


def test_a_redirect_without_a_target_is_not_repeated(web: WebServer) -> None:
    """A redirect without a Location header fails after one request."""
    assert _one(web.url("to/")) == "bad-redirect"
    assert web.requests["/to/"] == 1


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("", "bad-url"), ("ok/a", "bad-url"), ("ftp://127.0.0.1/a", "bad-url"), ("http://", "bad-url"),
        ("http://127.0.0.1:99999/", "bad-url"), ("file:///etc/passwd", "bad-url"), ("http://[::1/", "bad-url"),
        ("javascript:alert(1)", "bad-url"), ("http://127.0.0.1:1/", "no-connection"), ("http://\ud800/", "bad-url"),
        ("https://127.0.0.1:1/", "no-connection"), (f"http://{'a' * 64}.localhost/", "bad-url"),
        ("http://a..localhost/", "bad-url"),
    ],
)  # fmt: skip
def test_invalid_urls(url: str, code: str) -> None:
    """An invalid URL, or one without a server, has its own reason code."""
    assert _one(url) == code


def test_an_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown host name has its own reason code."""

    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert _one("http://gone.example/a") == "no-host"


def test_temporary_dns_failures_are_retried(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary DNS failure is retried."""
    monkeypatch.setattr("shardtool.fetch.client._FIRST_WAIT_S", 0.01)
    hosts, real = [], socket.getaddrinfo

    def busy(host: str, *more: Any, **options: Any) -> list[Any]:
        hosts.append(host)
        if len(hosts) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "later")
        return real("127.0.0.1", *more, **options)

    monkeypatch.setattr("socket.getaddrinfo", busy)
    assert _one(web.url("ok/a", "here.example"), retries=1) == body("a")
    assert hosts == ["here.example"] * 2


def test_too_many_open_files_stop_the_run(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lack of file descriptors stops the run, instead of counting as a failed URL."""

    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with fetching() as fetcher:
        monkeypatch.setattr("shardtool.fetch.client.socket.socket", none_left)
        fetcher.start([web.url("ok/a")])
        with pytest.raises(OutputFailed, match="too many open files") as caught:
            fetcher.take(0)
        monkeypatch.undo()
    assert "connections" in caught.value.remedy


@pytest.mark.parametrize("host", ["2130706433", "0"])
def test_numeric_hosts_are_refused(web: WebServer, host: str) -> None:
    """An address written as a single number is not a valid host."""
    assert _one(web.url("ok/a", host)) == "bad-url"


def test_https_requires_tls(web: WebServer) -> None:
    """A server without valid TLS gives no file."""
    assert _one(web.url("ok/a").replace("http:", "https:")) == "bad-certificate"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]"])  # noqa: S104
def test_private_addresses_are_refused(web: WebServer, host: str) -> None:
    """An address of this machine is refused in any notation, unless allowed."""
    assert _one(web.url("ok/a", host), allow_private=False) == "refused-address"
    assert not web.requests


def test_redirects_to_private_addresses_are_refused(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each redirect is checked: a public server cannot redirect to this machine."""
    monkeypatch.setattr("shardtool.fetch.client.is_public", lambda address: address == "127.0.0.1")
    target = web.url("ok/a", "127.0.0.2").replace("/", "%2F")
    assert _one(web.url(f"to/{target}"), allow_private=False) == "refused-address"
    assert [*web.requests] == [f"/to/{target}"]
    assert _one(web.url("ok/a"), allow_private=False) == body("a")


def test_the_connected_address_is_checked(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to a private address is refused when connecting, despite an earlier lookup."""
    seen = []

    def look(address: str) -> bool:
        seen.append(address)
        return False

    monkeypatch.setattr("shardtool.fetch.client.is_public", look)
    assert _one(web.url("ok/a", "localhost"), allow_private=False) == "refused-address"
    assert "127.0.0.1" in seen
    assert not web.requests


@pytest.mark.slow
@pytest.mark.parametrize("path", ["sized/2000", "endless/a", "bomb/a", "gzip/abc"])
def test_large_files_are_refused(web: WebServer, path: str) -> None:
    """A file over the limit is refused while it is read, as sent and as decompressed; none of it stays held."""
    limit = 1000 if path != "gzip/abc" else len(body("abc")) - 1
    with fetching(max_bytes=limit) as fetcher:
        assert _all(fetcher, [web.url(path), web.url("ok/a")])[0] == "too-large"
        assert settles(lambda: held(fetcher) == 0)
    assert _one(web.url("sized/2000"), max_bytes=2000) == bytes(2000)


def test_decompression_stops_at_the_limit(web: WebServer) -> None:
    """A compressed body is decompressed only up to the limit."""
    begun = time.process_time()
    assert _one(web.url("bomb/a"), max_bytes=BOMB // 100) == "too-large"
    assert time.process_time() - begun < 2


@pytest.mark.slow
@pytest.mark.parametrize(("path", "options"), [("stall/a", {"timeout_s": 2}), ("drip/a", {"max_time_s": 2})])
def test_time_is_limited(web: WebServer, path: str, options: dict[str, float]) -> None:
    """A silent or slow server times out; other files arrive meanwhile."""
    with fetching(**options) as fetcher:
        assert _all(fetcher, [web.url(path), web.url("ok/a")]) == ["timeout", body("a")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "codes"),
    [
        ("continue", {"timeout", "bad-response"}), ("headers", {"timeout"}), ("many-headers", {"bad-response"}),
        ("redirect", {body("b")}), ("missing", {"http-404"}), ("slow-missing", {"timeout", "http-404"}),
        ("length", {"bad-response"}), ("negative", {"bad-response"}), ("chunk", {"bad-response", "cut-short"}),
        ("long-chunk", {"bad-response", "cut-short", "too-large"}),
        ("chunk-name", {"timeout", "bad-response", "cut-short"}),
    ],
)  # fmt: skip
def test_hostile_responses_end(web: WebServer, path: str, codes: set[str | bytes]) -> None:
    """An endless response, or one with impossible lengths, fails within the time limit."""
    assert _one(web.url(f"hostile/{path}"), max_time_s=3) in codes


def test_temporary_failures_are_retried(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server and a truncated body are retried; permanent failures are not."""
    monkeypatch.setattr("shardtool.fetch.client._FIRST_WAIT_S", 0.01)
    paths = ["busy/2/a", "busy/3/a", "cut/once/a", "status/404"]
    with fetching(retries=2) as fetcher:
        files = _all(fetcher, [web.url(path) for path in paths])
    assert files == [body("2/a"), "http-503", body("once/a"), "http-404"]
    assert [web.requests[f"/{path}"] for path in paths] == [3, 3, 2, 1]


@pytest.mark.slow
def test_retry_after(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After is obeyed; if it exceeds the remaining time, the file fails immediately."""
    monkeypatch.setattr("shardtool.fetch.client._FIRST_WAIT_S", 0.001)
    begun = time.monotonic()
    assert _one(web.url("later_than/1"), retries=1) == "http-429"
    assert time.monotonic() - begun >= 1
    assert _one(web.url("later_than/3600"), retries=1) == "http-429"
    assert _one(web.url("later_than/Wed, 21 Oct 2099 07:28:00 GMT"), retries=1) == "http-429"
    assert time.monotonic() - begun < 60  # immediately, instead of after an hour or years
    assert [*web.requests.values()] == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "per_host", "limit"), [(4, 64, 4), (16, 3, 3), (1, 1, 1)])
def test_concurrent_requests_are_limited(web: WebServer, connections: int, per_host: int, limit: int) -> None:
    """Concurrent requests stay within the limits in total and per host, plus one for the next file."""
    with fetching(connections=connections, per_host=per_host) as fetcher:
        files = _all(fetcher, [web.url(f"later/{number}") for number in range(40)])
    assert files == [body(str(number)) for number in range(40)]
    assert limit <= max(web.max_concurrent.values()) + (limit > 3) <= limit + 2


def test_a_busy_host_delays_only_its_own_files(web: WebServer) -> None:
    """A host at its limit delays only its own files."""
    urls = [web.url(f"later/{number}", "localhost" if number % 10 else "127.0.0.1") for number in range(40)]
    with fetching(connections=8, per_host=2) as fetcher:
        files = _all(fetcher, urls)
    assert files == [body(str(number)) for number in range(40)]
    assert max(web.max_concurrent.values()) <= 3


def test_memory_is_limited(web: WebServer) -> None:
    """Held bytes stay below the limit, except for the next file."""
    size, memory = 50_000, 200_000
    with fetching(connections=32, memory=memory, timeout_s=5) as fetcher:
        fetcher.start([web.url("sized/50000")] * 40)
        assert settles(lambda: held(fetcher) > memory // 2)
        max_held = 0
        for number in range(40):
            max_held = max(max_held, held(fetcher))
            assert fetcher.take(number) == bytes(size)
        assert memory // 2 < max_held <= memory + size
        assert settles(lambda: held(fetcher) == 0)


@pytest.mark.slow
def test_waiting_for_memory_does_not_time_out(web: WebServer) -> None:
    """A file's timeout is paused while it waits for memory."""
    with fetching(connections=8, memory=60_000, max_time_s=2, timeout_s=5) as fetcher:
        fetcher.start([web.url("sized/50000")] * 6)
        time.sleep(2.5)
        assert [len(fetcher.take(number)) for number in range(6)] == [50_000] * 6


def test_skipped_files_are_released(web: WebServer) -> None:
    """Skipped files are dropped, and so is a list of files when another starts; no memory is held."""
    with fetching(connections=4, memory=200_000) as fetcher:
        fetcher.start([web.url("sized/50000")] * 40)
        assert fetcher.take(9) == bytes(50_000)
        assert fetcher.take(30) == bytes(50_000)
        fetcher.start([web.url("ok/a"), web.url("stall/a"), web.url("ok/b")])
        assert fetcher.take(0) == body("a")
        assert fetcher.take(2) == body("b")
        fetcher.start(())
        assert settles(lambda: held(fetcher) == 0)


def test_a_new_list_cancels_the_old_one(web: WebServer) -> None:
    """No file of a list starts after another list has started, and results are never mixed up."""
    with fetching(connections=8) as fetcher:
        fetcher.start([web.url(f"later/old-{number}") for number in range(200)])
        fetcher.take(3)
        assert _all(fetcher, [web.url(f"later/{number}") for number in range(60)]) == [
            body(f"{number}") for number in range(60)
        ]
    assert sum("old" in path for path in web.requests) < 32


def test_request_headers(web: WebServer) -> None:
    """A request has the User-Agent and asks for an unencoded body; a URL's password is only sent to its host."""
    with fetching(user_agent="me/1") as fetcher:
        url = web.url("ok/a").replace("://", "://user:secret@")
        assert _all(fetcher, [url]) == [body("a")]
        assert (web.last_headers["User-Agent"], web.last_headers["Accept-Encoding"]) == ("me/1", "identity")
        assert web.last_headers["Authorization"].startswith("Basic ")
        _all(fetcher, [web.url("ok/b")])
        assert "Authorization" not in web.last_headers
    assert FetchOptions().user_agent.startswith("shardtool/")


def test_images_only(web: WebServer) -> None:
    """With `images`, content that does not start like an image is refused."""
    assert _one(web.url("text/a"), images=True) == "not-an-image"
    assert _one(web.url("ok/a"), images=True) == body("a")
    assert _one(web.url("text/a")) == b"<html>no picture</html>"


def _all_taken(fetcher: HttpFetcher, count: int) -> list[bytes]:
    return [fetcher.take(number) for number in range(count)]


def test_lack_of_memory_is_raised(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no memory to start a download, the caller gets the error instead of waiting forever."""

    def no_memory(_self: HttpFetcher) -> None:
        raise MemoryError

    with fetching(connections=1) as fetcher:
        fetcher.start([web.url("later/a"), web.url("ok/b"), *([web.url("ok/c")] * 20)])
        monkeypatch.setattr("shardtool.fetch.fetcher.HttpFetcher._start_more", no_memory)
        with pytest.raises(MemoryError):
            _all_taken(fetcher, 22)
        monkeypatch.undo()


def test_close_stops_the_thread(web: WebServer) -> None:
    """Closing stops the thread, even during downloads."""
    before = threading.active_count()
    with fetching() as fetcher:
        fetcher.start([web.url("stall/a")] * 3)
        time.sleep(0.05)
    web.stalled.set()
    assert all(thread.name != "shardtool-fetch" for thread in threading.enumerate())
    assert threading.active_count() <= before + 3  # the server's


_KINDS = ("ok", "later", "sized", "status", "other", "cut")


@settings(max_examples=15, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(_KINDS), min_size=1, max_size=30),
    limits=st.fixed_dictionaries({
        "connections": st.integers(1, 5), "per_host": st.integers(1, 2), "memory": st.sampled_from([1, 5000, 40_000]),
    }),
    passed=st.sets(st.integers(0, 29)),
)  # fmt: skip
def test_downloads_never_deadlock(kinds: list[str], limits: dict[str, int], passed: set[int]) -> None:
    """With any waits for connections, redirects and memory, each requested file arrives."""
    with web_server() as web, fetching(**limits, max_time_s=20) as fetcher:
        paths = {
            "ok": "ok/{}", "later": "later/{}", "sized": "sized/9000", "status": "status/404", "cut": "cut/{}",
            "other": "to/" + web.url("later/{}", "localhost").replace("/", "%2F"),
        }  # fmt: skip
        fetcher.start([web.url(paths[kind].format(number)) for number, kind in enumerate(kinds)])
        for number, kind in enumerate(kinds):
            if number in passed:
                continue
            try:
                result: bytes | str = fetcher.take(number)
            except FetchFailed as failed:
                result = failed.code
            wanted = {"sized": bytes(9000), "status": "http-404", "cut": "cut-short"}
            assert result == wanted.get(kind, body(str(number)))
