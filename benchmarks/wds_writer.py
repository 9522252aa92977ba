"""Pack a folder tree with webdataset's ShardWriter, the usual way: the peer that bench.py compares with.

    python wds_writer.py SOURCE OUT MAX_SIZE

Files that share folder and stem are one sample. Runs in an environment of its own that has webdataset; one process,
because ShardWriter has no workers. `mtime=0` is its fast and reproducible setting.
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
    """Yield the samples under `source` in the order of their keys."""
    for folder, subfolders, names in os.walk(source):
        subfolders.sort()
        prefix = folder[len(f"{source}") + 1 :]
        for stem, group in groupby(sorted(names), key=lambda name: name.partition(".")[0]):
            sample: dict[str, str | bytes] = {"__key__": f"{prefix}/{stem}"}
            for name in group:
                sample[name.partition(".")[2]] = Path(folder, name).read_bytes()
            yield sample


def write(source: Path, out: Path, max_size: int) -> None:
    """Write every sample under `source` into shards of about `max_size` bytes in `out`."""
    with webdataset.ShardWriter(f"{out}/s-%06d.tar", maxcount=10**9, maxsize=max_size, mtime=0, verbose=0) as writer:
        for sample in samples(source):
            writer.write(sample)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
