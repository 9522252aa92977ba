"""What the user should know: said at once, and kept for the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import printable

if TYPE_CHECKING:
    from shardtool.request.observer import Observer


class Notes:
    """The notes of a run, in order.

    Args:
        observer: Gets each note at once.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.said: list[str] = []

    def add(self, *notes: str) -> None:
        """Tell the user, now and in the result."""
        for note in map(printable, notes):
            self.said.append(note)
            self.observer.note(note)
