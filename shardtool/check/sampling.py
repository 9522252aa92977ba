"""`verify --sample`: a share of the shards is read, another one with each seed.

Whole shards, so that all that is proven of a dataset is proven of them: their checksums, too. Shards stand in the order
of a hash of their names; seed N takes the N-th share of their bytes, and goes on from the start at the end. So ten
seeds in a row of `10%` read every shard, whatever the first of them is.
"""

from __future__ import annotations

from fractions import Fraction
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.request.options import share
from shardtool.values import counted
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.check.subject import Case
    from shardtool.request.options import VerifyOptions


def chosen_shards(cases: Sequence[Case], options: VerifyOptions) -> list[int]:
    """Return the numbers of the shards that are read, of those that are there; one at least."""
    there = [number for number, case in enumerate(cases) if case.size is not None]
    if options.sample is None or not there:
        return there
    wanted = share("sample", options.sample)
    ordered = sorted(there, key=lambda number: (blake2b(cases[number].name.encode()).digest(), number))
    ends = list(accumulate((cases[number].size or 0) + 1 for number in ordered))  # + 1: an empty one has its place, too
    start = wanted * (options.seed or 0) % 1
    places = [Fraction(before, ends[-1]) for before in [0, *ends[:-1]]]
    found = [number for number, place in zip(ordered, places, strict=True) if (place - start) % 1 < wanted]
    if not found:  # the share lies within one large shard
        found = [ordered[sum(place <= start for place in places) - 1]]
    return sorted(found)


def share_of(cases: Sequence[Case]) -> tuple[int, int]:
    """Return how many shards were read, and their bytes."""
    sizes = [case.size or 0 for case in cases if case.survey is not None]
    return len(sizes), sum(sizes)


def left_out(cases: Sequence[Case], options: VerifyOptions) -> str:
    """Return what was not read, in words."""
    (shards, size), total, seed = share_of(cases), sum(case.size or 0 for case in cases), options.seed or 0
    share_left = f"{100 * (1 - size / max(1, total)):.0f}% of the bytes"
    what = f"{counted(len(cases) - shards, 'shard')} of {len(cases):,}, {share_left}, but for names, sizes and sidecars"
    return f"{what}: {option('sample', options.sample)} {option('seed', seed)}; {option('seed', seed + 1)} reads others"
