"""SIGKILL at many instants: visible files stay complete, and `--resume` finishes the job."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import (
    MEBIBYTE,
    PATIENCE_S,
    contents,
    create,
    finished,
    hidden,
    hold,
    identity,
    plain,
    reach,
    release,
    settles,
    shards,
    start,
    write_samples,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.conftest import Bulk


def _whole(folder: Path, bulk: Bulk) -> None:
    """Check that every visible file equals that of an undisturbed run."""
    seen = {name: digest for name, digest in contents(folder).items() if not name.startswith(".")}
    assert seen.items() <= bulk.expected.items()
    assert "out.json" not in seen


def _resume(folder: Path, bulk: Bulk, *more: str) -> None:
    """Check that `--resume` keeps finished files and produces the bytes of an undisturbed run."""
    before = identity(folder, finished(folder))
    run = create(bulk.source, folder / bulk.pattern, *bulk.options, "--resume", *more)
    assert (run.code, run.err) == (0, "")
    assert identity(folder, list(before)) == before
    assert contents(folder) == bulk.expected


@pytest.mark.parametrize(
    ("made", "group", "count", "more"),
    [
        ("bulk", False, 0, ()),
        ("bulk", False, 1, ()),
        ("bulk", True, 9, ()),
        ("bulk", False, 20, ()),
        ("bulk", False, 9, ("--workers", "0")),
        ("bulk_records", False, 9, ()),
    ],
)
def test_kill_and_resume(
    made: str, count: int, more: tuple[str, ...], place: Path, request: pytest.FixtureRequest, *, group: bool
) -> None:
    """After a kill no process and no partial file remains, and resume produces the same bytes."""
    bulk: Bulk = request.getfixturevalue(made)
    run = start(bulk.source, place / "out" / bulk.pattern, *bulk.options, *more)
    reach(run, place / "out", count)
    run.signal(signal.SIGKILL, group=group)
    run.end()
    assert run.code == -signal.SIGKILL
    assert run.all_gone(), "a worker outlives its parent"
    (place / "out").mkdir(exist_ok=True)
    _whole(place / "out", bulk)
    _resume(place / "out", bulk)


@pytest.mark.slow
def test_kill_at_any_instant(bulk: Bulk, place: Path) -> None:
    """A run that is killed and resumed many times produces the same bytes."""
    folder = place / "out"
    for number in range(5):
        run = start(bulk.source, folder, *bulk.options, "--resume", cold=True)
        time.sleep(0.1 + 0.08 * number)
        run.signal(signal.SIGKILL, group=bool(number % 2))
        run.end()
        assert run.all_gone()
        if (folder / "out.json").exists():
            break
        if folder.exists():
            _whole(folder, bulk)
    _resume(folder, bulk)


def test_one_of_several_parts_is_killed(bulk: Bulk, place: Path) -> None:
    """Parallel parts do not affect each other; a killed part is resumed to the same bytes."""
    for _ in range(5):  # on a machine that is busy, a part may have ended before the signal comes
        shutil.rmtree(place / "out", ignore_errors=True)
        runs = [start(bulk.source, place / "out", *bulk.options, "--part", f"{part}/3") for part in (1, 2, 3)]
        assert settles((place / "out" / "out-008.tar").exists, step_s=0.0005)
        runs[1].signal(signal.SIGKILL, group=True)
        codes = [run.end().code for run in runs]
        if codes[1]:
            break
    assert codes == [0, -signal.SIGKILL, 0]
    _whole(place / "out", bulk)
    assert {".out.part1of3", ".out.part3of3"} <= {*hidden(place / "out")}
    before = identity(place / "out", finished(place / "out"))
    run = create(bulk.source, place / "out", *bulk.options, "--part", "2/3", "--resume")
    assert (run.code, run.err) == (0, "")
    assert identity(place / "out", list(before)) == before
    assert contents(place / "out") == bulk.expected


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_parent_killed_while_workers_are_stopped(bulk: Bulk, place: Path, start_method: str) -> None:
    """A worker that was stopped when its parent died exits once it continues, and never publishes."""
    run = start(bulk.source, place / "out", *bulk.options, "--start-method", start_method)
    hold(run, place / "out", 3)
    run.signal(signal.SIGKILL)
    run.process.wait(PATIENCE_S)
    before = sorted(shards(place / "out"))
    release(run)
    assert run.all_gone()
    assert sorted(shards(place / "out")) == before
    run.end()
    _resume(place / "out", bulk)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_worker_exits_with_its_parent(place: Path, start_method: str) -> None:
    """A worker whose parent is killed does not finish its shard."""
    source = write_samples(place / "src", 1, 2000 * MEBIBYTE)
    run = start(source, place / "out", "--max-size", "3GB", "--workers", "1", "--start-method", start_method)
    part = place / "out" / ".out-000.tar.part"
    assert settles(lambda: part.exists() and part.stat().st_size > MEBIBYTE, step_s=0.001)
    run.signal(signal.SIGKILL)
    run.end()
    assert run.all_gone()
    assert part.stat().st_size < 1000 * MEBIBYTE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "start_method", "count"),
    [("bulk", "fork", 0), ("bulk", "fork", 7), ("bulk", "spawn", 7), ("bulk_records", "fork", 7)],
)
def test_killed_worker_ends_the_run(
    made: str, start_method: str, count: int, place: Path, request: pytest.FixtureRequest
) -> None:
    """A killed worker ends the run with 7; finished shards stay, and no temporary file remains."""
    bulk: Bulk = request.getfixturevalue(made)
    folder = place / "out"
    run = start(bulk.source, folder / bulk.pattern, *bulk.options, "--start-method", start_method)
    reach(run, folder, count)
    assert settles(lambda: len(run.workers()) == 2, step_s=0.001)
    victim = run.workers()[1]
    os.kill(victim, signal.SIGKILL)
    run.end()
    assert run.code == 7
    assert f"worker process {victim}" in run.err
    assert "SIGKILL" in run.err
    assert "--resume" in run.err
    plain(run)
    assert run.all_gone()
    if count:
        assert len(shards(folder)) >= count
    if folder.exists():
        assert not hidden(folder)
        _whole(folder, bulk)
    _resume(folder, bulk)


@pytest.mark.parametrize("signum", [signal.SIGBUS, signal.SIGTERM])
def test_crashed_worker_ends_the_run(bulk: Bulk, place: Path, signum: signal.Signals) -> None:
    """A worker that crashes or is terminated ends the run with 7 and the name of the signal."""
    run = start(bulk.source, place / "out", *bulk.options)
    reach(run, place / "out", 2)
    os.kill(run.workers()[0], signum)
    run.end()
    assert run.code == 7
    assert signum.name in run.err
    plain(run)
    assert run.all_gone()
    assert not hidden(place / "out")
    _whole(place / "out", bulk)


def test_kill_while_overwriting(bulk: Bulk, place: Path) -> None:
    """After a kill during `--overwrite`, the old dataset is complete; a second overwrite succeeds."""
    folder = place / "out"
    old = create(bulk.source, folder, "--include", "s000*", *bulk.options)
    assert old.code == 0, old.err
    before = contents(folder)
    run = start(bulk.source, folder, *bulk.options, "--overwrite")
    assert settles(lambda: len([name for name in hidden(folder) if name.endswith(".part")]) > 5, step_s=0.001)
    run.signal(signal.SIGKILL, group=True)
    run.end()
    assert run.all_gone()
    left = contents(folder)
    assert {name: digest for name, digest in left.items() if not name.startswith(".")} == before
    again = create(bulk.source, folder, *bulk.options, "--overwrite")
    assert (again.code, again.err) == (0, "")
    assert contents(folder) == bulk.expected


def test_resume_replaces_damaged_files(bulk: Bulk, place: Path) -> None:
    """Resume replaces a damaged shard of the right size, a truncated one, and a damaged sidecar."""
    folder = place / "out"
    run = start(bulk.source, folder, *bulk.options)
    reach(run, folder, 8)
    run.signal(signal.SIGKILL, group=True)
    run.end()
    done = [name for name in finished(folder) if name.endswith(".tar")]
    with (folder / done[0]).open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"\1")
    os.truncate(folder / done[1], 1_000_000)
    index = folder / done[2].replace(".tar", ".index")
    index.write_bytes(index.read_bytes()[:-9] + b"123456789")
    shutil.copyfile(folder / done[4], folder / done[3])
    run = create(bulk.source, folder, *bulk.options, "--resume")
    assert (run.code, run.err) == (0, "")
    assert contents(folder) == bulk.expected
