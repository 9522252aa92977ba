"""Compare shardtool with other tools, and print the ratios as Markdown.

    .venv/bin/python benchmarks/bench.py [--rounds N] [--only NAME,...] [--json FILE]

Each figure is a ratio of the times of two whole processes. In each round, every tool of a job runs once, and a ratio
compares two runs of the same round. The tables show the median, minimum and maximum of all rounds. The first round
warms the page cache and is not counted. Before each run, the old output is deleted and memory is allocated
(`touch_memory`). After the run, the output must be at least as large as the input. The tables show which goals are
met; a slow run is not an error. README.md lists the requirements.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import operator
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

HERE = Path(__file__).resolve().parent
BENCH_DIR = Path(os.environ.get("SHARDTOOL_BENCH_DIR") or Path(tempfile.gettempdir(), "shardtool-bench"))
TMPFS = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
DISK = Path(tempfile.gettempdir())
WORKERS = 2
MAX_SIZE = 100_000_000  # bytes of a shard
LIMIT_S = 900  # a process that runs longer is killed
FRAMING = 1.25  # maximum size of the output relative to the input; tar headers and padding add most to small files
START_UP_FACTOR = 4  # start-up takes milliseconds, so it is measured in more rounds
PACKAGES = ("shardtool", "pyarrow", "numpy", "click", "crc32c")  # packages whose versions are reported
WATCH_S = 0.02  # interval between two samples of the memory of a process tree
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{HERE.parent}"}
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)  # use compiled modules, as users do

Command = list[str]


class SkippedError(Exception):
    """A tool or job cannot be measured on this machine. The message gives the reason."""


@dataclass(frozen=True)
class Goal:
    """A bound on a ratio. With `>=`, the ratio means "times faster"; otherwise shardtool's time / the other time."""

    sign: str
    bound: float

    def is_met(self, value: float) -> bool:
        """Return whether `value` meets the goal."""
        return bool({"<": operator.lt, "<=": operator.le, ">=": operator.ge}[self.sign](value, self.bound))

    def verdict(self, value: float) -> str:
        """Return two table cells: the goal, and whether `value` meets it."""
        return f"{self.sign} {self.bound:g} | {'yes' if self.is_met(value) else 'NO'}"


@dataclass(frozen=True)
class Job:
    """A corpus that all tools pack into the same folder, with a goal (or None) for each other tool."""

    name: str
    corpus: str
    place: Path
    goals: dict[str, Goal | None]
    ending: str = "tar"


TFRECORD_GOALS: dict[str, Goal | None] = {
    "TFRecordWriter": Goal(">=", 2.5),
    "TFRecordWriter without its imports": Goal(">=", 1.5),
    "tfrecord package": Goal(">=", 2.0),
    "shardtool, tar": Goal("<=", 1.5),
}
JOBS = (
    Job("small4", "small4", TMPFS, {"tar": Goal("<", 1.0), "ShardWriter": Goal(">=", 6.0), "C floor": None}),
    Job("images4", "images4", TMPFS, {"tar": Goal("<", 1.0), "ShardWriter": Goal(">=", 2.5), "C floor": None}),
    Job("small", "small", TMPFS, {"tar": Goal("<=", 1.3)}),
    Job("large2", "large2", TMPFS, {"C floor": Goal("<=", 1.5)}),
    Job("small4-tfrecord", "small4", TMPFS, TFRECORD_GOALS, "tfrecord"),
    Job("images4-tfrecord", "images4", TMPFS, TFRECORD_GOALS, "tfrecord"),
    Job("small4-disk", "small4", DISK, {"tar, sync": Goal("<=", 1.0)}),
    Job("images4-disk", "images4", DISK, {"tar, sync": Goal("<=", 1.0)}),
)
MEMORY_CORPORA = ("small4", "large2")
START_UP_GOAL_MS = Goal("<=", 60)
NAMES = (*(job.name for job in JOBS), "memory", "startup")


# Each of these functions returns a command that packs `source` into the folder `out`.


def shardtool_command(source: Path, out: Path, ending: str = "tar") -> Command:
    """Return the command of shardtool."""
    options = ["--max-size", f"{MAX_SIZE // 10**6}MB", "--workers", f"{WORKERS}", "--quiet"]
    return [sys.executable, "-m", "shardtool", "create", f"{source}", f"{out}/s-{{000000..}}.{ending}", *options]


def tar_command(source: Path, out: Path) -> Command:
    """Return the command of GNU tar, which writes one archive in one process."""
    return ["tar", "cf", f"{out}/o.tar", "-C", f"{source}", "."]


