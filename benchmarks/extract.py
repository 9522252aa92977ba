"""Compare `extract` with `tar x` of the same shards in interleaved runs, and time `remove` of 3 of a million samples.

    python benchmarks/extract.py FOLDER [FILES...]

FOLDER is an empty folder on the disk to measure.
"""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pandas as pd

from shardtool import create, remove

_SIZE, _ROUNDS, _MILLION = 4000, 7, 10**6


def _tree(root: Path, count: int) -> None:
    """Write files of about 4 kB in 40 folders."""
    drawn = random.Random(1)
    data = drawn.randbytes(2 * _SIZE)
    for number in range(count):
        folder = root / f"c{number * 40 // count:03}"
        folder.mkdir(parents=True, exist_ok=True)
        start = drawn.randrange(_SIZE)
        (folder / f"{number:07}.jpg").write_bytes(data[start : start + _SIZE // 2 + drawn.randrange(_SIZE)])


def _timed(command: list[str]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of a command with its children."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _extract(root: Path, count: int) -> None:
    _tree(root / "source", count)
    made = create(root / "source", root / "out-{000..}.tar", max_size="30MB")
    into = root / "into"
    unpack = f"mkdir {into}; for one in {root}/out-*.tar; do tar xf $one -C {into}; done"
    commands = {
        "tar x": ["sh", "-ec", unpack],
        **{f"extract, {n}": [sys.executable, "-m", "shardtool", "extract", made.dataset_file, str(into), "-q", f"-j{n}"]
           for n in (1, 2)},
    }  # fmt: skip
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(_ROUNDS):
        for name, command in commands.items():
            shutil.rmtree(into, ignore_errors=True)
            found[name].append(_timed(command))
    for name, times in found.items():
        wall, cpu = (median(some) for some in zip(*times, strict=True))
        print(f"{count:,} files: {name:12} {wall:.2f} s, CPU {cpu:.2f} s")
    shutil.rmtree(root)


def _remove(root: Path) -> None:
    keys = [f"{number:07}" for number in range(_MILLION)]
    made = create(
        pd.DataFrame({"key": keys, "text": keys}),
        root / "m-{000..}.tar",
        field=["txt=text"],
        meta="none",
        max_size="10MB",
    )
    begun = time.monotonic()
    (done,) = remove(made.dataset_file, keys_from=[keys[5], keys[500_000], keys[-1]]).datasets
    took = time.monotonic() - begun
    print(f"3 of a million removed: {len(done.rewritten)} of {done.shards} shards, {done.size:,} bytes, {took:.1f} s")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for asked in sys.argv[2:] or ("2000", "60000"):
        _extract(place / asked, int(asked))
    _remove(place / "million")
