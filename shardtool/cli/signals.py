"""Handle Ctrl-C, SIGTERM and SIGHUP: the first signal stops the run by an exception, and later ones are not ignored.

The exception can be raised inside a library that drops it: in a destructor, or in an import that continues without
the module it could not import. A timer therefore checks again until the exception is being handled; if nothing is
being unwound, it raises the exception once more. While workers are killed and temporary files removed, nothing
interrupts that except two limits: requests to stores end after `_LOCK_RELEASE_S`, and after a second signal the
process exits within `_CLEANUP_LIMIT_S`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from shardtool.errors import (
    Interrupted,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_RERAISE_SOON_S, _RERAISE_INTERVAL_S = 0.02, 0.2


_LOCK_RELEASE_S = 1.0  # for locks in stores to be given back: those that stay, the next run takes over


_CLEANUP_LIMIT_S = 2.0  # for what is removed after an interrupt, once the user asks again


class SignalHandler:
    """The handling of signals, from `install` on.

    Args:
        at_once: Says that the run was interrupted, where nothing else will.

    Attributes:
        first: The signal that asked the run to end; None: none did.
    """

    def __init__(self, at_once: Callable[[int], object]) -> None:
        self._at_once = at_once
        self.first: int | None = None
        self._latest_end: float | None = None
        self._ended = False

    def install(self) -> None:
        """Take the signals, but for those that are ignored on purpose: by `nohup`, or a shell's background job."""
        for signum in SIGNALS:
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._on_signal)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def end(self) -> None:
        """Raise nothing from now on: what is left is to print a line. A signal gives that `_CLEANUP_LIMIT_S`, no more."""
        self._ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        if self._ended:
            self.first = self.first or signum
            self._ring(_CLEANUP_LIMIT_S)
            return
        if self.first is not None:
            if self._latest_end is None:
                self._latest_end = time.monotonic() + _CLEANUP_LIMIT_S
                self._ring(_RERAISE_SOON_S, _RERAISE_INTERVAL_S)
            return
        self.first = signum
        if requests := sys.modules.get("shardtool.storage.remote.retry"):  # `--help` needs no such import
            requests.end_requests(_LOCK_RELEASE_S)
        self._ring(_RERAISE_INTERVAL_S, _RERAISE_INTERVAL_S)
        raise Interrupted(signum)

    def _ring(self, after_s: float, again_s: float = 0) -> None:
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, after_s, again_s)

    def _on_alarm(self, _signum: int, _frame: FrameType | None) -> None:
        if self.first is None:
            return
        if self._ended:
            os._exit(128 + self.first)
        if self._latest_end is not None and time.monotonic() > self._latest_end:
            self._ended = True
            self._at_once(self.first)
            os._exit(128 + self.first)
        if not _is_unwinding():
            raise Interrupted(self.first)

    def _on_unraisable(self, dropped: sys.UnraisableHookArgs) -> None:
        """Say nothing of an interrupt that was raised in a destructor, but raise it again soon."""
        if dropped.exc_type is not Interrupted:
            self._unraisable(dropped)
        elif not self._ended:
            self._ring(_RERAISE_SOON_S, _RERAISE_INTERVAL_S)


def _is_unwinding() -> bool:
    """Tell whether the code that a signal has stopped deals with an interrupt, or with an error on its way out."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error is not None
