"""Pack a folder tree into TFRecords with a typical program. bench.py compares shardtool with it.

    python tfrecord_writer.py tensorflow|tfrecord SOURCE OUT MAX_SIZE

Files with the same folder and stem form one sample. The key is a bytes feature, as in shardtool. `tensorflow` selects
`tf.train.Example` and `tf.io.TFRecordWriter`, and `tfrecord` selects the package of that name. The program runs in one
process, in an environment with both packages.
"""

from __future__ import annotations

import os
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def samples(source: Path) -> Iterator[dict[str, bytes]]:
    """Yield the samples in `source` in key order. Each sample is a dict of its fields and the key."""
    for folder, subfolders, names in os.walk(source):
        subfolders.sort()
        prefix = folder[len(f"{source}") + 1 :]
        for stem, group in groupby(sorted(names), key=lambda name: name.partition(".")[0]):
            fields = {name.partition(".")[2]: Path(folder, name).read_bytes() for name in group}
            yield {"__key__": f"{prefix}/{stem}".encode(), **fields}


def write(
    source: Path, open_shard: Callable[[int], Any], max_size: int, put: Callable[[Any, dict[str, bytes]], None]
) -> None:
    """Write all samples in `source` into shards of about `max_size` bytes."""
    shard, room, number = None, 0, 0
    for sample in samples(source):
        size = sum(map(len, sample.values()))
        if size > room:
            if shard is not None:
                shard.close()
            shard, room, number = open_shard(number), max_size, number + 1
        put(shard, sample)
        room -= size
    if shard is not None:
        shard.close()


def with_tensorflow(source: Path, out: Path, max_size: int) -> None:
    """Write with TensorFlow."""
    import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

    train = tf.train

    def put(shard: Any, sample: dict[str, bytes]) -> None:
        features = {
            name: train.Feature(bytes_list=train.BytesList(value=[payload])) for name, payload in sample.items()
        }
        shard.write(train.Example(features=train.Features(feature=features)).SerializeToString())

    write(source, lambda number: tf.io.TFRecordWriter(f"{out}/s-{number:06d}.tfrecord"), max_size, put)


def with_tfrecord(source: Path, out: Path, max_size: int) -> None:
    """Write with the `tfrecord` package."""
    from tfrecord.writer import TFRecordWriter  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def put(shard: Any, sample: dict[str, bytes]) -> None:
        shard.write({name: (payload, "byte") for name, payload in sample.items()})

    write(source, lambda number: TFRecordWriter(f"{out}/s-{number:06d}.tfrecord"), max_size, put)


if __name__ == "__main__":
    chosen = {"tensorflow": with_tensorflow, "tfrecord": with_tfrecord}[sys.argv[1]]
    chosen(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
