"""Rules that cut a window of samples into bundles: blocks of tokens, or batches of samples of similar size.

A rule gets the sizes of a window's samples and returns four int64 columns with a row per piece, bundle after
bundle: the
bundle (counted from 0), the sample, the start of the piece in the sample, and its length.
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
    """Return blocks that are cut from documents one behind the other: a document may go on in the next block."""
    ends = np.cumsum(lengths)
    firsts, total = ends - lengths, int(ends[-1])
    starts = np.union1d(firsts[lengths > 0], np.arange(0, total, tokens))
    places = np.searchsorted(ends, starts, side="right")
    return starts // tokens, places, starts - firsts[places], np.diff(starts, append=total)


def fitted(tokens: int, lengths: Numbers) -> Pieces:
    """Return blocks of whole documents: the longest first, each into a block with the least room that holds it.

    A document that is longer than a block is cut into pieces of one, and what is left. Documents of one length are
    placed together, so that it takes time by the lengths there are rather than by documents.

    Source: best-fit decreasing; Johnson, "Near-optimal bin packing algorithms", MIT 1973.
    """
    pieces = -(-lengths // tokens)
    places = np.repeat(np.arange(len(lengths)), pieces)
    starts = (np.arange(len(places)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * tokens
    counts = np.minimum(tokens, lengths[places] - starts)
    blocks: list[int] = []  # of each piece, from the longest
    room: dict[int, list[int]] = {}  # the blocks that have so much room left
    rooms: list[int] = []
    used = 0
    for length, left in zip(*(found[::-1].tolist() for found in np.unique(counts, return_counts=True)), strict=True):
        end = len(blocks) + left
        while left := end - len(blocks):
            at = bisect_left(rooms, length)
            if at < len(rooms):
                free = rooms[at]
                taken = room[free][-left:]
                del room[free][-left:]
                if not room[free]:
                    del room[free], rooms[at]
            else:
                free, first = tokens, used
                used += -(-left // (tokens // length))
                taken = [*range(first, used)]
            blocks += taken
            if free > length:
                if free - length not in room:
                    insort(rooms, free - length)
                room.setdefault(free - length, []).extend(taken)
    bundles = np.empty(len(counts), np.int64)
    bundles[np.argsort(-counts, kind="stable")] = blocks
    order = np.argsort(bundles, kind="stable")  # in a block, documents stand in the order of the window
    return bundles[order], places[order], starts[order], counts[order]


def of_like_length(tokens: int, lengths: Numbers) -> Pieces:
    """Return batches of which each takes, padded to its longest sample, no more tokens than are given."""
    order = np.argsort(-lengths, kind="stable")
    descending, ends = lengths[order], [0]
    while ends[-1] < len(order):
        ends.append(min(len(order), ends[-1] + max(1, tokens // max(1, int(descending[ends[-1]])))))
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends)), order, np.zeros_like(order), descending


def of_one_kind(size: int, kinds: Numbers) -> Pieces:
    """Return batches of so many samples of one kind; the last of each kind may be smaller."""
    order = np.argsort(kinds, kind="stable")
    _, firsts, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    begins = (np.arange(len(order)) - np.repeat(firsts, counts)) % size == 0
    return np.cumsum(begins) - 1, order, np.zeros_like(order), np.ones_like(order)


class Bundle(NamedTuple):
    """The pieces of samples that a bundle is of: int64 [pieces] each.

    Attributes:
        numbers: Their samples.
        sizes: How long these are as a whole.
        starts: Where in its sample each starts.
        counts: How long it is.
    """

    numbers: Numbers
    sizes: Numbers
    starts: Numbers
    counts: Numbers
