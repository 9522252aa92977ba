"""The numbers of a report, as they are counted: sizes on a log scale, labels, shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_STEPS = 64  # bins an octave: a median is told to within half a per cent
_BINS = 64 * _STEPS
MOST_LABELS = 1000  # different values; a column with more is no label


class Sizes:
    """Sizes in bytes, counted in narrow bins on a log scale: the memory does not grow with their number."""

    def __init__(self) -> None:
        self.bins = np.zeros(_BINS, np.int64)
        self.zeros = self.total = self.smallest = self.largest = 0
        self._seen = False

    @property
    def count(self) -> int:
        """How many there are."""
        return self.zeros + int(self.bins.sum())

    def add(self, sizes: NDArray[np.uint64]) -> None:
        """Count `sizes`."""
        if not len(sizes):
            return
        low, high = int(sizes.min()), int(sizes.max())
        self.smallest = min(self.smallest, low) if self._seen else low
        self.largest, self._seen = max(self.largest, high), True
        self.total += int(sizes.sum())
        positive = sizes[sizes > 0].astype(np.float64)
        self.zeros += len(sizes) - len(positive)
        at = np.minimum((np.log2(positive) * _STEPS).astype(np.int64), _BINS - 1)
        self.bins += np.bincount(at, minlength=_BINS)

    @property
    def median(self) -> int:
        """About the middle one."""
        half, seen = (self.count + 1) // 2, self.zeros
        if seen >= half or not self.count:
            return 0
        at = int(np.searchsorted(np.cumsum(self.bins) + seen, half))
        return int(min(max(2 ** ((at + 0.5) / _STEPS), self.smallest), self.largest))

    def columns(self, most: int) -> list[tuple[float, float, int]]:
        """Return at most `most` columns (from, to, count) over all but the empty ones, equally wide on a log scale."""
        used = np.flatnonzero(self.bins)
        if not len(used):
            return []
        first, last = int(used[0]), int(used[-1]) + 1
        step = max(_STEPS // 16, -(-(last - first) // most))
        starts = range(first, last, step)
        counts = [int(self.bins[start : start + step].sum()) for start in starts]
        return [
            (2 ** (start / _STEPS), 2 ** ((start + step) / _STEPS), count)
            for start, count in zip(starts, counts, strict=True)
        ]


@dataclass
class LabelSet:
    """What samples are labelled with, by one field or metadata column.

    Attributes:
        name: Of the field or column.
        counts: Label to how many samples have it.
        is_label: It is one by its name or by the dataset file, and no column that may be anything.
        crowded: There are too many different values for a label.
    """

    name: str
    is_label: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    crowded: bool = False

    def add(self, values: Iterable[tuple[str, int]]) -> None:
        """Count labels, unless there are too many different ones."""
        if self.crowded:
            return
        for value, count in values:
            self.counts[value] += count
        if len(self.counts) > MOST_LABELS:
            self.crowded = True
            self.counts.clear()

    @property
    def total(self) -> int:
        """How many samples have one."""
        return sum(self.counts.values())


@dataclass
class ShardFigure:
    """A shard as the report shows it: `size` and `samples` are None where they are not known."""

    name: str
    size: int | None = None
    samples: int | None = None
    problems: list[str] = field(default_factory=list)


@dataclass
class Figures:
    """All that is counted.

    Attributes:
        shards: All of them, in order.
        counted: How many shards' indexes were read; sizes and labels speak of these.
        counted_samples: How many samples these hold.
        sizes: Payload bytes of a sample.
        fields: Field to the sizes of its payloads.
        labels: The sets of labels; the first one is what the pictures are spread over.
        splits: The column that tells the split, where there is one.
        columns: Metadata columns and their types.
    """

    shards: list[ShardFigure]
    counted: int = 0
    counted_samples: int = 0
    sizes: Sizes = field(default_factory=Sizes)
    fields: dict[str, Sizes] = field(default_factory=dict)
    labels: list[LabelSet] = field(default_factory=list)
    splits: LabelSet | None = None
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """How many samples there are, as far as that is known."""
        return sum(shard.samples or 0 for shard in self.shards)

    @property
    def samples_known(self) -> bool:
        """Whether every shard's count is known."""
        return all(shard.samples is not None for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size or 0 for shard in self.shards)


@dataclass
class Chosen:
    """A sample that is shown.

    Attributes:
        shard: The number of its shard.
        row: Its place in the shard, counted from 0.
        values: Its row of the sidecar.
        labels: Name of the set to the label.
        findings: What is known to be wrong with it: code and message.
    """

    shard: int
    row: int
    values: dict[str, Any]
    labels: dict[str, str]
    findings: list[tuple[str, str]] = field(default_factory=list)
