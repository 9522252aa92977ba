"""Compare our `ShardWriter` with webdataset's: programs that write the samples of a folder, one process each.

    python benchmarks/shard_writer.py SOURCE... [--peer PYTHON] [--rounds N] [--out DIR]

SOURCE is a folder of corpus.py. Files with the same folder and stem form one sample. All samples are in memory before
the time starts, and imports are not counted. The time includes sidecars, the dataset file and fsync. Shards have
250 MB. `webdataset` is its default writer, `fast` uses `mtime=0`, and `synced` also calls fsync for each shard, as
ours does. PYTHON is an interpreter with webdataset.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

_WRITERS = ("ours", "webdataset", "fast", "synced")
_MAX_SIZE = 250_000_000
_PEER = Path(__file__).parent / ".venv-wds" / "bin" / "python"


def read(source: Path) -> list[dict[str, str | bytes]]:
    """Return the samples in `source` in key order."""
    found: dict[str, dict[str, str | bytes]] = {}
    for path in sorted(source.rglob("*")):
        if path.is_file():
            key, _, field = str(path.relative_to(source)).partition(".")
            found.setdefault(key, {"__key__": key})[field] = path.read_bytes()
    return [*found.values()]


def write(which: str, samples: list[dict[str, str | bytes]], out: Path) -> float:
    """Return the seconds of a writer."""
    if which == "ours":
        import pyarrow.parquet  # noqa: F401 - imports are taken out

        from shardtool import ShardWriter

        begun = time.perf_counter()
        with ShardWriter(f"{out}/s-{{000000..}}.tar", max_size=_MAX_SIZE) as writer:
            for sample in samples:
                writer.write(sample)
        return time.perf_counter() - begun
    import webdataset

    begun = time.perf_counter()
    how: dict[str, object] = {"mtime": 0} if which == "fast" else {"post": sync} if which == "synced" else {}
    with webdataset.ShardWriter(f"{out}/s-%06d.tar", maxsize=_MAX_SIZE, verbose=0, **how) as peer:
        for sample in samples:
            peer.write(sample)
    return time.perf_counter() - begun


def sync(path: str) -> None:
    """Call fsync for a file."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def run_round(source: Path, out: Path, peer: str) -> dict[str, float]:
    """Run each writer once, and return the seconds."""
    found = {}
    for which in _WRITERS:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        os.sync()
        python = sys.executable if which == "ours" else peer
        command = [python, __file__, "--run", which, str(source), "--out", str(out)]
        found[which] = float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    shutil.rmtree(out)
    return found


def main() -> None:
    """Print a table row for each source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--peer", default=str(_PEER))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("/dev/shm/shard_writer"))  # noqa: S108 - as bench.py does
    parser.add_argument("--run", choices=_WRITERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        print(write(given.run, read(given.sources[0]), given.out))
        return
    print(f"| source | ours, s | {' | '.join(_WRITERS[1:])} |\n|---|---|---|---|---|")
    for source in given.sources:
        rounds = [run_round(source, given.out, given.peer) for _ in range(given.rounds)]
        ours = median(one["ours"] for one in rounds)
        ratios = {which: median(one[which] / one["ours"] for one in rounds) for which in _WRITERS[1:]}
        print(f"| {source} | {ours:.2f} | {' | '.join(f'{ratio:.1f} x' for ratio in ratios.values())} |")


if __name__ == "__main__":
    main()
