"""Measure how well an epoch of class-sorted shards is shuffled, and print the results as Markdown.

    PYTHONPATH=. PYTHON benchmarks/shuffle.py

PYTHON is an interpreter with webdataset. No data is read: the script computes the orders in which both tools would read
1,280,000 samples, and the order of one of several ranks with 200 classes and different sizes of reads.
"""

from __future__ import annotations

import random
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from webdataset.filters import shuffle as buffered

from shardtool.read.epoch_samples import CatalogSamples, choose_parts
from shardtool.read.order import OrderOptions, epoch_order
from tests.read.catalogs import made_catalog

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES, OF_CLASS, BATCH = 1000, 1280, 256
SAMPLES = CLASSES * OF_CLASS
ORDERS = {
    '`shuffle="full"`': OrderOptions("full"),
    "`shuffle=True`, of 14 KB: buffer 4,096": OrderOptions(parts=128, window=32, ranks=1),
    "`shuffle=True, parts=64`, buffer 320": OrderOptions(window=5),
    "`shuffle=True, parts=64`, buffer 32,768": OrderOptions(window=512),
    "`shuffle=True, parts=256`, buffer 4,096": OrderOptions(parts=256, window=16),
}
BUFFERS = (1000, 4096, 32768)


def ours(options: OrderOptions) -> NDArray[np.int64]:
    """Return the sample numbers of an epoch."""
    return epoch_order(np.full(CLASSES, OF_CLASS), options).numbers(np.arange(SAMPLES))


def webdataset(buffer: int, classes: int = CLASSES, each: int = OF_CLASS, ranks: int = 1) -> NDArray[np.int64]:
    """Return the sample numbers of an epoch for one of the ranks, which share the shuffled shards."""
    shards = list(range(classes))
    random.Random(0).shuffle(shards)
    numbers = (shard * each + at for shard in shards[::ranks] for at in range(each))
    return np.fromiter(buffered(buffer, rng=random.Random(1))(numbers), np.int64)


def row(name: str, order: NDArray[np.int64]) -> str:
    """Return a table row."""
    classes = order // OF_CLASS
    different = np.mean([len(np.unique(batch)) for batch in classes.reshape(-1, BATCH)[::17]])
    return f"| {name} | {different:.0f} | {(classes[1:] == classes[:-1]).mean():.1%} |"


def classes_of_rank(order: NDArray[np.int64], each: int) -> float:
    """Return the mean number of classes in a batch of a rank, from at most 40 batches."""
    classes = (order // each)[: 40 * BATCH]
    return float(
        np.mean([len(np.unique(batch)) for batch in classes[: len(classes) // BATCH * BATCH].reshape(-1, BATCH)])
    )


def row_of_rank(each: int, size: int, ranks: int) -> str:
    """Return a table row for one rank and 200 classes of the given size."""
    view = CatalogSamples(made_catalog([each] * 200))
    columns = []
    for parts in (64, None):
        count, window, own_of = choose_parts(view, size, ranks, None, parts, copies=False)
        options = OrderOptions(parts=count, window=window, ranks=own_of)
        order = view.order(options)
        columns.append(f"{classes_of_rank(order.numbers(np.arange(0, order.length, ranks)), each):.1f}")
        own = np.sort(order.numbers(np.arange(0, min(options.round_size, order.length), ranks)))
    piece = len(own) / (1 + np.count_nonzero(np.diff(own) > 1)) * size
    whole = view.order(OrderOptions("full"))
    columns.insert(1, f"{classes_of_rank(webdataset(5000, 200, each, ranks), each):.1f}")
    columns.append(f"{classes_of_rank(whole.numbers(np.arange(0, whole.length, ranks)), each):.1f}")
    return f"| {each * 200:,} of {size:,} bytes | {ranks} | {' | '.join(columns)} | {piece / 1000:,.0f} KB |"


def main() -> None:
    """Print the tables."""
    print(f"| order | classes in a batch of {BATCH} | same class as the sample before |\n|---|--:|--:|")
    for name, options in ORDERS.items():
        print(row(name, ours(options)))
    for buffer in BUFFERS:
        print(row(f"webdataset {version('webdataset')}, `.shuffle({buffer})`", webdataset(buffer)))
    print("\n| samples | ranks | `parts=64` | webdataset, `.shuffle(5000)` | default | permutation | read at once |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for each, size in ((100, 14_000), (500, 1_000), (500, 14_000), (500, 100_000), (5000, 14_000)):
        for ranks in (1, 8, 64):
            print(row_of_rank(each, size, ranks))


if __name__ == "__main__":
    main()
