"""Compare reading bytes: our streams and random reads, webdataset, wids, array_record and plain `os.pread`.

    python benchmarks/stream.py SHARDS [ROUNDS]

SHARDS is a dataset file of tar shards. All tools read the same samples from the page cache in this process, in
interleaved runs. The output is the minimum and median seconds, the minimum CPU time of all threads in microseconds per
sample (which depends less on other jobs of the machine), and how many times faster shardtool is, by time and by CPU.
The plain read calls `os.pread` once per sample at known offsets, and slices the result. A tool that is not installed
is skipped. For array_record, the samples are first written to a temporary folder, one record per sample.

On Linux, reading pages that a program has written can take twice as long as reading pages that came from a disk, and
`os.pread` is affected more than a memory mapping. Therefore, first copy the shards with `cp`.

Requires an environment with webdataset, such as `.venv-clients`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import shardtool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RANDOM = 20_000


def drain(samples: Iterable[Any]) -> int:
    """Read all samples, and return their number."""
    count = 0
    for _ in samples:
        count += 1
    return count


class Bare:
    """The minimum work in Python: one system call per sample, and slices."""

    def __init__(self, data: Any) -> None:
        self.rows: list[tuple[int, str, int, int, list[tuple[str, int, int]]]] = []
        for shard, opened in enumerate(data.reader.catalog.shards):
            index, fd = data.reader.store.index(shard), os.open(opened.path, os.O_RDONLY)
            for row, key in enumerate(index.all_keys()):
                first, last = int(index.first_rows[row]), int(index.first_rows[row + 1])
                start, end = int(index.offsets[first]), int(index.offsets[last - 1] + index.lengths[last - 1])
                fields = [
                    (index.names[index.codes[at]], int(index.offsets[at]) - start, int(index.lengths[at]))
                    for at in range(first, last)
                ]
                self.rows.append((fd, key.decode(), start, end - start, fields))

    def read(self, numbers: Iterable[int]) -> int:
        """Read samples by number, and return their number."""
        count = 0
        for fd, key, start, size, fields in map(self.rows.__getitem__, numbers):
            block = memoryview(os.pread(fd, size, start))
            sample = {"__key__": key, **{name: block[at : at + length] for name, at, length in fields}}
            count += len(sample) > 0
        return count


def streams(data: Any, bare: Bare, folder: str) -> dict[str, Callable[[], int]]:
    """Return functions that read all samples, by name."""
    found = {
        "shardtool": lambda: drain(data.stream(shuffle=False, rank=0, world_size=1)),
        "shardtool, shuffled": lambda: drain(data.stream(rank=0, world_size=1)),
        "bare read": lambda: bare.read(range(len(data))),
    }
    if find_spec("webdataset"):
        import webdataset as wds

        urls = [shard.path for shard in data.reader.catalog.shards]
        found["webdataset"] = lambda: drain(wds.WebDataset(urls, shardshuffle=False, empty_check=False))
    if find_spec("array_record"):
        from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

        writer = ArrayRecordWriter(f"{folder}/all.ar", "group_size:1,uncompressed")
        for sample in data:
            writer.write(b"".join(value for name, value in sample.items() if name != "__key__"))
        writer.close()

        def records() -> int:
            reader = ArrayRecordReader(f"{folder}/all.ar")
            return drain(reader.read() for _ in range(reader.num_records()))

        found["array_record"] = records
    return found


def randoms(dataset_file: Path, data: Any, bare: Bare, folder: str) -> dict[str, Callable[[], int]]:
    """Return functions that read samples by number, by name."""
    draw = np.random.default_rng(1)
    numbers = draw.integers(0, len(data), RANDOM)
    listed: list[int] = numbers.tolist()
    found = {
        "shardtool": lambda: drain(data[number] for number in listed),
        "shardtool, 256 at once": lambda: sum(len(data[numbers[at : at + 256]]) for at in range(0, RANDOM, 256)),
        "bare read": lambda: bare.read(listed),
    }
    if find_spec("wids"):
        import wids

        theirs = wids.ShardListDataset(str(dataset_file), cache_dir=f"{folder}/wids", transformations=[])

        def by_wids() -> int:
            samples = (theirs[number] for number in listed)
            return drain(
                [one.getbuffer() for one in sample.values() if hasattr(one, "getbuffer")] for sample in samples
            )

        found["wids"] = by_wids
    if find_spec("array_record"):
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        source = ArrayRecordDataSource(f"{folder}/all.ar")
        found["array_record"] = lambda: drain(source[number] for number in listed)
    return found


def measure(tools: dict[str, Callable[[], int]], rounds: int, title: str) -> None:
    """Run all tools in each round, and print their times relative to the first tool."""
    times: dict[str, list[float]] = {name: [] for name in tools}
    used: dict[str, list[float]] = {name: [] for name in tools}
    for turn in range(rounds + 1):
        for name, tool in tools.items():
            begun, cpu = time.perf_counter(), time.process_time()
            count = tool()
            if turn:  # the first is a warm-up
                times[name].append(time.perf_counter() - begun)
                used[name].append(time.process_time() - cpu)
    ours, least = next(iter(times.values())), min(next(iter(used.values())))
    print(f"{title}: {count:,} samples")
    for name, took in times.items():
        ratio = statistics.median(one / own for one, own in zip(took, ours, strict=True))
        cpu = min(used[name])
        print(f"  {name:24} {min(took):7.3f} s  {statistics.median(took):7.3f} s  {cpu / count * 1e6:7.1f} us", end="")
        print(f"  {ratio:5.1f} x, CPU {cpu / least:5.1f} x ours")


def main() -> None:
    """Read the command line."""
    dataset_file, rounds = Path(sys.argv[1]), int((sys.argv[2:] or ["5"])[0])
    data = shardtool.open(dataset_file)
    bare = Bare(data)
    with tempfile.TemporaryDirectory() as folder:
        measure(streams(data, bare, folder), rounds, "stream")
        measure(randoms(dataset_file, data, bare, folder), rounds, "random")


if __name__ == "__main__":
    main()
