"""Measure time and memory of planning ten million samples, in order and shuffled.

    python benchmarks/plan10m.py [SAMPLES]

The sample table is created in memory (keys of 23 bytes, one field); nothing is read from disk. The whole process is
measured: the sample table, the plan, and the tasks of all shards.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from shardtool.entries.sample_table import FieldRows, SampleTable
from shardtool.entries.strings import PackedStrings
from shardtool.pattern import parse_pattern
from shardtool.plan.plan import make_plan
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples


def made_entries(samples: int) -> SampleTable:
    """Return a table of `samples` samples in 1,000 folders, each of about 100 kB."""
    folder = np.arange(samples) * 1000 // samples
    digits = np.empty((samples, 24), np.uint8)
    digits[:] = np.frombuffer(b"c0000/image-0000000000.\0"[:24], np.uint8)
    for place, power in enumerate((1000, 100, 10, 1)):
        digits[:, 1 + place] = 48 + folder // power % 10
    number = np.arange(samples)
    for place in range(10):
        digits[:, 12 + place] = 48 + number // 10 ** (9 - place) % 10
    digits[:, 22] = ord("a")
    keys = PackedStrings(digits.tobytes(), np.arange(0, 24 * samples + 1, 24, dtype=np.int64))
    rng = np.random.default_rng(1)
    return SampleTable(
        root=b"made/", keys=keys, first_rows=np.arange(samples + 1, dtype=np.int64), fields=("jpg",),
        rows=FieldRows(
            code=np.zeros(samples, np.uint16), kind=np.zeros(samples, np.uint8),
            size=rng.integers(50_000, 150_000, samples), mtime_ns=np.zeros(samples, np.int64),
            changed_ns=np.zeros(samples, np.int64),
        ),
    )  # fmt: skip


def main() -> None:
    """Print a table row for each order."""
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    entries = made_entries(samples)
    print(f"entries of {samples:,} samples: {_peak_mb():,} MB peak")
    for seed in (None, 1):
        start = time.perf_counter()
        plan = make_plan(entries, parse_pattern("out-{000000..}.tar"), ShardBounds(max_size=10**9), seed)
        planned = time.perf_counter()
        cut = sum(len(build_shard_samples(plan, shard).content.keys) for shard in range(plan.shards))
        done = time.perf_counter()
        print(
            f"{'shuffled' if seed else 'in order'}: {plan.shards:,} shards, plan {planned - start:.1f} s, "
            f"tasks {done - planned:.1f} s ({cut:,} key bytes), {_peak_mb():,} MB peak"
        )


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
