"""Progress as lines, without a terminal."""

from __future__ import annotations

import re
import time
from contextlib import closing, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from shardtool.cli import terminal as terminal_module
from shardtool.cli.terminal import Terminal
from shardtool.storage.remote.notices import RequestRetry, emit
from tests.helpers import typed

if TYPE_CHECKING:
    from pathlib import Path

LINE = re.compile(r"progress: 3 samples: 1 kB of 4 kB \(25%\), shard 1/4, [0-9.]+ k?B/s, [0-9,]+ s left")

FETCHING = re.compile(
    r"progress: downloading: 100 of 200 samples \(50%\), shard 1/2, 10\.0% failed, "
    r"[0-9.]+ [kMG]?B/s, [0-9,]+/s, [0-9,]+ s left"
)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("progress: ")]


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the period of ten seconds."""
    monkeypatch.setattr(terminal_module, "PERIOD_S", 0.01)


def _new_lines(err: StringIO) -> list[str]:
    """Wait for two new lines on stderr, and return them."""
    deadline, before = time.monotonic() + 30, len(err.getvalue())
    while err.getvalue().count("\n", before) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    return err.getvalue()[before:].rpartition("\n")[0].split("\n")


@pytest.mark.usefixtures("often")
def test_lines_are_printed_while_a_run_waits() -> None:
    """Each period has a line with step and progress; no line follows the end."""
    with (
        redirect_stderr(StringIO()) as err,
        closing(Terminal(quiet=False, verbose=False, progress="plain")) as terminal,
    ):
        terminal.listed(1000)
        terminal.listed(204)
        assert _new_lines(err)[-1] == "progress: listing: 1,204 samples"
        terminal.start(3, 4000, 4)
        terminal.advance(1, 1000, 1)
        lines = _new_lines(err)
        assert LINE.fullmatch(lines[-1]), lines
        terminal.note("something")
        terminal.close()
        text = err.getvalue()
        assert "\nnote: something\n" in text
        time.sleep(0.05)
        assert err.getvalue() == text


@pytest.mark.usefixtures("often")
def test_earlier_retries_are_not_counted() -> None:
    """Retries of earlier runs in this process are not counted."""
    emit(RequestRetry("http://h/a", "busy", 1, 0.1, requests=30))
    with (
        redirect_stderr(StringIO()) as err,
        closing(Terminal(quiet=False, verbose=False, progress="plain")) as terminal,
    ):
        terminal.listed(5)
        assert _new_lines(err)[-1] == "progress: listing: 5 samples"
        emit(RequestRetry("http://h/a", "busy", 1, 0.1, requests=2))
        assert _new_lines(err)[-1] == "progress: listing: 5 samples, 2 retries"


def test_a_server_that_keeps_failing_is_named() -> None:
    """Without -v, one note names a server after several failed attempts, or if it requires a long wait."""
    few, many, long = (
        RequestRetry("s3://b/k", "busy", attempts, wait_s) for attempts, wait_s in ((1, 2), (7, 2), (1, 60))
    )
    for events, notes in (([few, few], 0), ([few, many, many], 1), ([long, many], 1)):
        with redirect_stderr(StringIO()) as err, closing(Terminal(quiet=False, verbose=False)):
            for event in events:
                emit(event)
        assert err.getvalue().count("note: s3://b/k: busy; retrying in ") == notes
    with redirect_stderr(StringIO()) as err, closing(Terminal(quiet=False, verbose=True)):
        emit(many)
    assert err.getvalue() == "retry: s3://b/k: busy; retrying in 2.0 s\n"


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("quiet", "progress"), [(True, "plain"), (False, "auto")])
def test_no_lines_without_the_option(quiet: bool, progress: str) -> None:  # noqa: FBT001 - a parameter of the test
    """With `quiet`, or without the option and a terminal, no lines are printed."""
    with (
        redirect_stderr(StringIO()) as err,
        closing(Terminal(quiet=quiet, verbose=False, progress=progress)) as terminal,
    ):
        terminal.start(3, 4000, 4)
        terminal.advance(1, 1000, 1)
        time.sleep(0.05)
        assert err.getvalue() == ""


def test_a_short_run_prints_no_progress(small: Path, tmp_path: Path) -> None:
    """Every verb has the option; results stay on stdout."""
    create = ("create", small, f"{tmp_path}/out-{{0..}}.tar", "--workers", 1)
    ran = typed(*map(str, create), "--progress", "plain", "--json")
    assert (ran.code, ran.out[:1], _lines(ran.err)) == (0, "{", [])
    out = f"{tmp_path}/out.json"
    for words in (["inspect", out], ["verify", out], ["index", out], ["reshard", out, f"{tmp_path}/new-{{0..}}.tar"]):
        ran = typed(*words, "--progress", "plain")
        assert (ran.code, _lines(ran.err)) == (0, [])
    ran = typed("verify", out, "--progress", "loud")
    assert (ran.code, "'auto', 'plain'" in ran.err) == (2, True)


def test_the_period_is_ten_seconds() -> None:
    """The period is the one in the documentation."""
    assert terminal_module.PERIOD_S == 10


@pytest.mark.usefixtures("often")
def test_download_progress_counts_samples() -> None:
    """Downloads have no known size: lines count samples, with failure rate and speed."""
    with (
        redirect_stderr(StringIO()) as err,
        closing(Terminal(quiet=False, verbose=False, progress="plain")) as terminal,
    ):
        terminal.start(200, 0, 2)
        terminal.failed(10)
        terminal.advance(100, 5000, 1)
        line = _new_lines(err)[-1]
    assert FETCHING.fullmatch(line), line
