"""The odd ones: those samples of a dataset that people want to see first, as its indexes know them.

The smallest and the largest, the widest and the tallest image (where columns have width and height), and samples whose
largest field is that of another one, by length and checksum. Eight bytes a sample are held, of four million samples.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.types as pt

from shardtool.dataset.shard_index import ends_of
from shardtool.errors import CorruptShard
from shardtool.values import show_size
from shardtool.verbs.inspect.overview import MOST_SAMPLES, SHORT, found_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredShard
    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.verbs.inspect.overview import FoundSample, Payloads


_MOST_GROUPS = 3  # of duplicates that are shown, two samples each


class OddSamples:
    """What is odd in the shards that were added.

    Attributes:
        repeated: How many samples have the largest field of one before them; known once `found` has run.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._ends: dict[str, tuple[float, int, int, str]] = {}
        self._held = 0
        self._prints: list[tuple[int, NDArray[np.uint64]]] = []

    def add(self, number: int, part: ShardIndex, fields: Mapping[str, Payloads]) -> None:
        """Take the samples of a shard, and the payloads of its fields."""
        sizes = np.diff(ends_of(part.lengths)[part.firsts])
        for why, value, sign in (("smallest", sizes, -1.0), ("largest", sizes, 1.0)):
            self._keep(why, sign * value, number, lambda row: show_size(int(sizes[row])))
        wide, tall = (_numbers(part, name) for name in ("width", "height"))
        shapes = np.log(np.where((wide > 0) & (tall > 0), wide / np.maximum(tall, 1), np.nan))
        for why, sign in (("widest", 1.0), ("tallest", -1.0)):
            self._keep(why, sign * shapes, number, lambda row: f"{wide[row]:,.0f} by {tall[row]:,.0f}")
        longest, prints = np.full(len(part), SHORT, np.uint64), np.zeros(len(part), np.uint64)
        for one in fields.values():
            longer = one.lengths > longest[one.rows]
            longest[one.rows[longer]] = one.lengths[longer]
            prints[one.rows[longer]] = 0 if one.crcs is None else one.groups()[longer]
        self._held += len(prints)
        if self._held <= MOST_SAMPLES:
            self._prints.append((number, prints))

    def _keep(self, why: str, values: NDArray[np.float64], number: int, said: Callable[[int], str]) -> None:
        if np.isnan(values).all():
            return
        row = int(np.nanargmax(values))
        if why not in self._ends or values[row] > self._ends[why][0]:
            self._ends[why] = float(values[row]), number, row, said(row)

    def found(self, shards: Sequence[StoredShard]) -> list[tuple[str, FoundSample]]:
        """Return why each is odd, and the odd ones; of those that are alike none is odd."""
        places = []
        for pair in (("smallest", "largest"), ("widest", "tallest")):
            ends = [self._ends[why] for why in pair if why in self._ends]
            if ends and ends[0][0] != -ends[1][0]:
                places += [
                    (f"{why}: {said}", number, row) for why, (_, number, row, said) in zip(pair, ends, strict=True)
                ]
        odd = []
        for why, number, row in [*places, *self._twins()]:
            with suppress(CorruptShard):
                shard = shards[number]
                odd += [(why, one) for one in found_samples(shard, shard.index(metadata=True), np.array([row]))]
        return odd

    def _twins(self) -> list[tuple[str, int, int]]:
        """Return two samples of each of the largest groups of those that are alike."""
        prints = np.concatenate([one for _, one in self._prints] or [np.zeros(0, np.uint64)])
        ends = ends_of([len(one) for _, one in self._prints])
        known = np.flatnonzero(prints)
        order = known[np.argsort(prints[known], kind="stable")]
        starts = np.flatnonzero(np.diff(prints[order], prepend=np.uint64(0)))
        counts = np.diff(np.append(starts, len(order)))
        self.repeated = int((counts - 1).sum())
        found = []
        for at in np.lexsort((order[starts], -counts)).tolist()[:_MOST_GROUPS]:
            if counts[at] > 1:
                for place in order[starts[at] : starts[at] + 2].tolist():
                    shard = int(np.searchsorted(ends, place, "right")) - 1
                    found.append((f"{counts[at]:,} alike", self._prints[shard][0], place - int(ends[shard])))
        return found


def _numbers(part: ShardIndex, name: str) -> NDArray[np.float64]:
    """Return a column of whole numbers; NaN where there is none."""
    if name in part.metadata.column_names and pt.is_integer(part.metadata.field(name).type):
        return np.asarray(part.metadata.column(name).to_numpy(zero_copy_only=False), np.float64)
    return np.full(len(part), np.nan)
