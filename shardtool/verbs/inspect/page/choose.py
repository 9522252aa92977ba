"""Choose the samples that a page or contact sheet shows: a seeded random few, spread over labels, and unusual ones.

Rare labels are included; without labels the choice is spread over shards. Unusual samples are the smallest and the
largest, the widest and the tallest image, and duplicates (by length and checksum of the largest field). The choice
is
made while the indexes are read, one at a time, and keeps no more samples than are shown.
"""

from __future__ import annotations

from bisect import bisect
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.types as pt

from shardtool.dataset.shard_index import ShardIndex, part_ends
from shardtool.errors import CorruptShard
from shardtool.request.dataset_options import InspectOptions
from shardtool.request.observer import Observer
from shardtool.units import format_size
from shardtool.verbs.inspect.inspect import summarize
from shardtool.verbs.inspect.overview import (
    MAX_LABEL_BYTES,
    MAX_READ_SAMPLES,
    DatasetOverview,
    random_numbers_of,
    stored_samples,
)
from shardtool.verbs.inspect.statistics import is_scalar_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.verbs.inspect.overview import FieldPayloads, StoredSample
    from shardtool.verbs.inspect.summary import Summary

    # The stratum, its random number, shard, place, and what it is.
    _Candidate = tuple[str, float, int, int, StoredSample]


_MAX_DUPLICATE_GROUPS = 3  # of duplicates that are shown, two samples each


