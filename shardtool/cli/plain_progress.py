"""Progress as lines, for logs: where no terminal draws a bar, a line every ten seconds tells that a run goes on."""

from __future__ import annotations

import time
from threading import Event, Thread
from typing import TYPE_CHECKING

from shardtool.cli.output import say
from shardtool.errors import printable
from shardtool.storage.remote.retry import asked_again
from shardtool.values import show_size

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TextIO

PERIOD_S = 10.0


class PlainProgress:
    """Lines about what goes on, from a thread of its own: they come also while nothing is done. `end` it.

    It is called as the bar of `tqdm` is.
    """

    def __init__(self) -> None:
        self._ended = Event()
        self._thread: Thread | None = None
        self._total: int | None = None
        self._label, self._unit, self._done, self._shards, self._begun = "", "", 0, "", 0.0
        self._again = asked_again()  # by what was done before

    def begin(self, label: str, total: int | None, unit: str = "B") -> None:
        """Tell of something else from now on.

        Args:
            label: What is done.
            total: Its bytes or samples; None: samples are counted, and how many there are is unknown.
            unit: `B` for bytes.
        """
        self._label, self._total, self._unit, self._done, self._shards = label, total, unit, 0, ""
        self._begun = time.monotonic()
        if self._thread is None:
            self._thread = Thread(target=self._tell, daemon=True)
            self._thread.start()

    def update(self, more: int) -> None:
        """Take how much more is done."""
        self._done += more

    def set_postfix_str(self, text: str, *, refresh: bool = False) -> None:  # noqa: ARG002 - as of tqdm's bar
        """Take how many shards are done."""
        self._shards = f", {text}"

    def external_write_mode(self, file: TextIO) -> AbstractContextManager[None]:  # noqa: ARG002 - as of tqdm's bar
        """Let another line be written: nothing is in its way."""
        from contextlib import nullcontext

        return nullcontext()

    def close(self) -> None:
        """Tell no more of what was begun."""
        self._label = ""

    def end(self) -> None:
        """Tell nothing more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1)  # who reads stderr may be stuck

    def _tell(self) -> None:
        while not self._ended.wait(PERIOD_S):
            if self._label:
                try:
                    say(printable(f"progress: {self._text()}"))
                except OSError:  # whoever read stderr is gone
                    return

    def _text(self) -> str:
        done, total, again = self._done, self._total, asked_again() - self._again
        retries = f", {again:,} retries" if again else ""
        if total is None:
            return f"{self._label}: {done:,} samples{retries}"
        rate = done / max(time.monotonic() - self._begun, 1e-9)
        left = (f", {max(total - done, 0) / rate:,.0f} s left" if rate else "") + retries
        share = f" ({min(done / total, 1):.0%})" if total else ""
        if self._unit != "B":
            return f"{self._label}: {done:,} of {total:,}{self._unit}{share}{self._shards}, {rate:,.0f}/s{left}"
        return f"{self._label}: {show_size(done)} of {show_size(total)}{share}{self._shards}, {show_size(rate)}/s{left}"
