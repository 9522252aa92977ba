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
    fetcher.begin(urls)
    found: list[bytes | str] = []
    for number in range(len(urls)):
        try:
            found.append(fetcher.take(number))
        except FetchFailed as failed:
            found.append(failed.code)
    return found


def _one(url: str, **options: Any) -> bytes | str:
    with fetching(**options) as fetcher:
        return _all(fetcher, [url])[0]


def test_files_come_in_order(web: WebServer) -> None:
    """Files are given in the order in which they are asked for, whichever arrives first; connections stay open."""
    names = [f"{'later' if number % 3 else 'ok'}/{number}" for number in range(60)]
    with fetching(connections=8) as fetcher:
        for _ in range(2):
            found = _all(fetcher, [web.url(name) for name in names])
            assert found == [body(name.partition("/")[2]) for name in names]
    assert set(web.asked.values()) == {2}


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("status/404", "http-404"), ("status/403", "http-403"), ("status/500", "http-500"), ("status/204", "http-204"),
        ("cut/a", "cut-short"), ("drop/a", "no-connection"), ("garbage/a", "bad-response"),
        ("broken/a", "bad-response"),
        ("half/a", "cut-short"), ("brotli/a", "bad-response"), ("loop/0", "bad-redirect"), ("to/", "bad-redirect"),
        ("to/ftp:%2F%2F127.0.0.1%2Fa", "bad-redirect"), ("to/http:%2F%2F", "bad-redirect"),
        (f"to/http:%2F%2F{'a' * 64}.localhost%2F", "bad-redirect"), ("to/http:%2F%2F[::1%2F", "bad-redirect"),
        ("to/file:%2F%2F%2Fetc%2Fpasswd", "bad-redirect"), ("robots/noai", "robots-header"),
        ("robots/shardtool: noindex", "robots-header"), ("robots/other: noai", b""), ("robots/all", b""),
        ("gzip/a", b""), ("deflate/a", b""), ("to/%2Fok%2Fa", b""), ("ok/a b%20ü", b""), ("ok/%C3%BC", b""),
    ],
)  # fmt: skip
def test_what_an_answer_means(web: WebServer, path: str, code: str | bytes) -> None:
    """Each answer is a file, or a reason why there is none."""
    found = _one(web.url(path))
    assert found == code if isinstance(code, str) else isinstance(found, bytes) and found


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
def test_what_cannot_be_asked(url: str, code: str) -> None:
    """What is no URL of the web, or leads to no server, has its own reason."""
    assert _one(url) == code


def test_a_host_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that the name service does not know has its own reason."""

    def unknown(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert _one("http://gone.example/a") == "no-host"


def test_a_name_service_that_is_busy(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not known for now is asked for again."""
    monkeypatch.setattr("shardtool.fetch.client._FIRST_WAIT_S", 0.01)
    asked, real = [], socket.getaddrinfo

    def busy(host: str, *more: Any, **how: Any) -> list[Any]:
        asked.append(host)
        if len(asked) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "later")
        return real("127.0.0.1", *more, **how)

    monkeypatch.setattr("socket.getaddrinfo", busy)
    assert _one(web.url("ok/a", "here.example"), retries=1) == body("a")
    assert asked == ["here.example"] * 2


