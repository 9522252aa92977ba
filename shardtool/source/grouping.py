"""Rows of a source that share a key become one sample: of several folders, and of a table with a row for each file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.values import INLINE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.names import Names


@dataclass(frozen=True, slots=True)
class Groups:
    """Which of many parts belong to one sample.

    Attributes:
        first: int64[samples], the first part of each sample.
        of_part: int64[parts], the sample that each belongs to.
    """

    first: NDArray[np.int64]
    of_part: NDArray[np.int64]


def find_groups(keys: Names, *, by_key: bool) -> Groups:
    """Return the parts that share a key; samples in the order of their keys, or of their first parts."""
    order, starts = keys.runs()
    first, sizes = order[starts], np.diff(np.append(starts, len(order)))
    place = np.arange(len(first))
    if not by_key:
        place[np.argsort(first)] = np.arange(len(first))
        first = np.sort(first)
    of_part = np.empty(len(order), np.int64)
    of_part[order] = np.repeat(place, sizes)
    return Groups(first, of_part)


def grouped(entries: Entries, groups: Groups) -> Entries:
    """Return the samples that parts make: the files of all of them, and of the first one what is no file.

    Args:
        entries: The parts, with `fields` in the order of their bytes; those of a sample have different fields.
        groups: Which parts belong together.
    """
    part = np.repeat(np.arange(len(entries)), entries.counts())
    sample, code = groups.of_part[part], entries.rows.code
    kept = np.flatnonzero((entries.rows.kind != INLINE) | (groups.first[sample] == part))
    rows = kept[np.lexsort((code[kept], sample[kept]))]
    counts = np.bincount(sample[kept], minlength=len(groups.first))
    return replace(
        entries.take(groups.first),
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        rows=entries.rows.take(rows),
    )
