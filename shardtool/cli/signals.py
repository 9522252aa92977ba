"""Ctrl-C and its kind: the first signal ends the run by an exception, and none after it is ignored.

The exception is raised wherever the program is, which may be inside of a library that drops it: in a destructor, or
in an import that goes on without what it could not import. So a timer looks again until the exception is seen at work:
where nothing is being unwound, it is raised once more. While workers are killed and temporary files are removed,
nothing disturbs that, but for two limits: requests to stores end after `_LOCKS_S`, and once a second signal has come,
the process ends after `_PATIENCE_S`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from shardtool.errors import Interrupted
from shardtool.storage.remote.retry import end_requests

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SOON_S, _AGAIN_S = 0.02, 0.2
_LOCKS_S = 1.0  # for locks in stores to be given back: those that stay, the next run takes over
_PATIENCE_S = 2.0  # for what is removed after an interrupt, once the user asks again


class Signals:
    """The handling of signals, from `install` on.

    Args:
        at_once: Says that the run was interrupted, where nothing else will.
    """

    def __init__(self, at_once: Callable[[int], object]) -> None:
        self._at_once = at_once
        self._first: int | None = None
        self._latest_end: float | None = None
        self._ended = False

    @property
    def first(self) -> int | None:
        """The signal that asked the run to end; None: none did."""
        return self._first

    def install(self) -> None:
        """Take the signals, but for those that are ignored on purpose: by `nohup`, or a shell's background job."""
        for signum in SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._on_signal)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def end(self) -> None:
        """Raise nothing from now on: what is left is to print a line. A signal gives that `_PATIENCE_S`, no more."""
        self._ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self._ended:
            self._first = self._first or signum
            signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
            return
        if self._first is not None:
            if self._latest_end is None:
                self._latest_end = time.monotonic() + _PATIENCE_S
                signal.setitimer(signal.ITIMER_REAL, _SOON_S, _AGAIN_S)
            return
        self._first = signum
        end_requests(_LOCKS_S)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
        raise Interrupted(signum)

    def _on_alarm(self, _signum: int, _frame: FrameType | None) -> None:
        if self._first is None:
            return
        if self._ended:
            os._exit(128 + self._first)
        if self._latest_end is not None and time.monotonic() > self._latest_end:
            self._ended = True
            self._at_once(self._first)
            os._exit(128 + self._first)
        if not _is_unwinding():
            raise Interrupted(self._first)

    def _on_unraisable(self, dropped: sys.UnraisableHookArgs) -> None:
        """Say nothing of an interrupt that was raised in a destructor, but raise it again soon."""
        if dropped.exc_type is not Interrupted:
            self._unraisable(dropped)
        elif not self._ended:
            signal.setitimer(signal.ITIMER_REAL, _SOON_S, _AGAIN_S)


def _is_unwinding() -> bool:
    """Tell whether the code that a signal has stopped deals with an interrupt, or with an error on its way out."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error is not None
