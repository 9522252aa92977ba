"""`reshard` disturbed in either pass: kills, full disks, changed sources; `--resume` finishes the job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.conftest import memory_folder
from tests.faults.helpers import (
    MEBIBYTE,
    contents,
    create,
    finished,
    hidden,
    identity,
    plain,
    settles,
    shards,
    start,
    write_samples,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.faults.helpers import Run

_PAGE = 4096
_PROMPTLY_S = 20  # promised: 2; a loaded machine gets more
METHODS = ("gather", "scatter")

# Stops the parent; whoever goes on with it has seen what there is to see.
HOLD = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
# Fills the file system of {folder!r}, but for {room} bytes.
_FILL = (
    "import os; fact = os.statvfs({folder!r}); "
    "os.posix_fallocate(os.open({folder!r} + '/filler', os.O_CREAT | os.O_WRONLY), 0, "
    "fact.f_bavail * fact.f_frsize - {room})"
)


@dataclass(frozen=True)
class Dataset:
    """A dataset, how it is resharded, and the output of an undisturbed run, which is the same for both methods."""

    file: Path
    options: tuple[str, ...]
    expected: dict[str, str]

    def start(self, folder: Path, method: str, *more: str, **how: Any) -> Run:
        """Start a run."""
        return start(self.file, folder, *self.options, "--method", method, *more, verb="reshard", **how)

    def run(self, folder: Path, method: str, *more: str, **how: Any) -> Run:
        """Run it to its end."""
        return self.start(folder, method, *more, **how).end()


def _dataset(folder: Path, samples: int, size: int, *options: str) -> Dataset:
    source = write_samples(folder / "src", samples, size)
    assert create(source, folder / "in", "--max-count", "4", "--quiet").code == 0
    shutil.rmtree(source)
    whole = Dataset(folder / "in" / "out.json", ("--shuffle", "--workers", "2", "--quiet", *options), {})
    run = whole.run(folder / "out", "gather")
    assert run.code == 0, run.err
    expected = contents(folder / "out")
    shutil.rmtree(folder / "out")
    return Dataset(whole.file, whole.options, expected)


@pytest.fixture(scope="session")
def large() -> Iterator[Dataset]:
    """Create a dataset of 96 MB, which is resharded to 16 shards."""
    folder = memory_folder()
    yield _dataset(folder, 48, 2 * MEBIBYTE, "--max-count", "3")
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def little() -> Iterator[Dataset]:
    """Create a dataset of 0.7 MB, which is resharded to three shards."""
    folder = memory_folder()
    yield _dataset(folder, 12, 60_000, "--max-count", "5")
    shutil.rmtree(folder)


def _nothing_left(*folders: Path) -> None:
    """Check that no temporary file remains in folders."""
    for folder in folders:
        assert not folder.exists() or hidden(folder) == []


def _whole(folder: Path, dataset: Dataset) -> None:
    """Check that every visible file equals that of an undisturbed run."""
    seen = {name: digest for name, digest in contents(folder).items() if not name.startswith(".")}
    assert seen.items() <= dataset.expected.items()
    assert "out.json" not in seen


def _resume(folder: Path, dataset: Dataset, method: str, *more: str) -> None:
    """Check that `--resume` keeps finished files and produces exactly the files of an undisturbed run."""
    before = identity(folder, finished(folder)) if folder.exists() else {}
    run = dataset.run(folder, method, "--resume", *more)
    assert (run.code, run.err) == (0, "")
    assert identity(folder, list(before)) == before
    assert contents(folder) == dataset.expected


def _spooled(folder: Path) -> int:
    """Return the bytes that the first pass has written so far."""
    return sum(path.stat().st_blocks * 512 for path in folder.glob(".*.spool.part"))


def _reach(run: Run, folder: Path, temp: Path, when: int) -> None:
    """Wait until `count` shards are visible; for -1, until the first pass has written something."""

    def reached() -> bool:
        there = _spooled(temp) > MEBIBYTE if when < 0 else len(shards(folder)) >= when
        return there or run.process.poll() is not None

    assert settles(reached, step_s=0.0005)
    assert run.process.poll() is None, "the run was over too soon to be disturbed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "when", "start_method"),
    [("gather", 7, "spawn"), ("scatter", -1, "fork"), ("scatter", -1, "spawn"), ("scatter", 11, "fork")],
)  # fmt: skip
def test_kill_and_resume(method: str, when: int, start_method: str, large: Dataset, place: Path) -> None:
    """After a kill in either pass no partial file is visible, and resume produces the same bytes."""
    out, temp = place / "out", place / "temp"
    temp.mkdir()
    more = ("--temp-dir", str(temp), "--start-method", start_method)
    run = large.start(out, method, *more)
    _reach(run, out, temp, when)
    run.signal(signal.SIGKILL, group=when % 2 != 0)
    run.end()
    assert run.code == -signal.SIGKILL
    assert run.all_gone(), "a worker outlives its parent"
    _whole(out, large)
    _resume(out, large, method, *more)
    _nothing_left(out, temp)


@pytest.mark.slow
def test_kill_at_any_instant(large: Dataset, place: Path) -> None:
    """A run that is killed many times and resumed with alternating methods produces the same bytes."""
    out = place / "out"
    for number in range(5):
        run = large.start(out, METHODS[number % 2], "--resume")
        time.sleep(0.12 + 0.05 * number)
        run.signal(signal.SIGKILL, group=bool(number % 2))
        run.end()
        assert run.all_gone()
        if (out / "out.json").exists():
            break
        if out.exists():
            _whole(out, large)
    _resume(out, large, "scatter")
    _nothing_left(out)


@pytest.mark.slow
@pytest.mark.parametrize("when", [-1, 4])
def test_killed_worker_ends_the_run(when: int, large: Dataset, place: Path) -> None:
    """A worker killed in either pass ends the run with 7, and no temporary file remains."""
    out, temp = place / "out", place / "temp"
    temp.mkdir()
    run = large.start(out, "scatter", "--temp-dir", str(temp))
    _reach(run, out, temp, when)
    victim = run.workers()[1]
    os.kill(victim, signal.SIGKILL)
    run.end()
    assert run.code == 7
    assert f"worker process {victim}" in run.err
    plain(run)
    assert run.all_gone()
    _nothing_left(out, temp)
    _whole(out, large)
    _resume(out, large, "gather")


@pytest.mark.parametrize(("signum", "when"), [(signal.SIGINT, -1), (signal.SIGTERM, -1), (signal.SIGINT, 2)])
def test_a_signal_ends_the_run(when: int, signum: int, large: Dataset, place: Path) -> None:
    """Ctrl-C in either pass prints one line and leaves only finished files."""
    out, temp = place / "out", place / "temp"
    temp.mkdir()
    run = large.start(out, "scatter", "--temp-dir", str(temp))
    _reach(run, out, temp, when)
    run.signal(signum, group=signum == signal.SIGINT)
    run.process.wait(timeout=_PROMPTLY_S)
    run.end()
    assert (run.code, run.out) == (128 + signum, "")
    assert run.err.startswith(f"shardtool: interrupted by {signal.Signals(signum).name}. ")
    assert run.err.count("\n") == 1
    assert run.all_gone()
    _nothing_left(out, temp)
    _whole(out, large)


def test_two_runs_on_one_output(large: Dataset, place: Path) -> None:
    """A second run on the same output is refused and does not disturb the first."""
    out = place / "out"
    run = large.start(out, "scatter", code=HOLD, hook="phase")
    assert settles(lambda: out.exists() and any("spool" in name for name in hidden(out)), step_s=0.001)
    second = large.run(out, "scatter", "--resume")
    assert second.code == 5
    assert "another run" in second.err or "lock" in second.err
    assert settles(lambda: "T" in _state(run))
    run.signal(signal.SIGCONT)
    assert run.end().code == 0, run.err
    assert contents(out) == large.expected


def _state(run: Run) -> str:
    return Path(f"/proc/{run.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


# Appending.


@pytest.mark.slow
def test_append_killed_anywhere(large: Dataset, little: Dataset, place: Path) -> None:
    """An append killed at any instant leaves the old files unchanged, and can be resumed."""
    base, whole = place / "base", place / "whole"
    assert little.run(base, "gather").code == 0
    shutil.copytree(base, whole)
    renamed = ("--on-duplicate", "rename", "--append")
    assert large.run(whole, "scatter", *renamed).code == 0
    before, right = contents(base), contents(whole)
    for when in (-1, 11):
        out = place / str(when)
        shutil.copytree(base, out)
        run = large.start(out, "scatter", *renamed)
        _reach(run, out, out, when)
        run.signal(signal.SIGKILL, group=True)
        run.end()
        assert run.all_gone()
        left = contents(out)
        assert {name: left[name] for name in before} == before
        assert {name for name in left if not name.startswith(".") and left[name] != right[name]} <= {"out.json"}
        again = large.run(out, "gather", *renamed, "--resume")
        assert (again.code, again.err) == (0, "")
        assert contents(out) == right


# Space.


def _full(run: Run, where: Path, *folders: Path) -> None:
    """Check that a run exited with 7, named the full folder, and left no temporary file."""
    assert run.code == 7, run.err
    assert f"{where}: " in run.err or "no space left" in run.err
    plain(run)
    assert run.all_gone()
    _nothing_left(*folders)


def test_a_temporary_folder_that_is_too_small(little: Dataset, place: Path, disk: Callable[[str], Path]) -> None:
    """A temporary folder without enough space is refused before writing, with free and needed space."""
    temp, out = disk("size=256k"), place / "out"
    run = little.run(out, "scatter", "--temp-dir", str(temp))
    _full(run, temp, out, temp)
    assert "262 kB free" in run.err
    assert "--temp-dir" in run.err
    assert "--method gather" in run.err
    assert (os.listdir(temp), shards(out)) == ([], [])


@pytest.mark.parametrize("room", [0, 300_000])
def test_a_temporary_folder_that_fills_up(room: int, little: Dataset, place: Path, disk: Callable[[str], Path]) -> None:
    """A temporary folder that becomes full ends the run; with another folder the run succeeds."""
    temp, out = disk("size=4m"), place / "out"
    fill = _FILL.format(folder=str(temp), room=room // _PAGE * _PAGE)
    run = little.run(out, "scatter", "--temp-dir", str(temp), code=fill, hook="phase")
    _full(run, temp, out, temp)
    assert f"{temp}: cannot write a temporary file: no space left on device" in run.err
    assert os.listdir(temp) == ["filler"]
    _resume(out, little, "scatter", "--temp-dir", str(place))


@pytest.mark.parametrize("said", ["no such file", "not a directory"])
def test_an_invalid_temporary_folder(said: str, little: Dataset, place: Path) -> None:
    """An invalid temporary folder is named, with alternatives."""
    temp, out = place / "temp", place / "out"
    if "not" in said:
        temp.write_bytes(b"")
    run = little.run(out, "scatter", "--temp-dir", str(temp))
    _full(run, temp, out)
    assert said in run.err
    assert f"{temp}: " in run.err
    assert "--method gather" in run.err


@pytest.mark.parametrize(("method", "missing"), [("gather", 1), ("scatter", 30), ("gather", 90)])
def test_an_output_that_fills_up(
    method: str, missing: int, little: Dataset, place: Path, disk: Callable[[str], Path]
) -> None:
    """Wherever the disk becomes full, published files are complete; with space, resume finishes."""
    out, temp = disk("size=8m"), place / "temp"
    temp.mkdir()
    needed = sum(-(-int(digest.split(":")[0]) // _PAGE) for digest in little.expected.values())
    fill = _FILL.format(folder=str(out), room=max(0, needed - missing) * _PAGE)
    run = little.run(out, method, "--temp-dir", str(temp), code=fill)
    _full(run, out, out, temp)
    assert "Make space" in run.err
    (out / "filler").unlink()
    _whole(out, little)
    _resume(out, little, method, "--temp-dir", str(temp))
    _nothing_left(out, temp)


def test_an_output_without_space_for_both_passes(little: Dataset, disk: Callable[[str], Path]) -> None:
    """If the temporary file is on the output's disk, space for both is checked before writing."""
    out = disk("size=1200k")
    run = little.run(out, "scatter")
    _full(run, out, out)
    assert os.listdir(out) == []
    run = little.run(out, "gather")
    assert (run.code, run.err) == (0, "")
    assert contents(out) == little.expected


