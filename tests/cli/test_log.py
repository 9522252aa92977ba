"""`--log`: one line per event on stderr, and one for the end of a run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest

from shardtool.cli import terminal
from shardtool.cli.output import LOG, json_text
from shardtool.execute import local_pool
from shardtool.storage.remote.notices import RequestRetry, emit, set_listener, warn
from tests.helpers import typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@contextmanager
def _logged() -> Iterator[StringIO]:
    """Turn on the log of this process, and yield the stream with its lines."""
    LOG.begin("json")
    with redirect_stderr(StringIO()) as err:
        yield err
    LOG.begin("")
    set_listener(None)


def _lines(text: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in text.splitlines()]
    assert all(TIME.fullmatch(event["time"]) for event in events)
    return events


def test_shards_and_the_end_have_lines(small: Path, tmp_path: Path) -> None:
    """Only log lines are written to stderr, and stdout is unchanged; shards and totals match the result."""
    create = ("create", str(small), f"{tmp_path}/out-{{0..}}.tar", "--workers", "0", "--max-count", "1")
    ran = typed(*create, "--log", "json", "--json")
    start, *shards, end = [event for event in _lines(ran.err) if event["event"] != "note"]
    result = json.loads(ran.out)
    assert (ran.code, start["event"], start["shards"]) == (0, "start", result["shards"])
    assert [event["event"] for event in shards] == ["shard"] * result["shards"]
    assert sum(event["samples"] for event in shards) == result["samples"]
    assert sum(event["bytes"] for event in shards) == result["size"] == end["bytes"]
    assert (end["event"], end["exit_code"], end["retries"], end["waited_s"]) == ("end", 0, 0, 0)
    rates = {"bytes_per_s": round(result["size"] / result["seconds"]), "samples_per_s": result.pop("samples_per_s")}
    assert rates["samples_per_s"] == round(result["samples"] / result["seconds"], 1)
    assert result.pop("bytes_per_s") == rates["bytes_per_s"]
    assert end["result"] == {name: value for name, value in result.items() if name != "notes"}
    quiet = typed("verify", f"{tmp_path}/out.json", "--log", "text", "--quiet")
    events = [line.split(" ")[1] for line in quiet.err.splitlines()]
    assert (quiet.out, events) == ("", ["start", *["shard"] * len(shards), "end"])


@pytest.mark.parametrize(
    ("more", "code"), [((), "output-exists"), (("--workers", "x"), "invalid-request"), (("--json",), "output-exists")]
)
def test_an_error_is_the_last_line(small: Path, tmp_path: Path, more: tuple[str, ...], code: str) -> None:
    """The last line has the exit code and the error; nothing else is printed."""
    create = ("create", str(small), f"{tmp_path}/out-{{0..}}.tar", "--workers", "0")
    assert typed(*create).code == 0
    ran = typed(*create, *more, "--log", "json")
    end = _lines(ran.err)[-1]
    assert (end["event"], end["exit_code"], end["error"]["code"]) == ("end", ran.code, code)
    assert bool(ran.out) == ("--json" in more)


def test_the_log_ends_with_its_run(small: Path) -> None:
    """A later run without the option prints messages for people."""
    assert typed("verify", str(small / "none.json"), "--log", "json").err.startswith("{")
    assert typed("verify", str(small / "none.json")).err.startswith("shardtool: ")


def test_retries_and_waits_are_lines_and_totals() -> None:
    """Each retry is a line; `--json` and the last line contain the number and waiting time of retries."""
    with _logged() as logged, closing(terminal.Terminal(quiet=True, verbose=False)) as shown:
        for attempt in (1, 2):
            emit(RequestRetry("s3://bucket/a", "the store answers 503", attempt, 0.25))
        shown.note("x")
        assert json.loads(json_text({})) == {"retries": 2, "waited_s": 0.5}
        LOG.end(7, {"code": "store-failed"})
    *retries, note, end = _lines(logged.getvalue())
    assert [(event["event"], event["where"], event["attempts"]) for event in retries] == [
        ("retry", "s3://bucket/a", 1), ("retry", "s3://bucket/a", 2)
    ]  # fmt: skip
    assert (note["text"], end["retries"], end["waited_s"], end["exit_code"]) == ("x", 2, 0.5, 7)


def test_a_period_without_progress_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A period without progress is logged as a stall."""
    monkeypatch.setattr(terminal, "PERIOD_S", 0.01)
    with _logged() as logged, closing(terminal.Terminal(quiet=False, verbose=False)) as shown:
        shown.start(3, 4000, 4)
        deadline = time.monotonic() + 30
        while logged.getvalue().count("stall") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [event["event"] for event in _lines(logged.getvalue())][:3] == ["start", "progress", "stall"]


def _quiet_task(seconds: float, _report: Callable[[int], object]) -> None:
    time.sleep(seconds)


def test_a_silent_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without reports is named until it reports again."""
    monkeypatch.setattr(terminal, "PERIOD_S", 0.1)
    monkeypatch.setattr(local_pool, "_SILENT_WORKER_S", 0.05)
    with (
        local_pool.LocalPool(1, "spawn") as pool,
        _logged() as logged,
        closing(terminal.Terminal(quiet=False, verbose=False)) as shown,
    ):
        shown.start(3, 4000, 4)
        for _ in pool.map(_quiet_task, [1.0], lambda *_: None):
            pass
    texts = [event["text"] for event in _lines(logged.getvalue()) if event["event"] == "stall"]
    assert re.search(r", waiting for worker \(quiet task\): no progress for \d+ s \(process \d+\)$", texts[-1])


@pytest.mark.parametrize("logs", [False, True])
def test_a_silent_store_is_reported(logs: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001
    """A silent store gives a note, a log line, or a library log message."""
    with _logged() as logged:
        LOG.begin("json" if logs else "")
        with closing(terminal.Terminal(quiet=False, verbose=False)):
            warn("s3://b/k: no answer for 10 seconds")
    text = logged.getvalue()
    if logs:
        (line,) = _lines(text)
        assert line["event"] == "note"
        text = f"note: {line['text']}\n"
    assert text == "note: s3://b/k: no answer for 10 seconds\n"
    assert not caplog.records
    warn("s3://b/k: no answer for 20 %d seconds")
    assert [record.getMessage() for record in caplog.records] == ["s3://b/k: no answer for 20 %d seconds"]


@pytest.mark.slow
def test_an_interrupted_run_has_a_last_line(tmp_path: Path) -> None:
    """An interrupted run logs the signal in its last line."""
    command = [sys.executable, "-m", "shardtool", "create", "-", f"{tmp_path}/out-{{0..}}.tar", "--log", "json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        time.sleep(2)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=60)
    end = _lines(err)[-1]
    assert (end["event"], end["exit_code"], run.returncode) == ("end", 143, 143)
    assert end["error"]["code"] == "interrupted"
