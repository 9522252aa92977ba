"""Read shards with webdataset and write others with its ShardWriter: the peer that reshard.py compares with.

    python wds_reshard.py SHARDS OUT MAX_SIZE

What its documentation suggests. Runs in an environment of its own that has webdataset; one process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import webdataset


def reshard(shards: Path, out: Path, max_size: int) -> None:
    """Write every sample of the shards in a folder into shards of about `max_size` bytes in `out`."""
    names = sorted(str(path) for path in shards.glob("*.tar"))
    dataset = webdataset.WebDataset(names, shardshuffle=False, empty_check=False)
    with webdataset.ShardWriter(f"{out}/s-%06d.tar", maxcount=10**9, maxsize=max_size, mtime=0, verbose=0) as writer:
        for sample in dataset:
            writer.write({name: data for name, data in sample.items() if name == "__key__" or name[0] != "_"})


if __name__ == "__main__":
    reshard(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
