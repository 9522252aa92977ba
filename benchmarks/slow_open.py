"""Measure `create` and `verify --source` if opening a file is slow, as on a network file system.

    python benchmarks/slow_open.py [CHECKOUT]

The preloaded library `slow_open.c` delays each `open` of a source file. The files are in memory, so only the delay
counts. If another checkout of shardtool is given, both run alternately and must write the same bytes.
"""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEMORY = "/dev/shm"  # noqa: S108 - a folder of random name is made in it
FILES = 2000
SIZE = 7000
WORKERS = 16
DELAYS_US = (0, 1000, 5000)
ROUNDS = 3


def run(checkout: Path, words: list[str], source: Path, library: Path, delay_us: int) -> float:
    """Return the seconds of a whole run."""
    slow = {"LD_PRELOAD": str(library), "SLOW_OPEN_UNDER": f"{source}/", "SLOW_OPEN_US": str(delay_us)}
    environment = {**os.environ, **(slow if delay_us else {})}
    command = [sys.executable, "-m", "shardtool", *words, "--workers", str(WORKERS), "--quiet"]
    begun = time.perf_counter()
    subprocess.run(command, check=True, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def measure(checkouts: list[Path], place: Path, library: Path) -> None:
    """Print a row for each job, delay and checkout: the minimum of several rounds."""
    source = place / "in"
    source.mkdir()
    for at in range(FILES):
        (source / f"{at:05}.jpg").write_bytes(os.urandom(SIZE))
    print("| job | an open takes, ms | " + " | ".join(f"{checkout.name}, s" for checkout in checkouts) + " |")
    print("| --- | --: |" + " --: |" * len(checkouts))
    for shards in (1, WORKERS):
        for delay_us in DELAYS_US:
            created, verified = [9e9] * len(checkouts), [9e9] * len(checkouts)
            for _ in range(ROUNDS):
                for at, checkout in enumerate(checkouts):
                    out = place / f"out{at}"
                    create = ["create", str(source), f"{out}/out-<00..{shards - 1:02}>.tar", "--overwrite"]
                    created[at] = min(created[at], run(checkout, create, source, library, delay_us))
                    verify = ["verify", f"{out}/out.json", "--source", str(source)]
                    verified[at] = min(verified[at], run(checkout, verify, source, library, delay_us))
            for name, times in ((f"`create`, {shards} shards", created), ("`verify --source` of these", verified)):
                print(
                    f"| {name} | {delay_us / 1000:g} | " + " | ".join(f"{one:.2f}" for one in times) + " |", flush=True
                )
        for at in range(1, len(checkouts)):
            names = sorted(path.name for path in (place / "out0").iterdir())
            same = filecmp.cmpfiles(place / "out0", place / f"out{at}", names, shallow=False)[0]
            print(f"{len(same)} of {len(names)} files are the same", file=sys.stderr)


def main() -> None:
    """Compile the library, and measure."""
    checkouts = [HERE.parent, *(Path(one).resolve() for one in sys.argv[1:])]
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as folder:
        library = Path(folder) / "slow_open.so"
        compiler = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "slow_open.c"), "-ldl"]
        subprocess.run(compiler, check=True)
        measure(checkouts, Path(folder), library)


if __name__ == "__main__":
    main()