@pytest.mark.parametrize("method", METHODS)
def test_file_size_limit(method: str, little: Dataset, place: Path) -> None:
    """A shard or temporary file above `ulimit -f` is an error; SIGXFSZ does not kill the process."""
    out = place / "out"
    limited = ["sh", "-c", 'ulimit -f 200; exec "$@"', "sh"]  # blocks of 512 bytes
    run = little.run(out, method, before=limited)
    assert run.code == 7
    assert "file too large" in run.err
    plain(run)
    assert run.all_gone()
    assert (hidden(out), shards(out)) == ([], [])


# The source.

# What happens to the shard {at!r} between plan and packing, and what the message says.
FAULTS = {
    "vanishes": ("os.unlink({at!r})", "no such file"),
    "shrinks": ("os.truncate({at!r}, 5000)", "5,000 now"),
    "is rewritten": ("data = open({at!r}, 'rb').read(); open({at!r}, 'wb').write(data)", "modification time"),
    "becomes a fifo": ("os.unlink({at!r}); os.mkfifo({at!r})", "not a regular file"),
    "becomes a link": ("os.unlink({at!r}); open({at!r} + '~', 'wb').write(b'?'); os.symlink({at!r} + '~', {at!r})",
                       "1 now"),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "method"), [(name, METHODS[at % 2]) for at, name in enumerate(FAULTS)])
