"""Pack a folder tree with webdataset's ShardWriter. bench.py compares shardtool with it.

    python wds_writer.py SOURCE OUT MAX_SIZE

Files with the same folder and stem form one sample. The program runs in one process, because ShardWriter has no
workers, in an environment with webdataset. It uses `mtime=0`, which is fast and reproducible.
"""

from __future__ import annotations

import os
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import webdataset

if TYPE_CHECKING:
    from collections.abc import Iterator


def samples(source: Path) -> Iterator[dict[str, str | bytes]]:
    """Yield the samples in `source` in key order."""
    for folder, subfolders, names in os.walk(source):
        subfolders.sort()
        prefix = folder[len(f"{source}") + 1 :]
        for stem, group in groupby(sorted(names), key=lambda name: name.partition(".")[0]):
            sample: dict[str, str | bytes] = {"__key__": f"{prefix}/{stem}"}
            for name in group:
                sample[name.partition(".")[2]] = Path(folder, name).read_bytes()
            yield sample


def write(source: Path, out: Path, max_size: int) -> None:
    """Write all samples in `source` into shards of about `max_size` bytes in `out`."""
    with webdataset.ShardWriter(f"{out}/s-%06d.tar", maxcount=10**9, maxsize=max_size, mtime=0, verbose=0) as writer:
        for sample in samples(source):
            writer.write(sample)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
