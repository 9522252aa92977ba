"""Run writers and readers on one cache, kill some of them, and check the size of the cache.

For longer runs: `python -m tests.verbs.cache.load --seconds 120 --writers 4 --readers 2` (`make soak`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import shardtool
from shardtool.dataset.find import open_dataset
from shardtool.verbs.cache.cache_space import CacheSpace
from shardtool.verbs.cache.layout import COPIED, FOLDERS, WRITTEN
from shardtool.verbs.cache.status import cache_status, cache_verify

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.context import ForkProcess

SAMPLE = 4_000  # bytes
COUNT = 20  # samples in a shard
SHARD = 101_376  # bytes of a full shard
BOUND = 12 * SHARD
ENDED = 77  # exit code of a reader that has read wrong bytes


class Quiet(shardtool.Observer):
    """Ignores notes, because a full cache prints many."""


@dataclass(frozen=True)
class Load:
    """The load on a cache.

    Attributes:
        writers: Number of processes that write shards.
        readers: Number of processes that read the written shards, and copies of another dataset.
        seconds: Minimum duration.
        kill_s: Seconds between two kills.
        epochs: Minimum number of passes over all written shards, by all readers together.
    """

    writers: int
    readers: int
    seconds: float
    kill_s: float
    epochs: int = 1


def payload(number: int) -> bytes:
    """Return the bytes of sample `number`."""
    return number.to_bytes(8, "little") * (SAMPLE // 8)


def write(folder: str, part: int) -> None:
    """Write samples into the cache until the process is killed."""
    cache = shardtool.Cache(folder, BOUND, "oldest", observer=Quiet())
    with cache.writer(part, max_size=SHARD) as writer:
        for number in range(10**9):
            writer.write({"__key__": f"{part}/{number}", "bin": payload(number)})


def read(folder: str, slow: str, seed: int) -> None:
    """Read written shards and copies until the process is killed. After a wrong byte, exit with the code `ENDED`."""
    choice = random.Random(seed)  # noqa: S311
    cache = shardtool.Cache(folder, BOUND - (seed % 2) * 2 * SHARD, observer=Quiet())
    shards = open_dataset(slow).shards
    while True:
        written = cache.refresh(BOUND // 3)
        is_right = not written or all(_right(sample) for sample in shardtool.open([*written], check=True))
        for shard in choice.sample(shards, 2):
            with cache.open(shard) as leased:
                is_right = is_right and Path(leased.path).read_bytes() == Path(shard.path).read_bytes()
        if not is_right:
            os._exit(ENDED)
        with (Path(folder).parent / f"epochs-{os.getpid()}").open("a") as epochs_read:
            epochs_read.write("x")


def _right(sample: Mapping[str, object]) -> bool:
    return sample["bin"] == payload(int(str(sample["__key__"]).partition("/")[2]))


class Crew:
    """The running writers and readers."""

    def __init__(self, load: Load, folder: Path, slow: Path) -> None:
        self._context, self._given = multiprocessing.get_context("fork"), (str(folder), str(slow))
        self._at_work = [self._start(number, number < load.writers) for number in range(load.writers + load.readers)]

    def _start(self, number: int, writes: bool) -> tuple[int, bool, ForkProcess]:  # noqa: FBT001
        folder, slow = self._given
        process = self._context.Process(
            target=write if writes else read, args=(folder, number) if writes else (folder, slow, number)
        )
        process.start()
        return number, writes, process

    def kill_one(self) -> None:
        """Kill a random process, and start a new process with the same job."""
        number, writes, process = self._at_work.pop(random.randrange(len(self._at_work)))  # noqa: S311
        process.kill()
        process.join()
        self._at_work.append(self._start(number, writes))

    def check(self) -> None:
        """Fail if a process has exited without being killed."""
        ended = {number: process.exitcode for number, _, process in self._at_work if process.exitcode is not None}
        assert not ended, ended

    def end(self) -> None:
        """Kill all processes."""
        for _, _, process in self._at_work:
            process.kill()
            process.join()


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a cache. A lock on the cache prevents counting a file twice during a rename."""
    sizes: Counter[str] = Counter()
    with CacheSpace(str(folder), BOUND, "oldest").locked():
        for part in (COPIED, WRITTEN):
            for entry in os.scandir(folder / part):
                if not entry.name.startswith(".room-"):
                    name = entry.name.removeprefix(".").removesuffix(".part")
                    try:
                        sizes[name] = max(sizes[name], entry.stat().st_size)
                    except FileNotFoundError:
                        continue
    return sum(sizes.values())


def run(load: Load, root: Path) -> dict[str, object]:
    """Run the load, and fail if the cache exceeds its size limit or a process exits.

    Returns:
        Maximum size in bytes, number of kills, statistics of the cache, and number of epochs.
    """
    folder, slow = root / "cache", root / "out.json"
    making = multiprocessing.get_context("fork").Process(target=make_slow, args=(root,))
    making.start()  # in another process, because it starts threads, and a process with threads must not fork
    making.join()
    crew, max_bytes, kills = Crew(load, folder, slow), 0, 0
    end_s, kill_s = time.monotonic() + load.seconds, time.monotonic() + load.kill_s
    try:
        while time.monotonic() < end_s or epochs(root) < load.epochs or not kills:
            time.sleep(0.01)
            crew.check()
            if folder.is_dir() and all((folder / part).is_dir() for part in FOLDERS):
                max_bytes = max(max_bytes, size_of(folder))
                assert max_bytes <= BOUND + SHARD, max_bytes
            if time.monotonic() > kill_s:
                crew.kill_one()
                kills, kill_s = kills + 1, kill_s + load.kill_s
    finally:
        crew.end()
    return {"max_bytes": max_bytes, "bound": BOUND, "kills": kills, **left_behind(folder), "epochs": epochs(root)}


def make_slow(root: Path) -> None:
    """Write the dataset that readers read through the cache."""
    with shardtool.ShardWriter(root / "out-{000000..}.tar", max_count=COUNT) as writer:
        for number in range(20 * COUNT):
            writer.write({"__key__": f"slow/{number}", "bin": payload(number)})


def left_behind(folder: Path) -> dict[str, object]:
    """Check that a cache contains only complete, unused shards after the last kill. Return its statistics."""
    shardtool.Cache(folder, BOUND)
    status, checked = cache_status(folder), cache_verify(folder)
    assert not any(shard.held for shard in status.shards)
    assert (checked.removed, checked.held, status.foreign, status.taken) == ({}, {}, (), 0)
    whole = {Path(shard.path).name for shard in status.shards}
    files = {path.name for part in (COPIED, WRITTEN) for path in (folder / part).iterdir()}
    sidecars = {f"{Path(name).stem}.index" for name in whole if name.startswith("grown-")}
    assert files == whole | sidecars, files ^ (whole | sidecars)
    return {"shards": len(whole), "copied": status.counts.copies, "evicted": status.counts.evicted}


def epochs(root: Path) -> int:
    """Return how many passes over all written shards the readers have finished."""
    return sum(path.stat().st_size for path in root.glob("epochs-*"))


def main() -> None:
    """Run the load that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--kill-s", type=float, default=1)
    arguments = parser.parse_args()
    with TemporaryDirectory() as root:
        print(run(Load(arguments.writers, arguments.readers, arguments.seconds, arguments.kill_s), Path(root)))  # noqa: T201


if __name__ == "__main__":
    main()