def tar_sync_command(source: Path, out: Path) -> Command:
    """Return the command of GNU tar that also syncs its output to the disk, as shardtool does."""
    return ["sh", "-c", 'tar cf "$1" -C "$2" . && sync "$1"', "sh", f"{out}/o.tar", f"{source}"]


def shardwriter_command(source: Path, out: Path) -> Command:
    """Return the command of webdataset's ShardWriter."""
    return [WEBDATASET.python(), f"{HERE / 'wds_writer.py'}", f"{source}", f"{out}", f"{MAX_SIZE}"]


def tfrecord_writer_command(package: str, source: Path, out: Path) -> Command:
    """Return the command that writes TFRecords with `tensorflow` or `tfrecord`."""
    return [TENSORFLOW.python(), f"{HERE / 'tfrecord_writer.py'}", package, f"{source}", f"{out}", f"{MAX_SIZE}"]


def floor_command(source: Path, out: Path) -> Command:
    """Return the command of the C floor, with as many processes as shardtool has workers."""
    return [floor_program(), f"{WORKERS}", f"{source}", f"{out}/o"]


TOOLS: dict[str, Callable[[Path, Path], Command]] = {
    "shardtool": shardtool_command,
    "shardtool, tar": shardtool_command,
    "tar": tar_command,
    "tar, sync": tar_sync_command,
    "ShardWriter": shardwriter_command,
    "TFRecordWriter": partial(tfrecord_writer_command, "tensorflow"),
    "TFRecordWriter without its imports": partial(tfrecord_writer_command, "tensorflow"),
    "tfrecord package": partial(tfrecord_writer_command, "tfrecord"),
    "C floor": floor_command,
}


def set_up(command: Command, what: str) -> None:
    """Run a command that prepares something. If it fails, raise `SkippedError` with the text `what`."""
    progress(what)
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        reason = f"{what}: no {command[0]} here"
        raise SkippedError(reason) from None
    except subprocess.CalledProcessError as error:
        reason = f"{what}: {last_line(error.stderr)}"
        raise SkippedError(reason) from None


@cache
def floor_program() -> str:
    """Compile floor.c and return the program's path."""
    BENCH_DIR.mkdir(parents=True, exist_ok=True)
    program = BENCH_DIR / "floor"
    set_up(["cc", "-O3", "-march=native", "-o", f"{program}", f"{HERE / 'floor.c'}"], "compile floor.c")
    return f"{program}"


@dataclass(frozen=True)
class Peer:
    """A package that shardtool is compared with. It is installed in a separate environment.

    Attributes:
        module: Module that is imported to test the environment.
        variable: Environment variable with the path of a Python interpreter to use instead.
        folder: Folder of the environment.
        packages: Packages to install, one `pip install` command per tuple.
    """

    module: str
    variable: str
    folder: str
    packages: tuple[tuple[str, ...], ...]

    def python(self) -> str:
        """Return the interpreter in the environment variable, or that of an environment created here."""
        return peer_python(self)


# This torch release is a CPU build. webdataset alone would install gigabytes of CUDA libraries.
WEBDATASET = Peer("webdataset", "SHARDTOOL_BENCH_WDS", ".venv-wds", (("torch==2.13.0",), ("webdataset",)))
TENSORFLOW = Peer("tensorflow", "SHARDTOOL_BENCH_TF", ".venv-tf", (("tensorflow-cpu", "tfrecord"),))


@cache
def peer_python(peer: Peer) -> str:
    """Return the interpreter of a peer. Create the environment on the first call."""
    check = ["-c", f"import {peer.module}"]
    if named := os.environ.get(peer.variable):
        set_up([named, *check], f"import {peer.module} with ${peer.variable}")
        return named
    folder = HERE / peer.folder
    python = f"{folder / 'bin' / 'python'}"
    if not (folder / "complete").exists():
        set_up([sys.executable, "-m", "venv", "--clear", f"{folder}"], f"make benchmarks/{peer.folder}")
        for packages in peer.packages:
            set_up([python, "-m", "pip", "install", "--quiet", *packages], f"install {', '.join(packages)}")
        set_up([python, *check], f"import {peer.module}")
        (folder / "complete").touch()
    return python


@dataclass(frozen=True)
class Corpus:
    """A folder tree to pack, with the number and total size of its files."""

    source: Path
    file_count: int
    size: int


