"""The servers that need only Python, and the processes of all servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import pytest
import urllib3

from tests.faults.helpers import settles
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

DATA = bytes(range(256)) * 4000
NAME = "a b#ü?%.tar"
ESCAPED = "a%20b%23%C3%BC%3F%25.tar"


@pytest.fixture
def pool() -> Iterator[urllib3.PoolManager]:
    """Return a client that does not retry."""
    with urllib3.PoolManager(retries=False, timeout=60) as client:
        yield client


@pytest.fixture
def url(http_files: Server) -> str:
    """Return the address of a file."""
    at = http_files.new_prefix()
    (http_files.local(at) / NAME).write_bytes(DATA)
    return f"{at}/{ESCAPED}"


@pytest.fixture
def faulty(http_files: Server, proxies: Callable[[Server], FaultyProxy]) -> FaultyProxy:
    """Return the proxy before the file server."""
    return proxies(http_files)


@pytest.fixture
def through(url: str, http_files: Server, faulty: FaultyProxy) -> str:
    """Return the address of the file through the proxy."""
    return url.replace(http_files.url, faulty.server.url)


@pytest.mark.parametrize(
    ("asked", "status", "span"),
    [
        ("", 200, slice(None)),
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=300-", 206, slice(300, None)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=9-99999999", 206, slice(9, None)),
        ("bytes=99999999-", 416, slice(0, 0)),
        ("bytes=1-2,5-6", 200, slice(None)),
    ],
)
def test_ranges(url: str, pool: urllib3.PoolManager, asked: str, status: int, span: slice) -> None:
    """A range is sent with 206, one after the end gives 416, and an invalid or multiple range the whole file."""
    answer = pool.request("GET", url, headers={"Range": asked} if asked else {})
    assert (answer.status, answer.data) == (status, DATA[span])
    if status == 206:
        start, end, _ = span.indices(len(DATA))
        assert answer.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(DATA)}"


def test_conditions(url: str, http_files: Server, pool: urllib3.PoolManager) -> None:
    """A changed file has another ETag, and `If-Match` with the old one fails."""
    head = pool.request("HEAD", url)
    assert (head.status, head.data, head.headers["Content-Length"]) == (200, b"", str(len(DATA)))
    etag = {"If-Match": head.headers["ETag"]}
    assert pool.request("GET", url, headers=etag).data == DATA
    http_files.local(url.rpartition("/")[0]).joinpath(NAME).write_bytes(DATA[1:])
    assert pool.request("GET", url, headers=etag).status == 412
    assert pool.request("GET", f"{http_files.url}/none").status == 404
    assert pool.request("GET", f"{http_files.url}/..%2Flog").status == 404


def test_an_idle_proxy_changes_nothing(faulty: FaultyProxy, through: str, pool: urllib3.PoolManager) -> None:
    """Without faults, the proxy returns the server's response and logs the request."""
    answer = pool.request("GET", through, headers={"Range": "bytes=5-9"})
    assert (answer.status, answer.data) == (206, DATA[5:10])
    assert pool.request("HEAD", through).headers["Content-Length"] == str(len(DATA))
    log = faulty.log()
    assert [(one.method, one.range, one.status, one.sent) for one in log.asked] == [
        ("GET", "bytes=5-9", 206, 5),
        ("HEAD", "", 200, 0),
    ]
    assert log.asked[0].path.endswith(ESCAPED)
    assert log.most == 1


@pytest.mark.parametrize("do", ["refuse", "lost", "cut", "reset", "length"])
def test_broken_responses(faulty: FaultyProxy, through: str, pool: urllib3.PoolManager, do: str) -> None:
    """A reset or truncated response is an error of the client; the next request succeeds."""
    faulty.set(Fault(do))
    with pytest.raises(urllib3.exceptions.HTTPError):
        pool.request("GET", through)
    assert pool.request("GET", through).data == DATA
    assert [one.fault for one in faulty.log().asked] == [do, ""]