class UnusualSamples:
    """What is odd in the shards that were added.

    Attributes:
        repeated: How many samples have the largest field of one before them; known once `found` has run.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._ends: dict[str, tuple[float, int, int, str]] = {}
        self._held = 0
        self._prints: list[tuple[int, NDArray[np.uint64]]] = []

    def add(self, number: int, part: ShardIndex, fields: Mapping[str, FieldPayloads]) -> None:
        """Take the samples of a shard, and the payloads of its fields."""
        sizes = np.diff(part_ends(part.lengths)[part.firsts])
        for why, value, sign in (("smallest", sizes, -1.0), ("largest", sizes, 1.0)):
            self._keep(why, sign * value, number, lambda row: format_size(int(sizes[row])))
        wide, tall = (_whole_numbers(part, name) for name in ("width", "height"))
        shapes = np.log(np.where((wide > 0) & (tall > 0), wide / np.maximum(tall, 1), np.nan))
        for why, sign in (("widest", 1.0), ("tallest", -1.0)):
            self._keep(why, sign * shapes, number, lambda row: f"{wide[row]:,.0f} by {tall[row]:,.0f}")
        longest, prints = np.full(len(part), MAX_LABEL_BYTES, np.uint64), np.zeros(len(part), np.uint64)
        for one in fields.values():
            longer = one.lengths > longest[one.rows]
            longest[one.rows[longer]] = one.lengths[longer]
            prints[one.rows[longer]] = 0 if one.crcs is None else one.groups()[longer]
        self._held += len(prints)
        if self._held <= MAX_READ_SAMPLES:
            self._prints.append((number, prints))

    def _keep(self, why: str, values: NDArray[np.float64], number: int, said: Callable[[int], str]) -> None:
        if np.isnan(values).all():
            return
        row = int(np.nanargmax(values))
        if why not in self._ends or values[row] > self._ends[why][0]:
            self._ends[why] = float(values[row]), number, row, said(row)

    def found(self, shards: Sequence[StoredShard]) -> list[tuple[str, StoredSample]]:
        """Return why each is odd, and the odd ones; of those that are alike none is odd."""
        places = []
        for pair in (("smallest", "largest"), ("widest", "tallest")):
            ends = [(why, *self._ends[why]) for why in pair if why in self._ends]
            if ends and ends[0][1] != -ends[1][1]:
                places += [(f"{why}: {said}", number, row) for why, _, number, row, said in ends]
        odd = []
        for why, number, row in [*places, *self._twins()]:
            with suppress(CorruptShard):
                shard = shards[number]
                odd += [(why, one) for one in stored_samples(shard, shard.index(metadata=True), np.array([row]))]
        return odd

    def _twins(self) -> list[tuple[str, int, int]]:
        """Return two samples of each of the largest groups of those that are alike."""
        prints = np.concatenate([one for _, one in self._prints] or [np.zeros(0, np.uint64)])
        ends = part_ends([len(one) for _, one in self._prints])
        known = np.flatnonzero(prints)
        order = known[np.argsort(prints[known], kind="stable")]
        starts = np.flatnonzero(np.diff(prints[order], prepend=np.uint64(0)))
        counts = np.diff(np.append(starts, len(order)))
        self.repeated = int((counts - 1).sum())
        found = []
        for at in np.lexsort((order[starts], -counts)).tolist()[:_MAX_DUPLICATE_GROUPS]:
            if counts[at] > 1:
                for place in order[starts[at] : starts[at] + 2].tolist():
                    shard = int(np.searchsorted(ends, place, "right")) - 1
                    found.append((f"{counts[at]:,} alike", self._prints[shard][0], place - int(ends[shard])))
        return found


def _whole_numbers(part: ShardIndex, name: str) -> NDArray[np.float64]:
    """Return a column of whole numbers; NaN where there is none."""
    if name in part.metadata.column_names and pt.is_integer(part.metadata.field(name).type):
        return np.asarray(part.metadata.column(name).to_numpy(zero_copy_only=False), np.float64)
    return np.full(len(part), np.nan)


_CANDIDATE_ORDER = itemgetter(0, 1, 2, 3)


_MAX_STRATA = 2000  # of a label: as many as a page has samples


@dataclass(frozen=True)
class ChosenSamples:
    """The samples that are shown of a dataset, and its overview.

    Attributes:
        overview: What its indexes say.
        summary: The same as `inspect` has it.
        spread: The label that the chosen samples are spread over; empty: the shards.
        chosen: The samples, in the order of the dataset.
        odd: Those that stand out, whether they were chosen or not.
    """

    overview: DatasetOverview
    summary: Summary
    spread: str
    chosen: list[StoredSample]
    odd: UnusualSamples

    @property
    def total(self) -> str:
        """The number of samples, for people."""
        least = "at least " if self.overview.partial and self.overview.dataset.file is None else ""
        return f"{least}{self.summary.samples:,}"


def choose_samples(dataset: StoredDataset, samples: int, seed: int, *, usual: int | None = None) -> ChosenSamples:
    """Read the indexes of a dataset, and choose samples to show.

    Args:
        dataset: The dataset.
        samples: How many there are at most.
        seed: Decides which.
        usual: How many there are, unless the strata are more; None: as many as `samples`.
    """
    overview = DatasetOverview(dataset, InspectOptions(seed=seed), Observer())
    spread: set[str] = set()
    pool: list[_Candidate] = []
    odd = UnusualSamples()
    for shard, part, fields in overview.read():
        if len(part):
            odd.add(shard.number, part, fields)
            name, codes, strata = _strata_of(shard, part, fields, overview.label_names())
            spread.add(name)
            pool = _first_candidates(pool + _candidates(shard, part, codes, strata, (seed, samples, pool)), samples)
    overview.look(images=False)
    summary = summarize(overview, _MAX_STRATA)
    if usual is not None and spread != {""}:
        usual = max(usual, len({one[0] for one in pool}))
    chosen = sorted((one[-1] for one in pool[:usual]), key=lambda one: (one.shard.number, one.number))
    return ChosenSamples(overview, summary, spread.pop() if len(spread) == 1 else "", chosen, odd)


def _strata_of(
    shard: StoredShard, part: ShardIndex, fields: Mapping[str, FieldPayloads], labels: Sequence[str]
) -> tuple[str, NDArray[np.int64], list[str]]:
    """Return what the choice is spread over, a code for each sample, and what the codes (-1 is the last) stand for."""
    for name in labels:
        if name in fields and fields[name].crcs is not None:
            codes = np.full(len(part), -1, np.int64)
            groups, codes[fields[name].rows] = np.unique(fields[name].groups(), return_inverse=True)
            return name, codes, [*map(str, groups.tolist()), ""]
        if name in part.schema.names and is_scalar_type(part.schema.field(name).type):
            values = part.table.column(name).combine_chunks()
            values = values if pt.is_dictionary(values.type) else values.dictionary_encode()
            codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return name, codes, [*map(str, values.dictionary.to_pylist()), ""]
    return "", np.zeros(len(part), np.int64), [f"shard {shard.number}"]


def _candidates(
    shard: StoredShard,
    part: ShardIndex,
    codes: NDArray[np.int64],
    strata: list[str],
    drawn: tuple[int, int, list[_Candidate]],
) -> list[_Candidate]:
    """Return those samples of a shard that can be among the first; `drawn`: seed, how many, and the first so far."""
    seed, most, pool = drawn
    priority = random_numbers_of(seed, shard.number, len(codes))
    order = np.lexsort((priority, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
    rank = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    best = order[np.lexsort((priority[order], rank))][:most]
    if 0 < most <= len(pool):  # then most of them come behind those that are there, and need not be looked at
        before = {
            stratum: [one[1] for one in same]
            for stratum, same in groupby(sorted(pool, key=_CANDIDATE_ORDER), itemgetter(0))
        }
        last = len(before[pool[-1][0]]) - 1, pool[-1][1]
        places = (bisect(before.get(strata[codes[row]], ()), priority[row]) for row in best.tolist())
        best = best[[(place, priority[row]) <= last for place, row in zip(places, best.tolist(), strict=True)]]
    return [
        (strata[codes[one.number]], float(priority[one.number]), shard.number, one.number, one)
        for one in stored_samples(shard, part, best)
    ]


def _first_candidates(pool: list[_Candidate], most: int) -> list[_Candidate]:
    """Return the first of the pool by place in the stratum, then by number.

    What is let go cannot come back: more candidates only push it further down.
    """
    strata = groupby(sorted(pool, key=_CANDIDATE_ORDER), key=itemgetter(0))
    ranked = [(rank, one) for _, same in strata for rank, one in enumerate(same)]
    ranked.sort(key=lambda both: (both[0], both[1][1], both[1][0]))
    return [one for _, one in ranked[:most]]