@cache
def corpus(name: str) -> Corpus:
    """Return a corpus, and create it if it is missing. corpus.py runs in a separate process to keep this one small."""
    source = BENCH_DIR / name / "data"
    if not source.exists():
        BENCH_DIR.mkdir(parents=True, exist_ok=True)
        set_up([sys.executable, f"{HERE / 'corpus.py'}", f"{BENCH_DIR}", name], f"make the corpus {name}")
    sizes = list(file_sizes(source))
    return Corpus(source, len(sizes), sum(sizes))


def file_sizes(folder: Path) -> Iterator[int]:
    """Yield the size of every file under `folder`."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name).stat().st_size for name in names)


def spawn(command: Command, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a command in a new session, so that all processes of its tree can be found."""
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True
        )
    except FileNotFoundError:
        reason = f"no {command[0]} here"
        raise SkippedError(reason) from None


def reap(process: subprocess.Popen[bytes], log: IO[bytes]) -> int:
    """Wait for a process, and return the peak resident bytes of the largest process in its tree.

    A process that exceeds the time limit is killed. Linux counts the peak of this process as part of the peak of its
    children, so this process must stay small and does not import NumPy.
    """
    timer = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        log.seek(0)
        reason = f"exit code {process.returncode}: {last_line(log.read().decode(errors='replace'))}"
        raise SkippedError(reason)
    return usage.ru_maxrss * 1024


def run_timed(command: Command) -> float:
    """Run a command, and return the seconds from its start until it has exited."""
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        reap(spawn(command, log), log)
        return time.perf_counter() - start


def touch_memory(size: int) -> None:
    """Allocate and free `size` bytes in a separate process.

    A hypervisor reclaims memory of an idle guest. Without this step, the next process that writes would wait seconds
    for the memory.
    """
    script = "import sys; from mmap import *; mmap(-1, int(sys.argv[1]), MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE)"
    subprocess.run([sys.executable, "-c", script, f"{size}"], check=True)


def make_ready(out: Path, size: int) -> None:
    """Delete the old output, wait until the disk is idle, and touch as much memory as the next run writes."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    subprocess.run(["sync", "-f", f"{out}"], check=True)
    touch_memory(int(size * FRAMING) + (512 << 20))


def check_output(out: Path, size: int) -> None:
    """Raise `SkippedError` if the output is smaller than the input."""
    written = sum(file_sizes(out))
    if written < size:
        reason = f"it wrote {written} bytes of {size}"
        raise SkippedError(reason)


def check_place(place: Path, size: int) -> None:
    """Raise `SkippedError` if a folder lacks space, or if the disk folder is on a tmpfs."""
    if place == DISK and filesystem(place) == "tmpfs":
        reason = f"{DISK} is a tmpfs: set TMPDIR to a folder on a disk"
        raise SkippedError(reason)
    needed, free = int(size * FRAMING), shutil.disk_usage(place).free
    if free < needed:
        reason = f"{place} has {free / 1e9:.1f} GB free of the {needed / 1e9:.1f} GB needed"
        raise SkippedError(reason)


@dataclass
class Timings:
    """The seconds of each tool in each round, and the reasons for skipped tools."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def paired(self, one: str, other: str, combine: Callable[[float, float], float]) -> list[float]:
        """Combine the times of two tools within each round."""
        return [combine(a, b) for a, b in zip(self.seconds[one], self.seconds[other], strict=True)]


def measure_in_turn(tools: dict[str, Callable[[], float]], rounds: int) -> Timings:
    """Run every tool once per round. Each round starts with a different tool.

    A tool that fails is not run again. If shardtool fails, the error is raised, because nothing can be compared.
    """
    timings = Timings({tool: [] for tool in tools})
    for number in range(rounds + 1):
        first = number % len(tools)
        for tool in (*list(tools)[first:], *list(tools)[:first]):
            if tool in timings.skipped:
                continue
            try:
                seconds = tools[tool]()
            except SkippedError as error:
                if tool == "shardtool":
                    raise
                timings.skipped[tool] = f"{error}"
                continue
            progress(f"  round {number} {tool}: {seconds:.3f} s{' (warm-up)' if not number else ''}")
            if number:
                timings.seconds[tool].append(seconds)
    return timings


