"""Show progress, notes and details of a run on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from shardtool.cli.output import LOG, print_message
from shardtool.cli.plain_progress import FetchEstimate, PlainProgress
from shardtool.errors import printable
from shardtool.request.observer import Observer
from shardtool.storage.remote.notices import FetchProgress, Notice, RequestRetry, Stall, set_listener

# tqdm's format without the remaining time, which `FetchEstimate` computes.
_FETCH_BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]"


class Terminal(Observer):
    """Prints notes and details on stderr, and shows a progress bar there if stderr is a terminal.

    Args:
        progress: `plain` prints lines instead of a bar.
        on_valid_request: Called when the main step starts, because the request has then passed all checks.
    """

    def __init__(
        self, *, quiet: bool, verbose: bool, progress: str = "auto", on_valid_request: Callable[[], None] | None = None
    ) -> None:
        self._quiet, self._verbose = quiet and not LOG.is_enabled, verbose
        self._on_valid_request = on_valid_request
        self._plain = PlainProgress() if (progress == "plain" and not quiet) or LOG.is_enabled else None
        self._bar: Any = None
        self._shards = (0, 0)
        self._fetched: FetchEstimate | None = None
        set_listener(self._receive_event)

    def note(self, text: str) -> None:
        if LOG.is_enabled:
            LOG.write("note", text=text)
        elif not self._quiet:
            self._line(text, label="note:", label_color="yellow")

    def log(self, text: str) -> None:
        if self._verbose:
            self._line(text)

    def shard(self, name: str, done: str, samples: int, size: int) -> None:
        if done != "kept":
            LOG.samples, LOG.size = LOG.samples + samples, LOG.size + size
        if LOG.is_enabled:
            LOG.write("shard", name=name, done=done, samples=samples, bytes=size)
        else:
            super().shard(name, done, samples, size)

    def _receive_event(self, event: object) -> None:
        if isinstance(event, RequestRetry) and LOG.is_enabled:
            LOG.write("retry", **event._asdict())
        elif isinstance(event, RequestRetry):
            self.log(f"retry: {event}")
        elif isinstance(event, FetchProgress) and self._fetched is not None:
            self._fetched.reports[event.worker] = time.monotonic(), event
            self.advance(0, 0, 0)
        elif isinstance(event, Stall) and self._plain is not None:
            self._plain.stall = time.monotonic(), event.text
        elif isinstance(event, Notice):
            self.note(event.text)

    def listed(self, samples: int) -> None:
        if self._bar is None:
            self._start_bar("listing", None, " samples", leave=False)
        if self._bar is not None:
            with self._ignoring_closed_stderr():
                self._bar.update(samples)

    def phase(self, text: str, size: int) -> None:
        self._close_bar()
        self._shards = (0, 0)
        self._start_bar(text, size, "B", leave=False)

    def start(self, samples: int, size: int, shards: int) -> None:
        if self._on_valid_request is not None:
            self._on_valid_request()
        if LOG.is_enabled:
            LOG.write("start", samples=samples, bytes=size, shards=shards)
        self._close_bar()
        self._shards = (0, shards)
        self._fetched = None if size or not samples else FetchEstimate(samples, shards)  # size 0 means downloads
        if self._fetched is not None:
            self._start_bar("downloading", samples, " samples", leave=True)
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
            bar_format=_FETCH_BAR_FORMAT if self._fetched else None,
            file=sys.stderr,
        )

    def failed(self, samples: int) -> None:
        if self._fetched is not None:
            self._fetched.failed += samples

    def advance(self, samples: int, size: int, shards: int) -> None:
        if self._bar is not None:
            done, total = self._shards
            self._shards = (done + shards, total)
            with self._ignoring_closed_stderr():
                if total:
                    rate = "" if self._fetched is None else self._fetched.add_finished(samples, size, shards)
                    if self._fetched is not None and self._bar is not self._plain:
                        rate += self._fetched.remaining_text()
                    self._bar.set_postfix_str(f"shard {done + shards:,}/{total:,}{rate}", refresh=not samples)
                self._bar.update(size if self._fetched is None else samples)

    def close(self) -> None:
        set_listener(None)
        self._close_bar()
        if self._plain is not None:
            self._plain.end()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, text: str, *, label: str = "", label_color: str = "") -> None:
        text = printable(text)  # names may contain line breaks
        above_bar = nullcontext() if self._bar is None else self._bar.external_write_mode(file=sys.stderr)
        with self._ignoring_closed_stderr(), above_bar:
            print_message(text, label=label, label_color=label_color)

    @contextmanager
    def _ignoring_closed_stderr(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._quiet, self._verbose, self._bar = True, False, None
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - the interpreter flushes it at exit
