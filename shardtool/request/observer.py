"""Progress and notes of a run: `Observer` receives them, `Notes` keeps notes for the result."""

from __future__ import annotations

from shardtool.errors import printable


class Observer:
    """Receives progress and notes of a run in the parent process; override the methods that you need."""

    def note(self, text: str) -> None:
        """Receive a note for the user."""

    def log(self, text: str) -> None:
        """Receive a detail."""

    def shard(self, name: str, done: str, samples: int, size: int) -> None:
        """Receive the name of a finished shard, its action, its number of samples and its size in bytes."""
        self.log(f"{name}: {done}, {samples:,} samples, {size:,} bytes")

    def listed(self, samples: int) -> None:
        """Receive the number of further samples found."""

    def phase(self, text: str, size: int) -> None:
        """Receive the name of a step before `start` and its number of bytes, which `advance` counts."""

    def start(self, samples: int, size: int, shards: int) -> None:
        """Receive the total amount of work; the size is in bytes."""

    def failed(self, samples: int) -> None:
        """Receive how many samples of the next `advance` failed to download."""

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Receive the amount of finished work since the last call."""


class Notes:
    """The notes of a run: passed to the observer immediately, and kept in order for the result.

    Args:
        observer: Receives each note.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.said: list[str] = []

    def add(self, *notes: str) -> None:
        """Add notes."""
        for note in map(printable, notes):
            self.said.append(note)
            self.observer.note(note)

    def add_new(self, note: str) -> None:
        """Add a note unless it was added before."""
        if printable(note) not in self.said:
            self.add(note)
