"""Objects with locks, made fit for use in a process that was forked while another thread held them."""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """What has locks, or descriptors of its own."""

    def after_fork(self) -> None:
        """Make them anew; the process has one thread."""


_OBJECTS: WeakSet[Renewed] = WeakSet()


def renew_after_fork(one: Renewed) -> None:
    """Have `after_fork` called in each process that is forked from now on, for as long as the object lives."""
    _OBJECTS.add(one)


def _renew() -> None:
    for one in list(_OBJECTS):
        one.after_fork()


os.register_at_fork(after_in_child=_renew)


class ForkLock:
    """A lock that is free in a forked process, whichever thread held it at the fork."""

    def __init__(self) -> None:
        self.after_fork()
        renew_after_fork(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Make the lock anew."""
        self._lock = threading.Lock()
