"""Rules that cut a window of samples into bundles: blocks of tokens, or batches of samples of similar size.

A rule gets the sizes of samples and returns four int64 columns with one row per piece, sorted by bundle: bundle number,
sample, start in the sample, and length.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from shardtool.read.catalog import Numbers

    Pieces = tuple[Numbers, Numbers, Numbers, Numbers]


PackingRule = Literal["first-fit", "concat"]


def concatenated(tokens: int, lengths: Numbers) -> Pieces:
    """Cut blocks from concatenated documents."""
    ends = np.cumsum(lengths)
    firsts, total = ends - lengths, int(ends[-1])
    starts = np.union1d(firsts[lengths > 0], np.arange(0, total, tokens))
    documents = np.searchsorted(ends, starts, side="right")
    return starts // tokens, documents, starts - firsts[documents], np.diff(starts, append=total)


def fitted(tokens: int, lengths: Numbers) -> Pieces:
    """Pack whole documents into blocks: longest first, each into the fullest block that has room.

    A document longer than a block is cut into blocks and a remainder.

    Source: best-fit decreasing; Johnson, "Near-optimal bin packing algorithms", MIT 1973.
    """
    pieces = -(-lengths // tokens)
    documents = np.repeat(np.arange(len(lengths)), pieces)
    starts = (np.arange(len(documents)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * tokens
    counts = np.minimum(tokens, lengths[documents] - starts)
    blocks: list[int] = []
    room: dict[int, list[int]] = {}  # number of free tokens to the blocks with that many
    rooms: list[int] = []  # the keys of `room`, ascending
    used = 0
    for length, remaining in zip(
        *(column[::-1].tolist() for column in np.unique(counts, return_counts=True)), strict=True
    ):
        end = len(blocks) + remaining
        while remaining := end - len(blocks):
            index = bisect_left(rooms, length)
            if index < len(rooms):
                free = rooms[index]
                chosen_blocks = room[free][-remaining:]
                del room[free][-remaining:]
                if not room[free]:
                    del room[free], rooms[index]
            else:
                free, first = tokens, used
                used += -(-remaining // (tokens // length))
                chosen_blocks = [*range(first, used)]
            blocks += chosen_blocks
            if free > length:
                if free - length not in room:
                    insort(rooms, free - length)
                room.setdefault(free - length, []).extend(chosen_blocks)
    bundles = np.empty(len(counts), np.int64)
    bundles[np.argsort(-counts, kind="stable")] = blocks
    order = np.argsort(bundles, kind="stable")  # keeps the window's order within a block
    return bundles[order], documents[order], starts[order], counts[order]


def of_like_length(tokens: int, lengths: Numbers) -> Pieces:
    """Group samples of similar length: at most `tokens` per batch, including padding."""
    order = np.argsort(-lengths, kind="stable")
    descending, ends = lengths[order], [0]
    while ends[-1] < len(order):
        ends.append(min(len(order), ends[-1] + max(1, tokens // max(1, int(descending[ends[-1]])))))
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends)), order, np.zeros_like(order), descending


def of_one_kind(size: int, kinds: Numbers) -> Pieces:
    """Group `size` samples of one kind per batch."""
    order = np.argsort(kinds, kind="stable")
    _, firsts, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    begins = (np.arange(len(order)) - np.repeat(firsts, counts)) % size == 0
    return np.cumsum(begins) - 1, order, np.zeros_like(order), np.ones_like(order)


class Bundle(NamedTuple):
    """The pieces of samples in a bundle: int64 [pieces] each.

    `starts` and `counts` are the position and length of a piece in its sample.
    """

    numbers: Numbers
    sizes: Numbers
    starts: Numbers
    counts: Numbers
