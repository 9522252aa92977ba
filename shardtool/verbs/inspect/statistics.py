"""Statistics of many values in bounded memory: sizes, value counts and columns, added shard by shard. It opens no
file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.dataset.find import natural_key
from shardtool.errors import printable, redact_secrets
from shardtool.names import to_output_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def printable_path(path: str) -> str:
    """Return a path as people and programs get to see it."""
    return redact_secrets(printable(to_output_name(path)))


Value = TypeVar("Value")


_MAX_EXACT_VALUES = 2**17  # values that are kept as they are, for an exact median


_BUCKET_BITS = 10  # of larger numbers of values, these leading bits are kept: a median within 0.2 %


_BUCKETS_PER_OCTAVE = 64  # of an octave, for the columns of a histogram


_MAX_DISTINCT_VALUES = 10_000


_MAX_VALUE_CHARS = 200  # characters of a value: more is prose, and no label


@dataclass(frozen=True, slots=True)
class Spread:
    """Numbers: how many, the smallest, the one in the middle, the largest, and their sum."""

    count: int
    smallest: int
    median: int
    largest: int
    total: int


class SizeTally:
    """Numbers from zero on, added up to a `Spread`."""

    def __init__(self) -> None:
        self._count = self._total = self._largest = 0
        self._smallest = 2**64
        self._kept: list[NDArray[np.uint64]] = []
        self._held = 0
        self._buckets = Counter[int]()

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
        if self._held > _MAX_EXACT_VALUES:
            self._fold()

    def _fold(self) -> None:
        values = np.concatenate(self._kept)
        self._kept, self._held = [], 0
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - _BUCKET_BITS, 0).astype(np.uint64)
        found, counts = np.unique((shift << np.uint64(_BUCKET_BITS + 1)) | (values >> shift), return_counts=True)
        self._buckets.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))

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
        return max(self._smallest, min(self._largest, _bucket_middle(bucket)))

    def columns(self, most: int) -> list[tuple[float, float, int]]:
        """Return at most `most` columns (from, to, count) over all but zeros, equally wide on a log scale."""
        values = np.concatenate([*self._kept, np.array([_bucket_middle(one) for one in self._buckets], np.uint64)])
        counts = np.concatenate([np.ones(self._held, np.int64), np.array([*self._buckets.values()], np.int64)])
        steps = (np.log2(values[values > 0].astype(np.float64)) * _BUCKETS_PER_OCTAVE).astype(np.int64)
        if not len(steps):
            return []
        first = int(steps.min())
        wide = max(_BUCKETS_PER_OCTAVE // 16, -(-(int(steps.max()) + 1 - first) // most))
        found = np.zeros((int(steps.max()) - first) // wide + 1, np.int64)
        np.add.at(found, (steps - first) // wide, counts[values > 0])
        starts = range(first, first + wide * len(found), wide)
        return [
            (2 ** (start / _BUCKETS_PER_OCTAVE), 2 ** ((start + wide) / _BUCKETS_PER_OCTAVE), count)
            for start, count in zip(starts, found.tolist(), strict=True)
        ]


def _bucket_middle(bucket: int) -> int:
    """Return the number in the middle of a bucket."""
    shift = bucket >> (_BUCKET_BITS + 1)
    low: int = (bucket & (2 ** (_BUCKET_BITS + 1) - 1)) << shift
    return low + (1 << shift >> 1)


class ValueCounts(Generic[Value]):
    """How often each value is there; None, once there are too many to be labels."""

    def __init__(self, most: int = _MAX_DISTINCT_VALUES) -> None:
        self._most = most
        self.values: dict[Value, int] | None = {}

    def add(self, values: Iterable[tuple[Value, int]]) -> None:
        """Take some more: a value and how often it is there."""
        if self.values is None:
            return
        for value, count in values:
            if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
                self.values = None
                return
            self.values[value] = self.values.get(value, 0) + count
        if len(self.values) > self._most:
            self.values = None

    def add_array(self, values: pa.Array) -> None:
        """Take the values of an Arrow array without nulls."""
        if self.values is None:
            return
        found = values.value_counts()
        if len(found) > self._most:
            self.values = None
            return
        names = found.field("values")
        names = names.dictionary_decode() if pt.is_dictionary(names.type) else names
        self.add(zip(names.to_pylist(), found.field("counts").to_pylist(), strict=True))

    def most(self) -> list[tuple[Value, int]]:
        """Return the values, most frequent first."""
        return sorted((self.values or {}).items(), key=lambda item: (-item[1], natural_key(str(item[0]))))


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
        element: The Arrow type of the elements of lists; None if no value is a list.
        lengths: The lengths of the lists; None if no value is a list.
    """

    type: str
    filled: int = 0
    distinct: int | None = None
    smallest: int | float | str | None = None
    largest: int | float | str | None = None
    mean: float | None = None
    values: tuple[ColumnValue, ...] = ()
    element: str | None = None
    lengths: Spread | None = None


