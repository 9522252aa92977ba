"""Retry requests that failed temporarily, with one policy for all, and cancel them.

Threads that make requests wait in slices of `SLICE_S`, so that they can be cancelled. Calls into libraries that
cannot be interrupted run in a separate thread, which is abandoned on cancellation.

The main thread also waits for them in slices: a signal that arrives between Python's check for signals and a
blocking
lock would not wake it (observed once in a hundred runs with six request threads).
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardtool.errors import InvalidRequest, StoreFailed
from shardtool.storage.remote.notices import RequestRetry, emit, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future


Result = TypeVar("Result")


RETRY_FOR, MIN_SPEED = "SHARDTOOL_RETRY_FOR", "SHARDTOOL_LEAST_SPEED"  # environment variables: so workers have them


_SECONDS_EXPECTED = "seconds, such as 300"


MAX_SETTING = 1e9  # of any of these numbers


_RETRY_ADVICE = "Try again when the server can be reached."


_UNREACHABLE_ADVICE = (
    "Try again when the server can be reached: is its address right, and no proxy or firewall in the way?"
)


SLICE_S = 0.2  # between two looks at whether anybody waits


class RetryPolicy(NamedTuple):
    """How often, how long, and how slowly.

    Attributes:
        tries: Requests in all, until a first one of this process was answered: an endpoint may be none.
        first_s: Seconds of the first wait, at most; each later one may be twice as long.
        longest_s: Seconds that a wait has at most, but where the server asks for more.
        whole_s: Seconds after which no other request is begun.
        silent_s: The same, until a first request was answered: an endpoint that is none may be silent.
        notice_s: Seconds after which a first request that waits says so.
        least: Bytes a second that must come, or go.
        over_s: Seconds of waiting over which that is counted.
    """

    tries: int = 7
    first_wait_s: float = 0.2
    max_wait_s: float = 30.0
    max_total_s: float = 300.0
    first_answer_s: float = 60.0
    notice_s: float = 10.0
    least: float = 1000.0
    speed_window_s: float = 60.0


DEFAULT_POLICY = RetryPolicy()


_any_answer = threading.Event()  # in this process, or before it was forked


_notice_lock = threading.Lock()  # of requests at the same time, one speaks


_thread_state = threading.local()  # what says that its requests are not wanted any more, and its own policy


_deadlines: list[float] = []  # when the last request of this process must have ended, once a signal has come


class TransientError(Exception):
    """What may pass: a server that is busy or fails, a connection that is lost.

    Attributes:
        found: What happened, without secrets.
        wait_s: Seconds that the server asks for; None: it does not say.
        answered: Whether there is a server, which has said so.
        stalled_s: Seconds without progress, if the request failed because of them.
    """

    def __init__(
        self, found: str, wait_s: float | None = None, *, answered: bool = False, stalled_s: float = 0.0
    ) -> None:
        super().__init__(found)
        self.found, self.wait_s, self.answered, self.stalled_s = found, wait_s, answered, stalled_s


class RequestCancelled(Exception):
    """Nobody wants what this thread would bring."""


@contextmanager
def cancel_on(stop: threading.Event) -> Iterator[None]:
    """Stop the requests of this thread, wherever they are, once an event is set."""
    before = getattr(_thread_state, "stop", None)
    _thread_state.stop = stop
    try:
        yield
    finally:
        _thread_state.stop = before


@contextmanager
def with_policy(policy: RetryPolicy) -> Iterator[None]:
    """Have the requests of this thread go by this policy, whatever the environment says."""
    _thread_state.policy = policy
    try:
        yield
    finally:
        del _thread_state.policy


def _current_policy() -> RetryPolicy:
    return getattr(_thread_state, "policy", DEFAULT_POLICY)


def end_requests(within_s: float) -> None:
    """Stop all requests of this process, which is about to end; the main thread may give back its locks until then."""
    _deadlines.append(time.monotonic() + within_s)


def check_cancelled() -> None:
    """See that this thread is to go on.

    Raises:
        Stopped: It is not.
    """
    stop = getattr(_thread_state, "stop", None)
    if stop is not None and stop.is_set():
        raise RequestCancelled
    if _deadlines and (time.monotonic() > _deadlines[0] or threading.current_thread() is not threading.main_thread()):
        raise RequestCancelled


def in_thread(ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns, which cannot be stopped: a thread calls it, and is left alone if this one is stopped.

    Raises:
        Stopped: This thread is.
    """
    from concurrent.futures import Future, wait

    check_cancelled()
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="shardtool-apart", daemon=True).start()
    while not wait([future], SLICE_S).done:
        check_cancelled()
    return future.result()


def wait_interruptibly(future: Future[Result]) -> Future[Result]:
    """Return what a thread works on, once it is done."""
    from concurrent.futures import wait

    while not future.done():
        wait([future], SLICE_S)
    return future


