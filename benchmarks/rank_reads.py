"""Measure the cost of separate parts for each rank: several processes read a shuffled stream from a cold disk.

    python benchmarks/rank_reads.py DATASET RANKS [ROUNDS]

DATASET is a dataset file of shards on a disk. RANKS processes read three epochs, alternately with `parts=64` and with
the default. Before each epoch, the shards are removed from the page cache. The first epoch also reads the sidecars. Of
the later epochs, the fastest of all rounds is printed. CPU is the total of all ranks in microseconds per sample.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from typing import TYPE_CHECKING, Any

import shardtool

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

EPOCHS = 3
WAYS: dict[str, dict[str, Any]] = {"`parts=64`": {"parts": 64}, "default": {}}


def forget(dataset: shardtool.Dataset) -> None:
    """Remove the shards from the page cache."""
    for shard in dataset.reader.catalog.shards:
        fd = os.open(shard.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read(path: str, rank: int, ranks: int, options: dict[str, Any], together: Barrier, results: Any) -> None:
    """Read epochs as one rank, each when all ranks are ready. Send samples, seconds and CPU of each epoch."""
    dataset = shardtool.open(path)
    stream, found = dataset.stream(rank=rank, world_size=ranks, **options), []
    for _ in range(EPOCHS):
        together.wait()
        if rank == 0:
            forget(dataset)
        together.wait()
        start, cpu = time.perf_counter(), time.process_time()
        count = sum(1 for _ in stream)
        found.append((count, time.perf_counter() - start, time.process_time() - cpu))
    results.put((found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))


def measured(path: str, ranks: int, options: dict[str, Any]) -> tuple[list[tuple[float, float]], int]:
    """Return samples per second and CPU per sample of each epoch, and the peak memory of a rank in MiB."""
    together = multiprocessing.Barrier(ranks)
    results: Any = multiprocessing.Queue()
    readers = [
        multiprocessing.Process(target=read, args=(path, rank, ranks, options, together, results))
        for rank in range(ranks)
    ]
    for reader in readers:
        reader.start()
    found = [results.get() for _ in readers]
    for reader in readers:
        reader.join()
    epochs = [[one[epoch] for one, _ in found] for epoch in range(EPOCHS)]
    counts = [sum(count for count, *_ in epoch) for epoch in epochs]
    speeds = [count / max(seconds for _, seconds, _ in epoch) for count, epoch in zip(counts, epochs, strict=True)]
    cpus = [sum(cpu for *_, cpu in epoch) / count * 1e6 for count, epoch in zip(counts, epochs, strict=True)]
    return list(zip(speeds, cpus, strict=True)), max(peak for _, peak in found)


def main() -> None:
    """Print the table."""
    path, ranks = sys.argv[1], int(sys.argv[2])
    best: dict[str, list[float]] = {}
    for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 3):  # noqa: PLR2004 - the third argument
        for name, options in WAYS.items():
            (first, *later), peak = measured(path, ranks, options)
            speed, cpu = max(one for one, _ in later), min(one for _, one in later)
            before = best.get(name, [0.0, 1e9, 0.0, 1e9, 0.0])
            pick = (max, min, max, min, max)
            now = (first[0], first[1], speed, cpu, peak)
            best[name] = [choose(one, other) for choose, one, other in zip(pick, before, now, strict=True)]
    print("| ranks | parts | first epoch, samples/s (CPU) | later epochs, samples/s (CPU) | a rank's memory, MiB |")
    print("|--:|---|--:|--:|--:|")
    for name, (one, cpu_one, later_speed, cpu_later, memory) in best.items():
        print(
            f"| {ranks} | {name} | {one:,.0f} ({cpu_one:.0f}) | {later_speed:,.0f} ({cpu_later:.0f}) | {memory:.0f} |"
        )


if __name__ == "__main__":
    main()
