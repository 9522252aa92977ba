"""What is said of many values in few numbers: sizes, counts and columns, added up shard by shard in bounded memory.

It opens nothing: Arrow and NumPy in, plain values out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from shardtool.dataset.find import natural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

Value = TypeVar("Value")

_EXACT = 2**17  # values that are kept as they are, for an exact median
_BITS = 10  # of larger numbers of values, these leading bits are kept: a median within 0.2 %
_STEPS = 64  # of an octave, for the columns of a histogram
_MOST_VALUES = 10_000
_LONGEST = 200  # characters of a value: more is prose, and no label


@dataclass(frozen=True, slots=True)
class Spread:
    """Numbers: how many, the smallest, the one in the middle, the largest, and their sum."""

    count: int
    smallest: int
    median: int
    largest: int
    total: int


class Sizes:
    """Numbers from zero on, added up to a `Spread`."""

    def __init__(self) -> None:
        self._count = self._total = self._largest = 0
        self._smallest = 2**64
        self._kept: list[NDArray[np.uint64]] = []
        self._held = 0
        self._buckets: dict[int, int] = {}

    def add(self, values: NDArray[np.uint64]) -> None:
        """Take some more."""
        if not len(values):
            return
        self._count += len(values)
        largest = int(values.max())
        few = largest < 2**62 // len(values)
        self._total += int(values.sum()) if few else sum(values.tolist())
        self._smallest, self._largest = min(self._smallest, int(values.min())), max(self._largest, largest)
        self._kept.append(values)
        self._held += len(values)
        if self._held > _EXACT:
            self._fold()

    def _fold(self) -> None:
        values = np.concatenate(self._kept)
        self._kept, self._held = [], 0
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - _BITS, 0).astype(np.uint64)
        found, counts = np.unique((shift << np.uint64(_BITS + 1)) | (values >> shift), return_counts=True)
        for bucket, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count

    def spread(self) -> Spread:
        """Return what is known so far."""
        if not self._count:
            return Spread(0, 0, 0, 0, 0)
        return Spread(self._count, self._smallest, self._median(), self._largest, self._total)

    def _median(self) -> int:
        if not self._buckets:
            return int(np.sort(np.concatenate(self._kept))[self._count // 2])
        if self._kept:
            self._fold()
        left = self._count // 2
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left < 0:
                break
        return max(self._smallest, min(self._largest, _middle(bucket)))

    def columns(self, most: int) -> list[tuple[float, float, int]]:
        """Return at most `most` columns (from, to, count) over all but zeros, equally wide on a log scale."""
        values = np.concatenate([*self._kept, np.array([_middle(one) for one in self._buckets], np.uint64)])
        counts = np.concatenate([np.ones(self._held, np.int64), np.array([*self._buckets.values()], np.int64)])
        steps = (np.log2(values[values > 0].astype(np.float64)) * _STEPS).astype(np.int64)
        if not len(steps):
            return []
        first = int(steps.min())
        wide = max(_STEPS // 16, -(-(int(steps.max()) + 1 - first) // most))
        found = np.zeros((int(steps.max()) - first) // wide + 1, np.int64)
        np.add.at(found, (steps - first) // wide, counts[values > 0])
        starts = range(first, first + wide * len(found), wide)
        return [
            (2 ** (start / _STEPS), 2 ** ((start + wide) / _STEPS), count)
            for start, count in zip(starts, found.tolist(), strict=True)
        ]


def _middle(bucket: int) -> int:
    """Return the number in the middle of a bucket."""
    shift = bucket >> (_BITS + 1)
    low: int = (bucket & (2 ** (_BITS + 1) - 1)) << shift
    return low + (1 << shift >> 1)


class ValueCounts(Generic[Value]):
    """How often each value is there; None, once there are too many to be labels."""

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self._most = most
        self.values: dict[Value, int] | None = {}

    def add(self, values: Iterable[tuple[Value, int]]) -> None:
        """Take some more: a value and how often it is there."""
        if self.values is None:
            return
        for value, count in values:
            if isinstance(value, str) and len(value) > _LONGEST:
                self.values = None
                return
            self.values[value] = self.values.get(value, 0) + count
        if len(self.values) > self._most:
            self.values = None

    def add_array(self, values: pa.Array) -> None:
        """Take the values of an Arrow array without nulls."""
        if self.values is None:
            return
        found = pc.value_counts(values)
        if len(found) > self._most:
            self.values = None
            return
        names = found.field("values")
        names = names.dictionary_decode() if pt.is_dictionary(names.type) else names
        self.add(zip(names.to_pylist(), found.field("counts").to_pylist(), strict=True))

    def most(self) -> list[tuple[Value, int]]:
        """Return the values, most frequent first."""
        return sorted((self.values or {}).items(), key=lambda item: (-item[1], str(item[0])))


def by_count(labels: Iterable[tuple[tuple[str, int | float | None], int]]) -> list[tuple[str, int | float | None, int]]:
    """Return name, number and count of labels, most frequent first; of equally many, by name."""
    found = sorted(labels, key=lambda one: (-one[1], natural(one[0][0])))
    return [(name, number, count) for (name, number), count in found]


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """A value of a column, and how many samples have it."""

    value: str
    samples: int


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """A column of metadata.

    Attributes:
        type: Its name in Arrow.
        filled: How many samples have a value.
        distinct: How many values; None where there are too many to count.
        smallest: The smallest number, or the first time.
        largest: The largest number, or the last time.
        mean: The mean of the numbers.
        values: The most frequent ones; none where all differ.
    """

    type: str
    filled: int = 0
    distinct: int | None = None
    smallest: int | float | str | None = None
    largest: int | float | str | None = None
    mean: float | None = None
    values: tuple[ColumnValue, ...] = ()


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a column of that type holds numbers, text, truth or times: no lists and the like."""
    flat = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)
    return bool(flat or pt.is_string(kind) or pt.is_temporal(kind))


