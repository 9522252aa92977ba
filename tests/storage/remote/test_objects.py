"""Reading objects over HTTP: the requested bytes of one version, or an error that names the object."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import AccessRefused, StoreFailed
from shardtool.storage import files
from shardtool.storage.remote import retry
from shardtool.storage.remote.objects import RemoteObject, read_ranges
from shardtool.storage.remote.requests import ReadAheadStream, imap_requests
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

_DATA = random.Random(0).randbytes(9_000_000)  # noqa: S311 - no secret


@pytest.fixture(scope="module")
def proxy(http_files: Server, proxies: Callable[[Server], FaultyProxy]) -> FaultyProxy:
    """Return a server that produces faults."""
    return proxies(http_files)


@pytest.fixture(scope="module")
def object_at(proxy: FaultyProxy) -> str:
    """Return the address of an object."""
    at = proxy.server.new_prefix()
    (proxy.server.local(at) / "a b#.bin").write_bytes(_DATA)
    (proxy.server.local(at) / "empty").write_bytes(b"")
    return f"{at}/a%20b%23.bin"


@pytest.fixture(autouse=True)
def _harmless(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.set()
    monkeypatch.setattr(retry, "DEFAULT_POLICY", retry.RetryPolicy(first_wait_s=0.01, max_total_s=60))


def test_read_ranges(object_at: str, proxy: FaultyProxy) -> None:
    """Ranges in any order, empty, overlapping, large or past the end are read; neighbours share a request."""
    draw = random.Random(1)  # noqa: S311 - no secret
    offsets = [draw.randrange(len(_DATA)) for _ in range(30)] + [0, 100, 100, 7_000, len(_DATA) - 5, len(_DATA)]
    lengths = [draw.choice((0, 1, 500, 70_000)) for _ in range(30)] + [50, 0, 7_000, 5_000_000, 50, 5]
    pieces = list(read_ranges(RemoteObject(object_at), offsets, lengths))
    assert pieces == [_DATA[at : at + length] for at, length in zip(offsets, lengths, strict=True)]
    blob = RemoteObject(object_at, len(_DATA))
    proxy.set()
    assert len(list(read_ranges(blob, [10, 2_000, 40_000], [100, 100, 100]))) == 3
    assert [request.range for request in proxy.log().asked] == ["bytes=10-40099"]


def test_small_files_are_one_request(object_at: str, proxy: FaultyProxy) -> None:
    """A whole object or its end takes one request; an object above the limit is not read."""
    assert files.read_small(object_at) == _DATA
    assert files.read_tail(object_at, 1_000) == _DATA[-1_000:]
    assert files.read_tail(object_at, 10**8) == _DATA
    assert [request.method for request in proxy.log().asked] == ["GET"] * 3
    empty = object_at.replace("a%20b%23.bin", "empty")
    assert files.read_small(empty) == files.read_tail(empty, 10) == b""
    proxy.set()
    with pytest.raises(OSError, match="too large"):
        files.read_small(object_at, 1_000_000)
    assert files.plain_size(f"{object_at}x") is None
    with pytest.raises(FileNotFoundError):
        files.read_tail(f"{object_at}x", 10)


def test_read_file_needs_memory_for_one_copy(object_at: str, proxy: FaultyProxy) -> None:
    """A whole object is not joined from pieces, which would double the memory."""
    size, into = 40_000_000, memoryview(bytearray(40_000_000))
    at = object_at.replace("a%20b%23.bin", "large")
    with (proxy.server.local(object_at.rpartition("/")[0]) / "large").open("wb") as file:
        file.truncate(size)
    tracemalloc.start()
    try:
        assert files.read_file(at.encode(), into, 0)[0] == size
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()


def test_limit_applies_without_content_length(object_at: str, proxy: FaultyProxy) -> None:
    """An object above the limit is refused even if the first response has no size."""
    proxy.set(Fault("raw", body="HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nx"))
    with pytest.raises(OSError, match="too large"):
        files.read_small(object_at, 1_000_000)
    proxy.set(Fault("raw", body="HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nx"))
    assert files.read_small(object_at) == _DATA


def test_part_of_an_object_is_not_the_object(object_at: str, proxy: FaultyProxy) -> None:
    """If a server returns only a part that was not requested, the whole object is requested again."""
    proxy.set(Fault("status", status=206, headers={"Content-Range": f"bytes 0-0/{len(_DATA)}"}, body="x"))
    assert files.read_small(object_at) == _DATA


def test_read_tail_without_suffix_ranges(object_at: str, proxy: FaultyProxy) -> None:
    """If a server does not support suffix ranges, the end is still read without the whole object."""
    proxy.set(Fault("whole"))
    assert files.read_tail(object_at, 1_000) == _DATA[-1_000:]
    ranges = [request.range for request in proxy.log().asked]
    assert ranges[1:] == ["bytes=0-0", f"bytes={len(_DATA) - 1_000}-{len(_DATA) - 1}"]


@pytest.mark.parametrize("do", ["status", "cut", "reset", "lost", "refuse"])
def test_transient_failures_are_retried(do: str, object_at: str, proxy: FaultyProxy) -> None:
    """A failed response is requested again, starting after the last byte received."""
    proxy.set(Fault(do, times=2))
    assert RemoteObject(object_at).read(0, len(_DATA)) == _DATA
    proxy.set(Fault(do, times=2))
    assert files.read_small(object_at) == _DATA
    blob = RemoteObject(object_at)
    proxy.set(Fault("cut", at=3_000_000))
    assert b"".join(blob.pieces()) == _DATA
    assert [request.range for request in proxy.log().asked][1] == f"bytes=3000000-{len(_DATA) - 1}"


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (Fault("etag", times=None), "changed while it was read"),
        (Fault("shift", times=None), "bytes 1001-"),
        (Fault("length", times=None), "a response of"),
        (Fault("whole", times=None), "does not support range requests"),
        (Fault("gzip", times=None), ""),
        (Fault("cut", times=None), " attempts in "),
    ],
)
def test_wrong_responses_are_detected(
    fault: Fault, found: str, object_at: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response with another version, range, length or encoding, or always cut off, is an error naming the object."""
    blob = RemoteObject(object_at)
    blob.read(0, 10)
    monkeypatch.setenv(retry.RETRY_FOR, "0.5")
    proxy.set(fault)
    with pytest.raises((OSError, StoreFailed)) as caught:
        blob.read(1_000, 1_000_000)
    assert "a%20b%23.bin" in str(caught.value)
    assert found in str(caught.value)


