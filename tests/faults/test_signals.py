"""SIGINT, SIGTERM and SIGHUP during a run: exit code, one line of output, no files left."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import contents, create, hidden, hold, plain, reach, release, settles, start

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.conftest import Bulk
    from tests.faults.helpers import Run

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
_PROMPTLY_S = 20  # promised: 2; a loaded machine gets more


def _ends_well(run: Run, signum: int, folder: Path) -> None:
    """Check that a run exits soon after a signal, prints one line, and leaves no temporary file."""
    run.process.wait(timeout=_PROMPTLY_S)
    run.end()
    assert run.code == 128 + signum
    assert run.err == (
        f"shardtool: interrupted by {signal.Signals(signum).name}. "
        "All files in the output are complete. Run it again with --resume to continue.\n"
    )
    assert not run.out
    assert run.all_gone()
    assert not folder.exists() or not hidden(folder)


@pytest.mark.slow
@pytest.mark.parametrize("signum", SIGNALS, ids=lambda one: one.name)
@pytest.mark.parametrize("group", [False, True], ids=["parent", "group"])
def test_signal_in_the_middle(bulk: Bulk, place: Path, signum: int, group: bool) -> None:  # noqa: FBT001 - a parameter
    """A signal to the parent or the process group ends the run with 128 + N; resume produces the same bytes."""
    run = start(bulk.source, place / "out", *bulk.options)
    reach(run, place / "out", 2)
    run.signal(signum, group=group)
    _ends_well(run, signum, place / "out")
    if group:
        assert create(bulk.source, place / "out", *bulk.options, "--resume").code == 0
        assert contents(place / "out") == bulk.expected


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda one: one.name)
def test_signal_without_workers(bulk: Bulk, place: Path, signum: int) -> None:
    """With `--workers 0`, a signal ends the only process in the middle of a shard; resume produces the same bytes."""
    options = (*bulk.options, "--workers", "0")
    run = start(bulk.source, place / "out", *options)
    reach(run, place / "out", 2)
    assert not run.workers()
    run.signal(signum)
    _ends_well(run, signum, place / "out")
    assert create(bulk.source, place / "out", *options, "--resume").code == 0
    assert contents(place / "out") == bulk.expected


@pytest.mark.parametrize("group", [False, True], ids=["parent", "group"])
def test_signal_while_spawned_workers_start(bulk: Bulk, place: Path, group: bool) -> None:  # noqa: FBT001 - a parameter
    """Ctrl-C while workers start prints no traceback, in no process."""
    for delay_s in (0, 0.01, 0.02, 0.03):
        run = start(bulk.source, place / "out", *bulk.options, "--start-method", "spawn")
        assert settles(lambda run=run: len(run.processes()) > 1, step_s=0.001)  # type: ignore[misc]
        time.sleep(delay_s)
        run.signal(signal.SIGINT, group=group)
        _ends_well(run, signal.SIGINT, place / "out")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_repeated_signals(bulk: Bulk, place: Path, signum: int) -> None:
    """Further signals during the shutdown change nothing."""
    for gap_s in (0, 0.001, 0.003):
        run = start(bulk.source, place / "out", *bulk.options, "--resume")
        assert settles(lambda: any(name.endswith(".part") for name in hidden_if_exists(place / "out")), step_s=0.001)
        for _ in range(3):
            run.signal(signum, group=True)
            time.sleep(gap_s)
        _ends_well(run, signum, place / "out")


def hidden_if_exists(folder: Path) -> list[str]:
    """Return the temporary names in a folder, which may not exist."""
    return hidden(folder) if folder.exists() else []


def test_stopped_workers_do_not_delay_the_exit(bulk: Bulk, place: Path) -> None:
    """A run whose workers are stopped still exits immediately on a signal."""
    run = start(bulk.source, place / "out", *bulk.options)
    reach(run, place / "out", 2)
    for pid in run.workers():
        os.kill(pid, signal.SIGSTOP)
    run.signal(signal.SIGTERM)
    _ends_well(run, signal.SIGTERM, place / "out")


def test_suspended_and_continued(bulk: Bulk, place: Path) -> None:
    """Ctrl-Z and fg change no byte."""
    run = start(bulk.source, place / "out", *bulk.options)
    hold(run, place / "out", 2)
    time.sleep(0.3)
    release(run)
    assert run.end().code == 0
    assert contents(place / "out") == bulk.expected


def test_nohup(bulk: Bulk, place: Path) -> None:
    """Under `nohup`, SIGHUP to the whole group does not end the run."""
    run = start(bulk.source, place / "out", *bulk.options, before=["nohup"])
    reach(run, place / "out", 2)
    run.signal(signal.SIGHUP, group=True)
    assert run.end().code == 0, run.err
    plain(run)
    assert contents(place / "out") == bulk.expected


def test_signal_while_overwriting(bulk: Bulk, place: Path) -> None:
    """After an interrupt during `--overwrite`, the old dataset is unchanged, with no other files."""
    old = create(bulk.source, place / "out", "--include", "s000*", *bulk.options)
    assert old.code == 0, old.err
    before = contents(place / "out")
    run = start(bulk.source, place / "out", *bulk.options, "--overwrite")
    assert settles(lambda: len(hidden(place / "out")) > 5, step_s=0.001)
    run.signal(signal.SIGINT, group=True)
    _ends_well(run, signal.SIGINT, place / "out")
    assert contents(place / "out") == before
