"""Events that requests and workers report while they run: retries, warnings and stalls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


_listeners: list[Callable[[object], None]] = []  # who hears what is told: one at most


_totals: list[float] = [0, 0.0]  # requests that were made again, by this process and its workers; seconds of waits


class RequestRetry(NamedTuple):
    """A request that is made again, or the last of several that are.

    Attributes:
        where: Its address, without secrets.
        found: Why.
        attempts: How often it was tried so far.
        wait_s: Seconds until it is made again; of several, all together.
        requests: How many are.
    """

    where: str
    found: str
    attempts: int
    wait_s: float
    requests: int = 1

    def __str__(self) -> str:
        others = f", as are {self.requests - 1:,} more" if self.requests > 1 else ""
        return f"{self.where}: {self.found}; asked again in {self.wait_s / self.requests:.1f} s{others}"


class Notice(NamedTuple):
    """What the user should know while something is waited for."""

    text: str


class Stall(NamedTuple):
    """What has done nothing for a while, and for how long."""

    text: str


def emit(event: object) -> None:
    """Tell who wants to hear what a worker, or this process, has to say while it works; count requests made again."""
    if isinstance(event, RequestRetry):
        _totals[0] += event.requests
        _totals[1] += event.wait_s
    for hear in _listeners:
        hear(event)


def warn(text: str) -> None:
    """Say what the user should know to who hears what is told, otherwise to the library's log."""
    if _listeners:
        emit(Notice(text))
        return
    from logging import getLogger

    getLogger("shardtool").warning("%s", text)


def set_listener(of: Callable[[object], None] | None) -> None:
    """Have `of`, and nothing else, called for each event that is told, in the thread that tells it; None: nothing is.

    Requests that were made again before do not count any more, but for None.
    """
    _listeners[:] = [] if of is None else [of]
    _totals[:] = _totals if of is None else [0, 0.0]


def retry_count() -> int:
    """Return how many requests this process, and its workers on this machine, have made again."""
    return int(_totals[0])


def retry_totals() -> dict[str, float]:
    """Return how many requests were made again, and the seconds of their waits, all together; empty: none was."""
    return {"retries": retry_count(), "waited_s": round(_totals[1], 3)} if retry_count() else {}