def test_a_shard_changed_after_listing(fault: str, method: str, little: Dataset, place: Path) -> None:
    """A source shard that changes after listing ends the run with 6; once restored, resume succeeds."""
    shutil.copytree(little.file.parent, place / "in")
    dataset = Dataset(place / "in" / "out.json", little.options, little.expected)
    at, out = str(place / "in" / "out-001.tar"), place / "out"
    code = "import os; " + FAULTS[fault][0].format(at=at)
    run = dataset.run(out, method, code=code, hook="phase" if method == "scatter" else "start")
    assert run.code == 6, run.err
    assert at in run.err
    assert FAULTS[fault][1] in run.err
    assert "--resume" in run.err
    plain(run)
    assert run.all_gone()
    _nothing_left(out)
    _whole(out, dataset)
    shutil.rmtree(place / "in")
    subprocess.run(["cp", "-a", str(little.file.parent), str(place / "in")], check=True)
    _resume(out, dataset, method)


def test_a_source_without_read_permission(little: Dataset, place: Path) -> None:
    """A shard or folder without permission is named, and not reported as damaged."""
    shutil.copytree(little.file.parent, place / "in")
    place.chmod(0o755)
    (place / "out").mkdir(mode=0o777)
    (place / "out").chmod(0o777)
    (place / "in" / "out-001.tar").chmod(0)
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if nobody and subprocess.run([*nobody, "true"], capture_output=True, check=False).returncode:
        pytest.skip("setpriv is not permitted here")
    dataset = Dataset(place / "in" / "out.json", little.options, little.expected)
    run = dataset.run(place / "out", "gather", before=nobody)
    if "No module named" in run.err or "can't open" in run.err:
        pytest.skip("nobody may not read the package here")
    assert run.code == 7, run.err
    assert f"{place}/in/out-001.tar: cannot be read: permission denied" in run.err
    plain(run)
    assert os.listdir(place / "out") == []
