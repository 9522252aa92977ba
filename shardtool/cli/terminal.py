"""What the command line shows on stderr while a verb runs: progress, notes and details."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, nullcontext
from math import inf
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from shardtool.cli.output import LOG, say
from shardtool.errors import printable
from shardtool.fetch import FetchProgress
from shardtool.request.settings import Observer
from shardtool.storage.remote.retry import Remark, RequestAgain, Stall, asked_again, hear
from shardtool.values import show_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import TextIO


# Progress as lines, for logs: where no terminal draws a bar, a line every ten seconds tells that a run goes on.


PERIOD_S = 10.0
_LATELY_S = 2.0  # how old it may be what is said to stall


class PlainProgress:
    """Lines about what goes on, from a thread of its own: they come also while nothing is done. `end` it.

    It is called as the bar of `tqdm` is.

    Attributes:
        fetched: What is known of files that are fetched; None: none are.
        stall: What stalls, and when that was said.
    """

    def __init__(self) -> None:
        self.fetched: _Fetched | None = None
        self.stall = (-inf, "")
        self._ended = Event()
        self._thread: Thread | None = None
        self._total: int | None = None
        self._label, self._unit, self._done, self._shards, self._begun = "", "", 0, "", 0.0

    def begin(self, label: str, total: int | None, unit: str = "B") -> None:
        """Tell of something else from now on.

        Args:
            label: What is done.
            total: Its bytes or samples; None: samples are counted, and how many there are is unknown.
            unit: `B` for bytes.
        """
        self._label, self._total, self._unit, self._done, self._shards = label, total, unit, 0, ""
        self._begun, self.fetched = time.monotonic(), None
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
        before = ("", 0)
        while not self._ended.wait(PERIOD_S):
            if self._label and LOG.style:
                now = (self._label, self._done)
                LOG.write("stall" if now == before else "progress", text=self._text())
                before = now
            elif self._label:
                try:
                    say(printable(f"progress: {self._text()}"))
                except OSError:  # whoever read stderr is gone
                    return

    def _text(self) -> str:
        done, total, again = self._done, self._total, asked_again()
        retries = f", {again:,} retries" if again else ""
        if time.monotonic() - self.stall[0] < _LATELY_S:
            retries += f", waiting for {self.stall[1]}"
        if total is None:
            return f"{self._label}: {done:,} samples{retries}"
        rate = done / max(time.monotonic() - self._begun, 1e-9)
        left = self.fetched.left() if self.fetched else ""
        left = (left or (f", {max(total - done, 0) / rate:,.0f} s left" if rate else "")) + retries
        share = f" ({min(done / total, 1):.0%})" if total else ""
        if self._unit != "B":
            return f"{self._label}: {done:,} of {total:,}{self._unit}{share}{self._shards}, {rate:,.0f}/s{left}"
        return f"{self._label}: {show_size(done)} of {show_size(total)}{share}{self._shards}, {show_size(rate)}/s{left}"


class _Fetched:
    """How well files are fetched, as text for a bar, and how long that will go on.

    Args:
        samples: How many there are, in all shards.
        shards: How many.

    Attributes:
        failed: How many samples failed so far.
        heard: How far each worker said it is, the latest, and when.
    """

    def __init__(self, samples: int, shards: int) -> None:
        self._all, self._shards = samples, shards
        self.failed = self._samples = self._size = 0
        self._begun = time.monotonic()
        self.heard: dict[int, tuple[float, FetchProgress]] = {}

    def more(self, samples: int, size: int, shards: int) -> str:
        """Return the share of samples that were fetched so far, and how fast, with some more."""
        self._samples += samples
        self._size += size
        self._shards -= shards
        good = 1 - self.failed / self._samples if self._samples else 1
        return f", {max(0, good):.1%} fetched, {show_size(self._size / max(time.monotonic() - self._begun, 1e-9))}/s"

    def left(self) -> str:
        """Return how many seconds are left, and for which host is waited; nothing if no worker has said."""
        now, heard = time.monotonic(), [*self.heard.values()]
        if not heard:
            return ""
        lefts = sorted(max(0.0, one.left_s - (now - at)) * (one.share < 1) for at, one in heard)
        going = [one for _, one in heard if one.share < 1]
        others = max(0.0, self._all - self._samples - sum(one.samples * (1 - one.share) for one in going))
        each_s = sum(one.took_s + one.left_s for _, one in heard) / max(sum(one.samples for _, one in heard), 1)
        shards = max(self._shards - len(going), 1)
        for _ in range(shards % len(lefts)):  # who is free takes one
            lefts = sorted([lefts[0] + others * each_s / shards, *lefts[1:]])
        left = f", {lefts[-1] + shards // len(lefts) * others * each_s / shards:,.0f} s left"
        slow = max(going, key=lambda one: one.left_s, default=None)
        if slow is None or not slow.host:
            return left
        same = [one for one in going if one.host == slow.host]
        done, files = sum(one.done for one in same), sum(one.files for one in same)
        return f"{left}, waiting for {slow.host}: {done:,} of {files:,}, {slow.each_s:.2g} s each"


_OF_FETCHES = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]"  # tqdm knows no hosts


class Terminal(Observer):
    """An observer that shows a run on stderr: notes and details as lines, progress as a bar where it is a terminal.

    Args:
        quiet: Show nothing but details.
        verbose: Show details.
        progress: `plain`: lines in place of the bar, also where stderr is no terminal.
        accepted: Called when work starts: what was asked for is known to make sense then.
    """

    def __init__(
        self, *, quiet: bool, verbose: bool, progress: str = "auto", accepted: Callable[[], None] | None = None
    ) -> None:
        self._quiet, self._verbose, self._accepted = quiet and not LOG.style, verbose, accepted
        self._plain = PlainProgress() if (progress == "plain" and not quiet) or LOG.style else None
        self._bar: Any = None
        self._shards = (0, 0)
        self._fetched: _Fetched | None = None
        hear(self._hear)

    def note(self, text: str) -> None:
        """Show something that the user should know."""
        if LOG.style:
            LOG.write("note", text=text)
        elif not self._quiet:
            self._line(f"note: {text}")

    def log(self, text: str) -> None:
        """Show a detail, where the user asked for it."""
        if self._verbose:
            self._line(text)

    def shard(self, name: str, done: str, samples: int, size: int) -> None:
        """Show a shard that is done, where the user asked for it."""
        if done != "kept":
            LOG.samples, LOG.size = LOG.samples + samples, LOG.size + size
        if LOG.style:
            LOG.write("shard", name=name, done=done, samples=samples, bytes=size)
        else:
            super().shard(name, done, samples, size)

    def _hear(self, event: object) -> None:
        """Take what a worker, or a thread of requests, has to say."""
        if isinstance(event, RequestAgain) and LOG.style:
            LOG.write("retry", **event._asdict())
        elif isinstance(event, RequestAgain):
            self.log(f"retry: {event}")
        elif isinstance(event, FetchProgress) and self._fetched is not None:
            self._fetched.heard[event.worker] = time.monotonic(), event
            self.advance(0, 0, 0)
        elif isinstance(event, Stall) and self._plain is not None:
            self._plain.stall = time.monotonic(), event.text
        elif isinstance(event, Remark):
            self.note(event.text)

    def listed(self, samples: int) -> None:
        """Count what was found."""
        if self._bar is None:
            self._start_bar("listing", None, " samples", leave=False)
        if self._bar is not None:
            with self._while_read():
                self._bar.update(samples)

    def phase(self, text: str, size: int) -> None:
        """Start a bar that will make room for another."""
        self._close_bar()
        self._shards = (0, 0)
        self._start_bar(text, size, "B", leave=False)

    def start(self, samples: int, size: int, shards: int) -> None:
        """Start the bar."""
        if self._accepted is not None:
            self._accepted()
        if LOG.style:
            LOG.write("start", samples=samples, bytes=size, shards=shards)
        self._close_bar()
        self._shards = (0, shards)
        self._fetched = None if size or not samples else _Fetched(samples, shards)  # of the web, no sizes are known
        if self._fetched is not None:
            self._start_bar("fetching", samples, " samples", leave=True)
            return
        self._start_bar(f"{samples:,} samples" if samples else "reading", size, "B", leave=True)

    def _start_bar(self, label: str, total: int | None, unit: str, *, leave: bool) -> None:
        if self._quiet or sys.stderr is None:
            return
        if self._plain is not None:
            self._plain.begin(label, total, unit)
            self._bar, self._plain.fetched = self._plain, self._fetched
            return
        if not sys.stderr.isatty():
            return
        from tqdm import tqdm

        self._bar = tqdm(
            desc=printable(label),
            total=total,
            unit=unit,
            unit_scale=True,
            leave=leave,
            dynamic_ncols=True,
            bar_format=_OF_FETCHES if self._fetched else None,
            file=sys.stderr,
        )

    def failed(self, samples: int) -> None:
        """Count what could not be fetched."""
        if self._fetched is not None:
            self._fetched.failed += samples

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Move the bar: bytes say the most, where they are known."""
        if self._bar is not None:
            done, total = self._shards
            self._shards = (done + shards, total)
            with self._while_read():
                if total:
                    rate = "" if self._fetched is None else self._fetched.more(samples, size, shards)
                    if self._fetched is not None and self._bar is not self._plain:
                        rate += self._fetched.left()
                    self._bar.set_postfix_str(f"shard {done + shards:,}/{total:,}{rate}", refresh=not samples)
                self._bar.update(size if self._fetched is None else samples)

    def close(self) -> None:
        """Leave the bar as it is, and the cursor below it; show no more progress."""
        hear(None)
        self._close_bar()
        if self._plain is not None:
            self._plain.end()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, text: str) -> None:
        text = printable(text)  # a line is one line, whatever names are in it
        beside_bar = nullcontext() if self._bar is None else self._bar.external_write_mode(file=sys.stderr)
        with self._while_read(), beside_bar:
            say(text)

    @contextmanager
    def _while_read(self) -> Iterator[None]:
        """Print in the block, and nothing more once the reader of stderr is gone: that is no reason to stop the run."""
        try:
            yield
        except OSError:
            self._quiet, self._verbose, self._bar = True, False, None
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - the interpreter flushes it at its end
