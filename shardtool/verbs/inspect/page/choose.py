"""Choose random samples for the HTML page or contact sheet, and find unusual samples.

Unusual samples are the smallest and largest samples, the widest and tallest images, and duplicates.
"""

from __future__ import annotations

from bisect import bisect
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow.types as pt

from shardtool.dataclass import dataclass
from shardtool.dataset.duplicates import index_content, recorded_labels, repeated, sample_digests
from shardtool.dataset.shard_index import ShardIndex, part_offsets
from shardtool.errors import CorruptShard
from shardtool.request.dataset_options import InspectOptions
from shardtool.request.observer import Observer
from shardtool.table.rows import shorten
from shardtool.units import format_size
from shardtool.verbs.inspect.inspect import summarize
from shardtool.verbs.inspect.overview import MAX_READ_SAMPLES, DatasetOverview, shard_random_numbers, stored_samples
from shardtool.verbs.inspect.summary import is_scalar_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.verbs.inspect.overview import FieldPayloads, StoredSample
    from shardtool.verbs.inspect.summary import Summary

    Collector = Callable[[DatasetOverview, StoredShard, ShardIndex, Mapping[str, FieldPayloads]], None]


_MAX_DUPLICATE_PAIRS = 3
_MAX_COMPARED_PAIRS = 10


class UnusualSamples:
    """Finds unusual samples. Contents are compared without the fields in `labels`.

    `find` sets `repeated`: how many samples have the same sizes and checksums as an earlier sample.
    """

    def __init__(self, labels: frozenset[str]) -> None:
        self.repeated = 0
        self._labels = labels
        self._extremes: dict[str, tuple[float, int, int, str]] = {}
        self._id_count = 0
        self._content_ids: list[tuple[int, NDArray[np.uint64]]] = []

    def add(self, number: int, shard_index: ShardIndex) -> None:
        """Add the samples of a shard."""
        sizes = np.diff(part_offsets(shard_index.lengths)[shard_index.first_rows])
        for reason, value, sign in (("smallest", sizes, -1.0), ("largest", sizes, 1.0)):
            self._update_extreme(reason, sign * value, number, lambda row: format_size(int(sizes[row])))
        widths, heights = (_whole_numbers(shard_index, name) for name in ("width", "height"))
        log_ratios = np.log(np.where((widths > 0) & (heights > 0), widths / np.maximum(heights, 1), np.nan))
        for reason, sign in (("widest", 1.0), ("tallest", -1.0)):
            self._update_extreme(
                reason, sign * log_ratios, number, lambda row: f"{widths[row]:,.0f} by {heights[row]:,.0f}"
            )
        self._id_count += len(shard_index)
        if self._id_count <= MAX_READ_SAMPLES and shard_index.crcs is not None:
            content = index_content(shard_index, self._labels)
            ids = content.ids(shard_index.lengths[content.rows], shard_index.crcs[content.rows])
            self._content_ids.append((number, ids))

    def _update_extreme(
        self, reason: str, values: NDArray[np.float64], number: int, describe: Callable[[int], str]
    ) -> None:
        if np.isnan(values).all():
            return
        row = int(np.nanargmax(values))
        if reason not in self._extremes or values[row] > self._extremes[reason][0]:
            self._extremes[reason] = float(values[row]), number, row, describe(row)

    def find(self, shards: Sequence[StoredShard]) -> list[tuple[str, StoredSample]]:
        """Return (reason, sample) pairs.

        If all samples have the same size, omit the smallest and largest. If all images have the same aspect ratio, omit
        the widest and tallest.
        """
        locations = []
        for pair in (("smallest", "largest"), ("widest", "tallest")):
            extremes = [(reason, *self._extremes[reason]) for reason in pair if reason in self._extremes]
            if extremes and extremes[0][1] != -extremes[1][1]:
                locations += [(f"{reason}: {value}", number, row) for reason, _, number, row, value in extremes]
        samples = []
        for reason, number, row in locations:
            with suppress(CorruptShard):
                index = shards[number].index(metadata=True)
                samples.append((reason, stored_samples(shards[number], index, np.array([row]))[0]))
        pairs: list[tuple[str, StoredSample]] = []
        for candidates in self._duplicate_candidates():
            if len(pairs) < 2 * _MAX_DUPLICATE_PAIRS:
                with suppress(CorruptShard):
                    pairs += self._compare(shards, candidates)
        return samples + pairs

    def _duplicate_candidates(self) -> list[list[tuple[int, int]]]:
        # For each of the largest groups of likely duplicates, return the shard number and row of two samples.
        ids = np.concatenate([np.zeros(0, np.uint64), *(shard_ids for _, shard_ids in self._content_ids)])
        ends = part_offsets([len(shard_ids) for _, shard_ids in self._content_ids])
        order = np.flatnonzero(repeated(ids))
        order = order[np.argsort(ids[order], kind="stable")]
        starts = np.flatnonzero(np.diff(ids[order], prepend=np.uint64(0)))
        counts = np.diff(np.append(starts, len(order)))
        self.repeated = int((counts - 1).sum())
        candidates = []
        for start in starts[np.lexsort((order[starts], -counts))][:_MAX_COMPARED_PAIRS].tolist():
            positions = order[start : start + 2]
            parts = np.searchsorted(ends, positions, "right") - 1
            rows = (positions - ends[parts]).tolist()
            candidates.append([(self._content_ids[part][0], row) for part, row in zip(parts, rows, strict=True)])
        return candidates

    def _compare(
        self, shards: Sequence[StoredShard], candidates: list[tuple[int, int]]
    ) -> list[tuple[str, StoredSample]]:
        samples, digests = [], []
        for number, row in candidates:
            index = shards[number].index(metadata=True)
            digests += sample_digests(shards[number].path, index, index_content(index, self._labels), [row])
            samples += stored_samples(shards[number], index, np.array([row]))
        if digests[0] != digests[1] or not digests[0]:
            return []
        return [
            (f"duplicate: same content as {shorten(other.key)}", sample)
            for sample, other in zip(samples, samples[::-1], strict=True)
        ]


