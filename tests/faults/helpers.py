"""Run the command line in a process, watch it from outside, and compare its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import crc32c

from tests import warm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPO = Path(__file__).resolve().parents[2]
PATTERN = "out-{000..}.tar"
MEBIBYTE = 2**20
PATIENCE_S = 30  # detects a hang: nothing here takes a tenth of it
_ENDINGS = (".tar", ".tfrecord")

# Runs the command line in-process, after code that may wrap `Terminal.start`, which is called between plan and packing,
# or `Terminal.phase`, which is called before the first pass of two.
HOOKED = """
import sys
from shardtool.cli import main
from shardtool.cli.terminal import Terminal
hooked_one = Terminal.{hook}
def hooked(self, *sizes):
    {code}
    hooked_one(self, *sizes)
Terminal.{hook} = hooked
main()
"""


@dataclass
class Run:
    """A running command line, in its own session and process group."""

    process: subprocess.Popen[bytes] | warm.Warm
    out: str = ""
    err: str = ""

    @property
    def code(self) -> int:
        """Exit code; negative for a signal."""
        code = self.process.returncode
        assert code is not None
        return code

    def end(self) -> Run:
        """Wait until it has exited, and all processes that hold its stderr."""
        self.out, self.err = (data.decode() for data in self.process.communicate(timeout=PATIENCE_S))
        return self

    def signal(self, signum: int, *, group: bool = False) -> None:
        """Send a signal to the parent, or to it and all its workers."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, signum)

    def processes(self) -> list[int]:
        """Return all live processes of this run's session, whoever their parent is."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):
                    state, _, _, session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
                    if state != "Z" and int(session) == self.process.pid:
                        found.append(int(name))
        return sorted(found)

    def workers(self) -> list[int]:
        """Return the parent's child processes."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text(encoding="ascii").split()]

    def all_gone(self) -> bool:
        """Return whether all processes end within 20 seconds."""
        return settles(lambda: not self.processes(), 20)


def start(
    source: Path | str, output: Path | str, *more: str, env: Mapping[str, str] | None = None, **how: object
) -> Run:
    """Start `create`, or another `verb`; `output` is a folder or a pattern. `code` runs between plan and packing.

    With `hook="phase"`, `code` runs before the first of two passes. With `cold`, `before` or `env`, a new Python
    starts.
    """
    target = str(output) if "{" in str(output) else f"{output}/{PATTERN}"
    code, hook, verb = str(how.pop("code", "")), str(how.pop("hook", "start")), str(how.pop("verb", "create"))
    hooked = HOOKED.replace("{code}", code).replace("{hook}", hook) if code else ""
    words, before = [verb, str(source), target, *more], _words(how.pop("before", ()))
    whole, cwd = {"PYTHONPATH": str(REPO), **(os.environ if env is None else env)}, str(how.pop("cwd", REPO))
    cold = bool(how.pop("cold", before or env is not None))
    assert not how, f"unknown: {how}"
    if warm.POSSIBLE and not cold:
        return Run(warm.Warm(words, code=hooked, cwd=cwd, env=whole))
    tool = ["-c", hooked] if hooked else ["-m", "shardtool"]
    return Run(subprocess.Popen(
        [*before, sys.executable, *tool, *words], env=whole, cwd=cwd, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ))  # fmt: skip


def _words(value: object) -> list[str]:
    assert isinstance(value, (list, tuple))
    return [str(word) for word in value]


def create(
    source: Path | str, output: Path | str, *more: str, env: Mapping[str, str] | None = None, **how: object
) -> Run:
    """Run `create` to its end."""
    return start(source, output, *more, env=env, **how).end()


def settles(true: Callable[[], bool], timeout_s: float = PATIENCE_S, step_s: float = 0.02) -> bool:
    """Return whether a condition becomes true in time."""
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True


def shards(folder: Path) -> list[str]:
    """Return the names of the visible shards."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(folder) if name.endswith(_ENDINGS) and not name.startswith("."))
    return []


def reach(run: Run, folder: Path, count: int) -> None:
    """Wait until `count` shards are visible, and check that the run is not finished."""
    assert settles(lambda: len(shards(folder)) >= count or run.process.poll() is not None, step_s=0.0005)
    assert not (folder / "out.json").exists(), "the run was over too soon to be disturbed"


def hold(run: Run, folder: Path, count: int) -> None:
    """Stop all processes of a run when `count` shards are visible; `release` continues them."""
    reach(run, folder, count)
    run.signal(signal.SIGSTOP, group=True)
    assert settles(lambda: all(map(is_stopped, run.processes())))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, for example by SIGSTOP."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


def release(run: Run) -> None:
    """Continue a stopped run."""
    run.signal(signal.SIGCONT, group=True)


def contents(folder: Path) -> dict[str, str]:
    """Return name to size and checksum of every file in a folder, including hidden ones."""
    found = {}
    for name in sorted(os.listdir(folder)):
        size = crc = 0
        with (folder / name).open("rb") as file:
            while block := file.read(MEBIBYTE):
                size, crc = size + len(block), crc32c.crc32c(block, crc)
        found[name] = f"{size}:{crc:08x}"
    return found


def identity(folder: Path, names: list[str]) -> dict[str, tuple[int, int]]:
    """Return inode and modification time of files, which change if a file is rewritten."""
    facts = {name: (folder / name).stat() for name in names}
    return {name: (fact.st_ino, fact.st_mtime_ns) for name, fact in facts.items()}


def finished(folder: Path) -> list[str]:
    """Return the shards that have a sidecar, and the sidecars."""
    both = [(name, f"{name.rpartition('.')[0]}.index") for name in shards(folder)]
    return [name for pair in both if (folder / pair[1]).exists() for name in pair]


def hidden(folder: Path) -> list[str]:
    """Return temporary names and locks, but not the journal, which an interrupted run leaves."""
    return [name for name in os.listdir(folder) if name.startswith(".") and not name.endswith(".journal")]


def write_samples(folder: Path, count: int, size: int) -> Path:
    """Create `count` samples, each of a large sparse file and a few small ones."""
    folder.mkdir(parents=True)
    for number in range(count):
        with (folder / f"s{number:04}.bin").open("wb") as file:
            file.write(b"first of %d" % number)
            file.truncate(size)
            file.seek(size - 20)
            file.write(b"%20d" % number)
        (folder / f"s{number:04}.txt").write_text(f"caption of {number}\n" * 50)
        (folder / f"s{number:04}.cls").write_text(str(number % 7))
    return folder


def plain(run: Run) -> None:
    """Check that a run printed a message and no traceback."""
    assert "Traceback" not in run.err, run.err
    assert "Exception" not in run.err, run.err