class Column:
    """The values of a column of metadata, added up to a `ColumnSummary`."""

    def __init__(self, kind: str) -> None:
        self.type, self.filled, self.counts = kind, 0, ValueCounts[object]()
        self.sizes = Sizes()
        self.characters = 0
        self._smallest: int | float | str | None = None
        self._largest: int | float | str | None = None
        self._total = 0.0
        self._numbers = 0
        self._counted = False
        self._kinds: set[str] = set()

    def add_type(self, kind: str) -> None:
        """Take the type that the column has in another shard: where none of its samples has a value, that is `null`."""
        kinds = [one for one in self.type.split(" or ") if one != "null"]
        if kind != "null" and kind not in kinds:
            self.type = " or ".join([*kinds, kind])

    def add(self, values: pa.ChunkedArray) -> None:
        """Take a chunked array."""
        values = values.combine_chunks()
        kind = values.type
        self.filled += len(values) - values.null_count
        values = values.drop_null()
        if not len(values):
            return
        is_number = pt.is_integer(kind) or pt.is_floating(kind)
        self._kinds.add("number" if is_number else "time" if pt.is_temporal(kind) else "other")
        if is_number:
            self._add_numbers(values)
        elif pt.is_temporal(kind):
            self._add_bounds(pc.min_max(values.cast(pa.string())))
            return
        self._counted = True
        if not pt.is_floating(kind):
            self.counts.add_array(values)

    def _add_numbers(self, values: pa.Array) -> None:
        if pt.is_floating(values.type):
            values = values.filter(pc.is_finite(values))
            self.counts.values = None
        if len(values):
            self._add_bounds(pc.min_max(values))
            self._total += float(pc.sum(values.cast(pa.float64())).as_py())
            self._numbers += len(values)

    def _add_bounds(self, bounds: pa.StructScalar) -> None:
        if len(self._kinds) > 1:
            return  # of a number and a time, none is the smaller
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        self._smallest = low if self._smallest is None else min(self._smallest, low)
        self._largest = high if self._largest is None else max(self._largest, high)

    def summary(self, most: int) -> ColumnSummary:
        """Return what is known so far, with at most this many values."""
        known = self.counts.values if self._counted else None
        alike = len(self._kinds) == 1
        low, high = (self._smallest, self._largest) if alike else (None, None)
        mean = self._total / self._numbers if self._numbers and alike else None
        shown = self.counts.most()[:most] if known and len(known) < self.filled else []
        values = tuple(ColumnValue(str(value), count) for value, count in shown)
        return ColumnSummary(self.type, self.filled, None if known is None else len(known), low, high, mean, values)