def pause(seconds: float) -> None:
    """Wait.

    Raises:
        Stopped: Nobody waits for this thread.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check_cancelled()
        time.sleep(min(left, SLICE_S))


class RetryState:
    """The tries of one request.

    Time without progress counts against the budget across all tries: a server that sends a little each time and then
    stalls is given up, too. The budget recovers while data flows, as fast as it was spent.

    Args:
        where: The address, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where, self._failed, self._began = where, 0, time.monotonic()
        self._moved, self._stalled_s = (
            self._began,
            0.0,
        )  # when data last arrived; seconds without, as of the last failure
        self._waited_s, self._was_begun = 0.0, False

    def later(self, stalled_s: float) -> None:
        """Count waits and stalls, and not the rest of the tries: these may have taken long until they failed."""
        self._waited_s += stalled_s
        self._began, self._was_begun = time.monotonic() - self._waited_s, True

    def progress(self) -> None:
        """Note that something arrived."""
        now = time.monotonic()
        if not self._failed:
            self._stalled_s = max(0.0, self._stalled_s - (now - self._moved))
        self._failed, self._moved, self._began = 0, now, now - self._stalled_s
        _any_answer.set()

    def failed(self, error: TransientError) -> None:
        """Wait, with jitter, until it may be tried again.

        Raises:
            StoreFailed: It was tried for long enough.
        """
        import random

        self._failed += 1
        if error.answered or error.wait_s is not None:
            _any_answer.set()
        known, max_total_s, spent = _any_answer.is_set(), retry_for(), time.monotonic() - self._began
        policy = _current_policy()
        left = (max_total_s if known else min(max_total_s, policy.first_answer_s)) - spent
        is_counted = not known or (self._was_begun and not error.answered)
        if left <= 0 or (is_counted and self._failed >= policy.tries):
            times = f", {self._failed} times in {spent:,.0f} s" if self._failed > 1 else ""
            found, remedy = f"{error.found}{times}", _RETRY_ADVICE if known else _UNREACHABLE_ADVICE
            raise StoreFailed(self._where, found, remedy=remedy) from None
        wait = random.uniform(0, min(policy.max_wait_s, policy.first_wait_s * 2 ** min(self._failed - 1, 30)))  # noqa: S311 - no secret depends on it
        wait = min(max(wait, error.wait_s or 0), left)
        emit(RequestRetry(self._where, error.found, self._failed, wait))
        self._waited_s += wait
        pause(wait)
        self._stalled_s = time.monotonic() - self._began


def set_retry_for(text: str) -> None:
    """Ask for so many seconds again for what fails, in this process and in those it starts.

    Raises:
        InvalidRequest: It is no number of seconds.
    """
    _parse_numbers(RETRY_FOR, text, _SECONDS_EXPECTED)
    os.environ[RETRY_FOR] = text


def retry_for() -> float:
    """Return for how many seconds what fails is asked for again.

    Raises:
        InvalidRequest: The environment says no number.
    """
    text = "" if hasattr(_thread_state, "policy") else os.environ.get(RETRY_FOR, "")
    return _parse_numbers(RETRY_FOR, text, _SECONDS_EXPECTED)[0] if text else _current_policy().max_total_s


def min_speed() -> tuple[float, float]:
    """Return how many bytes a second must come or go, and over how many seconds of waiting that is counted.

    Raises:
        InvalidRequest: The environment says no such numbers.
    """
    text, policy = os.environ.get(MIN_SPEED, ""), _current_policy()
    if not text or hasattr(_thread_state, "policy"):
        return policy.least, policy.speed_window_s
    least, *speed_window_s = _parse_numbers(MIN_SPEED, text, "bytes a second, and over how many seconds: 1000/60")
    return least, (speed_window_s[0] if speed_window_s else policy.speed_window_s)


def _parse_numbers(name: str, text: str, expected: str) -> list[float]:
    try:
        found = [float(part) for part in text.split("/", 1)]
    except ValueError:
        found = []
    if not found or not all(0 <= one <= MAX_SETTING for one in found):
        raise InvalidRequest(name, repr(text[:40]), expected=expected)
    return found


def with_retries(where: str, ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns; while it raises `TransientError`, wait, with jitter, and call it again.

    Args:
        where: The address, for messages.
        ask: What to do. It must be safe to do twice.

    Raises:
        StoreFailed: It did not pass.
    """
    attempts = RetryState(where)
    with _waiting_notice(where):
        while True:
            try:
                result = ask()
            except TransientError as error:
                attempts.failed(error)
            else:
                _any_answer.set()
                return result


@contextmanager
def _waiting_notice(where: str) -> Iterator[None]:
    """Say that a request has no answer after some seconds, where none had one before."""
    if _any_answer.is_set() or not _notice_lock.acquire(blocking=False):
        yield
        return
    seconds = DEFAULT_POLICY.notice_s
    timer = threading.Timer(seconds, warn, (f"{where}: no answer for {seconds:.0f} seconds; still asking",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _notice_lock.release()
