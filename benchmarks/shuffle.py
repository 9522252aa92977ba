"""Measure how well an epoch is shuffled whose shards hold a class each, and print it as Markdown.

    PYTHONPATH=. PYTHON benchmarks/shuffle.py

PYTHON has webdataset. Nothing is read: the orders of 1,280,000 samples are computed, as both tools would read them.
"""

from __future__ import annotations

import random
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from webdataset.filters import shuffle as buffered

from shardtool.read.order import OrderOptions, order_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES, OF_CLASS, BATCH = 1000, 1280, 256
SAMPLES = CLASSES * OF_CLASS
ORDERS = {
    '`shuffle="full"`': OrderOptions("full"),
    "`shuffle=True`, buffer 320": OrderOptions(window=5),
    "`shuffle=True`, buffer 32,768": OrderOptions(window=512),
    "`shuffle=True, parts=256`, buffer 4,096": OrderOptions(parts=256, window=16),
}
BUFFERS = (1000, 4096, 32768)


def ours(options: OrderOptions) -> NDArray[np.int64]:
    """Return the numbers of an epoch's samples."""
    return order_of(np.full(CLASSES, OF_CLASS), options).numbers(np.arange(SAMPLES))


def webdataset(buffer: int) -> NDArray[np.int64]:
    """Return the numbers of an epoch's samples, as one reader of shuffled shards has them."""
    shards = list(range(CLASSES))
    random.Random(0).shuffle(shards)
    numbers = (shard * OF_CLASS + at for shard in shards for at in range(OF_CLASS))
    return np.fromiter(buffered(buffer, rng=random.Random(1))(numbers), np.int64, SAMPLES)


def row(name: str, order: NDArray[np.int64]) -> str:
    """Return a line of the table."""
    classes = order // OF_CLASS
    different = np.mean([len(np.unique(batch)) for batch in classes.reshape(-1, BATCH)[::17]])
    return f"| {name} | {different:.0f} | {(classes[1:] == classes[:-1]).mean():.1%} |"


def main() -> None:
    """Print the table."""
    print(f"| order | classes in a batch of {BATCH} | same class as the sample before |\n|---|--:|--:|")
    for name, options in ORDERS.items():
        print(row(name, ours(options)))
    for buffer in BUFFERS:
        print(row(f"webdataset {version('webdataset')}, `.shuffle({buffer})`", webdataset(buffer)))


if __name__ == "__main__":
    main()
