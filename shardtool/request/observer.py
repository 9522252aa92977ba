"""Receive the progress and notes of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from shardtool.errors import printable, redact_secrets
from shardtool.units import pluralize

if TYPE_CHECKING:
    from logging import Logger


class Observer:
    """Receives progress and notes of a run in the parent process. Override the methods that you need.

    By default, notes and details go to the logger `shardtool`, with the levels INFO and DEBUG.
    """

    def note(self, text: str) -> None:
        """Receive a note that the user should read."""
        _logger().info("%s", text)

    def log(self, text: str) -> None:
        """Receive a detail that most users do not need."""
        _logger().debug("%s", text)

    def shard(self, name: str, done: str, samples: int, size: int) -> None:
        """Receive a finished shard, with its size in bytes. `done` is a word such as `written` or `kept`."""
        self.log(f"{name}: {done}, {pluralize(samples, 'sample')}, {size:,} bytes")

    def listed(self, samples: int) -> None:
        """Receive the number of samples listed since the last call."""

    def phase(self, text: str, size: int) -> None:
        """Receive the name of a preparatory step and its number of bytes. These calls come before `start`."""

    def start(self, samples: int, size: int, shards: int) -> None:
        """Receive the total amount of work. `size` is in bytes. It is 0 if unknown, for example for downloads."""

    def failed(self, samples: int) -> None:
        """Receive the number of samples whose download failed. The next `advance` counts these samples, too."""

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Receive how many samples, bytes and shards were finished since the last call."""

    def close(self) -> None:
        """Close the progress display. Verbs call this only if the user passed no observer."""


class _NotebookObserver(Observer):
    def __init__(self) -> None:
        self._bar: Any = None

    def note(self, text: str) -> None:
        _notebook_bar_class().write(f"note: {printable(text)}")

    def phase(self, text: str, size: int) -> None:
        self._start_bar(text, size, "B")

    def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - the signature of the base class
        self._start_bar(f"{samples:,} samples" if samples else "reading", size or samples, "B" if size else " samples")

    def advance(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - the signature of the base class
        if self._bar is not None:
            self._bar.update(size if self._bar.unit == "B" else samples)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _start_bar(self, label: str, total: int, unit: str) -> None:
        self.close()
        if total:
            self._bar = _notebook_bar_class()(desc=printable(label), total=total, unit=unit, unit_scale=True)


def _notebook_bar_class() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets, tqdm warns and prints text
        from tqdm.auto import tqdm
    return tqdm


def default_observer() -> Observer:
    """Return the observer for calls without the argument `observer`. In a notebook, show a progress bar."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    kinds = () if get_shell is None else type(get_shell()).__mro__  # Colab and Databricks use subclasses
    is_notebook = any(kind.__name__ == "ZMQInteractiveShell" for kind in kinds)
    return _NotebookObserver() if is_notebook else Observer()


def _logger() -> Logger:
    from logging import getLogger

    return getLogger("shardtool")


class Notes:
    """Passes notes to the observer, and collects them in `texts` for the result of the verb."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.texts: list[str] = []

    def add(self, *notes: str) -> None:
        """Add notes."""
        for note in map(redact_secrets, map(printable, notes)):
            self.texts.append(note)
            self.observer.note(note)

    def add_new(self, note: str) -> None:
        """Add a note unless it was added before."""
        if redact_secrets(printable(note)) not in self.texts:
            self.add(note)