def _whole_numbers(shard_index: ShardIndex, name: str) -> NDArray[np.float64]:
    if name in shard_index.metadata.column_names and pt.is_integer(shard_index.metadata.field(name).type):
        return np.asarray(shard_index.metadata.column(name).to_numpy(zero_copy_only=False), np.float64)
    return np.full(len(shard_index), np.nan)


class _Candidate(NamedTuple):
    stratum: str  # label value or shard
    priority: float
    shard_number: int
    row: int
    sample: StoredSample


_CANDIDATE_ORDER = attrgetter("stratum", "priority", "shard_number", "row")
_MAX_STRATA = 2000


@dataclass(frozen=True)
class ChosenSamples:
    """The chosen samples of a dataset, and its statistics.

    Samples are spread over the values of the label `spread`, or over shards if `spread` is "".
    """

    overview: DatasetOverview
    summary: Summary
    spread: str
    chosen: list[StoredSample]
    unusual: UnusualSamples

    @property
    def total(self) -> str:
        """The number of samples as text."""
        prefix = "at least " if self.overview.partial and self.overview.dataset.file is None else ""
        return f"{prefix}{self.summary.samples:,}"


def choose_samples(
    dataset: StoredDataset,
    max_samples: int,
    seed: int,
    *,
    default_count: int | None = None,
    collectors: Sequence[Collector] = (),
) -> ChosenSamples:
    """Choose up to `max_samples` samples, spread evenly over label values (or over shards, if there are no labels).

    With `default_count`, choose only this number of samples, but at least one per label value. The `collectors`
    receive the index of each shard that is read.
    """
    overview = DatasetOverview(dataset, InspectOptions(seed=seed), Observer())
    spread: set[str] = set()
    pool: list[_Candidate] = []
    unusual = UnusualSamples(recorded_labels(dataset.file))
    for shard, shard_index, fields in overview.read():
        if len(shard_index):
            for collect in collectors:
                collect(overview, shard, shard_index, fields)
            unusual.add(shard.number, shard_index)
            name, codes, strata = _strata_of(shard, shard_index, fields, overview.label_names())
            spread.add(name)
            pool = _first_candidates(
                pool + _candidates(shard, shard_index, codes, strata, (seed, max_samples, pool)), max_samples
            )
    overview.inspect_samples(images=False)
    summary = summarize(overview, _MAX_STRATA)
    if default_count is not None and spread != {""}:
        default_count = max(default_count, len({candidate.stratum for candidate in pool}))
    samples = [candidate.sample for candidate in pool[:default_count]]
    chosen = sorted(samples, key=lambda sample: (sample.shard.number, sample.number))
    return ChosenSamples(overview, summary, spread.pop() if len(spread) == 1 else "", chosen, unusual)


