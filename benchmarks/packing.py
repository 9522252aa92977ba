"""Compare packers of token sequences: the filling of blocks, and the packing time.

    PYTHONPATH=. python benchmarks/packing.py [DOCUMENTS]

Requires shardtool's dependencies; grain is optional. Document lengths are drawn from a log-normal distribution with a
median of 404 tokens and are limited to the block size, because grain rejects longer documents. No data is read. grain
packs arrays instead of lengths, so its time includes creating the blocks.

llm-foundry, which packs documents for MosaicML's streaming, cannot be installed without libraries for GPUs. Therefore,
this script implements the documented algorithm of its `BinPackCollator`. A batch has `packing_ratio` times as many
documents as blocks. The documents are sorted by length and placed into the first block with enough space. The fullest
blocks are returned, and at most ten times as many other blocks are kept. The ratio `auto` is the largest ratio that
loses no documents.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from shardtool.read.bundles import concatenated, fitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Lengths = NDArray[np.int64]

TOKENS = 4096
BATCH = 8  # blocks
_KEPT = 10  # llm-foundry keeps at most this many times as many blocks as it returns
_RATIOS = np.arange(3, 9, 0.25)


def ours(lengths: Lengths, rule: Callable[[int, Lengths], tuple[Lengths, ...]], window: int) -> tuple[int, int, int]:
    """Return the number of blocks, the number of tokens in them, and the number of lost tokens."""
    windows = [lengths[first : first + window] for first in range(0, len(lengths), window)]
    return sum(int(rule(TOKENS, one)[0][-1]) + 1 for one in windows), int(lengths.sum()), 0


def foundry(lengths: Lengths, ratio: float) -> tuple[int, int, int]:
    """Return the number of blocks, of tokens in them and of lost tokens with llm-foundry's packer."""
    size, bins, blocks, tokens, lost = int(ratio * BATCH), list[int](), 0, 0, 0
    for first in range(0, len(lengths) - size + 1, size):
        batch = sorted(lengths[first : first + size].tolist(), reverse=True)
        for at, length in enumerate(batch):
            lacking = BATCH - len(bins) >= len(batch) - at
            place = next((place for place, used in enumerate(bins) if used + length <= TOKENS), None)
            bins.append(length if lacking or place is None else bins.pop(place) + length)
        bins.sort(reverse=True)
        blocks, tokens = blocks + BATCH, tokens + sum(bins[:BATCH])
        lost += sum(bins[BATCH + _KEPT * BATCH :])
        bins = bins[BATCH : BATCH + _KEPT * BATCH]
    return blocks, tokens, lost


def grain_blocks(lengths: Lengths, name: str, bins: int) -> tuple[int, int, int]:
    """Return the number of blocks, of tokens in them and of lost tokens with a packer of grain."""
    grain = import_module("grain")
    zeros = np.zeros(TOKENS, np.uint16)
    documents = grain.MapDataset.source([{"tokens": zeros[:length]} for length in lengths.tolist()]).to_iter_dataset()
    packer = getattr(grain.experimental, name)
    packed = packer(documents, length_struct={"tokens": TOKENS}, num_packing_bins=bins)
    blocks, tokens = 0, 0
    for one in packed:
        blocks, tokens = blocks + 1, tokens + int(np.count_nonzero(one["tokens_segment_ids"]))
    return blocks, tokens, 0


def lines(lengths: Lengths) -> Iterator[str]:
    """Yield a table row for each packer."""

    def row(name: str, run: Callable[[], tuple[int, int, int]]) -> str:
        start = time.process_time()
        blocks, tokens, lost = run()
        took = (time.process_time() - start) / len(lengths) * 1e6
        return f"| {name} | {1 - tokens / blocks / TOKENS:.2%} | {lost / lengths.sum():.1%} | {took:.1f} |"

    for window in (2048, 32_768):
        yield row(f"`first-fit`, windows of {window:,} documents", partial(ours, lengths, fitted, window))
    yield row("`concat`, windows of 32,768 documents", partial(ours, lengths, concatenated, 32_768))
    auto = max(ratio for ratio in _RATIOS.tolist() if not foundry(lengths, ratio)[2])
    for ratio in (auto, auto + 0.5):
        yield row(f"llm-foundry's packer, ratio {ratio}", partial(foundry, lengths, ratio))
    if find_spec("grain") is None:
        return
    for name in ("FirstFitPackIterDataset", "BestFitPackIterDataset"):
        for bins in (32, 256):
            yield row(f"grain's `{name}`, {bins} bins", partial(grain_blocks, lengths, name, bins))


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
    lengths = np.clip(np.random.default_rng(0).lognormal(6, 1, count), 1, TOKENS).astype(np.int64)
    print(f"{count:,} documents, {lengths.mean():.0f} tokens on average, blocks of {TOKENS:,}\n")
    print("| packer | padding | tokens lost | us a document (CPU) |\n|---|--:|--:|--:|")
    for line in lines(lengths):
        print(line, flush=True)


if __name__ == "__main__":
    main()