def measure_job(job: Job, rounds: int) -> Timings:
    """Measure all tools of a job."""
    data = corpus(job.corpus)
    check_place(job.place, data.size)
    with tempfile.TemporaryDirectory(dir=job.place, prefix="shardtool-bench-") as folder:
        out = Path(folder, "out")

        def once(tool: str) -> float:
            command = TOOLS[tool](data.source, out)
            if tool == "shardtool":
                command = shardtool_command(data.source, out, job.ending)
            make_ready(out, data.size)
            seconds = run_timed(command)
            check_output(out, data.size)
            if tool.endswith("without its imports"):
                seconds -= run_timed([TENSORFLOW.python(), "-c", "import tensorflow"])
            return seconds

        return measure_in_turn({tool: partial(once, tool) for tool in ("shardtool", *job.goals)}, rounds)


def session_peaks(leader: int) -> dict[int, int]:
    """Return the peak resident bytes of each process in the session of `leader`, by process id."""
    peaks = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            peak = re.search(r"VmHWM:\s+(\d+)", (folder / "status").read_text()) if session == leader else None
        except OSError:  # the process has exited
            continue
        if peak:
            peaks[int(folder.name)] = int(peak[1]) * 1024
    return peaks


@dataclass(frozen=True)
class Memory:
    """Peak resident bytes of the largest process, of the main process, and of the largest worker."""

    largest: int
    main: int
    worker: int


def watch(leader: int, peaks: dict[int, int], stop: threading.Event) -> None:
    """Update `peaks` until `stop` is set. The kernel records the peak of each process, so few samples are enough."""
    while not stop.wait(WATCH_S):
        peaks |= session_peaks(leader)


def measure_memory(name: str) -> Memory:
    """Run shardtool once and watch its processes."""
    data = corpus(name)
    check_place(TMPFS, data.size)
    peaks: dict[int, int] = {}
    stop = threading.Event()
    with tempfile.TemporaryDirectory(dir=TMPFS, prefix="shardtool-bench-") as out, tempfile.TemporaryFile() as log:
        process = spawn(shardtool_command(data.source, Path(out)), log)
        watcher = threading.Thread(target=watch, args=(process.pid, peaks, stop))
        watcher.start()
        try:
            largest = reap(process, log)
        finally:
            stop.set()
            watcher.join()
        check_output(Path(out), data.size)
    main = peaks.pop(process.pid, 0)
    return Memory(largest, main, max(peaks.values(), default=0))


def start_up_tools() -> dict[str, Callable[[], float]]:
    """Return the start-up measurements by their name in the table."""
    words = {
        "python -c pass": ["-c", "pass"],
        "import click": ["-c", "import click"],
        "import shardtool": ["-c", "import shardtool"],
        "shardtool --help": ["-m", "shardtool", "--help"],
    }
    return {name: partial(run_timed, [sys.executable, *arguments]) for name, arguments in words.items()}


def progress(line: str) -> None:
    """Print a line to stderr."""
    print(line, file=sys.stderr, flush=True)


def row(*cells: str) -> None:
    """Print one line of a Markdown table."""
    print("|", " | ".join(cells), "|", flush=True)


def header(*titles: str) -> None:
    """Print the head of a Markdown table."""
    print()
    row(*titles)
    row(*("---" for _ in titles))


def last_line(text: str) -> str:
    """Return the last line of output that contains an error, or else the last line, escaped for a table cell."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    return ([line for line in lines if "error" in line.lower()] or lines)[-1].replace("|", "\\|")


def spread(values: list[float], digits: int = 2) -> str:
    """Return the median, minimum and maximum as text."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def report_job(job: Job, timings: Timings) -> None:
    """Print one table row for each tool that shardtool was compared with."""
    for tool, goal in job.goals.items():
        reason = timings.skipped.get("shardtool") or timings.skipped.get(tool)
        if reason:
            row(job.name, tool, f"not measured: {reason}", "", "", "", "")
            continue
        faster = goal is not None and goal.sign == ">="
        ratios = timings.paired(tool, "shardtool", operator.truediv)
        if not faster:
            ratios = [1 / ratio for ratio in ratios]
        verdict = goal.verdict(statistics.median(ratios)) if goal else "- | -"
        seconds = (f"{statistics.median(timings.seconds[name]):.2f}" for name in ("shardtool", tool))
        row(job.name, tool, spread(ratios) + (" times faster" if faster else ""), verdict, *seconds)


def run_jobs(jobs: list[Job], rounds: int, results: dict[str, Any]) -> None:
    """Measure the jobs and print their table."""
    header("job", "compared with", "shardtool's time / other tool's time", "goal", "met", "shardtool s", "other tool s")
    for job in jobs:
        progress(f"{job.name}, to {job.place}")
        try:
            timings = measure_job(job, rounds)
        except SkippedError as error:
            timings = Timings(skipped={"shardtool": f"{error}"})
        report_job(job, timings)
        results[job.name] = {"seconds": timings.seconds, "skipped": timings.skipped}


