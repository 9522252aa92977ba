"""Run a verb, show its progress, notes and details on stderr, and print its result."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from math import inf
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import click

from shardtool.cli.output import LOG, print_json, print_message, print_text
from shardtool.errors import printable
from shardtool.request.observer import Observer
from shardtool.storage.remote.notices import FetchProgress, Notice, RequestRetry, Stall, retry_count, set_listener
from shardtool.units import format_size

if TYPE_CHECKING:
    from typing import TextIO

    from shardtool.cli.command_options import PrintOptions, RunOptions


PERIOD_S = 10.0
_MAX_STALL_AGE_S = 2.0


class PlainProgress:
    """Prints progress lines from a background thread. Has the same methods as a `tqdm` bar.

    `stall` is the time and text of the latest report about a worker that makes no progress.
    """

    def __init__(self) -> None:
        self.fetch_estimate: FetchEstimate | None = None
        self.stall = (-inf, "")
        self._ended = Event()
        self._thread: Thread | None = None
        self._total: int | None = None
        self._label, self._unit, self._done, self._postfix, self._begun = "", "", 0, "", 0.0

    def begin(self, label: str, total: int | None, unit: str = "B") -> None:
        """Start a step. `total` is its number of bytes or samples, or None if unknown."""
        self._label, self._total, self._unit, self._done, self._postfix = label, total, unit, 0, ""
        self._begun, self.fetch_estimate = time.monotonic(), None
        if self._thread is None:
            self._thread = Thread(target=self._print_periodically, daemon=True)
            self._thread.start()

    def update(self, more: int) -> None:
        self._done += more

    def set_postfix_str(self, text: str, *, refresh: bool = False) -> None:  # noqa: ARG002 - the signature of tqdm
        self._postfix = f", {text}"

    def external_write_mode(self, file: TextIO) -> AbstractContextManager[None]:  # noqa: ARG002 - the signature of tqdm
        return nullcontext()

    def close(self) -> None:
        """End the current step."""
        self._label = ""

    def stop_thread(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1)  # the thread may block while it writes to stderr

    def _print_periodically(self) -> None:
        before = ("", 0)
        while not self._ended.wait(PERIOD_S):
            if self._label and LOG.is_enabled:
                now = (self._label, self._done)
                LOG.write("stall" if now == before else "progress", text=self._text())
                before = now
            elif self._label:
                try:
                    print_message(printable(f"progress: {self._text()}"))
                except OSError:  # stderr is closed
                    return

    def _text(self) -> str:
        done, total, retries = self._done, self._total, retry_count()
        suffix = f", {retries:,} retries" if retries else ""
        if time.monotonic() - self.stall[0] < _MAX_STALL_AGE_S:
            suffix += f", waiting for {self.stall[1]}"
        if total is None:
            return f"{self._label}: {done:,} samples{suffix}"
        rate = done / max(time.monotonic() - self._begun, 1e-9)
        left = self.fetch_estimate.remaining_text() if self.fetch_estimate else ""
        left = (left or (f", {max(total - done, 0) / rate:,.0f} s left" if rate else "")) + suffix
        share = f" ({min(done / total, 1):.0%})" if total else ""
        label, postfix = self._label, self._postfix
        if self._unit != "B":
            return f"{label}: {done:,} of {total:,}{self._unit}{share}{postfix}, {rate:,.0f}/s{left}"
        return f"{label}: {format_size(done)} of {format_size(total)}{share}{postfix}, {format_size(rate)}/s{left}"


class FetchEstimate:
    """Estimates failure rate, speed and remaining time of downloads.

    `reports` contains the latest report of each worker, with its arrival time.
    """

    def __init__(self, samples: int, shards: int) -> None:
        self._total_samples, self._remaining_shards = samples, shards
        self.failed = self._finished_samples = self._size = 0
        self._begun = time.monotonic()
        self.reports: dict[int, tuple[float, FetchProgress]] = {}

    def add_finished(self, samples: int, size: int, shards: int) -> str:
        """Count finished samples, and return failure rate and speed as text."""
        self._finished_samples += samples
        self._size += size
        self._remaining_shards -= shards
        failed = self.failed / self._finished_samples if self._finished_samples else 0
        return f", {min(1, failed):.1%} failed, {format_size(self._size / max(time.monotonic() - self._begun, 1e-9))}/s"

    def remaining_text(self) -> str:
        """Return the remaining seconds and the slowest host as text, or "" before the first report."""
        now, reports = time.monotonic(), [*self.reports.values()]
        if not reports:
            return ""
        remaining_s = sorted(
            max(0.0, report.remaining_s - (now - received_s)) * (report.share < 1) for received_s, report in reports
        )
        running = [report for _, report in reports if report.share < 1]
        running_samples = sum(report.samples * (1 - report.share) for report in running)
        unstarted_samples = max(0.0, self._total_samples - self._finished_samples - running_samples)
        total_s = sum(report.elapsed_s + report.remaining_s for _, report in reports)
        seconds_per_sample = total_s / max(sum(report.samples for _, report in reports), 1)
        unstarted_shards = max(self._remaining_shards - len(running), 1)
        seconds_per_shard = unstarted_samples * seconds_per_sample / unstarted_shards
        shards_of_each, more_shards = divmod(unstarted_shards, len(remaining_s))
        for _ in range(more_shards):  # each shard goes to the first free worker
            remaining_s = sorted([remaining_s[0] + seconds_per_shard, *remaining_s[1:]])
        left = f", {remaining_s[-1] + shards_of_each * seconds_per_shard:,.0f} s left"
        slow = max(running, key=lambda report: report.remaining_s, default=None)
        if slow is None or not slow.host:
            return left
        same_host = [report for report in running if report.host == slow.host]
        done, files = sum(report.done for report in same_host), sum(report.files for report in same_host)
        return f"{left}, waiting for {slow.host}: {done:,} of {files:,}, {slow.seconds_per_file:.2g} s each"


# tqdm's format without the remaining time, which `FetchEstimate` computes.
_FETCH_BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_fmt}{postfix}]"
# Without -v, a retry is reported only after this many attempts, or before a wait of at least this many seconds.
_REPORTED_ATTEMPTS, _REPORTED_WAIT_S = 7, 10.0
_RETRY_NOTE_INTERVAL_S = 60.0


class Terminal(Observer):
    """Prints notes and details on stderr, with a progress bar if stderr is a terminal.

    Args:
        progress: With `plain`, print lines instead of a bar.
        on_valid_request: Called before the main step, once the request has passed all checks.
    """

    def __init__(
        self, *, quiet: bool, verbose: bool, progress: str = "auto", on_valid_request: Callable[[], None] | None = None
    ) -> None:
        self._quiet = quiet and not LOG.is_enabled
        self._verbose = verbose
        self._on_valid_request = on_valid_request
        self._plain = PlainProgress() if (progress == "plain" and not quiet) or LOG.is_enabled else None
        self._bar: Any = None
        self._shards = (0, 0)
        self._fetch_estimate: FetchEstimate | None = None
        self._next_retry_note_s = 0.0
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
            self._report_retry(event)
        elif isinstance(event, FetchProgress) and self._fetch_estimate is not None:
            self._fetch_estimate.reports[event.worker] = time.monotonic(), event
            self.advance(0, 0, 0)
        elif isinstance(event, Stall) and self._plain is not None:
            self._plain.stall = time.monotonic(), event.text
        elif isinstance(event, Notice):
            self.note(event.text)

    def _report_retry(self, event: RequestRetry) -> None:
        # While files are downloaded, do not report a long wait for one host, because other downloads continue.
        is_long_wait = event.wait_s >= _REPORTED_WAIT_S and self._fetch_estimate is None
        if self._verbose:
            self.log(f"retry: {event}")
        elif (event.attempts >= _REPORTED_ATTEMPTS or is_long_wait) and time.monotonic() >= self._next_retry_note_s:
            self._next_retry_note_s = time.monotonic() + _RETRY_NOTE_INTERVAL_S
            self.note(str(event))

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
        # The size is 0 (unknown) only for downloads.
        self._fetch_estimate = None if size or not samples else FetchEstimate(samples, shards)
        if self._fetch_estimate is not None:
            self._start_bar("downloading", samples, " samples", leave=True)
            return
        self._start_bar(f"{samples:,} samples" if samples else "reading", size, "B", leave=True)

    def _start_bar(self, label: str, total: int | None, unit: str, *, leave: bool) -> None:
        if self._quiet or sys.stderr is None:
            return
        if self._plain is not None:
            self._plain.begin(label, total, unit)
            self._bar, self._plain.fetch_estimate = self._plain, self._fetch_estimate
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
            bar_format=_FETCH_BAR_FORMAT if self._fetch_estimate else None,
            file=sys.stderr,
        )

    def failed(self, samples: int) -> None:
        if self._fetch_estimate is not None:
            self._fetch_estimate.failed += samples

    def advance(self, samples: int, size: int, shards: int) -> None:
        if self._bar is not None:
            done, total = self._shards
            self._shards = (done + shards, total)
            with self._ignoring_closed_stderr():
                if total:
                    rate = self._fetch_estimate.add_finished(samples, size, shards) if self._fetch_estimate else ""
                    if self._fetch_estimate is not None and self._bar is not self._plain:
                        rate += self._fetch_estimate.remaining_text()
                    self._bar.set_postfix_str(f"shard {done + shards:,}/{total:,}{rate}", refresh=not samples)
                self._bar.update(size if self._fetch_estimate is None else samples)

    def close(self) -> None:
        set_listener(None)
        self._close_bar()
        if self._plain is not None:
            self._plain.stop_thread()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, text: str, *, label: str = "", label_color: str = "") -> None:
        text = printable(text)
        above_bar = nullcontext() if self._bar is None else self._bar.external_write_mode(file=sys.stderr)
        with self._ignoring_closed_stderr(), above_bar:
            print_message(text, label=label, label_color=label_color)

    @contextmanager
    def _ignoring_closed_stderr(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._quiet, self._verbose, self._bar = True, False, None
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open until exit


# Key in `Context.meta` for a function to call once the request is valid.
ON_VALID_REQUEST = "shardtool.on_valid_request"


def open_progress_display(options: RunOptions) -> closing[Terminal]:
    """Return a context manager for an observer that shows progress."""
    callback = click.get_current_context().meta.get(ON_VALID_REQUEST)
    return closing(
        Terminal(quiet=options.quiet, verbose=options.verbose, progress=options.progress, on_valid_request=callback)
    )


def run_and_print(
    work: Callable[..., Any], run_options: RunOptions, format_text: Callable[[Any], str], *, always: bool = False
) -> Any:
    """Run a verb, and show its progress. Print and return the result. `always` overrides `--quiet`."""
    with open_progress_display(run_options) as terminal:
        result = work(observer=terminal)
    print_result(run_options, result.to_json, partial(format_text, result), always=always)
    return result


def print_result(
    print_options: PrintOptions, document: Callable[[], object], format_text: Callable[[], str], *, always: bool = False
) -> None:
    """Print a result as JSON or text. `always` overrides `--quiet`."""
    if LOG.is_enabled and isinstance(result := document(), dict):
        LOG.result = result
    if print_options.as_json:
        print_json(document())
    elif always or not print_options.quiet:
        print_text(format_text())