def test_an_object_of_another_size_is_not_read(object_at: str) -> None:
    """An object whose size differs from the expected size is not read."""
    with pytest.raises(OSError, match=r"9,000,000 bytes; expected 8,000,000"):
        RemoteObject(object_at, 8_000_000).read(0, 10)


def test_no_request_after_a_refusal(object_at: str, proxy: FaultyProxy) -> None:
    """After status 403, the same reader sends no further request."""
    blob = RemoteObject(object_at)
    proxy.set(Fault("status", status=403, times=None))
    with pytest.raises(AccessRefused):
        b"".join(blob.pieces())
    assert len(proxy.log().asked) == 1


def _count_ahead_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("shardtool-ahead")


def test_sequential_reads_need_few_requests(object_at: str, proxy: FaultyProxy) -> None:
    """`ReadAheadStream` uses one request and a thread that ends on close; sequential `read_into` uses few requests."""
    blob = RemoteObject(object_at)
    proxy.set()
    ahead, buffer = ReadAheadStream(blob.pieces), memoryview(bytearray(700_000))
    got = bytearray()
    while size := ahead.readinto(buffer):
        got += buffer[:size]
    assert bytes(got) == _DATA
    assert len(proxy.log().asked) == 1
    ahead.close()
    ahead = ReadAheadStream(blob.pieces)
    ahead.readinto(buffer)
    assert _count_ahead_threads() == 1
    ahead.close()
    assert _count_ahead_threads() == 0
    spans = RemoteObject(object_at)
    proxy.set()
    for offset in [*range(0, 8_500_000, 70_000), 5, 6_000_000]:
        assert spans.read_into(buffer[:69_000], offset) == 69_000
        assert buffer[:69_000] == _DATA[offset : offset + 69_000]
    assert spans.read_into(buffer, len(_DATA) - 7) == 7
    spans.close()
    assert len(proxy.log().asked) < 20