@pytest.mark.parametrize("do", ["silent", "stall"])
def test_missing_responses(faulty: FaultyProxy, through: str, pool: urllib3.PoolManager, do: str) -> None:
    """A client that waits for a missing response, or the rest of one, runs into its own timeout."""
    faulty.set(Fault(do))
    with pytest.raises(urllib3.exceptions.HTTPError):
        pool.request("GET", through, timeout=0.1)


def test_wrong_responses(faulty: FaultyProxy, through: str, pool: urllib3.PoolManager) -> None:
    """Flipped bit, other ETag, other range, no range, gzip and redirect work as documented."""
    faulty.set(Fault("flip", at=3))
    assert pool.request("GET", through).data == DATA[:3] + bytes([DATA[3] ^ 1]) + DATA[4:]
    right = pool.request("HEAD", through).headers["ETag"]
    faulty.set(Fault("etag"))
    assert pool.request("HEAD", through).headers["ETag"] != right
    part = {"Range": "bytes=5-9"}
    faulty.set(Fault("shift"))
    shifted = pool.request("GET", through, headers=part)
    assert (shifted.data, shifted.headers["Content-Range"]) == (DATA[6:11], f"bytes 6-10/{len(DATA)}")
    faulty.set(Fault("whole"))
    whole = pool.request("GET", through, headers=part)
    assert (whole.status, whole.data) == (200, DATA)
    faulty.set(Fault("gzip"))
    packed = pool.request("GET", through, decode_content=False)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.data) < len(DATA)
    faulty.set(Fault("redirect", to="http://127.0.0.1:9"))
    sent_on = pool.request("GET", through, redirect=False)
    assert (sent_on.status, sent_on.headers["Location"].startswith("http://127.0.0.1:9/")) == (307, True)


def test_faults_are_counted(faulty: FaultyProxy, through: str, pool: urllib3.PoolManager) -> None:
    """A fault applies to the matching requests, from `first` on, `times` times."""
    busy = Fault("status", status=503, headers={"Retry-After": "2"}, body="busy", first=2, times=2, method="GET")
    faulty.set(busy, Fault("status", status=403, path="/nothing", times=None))
    answers = [pool.request(method, through) for method in ("GET", "HEAD", "GET", "GET", "GET")]
    assert [one.status for one in answers] == [200, 200, 503, 503, 200]
    assert (answers[2].headers["Retry-After"], answers[2].data) == ("2", b"busy")
    faulty.set(Fault("status", chance=0.5, times=None), seed=3)
    first = [pool.request("GET", through).status for _ in range(12)]
    faulty.set(Fault("status", chance=0.5, times=None), seed=3)
    assert [pool.request("GET", through).status for _ in range(12)] == first
    assert {*first} == {200, 503}


def test_delay_and_rate(faulty: FaultyProxy, through: str, pool: urllib3.PoolManager) -> None:
    """Each request is delayed, and the rate of all bodies is limited."""
    faulty.set(delay_s=0.05, bytes_per_s=10_000_000)
    begun = time.monotonic()
    pool.request("GET", through)
    assert time.monotonic() - begun > 0.05 + len(DATA) / 10_000_000 * 0.9


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_nothing_outlives_the_tests() -> None:
    """If tests are killed, their servers and child processes exit."""
    code = (
        "import pathlib, sys, tempfile, time; from tests import warm; from tests.servers import stores\n"
        "with tempfile.TemporaryDirectory() as folder, stores.http_files(pathlib.Path(folder)) as server:\n"
        "    run = warm.Warm([], code='import time; print(1, flush=True); time.sleep(600)', cwd=folder, env={})\n"
        "    run.stdout.read(1); print(server.port, flush=True); time.sleep(600)"
    )
    token = f"OF_A_TEST={token_hex()}"
    environment = {**os.environ, **dict([token.split("=")])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as tests:
        assert tests.stdout is not None
        url = f"http://127.0.0.1:{int(tests.stdout.readline())}/"
        assert urllib3.request("GET", url, retries=False).status == 404
        assert len(_with(token)) == 5, "the tests, a server, and that of warm runs, one that waits, the run"
        os.kill(tests.pid, signal.SIGKILL)
    assert settles(lambda: not _with(token))


def _with(variable: str) -> list[int]:
    """Return the processes that have a variable in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
