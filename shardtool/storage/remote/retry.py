"""Retry failed requests, and cancel requests.

Threads wait in short steps (`SLICE_S`) and check for cancellation after each step.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardtool.errors import InvalidRequest, StoreFailed
from shardtool.storage.remote.address import display_address
from shardtool.storage.remote.notices import RequestRetry, emit, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future


Result = TypeVar("Result")


RETRY_FOR, MIN_SPEED = "SHARDTOOL_RETRY_FOR", "SHARDTOOL_LEAST_SPEED"
_SECONDS_EXPECTED = "seconds, such as 300"
MAX_SETTING = 1e9
_RETRY_ADVICE = "Try again when the server can be reached."
_UNREACHABLE_ADVICE = "Check the address, proxy and firewall, or try again later."
SLICE_S = 0.2


class RetryPolicy(NamedTuple):
    """Limits for retries, waits and slow servers.

    Attributes:
        tries: Maximum attempts if the server has never responded, because the endpoint may be wrong. An upload also
            stops after this many attempts if the last attempt got no response.
        first_wait_s: Maximum wait before the first retry. This maximum doubles with each further retry.
        max_wait_s: Maximum wait, unless the server requests a longer wait.
        max_total_s: No retry starts after this many seconds without progress.
        first_response_s: Upper limit for `max_total_s` until the server responds for the first time.
        notice_s: If there is no response after this many seconds, the user gets a notice.
        min_bytes_per_s: Minimum speed, measured over `speed_window_s` seconds of waiting.
    """

    tries: int = 7
    first_wait_s: float = 0.2
    max_wait_s: float = 30.0
    max_total_s: float = 300.0
    first_response_s: float = 60.0
    notice_s: float = 10.0
    min_bytes_per_s: float = 1000.0
    speed_window_s: float = 60.0


DEFAULT_POLICY = RetryPolicy()
_servers_that_responded: set[str] = set()
_is_worker = threading.Event()
_notice_lock = threading.Lock()
_thread_state = threading.local()
_deadlines: list[float] = []  # `end_requests` adds the time by which all requests must stop


class TransientError(Exception):
    """A temporary failure, such as a lost connection.

    Attributes:
        wait_s: Seconds to wait as requested by the server, or None.
        has_response: Whether the server responded, although the request failed.
        stalled_s: Seconds without progress before the failure.
    """

    def __init__(
        self, found: str, wait_s: float | None = None, *, has_response: bool = False, stalled_s: float = 0.0
    ) -> None:
        super().__init__(found)
        self.found, self.wait_s, self.has_response, self.stalled_s = found, wait_s, has_response, stalled_s


class RequestCancelled(Exception):
    """A request was cancelled, because its result is no longer needed."""


@contextmanager
def cancel_on(stop: threading.Event) -> Iterator[None]:
    """When `stop` is set, cancel the requests that this thread sends in the `with` block."""
    outer_stop = getattr(_thread_state, "stop", None)
    _thread_state.stop = stop
    try:
        yield
    finally:
        _thread_state.stop = outer_stop


@contextmanager
def with_policy(policy: RetryPolicy) -> Iterator[None]:
    """Use a policy for this thread's requests in the `with` block."""
    _thread_state.policy = policy
    try:
        yield
    finally:
        del _thread_state.policy


def _current_policy() -> RetryPolicy:
    return getattr(_thread_state, "policy", DEFAULT_POLICY)


def end_requests(within_s: float) -> None:
    """Cancel all requests. The main thread can send requests for `within_s` more seconds, to release its locks."""
    _deadlines.append(time.monotonic() + within_s)


def check_cancelled() -> None:
    """Raise `RequestCancelled` if the requests of this thread are cancelled."""
    stop = getattr(_thread_state, "stop", None)
    if stop is not None and stop.is_set():
        raise RequestCancelled
    if _deadlines and (time.monotonic() > _deadlines[0] or threading.current_thread() is not threading.main_thread()):
        raise RequestCancelled


def in_thread(call: Callable[[], Result]) -> Result:
    """Run an uninterruptible call in another thread. After `RequestCancelled`, the thread continues to run."""
    from concurrent.futures import Future, wait

    check_cancelled()
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            future.set_exception(error)

    threading.Thread(target=run, name="shardtool-call", daemon=True).start()
    while not wait([future], SLICE_S).done:
        check_cancelled()
    return future.result()


def wait_interruptibly(future: Future[Result]) -> Future[Result]:
    """Wait for a future in short steps, so signals can interrupt the wait."""
    from concurrent.futures import wait

    while not future.done():
        wait([future], SLICE_S)
    return future


def pause(seconds: float) -> None:
    """Sleep. Raise `RequestCancelled` if the requests of this thread are cancelled."""
    end = time.monotonic() + seconds
    while (remaining_s := end - time.monotonic()) > 0:
        check_cancelled()
        time.sleep(min(remaining_s, SLICE_S))


