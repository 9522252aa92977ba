"""Progress and notes of a run: the `Observer` that receives them, and the `Notes` kept for the result."""

from __future__ import annotations

from shardtool.errors import printable


class Observer:
    """Gets the progress and the notes of a run, in the parent process, and ignores them: override what you need."""

    def note(self, text: str) -> None:
        """Take something that the user should know before a byte is written."""

    def log(self, text: str) -> None:
        """Take a detail."""

    def shard(self, name: str, done: str, samples: int, size: int) -> None:
        """Take that a shard is done, what was done with it, and what it holds, its size in bytes."""
        self.log(f"{name}: {done}, {samples:,} samples, {size:,} bytes")

    def listed(self, samples: int) -> None:
        """Take how many more samples were found."""

    def phase(self, text: str, size: int) -> None:
        """Take what is done before `start`, and how many bytes that takes; they come by `advance`."""

    def start(self, samples: int, size: int, shards: int) -> None:
        """Take how much there is to do, sizes in bytes."""

    def failed(self, samples: int) -> None:
        """Take how many of the samples that `advance` takes next could not be fetched."""

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Take how much more is done."""


class Notes:
    """The notes of a run for the user: given to the observer at once, and kept in order for its result.

    Args:
        observer: Gets each note at once.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.said: list[str] = []

    def add(self, *notes: str) -> None:
        """Give notes to the user, now and in the result."""
        for note in map(printable, notes):
            self.said.append(note)
            self.observer.note(note)

    def add_new(self, note: str) -> None:
        """Give a note to the user, unless it was given before."""
        if printable(note) not in self.said:
            self.add(note)