def test_imap_requests() -> None:
    """Results are in order, an error is raised in the position of its result, and the limit is kept."""
    running, max_running, lock = 0, 0, threading.Lock()

    def ask(number: int) -> int:
        nonlocal running, max_running
        with lock:
            running += 1
            max_running = max(max_running, running)
        if number == 50:
            raise ValueError(number)
        with lock:
            running -= 1
        return number

    results: list[int] = []
    with pytest.raises(ValueError, match="50"):
        results.extend(iter(imap_requests(ask, range(100), 4)))
    assert list(imap_requests(ask, range(20), 3)) == list(range(20))
    assert max_running <= 5


_CHUNKS = f"1000\r\n{'x' * 4096}\r\n"


@pytest.mark.parametrize("head", ["307 Away\r\nLocation: {path}?2", "416 No\r\nContent-Range: bytes */9", "503 Busy"])
def test_endless_bodies_of_unused_responses_are_not_read(head: str, object_at: str, proxy: FaultyProxy) -> None:
    """Redirects, 416 and errors can have endless bodies, which are not read."""
    head = head.format(path=object_at)
    answer = f"HTTP/1.1 {head}\r\nTransfer-Encoding: chunked\r\n\r\n"
    proxy.set(Fault("raw", body=answer, to=_CHUNKS, every_s=0))
    assert RemoteObject(object_at).size == len(_DATA)


def test_size_of_one_byte_is_not_the_size_of_the_object(object_at: str, proxy: FaultyProxy) -> None:
    """A partial response without Content-Range is an error of the server, not an object with the size of the part."""
    proxy.set(Fault("raw", body="HTTP/1.1 206 Part\r\nContent-Length: 1\r\n\r\nx"))
    with pytest.raises(StoreFailed, match="a partial response without a valid Content-Range"):
        RemoteObject(object_at)


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        "307 Away\r\nLocation: http://[::1\r\nContent-Length: 0",
        "307 Away\r\nLocation: http://127.0.0.1:999999/\r\nContent-Length: 0",
        f"307 Away\r\nLocation: http://{'x' * 70}.127.0.0.1/\r\nContent-Length: 0",
        f"200 OK\r\nContent-Length: {'9' * 5000}",
        f"206 Part\r\nContent-Range: bytes 0-{'9' * 5000}/{'9' * 5000}",
        "206 Part\r\nContent-Range: bytes 0-99/9000000\r\nTransfer-Encoding: chunked\r\n\r\n-5",
        "200 OK\r\nContent-Length: -5",
        f"HTTP/9{'9' * 5000}",
    ],
)
def test_invalid_http_is_an_error(
    answer: str, object_at: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invalid addresses, lengths and chunks are errors that name the object."""
    monkeypatch.setenv(retry.RETRY_FOR, "0.1")
    proxy.set(Fault("raw", times=None, body=f"HTTP/1.1 {answer}\r\n\r\n"))
    for ask in (
        lambda at: RemoteObject(at).read(0, 100),
        files.read_small,
        lambda at: RemoteObject(at, len(_DATA)).read(0, 100),
    ):
        with pytest.raises(StoreFailed, match=r"a%20b%23\.bin"):
            ask(object_at)


def test_a_stalled_server_does_not_keep_the_process_alive() -> None:
    """A process that stops reading ahead can exit, whatever the server still has to send."""
    code = """
import time
from shardtool.storage.remote.requests import ReadAheadStream
class Slow:
    def pieces(self):
        while True:
            yield bytes(2**20)
            time.sleep(600)
ReadAheadStream(Slow().pieces).readinto(bytearray(100))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
