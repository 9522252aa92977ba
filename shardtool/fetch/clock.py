"""A limit of time for a part of a task, which stands still while the task waits for others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Clock:
    """Ends its `with` block after some seconds, not counting those between `stop` and `start`.

    Args:
        seconds: How many.

    Raises:
        asyncio.TimeoutError: The block was ended.
    """

    def __init__(self, seconds: float) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._left, self._end = seconds, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._left if self._timer is None else self._end - self._loop.time()

    def start(self) -> None:
        """Let time run."""
        self._end = self._loop.time() + self._left
        self._timer = self._loop.call_at(self._end, self._expire)

    def stop(self) -> None:
        """Let time stand still."""
        if self._timer is not None:
            self._left = self.left
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._task is not None:
            self._expired = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.stop()
        if self._expired and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from None
