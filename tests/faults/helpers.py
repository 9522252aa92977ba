"""Run commands in other processes, disturb and observe these processes, and compare their output files."""

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
PATIENCE_S = 30  # detects a hang: normally, nothing takes more than 3 s
_ENDINGS = (".tar", ".tfrecord")

# A program that runs the command line. It replaces `Terminal.{hook}` by a function that first runs {code}. `start` is
# called between planning and packing, and `phase` is called before the first of the two passes of `reshard`.
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
        """Wait until the command and all processes that use its stdout or stderr have exited. Return this run."""
        self.out, self.err = (data.decode() for data in self.process.communicate(timeout=PATIENCE_S))
        return self

    def signal(self, signum: int, *, group: bool = False) -> None:
        """Send a signal to the parent process, or with `group` also to all its workers."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, signum)

    def processes(self) -> list[int]:
        """Return the pids of all live processes of this run's session, including orphans."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError):
                    state, _, _, session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
                    if state != "Z" and int(session) == self.process.pid:
                        found.append(int(name))
        return sorted(found)

    def workers(self) -> list[int]:
        """Return the pids of the child processes of the parent process."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text(encoding="ascii").split()]

    def all_gone(self) -> bool:
        """Return whether all processes of this run exit within 20 seconds."""
        return settles(lambda: not self.processes(), 20)


def start(
    source: Path | str, output: Path | str, *more: str, env: Mapping[str, str] | None = None, **how: object
) -> Run:
    """Start `create`, or another `verb`. `output` is a folder or a pattern.

    The text `code` is Python code that the process runs between planning and packing, or with `hook="phase"` before the
    first of two passes. The process is forked from the server of `tests.warm`. With `cold`, `before` (words in front of
    the command, such as `strace`) or `env`, a new Python interpreter starts instead.
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
    """Run `create`, and wait until it has exited. The arguments are those of `start`."""
    return start(source, output, *more, env=env, **how).end()


def settles(true: Callable[[], bool], timeout_s: float = PATIENCE_S, step_s: float = 0.02) -> bool:
    """Return whether a condition becomes true within `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True


def shards(folder: Path) -> list[str]:
    """Return the sorted names of the published shards. An unfinished shard has a name that starts with a dot."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(folder) if name.endswith(_ENDINGS) and not name.startswith("."))
    return []


def reach(run: Run, folder: Path, count: int) -> None:
    """Wait until `count` shards are published, and check that the run is not finished."""
    assert settles(lambda: len(shards(folder)) >= count or run.process.poll() is not None, step_s=0.0005)
    assert not (folder / "out.json").exists(), "the run was over too soon to be disturbed"


def hold(run: Run, folder: Path, count: int) -> None:
    """Wait until `count` shards are published, and stop all processes of the run with SIGSTOP. See `release`."""
    reach(run, folder, count)
    run.signal(signal.SIGSTOP, group=True)
    assert settles(lambda: all(map(is_stopped, run.processes())))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


def release(run: Run) -> None:
    """Continue all processes of a run that `hold` stopped."""
    run.signal(signal.SIGCONT, group=True)


def contents(folder: Path) -> dict[str, str]:
    """Return size and CRC-32C of every file in a folder, including hidden files, by name."""
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
    """Return the names of all shards that have a sidecar, and of these sidecars."""
    both = [(name, f"{name.rpartition('.')[0]}.index") for name in shards(folder)]
    return [name for pair in both if (folder / pair[1]).exists() for name in pair]


def hidden(folder: Path) -> list[str]:
    """Return the hidden files except the journal. An interrupted run may leave only the journal."""
    return [name for name in os.listdir(folder) if name.startswith(".") and not name.endswith(".journal")]


def write_samples(folder: Path, count: int, size: int) -> Path:
    """Write `count` samples into a new folder. Each has a sparse `.bin` of `size` bytes, a `.txt` and a `.cls`."""
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
    """Check that a run printed no traceback."""
    assert "Traceback" not in run.err, run.err
    assert "Exception" not in run.err, run.err
