"""What people see: progress, notes, tables and summaries. Everything but results goes to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from shardtool.cli.output import say, show, show_json
from shardtool.errors import printable
from shardtool.request.results import CreateResult, Observer
from shardtool.storage.remote.retry import asked_again, hear
from shardtool.values import counted, show_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import TextIO

    from shardtool.request.results import Changes, DryRun


# Progress as lines, for logs: where no terminal draws a bar, a line every ten seconds tells that a run goes on.


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


_MOST_ROWS = 40


class _FetchText:
    """How well files are fetched, as text for a bar."""

    def __init__(self) -> None:
        self.failed = self._samples = self._size = 0
        self._begun = time.monotonic()

    def more(self, samples: int, size: int) -> str:
        """Return the share of samples that were fetched so far, and how fast, with some more."""
        self._samples += samples
        self._size += size
        good = 1 - self.failed / self._samples if self._samples else 1
        return f", {max(0, good):.1%} fetched, {show_size(self._size / max(time.monotonic() - self._begun, 1e-9))}/s"


class Terminal(Observer):
    """An observer that shows a run on stderr: notes and details as lines, progress as a bar where it is a terminal.

    Args:
        quiet: Show nothing but details.
        verbose: Show details.
        progress: `plain`: lines in place of the bar, also where stderr is no terminal.
    """

    def __init__(self, *, quiet: bool, verbose: bool, progress: str = "auto") -> None:
        self._quiet, self._verbose = quiet, verbose
        self._plain = PlainProgress() if progress == "plain" and not quiet else None
        self._bar: Any = None
        self._shards = (0, 0)
        self._fetched: _FetchText | None = None
        hear(lambda text: self.log(f"retry: {text}"))

    def note(self, text: str) -> None:
        """Show something that the user should know."""
        if not self._quiet:
            self._line(f"note: {text}")

    def log(self, text: str) -> None:
        """Show a detail, where the user asked for it."""
        if self._verbose:
            self._line(text)

    def listed(self, samples: int) -> None:
        """Count what was found."""
        if self._bar is None:
            self._start_bar("listing", None, " samples", leave=False)
        if self._bar is not None:
            try:
                self._bar.update(samples)
            except OSError:
                self._stop_printing()

    def phase(self, text: str, size: int) -> None:
        """Start a bar that will make room for another."""
        self._close_bar()
        self._shards = (0, 0)
        self._start_bar(text, size, "B", leave=False)

    def start(self, samples: int, size: int, shards: int) -> None:
        """Start the bar."""
        self._close_bar()
        self._shards = (0, shards)
        self._fetched = None if size or not samples else _FetchText()  # of the web, no sizes are known
        if self._fetched is not None:
            self._start_bar("fetching", samples, " samples", leave=True)
            return
        self._start_bar(f"{samples:,} samples" if samples else "reading", size, "B", leave=True)

    def _start_bar(self, label: str, total: int | None, unit: str, *, leave: bool) -> None:
        if self._quiet or sys.stderr is None:
            return
        if self._plain is not None:
            self._plain.begin(label, total, unit)
            self._bar = self._plain
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
            try:
                if total:
                    rate = "" if self._fetched is None else self._fetched.more(samples, size)
                    self._bar.set_postfix_str(f"shard {done + shards:,}/{total:,}{rate}", refresh=False)
                self._bar.update(size if self._fetched is None else samples)
            except OSError:
                self._stop_printing()

    def close(self) -> None:
        """Leave the bar as it is, and the cursor below it; show no more progress."""
        self._close_bar()
        if self._plain is not None:
            self._plain.end()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _line(self, text: str) -> None:
        text = printable(text)  # a line is one line, whatever names are in it
        try:
            if self._bar is None:
                say(text)
            else:
                with self._bar.external_write_mode(file=sys.stderr):
                    say(text)
        except OSError:
            self._stop_printing()

    def _stop_printing(self) -> None:
        """Stop printing: the reader of stderr is gone, which is no reason to stop the run."""
        self._quiet, self._verbose, self._bar = True, False, None
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - the interpreter flushes it at its end


def carry_out(
    work: Callable[..., CreateResult | DryRun], *, as_json: bool, quiet: bool, verbose: bool, progress: str
) -> None:
    """Have shards written, or planned, before the user's eyes, and print what came of it.

    Args:
        work: Gets the observer.
        as_json: Print JSON.
        quiet: Print only what was asked for: a plan was.
        verbose: Tell of every shard.
        progress: How progress is shown: see `Terminal`.
    """
    terminal = Terminal(quiet=quiet, verbose=verbose, progress=progress)
    try:
        result = work(observer=terminal)
    finally:
        terminal.close()
    if as_json:
        show_json(result.to_json())
    elif isinstance(result, CreateResult):
        if not quiet:
            show(summary(result))
    else:
        show(plan_table(result))


def summary(result: CreateResult) -> str:
    """Return what is printed of a finished run."""
    if result.appended and not result.appended.samples:
        held = f"{counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}"
        return printable(f"nothing new: {result.dataset_file} stays as it is, {held}")
    new = result.appended or result
    rate = new.size / max(result.seconds, 1e-9)
    kept = f" ({result.kept:,} were finished already)" if result.kept else ""
    speed = f"{show_size(new.size)}, {result.seconds:.1f} s, {show_size(rate)}/s"
    made = f"{counted(new.samples, 'sample')} in {counted(new.shards, 'shard')}"
    of_part = f" of part {result.part}" if result.part else ""
    waits = ", once all parts have ended" if result.part and not result.merged else ""
    lines = [
        f"{made}{of_part}{' appended' if result.appended else ''}{kept}, {speed}",
        f"dataset file  {result.dataset_file}{waits}",
        f"fingerprint   {result.fingerprint}{of_part}",
    ]
    if result.appended:
        found = (
            f"now {counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}, {show_size(result.size)}"
        )
        lines.insert(1, found)
    for name, split in result.splits.items():
        held = f"{counted(split.samples, 'sample')} in {counted(split.shards, 'shard')}"
        lines.insert(-2, f"  {name}: {held}, {show_size(split.size)}, {split.dataset_file}")
    if result.changes and (line := _removed(result.changes)):
        lines.insert(1, line)
    if result.dropped:
        lines.insert(1, f"{counted(result.dropped, 'sample')} dropped by --map")
    if result.skipped:
        name = result.dataset_file.removesuffix(".json") + ".skipped"
        lines.insert(1, f"{result.skipped:,} left out, listed in {name}{waits}")
    if urls := list(filter(None, [result.urls, *(split.urls for split in result.splits.values())])):
        lines.append("to read it with webdataset:")
        lines += [f"  wds.WebDataset({json.dumps(one, ensure_ascii=False)}, shardshuffle=False)" for one in urls]
    if result.features:
        features = [f"    {json.dumps(name)}: {kind}," for name, kind in result.features.items()]
        lines += ["to read it with TensorFlow:", "  features = {", *features, "  }"]
        lines += ["  dataset.map(lambda record: tf.io.parse_single_example(record, features))"]
    return "\n".join(map(printable, lines))


def _removed(changes: Changes) -> str:
    """Return what a run took away from what was there; empty: nothing."""
    parts = ((changes.samples_removed, "sample"), (changes.shards_removed, "shard"))
    removed = [counted(count, what) for count, what in parts if count]
    return f"removed {' and '.join(removed)} that were there before" if removed else ""


def plan_table(plan: DryRun) -> str:
    """Return a dry run as a table; of a long one, its start and end."""
    rows = [
        tuple(map(printable, (shard.name, f"{shard.samples:,}", f"{shard.size:,}", shard.first_key, shard.last_key)))
        for shard in plan.shards
    ]
    if len(rows) > _MOST_ROWS:
        gap = (f"... {len(rows) - _MOST_ROWS:,} more ...", "", "", "", "")
        rows = [*rows[: _MOST_ROWS // 2], gap, *rows[-_MOST_ROWS // 2 :]]
    samples, size = sum(shard.samples for shard in plan.shards), sum(shard.size for shard in plan.shards)
    held = f"{counted(samples, 'sample')} in {counted(len(plan.shards), 'shard')}"
    total = f"{held}, {show_size(size)} ({size:,} bytes); nothing was written"
    if plan.skipped:
        total += f"; {plan.skipped:,} left out"
    if plan.changes is not None:
        total += f"\n--resume {plan.changes}"
    return "\n".join([*_table(("shard", "samples", "bytes", "first key", "last key"), rows), total])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if at in (1, 2) else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
