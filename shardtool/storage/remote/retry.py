"""Requests are made again when what stopped them may pass: one policy for all of them."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Policy:
    """How often, and how long.

    Attributes:
        tries: Requests in all.
        first_s: Seconds of the first wait, at most; each later one may be twice as long.
        longest_s: Seconds that a wait has at most, also where the server asks for more.
        whole_s: Seconds after which no other request is begun.
        silent_s: The same, until a first request of this process was answered: an endpoint that is none may be silent.
        notice_s: Seconds after which a first request that waits says so.
    """

    tries: int = 7
    first_s: float = 0.2
    longest_s: float = 30.0
    whole_s: float = 300.0
    silent_s: float = 60.0
    notice_s: float = 10.0


POLICY = Policy()
_answered = threading.Event()  # in this process, or before it was forked
_one_waits = threading.Lock()  # of requests at the same time, one speaks


class Passing(Exception):
    """What may pass: a server that is busy or fails, a connection that is lost.

    Attributes:
        found: What happened, without secrets.
        wait_s: Seconds that the server asks for; None: it does not say.
    """

    def __init__(self, found: str, wait_s: float | None = None) -> None:
        super().__init__(found)
        self.found, self.wait_s = found, wait_s


class Attempts:
    """The tries of one request.

    Args:
        where: The address, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where, self._failed, self._began = where, 0, time.monotonic()

    def later(self) -> None:
        """Let the time count from now on, and not the tries: what was tried may have taken long until it failed."""
        self._began = time.monotonic()

    def progress(self) -> None:
        """Note that something arrived: the count starts anew."""
        self._failed, self._began = 0, time.monotonic()
        _answered.set()

    def failed(self, error: Passing) -> None:
        """Wait, with jitter, until it may be tried again.

        Raises:
            StoreFailed: It was tried often enough.
        """
        self._failed += 1
        wait = random.uniform(0, POLICY.first_s * 2 ** (self._failed - 1))  # noqa: S311 - no secret depends on it
        wait = min(max(wait, error.wait_s or 0), POLICY.longest_s)
        if error.wait_s is not None:
            _answered.set()
        whole_s = POLICY.whole_s if _answered.is_set() else POLICY.silent_s
        if self._failed >= POLICY.tries or time.monotonic() - self._began + wait > whole_s:
            times = f", {self._failed} times" if self._failed > 1 else ""
            remedy = "Try again when the server can be reached."
            raise StoreFailed(self._where, f"{error.found}{times}", remedy=remedy) from None
        time.sleep(wait)


def retried(where: str, ask: Callable[[], Result]) -> Result:
    """Return what `ask` returns; while it raises `Passing`, wait, with jitter, and call it again.

    Args:
        where: The address, for messages.
        ask: What to do. It must be safe to do twice.

    Raises:
        StoreFailed: It did not pass.
    """
    attempts = Attempts(where)
    with _said_to_wait(where):
        while True:
            try:
                result = ask()
            except Passing as error:
                attempts.failed(error)
            else:
                _answered.set()
                return result


def _say(where: str) -> None:
    from logging import getLogger

    getLogger("shardtool").warning("%s: no answer for %d seconds; still asking", where, POLICY.notice_s)


@contextmanager
def _said_to_wait(where: str) -> Iterator[None]:
    """Say that a request has no answer after some seconds, where none had one before."""
    if _answered.is_set() or not _one_waits.acquire(blocking=False):
        yield
        return
    timer = threading.Timer(POLICY.notice_s, _say, (where,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _one_waits.release()
