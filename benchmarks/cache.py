"""Measure a cache: an epoch from a slow source, the next epoch, and a cache hit compared with opening a file.

    .venv/bin/python benchmarks/cache.py --size 200MB

The reading process limits reads from the source folder to `--rate` MB/s in total. The caches of webdataset and wids,
if installed, get the same shards from a command with the same limit. A trainer that consumes `--trainer` MB/s shows how
much of the copying time it has to wait for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import shardtool
from shardtool.dataset.find import open_dataset
from shardtool.storage import files
from shardtool.storage.files import read_blocks
from shardtool.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator

_SAMPLE = 100_000
_SHARD = "20MB"
_HITS = 400
_PARTS = 4  # parts that the trainer's shuffled stream reads from; few, because the dataset has few shards
_SLACK_S = 0.1  # bytes that a network buffers while nobody reads
_SLOW_CAT = """
import sys, time
rate, next_s = int(sys.argv[1]), time.perf_counter()
with open(sys.argv[2], "rb") as file:
    while block := file.read(2**20):
        next_s = max(next_s, time.perf_counter() - 0.1) + len(block) / rate
        time.sleep(max(0.0, next_s - time.perf_counter()))
        sys.stdout.buffer.write(block)
"""


class Throttle:
    """Limits the number of bytes per second."""

    def __init__(self, rate: float) -> None:
        self._rate, self._next_s = rate, time.perf_counter()

    def passed(self, size: int) -> None:
        """Wait until this many more bytes are within the limit."""
        self._next_s = max(self._next_s, time.perf_counter() - _SLACK_S) + size / self._rate
        if (wait_s := self._next_s - time.perf_counter()) > 0:
            time.sleep(wait_s)

    def blocks(self, path: str) -> Iterator[memoryview | bytes]:
        """Read a file like `read_blocks`, but at the limited rate."""
        for block in read_blocks(path):
            self.passed(len(block))
            yield block


def made(place: Path, size: int) -> Path:
    """Create the dataset."""
    data = os.urandom(_SAMPLE)
    with shardtool.ShardWriter(place / "slow" / "out-{000000..}.tar", max_size=_SHARD) as writer:
        for number in range(size // _SAMPLE):
            writer.write({"__key__": f"{number:08d}", "bin": data})
    return place / "slow" / "out.json"


def epoch(dataset: Path, cache: shardtool.Cache | None, trainer: float = inf, parts: int = 64) -> float:
    """Return the seconds of an epoch for a program that consumes the given bytes per second."""
    start_s, used = time.perf_counter(), Throttle(trainer)
    for _ in shardtool.open(dataset, cache=cache).stream(seed=1, parts=parts):
        used.passed(_SAMPLE)
    return time.perf_counter() - start_s


def webdataset_epoch(dataset: Path, place: Path, rate: int) -> float:
    """Return the seconds of an epoch with webdataset's cache. The shards arrive through a throttled pipe."""
    import webdataset as wds

    script = place / "slow_cat.py"
    script.write_text(_SLOW_CAT)
    urls = [f"pipe:{sys.executable} -S {script} {rate} {shard.path}" for shard in open_dataset(dataset).shards]
    cache = place / "wds"
    cache.mkdir(exist_ok=True)
    start_s = time.perf_counter()
    reader = wds.WebDataset(urls, cache_dir=str(cache), url_to_name=os.path.basename, shardshuffle=False)
    for _ in reader:
        pass
    return time.perf_counter() - start_s


def wids_epoch(dataset: Path, place: Path, rate: int) -> float:
    """Return the seconds of an epoch with wids's cache. A throttled command copies the shards."""
    import wids
    from wids import wids_dl

    script = place / "slow_cat.py"
    script.write_text(_SLOW_CAT)
    wids_dl.default_cmds["slow"] = f"{sys.executable} -S {script} {rate} $(echo '{{url}}' | cut -c 8-) > '{{local}}'"
    paths = [shard.path for shard in open_dataset(dataset).shards]
    shards = [{"url": f"slow://{path}", "nsamples": len(shardtool.open(path))} for path in paths]
    start_s = time.perf_counter()
    reader = wids.ShardListDataset(shards, cache_dir=str(place / "wids"), keep=True, transformations=[])
    for sample in reader:
        sample[".bin"].read()
    return time.perf_counter() - start_s


def hit(dataset: Path, cache: shardtool.Cache) -> tuple[float, float]:
    """Return the seconds to open a cached shard and read all of it, through the cache and by its path."""
    shards = open_dataset(dataset).shards
    buffer = memoryview(bytearray(2**25))

    def read(path: str) -> None:
        with open(path, "rb", buffering=0) as file:
            file.readinto(buffer)

    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_HITS):
        shard = shards[number // 2 % len(shards)]
        with cache.open(shard) as one:
            path = one.path
        for plain in (0, 1) if number % 2 else (1, 0):  # alternate the order
            start_s = time.perf_counter()
            if plain:
                read(path)
            else:
                with cache.open(shard) as one:
                    read(one.path)
            times[plain].append(time.perf_counter() - start_s)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="400MB")
    parser.add_argument("--rate", default="100MB", help="of the slow source, a second")
    parser.add_argument("--trainer", default="80MB", help="that a trainer uses a second")
    given = parser.parse_args()
    size, rate, trainer = map(parse_size, (given.size, given.rate, given.trainer))
    place = Path(mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))  # noqa: S108
    try:
        dataset = made(place, size)
        files.read_blocks = Throttle(rate).blocks  # type: ignore[assignment]
        cache = shardtool.Cache(place / "cache", 2 * size)
        rows = [(f"shardtool, epoch {number}", epoch(dataset, cache)) for number in (1, 2)]
        rows.append(("shardtool, no cache, a fast disk", epoch(dataset, None)))
        trained = shardtool.Cache(place / "trained", 2 * size)
        for number in (1, 2):
            name = f"shardtool, epoch {number}, a trainer of {trainer / 1e6:.0f} MB/s"
            rows.append((name, epoch(dataset, trained, trainer, _PARTS)))
        with suppress(ImportError):
            rows += [(f"webdataset, epoch {number}", webdataset_epoch(dataset, place, rate)) for number in (1, 2)]
        with suppress(ImportError):
            rows += [(f"wids, epoch {number}", wids_epoch(dataset, place, rate)) for number in (1, 2)]
        print(f"| {size / 1e6:.0f} MB, source {rate / 1e6:.0f} MB/s | s | MB/s |\n|---|--:|--:|")
        for name, seconds in rows:
            print(f"| {name} | {seconds:.2f} | {size / seconds / 1e6:.0f} |")
        through, plain = hit(dataset, cache)
        print(f"\na hit: {through * 1e6:.0f} us to open and read 20 MB, by its path {plain * 1e6:.0f} us: "
              f"{through / plain - 1:+.1%}")  # fmt: skip
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
