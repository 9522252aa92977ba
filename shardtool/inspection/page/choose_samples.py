"""Which samples are shown: the first of all by (place among those of its label, a random number).

So rare labels are shown, too; without labels the choice goes by shard in the same way. The choice is made while the
indexes are read, one at a time, and holds no more samples than are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from shardtool.entries.arrow import python_rows
from shardtool.inspection.overview import Overview, draw
from shardtool.inspection.statistics import is_plain
from shardtool.inspection.summary import summarize
from shardtool.request.observer import Observer
from shardtool.request.options import InspectOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedDataset
    from shardtool.inspection.overview import ReadShard
    from shardtool.inspection.summary import Summary

_MOST_VALUES = 1000  # of a label


@dataclass(frozen=True)
class Chosen:
    """A sample that is shown: the number of its shard, its place in the shard, its row of the sidecar."""

    shard: int
    row: int
    values: dict[str, Any]  # of columns, by name


@dataclass(frozen=True)
class Gathered:
    """The samples that are shown of a dataset, and its overview.

    Attributes:
        overview: What its indexes say.
        summary: The same as `inspect` has it.
        spread: The label that the chosen samples are spread over; empty: the shards.
        chosen: The samples, in the order of the dataset.
    """

    overview: Overview
    summary: Summary
    spread: str
    chosen: list[Chosen]

    @property
    def total(self) -> str:
        """The number of samples, for people."""
        least = "at least " if self.overview.partial and self.overview.dataset.file is None else ""
        return f"{least}{self.summary.samples:,}"


@dataclass(frozen=True)
class _Candidate:
    """A sample that may be shown, with what decides about it."""

    stratum: str
    priority: float
    chosen: Chosen


def gather(dataset: OpenedDataset, samples: int, seed: int) -> Gathered:
    """Read the indexes of a dataset, and choose at most so many samples to show."""
    overview = Overview(dataset, InspectOptions(seed=seed), Observer())
    spread: set[str] = set()
    pool: list[_Candidate] = []
    for read in overview.read():
        if read.part.samples:
            name, codes, strata = _strata(read, overview.label_names())
            spread.add(name)
            pool = _first(pool + _candidates(read, codes, strata, seed, samples), samples)
    overview.look(images=False)
    summary = summarize(overview, _MOST_VALUES)
    chosen = sorted((one.chosen for one in pool), key=lambda one: (one.shard, one.row))
    return Gathered(overview, summary, spread.pop() if len(spread) == 1 else "", chosen)


def _strata(read: ReadShard, labels: Sequence[str]) -> tuple[str, NDArray[np.int64], list[str]]:
    """Return what the choice is spread over, a code for each sample, and what the codes (-1 is the last) stand for."""
    for name in labels:
        if name in read.fields and read.fields[name].crcs is not None:
            codes = np.full(read.part.samples, -1, np.int64)
            groups, codes[read.fields[name].rows] = np.unique(read.fields[name].groups(), return_inverse=True)
            return name, codes, [*map(str, groups.tolist()), ""]
        if name in read.part.schema.names and is_plain(read.part.schema.field(name).type):
            values = read.part.table.column(name).combine_chunks()
            values = values if pt.is_dictionary(values.type) else values.dictionary_encode()
            codes = pc.fill_null(values.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
            return name, codes, [*map(str, values.dictionary.to_pylist()), ""]
    return "", np.zeros(read.part.samples, np.int64), [f"shard {read.shard.number}"]


def _candidates(read: ReadShard, codes: NDArray[np.int64], strata: list[str], seed: int, most: int) -> list[_Candidate]:
    """Return those samples of a shard that can be among the first `most`."""
    priority = draw(seed, read.shard.number, len(codes))
    order = np.lexsort((priority, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
    rank = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    best = order[np.lexsort((priority[order], rank))][:most]
    rows = python_rows(read.part.table.take(pa.array(best.tolist(), pa.int64())))
    return [
        _Candidate(strata[codes[at]], float(priority[at]), Chosen(read.shard.number, at, row))
        for at, row in zip(best.tolist(), rows, strict=True)
    ]


def _first(pool: list[_Candidate], most: int) -> list[_Candidate]:
    """Return the first of the pool by place in the stratum, then by number.

    What is let go cannot come back: more candidates only push it further down.
    """
    pool.sort(key=lambda one: (one.stratum, one.priority, one.chosen.shard, one.chosen.row))
    ranks: list[int] = []
    for at, one in enumerate(pool):
        ranks.append(ranks[-1] + 1 if at and pool[at - 1].stratum == one.stratum else 0)
    order = sorted(range(len(pool)), key=lambda at: (ranks[at], pool[at].priority, pool[at].stratum))
    return [pool[at] for at in order[:most]]
