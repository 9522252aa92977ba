"""Kills, crashes and endless loops during transforms."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import contents, create, finished, hidden, identity, plain, reach, settles, shards, start
from tests.stored import age

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.helpers import Run

_SAMPLES = 18
_PROMPTLY_S = 20  # promised: 2; a loaded machine gets more
MAP = ("--map", "tests.mapped:slow", "--max-size", "7kB", "--workers", "2", "--quiet")
EVALUATED = ("--map", "tests.mapped:evaluated", "--max-count", "3", "--workers", "2", "--quiet")


@dataclass(frozen=True)
class Slow:
    """A source whose transform takes half a second, and the output of an undisturbed run."""

    source: Path
    pattern: str
    expected: dict[str, str]

    @property
    def shards(self) -> int:
        """Number of shards."""
        return sum(not name.endswith((".index", ".json")) for name in self.expected)


@pytest.fixture(scope="module", params=["tar", "tfrecord"])
def slow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Slow:
    """Create the source, and pack it once."""
    folder, pattern = tmp_path_factory.mktemp("slow"), f"out-{{000..}}.{request.param}"
    source = folder / "src"
    source.mkdir()
    for number in range(_SAMPLES):
        (source / f"s{number:03}.txt").write_text(f"caption of {number}")
    run = create(source, folder / "out" / pattern, *MAP)
    assert (run.code, run.err) == (0, "")
    return Slow(source, pattern, contents(folder / "out"))


def _resume(folder: Path, slow: Slow, *more: str) -> None:
    """Check that visible files are complete, and that `--resume` keeps them and finishes the job."""
    seen = {name: digest for name, digest in contents(folder).items() if not name.startswith(".")}
    assert seen.items() <= slow.expected.items()
    assert "out.json" not in seen
    age(folder, slow.source)
    before = identity(folder, finished(folder))
    run = create(slow.source, folder / slow.pattern, *MAP, "--resume", *more)
    assert (run.code, run.err) == (0, "")
    assert identity(folder, list(before)) == before
    assert contents(folder) == slow.expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "count", "group"), [("tar", 1, False), ("tar", -2, True), ("tfrecord", -2, False)], indirect=["slow"]
)
def test_kill_and_resume(slow: Slow, count: int, place: Path, *, group: bool) -> None:
    """A killed run can be resumed, also while overflow shards are written; finished shards stay."""
    run = start(slow.source, place / "out" / slow.pattern, *MAP)
    reach(run, place / "out", count if count > 0 else slow.shards + count)
    run.signal(signal.SIGKILL, group=group)
    run.end()
    assert run.code == -signal.SIGKILL
    assert run.all_gone(), "a worker outlives its parent"
    _resume(place / "out", slow, *(["--workers", "1"] if group else []))


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["tar"], indirect=True)
def test_killed_worker_ends_the_run(slow: Slow, place: Path) -> None:
    """A killed worker ends the run with 7; finished shards stay, and no temporary file remains."""
    run = start(slow.source, place / "out" / slow.pattern, *MAP)
    reach(run, place / "out", 2)
    os.kill(run.workers()[1], signal.SIGKILL)
    run.end()
    assert run.code == 7
    assert "SIGKILL" in run.err
    plain(run)
    assert run.all_gone()
    assert not hidden(place / "out")
    _resume(place / "out", slow)


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["tar"], indirect=True)
def test_kill_between_two_splits(slow: Slow, place: Path) -> None:
    """A run killed after its first split is resumed to the same bytes; the first split is unchanged."""
    words, pattern = (*MAP, "--split", "a=0.4,b=0.6"), slow.pattern.replace("out", "{split}/out")
    right = create(slow.source, place / "right" / pattern, *words)
    assert right.code == 0, right.err
    folder = place / "out"
    run = start(slow.source, folder / pattern, *words)
    assert settles((folder / "b" / "out-000.tar").exists, step_s=0.0005)
    run.signal(signal.SIGKILL, group=True)
    run.end()
    assert run.all_gone()
    for split in ("a", "b"):
        assert not (folder / split / "out.json").exists()
        age(folder / split, slow.source)
    before = identity(folder / "a", sorted(os.listdir(folder / "a")))
    run = create(slow.source, folder / pattern, *words, "--resume")
    assert (run.code, run.err) == (0, "")
    after = identity(folder / "a", sorted(os.listdir(folder / "a")))
    assert after.items() >= {name: fact for name, fact in before.items() if not name.startswith(".")}.items()
    for split in ("a", "b"):
        assert contents(folder / split) == contents(place / "right" / split)


def _expressions(folder: Path, odd: str) -> Path:
    """Write twelve samples; the tenth gets the text `odd` once the output folder exists."""
    source = folder / "src"
    source.mkdir()
    for number in range(12):
        (source / f"{number:02}.py").write_text("{'a': key}")
    (source / "09.py").write_text(f"({odd}) if os.path.isdir({str(folder / 'out')!r}) else {{'a': key}}")
    return source


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "said"), [("os._exit(3)", "status 3"), ("os.kill(os.getpid(), 11)", "SIGSEGV")], ids=["exits", "crashes"]
)
def test_a_function_that_ends_its_process(odd: str, said: str, place: Path) -> None:
    """A function that ends its process ends the run with 7; once fixed, the run can be resumed."""
    source = _expressions(place, odd)
    run = create(source, place / "out", *EVALUATED)
    assert run.code == 7
    assert said in run.err
    plain(run)
    assert run.all_gone()
    assert not hidden(place / "out")
    assert not (place / "out" / "out.json").exists()
    (source / "09.py").write_text("{'a': key}")
    assert create(source, place / "out", *EVALUATED, "--resume").code == 0
    assert create(source, place / "fresh", *EVALUATED).code == 0
    assert contents(place / "out") == contents(place / "fresh")


def test_a_function_that_exits(place: Path) -> None:
    """`sys.exit` in a function is an error that names the sample, like any exception."""
    source = _expressions(place, "__import__('sys').exit(3)")
    run = create(source, place / "out", *EVALUATED)
    assert run.code == 6
    assert "shardtool: 09: " in run.err
    assert "SystemExit" in run.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("odd", "signum"), [("endless", signal.SIGTERM), ("stubborn", signal.SIGINT), ("tried", signal.SIGINT)]
)
def test_a_signal_during_an_endless_function(odd: str, signum: signal.Signals, place: Path) -> None:
    """A signal ends the run soon, even if a function loops endlessly or catches everything."""
    if odd == "endless":
        source, words = _expressions(place, "[None for _ in iter(int, 1)]"), [*EVALUATED]
    elif odd == "stubborn":
        text = "__import__('tests.mapped').mapped.stubborn(sample)"
        source, words = _expressions(place, text), [*EVALUATED]
    else:
        source, words = _expressions(place, "sample"), ["--map", "tests.mapped:stubborn", "--quiet"]
    run = start(source, place / "out", *words)
    if odd == "tried":
        time.sleep(0.6)
    else:
        assert settles(lambda: len(shards(place / "out")) == 3, step_s=0.002)
    run.signal(signum, group=signum == signal.SIGINT)
    run.process.wait(timeout=_PROMPTLY_S)
    run.end()
    _ended_by(run, signum)
    if odd == "tried":
        assert not (place / "out").exists(), "the estimate wrote something"
    else:
        assert not hidden(place / "out")
        assert not (place / "out" / "out.json").exists()


def _ended_by(run: Run, signum: signal.Signals) -> None:
    assert run.code == 128 + signum
    assert run.err.startswith(f"shardtool: interrupted by {signum.name}. ")
    plain(run)
    assert run.all_gone()


def test_an_endless_function_exits_with_its_parent(place: Path) -> None:
    """A worker in an endless function exits with its parent."""
    source = _expressions(place, "sample")
    run = start(source, place / "out", "--map", "tests.mapped:stubborn", "--workers", "2")
    assert settles(lambda: len(run.workers()) == 2)
    time.sleep(0.4)
    run.signal(signal.SIGKILL)
    run.end()
    assert run.all_gone()