def _strata_of(
    shard: StoredShard, shard_index: ShardIndex, fields: Mapping[str, FieldPayloads], labels: Sequence[str]
) -> tuple[str, NDArray[np.int64], list[str]]:
    for name in labels:
        if name in fields and fields[name].crcs is not None:
            codes = np.full(len(shard_index), -1, np.int64)
            ids, codes[fields[name].rows] = np.unique(fields[name].content_ids(), return_inverse=True)
            return name, codes, [*map(str, ids.tolist()), ""]
        if name in shard_index.schema.names and is_scalar_type(shard_index.schema.field(name).type):
            values = shard_index.table.column(name).combine_chunks()
            values = values if pt.is_dictionary(values.type) else values.dictionary_encode()
            codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return name, codes, [*map(str, values.dictionary.to_pylist()), ""]
    return "", np.zeros(len(shard_index), np.int64), [f"shard {shard.number}"]


def _candidates(
    shard: StoredShard,
    shard_index: ShardIndex,
    codes: NDArray[np.int64],
    strata: list[str],
    drawn: tuple[int, int, list[_Candidate]],
) -> list[_Candidate]:
    seed, max_samples, pool = drawn
    priority = shard_random_numbers(seed, shard.number, len(codes))
    order = np.lexsort((priority, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
    rank = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    best = order[np.lexsort((priority[order], rank))][:max_samples]
    if 0 < max_samples <= len(pool):  # drop most candidates before any sample is read
        priorities_by_stratum = {
            stratum: [candidate.priority for candidate in members]
            for stratum, members in groupby(sorted(pool, key=_CANDIDATE_ORDER), attrgetter("stratum"))
        }
        last_rank = len(priorities_by_stratum[pool[-1].stratum]) - 1, pool[-1].priority
        ranks = (bisect(priorities_by_stratum.get(strata[codes[row]], ()), priority[row]) for row in best.tolist())
        best = best[
            [(position, priority[row]) <= last_rank for position, row in zip(ranks, best.tolist(), strict=True)]
        ]
    return [
        _Candidate(strata[codes[sample.number]], float(priority[sample.number]), shard.number, sample.number, sample)
        for sample in stored_samples(shard, shard_index, best)
    ]


def _first_candidates(pool: list[_Candidate], max_samples: int) -> list[_Candidate]:
    # Sort by rank within the stratum, then by random number. Later shards cannot improve ranks, so keep only
    # `max_samples`.
    strata = groupby(sorted(pool, key=_CANDIDATE_ORDER), key=attrgetter("stratum"))
    ranked = [(rank, candidate) for _, members in strata for rank, candidate in enumerate(members)]
    ranked.sort(key=lambda pair: (pair[0], pair[1].priority, pair[1].stratum))
    return [candidate for _, candidate in ranked[:max_samples]]
