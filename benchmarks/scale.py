"""Measure very large jobs: a hundred million samples, a million files and ten thousand shards.

    python benchmarks/scale.py plan [SAMPLES]             plan samples in memory and create tasks, in order and shuffled
    python benchmarks/scale.py plan-file [SAMPLES]        write a plan file, and use it in a dry run
    python benchmarks/scale.py files [FILES] [ROUNDS]     list and pack many tiny files, compared with `tar cf`
    python benchmarks/scale.py dataset [SHARDS] [SAMPLES] open, inspect and search a dataset, and start `verify`
    python benchmarks/scale.py parent [SHARDS]            the cost of a shard in the main process, with one sample each

Each measurement runs in a new process: elapsed seconds, CPU seconds with workers, and the peak resident memory of the
process. Files are created in $SCALE_DIR or a temporary folder, and deleted at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TOOL = [sys.executable, "-m", "shardtool"]


@dataclass(frozen=True)
class Cost:
    """Elapsed seconds of a process, CPU seconds with its children, and its peak resident memory."""

    clock_s: float
    cpu_s: float
    peak_mb: int
    out: str


def run(*words: str | Path, cwd: Path | None = None, stop_at: str = "") -> Cost:
    """Run a command. With `stop_at`, stop it as soon as its stderr contains this text."""
    start = time.perf_counter()
    child = subprocess.Popen([*map(str, words)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if child.stdout is None or child.stderr is None:
        raise RuntimeError
    if stop_at:
        for line in child.stderr:
            if stop_at in line:
                break
        taken = time.perf_counter() - start
        child.terminate()
    out = child.stdout.read()
    problem = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    if not stop_at:
        taken = time.perf_counter() - start
        if status:
            raise RuntimeError(problem)
    return Cost(taken, used.ru_utime + used.ru_stime, used.ru_maxrss // 1024, out)


def show(what: str, cost: Cost) -> None:
    """Print a table row."""
    print(f"| {what} | {cost.clock_s:,.2f} | {cost.cpu_s:,.2f} | {cost.peak_mb:,} |", flush=True)


def head() -> None:
    """Print the table header."""
    print("| what | s | CPU s | peak resident MB |\n|---|--:|--:|--:|", flush=True)


def plan(folder: Path, samples: int = 10_000_000) -> None:  # noqa: ARG001 - nothing is written
    """Plan samples in memory."""
    head()
    here = Path(__file__).parent
    for seed in (0, 1):
        code = (
            f"import sys; sys.path.insert(0, {str(here)!r}); import time; import plan10m as p\n"
            f"e = p.made_entries({samples}); t = time.perf_counter()\n"
            "plan = p.make_plan(e, p.parse_pattern('x-{000000..}.tar'), p.Bounds(max_size=10**9), "
            f"{seed} or None)\n"
            "u = time.perf_counter(); sum(len(p.shard_samples(plan, n).record_sizes) for n in range(plan.shards))\n"
            "print(f'{plan.shards:,} shards, plan {u - t:.1f} s, tasks {time.perf_counter() - u:.1f} s', p._peak_mb())"
        )
        cost = run(sys.executable, "-c", code)
        show(f"{samples:,} samples {'shuffled' if seed else 'in order'}: {cost.out.strip()} MB", cost)


def plan_file(folder: Path, samples: int = 10_000_000) -> None:
    """Write a plan file, and plan with it as one part of a run."""
    here, source = Path(__file__).parent, folder / "made"
    step = -(-samples // 16)
    source.mkdir()
    code = (
        f"import sys; sys.path.insert(0, {str(here)!r}); import json, os, time, numpy as np; import plan10m as p\n"
        "from dataclasses import replace\n"
        "from shardtool import CreateOptions; from shardtool.source.base import Listing\n"
        "from shardtool.source.open import SourceArgument\n"
        "from shardtool.source.plan_request import make_plan_request\n"
        "from shardtool.source.plan_file import write_plan\n"
        f"e = p.made_entries({samples})\n"
        f"for at in range(0, {samples}, {step}):\n"  # a plan whose files do not exist is rejected
        f"    path = {str(source)!r} + '/' + e.path(at).decode(); os.makedirs(os.path.dirname(path), exist_ok=True)\n"
        "    open(path, 'wb').truncate(int(e.rows.size[at])); os.utime(path, ns=(0, 0))\n"
        f"argument = SourceArgument('folder', {str(source)!r})\n"
        "asked = make_plan_request(argument, CreateOptions(shuffle=True, workers=1), 'tar')\n"
        "t = time.perf_counter()\n"
        f"where, listed = {str(folder / 'plan.parquet')!r}, Listing(e, (), 'made')\n"
        "size = write_plan(where, listed, None, asked, by_key=True, overwrite=False)\n"
        "print(f'{size / 1e6:,.0f} MB in {time.perf_counter() - t:.1f} s')"
    )
    head()
    cost = run(sys.executable, "-c", code)
    show(f"{samples:,} samples made and written: {cost.out.strip()}", cost)
    words = ("create", source, folder / "x-{000000..}.tar", "--shuffle", "--workers=1", "--dry-run", "--json")
    cost = run(*_TOOL, *words, "--plan", folder / "plan.parquet", "--part=3/64")
    show(f"a dry run of part 3/64 with it: {len(json.loads(cost.out)['shards']):,} shards of it", cost)


def files(folder: Path, count: int = 1_000_000, rounds: int = 3) -> None:
    """List and pack a tree of tiny files, compared with tar."""
    tree, payload = folder / "tree", b"x" * 200
    for number in range(0, count, 1000):
        below = tree / f"{number // 100_000:02}" / f"{number // 1000:04}"
        below.mkdir(parents=True)
        for at in range(number, min(number + 1000, count)):
            with open(below / f"{at:07}.txt", "wb", buffering=0) as file:
                file.write(payload)
    pattern = folder / "x-{0000..}.tar"
    jobs: dict[str, tuple[str | Path, ...]] = {
        "tar cf": ("tar", "cf", folder / "x.tar", "-C", folder, "tree"),
        "create": (*_TOOL, "create", tree, pattern, "--max-size=100MB", "--quiet", "--overwrite"),
        "create --dry-run": (*_TOOL, "create", tree, pattern, "--quiet", "--dry-run", "--overwrite"),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, words in jobs.items():
            for path in folder.glob("x*"):
                path.unlink()
            cost = run(*words)
            costs[name] += [cost] if number else []
    head()
    for name, found in costs.items():
        show(name, sorted(found, key=lambda one: one.clock_s)[len(found) // 2])
    ratios = [ours.clock_s / tar.clock_s for ours, tar in zip(costs["create"], costs["tar cf"], strict=True)]
    print(f"create as a part of tar: {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


def dataset(folder: Path, shards: int = 10_000, samples: int = 100_000_000) -> None:
    """Create a dataset, open it, inspect it, find samples by key, and measure when `verify` reads the first shard."""
    run(sys.executable, Path(__file__).with_name("made_dataset.py"), folder, str(shards), str(samples))
    look(folder, samples)


def look(folder: Path, samples: int) -> None:
    """Measure an existing dataset."""
    json_file, key = folder / "x.json", f"c{samples // 200_000:04}/image-{samples // 2:010}"
    code = (
        "import time; import shardtool; t = time.perf_counter()\n"
        f"ds = shardtool.open({str(json_file)!r}); u = time.perf_counter(); n = len(ds[{key!r}]['dat'])\n"
        "v = time.perf_counter(); ds[7]; w = time.perf_counter()\n"
        "print(f'open {u - t:.2f} s, a sample by key {v - u:.3f} s, by number {w - v:.3f} s')"
    )
    jobs: dict[str, tuple[tuple[str | Path, ...], str]] = {
        "shardtool.open, and a sample": ((sys.executable, "-c", code), ""),
        "inspect": ((*_TOOL, "inspect", json_file), ""),
        "inspect --sample KEY": ((*_TOOL, "inspect", json_file, "--sample", key), ""),
        "verify, to its first shard": ((*_TOOL, "verify", json_file, "-v"), "x-0"),
    }
    head()
    for name, (words, stop_at) in jobs.items():
        run(*words, stop_at=stop_at)  # warms the page cache
        cost = run(*words, stop_at=stop_at)
        show(f"{name}{': ' + cost.out.strip() if name.startswith('shardtool') else ''}", cost)


def parent(folder: Path, shards: int = 10_000) -> None:
    """Pack each of many files into its own shard. Print the CPU time of the main process."""
    source = folder / "source"
    for number in range(shards):
        (source / f"{number // 1000:03}").mkdir(parents=True, exist_ok=True)
        (source / f"{number // 1000:03}" / f"{number:06}.txt").write_bytes(b"x" * 200)
    head()
    for workers in (1, 2):
        code = (
            "import time; from shardtool import create, CreateOptions\n"
            f"options = CreateOptions(max_count=1, workers={workers}, overwrite=True)\n"
            f"create({str(source)!r}, {str(folder / 'x-{000000..}.tar')!r}, options)\n"
            f"print(f'{{time.process_time() / {shards} * 1000:.2f}} ms of the parent a shard')"
        )
        cost = run(sys.executable, "-c", code)
        show(f"{shards:,} shards, {workers} workers: {cost.out.strip()}", cost)


def main() -> None:
    """Run one measurement."""
    case, *numbers = sys.argv[1:] or [""]
    if case not in _CASES:
        sys.exit(__doc__)
    folder = Path(tempfile.mkdtemp(prefix="scale-", dir=os.environ.get("SCALE_DIR")))
    try:
        _CASES[case](folder, *map(int, numbers))
    finally:
        shutil.rmtree(folder)


_CASES: dict[str, Callable[..., None]] = {
    "plan": plan,
    "plan-file": plan_file,
    "files": files,
    "dataset": dataset,
    "parent": parent,
}

if __name__ == "__main__":
    main()
