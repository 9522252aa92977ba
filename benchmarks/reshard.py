"""Compare `shardtool reshard` with `cp` and with webdataset, and print the ratios as Markdown.

    .venv/bin/python benchmarks/reshard.py [--rounds N] [--only small4,images4] [--without-peer]

Shards of 100 MB on tmpfs become shards of 50 MB: in order, and shuffled with a memory bound of a tenth of the data. For
shuffled runs, shardtool chooses the method, or the script selects gather or scatter. The method of measuring is that
of bench.py.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import bench  # type: ignore[import-not-found,unused-ignore]

CORPORA = ("small4", "images4")
PEER_GOALS = {"small4": 8.0, "images4": 5.0}
HALVED = bench.Goal(">=", 0.7)
SHUFFLED = bench.Goal(">=", 0.4)
BASE_MB = 150  # allowed resident memory in addition to the bound


def reshard_command(shards: Path, out: Path, *options: str) -> bench.Command:
    """Return the command of shardtool."""
    command = [sys.executable, "-m", "shardtool", "reshard", f"{shards / 's.json'}", f"{out}/r-{{000000..}}.tar"]
    return [*command, "--max-size", f"{bench.MAX_SIZE // 2}", "--workers", f"{bench.WORKERS}", "--quiet", *options]


def tools(shards: Path, out: Path, memory: int, peer: str) -> dict[str, bench.Command]:
    """Return the commands to compare."""
    shuffle = ["--shuffle", "--seed", "1", "--memory", f"{memory}"]
    found = {
        "shardtool": reshard_command(shards, out),
        "shuffled": reshard_command(shards, out, *shuffle),
        "shuffled, gather": reshard_command(shards, out, *shuffle, "--method", "gather"),
        "shuffled, scatter": reshard_command(shards, out, *shuffle, "--method", "scatter"),
        "cp": ["cp", *sorted(map(str, shards.glob("*.tar"))), f"{out}"],
    }
    if peer:
        script = f"{bench.HERE / 'wds_reshard.py'}"
        found["webdataset"] = [peer, script, f"{shards}", f"{out}", f"{bench.MAX_SIZE // 2}"]
    return found


def resident_bytes(command: bench.Command) -> int:
    """Run a command, and return the sum of the peaks of its processes. Shared pages count once."""
    peaks: dict[int, int] = {}
    stop = threading.Event()
    with tempfile.TemporaryFile() as log:
        process = bench.spawn(command, log)
        watcher = threading.Thread(target=bench.watch, args=(process.pid, peaks, stop))
        watcher.start()
        try:
            bench.reap(process, log)
        finally:
            stop.set()
            watcher.join()
    return sum(peaks.values())


def measure(name: str, rounds: int, peer: str) -> None:
    """Measure one corpus, and print its rows."""
    data = bench.corpus(name)
    bench.check_place(bench.TMPFS, 3 * data.size)
    with tempfile.TemporaryDirectory(dir=bench.TMPFS, prefix="shardtool-bench-") as folder:
        shards, out = Path(folder, "in"), Path(folder, "out")
        shards.mkdir()
        subprocess.run(bench.shardtool_command(data.source, shards), check=True)
        size, memory = sum(bench.file_sizes(shards)), data.size // 10
        commands = tools(shards, out, memory, peer)

        def once(tool: str) -> float:
            bench.make_ready(out, size)
            seconds = bench.run_timed(commands[tool])
            bench.check_output(out, data.size)
            return float(seconds)

        timings = bench.measure_in_turn({tool: partial(once, tool) for tool in commands}, rounds)
        for tool in ("shardtool", "shuffled", "shuffled, gather", "shuffled, scatter"):
            goal = HALVED if tool == "shardtool" else SHUFFLED
            shares = timings.paired("cp", tool, lambda cp, ours: cp / ours)
            what = "halved, in order" if tool == "shardtool" else f"halved, {tool}"
            bench.row(name, what, f"{bench.spread(shares)} of cp", goal.verdict(statistics.median(shares)))
        if "webdataset" in commands and "webdataset" not in timings.skipped:
            goal, times = (
                bench.Goal(">=", PEER_GOALS[name]),
                timings.paired("webdataset", "shardtool", lambda a, b: a / b),
            )
            cell = f"{bench.spread(times)} times faster than webdataset"
            bench.row(name, "halved, in order", cell, goal.verdict(statistics.median(times)))
        for tool in ("shuffled, gather", "shuffled, scatter"):
            bench.make_ready(out, size)
            resident, bound = resident_bytes(commands[tool]) / 1e6, memory / 1e6 + BASE_MB
            verdict = bench.Goal("<=", round(bound)).verdict(resident)
            bench.row(name, f"{tool}, --memory {memory / 1e6:.0f}MB", f"{resident:.0f} MB resident in all", verdict)


def main() -> None:
    """Run the selected jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CORPORA))
    parser.add_argument("--without-peer", action="store_true", help="leave webdataset out")
    arguments = parser.parse_args()
    peer = "" if arguments.without_peer else bench.WEBDATASET.python()
    bench.header("corpus", "job", "measured", "goal", "met")
    for name in arguments.only.split(","):
        measure(name, arguments.rounds, peer)


if __name__ == "__main__":
    main()
