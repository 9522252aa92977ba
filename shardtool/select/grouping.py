"""Group rows that share a key into samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.shard_samples import INLINE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings


class SampleGroups(NamedTuple):
    """The first part of each sample, int64[samples], and the sample of each part, int64[parts]."""

    first: NDArray[np.int64]
    of_part: NDArray[np.int64]


def group_by_key(keys: PackedStrings, *, by_key: bool) -> SampleGroups:
    """Group the parts that share a key; samples are in the order of keys, or of their first parts."""
    order, starts = keys.runs()
    first, sizes = order[starts], np.diff(np.append(starts, len(order)))
    rank = np.arange(len(first))
    if not by_key:
        rank[np.argsort(first)] = np.arange(len(first))
        first = np.sort(first)
    of_part = np.empty(len(order), np.int64)
    of_part[order] = np.repeat(rank, sizes)
    return SampleGroups(first, of_part)


def merge_groups(entries: SampleTable, groups: SampleGroups) -> SampleTable:
    """Merge parts with different fields into samples; other values are those of the first part."""
    part = np.repeat(np.arange(len(entries)), entries.counts())
    sample, code = groups.of_part[part], entries.rows.code
    kept = np.flatnonzero((entries.rows.kind != INLINE) | (groups.first[sample] == part))
    rows = kept[np.lexsort((code[kept], sample[kept]))]
    counts = np.bincount(sample[kept], minlength=len(groups.first))
    spans = None if entries.spans is None else entries.spans.take(groups.first, rows)
    return replace(
        entries.take(groups.first),
        spans=spans,
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        rows=entries.rows.take(rows),
    )