class RetryState:
    """Counts the attempts of one request, and the time without progress.

    While data arrives, the time without progress decreases gradually. It is not reset to 0, so a server that repeatedly
    sends a little data and stalls reaches the limit.
    """

    def __init__(self, address: str) -> None:
        self._where, self._server = display_address(address), _server_of(address)
        self._failures, self._start_s = 0, time.monotonic()
        self._progress_s = self._start_s
        self._stalled_s = 0.0
        self._waited_s, self._counts_waits_only = 0.0, False

    def count_waits_only(self, stalled_s: float) -> None:
        """From now on, count only waits and stalls as time without progress, not the duration of attempts."""
        self._waited_s += stalled_s
        self._start_s, self._counts_waits_only = time.monotonic() - self._waited_s, True

    def record_progress(self) -> None:
        """Record that data arrived."""
        now = time.monotonic()
        if not self._failures:
            self._stalled_s = max(0.0, self._stalled_s - (now - self._progress_s))
        self._failures, self._progress_s, self._start_s = 0, now, now - self._stalled_s
        _servers_that_responded.add(self._server)

    def wait_or_give_up(self, error: TransientError) -> None:
        """Wait a random time before the next attempt, or raise `StoreFailed` if the limits are reached."""
        import random

        self._failures += 1
        if error.has_response or error.wait_s is not None:
            _servers_that_responded.add(self._server)
        policy, max_total_s = _current_policy(), retry_for()
        responded = _has_responded(self._server)
        spent_s = time.monotonic() - self._start_s
        remaining_s = (max_total_s if responded else min(max_total_s, policy.first_response_s)) - spent_s
        has_max_tries = not responded or (self._counts_waits_only and not error.has_response)
        if remaining_s <= 0 or (has_max_tries and self._failures >= policy.tries):
            times = f" ({self._failures} attempts in {spent_s:,.0f} s)" if self._failures > 1 else ""
            found = f"{error.found}{times}"
            remedy = _RETRY_ADVICE if responded else _UNREACHABLE_ADVICE
            raise StoreFailed(self._where, found, remedy=remedy) from None
        wait_s = random.uniform(0, min(policy.max_wait_s, policy.first_wait_s * 2 ** min(self._failures - 1, 30)))  # noqa: S311 - not used for security
        wait_s = min(max(wait_s, error.wait_s or 0), remaining_s)
        emit(RequestRetry(self._where, error.found, self._failures, wait_s))
        self._waited_s += wait_s
        pause(wait_s)
        self._stalled_s = time.monotonic() - self._start_s


def set_retry_for(text: str) -> None:
    """Set how long requests are retried, in seconds, also in child processes."""
    _parse_numbers(RETRY_FOR, text, _SECONDS_EXPECTED)
    os.environ[RETRY_FOR] = text


def retry_for() -> float:
    """Return how long requests are retried, in seconds."""
    text = "" if hasattr(_thread_state, "policy") else os.environ.get(RETRY_FOR, "")
    return _parse_numbers(RETRY_FOR, text, _SECONDS_EXPECTED)[0] if text else _current_policy().max_total_s


def min_speed() -> tuple[float, float]:
    """Return the minimum speed in bytes per second, and the seconds over which it is measured."""
    text, policy = os.environ.get(MIN_SPEED, ""), _current_policy()
    if not text or hasattr(_thread_state, "policy"):
        return policy.min_bytes_per_s, policy.speed_window_s
    min_bytes_per_s, *speed_window_s = _parse_numbers(MIN_SPEED, text, "BYTES_PER_SECOND/SECONDS, such as 1000/60")
    return min_bytes_per_s, (speed_window_s[0] if speed_window_s else policy.speed_window_s)


def _parse_numbers(name: str, text: str, expected: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split("/", 1)]
    except ValueError:
        numbers = []
    if not numbers or not all(0 <= number <= MAX_SETTING for number in numbers):
        raise InvalidRequest(name, repr(text[:40]), expected=expected)
    return numbers


def _server_of(address: str) -> str:
    # Keep the marker, because two servers can have buckets of the same name.
    return "/".join(address.split("/", 3)[:3])


def _has_responded(server: str) -> bool:
    return _is_worker.is_set() or server in _servers_that_responded


def start_worker() -> None:
    """In this worker process, assume that all servers have responded, because the parent has contacted them."""
    _is_worker.set()


def with_retries(address: str, call: Callable[[], Result]) -> Result:
    """Repeat a call while it raises `TransientError`, and return its result."""
    attempts = RetryState(address)
    with _waiting_notice(address):
        while True:
            try:
                result = call()
            except TransientError as error:
                attempts.wait_or_give_up(error)
            else:
                _servers_that_responded.add(_server_of(address))
                return result


@contextmanager
def _waiting_notice(address: str) -> Iterator[None]:
    if _has_responded(_server_of(address)) or not _notice_lock.acquire(blocking=False):
        yield
        return
    seconds = DEFAULT_POLICY.notice_s
    text = f"{display_address(address)}: no response for {seconds:.0f} seconds; still waiting"
    timer = threading.Timer(seconds, warn, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _notice_lock.release()
