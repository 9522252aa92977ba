"""Pass retries, warnings, download progress and other events to a listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_listeners: list[Callable[[object], None]] = []
_totals: list[float] = [0, 0.0]  # number of retries, and total seconds waited


class RequestRetry(NamedTuple):
    """An event: one or more requests failed and are retried.

    Attributes:
        where: Address without secrets.
        wait_s: Total seconds that all `requests` wait before they are retried.
    """

    where: str
    found: str
    attempts: int
    wait_s: float
    requests: int = 1

    def __str__(self) -> str:
        others = f" ({self.requests - 1:,} more requests are retried)" if self.requests > 1 else ""
        return f"{self.where}: {self.found}; retrying in {self.wait_s / self.requests:.1f} s{others}"


class Notice(NamedTuple):
    """An event: a message for the user."""

    text: str


class Stall(NamedTuple):
    """An event: a worker makes no progress."""

    text: str


class FetchProgress(NamedTuple):
    """The progress of a worker that downloads the files of a shard.

    Attributes:
        share: Fraction of the shard's files that are already packed.
        host: The slowest host, or "" if packing is slower than downloading.
        done: Number of files that `host` has sent.
        files: Number of files from `host` in total.
        seconds_per_file: Average time for a file from `host`.
    """

    worker: int
    samples: int
    share: float
    elapsed_s: float
    remaining_s: float
    host: str
    done: int
    files: int
    seconds_per_file: float


def emit(event: object) -> None:
    """Pass an event to the listener, and count retries."""
    if isinstance(event, RequestRetry):
        _totals[0] += event.requests
        _totals[1] += event.wait_s
    for listener in _listeners:
        listener(event)


def warn(text: str) -> None:
    """Pass a message to the listener. Without a listener, log the message."""
    if _listeners:
        emit(Notice(text))
        return
    from logging import getLogger

    getLogger("shardtool").warning("%s", text)


def set_listener(listener: Callable[[object], None] | None) -> None:
    """Call `listener` for each later event, and reset the retry counts. None only removes the listener."""
    _listeners[:] = [] if listener is None else [listener]
    _totals[:] = _totals if listener is None else [0, 0.0]


def retry_count() -> int:
    """Return the number of retries in this process and its workers."""
    return int(_totals[0])


def retry_totals() -> dict[str, float]:
    """Return the number of retries and the seconds waited, or an empty dict without retries."""
    return {"retries": retry_count(), "waited_s": round(_totals[1], 3)} if retry_count() else {}