def is_scalar_type(kind: pa.DataType) -> bool:
    """Tell whether a column of that type holds numbers, text, truth or times: no lists and the like."""
    flat = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)
    return bool(flat or pt.is_string(kind) or pt.is_temporal(kind))


class ColumnTally:
    """The values of a column of metadata, added up to a `ColumnSummary`."""

    def __init__(self, kind: str) -> None:
        self.type, self.filled, self.counts = kind, 0, ValueCounts[object]()
        self._element, self._lengths = "null", SizeTally()
        self._ends: list[Any] = []  # the smallest and the largest value of each shard
        self._total, self._numbers, self._counted = 0.0, 0, False
        self._kinds: set[str] = set()

    def add_type(self, kind: str) -> None:
        """Take the type that the column has in another shard: where none of its samples has a value, that is `null`."""
        self.type = _join_types(self.type, kind)

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
            self._add_ends(values.cast(pa.string()))
            return
        self._counted = True
        if not pt.is_floating(kind):
            self.counts.add_array(values)

    def add_nested(self, values: pa.ChunkedArray) -> None:
        """Count the values of a column that is not plain, and measure its lists."""
        import pyarrow.compute as pc

        kind, count = values.type, len(values) - values.null_count
        if not count:
            return
        self.filled += count
        self._kinds.add("nested")
        if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
            self._element = _join_types(self._element, str(kind.value_type))
            self._lengths.add(pc.list_value_length(values).drop_null().to_numpy().astype(np.uint64))

    def _add_numbers(self, values: pa.Array) -> None:
        import pyarrow.compute as pc  # here, as below, for it takes 40 ms

        if pt.is_floating(values.type):
            values = values.filter(pc.is_finite(values))
            self.counts.values = None
        if len(values):
            self._add_ends(values)
            self._total += float(values.cast(pa.float64()).sum().as_py())
            self._numbers += len(values)

    def _add_ends(self, values: pa.Array) -> None:
        import pyarrow.compute as pc

        self._ends += pc.min_max(values).as_py().values()

    def summary(self, most: int) -> ColumnSummary:
        """Return what is known so far, with at most this many values."""
        known = self.counts.values if self._counted and "nested" not in self._kinds else None
        alike = len(self._kinds) == 1  # of a number and a time, none is the smaller
        low, high = (min(self._ends), max(self._ends)) if alike and self._ends else (None, None)
        mean = self._total / self._numbers if self._numbers and alike else None
        shown = self.counts.most()[:most] if known and len(known) < self.filled else []
        values = tuple(ColumnValue(str(value), count) for value, count in shown)
        distinct, lengths = None if known is None else len(known), self._lengths.spread()
        found = ColumnSummary(self.type, self.filled, distinct, low, high, mean, values)
        return replace(found, element=self._element, lengths=lengths) if lengths.count else found


def _join_types(types: str, kind: str) -> str:
    """Return `A or B` for a column of several types; `null` only if no other type is known."""
    known = [one for one in types.split(" or ") if one != "null"]
    return types if kind == "null" or kind in known else " or ".join([*known, kind])
