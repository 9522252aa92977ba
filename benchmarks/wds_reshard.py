"""Read shards with webdataset and write new shards with its ShardWriter. reshard.py compares shardtool with it.

    python wds_reshard.py SHARDS OUT MAX_SIZE

The program follows webdataset's documentation. It runs in one process, in an environment with webdataset.
"""

from __future__ import annotations

import sys
from pathlib import Path

import webdataset


def reshard(shards: Path, out: Path, max_size: int) -> None:
    """Write all samples of the shards in a folder into shards of about `max_size` bytes in `out`."""
    names = sorted(str(path) for path in shards.glob("*.tar"))
    dataset = webdataset.WebDataset(names, shardshuffle=False, empty_check=False)
    with webdataset.ShardWriter(f"{out}/s-%06d.tar", maxcount=10**9, maxsize=max_size, mtime=0, verbose=0) as writer:
        for sample in dataset:
            writer.write({name: data for name, data in sample.items() if name == "__key__" or name[0] != "_"})


if __name__ == "__main__":
    reshard(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
