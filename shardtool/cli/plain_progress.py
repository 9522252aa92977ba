"""Print progress as one line every ten seconds, for logs."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from math import inf
from threading import Event, Thread
from typing import TYPE_CHECKING

from shardtool.cli.output import LOG, print_message
from shardtool.errors import printable
from shardtool.storage.remote.notices import FetchProgress, retry_count
from shardtool.units import format_size

if TYPE_CHECKING:
    from typing import TextIO


PERIOD_S = 10.0
_MAX_STALL_AGE_S = 2.0


class PlainProgress:
    """Prints progress lines from a thread, which `end` stops. The class has the methods of a `tqdm` bar.

    `stall` contains the time and the reason of the latest wait.
    """

    def __init__(self) -> None:
        self.fetched: FetchEstimate | None = None
        self.stall = (-inf, "")
        self._ended = Event()
        self._thread: Thread | None = None
        self._total: int | None = None
        self._label, self._unit, self._done, self._shards, self._begun = "", "", 0, "", 0.0

    def begin(self, label: str, total: int | None, unit: str = "B") -> None:
        """Start a step of `total` bytes or samples. If `total` is None, the step counts samples."""
        self._label, self._total, self._unit, self._done, self._shards = label, total, unit, 0, ""
        self._begun, self.fetched = time.monotonic(), None
        if self._thread is None:
            self._thread = Thread(target=self._print_periodically, daemon=True)
            self._thread.start()

    def update(self, more: int) -> None:
        self._done += more

    def set_postfix_str(self, text: str, *, refresh: bool = False) -> None:  # noqa: ARG002 - the signature of tqdm
        self._shards = f", {text}"

    def external_write_mode(self, file: TextIO) -> AbstractContextManager[None]:  # noqa: ARG002 - the signature of tqdm
        """Do nothing: unlike a tqdm bar, these lines stay on the terminal when other output is printed."""
        return nullcontext()

    def close(self) -> None:
        """Finish the step."""
        self._label = ""

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(1)  # wait no longer, because the thread may block while it writes to stderr

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
        done, total, again = self._done, self._total, retry_count()
        retries = f", {again:,} retries" if again else ""
        if time.monotonic() - self.stall[0] < _MAX_STALL_AGE_S:
            retries += f", waiting for {self.stall[1]}"
        if total is None:
            return f"{self._label}: {done:,} samples{retries}"
        rate = done / max(time.monotonic() - self._begun, 1e-9)
        left = self.fetched.remaining_text() if self.fetched else ""
        left = (left or (f", {max(total - done, 0) / rate:,.0f} s left" if rate else "")) + retries
        share = f" ({min(done / total, 1):.0%})" if total else ""
        label, shards = self._label, self._shards
        if self._unit != "B":
            return f"{label}: {done:,} of {total:,}{self._unit}{share}{shards}, {rate:,.0f}/s{left}"
        return f"{label}: {format_size(done)} of {format_size(total)}{share}{shards}, {format_size(rate)}/s{left}"


class FetchEstimate:
    """Success rate, speed and remaining time of downloads.

    `reports` contains the arrival time and the latest report of each worker.
    """

    def __init__(self, samples: int, shards: int) -> None:
        self._all, self._shards = samples, shards
        self.failed = self._samples = self._size = 0
        self._begun = time.monotonic()
        self.reports: dict[int, tuple[float, FetchProgress]] = {}

    def add_finished(self, samples: int, size: int, shards: int) -> str:
        """Count finished samples, and return a string with success rate and speed."""
        self._samples += samples
        self._size += size
        self._shards -= shards
        good = 1 - self.failed / self._samples if self._samples else 1
        return f", {max(0, good):.1%} fetched, {format_size(self._size / max(time.monotonic() - self._begun, 1e-9))}/s"

    def remaining_text(self) -> str:
        """Return a string with the remaining seconds and the slowest host, or "" before the first report."""
        now, reports = time.monotonic(), [*self.reports.values()]
        if not reports:
            return ""
        remaining_s = sorted(
            max(0.0, report.remaining_s - (now - received_s)) * (report.share < 1) for received_s, report in reports
        )
        running = [report for _, report in reports if report.share < 1]
        unstarted = max(0.0, self._all - self._samples - sum(report.samples * (1 - report.share) for report in running))
        total_s = sum(report.elapsed_s + report.remaining_s for _, report in reports)
        seconds_per_file = total_s / max(sum(report.samples for _, report in reports), 1)
        shards = max(self._shards - len(running), 1)
        for _ in range(shards % len(remaining_s)):  # each further shard goes to the first free worker
            remaining_s = sorted([remaining_s[0] + unstarted * seconds_per_file / shards, *remaining_s[1:]])
        left = f", {remaining_s[-1] + shards // len(remaining_s) * unstarted * seconds_per_file / shards:,.0f} s left"
        slow = max(running, key=lambda report: report.remaining_s, default=None)
        if slow is None or not slow.host:
            return left
        same_host = [report for report in running if report.host == slow.host]
        done, files = sum(report.done for report in same_host), sum(report.files for report in same_host)
        return f"{left}, waiting for {slow.host}: {done:,} of {files:,}, {slow.seconds_per_file:.2g} s each"