def test_too_many_open_files_are_no_fault_of_a_server(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine lacks ends the run: it is not listed as a failure of a URL."""

    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with fetching() as fetcher:
        monkeypatch.setattr("shardtool.fetch.client.socket.socket", none_left)
        fetcher.begin([web.url("ok/a")])
        with pytest.raises(OutputFailed, match="too many open files") as caught:
            fetcher.take(0)
        monkeypatch.undo()
    assert "connections" in caught.value.remedy


@pytest.mark.parametrize("host", ["2130706433", "0"])
def test_numbers_are_no_hosts(web: WebServer, host: str) -> None:
    """An address of this machine that is written as one number is no host."""
    assert _one(web.url("ok/a", host)) == "bad-url"


def test_https_to_what_speaks_no_tls(web: WebServer) -> None:
    """A server that cannot prove who it is gives no file."""
    assert _one(web.url("ok/a").replace("http:", "https:")) == "bad-certificate"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]"])  # noqa: S104
def test_private_addresses_are_refused(web: WebServer, host: str) -> None:
    """However an address of this machine is written, it is not asked, unless that is allowed."""
    assert _one(web.url("ok/a", host), allow_private=False) == "refused-address"
    assert not web.asked


def test_redirects_to_private_addresses_are_refused(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address on the way is checked: a server of the web cannot send us to this machine."""
    monkeypatch.setattr("shardtool.fetch.client.is_public", lambda address: address == "127.0.0.1")
    target = web.url("ok/a", "127.0.0.2").replace("/", "%2F")
    assert _one(web.url(f"to/{target}"), allow_private=False) == "refused-address"
    assert [*web.asked] == [f"/to/{target}"]
    assert _one(web.url("ok/a"), allow_private=False) == body("a")


def test_the_address_that_is_connected_to_is_checked(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to a private address is refused at the connection, whatever was said of it before."""
    seen = []

    def look(address: str) -> bool:
        seen.append(address)
        return False

    monkeypatch.setattr("shardtool.fetch.client.is_public", look)
    assert _one(web.url("ok/a", "localhost"), allow_private=False) == "refused-address"
    assert "127.0.0.1" in seen
    assert not web.asked


@pytest.mark.slow
@pytest.mark.parametrize("path", ["sized/2000", "endless/a", "bomb/a", "gzip/abc"])
def test_a_file_is_not_larger_than_the_limit(web: WebServer, path: str) -> None:
    """A file over the limit is given up while it is read, as sent and as unpacked; nothing of it stays held."""
    limit = 1000 if path != "gzip/abc" else len(body("abc")) - 1
    with fetching(max_bytes=limit) as fetcher:
        assert _all(fetcher, [web.url(path), web.url("ok/a")])[0] == "too-large"
        assert settles(lambda: held(fetcher) == 0)
    assert _one(web.url("sized/2000"), max_bytes=2000) == bytes(2000)


def test_a_bomb_takes_no_memory(web: WebServer) -> None:
    """Of a packed body, no more is unpacked than the limit allows."""
    begun = time.process_time()
    assert _one(web.url("bomb/a"), max_bytes=BOMB // 100) == "too-large"
    assert time.process_time() - begun < 2


@pytest.mark.slow
@pytest.mark.parametrize(("path", "options"), [("stall/a", {"timeout_s": 2}), ("drip/a", {"max_time_s": 2})])
def test_time_is_limited(web: WebServer, path: str, options: dict[str, float]) -> None:
    """A server that is silent, or sends a byte now and then, is given up; files of others arrive meanwhile."""
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
def test_a_hostile_answer_ends(web: WebServer, path: str, codes: set[str | bytes]) -> None:
    """An answer that never ends, or has impossible lengths, is a reason like others, within the limit of time."""
    assert _one(web.url(f"hostile/{path}"), max_time_s=3) in codes


def test_what_may_pass_is_tried_again(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server, and a body that was cut, are tried again as often as asked; what is for good is not."""
    monkeypatch.setattr("shardtool.fetch.client._FIRST_WAIT_S", 0.01)
    paths = ["busy/2/a", "busy/3/a", "cut/once/a", "status/404"]
    with fetching(retries=2) as fetcher:
        found = _all(fetcher, [web.url(path) for path in paths])
    assert found == [body("2/a"), "http-503", body("once/a"), "http-404"]
    assert [web.asked[f"/{path}"] for path in paths] == [3, 3, 2, 1]


@pytest.mark.slow
def test_a_server_that_asks_to_wait(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After is obeyed; where it asks for more than the time that is left, the file is given up at once."""
    monkeypatch.setattr("shardtool.fetch.client._FIRST_WAIT_S", 0.001)
    begun = time.monotonic()
    assert _one(web.url("later_than/1"), retries=1) == "http-429"
    assert time.monotonic() - begun >= 1
    assert _one(web.url("later_than/3600"), retries=1) == "http-429"
    assert _one(web.url("later_than/Wed, 21 Oct 2099 07:28:00 GMT"), retries=1) == "http-429"
    assert time.monotonic() - begun < 60  # "at once"; it would be an hour, and years
    assert [*web.asked.values()] == [2, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "per_host", "most"), [(4, 64, 4), (16, 3, 3), (1, 1, 1)])
def test_requests_at_once_are_limited(web: WebServer, connections: int, per_host: int, most: int) -> None:
    """No more requests go on at once than may, nor to one host; one more for the file that is asked for next."""
    with fetching(connections=connections, per_host=per_host) as fetcher:
        found = _all(fetcher, [web.url(f"later/{number}") for number in range(40)])
    assert found == [body(str(number)) for number in range(40)]
    assert most <= max(web.most.values()) + (most > 3) <= most + 2


def test_hosts_are_limited_each(web: WebServer) -> None:
    """A host that has all its requests holds back its own files only: those of another come meanwhile."""
    urls = [web.url(f"later/{number}", "localhost" if number % 10 else "127.0.0.1") for number in range(40)]
    with fetching(connections=8, per_host=2) as fetcher:
        found = _all(fetcher, urls)
    assert found == [body(str(number)) for number in range(40)]
    assert max(web.most.values()) <= 3


def test_memory_is_limited(web: WebServer) -> None:
    """Bytes that are held, and not taken, stay below the limit, but for the file that is asked for next."""
    size, memory = 50_000, 200_000
    with fetching(connections=32, memory=memory, timeout_s=5) as fetcher:
        fetcher.begin([web.url("sized/50000")] * 40)
        assert settles(lambda: held(fetcher) > memory // 2)
        most = 0
        for number in range(40):
            most = max(most, held(fetcher))
            assert fetcher.take(number) == bytes(size)
        assert memory // 2 < most <= memory + size
        assert settles(lambda: held(fetcher) == 0)


@pytest.mark.slow
def test_waiting_for_memory_takes_no_time(web: WebServer) -> None:
    """The clock of a file stands still while it waits for others to be taken."""
    with fetching(connections=8, memory=60_000, max_time_s=2, timeout_s=5) as fetcher:
        fetcher.begin([web.url("sized/50000")] * 6)
        time.sleep(2.5)
        assert [len(fetcher.take(number)) for number in range(6)] == [50_000] * 6


def test_files_are_passed_over_and_given_up(web: WebServer) -> None:
    """What is not asked for is dropped, and so is all of a list when another begins; nothing of it stays held."""
    with fetching(connections=4, memory=200_000) as fetcher:
        fetcher.begin([web.url("sized/50000")] * 40)
        assert fetcher.take(9) == bytes(50_000)
        assert fetcher.take(30) == bytes(50_000)
        fetcher.begin([web.url("ok/a"), web.url("stall/a"), web.url("ok/b")])
        assert fetcher.take(0) == body("a")
        assert fetcher.take(2) == body("b")
        fetcher.begin(())
        assert settles(lambda: held(fetcher) == 0)


def test_what_is_given_up_is_asked_for_no_more(web: WebServer) -> None:
    """No file of a list begins once another list has begun, and none of it is taken for a file of that one."""
    with fetching(connections=8) as fetcher:
        fetcher.begin([web.url(f"later/old-{number}") for number in range(200)])
        fetcher.take(3)
        assert _all(fetcher, [web.url(f"later/{number}") for number in range(60)]) == [
            body(f"{number}") for number in range(60)
        ]
    assert sum("old" in path for path in web.asked) < 32


def test_what_is_sent(web: WebServer) -> None:
    """A request says who asks, and asks for plain bytes; a password of a URL goes to its host, and no further."""
    with fetching(user_agent="me/1") as fetcher:
        url = web.url("ok/a").replace("://", "://user:secret@")
        assert _all(fetcher, [url]) == [body("a")]
        assert (web.seen["User-Agent"], web.seen["Accept-Encoding"]) == ("me/1", "identity")
        assert web.seen["Authorization"].startswith("Basic ")
        _all(fetcher, [web.url("ok/b")])
        assert "Authorization" not in web.seen
    assert FetchOptions().user_agent.startswith("shardtool/")


def test_images_are_asked_for(web: WebServer) -> None:
    """With `images`, what begins as no image does is no file."""
    assert _one(web.url("text/a"), images=True) == "not-an-image"
    assert _one(web.url("ok/a"), images=True) == body("a")
    assert _one(web.url("text/a")) == b"<html>no picture</html>"


def _all_taken(fetcher: HttpFetcher, count: int) -> list[bytes]:
    return [fetcher.take(number) for number in range(count)]


def test_a_lack_of_memory_beside_files_is_raised(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no memory to begin another file, who asks for it hears of that, and does not wait for ever."""

    def no_memory(_self: HttpFetcher) -> None:
        raise MemoryError

    with fetching(connections=1) as fetcher:
        fetcher.begin([web.url("later/a"), web.url("ok/b"), *([web.url("ok/c")] * 20)])
        monkeypatch.setattr("shardtool.fetch.fetcher.HttpFetcher._start_more", no_memory)
        with pytest.raises(MemoryError):
            _all_taken(fetcher, 22)
        monkeypatch.undo()


def test_no_thread_is_left(web: WebServer) -> None:
    """Closing ends the thread, also while files are fetched."""
    before = threading.active_count()
    with fetching() as fetcher:
        fetcher.begin([web.url("stall/a")] * 3)
        time.sleep(0.05)
    web.stalled.set()
    assert all(one.name != "shardtool-fetch" for one in threading.enumerate())
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
def test_something_always_goes_on(kinds: list[str], limits: dict[str, int], passed: set[int]) -> None:
    """Whatever waits for a turn, a host that redirects to another, or memory: each file that is asked for comes."""
    with web_server() as web, fetching(**limits, max_time_s=20) as fetcher:
        paths = {
            "ok": "ok/{}", "later": "later/{}", "sized": "sized/9000", "status": "status/404", "cut": "cut/{}",
            "other": "to/" + web.url("later/{}", "localhost").replace("/", "%2F"),
        }  # fmt: skip
        fetcher.begin([web.url(paths[kind].format(number)) for number, kind in enumerate(kinds)])
        for number, kind in enumerate(kinds):
            if number in passed:
                continue
            try:
                found: bytes | str = fetcher.take(number)
            except FetchFailed as failed:
                found = failed.code
            wanted = {"sized": bytes(9000), "status": "http-404", "cut": "cut-short"}
            assert found == wanted.get(kind, body(str(number)))
