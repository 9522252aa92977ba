"""Handle Ctrl-C, SIGTERM and SIGHUP.

The first signal raises `Interrupted`. A library can lose this exception, for example in a destructor. A timer therefore
raises it again until an `except` or `finally` block handles it. Cleanup is not interrupted, but requests to stores end
after `_LOCK_RELEASE_S`. A second signal ends the process within `_CLEANUP_LIMIT_S`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from shardtool.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RERAISE_SOON_S, _RERAISE_INTERVAL_S = 0.02, 0.2
_LOCK_RELEASE_S = 1.0  # time to release locks; the next run takes over the remaining locks
_CLEANUP_LIMIT_S = 2.0  # time for cleanup after a second signal


class SignalHandler:
    """Handles signals. Calls `report` if the process exits during cleanup."""

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report
        self.first: int | None = None
        self._latest_end: float | None = None
        self._ended = False

    def install(self) -> None:
        """Install the handlers, except for ignored signals (`nohup`, background jobs)."""
        for signum in SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._on_signal)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def end(self) -> None:
        """Stop raising exceptions, because the verb has finished."""
        self._ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self._ended:
            self.first = self.first or signum
            self._start_timer(_CLEANUP_LIMIT_S)
            return
        if self.first is not None:
            if self._latest_end is None:
                self._latest_end = time.monotonic() + _CLEANUP_LIMIT_S
                self._start_timer(_RERAISE_SOON_S, _RERAISE_INTERVAL_S)
            return
        self.first = signum
        if requests := sys.modules.get("shardtool.storage.remote.retry"):  # imported when a verb is loaded
            requests.end_requests(_LOCK_RELEASE_S)
        self._start_timer(_RERAISE_INTERVAL_S, _RERAISE_INTERVAL_S)
        raise Interrupted(signum)

    def _start_timer(self, after_s: float, again_s: float = 0) -> None:
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, after_s, again_s)

    def _on_alarm(self, _signum: int, _frame: FrameType | None) -> None:
        if self.first is None:
            return
        if self._ended:
            os._exit(128 + self.first)
        if self._latest_end is not None and time.monotonic() > self._latest_end:
            self._ended = True
            self._report(self.first)
            os._exit(128 + self.first)
        if not _is_unwinding():
            raise Interrupted(self.first)

    def _on_unraisable(self, dropped: sys.UnraisableHookArgs) -> None:
        """Raise the interrupt again soon if Python ignored the exception, for example in a destructor."""
        if dropped.exc_type is not Interrupted:
            self._unraisable(dropped)
        elif not self._ended:
            self._start_timer(_RERAISE_SOON_S, _RERAISE_INTERVAL_S)


def _is_unwinding() -> bool:
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error is not None
