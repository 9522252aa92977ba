"""Who is told how a run goes on."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Who is told how a run goes on; each method is called in the parent process."""

    def note(self, text: str) -> None:
        """Take something that the user should know before a byte is written."""

    def log(self, text: str) -> None:
        """Take a detail."""

    def listed(self, samples: int) -> None:
        """Take how many more samples were found."""

    def start(self, samples: int, size: int, shards: int) -> None:
        """Take how much there is to do, sizes in bytes."""

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Take how much more is done."""


class Silent:
    """An observer that tells nobody."""

    def note(self, text: str) -> None:
        """Ignore."""

    def log(self, text: str) -> None:
        """Ignore."""

    def listed(self, samples: int) -> None:
        """Ignore."""

    def start(self, samples: int, size: int, shards: int) -> None:
        """Ignore."""

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Ignore."""