def run_memory(results: dict[str, Any]) -> None:
    """Measure peak memory and print its table."""
    header("peak resident memory", "largest process MB", "main process MB", "largest worker MB", "files", "input MB")
    for name in MEMORY_CORPORA:
        progress(f"memory, {name}")
        try:
            memory = measure_memory(name)
        except SkippedError as error:
            row(name, f"not measured: {error}", "", "", "", "")
            results[f"memory-{name}"] = {"skipped": f"{error}"}
            continue
        cells = (f"{size / 1e6:.0f}" for size in (memory.largest, memory.main, memory.worker))
        row(name, *cells, f"{corpus(name).file_count:,}", f"{corpus(name).size / 1e6:,.0f}")
        results[f"memory-{name}"] = memory.__dict__


def run_start_up(rounds: int, results: dict[str, Any]) -> None:
    """Measure start-up and print its table."""
    progress("start-up")
    timings = measure_in_turn(start_up_tools(), rounds * START_UP_FACTOR)
    results["startup"] = {"seconds": timings.seconds, "skipped": timings.skipped}
    header("start-up", "ms", "goal", "met")
    for tool, seconds in timings.seconds.items():
        reason = timings.skipped.get(tool)
        row(tool, f"not measured: {reason}" if reason else spread([s * 1000 for s in seconds], 0), "-", "-")
    if not timings.skipped:
        extra = [s * 1000 for s in timings.paired("shardtool --help", "import click", operator.sub)]
        row("--help minus import click", spread(extra, 0), START_UP_GOAL_MS.verdict(statistics.median(extra)))


def filesystem(folder: Path) -> str:
    """Return the type of the file system of `folder`."""
    return first_line("stat", "-f", "-c", "%T", f"{folder}")


def first_line(*command: str) -> str:
    """Return the first line of the output of a command, or "absent" if the command does not exist."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=HERE)
    except FileNotFoundError:
        return "absent"
    return (done.stdout.splitlines() or ["-"])[0]


def version(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def facts(rounds: int) -> dict[str, str]:
    """Return the properties of the machine and the software versions for the report."""
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{processor[1] if processor else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory / 1e9:.0f} GB",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "kernel": platform.release(),
        "disk": f"{DISK} ({filesystem(DISK)})",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "commit": first_line("git", "describe", "--always", "--dirty"),
        "tar": first_line("tar", "--version"),
        "cc": first_line("cc", "--version"),
        "rounds": f"{rounds}, after one of warm-up",
    }


def report_imports(peer: Peer, tool: str, packages: list[str]) -> None:
    """Print how much of a tool's time is spent on imports."""
    try:
        seconds = [run_timed([peer.python(), "-c", f"import {peer.module}"]) for _ in range(3)]
    except SkippedError:
        return
    script = f"from importlib.metadata import version; print(*[p + ' ' + version(p) for p in {packages}], sep=', ')"
    versions = first_line(peer.python(), "-c", script)
    print(f"\n{tool} ({versions}) spends {statistics.median(seconds):.2f} s of each run on `import {peer.module}`.")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each job (default: 5)")
    parser.add_argument("--only", default=",".join(NAMES), help="comma-separated, of: %(default)s")
    parser.add_argument("--json", type=Path, help="also write every single time to this file")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(NAMES):
        parser.error(f"--only: no {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    if arguments.rounds < 1:
        parser.error("--rounds: must be at least 1")
    return arguments


def main() -> None:
    """Measure the selected jobs and print the tables."""
    arguments = parse_arguments()
    results: dict[str, Any] = {"facts": facts(arguments.rounds)}
    for name, value in results["facts"].items():
        print(f"- {name}: {value}")
    if jobs := [job for job in JOBS if job.name in arguments.only]:
        run_jobs(jobs, arguments.rounds, results)
    if any("ShardWriter" in job.goals for job in jobs):
        report_imports(WEBDATASET, "ShardWriter", ["webdataset", "torch"])
    if any("TFRecordWriter" in job.goals for job in jobs):
        report_imports(TENSORFLOW, "TFRecordWriter", ["tensorflow_cpu", "tfrecord"])
    if "memory" in arguments.only:
        run_memory(results)
    if "startup" in arguments.only:
        run_start_up(arguments.rounds, results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
